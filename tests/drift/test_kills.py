# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a command started ends with it, by whatever process of its tree and at whatever moment SIGKILL comes.

BUSBAR_TEST_KILLS: how many, for each of the two commands.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.drift.conftest import argv, environment, hosts_of, write_inventory
from tests.processes import marked
from tests.sshd import sshd

KILLS = int(os.environ.get("BUSBAR_TEST_KILLS", "3"))
# Seconds until all has to be gone.
LIMIT = 10.0
# Seconds in which a kill comes: beyond them every worker is at its question.
SPAN = 6.0
NAME = "BUSBAR_TEST_MARK"


@pytest.fixture
def inventory(lab: Path, tmp_path: Path) -> Iterator[Path]:
    """A node that answers, one that never does, and one behind ssh, whose master is a daemon and outlives its run."""
    (top := tmp_path / "ssh").mkdir()
    hung = lab / "hung"
    # Whoever ignores SIGTERM and SIGHUP, in a session of its own.
    hung.write_text("#!/bin/sh\ntrap '' TERM HUP\nsetsid sleep 600 &\nwait\nsleep 600\n")
    hung.chmod(0o755)
    hosts = hosts_of(lab)
    with sshd(top) as reached:
        reached["ansible_host_key_checking"] = False
        node = {"ansible_connection": "local", "ansible_python_interpreter": str(hung)}
        more = {"node03": {**hosts["node01"], **node}, "node04": {**hosts["node02"], **reached}}
        yield write_inventory(lab / "inventory", {**hosts, **more})


def ansible(mark: str, parent: int) -> int | None:
    """The ansible-playbook or ansible that has workers, or would have them."""
    names = ("ansible-playbook ", "ansible ")
    started = [pid for pid, line in marked(NAME, mark).items() if any(f"/bin/{name}" in line for name in names)]
    return min((pid for pid in started if pid != parent), default=None)


@pytest.mark.parametrize("command", ["drift", "check"])
def test_nothing_outlives_a_command_that_is_killed(command: str, inventory: Path, tmp_path: Path) -> None:
    words = [command, "-i", str(inventory), *(["--host-timeout", "120"] if command == "drift" else [])]
    silent: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    late = 0.0
    for number in range(KILLS):
        mark = uuid.uuid4().hex
        given = environment(tmp_path, **{NAME: mark})
        with subprocess.Popen(argv(*words), cwd=tmp_path, env=given, **silent) as run:
            time.sleep(chance.uniform(0, SPAN))
            victim = run.pid if number % 2 == 0 else _wait_for(lambda: ansible(mark, run.pid), run)  # noqa: B023
            os.kill(victim, signal.SIGKILL)
            killed = time.monotonic()
            while (left := marked(NAME, mark)) and time.monotonic() < killed + LIMIT:
                time.sleep(0.1)
            late = max(late, time.monotonic() - killed)
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        assert not left, f"seed {seed}, kill {number} of {'busbar' if victim == run.pid else 'ansible'}: {left}"
        assert run.returncode == (-signal.SIGKILL if victim == run.pid else 1)
    print(f"{KILLS} kills of busbar {command}: the last process was gone after {late:.1f} s")


def _wait_for(what: Callable[[], int | None], run: subprocess.Popen[Any]) -> int:
    deadline = time.monotonic() + 120
    while (found := what()) is None:
        assert run.poll() is None, "it ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found
