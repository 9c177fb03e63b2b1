# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Nodes that answer without end, too much or too slowly, beside honest ones."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.site.conftest import Play

# What stands for a node's python3. What is said on the way, and what is left when nobody listens any more, differ.
ANSWERS = {
    "endless": "exec yes xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    "gigabyte": "cat >/dev/null; head -c 1000000000 /dev/zero | tr '\\0' x",
    "slow": "trap '' TERM; while :; do printf x; sleep 1; done",
}
# An honest host needs 5 s of a quiet core, and shares it here.
LIMIT = 90
MOST = 300e6


@pytest.fixture
def inventory(lab: Path, tmp_path: Path) -> Path:
    path = lab / "inventory" / "hosts.yml"
    hosts = yaml.safe_load(path.read_text())["gpu_nodes"]["hosts"]
    for name, script in ANSWERS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
        hosts[name] = {**hosts["node01"], "ansible_python_interpreter": str(tmp_path / name)}
    path.write_text(yaml.safe_dump({"gpu_nodes": {"hosts": hosts}}))
    return path.parent


def resident(word: str) -> dict[int, int]:
    """Process -> bytes in memory, of those whose command line has the word. What forks share is counted once."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if word.encode() in (path / "cmdline").read_bytes():
                [line] = [line for line in (path / "smaps_rollup").read_text().splitlines() if line.startswith("Pss:")]
                found[int(path.name)] = int(line.split()[1]) * 1024
    return found


def left(word: str) -> dict[int, int]:
    """As resident, of those that have not ended within 100 s: who writes to nobody hears of it with the next byte."""
    end = time.monotonic() + 100
    while (found := resident(word)) and time.monotonic() < end:
        time.sleep(0.1)
    return found


@contextlib.contextmanager
def highest(word: str) -> Iterator[list[int]]:
    """The most that all of them together had at a time."""
    most, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            most[0] = max(most[0], sum(resident(word).values()))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


def test_no_answer_costs_the_control_node_its_memory_or_another_host_its_verdict(
    inventory: Path, play: Play, tmp_path: Path
) -> None:
    honest, mixed = tmp_path / "honest.json", tmp_path / "mixed.json"
    arguments = ("-i", inventory, "--check", "-e", f"drift_host_timeout={LIMIT}", "-e")
    play(*arguments, f"busbar_findings_path={honest}", "--limit", "node*", playbook="playbooks/drift.yml")
    begin = time.monotonic()
    # Ansible's own processes, and not the programs of the nodes that are here as well.
    with highest(str(inventory)) as most:
        run = play(*arguments, f"busbar_findings_path={mixed}", playbook="playbooks/drift.yml")
    assert run.rc == 2
    # For ever, without the limit.
    assert time.monotonic() - begin < LIMIT + 600
    assert most[0] < MOST
    hosts = json.loads(mixed.read_text())["hosts"]
    alone = json.loads(honest.read_text())["hosts"]
    for of_run in (alone, hosts):
        for host in of_run.values():
            # How many hosts were compared is a note; the values of counters are of one run.
            del host["notes"], host["evidence"]
    assert alone == {name: hosts[name] for name in ("node01", "node02")}
    said = {name: hosts[name]["findings"][0]["have"].removeprefix("failed: ") for name in ANSWERS}
    assert said == {
        "endless": "its result is not valid: more than 1 MiB",
        "gigabyte": "its result is not valid: more than 1 MiB",
        "slow": f"did not respond within {LIMIT} s and was left behind",
    }
    assert left(str(tmp_path)) == {}


@pytest.mark.long
def test_an_ordinary_task_reads_no_more_and_waits_no_longer_either(inventory: Path, play: Play, tmp_path: Path) -> None:
    """After the question to all hosts, which goes without an answer of these two."""
    limit = json.dumps({"busbar_task_timeout": LIMIT, "drift_host_timeout": LIMIT})
    arguments = ("-i", inventory, "--check", "--tags", "platform", "--limit", "node01,endless,slow", "-e", limit, "-v")
    with highest(str(inventory)) as most:
        run = play(*arguments)
    assert most[0] < MOST
    assert "its result is not valid: more than 8 MiB" in run.verdict
    assert f"Timed out after {LIMIT} second(s)" in " ".join(run.verdict.split())
    assert "1 of 3 hosts ok" in run.verdict
    assert left(str(tmp_path / "slow")) == {}
