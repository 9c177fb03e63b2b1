# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Answer each criterion of a buyer from a findings file: what passed, with the value that was read and its source.

Both files may be another machine's: everything that is used of them is typed and sized here. Pure.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, from_dict, printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.machine.platform_checks import RAIL_LINK_LAYER

from .. import accepted, codec, nodeset, result_schema, suite
from ..accepted import Acceptance
from ..plain_data import PlainView
from .criteria import AUDIT, CRITERIA, EXPECTED, LOG, Criterion

PASS, DIFFERS, NOT_OURS = "pass", "differs on purpose", "not ours"
OPEN, ACCEPTED, NOT_ASKED = "open", "accepted", "not asked"
ANSWERS = (OPEN, DIFFERS, ACCEPTED, PASS, NOT_OURS, NOT_ASKED)
TITLES = {
    AUDIT: "Checks of cmax audit 0.2.1",
    LOG: "Red lines of its log",
    EXPECTED: "Published expectations",
}
MOST_HOSTS = 20_000
# Check's noun -> its role.
_ROLES = {noun: role.name for role in suite.SUITE for noun in role.nouns}
# Characters of host names and of a value in a cell; values and findings in one row.
ROOM, VALUE, VALUES, TEXT = 80, 120, 3, 600


def _each_by_itself(_value: object) -> None:
    """Accept an item that its own reader checks: an invalid one costs no other."""


_host = codec.record(
    optional=("accepted", "acceptances"),
    others=True,
    findings=result_schema.of_findings,
    evidence=result_schema.evidence,
    accepted=result_schema.of_findings,
    acceptances=codec.many(_each_by_itself, 1000),
)
_run = codec.record(
    others=True,
    ended=codec.text(64, re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII), line=True),
    group=codec.many(codec.text(codec.LINE, line=True), MOST_HOSTS),
    limit=codec.maybe(codec.text()),
    simulated=codec.flag,
)


_file = codec.record(
    optional=("off",),
    others=True,
    run=_run,
    hosts=codec.table(_each_by_itself, limit=MOST_HOSTS),
    off=codec.table(codec.text(codec.LINE, line=True)),
)


@dataclass(frozen=True)
class Host:
    """The content of a findings file for a host.

    findings: check -> those that are not ok.   excused: id of one -> the deviation that accepts it today.
    evidence: check -> value and source of each passed id.   invalid: why nothing is known of the host.
    """

    findings: Mapping[str, Sequence[Finding]] = field(default_factory=dict)
    excused: Mapping[str, Acceptance] = field(default_factory=dict)
    evidence: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    invalid: str = ""


_MISSING = Host(invalid="not in this run")


@dataclass(frozen=True)
class Proofs:
    """A findings file.

    hosts: all nodes of the inventory, with those that are not in the file.   off: role -> variable that switches it
    off.   at: when the run ended.
    """

    hosts: Mapping[str, Host]
    off: Mapping[str, str]
    at: str
    limit: str
    simulated: bool


@dataclass(frozen=True)
class Row:
    """The answer to one criterion.

    tool: what the buyer's tool has found, "" where it was not asked or prints a line.   evidence: lines of what was
    read, with hosts and source.   todo: what is open, and what to do.
    """

    criterion: Criterion
    answer: str
    tool: str = ""
    evidence: tuple[str, ...] = ()
    todo: tuple[str, ...] = ()


def proofs(data: object, today: datetime.date) -> Proofs:
    """Read a findings file. An invalid host costs only that host its proof. Raises ParseError."""
    try:
        _file(data)
    except codec.Invalid as error:
        raise ParseError(
            f"it is not a findings file of busbar drift --findings or busbar_findings_path: {error}"
        ) from None
    found = codec.as_dict(data)
    run = found["run"]
    hosts = {name: _of_host(found["hosts"][name], today) for name in found["hosts"]}
    every = {**dict.fromkeys(run["group"], _MISSING), **hosts}
    return Proofs(every, found.get("off") or {}, run["ended"], run.get("limit") or "", run["simulated"])


def joined(files: Sequence[Proofs]) -> Proofs:
    """Return what several runs prove together: of each check of a host the latest result counts."""
    *earlier, found = sorted(files, key=lambda one: one.at)
    for one in reversed(earlier):
        hosts = {
            name: _later(one.hosts.get(name, _MISSING), found.hosts.get(name, _MISSING))
            for name in {**one.hosts, **found.hosts}
        }
        off = {name: why for name, why in found.off.items() if name in one.off}
        limit = ", ".join(filter(None, (one.limit, found.limit)))
        found = Proofs(hosts, off, found.at, limit, one.simulated or found.simulated)
    return found


def _later(one: Host, last: Host) -> Host:
    """Return what two runs have of a host. last: of the later one. An invalid entry leaves nothing that is known."""
    if _MISSING in (one, last):
        return one if last == _MISSING else last
    if one.invalid or last.invalid:
        return last if last.invalid else one
    of_last = {*last.findings, *last.evidence}
    findings = {check: found for check, found in one.findings.items() if check not in of_last}
    evidence = {check: found for check, found in one.evidence.items() if check not in of_last}
    # What the later run has found again is accepted only there.
    ids = [finding.id for found in findings.values() for finding in found if finding.id in one.excused]
    excused = {**{name: one.excused[name] for name in ids}, **last.excused}
    return Host({**findings, **last.findings}, excused, {**evidence, **last.evidence})


def _of_host(data: object, today: datetime.date) -> Host:
    try:
        _host(data)
    except codec.Invalid as error:
        return Host(invalid=f"its entry is not valid: {error}"[:300])
    found = codec.as_dict(data)
    evidence: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for name, (value, source) in found["evidence"].items():
        evidence[name.partition("[")[0]].append((value, source))
    bad = [one for one in map(from_dict, (*found["findings"], *(found.get("accepted") or ()))) if not one.ok]
    by_check: dict[str, list[Finding]] = defaultdict(list)
    for one in bad:
        by_check[one.check].append(one)
    return Host(by_check, accepted.covered(bad, accepted.parse(found.get("acceptances")), today), evidence)


def values(data: object) -> PlainView:
    """Return the values of audit.values.json. Raises ParseError."""
    found = data.get("audit_data") if isinstance(data, dict) else None
    if not isinstance(found, dict):
        raise ParseError("it has no audit_data: name the audit.values.json that cmax audit has written")
    return found


def answer(known: Proofs, asked: PlainView | None) -> list[Row]:
    """Return a row for each criterion. asked: the buyer's values; None: only the suite's own answers."""
    return [_row(one, known, asked) for one in CRITERIA]


def _row(one: Criterion, known: Proofs, asked: PlainView | None) -> Row:
    is_asked = asked is not None and one.kind == AUDIT
    value = _value(asked, one.path or one.key) if asked is not None and is_asked else None
    failed = value is not None and one.failure(value)
    tool = ""
    if is_asked:
        shown = " ".join(printable(str(value)).split())[:VALUE]
        tool = "not collected" if value is None else f"{'failed' if failed else 'passed'}: {shown}"
    answer, lines = _answer(one, known, value is not None and not failed, failed)
    if answer == NOT_OURS and is_asked and value is None:
        answer = NOT_ASKED
    return Row(one, answer, tool, tuple(_evidence(one, known)), tuple(lines))


def _answer(one: Criterion, known: Proofs, has_passed: bool, has_failed: bool) -> tuple[str, Sequence[str]]:
    """Return the answer and its lines. has_passed, has_failed: by the buyer's tool."""
    if one.owner:
        return NOT_OURS, [f"ask {one.owner}"]
    hosts = {name: host for name, host in known.hosts.items() if _concerns(one, host)}
    if not hosts:
        return (
            (NOT_ASKED, [f"no host has rails of {one.link}"]) if known.hosts else (OPEN, ["the inventory has no host"])
        )
    if one.optional:
        hosts = {name: host for name, host in hosts.items() if host.invalid or _has_result(one, host)}
    if not hosts and has_failed and not one.unneeded:
        return OPEN, [f"no host has a result of {one.checks[0]}; {one.proof}".rstrip("; ")]
    if not hosts:
        return NOT_ASKED, [one.unneeded or "no host needs it, or nothing requests it"]
    todo, excused = _todo(one, hosts, known.off)
    if todo:
        return OPEN, todo
    if excused:
        return ACCEPTED, excused
    if one.rule and not has_passed:
        return DIFFERS, [f"{one.rule}: {one.reason}", f"repeat it: {one.experiment}"]
    return PASS, []


def _has_result(one: Criterion, host: Host) -> bool:
    return any(host.evidence.get(check) or host.findings.get(check) for check in one.checks)


def _concerns(one: Criterion, host: Host) -> bool:
    """Return whether a host has such rails; one whose rails are not known may have them."""
    layers = {value for value, _source in host.evidence.get(RAIL_LINK_LAYER.id, ())}
    return not one.link or not layers or one.link in layers


def _value(asked: PlainView, path: str) -> object:
    """Return the value at a path, None without one."""
    found: object = asked
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _evidence(one: Criterion, known: Proofs) -> Iterable[str]:
    """Yield the values of each check, most frequent first, with the number of hosts that have them."""
    for check in one.checks:
        counted: Counter[str] = Counter()
        sources: dict[str, str] = {}
        hosts: set[str] = set()
        for name, host in known.hosts.items():
            for value, source in host.evidence.get(check, ()):
                shown = printable(value)[:VALUE]
                counted[shown] += 1
                sources.setdefault(shown, printable(source)[:VALUE])
                hosts.add(name)
        if counted:
            few = [f"{value} ({number}x, {sources[value]})" for value, number in counted.most_common(VALUES)]
            few += [f"{len(counted) - VALUES} more"] if len(counted) > VALUES else []
            yield f"{check}, {len(hosts)} of {len(known.hosts)} hosts: {'; '.join(few)}"


def _todo(one: Criterion, hosts: Mapping[str, Host], off: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return what is not proven, and what is accepted instead."""
    bad: dict[str, list[str]] = defaultdict(list)
    excused: dict[str, list[str]] = defaultdict(list)
    unproven: dict[str, list[str]] = defaultdict(list)
    first = one.checks[0]
    role = _ROLES.get(first.partition(".")[0], "")
    why = f"{role} is off ({off[role]})" if role in off else f"{first} has no result"
    for name, host in hosts.items():
        found = [each for check in one.checks for each in host.findings.get(check, ())]
        for finding in found:
            rule = host.excused.get(finding.id)
            if rule is not None:
                excused[f"{finding.check}: {rule.reason} ({rule.owner}, until {rule.until})"[:TEXT]].append(name)
                continue
            have = " ".join((finding.have or "nothing").split())[:VALUE]
            bad[f"{finding.check} {finding.subject} is {finding.state}: {have}; {finding.fix or ''}"].append(name)
        if not host.findings.get(first) and not host.evidence.get(first):
            unproven[host.invalid or why].append(name)
    lines = [f"{_hosts(names)}: {text}".rstrip("; ") for text, names in bad.items()]
    lines[VALUES:] = [f"and {len(lines) - VALUES} more findings"] if len(lines) > VALUES else []
    lines += [f"{_hosts(names)}: {text}" + f"; {one.proof}" * bool(one.proof) for text, names in unproven.items()]
    return [*map(printable, lines)], [printable(f"{_hosts(names)}: {text}") for text, names in excused.items()]


def _hosts(names: Sequence[str]) -> str:
    return nodeset.brief(names, ROOM)


def to_dict(rows: Sequence[Row], known: Proofs) -> dict[str, object]:
    """Return the sheet as JSON has it."""
    return {
        "format": 1,
        "simulated": known.simulated,
        "proofs_of": known.at,
        "limit": known.limit or None,
        "hosts": sorted(known.hosts),
        "not_in_the_run": sorted(name for name, host in known.hosts.items() if host.invalid),
        "rows": [
            {
                "kind": row.criterion.kind,
                "key": row.criterion.key,
                "subject": row.criterion.subject,
                "checks": list(row.criterion.checks),
                "answer": row.answer,
                "tool": row.tool or None,
                "evidence": list(row.evidence),
                "todo": list(row.todo),
            }
            for row in rows
        ],
    }


def markdown(rows: Sequence[Row], known: Proofs, source: str) -> Iterable[str]:
    """Yield the lines of the sheet. source: of the proofs."""
    counted = Counter(row.answer for row in rows)
    left = [name for name, host in known.hosts.items() if host.invalid]
    yield "# Acceptance sheet"
    yield ""
    if known.simulated:
        yield "**simulated**: no figure here is a measurement."
        yield ""
    yield f"Hosts: {_hosts(sorted(known.hosts))}, {len(known.hosts)}. Proofs of {known.at} from {printable(source)}."
    if left:
        yield f"Without a result: {_hosts(left)}, {len(left)}."
    if known.limit:
        yield f"The run was limited to {printable(known.limit)}."
    yield f"Answers: {', '.join(f'{counted[one]} {one}' for one in ANSWERS if counted[one])}."
    for kind in dict.fromkeys(row.criterion.kind for row in rows):
        yield ""
        yield f"## {TITLES[kind]}"
        for row in (row for row in rows if row.criterion.kind == kind):
            yield ""
            yield f"### {row.answer}: {row.criterion.subject}"
            yield ""
            yield f"* asked: `{row.criterion.key}`" + (f"; the tool: {_cell(row.tool)}" if row.tool else "")
            for text in (*row.todo, *row.evidence):
                yield f"* {_cell(text)}"


def _cell(text: str) -> str:
    """Return a text in which Markdown and HTML have nothing to interpret."""
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>#|" else sign for sign in " ".join(text.split()))
