# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A run of nccl-tests that a launcher starts on several hosts, one rank a GPU, each under a rank guard."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Collection, Dict, List, Mapping, Optional, Tuple

from ..core.finding import Finding
from ..core.host import ParseError
from ..nccl import launch, rank_guard
from ..nccl.launch import Launch
from .record import Wanted, short_names
from .transport import HOSTS, Moved

# Hosts in the command that is shown and compared; of more of them the number and a digest.
_SHOWN = 8
# Reason in a guard's output for a program that it ended at the limit.
_LIMIT = "limit"


@dataclass(frozen=True)
class Guarded:
    """Output of the rank guards of a run.

    findings: on how it was launched.   ranks: host -> how many there were.   rails: host -> HCA -> what it moved.
    timed_out: a guard ended its program at the limit.   problem: why the guards' output cannot be parsed, "" if it can.
    rc: the highest exit code of a rank; 0 where none failed, or none is known.
    """

    findings: Tuple[Finding, ...]
    ranks: Mapping[str, int]
    rails: Mapping[str, Mapping[str, Moved]]
    timed_out: bool = False
    problem: str = ""
    rc: int = 0


def options(given: Mapping[str, object], job: Launch) -> Dict[str, object]:
    """The options of the module, as perf_run.wanted takes them, for a run that ``job`` starts. Raises ParseError."""
    if given["launcher"]:
        raise ParseError("launcher and launch are both given; leave one of them out")
    if given["gpus"] != 1:
        raise ParseError("gpus is %d; with launch each process has one" % given["gpus"])
    if given["ranks"] != job.ranks:
        raise ParseError("ranks is %d; launch starts %d on %d hosts" % (given["ranks"], job.ranks, len(job.hosts)))
    if given["hosts"] and short_names(given["hosts"]) != short_names(job.hosts):
        raise ParseError("hosts are not those of launch; leave hosts out")
    if len(short_names(job.hosts)) != len(job.hosts):
        raise ParseError("launch.hosts: two of them have the same short name")
    hosts = ",".join(job.addresses[:_SHOWN])
    if len(job.hosts) > _SHOWN:
        digest = hashlib.sha256("\n".join((*job.hosts, *job.addresses)).encode()).hexdigest()
        hosts += ",...(%d hosts, %.8s)" % (len(job.hosts), digest)
    words = {
        "mpirun": ["mpirun", "-H", hosts, "--map-by", "ppr:%d:node" % job.per_node],
        "srun": ["srun", "--nodelist=" + hosts, "--ntasks-per-node=%d" % job.per_node],
    }
    return {**given, "hosts": list(job.hosts), "launcher": [*words[job.kind], *job.options]}


def read(text: str, job: Launch, wanted: Wanted, asked: Collection[str]) -> Tuple[Guarded, str]:
    """Return the guards' results in the output of a run, and that output without their lines.

    asked: names of NCCL's variables that the ranks should have.
    """
    problem = ""
    views: Tuple[rank_guard.RankView, ...] = ()
    try:
        views, text = rank_guard.parse(text)
    except ParseError as error:
        problem = "the output of the rank guards cannot be parsed: %s" % error
        text = "\n".join(line for line in text.split("\n") if rank_guard.MARK not in line)
    plan = launch.judge(views, job, wanted.subject, asked)
    ranks: Dict[str, int] = {}
    for view in views:
        ranks[view.host] = ranks.get(view.host, 0) + 1
    rails = {
        host: {device: Moved(one.sent, one.received) for device, one in devices.items()}
        for host, devices in launch.moved(views).items()
    }
    timed_out = any(view.ending is not None and _LIMIT in view.ending.why for view in views)
    rc = max((view.ending.rc or 0 for view in views if view.ending is not None), default=0)
    return Guarded(plan.findings, dict(list(ranks.items())[:HOSTS]), rails, timed_out, problem, rc), text


def command(
    job: Launch, launcher: launch.Launcher, program: Tuple[str, ...], names: Collection[str], limit: float, root: str
) -> List[str]:
    """names: of the variables that every rank gets.   limit: seconds of each rank.   root: of the hosts' hardware."""
    return [*launch.words(job, launcher, sorted(names), limit, root or "/"), *program]


def refusal(launcher: launch.Launcher, rc: Optional[int], said: str) -> str:
    return "not started: %s" % launch.refusal(launcher, rc, said)
