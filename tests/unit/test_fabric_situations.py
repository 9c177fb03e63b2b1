"""What is judged of a fabric that is not as it should be, as rows of a golden: a situation is a case.

The rows have the numbers and names of each sentence and not its words, of which golden/text/fabric.txt has some.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, ParamSpec

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Problem
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import EXITED, ManagerEvent, Sweep
from ansible_collections.busbar.fabric.plugins.module_utils.health.port_counters import symbol_limit
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import links as fabric_rates
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.cabling_plan import Cable, Plan
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.evidence import Host, Wanted
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.judge import judge

from tests import goldens

from . import finding_rows
from .built_fabric import NIGHT, Built, altered, asked, build, guid, partial
from .test_fabric_judge import Change, Lines, bad

OTHER = guid(0xEE00, 1)
WIDE = Wanted(oversubscription=2.0)
BOTH = (True, False)
P = ParamSpec("P")
SYMBOL, DOWNED = fabric_rates.SYMBOL, fabric_rates.DOWNED
Hosts = dict[str, Host]


@dataclass(frozen=True)
class Situation:
    """A fabric at the last sweep and at this one.

    change: what has happened since the last sweep.   always: what was so before it, too.   shape: of ``build``.
    seen: what becomes of a sweep, None if it is not there.   hosts: what becomes of what the inventory has.
    plan: what becomes of the plan.   plans: whether there is one; both are two cases.
    earlier: whether there is a sweep before this one.   wait: seconds between them.
    """

    change: Change = lambda built: None
    always: Change = lambda built: None
    seen: Callable[[Built, Sweep], Sweep | None] = lambda built, sweep: sweep
    hosts: Callable[[Hosts], Hosts] = lambda hosts: hosts
    plan: Callable[[Plan], Plan] = lambda plan: plan
    plans: tuple[bool, ...] = (True,)
    wanted: Wanted = field(default_factory=Wanted)
    earlier: bool = True
    wait: float = NIGHT
    shape: dict[str, Any] = field(default_factory=dict)

    def judged(self, plan: bool) -> Lines:
        before = build(**self.shape)
        self.always(before)
        now = copy.deepcopy(before)
        self.change(now)
        question = asked(before, now, plan, self.wanted, self.wait)
        sweeps = [found for sweep in question.sweeps if (found := self.seen(now, sweep)) is not None]
        return judge(
            replace(
                question,
                sweeps=sweeps,
                before=question.before if self.earlier else (),
                plan=self.plan(question.plan) if question.plan else None,
                hosts=self.hosts(dict(question.hosts)),
            )
        )


def rows(lines: Lines) -> list[Any]:
    """Return how many checks of each subject are ok, and what is not, with its hosts."""
    bad(lines)
    found = []
    for hosts, one in lines:
        if not one.ok:
            told = ",".join(hosts) if len(hosts) <= 8 else f"{hosts[0]}..{hosts[-1]}: {len(hosts)}"
            # All end with the advice to sweep again.
            mended = replace(one, fix=one.fix.partition("then sweep again")[0] or "-")
            found.append([told, *finding_rows.row(mended, "ib_fabric.")])
    return [dict(sorted(Counter(one.subject for _hosts, one in lines if one.ok).items())), *sorted(found, key=str)]


def change(of: Callable[Concatenate[Built, P], object]) -> Callable[P, Change]:
    """A change with its arguments, to be made once there is a fabric."""
    return lambda *given, **more: lambda built: of(built, *given, **more)


@change
def all_of(built: Built, *changes: Change) -> None:
    for one in changes:
        one(built)


@change
def replug(built: Built, host: str, rail: int, switch: str, port: int) -> None:
    """Put a rail's cable into another port."""
    built.cut(built.nic(host, rail))
    built.connect(built.nic(host, rail), (built.called(switch), port), planned=False)


def cable(one: str, port: int, other: str, far: int) -> Change:
    """Connect two switches by a cable that is not in the plan."""
    return lambda built: built.connect((built.called(one), port), (built.called(other), far), planned=False)


def swap(one: tuple[str, int], other: tuple[str, int]) -> Change:
    return lambda built: built.swap(built.nic(*one), built.nic(*other))


def cut_uplink(leaf: str) -> Change:
    return lambda built: built.cut(built.uplinks(built.called(leaf))[0])


@change
def gone(built: Built, *names: str) -> None:
    for name in names:
        built.remove(built.called(name))


def slow(host: str, rail: int, width: int, speed: str) -> Change:
    return lambda built: built.links.update({built.nic(host, rail): (width, speed)})


def rail_speed(rail: int, speed: str) -> Change:
    return lambda built: built.links.update({built.nic(host, rail): (4, speed) for host in built.hosts})


@change
def stranger(built: Built, name: str = "login01 mlx5_0") -> None:
    built.names[OTHER] = name
    built.connect((OTHER, 1), (built.called("leaf01"), 11), planned=False)


def idle(state: str) -> Change:
    return lambda built: built.states.update({built.leaf_port("node003", 1): (state, "LinkUp")})


def storage(built: Built) -> None:
    """A leaf that only storage hangs on."""
    leaf, server = guid(0xAA00, 1), guid(0xCC00, 1)
    built.names.update({leaf: "storage-leaf", server: "storage01 mlx5_0"})
    built.sizes[leaf] = 4
    built.connect((leaf, 1), (built.called("spine00"), 20))
    built.connect((server, 1), (leaf, 2))
    built.links[leaf, 1] = built.links[leaf, 2] = (4, "EDR")


def without_rates(built: Built) -> None:
    """As a profile that says nothing of them."""
    built.rate = None  # type: ignore[assignment]
    built.speed = "SDR"


def crossed(built: Built) -> None:
    """Two cables join leaf with leaf, and spine with spine."""
    built.swap(built.uplinks(built.called("leaf00"))[0], built.cables[built.uplinks(built.called("leaf03"))[2]])


def every_rail_on_one_leaf(built: Built) -> None:
    """A leaf holds all rails of a node. Every second host has one rail: its leaf has more of that than of others."""
    rails = {}
    for (host, _rail), node in built.rails.items():
        leaf, place = int(host[4:]) % 4, int(host[4:]) // 4
        name = f"node{leaf * 2 + place // 4:03d}"
        built.names[node] = f"{name} mlx5_{place % 4}"
        if place < 5:
            rails[name, place % 4] = node
    built.rails = rails


def one_manager(built: Built) -> None:
    """Of two planes that a cable joins; that of the other one has given up."""
    cable("leaf01", 12, "leaf03", 12)(built)
    lost = (built.rails["node000", 1], built.rails["node001", 1])
    built.managers = [one for one in built.managers if one[0] not in lost]


def second_master(built: Built) -> None:
    built.managers[1] = (built.managers[1][0], "master")


def failover(built: Built) -> None:
    built.managers = [(built.managers[1][0], "master"), (built.managers[0][0], "standby")]
    built.count(built.nic("node003", 1), "SymbolErrorCounter", 500)


@change
def firmware(built: Built, *old: tuple[str, int]) -> None:
    """All HCAs have one version, all switches another one, and these rails an older one."""
    for node in built.names:
        built.firmware[node] = ("31.2014.2036", "MT_S") if node in built.sizes else ("28.43.1014", "MT_H")
    for rail in old:
        built.firmware[built.rails[rail]] = ("28.39.1002", "MT_H")


@change
def keys(built: Built, *limited: tuple[str, int]) -> None:
    built.pkeys = dict.fromkeys(built.rails.values(), (0xFFFF, 0x8001))
    built.pkeys.update({built.rails[rail]: (0xFFFF, 0x0001) for rail in limited})


def renamed(form: str) -> Change:
    """form: what switches call themselves, of their name."""
    return lambda built: built.names.update({node: form.format(built.names[node]) for node in built.sizes})


Seen = Callable[[Built, Sweep], Sweep | None]


def silent(*names: tuple[str, int] | str, said: str = "", device: str | None = None, host: str | None = None) -> Seen:
    """Sweeps in which rails or switches are not.   device, host: of which sweeps."""

    def seen(built: Built, sweep: Sweep) -> Sweep:
        if (device or sweep.device, host or sweep.host) != (sweep.device, sweep.host):
            return sweep
        lost = {built.called(name) if isinstance(name, str) else built.rails[name] for name in names}
        return partial(sweep, lost, said)

    return seen


def unresponsive(built: Built, sweep: Sweep) -> Sweep:
    """A switch says who is there, and that node has said nothing."""
    return replace(sweep, nodes=tuple(node for node in sweep.nodes if node.guid != built.rails["node003", 2]))


def moved(built: Built, sweep: Sweep) -> Sweep:
    """Ends of a cable are seen at two moments."""
    return altered(sweep, built.nic("node003", 2), peer=built.leaf_port("node004", 2))


def other(**values: Any) -> Seen:
    """Sweeps with other values of their own."""
    return lambda built, sweep: replace(sweep, **values)


def port_with(**values: Any) -> Seen:
    return lambda built, sweep: altered(sweep, built.leaf_port("node003", 1), **values)


def unread(built: Built, sweep: Sweep) -> Sweep:
    """Of one end of a cable no speed, of the other one no width."""
    half = altered(sweep, built.leaf_port("node003", 1), speed=None)
    return altered(half, built.nic("node003", 1), width=None)


def stateless(_built: Built, sweep: Sweep) -> Sweep:
    """Of ibnetdiscover alone."""
    return altered(sweep, *(end for ends in sweep.links() for end in ends), state="unknown")


def slow_uplink(leaf: str) -> Seen:
    return lambda built, sweep: altered(sweep, built.uplinks(built.called(leaf))[0], speed="HDR")


def masters(built: Built, sweep: Sweep) -> Sweep:
    """As dumps of two masters are, of which nobody says whose they are."""
    return replace(sweep, managers=tuple(replace(one, state="master") for one in sweep.managers), plane="")


def only_if(device: str, empty: Sweep | None) -> Seen:
    return lambda built, sweep: empty if sweep.device == device else sweep


def logged(built: Built, sweep: Sweep) -> Sweep:
    events = (
        ManagerEvent("ERR 3113", 4, "Mar 11", "MAD completed in error"),
        ManagerEvent("ERR 0D18", 1, "Mar 11", "Found 2 ports with same GUID, duplicated"),
        ManagerEvent(EXITED, 1, "Mar 11", EXITED),
    )
    leaf = next(iter(built.cables.values()))
    return replace(sweep, events=events, unhealthy={leaf: "FLAPPING", ("0" * 15 + "1", 3): "SET_ERR"})


def known(host: str, *rails: int, **values: Any) -> Callable[[Hosts], Hosts]:
    """Rails of a host with other values of the inventory."""

    def hosts(found: Hosts) -> Hosts:
        changed = tuple(rail._replace(**values) if rail.rail in rails else rail for rail in found[host].rails)
        return {**found, host: Host(changed, found[host].boot_id)}

    return hosts


def twin(found: Hosts) -> Hosts:
    """A rail of one host is one of another host, too."""
    rails = found["node004"].rails
    return {**found, "node004": Host((rails[0], found["node002"].rails[1], *rails[2:]), "boot")}


def half_rate(found: Hosts) -> Hosts:
    return {host: Host((one.rails[0]._replace(rate_gbps=200.0), *one.rails[1:]), "boot") for host, one in found.items()}


def only_cables(which: Callable[[Cable], bool]) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, cables=tuple(one for one in plan.cables if which(one)))


def more(*rows: tuple[Any, ...]) -> Callable[[Plan], Plan]:
    """rows: both ends of a cable, and their kinds."""
    cables = (Cable(*(*row[:4], None, line, *row[4:])) for line, row in enumerate(rows, 9))
    return lambda plan: replace(plan, cables=(*plan.cables, *cables))


def stray(built: Built) -> None:
    cable("leaf01", 12, "leaf03", 12)(built)
    built.states[built.called("leaf01"), 12] = ("init", "LinkUp")


NO_MANAGER = other(managers=(), plane="")
LOST = tuple((host, 2) for host in ("node002", "node003", "node005"))
LEAF03: list[tuple[str, int] | str] = ["leaf03", *((f"node{number:03d}", 1) for number in range(1, 8, 2))]
PARTITIONS = Wanted(partitions=(0x8001, 0x7FFF))
ROUTING = Wanted(routing="ftree", adaptive_routing=True)
APART: dict[str, Any] = {"apart": True}
HALF_RATE: dict[str, Any] = {"always": rail_speed(0, "HDR"), "hosts": half_rate, "wanted": WIDE}
TWO_PAIRS = all_of(swap(("node003", 1), ("node006", 2)), swap(("node005", 1), ("node004", 2)))
OLDER, UPLINK_OUT = firmware(("node003", 1)), cut_uplink("leaf03")
MANAGED = "MF0;switch:MQM9700/U1"
PART = silent(("node005", 2), said="timeout")
NARROW: dict[str, Any] = {"hosts": 8, "spines": 2, "each": 1}
HALF = tuple((f"node{number:03d}", rail) for number in range(4) for rail in range(4))

SITUATIONS = {
    # -- links
    "port armed": Situation(idle("armed"), plans=BOTH),
    "port in init, and no manager": Situation(always=idle("init"), seen=NO_MANAGER, plans=BOTH),
    "log of a manager": Situation(seen=logged),
    "log of a manager that is gone": Situation(seen=lambda b, s: replace(logged(b, s), managers=())),
    "one lane at one end": Situation(seen=port_with(width=1)),
    "one end can do no more": Situation(seen=port_with(speed="HDR", speed_supported="HDR")),
    "one end could do more": Situation(seen=port_with(speed="HDR", speed_supported="NDR")),
    "two lanes are all that one end has": Situation(seen=port_with(width=2, width_supported=2)),
    "rate that nobody has read": Situation(seen=unread),
    "states that nobody has read": Situation(seen=stateless),
    "slow uplink of slow rails": Situation(seen=slow_uplink("leaf00"), **HALF_RATE),
    "slow uplink of other rails": Situation(seen=slow_uplink("leaf03"), **HALF_RATE),
    "slow as a whole": Situation(lambda b: setattr(b, "speed", "EDR"), shape={"hosts": 32}),
    "leaf of storage": Situation(always=storage),
    "profile without rates": Situation(always=all_of(storage, without_rates)),
    # -- cables
    "leaf with leaf, spine with spine": Situation(crossed),
    "rails of two hosts exchanged": Situation(swap(("node003", 1), ("node004", 2)), shape=APART),
    "two pairs of 16 hosts": Situation(TWO_PAIRS, plans=BOTH, shape={"hosts": 16}),
    # Half of a leaf is no majority.
    "two pairs of 8 hosts": Situation(TWO_PAIRS, plans=(False,)),
    "three cables went round": Situation(
        all_of(swap(("node003", 1), ("node004", 2)), swap(("node004", 2), ("node005", 3))), plans=BOTH
    ),
    "plan of hosts": Situation(plan=only_cables(lambda one: one.rail is not None)),
    "plan of hosts, uplink out": Situation(UPLINK_OUT, plan=only_cables(lambda one: one.rail is not None)),
    "plan of switches": Situation(plan=only_cables(lambda one: one.rail is None)),
    "leaf of all rails": Situation(
        always=every_rail_on_one_leaf, plans=(False,), shape={"hosts": 32, "rails": 1, "leaves": 4}
    ),
    "rail on another rail's leaf": Situation(replug("node003", 1, "leaf05", 9), plans=BOTH),
    # A spine is what only leaves are cabled to. It is not a leaf, so it is not held to uplinks either.
    "rail on a spine": Situation(replug("node003", 1, "spine01", 20), plans=BOTH),
    "rail on a spine of its plane": Situation(replug("node003", 1, "spine02", 12), plans=(False,), shape=APART),
    "rail on another port of its leaf": Situation(replug("node003", 1, "leaf03", 9), plans=BOTH),
    # Without an earlier sweep there are the other leaves.
    "uplink out at the first sweep": Situation(always=UPLINK_OUT, plans=(False,), earlier=False),
    "16 leaves without an uplink": Situation(
        lambda b: [b.cut(b.uplinks(leaf)[0]) for leaf in b.leaf_of], plans=(False,), shape={"rails": 8}
    ),
    "both leaves of hosts gone": Situation(gone("leaf01", "leaf03"), plans=BOTH, shape={"rails": 2}),
    "two leaves gone": Situation(gone("leaf03", "leaf05"), shape={"hosts": 32}),
    # -- what was not seen
    "part of a plane": Situation(seen=silent(*LOST, device="mlx5_2"), plans=BOTH, shape=APART),
    # Rails in a wrong plane do not make it one in which others may be.
    "rail out, and strays in part of a plane": Situation(
        always=all_of(swap(("node003", 1), ("node004", 2)), lambda b: b.cut(b.nic("node005", 1))),
        seen=silent(("node006", 2), said="timeout", device="mlx5_2"),
        plans=(False,),
        earlier=False,
        shape={"hosts": 16, **APART},
    ),
    "part of a plane, with an error": Situation(
        seen=silent(*LOST, said="bad status 110", device="mlx5_2"), plans=BOTH, shape=APART
    ),
    "node without a response": Situation(seen=unresponsive),
    "cable moved meanwhile": Situation(seen=moved),
    "one lane, in part of a plane": Situation(slow("node004", 1, 1, "NDR"), seen=silent(("node003", 1))),
    "leaf without a response": Situation(seen=silent(*LEAF03, said="timeout")),
    "spine without a response": Situation(seen=silent("spine01"), plans=(False,)),
    "part of a plane that another host saw": Situation(
        always=lambda b: setattr(b, "sweepers", ("node000", "node001")),
        seen=silent(("node003", 2), said="timeout", host="node000"),
    ),
    "plane without a sweep": Situation(seen=only_if("mlx5_2", None), plans=BOTH, shape=APART),
    "plane that never had a sweep": Situation(seen=only_if("mlx5_2", None), plans=BOTH, earlier=False, shape=APART),
    "no sweep": Situation(seen=only_if("mlx5_0", None)),
    "empty sweep": Situation(
        seen=only_if("mlx5_2", Sweep("", "node000", "mlx5_2", 1, problems=(Problem("sminfo", "timed out"),))),
        shape=APART,
    ),
    # -- planes
    "stray cable": Situation(stray, plans=BOTH, shape=APART),
    "stray cable at the first sweep": Situation(always=stray, plans=BOTH, earlier=False, shape=APART),
    # Both managers may have given out the same LIDs, so that questions end at the wrong port.
    "stray cable, and no responses": Situation(
        cable("leaf01", 12, "leaf03", 12), seen=silent(("node003", 1), ("node004", 0)), plans=(False,), shape=APART
    ),
    "stray cable, one manager": Situation(one_manager, shape=APART),
    # -- managers
    "two masters": Situation(second_master),
    "list of managers not read": Situation(seen=other(managers=())),
    "managers of no plane": Situation(seen=NO_MANAGER),
    "two masters of no plane": Situation(seen=masters),
    "another manager took over": Situation(failover),
    # -- who is there
    "another HCA of a host": Situation(stranger("NODE003.site mlx5_8"), wanted=WIDE),
    "stranger that may manage": Situation(stranger("Login01 mlx5_0"), wanted=replace(WIDE, managers=("login01",))),
    "stranger of the plan": Situation(
        always=all_of(stranger(), lambda b: b.planned.append(((OTHER, 1), (b.called("leaf01"), 11), None))), wanted=WIDE
    ),
    "aggregation node": Situation(always=stranger("Mellanox Technologies Aggregation Node")),
    "host without GUIDs": Situation(hosts=known("node003", *range(4), node_guid=None, port_guid=None), plans=(False,)),
    "host with GUIDs of ports": Situation(hosts=known("node003", *range(4), node_guid=None), plans=(False,)),
    "GUID of two rails": Situation(hosts=twin, plans=(False,)),
    # -- how it is set up
    "one firmware": Situation(always=firmware()),
    "older firmware": Situation(always=OLDER),
    "older firmware is declared": Situation(always=OLDER, wanted=Wanted(firmware={"MT_H": "28.39.1002"})),
    "older firmware on half": Situation(always=firmware(*HALF)),
    "keys not read": Situation(wanted=PARTITIONS),
    "keys": Situation(always=keys(), wanted=PARTITIONS),
    "limited key": Situation(always=keys(("node003", 1)), wanted=PARTITIONS),
    "limited key, none configured": Situation(always=keys(("node003", 1))),
    "routing not read": Situation(wanted=ROUTING),
    "routing": Situation(seen=other(routing="ftree", adaptive_routing=True), wanted=ROUTING),
    "other routing": Situation(seen=other(routing="minhop", adaptive_routing=False), wanted=ROUTING),
    "adaptive routing off": Situation(seen=other(adaptive_routing=False), wanted=Wanted(adaptive_routing=False)),
    "adaptive routing on": Situation(seen=other(adaptive_routing=True), wanted=Wanted(adaptive_routing=False)),
    "any routing": Situation(seen=other(routing="minhop", adaptive_routing=True)),
    # -- leaves and spines
    "half of the uplinks": Situation(shape=NARROW),
    "half of the uplinks is configured": Situation(wanted=WIDE, shape=NARROW),
    "uplinks of twice the rate": Situation(
        always=all_of(lambda b: setattr(b, "rate", 200.0), *(rail_speed(rail, "HDR") for rail in range(4))),
        shape=NARROW,
    ),
    "half of the uplinks, and one out": Situation(UPLINK_OUT, shape=NARROW),
    "one of two leaves without an uplink": Situation(
        always=cut_uplink("leaf00"), plans=(False,), wanted=WIDE, earlier=False, shape={"rails": 1}
    ),
    "uplinks that crowd a spine": Situation(all_of(UPLINK_OUT, cable("leaf03", 5, "spine01", 20)), plans=BOTH),
    # -- the plan
    "no such port": Situation(plan=more(("leaf03", 77, "spine00", 30))),
    "port as on the panel": Situation(plan=more(("leaf03", "1/3/1", "spine00", 30))),
    "no such rail": Situation(plan=more(("node003", "mlx5_9", "leaf03", 11))),
    "two cables at one port": Situation(plan=more(("leaf03", 5, "spine00", 19))),
    "no such switch": Situation(plan=more(("leaf99", 5, "spine00", 19, "switch", "switch"))),
    "name of 10 switches": Situation(
        always=renamed(MANAGED), plan=more((MANAGED, 5, "node003", "mlx5_1"), ("switch", 6, "node003", "mlx5_1"))
    ),
    "no such machine": Situation(
        plan=more(("storage01", "mlx5_0", "leaf03", 9), ("storage01", "mlx5_1", guid(0xA000, 129), 9, "host", "switch"))
    ),
    "plan without a rail": Situation(plan=only_cables(lambda one: one.rail != 3), shape={"hosts": 32}),
}


RATES = {"EDR": 100.0, "HDR": 200.0, "NDR": 400.0, "XDR": 800.0}


def counts(
    *changes: tuple[str, str, int, int], boots: tuple[str, str] = ("boot", "boot"), speed: str = "NDR", **more: Any
) -> Situation:
    """changes: end ("host" or "switch" of one cable), counter, value before, value now.   boots: of its host."""

    @change
    def counted(built: Built, boot: str, which: int) -> None:
        ends = {"host": built.nic("node003", 1), "switch": built.leaf_port("node003", 1)}
        built.boots = {"node003": boot}
        built.speed, built.rate = speed, RATES[speed]
        for end, name, *value in changes:
            built.count(ends[end], name, value[which])

    return Situation(counted(boots[1], 1), counted(boots[0], 0), **more)


def wrong(*changes: tuple[str, str, int, int], **more: Any) -> list[Finding]:
    return [one for _hosts, one in counts(*changes, **more).judged(True) if not one.ok]


# Intervals as UFM's PDR plugin has them, and limits worked out by hand: 3 errors in 125 minutes are 34.56 a day.
@pytest.mark.parametrize(
    ("speed", "limits"),
    [
        ("NDR", {10: 2, 720: 2, 721: 3, 7500: 3, 15000: 6, 86400: 34}),
        ("XDR", {720: 5, 7500: 6, 86400: 69}),
        ("HDR", {10: 10, 3600: 120}),
        ("EDR", {86400: 2880}),
        (None, {3600: 120}),
    ],
)
def test_symbol_errors_are_held_to_the_limit_of_the_links_speed_over_the_interval(
    speed: str | None, limits: dict[float, int]
) -> None:
    for seconds, most in limits.items():
        assert most <= symbol_limit(speed, seconds) < most + 1
        if speed in ("NDR", "HDR"):
            few = wrong(("host", SYMBOL, 7, 7 + most), wait=seconds, speed=speed)
            many = wrong(("host", SYMBOL, 7, 8 + most), wait=seconds, speed=speed)
            assert (few, [one.check for one in many]) == ([], ["ib_fabric.symbol_errors"])


@pytest.mark.parametrize(
    ("name", "seconds", "most"),
    [
        ("PortRcvErrors", 1, 10),
        ("PortRcvErrors", 100, 1000),
        ("PortXmitDiscards", 60, 6000),
        ("LinkErrorRecoveryCounter", 120, 10),
        ("LinkErrorRecoveryCounter", 5, 5),
        ("LocalLinkIntegrityErrors", 86400, 0),
        ("ExcessiveBufferOverrunErrors", 86400, 0),
    ],
)
def test_other_errors_are_rates_too(name: str, seconds: float, most: int) -> None:
    assert wrong(("host", name, 3, 3 + most), wait=seconds) == []
    [found] = wrong(("switch", name, 3, 4 + most), wait=seconds)
    assert (found.check, found.state, found.subject) == ("ib_fabric.errors", "drift", "node003 rail 1")
    assert f"{name} +{most + 1} in" in (found.have or "")
    assert "at leaf03 port 2: node003 rail 1 - leaf03 port 2" in (found.have or "")
    assert ("is fast enough" in found.fix) == (name == "PortXmitDiscards")


def rail_errors(built: Built) -> None:
    for host in built.hosts:
        built.count(built.nic(host, 1), SYMBOL, 500)


def counters_of(*leaves: str, **values: Any) -> Seen:
    """Ports of these leaves, or of all nodes, with other counters."""

    def seen(built: Built, sweep: Sweep) -> Sweep:
        chosen = {built.called(leaf) for leaf in leaves} or {node.guid for node in sweep.nodes}
        ends = [(node.guid, port.number) for node in sweep.nodes for port in node.ports if node.guid in chosen]
        return altered(sweep, *ends, **values)

    return seen


BOTH_DOWN = [("host", DOWNED, 2, 3), ("switch", DOWNED, 7, 8)]
TWICE_DOWN = [("host", DOWNED, 0, 2), ("switch", DOWNED, 0, 2)]
ENDS = {SYMBOL: 65535, "PortRcvErrors": 65535, "LocalLinkIntegrityErrors": 15, DOWNED: 255}
COUNTED = {
    "counters reset": counts(("host", SYMBOL, 60000, 3), ("host", "PortRcvErrors", 500, 0)),
    "counter reset, and 400": counts(("host", SYMBOL, 60000, 400)),
    "down": counts(*BOTH_DOWN),
    "down by a reboot": counts(*BOTH_DOWN, boots=("one", "two")),
    "40 symbol errors": counts(("host", SYMBOL, 1000, 1040)),
    "30 symbol errors": counts(("host", SYMBOL, 1000, 1030)),
    # What a host shows that was rebooted is all that it has counted since.
    "30 symbol errors and a reboot": counts(("host", SYMBOL, 1000, 1030), boots=("one", "two")),
    "down twice at both ends": counts(*TWICE_DOWN),
    "down twice, boot not known": counts(*TWICE_DOWN, boots=("", "boot")),
    "down at one end": counts(("switch", DOWNED, 0, 1)),
    "down at one end, the other not read": counts(
        ("switch", DOWNED, 0, 1), seen=lambda b, s: altered(s, b.nic("node003", 1), counters={}, unread="timed out")
    ),
    "driver loaded anew": counts(("host", DOWNED, 4, 0), ("switch", DOWNED, 4, 5)),
    **{f"{name} at its end": counts(("switch", name, end, end)) for name, end in ENDS.items()},
    **{f"{name} beyond it": counts(("switch", name, end + 1, end + 1)) for name, end in ENDS.items()},
    "reached its end": counts(("switch", "LocalLinkIntegrityErrors", 3, 15)),
    "bad cable": counts(*TWICE_DOWN, ("host", SYMBOL, 0, 500), ("switch", "PortRcvErrors", 0, 9_000_000)),
    "bad cable that has lost lanes": Situation(
        all_of(slow("node003", 1, 1, "NDR"), lambda b: b.count(b.nic("node003", 1), SYMBOL, 500))
    ),
    # What was seen to be wrong does not follow from what was not seen.
    "errors, in part of a plane": counts(("host", "PortRcvErrors", 0, 9_000_000), seen=PART),
    "errors of a whole rail": Situation(rail_errors, shape={"hosts": 32}),
    "first sweep": Situation(earlier=False),
    "first sweep, with an error": counts(("host", SYMBOL, 1, 1), earlier=False),
    "query failed": Situation(seen=counters_of("leaf03", counters={}, unread="its query failed (timeout)")),
    "no counters": Situation(seen=counters_of("leaf03", counters={}, unread="")),
    # Data without errors is no count of errors.
    "data alone": Situation(seen=counters_of(counters={"PortXmitData": 1}, unread="no errors")),
    "clock went back": Situation(wait=-5.0),
}


@pytest.mark.golden
@pytest.mark.parametrize("name", COUNTED)
def test_what_ports_have_counted(name: str) -> None:
    goldens.check("fabric_counters", name, rows(COUNTED[name].judged(True)))


@pytest.mark.golden
@pytest.mark.parametrize(
    ("name", "plan"), [(name, plan) for name, situation in SITUATIONS.items() for plan in situation.plans]
)
def test_a_situation_of_a_fabric(name: str, plan: bool) -> None:
    goldens.check("fabric_judge", name if plan else f"{name}, no plan", rows(SITUATIONS[name].judged(plan)))
