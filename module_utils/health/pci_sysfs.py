# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read what the kernel counts and measures of a PCI function: AER errors, and temperatures (hwmon).

A function without counters, as most in a virtual machine, is "not exposed", which is not 0. Only sensors with a limit
count, which the maker of the module sets.
Sources: kernel Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats, Documentation/hwmon/sysfs-interface.rst.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Iterable, List, Mapping, Optional, Tuple

from ..core.finding import printable
from ..core.host import Host, ParseError, Problem, ReadError, noted

FOLDER = "/sys/bus/pci/devices"
KINDS: Mapping[str, str] = {
    "correctable": "TOTAL_ERR_COR",
    "nonfatal": "TOTAL_ERR_NONFATAL",
    "fatal": "TOTAL_ERR_FATAL",
}
_LINE = re.compile(r"([A-Za-z_]{1,40}) ([0-9]{1,19})")
_INPUT = re.compile(r"temp[0-9]{1,3}_input")
_MILLI = re.compile(r"-?[0-9]{1,7}")


@dataclass(frozen=True)
class Sensor:
    """degrees, limit: Celsius.   source: the file of the first."""

    pci: str
    label: str
    degrees: float
    limit: float
    source: str


def read_errors(host: Host, addresses: Iterable[str], problems: List[Problem]) -> Dict[str, Dict[str, int]]:
    """Return address -> kind -> total, of functions that count."""
    found: Dict[str, Dict[str, int]] = {}
    for address in addresses:
        for kind, total in KINDS.items():
            path = "%s/%s/aer_dev_%s" % (FOLDER, address, kind)
            with noted(path, problems):
                text: Optional[str] = host.read(path)
                if text is not None:
                    counts = _parse_errors(text)
                    found.setdefault(address, {})[kind] = counts[total] if total in counts else sum(counts.values())
    return found


def _parse_errors(text: str) -> Dict[str, int]:
    """Parse one file: ``RxErr 0``, a kind of error a line, the total last. Raises ParseError."""
    found = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise ParseError("%r, expected '<error> <count>'" % line[:80])
        found[match.group(1)] = int(match.group(2))
    return found


def read_hot(host: Host, addresses: Iterable[str], problems: List[Problem]) -> Tuple[Sensor, ...]:
    """Return the sensors of these functions that are at or above their limit."""
    hot: List[Sensor] = []
    for address in addresses:
        folder = "%s/%s/hwmon" % (FOLDER, address)
        with noted(folder, problems):
            for name in host.listdir(folder):
                hot += _hot(host, address, "%s/%s" % (folder, name))
    return tuple(hot)


def _hot(host: Host, address: str, folder: str) -> List[Sensor]:
    """Return the sensors of one folder that are at or above their limit. Raises ReadError."""
    found = []
    for name in filter(_INPUT.fullmatch, host.listdir(folder)):
        stem = folder + "/" + name[: -len("input")]
        limit = _degrees(host, stem + "crit")
        # A cage without a module has no temperature: its file is there and cannot be read.
        degrees = _degrees(host, stem + "input") if limit else None
        if limit and degrees is not None and degrees >= limit:
            label = (host.read(stem + "label") or name)[:40]
            found.append(Sensor(address, printable(label), degrees, limit, stem + "input"))
    return found


def _degrees(host: Host, path: str) -> Optional[float]:
    try:
        text = host.read(path) or ""
    except ReadError:
        return None
    return int(text) / 1000.0 if _MILLI.fullmatch(text) else None
