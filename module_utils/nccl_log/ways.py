# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a log shows of the ways that data takes, in sentences: interfaces, HCAs, connections, channels, rings."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from typing import Dict, Iterable, List, Set, Tuple

from . import mnnvl, survived
from .events import Device
from .job import Log, Process
from .jobs import UNNAMED, Job, hosts_of, names, numbers
from .transport import SOCKETS, device_name

_KINDS = {"net": "NET/", "collnet": "COLLNET/", "p2p": "P2P/", "shm": "SHM/"}
# Why there is no RDMA device.
_ABSENT = (
    ("device", "NET/IB found no RDMA device with an active port%s"),
    ("libibverbs", "libibverbs cannot be opened: no RDMA by NCCL itself%s"),
    ("interface", "NET/IB found no IP interface for its control messages"),
)
# Kinds of failures that keep a connection from being made.
_OF_CONNECTING = ("net_plugin", "plugin_warning", "shared_memory", "peer_access", "queue_pair", "registration", "verbs")
# Pairs of ranks that are reported one by one, ranks whose place in trees is, and characters of a ring.
_PAIRS, _TREES, _LONGEST = 24, 4, 160
# Hosts that have one address.
_EACH = 3
# A sum over the ring's connections of all ranks, and not what one connection has.
_OF_ALL = " (of all ranks together, not of each connection: the connections above show what has GPUDirect RDMA)"
_NET = re.compile(r"NET/(?P<net>.{1,40}?)/(?P<index>\d{1,5})(?:[/(].*)?$")


def told(log: Log, job: Job) -> List[str]:
    return [*_meeting(job), *_ways(log, job)]


def _meeting(job: Job) -> List[str]:
    """By which interfaces and addresses ranks find each other, and which interfaces TCP has."""
    said = []
    found: Dict[Tuple[str, str], List[Tuple[Process, str]]] = {}
    for process in job.processes:
        if process.bootstrap is not None:
            family = "IPv6" if process.bootstrap.address.count(":") > 1 else "IPv4"
            found.setdefault((process.bootstrap.interface, family), []).append((process, process.bootstrap.address))
    for (interface, family), addresses in sorted(found.items(), key=lambda one: one[0])[:4]:
        said.append("bootstrap (how ranks find each other): %s, %s %s" % (interface, family, _of_hosts(job, addresses)))
    listed: Dict[Tuple[str, ...], List[Process]] = {}
    for process in job.processes:
        if process.interfaces:
            listed.setdefault(tuple(process.interfaces), []).append(process)
    for names_of, processes in sorted(listed.items(), key=lambda one: one[0])[:2]:
        each = [
            ("[%d] %s %s" % (n, name, _of_hosts(job, [(one, one.interfaces[name]) for one in processes]))).strip()
            for n, name in list(enumerate(names_of))[:8]
        ]
        said.append("NET/Socket lists %s" % ", ".join(each))
    return said


def _of_hosts(job: Job, addresses: Iterable[Tuple[Process, str]]) -> str:
    """Addresses, each with the host that has it, where the job has several."""
    several = len({process.host for process in job.processes}) > 1
    by: Dict[str, Set[str]] = {}
    for process, address in addresses:
        by.setdefault(address.strip(), set()).add(process.host)
    told = several and any(by)
    return names(
        (
            "%s of %s" % (one, " and ".join(sorted(hosts)[:_EACH])) if told and "" not in hosts else one
            for one, hosts in by.items()
        ),
        4,
    )


def _ways(log: Log, job: Job) -> List[str]:
    said = []
    single = {(one.name, one.port) for process in job.processes for one in process.hcas if not one.joined}
    several = {name for name, count in Counter(name for name, _port in single).items() if count > 1}
    devices = {(_label(device, several), device.layer) for process in job.processes for device in process.hcas}
    if devices:
        layers = sorted({layer for _name, layer in devices})
        sharp = any(device.sharp for process in job.processes for device in process.hcas)
        called = {"IB": " (InfiniBand, with SHARP)" if sharp else " (InfiniBand)", "": ""}
        named = [
            names([name for name, of in devices if of == layer], 8) + called.get(layer, " (%s)" % layer)
            for layer in layers
        ]
        speeds: Dict[int, Set[str]] = {}
        for process in job.processes:
            for name, mbit in process.speeds.items():
                speeds.setdefault(mbit, set()).add(name)
        fast = ["%g Gb/s (%s)" % (mbit / 1000, names(found, 8)) for mbit, found in sorted(speeds.items())[:4]]
        if len(speeds) == 1:
            fast = ["%g Gb/s each" % (next(iter(speeds)) / 1000)]
        oob = _of_hosts(job, ((one, "%s %s" % (one.oob, one.oob_address)) for one in job.processes if one.oob))
        ports = {one.port for process in job.processes for one in process.hcas if not one.joined}
        have = {process.host for process in job.processes if process.hcas}
        some = len(have) < len({process.host for process in job.processes}) and "" not in have
        text = "HCAs%s: " % (" (reported by %s)" % names(have, 3) if some else "") + ", ".join(named)
        text += ", port %d%s" % (min(ports), " of each" if len(devices) > 1 else "") if len(ports) == 1 else ""
        text += "; %s" % ", ".join(fast) if fast else ""
        text += "; and others: the list is cut" if any(process.more_devices for process in job.processes) else ""
        said.append(text + ("; control messages over %s (OOB)" % oob if oob else ""))
    absent = {why for process in job.processes for why in process.absent}
    for why, text in _ABSENT:
        if why in absent and not devices:
            hosts = names((process.host or UNNAMED for process in job.processes if why in process.absent), 4)
            harm = " (not a failure: NCCL continues over TCP, which is slower)" if SOCKETS in job.networks else ""
            harm = " (harmless within one node: nothing goes over the network there)" if job.nodes == 1 else harm
            said.append("%s, on %s" % (text % harm if "%s" in text else text, hosts))
    used: Dict[str, Set[str]] = {}
    for process in job.processes:
        for name in process.networks:
            used.setdefault(name, set()).add(process.host or UNNAMED)
    if used:
        said.append(
            "network: " + "; ".join("%s on %s" % (name, names(hosts, 4)) for name, hosts in sorted(used.items()))
        )
    elif job.networks and not any(way[0] == "net" for process in job.processes for way, _count in process.ways):
        said.append("network: %s, by lines whose beginning is not there" % names(job.networks))
    able = {one for process in job.processes for one in process.gdr_devices.items()}
    for can, text in ((True, "could do GPUDirect RDMA"), (False, "cannot do GPUDirect RDMA, as NCCL reports")):
        listed = [name for name, is_able in able if is_able is can]
        why = names({process.gdr_why for process in job.processes if process.gdr_why}, 2) if not can else ""
        if listed:
            said.append("%s %s%s (the connections show what is used)" % (
                names(listed, 8), text, "; %s" % why if why else "",
            ))  # fmt: skip
    for on, decided in ((True, "for"), (False, "against")):
        pairs: Dict[str, Set[str]] = {}
        for process in job.processes:
            for gpu, hca, why in _pairs(process, on):
                pairs.setdefault("%s%s" % (hca, why), set()).add(gpu)
        if pairs:
            said.append("NCCL decided %s GPUDirect RDMA of %s" % (decided, "; ".join(
                "GPU %s with HCA %s" % (names(gpus, 8), hca) for hca, gpus in sorted(pairs.items())[:6]
            )))  # fmt: skip
    if any(process.dmabuf for process in job.processes):
        said.append("DMA-BUF is available")
    ways: Counter = Counter()  # type: ignore[type-arg]
    over: Counter = Counter()  # type: ignore[type-arg]
    given_up = sorted({process.collnet_why for process in job.processes if process.collnet_why})
    collnet = any(process.collnet_ranks for process in job.processes)
    tried: Dict[str, Set[str]] = defaultdict(set)
    for process in job.processes:
        for (kind, via, index, gdr, pxn, _sends), count in process.ways:
            if kind == "collnet" and given_up and not collnet:
                tried[via + ("/GDRDMA" if gdr else "")].add(process.host or UNNAMED)
                continue
            path = _KINDS[kind] + via
            end = "/GDRDMA" if gdr else (" (whether with GPUDirect RDMA is cut off)" if gdr is None else "")
            ways[path + end + (" over another GPU (PXN)" if pxn else "")] += count
            if kind == "net":
                over[device_name(process, via, index)] += count
    if ways:
        text = "connections: " + ", ".join("%d by %s" % (count, path) for path, count in ways.most_common(6))
        ends = over and len(job.processes) > 1
        said.append(text + (" (lines of them: over the network each end has its own line)" if ends else ""))
        plain = [path for path in ways if path.startswith("NET/") and SOCKETS not in path]
        if plain and not any("GDRDMA" in path or "is cut off" in path for path in plain):
            said.append("GPUDirect RDMA is not used on the connections shown (no /GDRDMA behind via NET)")
    said += _connected(log, job)
    if over:
        text = "of those over the network %s" % ", ".join("%d on %s" % (n, name) for name, n in over.most_common(8))
        said.append(
            text + (": one device carries all that is shown" if len(over) == 1 and sum(over.values()) > 1 else "")
        )
    rings = [process for process in job.processes if process.rings]
    trees = [process for process in job.processes if process.trees]
    ring_gdr = {int(process.rings_gdr) for process in job.processes if process.rings_gdr is not None}
    for what, by in (("rings", rings), ("trees", trees)):
        if by:
            text = "%s are connected (Connected all %s) on %s" % (what, what, job.among(by))
            few = len(by) < len(job.processes) and len(by) <= 2
            text += " (%s)" % "; ".join(job.who_and_gpu(one) for one in by) if few else ""
            gdr = ", GDR %s" % " and ".join(map(str, sorted(ring_gdr))) if ring_gdr and what == "rings" else ""
            if gdr and ring_gdr == {0}:
                gdr += _OF_ALL if any("/GDRDMA" in path for path in ways) else ": not all rings have GPUDirect RDMA"
            pxn = {int(process.rings_pxn) for process in job.processes if process.rings_pxn is not None}
            gdr += ", PXN %s" % " and ".join(map(str, sorted(pxn))) if pxn and what == "rings" else ""
            said.append(text + gdr)
    if given_up:
        text = "CollNet (SHARP) is %s: %s" % ("not used by all ranks" if collnet else "not used", given_up[0])
        paths = "; ".join("COLLNET/%s on %s" % (via, names(hosts, 8)) for via, hosts in sorted(tried.items()))
        said.append(text + ("; tried before that: %s" % paths if paths else ""))
    if any(process.roce for process in job.processes):
        said.append("RoCE: connections use GIDs of IPv4 addresses")
    return said + mnnvl.told(job) + _channels(job) + _rings(log, job) + _trees(log, job)


def _pairs(process: Process, on: bool) -> List[Tuple[str, str, str]]:
    """GPU, HCA, and why, of what a process decided on GPUDirect RDMA."""
    if on:
        return [(gpu, hca, "") for gpu, hca in process.gdr_on]
    return [(gpu, hca, " (distance %d > %d)" % (far, level)) for gpu, hca, far, level in process.gdr_off]


def _channels(job: Job) -> List[str]:
    channels = max((process.channels for process in job.processes), default=0)
    if not channels:
        said = _multicast(job)
        return [said] if said else []
    of: Dict[int, Set[str]] = {}
    for process in job.processes:
        if process.channels:
            of.setdefault(process.channels, set()).add(process.host)
    each = ", ".join("%d on %s" % (count, hosts_of(on, 3)) for count, on in sorted(of.items(), reverse=True)[:4])
    text = "%d channels for collectives" % channels
    if len(of) > 1 and not set.intersection(*of.values()):
        text = "channels for collectives: %s" % each
    p2p, peer = max(process.p2p for process in job.processes)
    text += ", %d for point-to-point%s" % (p2p, " (%d for each peer)" % peer if peer else "") if p2p else ""
    nvls = {process.nvls_said for process in job.processes} - {None}
    if nvls:
        most = max(number or 0 for number in nvls)
        text += ", %d for NVLS (NVLink SHARP)" % most + ("" if most else ": it is not in use")
    multicast = _multicast(job)
    return [text + ("; %s" % multicast if multicast else "")]


def _multicast(job: Job) -> str:
    """Whether GPUs have what NVLS (NVLink SHARP) needs: no proof that it is used."""
    on = {can: {one.host for one in job.processes if one.nvls is can} for can in (True, False)}
    most = max((one.nvls_most for one in job.processes), default=0)
    able = "NVLS multicast is available on %%s%s" % (" (%d channels for it)" % most if most else "")
    if on[True] and on[False]:
        return "%s, and not available on GPUs of %s" % (
            able % ("GPUs of %s" % hosts_of(on[True], 3)), hosts_of(on[False], 3),
        )  # fmt: skip
    if on[True]:
        return able % "these GPUs"
    return "NVLS multicast is not available on these GPUs" if on[False] else ""


def _connected(log: Log, job: Job) -> List[str]:
    """From which rank to which, where these are few."""
    own = set(job.processes)
    several = len({process.host for process in own}) > 1
    channels: Dict[Tuple[int, int, str], Set[int]] = {}
    by: Dict[Tuple[int, int, str], Set[str]] = {}
    for (process, source, target, path), numbered in log.pairs.known.items():
        if process in own:
            key = source, target, _named(process, path)
            channels.setdefault(key, set()).update(numbered)
            by.setdefault(key, set()).add(process.host or UNNAMED)
    if not channels or log.pairs.many or len(channels) > _PAIRS:
        return []
    groups: Dict[Tuple[str, str, str], List[str]] = {}
    for key, numbered in channels.items():
        where = names(by[key], 4) if several else ""
        groups.setdefault((key[2], _counted(numbered), where), []).append("%d->%d" % key[:2])
    said = []
    for (path, count, where), pairs in groups.items():
        text = "%s by %s, %s%s" % (", ".join(pairs), path, count, " each" if len(pairs) > 1 else "")
        said.append(text + (" (according to %s)" % where if where else ""))
    # NCCL prints these lines before it makes the connections.
    begun = survived.unmade(job)
    how = "to be connected (calls that connect ranks failed: some of these were not made)" if begun else "connected"
    if not begun and _in_doubt(job):
        how = "started to connect (whether all of these were made is unknown: a failure is reported)"
    return ["%s, from rank to rank: %s" % (how, "; ".join(said))]


def _in_doubt(job: Job) -> bool:
    """Whether a process that connects ranks reports a failure, and no line tells that connections were made."""
    if any(process.rings or process.trees for process in job.processes) or any(one.done for one in job.communicators):
        return False
    failed = {one.failure.kind for one in job.failures if one.process is not None and one.process.connections}
    return bool(failed & set(_OF_CONNECTING)) and not any(one.failure.kind == "completion" for one in job.failures)


def _rings(log: Log, job: Job) -> List[str]:
    own = set(job.processes)
    said = []
    orders: Dict[Tuple[int, str], Set[str]] = {}
    for (process, of), order in log.pairs.orders.items():
        if process in own:
            orders.setdefault((of, order), set()).add(process.host or UNNAMED)
    several = len({of for of, _order in orders}) > 1 and len({host for hosts in orders.values() for host in hosts}) > 1
    for (of, order), hosts in list(orders.items())[: 4 if several else 2]:
        text = "%d channel%s (Channel 00/%02d)%s, the first ring shown: %s" % (
            of, "" if of == 1 else "s", of, " on %s" % names(hosts, 3) if several else "", order[:_LONGEST],
        )  # fmt: skip
        text += "..." if len(order) > _LONGEST and not order.endswith("...") else ""
        if job.world is None:
            ranks = [int(number) for number in order.replace(".", "").split()]
            text += "; so there are at least %d ranks" % (max(ranks) + 1)
        said.append(text)
    counts = {of for of, _order in orders}
    apart = [set.union(*(hosts for (n, _order), hosts in orders.items() if n == of)) for of in counts]
    if several and not set.intersection(*apart):
        said.append("these hosts have other numbers of channels: usually those are two communicators, or two jobs")
    around = {key[1:]: numbered for key, numbered in log.pairs.neighbours.items() if key[0] in own}
    if 0 < len(around) <= _PAIRS:
        said.append("in the rings, from rank over rank to rank: %s" % "; ".join(
            "%d->%d->%d, %s" % (*key, _counted(numbered)) for key, numbered in around.items()
        ))  # fmt: skip
    return said


def _trees(log: Log, job: Job) -> List[str]:
    own = set(job.processes)
    placed = {rank: places for (process, rank), places in log.pairs.trees.items() if process in own}
    if not 0 < len(placed) <= _TREES:
        return []
    return ["in the trees: %s" % "; ".join("rank %d %s" % (rank, ", or ".join(said)) for rank, said in placed.items())]


def _label(device: Device, several: Set[str]) -> str:
    """Its name; of ports that are used as one these, too. several: HCAs of which more ports than one are used."""
    if not device.joined:
        return "%s:%d" % (device.name, device.port) if device.name in several else device.name
    each = zip(device.name.split("+"), device.joined)
    return " and ".join("%s:%d" % one for one in each) + " as one device"


def _named(process: Process, path: str) -> str:
    """The way, with the device's name where it is known: ``NET/Socket/0 (eth0)``."""
    match = _NET.match(path)
    if match is None:
        return path
    name = device_name(process, match.group("net"), int(match.group("index")))
    return path if name.startswith("NET/") else "%s (%s)" % (path, name)


def _counted(channels: Set[int]) -> str:
    if channels == set(range(len(channels))):
        return "%d channel%s" % (len(channels), "" if len(channels) == 1 else "s")
    return "channel%s %s" % ("" if len(channels) == 1 else "s", numbers(channels))
