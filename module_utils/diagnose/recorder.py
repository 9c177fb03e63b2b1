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
from typing import Dict, FrozenSet, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Union

from ..core.check import Check
from ..core.finding import Finding, worst_first
from ..core.host import ParseError
from ..nccl import known_bad
from ..nccl.known_bad import HANG, SCALE
from ..nccl.ras_views import ranges
from ..nccl.variables import parse_version
from .recorder_dump import COMPLETED, Dump, Entry, Group, Operation, Ranks

# What holds up others: a collective that only this rank has not finished; one that it has not launched; no dump.
BEHIND, ABSENT, NO_DUMP = "behind", "not launched", "no dump"
CERTAIN, LIKELY, SUSPECT = "certain", "likely", "suspect"
_STOPPED = "copy its dump here; if its host has none: `ps` (T stopped, Z dead, D in the kernel), `dmesg` there"
_STACK = "`py-spy dump --pid PID` on the host: data loader, storage, exception handler, another program path"

RANK = Check(
    "recorder.rank",
    why="the others wait in this collective for the rank, and every collective after it waits too",
    severity="critical",
)
"Has every rank launched and finished the collectives that its peers wait in"
MATCH = Check(
    "recorder.match",
    why="ranks that call different collectives, sizes or types under one number hang, or mix up their data",
    fix="compare the code paths of these ranks at the places above: a condition on the rank, uneven batches, a barrier",
    severity="critical",
)
"Do all ranks call the same collective, size and type under each number"
ORDER = Check(
    "recorder.order",
    why="each of these ranks waits in one group for a rank that waits for it in another: the order of calls differs",
    fix="call the collectives of the groups in the same order on all ranks, or wait for one before the next",
    severity="critical",
)
"Do ranks call the collectives of several groups in the same order"
DUMPS = Check(
    "recorder.dumps",
    why="what a rank without a dump does is unknown; a stopped or dead process writes none",
    fix="copy the dumps of all hosts into one directory (TORCH_FR_DUMP_TEMP_FILE or TORCH_NCCL_DEBUG_INFO_TEMP_FILE)",
)
"Is there a dump of each rank"
READABLE = Check(
    "recorder.readable",
    why="a dump that cannot be read, or lacks records, says nothing about its rank",
    fix="copy the file again; for missing records set TORCH_FR_BUFFER_SIZE=20000 (before PyTorch 2.9:"
    " TORCH_NCCL_TRACE_BUFFER_SIZE=20000)",
)
"Could each dump be read, with all records that are needed"
STUCK = Check(
    "recorder.stuck",
    why="every rank has launched the collective and none has finished it: no rank is late",
    fix="look at the network and the GPUs: NCCL's log of these ranks (busbar diagnose LOG), port counters, Xid",
)
"Does a collective that all ranks have launched end"
RELEASE = Check("recorder.release", why="this release of NCCL is known to hang", severity="minor")
"Is the NCCL of the dumps a release that is known to hang"

# Collective -> which of input sizes, output sizes and types have to be equal on all ranks. Of any other, none.
_EQUAL = {
    **dict.fromkeys(("all_reduce", "allreduce_coalesced", "broadcast", "reduce"), (True, True, True)),
    **dict.fromkeys(("_all_gather_base", "all_gather_single", "all_gather_into_tensor_coalesced"), (True, True, True)),
    **dict.fromkeys(
        ("_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor_coalesced"), (True, True, True)
    ),
    "all_gather": (False, True, True),
    "reduce_scatter": (True, False, True),
}
_PAIR = re.compile(r"\w{1,10}:(send|recv) ([0-9]{1,7})(?:->|<-)([0-9]{1,7})")
# Parts of a list of ranks, and characters of an operation, in a sentence.
_PARTS, _TEXT = 8, 160
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


class Mismatch(NamedTuple):
    """Different operations under one number.   what: "collective", "size" or "type".   sides: largest first."""

    group: Group
    number: int
    what: str
    finished: bool
    sides: Tuple[Tuple[Operation, Tuple[int, ...], str], ...]


class Wait(NamedTuple):
    """Ranks that have launched a collective and not finished it.   unknown: those whose dumps do not show it."""

    group: Group
    number: int
    operation: Operation
    ranks: Tuple[int, ...]
    place: str
    unknown: Tuple[int, ...]


class Judgement(NamedTuple):
    """suspects: roots first.   cycles: ranks that wait for each other.   missing: ranks without a dump.

    world: all ranks that a group names.   pairs: ranks that wait in a send or receive.
    complete: the world is all ranks of the job, and each has a dump that was read.
    """

    suspects: Tuple[Suspect, ...]
    cycles: Tuple[Tuple[int, ...], ...]
    mismatches: Tuple[Mismatch, ...]
    waits: Tuple[Wait, ...]
    missing: Tuple[int, ...]
    world: Tuple[int, ...]
    complete: bool
    pairs: Tuple[int, ...]
    releases: Tuple[str, ...]
    findings: Tuple[Finding, ...]

    @property
    def roots(self) -> Tuple[Suspect, ...]:
        return tuple(suspect for suspect in self.suspects if not suspect.causes)


class _Progress:
    """What a rank has done of a group.   first: its first unfinished collective.   last: number of the last one."""

    def __init__(self) -> None:
        self.first: Optional[Entry] = None
        self.last = -1

    def add(self, entry: Entry) -> None:
        self.last = max(self.last, entry.number)
        if entry.state != COMPLETED and (self.first is None or entry.number < self.first.number):
            self.first = entry


class _Rank:
    """A rank's dump, by group.   idle: it has nothing unfinished.   whole: no record is missing."""

    def __init__(self, rank: int, dump: Dump) -> None:
        self.rank, self.dump = rank, dump
        entries = dump.entries or ()
        self.progress: Dict[Group, _Progress] = {}
        self.pairs: List[Tuple[Group, Entry]] = []
        for entry in entries:
            group = self.group(entry.group)
            if not entry.is_p2p:
                self.progress.setdefault(group, _Progress()).add(entry)
            elif entry.state != COMPLETED:
                self.pairs.append((group, entry))
        self.whole = dump.entries is not None and [entry.record for entry in entries] == [*range(len(entries))]
        rests = dump.status is not None and all(status.enqueued == status.completed for status in dump.status.values())
        self.idle = rests if dump.entries is None else all(entry.state == COMPLETED for entry in entries)
        # Without records nothing is known, but that all of its work is done.
        self.is_known = dump.entries is not None or self.idle

    def group(self, name: str) -> Group:
        return self.dump.groups.get(name) or Group(name, "", _NO_RANKS)

    def position(self, group: Group) -> Optional[Tuple[int, bool]]:
        """Return the first unfinished number and whether it is launched; None where the dump does not show it."""
        progress = self.progress.get(group)
        if progress is None:
            return (1, False) if self.whole and self.dump.entries else None
        return (progress.last + 1, False) if progress.first is None else (progress.first.number, True)

    def overwritten(self) -> List[Group]:
        """Return groups of which unfinished collectives may have been overwritten in the recorder's buffer."""
        entries = self.dump.entries or ()
        mixed = {entry.group_id for entry in entries if entry.is_p2p}
        found = []
        for entry in entries:
            group, status = self.group(entry.group), (self.dump.status or {}).get(entry.group_id)
            first = self.progress[group].first if group in self.progress else None
            if status and first is entry and entry.group_id not in mixed and 0 <= status.completed < entry.number - 1:
                found.append(group)
        return found


class _Job:
    def __init__(self, dumps: Mapping[int, Dump]) -> None:
        self.ranks = {rank: _Rank(rank, dumps[rank]) for rank in sorted(dumps)}
        groups = {group for dump in dumps.values() for group in dump.groups.values()}
        groups |= {group for member in self.ranks.values() for group in member.progress}
        self.members: Dict[Group, Set[int]] = {group: set(group.ranks) for group in groups}
        for member in self.ranks.values():
            for group in member.progress:
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
            members = sorted(self.members[group])
            firsts = {rank: self._first(rank, group) for rank in members if rank in self.ranks}
            waiting = {rank: entry for rank, entry in firsts.items() if entry is not None}
            if waiting:
                found.append((group, waiting))
        return found

    def _first(self, rank: int, group: Group) -> Optional[Entry]:
        progress = self.ranks[rank].progress.get(group)
        return None if progress is None else progress.first

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
    number = lowest[0]
    found: List[Suspect] = []

    def add(ranks: Sequence[int], kind: str, confidence: str, waiters: Tuple[int, ...]) -> None:
        entries = [waiting[rank] for rank in waiters if waiting[rank].number >= number]
        shown = min(entries, key=lambda entry: entry.number) if entries else waiting[min(waiting)]
        for rank in ranks:
            entry = waiting[rank] if kind == BEHIND else shown
            where = (group, entry.number, entry.operation, waiters, entry.place)
            found.append(Suspect(rank, kind, confidence, *where))
        job.link((kind, group), waiters, ranks)

    if held:
        add(late, BEHIND if lowest[1] else ABSENT, CERTAIN, held)
    if unlaunched:
        add(unlaunched, ABSENT, LIKELY, tuple(sorted(waiting)))
    if missing and not found:
        add(missing, NO_DUMP, SUSPECT, tuple(sorted(waiting)))
    return found


def _link_pairs(job: _Job) -> List[Suspect]:
    """Note who waits in a send or receive for whom; return those that have nothing unfinished, or no dump."""
    open_pairs = {
        (group, match.groups())
        for member in job.ranks.values()
        for group, entry in member.pairs
        for match in [_PAIR.match(entry.operation.name)]
        if match
    }
    waiters: Dict[Tuple[int, Group], List[Tuple[int, Entry]]] = {}
    for member in job.ranks.values():
        for group, entry in member.pairs:
            match = _PAIR.match(entry.operation.name)
            if match is None or member.rank not in group.ranks:
                continue
            kind, first, second = match.groups()
            other = "recv" if kind == "send" else "send"
            if (group, (other, second, first)) in open_pairs or int(second) >= len(group.ranks):
                continue
            waiters.setdefault((group.ranks[int(second)], group), []).append((member.rank, entry))
    found = []
    for (rank, group), by in sorted(waiters.items(), key=lambda item: item[0]):
        waiting = tuple(sorted({waiter for waiter, _entry in by}))
        job.link(("pair", (rank, group)), waiting, [rank])
        peer = job.ranks.get(rank)
        if peer is None or peer.idle:
            kind, confidence = (NO_DUMP, SUSPECT) if peer is None else (ABSENT, LIKELY)
            entry = by[0][1]
            found.append(Suspect(rank, kind, confidence, group, entry.number, entry.operation, waiting, ""))
    return found


def _components(edges: Mapping[Node, Set[Node]]) -> List[List[Node]]:
    """Return the strongly connected components, each after those that it leads to (Tarjan 1972, without recursion)."""
    order: Dict[Node, int] = {}
    low: Dict[Node, int] = {}
    stack: List[Node] = []
    on_stack: Set[Node] = set()
    found: List[List[Node]] = []
    for start in edges:
        if start in order:
            continue
        work = [(start, iter(edges.get(start, ())))]
        order[start] = low[start] = len(order)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in order:
                    order[target] = low[target] = len(order)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(edges.get(target, ()))))
                    break
                if target in on_stack:
                    low[node] = min(low[node], order[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    component: List[Node] = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                        on_stack.discard(component[-1])
                    found.append(component)
    return found


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


# -- different operations ----------------------------------------------------------------------------------------------


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
        for number in sorted(numbers):
            mismatch = _mismatch(group, number, numbers[number])
            if mismatch is not None:
                found.append(mismatch)
                break
    return found


def _mismatch(group: Group, number: int, of_ranks: Mapping[int, Sequence[Entry]]) -> Optional[Mismatch]:
    # Operations of one coalesced group share its number: they are not compared.
    single = {rank: entries[0] for rank, entries in of_ranks.items() if len(entries) == 1}
    for what, key in (("collective", _name), ("size", _size), ("type", _type)):
        sides: Dict[object, List[int]] = {}
        for rank, entry in sorted(single.items()):
            sides.setdefault(repr(key(entry.operation)), []).append(rank)
        if len(sides) > 1:
            ordered = sorted(sides.values(), key=lambda ranks: (-len(ranks), ranks))
            shown = tuple((single[side[0]].operation, tuple(side), single[side[0]].place) for side in ordered)
            finished = all(entry.state == COMPLETED for entry in single.values())
            return Mismatch(group, number, what, finished, shown)
    return None


def _name(operation: Operation) -> object:
    return operation.name


def _size(operation: Operation) -> object:
    """Return the numbers of elements that have to be equal; their shapes may differ."""
    read, written, _types = _equal(operation)
    return (
        sum(map(math.prod, operation.input_sizes)) if read else None,
        sum(map(math.prod, operation.output_sizes)) if written else None,
    )


def _type(operation: Operation) -> object:
    return sorted({*operation.input_types, *operation.output_types}) if _equal(operation)[2] else None


def _equal(operation: Operation) -> Tuple[bool, bool, bool]:
    return _EQUAL.get(operation.name.partition(":")[2], (False, False, False))


# -- findings ----------------------------------------------------------------------------------------------------------


def judge(dumps: Mapping[int, Dump], problems: Mapping[str, str]) -> Judgement:
    """Return who holds up whom.   dumps: rank -> its dump.   problems: file -> why it was not read."""
    old = _old(dumps)
    problems = {**problems, **old}
    job = _Job({rank: dump for rank, dump in dumps.items() if "rank %d" % rank not in old})
    waits = job.waits()
    found = [suspect for group, waiting in waits for suspect in _suspects_of(job, group, waiting)]
    found += _link_pairs(job)
    causes, cycles = _causes(job, frozenset(suspect.rank for suspect in found))
    suspects = _best(suspect._replace(causes=causes[suspect.rank]) for suspect in found)
    mismatches = _mismatches(job)
    shown = [_wait(job, group, waiting) for group, waiting in waits]
    complete = (
        job.has_world and not job.missing and not problems and all(member.is_known for member in job.ranks.values())
    )
    pairs = tuple(member.rank for member in job.ranks.values() if member.pairs)
    releases = tuple(sorted({dump.nccl for dump in dumps.values() if dump.nccl}))
    findings = _findings(job, suspects, cycles, mismatches, shown, pairs, problems, releases)
    return Judgement(
        tuple(suspects),
        tuple(cycles),
        tuple(mismatches),
        tuple(shown),
        tuple(job.missing),
        tuple(job.world),
        complete,
        pairs,
        releases,
        tuple(findings),
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
    order = {CERTAIN: 0, LIKELY: 1, SUSPECT: 2}
    first: Dict[int, Suspect] = {}
    for suspect in sorted(
        found, key=lambda suspect: (order[suspect.confidence], -len(suspect.waiting), suspect.group, suspect.number)
    ):
        first.setdefault(suspect.rank, suspect)
    return sorted(first.values(), key=lambda suspect: (bool(suspect.causes), order[suspect.confidence], suspect.rank))


def _wait(job: _Job, group: Group, waiting: Mapping[int, Entry]) -> Wait:
    number = min(entry.number for entry in waiting.values())
    at = {rank: entry for rank, entry in waiting.items() if entry.number == number}
    entry = at[min(at)]
    members = [job.ranks[rank] for rank in sorted(job.members[group]) if rank in job.ranks]
    unknown = tuple(member.rank for member in members if member.position(group) is None and not member.idle)
    return Wait(group, number, entry.operation, tuple(sorted(waiting)), entry.place, unknown)


def describe_ranks(ranks: Sequence[int]) -> str:
    """Return ``rank 3`` or ``ranks 0-3,7``, and of many parts how many more there are."""
    shown = ranges(ranks).split(",")
    text = ",".join(shown[:_PARTS]) + (" and more, %d in all" % len(ranks) if len(shown) > _PARTS else "")
    return "rank%s %s" % ("s" * (len(ranks) > 1), text)


def describe_group(group: Group) -> str:
    return "group %s%s" % (group.name, " (%s)" % group.description if group.description else "")


def describe_operation(operation: Operation) -> str:
    """Return ``nccl:all_reduce [4096, 8] Float``."""
    sizes = ["[%s]" % ", ".join(map(str, shape)) for shape in operation.input_sizes[:2]]
    more = ["..."] if len(operation.input_sizes) > 2 else []
    return " ".join([operation.name, *sizes, *more, *sorted(set(operation.input_types))])[:_TEXT]


def _findings(
    job: _Job,
    suspects: Sequence[Suspect],
    cycles: Sequence[Tuple[int, ...]],
    mismatches: Sequence[Mismatch],
    waits: Sequence[Wait],
    pairs: Sequence[int],
    problems: Mapping[str, str],
    releases: Sequence[str],
) -> List[Finding]:
    source = "flight recorder"
    found = [_mismatch_finding(mismatch, source) for mismatch in mismatches]
    hung_in = {
        (mismatch.group, mismatch.number): finding
        for mismatch, finding in zip(mismatches, found)
        if not mismatch.finished
    }
    in_cycle = {rank: cycle for cycle in cycles for rank in cycle}
    for cycle in cycles:
        have = "%s wait for each other" % describe_ranks(cycle)
        found.append(ORDER.judge(describe_ranks(cycle), "drift", "one order", have, source))
    for suspect in suspects:
        because: Union[Finding, str, None] = hung_in.get((suspect.group, suspect.number))
        if suspect.rank in in_cycle:
            because = ORDER.finding_id(describe_ranks(in_cycle[suspect.rank]))
        elif suspect.causes:
            because = RANK.finding_id("rank %d" % suspect.causes[0])
        found.append(_suspect_finding(suspect, source, because))
    if not suspects and not any(not mismatch.finished for mismatch in mismatches):
        found += [_stuck(wait, source) for wait in waits]
        if pairs and not waits:
            have = "%s: open sends or receives; no dump shows for whom they wait" % describe_ranks(pairs)
            found.append(STUCK.judge("the job", "unknown", "they end", have, source))
    unnamed = sorted(set(job.missing) - {suspect.rank for suspect in suspects})
    if unnamed:
        have = "no dump of %s; the job has %d ranks" % (describe_ranks(unnamed), len(job.world))
        found.append(DUMPS.judge("the job", "unknown", "a dump of each rank", have, source))
    if not job.has_world:
        have = "no dump names the group of all ranks: how many ranks the job has is unknown"
        found.append(DUMPS.judge("the group of all ranks", "unknown", "a dump of each rank", have, source))
    found += [READABLE.judge(name, "unknown", "a dump", why) for name, why in sorted(problems.items())]
    found += _incomplete(job, source)
    if waits and not [suspect for suspect in suspects if suspect.confidence != SUSPECT] and not mismatches:
        found += [finding for version in releases for finding in _release(version, source)]
    return worst_first(found)


def _mismatch_finding(mismatch: Mismatch, source: str) -> Finding:
    sides = [
        "%s: %s%s" % (describe_ranks(ranks), describe_operation(operation), " at %s" % place if place else "")
        for operation, ranks, place in mismatch.sides[:3]
    ]
    more = ["%d more" % (len(mismatch.sides) - 3)] if len(mismatch.sides) > 3 else []
    subject = "%s collective %d" % (describe_group(mismatch.group), mismatch.number)
    have = "different %ss: %s" % (mismatch.what, "; ".join([*sides, *more]))
    # It has ended: what the ranks got is in doubt, but it is not what they wait for.
    return MATCH.judge(
        subject, "drift", "one %s" % mismatch.what, have, source, severity="major" if mismatch.finished else None
    )


def _suspect_finding(suspect: Suspect, source: str, because: Union[Finding, str, None]) -> Finding:
    what = "send or receive" if _PAIR.match(suspect.operation.name) else "collective"
    where = "%s %d in %s, %s" % (
        what,
        suspect.number,
        describe_group(suspect.group),
        describe_operation(suspect.operation),
    )
    waiters = "%s wait%s" % (describe_ranks(suspect.waiting), "s" * (len(suspect.waiting) == 1))
    at = " at %s" % suspect.place if suspect.place else ""
    if suspect.kind == BEHIND:
        have = "not finished: %s%s; %s in a later one" % (where, at, waiters)
        fix = "on the host: `dmesg` (Xid, link down), `nvidia-smi -q`; NCCL's log of the rank, its NIC's counters"
    elif suspect.kind == ABSENT:
        doubt = " (the rank has nothing unfinished)" if suspect.confidence == LIKELY else ""
        have = "not launched%s: %s; %s in it%s" % (doubt, where, waiters, at)
        fix = _STACK
    else:
        have = "no dump; %s in %s%s" % (waiters, where, at)
        fix = _STOPPED
    return RANK.judge("rank %d" % suspect.rank, "drift", "the same place as its peers", have, source, fix, because)


def _stuck(wait: Wait, source: str) -> Finding:
    subject = "%s collective %d" % (describe_group(wait.group), wait.number)
    have = "launched and not finished on %s: %s" % (describe_ranks(wait.ranks), describe_operation(wait.operation))
    if not wait.unknown:
        return STUCK.judge(subject, "drift", "it ends", have, source)
    have += "; the dump of %s does not show it" % describe_ranks(wait.unknown)
    why = "whether every rank has launched the collective is unknown: the dumps have unfinished records only"
    return STUCK.judge(subject, "unknown", "it ends", have, source, why=why)


def _incomplete(job: _Job, source: str) -> List[Finding]:
    """Return findings on dumps without the records that are needed."""
    found = []
    unknown = [member.rank for member in job.ranks.values() if not member.is_known]
    if unknown:
        have = "the dump lists no collectives"
        found.append(READABLE.judge(describe_ranks(unknown), "unknown", "all records", have, source))
    lost: Counter[Group] = Counter(group for member in job.ranks.values() for group in member.overwritten())
    for group, number in sorted(lost.items()):
        have = "%d rank%s: unfinished collectives were overwritten" % (number, "s" * (number > 1))
        found.append(READABLE.judge(describe_group(group), "unknown", "all records", have, source))
    return found


def _release(version: str, source: str) -> List[Finding]:
    """Return a finding where the release is known to hang; on which hosts it does, the dumps do not show."""
    try:
        release = parse_version(version)
    except ParseError:
        return []
    hangs = [
        defect
        for defect in known_bad.possible_defects(release, None)
        if defect.effect == HANG and defect.needs in ("", SCALE)
    ]
    if not hangs:
        return []
    want, have = known_bad.describe_good_release(release, None, hangs), known_bad.describe_effects(release, hangs)
    fix = known_bad.describe_fix(release, None, hangs)
    return [RELEASE.judge("NCCL", "drift", want, have, source, fix, why=known_bad.describe_causes(hangs))]
