# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parse mstfwreset (mlxfwreset): the resets by which a NIC can load new settings and firmware.

Sources: mstflint man/mstfwreset.md, small_utils/mlxfwresetlib/cmd_reg_mfrl.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Tuple

from ..core.host import ParseError

# Level 1 resets only a BlueField's processor.
LIVE_PATCH, PCI_RESET, WARM_REBOOT, COLD_REBOOT = 0, 3, 4, 5
NAMES = {
    LIVE_PATCH: "live patch",
    PCI_RESET: "driver restart and PCI reset",
    WARM_REBOOT: "warm reboot",
    COLD_REBOOT: "cold reboot",
}
_LINE = re.compile(r"([0-9]): (.{1,120}?) *-(Supported|Not Supported) *(?:\(default\))?")


@dataclass(frozen=True)
class Levels:
    """offered: the levels that the NIC supports in its present state, ascending."""

    offered: Tuple[int, ...]

    @property
    def resets(self) -> Tuple[int, ...]:
        """Return the levels that need no reboot of the node."""
        return tuple(level for level in self.offered if level in (LIVE_PATCH, PCI_RESET))

    def __str__(self) -> str:
        return ", ".join("%d (%s)" % (level, NAMES.get(level, "unknown")) for level in self.offered) or "none"


def parse_query(text: str) -> Levels:
    """Parse ``mstfwreset -d DEVICE query``. Raises ParseError if it shows no levels."""
    inside, seen = False, False
    offered: List[int] = []
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("Reset-levels:"):
            inside = seen = True
        elif line.startswith("Reset-types"):
            inside = False
        elif inside and line:
            found = _LINE.fullmatch(line)
            if found is None:
                raise ParseError("%.80r, expected a level such as '3: Driver restart and PCI reset -Supported'" % line)
            if found.group(3) == "Supported":
                offered.append(int(found.group(1)))
    if not seen:
        raise ParseError("%.80r, expected a list that begins with Reset-levels:" % text)
    return Levels(tuple(sorted(offered)))
