# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a simulated GPU node is made of; machines.py has nodes to start from.

A Machine says what is plugged in where; tree.py renders it as the kernel and the driver would show it. All of it
goes to JSON and back, so that a fault is a change of the model and a repair is rendering without it. Nothing here
is shared with the product, which has to make sense of the rendered files alone.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from . import ofed
from .qos import Port
from .toolkit.kernel_node import STACK, srcversion

T = TypeVar("T")

NVIDIA, MELLANOX, INTEL, VIRTIO = "0x10de", "0x15b3", "0x8086", "0x1af4"
ETHERNET, INFINIBAND, BRIDGE, GPU = "0x020000", "0x020700", "0x060400", "0x030200"
GID_V1, GID_V2 = "IB/RoCE v1", "RoCE v2"
DOWN_RATE = "2.5 Gb/sec (1X SDR)"
# Control words of ACS: nothing, and SrcValid, ReqRedir, CmpltRedir and UpstreamFwd, which Linux sets with an IOMMU.
ACS_CLEAR, ACS_REDIRECT = 0x00, 0x1D
NVLINK_4, NVLINK_5 = "26.562", "53.125"  # GB/s of one, as nvidia-smi prints it


class LabError(Exception):
    """The lab cannot do what was asked. The message names what there is instead."""


class LabLockedError(LabError):
    """Another process starts or removes the lab."""


@dataclass(frozen=True)
class Link:
    """A PCIe link as sysfs words it: speed "32.0 GT/s PCIe" or "Unknown", width in lanes."""

    speed: str
    width: int


GEN1, GEN3, GEN4, GEN5 = (Link(f"{speed} GT/s PCIe", 16) for speed in ("2.5", "8.0", "16.0", "32.0"))
EMPTY_SLOT = Link("2.5 GT/s PCIe", 0)
NO_LINK = Link("Unknown", 0)  # what a virtual function shows


@dataclass
class HostBridge:
    name: str  # pci0000:15
    numa_node: int


@dataclass
class Function:
    """One PCI function. ``parent``: address of the bridge above, or name of a host bridge.

    bus: of a bridge, the bus below it ("0000:18").   physfn: of a virtual function, the address of its owner.
    acs: control word, None where it has no ACS.   read_request: its largest, in bytes.   vpd: what it has in V3.
    config_bytes: how much of its config space can be read.
    """

    address: str
    parent: str
    class_code: str
    vendor: str
    device: str
    subsystem: str
    revision: str
    numa_node: int
    driver: str | None
    link: Link | None = None
    max_link: Link | None = None
    bus: str | None = None
    physfn: str | None = None
    acs: int | None = None
    read_request: int = 512
    config_bytes: int = 4096
    vpd: str = ""


@dataclass
class Node:
    """A NUMA node."""

    number: int
    cpulist: str
    memory_kib: int


@dataclass
class Gpu:
    """``number`` is its place and stays; index and minor follow from the GPUs that the driver still has.

    slow: its clocks are throttled.   wrong: it computes wrong results. Only a benchmark shows either.
    health: element of nvidia-smi -q -x -> what it says, where not as of a GPU that is well.
    link_errors: "11 Recovery Errors" -> count of that NVLink, where not 0.
    """

    number: int
    address: str
    uuid: str
    name: str
    memory_mib: int
    vbios: str
    serial: str
    nvlinks: list[bool]
    in_driver: bool = True
    slow: bool = False
    wrong: bool = False
    nvlink_gbps: str = NVLINK_4
    # "UUID clique" where not as the machine's.
    domain: str = ""
    health: dict[str, str] = field(default_factory=dict)
    link_errors: dict[str, int] = field(default_factory=dict)


@dataclass
class GpuProcess:
    """Somebody's process on a GPU. ``gpu``: its number."""

    pid: int
    name: str
    gpu: int
    memory_mib: int


@dataclass
class Gid:
    index: int
    value: str
    kind: str
    netdev: str | None


@dataclass
class Rdma:
    """An RDMA device with its one port (mlx5 has a PCI function for each port). ``rail``: None off the rails.

    counters, hw_counters: those below ports/1 that are not 0.   statistics: of ethtool -S, likewise.
    flaps: how often its link went down and came back.   degrees: Celsius of its chip, module_degrees of its module.
    post_fec_errors: what FEC could not mend, as mlxlink counts it.   mlxlink: how that answers of it: "ok", "garbled".
    """

    name: str
    address: str
    rail: int | None
    node_guid: str
    sys_image_guid: str
    hca_type: str
    board_id: str
    fw_ver: str
    link_layer: str
    rate: str
    gid_slots: int
    gids: list[Gid]
    state: str = "4: ACTIVE"
    phys_state: str = "5: LinkUp"
    lid: int = 0
    sm_lid: int = 0
    # What the subnet manager has set; of Ethernet it follows from the netdev.
    active_mtu: int = 4096
    # Index -> key, as the subnet manager has filled the table; 0x0000 is an empty place.
    pkeys: dict[str, str] = field(default_factory=lambda: {"0": "0xffff", "1": "0x0000"})
    counters: dict[str, int] = field(default_factory=dict)
    hw_counters: dict[str, int] = field(default_factory=dict)
    statistics: dict[str, int] = field(default_factory=dict)
    flaps: int = 0
    degrees: int = 61
    module_degrees: int = 52
    post_fec_errors: int = 0
    mlxlink: str = "ok"


@dataclass
class SwitchPort:
    """What a switch says by LLDP of the port that an interface is plugged into.

    chassis: a MAC address.   mfs: its largest frame in bytes.   pfc: priorities.   dscp: [DSCP, priority].
    classes: of the eight priorities.   shares: per cent of each class, 0 for strict priority.
    dcbx: it says more than name and frame.
    """

    chassis: str
    name: str
    port: str
    mfs: int = 9230
    pfc: list[int] = field(default_factory=lambda: [3])
    dscp: list[list[int]] = field(default_factory=lambda: [[26, 3], [48, 6]])
    classes: list[int] = field(default_factory=lambda: [0, 0, 0, 3, 0, 0, 6, 0])
    shares: list[int] = field(default_factory=lambda: [50, 0, 0, 50, 0, 0, 0, 0])
    dcbx: bool = True


@dataclass
class Netdev:
    """``address``: the PCI function below, None for virtual ones. ``speed``: Mb/s, None where reading it fails.

    kind: ARPHRD number: 1 Ethernet, 32 InfiniBand, 772 loopback.
    bus_device: directory between the PCI function and net/, as virtio has one.
    bond_mode: of a bond, as bonding/mode words it.   bridge: has a bridge/ directory.
    qos: RoCE as it is where it is configured, on ports that have DCB: Ethernet on a physical function of mlx5.
    ipv4: its address, a.b.c.d/n.   ipv6: from a router's advertisement.   vrf: table, of a VRF.
    permanent: the MAC address it came with, where it shows another one.
    switch_mtu: of the switch port that it is plugged into, with the IP header and what is in it.
    switch: what it hears by LLDP, mostly of one port.   index: its number, 0 for its place among the others.
    """

    name: str
    address: str | None
    mac: str
    mtu: int
    speed: int | None
    kind: int = 1
    operstate: str = "up"
    port_name: str | None = None
    bus_device: str | None = None
    master: str | None = None
    bond_mode: str | None = None
    bridge: bool = False
    qos: Port | None = None
    ipv4: str | None = None
    permanent: str | None = None
    switch_mtu: int = 9216
    switch: list[SwitchPort] = field(default_factory=list)
    index: int = 0
    ipv6: str | None = None
    vrf: int | None = None


@dataclass
class Route:
    """IPv4. ``destination``: a.b.c.d/n; ``gateway``: None for a connected network."""

    netdev: str
    destination: str
    gateway: str | None = None
    metric: int = 0


@dataclass
class Machine:
    """platform: what faults are declared for. site: the inventory values that describe it while it is healthy.

    kernel: as uname -r says. driver_open: of the open flavour. peermem: how nvidia_peermem takes being loaded.
    modules: loaded kernel modules and the version each shows, None where it shows none. srcversions: likewise.
    ofed: the release that the node starts with (ofed.py), None for a system without; what it has later is in its files.
    mounts: lines of /proc/mounts beside that of /dev/shm.
    fabric: (state, status) of every GPU as nvidia-smi words them.
    gpu_tool: how nvidia-smi behaves: "ok", "missing", "hang" or "garbage".
    collectives_hang: NCCL never gets past its initialisation.
    spare_slot: address of a free switch port away from the GPUs.
    damaged: file of a PCI function -> what it holds instead: {"0000:1b:00.0/numa_node": ""}.
    kernel_log: lines of the NVIDIA driver in the kernel's log, "{age} text" with the seconds since then.
    aer: PCI address -> kind of error (correctable, nonfatal, fatal) -> count, where not 0.
    fabric_manager: "ok", "stopped", or the version that is installed where it is not the driver's.
    lldpad: it runs.
    sysctls: below /proc/sys/net/ipv4/conf, as they are once configured, where not as out of the box:
    {"all/rp_filter": "1"}.
    rules: of ip, beside the kernel's three: {"rule 50 from 10.21.0.2": "lookup main", "route 55 default": "dev eno1"}.
    """

    hostname: str
    platform: str
    site: dict[str, Any]
    cpu: str
    nodes: list[Node]
    dmi: dict[str, str] | None = None
    hypervisor: bool = False
    cmdline: str = ""
    kernel: str = "6.8.0-60-generic"
    driver_version: str = "580.178.04"
    # The open kernel modules; the closed ones export no DMA-BUF.
    driver_open: bool = True
    # What modprobe nvidia_peermem does: a key of kernel_modules.PEERMEM.
    peermem: str = "ok"
    # Bytes that Slurm's daemon may lock, and of /dev/shm.
    slurmd_memlock: str = "unlimited"
    shm_bytes: int = 1 << 40
    # The same of containerd; when dockerd was started, in hundredths of a second after the boot, None: it does not run.
    containerd_memlock: str = "unlimited"
    dockerd_started: int | None = None
    cuda_version: str = "13.0"
    modules: dict[str, str | None] = field(default_factory=dict)
    srcversions: dict[str, str] = field(default_factory=dict)
    ofed: str | None = None
    mounts: list[str] = field(default_factory=list)
    host_bridges: list[HostBridge] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)
    gpus: list[Gpu] = field(default_factory=list)
    rdma: list[Rdma] = field(default_factory=list)
    netdevs: list[Netdev] = field(default_factory=list)
    routes: list[Route] = field(default_factory=list)
    fabric: tuple[str, str] = ("Completed", "Success")
    gpu_tool: str = "ok"
    gpu_processes: list[GpuProcess] = field(default_factory=list)
    collectives_hang: bool = False
    spare_slot: str | None = None
    damaged: dict[str, str] = field(default_factory=dict)
    kernel_log: list[str] = field(default_factory=list)
    aer: dict[str, dict[str, int]] = field(default_factory=dict)
    fabric_manager: str = "ok"
    lldpad: bool = False
    # lldpd: "ok", "stopped", or "garbled", where its tool prints half of an answer.
    lldpd: str = "ok"
    sysctls: dict[str, str] = field(default_factory=dict)
    rules: dict[str, str] = field(default_factory=dict)
    # aarch64 has other words for its CPUs, and kernels of several page sizes (bytes).
    architecture: str = "x86_64"
    page_size: int = 4096
    # Options of the NVIDIA driver that is loaded, where not the driver's own: {"CreateImexChannel0": "1"}.
    driver_options: dict[str, str] = field(default_factory=dict)
    # Of an NVLink domain: "UUID clique" of every GPU, and how IMEX is: "ok", "stopped" or "degraded".
    nvlink_domain: str = ""
    imex: str = "ok"
    # What a cloud's image brings: path below the system root -> text.
    image: dict[str, str] = field(default_factory=dict)
    # How often it was booted since it is there.
    boots: int = 1
    # What of the firmware of a card is not as delivered, by the address of its first port (nics.py).
    firmware: dict[str, dict[str, Any]] = field(default_factory=dict)

    def function(self, address: str) -> Function:
        return first(f"PCI function {address}", (f for f in self.functions if f.address == address))

    def gpu(self, number: int) -> Gpu:
        return first(f"GPU {number}", (g for g in self.gpus if g.number == number))

    def rail(self, number: int) -> Rdma:
        return first(f"rail {number}", (r for r in self.rdma if r.rail == number))

    def netdev(self, rail: int) -> Netdev:
        """Return the interface of a rail."""
        address = self.rail(rail).address
        return first(f"interface of rail {rail}", (n for n in self.netdevs if n.address == address))

    def index(self, netdev: Netdev) -> int:
        return netdev.index or self.netdevs.index(netdev) + 1

    def flaps(self, netdev: Netdev) -> int:
        return sum(r.flaps for r in self.rdma if r.address == netdev.address)

    def driver_gpus(self) -> list[Gpu]:
        """The GPUs the driver has, in its order: the position is the index that nvidia-smi shows."""
        return sorted((g for g in self.gpus if g.in_driver), key=lambda g: g.address)

    def chain(self, address: str) -> list[str]:
        """Host bridge name, then every bridge down to the function itself."""
        parents = {f.address: f.parent for f in self.functions}
        chain = [address]
        while chain[0] in parents:
            chain.insert(0, parents[chain[0]])
        return chain

    def load_ofed(self, release: str | None) -> None:
        """The RDMA stack that is loaded is this release's; with None it is that of the kernel."""
        self.modules.pop("mlx_compat", None)
        for name in STACK if release else [name for name in STACK if name in self.modules]:
            self.modules[name], self.srcversions[name] = ofed.shown(release, self.kernel, name)

    def srcversion(self, module: str) -> str | None:
        """Of a loaded module; None where nothing asks for it."""
        if module.startswith("nvidia"):
            return srcversion(f"nvidia-{self.driver_version}", module)
        return self.srcversions.get(module) if module in self.modules else None

    def set_link(self, address: str, link: Link) -> None:
        """A link has two ends: the function's and that of the port above it, where there is one."""
        self.function(address).link = link
        self._set_slot(address, link)

    def _set_slot(self, address: str, link: Link) -> None:
        parent = self.function(address).parent
        for above in [f for f in self.functions if f.address == parent]:
            above.link = link

    def take_down(self, rdma: Rdma, phys_state: str) -> None:
        """The port has no link: what the RDMA device and its netdevs show then."""
        rdma.state, rdma.phys_state, rdma.rate = "1: DOWN", phys_state, DOWN_RATE
        if rdma.link_layer == "Ethernet":
            rdma.gids = []
        else:
            rdma.lid, rdma.sm_lid = 0xFFFF, 0
        for netdev in [n for n in self.netdevs if n.address == rdma.address]:
            netdev.operstate, netdev.speed = "down", None
            self.routes = [r for r in self.routes if r.netdev != netdev.name]

    def unplug(self, address: str) -> None:
        """The function has fallen off the bus, with everything that was built on it."""
        gone = {n.name for n in self.netdevs if n.address == address}
        for netdev in self.netdevs:
            # The others keep theirs.
            netdev.index = self.index(netdev)
        self._set_slot(address, EMPTY_SLOT)
        self.functions = [f for f in self.functions if f.address != address]
        self.gpus = [g for g in self.gpus if g.address != address]
        self.rdma = [r for r in self.rdma if r.address != address]
        self.netdevs = [n for n in self.netdevs if n.name not in gone]
        self.routes = [r for r in self.routes if r.netdev not in gone]

    def move_nic(self, rdma: Rdma, port: str) -> None:
        """The card now sits below another port; names that follow from the PCI address follow it."""
        function, above = self.function(rdma.address), self.function(port)
        self._set_slot(rdma.address, EMPTY_SLOT)
        above.link = function.link
        old, new = function.address, f"{above.bus}:00.0"
        function.address, function.parent, function.numa_node = new, port, above.numa_node
        rdma.address = new
        for netdev in [n for n in self.netdevs if n.address == old]:
            name = netdev_name(new, netdev.kind, netdev.port_name)
            for route in self.routes:
                route.netdev = name if route.netdev == netdev.name else route.netdev
            for gid in rdma.gids:
                gid.netdev = name if gid.netdev == netdev.name else gid.netdev
            for key in [key for key in self.sysctls if key.startswith(f"{netdev.name}/")]:
                self.sysctls[name + key[len(netdev.name) :]] = self.sysctls.pop(key)
            netdev.name, netdev.address = name, new


def first(what: str, found: Iterable[T]) -> T:
    for item in found:
        return item
    raise LabError(f"the machine has no {what}")


def to_dict(machine: Machine) -> dict[str, Any]:
    data = asdict(machine)
    for netdev in data["netdevs"]:
        netdev["qos"] = vars(netdev["qos"]) if netdev["qos"] else None
    return data


def from_dict(data: dict[str, Any]) -> Machine:
    """The Machine that ``to_dict`` was called on. Raises LabError when the data is not one."""
    try:
        machine: Machine = _decode(Machine, data)
    except (KeyError, TypeError, AttributeError) as error:
        raise LabError(f"this is not the lab's description of a machine: {error!r}") from error
    return machine


def _decode(kind: Any, data: Any) -> Any:
    if kind is Port:
        return Port(**data)
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        # A lab that was made before a field with a default came has none.
        hints = _hints(kind)
        return kind(**{f.name: _decode(hints[f.name], data[f.name]) for f in fields(kind) if f.name in data})
    if origin in (Union, types.UnionType):
        return None if data is None else _decode(arguments[0], data)
    if origin is list:
        return [_decode(arguments[0], item) for item in data]
    return tuple(data) if origin is tuple else data


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def netdev_name(address: str, kind: int, port_name: str | None, function: bool = False) -> str:
    """systemd's predictable name: ibp24s0, enp26s0np0, enp131s0f1np1."""
    domain = f"P{int(address[:4], 16)}" if int(address[:4], 16) else ""
    name = f"{'ib' if kind == 32 else 'en'}{domain}p{int(address[5:7], 16)}s{int(address[8:10], 16)}"
    return name + (f"f{address[-1]}" if function else "") + (f"n{port_name}" if port_name else "")
