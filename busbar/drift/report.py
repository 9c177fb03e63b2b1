# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Build the report as plain data, the source of every output and of ``busbar drift --json``. Pure."""

from __future__ import annotations

import datetime
import itertools
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.busbar.fabric.plugins.module_utils.core import fix_command
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import SEVERITIES, Finding
from ansible_collections.busbar.fabric.plugins.plugin_utils import accepted, finding_groups, nodeset, repair
from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import FINDINGS, GOOD, UNKNOWN
from ansible_collections.busbar.fabric.plugins.plugin_utils.finding_groups import DIFFERS, Group, Row
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

from . import health, job_bandwidth
from .compare import NIGHTS, Changes, Mark
from .run import CLASSES, HostResult, Run, Trail, Waiver, parse_waivers

FORMAT = 1
OPEN = CLASSES[:4]
# Runs in the history strip and in the trends.
STRIP = 30
SUBJECTS = 8
# Robust z-score (median and MAD) from which a bus bandwidth stands out, and how far below the median it has to be.
SCORE = 3.5
SHARE = 0.98

# Fields of a group that its findings have alike, and of the run.
_OF_FINDING = ("check", "aspect", "state", "severity", "want", "source", "why", "fix", "disruption")
_OF_RUN = ("id", "started", "ended", "limit", "version", "user", "commit", "fail_on")


@dataclass(frozen=True)
class ReportInput:
    """The inputs of a report. started: number of every run -> its start.

    trail: earlier runs, oldest first: run, summary, host -> class, busbw, devices. again: the command that shows
    this run again.
    """

    run: Run
    hosts: Mapping[str, HostResult]
    marks: Mapping[str, Mapping[str, Mark]]
    changes: Mapping[str, Changes]
    trail: Trail
    started: Mapping[int, str]
    again: tuple[str, ...]


def build(night: ReportInput) -> Plain:
    """Return the report. Keys and meaning: docs/report.md."""
    found_waivers = parse_waivers(night.run.waivers)
    today = datetime.date.fromisoformat(night.run.started[:10])
    waived = {
        name: accepted.covered(host.findings, [one for one in found_waivers if name in one.hosts], today)
        for name, host in night.hosts.items()
    }
    rows = [row for name, host in night.hosts.items() for row in _rows(host, waived[name])]
    groups = finding_groups.fold(rows)
    of_hosts = {
        name: [one for key, one in host.by_id.items() if key not in waived[name]] for name, host in night.hosts.items()
    }
    classes = {name: classify(host, of_hosts[name]) for name, host in night.hosts.items()}
    standing = [_group(group, night) for group in groups if group.waiver is None]
    counts = _counts(night, classes, [group for group in groups if group.waiver is None])
    folded = {kind: _ids(night, kind) for kind in ("fixed", "gone", "unverified", "flapping")}
    counts["ways"] = {kind: sum(bool(group[kind]) for group in standing) for kind in ("new", "standing")}
    counts["ways"].update({kind: len(found) for kind, found in folded.items()})
    unknown = {name for name, found in of_hosts.items() if any(one.state not in DIFFERS for one in found)}
    unknown.update(name for name, of_host in classes.items() if of_host in OPEN)
    code = exit_code(night.run.fail_on, itertools.chain(*of_hosts.values()), unknown)
    figures = _busbw(night)
    data: Plain = {
        "format": FORMAT,
        "simulated": night.run.simulated,
        "run": _run(night),
        "exit_code": code,
        "verdict": {0: "in sync", 2: "drift", 3: "incomplete"}[code],
        "headline": headline(counts, unknown, night.run.simulated),
        "news": _news(night, classes, counts["ways"], code),
        "counts": counts,
        "open": {
            name: nodeset.fold(host for host, of_host in classes.items() if of_host == name)
            for name in OPEN
            if counts["hosts"][name]
        },
        "groups": standing,
        "notes": _notes(night),
        "waived": [_group(group, night) for group in groups if group.waiver is not None],
        "waivers": [_waiver(waiver, today, rows) for waiver in found_waivers],
        **folded,
        "outliers": figures.pop("outliers"),
        "busbw": figures,
        "health": health.build(
            [{name: devices for name, (_, _, devices) in hosts.items()} for _, _, hosts in night.trail], night.hosts
        ),
        # Results on the control node, read when the report is written.
        "related": [],
        "history": [*(summary for _, summary, _ in night.trail), summary_of(night.run, counts, code, figures)],
    }
    of_group = {(row.host, row.finding.id): group.fingerprint for group in groups for row in group.rows}
    data["hosts"] = {name: _host(night, name, classes[name], of_group) for name in sorted(night.hosts)}
    return data


def _notes(night: ReportInput) -> list[Plain]:
    """Return what limits the result without being wrong, with its hosts, such as another run at work there."""
    hosts: dict[str, list[str]] = {}
    for host in night.hosts.values():
        for note in host.notes:
            hosts.setdefault(note, []).append(host.host)
    return [
        {"text": text, "nodes": nodeset.fold(found), "count": len(found)}
        for text, found in sorted(hosts.items(), key=lambda item: (-len(item[1]), item[0]))
    ]


def classify(host: HostResult, open_: Sequence[Finding]) -> str:
    """Return one of CLASSES. open_: findings that are not accepted."""
    if host.findings and not open_:
        return "waived"
    if host.end != "complete":
        return host.end
    if any(finding.state in DIFFERS for finding in open_):
        return "drift"
    return "incomplete" if open_ or not host.passed else "in_sync"


def exit_code(fail_on: str, standing: Iterable[Finding], unknown: Collection[str]) -> int:
    """Return FINDINGS for a difference as bad as ``--fail-on``, UNKNOWN for hosts without a full result."""
    counted = SEVERITIES[: SEVERITIES.index(fail_on) + 1]
    if any(one.state in DIFFERS and one.severity in counted for one in standing):
        return FINDINGS
    return UNKNOWN if unknown else GOOD


def headline(counts: Plain, unknown: Collection[str], simulated: bool) -> str:
    """Return the result in one sentence. unknown: hosts without a full result."""
    hosts = counts["hosts"]
    total, judged = counts["total"], counts["total"] - len(unknown)
    parts = [f"{judged:,} of {total:,} hosts checked in full"]
    parts += [f"{hosts[name]:,} {name.replace('_', ' ')}" for name in OPEN if hosts[name]]
    differ, found = counts["hosts_differ"], counts["groups"]
    text = ", ".join(parts) + "; " + (f"{differ:,} differ{'s' * (differ == 1)}" if differ else "no drift found")
    if found:
        severities: Iterable[str] = Counter(counts["severity"]).elements()
        text += f"; {found} finding{'s' * (found != 1)}: {finding_groups.tally(severities, counts['follow'])}"
    return text + (f"; {hosts['waived']:,} accepted" if hosts["waived"] else "") + (" (simulated)" if simulated else "")


def _news(night: ReportInput, classes: Mapping[str, str], ways: Mapping[str, int], code: int) -> bool:
    """Return whether the run differs from the previous one, which is notified."""
    # A run with another --limit judged other hosts.
    runs = sorted(night.trail, key=lambda past: past[0].limit == night.run.limit)
    before = runs[-1][1]["exit_code"] if runs else GOOD
    last = {name: past[0] for _, _, hosts in night.trail for name, past in hosts.items()}
    other = any(last.get(name, of_host) != of_host for name, of_host in classes.items())
    return other or code != before or any(ways[kind] for kind in ("new", "fixed", "gone"))


def summary_of(run: Run, counts: Plain, code: int, figures: Plain) -> Plain:
    """Return what the history strip stores of a run."""
    return {
        "run": run.id,
        "started": run.started,
        "exit_code": code,
        "hosts": counts["hosts"],
        "groups": counts["groups"],
        "new": counts["ways"]["new"],
        "fixed": counts["ways"]["fixed"],
        "busbw": {name: values["tonight"] for name, values in figures["runs"].items()},
    }


# -- groups and hosts --------------------------------------------------------------------------------------------------


def _rows(host: HostResult, waived: Mapping[str, Waiver]) -> Iterable[Row]:
    by_id = host.by_id
    # A consequence that is not accepted with its cause has its own row.
    for covered in (True, False):
        mine = [finding for name, finding in by_id.items() if (name in waived) == covered]
        for name, follows in finding_groups.roots(mine).items():
            yield Row(host.host, by_id[name], follows, waived.get(name))


def _group(group: Group, night: ReportInput) -> Plain:
    finding, hosts, subjects, waiver = group.finding, group.hosts, group.subjects, group.waiver
    marks = {row: night.marks.get(row.host, {}).get(row.finding.id) for row in group.rows}
    first = min((mark.first for mark in marks.values() if mark), default=night.run.id)
    where = {
        kind: nodeset.fold(row.host for row in group.rows if row.finding.id in getattr(night.changes[row.host], kind))
        for kind in ("new", "standing", "flapping")
    }
    # Earlier runs do not explain why a host does not respond.
    origins = Counter(mark.origin for row, mark in marks.items() if mark and night.hosts[row.host].judged)
    inventory, parsed = night.run.inventory.split("\n"), fix_command.parse(finding.fix)
    return {
        "fingerprint": group.fingerprint,
        **{name: getattr(finding, name) for name in _OF_FINDING},
        "have": group.have,
        "subjects": subjects[:SUBJECTS],
        "more_subjects": len(subjects[SUBJECTS:]),
        "nodes": nodeset.fold(hosts),
        "count": len(hosts),
        **where,
        "origins": dict(origins),
        "first": {"run": first, "started": night.started.get(first, night.run.started)},
        "follows": group.follows,
        "command": repair.command(finding.fix, hosts, inventory, night.again, group.fingerprint),
        "repairs": bool(parsed and parsed.mends),
        "alike": group.shared_hint,
        "waiver": waiver and {"owner": waiver.owner, "reason": waiver.reason, "expires": waiver.until.isoformat()},
    }


def _host(night: ReportInput, name: str, kind: str, of_group: Mapping[tuple[str, str], str]) -> Plain:
    host, changes, marks = night.hosts[name], night.changes[name], night.marks.get(name, {})
    found = []
    for finding in host.by_id.values():
        mark = marks.get(finding.id)
        more = {
            "label": next((text for text in ("new", "standing") if finding.id in getattr(changes, text)), ""),
            "flapping": finding.id in changes.flapping,
            "origin": mark.origin if mark else None,
            "first": night.started.get(mark.first, night.run.started) if mark else night.run.started,
            # A consequence of another finding has no group.
            "group": of_group.get((name, finding.id)),
        }
        found.append({**finding.to_dict(), **more})
    nights = [hosts.get(name, ("", {}, ()))[0] for _, _, hosts in night.trail[1 - NIGHTS :]]
    return {
        **{key: getattr(host, key) for key in ("end", "intent", "evidence", "busbw")},
        "class": kind,
        "notes": [*host.notes],
        "passed": len(host.passed),
        "findings": found,
        "fixed": sorted(changes.fixed),
        "unverified": sorted(changes.unverified),
        "nights": [*nights, kind],
    }


def _ids(night: ReportInput, kind: str) -> list[Plain]:
    """Return findings by id, folded: the hosts for which each is new, fixed and so on."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for host, changes in night.changes.items():
        for name in getattr(changes, kind):
            check, _, subject = name.partition("@")
            hosts, subjects = found.setdefault(check, (set(), set()))
            hosts.add(host)
            subjects.add(subject)
    order = sorted(found.items(), key=lambda item: (-len(item[1][0]), item[0]))
    return [
        {"check": check, "subjects": sorted(subjects)[:SUBJECTS], "nodes": nodeset.fold(hosts), "count": len(hosts)}
        for check, (hosts, subjects) in order
    ]


def _waiver(waiver: Waiver, today: datetime.date, rows: Sequence[Row]) -> Plain:
    used = any(row.host in waiver.hosts and waiver.covers(row.finding) for row in rows)
    state = "expired" if waiver.until < today else "active" if used else "unused"
    return {"subject": "", **waiver.to_plain(), "state": state}


def _counts(night: ReportInput, classes: Mapping[str, str], standing: Sequence[Group]) -> Plain:
    of_class = Counter(classes.values())
    differ = [group for group in standing if group.finding.state in DIFFERS]
    roots = {(row.host, row.finding.id) for group in standing for row in group.rows}
    changes = night.changes.items()
    return {
        "total": len(night.hosts),
        "hosts": {name: of_class[name] for name in CLASSES},
        "hosts_differ": len({host for group in differ for host in group.hosts}),
        # As in the table: causes, and separately how many findings they lead to.
        "groups": len(standing),
        "severity": {name: sum(group.finding.severity == name for group in standing) for name in SEVERITIES},
        "follow": sum(group.follows for group in standing),
        **{
            kind: sum((host, name) in roots for host, change in changes for name in getattr(change, kind))
            for kind in ("new", "standing")
        },
        **{
            kind: sum(len(getattr(change, kind)) for _host, change in changes)
            for kind in ("fixed", "gone", "unverified", "flapping")
        },
        "passed": sum(len(host.passed) for host in night.hosts.values()),
    }


def _run(night: ReportInput) -> Plain:
    run = night.run
    previous = night.trail[-1][0] if night.trail else None
    return {
        **{name: getattr(run, name) for name in _OF_RUN},
        "inventory": run.inventory.split("\n"),
        "previous": previous and {"id": previous.id, "started": previous.started},
    }


# -- the fleet ---------------------------------------------------------------------------------------------------------


def _busbw(night: ReportInput) -> Plain:
    """Return benchmark figures: this run's spread and the trend of each, per host the figure of the first."""
    tonight = {name: host.busbw for name, host in night.hosts.items()}
    names = sorted({run for of_host in tonight.values() for run in of_host})
    slow: dict[str, list[tuple[float, str]]] = {}
    runs: Plain = {}
    for name in names:
        values = {host: of_host[name]["busbw"] for host, of_host in tonight.items() if name in of_host}
        bars = {of_host[name]["bar"] for of_host in tonight.values() if name in of_host} - {None, 0}
        middle = statistics.median(values.values())
        deviation = statistics.median(abs(value - middle) for value in values.values())
        for host, value in sorted(values.items()):
            low = value < middle * SHARE and 0.6745 * (middle - value) >= SCORE * deviation
            if len(values) >= finding_groups.FLEET and low and not name.startswith(job_bandwidth.PREFIX):
                slow.setdefault(host, []).append((value / middle, f"{name} {value:.1f} GB/s of {middle:.1f}"))
        spread = [min(values.values()), middle, max(values.values())]
        trend = [summary["busbw"].get(name) for _, summary, _ in night.trail if summary.get("busbw")]
        runs[name] = {"bars": sorted(bars), "tonight": spread, "hosts": len(values), "trend": [*trend, spread]}
    lead = next((name for name in names if name.startswith("all_reduce")), names[0] if names else None)
    trends = {}
    for host, of_host in tonight.items():
        if lead and lead in of_host:
            past = [hosts.get(host, ("", {}, ()))[1].get(lead, {}).get("busbw") for _, _, hosts in night.trail]
            trends[host] = [*past[1 - 2 * NIGHTS :], of_host[lead]["busbw"]]
    outliers = []
    for host, found in slow.items():
        what = f"slow for this fleet, whatever the bar, in {len(found)} of {len(tonight[host])} runs"
        have = f"{min(found)[0]:.0%}: {min(found)[1]}"
        outliers.append({"nodes": host, "what": what, "have": have, "want": "the median of the fleet"})
    return {"runs": runs, "lead": lead, "hosts": trends, "outliers": outliers}
