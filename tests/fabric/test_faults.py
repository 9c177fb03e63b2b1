# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Each fault of a fabric is found once, with its host, rail, switch and port: real changes, seen by the real tools.

A fault is planted in the simulated fabric, the product sweeps and judges, and says exactly what was planted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_map import Wanted

from .description import End, Node, joined
from .planes import Machine, Plane
from .site import HOSTS, Expected, Site, at, called, compare, described, read, seen_from, site

Plant = Callable[[Site], list[Expected]]
# What is expected where there is no plan: the same, or with other fields; None is not asked, () is not to be known.
Bare = str | dict[str, Any] | tuple[()] | None
SAME = "the same"
FAULTS: dict[str, tuple[Plant, Bare]] = {}


@pytest.fixture(scope="module")
def _site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("site")) as made:
        yield made


@pytest.fixture
def fabric(_site: Site) -> Iterator[Site]:
    yield _site
    _site.mend()


def fault(name: str, bare: Bare = SAME) -> Callable[[Plant], Plant]:
    def add(plant: Plant) -> Plant:
        FAULTS[name] = (plant, bare)
        return plant

    return add


def test_a_healthy_fabric_has_no_finding(fabric: Site) -> None:
    """With a plan and without, at once and after everything was started anew."""
    assert [sweep.complete for sweep in fabric.before] == [True, True], [sweep.problems for sweep in fabric.before]
    compare(fabric.judge(fabric.look()), [])
    compare(fabric.judge(fabric.look(), planned=False), [])
    fabric.plane(0)
    fabric.plane(2)
    fabric.mend()
    fabric.plane(0)
    fabric.plane(2)
    compare(fabric.judge(fabric.look()), [])


# -- cables ------------------------------------------------------------------------------------------------------------


@fault("a rail is unplugged", bare={"check": "missing_host"})
def _(of: Site) -> list[Expected]:
    plane = of.plane(1)
    port = plane.cut(plane.fabric.nic("node003", 1))
    plane.settle()
    return [Expected("link_down", ("node003",), ("node003 rail 1", at(plane.fabric, port)))]


@fault("an uplink is unplugged", bare={"check": "uplinks", "hosts": HOSTS[4:], "words": ("rail2-leaf2 port 6",)})
def _(of: Site) -> list[Expected]:
    plane = of.plane(2)
    leaf = plane.fabric.leaf_port("node006", 2).guid
    port = plane.fabric.uplinks(leaf)[1]
    far = plane.cut(port)
    plane.settle()
    return [Expected("link_down", ("node001",), (at(plane.fabric, port), at(plane.fabric, far)))]


# A link that is slow: rail of the plane, its port, what it has, its check and its rate in words.
Link = tuple[str, int, bool, dict[str, Any], str, str]
SLOW: dict[str, list[Link]] = {
    "a rail has lost three of its four lanes": [("node004", 0, False, {"width": 1}, "width", "1x HDR (50 Gb/s)")],
    "a rail runs at a slower speed": [("node008", 3, False, {"speed": "EDR"}, "speed", "4x EDR (100 Gb/s)")],
    "an uplink runs at a quarter of its speed": [("node007", 1, True, {"speed": "FDR"}, "speed", "4x FDR (56 Gb/s)")],
    "an uplink has lost two lanes, and a rail elsewhere its speed": [
        ("node002", 2, True, {"width": 2}, "width", "2x HDR"),
        ("node005", 3, False, {"speed": "FDR"}, "speed", "4x FDR (56 Gb/s)"),
    ],
}


def slow(of: Site, links: Sequence[Link]) -> list[Expected]:
    """Each of these links, a rail's or the first uplink of its leaf, is slow at both ends."""
    plane = of.plane(links[0][1])
    fabric = plane.fabric.copy()
    expected = []
    for host, rail, is_uplink, change, check, rate in links:
        port = fabric.leaf_port(host, rail)
        if is_uplink:
            port = fabric.uplinks(port.guid)[0]
        fabric.degrade(port, **change)
        hosts, end = (("node001",), at(fabric, fabric.cables[port])) if is_uplink else ((host,), f"{host} rail {rail}")
        words = (end, at(fabric, port), rate, *(() if is_uplink else ("200 Gb/s",)))
        expected.append(Expected(f"link_{check}", hosts, words))
    of.load(plane, fabric)
    return expected


FAULTS.update({name: (partial(slow, links=links), SAME) for name, links in SLOW.items()})


def swapped(of: Site, rail: int, one: tuple[str, int], two: tuple[str, int]) -> list[Expected]:
    """The cables of two rails at each other's switch port."""
    plane = of.plane(rail)
    ports = [plane.fabric.leaf_port(*one), plane.fabric.leaf_port(*two)]
    plane.swap(*ports)
    plane.settle()
    return [
        Expected(
            "swapped",
            tuple({one[0], two[0]}),
            (f"{one[0]} rail {one[1]}", f"{two[0]} rail {two[1]}", *(at(plane.fabric, port) for port in ports)),
        )
    ]


@fault("two rails of a host are swapped")
def _(of: Site) -> list[Expected]:
    return swapped(of, 0, ("node004", 0), ("node004", 1))


@fault("rails of two hosts are swapped")
def _(of: Site) -> list[Expected]:
    return swapped(of, 2, ("node003", 2), ("node008", 3))


@fault("two hosts are swapped on a leaf", bare=())
def _(of: Site) -> list[Expected]:
    return swapped(of, 3, ("node005", 3), ("node006", 3))


@fault("three cables went round", bare=None)
def _(of: Site) -> list[Expected]:
    plane = of.plane(0)
    ends = [("node001", 1), ("node003", 0), ("node007", 1)]
    ports = [plane.fabric.leaf_port(*end) for end in ends]
    for port in ports:
        plane.cut(port)
    for end, port in zip(ends, ports[1:] + ports[:1], strict=True):
        plane.connect(plane.fabric.nic(*end), port)
    plane.settle()
    names = [f"{host} rail {rail}" for host, rail in ends]
    return [
        Expected(
            "swapped",
            tuple(host for host, _ in ends),
            (*names, *(at(plane.fabric, port) for port in ports), "3 cables"),
        )
    ]


@fault("two uplinks of different leaves are swapped", bare=None)
def _(of: Site) -> list[Expected]:
    plane = of.plane(2)
    fabric = plane.fabric
    one = fabric.uplinks(fabric.leaf_port("node001", 2).guid)[0]
    two = fabric.uplinks(fabric.leaf_port("node001", 3).guid)[3]
    far = [fabric.cables[one], fabric.cables[two]]
    plane.swap(one, two)
    plane.settle()
    return [Expected("swapped", ("node001",), tuple(at(fabric, end) for end in (one, two, *far)))]


@fault("a rail is at another port of its leaf", bare=())
def _(of: Site) -> list[Expected]:
    plane = of.plane(1)
    now = plane.fabric.spare(plane.fabric.leaf_port("node004", 1).guid)
    was = plane.cut(plane.fabric.nic("node004", 1))
    plane.connect(plane.fabric.nic("node004", 1), now)
    plane.settle()
    return [Expected("plan", ("node004",), ("node004 rail 1", at(plane.fabric, was), at(plane.fabric, now)))]


@fault("a rail is on the leaf of another rail")
def _(of: Site) -> list[Expected]:
    plane = of.plane(3)
    now = plane.fabric.spare(plane.fabric.leaf_port("node007", 2).guid)
    was = plane.cut(plane.fabric.nic("node007", 3))
    plane.connect(plane.fabric.nic("node007", 3), now)
    plane.settle()
    assert was.guid != now.guid
    return [Expected("rail_leaf", ("node007",), ("node007 rail 3", at(plane.fabric, now), "rail 2", "rail3-leaf2"))]


@fault(
    "a rail is on a spine", bare={"check": "rail_leaf", "words": ("node005 rail 0", "red-spine02", "red-rail0-leaf")}
)
def _(of: Site) -> list[Expected]:
    plane = of.plane(0)
    [spine] = [node for node in plane.fabric.switches() if "red-spine02" in node.description]
    # Its 16 ports are all taken with 4 leaves of 2 cables but for the upper half.
    now = plane.fabric.spare(spine.guid)
    was = plane.cut(plane.fabric.nic("node005", 0))
    plane.connect(plane.fabric.nic("node005", 0), now)
    plane.settle()
    return [Expected("plan", ("node005",), ("node005 rail 0", at(plane.fabric, was), at(plane.fabric, now)))]


@fault(
    "an uplink goes to the other spine",
    bare={"check": "spines", "hosts": HOSTS[4:], "words": ("rail2-leaf2", "1 to ", "3 to ")},
)
def _(of: Site) -> list[Expected]:
    plane = of.plane(2)
    fabric = plane.fabric
    port = fabric.uplinks(fabric.leaf_port("node008", 2).guid)[0]
    other = {fabric.cables[each].guid for each in fabric.uplinks(port.guid)} - {fabric.cables[port].guid}
    was = plane.cut(port)
    now = fabric.spare(other.pop())
    plane.connect(port, now)
    plane.settle()
    return [Expected("plan", ("node001",), (at(fabric, port), at(fabric, was), at(fabric, now)))]


@fault("a cable that no plan has joins two leaves", bare=None)
def _(of: Site) -> list[Expected]:
    plane = of.plane(1)
    ends = [plane.fabric.spare(plane.fabric.leaf_port("node001", rail).guid) for rail in (0, 1)]
    plane.connect(*ends)
    plane.settle()
    return [Expected("plan", ("node001",), tuple(at(plane.fabric, end) for end in ends))]


# -- nodes -------------------------------------------------------------------------------------------------------------


@fault("a host is switched off")
def _(of: Site) -> list[Expected]:
    for rail in (0, 2):
        plane = of.plane(rail)
        for number in (rail, rail + 1):
            plane.cut(plane.fabric.nic("node006", number))
        plane.settle()
    return [Expected("missing_host", ("node006",), ("node006",))]


@fault("a host that the inventory has not is in the fabric")
def _(of: Site) -> list[Expected]:
    plane = of.plane(0)
    fabric = plane.fabric.copy()
    stranger = fabric.add(Node(0x0C42A103000FFF00, 1, "stray07 mlx5_0", False, 0x101B))
    port = fabric.spare(fabric.leaf_port("node002", 0).guid)
    fabric.connect(End(stranger.guid, 1), port)
    of.load(plane, fabric)
    return [Expected("unknown_host", ("node001",), ("stray07 mlx5_0", at(fabric, port)))]


@fault("a spine is switched off")
def _(of: Site) -> list[Expected]:
    plane = of.plane(2)
    [spine] = [node for node in plane.fabric.switches() if "blue-spine01" in node.description]
    for end in [end for end in plane.fabric.cables if end.guid == spine.guid]:
        plane.cut(end)
    plane.settle()
    return [Expected("switch", ("node001",), (called(spine), "; 8 links to "))]


@fault("a leaf is switched off")
def _(of: Site) -> list[Expected]:
    plane = of.plane(1)
    fabric = plane.fabric
    leaf = fabric.nodes[fabric.leaf_port("node008", 1).guid]
    lost = [fabric.cables[end].guid for end in fabric.cables if end.guid == leaf.guid]
    hosts = [host for (host, _), guid in fabric.rails.items() if guid in lost]
    for end in [end for end in fabric.cables if end.guid == leaf.guid]:
        plane.cut(end)
    plane.settle()
    assert len(hosts) == 4
    return [Expected("switch", ("node001", *hosts), (called(leaf), "4 rails hang on it; 4 links to "))]


# -- counters ----------------------------------------------------------------------------------------------------------


# Rail, host, counters that have moved there since the last sweep, those at its switch port, and the check.
Counted = tuple[int, str, dict[str, int], dict[str, int], str]
DOWNED = {"LinkDownedCounter": 2}
COUNTED: dict[str, Counted] = {
    "symbol errors on a rail": (0, "node003", {"SymbolErrorCounter": 900}, {}, "symbol_errors"),
    "a link that went down and came back": (2, "node004", DOWNED, DOWNED, "link_downed"),
    "damaged packets at a switch's port": (1, "node007", {}, {"PortRcvErrors": 40000}, "errors"),
    "buffers that overrun": (2, "node002", {"ExcessiveBufferOverrunErrors": 3}, {}, "errors"),
}


def counted(of: Site, moved: Counted) -> list[Expected]:
    rail, host, near, far, check = moved
    plane = of.plane(rail)
    of.remember()
    port = plane.fabric.leaf_port(host, rail)
    plane.count(plane.fabric.nic(host, rail), **near)
    plane.count(port, **far)
    words = ["both ends"] if near and far else [f"{name} +{value}" for name, value in (near | far).items()]
    return [Expected(check, (host,), (f"{host} rail {rail}", at(plane.fabric, port), *words))]


FAULTS.update({name: (partial(counted, moved=moved), SAME) for name, moved in COUNTED.items()})


@fault("packets that a switch discards")
def _(of: Site) -> list[Expected]:
    plane = of.plane(3)
    port = plane.fabric.uplinks(plane.fabric.leaf_port("node001", 3).guid)[2]
    of.remember()
    plane.count(port, PortXmitDiscards=65000)
    far = plane.fabric.cables[port]
    return [
        Expected("errors", ("node001",), ("PortXmitDiscards +65000", at(plane.fabric, port), at(plane.fabric, far)))
    ]


@fault("a counter that stands at its end")
def _(of: Site) -> list[Expected]:
    plane = of.plane(0)
    port = plane.fabric.leaf_port("node008", 0)
    plane.count(port, PortRcvErrors=0xFFFF)
    of.remember()
    return [
        Expected("saturated", ("node008",), ("PortRcvErrors at 65535", at(plane.fabric, port)), state="unknown"),
    ]


# -- the planes as a whole ---------------------------------------------------------------------------------------------


@fault("the standby is gone")
def _(of: Site) -> list[Expected]:
    plane = of.plane(0)
    of.standbys["red"].stop()
    plane.managers = plane.managers[:1]
    plane.settle()
    return [Expected("manager", ("node001",), ("node001 rail 0", "alone"))]


# Of each kind one: make test has these.
BRIEF = {
    *("a rail is unplugged", "a rail has lost three of its four lanes", "rails of two hosts are swapped"),
    *("a rail is on the leaf of another rail", "a host is switched off", "a leaf is switched off"),
    *("symbol errors on a rail", "a counter that stands at its end", "the standby is gone"),
    *("an HCA that answers nobody", "a tool that ends in the middle of a line"),
}


def brief(names: Iterable[str]) -> list[ParameterSet]:
    return [pytest.param(name, marks=[] if name in BRIEF else pytest.mark.long) for name in names]


@pytest.mark.parametrize("name", brief(FAULTS))
def test_each_fault_is_exactly_its_finding(name: str, fabric: Site) -> None:
    before = fabric.before
    try:
        plant, bare = FAULTS[name]
        expected = plant(fabric)
        sweeps = fabric.look()
        compare(fabric.judge(sweeps), expected)
        if bare is not None:
            changed = bare if isinstance(bare, dict) else {}
            without = [replace(one, **changed) for one in expected if bare != ()]
            compare(fabric.judge(sweeps, planned=False), without)
    finally:
        fabric.before = before


def partitioned(of: Site, plane: Plane, limited: set[tuple[str, int]], without: set[tuple[str, int]]) -> None:
    """All rails are full members of 0x8001, but these."""
    members = [
        f"0x{plane.fabric.nodes[guid].port_guid:x}={'limited' if rail in limited else 'full'}"
        for rail, guid in plane.fabric.rails.items()
        if rail not in without
    ]
    conf = plane.top / "partitions.conf"
    conf.write_text(f"Default=0x7fff, ipoib: ALL=full;\njobs=0x0001: {', '.join(members)};\n")
    of.load(plane, plane.fabric, "-P", conf)


def test_rails_without_a_partition_are_named(fabric: Site) -> None:
    partitioned(fabric, fabric.plane(0), {("node004", 0)}, {("node006", 1)})
    partitioned(fabric, fabric.plane(2), set(), set())
    said = fabric.judge(fabric.look(partitions=True), wanted=Wanted(partitions=(0x8001,)))
    compare(
        said,
        [
            Expected("partition", ("node004",), ("node004 rail 0", "limited member only")),
            Expected("partition", ("node006",), ("node006 rail 1", "lacks 0x8001")),
        ],
    )


def test_who_may_manage_is_asked_where_the_site_says_it(fabric: Site) -> None:
    said = fabric.judge(fabric.look(), wanted=Wanted(managers=("node001",)))
    words = ("not in busbar_fabric_managers", "node002 rail")
    assert [one.finding.check for one in said] == ["ib_fabric.manager"] * 2
    assert all(word in one.text for word in words for one in said)
    compare(fabric.judge(fabric.look(), wanted=Wanted(managers=("node001", "node002"))), [])


def test_another_routing_engine_is_seen_where_the_manager_runs(fabric: Site) -> None:
    """The log is opensm's own; of the plane whose manager runs elsewhere nobody knows."""
    red, _blue = fabric.plane(0), fabric.plane(2)
    fabric.load(red, red.fabric, "-R", "updn")
    log = fabric.machine.top / "var/log/opensm-red.log"
    log.parent.mkdir(parents=True)
    log.write_text(red.managers[0].said())
    try:
        sweeps = fabric.look()
    finally:
        log.unlink()
    assert [sweep.routing for sweep in sweeps] == ["updn", None]
    said = fabric.judge(sweeps, wanted=Wanted(routing="ftree"))
    compare(
        said,
        [
            Expected("routing", ("node001",), ("rails 0-1", "want ftree have updn")),
            Expected("routing", ("node001",), ("rails 2-3", "not shown by the sweep"), state="unknown"),
        ],
    )
    asked = fabric.judge(sweeps, wanted=Wanted(routing="updn", adaptive_routing=True))
    assert sorted(one.finding.subject for one in asked) == [
        "plane of rails 0-1: adaptive", "plane of rails 2-3", "plane of rails 2-3: adaptive",
    ]  # fmt: skip


def test_planes_that_a_stray_cable_joins(tmp_path: Path) -> None:
    """One simulator, since ibsim's cables end where its process ends."""
    fabrics = described()
    plane = Plane(joined(fabrics), tmp_path / "joined")
    try:
        for each in fabrics:
            plane.manage(plane.fabric.nodes[min(each.rails.values())])
        plane.settle()
        machine = Machine(HOSTS[0], [plane], tmp_path / HOSTS[0])
        of = Site([plane], machine, fabrics)
        of.before = seen_from(HOSTS[0], read(machine.top).sweeps)
        assert [len(sweep.nodes) for sweep in of.before] == [22, 22]
        ends = [plane.fabric.spare(plane.fabric.leaf_port("node003", rail).guid) for rail in (0, 2)]
        plane.connect(*ends)
        sweeps = [replace(sweep, at=sweep.at + 600) for sweep in seen_from(HOSTS[0], read(machine.top).sweeps)]
        for planned in (True, False):
            said = of.judge(sweeps, planned=planned)
            [one] = [one for one in said if one.finding.check == "ib_fabric.plane"]
            assert one.finding.state == "drift"
            assert all(at(plane.fabric, end) in str(one.finding.fix) for end in ends), one.text
            # With both managers at one LID some questions reach the wrong one: what was not seen follows from that.
            others = [other for other in said if other is not one]
            assert {other.finding.because for other in others} <= {one.finding.id}, "\n".join(map(str, said))
    finally:
        plane.stop()


# -- what is not seen is not well -------------------------------------------------------------------------------------

BAD: dict[str, Callable[[Site], dict[str, object]]] = {}


def bad(name: str) -> Callable[[Callable[[Site], dict[str, object]]], None]:
    def add(plant: Callable[[Site], dict[str, object]]) -> None:
        BAD[name] = plant

    return add


@bad("a leaf that answers nobody")
def _(of: Site) -> dict[str, object]:
    plane = of.plane(1)
    plane.drop(plane.fabric.nodes[plane.fabric.leaf_port("node008", 1).guid], 100)
    return {}


@bad("an HCA that answers nobody")
def _(of: Site) -> dict[str, object]:
    plane = of.plane(2)
    plane.drop(plane.fabric.hca("node005", 2), 100)
    return {}


@bad("a spine that loses most questions")
def _(of: Site) -> dict[str, object]:
    plane = of.plane(3)
    [spine] = [node for node in plane.fabric.switches() if "spine01" in node.description]
    plane.drop(spine, 60)
    return {}


@bad("no subnet manager")
def _(of: Site) -> dict[str, object]:
    for manager in of.plane(0).managers:
        manager.kill()
    return {}


@bad("a port without a LID, and no manager to give it one")
def _(of: Site) -> dict[str, object]:
    plane = of.plane(0)
    for manager in plane.managers:
        manager.kill()
    end = plane.fabric.nic("node005", 1)
    far = plane.cut(end)
    plane.console(f'Clear "{plane.fabric.nodes[end.guid].name}"[1]')
    plane.connect(end, far)
    return {}


@bad("two HCAs with one GUID")
def _(of: Site) -> dict[str, object]:
    plane = of.plane(2)
    one, two = plane.fabric.hca("node005", 2), plane.fabric.hca("node006", 2)
    plane.console(f'Guid "{one.name}" 0x{two.guid:x}')
    return {}


@bad("a tool that hangs")
def _(of: Site) -> dict[str, object]:
    of.plane(0)
    of.machine.shim("iblinkinfo", "#!/bin/sh\nexec sleep 600\n")
    return {"seconds": 3}


@bad("a tool that ends in the middle of a line")
def _(of: Site) -> dict[str, object]:
    of.plane(0)
    real = of.machine.wrapper("ibnetdiscover").replace("exec", "", 1).rstrip() + " | head -c 3000\n"
    of.machine.shim("ibnetdiscover", real.replace("LD_PRELOAD", "env LD_PRELOAD").replace(" exec ", " "))
    return {}


@bad("a manager that dies in the middle")
def _(of: Site) -> dict[str, object]:
    plane = of.plane(0)
    pids = " ".join(str(manager.process.pid) for manager in plane.managers)
    text = of.machine.wrapper("iblinkinfo").replace("#!/bin/sh\n", f"#!/bin/sh\nkill -KILL {pids} 2>&-\n", 1)
    of.machine.shim("iblinkinfo", text)
    return {}


@pytest.mark.parametrize("name", brief(BAD))
def test_what_was_not_seen_is_unknown_and_never_well(name: str, fabric: Site) -> None:
    """Nothing is accused either: of what was not seen nobody knows that it is wrong."""
    options = BAD[name](fabric)
    try:
        sweeps = fabric.look(**options)
    finally:
        fabric.machine.write_tools()
    for planned in (True, False):
        said = fabric.judge(sweeps, planned=planned)
        states = {one.finding.check: one.finding.state for one in said}
        assert "unknown" in (states.get("ib_fabric.sweep"), states.get("ib_fabric.plane")), "\n".join(map(str, said))
        # A port that is up and waits for its manager was seen to do so.
        said = [one for one in said if one.finding.check != "ib_fabric.link_state"]
        assert {one.finding.state for one in said} == {"unknown"}, "\n".join(map(str, said))
        # One cause, one line.
        roots = {one.finding.check for one in said if one.finding.because is None}
        assert roots == {"ib_fabric.sweep"}, "\n".join(map(str, said))


@pytest.mark.long
def test_names_tell_nothing(fabric: Site) -> None:
    """Markup, quotes, and names that are all alike, or another's: a node is its GUID."""
    plane = fabric.plane(0)
    odd = plane.fabric.copy()
    names = ("<script>alert(1)</script>", 'a "quoted" one', "two  blanks 'and' quotes", "node001 mlx5_0", "{{ 7*7 }}")
    for host, name in zip(HOSTS[2:], names, strict=False):
        odd.rename(odd.rails[host, 0], name)
    for host in HOSTS:
        odd.rename(odd.rails[host, 1], "MT4123 ConnectX6   Mellanox Technologies")
    fabric.load(plane, odd)
    compare(fabric.judge(fabric.look()), [])
    compare(fabric.judge(fabric.look(), planned=False), [])
    ports = [odd.leaf_port("node003", 0), odd.leaf_port("node005", 1)]
    plane.swap(*ports)
    plane.settle()
    expected = Expected(
        "swapped",
        ("node003", "node005"),
        ("node003 rail 0", "node005 rail 1", *(at(odd, port) for port in ports)),
    )
    sweeps = fabric.look()
    compare(fabric.judge(sweeps), [expected])
    compare(fabric.judge(sweeps, planned=False), [expected])
