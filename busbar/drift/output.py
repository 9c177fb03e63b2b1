# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write a report to a file, whole or not at all, or to standard output."""

from __future__ import annotations

import datetime
import errno
import os
import re
import sys
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.plugin_utils import results_folder

# Placeholder in a file's name: the day (UTC) on which the run began.
DATE = "{date}"


def dated(target: str, day: datetime.date) -> str:
    path = Path(target)
    return target if target == "-" else str(path.with_name(path.name.replace(DATE, day.isoformat())))


def prune(target: str, before: datetime.date) -> None:
    """Remove the files of ``target`` of days before one. Only names with a day in place of DATE count."""
    path = Path(target)
    if DATE not in path.name:
        return
    name = re.compile(re.escape(path.name).replace(re.escape(DATE), "([0-9]{4}-[0-9]{2}-[0-9]{2})", 1))
    for other in path.parent.iterdir():
        match = name.fullmatch(other.name)
        if match and match.group(1) < before.isoformat():
            other.unlink()


def require_folder(target: str) -> None:
    """Raise OSError where a file cannot be made, before any host is queried."""
    folder = Path(target).parent
    if Path(target).is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), target)
    if not os.access(folder, os.W_OK | os.X_OK):
        number = errno.EACCES if folder.exists() else errno.ENOENT
        raise OSError(number, os.strerror(number), str(folder))


def write(target: str, text: str, mode: int = 0o600) -> None:
    """Write to a path, or for ``-`` to standard output. By rename: a reader never sees half a file. Raises OSError."""
    if target == "-":
        sys.stdout.write(text)
        return
    try:
        results_folder.replace_file(target, [text], mode)
    except OSError as error:
        raise OSError(error.errno, f"cannot write it: {error.strerror}", target) from error
