# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""List which elements of ``nvidia-smi -q -x`` each check of a GPU needs.

An element is needed if the GPU can have it and its driver prints it. Product, architecture and driver version decide
that, never the absent value. Of a product, architecture or driver that is not known everything is needed.
Sources: outputs of drivers 515 to 610 on T4, A10G, A100, L40S, H100, H200, B200, GB200 and GB300; NVML API reference,
change log; NVIDIA dynamic page retirement; NVIDIA GPU memory error management.
"""

from __future__ import annotations

import re
from typing import Container, Dict, FrozenSet, NamedTuple, Optional, Tuple

from ..core.number import whole

# Version of a driver, as far as it is compared.
Version = Tuple[int, ...]
_BEFORE_AMPERE = ("Kepler", "Maxwell", "Pascal", "Volta", "Turing")
_BEFORE_HOPPER = (*_BEFORE_AMPERE, "Ampere", "Ada Lovelace")
_CONSUMER = re.compile(r"GeForce|TITAN|Jetson|Orin|Thor|GB10\b")
# Of Ampere and of the workstation boards of Blackwell.
_WITH_MIG = re.compile(r"A100|A800|A30\b|RTX PRO [56]000")
_HBM_SINCE_HOPPER = re.compile(r"\bG?[HB][0-9]{2,3}\b")


class Element(NamedTuple):
    """An element that a check needs.

    check: its name below ``node_health``.   path: below <gpu>; of several, with ``|`` between, one needs a value.
    feature: what the GPU must have for it; "" for every GPU.
    since: the first driver version that prints it.   until: the first that never does; (): every later one does. Before
        that, a driver that prints "deprecated" in its place does not have it.
    """

    check: str
    path: str
    feature: str = ""
    since: Version = ()
    until: Version = ()


_EVENT = "clocks_event_reasons/clocks_event_reason_"
_OLD_EVENT = "clocks_throttle_reasons/clocks_throttle_reason_"
_COUNTER = "clocks_event_reasons_counters/clocks_event_reasons_counters_"
_POWER = ("gpu_power_readings/", "gpu_power_readings/gpu_ceiling_power_limit/", "power_readings/")
POWER_LIMIT = tuple(group + name for group in _POWER for name in ("current_power_limit", "power_limit"))
POWER_DEFAULT = tuple(group + "default_power_limit" for group in _POWER)
_DRAM = ("sram_correctable", "dram_correctable", "dram_uncorrectable")
_SRAM = ("sram_uncorrectable_parity", "sram_uncorrectable_secded")

ELEMENTS = (
    Element("recovery_action", "gpu_recovery_action|gpu_reset_status/reset_required"),
    Element("recovery_action", "gpu_recovery_action", since=(570,)),
    Element("recovery_action", "gpu_recovery_action|gpu_reset_status/drain_and_reset_recommended", "row_remapper"),
    *(Element("ecc", path, "ecc") for path in ("uuid", "ecc_mode/current_ecc", "ecc_mode/pending_ecc")),
    *(Element("ecc", "ecc_errors/%s/%s" % (of, name), "ecc") for of in ("volatile", "aggregate") for name in _DRAM),
    *(
        Element("ecc", f"ecc_errors/{of}/{name}|ecc_errors/{of}/sram_uncorrectable", "ecc")
        for of in ("volatile", "aggregate")
        for name in _SRAM
    ),
    Element("row_remap", "remapped_rows/remapped_row_unc", "row_remapper"),
    Element("row_remap", "remapped_rows/remapped_row_pending", "row_remapper"),
    Element("row_remap", "remapped_rows/remapped_row_failure", "row_remapper"),
    Element("row_remap", "retired_pages/multiple_single_bit_retirement/retired_count", "page_retirement"),
    Element("row_remap", "retired_pages/double_bit_retirement/retired_count", "page_retirement"),
    Element("row_remap", "retired_pages/pending_retirement", "page_retirement"),
    Element("memory_repair", "ecc_errors/aggregate/sram_threshold_exceeded", "row_remapper", since=(550,)),
    Element("memory_repair", "ecc_errors/channel_repair_pending", "row_remapper", since=(580,)),
    Element("memory_repair", "ecc_errors/tpc_repair_pending", "row_remapper", since=(580,)),
    Element("memory_repair", "ecc_errors/unrepairable_memory", "unrepairable_flag", since=(580, 159)),
    Element("throttle", "uuid"),
    *(
        Element("throttle", "%s%s|%s%s" % (_EVENT, name, _OLD_EVENT, name))
        for name in ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
    ),
    *(
        Element("throttle", _COUNTER + name, since=(575,))
        for name in ("sw_power_cap", "sw_therm_slowdown", "hw_therm_slowdown", "hw_power_brake")
    ),
    Element("power_limit", "|".join(POWER_LIMIT)),
    Element("power_limit", "|".join(POWER_DEFAULT)),
    Element("application_clocks", "applications_clocks/graphics_clock", "application_clocks", until=(590,)),
    Element("application_clocks", "default_applications_clocks/graphics_clock", "application_clocks", until=(590,)),
    Element("temperature", "temperature/gpu_temp"),
    Element("temperature", "temperature/gpu_temp_tlimit|temperature/gpu_temp_slow_threshold"),
    Element("temperature", "temperature/gpu_temp_slow_tlimit_threshold|temperature/gpu_temp_slow_threshold"),
    Element("mig", "mig_mode/current_mig", "mig"),
    Element("mig", "mig_mode/pending_mig", "mig"),
    Element("confidential_computing", "cc_protected_memory_usage/total", "confidential_computing"),
    Element("pcie_replay", "uuid"),
    Element("pcie_replay", "pci/replay_counter"),
    Element("pcie_replay", "pci/pci_gpu_link_info/pcie_gen/max_link_gen"),
    Element("pcie_replay", "pci/pci_gpu_link_info/link_widths/max_link_width"),
    Element("fabric_state", "fabric/state", "fabric"),
    Element("fabric_state", "fabric/status", "fabric"),
    Element("fabric_state", "fabric/cliqueId", "fabric", since=(550,)),
    Element("fabric_state", "fabric/clusterUuid", "fabric", since=(550,)),
    Element("fabric_state", "fabric/health/summary", "fabric_health", since=(580,)),
    *(
        Element("fabric_state", "fabric/health/" + name, "nvlink_domain", since=(580,))
        for name in ("bandwidth", "route_recovery_in_progress", "route_unhealthy", "access_timeout_recovery")
    ),
)


def version(text: Optional[str]) -> Optional[Version]:
    """Return ``580.159.04`` as (580, 159, 4); None if it is not a version."""
    numbers = [whole(word) for word in (text or "").split(".")]
    known = tuple(number for number in numbers if number is not None)
    return known if len(known) == len(numbers) else None


def lacking(product: Optional[str], architecture: Optional[str]) -> FrozenSet[str]:
    """Return the features that such a GPU cannot have."""
    name, kind = product or "", architecture or ""
    consumer, old = _CONSUMER.search(name) is not None, kind in _BEFORE_AMPERE
    workstation = kind == "Blackwell" and "RTX" in name
    lacks = {
        "ecc": consumer,
        "page_retirement": consumer or not old,
        "row_remapper": consumer or old,
        "unrepairable_flag": bool(name) and (consumer or not _HBM_SINCE_HOPPER.search(name)),
        "application_clocks": consumer,
        "confidential_computing": consumer or kind in _BEFORE_HOPPER,
        "mig": consumer
        or old
        or kind == "Ada Lovelace"
        or ((kind == "Ampere" or workstation) and not _WITH_MIG.search(name)),
        "fabric": consumer or workstation or kind in _BEFORE_HOPPER,
        "fabric_health": consumer or workstation or kind in (*_BEFORE_HOPPER, "Hopper"),
        "nvlink_domain": bool(name) and not re.search(r"\bGB[23]00\b", name),
    }
    return frozenset(feature for feature, absent in lacks.items() if absent)


def missing_elements(
    lacks: Container[str], driver: Optional[Version], values: Container[str], deprecated: Container[str] = ()
) -> Dict[str, Tuple[str, ...]]:
    """Return check -> needed elements without a value, for every check that needs an element at all.

    lacks: as ``lacking`` returns it.   driver: its version, None: not known.   values: paths that have a value.
    deprecated: paths that the driver reports as deprecated.
    """
    found: Dict[str, Tuple[str, ...]] = {}
    for element in ELEMENTS:
        dropped = element.until and (element.path in deprecated or (driver is not None and driver >= element.until))
        printed = (driver is None or driver >= element.since) and not dropped
        if printed and element.feature not in lacks:
            paths = element.path.split("|")
            so_far = found.get(element.check, ())
            complete = any(path in values for path in paths) or paths[0] in so_far
            found[element.check] = so_far if complete else (*so_far, paths[0])
    return found
