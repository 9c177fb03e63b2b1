# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge the variables of a job (values, whether they took effect, whether all ranks have the same) and its release."""

from __future__ import annotations

from dataclasses import replace
from typing import List, Optional, Sequence, Set, Tuple

from ..core.finding import Finding
from ..machine.virtualization import ARM, X86
from ..nccl_conf import known_bad, net_plugins
from ..nccl_conf.grammar import strtoll
from ..nccl_conf.known_bad import CRASH, HANG
from ..nccl_conf.lint import lint_variable
from ..nccl_conf.lint_values import Use
from .checks import EFFECT, RELEASE, SAME
from .events import Group
from .jobs import Job
from .names import hosts_of, names
from .network import fell_back
from .state import SOCKETS
from .transport import collnet

# Variables (NCCL_...) of which a difference between ranks is a fault; others are a node's own.
_ALIKE = (
    "ALGO PROTO BUFFSIZE NTHREADS MIN_NCHANNELS MAX_NCHANNELS MIN_CTAS MAX_CTAS NET IB_DISABLE COLLNET_ENABLE "
    "NVLS_ENABLE CROSS_NIC PXN_DISABLE IB_TC IB_SL IB_SPLIT_DATA_ON_QPS IB_QPS_PER_CONNECTION P2P_NET_CHUNKSIZE "
    "LL_BUFFSIZE LL128_BUFFSIZE NET_GDR_LEVEL P2P_LEVEL P2P_DISABLE SHM_DISABLE"
)
# Variables of which ``network`` and ``nvlink`` say what came of them.
_JUDGED = ("NCCL_IB_DISABLE", "NCCL_NET", "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE")
# Ranks from which a job is of large scale. NVIDIA names no number; jobs of 128 ranks have met the defect.
_LARGE = 128
_FELL_BACK = (
    "NCCL_DEBUG_SUBSYS=INIT,NET shows why; if it is intended, NCCL_NET=<its network> ends a job rather than fall back;"
    " if not, take %s out: images of NVIDIA set it, too"
)
# Architectures of the topology's CPUs (NCCL_TOPO_CPU_ARCH_*).
_ARCHITECTURES = {"1": X86, "3": ARM}


def judge(job: Job, groups: Sequence[Group]) -> List[Finding]:
    """groups: events of the log."""
    return [*_release(job, groups), *_values(job), *_effects(job), *_same(job)]


def extra_hcas(job: Job) -> List[str]:
    """Return HCAs that NCCL takes though NCCL_IB_HCA does not name them in full: it matches beginnings of names."""
    found = []
    for value in job.values("NCCL_IB_HCA"):
        named = {part.partition(":")[0] for part in value.split(",") if value[:1] not in ("^", "=")} - {""}
        seen = {part for one in job.processes for part in one.hcas}
        found += sorted(name for name in seen - named if name.startswith(tuple(named)))
    return found


def _number(job: Job) -> Optional[Tuple[int, int, int]]:
    version = job.version
    return (version[0], version[1], version[2]) if version is not None and len(version) == 3 else None


def _values(job: Job) -> List[Finding]:
    """Judge values by the rules of `busbar lint`."""
    found = []
    one_gpu = bool(job.communicators) and max(one.local_ranks for one in job.communicators) == 1
    one_gpu = one_gpu or (job.world is not None and job.nodes == job.world.ranks)
    ignored = {*_JUDGED, *(["NCCL_NVLS_ENABLE"] if one_gpu else [])}
    variables = {name for process in job.processes for name in process.variables if name.startswith("NCCL_")}
    plugin = next((one for one in map(net_plugins.of_network, sorted(job.networks)) if one is not None), None)
    devices = {part for process in job.processes for name in process.devices.values() for part in name.split("+")}
    for name in sorted(variables - ignored):
        for value in sorted(job.values(name))[:3]:
            faults = lint_variable(name, value, job.name, Use(version=_number(job), place="job", plugin=plugin))
            # NCCL prints what it reads, so it knows the name.
            silent = ("unknown_variable", "dead_variable")
            faults = [one for one in faults if not one.check.endswith(silent) and one.severity != "minor"][:1]
            named = {part.partition(":")[0] for part in value.lstrip("=^").split(",")}
            extra, of_hcas = extra_hcas(job), name == "NCCL_IB_HCA"
            for one in faults if not of_hcas or extra or not devices or not devices <= named else ():
                unseen = of_hcas and not any(process.hcas for process in job.processes)
                if of_hcas and extra and one.check.endswith("prefix_match"):
                    have = "%s=%s: NCCL matches beginnings of names and took %s, too" % (name, value, names(extra, 8))
                    one = replace(one, have=have)
                elif one.check.endswith("advice") or unseen:
                    one = replace(one, severity="minor")
                found.append(one)
    return found


def _effects(job: Job) -> List[Finding]:
    """Judge variables that were set without effect."""
    rows: List[Tuple[str, str, str, str]] = []
    plugins = {plugin for process in job.processes for plugin in process.plugins}
    for kind in ("NET", "TUNER", "PROFILER"):
        name, severity = "NCCL_%s_PLUGIN" % kind, "major" if kind == "NET" else "minor"
        wanted = [value for value in job.values(name) if value.lower() not in ("", "none", "internal")]
        own = fell_back(job) if kind == "NET" and job.nodes != 1 else ""
        states = {state for of, state, plugin in plugins if of == kind and plugin not in ("IB", SOCKETS)}
        if wanted and "loaded" not in states and kind == "NET" and "idle" in states:
            fix = "`fi_info` in the job's own container shows what libfabric sees"
            rows.append((name, "the plugin found no device that it takes, so it is not used", fix, severity))
        elif wanted and states & {"missing", "failed"} and ("loaded" not in states or (own and "failed" in states)):
            missing = "missing" in states and "loaded" not in states
            have = "no such plugin was loaded" if missing else "the plugin is there and did not start"
            have += "; NCCL fell back to %s" % own if own else ""
            have += "" if kind == "NET" else "; NCCL's own is used, which is not a failure"
            fix = "put the plugin's directory into LD_LIBRARY_PATH, or take %s out"
            fix = _FELL_BACK if own and not missing else fix
            rows.append((name, have, fix % name, severity))
    proof = collnet(job)
    enabled = any(strtoll(value)[0] for value in job.values("NCCL_COLLNET_ENABLE"))
    if enabled and not proof.proven and any(process.rings for process in job.processes):
        fix = "let playbooks/sharp.yml list what the hosts lack (docs/fabric.md#sharp), or take the variable out"
        rows.append(("NCCL_COLLNET_ENABLE", proof.missing, fix, "major"))
    for name in ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"):
        if job.values(name) and job.networks and SOCKETS not in job.networks:
            rows.append((name, "it acts on NET/Socket, and %s is used" % names(job.networks), "", "minor"))
    found = []
    for name, have, fix, severity in rows:
        text = "%s=%s: %s" % (name, names(job.values(name)), have)
        found.append(EFFECT.judge("%s %s" % (job.name, name), "drift", None, text, "", fix or None, severity=severity))
    return found


def _same(job: Job) -> List[Finding]:
    found = []
    for name in ("NCCL_" + short for short in _ALIKE.split()):
        values = job.values(name)
        # 1 and 0x1 are one number.
        if len({value if strtoll(value)[1] else str(strtoll(value)[0]) for value in values}) > 1:
            each = ("%s on %s" % (value, hosts_of(one.host for one in on)) for value, on in sorted(values.items())[:4])
            subject, have = "%s %s" % (job.name, name), "; ".join(each)
            found.append(SAME.judge(subject, "drift", "one value", have, "set by environment"))
    return found


def _release(job: Job, groups: Sequence[Group]) -> List[Finding]:
    """Judge known defects: as severe as a certain one that has the effect that the log shows; minor for any other."""
    number = _number(job)
    if number is None:
        return []
    # Only systems with Grace have NVLink between hosts.
    nvlink = any(process.mnnvl for process in job.processes)
    machines = {ARM} if nvlink else {_ARCHITECTURES.get(process.cpu) for process in job.processes} - {None}
    machine = machines.pop() if len(machines) == 1 else None
    effects = {HANG for group in groups if group.event.id == "watchdog"}
    effects |= {CRASH for group in groups if group.event.id == "exit" and group.code == "signal 11"}
    # Uses of NCCL with which a defect explains what the log shows.
    ranks = job.world.ranks if job.world is not None else 0
    needs: Set[str] = {known_bad.RAS, known_bad.RAS_QUERY, known_bad.RESTART} if CRASH in effects else set()
    needs |= {known_bad.SCALE} if HANG in effects and ranks >= _LARGE else set()
    needs |= {known_bad.MNNVL} if HANG in effects and ranks > known_bad.MNNVL_RANKS and nvlink else set()
    met = known_bad.certain_defects(number, machine)
    found = met or known_bad.certain_defects(number, machine, frozenset(needs))
    if not found:
        return []
    shown = [defect for defect in met if defect.effect in effects]
    severity = known_bad.worst_severity(shown) if shown else None
    judged = known_bad.judge(RELEASE, job.name, number, machine, found, "NCCL version", severity)
    return [replace(judged, have="NCCL %s" % judged.have)]
