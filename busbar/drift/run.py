# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Define the result of one run: a Run, and a HostResult for every host that had to report."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.plugin_utils.accepted import Acceptance
from ansible_collections.busbar.fabric.plugins.plugin_utils.nodeset import expand, fold
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

# How a host's part of a run ended. Only the last two have results of the host's checks.
ENDS = ("not_run", "unreachable", "timed_out", "incomplete", "complete")
JUDGED = ("incomplete", "complete")
# Class of a host in the report: exactly one of these, the least known first.
CLASSES = ("unreachable", "timed_out", "not_run", "incomplete", "drift", "waived", "in_sync")


@dataclass(frozen=True)
class HostResult:
    """end: one of ENDS. passed: ids of the checks that are ok. intent: a hash of what was wanted, None where unknown.

    busbw: run of the benchmark -> busbw and bar (GB/s), finished (seconds since 1970), simulated.
    health: devices with growth since the previous run or a fault, as node_health reports them.
    notes: limits of the result that are no fault, such as another run that works on the node.
    evidence: of the passed checks, as findings_file.packed returns it.
    acceptances: deviations that the inventory accepts; their findings are among the others.
    """

    host: str
    end: str
    findings: tuple[Finding, ...] = ()
    passed: frozenset[str] = frozenset()
    intent: str | None = None
    busbw: Mapping[str, Plain] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    health: tuple[Plain, ...] = ()
    evidence: str = ""
    acceptances: tuple[Acceptance, ...] = ()

    @property
    def judged(self) -> bool:
        return self.end in JUDGED

    @property
    def by_id(self) -> dict[str, Finding]:
        """Return the first, which is the worst, of findings that share an id."""
        found: dict[str, Finding] = {}
        for finding in self.findings:
            found.setdefault(finding.id, finding)
        return found


@dataclass(frozen=True)
class Run:
    """A run of ``busbar drift``. Times are UTC, as ``2026-11-21T02:00:07Z``.

    state: running, done, failed (no host was queried), interrupted, or pruned. waivers: as ``waivers_of`` returns them.
    """

    id: int
    started: str
    ended: str | None
    state: str
    inventory: str
    limit: str | None
    version: str
    user: str
    commit: str | None
    simulated: bool
    fail_on: str
    waivers: tuple[Mapping[str, str], ...] = ()
    message: str = ""


# Class, busbw and devices of a host.
Past = tuple[str, Mapping[str, Plain], Sequence[Plain]]
# Earlier runs with their summaries, oldest first.
Trail = Sequence[tuple[Run, Plain, Mapping[str, Past]]]


# -- accepted deviations of a run (busbar_accepted), as the history stores them: each with its hosts, folded ----------


class WaiverError(ValueError):
    """An invalid entry of a history or findings file; the message has the reason."""


@dataclass(frozen=True)
class Waiver(Acceptance):
    """An entry with its hosts."""

    hosts: frozenset[str] = frozenset()

    def to_plain(self) -> dict[str, str]:
        words = self.to_dict()
        return {"expires": words.pop("until"), **words, "hosts": fold(self.hosts)}


def waivers_of(hosts: Mapping[str, HostResult]) -> tuple[dict[str, str], ...]:
    """Return the entries of all hosts, equal ones joined."""
    found: dict[Acceptance, set[str]] = {}
    for host in hosts.values():
        for entry in host.acceptances:
            found.setdefault(entry, set()).add(host.host)
    return tuple(Waiver(**vars(entry), hosts=frozenset(names)).to_plain() for entry, names in found.items())


def parse_waivers(entries: Sequence[Mapping[str, str]]) -> tuple[Waiver, ...]:
    """Return the entries of a run. Raises WaiverError."""
    found = []
    for entry in entries:
        words = (entry["check"], entry.get("subject", ""), entry["reason"], entry["owner"])
        try:
            hosts, day = frozenset(expand(entry["hosts"])), datetime.date.fromisoformat(entry["expires"])
        except ValueError as error:
            raise WaiverError(f"waivers: {error}") from error
        found.append(Waiver(*words, until=day, hosts=hosts))
    return tuple(found)
