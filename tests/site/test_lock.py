# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Two runs at once on the same nodes: one works, the other says so and changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import store

ROOT = Path(__file__).resolve().parent.parent.parent
Play = Callable[..., Any]
# Above what update-grub does: it waits while there is a file beside it.
WAIT = '#!/bin/sh\nwhile [ -e "$0.hold" ]; do sleep 0.1; done\n'
Start = Callable[[], "subprocess.Popen[str]"]
# One role that waits and one that writes a file are enough to see who works.
ON_NODE01 = ("--limit", "node01", "--tags", "iommu,nccl_conf")


class Node:
    """node01, whose next boot lacks an argument: a run has to call update-grub."""

    def __init__(self, lab: Path) -> None:
        store.break_(lab, "node01", "grub-forgetful")
        self.root = lab / "node01/sys"
        self.tool = self.root / "usr/sbin/update-grub"
        self.lock = self.root / "run/busbar/lock.json"
        self.conf = self.root / "etc/nccl.conf"
        self.tool.write_text(WAIT + self.tool.read_text())
        self.held = Path(f"{self.tool}.hold")

    def write(self, since: float, machine: str = "elsewhere") -> None:
        run = {"id": "run-1", "user": "ann", "control": "ctl2", "machine": machine, "pid": 1, "start": 1}
        self.lock.parent.mkdir(parents=True, exist_ok=True)
        self.lock.write_text(json.dumps({"run": run, "since": since}))


@pytest.fixture
def node(lab: Path) -> Node:
    return Node(lab)


@pytest.fixture
def run(lab: Path, play: Play) -> Play:
    """Plays site.yml on node01; its part of the findings, with the output as "out"."""

    def play_it(*arguments: str) -> dict[str, Any]:
        path = lab / "findings.json"
        done = play(*ON_NODE01, "-i", lab / "inventory", "-e", f"busbar_findings_path={path}", *arguments)
        return {**json.loads(path.read_text())["hosts"]["node01"], "out": done.out}

    return play_it


@pytest.fixture
def start(lab: Path, node: Node, tmp_path: Path) -> Iterator[Start]:
    """Starts a run of site.yml that hangs in update-grub, and comes back when it has the node."""
    runs = []

    def begin() -> subprocess.Popen[str]:
        node.held.touch()
        environment = {**os.environ, "HOME": str(tmp_path), "ANSIBLE_HOME": str(tmp_path / "first"), "COLUMNS": "160"}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        argv = ["ansible-playbook", str(ROOT / "site.yml"), "-i", str(lab / "inventory"), *ON_NODE01]
        with (tmp_path / "first.log").open("w") as out:
            first = subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=out, stderr=out, text=True)
        runs.append(first)
        deadline = time.monotonic() + 120
        while not node.lock.exists():
            assert first.poll() is None, (tmp_path / "first.log").read_text()
            assert time.monotonic() < deadline, "it did not take the lock in two minutes"
            time.sleep(0.05)
        return first

    yield begin
    # What a killed run has started goes on until then.
    node.held.unlink(missing_ok=True)
    for first in runs:
        first.kill()
        first.wait()


def checks(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Of causes; what follows from one is not said apart."""
    return [(f["check"], f["state"]) for f in found["findings"] if f["because"] is None]


def test_of_two_runs_one_works_and_the_other_says_so(node: Node, start: Start, run: Play, tmp_path: Path) -> None:
    first = start()
    holder = json.loads(node.lock.read_text())["run"]
    second = run()
    assert checks(second) == [("lock.held", "withheld")]
    assert (
        f"run {holder['id']} of {holder['user']} on {holder['control']} (pid {first.pid})"
        in (second["findings"][0]["have"])
    )
    assert f"busbar_lock_break={holder['id']}" in second["findings"][0]["fix"]
    assert second["repaired"] == []
    assert not node.conf.exists()
    # One that only looks is in nobody's way, and says that what it sees may be half done.
    checked = run("--check")
    assert "lock.held" not in dict(checks(checked))
    assert any(holder["id"] in note for note in checked["notes"])
    assert json.loads(node.lock.read_text())["run"] == holder
    node.held.unlink()
    assert first.wait(120) == 0, (tmp_path / "first.log").read_text()
    assert node.conf.exists()
    assert not node.lock.exists()


def test_a_killed_run_does_not_keep_the_node(node: Node, start: Start, run: Play) -> None:
    first = start()
    holder = json.loads(node.lock.read_text())["run"]
    first.kill()
    first.wait()
    assert node.lock.exists()
    node.held.unlink()
    third = run()
    assert checks(third) == []
    assert any(holder["id"] in note and "that run was killed" in note for note in third["notes"])
    assert node.conf.exists()
    assert not node.lock.exists()


@pytest.mark.long
def test_a_role_that_fails_gives_the_node_back(node: Node, run: Play) -> None:
    node.tool.write_text("#!/bin/sh\necho no space left >&2\nexit 1\n")
    found = run()
    assert ("run.iommu", "unknown") in checks(found)
    assert not node.lock.exists()


def test_a_node_that_dies_in_the_middle_is_in_the_verdict(node: Node, run: Play, tmp_path: Path) -> None:
    """Not even its lock can be given back: it leaves the play, which has no other host."""
    dead, python = tmp_path / "dead", tmp_path / "python"
    node.tool.write_text(f"#!/bin/sh\ntouch {dead}\nexit 1\n")
    python.write_text(f'#!/bin/sh\n[ ! -e {dead} ] || kill -9 $$\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    found = run("-e", f"ansible_python_interpreter={python}")
    assert ("run.iommu", "unknown") in checks(found)


@pytest.mark.long
def test_the_lock_of_another_control_node_is_broken_by_its_age_or_by_name(node: Node, run: Play) -> None:
    node.write(time.time() - 3600)
    for arguments in ([], ["-e", "busbar_lock_break=run-2"]):
        found = run(*arguments)
        assert checks(found) == [("lock.held", "withheld")]
        assert "run run-1 of ann on ctl2" in found["findings"][0]["have"]
    assert not node.conf.exists()
    assert any("busbar_lock_break names that run" in n for n in run("-e", "busbar_lock_break=run-1")["notes"])
    assert node.conf.exists()
    node.write(time.time() - 3600)
    found = run("-e", '{"busbar_lock_minutes": 59}')
    assert checks(found) == []
    assert any("busbar_lock_minutes is 59" in note for note in found["notes"])
