# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The verdict over all hosts: what every run ends with, as text and as an exit code.

Fails closed: a host or a role without a result is a finding, not a gap.
"""

from __future__ import annotations

import datetime
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.change import node_lock
from ansible_collections.busbar.fabric.plugins.module_utils.core import redaction
from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import (
    SEVERITIES,
    Finding,
    from_dict,
    printable,
    worst_first,
)
from ansible_collections.busbar.fabric.plugins.module_utils.machine import platform
from ansible_collections.busbar.fabric.plugins.plugin_utils import answer, expected, nodeset, repair, terminal
from ansible_collections.busbar.fabric.plugins.plugin_utils.accepted import Acceptance, split

# More rows, or lines of one kind, than this are not read at night; the rest is counted, and is in the findings file.
ROWS = 60
LINES = 200
ELSEWHERE = "busbar_findings_path=FILE keeps them all"
# Characters of host names: in a cell of the table, in a sentence, and in the list below a remedy.
CELL, SENTENCE, LIST = 22, 180, 2000
# A check that reads something else on more hosts than this is one row of many values, and not as many rows.
VARIETY = 5
# Where these are gone, roles have nothing to judge.
_MISSING = (platform.GPU_COUNT.id, platform.RAIL_DEVICE.id)
AGAIN = "run it again for this host with -vvv"
# Of a run that was ended before its verdict.
ENDED = "run it again; what was done is not undone, and is not done twice"
# Ansible's own words before those of ssh: which of them is chance, namely whether ssh ended before it was written to.
VIA_SSH = ("Failed to connect to the host via ssh: ", "Make sure this host can be reached over ssh: ")
HOST = Check(
    "run.host",
    why="a host that did not answer counts like a host that is wrong",
    fix="check that the node is up and that ssh to it works, then run busbar drift -i INVENTORY --limit HOST",
    severity="critical",
)
"Did the host answer at all; `run.ROLE`: did each role give a result on it"


@dataclass(frozen=True)
class HostVerdict:
    host: str
    findings: tuple[Finding, ...]  # not ok, worst first
    passed_ids: tuple[str, ...] = ()
    repaired: tuple[str, ...] = ()  # ids of what this run mended, or would mend in check mode
    notes: tuple[str, ...] = ()  # what limits the result without being wrong
    checked: tuple[str, ...] = ()  # roles that reported
    lost: tuple[str, ...] = ()  # roles that had to report, and did not
    accepted: tuple[tuple[Finding, Acceptance], ...] = ()  # what is not ok, and accepted in the inventory
    acceptances: tuple[Acceptance, ...] = ()  # all of the inventory, used or not

    @property
    def passed(self) -> int:
        return len(self.passed_ids)

    @property
    def ok(self) -> bool:
        return not self.findings and (self.passed > 0 or bool(self.accepted))


@dataclass(frozen=True)
class Verdict:
    hosts: tuple[HostVerdict, ...]
    expected: tuple[str, ...]  # roles that had to report
    checked: tuple[str, ...]  # those that reported on some host
    off: Mapping[str, str]  # role without a result that is not missing -> the site value that turns it off
    left_out: tuple[str, ...]  # roles that --tags or --skip-tags kept from running
    ended: bool = False  # the run was ended before it had come to all of them

    @property
    def ok(self) -> bool:
        return bool(self.hosts) and not self.ended and all(host.ok for host in self.hosts)

    def scrubbed(self, hidden: Iterable[str]) -> Verdict:
        """Without these secrets: a tool's message may have repeated one."""
        found = redaction.worth_hiding(hidden)
        hosts = [
            replace(
                host,
                findings=tuple(finding.scrubbed(found) for finding in host.findings),
                notes=tuple(redaction.scrub(note, found) for note in host.notes),
                accepted=tuple((finding.scrubbed(found), entry) for finding, entry in host.accepted),
            )
            for host in self.hosts
        ]
        return replace(self, hosts=tuple(hosts))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the findings file: docs/findings.md."""
        return {
            "ok": self.ok,
            "expected": list(self.expected),
            "checked": list(self.checked),
            "off": dict(self.off),
            "left_out": list(self.left_out),
            "hosts": {
                host.host: {
                    "ok": host.ok,
                    "passed": host.passed,
                    "passed_ids": list(host.passed_ids),
                    "repaired": list(host.repaired),
                    "notes": list(host.notes),
                    "findings": [finding.to_dict() for finding in host.findings],
                    "accepted": [finding.to_dict() for finding, _entry in host.accepted],
                    "acceptances": [entry.to_dict() for entry in host.acceptances],
                }
                for host in self.hosts
            },
        }


def played(role: str, variables: Mapping[str, Any]) -> bool:
    """Whether ``--tags`` and ``--skip-tags`` let the role be played. variables: a task's, as Ansible gives them."""
    run = set(variables.get("ansible_run_tags") or ["all"])
    return bool(run & {"all", "tagged", role}) and role not in (variables.get("ansible_skip_tags") or [])


def judge(
    results: Mapping[str, Mapping[str, Any]],
    roles: Sequence[str],
    partial: bool,
    ended: bool = False,
    off: Mapping[str, Mapping[str, str]] | None = None,
) -> Verdict:
    """The verdict on every host.

    results: host -> role -> what the role's module returned, absent where it never ran.
    roles: the roles that had to report. partial: the user limited the run by tags, so that a role which ran on
    no host at all was left out on purpose; it is named, and not counted. ended: the run was ended before its end.
    off: host -> role -> the site value that turns it off; of every other role a full result is expected. None: unknown.
    """
    ran = [role for role in roles if any(role in by_role for by_role in results.values())]
    due = ran if partial else list(roles)
    hosts = [_judged(host, results[host], due, ended, None if off is None else off[host]) for host in sorted(results)]
    reasons = {role: value for of_host in (off or {}).values() for role, value in of_host.items()}
    answered = {role for host in hosts for role in host.checked}
    lost = {role for host in hosts for role in host.lost}
    return Verdict(
        hosts=tuple(hosts),
        expected=tuple(due),
        checked=tuple(role for role in due if role in answered),
        off={role: reasons.get(role, "nothing to judge") for role in due if role not in answered | lost},
        left_out=tuple(role for role in roles if role not in due),
        ended=ended,
    )


def _judged(
    host: str, results: expected.Data, due: Sequence[str], ended: bool, off: Mapping[str, str] | None
) -> HostVerdict:
    """Judge one host. results, off: of it, as in ``judge``. due: the roles that had to report."""
    if ended and due and not results:
        have = "not heard from: the run was ended before"
        return HostVerdict(host, (HOST.judge("host", "unknown", "an answer", have, "ansible-playbook", ENDED),))
    findings: list[Finding] = []
    passed: list[str] = []
    checked, lost = [], []
    valid = {role: answer.given(results.get(role)) for role in ("node_lock", *due)}
    # The lock is no role: it has a result where a run took it or another one had it.
    for role in [*(["node_lock"] if "node_lock" in results else []), *due]:
        if role in (off or {}) and (not valid[role] or valid[role].get("skipped")):
            continue
        because = next((f.id for f in findings if f.check[:4] == "run." or f.check == node_lock.HELD.id), None)
        found, good = _role_result(role, valid[role], because, ended)
        lacking = "" if off is None or role in off or found else expected.lacking(role, valid[role])
        if lacking:
            gone = next((f.id for f in findings if f.check in _MISSING), None)
            found = [_no_result(role, role, lacking, gone)]
        if good or any(f.check[:4] != "run." for f in found):
            checked.append(role)
        elif found:
            lost.append(role)
        findings += (replace(f, have=nodeset.nameless(f.have, host)) if f.check[:4] == "run." else f for f in found)
        passed += good
    if not findings and not due:
        # That nobody else was at work on the host is no check of it.
        have = "nothing was checked: the tags of this run leave no role"
        findings.append(_no_result("host", "host", have, fix="run it again with the tag of a role, or without tags"))
    elif not findings and not passed:
        findings.append(_no_result("host", "host", "nothing was checked on this host"))
    repaired, notes = ([item for of in valid.values() for item in of.get(key) or []] for key in ("repaired", "notes"))
    return HostVerdict(
        host, tuple(worst_first(findings)), tuple(passed), tuple(repaired), tuple(notes), tuple(checked), tuple(lost)
    )


def _role_result(
    role: str, result: Mapping[str, Any], because: str | None, ended: bool
) -> tuple[list[Finding], list[str]]:
    """Findings and the ids of passed checks. because: id of the failure that kept later roles from running."""
    if not result or result.get("skipped"):
        if ended:
            have = "no result: the run was ended before the role was done"
            return [_no_result(role, role, have, because, ENDED)], []
        return [_no_result(role, role, "no result: the role did not run on this host", because)], []
    if result.get("unreachable"):
        fix = result.get("fix") or "check that the node is up and that ssh to it works, then run it again for this host"
        return [_no_result(role, role, "unreachable: {}".format(_of_ssh(_one_line(result.get("msg")))), fix=fix)], []
    if result.get("failed"):
        said = [str(result.get(key)) for key in ("msg", "module_stderr") if result.get(key)]
        have = _one_line("; ".join(said))
        said_whole = have if have.startswith((answer.SAID, "not asked: ")) else f"failed: {have}"
        # Of a node's own answer there is none: plugin_utils/answer.py drops what it does not know.
        return [_no_result(role, role, said_whole, fix=result.get("fix") or AGAIN)], []
    return [from_dict(item) for item in result["findings"]], result["passed"]


def _no_result(role: str, subject: str, have: str, because: str | None = None, fix: str = AGAIN) -> Finding:
    return replace(HOST, id=f"run.{role}").judge(subject, "unknown", "a result", have, "ansible-playbook", fix, because)


def _of_ssh(line: str) -> str:
    """What ssh said itself: one dead port is one row, whichever of its sentences Ansible put in front."""
    for words in VIA_SSH:
        _before, _words, said = line.partition(words)
        if said:
            return said
    return line


def _one_line(text: object) -> str:
    line = " ".join(str(text or "no message").split())
    return line if len(line) <= 300 else line[:300] + " ..."


# -- text ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Row:
    finding: Finding
    hosts: tuple[str, ...]
    follows: int

    @property
    def have(self) -> str:
        said = self.finding.have or "-"
        verb = "follows" if self.follows == 1 else "follow"
        return said + (f" [{self.follows} more {verb} from this]" if self.follows else "")


def render(verdict: Verdict, check_mode: bool, width: int = 120, inventory: Sequence[str] = ()) -> str:
    """The table that the last play prints: one row per cause, worst first, then what to do about each.

    Also what a run that was ended before that has to say. inventory: its paths; without, no command is completed.
    """
    bad = [host for host in verdict.hosts if not host.ok]
    lines = []
    rows = _rows(verdict)
    if rows:
        lines += (_table(rows[:ROWS], width) or _blocks(rows[:ROWS], width)) + [""]
        if len(rows) > ROWS:
            lines += ["... and %d more rows; %s" % (len(rows) - ROWS, ELSEWHERE), ""]
        lines += _remedies(rows[:ROWS], width, inventory)
    repaired = _repaired(verdict, "a run would repair" if check_mode else "repaired", width)
    lines += [*repaired, ""] if repaired else []
    accepted = sum(len(host.accepted) for host in verdict.hosts)
    lines += _accepted(verdict, width)
    passed = sum(host.passed for host in verdict.hosts)
    head = "INCOMPLETE, the run was ended before" if verdict.ended else "ok" if verdict.ok else "NOT OK"
    said = "VERDICT %s: %d of %d hosts ok, %d checks passed%s (%s)" % (
        head,
        len(verdict.hosts) - len(bad),
        len(verdict.hosts),
        passed,
        (f", {tally((row.finding.severity for row in rows), sum(row.follows for row in rows))}" if rows else "")
        + (f", {accepted} accepted" if accepted else ""),
        "check mode: nothing was changed" if check_mode else "apply",
    )
    lines += _wrapped(said, width) + _wrapped("checked: %s" % (", ".join(verdict.checked) or "nothing"), width)
    lines += _not_checked(verdict, width)
    notes: dict[str, list[str]] = {}
    for host in verdict.hosts:
        for note in host.notes:
            notes.setdefault(nodeset.nameless(note, host.host) or "", []).append(host.host)
    told = [f"note ({nodeset.brief(hosts, SENTENCE)}): {note}" for note, hosts in sorted(notes.items())]
    lines += _counted(told, "notes", width, any(len(nodeset.fold(hosts)) > SENTENCE for hosts in notes.values()))
    if verdict.left_out:
        lines += _wrapped("NOT checked, left out by tags: {}".format(", ".join(verdict.left_out)), width)
    return "\n".join(printable(line) for line in lines)


def _not_checked(verdict: Verdict, width: int) -> list[str]:
    """What the inventory turns off, and what was to run and did not."""
    roles: dict[str, list[str]] = {}
    for role, value in verdict.off.items():
        roles.setdefault(value, []).append(role)
    lines = _wrapped("off: " + "; ".join(f"{', '.join(of)} ({value})" for value, of in roles.items()), width)
    hosts: dict[tuple[str, ...], list[str]] = {}
    for role in ("node_lock", *verdict.expected):
        hosts.setdefault(tuple(host.host for host in verdict.hosts if role in host.lost), []).append(role)
    lost = [f"{', '.join(of)} on {nodeset.brief(names, SENTENCE)}" for names, of in hosts.items() if names]
    return lines * bool(roles) + (_wrapped("could not run: " + "; ".join(lost), width) if lost else [])


def accept(verdict: Verdict, entries: Mapping[str, Sequence[Acceptance]], today: datetime.date) -> Verdict:
    """Return the verdict without what the inventory accepts. entries: host -> those of its inventory."""
    hosts = []
    for host in verdict.hosts:
        stand, of, notes = split(host.findings, entries.get(host.host, ()), today)
        hosts.append(
            replace(
                host,
                findings=tuple(worst_first(stand)),
                notes=(*host.notes, *notes),
                accepted=tuple(of),
                acceptances=tuple(entries.get(host.host, ())),
            )
        )
    return replace(verdict, hosts=tuple(hosts))


def _accepted(verdict: Verdict, width: int) -> list[str]:
    """Return a line for each accepted finding, with its hosts, and who answers for it."""
    hosts: dict[tuple[str, str, Acceptance], list[str]] = {}
    for host in verdict.hosts:
        for finding, entry in host.accepted:
            hosts.setdefault((finding.check, finding.subject, entry), []).append(host.host)
    lines = [
        f"accepted on {nodeset.brief(names, SENTENCE)}: {check} {subject}; {entry.reason} ({entry.owner}, until"
        f" {entry.until})"
        for (check, subject, entry), names in hosts.items()
    ]
    return _counted(lines, "accepted findings", width, any(len(nodeset.fold(of)) > SENTENCE for of in hosts.values()))


def not_ok(verdict: Verdict) -> str:
    """What the task fails with."""
    bad = [host.host for host in verdict.hosts if not host.ok]
    return "not ok on %s; the table above says what and why" % (printable(nodeset.brief(bad, SENTENCE)) or "any host")


def _rows(verdict: Verdict) -> list[_Row]:
    """Roots, the same finding on several hosts joined; consequences are counted at their root."""
    # What is told of several hosts in the same words names them alike to all.
    shared = Counter((finding.id, finding.have) for host in verdict.hosts for finding in host.findings)
    everywhere = {finding.id for host in verdict.hosts for finding in host.findings if finding.because is None}
    of_others: Counter[str] = Counter()
    hosts: dict[tuple[Any, ...], list[str]] = {}
    first: dict[tuple[Any, ...], Finding] = {}
    follows: dict[tuple[Any, ...], int] = {}
    for host in verdict.hosts:
        ids = {finding.id for finding in host.findings}
        key_of: dict[str, tuple[Any, ...]] = {}
        consequences = []
        for finding in host.findings:
            if finding.because in ids and finding.because != finding.id:
                consequences.append(finding)
                continue
            if finding.because not in ids and finding.because in everywhere:
                # Of a job of several nodes the cause may be on another one of them.
                of_others[finding.because or ""] += 1
                continue
            alone = shared[finding.id, finding.have] == 1
            have = nodeset.nameless(finding.have, host.host) if alone else finding.have
            kind = (finding.check, finding.subject, finding.state, finding.aspect, finding.severity, finding.want)
            # What differs in what is to be done is never one row.
            key = (*kind, nodeset.nameless(finding.fix, host.host), have)
            hosts.setdefault(key, []).append(host.host)
            first.setdefault(key, replace(finding, have=have))
            key_of[finding.id] = key
        for finding in consequences:
            root = _root(finding, host.findings)
            if root in key_of:
                follows[key_of[root]] = follows.get(key_of[root], 0) + 1
    for key, finding in first.items():
        follows[key] = follows.get(key, 0) + of_others.pop(finding.id, 0)
    alike: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for key in first:
        alike.setdefault(key[:-1], []).append(key)
    rows = {}
    for keys in alike.values():
        for joined in [keys] if len(keys) > VARIETY else [[key] for key in keys]:
            finding = first[joined[0]]
            if len(joined) > 1:
                finding = replace(finding, have=_most_often({key[-1]: len(hosts[key]) for key in joined}))
            names = tuple(name for key in joined for name in hosts[key])
            rows[id(finding)] = _Row(finding, names, sum(follows.get(key, 0) for key in joined))
    return [rows[id(finding)] for finding in worst_first(row.finding for row in rows.values())]


def _most_often(counts: Mapping[str | None, int]) -> str:
    """counts: what was read -> on how many hosts."""
    common = ", ".join("%s (%d)" % (have or "nothing", count) for have, count in Counter(counts).most_common(3))
    return "%d different values, most often %s" % (len(counts), common)


def _root(finding: Finding, findings: Sequence[Finding]) -> str:
    """Id of the finding at the end of the because chain."""
    by_id = {item.id: item for item in findings}
    seen = set()
    while finding.because in by_id and finding.id not in seen:
        seen.add(finding.id)
        finding = by_id[finding.because or ""]
    return finding.id


def _table(rows: Sequence[_Row], width: int) -> list[str]:
    """Return nothing where the terminal is too narrow for it."""
    cells = [("SEVERITY", "STATE", "HOST", "CHECK", "SUBJECT", "WANT", "HAVE")]
    for row in rows:
        found = row.finding
        hosts = nodeset.brief(row.hosts, CELL)
        cells.append((found.severity, found.state, hosts, found.check, found.subject, found.want or "-", row.have))
    return terminal.columns(cells, (8, 11, CELL, 28, 30), width)


def _blocks(rows: Sequence[_Row], width: int) -> list[str]:
    """What the table says, one cell below the other."""
    lines = ["SEVERITY  STATE  HOST  CHECK  SUBJECT"]
    for row in rows:
        found = row.finding
        hosts = nodeset.brief(row.hosts, CELL)
        lines += _wrapped("  ".join((found.severity, found.state, hosts, found.check, found.subject)), width)
        lines += _wrapped("want %s" % (found.want or "-"), width, 4) + _wrapped(f"have {row.have}", width, 4)
    return lines


def _remedies(rows: Sequence[_Row], width: int, inventory: Sequence[str]) -> list[str]:
    """Each remedy once, in the order of the table, with why it matters and the hosts that the table had no room for."""
    of_remedy: dict[tuple[str, str], list[_Row]] = {}
    for row in rows:
        of_remedy.setdefault((row.finding.check, row.finding.fix), []).append(row)
    lines: list[str] = []
    for (check, fix), found in of_remedy.items():
        lines += _wrapped(f"{check}: {found[0].finding.why}", width) + _wrapped("do: " + fix, width, 4)
        hosts = sorted({name for row in found for name in row.hosts})
        command = repair.command(fix, hosts, inventory) if inventory else ""
        # Not wrapped: it is to be copied.
        lines += [f"    $ {command}"] * bool(command)
        if any(len(nodeset.fold(row.hosts)) > CELL for row in found):
            names = nodeset.brief(hosts, LIST)
            names += "; " + ELSEWHERE if " and " in names else ""
            # A name is not torn apart where a comma is near.
            lines += [line.replace(", ", ",") for line in _wrapped("on: " + names.replace(",", ", "), width, 4)]
    return [*lines, ""]


def _repaired(verdict: Verdict, head: str, width: int) -> list[str]:
    """A line for each check and the hosts on which this run mended the same of it."""
    hosts: dict[str, list[str]] = {}
    for host in verdict.hosts:
        for item in set(host.repaired):
            hosts.setdefault(item, []).append(host.host)
    subjects: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for item in sorted(hosts):
        check, _at, subject = item.partition("@")
        subjects.setdefault((check, tuple(hosts[item])), []).append(subject)
    lines = [
        "{} on {}: {}".format(head, nodeset.brief(names, SENTENCE), check + "@" * any(found) + ", ".join(found))
        for (check, names), found in subjects.items()
    ]
    return _counted(lines, "repairs", width, any(len(nodeset.fold(names)) > SENTENCE for _check, names in subjects))


def _counted(lines: Sequence[str], what: str, width: int, names_cut: bool) -> list[str]:
    """As many as are read, and where the others are. names_cut: there are more hosts than a line had room for."""
    more = ["... and %d more %s; %s" % (len(lines) - LINES, what, ELSEWHERE)] if len(lines) > LINES else []
    if names_cut and not more:
        more = [f"... and more hosts, as counted above; {ELSEWHERE}"]
    return [part for line in [*lines[:LINES], *more] for part in _wrapped(line, width)]


def _wrapped(text: str, width: int, indent: int = 0) -> list[str]:
    """Its lines; those after the first are set off."""
    first, further = " " * indent, " " * (indent + 4)
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=further, break_on_hyphens=False)


def tally(severities: Iterable[str], follow: int) -> str:
    """Return the number of findings of each severity. severities: of the roots. follow: how many others they cause."""
    counts = Counter(severities)
    parts = [f"{counts[severity]} {severity}" for severity in SEVERITIES if counts[severity]]
    return ", ".join([*parts, f"and {follow} that follow{'s' * (follow == 1)}"] if follow else parts)
