# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Processes, communicators and jobs of a log, built from the facts of NCCL's lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from sys import intern
from typing import AbstractSet, Any, Dict, List, NamedTuple, Optional, Set, Sized, Tuple

from .launcher import Launch

SOCKETS = "Socket"
# Processes, communicators and distinct values of one kind that are stored; more are counted.
PROCESSES, COMMUNICATORS, KINDS = 50_000, 20_000, 256
# State of a GPU that has completed its registration with the NVLink fabric (NVML_GPU_FABRIC_STATE_COMPLETED).
COMPLETED = 3

_NET = re.compile(r"NET/([^/]{1,40}(?:/(?!\d)[^/]{1,40})?)/(\d{1,5})(?:\((\d{1,8})\))?(/GDRDMA)?(.*)")
_OF_INIT = {
    "device": re.compile(r"\bcudaDev (\d{1,4})\b"),
    "bus": re.compile(r"\bbusId ([0-9a-f]{1,16})\b(?!\.)"),
    "id": re.compile(r"\bcommId 0x([0-9a-f]{1,16})\b(?!\.)"),
    "parent": re.compile(r"\bparent (0x[0-9a-f]{1,16})\b"),
    "color": re.compile(r"\bcolor (-?\d{1,20})\b"),
}
Found = Dict[str, Any]
# host, pid; without a pid host and the rank of the launcher's prefix.
Key = Tuple[str, Optional[int], Optional[int]]


class Way(NamedTuple):
    """Connections of a rank of one kind: net, p2p, shm or collnet.   via: network, or CUMEM, direct, ...

    gdr: GPUDirect RDMA; None where the line is cut.   pxn: over another GPU of the node.   sends: None: not stated.
    """

    rank: int
    kind: str
    via: str
    device: Optional[int] = None
    gdr: Optional[bool] = False
    pxn: bool = False
    sends: Optional[bool] = None


class Call(NamedTuple):
    """A call within NCCL that returned an error. result: number of ncclResult_t.   order: number of the line."""

    place: str
    result: int
    source: int
    order: int
    device: Optional[int]
    progress: bool = False


@dataclass
class Communicator:
    """key: commId, or parent and color of a split.   began, done: ranks.   gone: how it ended -> ranks.

    met: a rank has printed what comes behind the bootstrap, in which all ranks take part.
    """

    key: str
    ranks: int
    began: Dict[int, Process] = field(default_factory=dict)
    done: Set[int] = field(default_factory=set)
    nodes: Optional[int] = None
    local_ranks: int = 0
    gone: Dict[str, Set[int]] = field(default_factory=dict)
    met: bool = False
    split: bool = False
    # Its begin is not in the log.
    partial: bool = False
    one_process: bool = False

    @property
    def formed(self) -> bool:
        return self.met or bool(self.done) or "Destroy" in self.gone


_EMPTY: Dict[Any, Any] = {}


class Process:
    """Facts of one process. Empty collections are shared until a value comes: most processes have few.

    devices: names, of merged ports joined by +.   plugins: kind, state, name.   fabrics: uuid, clique, state, health
    mask.   networked, completed: lines of the network and of Init COMPLETE.   traced: size of a communicator without an
    Init line, and number of an operation: its pointer and call.
    """

    versions: AbstractSet[str] = frozenset()
    cuda: str = ""
    cpu: str = ""
    driver: Optional[int] = None
    networks: AbstractSet[str] = frozenset()
    devices: Dict[int, str] = _EMPTY
    ports: Dict[str, None] = _EMPTY
    speeds: Dict[str, int] = _EMPTY
    speed_changes: AbstractSet[Tuple[str, int, int]] = frozenset()
    interfaces: Dict[str, str] = _EMPTY
    list_cut: bool = False
    oob: Tuple[str, str] = ("", "")
    bootstrap: Tuple[str, str] = ("", "")
    absent: AbstractSet[str] = frozenset()
    plugins: AbstractSet[Tuple[str, str, str]] = frozenset()
    plugin_releases: Dict[str, str] = _EMPTY
    variables: Dict[str, str] = _EMPTY
    gdr_devices: Dict[str, bool] = _EMPTY
    gdr_why: str = ""
    gdr_off: AbstractSet[Tuple[str, str, int, int]] = frozenset()
    dmabuf: bool = False
    shared_limit: Tuple[int, int] = (0, 0)
    peers_off: AbstractSet[Tuple[int, int]] = frozenset()
    nvls: Optional[bool] = None
    nvls_channels: Optional[int] = None
    nvls_group: bool = False
    channels: int = 0
    collnet: AbstractSet[Tuple[str, int]] = frozenset()
    collnet_why: str = ""
    sharp: AbstractSet[int] = frozenset()
    rings: bool = False
    graphs: AbstractSet[Tuple[int, int, float, str]] = frozenset()
    system: float = 0.0
    nvlinks: Dict[str, float] = _EMPTY
    ways: Dict[Way, int] = _EMPTY
    crossed: AbstractSet[Tuple[int, int]] = frozenset()
    bridged: AbstractSet[Tuple[int, int]] = frozenset()
    mnnvl: Optional[bool] = None
    fabrics: AbstractSet[Tuple[str, str, int, str]] = frozenset()
    fabric_faults: AbstractSet[str] = frozenset()
    algorithms: Dict[Tuple[str, str, str], int] = _EMPTY
    calls: Tuple[Call, ...] = ()
    traced: Dict[Tuple[int, str], Tuple[str, Tuple[str, int, int]]] = _EMPTY
    retry: Optional[Found] = None
    root_waits: str = ""
    pointers: Dict[str, str] = _EMPTY
    ranks: Dict[int, str] = _EMPTY
    buses: Dict[int, str] = _EMPTY
    cuda_devices: Dict[int, int] = _EMPTY
    ended: str = ""
    named_ranks: AbstractSet[int] = frozenset()
    shapes: Tuple[int, int] = (0, 0)
    last_gpu: str = ""
    networked: int = 0
    completed: int = 0

    def __init__(self, key: Key, order: int, launcher_rank: Optional[int] = None) -> None:
        self.key = key
        self.order = order
        self.launcher_rank = launcher_rank

    @property
    def host(self) -> str:
        return self.key[0]

    @property
    def node(self) -> str:
        """What NCCL takes for a node: its host, or NCCL_HOSTID."""
        return self.variables.get("NCCL_HOSTID") or self.host

    @property
    def hcas(self) -> List[str]:
        """HCAs that NET/IB takes, of its list and of lines on single ports."""
        listed = [part for name in self.devices.values() for part in name.split("+")]
        return list(dict.fromkeys([*listed, *self.ports]))

    def add(self, name: str, value: Any) -> None:
        values = getattr(self, name)
        if value in values:
            return
        if isinstance(values, frozenset):
            values = set()
            setattr(self, name, values)
        if len(values) < KINDS:
            values.add(value)

    def put(self, name: str, key: Any, value: Any) -> None:
        values = getattr(self, name)
        if name not in self.__dict__:
            values = {}
            setattr(self, name, values)
        if key in values or len(values) < 4 * KINDS:
            values[key] = value

    def device_name(self, network: str, index: Optional[int]) -> str:
        """Return the HCA or interface of ``via NET/NETWORK/INDEX``; that text where no line lists it."""
        if network == SOCKETS:
            cards = list(self.interfaces)
            return cards[index] if index is not None and index < len(cards) else "NET/Socket/%s" % index
        if not self.devices and index is not None and index < len(self.ports):
            return list(self.ports)[index]
        return self.devices.get(-1 if index is None else index) or "NET/%s/%s" % (network, index)

    def rdma_connections(self) -> List[Tuple[Way, int, str]]:
        """Return connections over RDMA networks, how many channels they have, and their devices."""
        ways = self.ways.items()
        over = [(way, count) for way, count in ways if way.kind in ("net", "collnet") and way.via != SOCKETS]
        return [(way, count, self.device_name(way.via, way.device)) for way, count in over]

    def rank_at(self, device: Optional[int]) -> Optional[int]:
        """Return the rank of the largest communicator that has a CUDA device, or the only rank."""
        if len(self.ranks) == 1:
            return next(iter(self.ranks))
        found = [rank for rank, own in self.cuda_devices.items() if own == device]
        return found[0] if len(found) == 1 else None


class State:
    """All processes and communicators of a log. ``fold`` takes a fact of a process in.

    launch: what launchers and programs state of ranks, nodes and hosts.
    """

    def __init__(self) -> None:
        self.processes: Dict[Key, Process] = {}
        self.communicators: Dict[str, Communicator] = {}
        self.left_out: Dict[str, int] = {}
        self.versions: Set[str] = set()
        self.cudas: Set[str] = set()
        self.launch = Launch()
        # communicator, operation count -> rank -> (function, count, datatype)
        self.operations: Dict[Tuple[str, str], Dict[int, Tuple[str, int, int]]] = {}
        self.stuck_operations: Set[Tuple[str, int]] = set()

    def process(self, key: Key, order: int, launcher_rank: Optional[int]) -> Optional[Process]:
        if key not in self.processes and self._has_room(self.processes, PROCESSES, "processes"):
            self.processes[key] = Process(key, order, launcher_rank)
        return self.processes.get(key)

    def rename(self, old: Key, new: Key) -> None:
        """Give a process the key that better lines have, unless another one has it."""
        if old in self.processes and new not in self.processes:
            process = self.processes[new] = self.processes.pop(old)
            process.key = new

    def communicator(self, key: str, ranks: int) -> Optional[Communicator]:
        if key not in self.communicators and self._has_room(self.communicators, COMMUNICATORS, "communicators"):
            self.communicators[key] = Communicator(key, ranks)
        return self.communicators.get(key)

    def _has_room(self, stored: Sized, most: int, kind: str) -> bool:
        """Return whether one more is stored; count it where not."""
        if len(stored) >= most:
            self.left_out[kind] = self.left_out.get(kind, 0) + 1
        return len(stored) < most

    # -- facts that concern communicators ------------------------------------------------------------------------------

    def init(self, process: Process, found: Found) -> None:
        matches = ((name, pattern.search(found["rest"] or "")) for name, pattern in _OF_INIT.items())
        extra = {name: match.group(1) if match else "" for name, match in matches}
        rank, ranks, pointer = found["rank"], found["ranks"], found["comm"]
        key = extra["id"] or process.pointers.get(pointer, "")
        if not key and extra["color"]:
            key = "%s/%s" % (process.pointers.get(extra["parent"], "split"), extra["color"])
        communicator = self.communicator(key, ranks) if key else self._of_size(ranks)
        if communicator is None:
            return
        key, complete = communicator.key, found["phase"] == "COMPLETE"
        process.completed = found["_where"][1] if complete else process.completed
        communicator.split |= bool(extra["color"])
        communicator.one_process |= found.get("call") == "ncclCommInitAll"
        process.put("pointers", pointer, key)
        if rank < ranks:
            communicator.began.setdefault(rank, process)
            communicator.done |= {rank} if complete else set()
        biggest = max((self.communicators[one].ranks for one in process.ranks.values()), default=0)
        if ranks > biggest:
            process.ranks, process.buses, process.cuda_devices = {}, {}, {}
        if ranks > biggest or key in process.ranks.values():
            process.put("ranks", rank, key)
            if extra["bus"]:
                process.put("buses", rank, extra["bus"])
            if extra["device"]:
                process.put("cuda_devices", rank, int(extra["device"]))

    def _of_size(self, ranks: int) -> Optional[Communicator]:
        """Return the only communicator of a size, which is made where no line begins one; None of several."""
        every = self.communicators.values() if len(self.communicators) < 64 else ()
        same = [one for one in every if one.ranks == ranks]
        if same:
            return same[0] if len(same) == 1 else None
        made = self.communicator("of %d ranks" % ranks, ranks)
        if made is not None:
            made.partial = True
        return made

    def _begin(self, process: Process, found: Found) -> Optional[Communicator]:
        """Place a rank in the only communicator of its size."""
        communicator = self._of_size(found["ranks"])
        if communicator is not None and found["rank"] < found["ranks"]:
            communicator.began.setdefault(found["rank"], process)
        return communicator

    def shape(self, process: Process, found: Found) -> None:
        if found.get("mnnvl") is not None:
            process.mnnvl = bool(found["mnnvl"])
        pointers = process.pointers
        communicator = self.communicators.get(pointers.get(found["comm"] or "", ""))
        if communicator is None and found["rank"] is not None and (found["comm"] or "") not in pointers:
            communicator = self._begin(process, found)
        elif communicator is None and len(pointers) == 1:
            only = self.communicators.get(next(iter(pointers.values())))
            communicator = only if only is not None and only.ranks == found["ranks"] else None
        nodes = found["nodes"]
        if communicator is not None:
            communicator.met = True
            communicator.nodes = max(communicator.nodes or 0, nodes)
            communicator.local_ranks = max(communicator.local_ranks, found["local"] or 0)
        if nodes > process.shapes[0]:
            process.shapes = (nodes, found["ranks"])

    def timed(self, process: Process, found: Found) -> None:
        communicator = self._begin(process, found)
        if communicator is not None and found["rank"] < found["ranks"]:
            communicator.done.add(found["rank"])

    def end(self, process: Process, found: Found) -> None:
        process.ended = found["how"]
        key = process.pointers.get(found["comm"], "")
        communicator = self.communicators.get(key) or self._begin(process, found)
        if communicator is not None:
            communicator.gone.setdefault(found["how"], set()).add(found["rank"])

    def named(self, process: Process, found: Found) -> None:
        if not process.pointers:
            self._begin(process, found)

    def channel(self, process: Process, found: Found, count: int = 1) -> None:
        source, target, path = found["source"], found["target"], found["path"]
        sends = None if found["side"] is None else found["side"] == "send"
        rank, net = target if sends is False else source, _NET.match(path)
        if net is not None:
            via, device, proxy, on, rest = net.groups()
            cut = rest.startswith(("...", "\u2026", "/")) and not rest.startswith("/Shared")
            gdr = True if on else None if cut or found.get("cut") else False
            pxn = proxy is not None and int(proxy) != rank
            way = Way(rank, "net", intern(via), int(device), gdr, pxn, sends)
            process.add("crossed", (source, target))
        elif path.startswith(("P2P", "SHM")):
            kind, _slash, how = path.partition("/")
            way = Way(rank, kind[:3].lower(), intern(how[:60]), sends=sends)
            if "MNNVL" in how:
                process.add("bridged", (source, target))
        else:
            return
        process.put("ways", way, process.ways.get(way, 0) + count)

    def operation(self, process: Process, found: Found) -> None:
        key = process.pointers.get(found["comm"], "")
        one = self.communicators.get(key)
        ranks = sorted(rank for rank, own in one.began.items() if own is process) if one is not None else []
        pointers = [pointer for pointer, own in process.pointers.items() if own == key]
        if not key and found["ranks"] is not None:
            call = (found["function"], found["count"], found["datatype"])
            process.put("traced", (found["ranks"], found["number"]), (found["comm"], call))
        # A process with several ranks of a communicator has a pointer for each.
        if one is None or len(ranks) not in (1, len(pointers)) or not ranks:
            return
        rank, place = ranks[pointers.index(found["comm"]) if len(ranks) > 1 else 0], (key, found["number"])
        has_room = len(self.operations) < 4096 or place in self.operations
        by_rank = self.operations.setdefault(place, {}) if has_room else {}
        if rank in by_rank:
            self.stuck_operations.add((key, rank))
        by_rank.setdefault(rank, (found["function"], found["count"], found["datatype"]))
        if len(by_rank) == one.ranks and len(set(by_rank.values())) == 1 and len(self.operations) > 64:
            self.operations.pop(place, None)
