# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Take facts of NCCL's lines into the state of a log: a row for each fact."""

from __future__ import annotations

import re
from sys import intern
from typing import Any, Callable, Dict, Tuple

from .facts import BEHIND_BOOTSTRAP, Fact
from .state import COMPLETED, KINDS, Call, Found, Process, State, Way

# Conditions of a GPU's fabric: shift, width and bad values of their bits (NVML_GPU_FABRIC_HEALTH_MASK_* of nvml.h).
_FABRIC = (
    (0, 3, (1,), "degraded bandwidth"), (2, 3, (1,), "route recovery"), (4, 3, (1,), "an unhealthy route"),
    (6, 3, (1,), "access timeout recovery"), (8, 15, range(2, 16), "a wrong configuration"),
)  # fmt: skip
_HCA = re.compile(r"\[(\d{1,4})\]\s?([^\s:/{}]{1,128}):(?:uverbs\d{1,4}:)?\d{1,4}(?::-?\d{1,9}){0,4}/(?:IB|RoCE)")
_MERGED = re.compile(r"\[(\d{1,4})\]=\{([^}]*)\}")
_OOB = re.compile(r" ?OOB ([^\s:]{1,64}):([^\s<]{1,100})")
_INTERFACE = re.compile(r"\[(\d{1,4})\]([^\s:]{1,64}):([^\s<]{1,100})")

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
    "shared_limit": _set("shared_limit", lambda found: (found["needed"], found["most"])),
    "dmabuf": _set("dmabuf", lambda _found: True),
    "driver": _set("driver", lambda found: found["driver"]),
    "root_waits": _set("root_waits", lambda found: found["what"]),
    "own_rank": _add("named_ranks", lambda found: found["rank"]),
    "tree": _add("named_ranks", lambda found: found["rank"]),
}


def fold(state: State, process: Process, fact: Fact) -> None:
    """Take a fact in; what only comes behind a bootstrap proves that the ranks have met."""
    if fact.name in BEHIND_BOOTSTRAP and process.pointers:
        state.communicators[list(process.pointers.values())[-1]].met = True
    take = _FOLDS.get(fact.name)
    if take is not None:
        take(state, process, fact.fields)
