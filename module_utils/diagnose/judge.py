# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge a log: findings on what failed, the root first, then on what makes the job slow, then what is right."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Dict, List, Optional, Sequence, Tuple

from ..core.finding import SEVERITIES, Finding
from ..core.number import whole
from . import engine, network, nvlink, ranks, ras, settings, table
from .checks import CUDA, LEVEL, READABLE, VERSIONS, WARNING
from .engine import LIKELY, PROVEN, REPORTED, Diagnosis
from .events import CAUSE, EFFECT, NETWORK, NOTICE, ORDER, REPORT, WEAK, Group
from .jobs import Job, jobs
from .log_reader import Log
from .names import causes_text, hosts_of, names, of_ranks
from .program_events import split_label
from .state import Process

# The first release whose logs are judged.
OLDEST = (2, 18)
# Events without a finding of their own, unless one of them is the root.
_EVIDENCE = (
    "consequence", "exception_nccl", "exception_remote", "test", "worker_lost", "mpi_abort", "error_line", "signalled",
    "progress",
)  # fmt: skip
# Events of which nothing is known but the line.
_VAGUE = ("warning", "plugin_warning", "internal", "system", "nvml")
_MOST = 48
# A finding on a fact, its tier and its confidence.
Fact = Tuple[Finding, int, str]
# Completion statuses of ibverbs (enum ibv_wc_status) that NCCL meets.
STATUSES = {
    1: "local length error", 2: "local QP operation error", 4: "local protection error",
    5: "flushed: the connection had failed before", 6: "memory window bind error", 7: "bad response",
    8: "local access error", 9: "remote invalid request", 10: "remote access error", 11: "remote operation error",
    12: "transport retry counter exceeded", 13: "RNR retry counter exceeded", 22: "general error",
}  # fmt: skip
# What NCCL's functions return (ncclResult_t).
_RESULTS = {
    1: "a call of CUDA failed", 2: "a call of the system or of a library failed, or a device",
    3: "a check within NCCL failed, or a plugin", 4: "the program gave NCCL a wrong argument",
    5: "the program uses NCCL wrongly", 6: "another rank went away first, or the network failed",
}  # fmt: skip
_GIDS = re.compile(r"(?:localGid |local GID (?!index))([^\s,]{2,60}),? remote ?G[Ii][Dd]s? ?([^\s,;]{2,60})")


@dataclass(frozen=True)
class Root:
    """First failure. event, code: of the event, or the name of the check.   confidence: proven, likely or reported."""

    finding: Finding
    event: str
    confidence: str
    code: str = ""
    line: int = 0
    source: str = ""
    text: str = ""
    ranks: Tuple[int, ...] = ()
    hosts: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """unsupported: what wrote a log that is not judged; "" otherwise.   root: None where nothing failed."""

    log: Log
    jobs: List[Job]
    diagnosis: Diagnosis
    findings: List[Finding]
    root: Optional[Root]
    unsupported: str = ""

    @property
    def bad(self) -> List[Finding]:
        return [finding for finding in self.findings if not finding.ok]


def judge(log: Log) -> Result:
    """Return the findings on a log, the root first. Of one that is not judged, those that warnings state."""
    every = jobs(log.state)
    unsupported = _unsupported(log, every)
    found_jobs = [] if unsupported else [job for job in every if not _old(job)]
    diagnosis = engine.diagnose(log, found_jobs)
    facts: List[Fact] = []
    slow: List[Finding] = []
    if not unsupported:
        engine.tolerate_ports(log, diagnosis)
        launched = log.state.launch.number("ranks") or 0
        facts += [(finding, CAUSE, PROVEN) for finding in table.failures(log.table, launched)]
        slow += table.judge(log.table)
    failures, by_group = _failures(log, found_jobs, diagnosis)
    for job in found_jobs:
        _judge_job(log, job, diagnosis, facts, slow)
    facts += _calls(log, found_jobs, diagnosis)
    root = _root(diagnosis, by_group, facts, log)
    found = [finding for finding, _tier, _confidence in facts]
    if root is not None:
        failures, found = _caused(failures, found, root)
    if unsupported:
        slow.append(_not_judged(log, unsupported, root))
    elif root is None:
        slow += [finding for job in found_jobs for finding in _level(log, job)] + _readable(log)
    first: Dict[str, Finding] = {}
    for finding in (*failures, *found, *(() if unsupported else ras.judge(log.ras)), *slow):
        first.setdefault(finding.id, finding)
    top = root.finding.id if root is not None else ""

    def key(one: Finding) -> Tuple[bool, bool, bool, int, bool]:
        return one.id != top, one.ok, one.because is not None, SEVERITIES.index(one.severity), one.state == "unknown"

    ordered = sorted(first.values(), key=key)
    return Result(log, every if unsupported else found_jobs, diagnosis, ordered, root, unsupported)


def _judge_job(log: Log, job: Job, diagnosis: Diagnosis, facts: List[Fact], slow: List[Finding]) -> None:
    """Add findings on a job: facts that may be the root, and what is slow or right."""
    events = frozenset(group.event.id for group in diagnosis.groups if group.tier != NOTICE)
    gpus = frozenset(one.gpu for one in log.table.ranks.values())
    certain = [*_versions(job), *ranks.operations(log, job)]
    if not any(group.tier <= CAUSE for group in diagnosis.groups):
        certain += ranks.same_gpu(job)
    facts += [(finding, CAUSE, PROVEN) for finding in certain if not finding.ok]
    of_members = ranks.judge(log, job, diagnosis.groups)
    serious = [finding for finding in of_members if not finding.ok and finding.severity != "minor"]
    facts += [(finding, NETWORK if finding.state == "drift" else REPORT + 1, LIKELY) for finding in serious]
    facts += [(finding, EFFECT, REPORTED) for finding in ranks.retries(job, events)]
    slow += [finding for finding in (*of_members, *certain) if finding.ok or finding.severity == "minor"]
    slow += [*ranks.traced(job), *_driver(job), *network.judge(job, events, gpus), *nvlink.judge(job, events)]
    slow += settings.judge(job, diagnosis.groups)


def _unsupported(log: Log, every: Sequence[Job]) -> str:
    if log.rccl and not log.state.versions and not any(process.versions for process in log.state.processes.values()):
        return "RCCL, AMD's build of NCCL"
    if every and all(map(_old, every)):
        return "NCCL %s" % ", ".join(sorted({version for job in every for version in job.versions}))
    return ""


def _old(job: Job) -> bool:
    releases = [tuple(int(part) for part in version.split(".")[:2]) for version in job.versions]
    return bool(releases) and max(releases) < OLDEST


def _not_judged(log: Log, unsupported: str, root: Optional[Root]) -> Finding:
    why = "the lines of RCCL and of older releases have other forms and other meanings: facts are not judged"
    fix = "read it with the documentation of that release, or run the job with a newer NCCL"
    have = "this is a log of %s: it is not judged" % unsupported
    subject, wanted = "%s release" % (names(log.sources, 3) or "the log"), "NCCL %d.%d or later" % OLDEST
    severity = "minor" if root is not None else None
    return READABLE.judge(subject, "unknown", wanted, have, "", fix, why=why, severity=severity)


def _root(diagnosis: Diagnosis, by_group: Dict[int, Finding], facts: Sequence[Fact], log: Log) -> Optional[Root]:
    """Return the root: an event, or a fact that is more upstream than the first event."""
    group = diagnosis.root
    waited = ranks.read_waits(diagnosis.groups)
    if group is not None and group.event.id == "watchdog" and (waited.out_of_step or waited.behind):
        diagnosis.confidence = LIKELY
    upstream = [fact for fact in facts if fact[0].severity != "minor" and (group is None or fact[1] < group.tier)]
    if upstream:
        finding, _tier, confidence = min(upstream, key=lambda fact: fact[1])
        return Root(finding, finding.check.partition(".")[2], confidence if finding.state == "drift" else REPORTED)
    if group is None or id(group) not in by_group:
        return None
    one, source = group.first, log.sources[group.first.source - 1] if group.first.source else ""
    where = (one.order, source, one.text, tuple(sorted(group.ranks)), tuple(sorted(group.hosts)))
    return Root(by_group[id(group)], group.event.id, diagnosis.confidence, group.code, *where)


def _caused(failures: List[Finding], found: List[Finding], root: Root) -> Tuple[List[Finding], List[Finding]]:
    """Let failures follow from a root that is a fact, and facts from a root that is an event."""
    because = root.finding.id
    if any(finding.id == because for finding in found):
        return [one if one.because or one.id == because else replace(one, because=because) for one in failures], found
    return failures, [one if one.state == "drift" else replace(one, because=because) for one in found]


def _failures(log: Log, found_jobs: Sequence[Job], diagnosis: Diagnosis) -> Tuple[List[Finding], Dict[int, Finding]]:
    by_group: Dict[int, Finding] = {}
    for group in diagnosis.groups:
        name, evidence = group.event.id, group.event.id in _EVIDENCE and group is not diagnosis.root
        if evidence or (name == "stuck" and group.because is not None) or (group.tier == NOTICE and name != "value"):
            continue
        first = found_jobs[0] if found_jobs else Job("job", (), (), None, ())
        job = next((job for job in found_jobs if group.first.process in job.processes), first)
        by_group[id(group)] = _finding(log, job, group, diagnosis, by_group.get(id(group.because)))
    return list(by_group.values())[:_MOST], by_group


def _finding(log: Log, job: Job, group: Group, diagnosis: Diagnosis, because: Optional[Finding]) -> Finding:
    event, waited = group.event, ranks.read_waits(diagnosis.groups)
    parts = [_title(job, group, waited)]
    state, severity, more = _severity(log, job, group, diagnosis)
    parts += [*more, *_where(job, group)]
    if event.id in ("watchdog", "signalled"):
        parts += ranks.describe_waits(waited, job)
    if event.id == "port":
        parts += engine.describe_ports(log, group)
    for one in group.kept[:8]:
        ended = [call for call in engine.calls_after(one) if engine.to_program(call)][-1:]
        parts += ["the call of NCCL failed with it (%s -> %d)" % call[:2] for call in ended]
        if ended:
            break
    then = [one for one in diagnosis.groups if one.because is group and one.tier in (NETWORK, EFFECT)]
    each = ["%s%s (line %d)" % (one.name, " on %s" % hosts_of(one.hosts) if one.hosts else "", one.first.order)
            for one in then[:2]]  # fmt: skip
    parts += ["then: %s" % ", ".join(each)] if each and group is diagnosis.root else []
    setting = _setting(job, group)
    detail = group.detail
    if (setting or detail.causes) and group.because is None:
        parts.append(causes_text([setting or detail.causes], detail.proven or bool(setting)))
    stepped = "ranks waited in one number of a process group with other operations or sizes: they are out of step"
    why = stepped if event.id == "watchdog" and waited.out_of_step else detail.why
    return event.check.judge(
        "%s %s" % (job.name, group.name), state, None, "; ".join(parts)[:1500], "line %d" % group.first.order,
        detail.fix or None, because=because, why=why or None, severity=severity,
    )  # fmt: skip


def _severity(log: Log, job: Job, group: Group, diagnosis: Diagnosis) -> Tuple[str, str, List[str]]:
    """Return state and severity of an event, and what shows that it is no failure."""
    event, parts = group.event, []
    state, severity = event.state, event.severity or event.check.severity
    if group.tier <= EFFECT and group is diagnosis.root and event.id != "net_plugin":
        severity = event.severity or "critical"
    if group.tier == CAUSE and event.tier in (WEAK, NETWORK):
        severity, state = "critical", "unknown" if event.id == "warning" else "drift"
    if group.tier == WEAK:
        severity = "major" if severity == "critical" and not event.severity else severity
        if event.id == "verbs" and any(process.devices for process in job.processes):
            severity = "minor"
            parts.append("NCCL continues with the HCAs that it can open")
        line = engine.continued(log, group)
        if line:
            # Within a node no network is needed.
            alone = event.id == "net_plugin" and job.nodes == 1
            severity = "minor" if event.id in _VAGUE or alone else severity
            parts.append("the job continued after it (line %d)" % line)
        elif event.id in ("warning", "plugin_warning") and diagnosis.root is not None:
            severity = "minor"
    return state, severity, parts


def _title(job: Job, group: Group, waited: ranks.Waits) -> str:
    """Return what happened: the quoted line, or a few words where several lines say it together."""
    event, one = group.event, group.first
    label, text = split_label(one.text)
    # Ray's label names the worker.
    text = label + text if "(" in label or not text else text
    if event.id in ("watchdog", "signalled"):
        return ranks.waits_title(waited, job)
    if event.id == "completion" and whole(group.code) is not None:
        status = STATUSES.get(whole(group.code) or 0, "")
        return "completion with status %s%s" % (group.code, status and ", " + status)
    if event.id in ("order", "cancelled"):
        how = "interrupted (SIGINT)" if "interrupted" in group.detail.why else "told to end"
        return "the job was %s: %s" % (how, text[:200])
    if event.id == "exit":
        return "a process ended with %s" % group.code
    if event.id == "xid":
        program = "; met by %s" % one.fields["name"] if one.fields.get("name") else ""
        return "the kernel reports Xid %s of the GPU at PCI %s%s" % (group.code, one.fields.get("device"), program)
    text = text if len(text) <= 300 else "%s ..." % text[:300]
    return text + (", %d times" % group.count if group.count > 1 and event.id not in ("cuda", "exception") else "")


def _where(job: Job, group: Group) -> List[str]:
    """Return ranks, hosts, HCAs and peers of an event."""
    writers = {job.writer(one.process) for one in group.kept if one.process is not None} - {""}
    writers = writers or {of_ranks(str(one.rank)) for one in group.kept if one.process is None and one.rank is not None}
    parts = ["on %s" % names(writers)] if writers else ["on %s" % hosts_of(group.hosts)] if group.hosts else []
    devices = {str(one.fields["device"]) for one in group.kept if one.fields.get("device")}
    parts += ["device %s" % names(devices)] if devices and group.event.id != "xid" else []
    peers = {str(one.fields["peer"]) for one in group.kept if one.fields.get("peer")}
    hosts = {process.bootstrap[1]: process.host for process in job.processes if process.bootstrap[1]}
    shown = names("%s (%s)" % (peer, hosts[peer]) if peer in hosts else peer for peer in peers)
    parts += ["peer %s" % shown] if peers else []
    gids = _GIDS.search(group.first.text)
    if gids is not None:
        local, remote = (gid.replace("::ffff:", "").rstrip(",;)") for gid in gids.groups())
        parts.append("between GIDs %s and %s" % (local, remote))
        if ("." in local) != ("." in remote):
            parts.append("one GID is an IPv4 address and the other is not: the GID index differs between the nodes")
    return parts


def _setting(job: Job, group: Group) -> str:
    """Return the setting that lines of the log show to be the cause of an event."""
    name, interfaces, extra = group.event.id, job.values("NCCL_SOCKET_IFNAME"), settings.extra_hcas(job)
    limits = {process.shared_limit for process in job.processes if process.shared_limit[0]}
    if name in ("no_interface", "address") and interfaces:
        return "NCCL_SOCKET_IFNAME=%s" % names(interfaces)
    if name == "cuda" and group.code.startswith("invalid") and limits:
        text = "kernels of this NCCL need %s bytes of shared memory and the GPU gives %s: NCCL is older than the GPU"
        return text % min(limits)
    if name in ("queue_pair", "verbs", "link_layer") and extra:
        text = "NCCL_IB_HCA=%s matches beginnings of names: NCCL took %s, too"
        return text % (names(job.values("NCCL_IB_HCA"), 2), names(extra, 8))
    return ""


def _versions(job: Job) -> List[Finding]:
    named = {process.host for process in job.processes if process.versions}
    silent = {process.host for process in job.processes} - named
    if len(job.versions) == 1:
        have = job.versions[0]
        have += ", by %s; no release: %s" % (hosts_of(named, 3), hosts_of(silent, 3)) if named and silent else ""
        return [VERSIONS.judge(job.name, "ok", "one NCCL", have, "NCCL version")]
    on = []
    for version in job.versions:
        hosts = [process.host for process in job.processes if version in process.versions]
        on.append("%s on %s" % (version, hosts_of(hosts)) if hosts else version)
    return [VERSIONS.judge(job.name, "drift", "one NCCL", "; ".join(on), "NCCL version")] if named else []


def _driver(job: Job) -> List[Finding]:
    built = sorted({process.cuda for process in job.processes if process.cuda})
    drivers = sorted({process.driver for process in job.processes if process.driver})
    if len(built) != 1 or not drivers or drivers[0] // 1000 >= int(built[0].split(".")[0]):
        return []
    release = (drivers[0] // 1000, drivers[0] % 1000 // 10, built[0])
    have = "the driver is of CUDA %d.%d and this NCCL was built for %s" % release
    why = "a driver that is older than the CUDA of the library lacks functions that it may call"
    fix = "`nvidia-smi` on the node shows the newest CUDA of its driver: take a newer driver, or an image for that CUDA"
    subject = "%s driver" % job.name
    return [CUDA.judge(subject, "unknown", "as new as NCCL", have, "cudaDriverVersion", fix, why=why, severity="major")]


def _calls(log: Log, found_jobs: Sequence[Job], diagnosis: Diagnosis) -> List[Fact]:
    """Judge calls within NCCL that returned an error without a warning of their process."""
    warned = {id(one.process) for group in diagnosis.groups for one in group.kept if group.tier not in (NOTICE, REPORT)}
    silent = [one for one in log.state.processes.values() if one.calls and id(one) not in warned][:64]
    calls = [(one, one.calls[0]) for one in silent if one.calls[0].order > one.completed or _reached(one)]
    upstream = diagnosis.root is not None and diagnosis.root.tier < EFFECT
    if upstream or not found_jobs or not any(_reached(process) for process, _call in calls):
        return []
    process, call = min(calls, key=lambda pair: pair[1].order)
    job = next((job for job in found_jobs if process in job.processes), found_jobs[0])
    have = "calls of NCCL returned an error without a warning, first %s -> %d on %s" % (
        call.place, call.result, job.writer(process) or "a process")  # fmt: skip
    have += "; %s" % _RESULTS[call.result] if call.result in _RESULTS else ""
    fix = "run it with NCCL_DEBUG=INFO on all ranks, and read the lines just before the first one"
    finding = WARNING.judge(job.name, "unknown", "no failed call", have, call.place, fix, severity="critical")
    return [(finding, ORDER, REPORTED)]


def _reached(process: Process) -> bool:
    unready = bool(process.pointers) and not process.completed
    return any((engine.to_program(call) or unready) and call.order > process.completed for call in process.calls)


def _level(log: Log, job: Job) -> List[Finding]:
    if not log.info:
        have = "warnings only: the INFO lines on network, HCAs, GPUDirect RDMA and channels are missing"
        return [LEVEL.judge(job.name, "unknown", "INFO lines", have, severity="major")] if log.warnings else []
    shaped = any(process.shapes[0] for process in job.processes)
    connected = any(process.ways for process in job.processes)
    rows = (
        (not job.networks, "which network is used (Using network)"),
        (job.world is None and not shaped and not log.table.ranks, "which ranks there are (Init START)"),
        (job.nodes != 1 and not connected, "connections (Channel ... via)"),
        (job.nodes is None and not shaped, "over how many nodes it runs"),
    )
    silent = [text for holds, text in rows if holds]
    have = "the log does not show: %s" % "; ".join(silent)
    return [LEVEL.judge(job.name, "unknown", "lines of INIT, NET and GRAPH", have, severity="minor")] if silent else []


def _readable(log: Log) -> List[Finding]:
    source = names(log.sources, 3) or "the log"
    found = []
    if not log.info and not log.warnings:
        have = "%d lines, none with NCCL's own head (HOST:PID:TID [GPU] NCCL INFO)" % log.lines
        have += "; it is the output of nccl-tests without NCCL's INFO lines" if log.table.programs else ""
        have += "; it is a report of NCCL's RAS" if log.ras.groups or log.ras.blocks else ""
        have += "; %d hold zero bytes" % log.binary if log.binary else ""
        known = log.table.programs or log.ras.groups or log.ras.blocks or log.groups or log.last_step
        severity = "minor" if known else None
        found.append(READABLE.judge(source, "unknown", "lines of NCCL_DEBUG", have, severity=severity))
    if log.cut:
        have = "%d NCCL WARN without text" % log.cut
        found.append(READABLE.judge("%s warnings" % source, "unknown", "the text of each", have))
    beyond = {**log.state.left_out, **({"lines": log.beyond} if log.beyond else {})}
    if beyond:
        have = "not stored: %s" % ", ".join("%d %s" % (count, what) for what, count in sorted(beyond.items()))
        found.append(READABLE.judge(source, "unknown", "all of it", have, fix="give the files of fewer ranks at once"))
    return found
