# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The record of one run over the InfiniBand fabric, a JSON file: sweeps, hosts and findings.

The next run computes error rates from its counters. Descriptions and counters come from the fabric: ``from_dict`` types
and bounds all of it. Times are seconds since 1970.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError, Problem
from ansible_collections.busbar.fabric.plugins.module_utils.fabric import sweep
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import Node, Port, Sweep
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

from .. import codec, fabric_schema, result_schema
from ..record_file import RecordFile
from .evidence import Host, Line

KIND, NAME = "fabric", "fabric.json"
# Bytes of the file: 4,096 HCA ports and 600 switches are less than 16 MB.
LIMIT = 64 << 20
HOSTS, FINDINGS, PLANES = 20_000, 200_000, 256
# Stored records: of a large fabric, one a night, they are some 200 MB.
KEPT = 14
_RUN = re.compile(r"[0-9]{8}T[0-9]{6}Z-[A-Za-z0-9_]{1,16}")


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run.   asked: nodes that were to sweep.   hosts: of the inventory, by their present or their last report.

    sweeps: of all planes, of some by several hosts.   taken: time of each, by the control node's clock.
    before: directory of the record that this run was compared with, or "".
    findings: also those that are ok.
    complete: every node that was to sweep did, and every plane is complete.
    """

    begun: float
    finished: float
    asked: tuple[str, ...]
    hosts: Mapping[str, Host] = field(default_factory=dict)
    sweeps: tuple[Sweep, ...] = ()
    taken: tuple[float, ...] = ()
    before: str = ""
    findings: tuple[Line, ...] = ()
    complete: bool = False


_name = codec.text(codec.LINE, empty=False, line=True)
_names = codec.many(_name, HOSTS)
_fields = codec.of_class(
    Record,
    **codec.each(("begun", "finished"), result_schema.seconds),
    asked=_names,
    hosts=codec.table(fabric_schema.on_fabric, _name, HOSTS),
    sweeps=codec.many(lambda _value: None, PLANES),
    taken=codec.many(result_schema.seconds, PLANES),
    before=codec.text(64, re.compile("|" + _RUN.pattern)),
    findings=codec.many(codec.of_class(Line, hosts=_names, finding=result_schema.a_finding), FINDINGS),
)
# Older releases also stored the bad links apart.
_file = codec.Record({"format": codec.whole(1, 1), **_fields.keys, "marks": codec.anything}, ("marks",))


def to_dict(record: Record) -> Plain:
    """Return the record as plain data."""
    sweeps = [sweep.to_dict(one) for one in record.sweeps]
    return {**FILE.to_dict(replace(record, sweeps=())), "sweeps": sweeps}


def _build(data: Plain) -> Record:
    _file(data)
    if len(data["taken"]) != len(data["sweeps"]):
        raise ParseError("taken: has %d items, expected one for each sweep" % len(data["taken"]))
    rest = {name: value for name, value in data.items() if name not in ("format", "marks")}
    record = codec.build(Record, {**rest, "sweeps": []})
    return replace(record, sweeps=tuple(map(read_sweep, data["sweeps"])))


def read_sweep(data: Plain) -> Sweep:
    """Return the Sweep of ``sweep.to_dict``. Raises ParseError on anything else, with the name of the part."""
    try:
        fabric_schema.a_sweep(data)
        guids = [row[0] for row in data["nodes"]]
        if len(set(guids)) != len(guids):
            raise ValueError("nodes: a GUID is that of two nodes")
        if sum(len(row[-1]) for row in data["nodes"]) > sweep.MOST_PORTS:
            raise ValueError(f"nodes: more than {sweep.MOST_PORTS} ports")
        return Sweep(
            **{name: data[name] for name in sweep.PLAIN},
            managers=tuple(sweep.SubnetManager(*row) for row in data["managers"]),
            nodes=tuple(_node(row, guids, data["counter_sets"]) for row in data["nodes"]),
            pkeys={guid: tuple(keys) for guid, keys in data["pkeys"].items()},
            events=tuple(sweep.ManagerEvent(*row) for row in data["events"]),
            unhealthy={(guid, number): text for guid, number, text in data["unhealthy"]},
            problems=tuple(Problem(*row) for row in data["problems"]),
        )
    except (codec.Invalid, IndexError, ValueError) as error:
        raise ParseError(f"sweep: {error}") from None


def _node(row: Sequence[Any], guids: Sequence[str], sets: Sequence[Sequence[str]]) -> Node:
    ports = tuple(_port(port, guids, sets) for port in row[-1])
    if len({port.number for port in ports}) != len(ports):
        raise ValueError(f"nodes: node {row[0]} has a port twice")
    about: list[Any] = [*row[:-1], ports]
    return Node(*about)


def _port(row: Sequence[Any], guids: Sequence[str], sets: Sequence[Sequence[str]]) -> Port:
    values: list[Any] = [*row, *[None] * (12 - len(row))]
    peer, counters = values[7], values[10]
    values[1] = sweep.STATES[values[1]]
    if peer is not None:
        values[7] = (peer[0] if isinstance(peer[0], str) else guids[peer[0]], peer[1])
    counted: dict[str, int] = {}
    if counters is not None:
        names, pairs = sets[counters[0]], counters[1:]
        counted = dict.fromkeys(names, 0)
        # An odd number of items is no pairs.
        counted.update({names[place]: value for place, value in zip(pairs[::2], pairs[1::2], strict=True)})
    values[10:] = counted, values[11] or ""
    return Port(*values)


FILE = RecordFile(KIND, NAME, LIMIT, _build)
folder, from_dict, parse, read = FILE.folder, FILE.from_dict, FILE.parse, FILE.read


def write(results: str | Path, record: Record) -> Path:
    """Write the record into a new directory, to which ``latest`` leads, and remove old ones. Return the directory.

    results: nccl_benchmark_results_path. Raises OSError; ParseError where the record could not be read again.
    """
    made = FILE.write(results, to_dict(record), record.begun, "")
    for old in sorted(filter(_is_record, folder(results).iterdir()), reverse=True)[KEPT:]:
        if old.name not in (made.name, record.before):
            # Another run may remove it, too.
            with contextlib.suppress(OSError):
                shutil.rmtree(old)
    return made


def _is_record(path: Path) -> bool:
    """Return whether a directory holds a record of ours, or what a run that was killed has left."""
    if not _RUN.fullmatch(path.name) or not path.is_dir() or path.is_symlink():
        return False
    return {each.name for each in path.iterdir()} <= {NAME, ".latest"}


def latest_name(results: str | Path) -> str:
    """Return the directory of the latest record, or ""."""
    name = os.path.basename(os.path.realpath(folder(results) / "latest"))
    return name if _RUN.fullmatch(name) else ""


def read_run(results: str | Path, name: str) -> Record | None:
    """Return the record in the directory of that name; None where there is none. Raises OSError and ParseError."""
    try:
        return FILE.load(folder(results) / name / NAME) if _RUN.fullmatch(name) else None
    except FileNotFoundError:
        return None
