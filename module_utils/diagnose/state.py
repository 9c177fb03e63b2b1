# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Processes, communicators and jobs of a log, built from the facts of NCCL's lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from sys import intern
from typing import AbstractSet, Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from .facts import BEHIND_BOOTSTRAP, Fact

SOCKETS = "Socket"
# Processes, communicators and distinct values of one kind that are stored; more are counted.
PROCESSES, COMMUNICATORS, KINDS = 50_000, 20_000, 256
# State of a GPU that has completed its registration with the NVLink fabric (NVML_GPU_FABRIC_STATE_COMPLETED).
COMPLETED = 3
# Conditions of a GPU's fabric: shift, width and bad values of their bits (NVML_GPU_FABRIC_HEALTH_MASK_* of nvml.h).
_FABRIC = (
    (0, 3, (1,), "degraded bandwidth"), (2, 3, (1,), "route recovery"), (4, 3, (1,), "an unhealthy route"),
    (6, 3, (1,), "access timeout recovery"), (8, 15, range(2, 16), "a wrong configuration"),
)  # fmt: skip

_HCA = re.compile(r"\[(\d{1,4})\]\s?([^\s:/{}]{1,128}):(?:uverbs\d{1,4}:)?\d{1,4}(?::-?\d{1,9}){0,4}/(?:IB|RoCE)")
_MERGED = re.compile(r"\[(\d{1,4})\]=\{([^}]*)\}")
_OOB = re.compile(r" ?OOB ([^\s:]{1,64}):([^\s<]{1,100})")
_INTERFACE = re.compile(r"\[(\d{1,4})\]([^\s:]{1,64}):([^\s<]{1,100})")
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
    index: Optional[int] = None
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
    mask.   completed: line of Init COMPLETE.
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
    variables: Dict[str, str] = _EMPTY
    gdr_devices: Dict[str, bool] = _EMPTY
    gdr_why: str = ""
    gdr_off: AbstractSet[Tuple[str, str, int, int]] = frozenset()
    dmabuf: bool = False
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
    retry: Optional[Fact] = None
    root_waits: str = ""
    pointers: Dict[str, str] = _EMPTY
    ranks: Dict[int, str] = _EMPTY
    buses: Dict[int, str] = _EMPTY
    cuda_devices: Dict[int, int] = _EMPTY
    ended: str = ""
    named_ranks: AbstractSet[int] = frozenset()
    shapes: Tuple[int, int] = (0, 0)
    last_gpu: str = ""
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
        return [(way, count, self.device_name(way.via, way.index)) for way, count in over]

    def rank_at(self, device: Optional[int]) -> Optional[int]:
        """Return the rank of the largest communicator that has a CUDA device, or the only rank."""
        if len(self.ranks) == 1:
            return next(iter(self.ranks))
        found = [rank for rank, own in self.cuda_devices.items() if own == device]
        return found[0] if len(found) == 1 else None


class State:
    """All processes and communicators of a log. ``fold`` takes a fact of a process in."""

    def __init__(self) -> None:
        self.processes: Dict[Key, Process] = {}
        self.communicators: Dict[str, Communicator] = {}
        self.left_out: Dict[str, int] = {}
        self.versions: Dict[str, int] = {}
        # communicator, operation count -> rank -> (function, count, datatype)
        self.operations: Dict[Tuple[str, str], Dict[int, Tuple[str, int, int]]] = {}
        self.stuck_operations: Set[Tuple[str, int]] = set()

    def process(self, key: Key, order: int, launcher_rank: Optional[int]) -> Optional[Process]:
        process = self.processes.get(key)
        if process is None:
            if len(self.processes) >= PROCESSES:
                self._leave_out("processes")
                return None
            process = self.processes[key] = Process(key, order, launcher_rank)
        return process

    def communicator(self, key: str, ranks: int) -> Optional[Communicator]:
        found = self.communicators.get(key)
        if found is None:
            if len(self.communicators) >= COMMUNICATORS:
                self._leave_out("communicators")
                return None
            found = self.communicators[key] = Communicator(key, ranks)
        return found

    def _leave_out(self, kind: str) -> None:
        self.left_out[kind] = self.left_out.get(kind, 0) + 1

    def fold(self, process: Process, fact: Fact) -> None:
        """Take a fact in; what only comes behind a bootstrap proves that the ranks have met."""
        if fact.name in BEHIND_BOOTSTRAP and process.pointers:
            self.communicators[list(process.pointers.values())[-1]].met = True
        fold = _FOLDS.get(fact.name)
        if fold is not None:
            fold(self, process, fact.fields)

    # -- facts that concern communicators ------------------------------------------------------------------------------

    def init(self, process: Process, found: Found) -> None:
        rest = found["rest"] or ""
        matches = ((name, pattern.search(rest)) for name, pattern in _OF_INIT.items())
        extra = {name: match.group(1) if match else "" for name, match in matches}
        rank, ranks, pointer = found["rank"], found["ranks"], found["comm"]
        key = extra["id"] or process.pointers.get(pointer, "")
        if not key and extra["color"]:
            key = "%s/%s" % (process.pointers.get(extra["parent"], "split"), extra["color"])
        communicator = self.communicator(key, ranks) if key else self._of_size(ranks)
        if communicator is None:
            return
        key = communicator.key
        communicator.split = communicator.split or bool(extra["color"])
        communicator.one_process = communicator.one_process or found.get("call") == "ncclCommInitAll"
        process.put("pointers", pointer, key)
        if rank < ranks:
            communicator.began.setdefault(rank, process)
            if found["phase"] == "COMPLETE":
                communicator.done.add(rank)
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
        key = process.pointers.get(found["comm"] or "", "")
        nodes, local = found["nodes"], found["local"] or 0
        communicator = self.communicators.get(key)
        if not key and found["rank"] is not None:
            communicator = self._begin(process, found)
        elif communicator is None and len(process.pointers) == 1:
            only = self.communicators.get(next(iter(process.pointers.values())))
            communicator = only if only is not None and only.ranks == found["ranks"] else None
        if communicator is not None:
            communicator.met = True
            communicator.nodes = max(communicator.nodes or 0, nodes)
            communicator.local_ranks = max(communicator.local_ranks, local)
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

    def channel(self, process: Process, found: Dict[str, Any], count: int = 1) -> None:
        source, target, path = found["source"], found["target"], found["path"]
        sends = None if found["side"] is None else found["side"] == "send"
        rank = target if sends is False else source
        if path.startswith("NET/"):
            match = _NET.match(path)
            if match is None:
                return
            via, device, proxy, on, rest = match.groups()
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
        communicator = process.pointers.get(found["comm"])
        one = self.communicators.get(communicator or "")
        if communicator is None or one is None:
            return
        ranks = sorted(rank for rank, process_of in one.began.items() if process_of is process)
        pointers = [pointer for pointer, key in process.pointers.items() if key == communicator]
        # A process with several ranks of a communicator has a pointer for each.
        rank = ranks[pointers.index(found["comm"])] if 1 < len(ranks) == len(pointers) else ranks[0] if ranks else None
        if rank is None or len(ranks) not in (1, len(pointers)):
            return
        key = (communicator, found["number"])
        by_rank = self.operations.setdefault(key, {}) if len(self.operations) < 4096 or key in self.operations else {}
        if rank in by_rank:
            self.stuck_operations.add((communicator, rank))
        by_rank.setdefault(rank, (found["function"], found["count"], found["datatype"]))
        if len(by_rank) == one.ranks and len(set(by_rank.values())) == 1 and len(self.operations) > 64:
            del self.operations[key]


# -- facts that concern one process ------------------------------------------------------------------------------------

Fold = Callable[[State, Process, Found], None]


def _hcas(_state: State, process: Process, found: Found) -> None:
    listed, _semicolon, rest = found["devices"].partition(";")
    for match in _MERGED.finditer(listed):
        ports = _HCA.findall(match.group(2))
        if ports:
            process.put("devices", int(match.group(1)), "+".join(name for _index, name in ports))
    for index, name in _HCA.findall(_MERGED.sub("", listed)):
        process.put("devices", int(index), intern(name))
    process.list_cut = process.list_cut or "..." in listed or "\u2026" in listed
    oob = _OOB.match(rest)
    if oob:
        process.oob = (oob.group(1), oob.group(2))


def _port(_state: State, process: Process, found: Found) -> None:
    if "layer" in found:
        process.put("ports", intern(found["name"]), None)
    else:
        process.put("devices", found["index"], found["name"])
    if found["mbit"]:
        process.put("speeds", found["name"], found["mbit"])


def _interfaces(_state: State, process: Process, found: Found) -> None:
    for _index, name, address in _INTERFACE.findall(found["devices"]):
        process.put("interfaces", name, address)


def _gdr_pair(_state: State, process: Process, found: Found) -> None:
    gpu, hca = found["gpu"] or found["gpu29"], found["hca"] or found["net29"]
    if found["on"] != "Enabled":
        process.add("gdr_off", (gpu, hca, found["distance"], found["level"]))


def _gdr_device(_state: State, process: Process, found: Found) -> None:
    able = found["on"].lower() == "enabled"
    if found["net"] != "IB" and process.gdr_devices.get(found["hca"]) and not able:
        process.gdr_why = "the plugin %s has GPUDirect RDMA off, though NET/IB reports it as enabled" % found["net"]
    process.put("gdr_devices", found["hca"], able)
    if found["why"] and not process.gdr_why:
        process.gdr_why = "no module for it (nvidia_peermem, nv_peer_mem) is loaded"


def _gdr_plugin(_state: State, process: Process, found: Found) -> None:
    process.put("gdr_devices", "NET/OFI", False)
    process.gdr_why = "the plugin reports: %s" % found["why"]


def _plugin(state_of: str) -> Fold:
    def fold(_state: State, process: Process, found: Found) -> None:
        kind = found.get("kind") or "NET"
        name = (found.get("name") or "").split(" ")[0] if state_of == "missing" else found.get("name") or ""
        kind = "COLLNET" if str(found.get("part")).startswith("coll") else kind
        if state_of == "unfit" and "CollNet" in name:
            kind, name = "COLLNET", ""
        process.add("plugins", (kind, state_of, intern(name.rstrip(". ")[:120])))

    return fold


def _plugin_error(_state: State, process: Process, found: Found) -> None:
    name, why = found["name"], found["why"]
    missing = why.startswith("cannot open shared object file") and "ccl" in name
    process.add("plugins", ("NET", "missing", name) if missing else ("NET", "failed", "%s: %s" % (name, why[:160])))


def _plugin_variable(_state: State, process: Process, found: Found) -> None:
    name = "NCCL_%s_PLUGIN" % (found.get("kind") or "NET")
    value = found["name"].rstrip(".")
    if value.startswith("libnccl-net-") and value.endswith(".so"):
        value = value[len("libnccl-net-") : -3]
    process.put("variables", name, value)


def _variable(_state: State, process: Process, found: Found) -> None:
    value = found["value"]
    process.put("variables", intern(found["name"]), intern(value[:-1] if value.endswith(".") else value))


def _returned(_state: State, process: Process, found: Found) -> None:
    if found["result"] not in (0, 7) and len(process.calls) < KINDS:
        progress = "Progress" in (found["more"] or "")
        process.calls += (Call(found["place"], found["result"], *found["_where"], progress),)


def _fabric(_state: State, process: Process, found: Found) -> None:
    uuid = "%s.%s" % (found["a"], found["b"])
    mask, state = int(found["health"] or "0", 16), found["state"]
    for shift, width, bad, what in _FABRIC:
        if mask >> shift & width in bad:
            process.add("fabric_faults", what)
    if state in (1, 2):
        process.add("fabric_faults", "a registration with the fabric that is not complete (state %d)" % state)
    if uuid != "0.0" or state != COMPLETED:
        process.add("fabrics", (uuid, found["clique"], found["state"], found["health"] or ""))


def _collnet(state: State, process: Process, found: Found) -> None:
    keys = [key for key in dict.fromkeys(process.pointers.values())
            if key in state.communicators and state.communicators[key].began.get(found["rank"]) is process]  # fmt: skip
    open_ones = [key for key in keys if found["rank"] not in state.communicators[key].done] or keys
    if len(open_ones) == 1:
        process.add("collnet", (open_ones[0], found["rank"]))


def _channels(_state: State, process: Process, found: Found) -> None:
    process.channels = found["collective"]
    if found["nvls"] is not None:
        process.nvls_channels = max(process.nvls_channels or 0, found["nvls"])


def _nvlink(_state: State, process: Process, found: Found) -> None:
    if found["bandwidth"] and process.last_gpu:
        process.put("nvlinks", process.last_gpu, process.nvlinks.get(process.last_gpu, 0.0) + found["bandwidth"])


def _system(_state: State, process: Process, found: Found) -> None:
    process.system = max(process.system, found["bandwidth"] or 0.0)
    process.nvlinks, process.last_gpu = {}, ""


def _version(state: State, process: Process, found: Found) -> None:
    process.add("versions", intern(found["nccl"]))
    process.cuda = found["cuda"] or process.cuda


def _collnet_channel(_state: State, process: Process, found: Found) -> None:
    rank, via, gdr, sends = found["rank"], found["net"], found["gdr"] is not None, found["side"] == "send"
    way = Way(rank, "collnet", via, found["device"], gdr, False, sends)
    process.put("ways", way, process.ways.get(way, 0) + 1)


def _set(name: str, of: Callable[[Found], Any]) -> Fold:
    return lambda _state, process, found: setattr(process, name, of(found))


def _add(name: str, of: Callable[[Found], Any]) -> Fold:
    return lambda _state, process, found: process.add(name, of(found))


def _put(name: str, of: Callable[[Process, Found], Tuple[Any, Any]]) -> Fold:
    return lambda _state, process, found: process.put(name, *of(process, found))


def _count(name: str, of: Callable[[Found], Any]) -> Fold:
    return _put(name, lambda process, found: (of(found), getattr(process, name).get(of(found), 0) + 1))


_FOLDS: Dict[str, Fold] = {
    "init": State.init,
    "shape": State.shape,
    "timed": State.timed,
    "ended": State.end,
    "named": State.named,
    "channel": State.channel,
    "operation": State.operation,
    "hcas": _hcas,
    "merged": _port,
    "port": _port,
    "speed_change": _add("speed_changes", lambda found: (found["name"], found["old_mbit"], found["mbit"])),
    "interfaces": _interfaces,
    "interface": _put("interfaces", lambda process, found: (found["name"], process.interfaces.get(found["name"], ""))),
    "gdr_pair": _gdr_pair,
    "gdr_device": _gdr_device,
    "gdr_plugin": _gdr_plugin,
    **{"plugin_" + name: _plugin(name) for name in ("missing", "loaded", "failed", "idle", "unfit")},
    "plugin_error": _plugin_error,
    "plugin_variable": _plugin_variable,
    "variable": _variable,
    "returned": _returned,
    "fabric": _fabric,
    "rings": _set("rings", lambda _found: True),
    "collnet_connected": _collnet,
    "collnet_channel": _collnet_channel,
    "channels": _channels,
    "nvlink": _nvlink,
    "gpu": _set("last_gpu", lambda found: found["gpu"]),
    "nvls": _set("nvls", lambda found: found["no"] is None),
    "graph": _add(
        "graphs", lambda found: (found["pattern"], found["channels"], found["bandwidth"] or 0.0, found["path"])
    ),
    "algorithm": _count("algorithms", lambda found: (found["function"], found["algo"], found["proto"])),
    "system": _system,
    "version": _version,
    "network": _add("networks", lambda found: intern(found["name"])),
    "no_device": _add("absent", lambda found: {"IP interface": "interface"}.get(found["why"], found["why"])),
    "peer_off": _add("peers_off", lambda found: (int(found["a"]), int(found["b"]))),
    "bootstrap": _set("bootstrap", lambda found: (found["interface"], found["address"])),
    "sharp": _add("sharp", lambda found: found["rank"]),
    "collnet_off": _set("collnet_why", lambda found: found["why"]),
    "cpu": _set("cpu", lambda found: found["architecture"]),
    "nvls_group": _set("nvls_group", lambda _found: True),
    "dmabuf": _set("dmabuf", lambda _found: True),
    "driver": _set("driver", lambda found: found["driver"]),
    "root_waits": _set("root_waits", lambda found: found["what"]),
    "own_rank": _add("named_ranks", lambda found: found["rank"]),
    "tree": _add("named_ranks", lambda found: found["rank"]),
}


# -- jobs --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """Processes that share communicators. name: "job", or "job 2" of several.   world: the largest communicator."""

    name: str
    processes: Tuple[Process, ...]
    communicators: Tuple[Communicator, ...]
    world: Optional[Communicator]
    versions: Tuple[str, ...]

    @cached_property
    def networks(self) -> Set[str]:
        """Networks that lines say are used, and that connections go over."""
        over = {way.via for one in self.processes for way in one.ways if way.kind == "net"}
        return over.union(*(one.networks for one in self.processes))

    @cached_property
    def nodes(self) -> Optional[int]:
        """Nodes as NCCL counts them; else hosts, where all ranks are in the log; None where neither is known."""
        counted = max((one.nodes or 0 for one in self.communicators), default=0)
        if counted:
            return counted
        if self.world is not None and len(self.world.began) == self.world.ranks:
            hosts = {process.node for process in self.world.began.values()}
            return len(hosts) if "" not in hosts else None
        return None

    @cached_property
    def hosts(self) -> List[str]:
        return sorted({process.host for process in self.processes if process.host})

    @cached_property
    def version(self) -> Optional[Tuple[int, ...]]:
        return tuple(int(part) for part in self.versions[-1].split(".")) if len(self.versions) == 1 else None

    def values(self, name: str) -> Dict[str, List[Process]]:
        """Return each value of a variable and the processes that have it."""
        found: Dict[str, List[Process]] = {}
        for process in self.processes:
            if name in process.variables:
                found.setdefault(process.variables[name], []).append(process)
        return found

    def rank_of(self, process: Optional[Process], device: Optional[int] = None) -> Optional[int]:
        """Return the rank of a process in the world: the launcher's where no line begins a communicator."""
        if process is None:
            return None
        rank = process.rank_at(device)
        if rank is not None or process.ranks:
            return rank
        own = [rank for rank, one in self.world.began.items() if one is process] if self.world is not None else []
        return own[0] if len(own) == 1 else process.launcher_rank

    def writer(self, process: Process) -> str:
        """Return ``rank 1 (n2:300)`` of a process."""
        rank = self.rank_of(process)
        place = "%s:%s" % (process.host, process.key[1]) if process.key[1] is not None else process.host
        return "rank %d%s" % (rank, " (%s)" % place if place else "") if rank is not None else place


def jobs(state: State) -> List[Job]:
    """Split a log into jobs: processes without a communicator belong to the job of their host, or to the first."""
    parent: Dict[Key, Key] = {}

    def find(key: Key) -> Key:
        while parent.setdefault(key, key) != key:
            parent[key] = parent[parent[key]]
            key = parent[key]
        return key

    together = [[one] for one in state.communicators.values()] + rival_sets(state.communicators.values())
    for communicators in together:
        keys = [process.key for one in communicators for process in one.began.values()]
        for key in keys:
            parent[find(key)] = find(keys[0])
    groups: Dict[Optional[Key], List[Process]] = {}
    on_host: Dict[str, List[Key]] = {}
    began = [process for process in state.processes.values() if process.key in parent]
    for process in began:
        root = find(process.key)
        groups.setdefault(root, []).append(process)
        roots = on_host.setdefault(process.host, [])
        roots += [root] if root not in roots[-2:] else []
    first = next(iter(groups), None)
    for process in state.processes.values():
        if process.key not in parent:
            roots = on_host.get(process.host, [])
            target = roots[0] if len(roots) == 1 or (roots and not process.host) else first
            groups.setdefault(target, []).append(process)
    of_group: Dict[Key, List[Communicator]] = {}
    for communicator in state.communicators.values():
        for process in list(communicator.began.values())[:1]:
            of_group.setdefault(find(process.key), []).append(communicator)
    ordered = sorted(groups.items(), key=lambda found: min(process.order for process in found[1]))
    made = []
    for number, (root_key, processes) in enumerate(ordered):
        own = of_group.get(root_key, []) if root_key is not None else []
        world = max(own, key=lambda one: (one.ranks, len(one.began)), default=None)
        versions = {version for process in processes for version in process.versions}
        if not versions and (number == 0 or len(ordered) == 1):
            versions = set(state.versions)
        name = "job" if len(ordered) == 1 else "job %d" % (number + 1)
        by_number = sorted(versions, key=lambda text: [int(part) for part in text.split(".")])
        made.append(Job(name, tuple(processes), tuple(own), world, tuple(by_number)))
    return made or [Job("job", (), (), None, tuple(sorted(state.versions)))]


def rival_sets(communicators: Iterable[Communicator]) -> List[List[Communicator]]:
    """Return communicators of one size that hold, together, each rank once and of which no rank completed."""
    by_size: Dict[int, List[Communicator]] = {}
    for one in communicators:
        odd = one.split or one.partial or one.formed or one.gone.keys() - {"Abort"}
        if not odd and one.ranks > 1 and len(one.began) < one.ranks:
            by_size.setdefault(one.ranks, []).append(one)
    found = []
    for ranks, rivals in by_size.items():
        began = [rank for one in rivals for rank in one.began]
        if len(rivals) > 1 and len(began) == len(set(began)) == ranks:
            found.append(rivals)
    return found


def nodes_of(processes: Sequence[Process]) -> Dict[str, List[Process]]:
    """Return the processes of each node."""
    found: Dict[str, List[Process]] = {}
    for process in processes:
        found.setdefault(process.node, []).append(process)
    return found
