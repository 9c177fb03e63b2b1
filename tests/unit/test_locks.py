# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Nobody but root takes a lock of the suite, or stands in its way."""

from __future__ import annotations

import ast
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core import locks
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ReadError

ROOT = Path(__file__).resolve().parent.parent.parent
STRANGER = 65533
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    # Whoever cannot get to the directory cannot try either.
    folders = [*reversed(tmp_path.parents)][2:] + [tmp_path]
    modes = [folder.stat().st_mode & 0o7777 for folder in folders]
    for folder in folders:
        folder.chmod(folder.stat().st_mode | 0o011)
    yield Host(str(tmp_path), str(tmp_path))
    for folder, mode in zip(folders, modes, strict=True):
        folder.chmod(mode)


def holds(path: Path) -> bool:
    """Whether a user of the node gets hold of a path's lock, in a process of its own."""
    pid = os.fork()
    if not pid:
        try:
            os.setgroups([])
            os.setresgid(STRANGER, STRANGER, STRANGER)
            os.setresuid(STRANGER, STRANGER, STRANGER)
            for flags in (os.O_RDONLY, os.O_RDWR, os.O_WRONLY, os.O_RDONLY | os.O_CREAT):
                try:
                    fcntl.flock(os.open(path, flags), fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os._exit(0)
                except OSError:
                    pass
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


@ROOT_ONLY
@pytest.mark.parametrize("umask", [0, 0o077])
def test_nobody_else_can_hold_a_lock(host: Host, umask: int) -> None:
    folder = Path(host.system(locks.FOLDER))
    folder.parent.mkdir(mode=0o755)
    old = os.umask(umask)
    try:
        with locks.hold(host, "one.lock"):
            assert not holds(folder)
            assert not holds(folder / "one.lock")
            assert not holds(folder / "new.lock")
            with pytest.raises(BlockingIOError), locks.hold(host, "one.lock", 0.1):
                pass
            with locks.hold(host, "other.lock"):
                pass
    finally:
        os.umask(old)
    assert not holds(folder)
    # The test itself can tell.
    (folder.parent / "open").touch(mode=0o644)
    assert holds(folder.parent / "open")


@ROOT_ONLY
def test_what_an_earlier_release_left_open_is_closed(host: Host) -> None:
    folder = Path(host.system(locks.FOLDER))
    folder.mkdir(parents=True)
    (folder / "one.lock").touch()
    (folder / "one.lock").chmod(0o666)
    folder.chmod(0o755)
    with locks.hold(host, "one.lock"):
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "one.lock")]
    assert modes == [0o700, 0o600]


@ROOT_ONLY
@pytest.mark.parametrize("what", ["folder", "file", "above", "link", "linked file", "pipe"])
def test_what_somebody_else_has_laid_there_is_refused(host: Host, tmp_path: Path, what: str) -> None:
    folder = Path(host.system(locks.FOLDER))
    precious = tmp_path / "precious"
    precious.mkdir()
    precious.chmod(0o755)
    if what == "link":
        folder.parent.mkdir()
        folder.symlink_to(precious)
    else:
        folder.mkdir(parents=True)
    if what == "linked file":
        (folder / "one.lock").symlink_to(precious / "made")
    if what == "pipe":
        os.mkfifo(folder / "one.lock")
        os.chown(folder / "one.lock", STRANGER, -1)
    if what == "file":
        (folder / "one.lock").touch()
        os.chown(folder / "one.lock", STRANGER, -1)
    if what in ("folder", "above"):
        os.chown(folder if what == "folder" else folder.parent, STRANGER, -1)
    with pytest.raises(ReadError, match=r"/run/busbar|one\.lock"), locks.hold(host, "one.lock"):
        pass
    assert stat.S_IMODE(precious.stat().st_mode) == 0o755
    assert list(precious.iterdir()) == []


def test_there_is_no_other_way_to_lock() -> None:
    """Where flock may stand: here; on the control node in directories that are the run's own; on temporary files.

    Those are a run's own from the start, and whoever sweeps them waits for nobody.
    """
    found = {
        str(path.relative_to(ROOT))
        for folder in ("library", "module_utils", "action_plugins", "plugin_utils", "busbar/drift")
        for path in (ROOT / folder).glob("**/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("flock", "lockf")
    }
    # The last of them locks its own file, which lies among the results and is opened through no link.
    of_the_run = {"plugin_utils/run_cache.py", "busbar/drift/lock.py", "plugin_utils/remediation/action_log.py"}
    assert found == {"module_utils/core/locks.py", "module_utils/core/temp_files.py"} | of_the_run
