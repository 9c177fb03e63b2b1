# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run a program under a time limit and end every process it has started, in whatever group or session.

A benchmark that is left running holds the GPUs and spoils every run after it. Orphans are given to us instead of init
(prctl PR_SET_CHILD_SUBREAPER), so every process of the program is below us, and having no child proves that none is
left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence, Set, Tuple

from .host import ReadError
from .orphans import below, environment, has_children, prctl, processes, send, set_subreaper

# Variable that is 1 for a process that ends after us, once it has cleaned up.
ENDS_ITSELF = "BUSBAR_ENDS_ITSELF"
_PR_SET_PDEATHSIG = 1
_POLL = 0.05
# Seconds: a launcher passes SIGTERM on to the ranks of other hosts; what outlives this is killed.
TERM_GRACE = 5.0
# Freeing the buffers of eight GPUs takes seconds. What is left after this is blocked in the driver.
KILL_WAIT = 30.0
OUTPUT_LIMIT = 64 * 1024 * 1024


@dataclass(frozen=True)
class Ended:
    """End of a program.

    rc: its exit code, negative for a signal; None if ``ending`` has the reason instead: "timeout", or "overflow" (it
    printed more than the limit; the rest is cut off).
    left_behind: processes that did not die of SIGKILL (uninterruptible sleep) and were abandoned.
    """

    rc: Optional[int]
    ending: str
    seconds: float
    left_behind: Tuple[int, ...] = ()
    pid: int = 0


@dataclass(frozen=True)
class Program:
    """argv, and the new files that its output goes to."""

    argv: Tuple[str, ...]
    stdout: str
    stderr: str


def run(
    argv: Sequence[str],
    cwd: str,
    environment: Mapping[str, str],
    limit: float,
    stdout: str,
    stderr: str,
    output_limit: int = OUTPUT_LIMIT,
) -> Ended:
    """Run ``argv`` for at most ``limit`` seconds, its output in the new files ``stdout`` and ``stderr``.

    environment is all that the program gets. Raises ReadError if it cannot be started, and if the caller has other
    children: they could not be distinguished from the program's orphans.
    """
    return run_all([Program(tuple(argv), stdout, stderr)], cwd, environment, limit, output_limit)[0]


def run_all(
    programs: Sequence[Program],
    cwd: str,
    environment: Mapping[str, str],
    limit: float,
    output_limit: int = OUTPUT_LIMIT,
) -> List[Ended]:
    """Run several programs at once, under one limit. If one cannot be started, all are ended."""
    name = programs[0].argv[0]
    if has_children():
        raise ReadError(name, "was not started: this process has other children")
    try:
        before = set_subreaper(1)
    except OSError as error:
        raise ReadError(name, "was not started: %s" % error.strerror) from error
    start = time.monotonic()
    left: Tuple[int, ...] = ()
    started: List[subprocess.Popen[bytes]] = []
    codes: List[Optional[int]] = []
    try:
        try:
            for program in programs:
                started.append(_start(program, cwd, environment))
            endings = _wait(started, start + limit, programs, output_limit)
        finally:
            codes = [process.poll() for process in started]
            left = end_all()
            for process, code in zip(started, codes):
                # Reaped above, which Popen does not know.
                process.returncode = -signal.SIGKILL if code is None else code
    finally:
        set_subreaper(before)
    found = []
    for program, process, (ending, seen), code in zip(programs, started, endings, codes):
        for path in (program.stdout, program.stderr):
            if os.path.getsize(path) > output_limit:
                os.truncate(path, output_limit)
                ending = ending or "overflow"
        found.append(Ended(None if ending else code, ending, seen - start, left, process.pid))
    return found


def _start(program: Program, cwd: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    control = prctl()
    try:
        with open(program.stdout, "xb") as out, open(program.stderr, "xb") as err:
            return subprocess.Popen(
                list(program.argv),
                cwd=cwd,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                # If we are killed, the kernel ends the program, too (and a launcher its ranks).
                preexec_fn=lambda: control(_PR_SET_PDEATHSIG, int(signal.SIGTERM)),
            )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        why = getattr(error, "strerror", None) or error
        raise ReadError(program.argv[0], "could not be started: %s" % why) from error


def _wait(
    started: Sequence[subprocess.Popen[bytes]], deadline: float, programs: Sequence[Program], output_limit: int
) -> List[Tuple[str, float]]:
    """Return why each program has to be ended, "" if it ended; and when that was seen (monotonic clock)."""
    paths = [path for program in programs for path in (program.stdout, program.stderr)]
    ended: Dict[int, float] = {}
    while True:
        now = time.monotonic()
        running = [process.poll() is None for process in started]
        ended = {number: ended.get(number, now) for number, alive in enumerate(running) if not alive}
        too_much = any(os.path.getsize(path) > output_limit for path in paths)
        why = "timeout" if now >= deadline else "overflow" if too_much else ""
        if why or not any(running):
            return [(why if alive else "", ended.get(number, now)) for number, alive in enumerate(running)]
        time.sleep(_POLL)


# -- the end ---------------------------------------------------------------------------------------------------------


def end_with(parent: int, number: int) -> bool:
    """Have the kernel send us a signal when our parent ends. Return False if ``parent`` is not our parent any more."""
    return prctl()(_PR_SET_PDEATHSIG, int(number)) == 0 and os.getppid() == parent


def end_all(grace: Optional[float] = None, spared: str = "") -> Tuple[int, ...]:
    """Send SIGTERM, and after seconds of grace SIGKILL, to every process below us until none is left.

    spared: name of a variable that is 1 for those that are left alone. Returns the pids that would not die: another
    user's are among them.
    """
    grace = TERM_GRACE if grace is None else grace
    start = time.monotonic()
    warned: Set[int] = set()
    while _any_left(spared) and time.monotonic() < start + grace:
        for pid in below(os.getpid()):
            if pid not in warned and not _is_spared(pid, spared):
                # A stopped process handles SIGTERM only when it continues.
                send(pid, signal.SIGTERM)
                send(pid, signal.SIGCONT)
                warned.add(pid)
        time.sleep(0.02)
    while _any_left(spared):
        if time.monotonic() >= start + grace + KILL_WAIT:
            return tuple(sorted(pid for pid in below(os.getpid()) if not _is_spared(pid, spared)))
        if time.monotonic() >= start + grace + 1:
            time.sleep(_POLL)
        under = set(below(os.getpid()))
        # Newest first, and each at once: a chain of processes that fork and exit outruns a list that is made first.
        for pid, parent, state in processes():
            if state != "Z" and (parent == os.getpid() or parent in under) and not _is_spared(pid, spared):
                send(pid, signal.SIGKILL)
    return ()


def _any_left(spared: str) -> bool:
    return _reap() and not (spared and all(_is_spared(pid, spared) for pid in below(os.getpid())))


def _is_spared(pid: int, spared: str) -> bool:
    return bool(spared) and ("%s=1" % spared).encode() in environment(pid)


def _reap() -> bool:
    """Reap what has ended. Return False if there is no child, living or dead: then nothing below us is left either."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
