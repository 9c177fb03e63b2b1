# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""All findings on a log, and what it cannot tell."""

from __future__ import annotations

from typing import Dict, List, Set, Tuple

from ..core.check import Check
from ..core.finding import Finding, worst_first
from ..nccl.grammar import strtoll
from ..nccl.lint import lint_variable
from . import judge_failures, judge_network
from .job import Log, Process
from .jobs import Job, missing, names, split
from .judge_network import AGAIN, CAPTURE

READABLE = Check(
    "nccl_log.readable",
    why="what is not in the log, or not kept of it, cannot be judged",
    fix=AGAIN,
)
"Is it NCCL_DEBUG output, whole and of a size that was read to its end"
LEVEL = Check(
    "nccl_log.level",
    why="at level WARN NCCL says nothing about networks, HCAs and connections: no verdict on them is possible",
    fix=AGAIN,
)
"Does the log have INFO lines, and those that tell the network and the connections"
RANKS = Check(
    "nccl_log.ranks",
    why="a communicator needs all of its ranks: while one is missing the others wait",
    fix="see on the nodes of the missing ranks whether their processes run, and can reach rank 0's address; ask"
    " `busbar hang HOST` while it waits",
    severity="critical",
)
"Did all ranks of every communicator come, and complete its initialisation"
EFFECT = Check(
    "nccl_log.variable_effect",
    why="a variable was set, and nothing came of it: NCCL does not complain about that",
    fix="take it out, or make what it needs available",
    severity="minor",
)
"Did what the variables ask for happen"
SAME = Check(
    "nccl_log.same_settings",
    why="ranks with other settings choose other algorithms and sizes: the job hangs or fails, or is slow",
    fix="set it for all ranks alike, or nowhere: /etc/nccl.conf by site.yml with --tags nccl_conf",
)
"Have all ranks the same settings"

# Of these a difference between ranks is a fault; others are a node's own, such as its interface's name.
_ALIKE = {
    *("NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
    *("NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_NET", "NCCL_IB_DISABLE", "NCCL_COLLNET_ENABLE", "NCCL_NVLS_ENABLE"),
    *("NCCL_CROSS_NIC", "NCCL_PXN_DISABLE", "NCCL_IB_SPLIT_DATA_ON_QPS", "NCCL_IB_QPS_PER_CONNECTION"),
    *("NCCL_P2P_NET_CHUNKSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE", "NCCL_NET_GDR_LEVEL", "NCCL_IB_TC"),
    *("NCCL_IB_SL", "NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"),
}

# judge_network says what came of these.
_JUDGED = ("NCCL_IB_DISABLE", "NCCL_NET", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE")


def judge(log: Log) -> List[Finding]:
    """Findings, those that are ok too, worst first."""
    found = _readable(log)
    for job in split(log):
        found += judge_failures.judge(job)
        found += _versions(job) + _ranks(job)
        found += judge_network.judge(job)
        found += _variables(job) + _effects(job) + _same(job)
        found += _level(log, job)
    return worst_first(_once(found))


def _once(found: List[Finding]) -> List[Finding]:
    """Of findings with one id the first."""
    first: Dict[str, Finding] = {}
    for finding in found:
        first.setdefault(finding.id, finding)
    return list(first.values())


def _readable(log: Log) -> List[Finding]:
    source = names(log.sources, 3) or "the log"
    if not log.info and not log.warnings:
        have = "%d lines, none of NCCL's" % log.lines
        if log.binary:
            have += "; %d hold zero bytes: it is no text" % log.binary
        if log.tests:
            have += "; it is the output of nccl-tests without NCCL_DEBUG"
        severity = "minor" if log.failures else None
        return [READABLE.judge(source, "unknown", "lines of NCCL_DEBUG", have, severity=severity)]
    found = []
    if log.beyond:
        have = "not kept: %s" % ", ".join("%d %s" % (count, what) for what, count in sorted(log.beyond.items()))
        fix = "give the files of fewer ranks at once"
        found.append(READABLE.judge(source, "unknown", "all of it", have, fix=fix))
    if log.collapsed:
        have = "Ray left out %d lines that were like others: which processes wrote them is not told" % log.collapsed
        fix = "run it again with RAY_DEDUP_LOGS=0, or NCCL_DEBUG_FILE=/tmp/nccl.%h.%p, which Ray does not touch"
        found.append(READABLE.judge("%s repeated" % source, "unknown", "all of it", have, fix=fix, severity="minor"))
    if log.binary:
        have = "%d lines hold zero bytes" % log.binary
        found.append(READABLE.judge("%s text" % source, "unknown", "text", have, severity="minor"))
    return found


def _level(log: Log, job: Job) -> List[Finding]:
    if not log.info:
        if not log.warnings:
            return []
        have = "warnings alone: network, HCAs, GPUDirect RDMA and channels are unknown"
        return [LEVEL.judge(job.name, "unknown", "INFO lines", have)]
    silent = []
    if not job.networks:
        silent.append("which network is used (Using network)")
    if job.world is None:
        silent.append("which ranks there are (Init START)")
    if job.nodes != 1 and not any(process.ways for process in job.processes):
        silent.append("connections (Channel ... via)")
    if job.nodes is None:
        silent.append("over how many nodes it runs")
    if not silent:
        return []
    have = "the log does not tell: %s" % "; ".join(silent)
    why = "what NCCL did not print cannot be judged: there is no verdict on it"
    return [LEVEL.judge(job.name, "unknown", "lines of INIT, NET and GRAPH", have, why=why, severity="minor")]


def _versions(job: Job) -> List[Finding]:
    if not job.versions:
        return []
    if len(job.versions) == 1:
        return [judge_failures.VERSIONS.judge(job.name, "ok", "one NCCL", job.versions[0], "NCCL version")]
    on = []
    for version in job.versions:
        hosts = [process.host for process in job.processes if version in process.versions]
        on.append("%s on %s" % (version, names(hosts)) if hosts else version)
    return [judge_failures.VERSIONS.judge(job.name, "drift", "one NCCL", "; ".join(on), "NCCL version")]


def _ranks(job: Job) -> List[Finding]:
    found = []
    worst: List[Tuple[int, Finding]] = []
    complete = 0
    for one in job.communicators:
        if one.done:
            complete += 1
            continue
        absent = missing(one.began, one.ranks)
        subject = "%s communicator %s" % (job.name, one.key)
        want = "%d ranks" % one.ranks
        if absent:
            have = "ranks %s of %d did not begin here, and no rank completed" % (absent, one.ranks)
            several = len({process.key for process in one.began.values()}) > 1
            have += "" if several else "; only one process is in this log"
            have += "; possible causes: not started, cannot reach rank 0, or their log is not among the files"
            state, severity = ("drift", None) if several else ("unknown", "major")
            finding = RANKS.judge(subject, state, want, have, "Init START", severity=severity)
        else:
            have = "all %d ranks began, and none completed: it hung, failed, or the log ends before" % one.ranks
            fix = "see whether the job is still at it; if it hangs, ask `busbar hang HOST` which rank is behind"
            finding = RANKS.judge(subject, "unknown", want, have, "Init COMPLETE", fix, severity="major")
        worst.append((-one.ranks, finding))
    found = [finding for _ranks_of_it, finding in sorted(worst, key=lambda pair: pair[0])[:3]]
    if len(worst) > 3:
        have = "%d more communicators did not complete" % (len(worst) - 3)
        found.append(RANKS.judge("%s communicators" % job.name, "unknown", "all complete", have, "Init COMPLETE"))
    if complete and not worst:
        have = "%d communicator%s, the largest of %d ranks" % (
            complete,
            "" if complete == 1 else "s",
            job.world.ranks if job.world else 0,
        )
        found.append(RANKS.judge(job.name, "ok", "complete", have, "Init COMPLETE"))
    return found


def _variables(job: Job) -> List[Finding]:
    """What the linter says of values."""
    found = []
    for name in sorted({name for process in job.processes for name in process.variables}):
        if not name.startswith("NCCL_") or name in _JUDGED:
            continue
        for value in sorted(job.set_to(name))[:3]:
            faults = lint_variable(name, value, job.name, version=job.version, place="job")
            found += [finding for finding in faults if finding.severity != "minor"][:1]
    return found


def _effects(job: Job) -> List[Finding]:
    found = []

    def say(name: str, have: str, fix: str = "", severity: str = "minor") -> None:
        values = names(job.set_to(name))
        text = "%s=%s: %s" % (name, values, have)
        found.append(EFFECT.judge("%s %s" % (job.name, name), "drift", None, text, "", fix or None, severity=severity))

    plugins = {plugin for process in job.processes for plugin in process.plugins}
    for kind, name in (
        ("NET", "NCCL_NET_PLUGIN"),
        ("TUNER", "NCCL_TUNER_PLUGIN"),
        ("PROFILER", "NCCL_PROFILER_PLUGIN"),
    ):
        wanted = [value for value in job.set_to(name) if value.lower() not in ("", "none", "internal")]
        states = {plugin.state for plugin in plugins if plugin.kind == kind and plugin.name not in ("IB", "Socket")}
        if wanted and not states & {"loaded"} and states & {"missing", "failed"}:
            fix = "put the plugin's directory into LD_LIBRARY_PATH, or take %s out" % name
            say(name, "no such plugin was loaded", fix, "major")
    if job.number("NCCL_NVLS_ENABLE") == 1 and any(process.nvls is False for process in job.processes):
        say(
            "NCCL_NVLS_ENABLE",
            "NVLS multicast is not available on these GPUs",
            "`systemctl status nvidia-fabricmanager`",
        )
    connected = any(process.collnet for process in job.processes)
    if job.number("NCCL_COLLNET_ENABLE") and not connected and any(process.rings for process in job.processes):
        why = next((process.collnet_why for process in job.processes if process.collnet_why), "no rank connected it")
        fix = "install the SHARP plugin (nccl-rdma-sharp-plugins) where the job runs, or take the variable out"
        say("NCCL_COLLNET_ENABLE", why, fix, "major")
    networks = job.networks
    if networks and "Socket" not in networks:
        for name in ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"):
            if job.set_to(name):
                say(name, "it acts on NET/Socket, and %s is used" % names(networks))
    level = [value for value in job.set_to("NCCL_NET_GDR_LEVEL") if value not in ("LOC", "0")]
    able = {able for process in job.processes for able in process.gdr_devices.values()}
    if level and able == {False}:
        fix = "load nvidia_peermem, or use the open GPU kernel modules (DMA-BUF); then the variable is hardly needed"
        say("NCCL_NET_GDR_LEVEL", "no HCA can do GPUDirect RDMA, whatever the level", fix)
    disabled = job.number("NCCL_IB_DISABLE")
    if disabled and any(name.startswith("IBext") for name in networks):
        fix = "take it out, or set NCCL_IBEXT_DISABLE=1 where TCP is meant"
        say("NCCL_IB_DISABLE", "it does not stop %s, which is used" % names(networks), fix)
    return found


def _same(job: Job) -> List[Finding]:
    found = []
    for name in sorted(_ALIKE):
        values = job.set_to(name)
        if len({_meaning(value) for value in values}) > 1:
            have = "; ".join("%s on %s" % (value, _hosts(on)) for value, on in sorted(values.items())[:4])
            found.append(SAME.judge("%s %s" % (job.name, name), "drift", "one value", have, "set by environment"))
    return found


def _meaning(value: str) -> str:
    number, rest = strtoll(value)
    return value if rest else str(number)


def _hosts(processes: List[Process]) -> str:
    hosts: Set[str] = {process.host for process in processes}
    return names(hosts)


__all__ = ["CAPTURE", "judge"]
