# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Processes of this machine, found by a variable of the environment that they were started with."""

from __future__ import annotations

import contextlib
from pathlib import Path


def marked(name: str, value: str) -> dict[int, str]:
    """Return PID -> command line of the living processes whose environment has the variable with that value."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        # It may have ended, or be somebody else's.
        with contextlib.suppress(OSError):
            if f"{name}={value}".encode() in (path / "environ").read_bytes().split(b"\0"):
                found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found
