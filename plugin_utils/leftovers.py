# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a killed run could not remove on the control node: swept at the next start, where it is ours and old."""

from __future__ import annotations

import contextlib
import os
from re import Pattern

from ansible_collections.busbar.fabric.plugins.module_utils.core import orphans

# Seconds. Nothing of a run that lives is as old; a directory of one is locked besides.
AGE = 24 * 3600.0
# Of the names that tempfile makes.
RANDOM = "[a-z0-9_]{8}"


def sweep(folder: str, names: Pattern[str]) -> None:
    """Removes files and directories of such names that are ours and old; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        for name in filter(names.fullmatch, os.listdir(folder)):
            with contextlib.suppress(OSError):
                orphans.remove(os.path.join(folder, name), AGE)
