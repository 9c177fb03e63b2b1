# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read and apply accepted deviations (``busbar_accepted``): check, reason, owner, last day.

An accepted finding is shown and counted as accepted, and fails no run. After its last day it counts again.
"""

from __future__ import annotations

import datetime
import fnmatch
import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import did_you_mean
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import SEVERITIES, Finding

from . import suite
from .plain_data import PlainView

VARIABLE = "busbar_accepted"
_REQUIRED = ("check", "reason", "owner", "until")
_DECLARED = re.compile(r'\bCheck\(\s*"([a-z0-9_.]+)"')
_UNREACHED = "run."


@dataclass(frozen=True)
class Acceptance:
    """check: an id, or a pattern such as ``platform.*``. subject: of the finding, or a pattern; "" for any.

    until: the last day (UTC) on which it holds.
    """

    check: str
    subject: str
    reason: str
    owner: str
    until: datetime.date

    def covers(self, finding: Finding) -> bool:
        """Return whether the entry accepts the finding. An unknown result has to be named, not only match a pattern."""
        named = self.check == finding.check
        unreached = finding.check.startswith(_UNREACHED)
        if not (self.check.startswith(_UNREACHED) if unreached else named or finding.state != "unknown"):
            return False
        names = (finding.subject, finding.identity)
        of_subject = self.subject in ("", *names) or any(fnmatch.fnmatchcase(name, self.subject) for name in names)
        return of_subject and (named or fnmatch.fnmatchcase(finding.check, self.check))

    def to_dict(self) -> dict[str, str]:
        """Return the entry as it is written in an inventory."""
        words = {"check": self.check, "subject": self.subject, "reason": self.reason, "owner": self.owner}
        return {**{key: text for key, text in words.items() if text}, "until": self.until.isoformat()}


Entry = TypeVar("Entry", bound=Acceptance)


def plain(value: object) -> Any:
    """Return the variable with the dates that YAML makes of ``until`` as text."""
    if not isinstance(value, (list, tuple)):
        return value
    return [
        {key: item.isoformat() if isinstance(item, datetime.date) else item for key, item in entry.items()}
        if isinstance(entry, dict)
        else entry
        for entry in value
    ]


def errors(value: Sequence[PlainView]) -> list[str]:
    """Return a sentence for each mistake in the variable."""
    return [f"{VARIABLE}, entry {number}: {wrong}" for number, entry in enumerate(value, 1) for wrong in _wrong(entry)]


def _wrong(entry: PlainView) -> Iterable[str]:
    known = (*_REQUIRED, "subject")
    if strange := [str(key) for key in entry if key not in known]:
        yield f"has unknown {', '.join(strange)}; known: {', '.join(known)}"
    texts = {key: item for key, item in entry.items() if isinstance(item, str) and item.isprintable() and item.strip()}
    if missing := [key for key in (known if "subject" in entry else _REQUIRED) if key not in texts]:
        yield f"has no {', '.join(missing)} (one line of text each)"
        return
    try:
        datetime.date.fromisoformat(texts["until"])
    except ValueError:
        yield f"until is {texts['until']!r}, expected YYYY-MM-DD"
    if not fnmatch.filter(known_checks(), texts["check"]):
        hint = did_you_mean(texts["check"], known_checks(), "")
        yield f"there is no check {texts['check']!r}{hint} (docs/findings.md)"


@functools.cache
def known_checks() -> frozenset[str]:
    """Return the ids of all checks, from the source: each is written out where it is declared, and nowhere else."""
    top = Path(__file__).parent.parent
    files = [path for folder in ("module_utils", "plugin_utils") for path in (top / folder).rglob("*.py")]
    found = {name for path in files for name in _DECLARED.findall(path.read_text(encoding="utf-8"))}
    return frozenset(found | {f"{_UNREACHED}{role.name}" for role in suite.SUITE})


def parse(value: object) -> tuple[Acceptance, ...]:
    """Return the entries of a variable; those with mistakes, which the intent refuses, are left out."""
    found = []
    for entry in plain(value) if isinstance(value, (list, tuple)) else ():
        if isinstance(entry, dict) and not [*_wrong(entry)]:
            words = {key: " ".join(str(item).split()) for key, item in entry.items()}
            until = datetime.date.fromisoformat(words["until"])
            found.append(Acceptance(words["check"], words.get("subject", ""), words["reason"], words["owner"], until))
    return tuple(found)


def covered(findings: Sequence[Finding], entries: Sequence[Entry], today: datetime.date) -> dict[str, Entry]:
    """Return the ids of the findings of a host that are accepted, with the entry.

    A consequence is accepted with its cause, unless it is more severe.
    """
    valid = [entry for entry in entries if entry.until >= today]
    found = {one.id: entry for one in findings for entry in valid if entry.covers(one)}
    # Of several findings with one id each has to be covered.
    for one in findings:
        if not any(entry.covers(one) for entry in valid):
            found.pop(one.id, None)
    by_id = {one.id: one for one in reversed(findings)}
    more = found
    while more:
        more = {
            one.id: found[one.because]
            for one in by_id.values()
            if one.because in found
            and one.id not in found
            and SEVERITIES.index(one.severity) >= SEVERITIES.index(by_id[one.because].severity)
        }
        found = found | more
    return found


def standing(findings: Iterable[Finding], variables: PlainView) -> list[Finding]:
    """Return the findings that are not accepted. variables: of the host, with its intent."""
    values = (variables.get("busbar_intent") or {}).get("values") or {}
    found = [*findings]
    of = covered(found, parse(values.get(VARIABLE)), today())
    return [one for one in found if one.id not in of]


def split(
    findings: Sequence[Finding], entries: Sequence[Acceptance], today: datetime.date
) -> tuple[list[Finding], list[tuple[Finding, Acceptance]], list[str]]:
    """Return the findings of a host that stand, those that are accepted, and notes on entries that have expired."""
    of = covered(findings, entries, today)
    rest = [one for one in findings if one.id not in of]
    stand = [replace(one, because=None) if one.because in of else one for one in rest]
    notes = [
        f"{entry.check} counts again: accepted by {entry.owner} until {entry.until}, for {entry.reason}"
        for entry in entries
        if entry.until < today and any(entry.covers(one) for one in rest)
    ]
    return stand, [(one, of[one.id]) for one in findings if one.id in of], notes


def today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()
