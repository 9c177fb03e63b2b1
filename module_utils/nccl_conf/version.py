# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Releases of NCCL: three numbers, and the range that the tables know."""

from __future__ import annotations

import re
from typing import Tuple

from ..core.host import ParseError

Version = Tuple[int, int, int]

# The table knows the releases in this range and nothing about others.
OLDEST = (2, 3, 5)
NEWEST = (2, 32, 3)

_VERSION = re.compile(r"([0-9]{1,4})[.]([0-9]{1,4})[.]([0-9]{1,4})")


def parse_version(text: str) -> Version:
    """``2.27.7`` as (2, 27, 7). Raises ParseError on anything else."""
    match = _VERSION.fullmatch(text)
    if match is None:
        raise ParseError("%r is not a NCCL version, expected a form like 2.27.7" % text[:40])
    return int(match.group(1)), int(match.group(2)), int(match.group(3))


def format_version(version: Version) -> str:
    return "%d.%d.%d" % version
