# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a line of NCCL's may say: events. ``texts`` makes them of lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional, Tuple, Union, get_args

# NVML's number of a GPU that is registered with its fabric.
COMPLETED = 3
# Releases that print a line in a form: from the first, before the second; None of an end that is open.
Form = Tuple[Optional[Tuple[int, int]], Optional[Tuple[int, int]]]


@dataclass(frozen=True)
class Version:
    """nccl: ``2.28.9``.   cuda: ``13.0``, what the library was built for; "" where it is cut off."""

    nccl: str
    cuda: str


@dataclass(frozen=True)
class Driver:
    """version: CUDA's number of the driver, 13000 for 13.0."""

    version: int


@dataclass(frozen=True)
class Variable:
    """A variable that NCCL looked up and found, in the environment or in a file: the line does not tell which."""

    name: str
    value: str


@dataclass(frozen=True)
class Network:
    """name: of the network that a communicator uses: ``IB``, ``Socket``, ``IBext_v8``, ``AWS Libfabric``."""

    name: str


@dataclass(frozen=True)
class Device:
    """index: as in ``via NET/IB/INDEX``.   name: ``mlx5_0``; several joined by + where ports are used as one.

    layer: "IB" or "RoCE"; "" of an interface.   port: 0 of an interface.   address: of an interface.
    joined: ports of those that are used as one.   mbit: speed in Mbit/s, where the line says it.   sharp: it can SHARP.
    """

    index: int
    name: str
    port: int = 0
    layer: str = ""
    address: str = ""
    joined: Tuple[int, ...] = field(default=(), compare=False)
    mbit: int = field(default=0, compare=False)
    sharp: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Devices:
    """What a network found. net: ``IB`` or ``Socket``.   oob: interface of the control messages, "" where not said.

    cut: somebody has left some of them out.
    """

    net: str
    devices: Tuple[Device, ...]
    oob: str = ""
    oob_address: str = ""
    cut: bool = False


@dataclass(frozen=True)
class Port:
    """An HCA's port that NET/IB takes, in a separate line; of merged ports its index is not a network's."""

    device: Device


@dataclass(frozen=True)
class NoDevice:
    """why: "device" (no RDMA device with an active port), "interface" (no IP interface) or "libibverbs"."""

    why: str


@dataclass(frozen=True)
class Plugin:
    """kind: ``NET``, ``COLLNET``, ``TUNER``, ``PROFILER``, ``ENV``.   name: file or name; "" where not said.

    state: "missing", "failed" (there, but it did not load or start), "idle" (it found no device), "loaded",
    "assigned", "speaks", "unfit" (without an interface that this NCCL takes), "refused".
    """

    kind: str
    state: str
    name: str
    form: Optional[Form] = field(default=None, compare=False)


@dataclass(frozen=True)
class Bootstrap:
    interface: str
    address: str
    form: Optional[Form] = field(default=None, compare=False)


@dataclass(frozen=True)
class Note:
    """kind: "harmless", "fallback", "odd" or "fact".   text: our own sentence."""

    kind: str
    text: str


@dataclass(frozen=True)
class Init:
    """A rank begins to set a communicator up (done False), or has done so.

    comm: pointer, of this process alone.   id: commId, of all ranks; "" of a split in 2.23 and later.
    parent, color: of a split; "" else.   bus: PCI bus id as NCCL writes it, ``1c000``.
    all: by ncclCommInitAll, so that one process has all ranks.   nvml: what the driver calls the GPU.
    """

    comm: str
    id: str
    parent: str
    color: str
    rank: int
    ranks: int
    device: int
    bus: str
    done: bool
    all: bool = False
    nvml: Optional[int] = field(default=None, compare=False)


@dataclass(frozen=True)
class Shape:
    """Of a communicator, as NCCL counts: nodes are NCCL_HOSTID's or hosts, with MNNVL those of a clique are one.

    mnnvl: whether it goes by NVLink between hosts; None before 2.21, which does not say.
    """

    comm: str
    rank: int
    ranks: int
    nodes: int
    local_ranks: int
    mnnvl: Optional[bool] = None


@dataclass(frozen=True)
class Fabric:
    """Of which NVLink domain a GPU says that it is. clique: as NCCL writes it, ``0x7ffe``.   state: NVML's number."""

    uuid: str
    clique: str
    state: int


@dataclass(frozen=True)
class NvlsGroup:
    """The NVSwitches have a multicast group for all ranks that NCCL counts as one node."""


@dataclass(frozen=True)
class Gone:
    """A rank's communicator ended. how: ``Destroy``, ``Abort`` or ``Revoke``.   device: -1 where it is not said."""

    comm: str
    rank: int
    how: str
    ranks: int = 0
    device: int = -1


@dataclass(frozen=True)
class Named:
    """A line names a rank of a communicator, and what it says of it is cut off or not known."""

    comm: str
    rank: int
    ranks: int
    device: int


@dataclass(frozen=True)
class Channel:
    """A connection between two ranks, or of a rank with the switches (``collnet``).

    kind: "net", "p2p", "shm", "collnet".   via: name of the network, ``CUMEM``, ``direct/direct``.
    source, target: ranks; target -1 of collnet.   send: which side wrote the line; None where it is not said.
    device: index of the network's device; None but of net and collnet.
    proxy: rank whose GPU stands between (PXN); None without.   gdr: GPUDirect RDMA; None where the line is cut.
    path: as it is printed.
    """

    kind: str
    via: str
    source: int
    target: int
    send: Optional[bool] = None
    device: Optional[int] = None
    proxy: Optional[int] = None
    gdr: Optional[bool] = False
    path: str = field(default="", compare=False)


@dataclass(frozen=True)
class Rings:
    """Rings are connected. pxn, gdr: None before 2.24."""

    pxn: Optional[bool]
    gdr: Optional[bool]


@dataclass(frozen=True)
class CollNet:
    """connected: whether in-network reduction is used by this rank. why: what NCCL says where it is not.

    rank: of a communicator that the line does not name; None where the line is of no rank.
    """

    connected: bool
    why: str = ""
    rank: Optional[int] = None


@dataclass(frozen=True)
class Sharp:
    """The SHARP plugin has set itself up for a rank of a communicator: no proof, for NCCL may go on without it."""

    rank: int
    ranks: int
    device: str


@dataclass(frozen=True)
class GdrDevice:
    """Whether a network's device can do GPUDirect RDMA at all; whether it is used, the channels say.

    why: it cannot, where the line tells.
    """

    net: str
    device: str
    able: bool
    why: str = ""


@dataclass(frozen=True)
class GdrPair:
    """NCCL's decision on a GPU and a device; most pairs are far apart, and never used.

    distance, level: numbers of path types, which differ between releases.
    """

    on: bool
    gpu: str
    device: str
    distance: int
    level: int


@dataclass(frozen=True)
class DmaBuf:
    device: int


@dataclass(frozen=True)
class PeerOff:
    """The driver says that two GPUs may not reach each other directly, and no NVLink joins them."""

    pair: str


@dataclass(frozen=True)
class Retry:
    """A TCP connection is tried again. peer: "" where not said.   tried, most, wait: 0 where not said; wait in ms."""

    peer: str
    why: str
    tried: int
    most: int
    wait: int = 0


@dataclass(frozen=True)
class Own:
    """A line names the rank of who wrote it, and not its communicator."""

    rank: int


@dataclass(frozen=True)
class Met:
    """The ranks of a communicator have found each other: the times of its bootstrap are printed."""


@dataclass(frozen=True)
class Trees:
    """Trees are connected."""


@dataclass(frozen=True)
class RoceGid:
    """A connection uses a GID that holds an IPv4 address: RoCE."""


@dataclass(frozen=True)
class Timed:
    """A rank has completed the initialisation of a communicator: the line with its times, in seconds.

    parts: of the total, as they are printed.
    """

    rank: int
    ranks: int
    total: float
    bootstrap: float
    parts: str = ""


@dataclass(frozen=True)
class Returned:
    """A call within NCCL returned an error. place: file and line.   result: number of ncclResult_t."""

    place: str
    result: int


@dataclass(frozen=True)
class Nvls:
    """channels: how many may be used; 0 where the line does not say."""

    available: bool
    channels: int = 0


@dataclass(frozen=True)
class Channels:
    """How many a communicator has. nvls: None where the release does not say."""

    collective: int
    nvls: Optional[int]
    p2p: int
    per_peer: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Graph:
    """A way through the topology that NCCL found. pattern: 4 ring, 1 to 3 trees, 5 NVLS.

    bandwidth: GB/s a channel within the node.   intra: path type between GPUs.
    """

    pattern: int
    channels: int
    bandwidth: float
    intra: str


@dataclass(frozen=True)
class System:
    """The node's largest bandwidth of a GPU, GB/s, as NCCL sees it."""

    bandwidth: float


@dataclass(frozen=True)
class GraphNode:
    """A GPU in the printed topology (gpu: ``0-1b000``, bandwidth None), its NVLinks (gpu "", GB/s; to a switch).

    nic: or a network device, as NCCL numbers it, with its GB/s.
    """

    gpu: str
    bandwidth: Optional[float]
    switch: bool = False
    nic: str = ""


Event = Union[
    Named,
    Version,
    Driver,
    Variable,
    Network,
    Devices,
    Port,
    NoDevice,
    Plugin,
    Bootstrap,
    Note,
    Init,
    Shape,
    Fabric,
    NvlsGroup,
    Gone,
    Channel,
    Rings,
    CollNet,
    Sharp,
    GdrDevice,
    GdrPair,
    DmaBuf,
    PeerOff,
    Retry,
    Own,
    Met,
    Trees,
    RoceGid,
    Timed,
    Returned,
    Nvls,
    Channels,
    Graph,
    System,
    GraphNode,
]
EVENTS: Tuple[type, ...] = get_args(Event)
