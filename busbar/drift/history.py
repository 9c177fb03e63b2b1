# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Store runs in an SQLite file: the results of every host, and the age of each finding.

A run is one row from its start and is completed in one transaction at its end: a kill in between leaves a row in state
running, and nothing that a later run is compared with.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, from_dict
from ansible_collections.busbar.fabric.plugins.plugin_utils import findings_file
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

from . import lock
from .compare import NIGHTS, EarlierRun, Mark
from .history_file import HistoryError as HistoryError
from .history_file import connect_reader, readable_errors, sound_rows
from .history_file import is_disk_full as is_disk_full
from .history_rows import COLUMNS as _RUN
from .history_rows import Contents, read_mark, read_moment, read_run, read_summary, require
from .run import CLASSES, ENDS, HostResult, Run, Trail

# "BsBr" identifies the file: another program's database is not taken for a history.
APPLICATION = 0x42734272
# One script per schema version; an older file gets those that it lacks.
SCHEMA = (
    """
    CREATE TABLE run (
        id INTEGER PRIMARY KEY AUTOINCREMENT, started TEXT NOT NULL, ended TEXT, state TEXT NOT NULL,
        inventory TEXT NOT NULL, scope TEXT, version TEXT NOT NULL, user TEXT NOT NULL, revision TEXT,
        simulated INTEGER NOT NULL, fail_on TEXT NOT NULL, waivers TEXT NOT NULL, message TEXT NOT NULL DEFAULT '',
        summary TEXT NOT NULL DEFAULT '{}');
    CREATE TABLE json (id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, text TEXT NOT NULL);
    CREATE TABLE host (
        run INTEGER NOT NULL REFERENCES run (id), host TEXT NOT NULL, ended TEXT NOT NULL, class TEXT NOT NULL,
        intent TEXT, passed INTEGER NOT NULL REFERENCES json (id), busbw INTEGER NOT NULL REFERENCES json (id),
        PRIMARY KEY (run, host)) WITHOUT ROWID;
    CREATE INDEX host_runs ON host (host, run);
    CREATE TABLE finding (
        run INTEGER NOT NULL, host TEXT NOT NULL, finding TEXT NOT NULL, body INTEGER NOT NULL REFERENCES json (id),
        first INTEGER NOT NULL, origin TEXT NOT NULL, carried INTEGER NOT NULL, place INTEGER NOT NULL,
        PRIMARY KEY (run, host, finding)) WITHOUT ROWID;
    """,
    "ALTER TABLE host ADD COLUMN notes INTEGER REFERENCES json (id)",
    "ALTER TABLE host ADD COLUMN health INTEGER REFERENCES json (id)",
    # Row numbers in json: evidence of passed checks of one name is equal on many hosts and in many runs.
    "ALTER TABLE host ADD COLUMN evidence INTEGER REFERENCES json (id)",
)
KILLED = "killed before its end"


class History:
    """Open with ``History.open`` or ``History.create``, and close.

    live: whether a run may be at work; if none is, one in state running was killed.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self.live = True
        self._db = connection

    @classmethod
    @contextlib.contextmanager
    def create(cls, path: Path) -> Iterator[History]:
        """Open for a run; makes the file if there is none. Raises HistoryError."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(lock.opened(path))
            connection = sqlite3.connect(path, timeout=30, isolation_level=None)
        except OSError as error:
            raise HistoryError(f"history {error_text(error)}") from error
        except sqlite3.Error as error:
            raise HistoryError(f"history {path} cannot be opened: {error}") from error
        with contextlib.closing(connection), readable_errors(path):
            history = cls(path, connection)
            history._prepare()
            # Readers do not wait for the writer, and a kill loses at most what was not yet whole.
            connection.execute("PRAGMA journal_mode = WAL")
            yield history

    @classmethod
    @contextlib.contextmanager
    def open(cls, path: Path) -> Iterator[History]:
        """Open to read, for any user who may read the file, also in a read-only folder. Raises HistoryError."""
        if not path.exists():
            raise HistoryError(f"history {path} does not exist; busbar drift makes it, --history names another")
        try:
            path.open("rb").close()
        except OSError as error:
            raise HistoryError(f"history {error_text(error)}") from error
        with contextlib.ExitStack() as stack:
            stack.enter_context(readable_errors(path))
            history = cls(path, connect_reader(path, stack))
            if history._value("PRAGMA user_version") < len(SCHEMA):
                # Of an older Busbar: a copy is upgraded.
                copy = stack.enter_context(contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)))
                history._db.backup(copy)
                history._db = copy
            history._prepare()
            history.live = lock.is_held(lock.lock_file(path))
            yield history

    def _prepare(self) -> None:
        self._db.execute("PRAGMA foreign_keys = ON")
        application = self._value("PRAGMA application_id")
        version = self._value("PRAGMA user_version")
        if application == APPLICATION and version == len(SCHEMA):
            return
        with self._transaction():
            if application != APPLICATION and self._value("SELECT count(*) FROM sqlite_master"):
                raise HistoryError(f"{self.path} is another program's database; name a file with --history")
            if version > len(SCHEMA):
                raise HistoryError(f"history {self.path} has schema {version}, this Busbar knows {len(SCHEMA)}: update")
            for script in SCHEMA[version:]:
                for statement in script.split(";"):
                    self._db.execute(statement)
            if version < len(SCHEMA):
                self._db.execute(f"PRAGMA application_id = {APPLICATION}")
                self._db.execute(f"PRAGMA user_version = {len(SCHEMA)}")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        # Commits at the end, rolls back on any exception.
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            yield

    def _value(self, query: str, *values: object) -> Any:
        row = self._db.execute(query, values).fetchone()
        return row[0] if row else None

    # -- writing -------------------------------------------------------------------------------------------------------

    def begin(self, run: Run) -> int:
        """Add the run and return its number. The caller has the lock: a run in state running was killed."""
        with self._transaction():
            self._db.execute(f"UPDATE run SET state = 'interrupted', message = '{KILLED}' WHERE state = 'running'")
            columns = "started, state, inventory, scope, version, user, revision, simulated, fail_on, waivers"
            values = (run.started, "running", run.inventory, run.limit, run.version, run.user, run.commit)
            cursor = self._db.execute(
                f"INSERT INTO run ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*values, run.simulated, run.fail_on, json.dumps(run.waivers)),
            )
        return int(cursor.lastrowid or 0)

    def simulated(self, run: int, whether: bool) -> None:
        """Note whether hosts of a run are simulated, which the inventory says."""
        self._db.execute("UPDATE run SET simulated = ? WHERE id = ?", (whether, run))

    def forget(self, run: int) -> None:
        """Delete a run that queried no host."""
        self._db.execute("DELETE FROM run WHERE id = ?", (run,))

    def fail(self, run: int, state: str, ended: str, message: str) -> None:
        self._db.execute("UPDATE run SET state = ?, ended = ?, message = ? WHERE id = ?", (state, ended, message, run))

    def finish(
        self,
        run: int,
        ended: str,
        hosts: Mapping[str, HostResult],
        marks: Mapping[str, Mapping[str, Mark]],
        classes: Mapping[str, str],
        summary: Mapping[str, object],
        waived: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """Complete the run. marks: host -> id of the finding -> mark, those carried over included."""
        with self._transaction():
            for host, result in hosts.items():
                rows: list[int | None] = [self._json_row(data) for data in (sorted(result.passed), result.busbw)]
                rows += [self._json_row(data) if data else None for data in (result.notes, result.health)]
                evidence = self._evidence(result.evidence) if result.evidence else None
                values = (run, host, result.end, classes[host], result.intent, *rows, evidence)
                self._db.execute("INSERT INTO host VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
                self._findings(run, result, marks[host])
            self._db.execute(
                "UPDATE run SET state = 'done', ended = ?, summary = ?, waivers = ? WHERE id = ?",
                (ended, json.dumps(summary), json.dumps(waived), run),
            )

    def _findings(self, run: int, result: HostResult, marks: Mapping[str, Mark]) -> None:
        for place, (name, finding) in enumerate(result.by_id.items()):
            mark = marks[name]
            body = self._json_row(finding.to_dict())
            self._db.execute(
                "INSERT INTO finding VALUES (?, ?, ?, ?, ?, ?, 0, ?)",
                (run, result.host, name, body, mark.first, mark.origin, place),
            )
        for name in [name for name, mark in marks.items() if mark.carried]:
            self._db.execute(
                "INSERT INTO finding SELECT ?, host, finding, body, first, origin, 1, place FROM finding"
                " WHERE host = ? AND finding = ? AND run < ? ORDER BY run DESC LIMIT 1",
                (run, result.host, name, run),
            )

    def _evidence(self, packed: str) -> int:
        """Store the evidence of a host's passed checks, a row for each check. Return the row of the list."""
        of_check: dict[str, dict[str, list[str]]] = {}
        for name, pair in findings_file.unpacked(packed).items():
            of_check.setdefault(name.partition("@")[0], {})[name] = pair
        return self._json_row([self._json_row(found) for found in of_check.values()])

    def prune(self, newest: int) -> None:
        """Delete hosts' results in runs up to a number; the last run of an inventory stays.

        The row of a run stays while a finding dates from it, so that its age is known.
        """
        last = "SELECT max(id) FROM run WHERE state = 'done' GROUP BY inventory"
        old = f"id <= ? AND id NOT IN ({last})"
        # Only unreferenced rows are deleted, and SQLite would check that again for every row.
        self._db.execute("PRAGMA foreign_keys = OFF")
        with self._transaction():
            for table in ("finding", "host"):
                self._db.execute(f"DELETE FROM {table} WHERE run IN (SELECT id FROM run WHERE {old})", (newest,))
            self._db.execute(f"DELETE FROM run WHERE {old} AND id NOT IN (SELECT first FROM finding)", (newest,))
            said = "its results were deleted (--keep-days)"
            self._db.execute(f"UPDATE run SET state = 'pruned', message = ? WHERE {old}", (said, newest))
            used = "SELECT body FROM finding UNION SELECT passed FROM host UNION SELECT busbw FROM host"
            for column in ("notes", "health", "evidence"):
                used += f" UNION SELECT {column} FROM host WHERE {column} IS NOT NULL"
            used += " UNION SELECT e.value FROM host h JOIN json j ON j.id = h.evidence, json_each(j.text) e"
            self._db.execute(f"DELETE FROM json WHERE id NOT IN ({used})")
        self._db.execute("PRAGMA foreign_keys = ON")

    def _json_row(self, data: object) -> int:
        """Return the row that holds the data: equal data of many hosts is stored once."""
        text = json.dumps(data, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(text.encode()).digest()
        found = self._value("SELECT id FROM json WHERE digest = ?", digest)
        if found is None:
            found = self._db.execute("INSERT INTO json (digest, text) VALUES (?, ?)", (digest, text)).lastrowid
        return int(found)

    # -- reading -------------------------------------------------------------------------------------------------------

    def runs(self) -> list[tuple[Run, Plain]]:
        """Return every run with its summary, the newest first."""
        rows = self._db.execute(f"SELECT {_RUN}, summary FROM run ORDER BY id DESC")
        with sound_rows(self.path):
            return [(self._run(row), read_summary(summary) if row[3] == "done" else {}) for *row, summary in rows]

    def run(self, number: int | None) -> Run:
        """Return the run of that number; for None, the last complete one."""
        last = "SELECT max(id) FROM run WHERE state = 'done'"
        rows = self._db.execute(f"SELECT {_RUN} FROM run WHERE id = coalesce(?, ({last}))", (number,)).fetchall()
        if not rows:
            asked = "is empty" if number is None else f"has no run {number}"
            raise HistoryError(f"history {self.path} {asked}; busbar report --list names the runs")
        with sound_rows(self.path):
            run = self._run(rows[0])
        if run.state != "done":
            raise HistoryError(f"run {run.id} is {run.state}: {run.message or 'it has no result yet'}")
        return run

    def hosts(self, run: int) -> tuple[dict[str, HostResult], dict[str, dict[str, Mark]]]:
        """Return every host's result in a run, and the marks of its findings."""
        contents = Contents(self._db)
        marks: dict[str, dict[str, Mark]] = {}
        findings: dict[str, list[Finding]] = {}
        query = "SELECT host, finding, first, origin, carried, body FROM finding WHERE run = ? ORDER BY host, place"
        with sound_rows(self.path):
            for host, name, first, origin, carried, body in self._db.execute(query, (run,)):
                mark = marks.setdefault(require(host), {})[require(name)] = read_mark(first, origin, carried)
                if not mark.carried:
                    findings.setdefault(host, []).append(from_dict(contents[body]))
            query = "SELECT host, ended, intent, passed, busbw, notes, health, evidence FROM host WHERE run = ?"
            hosts = {
                require(host): HostResult(
                    host,
                    require(end, ENDS),
                    tuple(findings.get(host, ())),
                    contents.passed(passed),
                    intent if intent is None else require(intent),
                    contents.busbw(busbw),
                    contents.notes(notes),
                    contents.health(health),
                    contents.evidence(evidence),
                )
                for host, end, intent, passed, busbw, notes, health, evidence in self._db.execute(query, (run,))
            }
        return hosts, marks

    def nights(self, run: Run) -> dict[str, list[EarlierRun]]:
        """Return host -> the last runs of the inventory before this one that judged it, oldest first."""
        rows = self._db.execute(
            "SELECT run, host, intent, passed FROM (SELECT h.*, row_number() OVER (PARTITION BY h.host ORDER BY h.run"
            " DESC) AS place FROM host h JOIN run r ON r.id = h.run WHERE r.state = 'done' AND r.inventory = ?"
            " AND r.id < ? AND h.ended IN ('incomplete', 'complete')) WHERE place <= ? ORDER BY run",
            (run.inventory, run.id, NIGHTS - 1),
        ).fetchall()
        contents = Contents(self._db)
        marks: dict[tuple[int, str], dict[str, Mark]] = {}
        nights: dict[str, list[EarlierRun]] = {}
        with sound_rows(self.path):
            for number in sorted({row[0] for row in rows}):
                query = "SELECT host, finding, first, origin, carried FROM finding WHERE run = ?"
                for host, name, *mark in self._db.execute(query, (number,)):
                    marks.setdefault((number, require(host)), {})[require(name)] = read_mark(*mark)
            for number, host, intent, passed in rows:
                earlier = EarlierRun(number, intent, contents.passed(passed), marks.get((number, host), {}))
                nights.setdefault(host, []).append(earlier)
        return nights

    def trail(self, run: Run, count: int) -> Trail:
        """Return the last runs of the inventory, oldest first: run, summary, host -> class, busbw, health."""
        rows = self._db.execute(
            f"SELECT {_RUN}, summary FROM run WHERE state = 'done' AND inventory = ? AND id < ?"
            " ORDER BY id DESC LIMIT ?",
            (run.inventory, run.id, count),
        ).fetchall()
        found = []
        with sound_rows(self.path):
            for *row, summary in reversed(rows):
                contents = Contents(self._db)
                hosts = {
                    host: (require(name, CLASSES), contents.busbw(busbw), contents.health(health))
                    for host, name, busbw, health in self._db.execute(
                        "SELECT host, class, busbw, health FROM host WHERE run = ?", row[:1]
                    )
                }
                found.append((self._run(row), read_summary(summary), hosts))
        return found

    def complete(self, run: int) -> str | None:
        """Return the end of the last run of inventory and limit, up to this one, with a full result of every host."""
        query = (
            "SELECT ended FROM run r WHERE state = 'done' AND id <= ? AND (inventory, scope) IS"
            " (SELECT inventory, scope FROM run WHERE id = ?) AND NOT EXISTS (SELECT 1 FROM host h WHERE h.run = r.id"
            " AND h.class IN ('not_run', 'unreachable', 'timed_out', 'incomplete')) ORDER BY id DESC LIMIT 1"
        )
        ended = self._value(query, run, run)
        with sound_rows(self.path):
            return ended if ended is None else read_moment(ended)

    def started(self) -> dict[int, str]:
        """Return number and start of every run, the newest first."""
        rows = self._db.execute("SELECT id, started FROM run ORDER BY id DESC")
        with sound_rows(self.path):
            return {number: read_moment(started) for number, started in rows}

    def _run(self, row: Sequence[object]) -> Run:
        run = read_run(row)
        return replace(run, state="interrupted", message=KILLED) if run.state == "running" and not self.live else run
