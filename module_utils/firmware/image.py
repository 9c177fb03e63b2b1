# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parse mstflint (flint): the firmware version in a NIC's flash for the next boot, and the running one.

Source: mstflint flint/subcommands.cpp (query).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict

from ..core.host import ParseError

_LINE = re.compile(r"(FW Version|FW Version\(Running\)|PSID): +(\S{1,64})")


@dataclass(frozen=True)
class Image:
    """following: version that the next boot loads.   running: the same where the tool prints it once.   psid: board."""

    following: str
    running: str
    psid: str

    @property
    def pending(self) -> bool:
        """Return whether other firmware was burned and waits for a reset."""
        return self.following != self.running


def parse_query(text: str) -> Image:
    """Parse ``mstflint -d DEVICE query``. Raises ParseError."""
    told: Dict[str, str] = {}
    for line in text.splitlines():
        found = _LINE.fullmatch(line.strip())
        if found is not None:
            told.setdefault(found.group(1), found.group(2))
    following = told.get("FW Version")
    if following is None:
        raise ParseError("%.80r, expected a line FW Version" % text)
    return Image(following, told.get("FW Version(Running)", following), told.get("PSID", ""))
