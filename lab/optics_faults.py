# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Faults of a rail's NIC, of its module and of its link that only hwmon and mlxlink show (optics.py).

Of rails that no other fault takes away, and whose links no other fault spoils.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .fault import Fault, rail_nic
from .machine import Machine


def _shows(rail: int, **values: Any) -> Callable[[Machine], None]:
    """values: fields of the rail's device."""

    def apply(machine: Machine) -> None:
        for name, value in values.items():
            setattr(machine.rail(rail), name, value)

    return apply


def _fault(name: str, description: str, check: str, rail: int, state: str = "drift", **values: Any) -> Fault:
    return Fault(name, description, f"node_health.{check}", rail_nic(rail), _shows(rail, **values), state=state)


CATALOGUE = (
    _fault("nic-hot", "the chip of rail 0's NIC is at 106 C", "nic_temperature", 0, degrees=106),
    _fault("module-hot", "the module of rail 5 is at 81 C", "module_temperature", 5, module_degrees=81),
    _fault("module-warm", "the module of rail 6 is at 72 C", "module_temperature", 6, module_degrees=72),
    _fault(
        "module-bit-errors",
        "the link of rail 7 had 40,000,000 errors in ten days that FEC did not mend",
        *("bit_errors", 7),
        post_fec_errors=40_000_000,
    ),
    _fault("mlxlink-garbled", "mlxlink prints half of an answer of rail 4", "mlxlink", 4, "unknown", mlxlink="garbled"),
)
