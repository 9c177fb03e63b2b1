# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How warm a simulated NIC and its module are, and what its link gets wrong: hwmon of the driver, answers of mlxlink.

hwmon as mlx5 has it since Linux 6.5: here of the NIC's own chip alone. mlxlink's sections and words are those of
mstflint's mlxlink_commander.cpp and mlxlink_cables_commander.cpp; only what is about faults, and what tells one port
from another. The tool itself is a shell script (toolkit/mlxlink) that prints what lies here.
"""

from __future__ import annotations

import json
from typing import Any

from .machine import MELLANOX, Machine, Rdma

TOOL = "/usr/bin/mlxlink"
ANSWERS = "/sys/kernel/busbar-lab/mlxlink"
# Celsius: of the chip; of an optical module (health.md 2).
_CRITICAL, _ALARM, _WARNING = 105, 80, 70
# Since the counters of a port were cleared.
_MINUTES = 14_400.0
_SPEEDS = {"EDR": "100G", "HDR": "200G", "NDR": "400G", "XDR": "800G"}


def _has_own(machine: Machine, rdma: Rdma) -> bool:
    """Of a virtual function the host has the chip and the module."""
    function = machine.function(rdma.address)
    return function.vendor == MELLANOX and function.physfn is None and not machine.hypervisor


def hwmon(machine: Machine, rdma: Rdma) -> dict[str, str | int]:
    """Files below the PCI function."""
    if not _has_own(machine, rdma):
        return {}
    folder = f"hwmon/hwmon{machine.rdma.index(rdma)}"
    values: dict[str, str | int] = {
        "name": "mlx5",
        "temp1_input": 1000 * rdma.degrees,
        "temp1_highest": 1000 * rdma.degrees,
        "temp1_crit": 1000 * _CRITICAL,
        "temp1_label": "asic",
    }
    return {f"{folder}/{name}": value for name, value in values.items()}


def answers(machine: Machine, rdma: Rdma) -> dict[str, str]:
    """Path -> text: what mlxlink prints of a port, by the options that it is called with."""
    if not _has_own(machine, rdma):
        return {}
    told = {"module": {"Module Info": _module(rdma), **_port(rdma)}, "ddm": _thresholds(rdma)}
    found = {}
    for kind, output in told.items():
        data = {"result": {"output": output}, "status": {"code": 0, "message": "success"}}
        text = json.dumps(data, indent=3, separators=(",", " : "), sort_keys=True) + "\n\n"
        found[f"{ANSWERS}/{rdma.address}.{kind}"] = text[: len(text) // 2] if rdma.mlxlink == "garbled" else text
    return found


def _module(rdma: Rdma) -> dict[str, Any]:
    return {
        "Cable Type": "Optical Module (separated)",
        "Digital Diagnostic Monitoring": "Yes",
        "Identifier": "OSFP",
        "LOS Alarm": "N/A",
        "Temperature [C]": f"{rdma.module_degrees} [-5..{_ALARM}]",
        "Voltage [mV]": "3281.2 [2970..3630]",
    }


def _port(rdma: Rdma) -> dict[str, Any]:
    up, infiniband = rdma.phys_state.startswith("5:"), rdma.link_layer == "InfiniBand"
    speed = rdma.rate.rstrip(")").split()[-1]
    counted: dict[str, Any] = {
        "Time Since Last Clear [Min]": f"{_MINUTES:.1f}",
        "Effective Physical Errors": f"{rdma.post_fec_errors}",
        "Effective Physical BER": _rate(rdma),
        "Raw Physical BER": "4E-8",
        "Link Down Counter": f"{rdma.flaps}",
        "Link Error Recovery Counter": "0",
    }
    if infiniband:
        # Before the link sends again by itself, the effective ones are; what is left counts.
        counted |= {
            "Effective Physical Errors": f"{6 + rdma.post_fec_errors}",
            "Symbol Errors": f"{rdma.post_fec_errors}",
            "Symbol BER": _rate(rdma),
        }
    if not up:
        counted = dict.fromkeys(counted, "N/A")
    counted["Raw Physical Errors Per Lane"] = {"values": ["61203", "59911", "60770", "62047"] if up else ["N/A"]}
    return {
        "Operational Info": {
            "State": "Active" if up else "Polling",
            "Physical state": ("LinkUp" if up else "Polling") if infiniband else "ETH_AN_FSM_ENABLE",
            "Speed": (f"IB-{speed}" if infiniband else _SPEEDS.get(speed, "400G")) if up else "N/A",
            "Width": "4x" if up else "N/A",
            "FEC": "Standard_RS-FEC - (544,514)" if up else "N/A",
        },
        "Physical Counters and BER Info": counted,
        "Tool Information": {"Firmware Version": rdma.fw_ver, "MFT Version": "mft 4.31.0-149"},
        "Troubleshooting Info": {"Recommendation": "No issue was observed", "Status Opcode": "0"},
    }


def _rate(rdma: Rdma) -> str:
    """As the firmware gives it: a coefficient and a magnitude; zero is 15E-255."""
    if rdma.post_fec_errors == 0:
        return "15E-255"
    bits = float(rdma.rate.split()[0]) * 1e9 * _MINUTES * 60
    coefficient, magnitude = f"{rdma.post_fec_errors / bits:.0E}".split("E")
    return f"{coefficient}E{int(magnitude)}"


def _thresholds(rdma: Rdma) -> dict[str, Any]:
    def row(degrees: int) -> dict[str, list[str]]:
        return {"values": [f"{degrees}C", "3.630V", "7.000dBm", "7.000dBm", "13.000mA"]}

    return {
        "Cable DDM Information": {"Temperature": f"{rdma.module_degrees}C"},
        "DDM Thresholds": {
            "High alarm threshold": row(_ALARM),
            "High warning threshold": row(_WARNING),
            "Low warning threshold": row(0),
            "Low alarm threshold": row(-5),
            "Thresholds": {"values": ["Temperature", "Voltage", "RX Power", "TX Power", "TX Bias"]},
        },
    }
