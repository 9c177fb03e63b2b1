# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tell a stalled or slow job from a working one by utilisation and power of its GPUs on one node.

A GPU that waits in a collective shows 100 % utilisation, no memory traffic and a quarter of its power; the one that the
others wait for runs no kernel. Where a rank is late in every step its GPU is used less than the others, at the same
power: all do the same work, and the others wait beside it. A checkpoint or an evaluation looks the same for a while, so
what counts is how long it lasts. Measured on H100 and H200 (docs/watch.md). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
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


@dataclass(frozen=True)
class Stall:
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


@dataclass
class _Spell:
    """Samples of a job since a moment. counts: of each kind of sample; of each GPU in each state."""

    since: float
    samples: int = 0
    kinds: Dict[str, int] = field(default_factory=dict)
    states: Dict[str, Dict[str, int]] = field(default_factory=dict)


@dataclass
class _Job:
    """idle: since no GPU works.   gap: since some GPUs are used less.   misses: samples in a row without a gap."""

    idle: _Spell
    gap: Optional[_Spell] = None
    misses: int = 0
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
            ended += [replace(before, at=at)] if before is not None else []
        for name, of in jobs.items():
            job = self._jobs.setdefault(name, _Job(_Spell(at)))
            before, job.stall = job.stall, self._judge(name, job, of, at)
            if job.stall is None:
                ended += [replace(before, at=at)] if before is not None else []
            elif before is None or (before.kind, before.late) != (job.stall.kind, job.stall.late):
                begun.append(job.stall)
        return begun, ended

    def _judge(self, name: str, job: _Job, gpus: Sequence[Gpu], at: float) -> Optional[Stall]:
        states = {gpu.pci: state_of(gpu) for gpu in gpus}
        if WORKS in states.values():
            job.idle = _Spell(at)
        else:
            _count(job.idle, WAITS if WAITS in states.values() else NO_KERNEL, states)
        later = late_gpus(gpus)
        job.misses = 0 if later else job.misses + 1
        if job.misses >= MISSES:
            job.gap = None
        elif later or job.gap is not None:
            job.gap = job.gap or _Spell(at)
            _count(job.gap, "gap" if later else "", {gpu.pci: "late" if gpu.pci in later else "" for gpu in gpus})
        return self._stalled(name, job.idle, gpus, at) or self._slow(name, job.gap, gpus, at)

    def _stalled(self, name: str, spell: _Spell, gpus: Sequence[Gpu], at: float) -> Optional[Stall]:
        lasted = at - spell.since
        if lasted < self.patience:
            return None
        waiting, still = (_mostly_in(spell, state) for state in (WAITS, NO_KERNEL))
        if not waiting:
            none_runs = _mostly(spell.kinds, NO_KERNEL, spell.samples) and lasted >= NO_KERNEL_FACTOR * self.patience
            return Stall(name, NONE_RUNS, spell.since, at) if none_runs else None
        if not still:
            return Stall(name, ALL_WAIT, spell.since, at, waiting)
        late = [gpu for gpu in gpus if gpu.pci in still]
        # One that is late in every step runs its kernels between.
        moves = any(gpu.utilisation for gpu in late)
        return Stall(name, SLOW if moves else STOPPED, spell.since, at, waiting, _named(late))

    def _slow(self, name: str, spell: Optional[_Spell], gpus: Sequence[Gpu], at: float) -> Optional[Stall]:
        if spell is None or at - spell.since < self.patience or not _mostly(spell.kinds, "gap", spell.samples):
            return None
        late = _mostly_in(spell, "late")
        waiting = tuple(sorted(gpu.pci for gpu in gpus if gpu.pci not in late))
        return (
            Stall(name, SLOW, spell.since, at, waiting, _named([gpu for gpu in gpus if gpu.pci in late]))
            if late
            else None
        )


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


def _mostly_in(spell: _Spell, state: str) -> Tuple[str, ...]:
    return tuple(sorted(pci for pci, of in spell.states.items() if _mostly(of, state, spell.samples)))


def _count(spell: _Spell, kind: str, states: Mapping[str, str]) -> None:
    spell.samples += 1
    spell.kinds[kind] = spell.kinds.get(kind, 0) + 1
    for pci, state in states.items():
        of = spell.states.setdefault(pci, {})
        of[state] = of.get(state, 0) + 1


def _mostly(counts: Mapping[str, int], name: str, samples: int) -> bool:
    return counts.get(name, 0) >= MOST * samples
