# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read temperatures of NICs and their modules from hwmon (mlx5 since Linux 6.5).

Only sensors with a limit count, which the maker of the module sets.
Source: kernel Documentation/hwmon/sysfs-interface.rst.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterable, List, Optional, Tuple

from ..core.finding import printable
from ..core.host import Host, Problem, ReadError

FOLDER = "/sys/bus/pci/devices"
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


def read(host: Host, addresses: Iterable[str], problems: List[Problem]) -> Tuple[Sensor, ...]:
    """Return the sensors of these functions that are at or above their limit."""
    hot: List[Sensor] = []
    for address in addresses:
        try:
            for folder in host.listdir("%s/%s/hwmon" % (FOLDER, address)):
                path = "%s/%s/hwmon/%s" % (FOLDER, address, folder)
                hot += [one for one in _sensors(host, address, path) if one.degrees >= one.limit]
        except ReadError as error:
            problems.append(error.problem)
    return tuple(hot)


def _sensors(host: Host, address: str, path: str) -> List[Sensor]:
    """Return the sensors of one function. Raises ReadError."""
    found = []
    for name in host.listdir(path):
        if _INPUT.fullmatch(name):
            stem = path + "/" + name[: -len("input")]
            limit, degrees = _degrees(host, stem + "crit"), None
            # A cage without a module has no temperature: its file is there and cannot be read.
            if limit:
                degrees = _degrees(host, stem + "input")
            if limit and degrees is not None:
                label = (host.read(stem + "label") or name)[:40]
                found.append(Sensor(address, printable(label), degrees, limit, stem + "input"))
    return found


def _degrees(host: Host, path: str) -> Optional[float]:
    try:
        text = host.read(path) or ""
    except ReadError:
        return None
    return int(text) / 1000.0 if _MILLI.fullmatch(text) else None
