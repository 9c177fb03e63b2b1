# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the node's distribution from os-release. Source: os-release(5)."""

from __future__ import annotations

import re
import shlex
from typing import Dict, Tuple

from .host import Host, ReadError

PATHS = ("/etc/os-release", "/usr/lib/os-release")
_LINE = re.compile(r"\s*([A-Z][A-Z0-9_]*)=(.*)")


def parse(text: str) -> Dict[str, str]:
    """Return name -> value. Lines that a shell would not take for one assignment are left out."""
    found = {}
    for match in filter(None, map(_LINE.fullmatch, text.splitlines())):
        try:
            words = shlex.split(match.group(2))
        except ValueError:  # a quote that does not end
            continue
        if len(words) < 2:
            found[match.group(1)] = "".join(words)
    return found


def read(host: Host) -> Tuple[str, Dict[str, str]]:
    """Return the file that counts and its values. Raises ReadError."""
    for path in PATHS:
        text = host.read_system(path)
        if text is not None:
            return path, parse(text)
    raise ReadError(PATHS[0], "is not there")
