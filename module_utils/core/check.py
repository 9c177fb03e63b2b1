# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Declare a check of the suite once, beside the planner that judges it.

Its id is written there and nowhere else, so that a search for it finds the code. A string below each declaration
describes the check: ``make docs`` makes docs/findings.md of these strings, and no node gets them.
"""

from __future__ import annotations

from typing import NamedTuple, Optional, Union

from .finding import Finding, identity, printable
from .host import Problem


class Check(NamedTuple):
    """id: dotted, lower case, the noun first (``roce_qos.pfc``). Never renamed once released.

    why: the rule and its reason, for a reader who sees the check for the first time.
    fix: what to do if it is not ok; ``judge`` may be given a better one for a case.
    severity, aspect, disruption: as in Finding; what most findings of this check have.
    """

    id: str
    why: str
    fix: str = ""
    severity: str = "major"
    aspect: str = "live"
    disruption: str = "none"

    def judge(
        self,
        subject: str,
        state: str,
        want: Optional[str] = None,
        have: Optional[str] = None,
        source: str = "",
        fix: Optional[str] = None,
        because: Union[Finding, str, None] = None,
        why: Optional[str] = None,
        severity: Optional[str] = None,
        aspect: Optional[str] = None,
        disruption: Optional[str] = None,
    ) -> Finding:
        """Return the finding for one subject; texts from the node may hold anything, and are made printable.

        source: file, command or variable that ``have`` was read from; the subject by default.
        fix, why, severity, aspect, disruption: instead of the declaration's. What is ok needs no fix.
        because: the finding, or its id, that causes this one. One that is ok explains nothing.
        Raises ValueError as Finding does.
        """
        if isinstance(because, Finding):
            because = None if because.ok else because.id
        return Finding(
            check=self.id,
            subject=subject,
            state=state,
            severity=severity or self.severity,
            want=want,
            have=None if have is None else printable(have),
            source=printable(source or subject),
            why=why or self.why,
            fix="" if state == "ok" else printable(self.fix if fix is None else fix),
            aspect=aspect or self.aspect,
            disruption=disruption or self.disruption,
            because=None if state == "ok" else because,
        )

    def finding_id(self, subject: str, aspect: Optional[str] = None) -> str:
        """Return the id of the finding that ``judge`` makes of this subject, to name it as a cause."""
        return "%s[%s]@%s" % (self.id, aspect or self.aspect, identity(printable(subject)))

    def unreadable(self, problem: Problem) -> Finding:
        """Return an ``unknown`` finding for a file or tool that could not be read."""
        return self.judge(
            problem.source,
            "unknown",
            want="a response",
            have=problem.message,
            fix="run or read %s on the host, and repair what it reports" % printable(problem.source),
        )
