# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A log taken apart into jobs: processes that share a communicator, directly or over others, are of one job.

A log may hold two jobs, or one that was started again: what is true of one of them is not said of the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Iterable, List, Optional, Sequence, Set, Tuple

from ..nccl.grammar import strtoll
from ..nccl.variables import Version
from .job import Communicator, Key, Log, Process, Reported
from .quotes import Quote

# Names in a sentence; the rest is counted.
NAMED = 6


@dataclass(frozen=True)
class Job:
    """name: "job", or "job N" of several.   world: its largest communicator; None where none was begun.

    nodes: over how many it runs, as NCCL counts or as all of its ranks say; None where the log does not tell.
    quotes: lines of it that report something, in the order of their first appearance.
    """

    name: str
    processes: Tuple[Process, ...]
    communicators: Tuple[Communicator, ...]
    failures: Tuple[Reported, ...]
    world: Optional[Communicator]
    nodes: Optional[int]
    versions: Tuple[str, ...]
    quotes: Tuple[Quote, ...] = ()

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
        return said | {way[1] for process in self.processes for way, _count in process.ways if way[0] == "net"}

    def rank_of(self, process: Process) -> Optional[int]:
        """The rank of a process in the world, where it has one alone; else what its launcher says."""
        ranks = self.ranks_of(process)
        return ranks[0] if len(ranks) == 1 else (process.launcher_rank if not ranks else None)

    def ranks_of(self, process: Process) -> List[int]:
        if self.world is None:
            return []
        return sorted(rank for rank, one in self.world.began.items() if one is process)

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

    def who(self, process: Optional[Process]) -> str:
        """``rank 3 (node1:4242)``, as far as it is known."""
        if process is None:
            return "a process that is not named"
        place = process.host or "a host that is not named"
        if process.key[1] is not None:
            place += ":%d" % process.key[1]
        ranks = self.ranks_of(process)
        if not ranks and process.launcher_rank is not None:
            return "task %d (%s)" % (process.launcher_rank, place)
        if not ranks:
            return place
        return "rank%s %s (%s)" % ("s" if len(ranks) > 1 else "", numbers(ranks), place)


def split(log: Log) -> List[Job]:
    """Jobs in the order in which they began; processes of no communicator are of the one job there is, else apart."""
    _complete(log)
    parent: Dict[Key, Key] = {key: key for key in log.processes}

    def root(key: Key) -> Key:
        while parent[key] != key:
            parent[key] = parent[parent[key]]
            key = parent[key]
        return key

    for one in log.communicators.values():
        keys = [process.key for process in one.began.values()]
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
        # What no process signed is told with the first job.
        failures[number_of[said.process.key] if said.process is not None else 0].append(said)
    return [
        _job(log, None if len(ordered) == 1 else number, processes, communicators[number], failures[number])
        for number, processes in enumerate(ordered)
    ] or [_empty(log)]


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
            if ranks not in of_size:
                key = "of %d ranks" % ranks
                of_size[ranks] = [log.communicators.setdefault(key, Communicator(key, ranks, named=True))]
            one = of_size[ranks][0]
            if len(of_size[ranks]) == 1 and one.began.setdefault(rank, process) is process and how:
                one.gone.setdefault(how, set()).add(rank)


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
    )


def _empty(log: Log) -> Job:
    return Job("job", (), (), tuple(log.failures), None, None, _sorted(_unsigned(log)), tuple(log.quotes.all))


def _unsigned(log: Log) -> Set[str]:
    """Versions that no process signed. Two runs of nccl-tests with two libraries are not one job of two."""
    return log.bare_versions or (log.libraries if len(log.libraries) == 1 else set())


def _sorted(versions: Iterable[str]) -> Tuple[str, ...]:
    return tuple(sorted(versions, key=lambda text: [int(part) for part in text.split(".") if part.isdigit()]))


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


def _shown(spans: List[List[int]]) -> str:
    shown = ["%d" % a if a == b else "%d-%d" % (a, b) for a, b in spans[: 2 * NAMED]]
    return ",".join(shown) + (" and more" if len(spans) > 2 * NAMED else "")


def names(values: Iterable[str], limit: int = NAMED) -> str:
    """``a, b and 3 more``."""
    listed = sorted(set(values))
    shown = ", ".join(listed[:limit])
    return shown + (" and %d more" % (len(listed) - limit) if len(listed) > limit else "")
