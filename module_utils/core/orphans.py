# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""End processes that a tool leaves behind.

The kernel gives orphans to us instead of init (prctl PR_SET_CHILD_SUBREAPER) while a tool runs. A mark in their
environment assigns them to a tool, since tools may run side by side.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
from typing import Callable, Dict, Iterator, List, Set, Tuple

MARK = "BUSBAR_TOOL"
PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37
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


def set_subreaper(value: int) -> int:
    """Give us (1) or init (0) the orphans below us from now on. Return the setting before. Raises OSError."""
    before = ctypes.c_int()
    control = prctl()
    if control(PR_GET_CHILD_SUBREAPER, ctypes.byref(before)) != 0 or control(PR_SET_CHILD_SUBREAPER, value) != 0:
        raise OSError(ctypes.get_errno(), "prctl: %s" % os.strerror(ctypes.get_errno()))
    return before.value


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
            _ours[:] = _children()
            _before = set_subreaper(1)
        elif _depth == 0:
            set_subreaper(_before)
            # Orphans that have ended: init would have reaped them.
            for pid in set(_children()).difference(_ours):
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
        left = {pid for pid in below(os.getpid()) if mark in environment(pid)}
        for pid in left:
            send(pid, signal.SIGKILL)
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


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended, or be another user's by now."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _children() -> List[int]:
    return [pid for pid, parent, _state in processes() if parent == os.getpid()] if has_children() else []


def environment(pid: int) -> List[bytes]:
    """Return NAME=value of each variable that a process was started with; [] if that cannot be read."""
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


def read_stat(pid: int) -> List[bytes]:
    """Return the fields of /proc/PID/stat from the third on, the state. Raises OSError."""
    with open("/proc/%d/stat" % pid, "rb") as stream:
        # The name, in parentheses, may hold anything, also a parenthesis.
        return stream.read().rpartition(b")")[2].split()


def processes() -> Iterator[Tuple[int, int, str]]:
    """Yield (pid, parent, state letter) of every process, usually the newest first."""
    for pid in sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse=True):
        with contextlib.suppress(OSError):  # it has ended
            fields = read_stat(pid)
            if len(fields) >= 2:
                yield pid, int(fields[1]), fields[0].decode("ascii")
