# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find the rank that a stopped job waits for in the flight recorder's dumps of its ranks.

Collectives of a process group have the same sequence number on all of its ranks (PyTorch, FlightRecorder.hpp:
collective_seq_id). A rank whose first unfinished number is lower than its peers' holds them up, as does one that has
not launched the number. Sends and receives are numbered by each rank for itself: they only show who waits for whom.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Callable, Dict, FrozenSet, Iterable, List, Mapping, NamedTuple, Optional, Set, Tuple, Union

from .recorder_dump import COMPLETED, Dump, Entry, Group, Operation, Ranks

# What holds up others: a collective that only this rank has not finished; one that it has not launched; no dump.
BEHIND, ABSENT, NO_DUMP = "behind", "not launched", "no dump"
CERTAIN, LIKELY, SUSPECT = "certain", "likely", "suspect"
# Collective -> whose sizes have to be equal on all ranks, as have its types. Of any other, none.
_EQUAL = {
    **dict.fromkeys(("all_reduce", "allreduce_coalesced", "broadcast", "reduce"), "in out"),
    **dict.fromkeys(("_all_gather_base", "all_gather_single", "all_gather_into_tensor_coalesced"), "in out"),
    **dict.fromkeys(("_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor_coalesced"), "in out"),
    "all_gather": "out",
    "reduce_scatter": "in",
}
PAIR = re.compile(r"\w{1,10}:(send|recv) ([0-9]{1,7})(?:->|<-)([0-9]{1,7})")
# Seconds between the last records of two ranks; twice the timeout, where that is more.
_OLD = 3600
# Names of the group of all ranks.
_WORLD = ("default_pg", "default")
_NO_RANKS = Ranks()

Node = Union[int, Tuple[str, object]]


class Suspect(NamedTuple):
    """A rank that others wait for.   waiting: they, in this group.   causes: ranks that it waits for itself.

    place: where the rank has launched the operation; else where those who wait have.
    confidence: CERTAIN, LIKELY (its dump has nothing unfinished), SUSPECT (no dump).
    """

    rank: int
    kind: str
    confidence: str
    group: Group
    number: int
    operation: Operation
    waiting: Tuple[int, ...]
    place: str
    causes: Tuple[int, ...] = ()


class Side(NamedTuple):
    """Ranks that have called one operation under a number, and where one of them has."""

    operation: Operation
    ranks: Tuple[int, ...]
    place: str


class Mismatch(NamedTuple):
    """Different operations under one number.   what: "collective", "size" or "type".   sides: largest first."""

    group: Group
    number: int
    what: str
    finished: bool
    sides: Tuple[Side, ...]


class Wait(NamedTuple):
    """Ranks that have launched a collective and not finished it.   unknown: those whose dumps do not show it."""

    group: Group
    number: int
    operation: Operation
    ranks: Tuple[int, ...]
    place: str
    unknown: Tuple[int, ...]


class Judgement(NamedTuple):
    """suspects: roots first.   cycles: ranks that wait for each other.   pairs: those that wait in a send or receive.

    world: all ranks that a group names; has_world: they are all ranks of the job.   missing: those without a dump.
    unlisted: those whose dumps list no records.   overwritten: groups of which some have lost records, and how many.
    problems: file or rank -> why its dump is not read.   releases: of NCCL.
    """

    suspects: Tuple[Suspect, ...]
    cycles: Tuple[Tuple[int, ...], ...]
    mismatches: Tuple[Mismatch, ...]
    waits: Tuple[Wait, ...]
    pairs: Tuple[int, ...]
    world: Tuple[int, ...]
    has_world: bool
    missing: Tuple[int, ...]
    unlisted: Tuple[int, ...]
    overwritten: Tuple[Tuple[Group, int], ...]
    problems: Mapping[str, str]
    releases: Tuple[str, ...]

    @property
    def roots(self) -> Tuple[Suspect, ...]:
        return tuple(suspect for suspect in self.suspects if not suspect.causes)

    @property
    def complete(self) -> bool:
        """Return whether each rank of the job has a dump that was read."""
        return self.has_world and not (self.missing or self.unlisted or self.problems)


class _Rank:
    """A rank's dump.   first, last: of each group, its first unfinished collective and the number of its last one.

    idle: it has nothing unfinished.   whole: no record is missing.   is_known: it is shown what the rank does.
    """

    def __init__(self, rank: int, dump: Dump) -> None:
        self.rank, self.dump = rank, dump
        entries = dump.entries or ()
        self.first: Dict[Group, Entry] = {}
        self.last: Dict[Group, int] = {}
        self.pairs: List[Tuple[Group, Entry]] = []
        for entry in entries:
            group = self.group(entry.group)
            is_open = entry.state != COMPLETED
            if entry.is_p2p:
                self.pairs += [(group, entry)] if is_open else []
                continue
            self.last[group] = max(self.last.get(group, -1), entry.number)
            if is_open and (group not in self.first or entry.number < self.first[group].number):
                self.first[group] = entry
        self.whole = dump.entries is not None and [entry.record for entry in entries] == [*range(len(entries))]
        rests = dump.status is not None and all(status.enqueued == status.completed for status in dump.status.values())
        self.idle = rests if dump.entries is None else all(entry.state == COMPLETED for entry in entries)
        # Without records nothing is known, but that all of its work is done.
        self.is_known = dump.entries is not None or self.idle

    def group(self, name: str) -> Group:
        return self.dump.groups.get(name) or Group(name, "", _NO_RANKS)

    def position(self, group: Group) -> Optional[Tuple[int, bool]]:
        """Return the first unfinished number and whether it is launched; None where the dump does not show it."""
        if group not in self.last:
            return (1, False) if self.whole and self.dump.entries else None
        first = self.first.get(group)
        return (self.last[group] + 1, False) if first is None else (first.number, True)

    def overwritten(self) -> List[Group]:
        """Return groups of which unfinished collectives may have been overwritten in the recorder's buffer."""
        mixed = {entry.group_id for entry in self.dump.entries or () if entry.is_p2p}
        done = {number: status.completed for number, status in (self.dump.status or {}).items() if number not in mixed}
        firsts = self.first.items()
        return [group for group, first in firsts if 0 <= done.get(first.group_id, -1) < first.number - 1]


class _Job:
    def __init__(self, dumps: Mapping[int, Dump]) -> None:
        self.ranks = {rank: _Rank(rank, dumps[rank]) for rank in sorted(dumps)}
        groups = {group for dump in dumps.values() for group in dump.groups.values()}
        groups |= {group for member in self.ranks.values() for group in member.last}
        self.members: Dict[Group, Set[int]] = {group: set(group.ranks) for group in groups}
        for member in self.ranks.values():
            for group in member.last:
                self.members[group].add(member.rank)
        world = {rank for group in groups for rank in group.ranks} | set(dumps)
        self.world = sorted(world)
        self.missing = sorted(world - set(dumps))
        self.has_world = any(group.description in _WORLD or group.name in _WORLD for group in groups)
        # Who waits for whom: a rank for a group's part, and that part for ranks.
        self.edges: Dict[Node, Set[Node]] = {}

    def waits(self) -> List[Tuple[Group, Dict[int, Entry]]]:
        """Return the groups in which ranks wait, with the first unfinished collective of each."""
        found = []
        for group in sorted(self.members):
            members = [self.ranks[rank] for rank in sorted(self.members[group]) if rank in self.ranks]
            found.append((group, {member.rank: member.first[group] for member in members if group in member.first}))
        return [(group, waiting) for group, waiting in found if waiting]

    def link(self, name: Tuple[str, object], waiting: Iterable[int], targets: Iterable[int]) -> None:
        self.edges.setdefault(name, set()).update(targets)
        for rank in waiting:
            self.edges.setdefault(rank, set()).add(name)


def _suspects_of(job: _Job, group: Group, waiting: Mapping[int, Entry]) -> List[Suspect]:
    """Return those in one group, and note who waits for whom."""
    positions = {rank: job.ranks[rank].position(group) for rank in job.members[group] if rank in job.ranks}
    known = {rank: where for rank, where in positions.items() if where is not None}
    lowest = min(known.values())
    late = sorted(rank for rank, where in known.items() if where == lowest)
    held = tuple(sorted(rank for rank in waiting if known[rank] > lowest))
    unlaunched = sorted(rank for rank, where in positions.items() if where is None and job.ranks[rank].idle)
    missing = sorted(job.members[group] - set(job.ranks))
    everyone = tuple(sorted(waiting))
    rows = [
        (late if held else [], BEHIND if lowest[1] else ABSENT, CERTAIN, held),
        (unlaunched, ABSENT, LIKELY, everyone),
        (missing if not held and not unlaunched else [], NO_DUMP, SUSPECT, everyone),
    ]
    found: List[Suspect] = []
    for ranks, kind, confidence, waiters in rows:
        entries = [waiting[rank] for rank in waiters if waiting[rank].number >= lowest[0]]
        shown = min(entries, key=lambda entry: entry.number) if entries else waiting[min(waiting)]
        for rank in ranks:
            entry = waiting[rank] if kind == BEHIND else shown
            where = (group, entry.number, entry.operation, waiters, entry.place)
            found.append(Suspect(rank, kind, confidence, *where))
        if ranks:
            job.link((kind, group), waiters, ranks)
    return found


def _link_pairs(job: _Job) -> List[Suspect]:
    """Note who waits in a send or receive for whom; return those that have nothing unfinished, or no dump."""
    pairs = [
        (member.rank, group, entry, PAIR.match(entry.operation.name))
        for member in job.ranks.values()
        for group, entry in member.pairs
    ]
    open_pairs = {(group, match.groups()) for _rank, group, _entry, match in pairs if match}
    waiters: Dict[Tuple[int, Group], List[Tuple[int, Entry]]] = {}
    for rank, group, entry, match in pairs:
        kind, first, second = match.groups() if match is not None else ("", "", "-1")
        other = (group, ("recv" if kind == "send" else "send", second, first))
        if other not in open_pairs and rank in group.ranks and 0 <= int(second) < len(group.ranks):
            waiters.setdefault((group.ranks[int(second)], group), []).append((rank, entry))
    found = []
    for (rank, group), by in sorted(waiters.items(), key=lambda item: item[0]):
        waiting = tuple(sorted({waiter for waiter, _entry in by}))
        job.link(("pair", (rank, group)), waiting, [rank])
        peer, entry = job.ranks.get(rank), by[0][1]
        if peer is None or peer.idle:
            kind, confidence = (NO_DUMP, SUSPECT) if peer is None else (ABSENT, LIKELY)
            found.append(Suspect(rank, kind, confidence, group, entry.number, entry.operation, waiting, ""))
    return found


def _components(edges: Mapping[Node, Set[Node]]) -> List[List[Node]]:
    """Return the strongly connected components, each after those that it leads to (Kosaraju and Sharir 1981)."""
    back: Dict[Node, Set[Node]] = {}
    for node, targets in edges.items():
        for target in targets:
            back.setdefault(target, set()).add(node)
    visited: Set[Node] = set()
    order = [node for start in edges for node in _reach(start, edges, visited)]
    visited = set()
    components = [_reach(node, back, visited) for node in reversed(order)]
    return list(filter(None, reversed(components)))


def _reach(start: Node, edges: Mapping[Node, Set[Node]], visited: Set[Node]) -> List[Node]:
    """Visit what a node leads to and was not visited, without recursion; return it, each after those it leads to."""
    order: List[Node] = []
    work = [] if start in visited else [(start, iter(edges.get(start, ())))]
    visited.add(start)
    while work:
        target = next((node for node in work[-1][1] if node not in visited), None)
        if target is None:
            order.append(work.pop()[0])
        else:
            visited.add(target)
            work.append((target, iter(edges.get(target, ()))))
    return order


def _causes(job: _Job, suspected: FrozenSet[int]) -> Tuple[Dict[int, Tuple[int, ...]], List[Tuple[int, ...]]]:
    """Return the suspected ranks that each suspected rank waits for in the end, and those that wait for each other."""
    roots: Dict[Node, FrozenSet[int]] = {}
    cycles = []
    for component in _components(job.edges):
        inside = frozenset(node for node in component if isinstance(node, int)) & suspected
        targets = {target for node in component for target in job.edges.get(node, ())} - set(component)
        beyond = frozenset(root for target in targets for root in roots[target])
        if not beyond and len(component) > 1 and len(inside) > 1:
            cycles.append(tuple(sorted(inside)))
        for node in component:
            roots[node] = beyond or inside
    causes = {}
    for rank in suspected:
        own = roots.get(rank, frozenset())
        causes[rank] = () if rank in own else tuple(sorted(own))
    return causes, cycles


def _mismatches(job: _Job) -> List[Mismatch]:
    """Return the first one of each group."""
    by_group: Dict[Group, Dict[int, Dict[int, List[Entry]]]] = {}
    for member in job.ranks.values():
        for entry in member.dump.entries or ():
            if not entry.is_p2p:
                numbers = by_group.setdefault(member.group(entry.group), {})
                numbers.setdefault(entry.number, {}).setdefault(member.rank, []).append(entry)
    found = []
    for group, numbers in sorted(by_group.items()):
        every = (_mismatch(group, number, of_ranks) for number, of_ranks in sorted(numbers.items()))
        found.append(next(filter(None, every), None))
    return list(filter(None, found))


def _mismatch(group: Group, number: int, of_ranks: Mapping[int, List[Entry]]) -> Optional[Mismatch]:
    # Operations of one coalesced group share its number: they are not compared.
    single = {rank: entries[0] for rank, entries in of_ranks.items() if len(entries) == 1}
    for what, key in _COMPARED.items():
        sides: Dict[str, List[int]] = {}
        for rank, entry in sorted(single.items()):
            sides.setdefault(repr(key(entry.operation)), []).append(rank)
        if len(sides) > 1:
            ordered = sorted(sides.values(), key=lambda ranks: (-len(ranks), ranks))
            shown = tuple(Side(single[side[0]].operation, tuple(side), single[side[0]].place) for side in ordered)
            finished = all(entry.state == COMPLETED for entry in single.values())
            return Mismatch(group, number, what, finished, shown)
    return None


def _sizes(operation: Operation) -> List[int]:
    """Return the numbers of elements that have to be equal; their shapes may differ."""
    compared = _EQUAL.get(operation.name.partition(":")[2], "")
    sides = (("in", operation.input_sizes), ("out", operation.output_sizes))
    return [sum(map(math.prod, sizes)) for side, sizes in sides if side in compared]


def _types(operation: Operation) -> List[str]:
    known = operation.name.partition(":")[2] in _EQUAL
    return sorted({*operation.input_types, *operation.output_types}) if known else []


_COMPARED: Dict[str, Callable[[Operation], object]] = {
    "collective": lambda operation: operation.name,
    "size": _sizes,
    "type": _types,
}


def judge(dumps: Mapping[int, Dump], problems: Mapping[str, str]) -> Judgement:
    """Return which ranks hold up which.   dumps: rank -> its dump.   problems: file -> why it was not read."""
    old = _old(dumps)
    job = _Job({rank: dump for rank, dump in dumps.items() if "rank %d" % rank not in old})
    waits = job.waits()
    found = [suspect for group, waiting in waits for suspect in _suspects_of(job, group, waiting)]
    found += _link_pairs(job)
    causes, cycles = _causes(job, frozenset(suspect.rank for suspect in found))
    overwritten = Counter(group for member in job.ranks.values() for group in member.overwritten())
    return Judgement(
        suspects=tuple(_best(suspect._replace(causes=causes[suspect.rank]) for suspect in found)),
        cycles=tuple(cycles),
        mismatches=tuple(_mismatches(job)),
        waits=tuple(_wait(job, group, waiting) for group, waiting in waits),
        pairs=tuple(member.rank for member in job.ranks.values() if member.pairs),
        world=tuple(job.world),
        has_world=job.has_world,
        missing=tuple(job.missing),
        unlisted=tuple(member.rank for member in job.ranks.values() if not member.is_known),
        overwritten=tuple(sorted(overwritten.items())),
        problems={**problems, **old},
        releases=tuple(sorted({dump.nccl for dump in dumps.values() if dump.nccl})),
    )


def _old(dumps: Mapping[int, Dump]) -> Dict[str, str]:
    """Return why dumps are left out: their last record is much older than that of others, as of an earlier run."""
    ends = {rank: max(entry.created for entry in dump.entries) for rank, dump in dumps.items() if dump.entries}
    timeouts = [entry.timeout for dump in dumps.values() for entry in dump.entries or ()]
    most = max([_OLD, *(2 * timeout // 1000 for timeout in timeouts)])
    newest = max(ends.values(), default=0)
    ages = {rank: (newest - end) // 1_000_000_000 for rank, end in ends.items()}
    why = "its last record is %d s older than that of another rank: it is of an earlier run"
    return {"rank %d" % rank: why % age for rank, age in ages.items() if age > most}


def _best(found: Iterable[Suspect]) -> List[Suspect]:
    """Return one of each rank: what is most certain, in the group that most ranks wait in; roots first."""
    order = [CERTAIN, LIKELY, SUSPECT].index
    first: Dict[int, Suspect] = {}
    for one in sorted(found, key=lambda one: (order(one.confidence), -len(one.waiting), one.group, one.number)):
        first.setdefault(one.rank, one)
    return sorted(first.values(), key=lambda one: (bool(one.causes), order(one.confidence), one.rank))


def _wait(job: _Job, group: Group, waiting: Mapping[int, Entry]) -> Wait:
    entry = min(waiting.values(), key=lambda entry: entry.number)
    members = [job.ranks[rank] for rank in sorted(job.members[group]) if rank in job.ranks]
    unknown = tuple(member.rank for member in members if member.position(group) is None and not member.idle)
    return Wait(group, entry.number, entry.operation, tuple(sorted(waiting)), entry.place, unknown)
