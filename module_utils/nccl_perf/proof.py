# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Fold what NCCL's own log of a run of nccl-tests proves of that run's transport, per host."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, Iterable, List, Mapping, Optional, Set, Tuple

from ..core.finding import printable
from ..diagnose import nvlink as links
from ..diagnose import transport
from ..diagnose.jobs import Job, jobs
from ..diagnose.names import UNNAMED
from ..diagnose.names import names as listed
from ..diagnose.reader import StateLog
from ..diagnose.state import Process
from .record import SHARP, Wanted, short_names
from .transport import DEVICES, HOSTS, NVLINK, HostTransport, Network, Nvlink

_SENTENCES, _LONGEST = 8, 600
_QUOTED = 6


def read(log: StateLog, wanted: Wanted) -> Network:
    """Return what NCCL's log of a run proves; ``missing`` lists what it does not."""
    found = jobs(log.state)
    # Programs that ran alone, and a rank of another job, are jobs of their own.
    job = max(found, key=lambda one: (one.world.ranks if one.world is not None else 0, len(one.processes)))
    if job.world is not None and len(job.world.began) == job.world.ranks == wanted.ranks:
        # All ranks are there: what has none is a line that the launcher has torn, not a process.
        began = {id(one) for one in job.world.began.values()}
        job = replace(job, processes=tuple(one for one in job.processes if id(one) in began))
    proof = transport.transport(job)
    hosts = _hosts(job, proof)
    nvlink = _read_nvlink(job) if wanted.way == "nvlink" else None
    missing = ["NCCL's log is of %d jobs, not of one" % len(found)] if len(found) > 1 else []
    if not log.state.processes:
        missing.insert(
            0,
            "the output has no line of NCCL's log (NCCL_DEBUG=INFO did not reach the ranks, or NCCL_DEBUG_FILE in"
            " /etc/nccl.conf sends it elsewhere)",
        )
    else:
        missing = [*proof.missing, *missing, *_unlike(wanted, proof, hosts, nvlink)]
    if log.state.left_out:
        missing.append("NCCL's log was not read to its end: %s" % ", ".join(sorted(log.state.left_out)))
    reduction = transport.collnet(job)
    if wanted.algorithm == SHARP and not reduction.proven:
        missing.append(reduction.missing)
    over = [one for one in hosts.values() if one.devices]
    by_nvlink = nvlink is not None and nvlink.on and proof.nodes == 1 and not over
    return Network(
        # NCCL names a network in any case.
        networks=(NVLINK,) if by_nvlink else proof.networks,
        nodes=proof.nodes,
        expected=proof.expected,
        missing=tuple(dict.fromkeys(printable(one)[:_LONGEST] for one in missing))[:_SENTENCES],
        gdr=not any(one.without_gdr for one in hosts.values()) if over else None,
        hosts=hosts,
        versions=job.versions,
        quoted=tuple(transport.quoted(log, job)[:_QUOTED]),
        nvlink=nvlink,
    )


def _unlike(
    wanted: Wanted, proof: transport.Transport, hosts: Mapping[str, HostTransport], nvlink: Optional[Nvlink]
) -> List[str]:
    """Return how the job that NCCL logged is not the wanted one."""
    found, names = [], short_names(wanted.hosts)
    if proof.expected is not None and proof.expected != wanted.ranks:
        found.append("NCCL's job has %d ranks, not %d" % (proof.expected, wanted.ranks))
    if nvlink is not None:
        found += _no_nvlink(nvlink, proof, set(hosts))
    elif proof.nodes is not None and proof.nodes != len(names):
        found.append("NCCL counts %d nodes, not %d" % (proof.nodes, len(names)))
    if sorted(hosts) != names:
        found.append(_differ(set(names), set(hosts)))
    return found


def _read_nvlink(job: Job) -> Nvlink:
    """Return what the log proves of a run that is to go over NVLink."""
    ranks: Dict[int, Process] = dict(job.world.began) if job.world is not None else {}
    shown = {process.mnnvl for process in ranks.values()}
    on = None if not shown or None in shown else shown == {True}
    joined: Set[str] = set()
    for process in job.processes:
        for pair in process.bridged:
            hosts = {_short(ranks[rank].host) for rank in pair if rank in ranks}
            joined |= hosts if len(hosts) > 1 else set()
        if process.nvls_group and on and job.nodes == 1:
            # The multicast group is of all that NCCL counts as one node.
            joined.add(_short(process.host))
    reasons, variables = ([], []) if on and job.nodes == 1 else links.causes(job)
    return Nvlink(on, tuple(sorted(joined))[:HOSTS], tuple(reasons), tuple(variables))


def _no_nvlink(shown: Nvlink, proof: transport.Transport, hosts: Set[str]) -> List[str]:
    """Return what the log does not show of NVLink between the hosts of a run."""
    if shown.on is None:
        return ["not every rank reports whether it uses NVLink between hosts (MNNVL in the line with nNodes)"]
    alone = hosts - set(shown.joined)
    if shown.on and proof.nodes == 1 and alone and not any(one.paths for one in proof.ranks):
        return ["no connection of %s to another host is shown (via P2P/MNNVL, NVLS comm)" % listed(alone)]
    return []


def _hosts(job: Job, proof: transport.Transport) -> Dict[str, HostTransport]:
    ranks: Dict[str, int] = {}
    found: Dict[str, Set[str]] = {}
    used: Dict[str, Set[str]] = {}
    without: Dict[str, Set[str]] = {}
    for process in job.processes:
        parts = (part for name in process.devices.values() for part in name.split("+"))
        found.setdefault(_short(process.host), set()).update(parts)
    for process in job.world.began.values() if job.world is not None else ():
        ranks[_short(process.host)] = ranks.get(_short(process.host), 0) + 1
    for one in proof.ranks:
        for path in one.paths:
            of_path = path.device.split("+")
            used.setdefault(_short(one.host), set()).update(of_path)
            if path.gdr is False:
                without.setdefault(_short(one.host), set()).update(of_path)
    return {
        host: HostTransport(ranks.get(host, 0), *(_names(of.get(host, ())) for of in (used, without, found)))
        for host in sorted(found)[:HOSTS]
    }


def _names(values: Iterable[str]) -> Tuple[str, ...]:
    return tuple(sorted(printable(value)[:64] for value in values))[:DEVICES]


def _short(host: str) -> str:
    return printable(host).partition(".")[0].lower()[:255] or UNNAMED


def _differ(wanted: Set[str], there: Set[str]) -> str:
    parts = []
    if wanted - there:
        parts.append("%s did not take part" % listed(wanted - there))
    if there - wanted:
        parts.append("%s took part without being requested" % listed(there - wanted))
    return "in NCCL's log %s" % ", and ".join(parts)
