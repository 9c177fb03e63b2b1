# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parse the health of each GPU in ``nvidia-smi -q -x`` of drivers 535 to 610.

An element without a value is None, whether it is absent, N/A, not supported or deprecated. One that failed
(``Unknown Error``) or has another form is in ``lost``, too. ``unread`` has what a check needs and lacks: an element is
needed if the GPU can have it and its driver prints it. Product, architecture and driver version decide that, never the
absent value. Of a product, architecture or driver that is not known everything is needed.
Sources: outputs of drivers 515 to 610 on T4, A10G, A100, L40S, H100, H200, B200, GB200 and GB300; NVML API reference,
change log; NVIDIA dynamic page retirement; NVIDIA GPU memory error management.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from typing import Callable, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, TypeVar
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

# Reasons that slow a GPU for a cause outside of the job, as the elements of every driver end.
SLOWED = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
# The cumulative ones of them: the name of the counter's element -> the reason. Drivers before 575 have none.
_COUNTERS = {
    "sw_power_cap": "sw_power_cap",
    "sw_therm_slowdown": "sw_thermal_slowdown",
    "hw_therm_slowdown": "hw_thermal_slowdown",
    "hw_power_brake": "hw_power_brake_slowdown",
}
# Drivers before 535 call them throttle reasons.
_EVENTS = ("clocks_event_reasons/clocks_event_reason_", "clocks_throttle_reasons/clocks_throttle_reason_")
_COUNTER = "clocks_event_reasons_counters/clocks_event_reasons_counters_"
_POWER = ("gpu_power_readings/", "gpu_power_readings/gpu_ceiling_power_limit/", "power_readings/")
_POWER_LIMIT = tuple(group + name for group in _POWER for name in ("current_power_limit", "power_limit"))
_POWER_DEFAULT = tuple(group + "default_power_limit" for group in _POWER)
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
_PAGES = tuple("retired_pages/%s_bit_retirement/retired_count" % kind for kind in ("multiple_single", "double"))
_DRAM = ("sram_correctable", "dram_correctable", "dram_uncorrectable")
_SRAM = ("sram_uncorrectable_parity", "sram_uncorrectable_secded")
_ECC = {name: name for name in (*_DRAM, "sram_uncorrectable", *_SRAM)}
_ECC_KINDS = ("ecc_errors/volatile/", "ecc_errors/aggregate/")


class Needed(NamedTuple):
    """Elements that a check needs.

    check: its name below ``node_health``.   feature: what the GPU must have for them; "" for every GPU.
    paths: below <gpu>; of several, with ``|`` between, one needs a value.
    since: the first driver version that prints them.   until: the first that never does; (): every later one does.
        Before that, a driver that prints "deprecated" in its place does not have it.
    """

    check: str
    feature: str
    paths: Tuple[str, ...]
    since: Version = ()
    until: Version = ()


_CLOCKS = ("applications_clocks/graphics_clock", "default_applications_clocks/graphics_clock")
_MARGIN = ("temperature/gpu_temp_tlimit", "temperature/gpu_temp_slow_tlimit_threshold")
_TEMPERATURE = ("temperature/gpu_temp", "temperature/gpu_temp_slow_threshold")
_LINK = ("pci/pci_gpu_link_info/pcie_gen/max_link_gen", "pci/pci_gpu_link_info/link_widths/max_link_width")
_ROUTES = ("bandwidth", "route_recovery_in_progress", "route_unhealthy", "access_timeout_recovery")
NEEDED = (
    Needed("recovery_action", "", ("gpu_recovery_action|gpu_reset_status/reset_required",)),
    Needed("recovery_action", "", ("gpu_recovery_action",), (570,)),
    Needed("recovery_action", "row_remapper", ("gpu_recovery_action|gpu_reset_status/drain_and_reset_recommended",)),
    Needed("ecc", "ecc", ("uuid", "ecc_mode/current_ecc", "ecc_mode/pending_ecc")),
    Needed("ecc", "ecc", tuple(kind + name for kind in _ECC_KINDS for name in _DRAM)),
    Needed("ecc", "ecc", tuple(f"{kind}{name}|{kind}sram_uncorrectable" for kind in _ECC_KINDS for name in _SRAM)),
    Needed(
        "row_remap", "row_remapper", tuple("remapped_rows/remapped_row_" + of for of in ("unc", "pending", "failure"))
    ),
    Needed("row_remap", "page_retirement", (*_PAGES, "retired_pages/pending_retirement")),
    Needed("memory_repair", "row_remapper", ("ecc_errors/aggregate/sram_threshold_exceeded",), (550,)),
    Needed(
        "memory_repair", "row_remapper", tuple("ecc_errors/%s_repair_pending" % of for of in ("channel", "tpc")), (580,)
    ),
    Needed("memory_repair", "unrepairable_flag", ("ecc_errors/unrepairable_memory",), (580, 159)),
    Needed("throttle", "", ("uuid", *("|".join(prefix + name for prefix in _EVENTS) for name in SLOWED))),
    Needed("throttle", "", tuple(_COUNTER + name for name in _COUNTERS), (575,)),
    Needed("power_limit", "", ("|".join(_POWER_LIMIT), "|".join(_POWER_DEFAULT))),
    Needed("application_clocks", "application_clocks", _CLOCKS, until=(590,)),
    Needed("temperature", "", (_TEMPERATURE[0], *("%s|%s" % (path, _TEMPERATURE[1]) for path in _MARGIN))),
    Needed("mig", "mig", ("mig_mode/current_mig", "mig_mode/pending_mig")),
    Needed("confidential_computing", "confidential_computing", ("cc_protected_memory_usage/total",)),
    Needed("pcie_replay", "", ("uuid", "pci/replay_counter", *_LINK)),
    Needed("fabric_state", "fabric", ("fabric/state", "fabric/status")),
    Needed("fabric_state", "fabric", ("fabric/cliqueId", "fabric/clusterUuid"), (550,)),
    Needed("fabric_state", "fabric_health", ("fabric/health/summary",), (580,)),
    Needed("fabric_state", "nvlink_domain", tuple("fabric/health/" + name for name in _ROUTES), (580,)),
)
ELEMENTS = sum(len(needed.paths) for needed in NEEDED)


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
        return self._parsed([path], lambda text: _FLAG_WORDS.get(text.lower()))

    def children(self, path: str) -> Dict[str, str]:
        """Return values of an element's children that have no children."""
        names = [child.tag for child in self._element.findall(path + "/*") if not len(child)][:_GPUS]
        return _known({name: self._parsed(["%s/%s" % (path, name)], _FORMS.get(name, _text)) for name in names})

    def counts(self, prefix: str, names: Mapping[str, str]) -> Dict[str, int]:
        """Return the counters that have a value.   names: what follows ``prefix`` -> the counter's name."""
        return _known({name: self.count(prefix + end) for end, name in names.items()})

    def pair(self, *paths: str) -> Optional[Tuple[float, float]]:
        """Return two numbers; None if one of them has no value."""
        first, second = map(self.number, paths)
        return None if first is None or second is None else (first, second)

    def pages(self) -> Tuple[Optional[int], Optional[int]]:
        return self.count(_PAGES[0]), self.count(_PAGES[1])

    def reasons(self) -> FrozenSet[str]:
        return frozenset(name for name in SLOWED if any(self.flag(prefix + name) for prefix in _EVENTS))

    def flags(self) -> Dict[str, bool]:
        found: Dict[str, bool] = {}
        for path, name in _FLAGS.items():
            flag = self.flag(path)
            if flag is not None:
                found[name] = flag or found.get(name, False)
        return found


def _known(values: Mapping[str, Optional[T]]) -> Dict[str, T]:
    return {name: value for name, value in values.items() if value is not None}


def _text(text: str) -> str:
    return printable(text[:_TEXT])


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


def _by(read: Callable[..., object], *arguments: object) -> Dict[str, Callable[[_Reader], object]]:
    """Return how a field of Gpu is read: by a method of the reader, with these arguments."""
    return {"read": lambda reader: read(reader, *arguments)}


@dataclass(frozen=True)
class Gpu:
    """One <gpu>; None, or no key, if there is no value.

    serial, part, firmware: as the vendor wants them for a replacement; firmware is the VBIOS.
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
    driver: its version.   unread: check -> elements that it needs and that have no value. A check without a key needs
        none: this GPU or its driver cannot have them.
    """

    pci: str
    uuid: Optional[str] = field(default=None, metadata=_by(_Reader.text, "uuid"))
    product: Optional[str] = field(default=None, metadata=_by(_Reader.text, "product_name"))
    serial: Optional[str] = field(default=None, metadata=_by(_Reader.text, "serial"))
    part: Optional[str] = field(default=None, metadata=_by(_Reader.text, "gpu_part_number", "board_part_number"))
    firmware: Optional[str] = field(default=None, metadata=_by(_Reader.text, "vbios_version"))
    architecture: Optional[str] = field(default=None, metadata=_by(_Reader.text, "product_architecture"))
    recovery: Optional[str] = field(default=None, metadata=_by(_Reader.text, "gpu_recovery_action"))
    flags: Mapping[str, bool] = field(default_factory=dict, metadata=_by(_Reader.flags))
    ecc: Optional[bool] = field(default=None, metadata=_by(_Reader.flag, "ecc_mode/current_ecc"))
    ecc_pending: Optional[bool] = field(default=None, metadata=_by(_Reader.flag, "ecc_mode/pending_ecc"))
    volatile: Mapping[str, int] = field(default_factory=dict, metadata=_by(_Reader.counts, _ECC_KINDS[0], _ECC))
    aggregate: Mapping[str, int] = field(default_factory=dict, metadata=_by(_Reader.counts, _ECC_KINDS[1], _ECC))
    rows: Optional[int] = field(default=None, metadata=_by(_Reader.count, "remapped_rows/remapped_row_unc"))
    retired: Tuple[Optional[int], Optional[int]] = field(default=(None, None), metadata=_by(_Reader.pages))
    reasons: Optional[FrozenSet[str]] = field(default=frozenset(), metadata=_by(_Reader.reasons))
    slowed_us: Mapping[str, int] = field(default_factory=dict, metadata=_by(_Reader.counts, _COUNTER, _COUNTERS))
    power_limit: Optional[float] = field(default=None, metadata=_by(_Reader.number, *_POWER_LIMIT))
    power_default: Optional[float] = field(default=None, metadata=_by(_Reader.number, *_POWER_DEFAULT))
    clock: Optional[float] = field(default=None, metadata=_by(_Reader.number, _CLOCKS[0]))
    clock_default: Optional[float] = field(default=None, metadata=_by(_Reader.number, _CLOCKS[1]))
    temperature: Optional[Tuple[float, float]] = field(default=None, metadata=_by(_Reader.pair, *_TEMPERATURE))
    margin: Optional[Tuple[float, float]] = field(default=None, metadata=_by(_Reader.pair, *_MARGIN))
    mig: Optional[bool] = field(default=None, metadata=_by(_Reader.flag, "mig_mode/current_mig"))
    mig_pending: Optional[bool] = field(default=None, metadata=_by(_Reader.flag, "mig_mode/pending_mig"))
    replays: Optional[int] = field(default=None, metadata=_by(_Reader.count, "pci/replay_counter"))
    gen: Optional[int] = field(default=None, metadata=_by(_Reader.count, _LINK[0]))
    width: Optional[int] = field(default=None, metadata=_by(_Reader.count, _LINK[1]))
    protected_mib: Optional[int] = field(default=None, metadata=_by(_Reader.count, "cc_protected_memory_usage/total"))
    fabric: Mapping[str, str] = field(default_factory=dict, metadata=_by(_Reader.children, "fabric"))
    fabric_health: Mapping[str, str] = field(default_factory=dict, metadata=_by(_Reader.children, "fabric/health"))
    persistence: Optional[bool] = field(default=None, metadata=_by(_Reader.flag, "persistence_mode"))
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
    values = {one.name: one.metadata["read"](reader) for one in fields(Gpu) if one.metadata}
    gpu = Gpu(parse_address(element.get("id", "")), driver=driver, **values)
    lacks = _lacking(gpu.product or "", gpu.architecture or "")
    unread = _missing(lacks, _version(driver), reader.values, reader.deprecated)
    return replace(gpu, lost=tuple(reader.lost), unread=unread)


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
        "page_retirement": consumer or not old,
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
    lacks: FrozenSet[str], driver: Optional[Version], values: Set[str], deprecated: Set[str]
) -> Dict[str, Tuple[str, ...]]:
    """Return check -> needed elements without a value, for every check that needs an element at all.

    lacks: as ``_lacking`` returns it.   driver: its version, None: not known.   values: paths that have a value.
    deprecated: paths that the driver reports as deprecated.
    """
    found: Dict[str, Tuple[str, ...]] = {}
    for needed in NEEDED:
        for path in needed.paths if needed.feature not in lacks else ():
            dropped = needed.until and (path in deprecated or (driver is not None and driver >= needed.until))
            if (driver is None or driver >= needed.since) and not dropped:
                paths, so_far = path.split("|"), found.get(needed.check, ())
                complete = any(path in values for path in paths) or paths[0] in so_far
                found[needed.check] = so_far if complete else (*so_far, paths[0])
    return found
