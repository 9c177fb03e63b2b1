# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which settings a NIC is to have: the site's, then those that its profile and fabric make right. Each with its reason.

The site names a setting as mstconfig does. Of a setting that a card has for each port it says the name without the
port, ``LINK_TYPE``, and means the ports that were declared, or one port, ``LINK_TYPE_P2``.
Source: mstflint mlxconfig_dbs/mlxconfig_host.db; health.md 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Tuple

from ..core.host import ParseError
from .nv_settings import NAME, WORD, Want

# What a card has once for each port. The tool's names end in _P1, _P2.
OF_A_PORT = frozenset(
    (
        "CNP_802P_PRIO",
        "CNP_DSCP",
        "CNP_RES_PRIO_MODE",
        "DCBX_CEE",
        "DCBX_IEEE",
        "DCBX_WILLING",
        "DO_NOT_CLEAR_PORT_STATS",
        "IB_ROUTING_MODE",
        "KEEP_ETH_LINK_UP",
        "KEEP_IB_LINK_UP",
        "KEEP_LINK_UP_ON_BOOT",
        "KEEP_LINK_UP_ON_STANDBY",
        "LINK_TYPE",
        "LLDP_NB_DCBX",
        "LLDP_NB_RX_MODE",
        "LLDP_NB_TX_MODE",
        "NUM_OF_PFC",
        "NUM_OF_TC",
        "NUM_OF_VL",
        "PHY_AUTO_NEG",
        "PHY_FEC_OVERRIDE",
        "QOS_TRUST_STATE",
        "ROCE_CC_ALGORITHM",
        "ROCE_CC_PRIO_MASK",
        "SRIOV_IB_ROUTING_MODE",
    )
)
LINK_TYPES = {"InfiniBand": 1, "Ethernet": 2}
MOST = 0xFFFFFFFF
WHY = {
    "LINK_TYPE": "the port has to come up with the fabric's link layer",
    "ROCE_CC_PRIO_MASK": "congestion control slows down only traffic of the priorities in this mask",
    "CNP_DSCP": "congestion notifications with a DSCP that the switches do not favour wait in the queue that they are"
    " to shorten",
    "CNP_802P_PRIO": "congestion notifications are to have a priority that the switches favour",
    "PCI_WR_ORDERING": "forced relaxed ordering breaks NCCL, which asks for it by memory region itself",
    "ATS_ENABLED": "address translation by the NIC is of use under a hypervisor only; on bare metal it can break"
    " GPUDirect",
    "SRIOV_EN": "virtual functions that nobody uses take PCIe resources",
    "NUM_OF_VFS": "virtual functions that nobody uses take PCIe resources",
    "INTERNAL_CPU_MODEL": "decides who owns a BlueField's ports, its own processor (1) or the host (0)",
    "INTERNAL_CPU_OFFLOAD_ENGINE": "1 makes a BlueField-3 a plain NIC",
}
_DECLARED = "the site declares it"


@dataclass(frozen=True)
class Wanted:
    """name: as the tool has it, ``LINK_TYPE_P1``.   declared: by the site; else wanted only where a card shows it."""

    name: str
    value: Want
    why: str
    declared: bool = True

    @property
    def argument(self) -> str:
        """For mstconfig's set."""
        return "%s=%s" % (self.name, self.value)


def parse(settings: Mapping[Any, Any]) -> Dict[str, Want]:
    """The site's settings, typed: name -> number or word. Raises ParseError, which names the one that is wrong."""
    found: Dict[str, Want] = {}
    for name, value in settings.items():
        if not isinstance(name, str) or NAME.fullmatch(name) is None:
            raise ParseError("nic_firmware_settings: %.80r is no name of a setting such as LINK_TYPE" % (name,))
        if isinstance(value, bool):
            value = int(value)
        good = 0 <= value <= MOST if isinstance(value, int) else isinstance(value, str) and WORD.fullmatch(value)
        if not good:
            raise ParseError(
                "nic_firmware_settings.%s is %.80r, expected a number from 0 to %d or a word such as ETH"
                % (name, value, MOST)
            )
        found[name] = value
    return found


def of_card(declared: Mapping[str, Want], ports: Mapping[int, str], recommended: bool) -> Tuple[Wanted, ...]:
    """What one card is to have, by name.

    declared: of the site, as ``parse`` gives it.   ports: number of each declared port -> the link layer that the
    profile wants of it, "" where it wants none.   recommended: also what holds for every training node on bare metal.
    """
    found: Dict[str, Wanted] = {}
    if recommended:
        for number, layer in ports.items():
            if layer in LINK_TYPES:
                _add(found, "LINK_TYPE_P%d" % number, LINK_TYPES[layer], WHY["LINK_TYPE"], False)
        for name in ("PCI_WR_ORDERING", "ATS_ENABLED"):
            _add(found, name, 0, WHY[name], False)
    # What is said of one port counts for more than what is said of all.
    for name in sorted(declared, key=lambda one: (one not in OF_A_PORT, one)):
        base = name.rpartition("_P")[0] if name.rpartition("_P")[0] in OF_A_PORT else name
        why = WHY.get(base, _DECLARED)
        for one in ["%s_P%d" % (name, number) for number in ports] if name in OF_A_PORT else [name]:
            _add(found, one, declared[name], why, True)
    return tuple(found[name] for name in sorted(found))


def _add(found: Dict[str, Wanted], name: str, value: Want, why: str, declared: bool) -> None:
    found[name] = Wanted(name, value, why, declared)
