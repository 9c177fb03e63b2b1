# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the NICs of a node keep in their flash: a file for each card, which toolkit/firmware_tools.py reads and writes.

Names, words and what is hidden: mstflint's mlxconfig_host.db.
"""

from __future__ import annotations

from typing import cast

from .machine import MELLANOX, Machine, Rdma
from .toolkit import firmware_tools
from .toolkit.firmware_tools import CARDS, Card, Setting

_SWITCH = {"0": "False", "1": "True"}
_TYPES = {"0x1021": "ConnectX7", "0x101b": "ConnectX6", "0x101d": "ConnectX6DX", "0xa2dc": "BlueField3"}


def files(machine: Machine) -> dict[str, tuple[str, str, str]]:
    """Path -> what it is, the text of the model and that out of the box, of the file of each card (qos.settle)."""
    found = {}
    for card in _cards(machine):
        first = card[0]
        shown = _fresh(machine, card)
        fresh = firmware_tools.card_text(shown)
        # Of a setting what of it is otherwise, of the card in lower case.
        for name, change in machine.firmware.get(first.address, {}).items():
            if name in shown["settings"]:
                cast("dict[str, object]", shown["settings"][name]).update(change)
            else:
                cast("dict[str, object]", shown)[name] = change
        text = firmware_tools.card_text(shown)
        found[f"{CARDS}/{first.address}.json"] = (f"firmware of {first.sys_image_guid}", text, fresh)
    return found


def _cards(machine: Machine) -> list[list[Rdma]]:
    """The ports of each card, the first port first. A guest reads no flash, and a virtual function has none."""
    found: dict[str, list[Rdma]] = {}
    for rdma in sorted(machine.rdma, key=lambda one: one.address) if not machine.hypervisor else ():
        function = machine.function(rdma.address)
        if function.vendor == MELLANOX and function.physfn is None:
            found.setdefault(rdma.address[:-2], []).append(rdma)
    return list(found.values())


def _setting(value: int, words: dict[str, str] | None = None, hidden: bool = False) -> Setting:
    setting: Setting = {"default": value, "current": value, "next": value}
    if words:
        setting["words"] = words
    if hidden:
        setting["hidden"] = hidden
    return setting


def _fresh(machine: Machine, card: list[Rdma]) -> Card:
    """The card as it was delivered, and set to the link layer that its ports have."""
    settings = {
        "ADVANCED_PCI_SETTINGS": _setting(0, _SWITCH),
        "ATS_ENABLED": _setting(0, _SWITCH),
        "MEMIC_BAR_SIZE": _setting(0),
        "NUM_OF_VFS": _setting(0),
        "PCI_WR_ORDERING": _setting(0, {"0": "per_mkey", "1": "force_relax"}, hidden=True),
        "SRIOV_EN": _setting(0, _SWITCH),
    }
    for number, rdma in enumerate(card, 1):
        layer = 1 if rdma.link_layer == "InfiniBand" else 2
        settings[f"LINK_TYPE_P{number}"] = _setting(layer, {"1": "IB", "2": "ETH"}) | {"default": 1}
        settings[f"ROCE_CC_PRIO_MASK_P{number}"] = _setting(255)
        settings[f"CNP_DSCP_P{number}"] = _setting(48)
        settings[f"CNP_802P_PRIO_P{number}"] = _setting(6)
    return {
        "type": _TYPES.get(machine.function(card[0].address).device, "ConnectX7"),
        "psid": card[0].board_id,
        "functions": [rdma.address for rdma in card],
        "flash": card[0].fw_ver,
        "running": card[0].fw_ver,
        "settings": settings,
    }
