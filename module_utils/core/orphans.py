# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a tool leaves behind: processes that fled to a session of their own, and files of runs that were killed.

Orphans are given to us and not to init (prctl PR_SET_CHILD_SUBREAPER) while a tool runs; which of them are its own is
told by a mark in their environment, since tools may run side by side. A file or directory that is being written is
locked, and the lock ends with its process: what nobody holds was left.
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
# What is in the driver's hands does not die, and is not waited for.
_KILL_WAIT = 0.5
_lock = threading.Lock()
_depth = 0
_before = 0
_number = 0
# Our children before the first of the tools that run side by side.
_ours: List[int] = []
# Killed, and not dead yet when it was not waited for any longer.
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
def ended(leaves: bool) -> Iterator[Dict[str, str]]:
    """What a tool's environment gets; behind it whatever the tool has left is ended, too.

    leaves: the tool may start what stays, such as a driver's daemon: then nothing is looked for.
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
            _dying.difference_update([pid for pid in _dying if _take_in(pid)])
            _ours[:] = _children() if has_children() else []
            value = ctypes.c_int()
            prctl()(_PR_GET_CHILD_SUBREAPER, ctypes.byref(value))
            _before = value.value
            prctl()(_PR_SET_CHILD_SUBREAPER, 1)
        elif _depth == 0:
            prctl()(_PR_SET_CHILD_SUBREAPER, _before)
            # What was given to us and has ended: init would have taken it in.
            for pid in _children() if has_children() else ():
                if pid not in _ours:
                    _take_in(pid)


def _take_in(pid: int) -> bool:
    """Whether it is not a child of ours any more."""
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
            _take_in(pid)
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
    """Every living process below one."""
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
    """(pid, parent, state letter) of every process, the newest first as far as pids tell."""
    for pid in sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True):
        try:
            with open("/proc/%d/stat" % pid, "rb") as stream:
                text = stream.read()
        except OSError:
            continue  # it has ended meanwhile
        # The name, in parentheses, may hold anything, also a parenthesis.
        fields = text.rpartition(b")")[2].split()
        if len(fields) >= 2:
            yield pid, int(fields[1]), fields[0].decode("ascii")


# -- files -----------------------------------------------------------------------------------------------------------


def new_file(folder: str, prefix: str) -> Tuple[int, str]:
    """Descriptor and path of a new file, locked as long as the descriptor is open; files that were left are removed.

    prefix: with which no other program's files begin.
    """
    sweep(folder, prefix)
    while True:
        descriptor, path = tempfile.mkstemp(prefix=prefix, dir=folder)
        if _held(descriptor, path):
            return descriptor, path
        os.close(descriptor)


@contextlib.contextmanager
def new_directory(prefix: str) -> Iterator[str]:
    """A directory for temporary files, removed with all that is in it; directories that were left are removed."""
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
    """Locks it. False: somebody who swept was quicker than the lock, and it is gone."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return os.path.exists(path)


def sweep(folder: str, prefix: str) -> None:
    """Removes our own files and directories of that name that no living process holds. What cannot be is left."""
    for name in os.listdir(folder):
        if name.startswith(prefix):
            with contextlib.suppress(OSError):
                remove(os.path.join(folder, name))


def remove(path: str, age: float = 0.0) -> None:
    """A file or directory of ours that no living process holds and that has not changed for ``age`` seconds. OSError
    where a process holds it."""
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
