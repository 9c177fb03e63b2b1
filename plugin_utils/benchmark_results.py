# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read figures from any result file of a benchmark: a node's results and the record of a cluster.

A file may be of another machine, and holds output of nodes: it is typed and sized before anything reads it.
"""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError

from . import codec, result_schema, results_folder
from .campaign import cluster_record
from .campaign.cluster_record import Job, Record, Row
from .plain_data import Plain, PlainView

# Files of one directory: one for each host, or one record.
FILES = 20_000
# Bytes of a node's file, with seven runs of some thirty sizes; of a directory.
NODE, ALL = 4 << 20, 1 << 30

_node = codec.record(
    others=True,
    format=codec.whole(1, 1),
    host=codec.text(codec.LINE, empty=False, line=True),
    simulated=codec.flag,
    runs=codec.many(result_schema.a_run, 1000),
    findings=result_schema.of_findings,
    passed=result_schema.ids,
)


@dataclass(frozen=True)
class Run:
    """A collective over some hosts. points: size in bytes -> figures.   versions: of nccl and nccl_tests.

    marks: size in bytes -> bar and prediction in GB/s, None where unknown.
    """

    scope: str
    collective: str
    algorithm: str
    hosts: tuple[str, ...]
    ranks: int
    points: Mapping[int, Row]
    marks: Mapping[int, tuple[float | None, float | None]]
    versions: Mapping[str, str]
    simulated: bool

    @property
    def kind(self) -> tuple[str, str, str]:
        return (self.scope, self.collective, self.algorithm)


@dataclass(frozen=True)
class Results:
    """Results of one file or directory. finished: seconds since 1970, of the last run; None where unknown."""

    name: str
    finished: float | None
    runs: tuple[Run, ...]
    records: tuple[Record, ...] = ()

    @property
    def simulated(self) -> bool:
        return any(run.simulated for run in self.runs)


def of_record(record: Record, name: str) -> Results:
    return _joined(name, record.finished, (_of_job(job, record.simulated) for job in record.jobs))


def _of_job(job: Job, simulated: bool) -> Run:
    return Run(
        scope=job.scope,
        collective=job.program,
        algorithm=job.algorithm,
        hosts=tuple(sorted(job.hosts)),
        ranks=job.ranks,
        points={row.size: row for row in job.rows},
        marks={job.size: (job.bar, job.prediction)},
        versions=job.versions,
        simulated=simulated,
    )


def node_job(host: str, run: PlainView, findings: Sequence[PlainView] = ()) -> Job:
    """Return a run of a node as a job. run: as the role's report writes it.   findings: of the host, those not ok."""
    bad = [one for one in findings if one["subject"] == run["subject"]]
    first = next((one for one in bad if one["because"] is None), bad[0] if bad else None)
    rows = tuple(
        Row(size=row["size"], busbw=row["out_of_place"], spread=row.get("spread"), repeats=row.get("repeats", 1))
        for row in run["rows"]
    )
    versions = {key: run.get(given) for key, given in (("nccl", "nccl_library"), ("nccl_tests", "nccl_tests"))}
    return Job(
        **{name: run[name] for name in ("name", "collective", "max_bytes", "bar", "prediction")},
        scope="node",
        hosts=(host,),
        ranks=run["gpus"],
        rows=rows,
        busbw=run.get("busbw"),
        spread=next((row.spread for row in rows if row.size == run["max_bytes"]), None),
        states=tuple(one["state"] for one in bad),
        said="" if first is None else first["have"] or "wanted {}".format(first["want"]),
        versions={key: value for key, value in versions.items() if value and codec.is_valid(result_schema.line, value)},
    )


def of_nodes(nodes: Mapping[str, Iterable[PlainView]], name: str) -> Results:
    """Return results. nodes: host -> its runs, as the role's report writes them."""
    every = [(host, run) for host, runs in nodes.items() for run in runs]
    finished = max((run["finished"] for _host, run in every if run["finished"] is not None), default=None)
    return _joined(name, finished, (_of_job(node_job(host, run), run["simulated"]) for host, run in every))


def read(path: str | Path) -> tuple[list[Record], Plain]:
    """Return the records and host -> its results of a file, a run's directory or nccl_benchmark_results_path.

    Of the latter the latest results of both kinds. Raises OSError; ParseError that names the file.
    """
    records: list[Record] = []
    nodes: Plain = {}
    room = ALL
    for file in _files(Path(path)):
        try:
            content = results_folder.content(file, min(room, cluster_record.LIMIT))
            room -= len(content)
            data = codec.read(content.decode(), cluster_record.LIMIT)
            if isinstance(data, dict) and "jobs" in data:
                records.append(cluster_record.from_dict(data))
                continue
            if len(content) > NODE:
                raise ParseError("it is larger than %d MiB, which no node's results are" % (NODE >> 20))
            _node(data)
            if nodes.setdefault(data["host"], data) is not data:
                raise ParseError("another file holds results of this host, too")
        except ValueError as error:
            raise ParseError(f"{file} is not a valid result: {printable(str(error)[:500])}") from None
    return records, nodes


def load(path: str | Path) -> Results:
    """Return the figures of what ``read`` finds there. Raises as it does."""
    records, nodes = read(path)
    parts = [of_nodes({host: data["runs"] for host, data in nodes.items()}, str(path))]
    parts += [of_record(record, str(path)) for record in records]
    last = max((part.finished for part in parts if part.finished is not None), default=None)
    return replace(_joined(str(path), last, (run for part in parts for run in part.runs)), records=tuple(records))


def finished(folder: Path) -> dict[str, float]:
    """Host -> when the oldest of its results was measured. folder: of a run. Raises as ``read`` does."""
    found: dict[str, float] = {}
    for host, data in read(folder)[1].items():
        moments = [run["finished"] for run in data["runs"] if run["finished"] is not None and run["rows"]]
        if moments and len(moments) == len(data["runs"]):
            found[host] = min(moments)
    return found


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.json"))
    if not files:
        files = [file for latest in ("latest", "cluster/latest") for file in sorted((path / latest).glob("*.json"))]
    if not files:
        way = "name a file, the directory of a run, or nccl_benchmark_results_path"
        raise ParseError(f"{path} holds no results: {way}")
    if len(files) > FILES:
        raise ParseError(f"{path} holds more than {FILES} files, which no run leaves")
    return files


def _joined(name: str, finished: float | None, runs: Iterable[Run]) -> Results:
    """Return results; programs of a range of sizes and of a model's sizes are joined to one run."""
    found: dict[tuple[object, ...], Run] = {}
    for run in runs:
        key = (run.kind, run.hosts, run.ranks)
        before = found.get(key)
        if before is not None:
            names, sides = {**before.versions, **run.versions}, (before.versions, run.versions)
            both = {name: ", ".join(sorted({of[name] for of in sides if name in of})) for name in sorted(names)}
            points, marks = {**run.points, **before.points}, {**run.marks, **before.marks}
            run = replace(before, points=points, marks=marks, versions=both)
        found[key] = run
    return Results(name, finished, tuple(found.values()))
