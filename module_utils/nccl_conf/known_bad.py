# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Releases of NCCL that are known to hang, crash or compute wrong values, each with its source.

A row names the first bad release. Where no source names it, that is the first release with the code or the feature. A
row without a first good release ends with the last release that it is reported of.
"""

from __future__ import annotations

from typing import FrozenSet, Iterator, List, NamedTuple, Optional, Sequence

from ..core.check import Check
from ..core.finding import SEVERITIES, Finding
from ..machine.virtualization import ARM, X86
from .version import Version, format_version, parse_version

# Effects, and what a finding says of them.
HANG, CRASH, WRONG = "hangs", "crashes", "computes wrong values"
# What a row needs beside the release, and what a finding says of it.
_NEEDS = {
    "SCALE": "at large scale",
    "RESTART": "with in-process restart, which aborts communicators and makes new ones",
    "RAS": "with RAS, which is on unless NCCL_RAS_ENABLE=0",
    "RAS_QUERY": "if RAS is queried while communicators are created",
    "WINDOWS": "with symmetric memory (ncclCommWindowRegister)",
    "ONE_RANK": "with an average over a communicator of one rank",
    "MNNVL": "with alltoall over more than 80 ranks of one NVLink domain",
}
SCALE, RESTART, RAS, RAS_QUERY, WINDOWS, ONE_RANK, MNNVL = NEEDS = tuple(_NEEDS.values())
MNNVL_RANKS = 80


class Defect(NamedTuple):
    """first, last: releases, both bad.   good: first good release; None where none is known.

    architecture: of the host; "" for each.   needs: one of NEEDS, "" for nothing.
    severity: where it is certain that the defect is met.   avoid: a vendor says to use none of these releases.
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
    avoid: bool

    def holds(self, version: Version) -> bool:
        return self.first <= version <= self.last if self.good is None else self.first <= version < self.good


# First bad release, first good one (after = the last bad one), effect, severity; architecture, need, reason, source.
_ROWS = """
2.28.9 2.29.3 hangs critical | aarch64 | |
    slots for operations of the proxy thread leak until none is left: all ranks stay at 100 %, without an error |
    NCCL 2.29.3 release notes; NVIDIA/nccl issue 2353
2.12.0 2.28.9 hangs major | aarch64 | |
    main thread and proxy thread exchange operations without memory ordering, which Arm processors need |
    NCCL 2.28.9 release notes; NVIDIA/nccl issue 2353
2.12.0 2.28.9 hangs major | | SCALE |
    main thread and proxy thread exchange operations in the wrong order | NCCL 2.28.9 release notes
2.28.3 2.28.9 crashes major | | RESTART |
    a process that makes new communicators after an abort ends with a segmentation fault |
    nvidia-resiliency-ext README and release notes (NCCL < 2.28.3 or >= 2.28.9)
2.26.2 2.27.3 crashes major | | RAS_QUERY | a report of RAS reads communicators that are not initialised yet |
    NCCL 2.27.3 release notes; NVIDIA/nccl issues 1669 and 1718 (2.26.2, 2.26.5)
2.27.7 =2.27.7 crashes major | | RAS | RAS uses memory that it has freed when its list of peers changes |
    NVIDIA/nccl issue 1996 and pull request 2406
2.29.7 =2.29.7 crashes major | | RAS_QUERY | a report of RAS has empty states of communicators that are being created |
    NVIDIA/nccl issue 2346
2.27.3 2.28.7 computes-wrong-values critical | | WINDOWS |
    messages of less than 8 bytes, and groups of several operations, may be corrupted | NCCL 2.28.7 release notes
2.27.3 2.31.2 computes-wrong-values critical | | WINDOWS |
    data is corrupted if several windows are parts of one allocation |
    NCCL 2.31.2 release notes; NVIDIA/nccl issue 2198
2.27.5 2.29.7 computes-wrong-values critical | | ONE_RANK | the last elements of the buffer are not written |
    NVIDIA/nccl issue 1950 (2.27.5; fixed in 2.29.7)
2.21.5 2.27.3 hangs major | aarch64 | MNNVL | connections of alltoall block each other |
    NCCL 2.26.5 and 2.27.3 release notes
"""


def _defects() -> Iterator[Defect]:
    for row in _ROWS.replace("\n    ", " ").strip().split("\n"):
        numbers, machine, need, why, source = (part.strip() for part in row.split("|"))
        first, end, effect, severity = numbers.split()
        last = parse_version(end.lstrip("="))
        good = None if end.startswith("=") else last
        needs = _NEEDS[need] if need else ""
        avoid = need == "RESTART"
        yield Defect(
            *(parse_version(first), last, good, machine, needs),
            *(effect.replace("-", " "), severity, why, source, avoid),
        )


DEFECTS = tuple(_defects())


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


def worst_severity(found: Sequence[Defect]) -> str:
    """Return the severity of the worst defect."""
    return min((defect.severity for defect in found), key=SEVERITIES.index)


def judge(
    check: Check,
    subject: str,
    version: Version,
    machine: Optional[str],
    found: Sequence[Defect],
    source: str = "",
    severity: Optional[str] = None,
) -> Finding:
    """Return the finding on a release with these defects: what it does, and which one to install."""
    good = _good_release(version, machine, found)
    want = "another release"
    fix = "no release with a fix is known: set NCCL_RAS_ENABLE=0 for the jobs, and do not query RAS"
    if good is not None:
        want = "%s or later" % format_version(good)
        fix = "install NCCL %s, in the images and environments of the jobs, too" % want
    effects = []
    for defect in found:
        on = "on %s" % defect.architecture if defect.architecture else ""
        effects.append(" ".join(part for part in (defect.effect, on, defect.needs) if part))
    have = "%s: %s" % (format_version(version), "; ".join(dict.fromkeys(effects)))
    why = "; ".join("%s (%s)" % (defect.why, defect.source) for defect in found)
    return check.judge(subject, "drift", want, have, source, fix, why=why, severity=severity)


def _good_release(version: Version, machine: Optional[str], found: Sequence[Defect]) -> Optional[Version]:
    """Return the first release without these defects that the host does not meet another one with; None for none."""
    more: Sequence[Defect] = found
    while more:
        goods = [defect.good for defect in more]
        if None in goods:
            return None
        version = max([version, *(good for good in goods if good is not None)])
        more = [defect for defect in certain_defects(version, machine) if defect.good is not None]
    return version
