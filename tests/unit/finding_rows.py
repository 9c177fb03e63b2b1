# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Findings as rows of a golden, with the values of their sentences in place of these."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding

# Words with a digit, names in camel case and in capitals, and states that have neither.
_WORDS = re.compile(
    r"[\w./\[\]-]*\d[\w./:,\[\]-]*\b\]?|[A-Z][a-z]+[A-Z]\w+|\b[A-Z][A-Z_]{3,}\b|at least"
    r"|\b(?:init|armed|down|Polling|master|standby|ftree|minhop|routing on|routing off|timeout|timed out)\b"
    r"|\b(?:chronyc|perfquery|uptime)\b"
)


def values(text: str | None) -> str:
    """Return names and numbers of a sentence."""
    return " ".join(_WORDS.findall(text or ""))


def row(finding: Finding, prefix: str) -> list[Any]:
    """Return check, subject, state, severity, cause, and the values of have, want and fix.

    prefix: of the checks, without which they are named.
    """
    because = (finding.because or "").removeprefix(prefix).replace("[live]@", " ") or None
    about = [finding.check.removeprefix(prefix), finding.subject, finding.state, finding.severity, because]
    return [*about, values(finding.have), values(finding.want), values(finding.fix)]


def rows(findings: Iterable[Finding], prefix: str) -> list[Any]:
    """Return what is not ok."""
    return [row(finding, prefix) for finding in findings if not finding.ok]
