# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge the variables of a job: their values, whether they took effect, and whether all ranks have the same."""

from __future__ import annotations

from dataclasses import replace
from typing import List, Optional, Tuple

from ..core.finding import Finding
from ..nccl_conf.grammar import strtoll
from ..nccl_conf.lint import lint_variable
from .checks import EFFECT, SAME
from .jobs import Job
from .names import hosts_of, names
from .state import SOCKETS
from .transport import collnet

# Variables (NCCL_...) of which a difference between ranks is a fault; others are a node's own.
_ALIKE = (
    "ALGO", "PROTO", "BUFFSIZE", "NTHREADS", "MIN_NCHANNELS", "MAX_NCHANNELS", "MIN_CTAS", "MAX_CTAS", "NET",
    "IB_DISABLE", "COLLNET_ENABLE", "NVLS_ENABLE", "CROSS_NIC", "PXN_DISABLE", "IB_TC", "IB_SL",
    "IB_SPLIT_DATA_ON_QPS", "IB_QPS_PER_CONNECTION", "P2P_NET_CHUNKSIZE", "LL_BUFFSIZE", "LL128_BUFFSIZE",
    "NET_GDR_LEVEL", "P2P_LEVEL", "P2P_DISABLE", "SHM_DISABLE",
)  # fmt: skip
# Variables of which ``network`` and ``nvlink`` say what came of them.
_JUDGED = ("NCCL_IB_DISABLE", "NCCL_NET", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE")


def judge(job: Job) -> List[Finding]:
    return [*_values(job), *_effects(job), *_same(job)]


def extra_hcas(job: Job) -> List[str]:
    """Return HCAs that NCCL takes though NCCL_IB_HCA does not name them in full: it matches beginnings of names."""
    found = []
    for value in job.values("NCCL_IB_HCA"):
        if value[:1] in ("^", "="):
            continue
        named = {part.partition(":")[0] for part in value.split(",")}
        seen = {part for one in job.processes for part in one.hcas}
        found += sorted(name for name in seen - named if any(name.startswith(part) for part in named if part))
    return found


def _values(job: Job) -> List[Finding]:
    """Judge values by the rules of `busbar lint`."""
    found = []
    one_gpu = bool(job.communicators) and max(one.local_ranks for one in job.communicators) == 1
    one_gpu = one_gpu or (job.world is not None and job.nodes == job.world.ranks)
    for name in sorted({name for process in job.processes for name in process.variables}):
        if not name.startswith("NCCL_") or name in _JUDGED or (name == "NCCL_NVLS_ENABLE" and one_gpu):
            continue
        for value in sorted(job.values(name))[:3]:
            faults = lint_variable(name, value, job.name, version=_release(job), place="job")
            # NCCL prints what it reads, so it knows the name.
            silent = ("unknown_variable", "dead_variable")
            faults = [one for one in faults if not one.check.endswith(silent) and one.severity != "minor"]
            seen = {part for process in job.processes for name in process.devices.values() for part in name.split("+")}
            named = {part.partition(":")[0] for part in value.lstrip("=^").split(",")}
            extra = extra_hcas(job) if name == "NCCL_IB_HCA" else []
            for one in faults[:1]:
                if one.check.endswith("prefix_match") and extra:
                    have = "%s=%s: NCCL matches beginnings of names and took %s, too" % (name, value, names(extra, 8))
                    found.append(replace(one, have=have))
                elif name == "NCCL_IB_HCA" and seen and seen <= named:
                    continue
                elif one.check.endswith("advice") or (name == "NCCL_IB_HCA" and not any(p.hcas for p in job.processes)):
                    found.append(replace(one, severity="minor"))
                else:
                    found.append(one)
    return found


def _release(job: Job) -> Optional[Tuple[int, int, int]]:
    version = job.version
    return (version[0], version[1], version[2]) if version is not None and len(version) == 3 else None


def _effect(job: Job, name: str, have: str, fix: str = "", severity: str = "minor") -> Finding:
    text = "%s=%s: %s" % (name, names(job.values(name)), have)
    return EFFECT.judge("%s %s" % (job.name, name), "drift", None, text, "", fix or None, severity=severity)


def _effects(job: Job) -> List[Finding]:
    found = []
    plugins = {plugin for process in job.processes for plugin in process.plugins}
    for kind in ("NET", "TUNER", "PROFILER"):
        name = "NCCL_%s_PLUGIN" % kind
        wanted = [value for value in job.values(name) if value.lower() not in ("", "none", "internal")]
        states = {state for of, state, plugin in plugins if of == kind and plugin not in ("IB", SOCKETS)}
        if not wanted or "loaded" in states:
            continue
        if kind == "NET" and "idle" in states:
            fix, have = "`fi_info` in the job's own container shows what libfabric sees", "the plugin found no device"
            found.append(_effect(job, name, have + " that it takes, so it is not used", fix, "major"))
        elif "missing" in states or "failed" in states:
            fix = "put the plugin's directory into LD_LIBRARY_PATH, or take %s out" % name
            have = "no such plugin was loaded" if "missing" in states else "the plugin is there and did not start"
            have += "" if kind == "NET" else "; NCCL's own is used, which is not a failure"
            found.append(_effect(job, name, have, fix, "major" if kind == "NET" else "minor"))
    proof = collnet(job)
    enabled = any(strtoll(value)[0] for value in job.values("NCCL_COLLNET_ENABLE"))
    if enabled and not proof.proven and any(process.rings for process in job.processes):
        fix = "let playbooks/sharp.yml list what the hosts lack (docs/fabric.md#sharp), or take the variable out"
        found.append(_effect(job, "NCCL_COLLNET_ENABLE", proof.missing, fix, "major"))
    if job.networks and SOCKETS not in job.networks:
        for name in ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"):
            if job.values(name):
                found.append(_effect(job, name, "it acts on NET/Socket, and %s is used" % names(job.networks)))
    return found


def _same(job: Job) -> List[Finding]:
    found = []
    for name in ("NCCL_" + short for short in _ALIKE):
        values = job.values(name)
        if len({_meaning(value) for value in values}) > 1:
            each = ("%s on %s" % (value, hosts_of(one.host for one in on)) for value, on in sorted(values.items())[:4])
            subject, have = "%s %s" % (job.name, name), "; ".join(each)
            found.append(SAME.judge(subject, "drift", "one value", have, "set by environment"))
    return found


def _meaning(value: str) -> str:
    number, rest = strtoll(value)
    return value if rest else str(number)
