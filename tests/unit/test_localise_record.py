"""The record of a search for who is slow: what it holds comes back as it was, and nothing else is taken for one."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils import localise_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.localise import Node, Way
from ansible_collections.busbar.fabric.plugins.plugin_utils.localise_record import Found, Measured, Record

from .test_cluster_record import changed, places

PAIR = Measured(
    number=1,
    kind="pair",
    hosts=("n1", "n2"),
    outcome="fail",
    figure=231.0,
    bar=345.6,
    bar_source="derived: 0.90 of the prediction",
)
RAILS = Measured(
    number=3,
    kind="rails",
    hosts=("n2", "n1"),
    outcome="fail",
    rails=(0, 3),
    about=("n2",),
    bar=43.2,
    bar_source="perftest_share 0.9",
    ways=(Way(3, "n2", 20.0), Way(3, "n1", None, True)),
    said="n1 did not listen",
    lost={"n1": "not reached"},
)
GPUS = Measured(number=3, kind="gpus", hosts=("n1",), outcome="fail", bar=432.0, pairs={(0, 1): 288.0, (2, 7): None})
LEAF = Measured(number=4, kind="leaf", hosts=("n1",), outcome="silent", about=("",), said="no result came back")
FINDING = Finding("localise.rail", "rail 3", "drift", "major", "43.2", "20", "tests", "why", fix="swap the cable")
RECORD = Record(
    simulated=True,
    begun=1795000000.0,
    finished=1795000600.5,
    launcher="mpirun",
    nodes=(
        Node("n1", "leaf1", (0, 3), 480.0, 440.0, (0, 1, 2, 7)),
        Node("n2", "leaf1", (0, 3), 470.0, None),
        Node("n3", "", unfit=("busy: a job", "search again when it is idle")),
    ),
    tests=(PAIR, RAILS, GPUS, LEAF),
    findings=(Found(hosts=("n2",), finding=FINDING),),
    complete=True,
)
DATA: dict[str, Any] = json.loads(json.dumps(localise_record.to_dict(RECORD)))


def test_what_is_written_is_read_again_and_a_later_round_takes_its_place(tmp_path: Path) -> None:
    early = replace(RECORD, tests=(PAIR,), findings=(), complete=False)
    made = localise_record.write(tmp_path, early)
    assert localise_record.read(tmp_path) == early
    assert localise_record.write(tmp_path, RECORD, made) == made
    for path in (tmp_path, tmp_path / "localise", made, made / "localise.json", tmp_path / "localise" / "latest"):
        assert localise_record.read(path) == RECORD
    assert localise_record.write(tmp_path, early) != made
    assert [path.name for path in made.iterdir()] == ["localise.json"]
    assert made.stat().st_mode & 0o077 == 0
    assert (early.rounds, RECORD.rounds) == (1, 4)


def test_every_field_has_a_type() -> None:
    for check, of in ((localise_record._record, Record), (localise_record._test, Measured)):
        assert set(check.keys) - {"format"} == {each.name for each in fields(of)}  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [[], {}, "\x1b[2J", -1, 1e300, True, None, "x" * 5000, [[[]]], {"a": {}}])
def test_a_wrong_value_anywhere_is_refused_or_as_good_as_any(value: Any) -> None:
    for place in places(DATA):
        try:
            record = localise_record.from_dict(changed(DATA, place, value))
        except ParseError as error:
            assert str(error).isprintable()
            assert len(str(error)) <= 600
        else:
            text = json.dumps(localise_record.to_dict(record), allow_nan=False)
            assert localise_record.from_dict(json.loads(text))
            assert "\\u001b" not in text or "findings" in place


def test_a_key_more_or_less_is_refused() -> None:
    for place in places(DATA):
        if not place or isinstance(place[-1], int) or "lost" in place[:-1]:
            continue
        copy = json.loads(json.dumps(DATA))
        inner = copy
        for key in place[:-1]:
            inner = inner[key]
        value = inner.pop(place[-1])
        if place[-1] != "id":
            with pytest.raises(ParseError, match=place[-1]):
                localise_record.from_dict(copy)
        inner[place[-1]] = value
        inner["odd\x1b"] = 1
        with pytest.raises(ParseError, match=r"odd\\x1b"):
            localise_record.from_dict(copy)


@pytest.mark.parametrize(
    "place",
    [
        ("tests", 0, "hosts", 1),
        ("tests", 1, "ways", 0, "source"),
        ("findings", 0, "hosts", 0),
    ],
)
def test_a_host_that_is_none_of_the_nodes_is_refused(place: tuple[Any, ...]) -> None:
    with pytest.raises(ParseError, match="n9 is not one of the nodes"):
        localise_record.from_dict(changed(DATA, place, "n9"))
    with pytest.raises(ParseError, match="twice"):
        localise_record.from_dict(changed(DATA, ("nodes", 0, "host"), "n2"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "codec"),
        (b'{"format": 2}', "newer release"),
        (b"null", "expected a dictionary"),
        (json.dumps(DATA).encode()[:-20], "not JSON"),
    ],
)
def test_what_is_no_record_is_said_to_be_none(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "localise.json"
    path.write_bytes(content)
    with pytest.raises(ParseError, match=said) as error:
        localise_record.read(path)
    assert str(path) in str(error.value)


def test_what_nobody_could_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match="latest"):
        localise_record.read(tmp_path)
    with pytest.raises(ParseError, match=r"tests\[0\].figure: is nan"):
        localise_record.write(tmp_path, replace(RECORD, tests=(replace(PAIR, figure=math.nan),)))
    monkeypatch.setattr(localise_record, "FILE", replace(localise_record.FILE, limit=1000))
    with pytest.raises(ParseError, match="fewer nodes"):
        localise_record.write(tmp_path, RECORD)
    assert not localise_record.folder(tmp_path).exists()


def test_what_a_node_said_is_cut_and_shown_when_it_is_written(tmp_path: Path) -> None:
    test = replace(PAIR, said="\x1b[2J" + "x" * 5000, lost={"n1": "\x1b]0;x\x07"})
    localise_record.write(tmp_path, replace(RECORD, tests=(test,)))
    [read] = localise_record.read(tmp_path).tests
    assert read.said.startswith(r"\x1b[2Jxxx")
    assert len(read.said) == 1024
    assert read.lost == {"n1": r"\x1b]0;x\x07"}
