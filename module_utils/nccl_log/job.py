# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a log says about a job: its processes, their communicators, networks, devices, connections and failures.

``Reader`` takes a log in blocks of any size and keeps facts, never lines: its memory grows with the number of processes
and not with the log, up to the limits below, and what is beyond them is counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Dict, Iterable, List, Optional, Set, Tuple

from . import events, failures, lines, signals, texts, topology, trace, unsigned
from .events import Channel, Event, Graph, Init, Plugin, Shape
from .failures import Failure
from .hostnames import Hostnames
from .lines import Head
from .pairs import Pairs
from .process import NOTHING, Call, Key, Process, Way
from .shared import KINDS, KNOWN, Shared, add, put, remember

# Of a log: 6,250 nodes of eight GPUs. A process that says which channels it has, or little, has 2.5 KB.
PROCESSES = 50_000
RANKS = 400_000
COMMUNICATORS = 20_000
FAILURES = 4_000
# Calls of a process that returned an error.
CALLS = 16
BEYOND = "lines of further processes"

# So many processes are kept with all they say; of more, seconds of an initialisation from which on they are told.
_DETAILED, _SLOW = 4096, 2.0
# Lines from the begin on in which each process is noted, whatever it says.
_BEGIN = 50_000
# In INFO lines that may report a failure.
_REPORTS = (
    *(
        b"ailed",
        b"rror",
        b"imed out",
        b"annot ",
        b"nable to",
        b"ot supported",
        b"bort",
        b"isabl",
        b"ould not",
        b"xceed",
    ),
    *(b"gnor", b"alling back", b"allback", b"ismatch", b"nvalid", b"etry", b"ot found", b"nsufficient", b"eprecated"),
)
# Lines of one begin (four characters) that are looked through for them.
_LOOKED_THROUGH = 2000
# Kinds of warnings that are none.
_NO_FAILURES = ("fallback", "value", "event", "ras", "libfabric", "gdrcopy", "rccl_host")
_TRACED = frozenset(trace.STARTS)
_DRAWN = frozenset(topology.STARTS)
# Of these events are made, too.
_DRAWN_TOO = frozenset([b"+ NV", b"+ PC", b"    ", b"=== ", b"Patt"])

# What Ray appends to a line that other processes wrote alike, within some seconds; theirs it leaves out.
_REPEATED = re.compile(rb"(?:\x1b\[\d{1,3}m)? \[repeated (\d{1,9})x across cluster\].*$")

# The head of 2.2 and earlier releases.
_OLD = re.compile(rb"^([^\s:]{1,255}:\d{1,10}:\d{1,10} \[\d{1,4}\](?: [\w/.-]{1,120}:\d{1,6})?) (INFO|WARN) ")


@dataclass
class Communicator:
    """key: commId; of a split without one ``PARENT/COLOR``. began, done: rank -> process. nodes: as NCCL counts.

    split: made of another one (ncclCommSplit).   one_process: one process has all of its ranks (ncclCommInitAll).
    gone: how it ended (``Abort``) -> ranks.   named: its begin is not in the log, other lines name it.
    """

    key: str
    ranks: int
    began: Dict[int, Process] = field(default_factory=dict)
    done: Set[int] = field(default_factory=set)
    nodes: Optional[int] = None
    local_ranks: int = 0
    split: bool = False
    one_process: bool = False
    gone: Dict[str, Set[int]] = field(default_factory=dict)
    named: bool = False

    @property
    def formed(self) -> bool:
        """Whether all ranks have taken part: nodes and channels are known only after each has heard of each."""
        if self.nodes is not None and not self.one_process:
            return True
        return any(
            (rank in process.connections or process.channels) and len(process.pointers) == 1
            for rank, process in self.began.items()
        )


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
    cut_off: sources whose last line has no end.   pairs: ranks that are connected, rings and trees of small jobs.
    last_done: the last line on a complete initialisation.
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
    cut_off: List[str] = field(default_factory=list)
    last_done: int = 0


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
        # Whether lines may have something around them that is taken off, of Ray or of a collector's JSON.
        self._odd = True
        self._heads: Dict[bytes, Optional[Process]] = {}
        self._channels: Dict[bytes, Any] = {}
        self._events: Dict[bytes, Any] = {}
        self._hosts = Hostnames(PROCESSES)
        self._shared = Shared()
        # First four characters of lines that no rule looks at -> how many were looked through for reports.
        self._begins: Dict[bytes, int] = {}
        self._ranks = 0
        self._topologies = 0

    def source(self, name: str) -> None:
        """Another file begins; the one before is at its end."""
        self.end()
        self.log.sources.append(name)

    def end(self) -> None:
        self._others.block(self._rest)
        if self._rest and not self._skip:
            self.log.cut_off.append(self.log.sources[-1] if self.log.sources else "")
            self._odd = True
            self._lines([self._rest])
        self._rest = b""
        self._skip = False
        self._others.end()
        bare = self._others.bare
        if bare and not any(process.host for process in self.log.processes.values()):
            # Nothing in this log has a head: somebody has cut off all that stood before the texts.
            process = self._process(Head(), 0)
            self.log.info += len(bare)
            for line, self._order in bare if process is not None else ():
                self._text(process, line)
        else:
            for line, order in ((line, order) for line, order in bare if order in self._others.untold):
                self.log.unread.line(line, len(self.log.sources), order, True)
        self._others.bare, self._others.untold = [], set()
        self._rename()

    def feed(self, block: bytes) -> None:
        whole = self._rest + block
        self._others.block(whole)
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
        self._odd = b"x across cluster]" in whole or b'{"' in whole
        self._lines(found)

    def _lines(self, found: List[bytes]) -> None:
        log = self.log
        interesting = INTERESTING
        odd = self._odd
        order = log.lines
        info = 0
        for line in found:
            order += 1
            if odd:
                line = self._plain(line)
            at = line.find(b" NCCL ")
            if at < 0 and (b"] INFO " in line or b" WARN " in line):
                # Up to 2.2 the name is not there.
                line = _OLD.sub(rb"\1 NCCL \2 ", line, count=1)
                at = line.find(b" NCCL ")
            if at < 0:
                if line:
                    self._other(line, order)
                continue
            if line[at + 6 : at + 11] == b"INFO ":
                info += 1
                begin = line[at + 11 : at + 15]
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
        if order < _BEGIN:
            self._by(line[: lines.LONGEST], at, order)
        begin = line[at + 11 : at + 15]
        if begin[:1].isdigit() and trace.CHOSEN in line:
            self.log.trace.choice(line[at + 11 :])
            return
        seen = self._begins.get(begin, 0)
        if seen >= _LOOKED_THROUGH:
            return
        if seen or len(self._begins) < KNOWN:
            self._begins[begin] = seen + 1
        for mark in _REPORTS:
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
        """The line without what Ray appends to it, or out of a collector's JSON."""
        if line.startswith(b'{"'):
            line = lines.unwrapped(line)
        match = _REPEATED.search(line)
        if match is None:
            return line
        self.log.collapsed += int(match.group(1))
        return line[: match.start()]

    def _info(self, line: bytes, at: int, order: int) -> None:
        """An INFO line in the form of almost all lines: what was met once is not parsed again."""
        self._line, self._order = line, order
        if line[:1] == b" ":
            # A row of nccl-tests' table goes on after what NCCL prints meanwhile.
            self.log.table.begun(line[:at])
        process = self._by(line, at, order)
        if process is not None and line.startswith(b"-> ", at + 11):
            # 2.30 and later print the place in the head.
            for record in lines.records(line.decode("utf-8", "replace")):
                self._said(process, texts.returned(record.head.place.partition(" ")[0], record.text))
        elif process is not None:
            self._text(process, line[at + 11 :])

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
            process = self._process(record.head, order, number > 0)
            self._uses(process, record.head.device)
            if record.level == "WARN" or refused:
                self.log.warnings += not refused
                failed = failures.failure(record.text, record.head.place)
                if failed is not None:
                    self._failed(failed, record.head, order, process)
                    kind = signals.WARNING if failed.kind in _NO_FAILURES else signals.ERROR
                    self._quote(process, record.text, record.head.place, order, kind)
                    self._open, self._open_at = order, len(self.log.failures) - 1
                    if failed.kind == "fallback" and "CollNet" in failed.text:
                        self._said(process, events.CollNet(False, failed.text[:200]))
                else:
                    self._said(process, texts.absent(record.text))
            else:
                self._said(process, texts.event(record.text))

    def _by(self, line: bytes, at: int, order: int) -> Optional[Process]:
        """The process that wrote a line; at: where its text's level begins."""
        # From HOST:PID:TID [DEVICE on: a time before it makes each line another one.
        begin = line.rfind(b" ", 0, max(line.rfind(b" [", 0, at), 0)) + 1
        head = line[begin:at]
        if head in self._heads:
            process = self._heads[head]
            if process is None:
                self._count(BEYOND)
            return process
        parsed = lines.head(line[:at].decode("utf-8", "replace"))
        process = self._process(parsed, order)
        self._uses(process, parsed.device)
        if parsed.pid is not None:
            remember(self._heads, head, process)
        return process

    def _uses(self, process: Optional[Process], device: Optional[int]) -> None:
        """Notes the CUDA device of a head; threads without one print any number."""
        if process is not None and device is not None and 0 <= device < 64:
            self._shared.add(process, "gpus", device)

    def _owns(self, process: Process, device: int) -> None:
        if 0 <= device < 64 and device not in process.gpus:
            self._shared.add(process, "own_gpus", device)

    def _text(self, process: Process, text: bytes) -> None:
        """What an INFO line says to its process."""
        if text.startswith((b"Channel ", b"Ring ")):
            # The number of the channel does not matter.
            key = text[text.find(b" : ") :]
            known = self._channels.get(key)
            if known is None:
                said = texts.event(text.decode("utf-8", "replace"))
                known = _channel(said) if isinstance(said, Channel) else ()
                remember(self._channels, key, known)
            if not known:
                if not self.log.pairs.ring(process, text[:2000].decode("utf-8", "replace")):
                    self.log.unread.line(text, len(self.log.sources), self._order, True)
            else:
                if not self.log.pairs.many:
                    self.log.pairs.connection(process, text[:2000].decode("utf-8", "replace"))
                rank, way, pair = known
                self._connected(process, rank, way)
                if pair and (way[0] == "net" or len(self.log.processes) <= _DETAILED):
                    add(process, "crossed" if way[0] == "net" else "bridged", pair)
            return
        if text[:4] == b"Tree" and self.log.pairs.tree(process, text[:2000].decode("utf-8", "replace")):
            return
        if text[:4] in _TRACED and self._traced(process, text):
            return
        drawn = text[:4] in _DRAWN and self._drawn(process, text)
        if drawn and text[:4] not in _DRAWN_TOO:
            return
        said = self._events.get(text, events)
        if text[:1] == b"/" and (b"/rccl/" in text or b"/hipify/" in text):
            self.log.rccl = True
        if said is events:
            said = texts.event(text.decode("utf-8", "replace"))
            # What ranks have in common is kept once; a communicator's line is of one rank.
            if len(text) < 1000 and b"comm 0x" not in text:
                remember(self._events, text, said)
            if isinstance(said, Plugin) and said.state == "speaks":
                # What it says beside its name.
                self.log.unread.line(text, len(self.log.sources), self._order, True)
        if said is None and any(mark in text for mark in _REPORTS):
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
            put(process, "connections", rank, self._shared.count(ways, way))
        else:
            self._count("kinds of connections of a process")

    def _process(self, head: Head, order: int, glued: bool = False) -> Optional[Process]:
        """glued: what another process wrote stands before the head."""
        key = (self._hosts.of(head.host, head.pid, glued), head.pid, head.rank if head.pid is None else None)
        process = self.log.processes.get(key)
        if process is None:
            if len(self.log.processes) >= PROCESSES:
                self._count(BEYOND)
                return None
            process = self.log.processes[key] = Process(key, order, head.rank)
        elif process.launcher_rank is None:
            process.launcher_rank = head.rank
        return process

    def _rename(self) -> None:
        """Gives processes of hosts whose name was torn or cut the name that is known by now."""
        whole = self._hosts.settled()
        for key, process in list(self.log.processes.items()) if whole else ():
            named = (whole.get(key[0], key[0]), *key[1:])
            if named != key and named not in self.log.processes:
                del self.log.processes[key]
                process.key = named
                self.log.processes[named] = process

    def _failed(self, failed: Failure, head: Optional[Head], order: int, process: Optional[Process] = None) -> None:
        self.log.rccl = self.log.rccl or failed.kind == "rccl_host" or "HIP failure" in failed.text
        self.log.rccl = self.log.rccl or (head is not None and ("/rccl/" in head.place or "hipify" in head.place))
        if len(self.log.failures) >= FAILURES:
            self._count("failures")
            return
        head = head or Head()
        source = len(self.log.sources)
        when = (source, order, head.time, head.clock)
        self.log.failures.append(Reported(failed, process, *when, head.place, head.device))

    def _other(self, line: bytes, order: int) -> None:
        """A line that is none of NCCL's."""
        if line.startswith((b"NCCL INFO ", b"NCCL WARN ")):
            # Somebody has cut the heads off.
            self._record(b" " + line[: lines.LONGEST], 0, order)
            self.log.info += line[5:9] == b"INFO"
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
        process.no_gdr(said.why)
        known = process.gdr_devices.get(said.device)
        by_plugin = "the plugin %s has it off, though NET/IB reports it as enabled for this HCA; why is not told"
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
        put(process, "buses", said.rank, said.bus)
        self._owns(process, said.device)
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
            one.done.add(said.rank)

    def _setting_up(self, process: Process, rank: int) -> Optional[str]:
        """Key of the one communicator in which the process has just this rank to set up; None where several fit."""
        own = {key: self.log.communicators[key] for key in process.pointers.values() if key in self.log.communicators}
        mine = [key for key, one in own.items() if one.began.get(rank) is process]
        begun = [key for key in mine if rank not in own[key].done] or mine
        return begun[0] if len(begun) == 1 else None

    def _shape(self, process: Process, said: Shape) -> None:
        if said.mnnvl is not None:
            process.mnnvl = said.mnnvl and process.mnnvl is not False
        one = self.log.communicators.get(process.pointers.get(said.comm, ""))
        if one is not None:
            one.nodes = said.nodes
            one.local_ranks = max(one.local_ranks, said.local_ranks)
        else:
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
        self._owns(process, said.device)

    def _variable(self, process: Process, said: events.Variable) -> None:
        if said.name not in process.variables:
            self._shared.put(process, "variables", said.name, said.value[:300])

    def _devices(self, process: Process, said: events.Devices) -> None:
        if said.net == "IB":
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
            self.log.rccl = self.log.rccl or said.rccl
        elif isinstance(said, events.Driver):
            process.driver = said.version
        elif isinstance(said, events.Network):
            self._shared.add(process, "networks", said.name)
        elif isinstance(said, events.NoDevice):
            self._shared.add(process, "absent", said.why)
        elif isinstance(said, events.Speed):
            self._shared.put(process, "speeds", said.name, said.mbit)
        elif isinstance(said, events.Note):
            self._shared.add(process, "notes", said)
        elif isinstance(said, Plugin):
            self._shared.add(process, "plugins", said)
            if said.form is not None:
                self._shared.add(process, "forms", said.form)
            self.log.rccl = self.log.rccl or "librccl" in said.name
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
            self._owns(process, said.device)
            if said.comm not in process.pointers:
                add(process, "named", (said.rank, said.ranks, ""))
        elif isinstance(said, events.PeerOff):
            self._shared.add(process, "peers_off", said.pair)
        elif isinstance(said, events.Trees):
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
            # As a rule Init COMPLETE stands before it.
            if not any(one is not None and one.ranks == said.ranks and said.rank in one.done for one in own):
                add(process, "timed", (said.rank, said.ranks))
        elif isinstance(said, events.Returned):
            if len(process.calls) < CALLS and self._calls < FAILURES:
                self._calls += 1
                head = lines.head(self._line[: self._line.find(b" NCCL ")].decode("utf-8", "replace"))
                progress = b"[Progress" in self._line
                source = len(self.log.sources)
                process.calls += (Call(said.place, said.result, head.device, source, self._order, progress),)
        elif isinstance(said, events.Nvls):
            process.nvls = said.available
        elif isinstance(said, events.NvlsGroup):
            process.nvls_group = True
        elif isinstance(said, events.Fabric):
            self._shared.add(process, "fabrics", said)
        elif isinstance(said, events.Channels):
            process.channels = max(process.channels, said.collective)
            process.p2p = max(process.p2p, (said.p2p, said.per_peer))
            process.nvls_channels = max(process.nvls_channels, said.nvls or 0)
            if said.nvls is not None:
                process.nvls_said = max(process.nvls_said or 0, said.nvls)
        elif isinstance(said, events.CollNet):
            key = None if said.rank is None else self._setting_up(process, said.rank)
            if key is not None and said.rank is not None:
                add(process, "collnet_ranks", (key, said.rank))
            process.collnet_why = process.collnet_why or said.why
        elif isinstance(said, events.Sharp):
            add(process, "sharp", said.rank)
        elif isinstance(said, events.Rings):
            process.rings += 1
            process.rings_gdr, process.rings_pxn = said.gdr, said.pxn
        elif isinstance(said, Graph):
            self._shared.add(process, "graphs", said)
        elif isinstance(said, events.System):
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
