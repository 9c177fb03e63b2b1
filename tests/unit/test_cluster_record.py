"""The record of a benchmark between nodes: what it holds comes back as it was, and nothing else is taken for one."""

from __future__ import annotations

import json
import math
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils import cluster_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.cluster_record import (
    Job,
    Launcher,
    LeftOut,
    Record,
    Row,
    Scaling,
)

GIB = 1 << 30
JOB = Job(
    name="all_reduce-1G",
    scope="cluster",
    hosts=("n1", "n2"),
    ranks=16,
    collective="all_reduce",
    bar=340.0,
    bar_source="derived: 0.90 of the prediction",
    prediction=370.8,
    rule="eight rails",
    min_bytes=GIB // 2,
    max_bytes=GIB,
    rows=(
        Row(size=GIB // 2, time_us=2900.0, algbw=185.0, busbw=347.1, time_p99_us=2950.0, spread=0.01, repeats=3),
        Row(size=GIB, time_us=5800.0, algbw=186.0, busbw=349.2, time_p99_us=5900.0, spread=0.02, repeats=3),
    ),
    busbw=349.2,
    spread=0.02,
    transport={
        "networks": ["IB"],
        "nodes": 2,
        "expected": 16,
        "proven": True,
        "missing": [],
        "gdr": True,
        "hosts": {"n1": {"ranks": 8, "devices": ["mlx5_0"], "without_gdr": [], "found": ["mlx5_0", "mlx5_1"]}},
    },
    rails={"n1": {"mlx5_0": {"sent": 10**9, "received": 10**9}}},
    versions={"nccl": "2.28.3"},
)
FINDING = Finding("nccl_perf.busbw", "all_reduce 1G", "drift", "major", "340", "300", "log", "why", fix="mend it")
RECORD = Record(
    simulated=True,
    begun=1795000000.0,
    finished=1795000600.5,
    scope="cluster",
    launcher=Launcher(kind="mpirun", version="4.1.4"),
    asked=("n1", "n2", "n3"),
    left_out=(LeftOut(host="n3", reason="busy: a job"),),
    jobs=(JOB,),
    scaling=(Scaling(collective="all_reduce", nodes=2, size=GIB, busbw=349.2, prediction=370.8, efficiency=0.97),),
    findings=(FINDING,),
    passed=("nccl_perf.ran[live]@all_reduce 1G",),
)
DATA: dict[str, Any] = json.loads(json.dumps(cluster_record.to_dict(RECORD)))


def changed(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = data.copy()
    copy[path[0]] = changed(copy[path[0]], path[1:], value)
    return copy


def places(data: Any, path: tuple[Any, ...] = ()) -> Any:
    yield path
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    made = cluster_record.write(tmp_path, RECORD)
    for path in (tmp_path, tmp_path / "cluster", made, made / "cluster.json", tmp_path / "cluster" / "latest"):
        assert cluster_record.read(path) == RECORD
    again = cluster_record.write(tmp_path, replace(RECORD, scope="pair"))
    assert made != again
    assert cluster_record.read(tmp_path).scope == "pair"
    assert cluster_record.read(made).scope == "cluster"
    assert made.stat().st_mode & 0o077 == 0
    assert RECORD.hosts == ("n1", "n2")
    assert (JOB.size, JOB.last, JOB.ok) == (GIB, JOB.rows[1], True)


def test_every_field_has_a_type() -> None:
    for check, of in ((cluster_record._record, Record), (cluster_record._job, Job), (cluster_record._row, Row)):
        assert set(check.keys) - {"format"} == {each.name for each in fields(of)}  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [[], {}, "\x1b[2J", -1, 1e300, 10**400, True, None, "x" * 5000, [[[]]], {"a": {}}])
def test_a_wrong_value_anywhere_is_refused_or_as_good_as_any(value: Any) -> None:
    for place in places(DATA):
        try:
            record = cluster_record.from_dict(changed(DATA, place, value))
        except ParseError as error:
            assert str(error).isprintable()
            assert len(str(error)) <= 600
        else:
            # What was taken can be written and read, and commands no terminal.
            text = json.dumps(cluster_record.to_dict(record), allow_nan=False)
            assert cluster_record.from_dict(json.loads(text))
            assert "\\u001b" not in text or "findings" in place


def test_every_value_has_a_type() -> None:
    for place in places(DATA):
        if place[-1:] != ("rails",):
            with pytest.raises(ParseError):
                cluster_record.from_dict(changed(DATA, place, {"a": {}}))


def test_a_key_more_or_less_is_refused() -> None:
    for place in places(DATA):
        if not place or isinstance(place[-1], int) or {"transport", "rails", "versions"} & set(place):
            continue
        copy = json.loads(json.dumps(DATA))
        inner = copy
        for key in place[:-1]:
            inner = inner[key]
        value = inner.pop(place[-1])
        if place[-1] not in ("min_bytes", "max_bytes", "id"):
            with pytest.raises(ParseError, match=place[-1]):
                cluster_record.from_dict(copy)
        inner[place[-1]] = value
        inner["odd\x1b"] = 1
        with pytest.raises(ParseError, match=r"odd\\x1b"):
            cluster_record.from_dict(copy)


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
        (json.dumps(DATA).encode()[:-20], "not JSON"),
    ],
)
def test_what_is_no_record_is_said_to_be_none(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_bytes(content)
    with pytest.raises(ParseError, match=said) as error:
        cluster_record.read(path)
    assert str(path) in str(error.value)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="latest"):
        cluster_record.read(tmp_path)
    os.mkfifo(tmp_path / "cluster.json")
    with pytest.raises(ParseError, match="not a regular file"):
        cluster_record.read(tmp_path)
    (tmp_path / "large.json").touch()
    os.truncate(tmp_path / "large.json", cluster_record.LIMIT + 1)
    with pytest.raises(ParseError, match="larger than 64 MiB"):
        cluster_record.read(tmp_path / "large.json")


def test_what_a_node_said_is_cut_and_shown_when_it_is_written(tmp_path: Path) -> None:
    job = replace(JOB, said="\x1b[2J" + "x" * 5000, transport={"networks": ["\x1b]0;x\x07"]})
    cluster_record.write(tmp_path, replace(RECORD, jobs=(job,)))
    [read] = cluster_record.read(tmp_path).jobs
    assert read.said.startswith(r"\x1b[2Jxxx")
    assert len(read.said) == 1024
    assert read.transport["networks"] == [r"\x1b]0;x\x07"]


def test_a_record_that_nobody_could_read_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_record, "FILE", replace(cluster_record.FILE, limit=1000))
    with pytest.raises(ParseError, match="measure fewer collectives"):
        cluster_record.write(tmp_path, RECORD)
    assert not cluster_record.folder(tmp_path).exists()


def test_a_figure_that_is_none_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match=r"jobs\[0\].busbw: is nan"):
        cluster_record.write(tmp_path, replace(RECORD, jobs=(replace(JOB, busbw=math.nan),)))
    assert not cluster_record.folder(tmp_path).exists()
