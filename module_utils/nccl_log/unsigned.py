# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Lines of a log that no process of NCCL's signed: of PyTorch, launchers, nccl-tests, and what NCCL prints bare."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Callable, List, Optional, Set, Tuple

from . import elsewhere, failures, programs, ras, signal_marks, signals, texts, topology, tracebacks
from .failures import Failure
from .matrix import Matrix
from .programs import Programs
from .quotes import Quotes
from .ras import Report
from .results import Results
from .stacks import MARK, Stacks
from .table import Table
from .trace import Trace
from .tracebacks import Tracebacks
from .unread import Unread

# Of a line.
_LONGEST, _END = 2000, 300
# Lines that others may write between "Last error:" and what it was.
_TORN = 6
_BEFORE = re.compile(r"\s*(?:\([^()]{1,80}\)|\[[^\[\]]{1,60}\]:?)")
_LAST_ERROR = "Last error:"
_FRAMES = re.compile(
    r"^\W*(?:nccl[A-Z]\w+: |File \"|raise |Exception raised from|frame #|Traceback|During handling|The above exception)"
)
_COMPILED_WITH = re.compile(
    r"NCCL version (?P<nccl>\d{1,4}\.\d{1,4}\.\d{1,4})\S{0,40} compiled with CUDA|"
    r"\bnccl ?==? ?(?P<used>\d{1,4}\.\d{1,4}\.\d{1,4})\b"
)
_CUT_VERSION = re.compile(r"NCCL version (?P<nccl>\d{1,4}\.\d{1,4}\.\d{1,4})\s*$")
# One of these is in every line that is looked at.
_COARSE = (*elsewhere.COARSE, *(one for one in signal_marks.COARSE if one not in elsewhere.COARSE), *programs.COARSE)
_COARSE += (b'File "', b"](", b"nccl==", *texts.LIBRARY_MARKS)
# What is looked for where there is no room for another quote.
_BESIDE = (*elsewhere.MARKS, *programs.COARSE, b"nccl==", b"num_workers")
# Releases that lines name; who prints them may print any.
_LIBRARIES = 64
# A number, which no head of columns has.
_RATE_OF = re.compile(rb"\d\.\d")
# Characters by which lines are alike, and how many kinds of lines that say nothing are known.
_ALIKE, _MOST_DULL = 300, 20_000
_NUMBERS = re.compile(rb"\d+")
# The printed topology.
_TREE = re.compile(rb" *\+ \w{2,8}\[[\d.]{1,12}\] - |=== System")
# A watchdog's line that somebody has broken.
_BROKEN = re.compile(
    r"Watchdog caught collective(?!.*timing out)|"
    r"Detected mismatch between collectives(?!.*but Rank \d+ is running.{60})"
)
# First four characters of NCCL's texts, and how many lines without a head are kept.
_BARE = frozenset(start.encode() for start in texts.STARTS if start[:1].isalpha()) | {b"CPU/", b"GPU/"}
_MOST_BARE = 2000
# Where somebody has left lines out: dots alone, or a remark.
_LEFT_OUT = re.compile(
    rb"[^\w\n]{0,8}(?:\.\.\.|\xe2\x80\xa6)[^\w\n]{0,12}$|"
    rb"[ \t]{0,8}(?:[\[(<{*#/~-]|\.\.\.|\xe2\x80\xa6)[^\w\n]{0,6}(?:(?i:snip|omit|truncat|elided|skipped|shorten"
    rb"|repeat|similar|same (?:for|on|as|lines?|output|logs?|errors?)|(?:\d{1,8} |many |some )?more (?:lines|of|ranks)"
    rb"|(?:other|rest of|remaining) |(?:many |\d{1,8} )?lines? |(?:log|output)s? (?:cut|removed)|etc\b))"
)
_DOTS = frozenset([b".", b" ", b"\t", b"[", b"(", b"<", b"{", b"*", b"#", b"/", b"~", b"-", b"\xe2", b">", b"|"])
_REMARK = 120
_INTERFACE = re.compile(rb"\[\d{1,3}\][\w.@-]{1,32}:[\w.:%@-]{3,100}<\d{1,5}>\s*$")
_MOST_INTERFACES = 64
# First characters of what RAS and nccl-tests print, the latter behind a launcher's label, too.
_REPORT = frozenset(begin[:4] for begin in ras.BEGIN)
_TABLE = frozenset([b"#", b" ", b"[", b"(", *(b"%d" % digit for digit in range(10))])
# failure, number of its line
Failed = Callable[[Failure, int], None]


@dataclass
class Unsigned:
    """bare_versions: releases that no process signed, of exceptions too.

    bare_networks: of connections and others that no process signed.
    binary: lines with a zero byte.   tests: lines of nccl-tests.   libraries: releases that nccl-tests ran with.
    built_for: CUDA releases that the NCCL of those lines was built for.
    elided: lines that stand for others which somebody has left out.
    starts: how often NCCL's release stands on its own line, which rank 0 of a job prints.
    quotes: lines that report a failure, a death, a wait or a success.   programs: what launchers and programs say of
    the job.   trace: NCCL's trace of collectives.
    table: what nccl-tests printed.   ras: the last report of NCCL's RAS.   unread: lines that no rule knows.
    results: what programs report of their own work.   stacks: of C++, with exceptions.
    """

    bare_versions: Set[str] = field(default_factory=set)
    bare_networks: Set[str] = field(default_factory=set)
    libraries: Set[str] = field(default_factory=set)
    built_for: Set[str] = field(default_factory=set)
    starts: int = 0
    rccl: bool = False
    binary: int = 0
    elided: int = 0
    tests: int = 0
    quotes: Quotes = field(default_factory=Quotes)
    programs: Programs = field(default_factory=Programs)
    trace: Trace = field(default_factory=Trace)
    table: Table = field(default_factory=Table)
    ras: Report = field(default_factory=Report)
    unread: Unread = field(default_factory=Unread)
    results: Results = field(default_factory=Results)
    stacks: Stacks = field(default_factory=Stacks)
    matrix: Matrix = field(default_factory=Matrix)


class Others:
    """``line`` for each line; ``block`` before those of another block."""

    def __init__(self, log: Unsigned, failed: Failed) -> None:
        self._log = log
        self._failed = failed
        # Marks that the block has: a log that is NCCL's alone is not searched for them. And the last that a line had.
        self._block = b""
        self._marks: Optional[Tuple[bytes, ...]] = None
        self._beside: Optional[Tuple[bytes, ...]] = None
        self._last = b"rror"
        # What stands before "Last error:", its line, and how many lines are still looked at.
        self._waits: Tuple[str, int, int] = "", 0, 0
        # The rank that the last exception named, and its line.
        self._spoke: Tuple[Optional[int], int] = None, -_TORN
        self._report = False
        # The last frame of a Python stack; the line behind it is of the program's text.
        self._frame = 0
        self._stacks = Tracebacks()
        self._dull: Set[bytes] = set()
        # Number of the source, and a line that goes on in the next one.
        self._source = 0
        self._held: Tuple[str, int] = "", 0
        # Lines that read as NCCL's own texts without a head, with their numbers.
        self.bare: List[Tuple[bytes, int]] = []
        # Of these lines nothing else is made.
        self.untold: Set[int] = set()
        self._interfaces: List[bytes] = []

    def block(self, block: bytes) -> None:
        self._block, self._marks, self._beside = block, None, None

    def end(self) -> None:
        held, order = self._held
        self._held = "", 0
        if held:
            self._said(held, order)
        self._waits = "", 0, 0
        for cut in self._stacks.cut():
            self._log.quotes.cut_off(cut, self._source)
        self._log.results.end()
        self._source += 1
        if len(self._interfaces) > 1:
            # A list that somebody has broken into lines.
            self.bare.append((b"NET/Socket : Using " + b" ".join(self._interfaces), 0))
        self._interfaces = []

    def line(self, line: bytes, order: int) -> None:
        if self._held[0]:
            held, since = self._held
            self._held = "", 0
            if order == since + 1 and not line.startswith((b"[", b"terminate")):
                self._said("%s%s" % (held, _text(line)), since)
                return
            self._said(held, since)
        if line[:1] in _DOTS and len(line) < _REMARK and _LEFT_OUT.match(line):
            self._log.elided += 1
        if line[:5] == b"[rank":
            self._log.programs.spoke(line)
        if self._waits[2] and self._last_error(line, order):
            return
        if b'File "' in line:
            self._frame = order
            self._log.programs.frame(_text(line))
        if MARK in line:
            self._log.stacks.line(_text(line), order)
        quotes = self._log.quotes
        if tracebacks.BEGIN in line:
            quotes.begins(self._stacks.begin(_text(line), order))
        elif self._stacks.waits:
            self._stacks.line(_text(line))
        if line[:4] == b"    " and b"(" in line:
            quotes.code(_text(line), order)
        taken = quotes.waits(order) and quotes.behind(_text(line), order)
        begin = line[:4]
        bare = False
        if (
            (begin in _BARE or (begin[:1] in b"+ =" and _TREE.match(line)))
            and len(self.bare) < _MOST_BARE
            and _is_nccls(_text(line))
        ):
            self.bare.append((line[:_LONGEST], order))
            bare = True
        elif self.bare and order == self.bare[-1][1] + 1 and texts.MORE_HCAS.match(line) and self._lists_hcas():
            self.bare.append((b"NET/IB : Using " + line[:_LONGEST].strip(), order))
            bare = True
        elif begin[:1] == b"[" and len(self._interfaces) < _MOST_INTERFACES and _INTERFACE.match(line):
            self._interfaces.append(line.strip())
        comment = False
        if self._report or begin in _REPORT or begin[:1] in _TABLE:
            # Of some logs the # is gone.
            comment = b"# " in line[: 128 if begin[:1] == b"(" else 64] or (
                begin[:1] == b" " and b"  Rank " in line[:16]
            )
            # The head of its columns.
            comment = comment or (b"algbw" in line and b"busbw" in line and _RATE_OF.search(line) is None)
            comment = comment or b"busbw (GB/s)" in line
            # None of these words is among the marks.
            if self._reported(line, begin) or (not comment and self._log.table.row(line)):
                return
        elif begin == b"Avg " and self._log.table.ended(line):
            return
        elif b": #" in line[:80]:
            # Behind a launcher's label.
            comment = b"# " in line[:100]
        elif (b" float " in line or b" sum " in line or b" none " in line) and self._log.table.row(line):
            return
        if not comment and self._last not in line and not self._marked(line):
            if b"\0" in line:
                self._log.binary += 1
            elif not taken:
                self._unread(line, order, bare)
            return
        if quotes.full and not taken and not comment and self._spent(line):
            return
        if taken or comment or b"xit" in line or b"ignal" in line:
            if not self._look(line, order, comment, taken) and not taken:
                self._unread(line, order, bare)
            return
        # Lines that differ by numbers alone, of which one said nothing.
        alike = _NUMBERS.sub(b"#", line[:_ALIKE])
        if alike not in self._dull:
            if self._look(line, order, comment, taken):
                return
            if len(self._dull) >= _MOST_DULL:
                self._dull.clear()
            self._dull.add(alike)
        self._unread(line, order, bare)

    def _lists_hcas(self) -> bool:
        return self.bare[-1][0].startswith(b"NET/IB") and b"Using" in self.bare[-1][0][:16]

    def _unread(self, line: bytes, order: int, bare: bool = False) -> None:
        if bare:
            self.untold.add(order)
        elif (not self._frame or order > self._frame + 1) and not self._log.results.line(line, order):
            self._log.unread.line(line, self._source, order)

    def _marked(self, line: bytes) -> bool:
        """Whether a line has one of the marks without which it says nothing."""
        if self._marks is None:
            self._marks = tuple(mark for mark in _COARSE if mark in self._block)
        for mark in self._marks:
            if mark in line:
                self._last = mark
                return True
        return False

    def _spent(self, line: bytes) -> bool:
        """Whether a line says nothing but what could be quoted, where no further quote is kept."""
        if self._beside is None:
            self._beside = tuple(mark for mark in _BESIDE if mark in self._block)
        for mark in self._beside:
            if mark in line:
                return False
        return self._log.quotes.passed_over(_text(line))

    def _look(self, line: bytes, order: int, comment: bool, taken: bool) -> bool:
        """Takes a line with a mark; whether it said anything."""
        text = _text(line)
        if "# nccl-tests" in text[:80] or "# nThread" in text[:80]:
            self._log.tests += 1
            library = texts.TESTS_VERSION.search(text.rstrip())
            if library:
                self._log.libraries.add(".".join(str(int(part)) for part in library.groups()))
        if len(self._log.libraries) < _LIBRARIES:
            self._log.libraries |= texts.libraries(text)
        if comment and self._log.table.comment(text):
            return True
        match = texts.VERSION.search(text) or _COMPILED_WITH.search(text) or _CUT_VERSION.match(text)
        if match:
            own = match.groupdict()
            self._log.bare_versions.add(own["nccl"] or own["used"])
            self._log.starts += text.startswith("NCCL version ")
            if own.get("cuda"):
                self._log.built_for.add(own["cuda"])
            return True
        if _BROKEN.search(text):
            self._held = text, order
            return True
        # Of the comments of nccl-tests only errors report something.
        return self._said(text, order, taken or (comment and "error:" not in text))

    def _said(self, text: str, order: int, taken: bool = False) -> bool:
        """What a line of a program says of a job, and whether it says anything.

        taken: it is a part of what the line before it says.
        """
        told = self._log.programs.line(text)
        if told is not None:
            self._failed(told, order)
            return True
        quote = None if taken else self._log.quotes.line(text, self._source, order)
        if quote is not None and quote.kind == signals.ORDER:
            self._log.table.stops(order)
        before, said, behind = text.partition(_LAST_ERROR)
        if said and not behind.strip():
            self._waits = before.rstrip(), order, _TORN
            return True
        failed = elsewhere.said_elsewhere(text, False)
        if failed is not None:
            version = elsewhere.exception_version(text)
            if version:
                self._log.bare_versions.add(version)
            self._spoke = (failed.rank, order) if failed.rank is not None else self._spoke
            self._failed(failed, order)
        quoted = elsewhere.said_elsewhere(behind, True) if behind.strip() else None
        if quoted is not None:
            self._failed(quoted, order)
        # A frame of a stack belongs to the exception below it.
        frame = 'File "' in text or "](" in text
        return quote is not None or failed is not None or quoted is not None or frame or programs.speaks(text)

    def _reported(self, line: bytes, begin: bytes) -> bool:
        """Whether a line is one of a report of RAS."""
        report = self._log.ras
        if begin in _REPORT and not report.groups and line.startswith(ras.BEGIN):
            self._report = True
        if report.lines >= ras.LINES or not (self._report or begin[:1] == b"#"):
            return False
        text = _text(line)
        taken = (self._report or ras.BLOCK.match(text) is not None) and report.line(text)
        self._report = self._report or taken
        return taken

    def _last_error(self, line: bytes, order: int) -> bool:
        """Whether a line is what NCCL's last error was: the next one, or the next of its process where lines mix."""
        before, since, left = self._waits
        self._waits = before, since, left - 1
        text = line[:_LONGEST].decode("utf-8", "replace")
        own = _BEFORE.match(before)
        mine = text.startswith(before) if before and own is None else own is None or text.startswith(own.group())
        if not mine or not text[len(before) if text.startswith(before) else 0 :].strip():
            return False
        self._waits = "", 0, 0
        failed = elsewhere.said_elsewhere(text[len(before) :] if text.startswith(before) else text, True)
        if failed is None or (failed.kind in ("warning", "fallback") and (order > since + 1 or _FRAMES.search(text))):
            return not own and order == since + 1
        # What stands before it says whose it is.
        failed = replace(failed, text=text.strip()[:400])
        failed = failed if failed.rank is not None else elsewhere.ranked(failed, before)
        rank, spoke = self._spoke
        if failed.rank is None and not before.strip() and order - spoke <= _TORN:
            failed = replace(failed, rank=rank)
        self._failed(failed, order)
        return True


def _is_nccls(text: str) -> bool:
    """Whether a line without a head reads as one of NCCL's."""
    return texts.event(text) is not None or topology.Topology().line(text)


# How the rest of a broken warning begins.
REST = re.compile(
    rb"'\s*$|[ \t]+\S|\w+=\S|from peer |(?:local|remote)Gids?\b|hca |with status|opcode |receiving \d|instead of \d"
)


def _text(line: bytes) -> str:
    """Of a longer line its end, too: what a launcher says of a command stands behind it."""
    line = line if len(line) <= _LONGEST else line[: _LONGEST - _END] + b" ... " + line[-_END:]
    return line.decode("utf-8", "replace")


def continued(said: Failure, place: str, line: bytes) -> Tuple[str, Optional[Failure]]:
    """The text of a warning with the line behind it, and what both say where that is more than the warning alone."""
    text = "%s %s" % (said.text, line[:_LONGEST].decode("utf-8", "replace").strip())
    if text.endswith("' '"):
        # What was quoted is the end of a line.
        text = "%s(a line break)'" % said.text
    return text, failures.completed(said, text, place)
