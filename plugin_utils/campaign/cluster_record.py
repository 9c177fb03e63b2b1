# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read and write the record of one benchmark between nodes, a JSON file: request, hosts, every figure.

Its figures come from nodes: ``from_dict`` types and sizes all of it. Bandwidths are GB/s
(1e9 bytes), sizes bytes, times seconds since 1970.
"""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import STATES, Finding

from .. import codec, result_schema
from ..record_file import RecordFile, builder

NAME = "cluster.json"
# Bytes of the file: 512 pairs in seven collectives, of fourteen sizes each, are 12 MB.
LIMIT = 64 << 20
HOSTS, JOBS, IDS = 20_000, 100_000, 500_000

_RAIL = re.compile(r"rail \S+ \S+ (rail \d+) ")


def rail_of(name: str) -> str:
    """Return ``rail 1`` of a job's name; "" of a job that uses all rails."""
    found = _RAIL.match(name)
    return found[1] if found else ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One size of one job, over its repeats: medians, and the slowest one in a hundred of the times.

    time_us, time_p99_us: microseconds.   spread: (highest - lowest) / median of busbw over the repeats, None where
    there was one run only.   None in any figure: not measured.
    """

    size: int
    time_us: float | None = None
    algbw: float | None = None
    busbw: float | None = None
    time_p99_us: float | None = None
    spread: float | None = None
    repeats: int = 1


@dataclass(frozen=True, kw_only=True)
class Program:
    """One program over some hosts, held to a bar.

    what: purpose of its message ("whole gradient, BF16"), "" for a range of sizes.   bar, prediction: GB/s at the
    largest size, None where there is none.   bar_source, rule: where bar and prediction come from.
    min_bytes, max_bytes: as requested, 0 where unknown.
    """

    name: str
    scope: str
    hosts: tuple[str, ...]
    collective: str
    algorithm: str = ""
    nvls: bool = False
    what: str = ""
    bar: float | None = None
    bar_source: str = ""
    latency_bar_us: float | None = None
    prediction: float | None = None
    rule: str = ""
    min_bytes: int = 0
    max_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Job(Program):
    """One program with its result.

    busbw: GB/s at the largest size, None where there is none.   spread: of busbw at the largest size, see Row.
    states: of its findings that are not ok; said: text of the first of these.   transport, rails: as nccl_perf returns
    them.   versions: of ``nccl``, ``nccl_tests`` and the like.
    """

    ranks: int
    rows: tuple[Row, ...] = ()
    busbw: float | None = None
    spread: float | None = None
    states: tuple[str, ...] = ()
    said: str = ""
    transport: Mapping[str, Any] = field(default_factory=dict)
    rails: Mapping[str, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Return the largest size in bytes, to which bar and prediction apply."""
        return max([self.max_bytes, *(row.size for row in self.rows)])

    @property
    def program(self) -> str:
        """Return the collective, and the rail where it used one alone: ``sendrecv rail 1``."""
        return f"{self.collective} {rail_of(self.name)}".rstrip()

    @property
    def last(self) -> Row | None:
        """Return the row of the largest size; None where nothing was measured."""
        return max(self.rows, key=lambda row: row.size, default=None)

    @property
    def ok(self) -> bool:
        return not self.states and self.busbw is not None


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A requested host that took no part, and why: a sentence."""

    host: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """A collective over some nodes. efficiency: relative to the fewest nodes, each against its own prediction.

    Without predictions the plain figures are compared.
    """

    collective: str
    nodes: int
    size: int
    algorithm: str = ""
    busbw: float | None = None
    prediction: float | None = None
    efficiency: float | None = None


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """kind: mpirun, srun or local.   version: as it prints it."""

    kind: str
    version: str = ""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run of the benchmark between nodes. findings: those that are not ok.   passed: ids of ok checks.

    net_plugin: the network plugin of jobs according to the inventory; "" where it declares none.
    """

    simulated: bool
    begun: float
    finished: float
    scope: str
    launcher: Launcher
    asked: tuple[str, ...]
    left_out: tuple[LeftOut, ...] = ()
    jobs: tuple[Job, ...] = ()
    scaling: tuple[Scaling, ...] = ()
    passed: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    net_plugin: str = ""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return every host of a job that has figures, in the inventory's order."""
        measured = {host for job in self.jobs if job.rows for host in job.hosts}
        return tuple(host for host in self.asked if host in measured)


_name = codec.text(codec.LINE, empty=False, line=True)
_rate, _figure = codec.number(0, 1e6), codec.number(0, 1e12)
_LIMITS = {
    **dict.fromkeys(("name", "scope", "host", "hosts", "asked"), _name),
    **dict.fromkeys(("busbw", "algbw", "bar", "prediction", "efficiency"), _rate),
    **dict.fromkeys(("time_us", "time_p99_us", "latency_bar_us", "spread"), _figure),
    **dict.fromkeys(("ranks", "nodes", "repeats"), codec.whole(0, 1 << 24)),
    **dict.fromkeys(("begun", "finished"), result_schema.seconds),
}
_job = codec.of_class(
    Job,
    _LIMITS,
    optional=("min_bytes", "max_bytes", "versions"),
    rows=codec.many(codec.of_class(Row, _LIMITS), 1000),
    states=codec.many(codec.one_of(*STATES), 1000),
    transport=result_schema.transport,
    rails=codec.table(codec.table(result_schema.moved, limit=1000), limit=HOSTS),
    versions=codec.table(result_schema.line, limit=20),
)
_record = codec.of_class(
    Record,
    _LIMITS,
    optional=("net_plugin",),
    jobs=codec.many(_job, JOBS),
    scaling=codec.many(codec.of_class(Scaling, _LIMITS), JOBS),
    findings=codec.many(result_schema.a_finding, JOBS),
    passed=codec.many(_name, IDS),
)
FILE = RecordFile("cluster", NAME, LIMIT, builder(Record, _record, ("net_plugin",)))
folder, to_dict, from_dict, parse, read = FILE.folder, FILE.to_dict, FILE.from_dict, FILE.parse, FILE.read


def write(results: str | Path, record: Record) -> Path:
    """Write the record in a new directory, as RecordFile.write does."""
    return FILE.write(results, to_dict(record), record.finished, ": measure fewer collectives or sizes at once")
