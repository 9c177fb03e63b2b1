# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Remove files and directories that a killed run left on the control node, if they are ours and old."""

from __future__ import annotations

import contextlib
import os
from re import Pattern

from ansible_collections.busbar.fabric.plugins.module_utils.core import temp_files

# Seconds. Files of a live run are younger; its directory is locked, too.
AGE = 24 * 3600.0
# Pattern of tempfile's random names.
RANDOM = "[a-z0-9_]{8}"


def sweep(folder: str, names: Pattern[str]) -> None:
    """Remove files and directories of such names that are ours and old; failures are ignored."""
    with contextlib.suppress(OSError):
        for name in filter(names.fullmatch, os.listdir(folder)):
            with contextlib.suppress(OSError):
                temp_files.remove(os.path.join(folder, name), AGE)
