# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Answers of nvidia-smi for tests: the elements of ``-q -x`` that health is judged by, as driver 580 has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

REASONS = (
    *("gpu_idle", "sw_power_cap", "hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"),
    *("sync_boost", "sw_thermal_slowdown"),
)
COUNTERS = ("sw_power_cap", "sync_boost", "sw_therm_slowdown", "hw_therm_slowdown", "hw_power_brake")
ECC = (
    *("sram_correctable", "sram_uncorrectable_parity", "sram_uncorrectable_secded"),
    *("dram_correctable", "dram_uncorrectable"),
)
UUID = "GPU-00000000-0000-0000-0000-%012d"
# Path -> text, of a healthy H200 that is idle. A text of None: the driver has no such element.
HEALTHY: dict[str, str | None] = {
    "product_name": "NVIDIA H200",
    "product_architecture": "Hopper",
    "persistence_mode": "Enabled",
    "mig_mode/current_mig": "Disabled",
    "mig_mode/pending_mig": "Disabled",
    "gpu_recovery_action": "None",
    "pci/pci_gpu_link_info/pcie_gen/max_link_gen": "5",
    "pci/pci_gpu_link_info/pcie_gen/current_link_gen": "1",
    "pci/pci_gpu_link_info/link_widths/max_link_width": "16x",
    "pci/replay_counter": "3",
    **{
        f"clocks_event_reasons/clocks_event_reason_{name}": "Active" if name == "gpu_idle" else "Not Active"
        for name in REASONS
    },
    **{f"clocks_event_reasons_counters/clocks_event_reasons_counters_{name}": "0 us" for name in COUNTERS},
    "cc_protected_memory_usage/total": "0 MiB",
    "ecc_mode/current_ecc": "Enabled",
    "ecc_mode/pending_ecc": "Enabled",
    **{f"ecc_errors/{kind}/{name}": "0" for kind in ("volatile", "aggregate") for name in ECC},
    "ecc_errors/aggregate/sram_threshold_exceeded": "No",
    "ecc_errors/channel_repair_pending": "No",
    "ecc_errors/tpc_repair_pending": "No",
    "ecc_errors/unrepairable_memory": "No",
    "retired_pages/pending_retirement": "N/A",
    "remapped_rows/remapped_row_unc": "0",
    "remapped_rows/remapped_row_pending": "No",
    "remapped_rows/remapped_row_failure": "No",
    "temperature/gpu_temp": "38 C",
    "temperature/gpu_temp_tlimit": "50 C",
    "temperature/gpu_temp_slow_tlimit_threshold": "-2 C",
    "gpu_power_readings/current_power_limit": "700.00 W",
    "gpu_power_readings/default_power_limit": "700.00 W",
    "clocks/graphics_clock": "405 MHz",
    "applications_clocks/graphics_clock": "1980 MHz",
    "default_applications_clocks/graphics_clock": "1980 MHz",
    "fabric/state": "Completed",
    "fabric/status": "Success",
    "fabric/cliqueId": "0",
    "fabric/clusterUuid": "00000000-0000-0000-0000-000000000000",
    "fabric/health/summary": "N/A",
    "fabric/health/bandwidth": "N/A",
    "fabric/health/route_unhealthy": "N/A",
    "fabric/health/partition_assigned": "N/A",
}


def xml(addresses: Sequence[str], changes: Mapping[int, Mapping[str, str | None]] | None = None) -> str:
    """``-q -x`` of GPUs at these addresses.   changes: place of a GPU -> path -> what it says instead."""
    gpus = [_gpu(index, pci, (changes or {}).get(index, {})) for index, pci in enumerate(addresses)]
    head = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n'
    return head + "<nvidia_smi_log>\n" + "".join(gpus) + "</nvidia_smi_log>\n"


def _gpu(index: int, pci: str, changes: Mapping[str, str | None]) -> str:
    tree: dict[str, Any] = {}
    for path, text in {"uuid": UUID % index, **HEALTHY, **changes}.items():
        *folders, name = path.split("/")
        at = tree
        for folder in folders:
            at = at.setdefault(folder, {})
        if text is not None:
            at[name] = text
    return f'<gpu id="0000{pci.upper()}">{_elements(tree)}</gpu>\n'


def _elements(tree: Mapping[str, Any]) -> str:
    return "".join(
        f"<{name}>{_elements(value) if isinstance(value, Mapping) else value}</{name}>" for name, value in tree.items()
    )


def status(
    gpus: int, links: int = 18, speed: str = "26.562 GB/s", odd: Mapping[tuple[int, int], str] | None = None
) -> str:
    """``nvlink -s``.   odd: (GPU, link) -> what it says instead of the speed."""
    return "".join(
        f"GPU {n}: NVIDIA H200 (UUID: {UUID % n})\n"
        + "".join(f"\t Link {link}: {(odd or {}).get((n, link), speed)}\n" for link in range(links))
        for n in range(gpus)
    )


def errors(gpus: int, links: int = 18, odd: Mapping[tuple[int, int, str], int] | None = None) -> str:
    """``nvlink -e`` of NVLink 4.   odd: (GPU, link, counter) -> count."""
    names = ("Replay Errors", "Recovery Errors", "CRC Errors")
    return "".join(
        f"GPU {n}: NVIDIA H200 (UUID: {UUID % n})\n"
        + "".join(
            "".join(f"\t Link {link}: {name}: {(odd or {}).get((n, link, name), 0)}\n" for name in names) + "\n"
            for link in range(links)
        )
        for n in range(gpus)
    )
