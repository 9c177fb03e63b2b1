# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How sure a verdict is: a line that says by itself what is wrong is distinguished from what is only reported first."""

from __future__ import annotations

import re
from typing import Sequence

from ..core.finding import Finding
from .failure_checks import CHECKS
from .judge_program import PROGRAM

# Kinds of failures whose line says what is wrong, whatever else failed before or after it.
_PLAIN = re.compile(r"job(?: \d+)? (?:duplicate_gpu|version|compiled|no_interface|algorithm|port_in_use|driver_old)\b")
# A cause that lines prove.
PROVEN = re.compile(r"(?<!possible )\bcause: [^;]{1,160}")
_FAILURES = {check.id for check in CHECKS.values()} | {PROGRAM.id}


def how_sure(bad: Sequence[Finding]) -> str:
    """Of the findings that are not ok, worst first: what is known of the first one's part in it; "" for no failure."""
    worst = bad[0]
    if worst.check not in _FAILURES or worst.severity == "minor":
        return ""
    if worst.state == "drift" and (_PLAIN.match(worst.subject) or PROVEN.search(worst.have or "")):
        return "a line shows what is wrong"
    others = {one.check for one in bad[1:] if one.check in _FAILURES and one.severity != "minor"} - {worst.check}
    if others:
        return (
            "it is what likely came first; %d other kind%s of failure %s below, and no line proves which caused which"
            % (len(others), "s" * (len(others) > 1), "are" if len(others) > 1 else "is")
        )
    return "reported; the root cause is not in this log"
