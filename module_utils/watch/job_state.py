# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tell a stalled or slow job from a working one by utilisation and power of its GPUs on one node.

A GPU that waits in a collective shows 100 % utilisation, no memory traffic and a quarter of its power; the one that the
others wait for runs no kernel. Where a rank is late in every step its GPU is used less than the others, at the same
power: all do the same work, and the others wait beside it. A checkpoint or an evaluation looks the same for a while, so
what counts is how long it lasts. Measured on H100 and H200 (docs/watch.md). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

# Percent of utilisation from which on a kernel runs all the time, and up to which hardly one does.
BUSY, STILL = 95, 10
# Percent of memory utilisation up to which a kernel moves no data; share of the power limit below which it computes
# nothing.
NO_TRAFFIC, LOW_POWER = 5, 0.35
# Percent of utilisation that a late rank's GPU has less than the others; how much their power may differ.
GAP, SAME_POWER = 15, 1.25
# Samples in a row without that gap, after which it is over.
MISSES = 3
# Share of the samples of the time that is judged.
MOST = 0.8
# Seconds without a sample after which nobody knows whether a job has worked.
BLIND = 60.0
# How much longer than a stall a job may run no kernel at all: it loads data, compiles, or is somebody's shell.
NO_KERNEL_FACTOR = 3

WORKS, WAITS, NO_KERNEL = "works", "waits", "runs no kernel"
# Kinds of events.
STOPPED, SLOW, ALL_WAIT, NONE_RUNS = "rank stopped", "rank late", "all wait", "no kernel runs"


class Gpu(NamedTuple):
    """A GPU with a process on it. Percent and watts; None: not read.   job: "" where no process is known."""

    pci: str
    utilisation: Optional[float]
    memory: Optional[float]
    watts: Optional[float]
    limit: Optional[float]
    job: str = ""
    rank: Optional[int] = None
    pid: Optional[int] = None


class Late(NamedTuple):
    """The process that the others of its job wait for."""

    pci: str
    rank: Optional[int]
    pid: Optional[int]


class Stall(NamedTuple):
    """A job none of whose GPUs on this node works.

    since: last time that one did, or the job was first seen.   at: of the last sample.   waiting: GPUs that wait.
    late: those that the others wait for; () where that is not to be seen on this node.
    """

    job: str
    kind: str
    since: float
    at: float
    waiting: Tuple[str, ...] = ()
    late: Tuple[Late, ...] = ()


def state_of(gpu: Gpu) -> str:
    """Return the state of a GPU; one that was not read works, since nothing is known against it."""
    values = (gpu.utilisation, gpu.memory, gpu.watts, gpu.limit)
    utilisation, memory, watts, limit = (0.0 if value is None else value for value in values)
    if None in values or limit <= 0 or watts >= LOW_POWER * limit:
        return WORKS
    if utilisation <= STILL:
        return NO_KERNEL
    return WAITS if utilisation >= BUSY and memory <= NO_TRAFFIC else WORKS


class _Sample(NamedTuple):
    """Of a job. states: of its GPUs by PCI address.   used: those with utilisation.   late: used less than others."""

    at: float
    states: Mapping[str, str]
    used: Tuple[str, ...]
    late: Tuple[str, ...]


@dataclass
class _Job:
    """worked: when a GPU last did, or the job was first seen.   samples: of the longest time that is judged.

    late: since when a GPU is used less than the others.   misses: its samples in a row without that.
    stall: as it was reported.
    """

    worked: float
    samples: List[_Sample] = field(default_factory=list)
    late: Dict[str, float] = field(default_factory=dict)
    misses: Dict[str, int] = field(default_factory=dict)
    stall: Optional[Stall] = None


class Watcher:
    """Judge samples as they come. patience: seconds after which a job is stalled, or a rank late."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._jobs: Dict[str, _Job] = {}

    def take(self, at: float, gpus: Sequence[Gpu]) -> Tuple[List[Stall], List[Stall]]:
        """Take the sample of a moment. Return the stalls that are new, or of another kind now, and those that ended."""
        jobs: Dict[str, List[Gpu]] = {}
        for gpu in gpus:
            if gpu.job:
                jobs.setdefault(gpu.job, []).append(gpu)
        begun: List[Stall] = []
        ended: List[Stall] = []
        for name in [name for name in self._jobs if name not in jobs]:
            before = self._jobs.pop(name).stall
            ended += [before._replace(at=at)] if before is not None else []
        for name, of in jobs.items():
            job = self._jobs.setdefault(name, _Job(at))
            before, found = job.stall, self._judge(name, job, of, at)
            if before is not None and found is None:
                ended.append(before._replace(at=at))
                job.stall = None
            elif found is not None and (before is None or self._is_other(before, found)):
                begun.append(found)
                job.stall = found
        return begun, ended

    def _is_other(self, before: Stall, found: Stall) -> bool:
        """Is it another stall than was reported? One that changes all the time is reported once in the patience."""
        changed = (before.kind, before.late) != (found.kind, found.late)
        return changed and found.at - before.at >= self.patience

    def is_any_late(self) -> bool:
        """Is a GPU used less than the others of its job?"""
        return any(job.late for job in self._jobs.values())

    def _judge(self, name: str, job: _Job, gpus: Sequence[Gpu], at: float) -> Optional[Stall]:
        states, used = {gpu.pci: state_of(gpu) for gpu in gpus}, tuple(gpu.pci for gpu in gpus if gpu.utilisation)
        sample = _Sample(at, states, used, late_gpus(gpus))
        if job.stall is None and job.samples and at - job.samples[-1].at > BLIND:
            job.worked, job.late = at, {}
        job.samples = [one for one in job.samples if one.at > at - NO_KERNEL_FACTOR * self.patience] + [sample]
        if WORKS in sample.states.values():
            job.worked = at
        for pci in sample.states:
            job.misses[pci] = 0 if pci in sample.late else job.misses.get(pci, 0) + 1
            if pci in sample.late:
                job.late.setdefault(pci, at)
            elif job.misses[pci] >= MISSES:
                job.late.pop(pci, None)
        recent = [one for one in job.samples if one.at > at - self.patience]
        return self._stalled(name, job, gpus, recent) or self._slow(name, job, gpus, recent)

    def _stalled(self, name: str, job: _Job, gpus: Sequence[Gpu], recent: Sequence[_Sample]) -> Optional[Stall]:
        at = recent[-1].at
        lasted = at - job.worked
        if lasted < self.patience:
            return None
        waiting, still = (
            tuple(gpu.pci for gpu in sorted(gpus) if _mostly([one.states.get(gpu.pci) == state for one in recent]))
            for state in (WAITS, NO_KERNEL)
        )
        if not waiting:
            no_kernel = [WAITS not in one.states.values() for one in job.samples]
            none_runs = lasted >= NO_KERNEL_FACTOR * self.patience and _mostly(no_kernel)
            return Stall(name, NONE_RUNS, job.worked, at) if none_runs else None
        if not still:
            return Stall(name, ALL_WAIT, job.worked, at, waiting)
        # One that is late in every step runs its kernels between.
        stopped = _mostly([not set(still).intersection(one.used) for one in recent])
        late = _named([gpu for gpu in gpus if gpu.pci in still])
        return Stall(name, STOPPED if stopped else SLOW, job.worked, at, waiting, late)

    def _slow(self, name: str, job: _Job, gpus: Sequence[Gpu], recent: Sequence[_Sample]) -> Optional[Stall]:
        at = recent[-1].at
        late = [
            gpu
            for gpu in gpus
            if at - job.late.get(gpu.pci, at) >= self.patience and _mostly([gpu.pci in one.late for one in recent])
        ]
        if not late:
            return None
        waiting = tuple(gpu.pci for gpu in sorted(gpus) if gpu not in late)
        return Stall(name, SLOW, min(job.late[gpu.pci] for gpu in late), at, waiting, _named(late))


def late_gpus(gpus: Sequence[Gpu]) -> Tuple[str, ...]:
    """Return the GPUs that are used less than all others, at the same power; () where there are none.

    One that is not used at all belongs to a rank that is stopped, or writes a checkpoint.
    """
    used = {gpu.pci: gpu.utilisation for gpu in gpus if gpu.utilisation is not None}
    watts = [gpu.watts for gpu in gpus if gpu.watts is not None]
    if len(used) < len(gpus) or len(watts) < len(gpus) or max(watts) > SAME_POWER * min(watts):
        return ()
    late = tuple(sorted(pci for pci, percent in used.items() if percent <= max(used.values()) - GAP))
    others = [percent for pci, percent in used.items() if pci not in late]
    return late if 2 * len(late) <= len(gpus) and min(others) >= BUSY and min(used.values()) > 0 else ()


def _named(gpus: Sequence[Gpu]) -> Tuple[Late, ...]:
    return tuple(Late(gpu.pci, gpu.rank, gpu.pid) for gpu in sorted(gpus))


def _mostly(samples: Sequence[bool]) -> bool:
    return sum(samples) >= MOST * len(samples)
