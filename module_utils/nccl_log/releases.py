# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge the release of NCCL of a job: known defects that it meets, or that have the effect that the log shows."""

from __future__ import annotations

from typing import FrozenSet, List, Optional, Set

from ..core.check import Check
from ..core.finding import Finding
from ..nccl import known_bad
from ..nccl.known_bad import ARM, CRASH, HANG, X86
from . import signals
from .jobs import Job

RELEASE = Check(
    "nccl_log.release",
    why="this release of NCCL has a defect that the job may have met",
    fix="use another release of NCCL",
    severity="minor",
)
"Has the job's release of NCCL a known defect that it meets, or that has the effect that the log shows"
# Ranks from which a job is of large scale. NVIDIA names no number; jobs of 128 ranks have met the defect.
_LARGE = 128
_SEGMENTATION = "signal 11"


def judge(job: Job) -> List[Finding]:
    """Return a finding: as severe as a certain defect that has the effect that the log shows; minor for any other."""
    if job.version is None:
        return []
    machine, effects = _architecture(job), _effects(job)
    met = known_bad.certain_defects(job.version, machine)
    found = met or known_bad.certain_defects(job.version, machine, _possible(job, effects))
    if not found:
        return []
    shown = [defect for defect in met if defect.effect in effects]
    return [
        RELEASE.judge(
            job.name,
            "drift",
            known_bad.describe_good_release(job.version, machine, found),
            "NCCL %s" % known_bad.describe_effects(job.version, found),
            "NCCL version",
            known_bad.describe_fix(job.version, machine, found),
            why=known_bad.describe_causes(found),
            severity=known_bad.worst_severity(shown) if shown else None,
        )
    ]


def _architecture(job: Job) -> Optional[str]:
    """Return it by the printed topology, or by NVLink between hosts, which only systems with Grace have."""
    kinds = {
        kind for process in job.processes if process.topology is not None for kind in process.topology.cpus.values()
    }
    if "ARM" in kinds or any(process.mnnvl for process in job.processes):
        return ARM
    return X86 if any(kind.endswith("x86") for kind in kinds) else None


def _effects(job: Job) -> Set[str]:
    """Return the effects of known_bad that the log shows."""
    found = set()
    if any(report.failure.kind == "watchdog" for report in job.failures):
        found.add(HANG)
    if any(quote.kind == signals.DEATH and _SEGMENTATION in quote.about for quote in job.quotes):
        found.add(CRASH)
    return found


def _possible(job: Job, effects: Set[str]) -> FrozenSet[str]:
    """Return the uses of known_bad.NEEDS with which a defect explains what the log shows."""
    ranks = job.world.ranks if job.world is not None else 0
    needs = set()
    if HANG in effects and ranks >= _LARGE:
        needs.add(known_bad.SCALE)
    if HANG in effects and ranks > known_bad.MNNVL_RANKS and any(process.mnnvl for process in job.processes):
        needs.add(known_bad.MNNVL)
    if CRASH in effects:
        needs |= {known_bad.RAS, known_bad.RAS_QUERY, known_bad.RESTART}
    return frozenset(needs)
