# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Each fault of a fabric is found once, with its host, rail, switch and port: real changes, seen by the real tools.

A fault is planted in the simulated fabric, the product sweeps and judges, and says exactly what was planted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.evidence import Wanted

from .description import End, Node
from .planes import Plane
from .site import HOSTS, Expected, Site, at, compare, joined_site, read, seen_from, site

Plant = Callable[[Site], object]


@pytest.fixture(scope="module")
def _site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("site")) as made:
        yield made


@pytest.fixture
def fabric(_site: Site) -> Iterator[Site]:
    yield _site
    _site.mend()


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


# -- what may be done to it --------------------------------------------------------------------------------------------


def node_of(of: Site, name: str) -> tuple[Plane, Node]:
    """A switch as people call it, or ``node003 rail 1``; its plane is about to be changed."""
    if rail := re.fullmatch("(node[0-9]+) rail ([0-9])", name):
        plane = of.plane(int(rail[2]))
        return plane, plane.fabric.hca(rail[1], int(rail[2]))
    plane = of.plane(0 if name.startswith("red") else 2)
    [found] = [node for node in plane.fabric.switches() if f"{name}:" in node.description]
    return plane, found


def end_of(of: Site, name: str) -> tuple[Plane, End]:
    """``node003 rail 1``, or ``red-spine01 port 3``."""
    node, _word, port = name.partition(" port ")
    plane, found = node_of(of, node)
    return plane, End(found.guid, int(port or 1))


def do(action: str, *names: str) -> Plant:
    def plant(of: Site) -> None:
        ends = [end_of(of, name) for name in names]
        getattr(ends[0][0], action)(*(end for _plane, end in ends))

    return plant


cut, swap, connect = partial(do, "cut"), partial(do, "swap"), partial(do, "connect")


def slow(ends: Mapping[str, Mapping[str, Any]]) -> Plant:
    """ends: of links of one plane -> what they have."""

    def plant(of: Site) -> None:
        [plane] = {id(plane): plane for plane, _end in (end_of(of, name) for name in ends)}.values()
        fabric = plane.fabric.copy()
        for name, change in ends.items():
            fabric.degrade(end_of(of, name)[1], **change)
        of.load(plane, fabric)

    return plant


def off(name: str) -> Plant:
    def plant(of: Site) -> None:
        plane, node = node_of(of, name)
        for end in [end for end in plane.fabric.cables if end.guid == node.guid]:
            plane.cut(end)

    return plant


def stray(of: Site) -> None:
    plane, port = end_of(of, "red-rail0-leaf1 port 9")
    fabric = plane.fabric.copy()
    fabric.connect(End(fabric.add(Node(0x0C42A103000FFF00, 1, "stray07 mlx5_0", False, 0x101B)).guid, 1), port)
    of.load(plane, fabric)


def remember(name: str) -> Plant:
    """What is now in the plane of this node is what the last sweeps have seen."""

    def plant(of: Site) -> None:
        node_of(of, name)
        of.remember()

    return plant


def count(name: str, **counters: int) -> Plant:
    def plant(of: Site) -> None:
        plane, end = end_of(of, name)
        plane.count(end, **counters)

    return plant


def standby_gone(of: Site) -> None:
    plane = of.plane(0)
    of.standbys["red"].stop()
    plane.managers = plane.managers[:1]


def found(check: str, hosts: str, words: str, state: str = "drift") -> Expected:
    """hosts, words: with commas between them."""
    return Expected(check, tuple(hosts.split(",")), tuple(words.split(", ")), state)


def swapped(words: str) -> Expected:
    """The hosts are those of the rails, or the one that swept."""
    hosts = sorted(set(re.findall("node[0-9]+", words))) or ["node001"]
    return found("swapped", ",".join(hosts), words)


# Name -> what is done, and what is to be found.
DOWNED = {"LinkDownedCounter": 2}
FAULTS: dict[str, tuple[list[Plant], list[Expected]]] = {
    # -- cables
    "a rail is unplugged": (
        [cut("node003 rail 1")],
        [found("link_down", "node003", "node003 rail 1, red-rail1-leaf1 port 3")],
    ),
    "an uplink is unplugged": (
        [cut("blue-rail2-leaf2 port 6")],
        [found("link_down", "node001", "blue-rail2-leaf2 port 6, blue-spine01 port 4")],
    ),
    "a rail has lost three of its four lanes": (
        [slow({"node004 rail 0": {"width": 1}})],
        [found("link_width", "node004", "node004 rail 0, red-rail0-leaf1 port 4, 1x HDR (50 Gb/s), 200 Gb/s")],
    ),
    "a rail runs at a slower speed": (
        [slow({"node008 rail 3": {"speed": "EDR"}})],
        [found("link_speed", "node008", "node008 rail 3, blue-rail3-leaf2 port 4, 4x EDR (100 Gb/s), 200 Gb/s")],
    ),
    "an uplink runs at a quarter of its speed": (
        [slow({"red-rail1-leaf2 port 5": {"speed": "FDR"}})],
        [found("link_speed", "node001", "red-spine01 port 7, red-rail1-leaf2 port 5, 4x FDR (56 Gb/s)")],
    ),
    "an uplink has lost two lanes, and a rail elsewhere its speed": (
        [slow({"blue-rail2-leaf1 port 5": {"width": 2}, "node005 rail 3": {"speed": "FDR"}})],
        [
            found("link_width", "node001", "blue-spine01 port 1, blue-rail2-leaf1 port 5, 2x HDR"),
            found("link_speed", "node005", "node005 rail 3, blue-rail3-leaf2 port 1, 4x FDR (56 Gb/s), 200 Gb/s"),
        ],
    ),
    "two rails of a host are swapped": (
        [swap("red-rail0-leaf1 port 4", "red-rail1-leaf1 port 4")],
        [swapped("node004 rail 0, node004 rail 1, red-rail0-leaf1 port 4, red-rail1-leaf1 port 4")],
    ),
    "rails of two hosts are swapped": (
        [swap("blue-rail2-leaf1 port 3", "blue-rail3-leaf2 port 4")],
        [swapped("node003 rail 2, node008 rail 3, blue-rail2-leaf1 port 3, blue-rail3-leaf2 port 4")],
    ),
    "two hosts are swapped on a leaf": (
        [swap("blue-rail3-leaf2 port 1", "blue-rail3-leaf2 port 2")],
        [swapped("node005 rail 3, node006 rail 3, blue-rail3-leaf2 port 1, blue-rail3-leaf2 port 2")],
    ),
    "three cables went round": (
        [
            swap("red-rail1-leaf1 port 1", "red-rail0-leaf1 port 3"),
            swap("red-rail1-leaf1 port 1", "red-rail1-leaf2 port 3"),
        ],
        [
            swapped(
                "node001 rail 1, node003 rail 0, node007 rail 1, 3 cables, "
                "red-rail1-leaf1 port 1, red-rail0-leaf1 port 3, red-rail1-leaf2 port 3"
            )
        ],
    ),
    "two uplinks of different leaves are swapped": (
        [swap("blue-rail2-leaf1 port 5", "blue-rail3-leaf1 port 8")],
        [swapped("blue-rail2-leaf1 port 5, blue-rail3-leaf1 port 8, blue-spine01 port 1, blue-spine02 port 6")],
    ),
    "a rail is at another port of its leaf": (
        [cut("node004 rail 1"), connect("node004 rail 1", "red-rail1-leaf1 port 9")],
        [found("plan", "node004", "node004 rail 1, red-rail1-leaf1 port 4, red-rail1-leaf1 port 9")],
    ),
    "a rail is on the leaf of another rail": (
        [cut("node007 rail 3"), connect("node007 rail 3", "blue-rail2-leaf2 port 9")],
        [found("rail_leaf", "node007", "node007 rail 3, blue-rail2-leaf2 port 9, rail 2, rail3-leaf2")],
    ),
    "a rail is on a spine": (
        [cut("node005 rail 0"), connect("node005 rail 0", "red-spine02 port 9")],
        [found("plan", "node005", "node005 rail 0, red-rail0-leaf2 port 1, red-spine02 port 9")],
    ),
    "an uplink goes to the other spine": (
        [cut("blue-rail2-leaf2 port 5"), connect("blue-rail2-leaf2 port 5", "blue-spine02 port 9")],
        [found("plan", "node001", "blue-rail2-leaf2 port 5, blue-spine01 port 3, blue-spine02 port 9")],
    ),
    "a cable that no plan has joins two leaves": (
        [connect("red-rail0-leaf1 port 9", "red-rail1-leaf1 port 9")],
        [found("plan", "node001", "red-rail0-leaf1 port 9, red-rail1-leaf1 port 9")],
    ),
    # -- nodes
    "a host is switched off": (
        [cut(f"node006 rail {rail}") for rail in range(4)],
        [found("missing_host", "node006", "node006")],
    ),
    "a host that the inventory has not is in the fabric": (
        [stray],
        [found("unknown_host", "node001", "stray07 mlx5_0, red-rail0-leaf1 port 9")],
    ),
    "a spine is switched off": ([off("blue-spine01")], [found("switch", "node001", "blue-spine01, ; 8 links to ")]),
    "a leaf is switched off": (
        [off("red-rail1-leaf2")],
        [found("switch", ",".join(["node001", *HOSTS[4:]]), "red-rail1-leaf2, 4 rails hang on it; 4 links to ")],
    ),
    # -- counters
    "symbol errors on a rail": (
        [remember("node003 rail 0"), count("node003 rail 0", SymbolErrorCounter=900)],
        [found("symbol_errors", "node003", "node003 rail 0, red-rail0-leaf1 port 3, SymbolErrorCounter +900")],
    ),
    "a link that went down and came back": (
        [remember("node004 rail 2"), count("node004 rail 2", **DOWNED), count("blue-rail2-leaf1 port 4", **DOWNED)],
        [found("link_downed", "node004", "node004 rail 2, blue-rail2-leaf1 port 4, both ends")],
    ),
    "damaged packets at a switch's port": (
        [remember("node007 rail 1"), count("red-rail1-leaf2 port 3", PortRcvErrors=40000)],
        [found("errors", "node007", "node007 rail 1, red-rail1-leaf2 port 3, PortRcvErrors +40000")],
    ),
    "buffers that overrun": (
        [remember("node002 rail 2"), count("node002 rail 2", ExcessiveBufferOverrunErrors=3)],
        [found("errors", "node002", "node002 rail 2, blue-rail2-leaf1 port 2, ExcessiveBufferOverrunErrors +3")],
    ),
    "packets that a switch discards": (
        [remember("blue-spine02"), count("blue-rail3-leaf1 port 7", PortXmitDiscards=65000)],
        [found("errors", "node001", "PortXmitDiscards +65000, blue-rail3-leaf1 port 7, blue-spine02 port 5")],
    ),
    "a counter that stands at its end": (
        [count("red-rail0-leaf2 port 4", PortRcvErrors=0xFFFF), remember("node008 rail 0")],
        [found("saturated", "node008", "PortRcvErrors at 65535, red-rail0-leaf2 port 4", state="unknown")],
    ),
    # -- the planes as a whole
    "the standby is gone": ([standby_gone], [found("manager", "node001", "node001 rail 0, alone")]),
}
# What is otherwise where there is no plan: None is not asked, () is not to be known.
BARE: dict[str, dict[str, Any] | tuple[()] | None] = {
    "a rail is unplugged": {"check": "missing_host"},
    "an uplink is unplugged": {"check": "uplinks", "hosts": HOSTS[4:], "words": ("rail2-leaf2 port 6",)},
    "two hosts are swapped on a leaf": (),
    "three cables went round": None,
    "two uplinks of different leaves are swapped": None,
    "a rail is at another port of its leaf": (),
    "a rail is on a spine": {"check": "rail_leaf", "words": ("node005 rail 0", "red-spine02", "red-rail0-leaf")},
    "an uplink goes to the other spine": {
        "check": "spines",
        "hosts": HOSTS[4:],
        "words": ("rail2-leaf2", "1 to ", "3 to "),
    },
    "a cable that no plan has joins two leaves": None,
}


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
    plants, expected = FAULTS[name]
    bare = BARE.get(name, {})
    try:
        for plant in plants:
            plant(fabric)
        for plane in fabric.planes:
            if plane.fabric.name in fabric.changed:
                plane.settle()
        sweeps = fabric.look()
        compare(fabric.judge(sweeps), expected)
        if bare is not None:
            without = [replace(one, **dict(bare)) for one in expected if bare != ()]
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
    with joined_site(tmp_path) as of:
        [plane] = of.planes
        of.before = seen_from(HOSTS[0], read(of.machine.top).sweeps)
        assert [len(sweep.nodes) for sweep in of.before] == [22, 22]
        ends = [plane.fabric.spare(plane.fabric.leaf_port("node003", rail).guid) for rail in (0, 2)]
        plane.connect(*ends)
        sweeps = [replace(sweep, at=sweep.at + 600) for sweep in seen_from(HOSTS[0], read(of.machine.top).sweeps)]
        for planned in (True, False):
            said = of.judge(sweeps, planned=planned)
            [one] = [one for one in said if one.finding.check == "ib_fabric.plane"]
            assert one.finding.state == "drift"
            assert all(at(plane.fabric, end) in str(one.finding.fix) for end in ends), one.text
            # With both managers at one LID some questions reach the wrong one: what was not seen follows from that.
            others = [other for other in said if other is not one]
            assert {other.finding.because for other in others} <= {one.finding.id}, "\n".join(map(str, said))


# -- what is not seen is not well -------------------------------------------------------------------------------------


def drop(name: str, percent: int) -> Plant:
    def plant(of: Site) -> None:
        plane, node = node_of(of, name)
        plane.drop(node, percent)

    return plant


def no_manager(of: Site) -> None:
    for manager in of.plane(0).managers:
        manager.kill()


def no_lid(of: Site) -> None:
    no_manager(of)
    plane, end = end_of(of, "node005 rail 1")
    far = plane.cut(end)
    plane.console(f'Clear "{plane.fabric.nodes[end.guid].name}"[1]')
    plane.connect(end, far)


def one_guid(of: Site) -> None:
    (plane, one), (_same, two) = node_of(of, "node005 rail 2"), node_of(of, "node006 rail 2")
    plane.console(f'Guid "{one.name}" 0x{two.guid:x}')


def hangs(of: Site) -> None:
    of.plane(0)
    of.machine.shim("iblinkinfo", "#!/bin/sh\nexec sleep 600\n")


def ends_early(of: Site) -> None:
    of.plane(0)
    real = of.machine.wrapper("ibnetdiscover").replace("exec", "", 1).rstrip() + " | head -c 3000\n"
    of.machine.shim("ibnetdiscover", real.replace("LD_PRELOAD", "env LD_PRELOAD").replace(" exec ", " "))


def manager_dies(of: Site) -> None:
    pids = " ".join(str(manager.process.pid) for manager in of.plane(0).managers)
    text = of.machine.wrapper("iblinkinfo").replace("#!/bin/sh\n", f"#!/bin/sh\nkill -KILL {pids} 2>&-\n", 1)
    of.machine.shim("iblinkinfo", text)


BAD = {
    "a leaf that answers nobody": drop("red-rail1-leaf2", 100),
    "an HCA that answers nobody": drop("node005 rail 2", 100),
    "a spine that loses most questions": drop("blue-spine01", 60),
    "no subnet manager": no_manager,
    "a port without a LID, and no manager to give it one": no_lid,
    "two HCAs with one GUID": one_guid,
    "a tool that hangs": hangs,
    "a tool that ends in the middle of a line": ends_early,
    "a manager that dies in the middle": manager_dies,
}


@pytest.mark.parametrize("name", brief(BAD))
def test_what_was_not_seen_is_unknown_and_never_well(name: str, fabric: Site) -> None:
    """Nothing is accused either: of what was not seen nobody knows that it is wrong."""
    BAD[name](fabric)
    try:
        sweeps = fabric.look(**({"seconds": 3} if name == "a tool that hangs" else {}))
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
        "swapped", ("node003", "node005"), ("node003 rail 0", "node005 rail 1", *(at(odd, port) for port in ports))
    )
    sweeps = fabric.look()
    compare(fabric.judge(sweeps), [expected])
    compare(fabric.judge(sweeps, planned=False), [expected])
