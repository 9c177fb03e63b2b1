# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Labs that come and go: killed half way, two at once, in a directory of somebody's."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab import containers

from .conftest import ROOT, busbar


def podman(*arguments: str) -> set[str]:
    return set(subprocess.run(["podman", *arguments], capture_output=True, text=True, check=True).stdout.split("\n"))


def everything(directory: Path) -> set[str]:
    """All that podman has of one lab; others may come and go meanwhile. Images are no part of a lab."""
    name = containers.Lab(directory).name
    lists = (("ps", "--all", "--format", "{{.Names}}"), ("network", "ls", "--format", "{{.Name}}"))
    return {entry for words in lists for entry in podman(*words) if entry.startswith(name)}


def test_killed_half_way_the_next_up_completes_and_down_leaves_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "lab"
    # The first lab of a machine installs podman.
    volumes = podman("volume", "ls", "--format", "{{.Name}}") if shutil.which("podman") else set()
    argv = [sys.executable, "-m", "lab", "up", "-d", str(directory), "--nodes", "node01"]
    for moment in ("containers.json", "node01/share"):
        with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True) as process:
            while not (directory / moment).exists() and process.poll() is None:
                time.sleep(0.01)
            os.killpg(process.pid, signal.SIGKILL)
    done = busbar("up", "-d", directory, "--nodes", "node01")
    assert done.returncode == 0, done.stderr
    assert busbar("status", "-d", directory).stdout == "node01: running, healthy (simulated)\n"
    assert everything(directory) == {containers.Lab(directory).container("node01"), containers.Lab(directory).name}
    assert busbar("down", "-d", directory).stdout == f"{directory}: removed\n"
    assert everything(directory) == set()
    assert podman("volume", "ls", "--format", "{{.Name}}") <= volumes
    assert not directory.exists()
    assert busbar("down", "-d", directory).stdout == f"{directory}: there is no lab\n"


@pytest.mark.long
def test_two_at_once_do_not_meet(tmp_path: Path) -> None:
    directory = tmp_path / "lab"
    first = [sys.executable, "-m", "lab", "up", "-d", str(directory), "--nodes", "node01"]
    with subprocess.Popen(first, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        while not (directory / "containers.json").exists() and process.poll() is None:
            time.sleep(0.01)
        for action in ("up", "down"):
            refused = busbar(action, "-d", directory)
            assert (refused.returncode, "another python3 -m lab" in refused.stderr) == (4, True)
    assert process.returncode == 0
    assert busbar("down", "-d", directory).returncode == 0


def test_a_directory_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    for action in ("up", "down"):
        done = busbar(action, "-d", tmp_path)
        assert done.returncode == 1
        assert str(tmp_path) in done.stderr
    assert (tmp_path / "precious").read_text() == "x"
