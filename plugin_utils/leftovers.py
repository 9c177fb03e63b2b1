# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a killed run could not remove on the control node: swept at the next start, where it is ours and old."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import time
from re import Pattern

# Seconds. Nothing of a run that lives is as old; a directory of one is locked besides.
AGE = 24 * 3600.0
# Of the names that tempfile makes.
RANDOM = "[a-z0-9_]{8}"


def sweep(folder: str, names: Pattern[str]) -> None:
    """Removes files and directories of such names that are ours and old; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        for entry in [entry for entry in os.scandir(folder) if names.fullmatch(entry.name)]:
            with contextlib.suppress(OSError):
                _remove(entry)


def _remove(entry: os.DirEntry[str]) -> None:
    found = entry.stat(follow_symlinks=False)
    if found.st_uid != os.geteuid() or time.time() - found.st_mtime < AGE:
        return
    if stat.S_ISREG(found.st_mode):
        os.unlink(entry.path)
    elif stat.S_ISDIR(found.st_mode):
        descriptor = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(entry.path, ignore_errors=True)
        finally:
            os.close(descriptor)
