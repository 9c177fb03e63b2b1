# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How warm a simulated NIC and its module are, and what its link gets wrong: hwmon of the driver, answers of mlxlink.

hwmon as mlx5 has it since Linux 6.5: here of the NIC's own chip alone. mlxlink's sections and words are those of
mstflint's mlxlink_commander.cpp and mlxlink_cables_commander.cpp; only what is about faults, and what tells one port
from another. The tool itself is a shell script (toolkit/mlxlink) that prints what lies here.
"""

from __future__ import annotations

import json
from string import Template

from .machine import MELLANOX, Machine, Rdma
from .nccl_tests import DATA

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
    bits = float(rdma.rate.split()[0]) * 1e9 * _MINUTES * 60
    coefficient, magnitude = f"{rdma.post_fec_errors / bits:.0E}".split("E")
    return f"{coefficient}E{int(magnitude)}" if rdma.post_fec_errors else "15E-255"
