# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Releases of NCCL that are known to hang, crash or compute wrong values, each with its source.

A row names the first bad release. Where no source names it, that is the first release with the code or the feature. A
row without a first good release ends with the last release that it is reported of.
"""

from __future__ import annotations

from typing import FrozenSet, List, NamedTuple, Optional, Sequence, Tuple

from ..core.finding import SEVERITIES
from ..machine.virtualization import ARM, X86
from .version import Version, format_version

# Effects, and what a finding says of them.
HANG, CRASH, WRONG = "hangs", "crashes", "computes wrong values"
# What a row needs beside the release, and what a finding says of it.
SCALE, RESTART, RAS, RAS_QUERY, WINDOWS, ONE_RANK, MNNVL = NEEDS = (
    *("at large scale", "with in-process restart, which aborts communicators and makes new ones"),
    *("with RAS, which is on unless NCCL_RAS_ENABLE=0", "if RAS is queried while communicators are created"),
    *("with symmetric memory (ncclCommWindowRegister)", "with an average over a communicator of one rank"),
    "with alltoall over more than 80 ranks of one NVLink domain",
)
MNNVL_RANKS = 80


class Defect(NamedTuple):
    """first, last: releases, both bad.   good: first good release; None where none is known.

    architecture: of the host; "" for each.   needs: one of NEEDS, "" for nothing.
    avoid: a vendor says to use none of these releases.   severity: where it is certain that the defect is met.
    """

    first: Version
    last: Version
    good: Optional[Version]
    architecture: str
    needs: str
    effect: str
    severity: str
    why: str
    source: str
    avoid: bool = False

    def holds(self, version: Version) -> bool:
        return self.first <= version <= self.last if self.good is None else self.first <= version < self.good


def _fixed(first: Version, good: Version, *more: str, avoid: bool = False) -> Defect:
    return Defect(first, good, good, *more, avoid=avoid)


def _reported(first: Version, last: Version, *more: str) -> Defect:
    return Defect(first, last, None, *more)


_NOTES = "NCCL %s release notes"
DEFECTS: Tuple[Defect, ...] = (
    _fixed(
        *((2, 28, 9), (2, 29, 3), ARM, "", HANG, "critical"),
        "slots for operations of the proxy thread leak until none is left: all ranks stay at 100 %, without an error",
        "NCCL 2.29.3 release notes; NVIDIA/nccl issue 2353",
    ),
    _fixed(
        *((2, 12, 0), (2, 28, 9), ARM, "", HANG, "major"),
        "main thread and proxy thread exchange operations without memory ordering, which Arm processors need",
        "NCCL 2.28.9 release notes; NVIDIA/nccl issue 2353",
    ),
    _fixed(
        *((2, 12, 0), (2, 28, 9), "", SCALE, HANG, "major"),
        "main thread and proxy thread exchange operations in the wrong order",
        _NOTES % "2.28.9",
    ),
    _fixed(
        *((2, 28, 3), (2, 28, 9), "", RESTART, CRASH, "major"),
        "a process that makes new communicators after an abort ends with a segmentation fault",
        "nvidia-resiliency-ext README and release notes (NCCL < 2.28.3 or >= 2.28.9)",
        avoid=True,
    ),
    _fixed(
        *((2, 26, 2), (2, 27, 3), "", RAS_QUERY, CRASH, "major"),
        "a report of RAS reads communicators that are not initialised yet",
        "NCCL 2.27.3 release notes; NVIDIA/nccl issues 1669 and 1718 (2.26.2, 2.26.5)",
    ),
    _reported(
        *((2, 27, 7), (2, 27, 7), "", RAS, CRASH, "major"),
        "RAS uses memory that it has freed when its list of peers changes",
        "NVIDIA/nccl issue 1996 and pull request 2406",
    ),
    _reported(
        *((2, 29, 7), (2, 29, 7), "", RAS_QUERY, CRASH, "major"),
        "a report of RAS has empty states of communicators that are being created",
        "NVIDIA/nccl issue 2346",
    ),
    _fixed(
        *((2, 27, 3), (2, 28, 7), "", WINDOWS, WRONG, "critical"),
        "messages of less than 8 bytes, and groups of several operations, may be corrupted",
        _NOTES % "2.28.7",
    ),
    _fixed(
        *((2, 27, 3), (2, 31, 2), "", WINDOWS, WRONG, "critical"),
        "data is corrupted if several windows are parts of one allocation",
        "NCCL 2.31.2 release notes; NVIDIA/nccl issue 2198",
    ),
    _fixed(
        *((2, 27, 5), (2, 29, 7), "", ONE_RANK, WRONG, "critical"),
        "the last elements of the buffer are not written",
        "NVIDIA/nccl issue 1950 (2.27.5; fixed in 2.29.7)",
    ),
    _fixed(
        *((2, 21, 5), (2, 27, 3), ARM, MNNVL, HANG, "major"),
        "connections of alltoall block each other",
        "NCCL 2.26.5 and 2.27.3 release notes",
    ),
)


def architecture(cpuinfo: Optional[str]) -> Optional[str]:
    """Return the architecture that /proc/cpuinfo shows; None where it shows none (kernel: proc(5), cpuinfo)."""
    if cpuinfo is None:
        return None
    return ARM if "CPU implementer" in cpuinfo else X86 if "vendor_id" in cpuinfo else None


def possible_defects(version: Version, machine: Optional[str]) -> List[Defect]:
    """Return what the release may do on a host.   machine: ``aarch64``; None where it is not known."""
    return [
        defect
        for defect in DEFECTS
        if defect.holds(version) and defect.architecture in ("", machine or defect.architecture)
    ]


def certain_defects(version: Version, machine: Optional[str], needs: FrozenSet[str] = frozenset()) -> List[Defect]:
    """Return those that the host meets for certain.   needs: what is known to be in use, of NEEDS."""
    return [
        defect
        for defect in possible_defects(version, machine)
        if (not defect.architecture or defect.architecture == machine) and (not defect.needs or defect.needs in needs)
    ]


def find_good_release(version: Version, machine: Optional[str], found: Sequence[Defect]) -> Optional[Version]:
    """Return the first release without these defects that the host does not meet another one with; None for none."""
    ends = [defect.good for defect in found]
    target = version
    for end in ends:
        if end is None:
            return None
        target = max(target, end)
    while True:
        more = [defect.good for defect in certain_defects(target, machine) if defect.good is not None]
        if not more:
            return target
        target = max(more)


def describe_effects(version: Version, found: Sequence[Defect]) -> str:
    """Return ``2.28.9: hangs on aarch64``."""
    effects = []
    for defect in found:
        on = "on %s" % defect.architecture if defect.architecture else ""
        effects.append(" ".join(part for part in (defect.effect, on, defect.needs) if part))
    return "%s: %s" % (format_version(version), "; ".join(dict.fromkeys(effects)))


def describe_causes(found: Sequence[Defect]) -> str:
    return "; ".join("%s (%s)" % (defect.why, defect.source) for defect in found)


def describe_good_release(version: Version, machine: Optional[str], found: Sequence[Defect]) -> str:
    """Return ``2.29.3 or later``, or that it is another release where no good one is known."""
    good = find_good_release(version, machine, found)
    return "another release" if good is None else "%s or later" % format_version(good)


def describe_fix(version: Version, machine: Optional[str], found: Sequence[Defect]) -> str:
    good = find_good_release(version, machine, found)
    if good is not None:
        return "install NCCL %s or later, in the images and environments of the jobs, too" % format_version(good)
    return "no release with a fix is known: set NCCL_RAS_ENABLE=0 for the jobs, and do not query RAS"


def worst_severity(found: Sequence[Defect]) -> str:
    """Return the severity of the worst defect."""
    return min((defect.severity for defect in found), key=SEVERITIES.index)
