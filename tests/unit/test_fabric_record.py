"""The record of a run over the InfiniBand fabric: what is written is read, and nothing else."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError, Problem
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import Node, Port, SubnetManager, Sweep
from ansible_collections.busbar.fabric.plugins.plugin_utils import fabric_record, fabric_run
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_map import Host, Rail
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_record import Record
from ansible_collections.busbar.fabric.plugins.plugin_utils.localise_record import Found

NOW = 1_790_000_000.0
LEAF, HCA, SM = "0c42a10300400000", "0c42a10300000010", "0c42a10300000011"


def a_sweep(plane: str = SM, complete: bool = True, host: str = "n1") -> Sweep:
    counters = {"SymbolErrorCounter": 0, "PortXmitData": 1 << 60}
    port = Port(1, "active", "LinkUp", 4, "NDR", 4, "NDR", (LEAF, 3), 7, SM, counters)
    leaf = Node(LEAF, "switch", 'leaf <b>"1"</b>', ports=(Port(3, "active", peer=(HCA, 1), unread="timed out"),))
    return Sweep(
        plane=plane,
        host=host,
        device="mlx5_0",
        port=1,
        at=NOW - 3,
        seconds=0.5,
        managers=(SubnetManager(SM, "master", 14, 1, "n1 mlx5_0"),),
        nodes=(Node(HCA, "ca", "n1 mlx5_0", ports=(port,)), leaf),
        pkeys={HCA: (0xFFFF, 0x8001)},
        problems=() if complete else (Problem("ibnetdiscover", "bad status 110"),),
        complete=complete,
    )


def a_record(**more: Any) -> Record:
    finding = fabric_run.HOST.judge(fabric_run.HERE, "ok", "a sweep", "1 plane", "ib_fabric_info")
    record = Record(
        begun=NOW,
        finished=NOW,
        asked=("n1",),
        hosts={
            "n1": Host((Rail(0, "0000:1b:00.0", HCA, SM, 1, 400.0, "mlx5_0"),), "0d3c9a4e-5c7f-4a0d-9e53-6a1b2c3d4e5f"),
            "n2": Host(),
        },
        sweeps=(a_sweep(),),
        taken=(NOW,),
        findings=(Found(hosts=("n1",), finding=finding),),
        complete=True,
    )
    return replace(record, **more)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    record = a_record()
    made = fabric_record.write(tmp_path, record)
    assert made.parent == tmp_path / "fabric"
    for path in (tmp_path, tmp_path / "fabric", made, made / "fabric.json", tmp_path / "fabric" / "latest"):
        assert fabric_record.read(path) == record
    assert fabric_record.of_run(tmp_path, made.name) == record
    assert fabric_record.latest_name(tmp_path) == made.name
    assert made.stat().st_mode & 0o077 == 0


def test_what_a_killed_run_has_left_is_removed_with_old_records(tmp_path: Path) -> None:
    made = fabric_record.write(tmp_path, a_record(begun=NOW))
    (made / ".latest").symlink_to(made.name)
    for night in range(1, 2 + fabric_record.KEPT):
        fabric_record.write(tmp_path, a_record(begun=NOW + night * 86400))
    assert not made.exists()


def test_what_is_not_there_is_no_record(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fabric_record.read(tmp_path)
    assert fabric_record.of_run(tmp_path, "20261122T000000Z-abcdefgh") is None
    assert fabric_record.of_run(tmp_path, "../../etc") is None
    assert fabric_record.latest_name(tmp_path) == ""


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda data: data.update(format=2), "newer release of Busbar"),
        (lambda data: data.pop("hosts"), "hosts: is missing"),
        (lambda data: data.update(more=1), "is not a key of it"),
        (lambda data: data.update(before="../../../etc"), "before: is"),
        (lambda data: data.update(taken=[]), "expected one for each sweep"),
        (lambda data: data["sweeps"][0].update(plane="g" * 16), "expected a GUID"),
        (lambda data: data["hosts"]["n1"]["rails"][0].update(node_guid="0x1"), "node_guid"),
        (lambda data: data["hosts"].update({"\x1b[2J": {"boot_id": None, "rails": []}}), "hosts"),
        (lambda data: data["findings"][0]["finding"].update(state="fine"), "state"),
        (lambda data: data["findings"][0]["finding"].update(id="other.id[live]@x"), "does not belong"),
    ],
)
def test_what_is_no_record_is_refused_by_name(
    tmp_path: Path, spoil: Callable[[dict[str, Any]], None], says: str
) -> None:
    data = copy.deepcopy(fabric_record.to_dict(a_record()))
    data = json.loads(json.dumps(data))
    spoil(data)
    file = tmp_path / "fabric.json"
    file.write_text(json.dumps(data))
    with pytest.raises(ParseError, match=f"(?s)^{file}: .*{says}"):
        fabric_record.read(file)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": NaN}', "[" * 100_000, "\x00"])
def test_what_is_no_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "fabric.json").write_text(text)
    with pytest.raises(ParseError, match=r"fabric\.json: "):
        fabric_record.read(tmp_path)


def test_old_records_go_and_what_is_compared_with_stays(tmp_path: Path) -> None:
    names = [fabric_record.write(tmp_path, a_record(begun=NOW + night * 86400)).name for night in range(3)]
    folder = tmp_path / "fabric"
    others = ["notes", "20260101T000000Z-mine"]
    for name in others:
        (folder / name).mkdir()
        (folder / name / "kept.txt").write_text("mine\n")
    (folder / "20250101T000000Z-linked").symlink_to(folder / names[1])
    for night in range(3, 3 + fabric_record.KEPT):
        names.append(fabric_record.write(tmp_path, a_record(begun=NOW + night * 86400, before=names[0])).name)
    left = {path.name for path in folder.iterdir()}
    assert names[0] in left
    assert names[1] not in left
    assert {*others, "latest", "20250101T000000Z-linked"} <= left
    assert len([name for name in names if name in left]) == fabric_record.KEPT + 1


def test_a_pipe_in_the_place_of_a_record_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fabric.json")
    with pytest.raises(ParseError, match="not a regular file"):
        fabric_record.read(tmp_path / "fabric.json")
