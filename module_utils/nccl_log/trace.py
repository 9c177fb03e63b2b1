# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The trace of collectives that NCCL prints (NCCL_DEBUG_SUBSYS=COLL): who called what, and do they agree.

Operations of a communicator have a number (opCount). Where two of its ranks call different things under one number, the
program's ranks are out of step. A line names its communicator by a pointer, which says nothing to another process: so
streams of calls are compared where the begin of the communicator is in the log, or where each process has one alone of
that size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, NamedTuple, Set, Tuple

from ..core.number import whole
from .table import size as size_of

# Streams, numbers of a communicator that are compared, and differences that are kept.
STREAMS, WINDOW, APART = 4096, 20_000, 8
_CALL = re.compile(
    rb"(?P<op>[A-Z]\w{3,24}): opCount (?P<number>[0-9a-f]{1,16}) sendbuff \S{1,20} recvbuff \S{1,20} (?:\w+ 0x\S{1,20}"
    rb" )?count (?P<count>\d{1,18}) datatype (?P<type>\d{1,3}) op (?P<how>\d{1,12}) root (?P<root>-?\d{1,8}) comm"
    rb" (?P<comm>0x[0-9a-f]{1,16}) \[nranks=(?P<ranks>\d{1,8})\]"
)
# The same with the size and the algorithm; up to 2.2x both are numbers, and what stands behind is the time expected.
_CHOICE = re.compile(
    rb"(?:(?P<op>[A-Z]\w{3,24}): ?)?(?P<size>\d{1,18}) Bytes -> Algo (?P<how>\w{1,20}) proto (?P<proto>\w{1,12})"
    rb"(?: channel\{Lo\.\.Hi\}=\{(?P<lo>\d{1,4})\.\.(?P<hi>\d{1,4})\})?"
)
CHOSEN = b" Bytes -> Algo "
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")
CHOICES = 64
# First four characters of these lines, as of others.
STARTS = (b"AllR", b"AllG", b"Redu", b"Broa", b"AllT", b"Send", b"Recv", b"Gath", b"Scat")
# Of these each rank calls another one.
_PAIRS = ("Send", "Recv")
_TYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16")


def _named(text: str, names: Tuple[str, ...]) -> str:
    """The name of a number that NCCL prints; the text where it is a name."""
    number = whole(text)
    return text if number is None or number >= len(names) else names[number]


class Called(NamedTuple):
    """op: ``AllReduce``.   how, root: number of the reduction, and the root."""

    op: str
    count: int
    type: int
    how: int
    root: int

    def __str__(self) -> str:
        kind = _TYPES[self.type] if self.type < len(_TYPES) else "datatype %d" % self.type
        return "%s of %d %s" % (self.op, self.count, kind)


@dataclass
class Stream:
    """Calls of one rank of one communicator. who: as it is printed.   last: the highest number.

    ops: name -> calls.
    """

    who: str
    process: int
    ranks: int
    group: str
    last: int = -1
    ops: Dict[str, int] = field(default_factory=dict)


class Apart(NamedTuple):
    """Two ranks that called different things under one number of a communicator."""

    group: str
    number: int
    one: Called
    by: str
    other: Called
    by_other: str


class Trace:
    def __init__(self) -> None:
        self.streams: Dict[Tuple[int, str], Stream] = {}
        self.lines = 0
        self.apart: List[Apart] = []
        # Numbers under which several ranks called the same.
        self.agreed: Set[int] = set()
        self._seen: Dict[Tuple[str, int], Tuple[Called, Tuple[int, str]]] = {}
        # Groups of which a rank calls several things under one number: it numbers no operations there.
        self._unnumbered: Set[str] = set()
        # (operation, algorithm, protocol) -> how often, smallest and largest size; first and last channel.
        self.chosen: Dict[Tuple[str, str, str], List[int]] = {}
        self._channels: Dict[Tuple[str, str, str], Tuple[int, int]] = {}

    def take(self, text: bytes, process: int, pointers: Dict[str, str], who: str) -> bool:
        """A line of the trace. process: a number of its own.   pointers: communicators that it began."""
        match = _CALL.match(text)
        if match is None:
            return self.choice(text)
        self.lines += 1
        comm, ranks = match.group("comm").decode(), int(match.group("ranks"))
        key = process, comm
        stream = self.streams.get(key)
        if stream is None:
            if len(self.streams) >= STREAMS:
                return True
            group = pointers.get(comm) or "of %d ranks" % ranks
            stream = self.streams[key] = Stream(who, process, ranks, group)
        number = int(match.group("number"), 16)
        op = match.group("op").decode()
        stream.last = max(stream.last, number)
        stream.ops[op] = stream.ops.get(op, 0) + 1
        if op not in _PAIRS and stream.group not in self._unnumbered:
            said = Called(op, *(int(match.group(name)) for name in ("count", "type", "how", "root")))
            self._compare(stream, key, number, said)
        return True

    def _compare(self, stream: Stream, key: Tuple[int, str], number: int, said: Called) -> None:
        at = stream.group, number
        before = self._seen.get(at)
        if before is None:
            if len(self._seen) >= WINDOW:
                # The oldest half: what is compared is of about the same time.
                for old in list(self._seen)[: WINDOW // 2]:
                    del self._seen[old]
            self._seen[at] = said, key
        elif before[1] == key:
            if before[0] != said:
                self._unnumbered.add(stream.group)
                self.apart = [one for one in self.apart if one.group != stream.group]
        else:
            if before[0] == said:
                if len(self.agreed) < WINDOW:
                    self.agreed.add(number)
            elif len(self.apart) < APART:
                other = self.streams[before[1]]
                self.apart.append(Apart(stream.group, number, before[0], other.who, said, stream.who))

    def choice(self, text: bytes) -> bool:
        """Takes a line on the algorithm that NCCL has chosen (NCCL_DEBUG_SUBSYS=TUNING)."""
        match = _CHOICE.match(text)
        if match is None:
            return False
        op, how, proto = ((match.group(name) or b"").decode() for name in ("op", "how", "proto"))
        key = op, _named(how, _ALGORITHMS), _named(proto, _PROTOCOLS)
        size = int(match.group("size"))
        known = self.chosen.get(key)
        if known is not None:
            known[:] = [known[0] + 1, min(known[1], size), max(known[2], size)]
        elif len(self.chosen) < CHOICES:
            self.chosen[key] = [1, size, size]
        if match.group("lo"):
            low, high = int(match.group("lo")), int(match.group("hi"))
            known = self._channels.get(key, (low, high))
            self._channels[key] = min(low, known[0]), max(high, known[1])
        return True

    def choices(self) -> List[str]:
        """Algorithms that NCCL has chosen, in sentences."""
        said = []
        for key, (count, low, high) in sorted(self.chosen.items(), key=lambda one: -one[1][0])[:8]:
            sizes = size_of(low) if low == high else "%s to %s" % (size_of(low), size_of(high))
            text = "%s by %s, protocol %s: %d times, of %s" % (*key, count, sizes)
            said.append(text.strip() + (", channels %d to %d" % self._channels[key] if key in self._channels else ""))
        more = len(self.chosen) - len(said)
        if not said:
            return []
        return ["NCCL chose: %s" % "; ".join(said) + (" and %d ways more" % more if more > 0 else "")]

    def alone(self, group: str) -> bool:
        """Whether each process has one stream of this group: then they are of one communicator, as far as is shown."""
        processes = [stream.process for stream in self.streams.values() if stream.group == group]
        size = max((stream.ranks for stream in self.streams.values() if stream.group == group), default=0)
        return len(processes) <= size and (len(processes) == len(set(processes)) or not group.startswith("of "))

    def told(self) -> List[str]:
        """What the trace shows, in sentences."""
        if not self.streams:
            return self.choices()
        ops: Dict[str, int] = {}
        for stream in self.streams.values():
            for op, count in stream.ops.items():
                ops[op] = ops.get(op, 0) + count
        text = "a trace of collectives (COLL): %s" % ", ".join("%d %s" % (n, op) for op, n in sorted(ops.items())[:8])
        sizes = sorted({stream.ranks for stream in self.streams.values()})
        text += "; communicators of %s ranks" % ", ".join(map(str, sizes[:4]))
        text += "; by %s" % ", ".join(
            "%s (last opCount %x)" % (stream.who, stream.last) for stream in list(self.streams.values())[:8]
        )
        text += " and %d more" % (len(self.streams) - 8) if len(self.streams) > 8 else ""
        said = [text + "; that they were called is shown, not that they ended"]
        said += self.choices()
        if self._unnumbered:
            said.append("opCount does not grow here: whether the ranks agree is unknown")
        elif self.agreed and not self.apart:
            numbers = sorted(self.agreed)
            few = ", ".join("%x" % number for number in numbers[:6]) + (" and more" if len(numbers) > 6 else "")
            said.append("the ranks shown agree in operation, count and type where several show one opCount (%s)" % few)
        return said
