# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the kernel's log since boot, sorted into series: lines of one rule about one device.

A storm of one GPU hides no other: of each series the first and the last line are stored, with their count.
The ring is read in milliseconds. Where it no longer holds the beginning of the boot (it is of a fixed size, and
``dmesg -C`` clears it), the journal has the rest, from the time that matters on. If that has nothing either, the log is
incomplete, and the judge reports it.
Sources: dmesg(1) of util-linux 2.38, journalctl(1) of systemd 252; printk.c for the forms of a line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..core.finding import printable
from ..core.host import Host, Problem, ReadError, ToolHung, attempt
from . import xid
from .kernel_log_rules import LOADED, WORDS, XID, match_line

DMESG = ("dmesg",)
UPTIME = "/proc/uptime"
# Characters of one line, and of one with the lines that continue it. Series of a log; of one rule.
_TEXT, _JOINED, _SERIES, _OF_A_RULE = 400, 1200, 2000, 400
# Seconds after the boot's first line: what is earlier proves that the ring holds the beginning.
_BEGINNING = 2.0
# Seconds after boot in which journald has started: it then reads the whole ring.
_LATE = 300.0
# Seconds between two lines of a series from which on they are two bursts; from a stall to the last frame of its stack.
_BURST, _STACK = 10.0, 5.0
# ``[   12.345678] text``, with CONFIG_PRINTK_CALLER also ``[   12.345678][  T123] text``. The journal puts the host's
# name and ``kernel:`` before the text. A line of another form has no time, and counts.
_HEAD = re.compile(r"\[ *([0-9]{1,10}\.[0-9]{1,9})\](?:\[ *[TC][0-9]{1,8}\])? ?(?:\S{1,64} kernel: )?(.*)")
# Driver 570 writes these three as one message or as three.
_GPU_HEAD, _GPU_TAIL = "NVRM: The NVIDIA GPU ", ("NVRM: (PCI ID:", "NVRM: fallen off the bus")
# Of one error that the firmware reports, also of PCIe: each line begins with the same number.
_FIRMWARE = re.compile(r"(\{[0-9]{1,9}\}\[Hardware Error\]: )")
# A stalled CPU or task, and frames of its stack, which name the module.
_STALL = re.compile(
    r"lockup|hard LOCKUP|blocked (?:for|in I/O wait)|detected (?:expedited )?stall|self-detected stall|\[#[0-9]"
)
_FRAME = re.compile(
    r"\+0x[0-9a-f]{1,8}/0x[0-9a-f]{1,8} (\[(?:mlx5_|nvidia|ib_|rdma_|nfs|sunrpc|lustre|ptlrpc)\w{0,30}\])"
)
# Seconds that the driver takes from its first GPU to the line of its loading.
_SET_UP = 10.0


class Line(NamedTuple):
    """at: seconds since boot, as the kernel counts them; None where it prints no time.   order: its place."""

    at: Optional[float]
    text: str
    order: int = 0


@dataclass(frozen=True)
class Series:
    """Lines of one rule about one device.   bursts: how many groups of lines, seconds apart from each other."""

    rule: str
    device: str
    first: Line
    last: Line
    count: int = 1
    bursts: int = 1


class Log(NamedTuple):
    """series: by their first lines, oldest first.   uptime: seconds since boot, now; None where it could not be read.

    problem: why it does not go back to the boot, or to the requested time.
    total: lines that were read.   dropped: lines of more devices than are stored.
    """

    series: Tuple[Series, ...] = ()
    uptime: Optional[float] = None
    source: str = "dmesg"
    problem: Optional[Problem] = None
    total: int = 0
    dropped: int = 0

    def age(self, line: Line) -> Optional[float]:
        """Return the seconds since then; None where the log has no time."""
        if line.at is None or self.uptime is None:
            return None
        return max(0.0, self.uptime - line.at)


def parse(text: str, begin: float = 0.0) -> Tuple[Log, Optional[float]]:
    """Return the lines that a rule knows, and the time of the first line of all that has one.

    begin: seconds since boot from which on lines matter.
    """
    records: List[Line] = []
    first: Optional[float] = None
    joins = False
    lines = text.splitlines()
    for order, raw in enumerate(lines):
        wanted = any(word in raw for word in WORDS)
        continues = joins and raw[:1].isspace()
        if not wanted and first is not None and not continues:
            joins = False
            continue
        head = _HEAD.match(raw)
        at = None if head is None else float(head.group(1))
        first = at if first is None else first
        if head is None and continues:
            records[-1] = _joined(records[-1], raw)
            continue
        joins = wanted and _added(records, Line(at, printable((head.group(2) if head else raw)[:_TEXT]), order))
    series, dropped = _sorted(records, begin)
    return Log(series, total=len(lines), dropped=dropped), first


def _added(records: List[Line], line: Line) -> bool:
    """Add a line, or join it to the one that it continues. Return whether it stands at the end."""
    frame = _FRAME.search(line.text)
    if frame is not None:
        recent = range(len(records) - 1, max(-1, len(records) - 6), -1)
        stalls = (index for index in recent if _STALL.search(records[index].text))
        index = next((one for one in stalls if (line.at or 0.0) - (records[one].at or 0.0) <= _STACK), None)
        if index is not None:
            records[index] = _joined(records[index], frame.group(1))
        return False
    firmware = _FIRMWARE.match(line.text)
    if records and line.text.startswith(_GPU_TAIL) and records[-1].text.startswith(_GPU_HEAD):
        records[-1] = _joined(records[-1], line.text)
    elif records and firmware is not None and records[-1].text.startswith(firmware.group(1)):
        records[-1] = _joined(records[-1], line.text[firmware.end() :])
    else:
        records.append(line)
    return True


def _joined(line: Line, more: str) -> Line:
    more = printable(more.strip())
    return line if more in line.text else line._replace(text=("%s %s" % (line.text, more))[:_JOINED])


def _sorted(records: Sequence[Line], begin: float) -> Tuple[Tuple[Series, ...], int]:
    """Return the series of the lines from ``begin`` on, and how many lines belong to series beyond the limits."""
    found: Dict[Tuple[str, str], Series] = {}
    per_rule: Dict[str, int] = {}
    dropped = 0
    for line in records:
        key = None if line.at is not None and line.at < begin else match_line(line.text)
        if key is None:
            continue
        known = found.get(key)
        if known is not None:
            apart = (line.at or 0.0) - (known.last.at or line.at or 0.0) > _BURST
            found[key] = replace(known, last=line, count=known.count + 1, bursts=known.bursts + apart)
        elif len(found) < _SERIES and per_rule.get(key[0], 0) < _OF_A_RULE:
            found[key] = Series(*key, line, line)
            per_rule[key[0]] = per_rule.get(key[0], 0) + 1
        else:
            dropped += 1
    return tuple(found.values()), dropped


def read(host: Host, since: float, now: float) -> Log:
    """Read the lines that a rule knows.

    since: seconds of the epoch from which on every line matters.   now: the same clock.
    """
    uptime = read_uptime(host)
    # If the boot time is unknown, all of the log counts.
    booted = 0.0 if uptime is None else now - uptime
    begin = 0.0 if uptime is None else max(0.0, since - booted)
    try:
        log, first = parse(host.query(DMESG), begin)
    except ReadError as error:
        log, why = Log(), error.problem
    else:
        if first is not None and first <= max(_BEGINNING, begin):
            return log._replace(uptime=uptime)
        text = "has no line with a time (cleared, or printk.time=0)"
        if first is not None:
            text = "begins %.0f s after the boot: what was before is overwritten or cleared" % first
        why = Problem("dmesg", text)
    try:
        # It may begin later, too (rotated, or none at all): a line of any program from before proves that it does not.
        if not _journal(host, "-n", "1", "--reverse", "--until=@%d" % max(since, booted + _LATE)).strip():
            raise ReadError("journalctl -b", "has nothing from before that time")
        text = _journal(host, "-k", "--since=@%d" % max(since, booted), "--grep=%s" % "|".join(map(re.escape, WORDS)))
        return parse(text, begin)[0]._replace(uptime=uptime, source="journalctl -k -b")
    except ReadError as error:
        hung = isinstance(error, ToolHung)
        problem = error.problem if hung else Problem(why.source, "%s; %s" % (why.message, error.problem))
    # What is left of the ring counts all the same.
    return log._replace(uptime=uptime, problem=problem)


def read_uptime(host: Host) -> Optional[float]:
    """Return the seconds since boot; None if they cannot be read."""
    word = (attempt(lambda: host.read(UPTIME), UPTIME, []) or "").split(" ")[0]
    return float(word) if re.fullmatch(r"[0-9]{1,10}(\.[0-9]{1,6})?", word) else None


def _journal(host: Host, *more: str) -> str:
    """Return the output of journalctl, which ends with 1 if nothing matches. Raises ReadError."""
    done = host.run(("journalctl", "-b", "-q", "--no-pager", "-o", "short-monotonic", *more))
    return done.stdout if done.rc == 1 and not done.stderr.strip() else done.answer()


def events(log: Log) -> Tuple[xid.Event, ...]:
    """Return the events of the driver that is loaded; one without a time counts as of now.

    A driver that was loaded anew has set up its GPUs anew: what was before is history. GPUs that it could not set up
    are written just before that line. What a line names as its cause counts as an event where it has none.
    """
    loaded = max((one.last for one in log.series if one.rule == LOADED), key=lambda line: line.order, default=None)
    found: List[xid.Event] = []
    for one in log.series:
        for line, count in ((one.first, 1), (one.last, one.count - 1)):
            event = xid.parse(line.text, log.age(line), count) if one.rule == XID and count else None
            if event is not None and counts(line, loaded, "Xid (" not in line.text):
                found.append(event)
    known = {(event.pci, event.number) for event in found}
    for event in found[:]:
        if event.cause is not None and (event.pci, event.cause) not in known:
            known.add((event.pci, event.cause))
            found.append(xid.Event(event.pci, event.cause, event.text, event.age))
    return tuple(found)


def counts(line: Line, loaded: Optional[Line], at_loading: bool) -> bool:
    """Return whether a line is of the driver that is loaded.   at_loading: it may be of its setting up, just before."""
    if loaded is None or line.order > loaded.order:
        return True
    return at_loading and line.at is not None and loaded.at is not None and loaded.at - line.at <= _SET_UP
