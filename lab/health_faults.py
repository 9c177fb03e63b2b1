# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Faults of GPUs, NVLinks, PCIe links and the Fabric Manager, as nvidia-smi, the kernel's log and AER show them.

What is a fault by its growth alone comes with the record of the night before (docs/health.md has its format), in which
the node was well. Each of a GPU of its own, and of none that another fault takes away.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from . import gpu_health
from .fault import HGX, Fault, FileFault, said
from .machine import Machine, Rdma

RECORD = "/var/lib/busbar/health/last.json"
_NIGHT = 86400.0
_EVENTS = "clocks_event_reasons"
# Counters of an NVLink, as the record names them.
_OF_A_LINK = ("replays", "recoveries", "CRC errors", "failed recoveries")
# Of a port, likewise.
_OF_A_PORT = (
    *("link_downed", "symbol_error", "port_rcv_errors", "local_link_integrity_errors", "port_xmit_discards"),
    *("excessive_buffer_overrun_errors", "port_xmit_packets", "port_rcv_packets", "port_xmit_wait"),
    *("out_of_sequence", "packet_seq_err", "implied_nak_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err"),
    *("rx_crc_errors_phy", "rx_pcs_symbol_err_phy", "rx_discards_phy", "tx_discards_phy", "rx_prio_cong_discard"),
    *("outbound_pci_stalled_rd_events", "outbound_pci_stalled_wr_events"),
)


def _gpu(number: int) -> Callable[[Machine], str]:
    return lambda machine: machine.gpu(number).address


def _says(number: int, **values: str) -> Callable[[Machine], None]:
    """values: elements of nvidia-smi -q -x, two underscores for a slash."""

    def apply(machine: Machine) -> None:
        machine.gpu(number).health.update({name.replace("__", "/"): value for name, value in values.items()})

    return apply


def _logs(number: int, xid: int, text: str, **values: str) -> Callable[[Machine], None]:
    """An Xid of a GPU, two hours ago."""

    def apply(machine: Machine) -> None:
        machine.kernel_log.append(f"7200 NVRM: Xid (PCI:{machine.gpu(number).address[:-2]}): {xid}, {text}")
        _says(number, **values)(machine)

    return apply


def _driver_logs(rail: int, text: str) -> Callable[[Machine], None]:
    """A line of the driver of a rail's NIC, two hours ago."""

    def apply(machine: Machine) -> None:
        machine.kernel_log.append(f"7200 mlx5_core {machine.rail(rail).address}: {text}")

    return apply


def _link_errors(number: int, **counts: int) -> Callable[[Machine], None]:
    """counts: "11 Recovery Errors", with underscores for blanks and one before it."""

    def apply(machine: Machine) -> None:
        found = {name.strip("_").replace("_", " "): count for name, count in counts.items()}
        machine.gpu(number).link_errors.update(found)

    return apply


def _pcie_errors(rail: int, kind: str, count: int) -> Callable[[Machine], None]:
    def apply(machine: Machine) -> None:
        machine.aer.setdefault(machine.rail(rail).address, {})[kind] = count

    return apply


def _fabric_manager(how: str) -> Callable[[Machine], None]:
    def apply(machine: Machine) -> None:
        machine.fabric_manager = how

    return apply


def last_night(machine: Machine, _text: str | None) -> str:
    """The record of a question a night ago, of a node that has counted nothing since it was booted."""
    files = gpu_health.hardware(machine)
    loaded: dict[str, str] = {}
    for line in files["/proc/modules"].splitlines():
        words = line.split()
        if words[0] in ("nvidia", "mlx5_core"):
            loaded[words[0]] = f"{words[1]} {words[5]}"
    counters = ["replays", "slowed hw_power_brake_slowdown", "slowed hw_thermal_slowdown"]
    counters += [f"link {link} {name}" for link in range(18) for name in _OF_A_LINK]
    data: dict[str, Any] = {
        "format": 1,
        "boot_id": files["/proc/sys/kernel/random/boot_id"].strip(),
        "at": time.time() - _NIGHT,
        "driver_loaded": loaded,
        "gpus": {gpu.uuid: dict.fromkeys(counters, 0) for gpu in machine.gpus},
        "pci": {
            function.address: dict.fromkeys(("correctable", "nonfatal", "fatal"), 0) for function in machine.functions
        },
        "ports": {f"{rdma.address}/1": _port(machine, rdma) for rdma in machine.rdma if rdma.rail is not None},
        "history": [],
        "before": None,
    }
    return json.dumps(data) + "\n"


def _port(machine: Machine, rdma: Rdma) -> dict[str, Any]:
    """A port that has counted nothing but a few pauses, and neither downs of its link since its settings were made."""
    netdevs = [machine.index(netdev) for netdev in machine.netdevs if netdev.address == rdma.address]
    return {
        "guid": rdma.node_guid.lower(),
        "loaded": str(min(netdevs, default="")),
        "speed": "NDR",
        "at": time.time() - _NIGHT,
        "values": {**dict.fromkeys(_OF_A_PORT, 0), "tx_prio3_pause_duration": 48},
    }


def _fault(
    name: str,
    description: str,
    check: str,
    subject: Callable[[Machine], str],
    change: Callable[[Machine], None],
    grows: bool = False,
    asks_tool: bool = True,
    **more: Any,
) -> Fault:
    """grows: it is one by its growth.   asks_tool: nvidia-smi tells it, and so has to answer."""
    excludes = (*more.pop("excludes", ()), *(("smi-missing", "smi-hang", "smi-garbage") if asks_tool else ()))
    file = FileFault(RECORD, last_night) if grows else None
    return Fault(name, description, f"node_health.{check}", subject, change, excludes=excludes, file=file, **more)


_POWER_BRAKE = f"{_EVENTS}__clocks_event_reason_hw_power_brake_slowdown"
_SLOWED: Mapping[str, str] = {f"{_EVENTS}_counters__clocks_event_reasons_counters_hw_therm_slowdown": "7200000000 us"}
CATALOGUE = (
    _fault(
        "gpu-wants-reset",
        "the driver asks for a reset of GPU 4",
        "recovery_action",
        _gpu(4),
        _says(4, gpu_recovery_action="Reset"),
    ),
    _fault(
        "gpu-gsp-timeout",
        "the system processor of GPU 1 does not answer (Xid 119)",
        "xid",
        _gpu(1),
        _logs(1, 119, "pid=2811, name=python, Timeout after 6s of waiting for RPC", gpu_recovery_action="Reset"),
        consequences=("node_health.recovery_action",),
    ),
    _fault(
        "gpu-nvlink-fatal",
        "a fatal NVLink error of GPU 3 (Xid 74)",
        "xid",
        _gpu(3),
        _logs(3, 74, "NVLink: fatal error detected on link 7(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"),
        asks_tool=False,
    ),
    _fault(
        "gpu-row-pending",
        "a memory row of GPU 5 waits to be remapped",
        "row_remap",
        _gpu(5),
        _says(5, remapped_rows__remapped_row_pending="Yes"),
    ),
    _fault(
        "gpu-row-failure",
        "a memory row of GPU 7 could not be remapped",
        "row_remap",
        _gpu(7),
        _says(7, remapped_rows__remapped_row_failure="Yes"),
    ),
    _fault(
        "gpu-memory-error",
        "GPU 0 has met an uncorrectable memory error",
        "ecc",
        _gpu(0),
        _says(0, ecc_errors__volatile__dram_uncorrectable="1", ecc_errors__aggregate__dram_uncorrectable="1"),
    ),
    _fault("gpu-ecc-off", "ECC of GPU 1 is off", "ecc", _gpu(1), _says(1, ecc_mode__current_ecc="Disabled")),
    _fault(
        "gpu-power-brake",
        "the power brake holds GPU 0's clocks down",
        "throttle",
        _gpu(0),
        _says(0, **{_POWER_BRAKE: "Active"}),
    ),
    _fault(
        "gpu-hot-at-night",
        "GPU 7 was slowed by heat for two hours of the night",
        "throttle",
        _gpu(7),
        _says(7, **_SLOWED),
        grows=True,
    ),
    _fault(
        "gpu-power-cap",
        "somebody has capped GPU 3 at 500 W",
        "power_limit",
        _gpu(3),
        _says(3, gpu_power_readings__current_power_limit="500.00 W"),
    ),
    _fault(
        "gpu-low-clocks",
        "somebody has set low application clocks on GPU 5",
        "application_clocks",
        _gpu(5),
        _says(5, applications_clocks__graphics_clock="1200 MHz"),
    ),
    _fault(
        "gpu-hot",
        "GPU 4 is where it slows down by itself",
        "temperature",
        _gpu(4),
        _says(4, temperature__gpu_temp="85 C", temperature__gpu_temp_tlimit="-2 C"),
    ),
    _fault("gpu-mig", "GPU 0 is in MIG mode", "mig", _gpu(0), _says(0, mig_mode__current_mig="Enabled")),
    _fault(
        "gpu-confidential",
        "confidential computing protects the memory of GPU 1",
        "confidential_computing",
        _gpu(1),
        _says(1, cc_protected_memory_usage__total="65536 MiB"),
    ),
    _fault(
        "nvlink-recovers",
        "NVLink 11 of GPU 0 recovered 505 times in the night",
        "nvlink_errors",
        _gpu(0),
        _link_errors(0, _11_Recovery_Errors=505),
        grows=True,
        platforms=tuple(platform for platform in HGX if platform != "hgx-b200"),
    ),
    _fault(
        "nvlink-fails",
        "NVLink 3 of GPU 4 failed to recover once",
        "nvlink_errors",
        _gpu(4),
        _link_errors(4, _3_Link_recovery_failed_events=1),
        grows=True,
        platforms=("hgx-b200",),
    ),
    _fault(
        "gpu-replays",
        "GPU 3 has sent 200,000 PCIe packets again in the night",
        "pcie_replay",
        _gpu(3),
        _says(3, pci__replay_counter="200000"),
        grows=True,
    ),
    _fault(
        "nic-pcie-errors",
        "the NIC of rail 5 has had an uncorrected PCIe error",
        "aer",
        lambda machine: machine.rail(5).address,
        _pcie_errors(5, "nonfatal", 1),
        grows=True,
        asks_tool=False,
    ),
    _fault(
        "nic-firmware-dead",
        "the firmware of rail 1's NIC does not answer its driver",
        "nic_driver",
        lambda machine: machine.rail(1).address,
        _driver_logs(1, "poll_health:825:(pid 0): device's health compromised - reached miss count"),
        asks_tool=False,
    ),
    _fault(
        "fabric-manager-stopped",
        "the Fabric Manager does not run",
        "fabric_manager",
        said("nvidia-fabricmanager"),
        _fabric_manager("stopped"),
        asks_tool=False,
    ),
    _fault(
        "fabric-manager-other",
        "the Fabric Manager is of another version than the driver",
        "fabric_manager",
        said("nvidia-fabricmanager"),
        _fabric_manager("580.65.06"),
        asks_tool=False,
        excludes=("fabric-manager-stopped",),
    ),
)
