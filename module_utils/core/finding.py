# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The data type of every result: a Finding holds what was checked, expected and found, and how to fix it.

Every planner returns findings, every module passes them on unchanged, the verdict, the reports and the exit
code are computed from nothing else. ``docs/finding.schema.json`` is the same thing for other programs.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Dict, Iterable, List, Optional, Tuple

from . import redaction

# Worst first: the order of the verdict's table. Only "ok" counts as good.
STATES = ("drift", "withheld", "unknown", "unsupported", "not_owned", "ok")
SEVERITIES = ("critical", "major", "minor")
ASPECTS = ("live", "persisted")
# What *activating* the mending change costs a running node (DESIGN 1, principle 5).
DISRUPTIONS = ("none", "link", "driver", "reboot")

_ALLOWED = {"state": STATES, "severity": SEVERITIES, "aspect": ASPECTS, "disruption": DISRUPTIONS}
_CHECK = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")


@dataclass(frozen=True)
class Finding:
    """Result of one check on one subject.

    check: dotted lower-case name, the noun first: ``roce_qos.pfc``. Never renamed once released.
    subject: what was judged, its lasting identity first, names that may move after a blank:
        ``0000:1b:00.0 mlx5_0 ens1f0np0``, ``rail 3``, ``/etc/nccl.conf``.
    state: one of STATES.   severity: one of SEVERITIES, what it costs when it is not ok.
    aspect: "live" (as it is now) or "persisted" (as it will be after a reboot).
    want, have: short text for people, with units. ``None``: nothing is wanted / nothing is there.
    disruption: one of DISRUPTIONS, what mending it costs.
    fix: what to do or run. Empty only when the state is ok.
    source: the file, command or variable that ``have`` was read from.
    why: the rule and its reason, for a reader who sees this check for the first time.
    because: id of the finding that causes this one; None for a root.
    """

    check: str
    subject: str
    state: str
    severity: str
    want: Optional[str]
    have: Optional[str]
    source: str
    why: str
    fix: str = ""
    aspect: str = "live"
    disruption: str = "none"
    because: Optional[str] = None

    def __post_init__(self) -> None:
        # A device may be called anything, and its name is part of an id.
        if not self.subject.isprintable():
            object.__setattr__(self, "subject", printable(self.subject))
        if not _CHECK.fullmatch(self.check):
            raise ValueError("check id %r is not dotted lower case" % self.check)
        for name, allowed in _ALLOWED.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError("%s: %s is %r, expected one of %s" % (self.check, name, value, ", ".join(allowed)))
        if not self.subject or not self.source or not self.why:
            raise ValueError("%s: subject, source and why must not be empty" % self.check)
        if self.state != "ok" and not self.fix:
            raise ValueError("%s: a finding that is not ok needs a fix" % self.check)
        if self.ok and not self.have:
            raise ValueError("%s: ok without the value that was read" % self.check)

    @property
    def ok(self) -> bool:
        return self.state == "ok"

    @property
    def inapplicable(self) -> bool:
        """Return whether this hardware cannot have it and nothing is wanted: neither a fault nor a passed check."""
        return self.state == "unsupported" and self.want is None

    @property
    def identity(self) -> str:
        """Return the part of the subject that lasts: names after the PCI address move between boots."""
        return identity(self.subject)

    @property
    def id(self) -> str:
        """Return an id that is stable from run to run: ``platform.rail_pcie[live]@0000:1b:00.0``."""
        return "%s[%s]@%s" % (self.check, self.aspect, self.identity)

    def scrubbed(self, secrets: Tuple[str, ...]) -> Finding:
        """Return the finding with none of the secrets in its free texts. Its check and id come from the suite."""
        values = {name: getattr(self, name) for name in ("subject", "want", "have", "source", "why", "fix")}
        clean = {name: redaction.scrub(value, secrets) for name, value in values.items() if value is not None}
        return replace(self, **clean) if any(clean[name] != values[name] for name in clean) else self

    def to_dict(self) -> Dict[str, object]:
        """Return plain data with the keys of docs/finding.schema.json."""
        return {**asdict(self), "id": self.id}


def from_dict(data: Dict[str, Any]) -> Finding:
    """Return the Finding that ``to_dict`` was called on. Raises ValueError on anything else, naming what is wrong."""
    names = {field.name for field in fields(Finding)}
    unknown = set(data) - names - {"id"}
    if unknown:
        raise ValueError("a finding has no key %s" % ", ".join(sorted(unknown)))
    try:
        finding = Finding(**{name: value for name, value in data.items() if name in names})
    except TypeError as error:
        raise ValueError("not a finding: %s" % error) from error
    if data.get("id", finding.id) != finding.id:
        raise ValueError("finding id %r does not belong to %s" % (data["id"], finding.id))
    return finding


def identity(subject: str) -> str:
    """Return the part of a subject that lasts: the PCI address that it begins with, else all of it."""
    head = subject.split(" ", 1)[0]
    return head if re.match(r"^[0-9a-f]{4,}:[0-9a-f]{2}:", head) else subject


def printable(text: str) -> str:
    """Escape characters that a terminal would obey: names and tools' outputs may hold anything."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def one_cause(findings: Iterable[Finding], states: Tuple[str, ...]) -> Tuple[Finding, ...]:
    """Return the same findings; those in one of the states with the same ``have`` are caused by the first of them."""
    first: Dict[Tuple[str, Optional[str]], Finding] = {}
    result = []
    for finding in findings:
        if finding.because is None and finding.state in states:
            cause = first.setdefault((finding.state, finding.have), finding)
            if cause is not finding:
                finding = replace(finding, because=cause.id)
        result.append(finding)
    return tuple(result)


def worst_first(findings: Iterable[Finding]) -> List[Finding]:
    """Sort: roots before consequences, then by severity, state, check and subject."""
    ranks = {name: rank for names in (SEVERITIES, STATES) for rank, name in enumerate(names)}
    return sorted(
        findings,
        key=lambda f: (f.ok, f.because is not None, ranks[f.severity], ranks[f.state], f.check, f.subject),
    )
