# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where a report goes: a file that is whole or not there at all, or standard output."""

from __future__ import annotations

import datetime
import errno
import os
import re
import sys
import tempfile
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.plugin_utils import leftovers

# In a file's name: the day (UTC) on which the run began.
DATE = "{date}"


def dated(target: str, day: datetime.date) -> str:
    path = Path(target)
    return target if target == "-" else str(path.with_name(path.name.replace(DATE, day.isoformat())))


def _of_days(path: Path) -> str:
    """Matches the names that ``path`` has had on other days; group 1, where there is one, is the day."""
    return re.escape(path.name).replace(re.escape(DATE), "([0-9]{4}-[0-9]{2}-[0-9]{2})", 1)


def prune(target: str, before: datetime.date) -> None:
    """Removes what ``target`` was on days before one. Only a name with a day in the place of DATE is its own."""
    path = Path(target)
    if DATE not in path.name:
        return
    name = re.compile(_of_days(path))
    for other in path.parent.iterdir():
        match = name.fullmatch(other.name)
        if match and match.group(1) < before.isoformat():
            other.unlink()


def sweep(target: str) -> None:
    """Removes what runs that were killed have left of ``target``, on whatever day."""
    path = Path(target)
    leftovers.sweep(str(path.parent), re.compile(rf"\.{_of_days(path)}-{leftovers.RANDOM}"))


def require_folder(target: str) -> None:
    """Raise OSError where a file cannot be made: found before any host is queried."""
    folder = Path(target).parent
    if Path(target).is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), target)
    if not os.access(folder, os.W_OK | os.X_OK):
        number = errno.EACCES if folder.exists() else errno.ENOENT
        raise OSError(number, os.strerror(number), str(folder))


def write(target: str, text: str, mode: int = 0o600) -> None:
    """target: a path, or - for standard output. By rename: a reader never sees half a file. Raises OSError."""
    if target == "-":
        sys.stdout.write(text)
        return
    path = Path(target)
    name = ""
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}-", delete=False, encoding="utf-8"
        ) as stream:
            name = stream.name
            stream.write(text)
        os.chmod(name, mode)
        os.replace(name, path)
    except OSError as error:
        if name:
            Path(name).unlink(missing_ok=True)
        raise OSError(error.errno, f"cannot write it: {error.strerror}", str(path)) from error
