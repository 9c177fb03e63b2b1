# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What ``nvidia-smi -q -x`` says of the health of each GPU, by drivers 535 to 595.

Three answers are not the same: an element that a driver does not have, one that says N/A, and one that says that the
GPU does not answer. The first two are None here, the third is in ``lost``: nobody knows what it would have said.
Sources: captured outputs of drivers 570 and 580; the documents of NVML for the names of other drivers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, FrozenSet, List, Mapping, Optional, Tuple
from xml.etree.ElementTree import Element

from ..core.finding import printable
from ..core.host import ParseError
from ..machine.gpu import parse_markup
from ..machine.pci import parse_address

COMMAND = ("nvidia-smi", "-q", "-x")
# GPUs of one node, and characters of a value that is quoted.
_GPUS, _TEXT = 64, 80
_NOTHING = ("", "n/a", "[n/a]", "not supported", "requested functionality has been deprecated", "not available")
_UNREAD = ("unknown error", "gpu is lost", "gpu requires reset", "err!", "insufficient permissions")
_NUMBER = re.compile(r"-?[0-9]{1,19}(\.[0-9]{1,6})?")
_YES, _NO = ("yes", "active", "enabled", "true"), ("no", "not active", "disabled", "false")

# Reasons that slow a GPU for a cause outside of the job, as the elements of every driver end.
SLOWED = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
# The cumulative ones of them: the name of the counter's element -> the reason. Driver 580 has them, 570 has not.
_COUNTERS = {
    "sw_power_cap": "sw_power_cap",
    "sw_therm_slowdown": "sw_thermal_slowdown",
    "hw_therm_slowdown": "hw_thermal_slowdown",
    "hw_power_brake": "hw_power_brake_slowdown",
}
# Element -> flag.
_FLAGS = {
    "remapped_rows/remapped_row_pending": "row_pending",
    "remapped_rows/remapped_row_failure": "row_failure",
    "ecc_errors/aggregate/sram_threshold_exceeded": "sram_threshold",
    "ecc_errors/unrepairable_memory": "unrepairable",
    "ecc_errors/channel_repair_pending": "channel_pending",
    "ecc_errors/tpc_repair_pending": "tpc_pending",
    "retired_pages/pending_retirement": "retirement_pending",
    "gpu_reset_status/reset_required": "reset_required",
    "gpu_reset_status/drain_and_reset_recommended": "drain_and_reset",
}
_ECC = (
    *("sram_correctable", "sram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_secded"),
    *("dram_correctable", "dram_uncorrectable"),
)


@dataclass(frozen=True)
class Gpu:
    """One <gpu>; None, or no key, where the driver has no such element or says N/A.

    recovery: what the driver asks for (gpu_recovery_action), as it words it.
    flags: values of _FLAGS that are said -> whether they are set.
    ecc, ecc_pending: whether ECC is on now, and after the next reset.   volatile, aggregate: its counters.
    rows: rows remapped for uncorrectable errors.   reasons: those of SLOWED that are active now.
    slowed_us: reason -> microseconds since the driver was loaded.
    power_limit, power_default: watts.   clock, clock_default: MHz of the application clock.
    temperature: degrees Celsius, and of what it may be: (is, at most). With ``margin`` the two are distances to the
        limit (T.Limit), of which the first must not come down to the second.
    replays: of PCIe, since the GPU was reset.   gen, width: what its PCIe link can, which an idle one does not show.
    protected_mib: memory that confidential computing protects.   fabric: state, status, cliqueId, clusterUuid.
    fabric_health: element -> value.   persistence: persistence mode.
    lost: "element: what it said" of each that could not be asked.
    serial, part, firmware: as whoever replaces the GPU is asked for them; firmware is the VBIOS.
    """

    pci: str
    uuid: Optional[str] = None
    product: Optional[str] = None
    serial: Optional[str] = None
    part: Optional[str] = None
    firmware: Optional[str] = None
    architecture: Optional[str] = None
    recovery: Optional[str] = None
    flags: Mapping[str, bool] = field(default_factory=dict)
    ecc: Optional[bool] = None
    ecc_pending: Optional[bool] = None
    volatile: Mapping[str, int] = field(default_factory=dict)
    aggregate: Mapping[str, int] = field(default_factory=dict)
    rows: Optional[int] = None
    reasons: FrozenSet[str] = frozenset()
    slowed_us: Mapping[str, int] = field(default_factory=dict)
    power_limit: Optional[float] = None
    power_default: Optional[float] = None
    clock: Optional[float] = None
    clock_default: Optional[float] = None
    temperature: Optional[Tuple[float, float]] = None
    margin: Optional[Tuple[float, float]] = None
    mig: Optional[bool] = None
    mig_pending: Optional[bool] = None
    replays: Optional[int] = None
    gen: Optional[int] = None
    width: Optional[int] = None
    protected_mib: Optional[int] = None
    fabric: Mapping[str, str] = field(default_factory=dict)
    fabric_health: Mapping[str, str] = field(default_factory=dict)
    persistence: Optional[bool] = None
    lost: Tuple[str, ...] = ()


def parse(text: str) -> List[Gpu]:
    """In the order of nvidia-smi; [] where it lists none. Raises ParseError for what is no answer at all."""
    found = parse_markup(text, "nvidia_smi_log").findall("gpu")
    if len(found) > _GPUS:
        raise ParseError("the XML lists %d GPUs, expected %d at most" % (len(found), _GPUS))
    return [_gpu(element) for element in found]


class _Reader:
    """Values of one element, by path; what it does not understand or may not say is kept in ``lost``."""

    def __init__(self, element: Element) -> None:
        self._element = element
        self.lost: List[str] = []

    def text(self, *paths: str) -> Optional[str]:
        """Of the first of these elements that says something."""
        for path in paths:
            said = (self._element.findtext(path) or "").strip()
            word = said.lower().strip("[]")
            if word in _UNREAD:
                self._miss(path, said)
                return None
            if word not in _NOTHING:
                return printable(said[:_TEXT])
        return None

    def number(self, *paths: str) -> Optional[float]:
        """Without its unit."""
        said = self.text(*paths)
        if said is None:
            return None
        match = _NUMBER.match(said)
        if match is None:
            self._miss(paths[0], said)
            return None
        return float(match.group(0))

    def count(self, *paths: str) -> Optional[int]:
        """A counter: exact up to 64 bits, which a float is not."""
        said = self.text(*paths)
        word = (said or "").split(" ")[0].rstrip("x")
        if said is not None and not (word.isascii() and word.isdigit() and len(word) < 20):
            self._miss(paths[0], said)
            return None
        return None if said is None else int(word)

    def flag(self, path: str) -> Optional[bool]:
        said = self.text(path)
        word = (said or "").lower()
        if said is not None and word not in _YES + _NO:
            self._miss(path, said)
            return None
        return None if said is None else word in _YES

    def children(self, path: str) -> Dict[str, str]:
        """Elements of one that hold no others and say something."""
        names = [child.tag for child in self._element.findall(path + "/*") if not len(child)][:_GPUS]
        said = {name: self.text("%s/%s" % (path, name)) for name in names}
        return {name: value for name, value in said.items() if value is not None}

    def _miss(self, path: str, said: str) -> None:
        self.lost.append(printable("%s: %s" % (path, said[:_TEXT])))


def _gpu(element: Element) -> Gpu:
    said = _Reader(element)
    flags = {name: said.flag(path) for path, name in _FLAGS.items()}
    pair = ("temperature/gpu_temp_tlimit", "temperature/gpu_temp_slow_tlimit_threshold")
    absolute = ("temperature/gpu_temp", "temperature/gpu_temp_slow_threshold")
    power = ("gpu_power_readings/", "power_readings/")
    limits = ("current_power_limit", "power_limit")
    return Gpu(
        pci=parse_address(element.get("id", "")),
        uuid=said.text("uuid"),
        product=said.text("product_name"),
        serial=said.text("serial"),
        part=said.text("gpu_part_number", "board_part_number"),
        firmware=said.text("vbios_version"),
        architecture=said.text("product_architecture"),
        recovery=said.text("gpu_recovery_action"),
        flags={name: value for name, value in flags.items() if value is not None},
        ecc=said.flag("ecc_mode/current_ecc"),
        ecc_pending=said.flag("ecc_mode/pending_ecc"),
        volatile=_ecc(said, "volatile"),
        aggregate=_ecc(said, "aggregate"),
        rows=said.count("remapped_rows/remapped_row_unc"),
        reasons=_reasons(said),
        slowed_us=_slowed(said),
        power_limit=said.number(*(group + name for group in power for name in limits)),
        power_default=said.number(*(group + "default_power_limit" for group in power)),
        clock=said.number("applications_clocks/graphics_clock"),
        clock_default=said.number("default_applications_clocks/graphics_clock"),
        temperature=_pair(said, absolute),
        margin=_pair(said, pair),
        mig=said.flag("mig_mode/current_mig"),
        mig_pending=said.flag("mig_mode/pending_mig"),
        replays=said.count("pci/replay_counter"),
        gen=said.count("pci/pci_gpu_link_info/pcie_gen/max_link_gen"),
        width=said.count("pci/pci_gpu_link_info/link_widths/max_link_width"),
        protected_mib=said.count("cc_protected_memory_usage/total"),
        fabric=said.children("fabric"),
        fabric_health=said.children("fabric/health"),
        persistence=said.flag("persistence_mode"),
        lost=tuple(said.lost),
    )


def _pair(said: _Reader, paths: Tuple[str, str]) -> Optional[Tuple[float, float]]:
    first, second = said.number(paths[0]), said.number(paths[1])
    return None if first is None or second is None else (first, second)


def _ecc(said: _Reader, kind: str) -> Dict[str, int]:
    counts = {name: said.count("ecc_errors/%s/%s" % (kind, name)) for name in _ECC}
    return {name: count for name, count in counts.items() if count is not None}


def _reasons(said: _Reader) -> FrozenSet[str]:
    """Drivers before 535 call them throttle reasons."""
    prefixes = ("clocks_event_reasons/clocks_event_reason_", "clocks_throttle_reasons/clocks_throttle_reason_")
    return frozenset(name for name in SLOWED if any(said.flag(prefix + name) for prefix in prefixes))


def _slowed(said: _Reader) -> Dict[str, int]:
    path = "clocks_event_reasons_counters/clocks_event_reasons_counters_"
    counts = {reason: said.count(path + name) for name, reason in _COUNTERS.items()}
    return {reason: count for reason, count in counts.items() if count is not None}
