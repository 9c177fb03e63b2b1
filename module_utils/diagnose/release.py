# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge the release of NCCL of a job: known defects that it meets, or that have the effect that the log shows."""

from __future__ import annotations

from typing import FrozenSet, List, Optional, Sequence, Set

from ..core.finding import Finding
from ..machine.virtualization import ARM, X86
from ..nccl_conf import known_bad
from ..nccl_conf.known_bad import CRASH, HANG
from .checks import RELEASE
from .event import Group
from .jobs import Job

# Ranks from which a job is of large scale. NVIDIA names no number; jobs of 128 ranks have met the defect.
_LARGE = 128
_SEGMENTATION = "signal 11"
# Architectures of the topology's CPUs (NCCL_TOPO_CPU_ARCH_*).
_ARCHITECTURES = {"1": X86, "3": ARM}


def judge(job: Job, groups: Sequence[Group]) -> List[Finding]:
    """Return a finding: as severe as a certain defect that has the effect that the log shows; minor for any other."""
    version = job.version
    if version is None or len(version) != 3:
        return []
    number = (version[0], version[1], version[2])
    machine, effects = _architecture(job), _effects(groups)
    met = known_bad.certain_defects(number, machine)
    found = met or known_bad.certain_defects(number, machine, _possible(job, effects))
    if not found:
        return []
    shown = [defect for defect in met if defect.effect in effects]
    return [
        RELEASE.judge(
            job.name,
            "drift",
            known_bad.describe_good_release(number, machine, found),
            "NCCL %s" % known_bad.describe_effects(number, found),
            "NCCL version",
            known_bad.describe_fix(number, machine, found),
            why=known_bad.describe_causes(found),
            severity=known_bad.worst_severity(shown) if shown else None,
        )
    ]


def _architecture(job: Job) -> Optional[str]:
    """Return it by the printed topology, or by NVLink between hosts, which only systems with Grace have."""
    if any(process.mnnvl for process in job.processes):
        return ARM
    found = {_ARCHITECTURES.get(process.cpu) for process in job.processes} - {None}
    return found.pop() if len(found) == 1 else None


def _effects(groups: Sequence[Group]) -> Set[str]:
    """Return the effects of known_bad that the log shows."""
    found = set()
    if any(group.event.id == "watchdog" for group in groups):
        found.add(HANG)
    if any(group.event.id == "exit" and group.code == _SEGMENTATION for group in groups):
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
