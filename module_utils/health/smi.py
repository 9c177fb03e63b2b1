# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parse the health of each GPU in ``nvidia-smi -q -x`` of drivers 535 to 610.

An element without a value is None, whether it is absent, N/A, not supported or deprecated. One that failed
(``Unknown Error``) or has another form is in ``lost``, too. ``unread`` has what a check needs and lacks.
Sources: gpu_elements.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple, TypeVar
from xml.etree.ElementTree import Element

from ..core.finding import printable
from ..core.host import ParseError
from ..core.number import whole
from ..machine.gpu import ABSENT, FAILED, parse_markup
from ..machine.pci import parse_address
from . import gpu_elements

COMMAND = ("nvidia-smi", "-q", "-x")
# GPUs of one node, and characters of a value that is quoted.
_GPUS, _TEXT = 64, 80
_NUMBER = re.compile(r"-?[0-9]{1,19}(\.[0-9]{1,6})?( [A-Za-z%]{1,4})?")
# More than this is a counter that no GPU reaches: all-ones of 64 bits stand for a count that failed.
_LARGEST = (1 << 64) - 1
_YES = dict.fromkeys(("yes", "active", "enabled", "true"), True)
_NO = dict.fromkeys(("no", "not active", "disabled", "false"), False)
T = TypeVar("T")

# Reasons that slow a GPU for a cause outside of the job, as the elements of every driver end.
SLOWED = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
# The cumulative ones of them: the name of the counter's element -> the reason. Drivers before 575 have none.
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
    "retired_pages/pending_blacklist": "retirement_pending",
    "gpu_reset_status/reset_required": "reset_required",
    "gpu_reset_status/drain_and_reset_recommended": "drain_and_reset",
}
_ECC = (
    *("sram_correctable", "sram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_secded"),
    *("dram_correctable", "dram_uncorrectable"),
)


@dataclass(frozen=True)
class Gpu:
    """One <gpu>; None, or no key, if there is no value.

    driver: its version.   unread: check -> elements that it needs and that have no value. A check without a key needs
        none: this GPU or its driver cannot have them.

    recovery: what the driver asks for (gpu_recovery_action), as it words it.
    flags: values of _FLAGS that were read -> whether they are set.
    ecc, ecc_pending: whether ECC is on now, and after the next reset.   volatile, aggregate: its counters.
    rows: rows remapped for uncorrectable errors.   retired: pages retired for single and for double bit errors.
    reasons: those of SLOWED that are active now; None: not judged.
    slowed_us: reason -> microseconds since the driver was loaded.
    power_limit, power_default: watts.   clock, clock_default: MHz of the application clock.
    temperature: degrees Celsius, and of what it may be: (is, at most). With ``margin`` the two are distances to the
        limit (T.Limit), of which the first must not come down to the second.
    replays: of PCIe, since the GPU was reset.   gen, width: what its PCIe link can, which an idle one does not show.
    protected_mib: memory that confidential computing protects.   fabric: state, status, cliqueId, clusterUuid.
    fabric_health: element -> value.   persistence: persistence mode.
    lost: "element: its text" of each that failed or has another form.
    serial, part, firmware: as the vendor wants them for a replacement; firmware is the VBIOS.
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
    retired: Tuple[Optional[int], Optional[int]] = (None, None)
    reasons: Optional[FrozenSet[str]] = frozenset()
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
    driver: str = ""
    unread: Mapping[str, Tuple[str, ...]] = field(default_factory=lambda: gpu_elements.missing_elements((), None, ()))


def parse(text: str) -> List[Gpu]:
    """Return the GPUs in the order of nvidia-smi; [] if it lists none. Raises ParseError if it is no such XML."""
    root = parse_markup(text, "nvidia_smi_log")
    # Drivers from 610 on have both.
    driver = printable((root.findtext("driver_version") or root.findtext("kmd_version") or "").strip()[:_TEXT])
    found = root.findall("gpu")
    if len(found) > _GPUS:
        raise ParseError("the XML lists %d GPUs, expected %d at most" % (len(found), _GPUS))
    return [_gpu(element, driver) for element in found]


class _Reader:
    """Read values of one element by path.

    values: the paths that have a value.   deprecated: those that the driver reports as such.
    lost: "path: text" of each that failed or is not understood.
    """

    def __init__(self, element: Element) -> None:
        self._element = element
        self.values: Set[str] = set()
        self.deprecated: Set[str] = set()
        self.lost: List[str] = []

    def _parsed(self, paths: Sequence[str], parse: Callable[[str], Optional[T]]) -> Optional[T]:
        """Return the first of these elements that has a value; None if it has another form."""
        for path in paths:
            text = (self._element.findtext(path) or "").strip()
            word = text.lower().strip("[]")
            if word in ABSENT:
                self.deprecated.update([path] if "deprecated" in word else ())
                continue
            value = None if word in FAILED else parse(text)
            if value is None:
                self.lost.append(printable("%s: %s" % (path, text[:_TEXT])))
            else:
                self.values.add(path)
            return value
        return None

    def text(self, *paths: str) -> Optional[str]:
        return self._parsed(paths, _text)

    def number(self, *paths: str) -> Optional[float]:
        """Return the number without its unit."""
        return self._parsed(paths, lambda text: float(text.split(" ")[0]) if _NUMBER.fullmatch(text) else None)

    def count(self, *paths: str) -> Optional[int]:
        """Return a counter, exact up to 64 bits, which a float is not."""
        return self._parsed(paths, _count)

    def flag(self, path: str) -> Optional[bool]:
        return self._parsed([path], lambda text: {**_YES, **_NO}.get(text.lower()))

    def children(self, path: str) -> Dict[str, str]:
        """Return values of an element's children that have no children."""
        names = [child.tag for child in self._element.findall(path + "/*") if not len(child)][:_GPUS]
        texts = {name: self._parsed(["%s/%s" % (path, name)], _FORMS.get(name, _text)) for name in names}
        return {name: value for name, value in texts.items() if value is not None}


def _text(text: str) -> str:
    return printable(text[:_TEXT])


# Elements whose values GPUs and nodes are compared by.
_FORMS: Mapping[str, Callable[[str], Optional[str]]] = {
    "cliqueId": lambda text: None if whole(text) is None else text,
    "clusterUuid": lambda text: text if re.fullmatch(r"[0-9a-fA-F-]{36}", text) else None,
}


def _count(text: str) -> Optional[int]:
    """``12``, ``12 us`` or ``16x``. All-ones of 64 bits are not a count."""
    number, _blank, unit = text.partition(" ")
    found = whole(number[:-1] if number.endswith("x") else number)
    return None if found is None or found >= _LARGEST or not (unit.isalpha() or not unit) else found


def _gpu(element: Element, driver: str) -> Gpu:
    said = _Reader(element)
    flags: Dict[str, bool] = {}
    for path, name in _FLAGS.items():
        flag = said.flag(path)
        if flag is not None:
            flags[name] = flag or flags.get(name, False)
    values = {name: read(said) for name, read in _FIELDS.items()}
    gpu = Gpu(parse_address(element.get("id", "")), flags=flags, driver=driver, **values)
    lacks = gpu_elements.lacking(gpu.product, gpu.architecture)
    unread = gpu_elements.missing_elements(lacks, gpu_elements.version(driver), said.values, said.deprecated)
    return replace(gpu, lost=tuple(said.lost), unread=unread)


def _pair(said: _Reader, one: str, other: str) -> Optional[Tuple[float, float]]:
    first, second = said.number(one), said.number(other)
    return None if first is None or second is None else (first, second)


def _ecc(said: _Reader, kind: str) -> Dict[str, int]:
    counts = {name: said.count("ecc_errors/%s/%s" % (kind, name)) for name in _ECC}
    return {name: count for name, count in counts.items() if count is not None}


def _reasons(said: _Reader) -> FrozenSet[str]:
    """Return the active reasons. Drivers before 535 call them throttle reasons."""
    prefixes = ("clocks_event_reasons/clocks_event_reason_", "clocks_throttle_reasons/clocks_throttle_reason_")
    return frozenset(name for name in SLOWED if any(said.flag(prefix + name) for prefix in prefixes))


def _slowed(said: _Reader) -> Dict[str, int]:
    path = "clocks_event_reasons_counters/clocks_event_reasons_counters_"
    counts = {reason: said.count(path + name) for name, reason in _COUNTERS.items()}
    return {reason: count for reason, count in counts.items() if count is not None}


# Fields of Gpu, as they are read.
_FIELDS: Mapping[str, Callable[[_Reader], Any]] = {
    "uuid": lambda said: said.text("uuid"),
    "product": lambda said: said.text("product_name"),
    "serial": lambda said: said.text("serial"),
    "part": lambda said: said.text("gpu_part_number", "board_part_number"),
    "firmware": lambda said: said.text("vbios_version"),
    "architecture": lambda said: said.text("product_architecture"),
    "recovery": lambda said: said.text("gpu_recovery_action"),
    "ecc": lambda said: said.flag("ecc_mode/current_ecc"),
    "ecc_pending": lambda said: said.flag("ecc_mode/pending_ecc"),
    "volatile": lambda said: _ecc(said, "volatile"),
    "aggregate": lambda said: _ecc(said, "aggregate"),
    "rows": lambda said: said.count("remapped_rows/remapped_row_unc"),
    "retired": lambda said: (
        said.count("retired_pages/multiple_single_bit_retirement/retired_count"),
        said.count("retired_pages/double_bit_retirement/retired_count"),
    ),
    "reasons": _reasons,
    "slowed_us": _slowed,
    "power_limit": lambda said: said.number(*gpu_elements.POWER_LIMIT),
    "power_default": lambda said: said.number(*gpu_elements.POWER_DEFAULT),
    "clock": lambda said: said.number("applications_clocks/graphics_clock"),
    "clock_default": lambda said: said.number("default_applications_clocks/graphics_clock"),
    "temperature": lambda said: _pair(said, "temperature/gpu_temp", "temperature/gpu_temp_slow_threshold"),
    "margin": lambda said: _pair(said, "temperature/gpu_temp_tlimit", "temperature/gpu_temp_slow_tlimit_threshold"),
    "mig": lambda said: said.flag("mig_mode/current_mig"),
    "mig_pending": lambda said: said.flag("mig_mode/pending_mig"),
    "replays": lambda said: said.count("pci/replay_counter"),
    "gen": lambda said: said.count("pci/pci_gpu_link_info/pcie_gen/max_link_gen"),
    "width": lambda said: said.count("pci/pci_gpu_link_info/link_widths/max_link_width"),
    "protected_mib": lambda said: said.count("cc_protected_memory_usage/total"),
    "fabric": lambda said: said.children("fabric"),
    "fabric_health": lambda said: said.children("fabric/health"),
    "persistence": lambda said: said.flag("persistence_mode"),
}
