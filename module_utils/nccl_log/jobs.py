# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A log taken apart into jobs: processes that share a communicator, directly or over others, are of one job.

A log may hold two jobs, or one that was started again: what is true of one of them is not said of the other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, FrozenSet, Iterable, List, Optional, Sequence, Set, Tuple

from ..core.number import whole
from ..nccl.grammar import strtoll
from ..nccl.variables import Version
from . import events, whose
from .communicators import Communicator, apart
from .job import Log, Reported
from .process import SHAPED, Key, Process
from .quotes import Quote

# Names in a sentence; the rest is counted.
NAMED = 6
# Files of NCCL's networks.
_CALLED = re.compile(r"(?:^|/)transport/net_(?:(?P<Socket>socket)|(?P<IB>ib))[./]")
# What only hands on to a network, and the network transport itself.
_WRAPPERS, _TRANSPORT = re.compile(r"(?:^|/)include/net\.h:|^(?:src/)?net\.cc:"), re.compile(r"(?:^|/)transport/net\.c")
# What a network reports of data that it carries: one that is not used has none.
_CARRIED = ("mismatch", "completion")
# From which on a colour is a hash of ranks, as PyTorch makes it.
_HASHED = 1 << 20
# Processes whose connections are compared for each name.
_FEW = 32
# A host of which no line has the name.
UNNAMED = "a host that is not named"


@dataclass(frozen=True)
class Job:
    """name: "job", or "job N" of several.   world: its largest communicator; None where none was begun.

    nodes: over how many it runs, as NCCL counts or as all of its ranks say; None where the log does not tell.
    quotes: lines of it that report something, in the order of their first appearance.
    bare_networks: of lines that no process signed, where no process says which it uses.
    commanded: variables and values that commands and programs print, not NCCL.
    rivals: communicators that its ranks began in place of one: the world is one of them.
    """

    name: str
    processes: Tuple[Process, ...]
    communicators: Tuple[Communicator, ...]
    failures: Tuple[Reported, ...]
    world: Optional[Communicator]
    nodes: Optional[int]
    versions: Tuple[str, ...]
    quotes: Tuple[Quote, ...] = ()
    bare_networks: FrozenSet[str] = frozenset()
    rivals: Tuple[Communicator, ...] = ()
    commanded: Tuple[Tuple[str, str], ...] = ()

    @property
    def counted(self) -> Optional[int]:
        """How many processes it has here; None where lines without a pid are of several."""
        found = self.members
        return None if found is None else len(found)

    @property
    def members(self) -> Optional[List[Process]]:
        """Those that are counted: lines without host and pid are of one of them, where there is one."""
        named = {one: one.key[1] is not None or one.key[2] is not None for one in self.processes}
        others = [one for one in self.processes if one.host and not named[one]]
        if any(len(one.gpus) > 1 or len(self.ranks_of(one)) > 1 for one in others):
            return None
        return [one for one in self.processes if one.host or named[one]] or list(self.processes)

    def among(self, found: Iterable[Process]) -> str:
        """``3 of 8 processes``."""
        some, members = set(found), self.members
        if members is None:
            return "some of the processes, which cannot be distinguished"
        count = sum(one in some for one in members)
        return "%s of %d process%s" % (count or "one", len(members), "" if len(members) == 1 else "es")

    @property
    def several(self) -> Optional[bool]:
        """Whether it runs on more nodes than one; None where the log does not tell."""
        return None if self.nodes is None else self.nodes > 1

    @property
    def version(self) -> Optional[Version]:
        """The one release of NCCL in it."""
        if len(self.versions) != 1:
            return None
        first, second, third = (int(part) for part in self.versions[0].split("."))
        return first, second, third

    @property
    def networks(self) -> Set[str]:
        said = {name for process in self.processes for name in process.networks}
        said |= {way[1] for process in self.processes for way, _count in process.ways if way[0] == "net"}
        return said or set(self.bare_networks)

    @property
    def called(self) -> Set[str]:
        """Networks that failures name as the one in use: of data, or right before a call of the network transport."""
        of: Dict[Process, List[Tuple[int, int, str]]] = {}
        for process in self.processes:
            if process.calls:
                of[process] = [(call.source, call.order, call.place) for call in process.calls]
        for one in self.failures:
            if one.process in of and one.place:
                of[one.process].append((one.source, one.order, one.place))
        found = set()
        for said in of.values():
            places = [place for _source, _order, place in sorted(said) if not _WRAPPERS.search(place)]
            for place, behind in zip(places, places[1:]):
                match = _CALLED.search(place) if _TRANSPORT.search(behind) else None
                found |= {match.lastgroup or ""} if match else set()
        for one in self.failures:
            match = _CALLED.search(one.place) if one.failure.kind in _CARRIED else None
            found |= {match.lastgroup or ""} if match else set()
        return found

    def rank_of(self, process: Process) -> Optional[int]:
        """The rank of a process in the world, where it has one alone; else what its launcher says."""
        ranks = self.ranks_of(process)
        return ranks[0] if len(ranks) == 1 else (process.launcher_rank if not ranks else None)

    def ranks_of(self, process: Process) -> List[int]:
        if self.world is None:
            return []
        began = self.rivals or (self.world,)
        return sorted(rank for each in began for rank, one in each.began.items() if one is process)

    def set_to(self, name: str) -> Dict[str, List[Process]]:
        """Value of a variable -> processes that said so."""
        found: Dict[str, List[Process]] = {}
        for process in self.processes:
            if name in process.variables:
                found.setdefault(process.variables[name], []).append(process)
        return found

    def number(self, name: str) -> Optional[int]:
        """What a variable is to NCCL, where all that said it agree."""
        values = {strtoll(value)[0] for value in self.set_to(name)}
        return values.pop() if len(values) == 1 else None

    def who_and_gpu(self, process: Process) -> str:
        """``rank 3 (node1:4242), GPU 3`` of a process that has one GPU."""
        return self.who(process) + (", GPU %d" % min(process.gpus) if len(process.gpus) == 1 else "")

    def who(self, process: Optional[Process], device: Optional[int] = None) -> str:
        """``rank 3 (node1:4242)``, as far as it is known. device: of the thread, where a process has several ranks."""
        if process is None:
            return "a process that is not named"
        place = process.host or UNNAMED
        if process.key[1] is not None:
            place += ":%d" % process.key[1]
        ranks = self.ranks_of(process)
        own = process.rank_at(device) if len(ranks) > 1 else None
        ranks = [own] if own in ranks and own is not None else ranks
        if not ranks and process.launcher_rank is not None:
            return "task %d (%s)" % (process.launcher_rank, place)
        if not ranks and self.world is None and process.connections and len(self.processes) <= _FEW:
            # By its connections, where those of all processes give each a rank of its own.
            own = [tuple(one.connections) for one in self.processes]
            apart_all = len(set(own)) == len(own) and all(len(one) == 1 for one in own)
            apart_all = apart_all and all(len(one.gpus) <= 1 for one in self.processes)
            ranks = list(process.connections) if apart_all else []
        if not ranks:
            return place
        return "%s (%s)" % (of_ranks(numbers(ranks)), place)


def split(log: Log) -> List[Job]:
    """Jobs in the order in which they began; processes of no communicator are of the one job there is, else apart."""
    _one_split(log)
    _complete(log)
    _renamed(log)
    parent: Dict[Key, Key] = {key: key for key in log.processes}

    def root(key: Key) -> Key:
        while parent[key] != key:
            parent[key] = parent[parent[key]]
            key = parent[key]
        return key

    rivals = [process.key for one in apart(log.communicators.values()) for process in one.began.values()]
    for keys in [*([process.key for process in one.began.values()] for one in log.communicators.values()), rivals]:
        for key in keys[1:]:
            parent[root(key)] = root(keys[0])
    member = {process.key for one in log.communicators.values() for process in one.began.values()}
    groups: Dict[Optional[Key], List[Process]] = {}
    for key, process in log.processes.items():
        groups.setdefault(root(key) if key in member else None, []).append(process)
    alone = groups.pop(None, [])
    if len(groups) == 1:
        next(iter(groups.values())).extend(alone)
    elif alone:
        # With their host's job, where it has one alone.
        hosts: Dict[str, Set[Optional[Key]]] = {}
        for group, processes in groups.items():
            for process in processes:
                hosts.setdefault(process.host, set()).add(group)
        rest = []
        for process in alone:
            of_host = hosts.get(process.host, set())
            if len(of_host) == 1:
                groups[next(iter(of_host))].append(process)
            else:
                rest.append(process)
        if rest:
            groups[None] = rest
    ordered = sorted(groups.values(), key=lambda processes: min(process.order for process in processes))
    number_of = {process.key: number for number, processes in enumerate(ordered) for process in processes}
    communicators: List[List[Communicator]] = [[] for _processes in ordered]
    for one in log.communicators.values():
        for process in list(one.began.values())[:1]:
            communicators[number_of[process.key]].append(one)
    failures: List[List[Reported]] = [[] for _processes in ordered]
    for said in log.failures if ordered else ():
        # What no process signed is reported with the first job.
        failures[number_of[said.process.key] if said.process is not None else 0].append(said)
    return [
        _job(log, None if len(ordered) == 1 else number, processes, communicators[number], failures[number])
        for number, processes in enumerate(ordered)
    ] or [_empty(log)]


def _one_split(log: Log) -> None:
    """Makes one of the parts of a communicator whose parent is not in the log: each rank has its own address of that.

    So it is where they are of one size and colour, and no rank and no process is in two of them. Two communicators of
    one small colour may look so where most ranks are not in the log: it has to be whole, or the colour a hash.
    """
    alike: Dict[Tuple[int, str], List[Communicator]] = {}
    for one in log.communicators.values():
        if one.split and one.key.startswith("0x"):
            alike.setdefault((one.ranks, one.key.partition("/")[2]), []).append(one)
    for (size, colour), parts in alike.items():
        began = [(rank, process) for part in parts for rank, process in part.began.items()]
        apart_all = (
            len({rank for rank, _process in began}) == len({process.key for _rank, process in began}) == len(began)
        )
        if len(parts) < 2 or not apart_all or not (len(began) == size or abs(int(colour)) >= _HASHED):
            continue
        whole = parts[0]
        for part in parts[1:]:
            whole.began.update(part.began)
            whole.done |= part.done
            whole.nodes = max(whole.nodes or 0, part.nodes or 0) or None
            whole.local_ranks = max(whole.local_ranks, part.local_ranks)
            whole.met = whole.met or part.met
            for how, ranks in part.gone.items():
                whole.gone.setdefault(how, set()).update(ranks)
            for process in part.began.values():
                process.pointers = {at: whole.key if key == part.key else key for at, key in process.pointers.items()}
            del log.communicators[part.key]


def _complete(log: Log) -> None:
    """Ranks whose begin is not in the log: of the times of their initialisation, of their end, of torn lines."""
    of_size: Dict[int, List[Communicator]] = {}
    for one in log.communicators.values():
        of_size.setdefault(one.ranks, []).append(one)
    for process in log.processes.values():
        for rank, ranks in process.timed:
            if ranks not in of_size:
                # Its begin is not in the log.
                key = "of %d ranks" % ranks
                of_size[ranks] = [log.communicators.setdefault(key, Communicator(key, ranks))]
            if len(of_size[ranks]) == 1:
                one = of_size[ranks][0]
                one.began.setdefault(rank, process)
                one.done.add(rank)
    for process in log.processes.values():
        for rank, ranks, how in process.named:
            if not ranks or (how == SHAPED and (ranks not in of_size or process.pointers)):
                # Of a process that began others it may be any of that size.
                continue
            if ranks not in of_size:
                key = "of %d ranks" % ranks
                of_size[ranks] = [log.communicators.setdefault(key, Communicator(key, ranks, named=True))]
            one = of_size[ranks][0]
            if len(of_size[ranks]) == 1 and one.began.setdefault(rank, process) is process and how not in ("", SHAPED):
                one.gone.setdefault(how, set()).add(rank)
    if len(log.communicators) == 1:
        _meant(log, next(iter(log.communicators.values())))


def _renamed(log: Log) -> None:
    """Makes one of processes under two names of a host, which whoever published the log has changed in some lines.

    So it is where all ranks are there, and each process that is left has the pid of one of them, on another host.
    """
    one = next(iter(log.communicators.values()), None)
    if one is None or len(log.communicators) > 1 or len(one.began) != one.ranks:
        return
    own = {process.key[1]: process for process in one.began.values()}
    hosts = {process.host for process in own.values()}
    others = [process for process in log.processes.values() if process not in own.values()] if len(own) < 65 else []
    pids = [process.key[1] for process in others]
    if None in pids or len(own) != one.ranks or not set(pids) <= set(own) or len(set(pids)) < len(pids):
        return
    named = {(process.host, own[process.key[1]].host) for process in others}
    if len({other for other, _own in named}) != len(named) or any(not other or other in hosts for other, _own in named):
        return
    gone = {process: own[process.key[1]] for process in others}
    for process, there in gone.items():
        text = "lines of process %s name it on %s and on %s: of one host, as its only rank there has this pid"
        note = events.Note("odd", text % (process.key[1], process.host, there.host))
        whose.absorb(there, log.processes.pop(process.key))
        there.notes = {*there.notes, note}
    log.failures = whose.reported(log.failures, gone)
    log.pairs.renamed(gone)


def _meant(log: Log, one: Communicator) -> None:
    """Ranks of the only communicator that is named, by lines of processes whose begin is not in the log."""
    placed: Dict[Process, Set[int]] = {}
    for process, rank in log.pairs.trees:
        placed.setdefault(process, set()).add(rank)
    for process in log.processes.values():
        if process.pointers:
            continue
        own = {rank for rank, ranks, _how in process.named if not ranks}
        own |= set(process.connections) | placed.get(process, set())
        for rank in own:
            if 0 <= rank < one.ranks:
                one.began.setdefault(rank, process)
        one.met = one.met or process.met


def _job(
    log: Log,
    number: Optional[int],
    members: List[Process],
    communicators: List[Communicator],
    reported: List[Reported],
) -> Job:
    """number: among several jobs; None of the only one."""
    processes = tuple(sorted(members, key=lambda process: process.order))
    versions = {version for process in processes for version in process.versions}
    if number is None:
        versions |= _unsigned(log) if not versions else log.bare_versions
    world = max(communicators, key=lambda one: (one.ranks, len(one.began)), default=None)
    name = "job" if number is None else "job %d" % (number + 1)
    return Job(
        name,
        processes,
        tuple(communicators),
        tuple(reported),
        world,
        _nodes(processes, communicators, world) or (_listed(log, processes) if number is None else None),
        _sorted(versions),
        tuple(log.quotes.all) if not number else (),
        frozenset(log.bare_networks if number is None else ()),
        tuple(apart(communicators)),
        tuple(log.programs.variables.items()) if number is None else (),
    )


def _empty(log: Log) -> Job:
    return Job("job", (), (), tuple(log.failures), None, None, _sorted(_unsigned(log)), tuple(log.quotes.all))


def _unsigned(log: Log) -> Set[str]:
    """Versions that no process signed. Two runs of nccl-tests with two libraries are not one job of two."""
    return log.bare_versions or (log.libraries if len(log.libraries) == 1 else set())


def _sorted(versions: Iterable[str]) -> Tuple[str, ...]:
    return tuple(sorted(versions, key=lambda text: [whole(part) or 0 for part in text.split(".")]))


def _listed(log: Log, processes: Sequence[Process]) -> Optional[int]:
    """Over how many hosts nccl-tests' list spreads its ranks; None where it is not whole, or of several runs."""
    table = log.table
    hosts = {process.host for process in processes if process.host}
    if not table.ranks or table.twice or table.runs > 1 or not hosts <= table.hosts:
        return None
    if sorted(table.ranks) == list(range(len(table.ranks))) and (table.rows or hosts):
        return len(table.hosts)
    # A list without its begin: ranks follow each other, as many in each process.
    pids = {(one.host, one.pid) for one in table.ranks.values()}
    last = max(table.ranks)
    here = [process for process in processes if (process.host, process.key[1]) in pids]
    gpus = {gpu for process in here for gpu in process.gpus}
    whole = len(table.ranks) > 1 or len(gpus) > 1
    return 1 if len(pids) == 1 and whole and table.ranks[last].device == last and len(here) == len(processes) else None


def _nodes(
    processes: Iterable[Process], communicators: Iterable[Communicator], world: Optional[Communicator]
) -> Optional[int]:
    said = [one.nodes for one in communicators if one.nodes is not None]
    if world is None:
        # One node may be that of a communicator within a job of several.
        most = max((process.shaped for process in processes), default=0)
        return most if most > 1 else None
    nodes = {process.node for process in world.began.values()}
    # Of processes whose host is not named it is not known whether they are on one.
    seen = 0 if "" in nodes else len(nodes)
    if seen > 1 and len(world.began) < world.ranks:
        # At least; other processes of the job have not said their ranks.
        seen = max(seen, len({process.node for process in processes}))
    if world.nodes is not None:
        return max(said)
    ways = {way[:2] for process in processes for way, _count in process.ways}
    if world.ranks == 2 and ways and all(kind in ("p2p", "shm") and "MNNVL" not in via for kind, via in ways):
        return 1  # its two ranks share memory
    shaped = max((one.shaped for one in processes if one.shaped_ranks == world.ranks), default=0)
    if shaped > seen:
        return shaped
    return seen if seen > 1 or (seen and len(world.began) == world.ranks) else None


def numbers(values: Iterable[int]) -> str:
    """``0-6,9``."""
    spans: List[List[int]] = []
    for value in sorted(set(values)):
        if spans and value == spans[-1][1] + 1:
            spans[-1][1] = value
        else:
            spans.append([value, value])
    return _shown(spans)


def missing(seen: Iterable[int], total: int) -> str:
    """Numbers below ``total`` that are not among those seen, as ``numbers`` writes them; "" where none is missing."""
    spans = []
    begin = 0
    for value in sorted(set(seen)):
        if begin < value < total:
            spans.append([begin, value - 1])
        begin = max(begin, value + 1)
    if begin < total:
        spans.append([begin, total - 1])
    return _shown(spans)


def of_ranks(which: str, one: str = "", more: str = "") -> str:
    """``rank 3 is``, ``ranks 0-2 are``. which: as ``numbers`` writes them.   one, more: what follows."""
    return "rank %s%s" % (which, one) if which.isdigit() else "ranks %s%s" % (which, more)


def _shown(spans: List[List[int]]) -> str:
    shown = ["%d" % a if a == b else "%d-%d" % (a, b) for a, b in spans[: 2 * NAMED]]
    return ",".join(shown) + (" and more" if len(spans) > 2 * NAMED else "")


def hosts_of(values: Iterable[str], limit: int = NAMED) -> str:
    """Names of hosts in a sentence; of some the log has cut the name off."""
    return names((value or UNNAMED for value in values), limit)


def names(values: Iterable[str], limit: int = NAMED) -> str:
    """``a, b and 3 more``."""
    listed = sorted(set(values))
    shown = ", ".join(listed[:limit])
    return shown + (" and %d more" % (len(listed) - limit) if len(listed) > limit else "")
