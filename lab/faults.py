# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Faults by name, and what each has to be reported as.

A fault changes the model of the machine or one file of the node's system root. It states the one finding it must
cause (its root) and the checks that may follow from that. Any set of compatible faults can be applied together;
faults that hide each other exclude each other. The rows are in data/faults.json, and fault.py reads them.
"""

from __future__ import annotations

import difflib
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import cluster_faults
from .fault import Fault, fill, read
from .machine import LabError, Machine

GRUB_CFG = "/boot/grub/grub.cfg"


@dataclass(frozen=True)
class Expectation:
    """A finding that has to be there.

    subject: identity of the subject, None for any: a consequence may show on several.
    state: None for any but ok.   because: check of the root it follows from, None for a root.
    """

    check: str
    subject: str | None
    state: str | None
    because: str | None = None


CATALOGUE = {
    fault.name: fault for fault in read((Path(__file__).parent / "data/faults.json").read_text(encoding="utf-8"))
}
# Those that a check of one node shows.
FAULTS = {name: fault for name, fault in CATALOGUE.items() if not fault.between_nodes}


def named(name: str) -> Fault:
    """Raises LabError, with the nearest name."""
    if name not in FAULTS:
        near = difflib.get_close_matches(name, [*FAULTS, *(fault.name for fault in cluster_faults.LOCALISED)], 1)
        hint = f"did you mean {near[0]}?" if near else "python3 -m lab faults lists them"
        raise LabError(f"there is no fault {name!r}; {hint}")
    return FAULTS[name]


def compatible(names: Iterable[str]) -> bool:
    """Whether each of these faults shows when all are applied. A fault does not go with itself."""
    faults = [named(name) for name in names]
    return not any(
        one.name in (other.name, *other.excludes) or other.name in one.excludes
        for n, one in enumerate(faults)
        for other in faults[:n]
    )


def site(machine: Machine) -> dict[str, Any]:
    """What the inventory sets for a healthy machine: what it says itself, and what faults need to be some."""
    found = dict(machine.site)
    for fault in FAULTS.values():
        if fault.site and machine.platform in fault.platforms:
            found |= fill(machine, fault.site)
    return found


def draw(rng: random.Random, count: int, platform: str, measured: bool = False) -> list[str]:
    """``count`` compatible faults at random. Raises LabError where the platform has not so many.

    measured: those that only a benchmark shows, too.
    """
    pool = [f.name for f in FAULTS.values() if platform in f.platforms and (measured or not f.measured)]
    rng.shuffle(pool)
    drawn: list[str] = []
    for name in pool:
        if len(drawn) < count and compatible([*drawn, name]):
            drawn.append(name)
    if len(drawn) < count:
        raise LabError(
            f"{platform or 'this platform'} has no {count} compatible faults, only {', '.join(drawn) or 'none'}"
        )
    return drawn


def expected(machine: Machine, names: Iterable[str]) -> list[Expectation]:
    """What has to be found on ``machine``, healthy as given, with these faults: roots and their consequences.

    A consequence is on its root's subject where that is a device, and on whatever it follows for otherwise.
    """
    expectations = []
    for fault in map(named, names):
        subject = fill(machine, fault.subject)
        expectations.append(Expectation(fault.check, subject, fault.state))
        device = subject if subject and re.match(r"[0-9a-f]{4}:", subject) else None
        for check in fault.consequences:
            if _applies(machine, check):
                expectations.append(Expectation(check, device, None, because=fault.check))
    return expectations


def _applies(machine: Machine, check: str) -> bool:
    """Nothing asks for RoCE on InfiniBand, for rails where there are none, nor for registers in a virtual machine."""
    rails = any(rdma.rail is not None for rdma in machine.rdma)
    if check in ("platform.rail_gid", "roce_qos.unit"):
        return rails and machine.site["busbar_fabric"] == "ethernet"
    if check.startswith("pcie_path."):
        return not machine.hypervisor
    return rails or not check.startswith("platform.rail_")
