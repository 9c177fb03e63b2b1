# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Report a diagnosed log as typed plain data, for other programs (`busbar diagnose --json`, nccl_log_info)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

from ..core.finding import Finding
from . import checks, engine, network
from .engine import REPORTED
from .events import NOTICE, WEAK, Group
from .formats import RELEASES
from .jobs import Job
from .judge import Result
from .log_reader import Log
from .names import hosts_of, names
from .ranks import present, read_waits
from .state import Process
from .table import BUSBW, Program
from .transport import collnet, transport

# Checks of what makes a job slow, and ends none.
SLOW = frozenset(check.id for check in (
    BUSBW, checks.NETWORK, checks.GDR, checks.HCAS, checks.HCA_SPEED, checks.LOCAL, checks.NVLINK, checks.MNNVL,
    checks.INTERFACE, checks.EFFECT,
))  # fmt: skip
# Checks of what the log does not show.
NOT_SHOWN = frozenset(check.id for check in (checks.LEVEL, checks.READABLE, checks.RANKS))
# Files of the sources of NCCL and plugins that work with one network -> its name.
_PLACES = {"net_ib": "IB", "ibvwrap": "IB", "ib_plugin": "IB", "net_socket": "Socket", "net_fastsocket": "FastSocket"}
HEALTHY, SLOWED, FAILED, UNKNOWN = "healthy", "slow", "failed", "cannot tell"
_EVENTS, _LISTED = 64, 1024


def verdict(result: Result) -> Tuple[str, str]:
    """Return the state of a job, one of HEALTHY, SLOWED, FAILED and UNKNOWN, and why in a few words."""
    log, root = result.log, result.root
    if root is not None:
        failed = {group.event.id for group in result.diagnosis.groups if group.tier != NOTICE}
        # Without SHARP alone NCCL reduces on the GPUs.
        goes_on = root.event == "sharp" and failed <= {"sharp", "warning", "error_line"}
        return SLOWED if goes_on else FAILED, _first(root.finding)
    if result.unsupported:
        return UNKNOWN, "this is a log of %s, which is not judged" % result.unsupported
    if log.binary * 2 > log.lines and not log.info and not log.warnings:
        return UNKNOWN, "this is not a text: %d of %d lines hold zero bytes" % (log.binary, log.lines)
    bad = [one for one in result.bad if one.severity != "minor"]
    slow = [one for one in bad if one.check in SLOW or one.check.startswith("nccl_conf.")]
    other = [one for one in bad if one not in slow]
    for one in (*(one for one in other if one.state == "drift"), *(one for one in slow[:1] if one.state == "drift")):
        return FAILED if one in other and one.severity == "critical" else SLOWED, _first(one)
    for one in (*other, *slow):
        return UNKNOWN, _first(one)
    ended = engine.in_order(log)
    missing = [one for one in result.bad if one.state == "unknown" and one.check in NOT_SHOWN]
    if not log.info and not ended:
        return UNKNOWN, missing[0].have or "" if missing else "the log has no line of NCCL"
    text = "it completed (%s)" % ended if ended else "no failure and no slow path is in these lines"
    short = (_first(one).replace("the log does not show: ", "") for one in missing)
    return HEALTHY, text + ("; not shown: %s" % names(short, 2) if missing else "")


def _first(finding: Finding) -> str:
    return (finding.have or "").split("; ")[0]


def report(result: Result) -> Dict[str, Any]:
    """Return everything that is known, with numbers as numbers; keys of findings: docs/finding.schema.json."""
    log, root, groups = result.log, result.root, result.diagnosis.groups
    state, text = verdict(result)
    return {
        "sources": log.sources,
        "lines": {"all": log.lines, "info": log.info, "warnings": log.warnings, "unmatched": log.unmatched},
        "verdict": {"state": state, "text": text},
        "root": None if root is None else {
            "event": root.event, "code": root.code, "check": root.finding.check, "subject": root.finding.subject,
            "confidence": root.confidence, "ranks": list(root.ranks[:_LISTED]), "hosts": list(root.hosts[:_LISTED]),
            "source": root.source, "line": root.line, "text": root.text,
        },
        "jobs": [_job(log, job, groups) for job in result.jobs],
        "events": [_event(group) for group in groups[:_EVENTS]],
        "exits": [{"code": group.code or "killed for memory", **_places(group), "count": group.count}
                  for group in groups if group.event.id in ("exit", "oom")],
        "watchdog": _watchdog(groups),
        "tests": [_program(program) for program in log.table.programs],
        "findings": [finding.to_dict() for finding in result.findings],
    }  # fmt: skip


def _job(log: Log, job: Job, groups: Sequence[Group]) -> Dict[str, Any]:
    """Return the facts of a job; what no line of NCCL shows is that of nccl-tests or RAS."""
    proof, reduction = transport(job), collnet(job)
    world, listed, launch = job.world, log.table.hosts, log.state.launch
    of_ras = {name: max((int(one[name]) for one in log.ras.groups), default=None) for name in ("size", "nodes")}
    return {
        "name": job.name,
        "processes": len(job.processes),
        "hosts": job.hosts or listed or launch.hosts,
        "nccl": _releases(log, job),
        "nccl_between": _between(log, job),
        "releases": _per_host(job.processes, lambda process: sorted(process.versions)),
        "cuda": sorted({process.cuda for process in job.processes if process.cuda} or log.state.cudas),
        "cuda_driver": sorted({"%d.%d" % divmod(one.driver // 10, 100) for one in job.processes if one.driver}),
        "ranks": world.ranks if world is not None else log.table.size or of_ras["size"] or launch.ranks,
        "ranks_here": len(present(job, groups)) if world is not None else len(log.table.ranks) or None,
        "nodes": job.nodes or (len(listed) if log.table.size == len(log.table.ranks) else 0) or of_ras["nodes"],
        "communicators": len(job.communicators),
        "network": _network(job, groups),
        "plugins": network.plugins(job),
        "bootstrap": _per_host(job.processes, lambda process: list(process.bootstrap) if process.bootstrap[0] else []),
        "hcas": {node: _hcas(own) for node, own in sorted(job.by_node.items()) if any(p.hcas for p in own)},
        "speeds": {node: {name: mbit for p in own for name, mbit in p.speeds.items()}
                   for node, own in job.by_node.items() if any(p.speeds for p in own)},
        "gdr": _gdr(job),
        "channels": _sums(("%s/%s" % way[1:3], count) for one in job.processes for way, count in one.ways.items()),
        "coll_channels": max((process.channels for process in job.processes), default=0),
        "nvls": _nvls(job.processes),
        "collnet": {"connected": len(reduction.connected), "proven": reduction.proven, "why": reduction.why},
        "mnnvl": _all_or_none(process.mnnvl for process in job.processes),
        "fabric": sorted({fabric for process in job.processes for fabric in process.fabrics}),
        "variables": _variables(log, job),
        "algorithms": _sums((" ".join(key), n) for one in job.processes for key, n in one.algorithms.items()),
        "transport": dict(asdict(proof), proven=proof.proven, rdma=proof.rdma, gdr=proof.gdr),
    }  # fmt: skip


def _sums(counts: Iterable[Tuple[str, int]]) -> Dict[str, int]:
    found: Dict[str, int] = {}
    for name, count in counts:
        found[name] = found.get(name, 0) + count
    return found


def _network(job: Job, groups: Sequence[Group]) -> Dict[str, List[str]]:
    """Return the networks that processes name, or connect over; else what the places of their warnings show."""
    named = {id(process): process.networks or {way.via for way in process.ways if way.kind == "net"}
             for process in job.processes}  # fmt: skip
    found = _per_host(job.processes, lambda process: sorted(named[id(process)]))
    own = {id(process): process for process in job.processes if not named[id(process)]}
    # One that need not be a failure may be of a network that NCCL did not take.
    certain = [group for group in groups if group.tier not in (WEAK, NOTICE)]
    for one in (one for group in certain for one in group.kept if id(one.process) in own):
        for kind in [name for word, name in _PLACES.items() if word in one.place][:1]:
            found.setdefault(own[id(one.process)].host, [kind])
    return found


def _variables(log: Log, job: Job) -> Dict[str, List[str]]:
    """Return the values of variables as processes report them, else as a command line sets them."""
    found = {name: [value] for name, value in log.typed.items()}
    found.update((name, sorted(job.values(name))) for name in {n for one in job.processes for n in one.variables})
    return dict(sorted(found.items()))


def _releases(log: Log, job: Job) -> List[str]:
    """Return the releases that lines of NCCL name, else that of the heading of nccl-tests."""
    return list(job.versions) or list(filter(None, [log.table.library]))


def _nvls(processes: Sequence[Process]) -> Dict[str, Optional[int]]:
    """Return whether NVLS is there and its channels; null where no line says."""
    counted = [process.nvls_channels for process in processes if process.nvls_channels is not None]
    channels, available = max(counted, default=None), _all_or_none(process.nvls for process in processes)
    return {"available": any(counted) if available is None and counted else available, "channels": channels}


def _between(log: Log, job: Job) -> List[Optional[str]]:
    """Return the oldest and the newest release that print all messages, where no line names one.

    None as the oldest: it may be older than the releases whose messages are known.
    """
    found = log.evidence.releases
    if log.rccl or _releases(log, job) or not log.evidence.recognised or not found:
        return []
    oldest = found[0] if found[0] != RELEASES[0] else None
    return [oldest, found[-1]] if oldest or found[-1] != RELEASES[-1] else []


def _all_or_none(values: Iterable[Optional[bool]]) -> Optional[bool]:
    known = set(values) - {None}
    return known == {True} if known else None


def _per_host(processes: Sequence[Process], of: Callable[[Process], List[str]]) -> Dict[str, List[str]]:
    found: Dict[str, Dict[str, None]] = {}
    for process in processes:
        found.setdefault(process.host, {}).update(dict.fromkeys(of(process)))
    return {host: list(values) for host, values in found.items() if values}


def _hcas(processes: Sequence[Process]) -> Dict[str, List[str]]:
    used, seen = network.used_hcas(processes)
    return {"seen": sorted(seen), "used": sorted(used), "idle": sorted(seen - used) if used else []}


def _gdr(job: Job) -> List[Dict[str, Any]]:
    """Return GPUDirect RDMA of each host and HCA, with the reason where it is off."""
    found: Dict[Tuple[str, str], Dict[str, Any]] = {}

    def row(host: str, device: str) -> Dict[str, Any]:
        empty = {"host": host, "hca": device, "on": 0, "off": 0, "unknown": 0, "reason": ""}
        return found.setdefault((host, device), empty)

    for process in job.processes:
        for way, count, device in process.rdma_connections():
            of_device = row(process.host, device)
            of_device[{None: "unknown", True: "on", False: "off"}[way.gdr]] += count
            if way.gdr is False and not of_device["reason"]:
                of_device["reason"] = network.gdr_cause(job, process, device, way.rank, way.sends)[0]
        for device, able in process.gdr_devices.items():
            of_device = row(process.host, device)
            of_device.update(able=able, reason=of_device["reason"] or ("" if able else process.gdr_why))
    return [of_device for _key, of_device in sorted(found.items())][:4096]


def _places(group: Group) -> Dict[str, Any]:
    return {"ranks": sorted(group.ranks)[:_LISTED], "hosts": sorted(group.hosts)[:_LISTED]}


def _event(group: Group) -> Dict[str, Any]:
    because = group.because.name if group.because is not None else None
    return {
        "event": group.event.id, "code": group.code, "check": group.event.check.id, "count": group.count,
        **_places(group), "line": group.first.order, "last_line": group.last, "text": group.first.text,
        "because": because, "confidence": group.link if because is not None else REPORTED,
    }  # fmt: skip


def _watchdog(groups: Sequence[Group]) -> Optional[Dict[str, Any]]:
    found = read_waits(groups)
    calls = [dict(zip(("operation", "number", "elements"), key), ranks=sorted(found.calls[key])) for key in found.calls]
    data = {"timeout_ms": found.limit, "calls": calls[:64], "out_of_step": found.out_of_step,
            "behind": sorted(found.behind)}  # fmt: skip
    return data if found.calls or found.signalled else None


def _program(program: Program) -> Dict[str, Any]:
    columns = ("size", "busbw", "busbw_in_place", "time_us", "wrong")
    rows = [dict(zip(columns, row)) for row in program.rows]
    return {"ranks": len(program.ranks), "rows": rows, "average_busbw": program.average, "wrong": program.wrong,
            "end": program.bounds, "below_minimum": program.below}  # fmt: skip


def facts_line(log: Log, job: Job) -> str:
    """Return the facts of a job in one line: release, ranks, nodes, network, GPUDirect RDMA, HCAs."""
    oldest, newest = _between(log, job) or (None, None)
    between = "%s or older" % newest if oldest is None else " to ".join(dict.fromkeys([oldest, newest or ""]))
    inferred = "%s (inferred)" % between if newest else "release unknown"
    parts = ["NCCL %s" % (", ".join(_releases(log, job)) or inferred)]
    ranks = job.world.ranks if job.world is not None else log.table.size or log.state.launch.ranks
    if ranks:
        here = len(present(job)) if job.world is not None else ranks
        parts.append("%d ranks" % ranks if here >= ranks else "%d of %d ranks" % (here, ranks))
    hosts = job.hosts or log.table.hosts
    if job.nodes is not None or hosts:
        count = job.nodes if job.nodes is not None else len(hosts)
        text = "%d node%s" % (count, "" if count == 1 else "s")
        text += " (%s)" % hosts_of(hosts, 3) if hosts else ""
        parts.append(text if job.nodes is not None else "at least %s" % text)
    of_plugins = ((name, network.plugins(job).get(name)) for name in job.networks)
    over = ["%s (%s)" % (name, release) if release else name for name, release in of_plugins]
    parts += ["network %s" % names(over)] if over else []
    gdr = [way.gdr for process in job.processes for way, _count, _device in process.rdma_connections()]
    if gdr:
        parts.append("GDR %s" % ("on" if all(gdr) else "off" if not any(gdr) else "on some connections"))
    for processes in list(job.by_node.values())[:1]:
        used, seen = network.used_hcas(processes)
        if seen:
            parts.append("%d of %d HCAs used" % (len(used & seen), len(seen)) if used else "HCAs: %d" % len(seen))
    return ", ".join(parts)


def lines_of(result: Result) -> str:
    """Return what was read, in a few words."""
    log = result.log
    files = "%d file%s" % (len(log.sources), "" if len(log.sources) == 1 else "s")
    return "%d lines of %s read; %d mean nothing to this command" % (log.lines, files, log.unmatched)
