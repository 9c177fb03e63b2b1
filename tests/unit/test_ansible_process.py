# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from busbar import ROOT, ansible_process


def test_the_configuration_that_counts_where_busbar_was_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
    assert ansible_process.environment()["ANSIBLE_CONFIG"] == str(ROOT / "ansible.cfg")
    (tmp_path / "ansible.cfg").write_text("")
    assert ansible_process.environment()["ANSIBLE_CONFIG"] == str(tmp_path / "ansible.cfg")
    tmp_path.chmod(0o777)
    assert ansible_process.environment()["ANSIBLE_CONFIG"] == str(ROOT / "ansible.cfg")
    monkeypatch.setenv("ANSIBLE_CONFIG", "own.cfg")
    assert ansible_process.environment()["ANSIBLE_CONFIG"] == str(tmp_path / "own.cfg")


def test_there_is_one_way_to_start_ansible() -> None:
    for path in (ROOT / "busbar").rglob("*.py"):
        text = path.read_text()
        if path.name != "ansible_process.py":
            assert "import ansible_runner" not in text, path
            assert "ANSIBLE_CONFIG" not in text, path
            # Whatever runs one of Ansible's programs has it from there.
            assert '"ansible-inventory"' not in text or "reaped(argv), env=environment()" in text, path


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("code", "rc"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_a_kept_program_ends_as_it_would_alone(apart: bool, code: str, rc: int) -> None:
    done = subprocess.run(ansible_process.reaped([sys.executable, "-c", code], apart), check=False)
    assert done.returncode == rc


def test_a_program_that_is_not_there_is_named() -> None:
    done = subprocess.run(ansible_process.reaped(["no-such-program"]), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (127, "no-such-program: No such file or directory\n")


@pytest.mark.parametrize("apart", [False, True])
def test_a_daemon_that_a_program_leaves_behind_ends_with_it(apart: bool, tmp_path: Path) -> None:
    code = f"trap '' TERM HUP; setsid sh -c 'trap \"\" TERM HUP; sleep 300 & echo $! >{tmp_path}/pid; wait' &"
    code += f" while ! test -s {tmp_path}/pid; do sleep 0.05; done"
    assert subprocess.run(ansible_process.reaped(["sh", "-c", code], apart), check=False).returncode == 0
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_a_keeper_that_is_killed_takes_its_program_along(tmp_path: Path) -> None:
    """As ansible-runner ends a run: SIGKILL to the group of what it has started."""
    argv = ansible_process.reaped(["sh", "-c", f"echo $$ >{tmp_path}/pid; exec sleep 300"], apart=True)
    with subprocess.Popen(argv, start_new_session=True) as keeper:
        deadline = time.monotonic() + 300
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(keeper.pid, signal.SIGKILL)
        keeper.wait()
        while Path("/proc", (tmp_path / "pid").read_text().strip()).exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
