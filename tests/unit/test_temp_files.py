# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Files and directories of runs that were killed; processes that fled are in test_host.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.change import apply
from ansible_collections.busbar.fabric.plugins.module_utils.core import temp_files
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import FileChange

HOLDS = """\
import os, signal, sys, tempfile
sys.path[:0] = {paths!r}
from ansible_collections.busbar.fabric.plugins.module_utils.core import temp_files
tempfile.tempdir = {folder!r}
kept = temp_files.new_file({folder!r}, ".a.conf.busbar-")
with temp_files.new_directory("busbar-test-") as directory:
    open(os.path.join(directory, "x"), "w").close()
    print("ready", flush=True)
    signal.pause()
"""


def holder(folder: Path) -> subprocess.Popen[str]:
    script = HOLDS.format(
        folder=str(folder), paths=sys.path + [str(Path(__file__).resolve().parents[2] / "collections")]
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_what_a_killed_run_left_goes_with_the_next_and_what_is_held_stays(tmp_path: Path) -> None:
    killed, alive = holder(tmp_path), holder(tmp_path)
    (tmp_path / ".a.conf.mine").touch()
    (tmp_path / ".a.conf.busbar-link").symlink_to("/etc/passwd")
    assert len(list(tmp_path.iterdir())) == 6
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    apply.write(Host(str(tmp_path), str(tmp_path)), FileChange("/a.conf", None, "new\n", backup=True))
    temp_files.sweep(str(tmp_path), "busbar-test-")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert [name for name in left if not name.startswith((".a.conf.busbar-", "busbar-test-"))] == [
        ".a.conf.mine",
        "a.conf",
    ]
    assert len(left) == 5  # with the living one's file and directory, and the link, which is not ours
    alive.kill()
    alive.communicate()
    apply.write(Host(str(tmp_path), str(tmp_path)), FileChange("/a.conf", "new\n", None))
    temp_files.sweep(str(tmp_path), "busbar-test-")
    assert sorted(os.listdir(tmp_path)) == [".a.conf.busbar-link", ".a.conf.mine"]


def test_a_directory_is_gone_with_its_block() -> None:
    with temp_files.new_directory("busbar-test-") as directory:
        (Path(directory) / "x").touch()
    assert not os.path.exists(directory)
