# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Each fault of a fabric is found once, with its host, rail, switch and port: real changes, seen by the real tools.

A fault is planted in the simulated fabric, the product sweeps and judges, and says exactly what was planted.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec

import pytest
from _pytest.mark import ParameterSet
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.evidence import Wanted

from tests import processes

from .description import End, Node
from .planes import Plane, wait
from .site import HOSTS, Expected, Site, compare, site, text

Plant = Callable[[Site], object]
P = ParamSpec("P")


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


def plant(act: Callable[Concatenate[Site, P], object]) -> Callable[P, Plant]:
    """What is done, with its arguments, to be done once there is a site."""
    return lambda *given, **more: lambda of: act(of, *given, **more)


@plant
def do(of: Site, action: str, *names: str) -> None:
    ends = [end_of(of, name) for name in names]
    getattr(ends[0][0], action)(*(end for _plane, end in ends))


cut, swap, connect = partial(do, "cut"), partial(do, "swap"), partial(do, "connect")


@plant
def slow(of: Site, name: str, width: int) -> None:
    plane, end = end_of(of, name)
    fabric = plane.fabric.copy()
    fabric.degrade(end, width)
    of.load(plane, fabric)


@plant
def off(of: Site, name: str) -> None:
    plane, node = node_of(of, name)
    for end in [end for end in plane.fabric.cables if end.guid == node.guid]:
        plane.cut(end)


@plant
def remember(of: Site, name: str) -> None:
    """What is now in the plane of this node is what the last sweeps have seen."""
    node_of(of, name)
    of.before = [replace(sweep, at=sweep.at - 600) for sweep in of.look()]


@plant
def count(of: Site, /, name: str, **counters: int) -> None:
    plane, end = end_of(of, name)
    plane.count(end, **counters)


def standby_gone(of: Site) -> None:
    of.plane(0).managers.pop().stop()


def found(check: str, words: str, hosts: Sequence[str] = (), state: str = "drift") -> Expected:
    """words: with commas between them.   hosts: else those of the rails in the words, or the one that swept."""
    names = hosts or sorted(set(re.findall("node[0-9]+", words))) or HOSTS[:1]
    return Expected(check, tuple(names), tuple(words.split(", ")), state)


# Name -> what is done, and what is to be found.
FAULTS: dict[str, tuple[list[Plant], Expected]] = {
    # -- cables
    "a rail is unplugged": ([cut("node003 rail 1")], found("link_down", "node003 rail 1, red-rail1-leaf1 port 3")),
    "a rail has lost three of its four lanes": (
        [slow("node004 rail 0", width=1)],
        found("link_width", "node004 rail 0, red-rail0-leaf1 port 4, 1x HDR (50 Gb/s), 200 Gb/s"),
    ),
    "rails of two hosts are swapped": (
        [swap("blue-rail2-leaf1 port 3", "blue-rail3-leaf2 port 4")],
        found("swapped", "node003 rail 2, node008 rail 3, blue-rail2-leaf1 port 3, blue-rail3-leaf2 port 4"),
    ),
    "a rail is on the leaf of another rail": (
        [cut("node007 rail 3"), connect("node007 rail 3", "blue-rail2-leaf2 port 9")],
        found("rail_leaf", "node007 rail 3, blue-rail2-leaf2 port 9, rail 2, rail3-leaf2"),
    ),
    "a cable that no plan has joins two leaves": (
        [connect("red-rail0-leaf1 port 9", "red-rail1-leaf1 port 9")],
        found("plan", "red-rail0-leaf1 port 9, red-rail1-leaf1 port 9"),
    ),
    # -- nodes
    "a host is switched off": ([cut(f"node006 rail {rail}") for rail in range(4)], found("missing_host", "node006")),
    "a leaf is switched off": (
        [off("red-rail1-leaf2")],
        found("switch", "red-rail1-leaf2, 4 rails hang on it; 4 links to ", [HOSTS[0], *HOSTS[4:]]),
    ),
    # -- counters
    "symbol errors on a rail": (
        [remember("node003 rail 0"), count("node003 rail 0", SymbolErrorCounter=900)],
        found("symbol_errors", "node003 rail 0, red-rail0-leaf1 port 3, SymbolErrorCounter +900"),
    ),
    "a counter that stands at its end": (
        [count("red-rail0-leaf2 port 4", PortRcvErrors=0xFFFF), remember("node008 rail 0")],
        found("saturated", "PortRcvErrors at 65535, red-rail0-leaf2 port 4", ["node008"], "unknown"),
    ),
    # -- the planes as a whole
    "the standby is gone": ([standby_gone], found("manager", "node001 rail 0, alone")),
}
# The check where there is no plan.
BARE = {"a rail is unplugged": "missing_host"}
# Of these only a plan knows.
PLANNED = {"a cable that no plan has joins two leaves"}


def brief(names: Iterable[str], long: Collection[str]) -> list[ParameterSet]:
    return [pytest.param(name, marks=pytest.mark.long if name in long else []) for name in names]


@pytest.mark.parametrize("name", brief(FAULTS, PLANNED))
def test_each_fault_is_exactly_its_finding(name: str, fabric: Site) -> None:
    before = fabric.before
    plants, expected = FAULTS[name]
    try:
        for change in plants:
            change(fabric)
        for plane in fabric.planes:
            if plane.fabric.name in fabric.changed:
                plane.settle()
        sweeps = fabric.look()
        compare(fabric.judge(sweeps), [expected])
        if name not in PLANNED:
            without = replace(expected, check=BARE.get(name, expected.check))
            compare(fabric.judge(sweeps, planned=False), [without])
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
    limited = found("partition", "node004 rail 0, limited member only")
    compare(said, [limited, found("partition", "node006 rail 1, lacks 0x8001")])


@plant
def drop(of: Site, name: str, percent: int) -> None:
    plane, node = node_of(of, name)
    plane.drop(node, percent)


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
BRIEF = {"an HCA that answers nobody", "a tool that ends in the middle of a line"}


@pytest.mark.parametrize("name", brief(BAD, BAD.keys() - BRIEF))
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
        assert "unknown" in (states.get("ib_fabric.sweep"), states.get("ib_fabric.plane")), "\n".join(map(text, said))
        # A port that is up and waits for its manager was seen to do so.
        said = [one for one in said if one.finding.check != "ib_fabric.link_state"]
        assert {one.finding.state for one in said} == {"unknown"}, "\n".join(map(text, said))
        # One cause, one line.
        roots = {one.finding.check for one in said if one.finding.because is None}
        assert roots == {"ib_fabric.sweep"}, "\n".join(map(text, said))


KILLED = """
import sys, time
from pathlib import Path
from tests.fabric import planes
from tests.fabric.description import names, rail_optimised
with planes.planes(rail_optimised("tree", 1, names(2), [0]), top=Path(sys.argv[1])) as [plane]:
    print(plane.socket, flush=True)
    time.sleep(600)
"""


def test_nothing_is_left_of_a_test_that_is_killed(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(argv, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True) as test:
        assert test.stdout
        socket = test.stdout.readline().strip()
        running = processes.marked("IBSIM_SOCKNAME", socket)
        test.kill()
    assert {Path(command.split()[0]).name for command in running.values()} == {"ibsim", "opensm"}
    wait("the processes to end", lambda: not processes.marked("IBSIM_SOCKNAME", socket))
