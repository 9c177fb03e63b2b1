# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What NCCL's own log of a run of nccl-tests proves of that run's transport, folded per host."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, Iterable, List, Set, Tuple

from ..core.finding import printable
from ..nccl.perf_run import SHARP, Wanted, short_names
from ..nccl.perf_transport import DEVICES, HOSTS, NVLINK, HostTransport, Network, Nvlink
from . import collnet, jobs, judge, mnnvl
from .job import Log
from .jobs import Job
from .transport import Transport, transport

# Sentences of one run, and characters of one.
_SENTENCES, _LONGEST = 8, 600
# Findings on the log that a verdict may quote, worst first.
_QUOTED = 6


def read(log: Log, wanted: Wanted) -> Network:
    """What NCCL's log of a run says; ``missing`` says what it does not."""
    found = jobs.split(log)
    # Programs that ran alone, and a rank of somebody else's job, are their own jobs.
    job = max(found, key=lambda one: (one.world.ranks if one.world is not None else 0, len(one.processes)))
    if job.world is not None and len(job.world.began) == job.world.ranks == wanted.ranks:
        # All ranks are there: what has none is a line that the launcher has torn, and no process.
        began = {id(one) for one in job.world.began.values()}
        job = replace(job, processes=tuple(one for one in job.processes if id(one) in began))
    proof = transport(job)
    missing: List[str] = []
    if not log.processes:
        missing.append(
            "the output has no line of NCCL's log (NCCL_DEBUG=INFO did not reach the ranks, or NCCL_DEBUG_FILE in"
            " /etc/nccl.conf sends it elsewhere)"
        )
    else:
        missing += proof.missing
    if len(found) > 1:
        missing.append("NCCL's log is of %d jobs, not of one" % len(found))
    if proof.expected is not None and proof.expected != wanted.ranks:
        missing.append("NCCL's job has %d ranks, not %d" % (proof.expected, wanted.ranks))
    names = short_names(wanted.hosts)
    hosts = _hosts(job, proof)
    nvlink = mnnvl.read(job) if wanted.way == "nvlink" else None
    if nvlink is not None and log.processes:
        missing += _no_nvlink(nvlink, proof, set(hosts))
    elif log.processes and proof.nodes is not None and proof.nodes != len(names):
        missing.append("NCCL counts %d nodes, not %d" % (proof.nodes, len(names)))
    if log.processes and sorted(hosts) != names:
        missing.append(_differ(set(names), set(hosts)))
    if log.beyond:
        missing.append("NCCL's log was not read to its end: %s" % ", ".join(sorted(log.beyond)))
    if wanted.algorithm == SHARP and not collnet.proof(job).proven:
        missing.append(collnet.proof(job).missing)
    wrong = tuple(one for one in judge.judge(log) if not one.ok)[:_QUOTED]
    by_nvlink = nvlink is not None and nvlink.on and proof.nodes == 1 and not any(one.devices for one in hosts.values())
    return Network(
        # NCCL names a network in any case.
        networks=(NVLINK,) if by_nvlink else proof.networks,
        nodes=proof.nodes,
        expected=proof.expected,
        missing=tuple(dict.fromkeys(printable(one)[:_LONGEST] for one in missing))[:_SENTENCES],
        gdr=not any(one.without_gdr for one in hosts.values()) if any(one.devices for one in hosts.values()) else None,
        hosts=hosts,
        versions=job.versions,
        quoted=wrong,
        nvlink=nvlink,
    )


def _no_nvlink(said: Nvlink, proof: Transport, hosts: Set[str]) -> List[str]:
    """What the log does not tell of NVLink between the hosts of a run."""
    if said.on is None:
        return ["not every rank reports whether it uses NVLink between hosts (MNNVL in the line with nNodes)"]
    alone = hosts - set(said.joined)
    if said.on and proof.nodes == 1 and alone and not any(one.paths for one in proof.ranks):
        return ["no connection of %s to another host is shown (via P2P/MNNVL, NVLS comm)" % jobs.names(alone)]
    return []


def _hosts(job: Job, proof: Transport) -> Dict[str, HostTransport]:
    ranks: Dict[str, int] = {}
    found: Dict[str, Set[str]] = {}
    used: Dict[str, Set[str]] = {}
    without: Dict[str, Set[str]] = {}
    for process in job.processes:
        found.setdefault(_short(process.host), set()).update(
            part for device in process.devices.values() for part in device.name.split("+")
        )
    for process in job.world.began.values() if job.world is not None else ():
        ranks[_short(process.host)] = ranks.get(_short(process.host), 0) + 1
    for one in proof.ranks:
        for path in one.paths:
            parts = path.device.split("+")
            used.setdefault(_short(one.host), set()).update(parts)
            if path.gdr is False:
                without.setdefault(_short(one.host), set()).update(parts)
    return {
        host: HostTransport(ranks.get(host, 0), *(_names(of.get(host, ())) for of in (used, without, found)))
        for host in sorted(found)[:HOSTS]
    }


def _names(values: Iterable[str]) -> Tuple[str, ...]:
    return tuple(sorted(printable(value)[:64] for value in values))[:DEVICES]


def _short(host: str) -> str:
    return printable(host).partition(".")[0].lower()[:255] or "a host that is not named"


def _differ(wanted: Set[str], there: Set[str]) -> str:
    said = []
    if wanted - there:
        said.append("%s did not take part" % jobs.names(wanted - there))
    if there - wanted:
        said.append("%s took part without being requested" % jobs.names(there - wanted))
    return "in NCCL's log %s" % ", and ".join(said)
