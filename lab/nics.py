# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a simulated NIC keeps in its flash, how warm it and its module are, and what its link gets wrong.

Each card has a file of firmware settings, which toolkit/firmware_tools.py reads and writes; names, words and what is
hidden: mstflint's mlxconfig_host.db. hwmon is as mlx5 has it since Linux 6.5: here of the NIC's own chip alone.
mlxlink's sections and words are those of mstflint's mlxlink_commander.cpp and mlxlink_cables_commander.cpp; only what
is about faults, and what tells one port from another. The tool itself is a shell script (toolkit/mlxlink) that prints
what lies here.
"""

from __future__ import annotations

import json
from string import Template
from typing import cast

from .machine import MELLANOX, Machine, Rdma
from .nccl_tests import DATA
from .toolkit import firmware_tools
from .toolkit.firmware_tools import CARDS, Card, Setting

_SWITCH = {"0": "False", "1": "True"}
_TYPES = {"0x1021": "ConnectX7", "0x101b": "ConnectX6", "0x101d": "ConnectX6DX", "0xa2dc": "BlueField3"}


def flash_files(machine: Machine) -> dict[str, tuple[str, str, str]]:
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


# -- optics -----------------------------------------------------------------------------------------------------------

TOOL = "/usr/bin/mlxlink"
ANSWERS = "/sys/kernel/busbar-lab/mlxlink"
# Since the counters of a port were cleared.
_MINUTES = 14_400.0
_SPEEDS = {"EDR": "100G", "HDR": "200G", "NDR": "400G", "XDR": "800G"}
_OUTPUT = Template((DATA / "mlxlink.json").read_text())
_COUNTERS = "Physical Counters and BER Info"


def _has_own(machine: Machine, rdma: Rdma) -> bool:
    """Of a virtual function the host has the chip and the module."""
    function = machine.function(rdma.address)
    return function.vendor == MELLANOX and function.physfn is None and not machine.hypervisor


def hwmon(machine: Machine, rdma: Rdma) -> dict[str, str | int]:
    """Return files below the PCI function."""
    folder, now = f"hwmon/hwmon{machine.rdma.index(rdma)}", 1000 * rdma.degrees
    values: dict[str, str | int] = {"name": "mlx5", "temp1_label": "asic", "temp1_crit": 105_000}
    values |= {"temp1_input": now, "temp1_highest": now}
    return {f"{folder}/{name}": value for name, value in values.items()} if _has_own(machine, rdma) else {}


def answers(machine: Machine, rdma: Rdma) -> dict[str, str]:
    """Path -> text: what mlxlink prints of a port, by the options that it is called with."""
    if not _has_own(machine, rdma):
        return {}
    found = {}
    for kind, output in _output(rdma).items():
        data = {"result": {"output": output}, "status": {"code": 0, "message": "success"}}
        text = json.dumps(data, indent=3, separators=(",", " : "), sort_keys=True) + "\n\n"
        found[f"{ANSWERS}/{rdma.address}.{kind}"] = text[: len(text) // 2] if rdma.mlxlink == "garbled" else text
    return found


def _output(rdma: Rdma) -> dict[str, dict[str, dict[str, object]]]:
    up, infiniband = rdma.phys_state.startswith("5:"), rdma.link_layer == "InfiniBand"
    speed = rdma.rate.rstrip(")").split()[-1]
    values = {
        "module": rdma.module_degrees,
        "state": "Active" if up else "Polling",
        "physical": ("LinkUp" if up else "Polling") if infiniband else "ETH_AN_FSM_ENABLE",
        "speed": (f"IB-{speed}" if infiniband else _SPEEDS.get(speed, "400G")) if up else "N/A",
        "width": "4x" if up else "N/A",
        "fec": "Standard_RS-FEC - (544,514)" if up else "N/A",
        # Of InfiniBand those before the link sends again by itself; what is left are the symbol errors.
        "effective": rdma.post_fec_errors + 6 * infiniband,
        "errors": rdma.post_fec_errors,
        "rate": _rate(rdma),
        "flaps": rdma.flaps,
        "firmware": rdma.fw_ver,
    }
    found: dict[str, dict[str, dict[str, object]]] = json.loads(_OUTPUT.substitute(values))
    counters = found["module"][_COUNTERS]
    if not infiniband:
        del counters["Symbol Errors"], counters["Symbol BER"]
    if not up:
        lanes = {"Raw Physical Errors Per Lane": {"values": ["N/A"]}}
        found["module"][_COUNTERS] = {**dict.fromkeys(counters, "N/A"), **lanes}
    return found


def _rate(rdma: Rdma) -> str:
    """Return a rate as the firmware gives it: a coefficient and a magnitude; zero is 15E-255."""
    if rdma.post_fec_errors == 0:
        return "15E-255"
    bits = float(rdma.rate.split()[0]) * 1e9 * _MINUTES * 60
    coefficient, magnitude = f"{rdma.post_fec_errors / bits:.0E}".split("E")
    return f"{coefficient}E{int(magnitude)}"
