# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Answers of nvidia-smi for tests: the elements of ``-q -x`` that health is judged by, as driver 580 has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element, fromstring, tostring

REASONS = (
    *("gpu_idle", "sw_power_cap", "hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"),
    *("sync_boost", "sw_thermal_slowdown"),
)
_PART = "clocks_event_reasons_counters_"
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


Changes = Mapping[str, "str | None"]
_NO_FABRIC: dict[str, str | None] = {path: "N/A" for path in HEALTHY if path.startswith("fabric/")}
_DEPRECATED = "Requested functionality has been deprecated"
_NO_T_LIMIT: dict[str, str | None] = {
    "temperature/gpu_temp_tlimit": "N/A",
    "temperature/gpu_temp_slow_tlimit_threshold": None,
    "temperature/gpu_temp_slow_threshold": "89 C",
}
_NO_APPLICATION_CLOCKS = {path: _DEPRECATED for path in HEALTHY if path.endswith("applications_clocks/graphics_clock")}
_ONE_SRAM_COUNTER: dict[str, str | None] = {
    path: None for path in HEALTHY if path.endswith(("_parity", "_secded", "threshold_exceeded", "_repair_pending"))
}
_ONE_SRAM_COUNTER |= {f"ecc_errors/{kind}/sram_uncorrectable": "0" for kind in ("volatile", "aggregate")}
# GPU and driver -> the driver's version, and what a healthy GPU has otherwise than HEALTHY.
LAYOUTS: dict[str, tuple[str, Changes]] = {
    "H200, 580": ("580.159.04", {}),
    "H200, 580, clocks deprecated": ("580.159.04", {**_NO_APPLICATION_CLOCKS}),
    "H100, 570": (
        "570.86.15",
        {
            "product_name": "NVIDIA H100 80GB HBM3",
            **{path: None for path in HEALTHY if "reasons_counters" in path or path.endswith("_repair_pending")},
            "ecc_errors/unrepairable_memory": None,
            "gpu_reset_status/reset_required": _DEPRECATED,
        },
    ),
    "A100, 535": (
        "535.183.01",
        {
            "product_name": "NVIDIA A100-SXM4-80GB",
            "product_architecture": "Ampere",
            **{path: None for path in HEALTHY if "reasons_counters" in path or path.startswith("fabric/")},
            **_ONE_SRAM_COUNTER,
            **_NO_T_LIMIT,
            "ecc_errors/unrepairable_memory": None,
            "gpu_recovery_action": None,
            "gpu_reset_status/reset_required": "No",
            "gpu_reset_status/drain_and_reset_recommended": "No",
            "cc_protected_memory_usage/total": "N/A",
        },
    ),
    "T4, 595": (
        "595.91.07",
        {
            "product_name": "Tesla T4",
            "product_architecture": "Turing",
            **{path: None for path in HEALTHY if path.startswith("remapped_rows/")},
            **_ONE_SRAM_COUNTER,
            **_NO_T_LIMIT,
            **_NO_FABRIC,
            **_NO_APPLICATION_CLOCKS,
            "ecc_errors/unrepairable_memory": None,
            "mig_mode/current_mig": "N/A",
            "mig_mode/pending_mig": "N/A",
            "retired_pages/multiple_single_bit_retirement/retired_count": "2",
            "retired_pages/double_bit_retirement/retired_count": "1",
            "retired_pages/pending_retirement": "No",
        },
    ),
    "L40S, 595": (
        "595.91.07",
        {
            "product_name": "NVIDIA L40S",
            "product_architecture": "Ada Lovelace",
            **_NO_FABRIC,
            **_NO_APPLICATION_CLOCKS,
            "ecc_errors/unrepairable_memory": "N/A",
            "mig_mode/current_mig": "N/A",
            "mig_mode/pending_mig": "N/A",
        },
    ),
    "GB200, 610": (
        "610.57.04",
        {
            "product_name": "NVIDIA GB200",
            "product_architecture": "Blackwell",
            **_NO_APPLICATION_CLOCKS,
            **{path: None for path in HEALTHY if path.startswith("gpu_power_readings/")},
            "gpu_power_readings/gpu_ceiling_power_limit/current_power_limit": "1200.00 W",
            "gpu_power_readings/gpu_ceiling_power_limit/default_power_limit": "1200.00 W",
            "fabric/clusterUuid": "00000001-0000-0000-0000-000000000001",
            "fabric/health/summary": "Healthy",
            "fabric/health/bandwidth": "Full",
            "fabric/health/route_recovery_in_progress": "False",
            "fabric/health/route_unhealthy": "False",
            "fabric/health/access_timeout_recovery": "False",
            "fabric/health/partition_assigned": "N/A",
        },
    ),
}
# Begin of a path -> the check that needs it; a value that the GPU has not (N/A) is needed by none.
CHECKS = {
    "gpu_recovery_action": "recovery_action",
    "gpu_reset_status/": "recovery_action",
    "uuid": "pcie_replay",
    "pci/replay_counter": "pcie_replay",
    "pci/pci_gpu_link_info/pcie_gen/max_link_gen": "pcie_replay",
    "pci/pci_gpu_link_info/link_widths/max_link_width": "pcie_replay",
    **{f"clocks_event_reasons/clocks_event_reason_{name}": "throttle" for name in REASONS if "slowdown" in name},
    **{f"clocks_event_reasons_counters/{_PART}{name}": "throttle" for name in COUNTERS if name != "sync_boost"},
    "cc_protected_memory_usage/total": "confidential_computing",
    "ecc_mode/": "ecc",
    **{f"ecc_errors/{kind}/{bits}": "ecc" for kind in ("volatile", "aggregate") for bits in ("sram_u", "sram_c", "d")},
    "ecc_errors/aggregate/sram_threshold": "memory_repair",
    "ecc_errors/channel": "memory_repair",
    "ecc_errors/tpc": "memory_repair",
    "ecc_errors/unrepairable": "memory_repair",
    "retired_pages/multiple_single_bit_retirement/retired_count": "row_remap",
    "retired_pages/double_bit_retirement/retired_count": "row_remap",
    "retired_pages/pending_retirement": "row_remap",
    **{f"remapped_rows/remapped_row_{name}": "row_remap" for name in ("unc", "pending", "failure")},
    "temperature/gpu_temp": "temperature",
    "gpu_power_readings/current_power_limit": "power_limit",
    "gpu_power_readings/default_power_limit": "power_limit",
    "gpu_power_readings/gpu_ceiling_power_limit/current": "power_limit",
    "gpu_power_readings/gpu_ceiling_power_limit/default": "power_limit",
    "applications_clocks/graphics_clock": "application_clocks",
    "default_applications_clocks/graphics_clock": "application_clocks",
    "mig_mode/": "mig",
    **{f"fabric/{name}": "fabric_state" for name in ("state", "status", "cliqueId", "clusterUuid", "health/summary")},
    "fabric/health/bandwidth": "fabric_state",
    "fabric/health/route_unhealthy": "fabric_state",
}
# Begin like one of these, and are other elements.
_OTHERS = ("remapped_rows/remapped_row_unc_inactive", "temperature/gpu_temp_max")
DAMAGES = (None, "N/A", "Not Supported", "Unknown Error", "[GPU requires reset]", "garb@ge")


def silent(text: str, states: Callable[[str], Mapping[str, str]]) -> tuple[int, list[str]]:
    """How many elements of the first GPU were damaged, and which damages left a check ok that needs the element.

    states: of an answer: check -> state.
    """
    root = fromstring(text)
    gpu = root.find("gpu")
    assert gpu is not None
    elements, left = 0, []
    for path, parent, element in list(_leaves(gpu)):
        check = next((name for start, name in CHECKS.items() if path.startswith(start)), None)
        before = (element.text or "").strip()
        if check is None or before in ("", "N/A", _DEPRECATED) or path.startswith(_OTHERS):
            continue
        elements += 1
        # Any text may name a GPU.
        for damage in DAMAGES[:-1] if path == "uuid" else DAMAGES:
            place = list(parent).index(element)
            element.text = damage
            if damage is None:
                parent.remove(element)
            if states(tostring(root, "unicode"))[f"node_health.{check}"] == "ok":
                left.append(f"{path}: {damage}")
            element.text = before
            if damage is None:
                parent.insert(place, element)
    return elements, left


def _leaves(element: Element, above: str = "") -> Iterator[tuple[str, Element, Element]]:
    """(path, parent, element) of each element that holds no others."""
    for child in element:
        path = above + child.tag
        if len(child):
            yield from _leaves(child, path + "/")
        else:
            yield path, element, child


def xml(
    addresses: Sequence[str], changes: Mapping[int, Changes] | None = None, driver: str | None = "580.159.04"
) -> str:
    """``-q -x`` of GPUs at these addresses.   changes: place of a GPU -> path -> what it says instead."""
    gpus = [_gpu(index, pci, (changes or {}).get(index, {})) for index, pci in enumerate(addresses)]
    head = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n'
    version = f"<driver_version>{driver}</driver_version>\n" if driver else ""
    return head + "<nvidia_smi_log>\n" + version + "".join(gpus) + "</nvidia_smi_log>\n"


def _gpu(index: int, pci: str, changes: Changes) -> str:
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
