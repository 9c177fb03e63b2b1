# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Faults of what NICs keep in their flash. An inventory has to want these settings before any is a fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .fault import Fault, rail_nic
from .machine import Machine

# One platform: a node whose inventory wants settings starts a tool for each of its cards whenever it is asked.
PLATFORMS = ("hgx-b200",)
_CHECK = "nic_firmware.settings"


def site(machine: Machine) -> dict[str, Any]:
    wanted = {"LINK_TYPE": "IB", "ATS_ENABLED": 0, "ROCE_CC_PRIO_MASK": 255}
    return {"nic_firmware_settings": wanted}


def _card(rail: int, **changes: Any) -> Callable[[Machine], None]:
    def apply(machine: Machine) -> None:
        machine.firmware[machine.rail(rail).address] = changes

    return apply


def _fault(
    name: str,
    description: str,
    rail: int,
    check: str = _CHECK,
    state: str = "drift",
    consequences: tuple[str, ...] = (),
    **changes: Any,
) -> Fault:
    return Fault(
        name,
        description,
        check,
        rail_nic(rail),
        _card(rail, **changes),
        state,
        consequences,
        PLATFORMS,
        site=site,
    )


CATALOGUE = (
    _fault(
        "nv-changed",
        "the NIC of rail 0 translates addresses (ATS), now and after its next reset",
        0,
        consequences=(_CHECK,),
        ATS_ENABLED={"current": 1, "next": 1},
    ),
    _fault(
        "nv-next-boot",
        "the NIC of rail 1 will come up as Ethernet after its next reset",
        1,
        LINK_TYPE_P1={"next": 2},
    ),
    _fault(
        "nv-waits",
        "the NIC of rail 2 was set right and not reset since",
        2,
        state="withheld",
        ROCE_CC_PRIO_MASK_P1={"current": 0},
    ),
    _fault(
        "nv-hidden",
        "the NIC of rail 6 hides ATS_ENABLED",
        6,
        check="nic_firmware.supported",
        state="unsupported",
        ATS_ENABLED={"hidden": True},
    ),
    _fault("nv-silent", "mstconfig cannot open the NIC of rail 4", 4, state="unknown", silent=True),
    _fault(
        "firmware-burned",
        "another firmware waits in the NIC of rail 5, and so do its settings",
        5,
        check="nic_firmware.image",
        consequences=(_CHECK,),
        flash="28.47.1088",
        ATS_ENABLED={"current": 1},
    ),
)
