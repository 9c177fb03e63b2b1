# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Make a private temporary directory for a run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.plugin_utils import results_folder

_PREFIX = "busbar-run-"
# Directories of 0.1 had no lock.
_NAMES = re.compile(f"({_PREFIX}|busbar-drift-|busbar-){results_folder.RANDOM}")


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    """Yield a directory for this user only, removed at the end; after a kill once it is old and another is made."""
    results_folder.sweep(tempfile.gettempdir(), _NAMES)
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(descriptor)
