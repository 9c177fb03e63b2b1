# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the stored acceptance sheet, of which the report of ``busbar drift`` shows the counts and what is open."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import codec
from ..plain_data import Plain
from ..record_file import RecordFile
from .sheet import ANSWERS, OPEN

NAME = "sheet.json"
LIMIT = 64 << 20
_row = codec.record(
    others=True, answer=codec.one_of(*ANSWERS), subject=codec.text(line=True), todo=codec.many(codec.text())
)
_sheet = codec.record(
    others=True,
    format=codec.whole(1, 1),
    simulated=codec.flag,
    proofs_of=codec.text(64, line=True),
    rows=codec.many(_row, 1000),
)


@dataclass(frozen=True)
class Summary:
    """finished: seconds since 1970 of the newest proof.   counts: of each answer.   open: subject, and what to do."""

    finished: float
    simulated: bool
    counts: Mapping[str, int]
    open: Sequence[tuple[str, str]]


def _build(data: Plain) -> Summary:
    _sheet(data)
    finished = datetime.datetime.fromisoformat(data["proofs_of"]).timestamp()
    rows = data["rows"]
    found = [(row["subject"], next(iter(row["todo"]), "")) for row in rows if row["answer"] == OPEN]
    return Summary(finished, data["simulated"], Counter(row["answer"] for row in rows), found)


_FILE = RecordFile("certify", NAME, LIMIT, _build)


def file(results: Path) -> Path:
    """Return the path of the sheet below ``nccl_benchmark_results_path``."""
    return _FILE.folder(results) / NAME


def read(path: Path) -> Summary:
    """Raises OSError; ParseError that names the file where it is not a sheet."""
    return _FILE.load(path)
