# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The command of the lab: wrong input gets a sentence, never a traceback."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lab import command
from lab.containers import Lab
from lab.machine import LabLockedError
from tests import goldens


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "lab", *map(str, arguments)]
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
    assert "Traceback" not in done.stderr
    return done


def called(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what the command prints in this process, and its exit code."""
    code = command.main(shlex.split(words, comments=True))
    printed = "".join(capsys.readouterr())
    return f"== {words!r}: exit code {code}\n{printed.replace(f'{Path.cwd()}/', '')}\n"


# One after another, in one folder: .lab and .demo come to be, too.
LAB = [
    *("create -d lab", "-d lab status", "status -d lab", "-d lab create", "-d empty status"),
    *("-d empty/absent break node01 port-down", "-d file create"),
    *("-d lab break node99 port-down", "-d lab break ../node01 port-down", "-d lab break node01 port-dwon"),
    *("-d lab repair node01 port-down", "-d lab break node01 port-down", "-d lab status"),
    *("-d lab break node01 port-down", "-d lab repair node01 all"),
    *(f"create -d empty/lab --nodes {number}" for number in (0, 1000)),
    *("status", "status # .lab", "status # .demo", "create -d three --nodes 3 --platform hgx-b200"),
]


@pytest.mark.golden
def test_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("file").touch()
    written = []
    for words in LAB:
        if words.endswith(".lab"):
            Path(".lab").mkdir()
        elif words.endswith(".demo"):
            Path(".lab").rmdir()
            Path(".demo").symlink_to("lab")
        written.append(called(words, capsys))
    goldens.text("lab", "".join(written))
    assert not list(Path("empty").iterdir())
    hosts = yaml.safe_load(Path("three/inventory/hosts.yml").read_text())["gpu_nodes"]["hosts"]
    assert {name: host["busbar_platform"] for name, host in hosts.items()} == dict.fromkeys(
        ("node01", "node02", "node03"), "hgx-b200"
    )


@pytest.mark.parametrize(
    "words",
    ["", "brek", "break node01", "up --nodes node99", "up --suite buster", "create --nodes two", "create --platform x"],
)
def test_a_wrong_command_line_is_2(words: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(words.split())


def test_where_there_is_no_podman_there_is_no_lab_to_remove(tmp_path: Path) -> None:
    directory = tmp_path / "lab"
    done = run("down", "-d", directory, PATH=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{directory}: there is no lab\n", "")
    directory.mkdir()
    (directory / "containers.json").write_text("{}")
    done = run("down", "-d", directory, PATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "lab: podman is not installed: apt-get install podman\n")
    assert (directory / "containers.json").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="packages are installed by root")
def test_a_lab_prints_and_installs_its_packages_without_a_terminal(tmp_path: Path) -> None:
    log = tmp_path / "log"
    (tmp_path / "apt-get").write_text(f'#!/bin/sh\necho "$@" >> {log}\n')
    (tmp_path / "apt-get").chmod(0o755)
    done = run("up", "-d", tmp_path / "lab", PATH=str(tmp_path), CI="")
    assert [line.split()[0] for line in log.read_text().splitlines()] == ["update", "install"]
    assert "podman, mmdebstrap" in done.stdout
    # This apt-get installs nothing.
    assert (done.returncode, done.stderr) == (1, "lab: podman is not installed: apt-get install podman\n")
    (tmp_path / "apt-get").write_text("#!/bin/sh\nexit 100\n")
    done = run("up", "-d", tmp_path / "lab", PATH=str(tmp_path), CI="")
    assert (done.returncode, done.stderr) == (1, "lab: apt-get update -qq ended with 100\n")
    assert not (tmp_path / "lab").exists()


def test_a_lock_of_another_run_is_4(monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(_lab: Lab) -> bool:
        raise LabLockedError("another run")

    monkeypatch.setattr(Lab, "down", locked)
    assert command.main(["down"]) == 4
