# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a log says about a job: its processes, their communicators, networks, devices, connections and failures.

``Reader`` takes a log in blocks of any size and keeps facts, never lines: its memory grows with the number of processes
and not with the log, up to the limits below, and what is beyond them is counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Dict, Iterable, List, Optional, Tuple

from . import communicators, events, failures, lines, matrix, signals, texts, topology, trace, unsigned, untold, whose
from .communicators import Communicator
from .events import Channel, Event, Graph, Init, Plugin, Shape
from .failures import Failure
from .lines import Head
from .pairs import Pairs
from .process import NOTHING, SHAPED, Call, Key, Process, Way
from .repeats import BEGINS, Repeats
from .shared import KINDS, KNOWN, Shared, add, put, remember
from .signal_marks import REPORTS

# Of a log: 6,250 nodes of eight GPUs. A process that says which channels it has, or little, has 2.5 KB.
PROCESSES = 50_000
RANKS = 400_000
COMMUNICATORS = 20_000
FAILURES = 4_000
# Calls of a process that returned an error.
CALLS = 16

# So many processes are kept with all they say; of more, seconds of an initialisation from which on they are told.
_DETAILED, _SLOW = 4096, 2.0
# Lines from the begin on in which each process is noted, whatever it says.
_BEGIN = 50_000
# Lines of one begin (four characters) that are looked through for them.
_LOOKED_THROUGH = 2000
# Kinds of warnings that are none.
NO_FAILURES = ("fallback", "value", "event", "ras", "libfabric", "gdrcopy")
_TRACED = frozenset(trace.STARTS)
_DRAWN = frozenset(topology.STARTS)
# Of these events are made, too.
_DRAWN_TOO = frozenset([b"+ NV", b"+ PC", b"    ", b"=== ", b"Patt"])

# What Ray appends to a line that other processes wrote alike, within some seconds; theirs it leaves out.
_REPEATED = re.compile(rb"(?:\x1b\[\d{1,3}m)? \[repeated (\d{1,9})x across cluster\].*$")

# What a build of nccl-tests for debugging puts before, and into, its lines.
_SOURCE = re.compile(rb"[A-Za-z_]\w{0,80}\(\), [\w-]{1,80}\.cu:\d{1,6}, ?")

# What only RCCL, AMD's build of NCCL, and its programs print; a path reports it in a line of the library alone.
_RCCL = (
    *(b"RCCL version", b"RCCL performance", b"+hip", b"HIP failure", b"HIP error"),
    b'Missing "iommu=pt" from kernel',
)
_RCCL_PATHS = (b"librccl", b"/rccl/", b"/hipify/")
_RCCL_LINE = re.compile(
    rb"/(?:rccl|hipify)/\S{0,200} NCCL |NCCL INFO (?:[^\n]{0,300}librccl|/\S{0,200}(?<=/)(?:rccl|hipify)/)"
)


def _is_of_rccl(block: bytes) -> bool:
    if any(mark in block for mark in _RCCL):
        return True
    return any(path in block for path in _RCCL_PATHS) and _RCCL_LINE.search(block) is not None


@dataclass(frozen=True)
class Reported:
    """A failure, by whom and when. order: number of the line in its source; time, clock, place, device as in Head."""

    failure: Failure
    process: Optional[Process]
    source: int
    order: int
    time: str
    clock: str
    place: str = ""
    device: Optional[int] = None


@dataclass
class Log(unsigned.Unsigned):
    """What was read. lines: of all sources.   info, warnings: how many records of NCCL's.

    beyond: what was not kept, and how often.   collapsed: lines that Ray left out because others were alike.
    begins: lines before each source.   cut_off: sources whose last line has no end.
    pairs: ranks that are connected, rings and trees of small jobs.
    last_done: the last line on a complete initialisation.   small: the lines themselves, of a small log.
    """

    sources: List[str] = field(default_factory=list)
    lines: int = 0
    info: int = 0
    warnings: int = 0
    processes: Dict[Key, Process] = field(default_factory=dict)
    communicators: Dict[str, Communicator] = field(default_factory=dict)
    failures: List[Reported] = field(default_factory=list)
    beyond: Dict[str, int] = field(default_factory=dict)
    collapsed: int = 0
    pairs: Pairs = field(default_factory=Pairs)
    begins: List[int] = field(default_factory=list)
    cut_off: List[str] = field(default_factory=list)
    last_done: int = 0
    small: untold.Small = field(default_factory=untold.Small)


class Reader:
    """``source``, then ``feed`` for each block of it; ``log`` has what was said so far, after ``end`` all of it."""

    def __init__(self) -> None:
        self.log = Log()
        self._rest = b""
        self._others = unsigned.Others(self.log, lambda failed, order: self._failed(failed, None, order))
        # The line of the last warning, or of what continued it, and its number among the failures.
        self._open, self._open_at = 0, 0
        self._line, self._order, self._calls = b"", 0, 0
        self._skip = False
        # Who listed HCAs last, and the line.
        self._list: Optional[Process] = None
        self._list_at = -1
        # The line up to which rows of NCCL's matrix are looked for.
        self._matrix_to = 0
        # Whether lines may have something around them that is taken off, of Ray or of a collector's JSON.
        self._odd = True
        # Whether this source's lines were copied with their numbers; None until that is known.
        self._numbered: Optional[bool] = None
        self._channels: Dict[bytes, Any] = {}
        self._events: Dict[bytes, Any] = {}
        self._shared = Shared()
        self._whose = whose.Whose(self.log.processes, self._shared, self._count, PROCESSES)
        self._by = self._whose.by
        self._repeats = Repeats(self._shared)
        # The last line of the source before.
        self._since = 0
        # First four characters of lines that no rule looks at -> how many were looked through for reports.
        self._begins: Dict[bytes, int] = {}
        self._ranks = 0
        self._topologies = 0

    def source(self, name: str) -> None:
        """Another file begins; the one before is at its end."""
        self.end()
        self.log.sources.append(name)
        self.log.begins.append(self.log.lines)

    def end(self) -> None:
        self._others.block(self._rest)
        if self._rest and not self._skip:
            self.log.cut_off.append(self.log.sources[-1] if self.log.sources else "")
            self._odd = True
            self._lines([lines.without_number(self._rest) if self._numbered else self._rest])
        self._rest = b""
        self._skip = False
        self._numbered = None
        self._others.end()
        bare = self._others.bare
        if bare and not any(process.host for process in self.log.processes.values()):
            # Nothing in this log has a head: somebody has cut off all that stood before the texts.
            process = self._whose.of(Head(), 0)
            self.log.info += len(bare)
            for line, self._order in bare if process is not None else ():
                self._text(process, line)
        else:
            for line, order in bare:
                self._unsigned(texts.event(line.decode("utf-8", "replace")))
                if order in self._others.untold:
                    self.log.unread.line(line, len(self.log.sources), order, True)
        self._others.bare, self._others.untold = [], set()
        self._repeats.settle()
        self._settle()
        self._since = self.log.lines

    def _unsigned(self, said: Optional[Event]) -> None:
        """What a line without a head tells of the job, whosever it is."""
        if isinstance(said, Channel) and said.kind == "net":
            self.log.bare_networks.add(said.via)
        elif isinstance(said, events.Network):
            self.log.bare_networks.add(said.name)

    def feed(self, block: bytes) -> None:
        whole = self._rest + block
        self._others.block(whole)
        self.log.rccl = self.log.rccl or _is_of_rccl(whole)
        # Progress bars go back to the line's begin; Windows ends lines with both.
        found = whole.replace(b"\r", b"\n").split(b"\n")
        self._rest = found.pop()
        if self._skip and found:
            found.pop(0)
            self._skip = False
        if len(self._rest) > lines.LONGEST:
            if not self._skip:
                found.append(self._rest[: lines.LONGEST])
                self._count("ends of lines longer than %d bytes" % lines.LONGEST)
            self._rest, self._skip = b"", True
        if self._numbered is None and len(found) > 3:
            self._numbered = lines.numbered(found)
        if self._numbered:
            found = [lines.without_number(line) for line in found]
        self._odd = b"x across cluster]" in whole or b'{"' in whole or (b"(), " in whole and b".cu:" in whole)
        self._lines(found)

    def _lines(self, found: List[bytes]) -> None:
        log = self.log
        if log.small.room >= 0:
            log.small.take(found, len(log.sources), log.lines)
        interesting, again = INTERESTING, self._repeats.again
        odd = self._odd
        order = log.lines
        info = 0
        for line in found:
            order += 1
            if odd:
                line = self._plain(line)
            at = line.find(b" NCCL ")
            if at < 0:
                if line:
                    self._other(line, order)
                continue
            if line[at + 6 : at + 11] == b"INFO ":
                info += 1
                begin = line[at + 11 : at + 15]
                if begin in BEGINS and again(line, at):
                    continue
                if line.find(b" NCCL ", at + 11) < 0:
                    if begin not in interesting and begin[:1] != b"/":
                        self._passed_over(line, at, order)
                        continue
                    if begin != b"Fail":
                        self._info(line[: lines.LONGEST], at, order)
                        continue
            self._record(line[: lines.LONGEST], at, order)
        log.lines = order
        log.info += info

    def _passed_over(self, line: bytes, at: int, order: int) -> None:
        """An INFO line that no rule looks at: it has a process all the same, and may report a failure."""
        if line[:1] == b" ":
            cut = self.log.table.begun(line[:at])
            line, at = line[cut:], at - cut
        if order < _BEGIN:
            self._by(line[: lines.LONGEST], at, order)
        begin = line[at + 11 : at + 15]
        if begin[:3] == b"...":
            self.log.elided += 1
            return
        if begin[:1].isdigit() and trace.CHOSEN in line:
            self.log.trace.choice(line[at + 11 :])
            return
        seen = self._begins.get(begin, 0)
        if seen >= _LOOKED_THROUGH:
            return
        if seen or len(self._begins) < KNOWN:
            self._begins[begin] = seen + 1
        for mark in REPORTS:
            if mark in line:
                self._quote_info(line[: lines.LONGEST], at, order)
                return
        self.log.unread.line(line[at + 11 :], len(self.log.sources), order, True)

    def _quote_info(self, line: bytes, at: int, order: int) -> None:
        process = self._by(line, at, order)
        text = line[at + 11 :].decode("utf-8", "replace").strip()
        self._quote(process, text, "", order, signals.WARNING)

    def _quote(self, process: Optional[Process], text: str, place: str, order: int, kind: str) -> None:
        who = ("", "", None) if process is None else (process.host, str(process.key[1] or ""), process.launcher_rank)
        self.log.quotes.nccl(text, place, who, len(self.log.sources), order, kind)

    def _plain(self, line: bytes) -> bytes:
        """The line without what Ray appends to it or a debugging build leads it by, or out of a collector's JSON."""
        if line.startswith(b'{"'):
            line = lines.unwrapped(line)
        if b".cu:" in line and b"(), " in line:
            line = _SOURCE.sub(b" ", line[: lines.LONGEST])
        match = _REPEATED.search(line)
        if match is None:
            return line
        self.log.collapsed += int(match.group(1))
        return line[: match.start()]

    def _info(self, line: bytes, at: int, order: int) -> None:
        """An INFO line in the form of almost all lines: what was met once is not parsed again."""
        begin = line[:1]
        if begin == b" " or (begin == b"[" and b"   " in line[:at]):
            # A row of nccl-tests' table goes on after what NCCL prints meanwhile.
            cut = self.log.table.begun(line[:at])
            line, at = line[cut:], at - cut
        self._line, self._order = line, order
        process = self._by(line, at, order)
        if process is not None and line.startswith(b"-> ", at + 11):
            # 2.30 and later print the place in the head.
            for record in lines.records(line.decode("utf-8", "replace")):
                self._said(process, texts.returned(record.head.place.partition(" ")[0], record.text))
        elif process is not None:
            self._text(process, line[at + 11 :], at)

    def _record(self, line: bytes, at: int, order: int) -> None:
        self._line, self._order = line, order
        refused = line.startswith(b"Failed to bind NVLink", at + 11)
        if line[at + 6 : at + 11] == b"INFO " and not refused and line.find(b" NCCL ", at + 6) < 0:
            self._info(line, at, order)
            return
        if len(self.log.failures) >= FAILURES and line.startswith(b"WARN ", at + 6):
            # Of so many nothing more is kept.
            self.log.warnings += 1
            self._count("failures")
            return
        found = lines.records(line.decode("utf-8", "replace"))
        if not found:
            self._other(line, order)
        for number, record in enumerate(found):
            process = self._whose.of(record.head, order, number > 0)
            self._whose.uses(process, record.head, record.text[:40].encode("utf-8", "replace"))
            if record.level == "WARN" or refused:
                self.log.warnings += not refused
                failed = failures.failure(record.text, record.head.place)
                if process is not None and record.text.startswith(communicators.COMPARED):
                    self._meets(process)
                form = texts.form_of(record.head.place, record.text)
                if process is not None and form is not None:
                    self._shared.add(process, "forms", form)
                if failed is not None:
                    self._failed(failed, record.head, order, process)
                    kind = signals.WARNING if failed.kind in NO_FAILURES else signals.ERROR
                    self._quote(process, record.text, record.head.place, order, kind)
                    self._open, self._open_at = order, len(self.log.failures) - 1
                    if failed.kind == "fallback" and "CollNet" in failed.text:
                        self._said(process, events.CollNet(False, failed.text[:200]))
                else:
                    self._said(process, texts.absent(record.text))
            else:
                self._said(process, texts.event(record.text))

    def _text(self, process: Process, text: bytes, at: int = -1) -> None:
        """What an INFO line says to its process. at: where its level begins in the line that has it, if one has."""
        if text.startswith((b"Channel ", b"Ring ")):
            # The number of the channel does not matter.
            behind = text.find(b" : ")
            key = text[behind:] if behind > 0 else text
            known = self._channels.get(key)
            if known is None:
                said = texts.event(text.decode("utf-8", "replace"))
                known = (said, *_channel(said)) if isinstance(said, Channel) else (said, None, None, None)
                remember(self._channels, key, known)
            said, rank, way, pair = known
            if rank is None:
                self._said(process, said)
                if self.log.pairs.ring(process, text[:2000].decode("utf-8", "replace")):
                    self._meets(process)
                    if at >= 0 and text[:4] == b"Ring" and self.log.pairs.has_no_ring_of(process):
                        self._repeats.learn(self._line, at, process, None, None)
                else:
                    self.log.unread.line(text, len(self.log.sources), self._order, True)
            else:
                if not self.log.pairs.many:
                    self.log.pairs.connection(process, said, text)
                self._connected(process, rank, way)
                if pair and (way[0] == "net" or len(self.log.processes) <= _DETAILED):
                    add(process, "crossed" if way[0] == "net" else "bridged", pair)
                if at >= 0 and self.log.pairs.many and self._line[:1] != b" ":
                    self._repeats.learn(self._line, at, process, rank, way)
            return
        if text[:4] == b"Tree" and self.log.pairs.tree(process, text[:2000].decode("utf-8", "replace")):
            self._meets(process)
            return
        if text[:4] in _TRACED and self._traced(process, text):
            return
        drawn = text[:4] in _DRAWN and self._drawn(process, text)
        if drawn and text[:4] not in _DRAWN_TOO:
            return
        said = self._events.get(text, events)
        if said is events:
            said = texts.event(text.decode("utf-8", "replace"))
            # What ranks have in common is kept once; a communicator's line is of one rank.
            if len(text) < 1000 and b"comm 0x" not in text:
                remember(self._events, text, said)
            if isinstance(said, (events.Met, events.Own)) or (isinstance(said, Plugin) and said.state == "speaks"):
                # What it says beside that.
                self.log.unread.line(text, len(self.log.sources), self._order, True)
        if said is None and any(mark in text for mark in REPORTS):
            self._quote(process, text.decode("utf-8", "replace").strip(), "", self._order, signals.WARNING)
        elif said is None and not drawn:
            self.log.unread.line(text, len(self.log.sources), self._order, True)
        self._said(process, said)

    def _drawn(self, process: Process, text: bytes) -> bool:
        """Takes a line of the printed topology."""
        if process.topology is None:
            if self._topologies >= topology.PROCESSES:
                return text[:4] not in _DRAWN_TOO and text[:4] != b"NET/"
            drawn = topology.Topology()
        else:
            drawn = process.topology
        taken = drawn.line(text.decode("utf-8", "replace"))
        if taken and process.topology is None:
            self._topologies += 1
            process.topology = drawn
        return taken

    def _traced(self, process: Process, text: bytes) -> bool:
        """Takes a line of the trace of collectives."""
        if b": opCount " not in text[:40] and trace.CHOSEN not in text[:80]:
            return False
        head = lines.head(self._line[: self._line.find(b" NCCL ")].decode("utf-8", "replace"))
        who = "%s:%s" % (process.host, process.key[1]) if process.host else "a process that is not named"
        who += ", GPU %d" % head.device if head.device is not None and 0 <= head.device < 64 else ""
        return self.log.trace.take(text, process.order, process.pointers, who)

    def _connected(self, process: Process, rank: int, way: Way) -> None:
        there = process.connections
        ways = there.get(rank, NOTHING)
        if ways and (way in ways or len(ways) < KINDS):
            there[rank] = self._shared.count(ways, way)
        elif not ways and len(there) < KINDS:
            self._meets(process)
            put(process, "connections", rank, self._shared.count(ways, way))
        else:
            self._count("kinds of connections of a process")

    def _meets(self, process: Process) -> None:
        communicators.meets(self.log.communicators, process)

    def _settle(self) -> None:
        """Makes one of processes whose lines have two names."""
        found = self._whose.settle(self._since)
        gone = dict(zip(found[::2], found[1::2]))
        if gone:
            for one in self.log.communicators.values():
                one.began = {rank: gone.get(by, by) for rank, by in one.began.items()}
            self.log.failures = whose.reported(self.log.failures, gone)
            self.log.pairs.renamed(gone)

    def _gpu(self, process: Optional[Process], device: Optional[int]) -> Optional[int]:
        """The GPU of a head's device: threads of a process with one may print another number."""
        if process is None or device is None or not process.gpus or device in process.gpus:
            return device
        return next(iter(process.gpus)) if len(process.gpus) == 1 else None

    def _failed(self, failed: Failure, head: Optional[Head], order: int, process: Optional[Process] = None) -> None:
        if len(self.log.failures) >= FAILURES:
            self._count("failures")
            return
        head = head or Head()
        source = len(self.log.sources)
        when = (source, order, head.time, head.clock)
        self.log.failures.append(Reported(failed, process, *when, head.place, self._gpu(process, head.device)))

    def _other(self, line: bytes, order: int) -> None:
        """A line that is none of NCCL's."""
        if line.startswith((b"NCCL INFO ", b"NCCL WARN ")):
            # Somebody has cut the heads off.
            self._record(b" " + line[: lines.LONGEST], 0, order)
            self.log.info += line[5:9] == b"INFO"
        elif order < self._matrix_to and self.log.matrix.line(line):
            return
        elif order == self._list_at + 1 and self._list is not None and texts.MORE_HCAS.match(line):
            self._order = order
            self._text(self._list, b"NET/IB : Using " + line[: lines.LONGEST].strip())
        elif not (self._open and order == self._open + 1 and self._continued(line, order)):
            self._others.line(line, order)

    def _continued(self, line: bytes, order: int) -> bool:
        """Whether a line is the rest of the warning before it, which somebody has broken."""
        said = self.log.failures[self._open_at]
        text, failed = unsigned.continued(said.failure, said.place, line)
        if failed is not None:
            self.log.failures[self._open_at] = replace(said, failure=failed)
        elif unsigned.REST.match(line):
            self.log.failures[self._open_at] = replace(said, failure=replace(said.failure, text=text[:400]))
        else:
            return False
        self._open = order
        return True

    def _said(self, process: Optional[Process], said: Optional[Event]) -> None:
        if process is not None and said is not None:
            _HANDLERS[type(said)](self, process, said)

    def _count(self, what: str) -> None:
        self.log.beyond[what] = self.log.beyond.get(what, 0) + 1

    # What an event adds to its process. Each is called with an event of the type that _HANDLERS names.

    def _collnet(self, process: Process, said: Channel) -> None:
        rank, way, _pair = _channel(said)
        self._connected(process, rank, way)

    def _gdr(self, process: Process, said: events.GdrDevice) -> None:
        if said.net == "gIB":
            self._shared.add(process, "plugins", Plugin("NET", "speaks", said.net))
        process.no_gdr(said.why)
        known = process.gdr_devices.get(said.device)
        by_plugin = "the plugin %s has it off, though NET/IB reports it as enabled for this HCA; the reason is unknown"
        if said.net not in ("IB", "Socket") and not said.able and known:
            process.gdr_why = process.gdr_why or by_plugin % said.net
        if said.net == "IB" and said.able and known is False and process.gdr_why:
            return  # what the plugin says of it holds
        if said.net != "Socket":
            self._shared.put(process, "gdr_devices", said.device, said.able)

    def _init(self, process: Process, said: Init) -> None:
        key = said.id
        if not key and said.parent:
            key = "%s/%s" % (process.pointers.get(said.parent, said.parent), said.color)
        key = key or "of %d ranks" % said.ranks
        put(process, "pointers", said.comm, key)
        self._whose.owns(process, said.device)
        put(process, "buses", said.rank, said.bus)
        if len(process.buses) > 1 and said.rank != next(iter(process.buses)):
            put(process, "cuda_devices", said.rank, said.device)
        if said.nvml not in (None, said.device):
            put(process, "nvml", said.rank, said.nvml)
        one = self.log.communicators.get(key)
        if one is None:
            if len(self.log.communicators) >= COMMUNICATORS:
                self._count("communicators")
                return
            one = self.log.communicators[key] = Communicator(key, said.ranks)
        one.split = one.split or bool(said.parent)
        if said.all:
            one.one_process, one.nodes = True, 1
        if said.rank not in one.began:
            if self._ranks >= RANKS:
                self._count("ranks")
                return
            self._ranks += 1
            one.began[said.rank] = process
        if said.done:
            self.log.last_done = self._order
            if process.calls:
                process.calls = tuple(call._replace(early=True) for call in process.calls)
            one.done.add(said.rank)
            one.met = True

    def _shape(self, process: Process, said: Shape) -> None:
        if said.mnnvl is not None:
            process.mnnvl = said.mnnvl and process.mnnvl is not False
        key = process.pointers.get(said.comm, "")
        if not key and len(process.pointers) == 1 and not said.comm.startswith("0x"):
            key = next(iter(process.pointers.values()))
        one = self.log.communicators.get(key)
        if one is not None and one.ranks == said.ranks:
            one.nodes, one.met = said.nodes, True
            one.local_ranks = max(one.local_ranks, said.local_ranks)
        else:
            self._meets(process)
            if said.rank >= 0:
                add(process, "named", (said.rank, said.ranks, SHAPED))
            process.shaped = max(process.shaped, said.nodes)
            process.shaped_local = max(process.shaped_local, said.local_ranks)
            process.shaped_ranks = max(process.shaped_ranks, said.ranks)

    def _gone(self, process: Process, said: events.Gone) -> None:
        process.ended = said.how
        one = self.log.communicators.get(process.pointers.get(said.comm, ""))
        if one is not None:
            one.gone.setdefault(said.how, set()).add(said.rank)
        else:
            add(process, "named", (said.rank, said.ranks, said.how))
        self._whose.owns(process, said.device)

    def _variable(self, process: Process, said: events.Variable) -> None:
        if said.name not in process.variables:
            self._shared.put(process, "variables", said.name, said.value[:300])

    def _devices(self, process: Process, said: events.Devices) -> None:
        if said.net == "IB":
            self._list, self._list_at = process, self._order
            process.more_devices = process.more_devices or said.cut
            if said.oob:
                process.oob, process.oob_address = said.oob, said.oob_address
            for device in said.devices:
                self._shared.put(process, "devices", device.index, device)
                if device.mbit:
                    self._shared.put(process, "speeds", device.name, device.mbit)
        else:
            for device in said.devices:
                if device.address or device.name not in process.interfaces:
                    self._shared.put(process, "interfaces", device.name, device.address)

    def _nvlink(self, process: Process, said: events.GraphNode) -> None:
        if said.gpu:
            process.gpu = said.gpu
        elif said.nic:
            put(process, "nics", said.nic, said.bandwidth)
        elif process.gpu and said.bandwidth is not None:
            put(process, "nvlinks", process.gpu, max(process.nvlinks.get(process.gpu, 0.0), said.bandwidth))
            process.nvswitch = process.nvswitch or said.switch

    def _fact(self, process: Process, said: Event) -> None:
        """What one field takes."""
        if isinstance(said, events.Version):
            self._shared.add(process, "versions", said.nccl)
            process.cuda = said.cuda
        elif isinstance(said, events.Driver):
            process.driver = said.version
        elif isinstance(said, events.Network):
            self._shared.add(process, "networks", said.name)
        elif isinstance(said, events.NoDevice):
            self._shared.add(process, "absent", said.why)
        elif isinstance(said, events.Port):
            self._shared.put(process, "ports", (said.device.name, said.device.port), said.device)
            self._shared.put(process, "speeds", said.device.name, said.device.mbit)
        elif isinstance(said, events.Note):
            self._shared.add(process, "notes", said)
            if said.kind == "matrix":
                self._matrix_to = self._order + matrix.LINES
        elif isinstance(said, Plugin):
            self._shared.add(process, "plugins", said)
            if said.form is not None:
                self._shared.add(process, "forms", said.form)
        elif isinstance(said, events.Bootstrap):
            process.bootstrap = process.bootstrap or said
            if said.form is not None:
                self._shared.add(process, "forms", said.form)
        elif isinstance(said, events.GdrDevice):
            self._gdr(process, said)
        elif isinstance(said, events.GdrPair):
            if said.on:
                self._shared.add(process, "gdr_on", (said.gpu, said.device))
            else:
                self._shared.add(process, "gdr_off", (said.gpu, said.device, said.distance, said.level))
        elif isinstance(said, events.DmaBuf):
            process.dmabuf = True
        elif isinstance(said, events.Named):
            self._whose.owns(process, said.device)
            if said.comm not in process.pointers:
                add(process, "named", (said.rank, said.ranks, ""))
        elif isinstance(said, events.PeerOff):
            self._shared.add(process, "peers_off", said.pair)
        elif isinstance(said, events.Own):
            add(process, "named", (said.rank, 0, ""))
        elif isinstance(said, events.Met):
            self._meets(process)
        elif isinstance(said, events.Trees):
            self._meets(process)
            process.trees = True
        elif isinstance(said, events.RoceGid):
            process.roce = True
        elif isinstance(said, events.Retry):
            process.retries = said
        elif isinstance(said, events.Timed):
            least = 0.0 if len(self.log.processes) <= _DETAILED else _SLOW
            if said.total > max([least, *process.init_seconds[:1]]):
                parts = said.parts if len(self.log.processes) <= _DETAILED else ""
                process.init_seconds = (said.total, said.bootstrap, parts)
            own = [self.log.communicators.get(key) for key in process.pointers.values()]
            # Usually Init COMPLETE stands before it.
            if not any(one is not None and one.ranks == said.ranks and said.rank in one.done for one in own):
                add(process, "timed", (said.rank, said.ranks))
        elif isinstance(said, events.Returned):
            if len(process.calls) < CALLS and self._calls < FAILURES:
                self._calls += 1
                head = lines.head(self._line[: self._line.find(b" NCCL ")].decode("utf-8", "replace"))
                progress = b"[Progress" in self._line
                source = len(self.log.sources)
                own = [self.log.communicators.get(key) for key in process.pointers.values()]
                late = any(one is not None and rank in one.done for one in own for rank in process.buses)
                device = self._gpu(process, head.device)
                process.calls += (Call(said.place, said.result, device, source, self._order, progress, late),)
        elif isinstance(said, events.Nvls):
            process.nvls = said.available
            process.nvls_most = max(process.nvls_most, said.channels)
        elif isinstance(said, events.NvlsGroup):
            self._meets(process)
            process.nvls_group = True
        elif isinstance(said, events.Fabric):
            self._shared.add(process, "fabrics", said)
        elif isinstance(said, events.Channels):
            self._meets(process)
            process.channels = max(process.channels, said.collective)
            process.p2p = max(process.p2p, (said.p2p, said.per_peer))
            process.nvls_channels = max(process.nvls_channels, said.nvls or 0)
            if said.nvls is not None:
                process.nvls_said = max(process.nvls_said or 0, said.nvls)
        elif isinstance(said, events.CollNet):
            known = self.log.communicators
            key = None if said.rank is None else communicators.of_rank(known, process, said.rank)
            if key is not None and said.rank is not None:
                add(process, "collnet_ranks", (key, said.rank))
            process.collnet_why = process.collnet_why or said.why
        elif isinstance(said, events.Sharp):
            add(process, "sharp", said.rank)
        elif isinstance(said, events.Rings):
            self._meets(process)
            process.rings += 1
            process.rings_gdr, process.rings_pxn = said.gdr, said.pxn
        elif isinstance(said, Graph):
            self._shared.add(process, "graphs", said)
        elif isinstance(said, events.System):
            self._meets(process)
            process.system = said.bandwidth


def _channel(said: Channel) -> Tuple[int, Way, Optional[Tuple[int, int]]]:
    """The rank that wrote it, the way, and the pair of ranks that the network, or NVLink between hosts, connects."""
    own = said.target if said.kind == "net" and said.send is False else said.source
    way = (said.kind, said.via, said.device, said.gdr, said.proxy is not None, said.send)
    across = said.kind == "net" or said.via.startswith("MNNVL")
    return own, way, (said.source, said.target) if across else None


_HANDLERS = {
    **dict.fromkeys(events.EVENTS, Reader._fact),
    Channel: Reader._collnet,
    Init: Reader._init,
    Shape: Reader._shape,
    events.Gone: Reader._gone,
    events.Variable: Reader._variable,
    events.Devices: Reader._devices,
    events.GraphNode: Reader._nvlink,
}
# First four characters of the text of INFO lines that may say something.
INTERESTING = frozenset(
    [start.encode() for start in texts.STARTS]
    # "8 coll channels", "64 coll channels"
    + [b"%d " % n + rest for n, rest in [(n, b"co"[: 3 - len(str(n))]) for n in range(1000)]]
    # A call that returned an error.
    + [b"-> %d" % n for n in range(1, 7)]
    # The trace of collectives.
    + [b"Tree", *trace.STARTS]
    + list(topology.STARTS)
)


def read(blocks: Iterable[bytes], name: str = "log") -> Log:
    """A log of one source."""
    reader = Reader()
    reader.source(name)
    for block in blocks:
        reader.feed(block)
    reader.end()
    return reader.log
