# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read data for the replacement of a part: serial and part numbers, slots, GUIDs, firmware, and the NICs' counters.

Nothing here is judged. Unreadable values are None, and ``problems`` has the reasons.
Sources: dmi_id.c of the kernel; nvidia-smi -q -x; lspci(8) of the NIC's VPD; ethtool -m (SFF-8636, CMIS).
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Dict, List, Mapping, Optional, Tuple

from . import nic_counters
from .core.finding import printable
from .core.host import Host, ParseError, Problem, ReadError, attempt
from .machine import rdma
from .machine.gpu import parse_markup
from .machine.pci import natural_key, parse_address

BOOT_ID = "/proc/sys/kernel/random/boot_id"
DMI = "/sys/class/dmi/id"
# Key of the record -> file; some platforms have none, or hold "To be filled by O.E.M.".
_BOARD = {
    "vendor": "sys_vendor",
    "product": "product_name",
    "serial": "product_serial",
    "board": "board_name",
    "board_serial": "board_serial",
    "chassis_serial": "chassis_serial",
    "bios": "bios_version",
}
SMI = ("nvidia-smi", "-q", "-x")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NOTHING = ("", "N/A", "[N/A]", "Unknown", "To be filled by O.E.M.", "Not Specified", "None")
# Of ``lspci -vv``: heading -> key.
_VPD = {"[PN] Part number": "part", "[SN] Serial number": "serial", "[EC] Engineering changes": "revision"}
# Of ``ethtool -m``: heading -> key.
_MODULE = {"Vendor name": "vendor", "Vendor PN": "part", "Vendor SN": "serial", "Vendor rev": "revision"}
_LINE = 200


@dataclass(frozen=True)
class Gpu:
    pci: str
    product: Optional[str] = None
    serial: Optional[str] = None
    uuid: Optional[str] = None
    part: Optional[str] = None
    vbios: Optional[str] = None


@dataclass(frozen=True)
class Nic:
    """slot: as the chassis names it.   cable: vendor, part, serial and revision of the transceiver or cable.

    counters: errors and losses since they were reset, name -> count.
    """

    device: str
    pci: Optional[str] = None
    netdev: Optional[str] = None
    guid: Optional[str] = None
    image_guid: Optional[str] = None
    firmware: Optional[str] = None
    psid: Optional[str] = None
    part: Optional[str] = None
    serial: Optional[str] = None
    revision: Optional[str] = None
    slot: Optional[str] = None
    cable: Mapping[str, str] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Hardware:
    boot_id: Optional[str]
    board: Mapping[str, str]
    driver: Optional[str] = None
    gpus: Tuple[Gpu, ...] = ()
    nics: Tuple[Nic, ...] = ()
    problems: Tuple[Problem, ...] = ()

    def to_dict(self) -> Dict[str, Any]:
        """Plain data; problems as lines."""
        data = asdict(self)
        return dict(
            data,
            gpus=[asdict(gpu) for gpu in self.gpus],
            nics=[asdict(nic) for nic in self.nics],
            problems=[printable(str(problem))[:_LINE] for problem in self.problems][:100],
        )


def parse_boot_id(text: str) -> str:
    """Raises ParseError."""
    if _UUID.fullmatch(text) is None:
        raise ParseError("%r is not a boot id" % text[:80])
    return text


def parse_gpus(text: str) -> Tuple[Optional[str], Tuple[Gpu, ...]]:
    """The driver's version and the GPUs of ``nvidia-smi -q -x``. Raises ParseError."""
    root = parse_markup(text, "nvidia_smi_log")
    found = []
    for gpu in root.findall("gpu"):
        found.append(
            Gpu(
                pci=parse_address(gpu.get("id", "")),
                product=_value(gpu.findtext("product_name")),
                serial=_value(gpu.findtext("serial")),
                uuid=_value(gpu.findtext("uuid")),
                part=_value(gpu.findtext("gpu_part_number")) or _value(gpu.findtext("board_part_number")),
                vbios=_value(gpu.findtext("vbios_version")),
            )
        )
    return _value(root.findtext("driver_version")), tuple(found)


def parse_vpd(text: str) -> Dict[str, str]:
    """``part``, ``serial``, ``revision`` and ``slot`` of ``lspci -vv -s ADDRESS``, as far as they are there."""
    return _named(text, dict(_VPD, **{"Physical Slot": "slot"}))


def parse_module(text: str) -> Dict[str, str]:
    """``vendor``, ``part``, ``serial`` and ``revision`` of ``ethtool -m NETDEV``, as far as they are there."""
    return _named(text, _MODULE)


def _named(text: str, names: Mapping[str, str]) -> Dict[str, str]:
    found: Dict[str, str] = {}
    for line in text.splitlines():
        name, _colon, value = line.strip().partition(":")
        said = _value(value)
        if said is not None and name.strip() in names:
            # Both ports of a NIC have the same.
            found.setdefault(names[name.strip()], said)
    return found


def _value(text: Optional[str]) -> Optional[str]:
    said = printable((text or "").strip())[:_LINE]
    return None if said in _NOTHING else said


def read(host: Host) -> Hardware:
    """Read all. Never raises: a faulty part may not respond."""
    problems: List[Problem] = []
    boot_id = attempt(lambda: _boot_id(host), BOOT_ID, problems)
    board: Dict[str, str] = {}
    for key, name in _BOARD.items():
        path = "%s/%s" % (DMI, name)
        said = _value(attempt(partial(host.read, path), path, problems))
        board.update({key: said} if said is not None else {})
    smi = attempt(lambda: parse_gpus(host.query(SMI)), " ".join(SMI), problems)
    devices, unread = rdma.read(host)
    problems += unread
    nics = [_nic(host, device, problems) for device in sorted(devices, key=lambda one: natural_key(one.name))]
    driver, gpus = smi or (None, ())
    return Hardware(boot_id, board, driver, gpus, tuple(nics), tuple(problems))


def _boot_id(host: Host) -> str:
    text = host.read(BOOT_ID)
    if text is None:
        raise ReadError(BOOT_ID, "is absent")
    return parse_boot_id(text)


def _nic(host: Host, device: rdma.RdmaDevice, problems: List[Problem]) -> Nic:
    pci = device.pci
    vpd: Dict[str, str] = {}
    cable: Dict[str, str] = {}
    netdev = None
    if pci is not None:
        argv = ("lspci", "-vv", "-s", pci)
        vpd = attempt(lambda: parse_vpd(host.query(argv)), " ".join(argv), problems) or {}
        folder = "/sys/bus/pci/devices/%s/net" % pci
        netdev = next(iter(attempt(lambda: host.listdir(folder), folder, problems) or []), None)
    if netdev is not None:
        asked = ("ethtool", "-m", netdev)
        cable = attempt(lambda: parse_module(host.query(asked)), " ".join(asked), problems) or {}
    # Reading those of a device that manages NVSwitches fills the kernel's log with errors.
    counted = (
        nic_counters.Counters({}) if device.manages_nvswitch else nic_counters.read(host, device.name, 1, netdev or "")
    )
    problems += counted.problems
    return Nic(
        device=device.name,
        pci=pci,
        netdev=netdev,
        guid=device.node_guid,
        image_guid=device.sys_image_guid,
        firmware=device.firmware,
        psid=device.board_id,
        cable=cable,
        counters={name: count for name, count in counted.values.items() if count},
        **{name: vpd.get(name) for name in ("part", "serial", "revision", "slot")},
    )
