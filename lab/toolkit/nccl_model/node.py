# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the simulated node has right now: GPUs, RDMA devices, interfaces, and the paths between them.

From what nvidia-smi answers with and the node's /sys. Bandwidths are in GB/s, one direction.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from . import mnnvl, pcie
from .fabric import Fabric
from .options import MIB, integer
from .stop import USAGE_ERROR, cuda_failure, host_name, nccl_failure
from .variables import PHB, PIX, PXB, ROOT, SYS, listed, number
from .ways import errors

ANSWERS = f"{ROOT}/usr/share/busbar-lab/nvidia-smi"
HARDWARE = f"{ROOT}/srv/busbar-lab/hw"
SYSFS = f"{HARDWARE}/sys"
_LAB = f"{SYSFS}/kernel/busbar-lab"
# NCCL's own figures (graph/topo.h): a GPU's NVLink by what nvidia-smi says of it.
_NVLINKS = {"26.562": 20.6, "53.125": 40.1}


@dataclass(frozen=True)
class Gpu:
    """One that the driver has. ``address``: domain:bus:device.   lanes: PCIe width.   held_mib: used by others.

    nvlink: GB/s of one NVLink.   number: its place on the node, whatever CUDA shows.
    domain: UUID and clique of its NVLink domain, "" where it is of none.
    """

    address: str
    uuid: str
    name: str
    memory: int
    nvlinks: int
    nvlink: float
    lanes: int
    fabric: str
    slow: bool
    wrong: bool
    held_mib: int
    function: str
    number: int = 0
    domain: str = ""

    @property
    def bus_id(self) -> str:
        """As NCCL prints it: bus, device and function without leading zeros."""
        return f"{int(self.address.replace(':', '') + '0', 16):x}"


@dataclass(frozen=True)
class Hca:
    """A port that is active and that NCCL may use. ``index``: NCCL's.   layer: "IB" or "RoCE".   slot: GB/s of PCIe.

    gbps: of the link.   lossless: of RoCE, whether what NCCL sends has a priority that PFC holds for.
    direct: GPUs can be read and written by it.   mtu, read_request: bytes.
    redirected: what it and a GPU have for each other goes up to the CPU (ACS).
    """

    index: int
    name: str
    layer: str
    gbps: float
    slot: float
    lossless: bool
    direct: bool
    mtu: int = 4096
    read_request: int = 4096
    redirected: bool = False


@dataclass(frozen=True)
class Interface:
    """Of sockets. ``gbps``: 10 where the kernel says none, as NCCL has it."""

    name: str
    address: str
    gbps: float


def read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read()


def _first(*paths: str) -> str:
    """What is in the first of the files that is there; "" where there is none."""
    for path in paths:
        try:
            return read(path).strip()
        except OSError:
            continue
    return ""


# -- GPUs ------------------------------------------------------------------------------------------------------------


def read_gpus() -> list[Gpu]:
    """What CUDA would count, CUDA_VISIBLE_DEVICES considered. Raises Stop where there is no driver to ask."""
    try:
        rows = [line.split("\t") for line in read(f"{ANSWERS}/query.tsv").splitlines()]
        links = re.split(r"^GPU \d+:.*\n", read(f"{ANSWERS}/nvlink-s"), flags=re.MULTILINE)[1:]
        driver = json.loads(read(f"{ANSWERS}/.driver.json"))
        domains = mnnvl.domains(_first(f"{ANSWERS}/query.xml"))
    except OSError as error:
        raise cuda_failure("CUDA driver version is insufficient for CUDA runtime version") from error
    gpus = []
    for number_, (values, states) in enumerate(zip(rows[2:], links)):  # noqa: B905 Python 3.9
        row = dict(zip(rows[0], values))  # noqa: B905
        domain, bus, function = row["pci.bus_id"].lower().split(":")
        address = f"{domain[-4:]}:{bus}:{function}"
        speeds = re.findall(r": ([\d.]+) GB/s", states)
        gpus.append(
            Gpu(
                address=address.split(".")[0],
                uuid=row["uuid"],
                name=row["name"],
                memory=int(row["memory.total"].split()[0]) * MIB,
                nvlinks=len(speeds),
                nvlink=_NVLINKS.get(speeds[0] if speeds else "", 20.6),
                lanes=integer(_first(f"{SYSFS}/bus/pci/devices/{address}/current_link_width")) or 16,
                fabric=row["fabric.state"],
                slow=address in driver["slow"],
                wrong=address in driver["wrong"],
                held_mib=driver["held_mib"].get(address, 0),
                function=address,
                number=number_,
                domain=domains[number_] if number_ < len(domains) else "",
            )
        )
    return _visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))


def _visible(gpus: list[Gpu], chosen: str | None) -> list[Gpu]:
    """CUDA stops at the first name that it cannot make sense of."""
    if chosen is None:
        return gpus
    found: list[Gpu] = []
    for word in chosen.split(","):
        matching = [g for n, g in enumerate(gpus) if word.strip() == str(n) or (word[:4] == "GPU-" and word in g.uuid)]
        if not matching or matching[0] in found:
            break
        found.append(matching[0])
    return found


def hangs() -> bool:
    return bool(json.loads(read(f"{ANSWERS}/.driver.json"))["hang"])


# -- RDMA devices ----------------------------------------------------------------------------------------------------


def read_hcas(found: Mapping[str, str]) -> list[Hca]:
    """The ports that NCCL would use, in its order, which is that of the names."""
    folder = f"{SYSFS}/class/infiniband"
    names = os.listdir(folder) if os.path.isdir(folder) else []
    hcas: list[Hca] = []
    for name in sorted(names, key=lambda name: [int(t) if t.isdigit() else t for t in re.split(r"(\d+)", name)]):
        port, device = f"{folder}/{name}/ports/1", os.path.realpath(f"{folder}/{name}/device")
        if not _first(f"{port}/state").startswith("4:") or not listed(found.get("NCCL_IB_HCA", ""), name):
            continue
        roce = _first(f"{port}/link_layer") == "Ethernet"
        hcas.append(
            Hca(
                index=len(hcas),
                name=name,
                layer="RoCE" if roce else "IB",
                gbps=float(_first(f"{port}/rate").split()[0]),
                slot=pcie.slot(device),
                lossless=not roce or _lossless(f"{folder}/{name}", os.path.basename(device), found),
                direct=_peermem() or dmabuf(found),
                mtu=_mtu(name, device, roce),
                read_request=pcie.read_request(device),
                redirected=pcie.redirected(os.path.dirname(device)),
            )
        )
    return hcas


def _mtu(name: str, device: str, roce: bool) -> int:
    """RDMA's: of Ethernet the largest of the five that leaves 96 bytes of the interface's."""
    if not roce:
        return integer(_first(f"{_LAB}/active_mtu/{name}")) or 4096
    stale = json.loads(_first(f"{_LAB}/qos/{os.path.basename(device)}.json") or "{}").get("stale_mtu")
    netdevs = os.listdir(f"{device}/net") if os.path.isdir(f"{device}/net") else []
    found = min((integer(_first(f"{device}/net/{netdev}/mtu")) for netdev in netdevs), default=4192)
    return stale or max((size for size in (512, 1024, 2048, 4096) if size <= found - 96), default=256)


def _peermem() -> bool:
    """What NCCL asks: whether a file is there."""
    places = [f"{SYSFS}/kernel/mm/memory_peers/{name}" for name in ("nv_mem", "nv_mem_nc", "nvidia-peermem")]
    return any(os.path.exists(f"{place}/version") for place in (*places, f"{SYSFS}/module/nvidia_peermem"))


def dmabuf(found: Mapping[str, str]) -> bool:
    kernel = _first(f"{HARDWARE}/proc/sys/kernel/osrelease")
    without = "# CONFIG_PCI_P2PDMA is not set" in _first(f"{ROOT}/boot/config-{kernel}")
    opened = "Open Kernel Module" in _first(f"{HARDWARE}/proc/driver/nvidia/version")
    return opened and not without and number(found, "NCCL_DMABUF_ENABLE", 1) != 0


def _lossless(device: str, address: str, found: Mapping[str, str]) -> bool:
    """Whether the priority that the traffic class comes to is one that PFC holds for, on this port."""
    forced = _first(f"{device}/tc/1/traffic_class").rpartition("=")[2]
    traffic_class = int(forced) if forced.isdigit() else max(0, number(found, "NCCL_IB_TC", 0))
    state = json.loads(_first(f"{_LAB}/qos/{address}.json") or "{}")
    if not state:
        return False
    # A port trusts DSCP from its first entry on.
    priority = state["table"][traffic_class >> 2] if state["apps"] else 0
    return bool(state["pfc"] >> priority & 1)


def distance(one: str, other: str) -> int:
    """Of two PCI functions by address, as NCCL numbers paths."""
    places = [os.path.realpath(f"{SYSFS}/bus/pci/devices/{address}") for address in (one, other)]
    chains = [place.partition("/devices/")[2].split("/") for place in places]
    shared = 0
    for above, beside in zip(*chains):  # noqa: B905 Python 3.9
        if above != beside:
            break
        shared += 1
    if shared == 0:
        nodes = {_first(f"{place}/numa_node") for place in places}
        return PHB if len(nodes) == 1 else SYS
    if shared == 1:
        return PHB
    return PIX if max(len(chain) - shared - 1 for chain in chains) <= 1 else PXB


def distances(gpu: Gpu, hcas: list[Hca]) -> list[int]:
    """How far each of the devices is."""
    folder = f"{SYSFS}/class/infiniband"
    found = [os.path.basename(os.path.realpath(f"{folder}/{hca.name}/device")) for hca in hcas]
    return [distance(gpu.function, address) for address in found]


# -- interfaces ------------------------------------------------------------------------------------------------------


def read_interface(found: Mapping[str, str]) -> Interface:
    """The one that NCCL's bootstrap and its sockets use. Raises Stop where NCCL_SOCKET_IFNAME leaves none."""
    words = found.get("NCCL_SOCKET_IFNAME", "")
    folder = f"{SYSFS}/class/net"
    names = sorted(name for name in os.listdir(folder) if os.path.isdir(f"{folder}/{name}"))
    left = [name for name in names if listed(words, name)]
    if words and not left:
        raise nccl_failure(USAGE_ERROR, 1550, "Bootstrap : no socket interface found")
    said = json.loads(_first(f"{_LAB}/netdevs.json") or "{}")
    addresses = {name: values["ipv4"].partition("/")[0] for name, values in said.items()}
    # A node whose addresses nothing tells has one on an interface that is up.
    usable = [name for name in left if addresses.get(name)] or [name for name in left if _up(name)] or left or ["lo"]
    last = ("docker", "lo", "virbr")
    if not words:
        usable = sorted(usable, key=lambda name: (name.startswith(last), not name.startswith("ib")))
    chosen = usable[0]
    speed = _first(f"{folder}/{chosen}/speed")
    made = int(hashlib.sha256(host_name().encode()).hexdigest()[:4], 16)
    address = addresses.get(chosen) or f"10.0.{made >> 8}.{made & 255}"
    return Interface(chosen, address, integer(speed) / 1000 if integer(speed) > 0 else 10.0)


def _up(name: str) -> bool:
    return _first(f"{SYSFS}/class/net/{name}/operstate") == "up"


# -- counters --------------------------------------------------------------------------------------------------------

_PACKET = 4096


def count(moved: Mapping[str, tuple[int, int]], lossy: bool, between: Fabric) -> None:
    """Add what was sent and received, in bytes, to the counters of the devices; what was lost leaves traces, too."""
    for name, (sent, received) in moved.items():
        port = f"{SYSFS}/class/infiniband/{name}/ports/1"
        more = {"counters/port_xmit_data": sent // 4, "counters/port_rcv_data": received // 4}
        more |= {"counters/port_xmit_packets": sent // _PACKET, "counters/port_rcv_packets": received // _PACKET}
        if lossy and sent:
            for file in ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err"):
                more[f"hw_counters/{file}"] = 1 + sent // _PACKET // 100000
        for file, count_ in errors(between, host_name(), name, sent, received).items():
            more[file] = more.get(file, 0) + count_
        for file, count_ in more.items():
            _add(f"{port}/{file}", count_)


def _add(path: str, more: int) -> None:
    new = f"{path}.{os.getpid()}"
    before = integer(_first(path))
    with open(new, "w", encoding="utf-8") as stream:
        stream.write(f"{before + more}\n")
    os.replace(new, path)
