# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Open the file of a history to read it, and turn what is wrong with it into a sentence with a way out."""

from __future__ import annotations

import contextlib
import errno
import shlex
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text

from .. import private_tempdir


class HistoryError(RuntimeError):
    """The file cannot be used; the message has its name and the reason."""


# Errors of SQLite about the content of the file, and not its access.
_BROKEN = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISMATCH)


def connect_reader(path: Path, stack: contextlib.ExitStack) -> sqlite3.Connection:
    """Return a read-only connection. SQLite wants to make two files beside a history, which may not be allowed."""
    address = path.absolute().as_uri() + "?mode=ro"
    wal = path.with_name(path.name + "-wal")
    try:
        return _connect(address, stack)
    except sqlite3.OperationalError:
        if not wal.exists():
            # There is no writer, so nothing is missing in the file.
            return _connect(address + "&immutable=1", stack)
    folder = stack.enter_context(private_tempdir.directory())
    try:
        for file in (path, wal):
            shutil.copyfile(file, folder / file.name)
    except OSError as error:
        raise HistoryError(f"history {error_text(error)}") from error
    return _connect((folder / path.name).as_uri(), stack)


def _connect(address: str, stack: contextlib.ExitStack) -> sqlite3.Connection:
    connection = sqlite3.connect(address, uri=True, timeout=30, isolation_level=None)
    stack.enter_context(contextlib.closing(connection))
    # SQLite opens it at the first query.
    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return connection


@contextlib.contextmanager
def readable_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite into a HistoryError with a way out."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        raise HistoryError(f"history {path}: {error}" + (f"; {_way_out(path)}" if code in _BROKEN else "")) from error


def is_disk_full(error: BaseException | None) -> bool:
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return isinstance(error, HistoryError) and is_disk_full(error.__cause__)


@contextlib.contextmanager
def sound_rows(path: Path) -> Iterator[None]:
    """Turn errors of rows into a HistoryError: another program may have written in them."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise HistoryError(f"history {path} is damaged ({said}); {_way_out(path)}") from error


def _way_out(path: Path) -> str:
    return (
        f"take a copy of it from a backup, or begin a new one: mv {shlex.quote(str(path))}"
        f" {shlex.quote(str(path) + '.broken')}"
    )
