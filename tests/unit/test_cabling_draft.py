# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Problem
from ansible_collections.busbar.fabric.plugins.module_utils.fabric import dumps
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import Node, Port, SubnetManager, Sweep
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import cabling_plan
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import record as fabric_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.cabling_plan import UnfitError
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.draft import Draft, draft
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.evidence import Host, Line, Rail

from busbar.cli import main

# node GUID, kind, description; then cables.
NODES = {number: ("switch", name) for number, name in enumerate(("leaf0", "leaf1", "core"), 1)}
NODES |= {17: ("ca", "MT4129 ConnectX7"), 18: ("ca", "MT4129 ConnectX7"), 19: ("ca", "disks mlx5_0")}
NODES |= {20: ("ca", "Mellanox Technologies Aggregation Node")}
CABLES = ((17, 1, 1, 1), (18, 1, 2, 1), (19, 1, 2, 2), (1, 33, 3, 1), (2, 33, 3, 2), (20, 1, 3, 41))
HOSTS = {f"node{n}": Host((Rail(0, "0000:1b:00.0", f"{16 + n:016x}", None, 1, 400.0, "mlx5_4"),)) for n in (1, 2)}
MASTER = SubnetManager(f"{3:016x}", "master", 5, 1, "core")


def sweep(cables: Sequence[tuple[int, int, int, int]] = CABLES, names: dict[int, str] | None = None) -> Sweep:
    ports: dict[int, list[Port]] = {node: [] for node in NODES}
    for a, a_port, z, z_port in cables:
        for (at, number), (peer, there) in (((a, a_port), (z, z_port)), ((z, z_port), (a, a_port))):
            ports[at].append(Port(number, "active", "LinkUp", 4, "NDR", peer=(f"{peer:016x}", there)))
    nodes = tuple(
        Node(f"{guid:016x}", kind, (names or {}).get(guid, name), ports=tuple(ports[guid]))
        for guid, (kind, name) in NODES.items()
    )
    return Sweep(f"{3:016x}", "node1", "mlx5_4", 1, 1.8e9, 1.0, managers=(MASTER,), nodes=nodes, complete=True)


def finding(check: str, state: str = "drift") -> Line:
    given = (f"ib_fabric.{check}", "rail 3", state, "major", "x", "y", "sweep", "why", "mend it")
    return Line(("node1",), Finding(*given))


def drafted(one: Sweep, hosts: dict[str, Host] | None = None, *found: Line) -> Draft:
    return draft([one], HOSTS if hosts is None else hosts, found, "record")


OTHER = replace(sweep(), plane=f"{2:016x}", managers=(replace(MASTER, guid=f"{2:016x}"),))


def test_a_healthy_sweep_becomes_a_plan_that_is_read_again_and_makes_a_tree() -> None:
    made = drafted(sweep())
    text = cabling_plan.write(made.plan)
    assert text.splitlines() == [
        "a_node,a_port,z_node,z_port,rail,a_type,z_type,a_name,z_name",
        "0x0000000000000011,1,0x0000000000000001,1,0,host,switch,node1 mlx5_4,leaf0",
        "0x0000000000000012,1,0x0000000000000002,1,0,host,switch,node2 mlx5_4,leaf1",
        "0x0000000000000013,1,0x0000000000000002,2,,host,switch,disks mlx5_0,leaf1",
        "0x0000000000000001,33,0x0000000000000003,1,,switch,switch,leaf0,core",
        "0x0000000000000002,33,0x0000000000000003,2,,switch,switch,leaf1,core",
    ]
    assert made.doubts == ()
    assert made.says[0] == "Draft of 1 plane as swept 2027-01-15T08:00Z: 3 switches, 3 HCAs, 5 cables."
    assert len(cabling_plan.read(text, "plan.csv").cables) == 5


@pytest.mark.parametrize(
    ("one", "said"),
    [
        ([sweep(), OTHER], "ib_fabric.plane drift: .*: joined"),
        (replace(sweep(), complete=False, problems=(Problem("ibnetdiscover", "bad status 110"),)), "bad status 110"),
        (replace(sweep(), nodes=sweep().nodes[1:]), "leads to 0x0000000000000001, which did not respond"),
        (replace(sweep(), plane="", managers=()), "ib_fabric.manager unknown"),
        (replace(sweep(), managers=(replace(MASTER, state="standby"),)), "ib_fabric.manager unknown"),
        (replace(sweep(), managers=(MASTER, replace(MASTER, guid=f"{2:016x}"))), "ib_fabric.manager drift"),
        (replace(sweep(), nodes=(), problems=(Problem("sminfo", "hung"),)), "sweep unknown: .*: sminfo: hung"),
    ],
)
def test_nothing_is_drafted_of_a_sweep_that_may_lack_something(one: Sweep | list[Sweep], said: str) -> None:
    with pytest.raises(UnfitError, match=said):
        draft(one if isinstance(one, list) else [one], HOSTS, [], "record")


def test_what_is_found_of_cables_is_in_the_way_and_what_is_found_beside_them_is_told() -> None:
    beside = [finding("errors", "unknown"), finding("swapped", "ok"), finding("plan_file", "unknown")]
    made = drafted(sweep(), None, *beside)
    assert made.doubts == tuple(f"ib_fabric.{check} unknown: rail 3: y (node1)" for check in ("errors", "plan_file"))
    for check, state in (("swapped", "drift"), ("missing_host", "unknown"), ("brand_new", "drift")):
        said = f"ib_fabric.{check} {state}: rail 3: y .node1.: repair it and sweep again"
        with pytest.raises(UnfitError, match=said):
            drafted(sweep(), None, finding(check, state))


def test_what_nodes_call_themselves_is_in_the_plan_where_it_can_be() -> None:
    made = drafted(sweep(names={1: "=cmd|'/c calc'!A1", 2: '<b>,"x"', 3: "#1"}), {})
    names = {cable.z_node[-1]: cable.z_name for cable in made.plan.cables}
    assert names == {"1": "", "2": '<b>,"x"', "3": ""}
    assert len(made.doubts) == 2
    assert made.doubts[0].startswith("without an inventory")
    assert "listed by GUID only: #1, =cmd|'/c calc'!A1, MT4129 ConnectX7" in made.doubts[1]
    assert cabling_plan.read(cabling_plan.write(made.plan), "x")


def test_hosts_that_told_no_guid_leave_the_plan_without_rails_which_is_told() -> None:
    hosts = {"node1": Host((Rail(0, "0000:1b:00.0", None, None, 1, 400.0),))}
    assert drafted(sweep(), hosts).doubts[0].startswith("no cable is a rail's")


def written(source: Path, made: Draft, code: int) -> None:
    """The command writes what draft() makes."""
    file = source.parent / "plan.csv"
    assert main(["fabric", "plan", str(source), "-o", str(file)]) == code
    assert file.read_text().startswith("# Draft of 1 plane")
    assert cabling_plan.load(file).cables == tuple(replace(c, line=n) for n, c in enumerate(made.plan.cables, 4))


def refused(source: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return why the command writes nothing."""
    assert main(["fabric", "plan", str(source), "-o", str(source.parent / "none.csv")]) == 1
    out, err = capsys.readouterr()
    assert not out
    assert not (source.parent / "none.csv").exists()
    return err


def test_the_command_drafts_of_a_whole_record_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = fabric_record.Record(
        begun=1.8e9, finished=1.8e9, asked=("node1",), hosts=HOSTS, sweeps=(sweep(),), taken=(1.8e9,), complete=True
    )
    fabric_record.write(tmp_path / "good", good)
    written(tmp_path / "good", drafted(sweep()), 0)
    for number, bad in enumerate((replace(good, complete=False), replace(good, findings=(finding("rail_leaf"),)))):
        fabric_record.write(tmp_path / f"bad{number}", bad)
        assert "nothing is drafted of a fabric that may lack a cable" in refused(tmp_path / f"bad{number}", capsys)


def test_the_command_drafts_of_whole_dumps_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dumps, "read", lambda _host, folder: (replace(sweep(), complete="whole" in str(folder)),))
    for name in ("whole", "part"):
        (tmp_path / name).mkdir()
    written(tmp_path / "whole", drafted(sweep(), {}), 2)
    assert "without an inventory" in capsys.readouterr().err
    assert "nothing is drafted of a fabric that may lack a cable" in refused(tmp_path / "part", capsys)


def test_what_is_neither_ends_with_1_and_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name, said in (("absent", "No such file"), ("file", "it is not JSON"), ("empty", "and no dumps: ")):
        error = refused(tmp_path / name, capsys)
        assert said in error
        assert str(tmp_path / name) in error
