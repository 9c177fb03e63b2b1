# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Input and output of the linter's rules: readers of a variable, and faults in it, without the file."""

from __future__ import annotations

from typing import Iterable, List, NamedTuple, Optional, Sequence

from ..core.check import Check
from ..core.finding import Finding
from .grammar import strtoll
from .library import Library
from .variables import VARIABLES
from .version import Version, format_version

# A wrong value here ends in a job that does not start, hangs, or falls to TCP; elsewhere it costs speed or meaning.
_BREAKING = frozenset(
    (
        *("NCCL_ALGO", "NCCL_IB_GID_INDEX", "NCCL_IB_HCA", "NCCL_IB_TIMEOUT", "NCCL_NET", "NCCL_OOB_NET_IFNAME"),
        *("NCCL_PROTO", "NCCL_SOCKET_FAMILY", "NCCL_SOCKET_IFNAME"),
    )
)


class Use(NamedTuple):
    """libraries: those that will read the variable.   versions: theirs and one that is declared, sorted.

    hcas: names of the host's RDMA devices; empty where it is not known.
    place: "file" (nccl.conf), "environment" of every job, or "job" for a single one.
    """

    libraries: Sequence[Library]
    versions: Sequence[Version]
    hcas: Sequence[str]
    place: str

    def before(self, version: Version) -> Optional[str]:
        """The oldest release in use that is older than ``version``, as text."""
        older = [v for v in self.versions if v < version]
        return format_version(min(older)) if older else None

    def since(self, version: Version) -> Optional[str]:
        """The newest release in use that is ``version`` or later, as text."""
        newer = [v for v in self.versions if v >= version]
        return format_version(max(newer)) if newer else None


def use_of(libraries: Sequence[Library], version: Optional[Version], hcas: Sequence[str], place: str) -> Use:
    versions = {library.version for library in libraries} | ({version} if version else set())
    return Use(libraries, sorted(versions), hcas, place)


class Fault(NamedTuple):
    """A check that is not ok. why, fix, severity: instead of the check's, whose texts may hold ``%s``."""

    check: Check
    want: Optional[str]
    why: Optional[str] = None
    fix: Optional[str] = None
    severity: Optional[str] = None
    state: str = "drift"


def filled(check: Check, want: Optional[str], *words: object, severity: Optional[str] = None) -> Fault:
    """Return a fault whose reason is the check's, with these words in it."""
    return Fault(check, want, check.why % words, severity=severity)


def judged(faults: Iterable[Fault], subject: str, source: str, have: str) -> List[Finding]:
    """A finding of each; of several with the same check, of the first."""
    first = {}
    for fault in faults:
        first.setdefault(fault.check.id, fault)
    return [
        fault.check.judge(
            subject, fault.state, fault.want, have, source, fault.fix, why=fault.why, severity=fault.severity
        )
        for fault in first.values()
    ]


def show(text: str, limit: int = 160) -> str:
    """Text that is safe on a terminal: what is not printable ASCII is escaped, what is long is cut."""
    shown = "".join(c if " " <= c <= "~" else ascii(c)[1:-1] for c in text[:limit])
    return shown + "..." if len(text) > limit else shown


def weight(name: str) -> str:
    """Severity of a wrong value of this variable."""
    return "critical" if name in _BREAKING else "major"


def reads_integer(name: str) -> bool:
    variable = VARIABLES.get(name)
    return variable is not None and variable.kind == "int"


def cost(name: str, read: str, meant: str) -> str:
    """Severity of a value that NCCL reads as ``read``: none but looks where it yields the same number as ``meant``."""
    if reads_integer(name) and strtoll(read)[0] == strtoll(meant)[0]:
        return "minor"
    return weight(name)
