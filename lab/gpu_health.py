# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a simulated node shows of its health: nvlink -e, AER, the kernel's log, the unit of the Fabric Manager.

NVLink 5 has other counters than 4. The kernel's log is made when it is asked for: its lines have an age, and the node
was booted UPTIME seconds ago.
"""

from __future__ import annotations

import uuid

from .machine import Gpu, Machine

UPTIME = 10 * 86400
UNIT = "nvidia-fabricmanager.service"
_NVLINK_4 = ("Replay Errors", "Recovery Errors", "CRC Errors")
_NVLINK_5 = (
    *("Malformed packet Errors", "Buffer overrun Errors", "Rx Errors", "Rx remote Errors", "Rx General Errors"),
    *("Local link integrity Errors", "Tx discards", "Link recovery successful events", "Link recovery failed events"),
    *("Total link recovery events", "Effective Errors", "Symbol Errors"),
)
# Of a healthy link, too.
_NVLINK_5_LARGE = (
    "Effective BER: 15e-255",
    "FEC Errors - 0: 36140749276",
    "Raw BER Lane 0: 2061",
    "Symbol BER: 15e-255",
)
_AER = {"correctable": "TOTAL_ERR_COR", "nonfatal": "TOTAL_ERR_NONFATAL", "fatal": "TOTAL_ERR_FATAL"}


def link_errors(title: str, gpu: Gpu) -> str:
    """``nvlink -e`` of one GPU: what counts depends on its NVLink."""
    five = float(gpu.nvlink_gbps) > 40
    found = [title]
    for link in range(len(gpu.nvlinks)):
        for name in _NVLINK_5 if five else _NVLINK_4:
            found.append(f"\t Link {link}: {name}: {gpu.link_errors.get(f'{link} {name}', 0)}")
        found += [f"\t Link {link}: {text}" for text in _NVLINK_5_LARGE if five]
        found.append("")
    return "".join(f"{line}\n" for line in found)


def kernel_log(machine: Machine) -> str:
    """The beginning, and what the driver has said: the rest of a real log is nobody's here."""
    found = [f"[    0.000000] Linux version {machine.kernel}\n"]
    for entry in machine.kernel_log:
        age, text = entry.split(" ", 1)
        found.append(f"[{UPTIME - float(age):12.6f}] {text}\n")
    return "".join(found)


def version(machine: Machine) -> str:
    """Of the Fabric Manager."""
    return machine.driver_version if machine.fabric_manager in ("ok", "stopped") else machine.fabric_manager


def where(module: str) -> int:
    """32 bits that are the module's own."""
    return uuid.uuid5(uuid.NAMESPACE_DNS, module).int >> 96


def hardware(machine: Machine) -> dict[str, str]:
    """Files of /sys and /proc."""
    # Another one after each boot, and the same however often it is rendered.
    boot_id = uuid.uuid5(uuid.NAMESPACE_DNS, f"{machine.hostname}.{machine.boots}")
    found = {
        "/proc/uptime": f"{UPTIME}.00 {UPTIME}.00\n",
        "/proc/sys/kernel/random/boot_id": f"{boot_id}\n",
        # Each in a place of its own, whatever others there are.
        "/proc/modules": "".join(
            f"{name} {16384 + (where(name) >> 24)} 0 - Live 0xffffffff{where(name):08x}\n"
            for name in sorted(machine.modules)
        ),
    }
    # A guest runs one where it was given the switches.
    switches = any(function.driver == "nvidia-nvswitch" for function in machine.functions)
    if machine.fabric_manager != "stopped" and not machine.nvlink_domain and (switches or not machine.hypervisor):
        found[f"/sys/fs/cgroup/system.slice/{UNIT}/cgroup.procs"] = "3120\n"
    return found


def errors(machine: Machine, address: str) -> dict[str, str]:
    """AER's files of a PCI function; a guest has none."""
    if machine.hypervisor:
        return {}
    counts = machine.aer.get(address, {})
    return {
        f"aer_dev_{kind}": f"RxErr {counts.get(kind, 0)}\n{total} {counts.get(kind, 0)}" for kind, total in _AER.items()
    }
