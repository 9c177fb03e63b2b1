# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Determine the settings that a NIC is to have, each with its reason: the site's, its profile's, the usual ones.

The site names a setting as mstconfig does. A per-port setting without the port, ``LINK_TYPE``, means all declared
ports; ``LINK_TYPE_P2`` means one port.
Source: mstflint mlxconfig_dbs/mlxconfig_host.db.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..core.host import ParseError
from ..machine.profile import NicSetting, Profile
from ..roce_qos.chain import Chain
from .nv_settings import NAME, WORD, Value, WantedValue, parse_number

# Settings that a card has once per port. The tool's names end in _P1, _P2.
OF_A_PORT = frozenset(
    (
        *("CNP_802P_PRIO", "CNP_DSCP", "CNP_RES_PRIO_MODE", "DCBX_CEE", "DCBX_IEEE", "DCBX_WILLING"),
        *("DO_NOT_CLEAR_PORT_STATS", "IB_ROUTING_MODE", "KEEP_ETH_LINK_UP", "KEEP_IB_LINK_UP"),
        *("KEEP_LINK_UP_ON_BOOT", "KEEP_LINK_UP_ON_STANDBY", "LINK_TYPE", "LLDP_NB_DCBX", "LLDP_NB_RX_MODE"),
        *("LLDP_NB_TX_MODE", "NUM_OF_PFC", "NUM_OF_TC", "NUM_OF_VL", "PHY_AUTO_NEG", "PHY_FEC_OVERRIDE"),
        *("QOS_TRUST_STATE", "ROCE_CC_ALGORITHM", "ROCE_CC_PRIO_MASK", "SRIOV_IB_ROUTING_MODE"),
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
    "PCI_WR_ORDERING": "forced relaxed ordering breaks NCCL, which requests it for each memory region itself",
    "ATS_ENABLED": "address translation by the NIC is of use under a hypervisor only; on bare metal it can break"
    " GPUDirect",
    "SRIOV_EN": "unused virtual functions take PCIe resources",
    "NUM_OF_VFS": "unused virtual functions take PCIe resources",
    "INTERNAL_CPU_MODEL": "decides who owns a BlueField's ports, its own processor (1) or the host (0)",
    "INTERNAL_CPU_OFFLOAD_ENGINE": "1 makes a BlueField-3 a plain NIC",
}
# The reason why these are to be 0.
_OF_NONE = ("PCI_WR_ORDERING", "ATS_ENABLED", "SRIOV_EN", "NUM_OF_VFS")
_DECLARED = "the site declares it"


def versions(firmware: Mapping[str, Any]) -> Mapping[str, str]:
    """Return busbar_firmware, PSID to version. Raises ParseError for an unquoted version, which YAML makes a number."""
    for psid, version in firmware.items():
        if not isinstance(version, str):
            raise ParseError("busbar_firmware.%s is not a text such as '28.43.8002'" % (psid,))
    return firmware


class Wanted(NamedTuple):
    """name: as the tool has it, ``LINK_TYPE_P1``.

    declared: by the site or the profile; else wanted only if a card has it.
    """

    name: str
    value: WantedValue
    why: str
    declared: bool = True

    @property
    def argument(self) -> str:
        """Return the argument for mstconfig's set."""
        return "%s=%s" % (self.name, self.value)

    def matches(self, value: Optional[Value]) -> bool:
        return value is not None and value.matches(self.value)

    def differs(self, value: Optional[Value]) -> bool:
        """Return whether the card reports another value: one that it does not report differs from none."""
        return value is not None and not value.matches(self.value)


def text(settings: Sequence[Wanted]) -> str:
    """Return settings as one line."""
    return " ".join(one.argument for one in settings)


def parse(settings: Mapping[Any, Any]) -> Dict[str, NicSetting]:
    """Return the site's settings, typed, by name. Raises ParseError, which names the wrong one."""
    found: Dict[str, NicSetting] = {}
    for name, value in _typed(settings, "nic_firmware_settings").items():
        base = name.rpartition("_P")[0] if name.rpartition("_P")[0] in OF_A_PORT else name
        # A site that wants ATS has another reason.
        other = base in _OF_NONE and parse_number(str(value)) != 0
        found[name] = NicSetting(value, _DECLARED if other else WHY.get(base, _DECLARED))
    return found


def profile_settings(profile: Profile) -> Dict[str, NicSetting]:
    """Return the profile's settings, typed, by name. Raises ParseError, which names the wrong one."""
    settings = {name: one.value for name, one in profile.nic_firmware.items()}
    typed = _typed(settings, "profile %s: nic_firmware" % profile.name)
    return {name: NicSetting(value, profile.nic_firmware[name].why) for name, value in typed.items()}


def _typed(settings: Mapping[Any, Any], where: str) -> Dict[str, WantedValue]:
    found: Dict[str, WantedValue] = {}
    for name, value in settings.items():
        if not isinstance(name, str) or NAME.fullmatch(name) is None:
            raise ParseError("%s: %.80r is not a name of a setting such as LINK_TYPE" % (where, name))
        if isinstance(value, bool):
            value = int(value)
        good = 0 <= value <= MOST if isinstance(value, int) else isinstance(value, str) and WORD.fullmatch(value)
        if not good:
            raise ParseError(
                "%s.%s is %.80r, expected a number from 0 to %d or a word such as ETH" % (where, name, value, MOST)
            )
        found[name] = value
    return found


def card_settings(
    declared: Sequence[Mapping[str, NicSetting]], ports: Mapping[int, str], usual: Optional[Chain]
) -> Tuple[Wanted, ...]:
    """Return the settings that one card is to have, by name.

    declared: as ``profile_settings`` and ``parse`` return them; later ones override.
    ports: number of each declared port -> the link layer that the profile wants, "" for any.
    usual: the site's chain, whose congestion notifications count, if the card is also to have what every training node
        on bare metal should have.
    """
    found: Dict[str, Wanted] = {}
    if usual is not None:
        for name, value in _usual(usual, ports).items():
            base = name.rpartition("_P")[0] if name[-1].isdigit() else name
            found[name] = Wanted(name, value, WHY[base], False)
    for settings in declared:
        # A value for one port overrides one for all.
        for name in sorted(settings, key=lambda one: (one not in OF_A_PORT, one)):
            one = settings[name]
            for full in ["%s_P%d" % (name, number) for number in ports] if name in OF_A_PORT else [name]:
                found[full] = Wanted(full, one.value, one.why)
    return tuple(found[name] for name in sorted(found))


def _usual(usual: Chain, ports: Mapping[int, str]) -> Dict[str, WantedValue]:
    found: Dict[str, WantedValue] = {"PCI_WR_ORDERING": 0, "ATS_ENABLED": 0}
    for number, layer in ports.items():
        of_port = {"LINK_TYPE": LINK_TYPES.get(layer)}
        if layer == "Ethernet":
            of_port.update(ROCE_CC_PRIO_MASK=255, CNP_DSCP=usual.cnp_dscp, CNP_802P_PRIO=usual.cnp_priority)
        found.update({"%s_P%d" % (name, number): value for name, value in of_port.items() if value is not None})
    return found
