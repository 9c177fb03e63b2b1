# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Return the verdict over all hosts, which ends every run, as text and as an exit code.

Fails closed: a host or a role without a result is a finding, not a gap.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ansible_collections.busbar.fabric.plugins.module_utils.change import node_lock
from ansible_collections.busbar.fabric.plugins.module_utils.core import redaction
from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import start_way_out
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, printable, worst_first
from ansible_collections.busbar.fabric.plugins.module_utils.machine import platform_checks

from . import expected_roles, finding_groups, nodeset, repair, result_schema, screen
from .accepted import Acceptance, split
from .nodeset import grouped
from .plain_data import Plain, PlainView
from .role_result import FAILED, MISSING, UNREACHABLE, RoleResult

_NONE = RoleResult(MISSING)
# Where to find everything that a screen leaves out.
ELSEWHERE = "-v, or -e busbar_findings_path=FILE"
# Checks of parts without which roles have nothing to judge.
_MISSING = (platform_checks.GPU_COUNT.id, platform_checks.RAIL_DEVICE.id)
AGAIN = "run it again for this host with -vvv"
# Advice for a run that was ended before its verdict.
ENDED = "run it again; what was done is not undone, and is not done twice"
# Which of the two it is depends on whether ssh ended before it was written to.
_VIA_SSH = re.compile("^.*(Failed to connect to the host via ssh|Make sure this host can be reached over ssh): (?=.)")
HOST = Check(
    "run.host",
    why="a host that did not respond counts like a faulty host",
    fix="check that the node is up and that ssh to it works, then run busbar drift -i INVENTORY --limit HOST",
    severity="critical",
)
"Did the host respond; `run.ROLE`: did each role give a result on it"


@dataclass(frozen=True)
class HostVerdict:
    host: str
    findings: tuple[Finding, ...]  # not ok, worst first
    passed_ids: tuple[str, ...] = ()
    repaired: tuple[str, ...] = ()  # ids of findings repaired by this run, or in check mode to be repaired
    notes: tuple[str, ...] = ()  # limits of the result that are no fault
    checked: tuple[str, ...] = ()  # roles that reported
    lost: tuple[str, ...] = ()  # roles that had to report, and did not
    accepted: tuple[tuple[Finding, Acceptance], ...] = ()  # not ok, and accepted in the inventory
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
    simulated: bool = False  # on simulated hosts

    @property
    def ok(self) -> bool:
        return bool(self.hosts) and not self.ended and all(host.ok for host in self.hosts)

    def scrubbed(self, hidden: Iterable[str]) -> Verdict:
        """Without these secrets: a tool's message may have repeated one."""
        found = redaction.secret_texts(hidden)
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

    def to_dict(self) -> Plain:
        """Return plain data for the findings file: docs/findings.md."""
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


def played(role: str, variables: PlainView) -> bool:
    """Return whether ``--tags`` and ``--skip-tags`` let the role be played. variables: of a task, from Ansible."""
    run = set(variables.get("ansible_run_tags") or ["all"])
    return bool(run & {"all", "tagged", role}) and role not in (variables.get("ansible_skip_tags") or [])


def judge(
    results: Mapping[str, Mapping[str, RoleResult]],
    roles: Sequence[str],
    partial: bool,
    ended: bool = False,
    off: Mapping[str, Mapping[str, str]] | None = None,
) -> Verdict:
    """Return the verdict on every host.

    results: host -> role -> its result, absent where it never ran.
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
    host: str, results: Mapping[str, RoleResult], due: Sequence[str], ended: bool, off: Mapping[str, str] | None
) -> HostVerdict:
    """Judge one host. results, off: of it, as in ``judge``. due: the roles that had to report."""
    if ended and due and not results:
        have = "no result: the run was ended before"
        return HostVerdict(host, (HOST.judge("host", "unknown", "a result", have, "ansible-playbook", ENDED),))
    findings: list[Finding] = []
    passed: list[str] = []
    checked, lost = [], []
    given = {role: results.get(role, _NONE) for role in ("node_lock", *due)}
    # The lock is not a role: it has a result where a run took it or another one had it.
    for role in [*(["node_lock"] if "node_lock" in results else []), *due]:
        if role in (off or {}) and given[role].state == MISSING:
            continue
        because = next((f.id for f in findings if f.check[:4] == "run." or f.check == node_lock.HELD.id), None)
        found, good = _role_result(role, given[role], because, ended)
        lacking = "" if off is None or role in off or found else expected_roles.lacking(role, given[role])
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
        # An unlocked host is not a check.
        have = "nothing was checked: the tags of this run leave no role"
        findings.append(_no_result("host", "host", have, fix="run it again with the tag of a role, or without tags"))
    elif not findings and not passed:
        findings.append(_no_result("host", "host", "nothing was checked on this host"))
    repaired = tuple(item for of in given.values() for item in of.repaired)
    notes = tuple(item for of in given.values() for item in of.notes)
    return HostVerdict(host, tuple(worst_first(findings)), tuple(passed), repaired, notes, tuple(checked), tuple(lost))


def _role_result(
    role: str, result: RoleResult, because: str | None, ended: bool
) -> tuple[Sequence[Finding], Sequence[str]]:
    """Return findings and ids of passed checks. because: id of the failure that kept later roles from running."""
    if result.state == MISSING:
        if ended:
            have = "no result: the run was ended before the role was done"
            return [_no_result(role, role, have, because, ENDED)], []
        return [_no_result(role, role, "no result: the role did not run on this host", because)], []
    if result.state == UNREACHABLE:
        fix = result.fix or "check that the node is up and that ssh to it works, then run it again for this host"
        # Without Ansible's sentence before that of ssh, so that one dead port is one row.
        have = _VIA_SSH.sub("", _one_line(result.msg))
        return [_no_result(role, role, f"unreachable: {have}", fix=fix)], []
    if result.state == FAILED:
        have = _one_line(result.msg)
        whole = have if have.startswith((result_schema.SAID, result_schema.NOT_QUERIED)) else f"failed: {have}"
        return [_no_result(role, role, whole, fix=result.fix or start_way_out(have) or AGAIN)], []
    return result.findings, result.passed


def _no_result(role: str, subject: str, have: str, because: str | None = None, fix: str = AGAIN) -> Finding:
    return HOST._replace(id=f"run.{role}").judge(subject, "unknown", "a result", have, "ansible-playbook", fix, because)


def _one_line(text: object) -> str:
    line = " ".join(str(text or "no message").split())
    return line if len(line) <= 300 else line[:300] + " ..."


def accept(verdict: Verdict, entries: Mapping[str, Sequence[Acceptance]], today: datetime.date) -> Verdict:
    """Return the verdict without findings that the inventory accepts. entries: host -> those of its inventory."""
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


def not_ok(verdict: Verdict) -> str:
    """Return the message that the task fails with."""
    bad = [host.host for host in verdict.hosts if not host.ok]
    return "not ok on %s; the verdict above names the findings" % (printable(nodeset.brief(bad, 180)) or "any host")


def render(
    verdict: Verdict,
    check_mode: bool,
    width: int = 120,
    inventory: Sequence[str] = (),
    limit: str | None = None,
    verbose: bool = False,
) -> str:
    """Return the text of the last play, or of a run that was ended before it: one screen, or all with ``verbose``.

    inventory: its paths; without, no command is completed. limit: of the run; None where it includes other hosts.
    """
    roots = finding_groups.rows_of({host.host: host.findings for host in verdict.hosts})
    rows = screen.rows(finding_groups.fold(roots))

    def command(fix: str, hosts: Sequence[str], _groups: str) -> str:
        whole = limit is not None and len(hosts) == len(verdict.hosts)
        return repair.command(fix, limit or "" if whole else hosts, inventory) if inventory else ""

    proven = any(row.finding.state in finding_groups.DIFFERS for row in rows)
    word = "OK" if verdict.ok else "NOT OK" if proven and not verdict.ended else "INCOMPLETE"
    head = screen.summary(
        word + ", the run was ended before" * verdict.ended,
        sum(host.ok for host in verdict.hosts),
        len(verdict.hosts),
        sum(host.passed for host in verdict.hosts),
        sum(len(host.accepted) for host in verdict.hosts),
    )
    mode = ("check mode" if check_mode else "apply") + ") (simulated" * verdict.simulated
    rest = _rest(verdict, "a run would repair" if check_mode else "repaired", width, verbose)
    return screen.render(head, mode, rows, rest, command, width, ELSEWHERE, verbose)


def _rest(verdict: Verdict, repaired: str, width: int, verbose: bool) -> list[str]:
    hosts = verdict.hosts

    def listed(head: str, items: Iterable[str]) -> list[str]:
        return screen.listed(head, [*items], width, verbose)

    def joined(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
        """Return nodeset -> the items of exactly these hosts. pairs: item, host."""
        return grouped((nodeset.fold(names), item) for item, names in sorted(grouped(pairs).items()))

    repairs = [(item, host.host) for host in hosts for item in dict.fromkeys(host.repaired)]
    if verbose:
        texts = [f"{repaired} on {on}: {', '.join(items)}" for on, items in joined(repairs).items()]
        lines = screen.each(texts, width, verbose)
    else:
        on = nodeset.brief((host for _item, host in repairs), screen.CELL)
        lines = listed(f"{repaired} on {on}: ", dict.fromkeys(item.partition("[")[0] for item, _ in sorted(repairs)))
    accepted = grouped(
        (f"{finding.check} {finding.subject}; {entry.reason} ({entry.owner}, until {entry.until})", host.host)
        for host in hosts
        for finding, entry in host.accepted
    )
    lines += screen.each([f"accepted on {nodeset.fold(on)}: {text}" for text, on in accepted.items()], width, verbose)
    lines += listed("checked: ", verdict.checked or ["nothing"])
    off = grouped((value, role) for role, value in verdict.off.items())
    lines += listed("off: ", (f"{', '.join(roles)} ({value})" for value, roles in off.items()))
    lost = joined((role, host.host) for host in hosts for role in host.lost)
    lines += listed("could not run: ", (f"{', '.join(roles)} on {on}" for on, roles in lost.items()))
    notes = grouped((nodeset.nameless(note, host.host) or "", host.host) for host in hosts for note in {*host.notes})
    on_most = sorted((-len(names), text, nodeset.fold(names)) for text, names in notes.items())
    texts = [f"note ({'all hosts' if -count == len(hosts) > 1 else on}): {text}" for count, text, on in on_most]
    lines += screen.each(texts, width, verbose)
    return lines + listed("NOT checked, left out by tags: ", verdict.left_out)
