# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Findings of many hosts as few groups: the same check with the same answer is one, however many nodes give it."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import SEVERITIES, STATES, Finding
from ansible_collections.busbar.fabric.plugins.plugin_utils import nodeset

from .waivers import Waiver

# A check that reads something else on every host is one group of many values, and not as many groups.
VARIETY = 5
# A word of a subject that names a device: ``0000:1b:00.0``, ``mlx5_0``, ``ens1f0np0``.
_DEVICE = re.compile(r"(?=.*[A-Za-z:])(?=.*[0-9])[\w.:-]{4,}")


@dataclass(frozen=True)
class Row:
    """A root finding on a host. follows: how many other findings of the host merely follow from it."""

    host: str
    finding: Finding
    follows: int
    waiver: Waiver | None


@dataclass(frozen=True)
class Group:
    """have: as all of them have it, or the most frequent values and how often."""

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
    def waiver(self) -> Waiver | None:
        return self.rows[0].waiver


def roots(findings: Iterable[Finding]) -> dict[str, int]:
    """Ids of the findings that follow from none of the others -> how many follow from them."""
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


def fold(rows: Iterable[Row]) -> list[Group]:
    """The groups, worst first: by severity, then by state, then the larger."""
    buckets: dict[tuple[object, ...], dict[tuple[str | None, str | None], list[Row]]] = {}
    for row in rows:
        finding = row.finding
        kind = (finding.check, finding.aspect, finding.state, finding.severity, row.waiver, _advice(row))
        buckets.setdefault(kind, {}).setdefault((finding.want, _have(row)), []).append(row)
    groups = []
    for values in buckets.values():
        if len(values) > VARIETY:
            counts = Counter(have for (_, have), found in values.items() for _ in found)
            common = ", ".join(f"{have or 'nothing'} ({count})" for have, count in counts.most_common(3))
            everything = [row for found in values.values() for row in found]
            groups.append(_group(everything, f"{len(counts)} different values, most often {common}", True))
        else:
            groups += [_group(found, have, False) for (_, have), found in values.items()]
    return sorted(
        groups,
        key=lambda group: (
            SEVERITIES.index(group.finding.severity),
            STATES.index(group.finding.state),
            -len(group.hosts),
            group.finding.check,
            group.have or "",
        ),
    )


def _group(rows: list[Row], have: str | None, many: bool) -> Group:
    finding, advice = rows[0].finding, _advice(rows[0])
    told = (finding.check, finding.aspect, finding.state, finding.want, "" if many else have, advice)
    if len({(row.host, row.finding.subject) for row in rows}) > 1:
        finding = replace(finding, fix=advice)
    fingerprint = hashlib.sha256(repr(told).encode()).hexdigest()[:10]
    if rows[0].waiver:
        fingerprint += "w"
    return Group(fingerprint, finding, have, tuple(sorted(rows, key=lambda row: (row.host, row.finding.subject))), many)


def _have(row: Row) -> str | None:
    """Without the host's own name, which would make every host a group of its own."""
    return nodeset.nameless(row.finding.have, row.host)


def _advice(row: Row) -> str:
    """Return what the finding advises in words that hold for each subject: without the names of its own."""
    fix = nodeset.nameless(row.finding.fix, row.host) or ""
    if row.finding.identity == row.finding.subject:
        return fix
    for word in filter(_DEVICE.fullmatch, row.finding.subject.split(" ")):
        instead = "ADDRESS" if ":" in word else "NAME"
        fix = re.sub(rf"(?<![\w.:-]){re.escape(word)}(?![\w:-])", instead, fix)
    return fix
