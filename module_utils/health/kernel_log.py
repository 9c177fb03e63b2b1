# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Lines of the kernel's log since boot that hold one of some words: from its ring buffer, else from the journal.

The ring is read in milliseconds. Where it no longer holds the beginning of the boot (it is of a fixed size, and
``dmesg -C`` clears it), the journal is asked for the rest, from the time that matters on. Where that has nothing
either, the log is incomplete, and whoever judges it has to say so.
Sources: dmesg(1), journalctl(1) of systemd 252; printk.c for the forms of a line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from ..core.host import Host, Output, Problem, ReadError, ToolHung

DMESG = ("dmesg",)
UPTIME = "/proc/uptime"
# Lines that are kept, the last of them: a GPU in trouble writes thousands. Characters of one.
_LINES, _TEXT = 2000, 400
# Seconds after the boot's first line: what is earlier proves that the ring holds the beginning.
_BEGINNING = 2.0
# ``[   12.345678] text``, with CONFIG_PRINTK_CALLER also ``[   12.345678][  T123] text``; the journal puts the host's
# name and ``kernel:`` before the text.
_LINE = re.compile(r"\[ *([0-9]{1,10}\.[0-9]{1,9})\](?:\[ *[TC][0-9]{1,8}\])? ?(?:\S+ kernel: )?(.*)")


@dataclass(frozen=True)
class Line:
    """at: seconds since boot, as the kernel counts them; None where it prints no time."""

    at: Optional[float]
    text: str


@dataclass(frozen=True)
class Log:
    """lines: oldest first.   uptime: seconds since boot, now; None where it could not be read.

    complete: it goes back to the boot, or to the time that was asked for.   problem: why it is not.
    """

    lines: Tuple[Line, ...] = ()
    uptime: Optional[float] = None
    source: str = "dmesg"
    complete: bool = True
    problem: Optional[Problem] = None

    def age(self, line: Line) -> Optional[float]:
        """Seconds since then; None where nobody knows."""
        if line.at is None or self.uptime is None:
            return None
        return max(0.0, self.uptime - line.at)


def parse(text: str, words: Sequence[str]) -> Tuple[List[Line], Optional[float]]:
    """(lines with one of the words, time of the first line of all that has one)."""
    found: List[Line] = []
    first: Optional[float] = None
    for line in text.splitlines():
        if first is not None and not any(word in line for word in words):
            continue
        match = _LINE.match(line)
        at = None if match is None else float(match.group(1))
        if first is None:
            first = at
        if any(word in line for word in words):
            found.append(Line(at, (line if match is None else match.group(2))[:_TEXT]))
    return found[-_LINES:], first


def read(host: Host, words: Sequence[str], since: float, now: float) -> Log:
    """since: seconds of the epoch from which on every line matters.   now: the same clock."""
    uptime = _uptime(host)
    try:
        text = host.ask(DMESG)
    except ReadError as error:
        return _of_journal(host, words, since, now, uptime, error.problem)
    lines, first = parse(text, words)
    if first is not None and uptime is not None and first > max(_BEGINNING, uptime - (now - since)):
        why = Problem("dmesg", "begins %.0f s after the boot: what was before is overwritten or cleared" % first)
        return _of_journal(host, words, since, now, uptime, why, lines)
    return Log(tuple(lines), uptime)


def _uptime(host: Host) -> Optional[float]:
    try:
        word = (host.read(UPTIME) or "").split(" ")[0]
        return float(word) if re.fullmatch(r"[0-9]{1,10}(\.[0-9]{1,6})?", word) else None
    except ReadError:
        return None


def _of_journal(
    host: Host,
    words: Sequence[str],
    since: float,
    now: float,
    uptime: Optional[float],
    why: Problem,
    ring: Sequence[Line] = (),
) -> Log:
    """What the journal has from ``since`` on, or what is left of the ring, which is incomplete then."""
    begin = since if uptime is None else max(since, now - uptime)
    argv = ("journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-monotonic")
    try:
        # ``--grep`` ends with 1 where nothing matches, and where there is no journal: a line of any kind tells which.
        proof = _asked(host, (*argv, "-n", "1"))
        if not proof.strip():
            raise ReadError("journalctl -k -b", "has nothing of this boot's kernel log")
        text = _asked(host, (*argv, "--since=@%d" % begin, "--grep=%s" % "|".join(map(re.escape, words))))
    except ToolHung as error:
        return Log(tuple(ring), uptime, complete=False, problem=error.problem)
    except ReadError as error:
        said = Problem(why.source, "%s; %s" % (why.message, error.problem))
        return Log(tuple(ring), uptime, complete=False, problem=said)
    return Log(tuple(parse(text, words)[0]), uptime, "journalctl -k -b")


def _asked(host: Host, argv: Sequence[str]) -> str:
    """Raises ReadError."""
    done: Output = host.run(argv)
    if done.rc not in (0, 1) or (done.rc == 1 and done.stderr.strip()):
        return done.answer()
    return done.stdout
