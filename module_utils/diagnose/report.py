# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Report a diagnosed log as typed plain data, for other programs (`busbar diagnose --json`, nccl_log_info)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ..core.finding import Finding
from . import engine, network, waits
from .bandwidth import BUSBW
from .checks import (
    EFFECT,
    GDR,
    HCA_SPEED,
    HCAS,
    INTERFACE,
    LEVEL,
    LOCAL,
    MNNVL,
    NETWORK,
    NVLINK,
    RANKS,
    READABLE,
)
from .engine import REPORTED
from .event import NOTICE, WEAK, Group
from .formats import RELEASES
from .jobs import Job
from .judge import Result, Root
from .log_reader import Log
from .names import hosts_of, names
from .ranks import present
from .state import Process
from .transport import collnet, transport

# Checks of what makes a job slow, and ends none.
SLOW = frozenset(check.id for check in (BUSBW, NETWORK, GDR, HCAS, HCA_SPEED, LOCAL, NVLINK, MNNVL, INTERFACE, EFFECT))
# Checks of what the log does not show.
NOT_SHOWN = frozenset(check.id for check in (LEVEL, READABLE, RANKS))
# Files of NCCL's sources that work with one network -> its name.
_PLACES = {"net_ib": "IB", "ibvwrap": "IB", "net_socket": "Socket"}
HEALTHY, SLOWED, FAILED, UNKNOWN = "healthy", "slow", "failed", "cannot tell"
_EVENTS = 64


def verdict(result: Result) -> Tuple[str, str]:
    """Return the state of a job, one of HEALTHY, SLOWED, FAILED and UNKNOWN, and why in a few words."""
    bad = result.bad
    if result.unsupported and result.root is None:
        return UNKNOWN, "this is a log of %s, which is not judged" % result.unsupported
    if result.root is not None:
        first = (result.root.finding.have or "").split("; ")[0]
        return SLOWED if _goes_on(result.root, result.diagnosis.groups) else FAILED, first
    log = result.log
    if log.binary * 2 > log.lines and not log.info and not log.warnings:
        return UNKNOWN, "this is not a text: %d of %d lines hold zero bytes" % (log.binary, log.lines)
    slow = [one for one in bad if one.severity != "minor" and (one.check in SLOW or one.check.startswith("nccl_conf."))]
    other = [one for one in bad if one.severity != "minor" and one not in slow]
    failed = [one for one in other if one.state == "drift"]
    if failed:
        return (FAILED if failed[0].severity == "critical" else SLOWED), (failed[0].have or "").split("; ")[0]
    if slow and slow[0].state == "drift":
        return SLOWED, (slow[0].have or "").split("; ")[0]
    ended = engine.in_order(log)
    missing = [one for one in bad if one.state == "unknown" and one.check in NOT_SHOWN]
    if other or slow:
        return UNKNOWN, ((other or slow)[0].have or "").split("; ")[0]
    if not log.info and not ended:
        return UNKNOWN, missing[0].have or "" if missing else "the log has no line of NCCL"
    text = "it completed (%s)" % ended if ended else "no failure and no slow path is in these lines"
    return HEALTHY, text + ("; not shown: %s" % names(map(_short, missing), 2) if missing else "")


def _goes_on(root: Root, groups: Sequence[Group]) -> bool:
    """Return whether SHARP alone failed, and no process has ended: without it NCCL reduces on the GPUs."""
    failed = {group.event.id for group in groups if group.tier != NOTICE}
    return root.event == "sharp" and failed <= {"sharp", "warning", "error_line"}


def _short(finding: Finding) -> str:
    return (finding.have or "").split("; ")[0].replace("the log does not show: ", "")


def report(result: Result) -> Dict[str, Any]:
    """Return everything that is known, with numbers as numbers; keys of findings: docs/finding.schema.json."""
    log, root = result.log, result.root
    state, text = verdict(result)
    listed = log.table.hosts
    return {
        "sources": log.sources,
        "lines": {"all": log.lines, "info": log.info, "warnings": log.warnings, "unmatched": log.unmatched},
        "verdict": {"state": state, "text": text},
        "root": None if root is None else {
            "event": root.event, "code": root.code, "check": root.finding.check, "subject": root.finding.subject,
            "confidence": root.confidence, "ranks": list(root.ranks[:1024]), "hosts": list(root.hosts[:1024]),
            "source": root.source, "line": root.line, "text": root.text,
        },
        "jobs": [_job(log, job, result.diagnosis.groups, listed) for job in result.jobs],
        "events": [_event(group) for group in result.diagnosis.groups[:_EVENTS]],
        "exits": [_exit(group) for group in result.diagnosis.groups if group.event.id in ("exit", "oom")],
        "watchdog": _watchdog(result.diagnosis.groups),
        "tests": [_program(program) for program in log.table.programs],
        "findings": [finding.to_dict() for finding in result.findings],
    }  # fmt: skip


def _job(log: Log, job: Job, groups: Sequence[Group], listed: List[str]) -> Dict[str, Any]:
    """Return the facts of a job. listed: hosts in the heading of nccl-tests, for what no line of NCCL shows."""
    proof = transport(job)
    world, by_node = job.world, job.by_node
    channels: Dict[str, int] = {}
    algorithms: Dict[str, int] = {}
    for process in job.processes:
        for way, count in process.ways.items():
            name = "%s/%s" % (way.kind, way.via)
            channels[name] = channels.get(name, 0) + count
        for key, count in process.algorithms.items():
            algorithms[" ".join(key)] = algorithms.get(" ".join(key), 0) + count
    reduction = collnet(job)
    return {
        "name": job.name,
        "processes": len(job.processes),
        "hosts": job.hosts or listed,
        "nccl": _releases(log, job),
        "nccl_between": _between(log, job),
        "releases": _per_host(job.processes, lambda process: sorted(process.versions)),
        "cuda": sorted({process.cuda for process in job.processes if process.cuda}),
        "ranks": world.ranks if world is not None else len(log.table.ranks) or _of_ras(log, "size"),
        "ranks_here": len(present(job, groups)) if world is not None else len(log.table.ranks) or None,
        "nodes": job.nodes or len(listed) or _of_ras(log, "nodes"),
        "communicators": len(job.communicators),
        "network": _network(job, groups),
        "bootstrap": _per_host(job.processes, lambda process: list(process.bootstrap) if process.bootstrap[0] else []),
        "hcas": {node: _hcas(own) for node, own in sorted(by_node.items()) if any(p.hcas for p in own)},
        "speeds": {node: {name: mbit for p in own for name, mbit in p.speeds.items()}
                   for node, own in by_node.items() if any(p.speeds for p in own)},
        "gdr": _gdr(job),
        "channels": channels,
        "coll_channels": max((process.channels for process in job.processes), default=0),
        "nvls": _nvls(job.processes),
        "collnet": {"connected": len(reduction.connected), "proven": reduction.proven, "why": reduction.why},
        "mnnvl": _all_or_none([process.mnnvl for process in job.processes]),
        "fabric": sorted({fabric for process in job.processes for fabric in process.fabrics}),
        "variables": _variables(log, job),
        "algorithms": algorithms,
        "transport": dict(asdict(proof), proven=proof.proven, rdma=proof.rdma, gdr=proof.gdr),
    }  # fmt: skip


def _network(job: Job, groups: Sequence[Group]) -> Dict[str, List[str]]:
    """Return the networks that processes name; of those that name none, what the places of their warnings show."""
    found = _per_host(job.processes, lambda process: sorted(process.networks))
    own = {id(process): process for process in job.processes if not process.networks}
    # One that need not be a failure may be of a network that NCCL did not take.
    certain = [group for group in groups if group.tier not in (WEAK, NOTICE)]
    for one in (one for group in certain for one in group.kept if id(one.process) in own):
        kind = next((name for word, name in _PLACES.items() if word in one.place), "")
        if kind:
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


def _of_ras(log: Log, column: str) -> Optional[int]:
    """Return the largest number in a column of RAS's table of communicators."""
    return max((int(group[column]) for group in log.ras.groups), default=None)


def _nvls(processes: Sequence[Process]) -> Dict[str, Optional[int]]:
    """Return whether NVLS is there and its channels; null where no line says."""
    counted = [process.nvls_channels for process in processes if process.nvls_channels is not None]
    available = _all_or_none([process.nvls for process in processes])
    if available is None and counted:
        available = max(counted) > 0
    return {"available": available, "channels": max(counted) if counted else None}


def _between(log: Log, job: Job) -> List[Optional[str]]:
    """Return the oldest and the newest release that print all messages, where no line names one.

    None as the oldest: it may be older than the releases whose messages are known.
    """
    found = log.releases.range
    if log.rccl or _releases(log, job) or not found.recognised or not found.releases:
        return []
    oldest = found.releases[0] if found.releases[0] != RELEASES[0] else None
    return [oldest, found.releases[-1]] if oldest or found.releases[-1] != RELEASES[-1] else []


def _all_or_none(values: Sequence[Optional[bool]]) -> Optional[bool]:
    known = {value for value in values if value is not None}
    return None if not known else known == {True}


def _per_host(processes: Sequence[Process], of: Any) -> Dict[str, List[Any]]:
    found: Dict[str, List[Any]] = {}
    for process in processes:
        for value in of(process):
            if value not in found.setdefault(process.host, []):
                found[process.host].append(value)
    return {host: values for host, values in found.items() if values}


def _hcas(processes: Sequence[Process]) -> Dict[str, List[str]]:
    used, seen = network.used_hcas(processes)
    return {"seen": sorted(seen), "used": sorted(used), "idle": sorted(seen - used) if used else []}


def _gdr(job: Job) -> List[Dict[str, Any]]:
    """Return GPUDirect RDMA of each host and HCA, with the reason where it is off."""
    found: Dict[Tuple[str, str], Dict[str, Any]] = {}
    for process in job.processes:
        for way, count, device in process.rdma_connections():
            row = _gdr_row(found, process.host, device)
            row["unknown" if way.gdr is None else "on" if way.gdr else "off"] += count
            if way.gdr is False and not row["reason"]:
                row["reason"] = network.gdr_cause(job, process, device, way.rank, way.sends)[0]
        for device, able in process.gdr_devices.items():
            row = _gdr_row(found, process.host, device)
            row["able"] = able
            row["reason"] = row["reason"] or ("" if able else process.gdr_why)
    return [row for _key, row in sorted(found.items())][:4096]


def _gdr_row(rows: Dict[Tuple[str, str], Dict[str, Any]], host: str, device: str) -> Dict[str, Any]:
    return rows.setdefault((host, device), {"host": host, "hca": device, "on": 0, "off": 0, "unknown": 0, "reason": ""})


def _event(group: Group) -> Dict[str, Any]:
    return {
        "event": group.event.id, "code": group.code, "check": group.event.check.id, "count": group.count,
        "ranks": sorted(group.ranks)[:1024], "hosts": sorted(group.hosts)[:1024], "line": group.first.order,
        "last_line": group.last, "text": group.first.text,
        "because": group.because.name if group.because is not None else None,
        "confidence": group.link if group.because is not None else REPORTED,
    }  # fmt: skip


def _exit(group: Group) -> Dict[str, Any]:
    return {"code": group.code or "killed for memory", "ranks": sorted(group.ranks)[:1024],
            "hosts": sorted(group.hosts)[:1024], "count": group.count}  # fmt: skip


def _watchdog(groups: Sequence[Group]) -> Optional[Dict[str, Any]]:
    found = waits.read(groups)
    if not found.calls and not found.signalled:
        return None
    calls = [dict(zip(("operation", "number", "elements"), key), ranks=sorted(found.calls[key])) for key in found.calls]
    return {"timeout_ms": found.limit, "calls": calls[:64], "out_of_step": found.out_of_step,
            "behind": sorted(found.behind)}  # fmt: skip


def _program(program: Any) -> Dict[str, Any]:
    rows = [
        {"size": row.size, "busbw": row.out, "busbw_in_place": row.inside, "time_us": row.time, "wrong": row.wrong}
        for row in program.rows
    ]
    return {"ranks": len(program.ranks), "rows": rows, "average_busbw": program.average, "wrong": program.wrong,
            "end": program.bounds, "below_minimum": program.below}  # fmt: skip


def facts_line(log: Log, job: Job) -> str:
    """Return the facts of a job in one line: release, ranks, nodes, network, GPUDirect RDMA, HCAs."""
    oldest, newest = _between(log, job) or (None, None)
    between = "%s or older" % newest if oldest is None else " to ".join(dict.fromkeys([oldest, newest or ""]))
    inferred = "%s (inferred)" % between if newest else "release unknown"
    parts = ["NCCL %s" % (", ".join(_releases(log, job)) or inferred)]
    ranks = job.world.ranks if job.world is not None else len(log.table.ranks)
    if ranks:
        here = len(present(job)) if job.world is not None else ranks
        parts.append("%d ranks" % ranks if here >= ranks else "%d of %d ranks" % (here, ranks))
    nodes = job.nodes
    hosts = job.hosts or log.table.hosts
    if nodes is not None or hosts:
        count = nodes if nodes is not None else len(hosts)
        text = "%d node%s (%s)" % (count, "" if count == 1 else "s", hosts_of(hosts, 3))
        parts.append(text if nodes is not None else "at least %s" % text)
    if job.networks:
        parts.append("network %s" % names(job.networks))
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
