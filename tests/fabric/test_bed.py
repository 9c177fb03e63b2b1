# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The test bed itself: what the real tools print of a fabric is what its description says, before and after changes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import series

from .description import End, Fabric, fat_tree, names, netfile, rail_optimised
from .planes import Machine, Plane, planes, wait

ROOT = Path(__file__).resolve().parent.parent.parent
LINK = re.compile(
    r"^(CA|SW) +\d+ +(\d+) 0x([0-9a-f]{16}) +(\d+x) +(\S+) - (CA|SW) +\d+ +(\d+) 0x([0-9a-f]{16})", re.MULTILINE
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Plane]]:
    """Two planes of 8 hosts, with two rails each."""
    hosts = names(8)
    top = tmp_path_factory.mktemp("planes")
    with planes(rail_optimised("red", 1, hosts, [0, 1]), rail_optimised("blue", 2, hosts, [2, 3]), top=top) as made:
        yield made


def expected(fabric: Fabric) -> set[tuple[int, int, int, int, str]]:
    """Links by port GUIDs, as ibnetdiscover -p prints them, each from both ends."""
    return {
        (fabric.nodes[a.guid].port_guid, a.port, fabric.nodes[z.guid].port_guid, z.port, fabric.rate(a))
        for a, z in fabric.cables.items()
    }


def seen(plane: Plane) -> set[tuple[int, int, int, int, str]]:
    done = plane.tool(plane.eye, "ibnetdiscover", "-p")
    assert not done.stderr, done.stderr
    return {
        (int(a, 16), int(port), int(z, 16), int(far), width + speed)
        for _, port, a, width, speed, _, far, z in LINK.findall(done.stdout)
    }


@pytest.mark.parametrize(
    "fabric",
    series.first(
        fat_tree("tree", 3),
        rail_optimised("rails", 4, names(32), range(8), leaves_per_rail=2, spines=8, cables_per_spine=2),
    ),
    ids=["a fat tree of 4 leaves", "32 hosts x 8 rails"],
)
def test_ibnetdiscover_prints_what_is_described(fabric: Fabric, tmp_path: Path) -> None:
    with planes(fabric, top=tmp_path) as [plane]:
        assert len(seen(plane)) == len(fabric.cables)
        assert seen(plane) == expected(fabric)


def test_planes_know_nothing_of_each_other(pair: list[Plane], tmp_path: Path) -> None:
    machine = Machine("node001", pair, tmp_path)
    managers = set()
    for rail, (plane, node) in machine.rails.items():
        argv = [str(machine.top / "usr/sbin/sminfo"), "-C", f"mlx5_{rail}", "-P", "1"]
        said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        managers.add(re.findall("sm guid 0x([0-9a-f]+)", said)[0])
        assert f"{plane.managers[0].node.port_guid:x}" in said
        assert "state 3 SMINFO_MASTER" in said
        assert seen(plane) == expected(plane.fabric)
        assert node in plane.fabric.nodes.values()
    assert len(managers) == 2


def test_cables_that_are_changed_are_changed_for_the_tools(pair: list[Plane]) -> None:
    plane = pair[0]
    fabric = plane.fabric
    cut = fabric.nic("node003", 0)
    far = plane.cut(cut)
    plane.settle()
    assert seen(plane) == expected(fabric)
    assert len(fabric.cables) == len(pair[1].fabric.cables) - 2
    plane.connect(cut, fabric.spare(fabric.leaf_port("node001", 1).guid))
    plane.swap(fabric.leaf_port("node004", 0), fabric.leaf_port("node005", 1))
    plane.settle()
    assert seen(plane) == expected(fabric)
    plane.swap(fabric.leaf_port("node004", 0), fabric.leaf_port("node005", 1))
    plane.cut(cut)
    plane.connect(cut, far)
    plane.settle()
    assert seen(plane) == expected(fabric)


@pytest.mark.long
def test_the_next_manager_takes_over_from_one_that_is_killed(pair: list[Plane]) -> None:
    plane = pair[1]
    node = plane.eye
    other = plane.fabric.hca("node008", 2)

    plane.manage(other)
    mine = f"{node.port_guid:016x}"
    theirs = f"{other.port_guid:016x}"
    plane.settle_managers()
    assert plane.states() == {mine: "3", theirs: "2"}
    standby = plane.managers[-1]
    plane.managers[0].kill()
    wait("the standby to take over", lambda: plane.states().get(theirs) == "3")
    standby.kill()
    plane.managers = []
    plane.manage(node)
    wait("the first manager", lambda: plane.states().get(mine) == "3")
    plane.settle()


KILLED = """
import sys, time
from pathlib import Path
from tests.fabric import planes
from tests.fabric.description import fat_tree
with planes.planes(fat_tree("tree", 1), top=Path(sys.argv[1])) as [plane]:
    print(plane.process.pid, plane.managers[0].process.pid, flush=True)
    time.sleep(600)
"""


def test_nothing_is_left_of_a_test_that_is_killed(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as test:
        assert test.stdout
        pids = [int(word) for word in test.stdout.readline().split()]
        programs = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids]
        test.send_signal(signal.SIGKILL)
        test.wait(30)
    assert programs == ["ibsim", "opensm"]
    wait("the processes to end", lambda: not any(_runs(pid) for pid in pids))


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z" and os.path.exists(f"/proc/{pid}")


def test_a_node_that_is_described_twice_is_refused() -> None:
    fabric = fat_tree("tree", 1)
    some = next(iter(fabric.nodes.values()))
    with pytest.raises(AssertionError, match="is there already"):
        fabric.add(some)
    with pytest.raises(AssertionError, match="has a cable already"):
        fabric.connect(End(some.guid, 1), End(some.guid, 2))
    assert netfile(fabric).count("\nSwitch\t") == 6
