# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A profile is the intent for one platform: the GPUs, NVLinks and rails that a healthy host has.

It comes from ``profiles/NAME.yml`` beside the inventory or from the suite's own ``profiles/``, never from the host
that is judged by it. ``draft`` turns a host's topology into a profile for a person to review and commit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from ..core.host import ParseError
from ..core.number import whole
from .pci import PATH_CLASSES, parse_address
from .topology import Nic, Topology

LINK_LAYERS = ("InfiniBand", "Ethernet")
# busbar_fabric -> the kernel's link_layer.
FABRICS = {"infiniband": "InfiniBand", "ethernet": "Ethernet"}


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
    nvlinks: Optional[int]  # active links per GPU; None: not asked
    nvlink_fabric: bool  # NVSwitch fabric registered: state Completed, status Success
    pcie: Optional[PcieLink]
    pci: Tuple[str, ...]  # addresses in PCI order; empty: not asked


@dataclass(frozen=True)
class Rail:
    number: int
    pci: Optional[str]  # site profiles name the slot; built-in ones cannot
    paths: Mapping[int, str]  # GPU index -> expected path class
    rate_gbps: float
    link_layers: Tuple[str, ...]
    pcie: Optional[PcieLink]
    numa: str  # "same": NIC and its GPUs share a NUMA node; "any": not asked (a hypervisor hides it)

    @property
    def label(self) -> str:
        return "rail %d" % self.number


@dataclass(frozen=True)
class NicSetting:
    """Wanted setting in the flash of the rails' NICs: a number, or one of mstconfig's words; and the reason."""

    value: Union[int, str]
    why: str


@dataclass(frozen=True)
class NvlinkDomain:
    """NVLinks to other nodes, over switches outside this node.

    nodes: most nodes of a domain.   imex: "rack": one IMEX service of all nodes of the domain, always up; "job": jobs
    start theirs, and it may be idle; "none": not judged.
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


def parse(data: object, name: str) -> Profile:
    """Return the profile in a parsed YAML document. Raises ParseError that names the key and what was expected."""
    keys = {"description", "gpus", "rail_defaults", "rails", "nic_firmware", "topology_file"} | _OF_PLATFORM
    top = _mapping(data, "profile %s" % name, keys, {"description", "gpus", "rails"})
    gpus = _gpus(top["gpus"])
    defaults = top.get("rail_defaults", {})
    _mapping(defaults, "rail_defaults", {"rate_gbps", "link_layers", "pcie", "numa"}, set())
    entries = _list(top["rails"], "rails")
    rails = tuple(_rail(number, entry, defaults, gpus.count) for number, entry in enumerate(entries))
    slots = [rail.pci for rail in rails if rail.pci]
    if len(set(slots)) != len(slots):
        raise ParseError("rails: two rails name the same pci address")
    if slots and len(slots) != len(rails):
        raise ParseError("rails: %d of %d rails name a pci address; name all or none" % (len(slots), len(rails)))
    settings = _nic_firmware(top.get("nic_firmware", {}))
    file = _path(top["topology_file"], "topology_file") if "topology_file" in top else ""
    if file and not slots:
        raise ParseError("topology_file is of guests that hide paths: every rail has to name its pci address")
    known = Profile(name, _text(top["description"], "description"), gpus, rails, settings, file)
    return replace(known, **_platform(top))


_OF_PLATFORM = {"nvlink_domain", "page_size", "kernel_args", "driver_options"}
_KERNEL_ARG = re.compile(r"[A-Za-z0-9_.-]{1,80}(=[A-Za-z0-9_.,:-]{1,200})?")
_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9]{0,80}")


def _platform(top: Mapping[str, object]) -> Dict[str, Any]:
    """Parse the platform's needs of the kernel, the driver and the NVLinks to other nodes."""
    found: Dict[str, Any] = {}
    if "nvlink_domain" in top:
        entry = _mapping(top["nvlink_domain"], "nvlink_domain", {"nodes", "imex"}, {"nodes", "imex"})
        if entry["imex"] not in ("rack", "job", "none"):
            raise ParseError("nvlink_domain.imex is %.80r, expected rack, job or none" % (entry["imex"],))
        found["nvlink_domain"] = NvlinkDomain(_integer(entry["nodes"], "nvlink_domain.nodes", 2), entry["imex"])
    if "page_size" in top:
        found["page_size"] = _integer(top["page_size"], "page_size", 4096)
    args = [_text(item, "kernel_args") for item in _list(top.get("kernel_args", []), "kernel_args")]
    for arg in args:
        if _KERNEL_ARG.fullmatch(arg) is None:
            raise ParseError("kernel_args has %.80r, expected NAME or NAME=VALUE" % arg)
    found["kernel_args"] = tuple(args)
    options = _list(top.get("driver_options", []), "driver_options")
    found["driver_options"] = tuple(_driver_option(item, "driver_options[%d]" % at) for at, item in enumerate(options))
    return found


def _driver_option(data: object, where: str) -> DriverOption:
    entry = _mapping(data, where, {"name", "value", "before"}, {"name", "value"})
    name = _text(entry["name"], where + ".name")
    if _OPTION.fullmatch(name) is None or name.startswith("NVreg"):
        raise ParseError("%s.name is %.80r, expected that of an NVreg_ option, without NVreg_" % (where, name))
    before = entry.get("before")
    return DriverOption(
        name,
        str(_integer(entry["value"], where + ".value", 0)),
        None if before is None else _integer(before, where + ".before", 1),
    )


def for_fabric(profile: Profile, fabric: Optional[str]) -> Profile:
    """Return the profile with every rail narrowed to the site's fabric. Raises ParseError if they disagree."""
    if fabric is not None and fabric not in FABRICS:
        raise ParseError("busbar_fabric is %r, expected one of %s" % (fabric, ", ".join(sorted(FABRICS))))
    rails: List[Rail] = []
    for rail in profile.rails:
        layers = rail.link_layers if fabric is None else tuple(x for x in rail.link_layers if x == FABRICS[fabric])
        if not layers:
            raise ParseError(
                "busbar_fabric is %s, but %s of profile %s is %s"
                % (fabric, rail.label, profile.name, " or ".join(rail.link_layers))
            )
        if len(layers) > 1:
            raise ParseError(
                "busbar_fabric must be set to infiniband or ethernet: profile %s exists with both" % profile.name
            )
        rails.append(replace(rail, link_layers=layers))
    return replace(profile, rails=tuple(rails))


def roce_rails(profile: Profile) -> int:
    """Return how many rails may be Ethernet: undecided settings of those are reported, never passed over."""
    return sum("Ethernet" in rail.link_layers for rail in profile.rails)


def from_options(given: Mapping[str, object]) -> Profile:
    """Return the profile of the options profile, profile_name and fabric of a module. Raises ParseError."""
    return for_fabric(parse(given["profile"], given["profile_name"]), given["fabric"] or None)


def _gpus(data: object) -> GpuProfile:
    keys = {"count", "models", "nvlinks", "nvlink_fabric", "pcie", "pci"}
    entry = _mapping(data, "gpus", keys, {"count", "models"})
    count = _integer(entry["count"], "gpus.count", 0)
    pci = tuple(_address(item, "gpus.pci") for item in _list(entry.get("pci", []), "gpus.pci"))
    if pci and (len(pci) != count or list(pci) != sorted(set(pci))):
        raise ParseError("gpus.pci must name %d different addresses in ascending order" % count)
    nvlinks = entry.get("nvlinks")
    fabric = entry.get("nvlink_fabric", False)
    if not isinstance(fabric, bool):
        raise ParseError("gpus.nvlink_fabric is %r, expected true or false" % (fabric,))
    return GpuProfile(
        count=count,
        models=tuple(_text(item, "gpus.models") for item in _list(entry["models"], "gpus.models")),
        nvlinks=None if nvlinks is None else _integer(nvlinks, "gpus.nvlinks", 0),
        nvlink_fabric=fabric,
        pcie=_pcie(entry.get("pcie"), "gpus.pcie"),
        pci=pci,
    )


def _rail(number: int, data: object, defaults: Mapping[str, object], gpu_count: int) -> Rail:
    where = "rails[%d]" % number
    own = _mapping(data, where, {"pci", "paths", "rate_gbps", "link_layers", "pcie", "numa"}, {"paths"})
    entry = dict(defaults, **own)
    for key in ("rate_gbps", "link_layers"):
        if key not in entry:
            raise ParseError("%s has no %s, and neither has rail_defaults" % (where, key))
    paths: Dict[int, str] = {}
    for key, value in _mapping(entry["paths"], where + ".paths", None, set()).items():
        index = _integer(key, where + ".paths", 0)
        if index >= gpu_count:
            raise ParseError("%s.paths names GPU %d, but gpus.count is %d" % (where, index, gpu_count))
        if value not in PATH_CLASSES:
            raise ParseError("%s.paths[%d] is %r, expected one of %s" % (where, index, value, ", ".join(PATH_CLASSES)))
        paths[index] = value
    layers = tuple(_text(item, where + ".link_layers") for item in _list(entry["link_layers"], where + ".link_layers"))
    if not layers or set(layers) - set(LINK_LAYERS):
        raise ParseError("%s.link_layers is %r, expected some of %s" % (where, list(layers), ", ".join(LINK_LAYERS)))
    numa = entry.get("numa", "same")
    if numa not in ("same", "any"):
        raise ParseError("%s.numa is %r, expected same or any" % (where, numa))
    if "pci" not in entry and not paths:
        raise ParseError("%s names neither a pci address nor a path to a GPU: so its NIC is undefined" % where)
    return Rail(
        number=number,
        pci=_address(entry["pci"], where + ".pci") if "pci" in entry else None,
        paths=paths,
        rate_gbps=_number(entry["rate_gbps"], where + ".rate_gbps", "Gbit/s"),
        link_layers=layers,
        pcie=_pcie(entry.get("pcie"), where + ".pcie"),
        numa=numa,
    )


def _nic_firmware(data: object) -> Dict[str, NicSetting]:
    found: Dict[str, NicSetting] = {}
    for key, item in _mapping(data, "nic_firmware", None, set()).items():
        where = "nic_firmware.%.80s" % key
        entry = _mapping(item, where, {"value", "why"}, {"value", "why"})
        value = entry["value"]
        if not isinstance(value, (int, str)):
            raise ParseError("%s.value is %.80r, expected a number or a word such as ETH" % (where, value))
        found[str(key)] = NicSetting(value, _text(entry["why"], where + ".why"))
    return found


def _pcie(data: object, where: str) -> Optional[PcieLink]:
    if data is None:
        return None
    entry = _mapping(data, where, {"speed_gts", "width"}, {"speed_gts", "width"})
    speed = _number(entry["speed_gts"], where + ".speed_gts", "GT/s")
    return PcieLink(speed, _integer(entry["width"], where + ".width", 1))


def _mapping(data: object, where: str, allowed: Any, required: Any) -> Dict[Any, Any]:
    if not isinstance(data, Mapping):
        raise ParseError("%s is %s, expected a mapping" % (where, type(data).__name__))
    if allowed is not None:
        unknown = sorted(str(key) for key in set(data) - allowed)
        if unknown:
            raise ParseError(
                "%s has unknown key %s; known: %s" % (where, ", ".join(unknown), ", ".join(sorted(allowed)))
            )
    missing = sorted(required - set(data))
    if missing:
        raise ParseError("%s lacks %s" % (where, ", ".join(missing)))
    return dict(data)


def _list(data: object, where: str) -> Sequence[Any]:
    if isinstance(data, (str, bytes)) or not isinstance(data, Sequence):
        raise ParseError("%s is %s, expected a list" % (where, type(data).__name__))
    return data


def _text(data: object, where: str) -> str:
    if not isinstance(data, str) or not data.strip():
        raise ParseError("%s is %r, expected text" % (where, data))
    return str(data)


def _path(data: object, where: str) -> str:
    text = _text(data, where)
    # It becomes a line of nccl.conf.
    if not text.startswith("/") or not text.isprintable() or len(text) > 500 or "=" in text:
        raise ParseError("%s is %.80r, expected an absolute path" % (where, text))
    return text


def _number(data: object, where: str, unit: str) -> float:
    # YAML has .nan and .inf, and whole numbers of any length.
    if isinstance(data, bool) or not isinstance(data, (int, float)) or not 0 < data < 1e6:
        raise ParseError("%s is %.80r, expected %s as a positive number" % (where, data, unit))
    return float(data)


def _integer(data: object, where: str, least: int) -> int:
    # JSON has no integer keys: a profile that travelled through Ansible may hold "0" for GPU 0.
    if isinstance(data, str):
        data = whole(data) if whole(data) is not None else data
    if isinstance(data, bool) or not isinstance(data, int) or data < least:
        raise ParseError("%s is %r, expected a whole number of at least %d" % (where, data, least))
    return int(data)


def _address(data: object, where: str) -> str:
    try:
        return parse_address(_text(data, where))
    except ParseError as error:
        raise ParseError("%s: %s" % (where, error)) from error


def draft(topology: Topology) -> Tuple[Dict[str, Any], List[str]]:
    """Return a profile that this topology meets, and doubts to review before committing it.

    A fault of the host would become intent: every doubt is a sentence in the second value.
    """
    doubts = [str(problem) for problem in topology.problems]
    gpus = topology.gpus
    models = sorted({gpu.model for gpu in gpus if gpu.model})
    if len(models) > 1:
        doubts.append("the GPUs are not all the same model: %s" % ", ".join(models))
    data: Dict[str, Any] = {
        "description": "captured from a host; review before use",
        "gpus": {"count": len(gpus), "models": models, "pci": [gpu.pci for gpu in gpus]},
        "rails": [],
    }
    links = {gpu.nvlinks_active for gpu in gpus}
    if len(links) == 1 and None not in links:
        data["gpus"]["nvlinks"] = links.pop()
    elif gpus:
        doubts.append("NVLinks differ between GPUs or could not be read: %s" % sorted(str(x) for x in links))
    for gpu in gpus:
        if gpu.nvlinks_total != gpu.nvlinks_active:
            doubts.append(
                "GPU %d %s has %s of %s NVLinks active" % (gpu.index, gpu.pci, gpu.nvlinks_active, gpu.nvlinks_total)
            )
    data["gpus"]["nvlink_fabric"] = bool(gpus) and all(gpu.fabric_state == "Completed" for gpu in gpus)
    common = _common_link([(gpu.device.max_speed_gts, gpu.device.max_width) for gpu in gpus], "GPUs", doubts)
    if common:
        data["gpus"]["pcie"] = common
    for nic in topology.nics:
        # In a guest every passed-through NIC may be a virtual function.
        if nic.rdma is not None and (nic.role == "compute" or (nic.role == "vf" and topology.virtualization.is_vm)):
            data["rails"].append(_draft_rail(topology, nic, doubts))
        elif nic.role == "down" and nic.rdma is not None and not _unused(topology, nic):
            doubts.append("%s is left out: %s" % (nic.label, nic.reason))
    return data, doubts


def _unused(topology: Topology, nic: Nic) -> bool:
    """Return whether a port of a NIC that is not near a GPU was disabled, as the second one of a storage NIC."""
    near = any(topology.paths.get((gpu.pci, nic.pci)) in ("PIX", "PXB") for gpu in topology.gpus)
    return not near and nic.rdma is not None and all(port.phys_state == "Disabled" for port in nic.rdma.ports)


def _draft_rail(topology: Topology, nic: Nic, doubts: List[str]) -> Dict[str, Any]:
    device = nic.device
    port = nic.port
    rail: Dict[str, Any] = {"pci": nic.pci, "paths": {}}
    for gpu in topology.gpus:
        path = topology.paths.get((gpu.pci, nic.pci))
        if path in ("PIX", "PXB"):
            rail["paths"][gpu.index] = path
    if port is not None and port.rate_gbps and port.link_layer:
        rail["rate_gbps"] = port.rate_gbps
        rail["link_layers"] = [port.link_layer]
    else:
        doubts.append("%s: its rate or link layer could not be read" % nic.label)
    if device.max_speed_gts and device.max_width:
        rail["pcie"] = {"speed_gts": device.max_speed_gts, "width": device.max_width}
    if (device.current_speed_gts, device.current_width) != (device.max_speed_gts, device.max_width):
        doubts.append(
            "%s runs at %s GT/s x%s, its slot allows %s GT/s x%s"
            % (nic.label, device.current_speed_gts, device.current_width, device.max_speed_gts, device.max_width)
        )
    if device.numa_node is None:
        rail["numa"] = "any"
    return rail


def _common_link(
    links: Sequence[Tuple[Optional[float], Optional[int]]], what: str, doubts: List[str]
) -> Optional[Dict[str, Any]]:
    if len(set(links)) == 1:
        speed, width = links[0]
        if speed and width:
            return {"speed_gts": speed, "width": width}
    if links:
        doubts.append("the %s differ in PCIe speed or width: %s" % (what, sorted(map(str, set(links)))))
    return None
