# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Slurm's topology against the fabric: eight hosts of two rails, even ones on leaf00 and leaf02, odd ones beside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import record, slurm_topology
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.map import Fabric

from busbar.cli import main
from tests.trees import put_all

from .built_fabric import Built, asked, build

TREE = (
    "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=node000,node002,node004,node006\n"
    "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=node00[1,3,5,7]\n"
    "SwitchName=s2 Level=1 LinkSpeed=1 Nodes=node[000-007] Switches=s[0-1]\n"
)
BLOCK = (
    "BlockName=b0 BlockIndex=0 Nodes=node000,node002,node004,node006 BlockSize=4\n"
    "BlockName=b1 BlockIndex=1 Nodes=node00[1,3,5,7] BlockSize=4\n"
    "AggregatedBlock=b[0-1] BlockIndex=2 Nodes=node[000-007] BlockSize=8\n"
)


BESIDE = "others are on the leaves of this group"


def fabric(moved: bool = False) -> Built:
    """moved: rail 1 of node003 is on the leaf of the even hosts."""
    built = build(hosts=8, rails=2)
    if moved:
        built.cut(built.nic("node003", 1))
        built.connect(built.nic("node003", 1), (built.called("leaf02"), 9))
    return built


@pytest.mark.parametrize("text", [TREE, BLOCK, TREE.replace("node006", "node006.site")])
@pytest.mark.parametrize(
    ("before", "after", "moved", "expected"),
    [
        ("", "", False, []),
        ("", "", True, [f"1: node003 is on leaf02 with rail 1, and 3 {BESIDE}"]),
        ("node004,", "", False, ["no switch or block of Slurm has node004"]),
        ("node004,", "node004,gpu9,", False, ["0: no sweep shows a rail of gpu9"]),
        (
            "[1,3,5,7]",
            "[1,3,4,5,7]",
            False,
            [f"1: node004 is on leaf00 with rail 0, leaf02 with rail 1, and 4 {BESIDE}"],
        ),
        ("node00[1,3,5,7]", "node00[1,3]", False, ["no switch or block of Slurm has node[005,007]"]),
        ("node00[1,3,5,7]", "node00[0-7]", False, ["1: its 8 nodes have no leaves in common: node[000-007]"]),
    ],
)
def test_differences(text: str, before: str, after: str, moved: bool, expected: list[str]) -> None:
    built = fabric(moved)
    groups = slurm_topology.parse(text.replace(before, after, 1), "file")
    found = slurm_topology.compare(groups, Fabric(asked(built, built, plan=False)))
    assert [line.lstrip("sb") if line[1] in "01" else line for line in found] == expected


def test_two_switches_on_the_same_leaves_are_one_group() -> None:
    built = fabric()
    text = TREE.replace("SwitchName=s1", "SwitchName=s3 Level=0 Nodes=node007\nSwitchName=s1").replace(",7]", "]")
    found = slurm_topology.compare(slurm_topology.parse(text, "x"), Fabric(asked(built, built, plan=False)))
    assert found == ["s1 and s3: their nodes are on the same leaves, but are two groups of Slurm"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no switch and no block"),
        ("SwitchName=s2 Level=1 Switches=s[0-1]\n", "no switch and no block"),
        ("\x1b[2J\n", "line 1: '.*' is not a line of scontrol show topology: store all"),
        ("SwitchName=s0 Level=0 Nodes=a[0-\n", "line 1: "),
        ("SwitchName=s0 Level=0 Nodes=a[1-999999999]\n", "line 1: "),
        ("\n" + TREE[:40] + '"\n' + "x" * 9000, "line 3: '.*' is not a line"),
    ],
)
def test_another_text_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message) as error:
        slurm_topology.parse(text, "file")
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 400


def test_the_command_ends_with_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built = fabric()
    sweeps = tuple(built.sweeps(1.8e9, (0,)))
    hosts = {host: replace(known, boot_id=None) for host, known in built.inventory().items()}
    part = record.Record(begun=1.8e9, finished=1.8e9, asked=("node000",), hosts=hosts, sweeps=sweeps, taken=(1.8e9,))
    record.write(tmp_path / "good", replace(part, complete=True))
    record.write(tmp_path / "part", part)
    put_all(tmp_path, {"same": TREE, "other": TREE.replace("node004,", ""), "none": "hello\n"})
    for stored, topology, code in (("good", "same", 0), ("good", "other", 2), ("part", "same", 3), ("good", "none", 1)):
        assert main(["fabric", "topology", str(tmp_path / stored), str(tmp_path / topology)]) == code
        out, err = capsys.readouterr()
        assert bool(out) == (code == 0)
        assert ("node004" in err) == (code == 2)
