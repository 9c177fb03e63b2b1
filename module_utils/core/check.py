# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A Check is a question of the suite, declared once, beside the planner that answers it.

Its id is written out there and nowhere else, so that a search for it finds the code. Below each declaration stands, as
a text of its own, what the check asks: ``make docs`` makes docs/findings.md of these texts, and no node is sent them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Union

from .finding import Finding, identity, printable
from .host import Problem


@dataclass(frozen=True)
class Check:
    """id: dotted, lower case, the noun first (``roce_qos.pfc``). Never renamed once released.

    why: the rule and its reason, for somebody who meets the check for the first time.
    fix: what to do where it is not ok; ``judge`` may say something better for a case.
    severity, aspect, disruption: as in Finding; what most answers to this check have.
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
        """The answer for one subject; texts that came from the node may hold anything, and are made printable.

        source: file, command or variable that ``have`` was read from; the subject, where it is not given.
        fix, why, severity, aspect, disruption: instead of the declaration's. What is ok needs no fix.
        because: the finding, or its id, that this one only follows from. One that is ok explains nothing.
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

    def at(self, subject: str, aspect: Optional[str] = None) -> str:
        """The id of the finding that ``judge`` makes of this subject, for who says that another one follows from it."""
        return "%s[%s]@%s" % (self.id, aspect or self.aspect, identity(printable(subject)))

    def unreadable(self, problem: Problem) -> Finding:
        """``unknown``, of a file or tool that did not answer."""
        return self.judge(
            problem.source,
            "unknown",
            want="a response",
            have=problem.message,
            fix="run or read %s on the host, and repair what it reports" % printable(problem.source),
        )
