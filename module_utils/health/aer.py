# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the PCIe errors of a function that the kernel has counted: Advanced Error Reporting (AER).

A function without such files, as most in a virtual machine, is "not exposed", which is not 0.
Source: kernel Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats.
"""

from __future__ import annotations

import re
from typing import Dict, Iterable, List, Mapping, Optional, Tuple

from ..core.host import Host, ParseError, Problem, noted

FOLDER = "/sys/bus/pci/devices"
KINDS: Mapping[str, str] = {
    "correctable": "TOTAL_ERR_COR",
    "nonfatal": "TOTAL_ERR_NONFATAL",
    "fatal": "TOTAL_ERR_FATAL",
}
_LINE = re.compile(r"([A-Za-z_]{1,40}) ([0-9]{1,19})")


def parse(text: str) -> Dict[str, int]:
    """Parse one file: ``RxErr 0``, a kind of error a line, the total last. Raises ParseError."""
    found = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise ParseError("%r, expected '<error> <count>'" % line[:80])
        found[match.group(1)] = int(match.group(2))
    return found


def read(host: Host, addresses: Iterable[str]) -> Tuple[Dict[str, Dict[str, int]], List[Problem]]:
    """Return address -> kind -> total, of functions that count, and problems."""
    found: Dict[str, Dict[str, int]] = {}
    problems: List[Problem] = []
    for address in addresses:
        for kind, total in KINDS.items():
            path = "%s/%s/aer_dev_%s" % (FOLDER, address, kind)
            with noted(path, problems):
                text: Optional[str] = host.read(path)
                if text is not None:
                    counts = parse(text)
                    found.setdefault(address, {})[kind] = counts[total] if total in counts else sum(counts.values())
    return found, problems
