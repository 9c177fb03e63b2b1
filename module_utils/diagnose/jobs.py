# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Jobs of a log: processes that share communicators."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Dict, Iterable, List, Optional, Set, Tuple

from .state import Communicator, Key, Process, State


@dataclass(frozen=True)
class Job:
    """Processes that share communicators. name: "job", or "job 2" of several.   world: the largest communicator.

    launched: nodes that a launcher names.
    """

    name: str
    processes: Tuple[Process, ...]
    communicators: Tuple[Communicator, ...]
    world: Optional[Communicator]
    versions: Tuple[str, ...]
    launched: Optional[int] = None

    @cached_property
    def networks(self) -> Set[str]:
        """Networks that lines say are used, and that connections go over."""
        over = {way.via for one in self.processes for way in one.ways if way.kind == "net"}
        return over.union(*(one.networks for one in self.processes))

    @cached_property
    def nodes(self) -> Optional[int]:
        """Nodes as NCCL counts them; else hosts, where all ranks are in the log; else as the launcher names them."""
        counted = max((one.nodes or 0 for one in self.communicators), default=0)
        hosts = {process.node for process in self.world.began.values()} if self.world is not None else {""}
        whole = self.world is not None and len(self.world.began) == self.world.ranks and "" not in hosts
        return counted or (len(hosts) if whole else self.launched)

    @cached_property
    def hosts(self) -> List[str]:
        return sorted({process.host for process in self.processes if process.host})

    @cached_property
    def by_node(self) -> Dict[str, List[Process]]:
        """Processes of each node."""
        found: Dict[str, List[Process]] = {}
        for process in self.processes:
            found.setdefault(process.node, []).append(process)
        return found

    @cached_property
    def version(self) -> Optional[Tuple[int, ...]]:
        return tuple(int(part) for part in self.versions[-1].split(".")) if len(self.versions) == 1 else None

    def values(self, name: str) -> Dict[str, List[Process]]:
        """Return each value of a variable and the processes that have it."""
        found: Dict[str, List[Process]] = {}
        for process in self.processes:
            if name in process.variables:
                found.setdefault(process.variables[name], []).append(process)
        return found

    def rank_of(self, process: Optional[Process], device: Optional[int] = None) -> Optional[int]:
        """Return the rank of a process in the world: the launcher's where no line begins a communicator."""
        if process is None:
            return None
        rank = process.rank_at(device)
        if rank is not None or process.ranks:
            return rank
        own = [rank for rank, one in self.world.began.items() if one is process] if self.world is not None else []
        return own[0] if len(own) == 1 else process.launcher_rank

    def writer(self, process: Process) -> str:
        """Return ``rank 1 (n2:300)`` of a process."""
        rank = self.rank_of(process)
        place = "%s:%s" % (process.host, process.key[1]) if process.key[1] is not None else process.host
        return "rank %d%s" % (rank, " (%s)" % place if place else "") if rank is not None else place


def jobs(state: State) -> List[Job]:
    """Split a log into jobs: processes without a communicator belong to the job of their host, or to the first."""
    parent: Dict[Key, Key] = {}

    def find(key: Key) -> Key:
        while parent.setdefault(key, key) != key:
            parent[key] = parent[parent[key]]
            key = parent[key]
        return key

    together = [[one] for one in state.communicators.values()] + rival_sets(state.communicators.values())
    for communicators in together:
        keys = [process.key for one in communicators for process in one.began.values()]
        for key in keys:
            parent[find(key)] = find(keys[0])
    groups: Dict[Optional[Key], List[Process]] = {}
    on_host: Dict[str, List[Key]] = {}
    for process in state.processes.values():
        if process.key in parent:
            root = find(process.key)
            groups.setdefault(root, []).append(process)
            roots = on_host.setdefault(process.host, [])
            roots += [root] if root not in roots[-2:] else []
    first = next(iter(groups), None)
    for process in state.processes.values():
        if process.key not in parent:
            roots = on_host.get(process.host, [])
            target = roots[0] if len(roots) == 1 or (roots and not process.host) else first
            groups.setdefault(target, []).append(process)
    own: Dict[Optional[Key], List[Communicator]] = {}
    for communicator in state.communicators.values():
        for process in list(communicator.began.values())[:1]:
            own.setdefault(find(process.key), []).append(communicator)
    made = []
    ordered = sorted(groups.items(), key=lambda found: min(process.order for process in found[1]))
    for number, (root_key, processes) in enumerate(ordered):
        of_job = tuple(own.get(root_key, ()))
        world = max(of_job, key=lambda one: (one.ranks, len(one.began)), default=None)
        versions = {version for process in processes for version in process.versions}
        by_number = sorted(
            versions or (() if number else state.versions), key=lambda text: [int(part) for part in text.split(".")]
        )
        name = "job" if len(ordered) == 1 else "job %d" % (number + 1)
        launched = state.launch.nodes if len(ordered) == 1 else None
        made.append(Job(name, tuple(processes), of_job, world, tuple(by_number), launched))
    return made or [Job("job", (), (), None, tuple(sorted(state.versions)), state.launch.nodes)]


def rival_sets(communicators: Iterable[Communicator]) -> List[List[Communicator]]:
    """Return communicators of one size that hold, together, each rank once and of which no rank completed."""
    by_size: Dict[int, List[Communicator]] = {}
    for one in communicators:
        odd = one.split or one.partial or one.formed or one.gone.keys() - {"Abort"}
        if not odd and 1 < one.ranks > len(one.began):
            by_size.setdefault(one.ranks, []).append(one)
    began = {ranks: [rank for one in rivals for rank in one.began] for ranks, rivals in by_size.items()}
    return [
        rivals
        for ranks, rivals in by_size.items()
        if len(rivals) > 1 and len(began[ranks]) == len(set(began[ranks])) == ranks
    ]
