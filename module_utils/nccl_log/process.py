# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One process of a log: what it said of itself, in small sets and mappings."""

from __future__ import annotations

from sys import intern
from typing import AbstractSet, Any, Dict, List, NamedTuple, Optional, Tuple

from . import events
from .events import Device, Graph, Plugin
from .topology import Topology

# host, pid. Without a pid: host, and the rank that the launcher's prefix names.
Key = Tuple[str, Optional[int], Optional[int]]
# kind, via, device, gdr (None: the line is cut), by another GPU (PXN), sends
Way = Tuple[str, str, Optional[int], Optional[bool], bool, Optional[bool]]


# Of a rank that the line with a communicator's nodes names.
SHAPED = "shaped"
# Before words of a plugin's.
_SAYS = "the plugin reports: "


class Call(NamedTuple):
    """A call within NCCL that returned an error. device: CUDA device of the thread.   order: as in Reported.

    progress: by the proxy's progress thread.   late, early: behind or before an Init COMPLETE of its process.
    """

    place: str
    result: int
    device: Optional[int]
    source: int
    order: int
    progress: bool = False
    late: bool = False
    early: bool = False


# The mapping of every process that has nothing to put into it.
NOTHING: Dict[Any, Any] = {}


class Process:
    """What one process said. Sets and mappings stay small (KINDS); ``_add``, ``_put`` and ``Shared`` write them.

    devices: index -> HCA that its network found.   interfaces: name -> address, of NET/Socket.
    ports: HCAs of lines of their own, (name, port) -> HCA.   more_devices: the list of them is cut.
    speeds: HCA -> Mbit/s.   oob, oob_address: interface of its control messages.
    absent: why there is no RDMA device: NoDevice.why.   gdr_devices: HCA -> whether it can do GPUDirect RDMA.
    gdr_off: (GPU, device, distance, level) of pairs that NCCL decided against.
    connections: rank that wrote it -> way -> how many channels.
    crossed: pairs of ranks that are connected by the network.   bridged: by NVLink, be it to another host (MNNVL).
    mnnvl: whether its ranks go by NVLink between hosts; None where no line reports it.   fabrics: domains of its GPUs.
    nvls_group: the NVSwitches reduce for its node.
    peers_off: pairs of GPUs of the node between which there is no direct way, as NCCL names them.
    nvlinks: GPU -> GB/s of its NVLinks, as the topology was printed.   nvswitch: they end at a switch.
    nics: of the printed topology -> GB/s.
    nvls_said: channels of NVLS; None where no line says how many.   nvls_most: how many may be used, 0 if not said.
    pointers: address of a communicator -> its key.   buses: rank -> PCI bus id of its GPU, as NCCL writes it.
    cuda_devices: rank -> CUDA device, of ranks behind the first.
    nvml: rank -> number that the driver has for its GPU, where it is not CUDA's.
    calls: the first calls that returned an error, innermost first.   retries: of its TCP connections, the last one.
    timed: (rank, ranks) of communicators that it completed.   gdr_why: why there is no GPUDirect RDMA.
    gdr_on: (GPU, device) of pairs that NCCL decided for.   init_seconds: the longest initialisation, its
    bootstrap, and its parts as they are printed.   p2p: channels for point-to-point, and for each peer.
    trees: they are connected.   roce: it uses a GID of an IPv4 address.
    shaped, shaped_ranks, shaped_local: the most nodes, ranks, and ranks of a node, of a communicator whose begin is not
    in the log.
    notes: what is harmless, odd, or another way that NCCL took.   gpus: CUDA devices that its lines name.
    named: (rank, ranks, how it ended or "" or SHAPED) of communicators whose begin is not in the log.
    met: the ranks of such a communicator have found each other.
    forms: releases that have the form of its lines, from and before.
    launcher_rank: rank or task that the launcher's prefix names.
    collnet_ranks: (communicator's key, rank) that are connected to CollNet.   collnet_why: why one is not.
    topology: what it printed of it; of the first processes alone.
    sharp: ranks for which the SHARP plugin has set itself up.
    What a process did not say is the class's: of 50,000 processes most say little.
    """

    versions: AbstractSet[str] = frozenset()
    cuda: str = ""
    driver: Optional[int] = None
    networks: AbstractSet[str] = frozenset()
    devices: Dict[int, Device] = NOTHING
    interfaces: Dict[str, str] = NOTHING
    speeds: Dict[str, int] = NOTHING
    ports: Dict[Tuple[str, int], Device] = NOTHING
    more_devices: bool = False
    oob: str = ""
    oob_address: str = ""
    bootstrap: Optional[events.Bootstrap] = None
    absent: AbstractSet[str] = frozenset()
    plugins: AbstractSet[Plugin] = frozenset()
    variables: Dict[str, str] = NOTHING
    gdr_devices: Dict[str, bool] = NOTHING
    gdr_off: AbstractSet[Tuple[str, str, int, int]] = frozenset()
    dmabuf: bool = False
    peers_off: AbstractSet[str] = frozenset()
    nvls: Optional[bool] = None
    nvls_channels: int = 0
    nvls_said: Optional[int] = None
    nvls_most: int = 0
    nvswitch: bool = False
    nics: Dict[str, float] = NOTHING
    channels: int = 0
    p2p: Tuple[int, int] = (0, 0)
    collnet_ranks: AbstractSet[Tuple[str, int]] = frozenset()
    collnet_why: str = ""
    sharp: AbstractSet[int] = frozenset()
    rings: int = 0
    rings_gdr: Optional[bool] = None
    rings_pxn: Optional[bool] = None
    graphs: AbstractSet[Graph] = frozenset()
    system: Optional[float] = None
    nvlinks: Dict[str, float] = NOTHING
    connections: Dict[int, Dict[Way, int]] = NOTHING
    crossed: AbstractSet[Tuple[int, int]] = frozenset()
    bridged: AbstractSet[Tuple[int, int]] = frozenset()
    mnnvl: Optional[bool] = None
    fabrics: AbstractSet[events.Fabric] = frozenset()
    nvls_group: bool = False
    ended: str = ""
    shaped: int = 0
    shaped_ranks: int = 0
    shaped_local: int = 0
    calls: Tuple[Call, ...] = ()
    retries: Optional[events.Retry] = None
    timed: AbstractSet[Tuple[int, int]] = frozenset()
    gdr_why: str = ""
    gdr_on: AbstractSet[Tuple[str, str]] = frozenset()
    init_seconds: Tuple[Any, ...] = ()
    trees: bool = False
    met: bool = False
    roce: bool = False
    notes: AbstractSet[events.Note] = frozenset()
    forms: AbstractSet[events.Form] = frozenset()
    gpus: AbstractSet[int] = frozenset()
    named: AbstractSet[Tuple[int, int, str]] = frozenset()
    pointers: Dict[str, str] = NOTHING
    gpu: str = ""
    topology: Optional[Topology] = None
    buses: Dict[int, str] = NOTHING
    cuda_devices: Dict[int, int] = NOTHING
    nvml: Dict[int, int] = NOTHING

    def __init__(self, key: Key, order: int, launcher_rank: Optional[int] = None) -> None:
        self.key = key
        self.order = order
        self.launcher_rank = launcher_rank

    def no_gdr(self, why: str) -> None:
        """Takes a reason why there is no GPUDirect RDMA; of several all that have room."""
        if why and len(self.gdr_why) < 200 and why.replace(_SAYS, "") not in self.gdr_why:
            # Kept once, for all processes that have these.
            self.gdr_why = intern("%s; %s" % (self.gdr_why, why.replace(_SAYS, "")) if self.gdr_why else why)

    @property
    def host(self) -> str:
        return self.key[0]

    @property
    def hcas(self) -> List[Device]:
        """The HCAs that NET/IB takes: as its networks have them, then those that lines of their own name alone."""
        named = {part for device in self.devices.values() for part in device.name.split("+")}
        return [*self.devices.values(), *(one for one in self.ports.values() if one.name not in named)]

    def rank_at(self, device: Optional[int]) -> Optional[int]:
        """The rank that has a CUDA device, of a process with several in one communicator; None where it is not told."""
        if device is None or len(self.buses) < 2 or len(set(self.pointers.values())) > 1:
            return None
        found = [rank for rank, own in self.cuda_devices.items() if own == device]
        found = found or [rank for rank in self.buses if rank not in self.cuda_devices]
        return found[0] if len(found) == 1 and device in self.gpus else None

    @property
    def ways(self) -> List[Tuple[Way, int]]:
        """Each kind of connection of each of its ranks, and how many channels."""
        return [one for ways in self.connections.values() for one in ways.items()]

    @property
    def node(self) -> str:
        """What NCCL takes for a node."""
        return self.variables.get("NCCL_HOSTID") or self.host
