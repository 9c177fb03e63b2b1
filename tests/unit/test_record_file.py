"""Records of benchmarks between nodes and of searches for slow nodes come back as they were; nothing else is one."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import cluster_record, localise_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import record as fabric_record

from tests.nested import changed, places

from . import sample_cluster_record as cluster
from . import sample_localise_record as localise
from .test_fabric_run import a_record


class Kind(NamedTuple):
    """optional: keys that may lack.   tables: parts with any keys.

    hostile: the record with a text of a node's in it, and with a figure that is none.
    """

    file: ModuleType
    record: Any
    other: Any
    optional: frozenset[str]
    tables: frozenset[str]
    too_large: str
    hostile: tuple[Any, Any]


LONG = "\x1b[2J" + "x" * 5000
KINDS = {
    "cluster": Kind(
        cluster_record,
        cluster.RECORD,
        replace(cluster.RECORD, scope="pair"),
        frozenset(("min_bytes", "max_bytes", "id", "net_plugin")),
        frozenset(("transport", "rails", "versions")),
        "measure fewer collectives",
        (
            replace(cluster.RECORD, jobs=(replace(cluster.JOB, said=LONG, transport={"networks": ["\x1b]0;x\x07"]}),)),
            replace(cluster.RECORD, jobs=(replace(cluster.JOB, busbw=math.nan),)),
        ),
    ),
    "fabric": Kind(
        fabric_record,
        a_record(sweeps=(), taken=()),
        a_record(sweeps=(), taken=(), asked=("n2",)),
        frozenset(("id", "marks")),
        frozenset(("hosts",)),
        "more than",
        (a_record(asked=(LONG,)), a_record(finished=math.nan)),
    ),
    "localise": Kind(
        localise_record,
        localise.RECORD,
        replace(localise.RECORD, tests=(localise.PAIR,), findings=(), complete=False),
        frozenset(("id",)),
        frozenset(("lost",)),
        "fewer nodes",
        (
            replace(localise.RECORD, tests=(replace(localise.PAIR, said=LONG, lost={"n1": "\x1b]0;x\x07"}),)),
            replace(localise.RECORD, tests=(replace(localise.PAIR, figure=math.nan),)),
        ),
    ),
}


@pytest.fixture(params=KINDS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def kind(name: str) -> Kind:
    return KINDS[name]


@pytest.fixture
def data(kind: Kind) -> dict[str, Any]:
    return dict(json.loads(json.dumps(kind.file.to_dict(kind.record))))


def test_what_is_written_is_read_again(name: str, kind: Kind, tmp_path: Path) -> None:
    made = kind.file.write(tmp_path, kind.record)
    for path in (tmp_path, tmp_path / name, made, made / f"{name}.json", tmp_path / name / "latest"):
        assert kind.file.read(path) == kind.record
    assert made.stat().st_mode & 0o077 == 0
    assert [path.name for path in made.iterdir()] == [f"{name}.json"]
    assert kind.file.write(tmp_path, kind.other) != made
    assert (kind.file.read(tmp_path), kind.file.read(made)) == (kind.other, kind.record)


def test_a_later_round_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    kind = KINDS["localise"]
    made = localise_record.write(tmp_path, kind.other)
    assert localise_record.write(tmp_path, kind.record, made) == made
    assert localise_record.read(tmp_path) == kind.record


@pytest.mark.parametrize("value", [[], {}, "\x1b[2J", -1, 1e300, 10**400, True, None, "x" * 5000, [[[]]], {"a": {}}])
def test_a_wrong_value_anywhere_is_refused_or_as_good_as_any(kind: Kind, data: dict[str, Any], value: Any) -> None:
    for place in places(data):
        try:
            record = kind.file.from_dict(changed(data, place, value))
        except ParseError as error:
            assert str(error).isprintable()
            assert len(str(error)) <= 600
        else:
            # What was taken can be written and read, and commands no terminal.
            assert value != {"a": {}} or place[-1:] == ("rails",)
            text = json.dumps(kind.file.to_dict(record), allow_nan=False)
            assert kind.file.from_dict(json.loads(text))
            assert "\\u001b" not in text or "findings" in place


def test_a_key_more_or_less_is_refused(kind: Kind, data: dict[str, Any]) -> None:
    for place in places(data):
        if not place or isinstance(place[-1], int) or kind.tables & set(place[:-1]):
            continue
        copy = json.loads(json.dumps(data))
        inner = copy
        for key in place[:-1]:
            inner = inner[key]
        value = inner.pop(place[-1])
        if place[-1] not in kind.optional | (kind.tables - {"lost"}):
            with pytest.raises(ParseError, match=place[-1]):
                kind.file.from_dict(copy)
        inner[place[-1]] = value
        inner["odd\x1b"] = 1
        with pytest.raises(ParseError, match=r"odd\\x1b"):
            kind.file.from_dict(copy)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "codec"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"format": 1, "format": 1}', "twice"),
        (b'{"format": 2}', "newer release"),
        (b'{"format": 1, "begun": NaN}', "NaN"),
        (b"null", "expected a dictionary"),
        (None, "not JSON"),
    ],
)
def test_what_is_no_record_is_said_to_be_none(
    name: str, kind: Kind, data: dict[str, Any], content: bytes | None, said: str, tmp_path: Path
) -> None:
    path = tmp_path / f"{name}.json"
    path.write_bytes(json.dumps(data).encode()[:-20] if content is None else content)
    with pytest.raises(ParseError, match=said) as error:
        kind.file.read(path)
    assert str(path) in str(error.value)


def test_what_is_no_file_is_not_waited_for(name: str, kind: Kind, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="latest"):
        kind.file.read(tmp_path)
    os.mkfifo(tmp_path / f"{name}.json")
    with pytest.raises(ParseError, match="not a regular file"):
        kind.file.read(tmp_path)
    (tmp_path / "large.json").touch()
    os.truncate(tmp_path / "large.json", kind.file.LIMIT + 1)
    with pytest.raises(ParseError, match="larger than 64 MiB"):
        kind.file.read(tmp_path / "large.json")


def test_what_nobody_could_read_is_not_written(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ParseError, match=r"(jobs\[0\].busbw|tests\[0\].figure|finished): is nan"):
        kind.file.write(tmp_path, kind.hostile[1])
    monkeypatch.setattr(kind.file, "FILE", replace(kind.file.FILE, limit=200))
    with pytest.raises(ParseError, match=kind.too_large):
        kind.file.write(tmp_path, kind.record)
    assert not kind.file.folder(tmp_path).exists()


def test_what_a_node_said_is_cut_and_shown_when_it_is_written(kind: Kind, tmp_path: Path) -> None:
    kind.file.write(tmp_path, kind.hostile[0])
    record = kind.file.read(tmp_path)
    if kind.file is fabric_record:
        assert record.asked == (r"\x1b[2J" + "x" * 1017,)
        return
    [read] = record.jobs if kind.file is cluster_record else record.tests
    assert read.said.startswith(r"\x1b[2Jxxx")
    assert len(read.said) == 1024
    shown = read.transport["networks"] if kind.file is cluster_record else [read.lost["n1"]]
    assert shown == [r"\x1b]0;x\x07"]


@pytest.mark.parametrize(
    "place", [("tests", 0, "hosts", 1), ("tests", 1, "ways", 0, "source"), ("findings", 0, "hosts", 0)]
)
def test_a_host_that_is_none_of_the_nodes_is_refused(place: tuple[Any, ...]) -> None:
    data = json.loads(json.dumps(localise_record.to_dict(localise.RECORD)))
    with pytest.raises(ParseError, match="n9 is not one of the nodes"):
        localise_record.from_dict(changed(data, place, "n9"))
    with pytest.raises(ParseError, match="twice"):
        localise_record.from_dict(changed(data, ("nodes", 0, "host"), "n2"))


def test_what_a_record_holds_is_counted() -> None:
    assert (KINDS["localise"].other.rounds, localise.RECORD.rounds) == (1, 4)
    assert cluster.RECORD.hosts == ("n1", "n2")
    assert (cluster.JOB.size, cluster.JOB.last, cluster.JOB.ok) == (cluster.GIB, cluster.JOB.rows[1], True)
