# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge NVLink between hosts (MNNVL): whether GPUs of one NVLink domain reach each other by it, and if not, why."""

from __future__ import annotations

from collections import Counter
from typing import Dict, List, Set, Tuple

from ..core.finding import Finding, printable
from ..nccl_conf.grammar import strtoll
from .checks import MNNVL, NVLINK
from .jobs import Job
from .names import UNNAMED, hosts_of, names
from .state import COMPLETED

_ENABLE = "NCCL_MNNVL_ENABLE"
# Variables that make a clique of another number, or another domain; and those that switch it off, by value.
_RENAME = ("NCCL_MNNVL_CLIQUE_ID", "NCCL_MNNVL_UUID")
_OFF: Tuple[Tuple[str, Tuple[str, ...]], ...] = (
    (_ENABLE, ("0",)), ("NCCL_P2P_DISABLE", ("1",)), ("NCCL_P2P_LEVEL", ("LOC", "0")), ("NCCL_CUMEM_ENABLE", ("0",)),
)  # fmt: skip


def judge(job: Job) -> List[Finding]:
    """Judge the NVLink fabric of GPUs, and NVLink between hosts that are of one domain."""
    return [*_health(job), *_between(job)]


def _health(job: Job) -> List[Finding]:
    found: Dict[str, Set[str]] = {}
    for process in job.processes:
        for what in process.fabric_faults:
            found.setdefault(what, set()).add(process.host)
    each = ["%s on %s" % (what, hosts_of(hosts)) for what, hosts in sorted(found.items())]
    have, source = "GPUs report of their NVLink fabric: %s" % "; ".join(each), "MNNVL busId ... healthMask"
    fix = "`nvidia-smi -q | grep -A 12 Fabric` and `nvidia-smi nvlink -e` there; the log of Fabric Manager or of NMX-C"
    return [NVLINK.judge("%s fabric" % job.name, "drift", "a healthy fabric", have, source, fix)] if each else []


def _between(job: Job) -> List[Finding]:
    together = _together(job)
    if not together:
        return []
    shown = {process.mnnvl for process in job.processes if _short(process.host) in together}
    want, source = "NVLink between %s, of one NVLink domain" % names(together), "MNNVL in the line with nNodes"
    if shown == {True}:
        return [MNNVL.judge(job.name, "ok", want, "NVLink", source)]
    if False not in shown or "0" in job.values(_ENABLE):
        return []
    reasons, variables = causes(job)
    unknown = "the log does not show why: usually CUDA has no fabric handles in this container or driver"
    have = "NVLink between hosts is off; %s" % ("cause: %s" % "; ".join(reasons) if reasons else unknown)
    fix = "take %s out of the job and out of /etc/nccl.conf, then run it again" % names(variables)
    return [MNNVL.judge(job.name, "drift", want, have, source, fix if variables else None)]


def causes(job: Job) -> Tuple[List[str], List[str]]:
    """Return why NVLink between hosts is off, or joins only some, as lines prove it; and variables that cause it."""
    variables = [
        name for name, off in _OFF
        if any(value in off or (value[:1].isdigit() and str(strtoll(value)[0]) in off) for value in job.values(name))
    ]  # fmt: skip
    reasons = [names("%s=%s" % (name, names(job.values(name), 2)) for name in variables)] if variables else []
    domains = _domains(job)
    silent = {_short(process.host) for process in job.processes if not process.fabrics and process.networks}
    if silent:
        reasons.append("GPUs of %s are in no NVLink domain (no UUID of one)" % names(silent))
    for (_uuid, _clique, state), hosts in sorted(domains.items(), key=lambda one: sorted(one[1])):
        if state != COMPLETED:
            text = "GPUs of %s are not registered with the fabric (state %d, not %d)"
            reasons.append(text % (names(hosts), state, COMPLETED))
    whole = {domain: hosts for domain, hosts in domains.items() if domain[2] == COMPLETED}
    if len(whole) > 1:
        most = Counter({domain: len(hosts) for domain, hosts in whole.items()}).most_common(1)[0][0]
        for domain, hosts in sorted(whole.items(), key=lambda one: sorted(one[1]))[:4]:
            if domain != most:
                text = "clique %s of %s, not the clique %s of domain %s of %s"
                reasons.append(text % (domain[1], names(hosts), most[1], most[0], names(whole[most])))
        renamed = [name for name in _RENAME if job.values(name)]
        variables += renamed
        reasons += ["%s=%s" % (name, names(job.values(name), 2)) for name in renamed]
    return [printable(reason)[:300] for reason in reasons], variables


def _domains(job: Job) -> Dict[Tuple[str, str, int], Set[str]]:
    """Return the hosts of each UUID, clique and state."""
    found: Dict[Tuple[str, str, int], Set[str]] = {}
    for process in job.processes:
        for uuid, clique, state, _health in process.fabrics:
            found.setdefault((uuid, clique, state), set()).add(_short(process.host))
    return found


def _together(job: Job) -> Set[str]:
    """Return hosts of the domain that most of them are of, where there are two at least."""
    whole = [hosts for (_uuid, _clique, state), hosts in _domains(job).items() if state == COMPLETED]
    most = max(whole, key=len, default=set())
    return most if len(most) > 1 else set()


def _short(host: str) -> str:
    return printable(host).partition(".")[0].lower()[:255] or UNNAMED
