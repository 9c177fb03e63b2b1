# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parse the health of each GPU in ``nvidia-smi -q -x`` of drivers 535 to 610.

An element without a value has no key, whether it is absent, N/A, not supported or deprecated. One that failed
(``Unknown Error``) or has another form is in ``lost``, too. ``unread`` has what a check needs and lacks: an element is
needed if the GPU can have it and its driver prints it. Product, architecture and driver version decide that, never the
absent value. Of a product, architecture or driver that is not known everything is needed.
Sources: outputs of drivers 515 to 610 on T4, A10G, A100, L40S, H100, H200, B200, GB200 and GB300; NVML API reference,
change log; NVIDIA GPU memory error management.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Callable, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Set, Tuple, TypeVar
from xml.etree.ElementTree import Element

from ..core.finding import printable
from ..core.host import ParseError
from ..core.number import whole
from ..machine.gpu import ABSENT, FAILED, parse_markup
from ..machine.pci import parse_address

COMMAND = ("nvidia-smi", "-q", "-x")
# GPUs of one node, and characters of a value that is quoted.
_GPUS, _TEXT = 64, 80
_NUMBER = re.compile(r"-?[0-9]{1,19}(\.[0-9]{1,6})?( [A-Za-z%]{1,4})?")
# More than this is a counter that no GPU reaches: all-ones of 64 bits stand for a count that failed.
_LARGEST = (1 << 64) - 1
_FLAG_WORDS = {
    **dict.fromkeys(("yes", "active", "enabled", "true"), True),
    **dict.fromkeys(("no", "not active", "disabled", "false"), False),
}
T = TypeVar("T")
# Version of a driver, as far as it is compared.
Version = Tuple[int, ...]
_BEFORE_AMPERE = ("Kepler", "Maxwell", "Pascal", "Volta", "Turing")
_BEFORE_HOPPER = (*_BEFORE_AMPERE, "Ampere", "Ada Lovelace")
_CONSUMER = re.compile(r"GeForce|TITAN|Jetson|Orin|Thor|GB10\b")
# Of Ampere and of the workstation boards of Blackwell.
_WITH_MIG = re.compile(r"A100|A800|A30\b|RTX PRO [56]000")
_HBM_SINCE_HOPPER = re.compile(r"\bG?[HB][0-9]{2,3}\b")


class Value(NamedTuple):
    """name: its key in the mapping of Gpu that ``form`` names (texts, counts, numbers, flags; "" for none).

    paths: below <gpu>, with ``|`` between; the first with a value counts.
    check: that needs it, its name below ``node_health``.   feature: what the GPU must have for it; "" for every GPU.
    since: the first driver version that prints it.   until: the first that never does; (): every later one does.
        Before that, a driver that prints "deprecated" in its place does not have it.
    unless: another path that makes it needless.
    """

    name: str
    form: str
    paths: str
    check: str = ""
    feature: str = ""
    since: Version = ()
    until: Version = ()
    unless: str = ""


# Reasons that slow a GPU for a cause outside of the job, as the elements of every driver end.
SLOWED = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
# How their counters' elements end.
_SLOWED_COUNTERS = {
    "sw_power_cap": "sw_power_cap",
    "sw_therm_slowdown": "sw_thermal_slowdown",
    "hw_therm_slowdown": "hw_thermal_slowdown",
    "hw_power_brake": "hw_power_brake_slowdown",
}
# Drivers before 535 call them throttle reasons.
_REASON = "clocks_event_reasons/clocks_event_reason_%s|clocks_throttle_reasons/clocks_throttle_reason_%s"
_COUNTER = "clocks_event_reasons_counters/clocks_event_reasons_counters_"
_POWER = ("gpu_power_readings/", "gpu_power_readings/gpu_ceiling_power_limit/", "power_readings/")
_POWER_LIMITS = (group + name for group in _POWER for name in ("current_power_limit", "power_limit"))
_CORRECTED = ("sram_correctable", "dram_correctable", "dram_uncorrectable")
_SRAM = ("sram_uncorrectable_parity", "sram_uncorrectable_secded")
_ECC = (("volatile ", "ecc_errors/volatile/"), ("ecc ", "ecc_errors/aggregate/"))
_LINK = "pci/pci_gpu_link_info/"
_SLOW, _TLIMIT = "temperature/gpu_temp_slow_threshold", "temperature/gpu_temp"
_RECOVERY, _RESET = "gpu_recovery_action", "gpu_reset_status/"
_ROUTES = ("bandwidth", "route_recovery_in_progress", "route_unhealthy", "access_timeout_recovery")
VALUES = (
    Value("uuid", "texts", "uuid", "throttle"),
    Value("", "", "uuid", "ecc", "ecc"),
    Value("", "", "uuid", "pcie_replay"),
    Value("product", "texts", "product_name"),
    Value("serial", "texts", "serial"),
    Value("part", "texts", "gpu_part_number|board_part_number"),
    Value("firmware", "texts", "vbios_version"),
    Value("architecture", "texts", "product_architecture"),
    Value("persistence", "flags", "persistence_mode"),
    Value("recovery", "texts", _RECOVERY, "recovery_action", since=(570,)),
    Value("reset_required", "flags", _RESET + "reset_required", "recovery_action", unless=_RECOVERY),
    Value("drain_and_reset", "flags", _RESET + "drain_and_reset_recommended", "recovery_action", "row_remapper",
          unless=_RECOVERY),
    Value("ecc", "flags", "ecc_mode/current_ecc", "ecc", "ecc"),
    Value("ecc_pending", "flags", "ecc_mode/pending_ecc", "ecc", "ecc"),
    *(Value(kind + name, "counts", path + name, "ecc", "ecc") for kind, path in _ECC for name in _CORRECTED),
    *(Value(kind + name, "counts", path + name, "ecc", "ecc", unless=path + "sram_uncorrectable")
      for kind, path in _ECC for name in _SRAM),
    *(Value(kind + "sram_uncorrectable", "counts", path + "sram_uncorrectable") for kind, path in _ECC),
    Value("rows", "counts", "remapped_rows/remapped_row_unc", "row_remap", "row_remapper"),
    # Before Ampere pages are retired instead.
    Value("row_pending", "flags", "remapped_rows/remapped_row_pending|retired_pages/pending_retirement", "row_remap",
          "row_remapper"),
    Value("row_failure", "flags", "remapped_rows/remapped_row_failure", "row_remap", "row_remapper"),
    Value("sram_threshold", "flags", "ecc_errors/aggregate/sram_threshold_exceeded", "memory_repair", "row_remapper",
          (550,)),
    Value("unrepairable", "flags", "ecc_errors/unrepairable_memory", "memory_repair", "unrepairable_flag", (580, 159)),
    Value("channel_pending", "flags", "ecc_errors/channel_repair_pending", "memory_repair", "row_remapper", (580,)),
    Value("tpc_pending", "flags", "ecc_errors/tpc_repair_pending", "memory_repair", "row_remapper", (580,)),
    *(Value(name, "flags", _REASON % (name, name), "throttle") for name in SLOWED),
    *(Value("slowed " + name, "counts", _COUNTER + end, "throttle", "", (575,))
      for end, name in _SLOWED_COUNTERS.items()),
    Value("power_limit", "numbers", "|".join(_POWER_LIMITS), "power_limit"),
    Value("power_default", "numbers", "|".join(group + "default_power_limit" for group in _POWER), "power_limit"),
    Value("clock", "numbers", "applications_clocks/graphics_clock", "application_clocks", "application_clocks",
          until=(590,)),
    Value("clock_default", "numbers", "default_applications_clocks/graphics_clock", "application_clocks",
          "application_clocks", until=(590,)),
    Value("temperature", "numbers", "temperature/gpu_temp", "temperature"),
    Value("temperature_limit", "numbers", _SLOW),
    Value("margin", "numbers", _TLIMIT + "_tlimit", "temperature", unless=_SLOW),
    Value("margin_limit", "numbers", _TLIMIT + "_slow_tlimit_threshold", "temperature", unless=_SLOW),
    Value("mig", "flags", "mig_mode/current_mig", "mig", "mig"),
    Value("mig_pending", "flags", "mig_mode/pending_mig", "mig", "mig"),
    Value("protected_mib", "counts", "cc_protected_memory_usage/total", "confidential_computing",
          "confidential_computing"),
    Value("replays", "counts", "pci/replay_counter", "pcie_replay"),
    Value("gen", "counts", _LINK + "pcie_gen/max_link_gen", "pcie_replay"),
    Value("width", "counts", _LINK + "link_widths/max_link_width", "pcie_replay"),
    *(Value("", "", "fabric/" + name, "fabric_state", "fabric") for name in ("state", "status")),
    *(Value("", "", "fabric/" + name, "fabric_state", "fabric", (550,)) for name in ("cliqueId", "clusterUuid")),
    Value("", "", "fabric/health/summary", "fabric_state", "fabric_health", (580,)),
    *(Value("", "", "fabric/health/" + name, "fabric_state", "nvlink_domain", (580,)) for name in _ROUTES),
)  # fmt: skip
NEEDED = sum(bool(value.check) for value in VALUES)


class _Reader:
    """Read values of one element by path.

    read: the paths that have a value.   deprecated: those that the driver reports as such.
    lost: "path: text" of each that failed or is not understood.
    """

    def __init__(self, element: Element) -> None:
        self._element = element
        self.read: Set[str] = set()
        self.deprecated: Set[str] = set()
        self.lost: List[str] = []

    def _parsed(self, paths: str, parse: Callable[[str], Optional[T]]) -> Optional[T]:
        """Return the first of these elements that has a value; None if it has another form."""
        for path in paths.split("|"):
            text = (self._element.findtext(path) or "").strip()
            word = text.lower().strip("[]")
            if word in ABSENT:
                self.deprecated.update([path] if "deprecated" in word else ())
                continue
            value = None if word in FAILED else parse(text)
            if value is None:
                self.lost.append(printable("%s: %s" % (path, text[:_TEXT])))
            else:
                self.read.add(path)
            return value
        return None

    def values(self, form: str, parse: Callable[[str], Optional[T]]) -> Dict[str, T]:
        """Return the values of one form."""
        found = {value.name: self._parsed(value.paths, parse) for value in VALUES if value.form == form}
        return {name: value for name, value in found.items() if value is not None}

    def children(self, path: str) -> Dict[str, str]:
        """Return values of an element's children that have no children."""
        names = [child.tag for child in self._element.findall(path + "/*") if not len(child)][:_GPUS]
        found = {name: self._parsed("%s/%s" % (path, name), _FORMS.get(name, _text)) for name in names}
        return {name: value for name, value in found.items() if value is not None}


def _text(text: str) -> str:
    return printable(text[:_TEXT])


def _number(text: str) -> Optional[float]:
    return float(text.split(" ")[0]) if _NUMBER.fullmatch(text) else None


def _flag(text: str) -> Optional[bool]:
    return _FLAG_WORDS.get(text.lower())


def _count(text: str) -> Optional[int]:
    """``12``, ``12 us`` or ``16x``. All-ones of 64 bits are not a count."""
    number, _blank, unit = text.partition(" ")
    found = whole(number[:-1] if number.endswith("x") else number)
    return None if found is None or found >= _LARGEST or not (unit.isalpha() or not unit) else found


# Elements whose values GPUs and nodes are compared by.
_FORMS: Mapping[str, Callable[[str], Optional[str]]] = {
    "cliqueId": lambda text: None if whole(text) is None else text,
    "clusterUuid": lambda text: text if re.fullmatch(r"[0-9a-fA-F-]{36}", text) else None,
}


@dataclass(frozen=True)
class Gpu:
    """One <gpu>. texts, counts, numbers, flags: by the names of VALUES, without those that have no value.

    reasons: those of SLOWED that are active now; None: not judged.   driver: its version.
    fabric: state, status, cliqueId, clusterUuid.   fabric_health: element -> value.
    lost: "element: its text" of each that failed or has another form.
    unread: check -> elements that it needs and that have no value. A check without a key needs none: this GPU or its
        driver cannot have them.
    """

    pci: str
    uuid: Optional[str] = None
    texts: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    flags: Mapping[str, bool] = field(default_factory=dict)
    reasons: Optional[FrozenSet[str]] = frozenset()
    fabric: Mapping[str, str] = field(default_factory=dict)
    fabric_health: Mapping[str, str] = field(default_factory=dict)
    lost: Tuple[str, ...] = ()
    driver: str = ""
    unread: Mapping[str, Tuple[str, ...]] = field(default_factory=lambda: _missing(frozenset(), None, set(), set()))


def parse(text: str) -> List[Gpu]:
    """Return the GPUs in the order of nvidia-smi; [] if it lists none. Raises ParseError if it is no such XML."""
    root = parse_markup(text, "nvidia_smi_log")
    # Drivers from 610 on have both.
    driver = _text((root.findtext("driver_version") or root.findtext("kmd_version") or "").strip())
    found = root.findall("gpu")
    if len(found) > _GPUS:
        raise ParseError("the XML lists %d GPUs, expected %d at most" % (len(found), _GPUS))
    return [_gpu(element, driver) for element in found]


def _gpu(element: Element, driver: str) -> Gpu:
    reader = _Reader(element)
    texts, flags = reader.values("texts", _text), reader.values("flags", _flag)
    counts, numbers = reader.values("counts", _count), reader.values("numbers", _number)
    reasons = frozenset(name for name in SLOWED if flags.get(name))
    fabric, health = reader.children("fabric"), reader.children("fabric/health")
    lacks = _lacking(texts.get("product", ""), texts.get("architecture", ""))
    unread = _missing(lacks, _version(driver), reader.read, reader.deprecated)
    pci, lost = parse_address(element.get("id", "")), tuple(reader.lost)
    return Gpu(pci, texts.get("uuid"), texts, counts, numbers, flags, reasons, fabric, health, lost, driver, unread)


def _version(text: str) -> Optional[Version]:
    """Return ``580.159.04`` as (580, 159, 4); None if it is not a version."""
    numbers = [whole(word) for word in text.split(".")]
    known = tuple(number for number in numbers if number is not None)
    return known if len(known) == len(numbers) else None


def _lacking(product: str, architecture: str) -> FrozenSet[str]:
    """Return the features that such a GPU cannot have; "": not known."""
    consumer, old = _CONSUMER.search(product) is not None, architecture in _BEFORE_AMPERE
    workstation = architecture == "Blackwell" and "RTX" in product
    some_mig = architecture == "Ampere" or workstation
    lacks = {
        "ecc": consumer,
        "row_remapper": consumer or old,
        "unrepairable_flag": bool(product) and (consumer or not _HBM_SINCE_HOPPER.search(product)),
        "application_clocks": consumer,
        "confidential_computing": consumer or architecture in _BEFORE_HOPPER,
        "mig": consumer or old or architecture == "Ada Lovelace" or (some_mig and not _WITH_MIG.search(product)),
        "fabric": consumer or workstation or architecture in _BEFORE_HOPPER,
        "fabric_health": consumer or workstation or architecture in (*_BEFORE_HOPPER, "Hopper"),
        "nvlink_domain": bool(product) and not re.search(r"\bGB[23]00\b", product),
    }
    return frozenset(feature for feature, absent in lacks.items() if absent)


def _missing(
    lacks: FrozenSet[str], driver: Optional[Version], read: Set[str], deprecated: Set[str]
) -> Dict[str, Tuple[str, ...]]:
    """Return check -> needed elements without a value, for every check that needs an element at all.

    lacks: as ``_lacking`` returns it.   driver: its version, None: not known.   read, deprecated: as in _Reader.
    """
    found: Dict[str, Tuple[str, ...]] = {}
    for value in VALUES:
        paths = value.paths.split("|")
        dropped = value.until and (paths[0] in deprecated or (driver is not None and driver >= value.until))
        later = driver is not None and driver < value.since
        if not value.check or value.feature in lacks or dropped or later:
            continue
        complete = any(path in read for path in (*paths, value.unless))
        found[value.check] = (*found.get(value.check, ()), *(() if complete else paths[:1]))
    return found
