# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A lock per node: two runs that change things never work on one node at the same time.

/run/busbar/lock.json names the holder. It lies in memory, so a reboot frees it. A run that was killed does not hold it:
on its own control node the next run sees that the process has ended, elsewhere the lock's age decides, or a person.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import multiprocessing
import os
import socket
import time
from dataclasses import asdict, dataclass
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Optional, Tuple

from ..core import locks
from ..core.check import Check
from ..core.finding import Finding
from ..core.host import BOOT_ID, Host, ParseError, ReadError
from ..core.orphans import read_stat

PATH = locks.FOLDER + "/lock.json"
# Held while a process reads and writes PATH; seconds to wait for it.
LOCK, PATIENCE = "lock.json.lock", 20.0
_KEYS = {"id": str, "user": str, "control": str, "machine": str, "pid": int, "start": int}

HELD = Check(
    "lock.held", why="runs that write at the same time undo each other's work; this one has changed nothing here"
)
"Is the node free of other runs; nothing is changed on it while one is active"


@dataclass(frozen=True)
class Run:
    """A run of ansible-playbook. id: for people and for comparing, ``20261121T130306Z-4242``.

    control: name of the control node.   machine: distinguishes it from others of that name, and its boots.
    start: when the process was started, in the kernel's ticks since boot; with the pid it is never used again.
    """

    id: str
    user: str
    control: str
    machine: str
    pid: int
    start: int

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return "run %s of %s on %s (pid %d)" % (self.id, self.user, self.control, self.pid)


@dataclass(frozen=True)
class Lock:
    """since: seconds since 1970 by the node's own clock.   run is None where the file cannot be understood."""

    run: Optional[Run]
    since: float

    def __str__(self) -> str:
        at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.since))
        return "%s since %s" % (self.run or "an unknown run (the file cannot be parsed)", at)


class LockResult(NamedTuple):
    """held: whether this run has it now. holder: the run that has it instead, or had it. why: why it was taken over."""

    held: bool
    holder: Optional[Lock] = None
    why: str = ""


def from_dict(data: object) -> Run:
    """Return the Run that ``to_dict`` wrote. Raises ParseError for anything else."""
    if not isinstance(data, Mapping) or not all(isinstance(data.get(key), kind) for key, kind in _KEYS.items()):
        raise ParseError("%.200r does not name a run" % (data,))
    return Run(**{key: data[key] for key in _KEYS})


def parse(text: str) -> Lock:
    """Return the lock that the file holds. Raises ParseError."""
    try:
        data = json.loads(text)
        since = data["since"]
        if type(since) not in (int, float) or not 0 <= since < 1e11:
            raise ParseError("since is %.80r" % (since,))
        return Lock(from_dict(data["run"]), float(since))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ParseError("is not a lock of Busbar: %s" % error) from error


def this_run() -> Run:
    """Return the run that this process belongs to, on the control node: tasks run in children of ansible-playbook."""
    parent = multiprocessing.parent_process()
    pid = parent.pid if parent is not None and parent.pid else os.getpid()
    found = process(pid)
    # The same in each child. Without /proc (macOS) the pid alone has to do, and a lock is freed by its age.
    start, when, boot = 0, "run", "?"
    with contextlib.suppress(OSError):
        with open("/proc/stat", encoding="ascii") as stream:
            booted = float(next(line.split()[1] for line in stream if line.startswith("btime ")))
        start = found[1] if found else 0
        if start:
            when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(booted + start / os.sysconf("SC_CLK_TCK")))
        # A container may have a PID namespace.
        with open(BOOT_ID, encoding="ascii") as stream:
            boot = "%s %s" % (stream.read().strip(), os.readlink("/proc/self/ns/pid"))
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    name = socket.gethostname()
    return Run("%s-%d" % (when, pid), user, name, "%s %s" % (name, boot), pid, start)


def has_ended(run: Run, here: Run) -> bool:
    """Return whether the run has ended, as far as this control node can see; False if it cannot."""
    if run.machine != here.machine or not here.start:
        return False
    found = process(run.pid)
    if found is None:
        # /proc may hide processes of other users (hidepid).
        try:
            os.kill(run.pid, 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:
            pass  # another user's
        return False
    # No start, although this machine has them: a task that outlived its run has taken the lock.
    return found[0] == "Z" or found[1] != run.start


def process(pid: int) -> Optional[Tuple[str, int]]:
    """Return state letter and start of a process of this machine; None if there is none."""
    try:
        fields = read_stat(pid)
        return fields[0].decode("ascii"), int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


# -- on the node -----------------------------------------------------------------------------------------------------


def look(host: Host) -> Optional[Lock]:
    """Return the current lock. Raises ReadError."""
    text = host.read_system(PATH)
    if text is None:
        return None
    try:
        return parse(text)
    except ParseError:
        try:
            return Lock(None, os.stat(host.system(PATH)).st_mtime)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ReadError(PATH, "cannot be read: %s" % error.strerror) from error


def acquire(host: Host, run: Run, minutes: int, over: str, dead: str, dry: bool = False) -> LockResult:
    """Take the lock if it is free or expired. Raises ReadError if it cannot be written.

    minutes: age at which a lock expires.   over: id of a run whose lock an administrator has declared void.
    dead: id of a run that the control node knows to have ended.   dry: return the result without taking it.
    """
    with contextlib.nullcontext() if dry else _held(host, "written"):
        lock = look(host)
        result = LockResult(True)
        if lock is not None and (lock.run is None or (lock.run.id, lock.run.machine) != (run.id, run.machine)):
            age, holder = (time.time() - lock.since) / 60, lock.run.id if lock.run else None
            reasons = {
                "that run was killed": holder == dead,
                "busbar_lock_break names that run": holder == over,
                "that is %d minutes ago, busbar_lock_minutes is %d" % (age, minutes): age >= minutes,
            }
            why = next((reason for reason, holds in reasons.items() if holds), "")
            result = LockResult(bool(why), lock, why)
        if result.held and not dry:
            _write(host.system(PATH), {"run": run.to_dict(), "since": round(time.time(), 3)})
        return result


def release(host: Host, run: Run) -> bool:
    """Remove the lock of this run. Return False if it was not this run's. Raises ReadError."""
    with _held(host, "removed"):
        lock = look(host)
        if lock is None or lock.run is None or lock.run.id != run.id:
            return False
        os.unlink(host.system(PATH))
        return True


@contextlib.contextmanager
def _held(host: Host, what: str) -> Iterator[None]:
    try:
        with locks.hold(host, LOCK, PATIENCE):
            yield
    except OSError as error:
        raise ReadError(PATH, "cannot be %s: %s" % (what, error.strerror)) from error


def _write(path: str, data: Mapping[str, object]) -> None:
    # Atomic, and never through a link.
    new = path + ".new"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="utf-8") as stream:
        json.dump(data, stream)
        stream.write("\n")
    os.replace(new, path)


def judge(answer: LockResult) -> Finding:
    """Return the finding on the lock for the verdict."""
    want = "no other run at work on it"
    if answer.held or answer.holder is None:
        return HELD.judge("the node", "ok", want, "none", PATH)
    fix = "make sure that no other run works on the node; then remove %s on the node, and run it again" % PATH
    if answer.holder.run is not None:
        fix = "run it again when that run has ended; if it is dead, run with -e busbar_lock_break=%s"
        fix %= answer.holder.run.id
    return HELD.judge("the node", "withheld", want, str(answer.holder), PATH, fix)
