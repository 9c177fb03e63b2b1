# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A profile is the intent for one platform: the GPUs, NVLinks and rails that a healthy host has.

It comes from ``profiles/NAME.yml`` beside the inventory or from the suite's own ``profiles/``, never from the host
that is judged by it. profile_doubts.py drafts one of a host for a person to review and commit.
"""

from __future__ import annotations

import re
from collections import abc
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Tuple, Union, get_type_hints

from ..core.host import ParseError
from ..core.number import whole
from .pci import PATH_CLASSES, parse_address

LINK_LAYERS = ("InfiniBand", "Ethernet")
# busbar_fabric -> the kernel's link_layer.
FABRICS = {"infiniband": "InfiniBand", "ethernet": "Ethernet"}
# How many planes a NIC may have: as many PCI functions, each with an RDMA device and its part of the rate.
PLANES = (1, 2, 4)
# Bytes that PCI Express has for the largest read request.
READ_REQUESTS = (128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True)
class PcieLink:
    """speed in GT/s per lane, width in lanes."""

    speed_gts: float
    width: int

    def __str__(self) -> str:
        return "%g GT/s x%d" % (self.speed_gts, self.width)


@dataclass(frozen=True)
class GpuProfile:
    count: int
    models: Tuple[str, ...]  # any of these, as the driver spells them
    nvlinks: Optional[int] = None  # active links per GPU; None: not asked
    nvlink_fabric: bool = False  # NVSwitch fabric registered: state Completed, status Success
    pcie: Optional[PcieLink] = None
    pci: Tuple[str, ...] = ()  # addresses in PCI order; empty: not asked


@dataclass(frozen=True)
class Rail:
    number: int
    pci: Optional[str]  # site profiles name the slot; built-in ones cannot
    paths: Mapping[int, str]  # GPU index -> expected path class
    rate_gbps: float
    link_layers: Tuple[str, ...]
    pcie: Optional[PcieLink] = None
    numa: str = "same"  # "same": NIC and its GPUs share a NUMA node; "any": not asked (a hypervisor hides it)
    planes: int = 1
    nic: int = 0  # number of the NIC, of which this rail is the plane
    plane: int = 0

    @property
    def label(self) -> str:
        return "rail %d" % self.number

    @property
    def place(self) -> str:
        """Return which plane of which NIC it is, for texts; "" of a NIC with one."""
        return " (plane %d of NIC %d)" % (self.plane, self.nic) if self.planes > 1 else ""


@dataclass(frozen=True)
class NicSetting:
    """Wanted setting in the flash of the rails' NICs: a number, or one of mstconfig's words; and the reason."""

    value: Union[int, str]
    why: str


@dataclass(frozen=True)
class NvlinkDomain:
    """NVLinks to other nodes, over switches outside this node.

    nodes: most nodes of a domain.   imex: "rack": one IMEX service of all nodes of the domain, always up; "job": jobs
    start theirs, and it may be idle; "compute_domain": those of Kubernetes do, in pods; "none": not judged.
    """

    nodes: int
    imex: str


@dataclass(frozen=True)
class DriverOption:
    """NVreg_NAME=value of the module nvidia.   before: first branch of the driver that has it no more; None: all do."""

    name: str
    value: str
    before: Optional[int] = None


@dataclass(frozen=True)
class Profile:
    name: str
    description: str
    gpus: GpuProfile
    rails: Tuple[Rail, ...]
    nic_firmware: Mapping[str, NicSetting] = field(default_factory=dict)  # by name; firmware/wanted.py judges them
    # NCCL's topology file of this type of virtual machine: it, and not sysfs, says what lies near what.
    topology_file: str = ""
    nvlink_domain: Optional[NvlinkDomain] = None
    page_size: Optional[int] = None  # bytes of the kernel's pages
    kernel_args: Tuple[str, ...] = ()  # "init_on_alloc=0": what the maker of the platform asks for
    driver_options: Tuple[DriverOption, ...] = ()
    max_read_request: int = 4096  # bytes; of the rails' NICs
    data_direct: bool = False  # each NIC has a second PCI function beside its GPU, for GPUDirect


def parse(data: object, name: str) -> Profile:
    """Return the profile in a parsed YAML document. Raises ParseError that names the key and what was expected."""
    own, of_rail = set(_types(Profile)) - {"name"}, set(_types(Rail)) - {"number", "nic", "plane"}
    top = dict(_mapping(data, "the profile", {*own, "rail_defaults"}, ("description", "gpus", "rails")))
    defaults = _mapping(top.pop("rail_defaults", {}), "rail_defaults", of_rail - {"pci", "paths"})
    top["rails"] = [
        {"pci": None, **defaults, **_mapping(rail, "rails[%d]" % number, of_rail, ("paths",)), "number": number}
        for number, rail in enumerate(_list(top["rails"], "rails"))
    ]
    profile: Profile = _built(Profile, {**top, "name": name}, "")
    profile = replace(profile, rails=by_plane(profile.rails))
    gpus, rails = profile.gpus, profile.rails
    if gpus.pci and (len(gpus.pci) != gpus.count or list(gpus.pci) != sorted(set(gpus.pci))):
        raise ParseError("gpus.pci must name %d different addresses in ascending order" % gpus.count)
    for rail in rails:
        beyond = max(rail.paths, default=-1)
        if beyond >= gpus.count:
            raise ParseError("%s.paths names GPU %d, but gpus.count is %d" % (rail.label, beyond, gpus.count))
        if not rail.link_layers:
            raise ParseError("%s has no link_layers, expected some of %s" % (rail.label, ", ".join(LINK_LAYERS)))
        if not rail.pci and not rail.paths:
            raise ParseError("%s names neither a pci address nor a path to a GPU: so its NIC is undefined" % rail.label)
    if profile.max_read_request not in READ_REQUESTS:
        text = "max_read_request is %d, expected one of %s"
        raise ParseError(text % (profile.max_read_request, ", ".join(map(str, READ_REQUESTS))))
    slots = [rail.pci for rail in rails if rail.pci]
    if len(set(slots)) != len(slots):
        raise ParseError("rails: two rails name the same pci address")
    if slots and len(slots) != len(rails):
        raise ParseError("rails: %d of %d rails name a pci address; name all or none" % (len(slots), len(rails)))
    if profile.topology_file and not slots:
        raise ParseError("topology_file is of guests that hide paths: every rail has to name its pci address")
    return profile


def by_plane(rails: Sequence[Rail], planes: int = 0) -> Tuple[Rail, ...]:
    """Return a rail for each plane of each NIC.   planes: of all NICs; 0: each rail says it. Raises ParseError."""
    found: List[Rail] = []
    for nic, rail in enumerate(rails):
        number = planes or rail.planes
        if number not in PLANES:
            raise ParseError("%s.planes is %d, expected one of %s" % (rail.label, number, ", ".join(map(str, PLANES))))
        for plane in range(number):
            pci = rail.pci if number == 1 or rail.pci is None else "%s%d" % (rail.pci[:-1], plane)
            own = replace(rail, number=len(found), pci=pci, rate_gbps=rail.rate_gbps / number, planes=number)
            found.append(replace(own, nic=nic, plane=plane))
    return tuple(found)


def for_fabric(profile: Profile, fabric: Optional[str]) -> Profile:
    """Return the profile with every rail narrowed to the site's fabric. Raises ParseError if they disagree."""
    if fabric is not None and fabric not in FABRICS:
        raise ParseError("busbar_fabric is %r, expected one of %s" % (fabric, ", ".join(sorted(FABRICS))))
    rails = []
    for rail in profile.rails:
        layers = tuple(layer for layer in rail.link_layers if fabric is None or layer == FABRICS[fabric])
        if not layers:
            facts = fabric, rail.label, profile.name, " or ".join(rail.link_layers)
            raise ParseError("busbar_fabric is %s, but %s of profile %s is %s" % facts)
        if len(layers) > 1:
            text = "busbar_fabric must be set to infiniband or ethernet: profile %s exists with both"
            raise ParseError(text % profile.name)
        rails.append(replace(rail, link_layers=layers))
    return replace(profile, rails=tuple(rails))


def roce_rails(profile: Profile) -> int:
    """Return how many rails may be Ethernet: undecided settings of those are reported, never passed over."""
    return sum("Ethernet" in rail.link_layers for rail in profile.rails)


def from_options(given: Mapping[str, Any]) -> Profile:
    """Return the profile of the options profile, profile_name and fabric of a module. Raises ParseError."""
    return for_fabric(parse(given["profile"], given["profile_name"]), given["fabric"] or None)


# -- values: the type of a field decides, and its name may limit it ------------------------------------------------

_LEAST = {"width": 1, "before": 1, "nodes": 2, "page_size": 4096}
# Place without indices, texts, and what they are.
_TEXTS = (
    (r"rails\.numa", "same|any", "same or any"),
    (r"rails\.link_layers", "|".join(LINK_LAYERS), "some of " + ", ".join(LINK_LAYERS)),
    (r"rails\.paths\..*", "|".join(PATH_CLASSES), "one of " + ", ".join(PATH_CLASSES)),
    (r"nvlink_domain\.imex", "rack|job|compute_domain|none", "rack, job, compute_domain or none"),
    (r"kernel_args", r"[A-Za-z0-9_.-]{1,80}(=[A-Za-z0-9_.,:-]{1,200})?", "NAME or NAME=VALUE"),
    (r"driver_options\.name", "(?!NVreg)[A-Za-z][A-Za-z0-9]{0,80}", "that of an NVreg_ option, without NVreg_"),
    # It becomes a line of nccl.conf.
    (r"topology_file", "/[ -<>-~]{0,499}", "an absolute path"),
)


@lru_cache(maxsize=None)
def _types(kind: type) -> Dict[str, Any]:
    return get_type_hints(kind)


def _mapping(
    data: object, where: str, allowed: Optional[Collection[str]] = None, required: Collection[str] = ()
) -> Mapping[Any, object]:
    if not isinstance(data, Mapping):
        raise ParseError("%s is %s, expected a mapping" % (where, type(data).__name__))
    unknown = sorted(str(key) for key in data if allowed is not None and key not in allowed)
    if unknown:
        known = ", ".join(sorted(allowed or ()))
        raise ParseError("%s has unknown key %s; known: %s" % (where, ", ".join(unknown), known))
    missing = sorted(key for key in required if key not in data)
    if missing:
        raise ParseError("%s lacks %s" % (where, ", ".join(missing)))
    return data


def _list(data: object, where: str) -> abc.Sequence[object]:
    if isinstance(data, (str, bytes)) or not isinstance(data, abc.Sequence):
        raise ParseError("%s is %s, expected a list" % (where, type(data).__name__))
    return data


def _built(kind: Any, data: object, where: str) -> Any:
    """Return the data as a value of this type. Raises ParseError that begins with its place."""
    origin, inner = getattr(kind, "__origin__", None), tuple(getattr(kind, "__args__", ()))
    if type(None) in inner:
        return None if data is None else _built(inner[0], data, where)
    if origin is tuple:
        return tuple(_built(inner[0], item, "%s[%d]" % (where, n)) for n, item in enumerate(_list(data, where)))
    if origin is abc.Mapping:
        table = _mapping(data, where)
        return {_built(inner[0], key, where): _built(inner[1], table[key], "%s.%.80s" % (where, key)) for key in table}
    if not is_dataclass(kind):
        return _scalar(kind, data, where)
    made: Any = kind
    types, prefix = _types(made), where + "." if where else ""
    required = [one.name for one in fields(made) if one.default is MISSING and one.default_factory is MISSING]
    entry = _mapping(data, where or "the profile", types, required)
    return made(**{key: _built(types[key], value, prefix + key) for key, value in entry.items()})


def _scalar(kind: Any, data: object, where: str) -> object:
    place = re.sub(r"\[\d+\]", "", where)
    if kind is float:
        # YAML has .nan and .inf, and whole numbers of any length.
        if isinstance(data, bool) or not isinstance(data, (int, float)) or not 0 < data < 1e6:
            raise ParseError("%s is %.80r, expected a positive number" % (where, data))
        return float(data)
    if kind is int or place == "driver_options.value":
        # JSON has no integer keys: a profile that travelled through Ansible may hold "0" for GPU 0.
        number, least = whole(data) if isinstance(data, str) else data, _LEAST.get(place.rpartition(".")[2], 0)
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise ParseError("%s is %.80r, expected a whole number of at least %d" % (where, data, least))
        return kind(number)
    # A setting in the NIC's flash is a number or one of mstconfig's words.
    types = kind if kind in (bool, str) else (int, str)
    if not isinstance(data, types) or (isinstance(data, str) and not data.strip()):
        what = {bool: "true or false", str: "text"}.get(kind, "a number or a word such as ETH")
        raise ParseError("%s is %.80r, expected %s" % (where, data, what))
    if place.endswith(".pci"):
        try:
            return parse_address(str(data))
        except ParseError as error:
            raise ParseError("%s: %s" % (where, error)) from error
    for pattern, texts, what in _TEXTS:
        if re.fullmatch(pattern, place) and not re.fullmatch(texts, str(data)):
            raise ParseError("%s is %.80r, expected %s" % (where, data, what))
    return data
