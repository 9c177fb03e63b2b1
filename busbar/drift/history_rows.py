# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Type the values of a history's rows: another program may have written them.

Raises ValueError, KeyError and TypeError (``history_file.sound_rows``).
"""

from __future__ import annotations

import datetime
import json
import sqlite3
from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import SEVERITIES
from ansible_collections.busbar.fabric.plugins.plugin_utils import codec, findings_file, result_schema
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

from .compare import ORIGINS, Mark
from .run import CLASSES, Run, parse_waivers

# In the order of Run's own fields.
COLUMNS = "id, started, ended, state, inventory, scope, version, user, revision, simulated, fail_on, waivers, message"
STATES = ("running", "done", "failed", "interrupted", "pruned")
_NUMBER, _FIGURE = codec.whole(), codec.number(-1e12, 1e12)
_SUMMARY = codec.record(
    ("busbw",),
    others=True,
    hosts=codec.record(others=True, **codec.each(CLASSES, _NUMBER)),
    started=codec.text(),
    busbw=codec.table(codec.row_of(*3 * [codec.number()])),
    **codec.each(("run", "exit_code", "groups", "new", "fixed"), _NUMBER),
)
_BUSBW = codec.table(codec.record(others=True, busbw=_FIGURE, bar=codec.maybe(_FIGURE)))
_NAMES = codec.many(codec.text(), 1 << 20)


def require(value: object, known: Collection[str] = ()) -> str:
    """Return a text, one of ``known`` if that is not empty."""
    (codec.one_of(*known) if known else codec.text())(value)
    return str(value)


def _moment(value: object) -> None:
    datetime.datetime.strptime(require(value), "%Y-%m-%dT%H:%M:%SZ")


def read_moment(value: object) -> str:
    _moment(value)
    return str(value)


def read_mark(first: int, origin: str, carried: object) -> Mark:
    _NUMBER(first)
    return Mark(first, require(origin, ORIGINS), bool(carried))


def read_summary(text: str) -> Plain:
    """Return the summary of a complete run."""
    found: Plain = json.loads(text)
    _SUMMARY(found)
    return found


_run = codec.of_class(
    Run,
    started=_moment,
    ended=codec.maybe(_moment),
    state=codec.one_of(*STATES),
    fail_on=codec.one_of(*SEVERITIES),
    **codec.each(("inventory", "version", "user", "message"), codec.text()),
    **codec.each(("limit", "commit"), codec.maybe(codec.text())),
)


def read_run(row: Sequence[object]) -> Run:
    """Return the run of a row of COLUMNS."""
    values: Plain = dict(zip((field.name for field in fields(Run)), row, strict=True))
    values |= {"simulated": bool(values["simulated"]), "waivers": json.loads(values["waivers"])}
    _run(values)
    parse_waivers(values["waivers"])
    if values["state"] == "done":
        read_moment(values["ended"])
    return codec.build(Run, values)


class Contents(dict[int, Any]):
    """Rows of the table json by number, decoded once: most hosts share them."""

    def __init__(self, db: sqlite3.Connection) -> None:
        super().__init__()
        self._db = db
        self._passed: dict[int, frozenset[str]] = {}

    def __missing__(self, number: int) -> object:
        [text] = self._db.execute("SELECT text FROM json WHERE id = ?", (number,)).fetchone()
        self[number] = json.loads(text)
        return self[number]

    def passed(self, number: int) -> frozenset[str]:
        if number not in self._passed:
            _NAMES(self[number])
            self._passed[number] = frozenset(self[number])
        return self._passed[number]

    def busbw(self, number: int) -> dict[str, Plain]:
        found: dict[str, Plain] = self[number]
        _BUSBW(found)
        return found

    def notes(self, number: int | None) -> tuple[str, ...]:
        found = [] if number is None else self[number]
        _NAMES(found)
        return tuple(found)

    def health(self, number: int | None) -> tuple[Plain, ...]:
        found = [] if number is None else self[number]
        result_schema.told_devices(found)
        return tuple(found)

    def evidence(self, number: int | None) -> str:
        """Return the packed evidence, of which each check has a row; "" in a run of an older Busbar."""
        found: dict[str, list[str]] = {}
        for row in [] if number is None else self[number]:
            found.update(self[row])
        result_schema.evidence(found)
        return findings_file.packed(found) if found else ""
