# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A run's own directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.plugin_utils import leftovers

_PREFIX = "busbar-run-"
# Those of 0.1 had no lock.
_NAMES = re.compile(f"({_PREFIX}|busbar-drift-|busbar-){leftovers.RANDOM}")


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    """A directory that nobody else reads, gone at the end; or, after a kill, once another is made and it is old."""
    leftovers.sweep(tempfile.gettempdir(), _NAMES)
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(descriptor)
