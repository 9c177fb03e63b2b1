# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVLink between hosts (NCCL's MNNVL): whether ranks use it, and what a log says of why they do not.

NCCL tells each GPU's domain (``MNNVL busId``) and, of each rank, whether it is on (``MNNVL 1`` at the end of the line
with nNodes). Where it is on, a clique is one node to NCCL, and connections within it are ``via P2P/MNNVL``. One rank
without a domain switches it off for all, silently; IMEX that does not work ends the job. Sources: NCCL 2.21 to 2.30.
"""

from __future__ import annotations

from collections import Counter
from typing import Dict, List, Sequence, Set, Tuple

from ..core.check import Check
from ..core.finding import Finding, printable
from ..nccl.grammar import strtoll
from ..nccl.perf_transport import HOSTS, Nvlink
from .events import COMPLETED, Fabric
from .job import Process
from .jobs import Job, names

_ENABLE = "NCCL_MNNVL_ENABLE"
# Variables that make a clique of another number, or another domain.
_RENAME = ("NCCL_MNNVL_CLIQUE_ID", "NCCL_MNNVL_UUID")

MNNVL = Check(
    "nccl_log.mnnvl",
    severity="major",
    why="NVLinks between trays have several times the bandwidth of the NICs, and the job waits for the NICs",
    fix="run site.yml for these nodes with --tags node_health: imex.* and node_health.fabric_state show why a GPU is"
    " not in its domain; in containers /dev/nvidia-caps-imex-channels has to be there; then run the job again",
)
"Do GPUs of one NVLink domain on several hosts reach each other by NVLink, and not by the network (`busbar diagnose`)"


def judge(job: Job) -> List[Finding]:
    """Of a job with two hosts or more of one domain; of any other there is nothing to say."""
    together = _together(job)
    if not together:
        return []
    of_domain = [process for process in job.processes if _short(process.host) in together]
    want = "NVLink between %s, which are of one NVLink domain" % names(together)
    source = "MNNVL in the line with nNodes"
    said = {process.mnnvl for process in of_domain}
    if said == {True}:
        return [MNNVL.judge(job.name, "ok", want, "NVLink", source)]
    if False not in said or job.number(_ENABLE) == 0:
        # Nobody says, or whoever started the job has it off: see ``told``.
        return []
    reasons, variables = causes(job)
    have = "NVLink between hosts is off; %s" % _because(reasons)
    fix = "take %s out of the job and out of /etc/nccl.conf, then run it again" % names(variables)
    return [MNNVL.judge(job.name, "drift", want, have, source, fix if variables else None)]


def told(job: Job) -> List[str]:
    """For people who read a log: whether NVLink between hosts is on."""
    together = _together(job)
    on = [process for process in job.processes if process.mnnvl]
    if on:
        hosts = {process.host for process in on}
        return ["NVLink between hosts (MNNVL) is on, on %s" % names(hosts)]
    if together and job.number(_ENABLE) == 0:
        return ["NVLink between hosts (MNNVL) is switched off by %s=0, though %s are of one NVLink domain"
                % (_ENABLE, names(together))]  # fmt: skip
    return []


def read(job: Job) -> Nvlink:
    """What the log proves of a run that is to go over NVLink."""
    ranks: Dict[int, Process] = dict(job.world.began) if job.world is not None else {}
    said = {process.mnnvl for process in ranks.values()}
    on = None if not said or None in said else said == {True}
    joined: Set[str] = set()
    for process in job.processes:
        for pair in process.bridged:
            hosts = {_short(ranks[rank].host) for rank in pair if rank in ranks}
            if len(hosts) > 1:
                joined |= hosts
        if process.nvls_group and on and job.nodes == 1:
            # Its group is of all that NCCL counts as one node.
            joined.add(_short(process.host))
    reasons, variables = ([], []) if on and job.nodes == 1 else causes(job)
    return Nvlink(on, tuple(sorted(joined))[:HOSTS], tuple(reasons), tuple(variables))


def causes(job: Job) -> Tuple[List[str], List[str]]:
    """Why NVLink between hosts is off, or joins only some of them, as lines prove it; and variables that do it."""
    reasons: List[str] = []
    variables = [name for name, off in _OFF if any(off(value) for value in job.set_to(name))]
    if variables:
        reasons.append("%s" % names("%s=%s" % (name, names(job.set_to(name), 2)) for name in variables))
    domains: Dict[Fabric, Set[str]] = {}
    silent: Set[str] = set()
    for process in job.processes:
        for fabric in process.fabrics:
            domains.setdefault(fabric, set()).add(_short(process.host))
        if not process.fabrics and process.networks:
            silent.add(_short(process.host))
    if silent:
        reasons.append("GPUs of %s are in no NVLink domain (no UUID of one)" % names(silent))
    for fabric, hosts in sorted(domains.items(), key=lambda one: sorted(one[1])):
        if fabric.state != COMPLETED:
            reasons.append(
                "GPUs of %s are not registered with the fabric (state %d, not %d)"
                % (names(hosts), fabric.state, COMPLETED)
            )
    whole = {fabric: hosts for fabric, hosts in domains.items() if fabric.state == COMPLETED}
    if len(whole) > 1:
        most = Counter({fabric: len(hosts) for fabric, hosts in whole.items()}).most_common(1)[0][0]
        others = ["%s of %s" % (_domain(fabric, most), names(hosts)) for fabric, hosts in sorted(
            whole.items(), key=lambda one: sorted(one[1])) if fabric != most]  # fmt: skip
        reasons.append("%s, not the %s of %s" % ("; ".join(others[:4]), _domain(most, None), names(whole[most])))
        variables += [name for name in _RENAME if job.set_to(name)]
        reasons += ["%s=%s" % (name, names(job.set_to(name), 2)) for name in _RENAME if job.set_to(name)]
    return [printable(one)[:300] for one in reasons], variables


def _because(reasons: Sequence[str]) -> str:
    if reasons:
        return "cause: %s" % "; ".join(reasons)
    return "the log does not show why: usually CUDA has no fabric handles in this container or with this driver"


def _domain(fabric: Fabric, other: object) -> str:
    if isinstance(other, Fabric) and other.uuid == fabric.uuid:
        return "clique %s" % fabric.clique
    return "clique %s of domain %s" % (fabric.clique, fabric.uuid)


def _together(job: Job) -> Set[str]:
    """Hosts of the domain that most of them are of, where there are two at least."""
    domains: Dict[Fabric, Set[str]] = {}
    for process in job.processes:
        for fabric in process.fabrics:
            if fabric.state == COMPLETED:
                domains.setdefault(fabric, set()).add(_short(process.host))
    most = max(domains.values(), key=len, default=set())
    return most if len(most) > 1 else set()


def _short(host: str) -> str:
    return printable(host).partition(".")[0].lower()[:255] or "a host that is not named"


def _zero(value: str) -> bool:
    return strtoll(value)[0] == 0


# Variables that switch it off, and by which values. NCCL logs NCCL_P2P_DISABLE=1 as a level, too.
_OFF = (
    (_ENABLE, _zero),
    ("NCCL_P2P_DISABLE", lambda value: strtoll(value)[0] == 1),
    ("NCCL_P2P_LEVEL", lambda value: value in ("LOC", "0")),
    ("NCCL_CUMEM_ENABLE", _zero),
)
