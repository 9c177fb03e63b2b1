# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The record of one run over the InfiniBand fabric, a JSON file: its sweeps, by what hosts are known, what was found.

The next run takes its sweeps for what was there before: counters have rates only between two of them. Descriptions and
counters in it come from the fabric: nothing in it is believed before ``from_dict`` has typed and sized it. Moments are
seconds since 1970.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core import finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.fabric import sweep
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import Sweep
from ansible_collections.busbar.fabric.plugins.plugin_utils import answer, results_folder
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_map import Host, Rail
from ansible_collections.busbar.fabric.plugins.plugin_utils.localise_record import HostFinding, found_of
from ansible_collections.busbar.fabric.plugins.plugin_utils.record_file import RecordFile, shortened

FORMAT = 1
KIND, NAME = "fabric", "fabric.json"
# Bytes of the file: 4,096 HCA ports and 600 switches are less than 16 MB.
LIMIT = 64 << 20
HOSTS, FINDINGS, PLANES = 20_000, 200_000, 256
# Records that are kept: of a large fabric, one a night, they are some 200 MB.
KEPT = 14
_RUN = re.compile(r"[0-9]{8}T[0-9]{6}Z-[A-Za-z0-9_]{1,16}")

_name = answer.text(answer.LINE, empty=False, line=True)
_names = answer.many(_name, HOSTS)
_end = answer.record(guid=answer.text(16, re.compile("[0-9a-f]{16}")), port=answer.whole(0, 255))
_mark = answer.record(
    ends=answer.many(_end, 2),
    check=answer.a_finding.keys["check"],  # type: ignore[attr-defined]
    state=answer.one_of(*finding.STATES),
    said=answer.line,
)
_record = answer.record(
    format=answer.whole(FORMAT, FORMAT),
    begun=answer.seconds,
    finished=answer.seconds,
    asked=_names,
    hosts=answer.table(answer.on_fabric, _name, HOSTS),
    sweeps=answer.many(lambda _value: None, PLANES),
    taken=answer.many(answer.seconds, PLANES),
    before=answer.text(64, re.compile("|" + _RUN.pattern)),
    findings=answer.many(answer.record(hosts=_names, finding=answer.a_finding), FINDINGS),
    marks=answer.many(_mark, FINDINGS),
    complete=answer.flag,
)


@dataclass(frozen=True)
class Mark:
    """A link that something is wrong with, for a picture.   ends: node GUID and port; both, where both are known."""

    ends: tuple[tuple[str, int], ...]
    check: str
    state: str
    said: str


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run. asked: nodes that were to sweep.   hosts: those of the inventory, now or as they last said.

    sweeps: of all planes, of some from several hosts.   taken: when each of them was, by the control node's clock.
    before: the directory, beside this one's, of the record whose sweeps came before; "" none.
    findings: those that are ok, too.   marks: their cables, each by itself.
    complete: whether every node that was to sweep did, and every plane is whole.
    """

    begun: float
    finished: float
    asked: tuple[str, ...]
    hosts: Mapping[str, Host] = field(default_factory=dict)
    sweeps: tuple[Sweep, ...] = ()
    taken: tuple[float, ...] = ()
    before: str = ""
    findings: tuple[HostFinding, ...] = ()
    marks: tuple[Mark, ...] = ()
    complete: bool = False


def to_dict(record: Record) -> dict[str, Any]:
    """The record as plain data."""
    return {
        "format": FORMAT,
        **{name: getattr(record, name) for name in ("begun", "finished", "before", "complete")},
        "asked": list(record.asked),
        "taken": list(record.taken),
        "hosts": {
            name: {"boot_id": host.boot_id, "rails": [rail._asdict() for rail in host.rails]}
            for name, host in record.hosts.items()
        },
        "sweeps": [sweep.to_dict(one) for one in record.sweeps],
        "findings": [{"hosts": list(one.hosts), "finding": one.finding.to_dict()} for one in record.findings],
        "marks": [
            {
                **vars(mark),
                "ends": [{"guid": guid, "port": port} for guid, port in mark.ends],
                "said": shortened(mark.said),
            }
            for mark in record.marks
        ],
    }


def _build(data: Any) -> Record:
    _record(data)
    if len(data["taken"]) != len(data["sweeps"]):
        raise ParseError("taken: has %d items, expected one for each sweep" % len(data["taken"]))
    return Record(
        **{name: data[name] for name in ("begun", "finished", "before", "complete")},
        asked=tuple(data["asked"]),
        hosts={name: host(one) for name, one in data["hosts"].items()},
        sweeps=tuple(map(sweep.from_dict, data["sweeps"])),
        taken=tuple(data["taken"]),
        findings=tuple(found_of(one) for one in data["findings"]),
        marks=tuple(
            Mark(**{**one, "ends": tuple((end["guid"], end["port"]) for end in one["ends"])}) for one in data["marks"]
        ),
    )


def host(data: Mapping[str, Any]) -> Host:
    """data: as ``answer.on_fabric`` has it, which is what a node says of itself."""
    return Host(tuple(Rail(**rail) for rail in data["rails"]), data["boot_id"])


FILE = RecordFile(KIND, NAME, LIMIT, _build)
folder, from_dict, parse, read = FILE.folder, FILE.from_dict, FILE.parse, FILE.read


def write(results: str | Path, record: Record) -> Path:
    """The record in its own directory, which is returned; ``latest`` beside it leads there. Old ones are removed.

    results: nccl_benchmark_results_path. Raises OSError; ParseError where the record would not be read again.
    """
    data = to_dict(record)
    try:
        # The sweeps have come through their gate.
        _record(data)
    except answer.Invalid as error:
        raise ParseError(str(error)) from None
    text = FILE.text(data, "")
    with results_folder.new(folder(results), record.begun) as made:
        results_folder.put(made / NAME, text)
    _prune(folder(results), {made.name, record.before})
    return made


def _prune(parent: Path, kept: set[str]) -> None:
    """What is not a directory of a record of ours stays, whatever it is."""
    for old in sorted(_runs(parent), reverse=True)[KEPT:]:
        if old not in kept:
            # Another run may be at it, too.
            with contextlib.suppress(OSError):
                shutil.rmtree(parent / old)


def _runs(parent: Path) -> Iterator[str]:
    for path in parent.iterdir():
        if _RUN.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            inner = {each.name for each in path.iterdir()}
            # The second is of a run that was killed before its link was moved.
            if inner <= {NAME, ".latest"}:
                yield path.name


def latest_name(results: str | Path) -> str:
    """The directory of the latest record below nccl_benchmark_results_path; "" where its name is none of ours."""
    name = (folder(results) / "latest").resolve().name
    return name if _RUN.fullmatch(name) else ""


def of_run(results: str | Path, name: str) -> Record | None:
    """The record in the directory of that name, as ``before`` has it; None where it is not there any more.

    Raises OSError and ParseError as ``read`` does.
    """
    if not _RUN.fullmatch(name):
        return None
    try:
        return FILE.load(folder(results) / name / NAME)
    except FileNotFoundError:
        return None
