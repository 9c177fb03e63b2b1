# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""All that a judgement of the InfiniBand fabric rests on: sweeps, plan, hosts of the inventory, requirements.

A plane is what one subnet manager manages. Of several hosts' sweeps of a plane the best counts; planes whose managers
share switches are joined, and are one plane here. Pure. Sources: IBTA specification 1, 14.4 (subnet managers).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import SWITCH, Node, Sweep

from .. import nodeset
from .cabling_plan import Plan

# Node GUID and port number.
End = tuple[str, int]
_UP = ("active", "armed", "init")


class Line(NamedTuple):
    """A finding, and the hosts that have it."""

    hosts: tuple[str, ...]
    finding: Finding


class Rail(NamedTuple):
    """A rail of a host, by the profile and the host's sysfs.

    pci: address of its NIC.   node_guid, port_guid: 16 hex digits, None where they were not read.
    port: of the NIC.   rate_gbps: of the profile.   device: ``mlx5_3``, or "".
    """

    rail: int
    pci: str
    node_guid: str | None
    port_guid: str | None
    port: int
    rate_gbps: float | None
    device: str = ""


@dataclass(frozen=True)
class Host:
    """A host of the inventory.   boot_id: of the running kernel, None where it is not known."""

    rails: tuple[Rail, ...] = ()
    boot_id: str | None = None


@dataclass(frozen=True)
class Wanted:
    """The site's ``busbar_fabric_*`` and ``busbar_firmware``: an empty value, or None, is not judged."""

    oversubscription: float = 1.0
    partitions: tuple[int, ...] = ()
    managers: tuple[str, ...] = ()
    firmware: Mapping[str, str] = field(default_factory=dict)
    routing: str = ""
    adaptive_routing: bool | None = None


@dataclass(frozen=True)
class Evidence:
    """sweeps: of this run.   before: of the last record.   boots: host -> boot_id at that time.

    plan: None where the site has none.   hosts: name in the inventory -> its rails.
    """

    sweeps: Sequence[Sweep]
    before: Sequence[Sweep] = ()
    plan: Plan | None = None
    hosts: Mapping[str, Host] = field(default_factory=dict)
    boots: Mapping[str, str] = field(default_factory=dict)
    wanted: Wanted = field(default_factory=Wanted)


@dataclass
class Plane:
    """sweeps: for each subnet manager the best one first.   managers: their GUIDs; more than one where planes are
    joined, none where no master was seen.   nodes: by GUID, of the best sweeps.
    before: the best earlier sweeps of the same plane.   label: in findings, the same from run to run.
    passed: what was checked, for the findings that are ok.
    """

    index: int
    sweeps: tuple[Sweep, ...]
    managers: tuple[str, ...]
    nodes: Mapping[str, Node]
    before: tuple[Sweep, ...] = ()
    label: str = ""
    passed: dict[Check, str] = field(default_factory=dict)

    @property
    def best(self) -> Sweep:
        return self.sweeps[0]

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that swept it."""
        return tuple(sorted({sweep.host for sweep in self.sweeps}))

    @property
    def options(self) -> str:
        """Options of a tool of infiniband-diags, and a blank; "" for dumps."""
        return f"-C {self.best.device} -P {self.best.port} " if self.best.device else ""

    @cached_property
    def joined(self) -> bool:
        """True for several planes that share switches, by the managers or by the last sweeps."""
        return len(self.managers) > 1 or len(self.apart) > 1

    @cached_property
    def apart(self) -> list[set[str]]:
        """The switches of each plane that was separate at the last sweep, as far as they are in this one."""
        every = join_groups(("", guids & self.switches.keys()) for guids in map(_switches, self.before))
        return [guids for _names, guids in every if guids]

    @cached_property
    def was_switches(self) -> set[str]:
        return set().union(*map(_switches, self.before))

    @cached_property
    def switches(self) -> dict[str, Node]:
        return {guid: node for guid, node in self.nodes.items() if node.kind == SWITCH}

    @cached_property
    def holes(self) -> list[tuple[End, str]]:
        """Ends without the node that must be there: the sweep is partial, whatever its tools report."""
        found: list[tuple[End, str]] = []
        ports = {end: port for node in self.nodes.values() for end, port in node.ports_by_end()}
        for end, port in ports.items():
            peer = port.peer
            if peer is None:
                if end[0] in self.switches and end[1] and port.state in _UP:
                    found.append((end, f"is {port.state}, and nothing responded there"))
            elif peer[0] not in self.nodes:
                found.append((end, f"leads to 0x{peer[0]}, which did not respond"))
            elif peer in ports and (ports[peer].peer or end) != end:
                found.append((end, "and its peer report different data of their cable"))
        return sorted(found)

    @cached_property
    def complete(self) -> bool:
        best = [next(sweep for sweep in self.sweeps if sweep.plane == one) for one in self.managers] or [self.best]
        return bool(self.nodes) and not self.holes and all(sweep.complete for sweep in best)


def join_groups(groups: Iterable[tuple[str, set[str]]]) -> list[tuple[list[str], set[str]]]:
    """Return the names and members of groups, those with a common member as one."""
    joined: list[tuple[list[str], set[str]]] = []
    for name, members in groups:
        names = [name]
        apart = [group for group in joined if not group[1] & members]
        for others, theirs in (group for group in joined if group[1] & members):
            names, members = others + names, members | theirs
        joined = [*apart, (names, members)]
    return joined


def group_planes(sweeps: Sequence[Sweep], before: Sequence[Sweep]) -> list[Plane]:
    def worth(sweep: Sweep) -> tuple[object, ...]:
        """Sort the best first: of complete sweeps the newest, of others the largest."""
        size = -len(sweep.nodes)
        rank = (-sweep.at, size) if sweep.complete else (size, -sweep.at)
        return not sweep.complete, *rank, sweep.host, sweep.device

    # Without a manager each sweep may be a separate plane.
    of_manager: dict[str, list[Sweep]] = {}
    for sweep in sorted(sweeps, key=worth):
        of_manager.setdefault(sweep.plane or f"~{len(of_manager)}", []).append(sweep)
    groups = join_groups((manager, _switches(of_manager[manager][0])) for manager in sorted(of_manager))
    planes = []
    for index, (names, switches) in enumerate(sorted(groups, key=lambda group: group[0])):
        managers = [name for name in names if name[0] != "~"]
        nodes: dict[str, Node] = {}
        for name in managers or names:
            nodes = {**{node.guid: node for node in of_manager[name][0].nodes}, **nodes}
        every = [sweep for name in (*managers, *names) for sweep in of_manager[name]]
        sweeps_of = tuple({id(one): one for one in every}.values())
        planes.append(Plane(index, sweeps_of, tuple(managers), nodes, _before(before, managers, switches)))
    return planes


def _switches(sweep: Sweep) -> set[str]:
    return {node.guid for node in sweep.nodes if node.kind == SWITCH}


def _before(before: Sequence[Sweep], managers: Sequence[str], switches: set[str]) -> tuple[Sweep, ...]:
    """Return the best sweep of each earlier plane that is the same, by its switches or else by its manager."""
    best: dict[str, Sweep] = {}
    for sweep in sorted(before, key=lambda one: (one.complete, len(one.nodes), one.at)):
        own = _switches(sweep)
        if own & switches or (sweep.plane in managers and not (own and switches)):
            best[sweep.plane] = sweep
    return tuple(best[name] for name in sorted(best))


def rails_text(rails: Iterable[int]) -> str:
    """Return ``rails 0-3,6``."""
    numbers = sorted(set(rails))
    return f"rail{'s' * (len(numbers) > 1)} {nodeset.fold(map(str, numbers)).strip('[]')}"
