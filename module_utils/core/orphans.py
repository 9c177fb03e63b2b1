# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""End processes that a tool leaves behind, and remove files of runs that were killed.

The kernel gives orphans to us instead of init (prctl PR_SET_CHILD_SUBREAPER) while a tool runs. A mark in their
environment assigns them to a tool, since tools may run side by side. A file or directory that is being written is
locked, and the lock ends with its process: an unlocked one was left behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import stat
import tempfile
import threading
import time
from typing import Callable, Dict, Iterator, List, Set, Tuple

MARK = "BUSBAR_TOOL"
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
# Seconds: a process that is blocked in the driver does not die, and is not waited for.
_KILL_WAIT = 0.5
_lock = threading.Lock()
_depth = 0
_before = 0
_number = 0
# Children that this process had before the first of the tools that run side by side.
_ours: List[int] = []
# Killed, but still alive when the wait ended.
_dying: Set[int] = set()


def prctl() -> Callable[..., int]:
    function = ctypes.CDLL(None, use_errno=True).prctl

    def call(option: int, argument: object) -> int:
        # All five are machine words; a plain int would be passed as half of one.
        word = ctypes.c_ulong(argument) if isinstance(argument, int) else argument
        return int(function(option, word, ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)))

    return call


# -- processes -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def end_orphans(leaves: bool) -> Iterator[Dict[str, str]]:
    """Yield additions to a tool's environment, and end whatever the tool has left behind afterwards.

    leaves: the tool may start a daemon that stays: then nothing is ended.
    """
    global _number
    if leaves:
        yield {}
        return
    with _lock:
        _number += 1
        mark = "%d.%d" % (os.getpid(), _number)
    _adopt(1)
    try:
        yield {MARK: mark}
    finally:
        try:
            _end(("%s=%s" % (MARK, mark)).encode())
        finally:
            _adopt(-1)


def _adopt(more: int) -> None:
    global _depth, _before
    with _lock:
        _depth += more
        if _depth == 1 and more == 1:
            _dying.difference_update([pid for pid in _dying if _reap(pid)])
            _ours[:] = _children() if has_children() else []
            value = ctypes.c_int()
            prctl()(_PR_GET_CHILD_SUBREAPER, ctypes.byref(value))
            _before = value.value
            prctl()(_PR_SET_CHILD_SUBREAPER, 1)
        elif _depth == 0:
            prctl()(_PR_SET_CHILD_SUBREAPER, _before)
            # Orphans that have ended: init would have reaped them.
            for pid in _children() if has_children() else ():
                if pid not in _ours:
                    _reap(pid)


def _reap(pid: int) -> bool:
    """Reap a child. Return whether it has ended, or was not our child."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _end(mark: bytes) -> None:
    deadline = time.monotonic() + _KILL_WAIT
    killed: Set[int] = set()
    while has_children():
        left = {pid for pid in below(os.getpid()) if mark in _environment(pid)}
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= left
        for pid in killed:
            _reap(pid)
        killed = {pid for pid in killed if os.path.exists("/proc/%d" % pid)}
        if not (left or killed):
            return
        if time.monotonic() >= deadline:
            _dying.update(killed)
            return
        time.sleep(0.01)


def has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _children() -> List[int]:
    return [pid for pid, parent, _state in processes() if parent == os.getpid()]


def _environment(pid: int) -> List[bytes]:
    try:
        with open("/proc/%d/environ" % pid, "rb") as stream:
            return stream.read().split(b"\0")
    except OSError:
        return []


def below(top: int) -> List[int]:
    """Return every living process below one."""
    children: Dict[int, List[Tuple[int, str]]] = {}
    for pid, parent, state in processes():
        children.setdefault(parent, []).append((pid, state))
    found: List[int] = []
    left = children.pop(top, [])
    while left:
        pid, state = left.pop()
        left.extend(children.pop(pid, ()))
        if state != "Z":
            found.append(pid)
    return found


def processes() -> Iterator[Tuple[int, int, str]]:
    """Yield (pid, parent, state letter) of every process, usually the newest first."""
    for pid in sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True):
        try:
            with open("/proc/%d/stat" % pid, "rb") as stream:
                text = stream.read()
        except OSError:
            continue  # it has ended
        # The name, in parentheses, may hold anything, also a parenthesis.
        fields = text.rpartition(b")")[2].split()
        if len(fields) >= 2:
            yield pid, int(fields[1]), fields[0].decode("ascii")


# -- files -----------------------------------------------------------------------------------------------------------


def new_file(folder: str, prefix: str) -> Tuple[int, str]:
    """Return descriptor and path of a new file, locked as long as the descriptor is open. Remove files left behind.

    prefix: unique to this program.
    """
    sweep(folder, prefix)
    while True:
        descriptor, path = tempfile.mkstemp(prefix=prefix, dir=folder)
        if _held(descriptor, path):
            return descriptor, path
        os.close(descriptor)


@contextlib.contextmanager
def new_directory(prefix: str) -> Iterator[str]:
    """Yield a temporary directory that is removed with its content. Remove directories left behind."""
    sweep(tempfile.gettempdir(), prefix)
    while True:
        path = tempfile.mkdtemp(prefix=prefix)
        descriptor = os.open(path, os.O_RDONLY)
        if _held(descriptor, path):
            break
        os.close(descriptor)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def _held(descriptor: int, path: str) -> bool:
    """Lock it. Return False if a cleanup was quicker and it is gone."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return os.path.exists(path)


def sweep(folder: str, prefix: str) -> None:
    """Remove our files and directories with this prefix that no living process locks, as far as possible."""
    for name in os.listdir(folder):
        if name.startswith(prefix):
            with contextlib.suppress(OSError):
                remove(os.path.join(folder, name))


def remove(path: str, age: float = 0.0) -> None:
    """Remove our file or directory. Raises OSError if a process locks it or it changed within ``age`` seconds."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or time.time() - found.st_mtime < age:
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if stat.S_ISDIR(found.st_mode):
            shutil.rmtree(path, ignore_errors=True)
        elif stat.S_ISREG(found.st_mode):
            os.unlink(path)
    finally:
        os.close(descriptor)
