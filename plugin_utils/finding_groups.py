# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Fold the findings of many hosts into few groups: one for each check, value and advice."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import SEVERITIES, STATES, Finding

from . import nodeset
from .accepted import Acceptance

# States that prove a difference. "unknown" does not: it could not be judged.
DIFFERS = ("drift", "withheld", "unsupported", "not_owned")
# A check whose value differs between hosts is one group of many values, and not as many groups.
VARIETY = 5
# Hosts of a fleet: a fault of this many may lie outside of them.
FLEET = 8
# A word of a subject that names a device: ``0000:1b:00.0``, ``mlx5_0``, ``ens1f0np0``.
_DEVICE = re.compile(r"(?=.*[A-Za-z:])(?=.*[0-9])[\w.:-]{4,}")


@dataclass(frozen=True)
class Row:
    """A root finding of a host. follows: number of other findings that it causes."""

    host: str
    finding: Finding
    follows: int
    waiver: Acceptance | None = None


@dataclass(frozen=True)
class Group:
    """Findings of one check that differ in host and subject only.

    have: the value of all of them, or the most frequent values with their numbers.
    """

    fingerprint: str
    finding: Finding
    have: str | None
    rows: tuple[Row, ...]
    varied: bool

    @property
    def hosts(self) -> list[str]:
        return sorted({row.host for row in self.rows})

    @property
    def subjects(self) -> list[str]:
        return sorted({row.finding.subject for row in self.rows})

    @property
    def follows(self) -> int:
        return sum(row.follows for row in self.rows)

    @property
    def shared_hint(self) -> str:
        """Return a hint where many hosts have one fault in one place: a switch, a plane, an image."""
        hosts, subjects, check, fix = self.hosts, self.subjects, self.finding.check, self.finding.fix
        if len(hosts) < FLEET or len(subjects) > 1 or self.varied or fix.startswith("run ") or check.startswith("run."):
            return ""
        return f"{len(hosts):,} hosts report the same for {subjects[0]}: look at what they share before repairing each"

    @property
    def waiver(self) -> Acceptance | None:
        return self.rows[0].waiver


def roots(findings: Iterable[Finding]) -> dict[str, int]:
    """Return id -> number of findings that it causes, for the findings that none of the others causes."""
    by_id: dict[str, Finding] = {}
    for finding in findings:
        by_id.setdefault(finding.id, finding)
    found: dict[str, int] = {}
    for finding in by_id.values():
        seen = {finding.id}
        root = finding
        while root.because in by_id and root.because not in seen:
            seen.add(root.because)
            root = by_id[root.because]
        found[root.id] = found.get(root.id, 0) + (root is not finding)
    return found


def rows_of(findings: Mapping[str, Sequence[Finding]]) -> list[Row]:
    """Return the root findings of all hosts. In a job of several hosts the cause may be on another one of them."""
    causes = {finding.id for of_host in findings.values() for finding in of_host if finding.because is None}
    elsewhere: Counter[str] = Counter()
    rows = []
    for host, of_host in findings.items():
        by_id = {finding.id: finding for finding in reversed(of_host)}
        for name, follows in roots(of_host).items():
            because = by_id[name].because
            if because in causes and because not in by_id:
                elsewhere[because] += 1 + follows
            else:
                rows.append(Row(host, by_id[name], follows))
    return [replace(row, follows=row.follows + elsewhere.pop(row.finding.id, 0)) for row in rows]


def tally(severities: Iterable[str], follow: int) -> str:
    """Return the number of findings of each severity. severities: of the roots. follow: how many others they cause."""
    counts = Counter(severities)
    parts = [f"{counts[severity]} {severity}" for severity in SEVERITIES if counts[severity]]
    return ", ".join([*parts, f"and {follow} that follow{'s' * (follow == 1)}"] if follow else parts)


def fold(rows: Iterable[Row]) -> list[Group]:
    """Return the groups, worst first: by severity, then by state, then the larger."""
    buckets: dict[tuple[object, ...], dict[tuple[str | None, str | None], list[Row]]] = {}
    for row in rows:
        finding = row.finding
        fix = common_fix(finding, row.host)
        kind = (finding.check, finding.aspect, finding.state, finding.severity, row.waiver, fix)
        # Its own name would make every host a separate group.
        value = (finding.want, nodeset.nameless(finding.have, row.host))
        buckets.setdefault(kind, {}).setdefault(value, []).append(row)
    groups = []
    for values in buckets.values():
        if len(values) > VARIETY:
            counts = Counter(have for (_want, have), found in values.items() for _row in found)
            common = ", ".join(f"{have or 'nothing'} ({count})" for have, count in counts.most_common(3))
            everything = [row for found in values.values() for row in found]
            groups.append(_group(everything, f"{len(counts)} different values, most often {common}", True))
        else:
            groups += [_group(found, have, False) for (_want, have), found in values.items()]
    return sorted(groups, key=lambda group: (*rank(group), -len(group.hosts), group.finding.check, group.have or ""))


def rank(group: Group) -> tuple[int, int]:
    return SEVERITIES.index(group.finding.severity), STATES.index(group.finding.state)


def _group(rows: list[Row], have: str | None, many: bool) -> Group:
    finding, fix = rows[0].finding, common_fix(rows[0].finding, rows[0].host)
    key = (finding.check, finding.aspect, finding.state, finding.want, "" if many else have, fix)
    if len({(row.host, row.finding.subject) for row in rows}) > 1:
        finding = replace(finding, fix=fix)
    fingerprint = hashlib.sha256(repr(key).encode()).hexdigest()[:10]
    if rows[0].waiver:
        fingerprint += "w"
    return Group(fingerprint, finding, have, tuple(sorted(rows, key=lambda row: (row.host, row.finding.subject))), many)


def common_fix(finding: Finding, host: str) -> str:
    """Return the fix in words that hold for each subject and host: without names of devices and hosts."""
    fix = nodeset.nameless(finding.fix, host) or ""
    if finding.identity == finding.subject:
        return fix
    # Each pattern is compiled anew: only where the word is there.
    for word in (word for word in finding.subject.split(" ") if word in fix and _DEVICE.fullmatch(word)):
        instead = "ADDRESS" if ":" in word else "NAME"
        fix = re.sub(rf"(?<![\w.:-]){re.escape(word)}(?![\w:-])", instead, fix)
    return fix
