# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The test bed itself, where no fault of tests/fabric/test_faults.py would show that it is wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from .planes import wait

ROOT = Path(__file__).resolve().parent.parent.parent
KILLED = """
import sys, time
from pathlib import Path
from tests.fabric import planes
from tests.fabric.description import names, rail_optimised
with planes.planes(rail_optimised("tree", 1, names(2), [0]), top=Path(sys.argv[1])) as [plane]:
    print(plane.process.pid, plane.managers[0].process.pid, flush=True)
    time.sleep(600)
"""


def test_nothing_is_left_of_a_test_that_is_killed(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as test:
        assert test.stdout
        pids = [int(word) for word in test.stdout.readline().split()]
        programs = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids]
        test.send_signal(signal.SIGKILL)
        test.wait(30)
    assert programs == ["ibsim", "opensm"]
    wait("the processes to end", lambda: not any(_runs(pid) for pid in pids))


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z" and os.path.exists(f"/proc/{pid}")
