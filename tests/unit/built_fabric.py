"""A fabric as a test describes it: nodes, cables and counters, and what sweeps of it show.

A sweep shows what can be reached from the HCA that it starts at, so that what is cut off is gone as it would be.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Problem
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import (
    KINDS,
    MANAGER_STATES,
    SPEEDS,
    STATES,
    ManagerEvent,
    Node,
    Port,
    SubnetManager,
    Sweep,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.cabling_plan import Cable, Plan
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.evidence import Evidence, Host, Rail, Wanted

End = tuple[str, int]
CLEAN = (
    *("SymbolErrorCounter", "LinkErrorRecoveryCounter", "LinkDownedCounter", "PortRcvErrors", "PortXmitDiscards"),
    *("LocalLinkIntegrityErrors", "ExcessiveBufferOverrunErrors", "PortXmitWait"),
)
NIGHT = 86400.0


def guid(kind: int, number: int) -> str:
    return f"{kind:04x}{number:012x}"


@dataclass
class Built:
    """names: GUID -> what a node calls itself.   sizes: GUID of a switch -> its ports.   rails: (host, rail) -> GUID.

    states: of ports that are not what their cable says.   managers: GUIDs of HCAs, and what they are.
    """

    names: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    cables: dict[End, End] = field(default_factory=dict)
    rails: dict[tuple[str, int], str] = field(default_factory=dict)
    links: dict[End, tuple[int, str]] = field(default_factory=dict)
    counters: dict[End, dict[str, int]] = field(default_factory=dict)
    states: dict[End, tuple[str, str]] = field(default_factory=dict)
    managers: list[tuple[str, str]] = field(default_factory=list)
    planned: list[tuple[End, End, int | None]] = field(default_factory=list)
    firmware: dict[str, tuple[str, str]] = field(default_factory=dict)
    pkeys: dict[str, tuple[int, ...]] = field(default_factory=dict)
    boots: dict[str, str] = field(default_factory=dict)
    leaf_of: dict[str, int] = field(default_factory=dict)
    sweepers: tuple[str, ...] = ()
    apart: bool = False
    speed: str = "NDR"
    rate: float = 400.0

    def connect(self, one: End, other: End, rail: int | None = None, planned: bool = True) -> None:
        assert not {one, other} & self.cables.keys()
        self.cables[one], self.cables[other] = other, one
        if planned:
            self.planned.append((one, other, rail))

    def cut(self, end: End) -> End:
        other = self.cables.pop(end)
        del self.cables[other]
        return other

    def swap(self, one: End, two: End) -> None:
        """What is plugged in at one goes to two, and the reverse."""
        far_one, far_two = self.cut(one), self.cut(two)
        self.connect(one, far_two, planned=False)
        self.connect(two, far_one, planned=False)

    def remove(self, node: str) -> None:
        for end in [end for end in self.cables if end[0] == node]:
            if end in self.cables:
                self.cut(end)
        self.names.pop(node)

    def nic(self, host: str, rail: int) -> End:
        return self.rails[host, rail], 1

    def leaf_port(self, host: str, rail: int) -> End:
        return self.cables[self.nic(host, rail)]

    def called(self, name: str) -> str:
        [found] = [node for node, text in self.names.items() if text == name]
        return found

    def uplinks(self, leaf: str) -> list[End]:
        return sorted(end for end, other in self.cables.items() if end[0] == leaf and other[0] in self.sizes)

    def count(self, end: End, name: str, value: int) -> None:
        self.counters.setdefault(end, {})[name] = value

    @property
    def hosts(self) -> list[str]:
        return sorted({host for host, _rail in self.rails})

    # -- what others are told ------------------------------------------------------------------------------------

    def sweep(self, host: str, rail: int, at: float) -> Sweep:
        start = self.rails[host, rail]
        reached, through = {start}, {start}
        while through:
            beside = {far for (near, _port), (far, _other) in self.cables.items() if near in through} - reached
            reached |= beside
            # An HCA forwards nothing.
            through = beside & self.sizes.keys()
        managers = tuple(
            SubnetManager(self.port_guid(node), state, 5 if state == "master" else 3)
            for node, state in self.managers
            if node in reached
        )
        nodes = tuple(self.node(node) for node in sorted(reached))
        masters = [one.guid for one in managers if one.state == "master"]
        # A port knows the manager that has set it up, also where another one would like to.
        own = [one for one in masters if f"{int(one, 16) - (1 << 40):016x}"[:4] == start[:4]]
        master = next(iter([*own, *masters]), "")
        keys = {node: self.pkeys[node] for node in reached if node in self.pkeys}
        return Sweep(
            *(master, host, f"mlx5_{rail}", 1, at, 1.0, "infiniband-diags", managers, nodes), pkeys=keys, complete=True
        )

    def port_guid(self, node: str) -> str:
        return node if node in self.sizes else f"{int(node, 16) + (1 << 40):016x}"

    def node(self, node: str) -> Node:
        numbers = range(1, self.sizes[node] + 1) if node in self.sizes else range(1, 2)
        ports = [self.port(node, number) for number in numbers]
        if node in self.sizes:
            ports.insert(0, Port(0, "active", guid=node))
        version, psid = self.firmware.get(node, (None, None))
        kind = "switch" if node in self.sizes else "ca"
        return Node(node, kind, self.names[node], None, 0xD2F2, version, psid, tuple(ports))

    def port(self, node: str, number: int) -> Port:
        end = (node, number)
        own = self.port_guid(node) if node not in self.sizes else None
        if end not in self.cables:
            state, physical = self.states.get(end, ("down", "Polling"))
            return Port(number, state, physical, guid=own)
        width, speed = self.links.get(end, self.links.get(self.cables[end], (4, self.speed)))
        counters = {**dict.fromkeys(CLEAN, 0), **self.counters.get(end, {})}
        state, physical = self.states.get(end, ("active", "LinkUp"))
        return Port(number, state, physical, width, speed, peer=self.cables[end], guid=own, counters=counters)

    def inventory(self) -> dict[str, Host]:
        found: dict[str, list[Rail]] = {}
        for (host, rail), node in sorted(self.rails.items()):
            pci = f"0000:{0x19 + 0x10 * rail:02x}:00.0"
            own = Rail(rail, pci, node, self.port_guid(node), 1, self.rate, f"mlx5_{rail}")
            found.setdefault(host, []).append(own)
        return {host: Host(tuple(rails), self.boots.get(host, "boot")) for host, rails in found.items()}

    def plan(self) -> Plan:
        ends = enumerate(self.planned, 2)
        return Plan(tuple(Cable(*one, *other, rail, line) for line, (one, other, rail) in ends), "plan.csv")

    def sweeps(self, at: float, rails: tuple[int, ...] | None = None) -> list[Sweep]:
        every = sorted({rail for _host, rail in self.rails})
        return [self.sweep(host, rail, at) for host in self.sweepers for rail in (every if rails is None else rails)]


def build(
    hosts: int = 8, rails: int = 4, leaves: int = 2, spines: int = 2, each: int | None = None, apart: bool = False
) -> Built:
    """Rail-optimised: of each rail ``leaves`` leaves, every leaf with ``each`` cables to each of the spines.

    each: by default as many as a leaf needs for all its hosts.   apart: a plane for each rail, else one for all.
    """
    made = Built(apart=apart)
    each = each if each is not None else max(hosts // leaves // spines, 1)
    racks = [[f"node{number:03d}" for number in range(rack, hosts, leaves)] for rack in range(leaves)]
    tops: dict[tuple[int, int], str] = {}
    for rail in range(rails) if apart else range(1):
        for spine in range(spines):
            tops[rail, spine] = node = guid(0xB000, rail * 64 + spine)
            made.names[node] = f"spine{rail * spines + spine:02d}"
            made.sizes[node] = rails * leaves * each + 4
    free = dict.fromkeys(tops.values(), 1)
    for rail in range(rails):
        for rack in range(leaves):
            node = guid(0xA000, rail * 64 + rack)
            made.names[node] = f"leaf{rail * leaves + rack:02d}"
            made.sizes[node] = len(racks[rack]) + spines * each + 4
            made.leaf_of[node] = rail
            for port, host in enumerate(racks[rack], 1):
                hca = guid(0xC000 + rail, int(host[4:]))
                made.names[hca] = f"{host} mlx5_{rail}"
                made.rails[host, rail] = hca
                made.connect((hca, 1), (node, port), rail)
            for spine in range(spines):
                top = tops[rail if apart else 0, spine]
                for cable in range(each):
                    port = len(racks[rack]) + spine * each + cable + 1
                    made.connect((node, port), (top, free[top]))
                    free[top] += 1
    for rail in range(rails) if apart else range(1):
        for host, state in (("node000", "master"), ("node001", "standby")):
            made.managers.append((made.rails[host, rail], state))
    made.sweepers = ("node000",)
    return made


def asked(before: Built, now: Built, plan: bool = True, wanted: Wanted | None = None, wait: float = NIGHT) -> Evidence:
    """A healthy night, then what is. Of one plane a sweep by one HCA is enough."""
    rails = None if now.apart else (0,)
    return Evidence(
        now.sweeps(1e9 + wait, rails),
        before.sweeps(1e9, rails),
        before.plan() if plan else None,
        before.inventory() if now.boots == before.boots else now.inventory(),
        {host: before.boots.get(host, "boot") for host in before.hosts},
        wanted or Wanted(),
    )


def partial(sweep: Sweep, gone: set[str], said: str = "") -> Sweep:
    """What a tool shows that got no answer of some nodes: it ends with 0, and nothing stands where they are."""
    ends = [(node.guid, one.number) for node in sweep.nodes for one in node.ports if one.peer and one.peer[0] in gone]
    nodes = tuple(node for node in altered(sweep, *ends, peer=None).nodes if node.guid not in gone)
    problems = (Problem("ibnetdiscover", said),) if said else ()
    return replace(sweep, nodes=nodes, problems=problems, complete=not said)


def altered(sweep: Sweep, *ends: End, **changes: Any) -> Sweep:
    """The same with other fields of some ports."""
    chosen = set(ends)

    def of(node: Node) -> Node:
        ports = (replace(port, **changes) if (node.guid, port.number) in chosen else port for port in node.ports)
        return replace(node, ports=tuple(ports))

    return replace(sweep, nodes=tuple(map(of, sweep.nodes)))


def corrupt(dice: random.Random, sweep: Sweep, ends: list[End]) -> Sweep:
    """What no fabric shows, and a hostile or broken node may: every value is one that the gate lets through."""
    nodes = []
    for node in sweep.nodes:
        if dice.random() < 0.05:
            continue
        ports = []
        for port in node.ports:
            changed = port
            if dice.random() < 0.04:
                peer = dice.choice([*ends, None, ("dead00000000beef", 3), (node.guid, port.number)])
                changed = replace(changed, peer=peer)
            if dice.random() < 0.04:
                changed = replace(changed, state=dice.choice(STATES), speed=dice.choice([None, *SPEEDS]))
            if dice.random() < 0.04:
                values = {name: dice.choice([0, 5, 15, 255, 65535, 1 << 40]) for name in CLEAN}
                changed = replace(
                    changed, counters=values if dice.random() < 0.8 else {}, width=dice.choice([None, 1, 4])
                )
            if dice.random() > 0.03:
                ports.append(changed)
        kind = dice.choice(KINDS) if dice.random() < 0.03 else node.kind
        said = (
            dice.choice(["", "node003 mlx5_1", "leaf01", "Aggregation Node"])
            if dice.random() < 0.05
            else node.description
        )
        firmware, psid = (dice.choice("12"), "A") if dice.random() < 0.1 else (None, None)
        nodes.append(Node(node.guid, kind, said, firmware=firmware, psid=psid, ports=tuple(ports)))
    managers = tuple(replace(one, state=dice.choice(MANAGER_STATES)) for one in sweep.managers)
    plane = dice.choice([sweep.plane, sweep.plane, "", "c001010000000003"])
    at = sweep.at + dice.choice([0, 0, -1e6])
    return replace(sweep, nodes=tuple(nodes), managers=managers, plane=plane, at=at, complete=dice.random() < 0.8)


NOW = 1_790_000_000.0
LEAF, HCA, SM = "0c42a10300400000", "0c42a10300000010", "0c42a10300000011"


def a_sweep(plane: str = SM, complete: bool = True, host: str = "n1") -> Sweep:
    """A small one that has something in every field which a whole sweep may have."""
    counters = {"SymbolErrorCounter": 0, "PortXmitData": 1 << 60}
    port = Port(1, "active", "LinkUp", 4, "NDR", 4, "NDR", (LEAF, 3), 7, SM, counters)
    above = (Port(3, "active", peer=(HCA, 1), unread="timed out"), Port(8, "down", "Polling"))
    leaf = Node(LEAF, "switch", 'leaf <b>"1"</b>', ports=(*above, Port(9, "active", peer=("00000000002fffff", 3))))
    return Sweep(
        plane=plane,
        host=host,
        device="mlx5_0",
        port=1,
        at=NOW - 3,
        seconds=0.5,
        managers=(SubnetManager(SM, "master", 14, 1, "n1 mlx5_0"),),
        nodes=(Node(HCA, "ca", "n1 mlx5_0", HCA, 0x1021, "28.39.1002", "MT_0000000838", (port,)), leaf),
        routing="ftree",
        events=(ManagerEvent("ERR 3113", 4, "Mar 11", "MAD completed in error"),),
        unhealthy={(LEAF, 8): "FLAPPING"},
        pkeys={HCA: (0xFFFF, 0x8001)},
        problems=() if complete else (Problem("ibnetdiscover", "bad status 110"),),
        complete=complete,
    )
