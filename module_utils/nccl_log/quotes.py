# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a log itself says of failures: its lines, each kind once, with who wrote them, how often, and where first.

A line is kept as it stands, cut, and it is hostile: who prints it makes it printable. Lines that differ by numbers
alone are one quote, so that a line of 4,096 ranks is reported once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Set, Tuple

from . import signals
from .signal_noise import noise
from .tracebacks import FRAME, Traceback, called
from .words import own_words

# Quotes that are kept, characters of each, keys of lines that are known, and ranks or processes of a quote.
QUOTES, LONGEST, KNOWN, NAMED = 300, 420, 20_000, 4096
# Of a longer line its end is kept, too: launchers print a command of any length before what they say of it.
_END = 120
# Beyond them deaths of processes, by words that most of them have.
DEATHS = 40
_GRAVE = re.compile(
    r"signal|[Kk]illed|died|OOM|oom|exit ?code|terminate called|core dumped|CANCELLED|Unhandled exception"
)
_ENDS = re.compile(r"(?:signal|code|status)\W{0,10}(\d{1,3})\b", re.IGNORECASE)
# Lines behind an error that go with it, and characters of all of them.
_BEHIND, _WITH_IT = 3, 240
# Characters of a line of a list of ranks, and how many more than those of such lines there may be.
_LISTED, _LISTS = 24, 8
# How many lines of others may stand between a frame of a traceback and the program's text below it.
_NEAR = 40
# Sources of calls: prefixes of lines, calls of each.
_TRACES, _CALLS = 256, 40

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|[0-9a-f]{16,}|\d+")
_RANK = re.compile(
    r"\[rank ?(\d{1,8})\]|\[(?:[^\]]{0,80} )?Rank (\d{1,8})\]|\[\d{1,7},(\d{1,8})\]<|^(\d{1,7}): |"
    r"(?<!from )(?<!to )(?<!with )(?<!for )(?<!by )(?<!of )(?<!and )(?<!peer )(?<!remote )(?<!while )(?<!between )"
    r"\brank[=: ]{1,3}(?P<said>\d{1,8})\b"
)
_HOSTS = (
    # Crash handlers and launchers: [HOST:PID ...]; Ray: (NAME pid=1, ip=...).
    re.compile(
        r"\[(?P<host>(?!\d{4}-\d\d-)(?![\w.-]{1,200}\.(?:py|cc|cpp|cu|c|h|go|rs):)[\w.-]{0,60}[A-Za-z][\w.-]{0,200}):"
        r"(?P<pid>\d{1,10})(?:[ :\]])"
    ),
    re.compile(r"\([\w. =:-]{0,80}?\bpid=(?P<pid>\d{1,10})(?:, ip=(?P<host>[\w.:-]{1,64}))?\)"),
    re.compile(r"Worker IP address: (?P<host>[\w.:-]{1,120})"),
    re.compile(r"(?:^|error: )(?P<host>[A-Za-z][\w.-]{1,120}): (?:[Tt]ask|Test )"),
    re.compile(r"^ ?\.\. (?P<host>[\w.-]{1,120}) pid (?P<pid>\d{1,10})"),
    re.compile(r"\bPID (?P<pid>\d{1,10}) on node (?P<host>[\w.-]{1,120})"),
    re.compile(r"\bon (?:host|node) (?P<host>[\w.-]{1,120})"),
)
_KERNEL = re.compile(r"(?P<name>[A-Za-z_]\w{2,120})\[[^\]]{0,120}\]\($")
# Files that are no program's own.
_LIBRARY = re.compile(r"(?:site|dist)-packages/|/lib\d{0,2}/python|/bin/|^<")
# Calls that stand between those of interest.
_WRAPPERS = {"wrapper", "inner", "<lambda>", "__call__", "_call_impl", "_wrapped_call_impl", "decorate_context", "_fn"}
_WRAPPERS |= {"wrapped", "inner_wrapper", "_wrapper", "run_method", "_bootstrap", "<module>"}
# Lines that are alike of which is told how they differ.
_OTHERS = 6
_TABLE = re.compile(r"^[\s|=+*^~-]*$")
_TAIL = re.compile(r"\W{0,4}(?:Log tail|Tail of .{1,60}|Last \d{1,5} lines(?: of .{1,60})?)\W{0,4}$", re.IGNORECASE)
_TOLD_FIRST = "the launcher of the process reports its end here; the lines below are what it had printed before that"
# What a quote is of which the exception itself is not in the log.
CUT_OFF = "an exception in Python, raised out of these calls; its type and text are cut off here"


@dataclass
class Quote:
    """A line, or what several lines have in common. kind, about: as in signals.Class.   nccl: NCCL wrote it.

    source, order: of the first one, as in Reported.   last: order of the last one.   count: how many.
    by: who wrote the first one, of NCCL's.   others: words by which the first ones that are alike differ from it.
    behind: the lines that follow it and go with it.   calls: of a traceback, the outermost first.
    kernel: of the program, at whose launch an exception came.   own: the last line of its own files in that traceback.
    """

    kind: str
    text: str
    about: str
    source: int
    order: int
    nccl: bool = False
    place: str = ""
    count: int = 1
    last: int = 0
    ranks: Set[int] = field(default_factory=set)
    hosts: Set[str] = field(default_factory=set)
    pids: Set[str] = field(default_factory=set)
    by: str = ""
    behind: List[str] = field(default_factory=list)
    others: List[str] = field(default_factory=list)
    calls: Tuple[str, ...] = ()
    kernel: str = ""
    own: str = ""

    @property
    def trail(self) -> str:
        """``main > step > isend (the program's own line: ring.py:19)``."""
        return " > ".join(self.calls) + (" (the program's own line: %s)" % self.own if self.own else "")


class Quotes:
    """``line`` for lines of programs, ``nccl`` for NCCL's own; ``all`` in the order of their first appearance."""

    def __init__(self) -> None:
        # Key of a line -> its quote; None of what is no report of anything.
        self._known: Dict[str, Optional[Quote]] = {}
        self._kept: List[Quote] = []
        self._traces: Dict[str, List[str]] = {}
        self._own: Dict[str, str] = {}
        # The quote that lines behind it may belong to, the line after which, and how many more.
        self._open: Optional[Quote] = None
        self._after, self._left = 0, 0
        # What stood before the last frame of a traceback, and its line: the program's own text follows there.
        self._frame: Tuple[str, int] = "", -_NEAR
        # What the last line of a program's source calls, and its number.
        self._code: Tuple[str, int] = "", 0
        # Line of Python's word that it ignores the exception whose traceback follows.
        self._ignored = -_NEAR
        self.left_out = 0

    @property
    def all(self) -> List[Quote]:
        return sorted(self._kept, key=lambda one: (one.source, one.order))

    @property
    def full(self) -> bool:
        """Whether nothing but deaths is kept of what was not met before."""
        return len(self._kept) >= QUOTES

    def begins(self, prefix: str) -> None:
        """Takes the begin of a traceback: what was called before is of another one. prefix: what stands before it."""
        self._traces.pop(prefix.strip()[-80:], None)
        self._own.pop(prefix.strip()[-80:], None)

    def passed_over(self, text: str) -> bool:
        """Whether a line adds nothing, as there is no room for another quote; it is counted then."""
        own = text.strip()
        if not self.full or _key(own) in self._known or _GRAVE.search(own[:LONGEST]):
            return False
        self.left_out += 1
        return True

    def waits(self, order: int) -> bool:
        """Whether the line of this number may be a part of a quote."""
        return self._open is not None and order == self._after + 1

    def code(self, text: str, order: int) -> None:
        """Takes a line that is indented: a call, where it is of a program's source."""
        self._code = called(text), order

    def behind(self, text: str, order: int) -> bool:
        """Takes the line behind a quote as its part, where it is one."""
        said, own = self._open, text.strip().replace("\t", " ")
        if said is None:
            return False
        if said.kind == signals.DEATH and _TAIL.match(own):
            # Who started a process tells its end, and then what it printed before it.
            said.kind, said.about = signals.WARNING, _TOLD_FIRST
            self._open = None
            return False
        mine = (text[:1] in " \t" and own[:1] != "[") or said.text.endswith(":") or said.behind
        # The same of another rank or process is no part of it.
        mine = mine and _key(own) != _key(said.text)
        if not mine or not own or _TABLE.match(own) or noise(own) or FRAME.search(own):
            self._open = None
            return False
        # A list of ranks, each with all of its tensors.
        listed = said.text.endswith("issing ranks:")
        self._left += listed and len(said.behind) < _LISTS
        if said.count == 1 and sum(map(len, said.behind)) < _WITH_IT:
            said.behind.append(own[: _WITH_IT if not listed else _LISTED])
        self._after, self._left = order, self._left - 1
        if self._left <= 0:
            self._open = None
        return True

    def line(self, text: str, source: int, order: int) -> Optional[Quote]:
        """Takes a program's line; its quote where it reports something."""
        frame = FRAME.search(text)
        if frame is not None:
            self._frame = text[: frame.start()].rstrip(), order
            prefix = text[: frame.start()].strip()
            self._call(prefix, "%s" % frame.group("name"))
            if not _LIBRARY.search(frame.group("path")) and prefix[-80:] in self._traces:
                self._own[prefix[-80:]] = "%s:%s" % (frame.group("path").rpartition("/")[2][-80:], frame.group("line"))
            return None
        prefix, since = self._frame
        if order - since <= _NEAR and text.startswith(prefix) and text[len(prefix) :].startswith("    "):
            self._frame = "", -_NEAR
            return None
        kernel = _KERNEL.search(text.rstrip()) if "](" in text else None
        if kernel is not None:
            self._call(text[: kernel.start()].strip(), "kernel %s" % kernel.group("name"))
            return None
        own = text.strip().replace("\t", " ")
        key = _key(own)
        if self.full and key not in self._known and not _GRAVE.search(own[:LONGEST]):
            self.left_out += 1
            return None
        if key in self._known:
            said = self._known[key]
            if said is not None:
                self._again(said, own, order)
            return said
        cut = shortened(own)
        kind = signals.classify(cut)
        if "Exception ignored" in own:
            self._ignored = order
        elif order - self._ignored <= _NEAR and signals.EXCEPTION.search(cut):
            self._ignored = -_NEAR
            kind = signals.Class(signals.WARNING, "an exception that Python ignores, as of a clean-up: no failure")
        said = None if kind is None else Quote(kind.kind, cut, kind.about, source, order, last=order)
        if said is not None:
            self._who(said, own)
            self._trace(said, own)
        self._keep(key, said)
        if said is not None and said.kind in (signals.ERROR, signals.DEATH):
            self._open, self._after, self._left = said, order, _BEHIND
        return said

    def cut_off(self, one: Traceback, source: int) -> None:
        """Takes a traceback whose exception the log does not hold."""
        own = one.text[:LONGEST]
        known = next((said for said in self._kept if (said.source, said.order) == (source, one.order)), None)
        if known is not None:
            # The line above a traceback reports it.
            known.calls = known.calls or tuple(one.calls[-6:])
            known.about = "; ".join(part for part in (known.about, CUT_OFF) if part)
            return
        said = Quote(signals.ERROR, own, CUT_OFF, source, one.order, count=one.count, last=one.last)
        said.calls = tuple(one.calls[-6:])
        self._who(said, own)
        self._keep("\0traceback %s" % own, said)

    def nccl(
        self, text: str, place: str, who: Tuple[str, str, Optional[int]], source: int, order: int, kind: str
    ) -> None:
        """Takes what NCCL says of a failure. who: host, pid, and rank or None."""
        key = "\0%s %s" % (place, _NUMBER.sub("#", text[:LONGEST]))
        said = self._known.get(key)
        if said is None:
            said = Quote(kind, text[:LONGEST], "", source, order, True, place, last=order)
            self._keep(key, said)
        else:
            said.count += 1
            said.last = order
        host, pid, rank = who
        said.by = said.by or ("%s:%s" % (host, pid) if pid else host)
        _note(said.hosts, host)
        _note(said.pids, "%s:%s" % (host, pid) if pid else "")
        if rank is not None and len(said.ranks) < NAMED:
            said.ranks.add(rank)

    def _keep(self, key: str, said: Optional[Quote]) -> None:
        if len(self._known) >= KNOWN:
            self._known = {known: quote for known, quote in self._known.items() if quote is not None}
        if said is not None and len(self._kept) >= QUOTES + (DEATHS if said.kind == signals.DEATH else 0):
            self.left_out += 1
            said = None
        if said is not None:
            self._kept.append(said)
        if len(self._known) < KNOWN:
            self._known[key] = said

    def _again(self, said: Quote, text: str, order: int) -> None:
        said.count += 1
        said.last = order
        self._open = None
        words = own_words(said.text, shortened(text.replace("\t", " "))) if len(said.others) < _OTHERS else ""
        if words and words not in said.others:
            said.others.append(words)
        if said.count <= NAMED:
            self._who(said, text)

    def _who(self, said: Quote, text: str) -> None:
        match, raised = _RANK.search(text), signals.EXCEPTION.search(text)
        if match is not None and match.group("said") and raised is not None and match.start() > raised.start("text"):
            match = None  # what an exception says of ranks is not who raises it
        if match is not None and len(said.ranks) < NAMED:
            said.ranks.add(int(next(group for group in match.groups() if group is not None)))
        for pattern in _HOSTS:
            found = pattern.search(text)
            if found is not None:
                whose = found.groupdict()
                _note(said.hosts, whose.get("host") or "")
                pid = whose.get("pid")
                _note(said.pids, "%s:%s" % (whose.get("host") or "", pid) if pid else "")
                return

    def _call(self, prefix: str, name: str) -> None:
        prefix = prefix[-80:]
        calls = self._traces.get(prefix)
        if calls is None:
            if len(self._traces) >= _TRACES:
                self._traces.clear()
                self._own.clear()
            calls = self._traces[prefix] = []
        if name not in _WRAPPERS and calls[-1:] != [name]:
            calls.append(name[:80])
            del calls[:-_CALLS]

    def _trace(self, said: Quote, text: str) -> None:
        """The calls above an exception, of the same prefix."""
        match = signals.EXCEPTION.search(text)
        if match is None:
            return
        prefix = text[: match.start("type")].strip()[-80:]
        calls = self._traces.pop(prefix, None)
        if calls is None and len(self._traces) == 1:
            prefix = next(iter(self._traces))
            calls = self._traces.pop(prefix)
        own = self._own.pop(prefix, "")
        if not calls and self._code[1] == said.order - 1 and self._code[0]:
            calls = [self._code[0]]
        if calls:
            kernels = [name[len("kernel ") :] for name in calls if name.startswith("kernel ")]
            said.kernel = kernels[-1] if kernels else ""
            said.calls = tuple(name for name in calls if not name.startswith("kernel "))[-6:]
            said.own = own


def shortened(own: str) -> str:
    """A line's begin and end."""
    return own if len(own) <= LONGEST else "%s ... %s" % (own[: LONGEST - _END - 5], own[-_END:])


def _key(own: str) -> str:
    """What lines that are one quote have in common."""
    # No host has a name of numbers alone, and what is before them is kept by the rest of the line.
    key = _NUMBER.sub("#", own[:LONGEST])
    if "xit" in key or "ignal" in key:
        # These numbers matter.
        key += ",".join(_ENDS.findall(own[:LONGEST]))
    return key


def _note(names: Set[str], name: str) -> None:
    if name and len(names) < 64:
        names.add(name)
