# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The verdict over all hosts: what every run ends with, as text and as an exit code.

Fails closed: a host or a role without a result is a finding, not a gap.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .finding import SEVERITIES, Finding, from_dict, printable, worst_first

# More rows than this are not read at night; the rest is counted, and is in the findings file.
ROWS = 60
NAMES = 100


@dataclass(frozen=True)
class HostVerdict:
    host: str
    findings: Tuple[Finding, ...]  # not ok, worst first
    passed_ids: Tuple[str, ...]
    repaired: Tuple[str, ...]  # ids of what this run mended, or would mend in check mode
    notes: Tuple[str, ...]  # what limits the result without being wrong

    @property
    def passed(self) -> int:
        return len(self.passed_ids)

    @property
    def ok(self) -> bool:
        return not self.findings and self.passed > 0


@dataclass(frozen=True)
class Verdict:
    hosts: Tuple[HostVerdict, ...]
    checked: Tuple[str, ...]  # roles that ran
    left_out: Tuple[str, ...]  # roles that --tags or --skip-tags kept from running

    @property
    def ok(self) -> bool:
        return bool(self.hosts) and all(host.ok for host in self.hosts)

    def to_dict(self) -> Dict[str, Any]:
        """Plain data for the findings file: docs/findings.md."""
        return {
            "ok": self.ok,
            "checked": list(self.checked),
            "left_out": list(self.left_out),
            "hosts": {
                host.host: {
                    "ok": host.ok,
                    "passed": host.passed,
                    "passed_ids": list(host.passed_ids),
                    "repaired": list(host.repaired),
                    "notes": list(host.notes),
                    "findings": [finding.to_dict() for finding in host.findings],
                }
                for host in self.hosts
            },
        }


def audited(variables: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Host -> what fleet_audit has heard of it; {} where it asked nobody. variables: any host's, all hold the same."""
    return (variables.get("fleet_audit_result") or {}).get("hosts") or {}


def played(role: str, variables: Mapping[str, Any]) -> bool:
    """Whether ``--tags`` and ``--skip-tags`` let the role be played. variables: a task's, as Ansible gives them."""
    run = set(variables.get("ansible_run_tags") or ["all"])
    return bool(run & {"all", "tagged", role}) and role not in (variables.get("ansible_skip_tags") or [])


def judge(results: Mapping[str, Mapping[str, Any]], roles: Sequence[str], partial: bool) -> Verdict:
    """The verdict on every host.

    results: host -> role -> what the role's module returned, absent where it never ran.
    roles: the roles that had to report. partial: the user limited the run by tags, so that a role which ran on
    no host at all was left out on purpose; it is named, and not counted.
    """
    ran = [role for role in roles if any(role in by_role for by_role in results.values())]
    expected = ran if partial else list(roles)
    hosts = []
    for host in sorted(results):
        findings: List[Finding] = []
        passed: List[str] = []
        repaired: List[str] = []
        notes: List[str] = []
        # The lock is no role: it has a result where a run took it or another one had it.
        for role in [*(["node_lock"] if "node_lock" in results[host] else []), *expected]:
            result = results[host].get(role)
            because = next((f.id for f in findings if f.check[:4] == "run." or f.check == "lock.held"), None)
            found, good = _role_result(role, result, because)
            # Without its name, forty hosts that are unreachable alike are one row.
            findings.extend(
                replace(f, have=f.have.replace(host, "it")) if f.check[:4] == "run." and f.have else f for f in found
            )
            passed.extend(good)
            repaired.extend((result or {}).get("repaired") or [])
            notes.extend((result or {}).get("notes") or [])
        if not findings and not passed:
            findings.append(_no_result("host", "host", "nothing was checked on this host"))
        hosts.append(HostVerdict(host, tuple(worst_first(findings)), tuple(passed), tuple(repaired), tuple(notes)))
    return Verdict(tuple(hosts), tuple(expected), tuple(role for role in roles if role not in expected))


def _role_result(
    role: str, result: Optional[Mapping[str, Any]], because: Optional[str]
) -> Tuple[List[Finding], List[str]]:
    """Findings and the ids of passed checks. because: id of the failure that kept later roles from running."""
    if result is None or result.get("skipped"):
        return [_no_result(role, role, "no result: the role did not run on this host", because)], []
    if result.get("unreachable"):
        fix = "check that the node is up and that ssh to it works, then run it again for this host"
        return [_no_result(role, role, "unreachable: %s" % _one_line(result.get("msg")), fix=fix)], []
    if result.get("failed"):
        said = [str(result.get(key)) for key in ("msg", "module_stderr") if result.get(key)]
        return [_no_result(role, role, "failed: %s" % _one_line("; ".join(said)))], []
    findings = result.get("findings")
    passed = result.get("passed")
    if not isinstance(findings, list) or not isinstance(passed, list):
        return [_no_result(role, role, "returned no findings")], []
    try:
        return [from_dict(item) for item in findings], [str(item) for item in passed]
    except (ValueError, AttributeError, TypeError) as error:
        return [_no_result(role, role, "returned something that is not a finding: %s" % error)], []


def _no_result(
    role: str, subject: str, have: str, because: Optional[str] = None, fix: str = "run it again for this host with -vvv"
) -> Finding:
    return Finding(
        check="run.%s" % role,
        subject=subject,
        state="unknown",
        severity="critical",
        want="a result",
        have=have,
        source="ansible-playbook",
        why="a host that did not answer counts like a host that is wrong",
        fix=fix,
        because=because,
    )


def _one_line(text: object) -> str:
    line = " ".join(str(text or "no message").split())
    return line if len(line) <= 300 else line[:300] + " ..."


# -- text ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Row:
    finding: Finding
    hosts: Tuple[str, ...]
    follows: int


def render(verdict: Verdict, check_mode: bool, width: int = 120) -> str:
    """The table that the last play prints: one row per cause, worst first, then what to do about each."""
    bad = [host for host in verdict.hosts if not host.ok]
    lines = []
    rows = _rows(verdict)
    if rows:
        lines += _table(rows[:ROWS], width) + [""]
        if len(rows) > ROWS:
            lines += ["... and %d more rows; busbar_findings_path=FILE keeps them all" % (len(rows) - ROWS), ""]
        lines += _remedies(rows[:ROWS], width)
    repaired = sorted({(item, host.host) for host in verdict.hosts for item in host.repaired})
    for item, host in repaired[:ROWS]:
        lines.append("%s on %s: %s" % ("a run would repair" if check_mode else "repaired", host, item))
    if repaired:
        lines.append("")
    passed = sum(host.passed for host in verdict.hosts)
    head = "ok" if verdict.ok else "NOT OK"
    lines.append(
        "VERDICT %s: %d of %d hosts ok, %d checks passed%s (%s)"
        % (
            head,
            len(verdict.hosts) - len(bad),
            len(verdict.hosts),
            passed,
            ", %s" % _counts(verdict) if bad else "",
            "check mode: nothing was changed" if check_mode else "apply",
        )
    )
    lines.append("checked: %s" % (", ".join(verdict.checked) or "nothing"))
    notes: Dict[str, List[str]] = {}
    for host_verdict in verdict.hosts:
        for note in host_verdict.notes:
            notes.setdefault(note, []).append(host_verdict.host)
    lines += ["note (%s): %s" % (_hosts(hosts), note) for note, hosts in sorted(notes.items())]
    if verdict.left_out:
        lines.append("NOT checked, left out by tags: %s" % ", ".join(verdict.left_out))
    return "\n".join(printable(line) for line in lines)


def _rows(verdict: Verdict) -> List[_Row]:
    """Roots, the same finding on several hosts joined; consequences are counted at their root."""
    hosts: Dict[Tuple[Any, ...], List[str]] = {}
    first: Dict[Tuple[Any, ...], Finding] = {}
    follows: Dict[Tuple[Any, ...], int] = {}
    for host in verdict.hosts:
        ids = {finding.id for finding in host.findings}
        key_of: Dict[str, Tuple[Any, ...]] = {}
        consequences = []
        for finding in host.findings:
            if finding.because in ids and finding.because != finding.id:
                consequences.append(finding)
                continue
            key = (finding.check, finding.subject, finding.state, finding.aspect, finding.want, finding.have)
            hosts.setdefault(key, []).append(host.host)
            first.setdefault(key, finding)
            key_of[finding.id] = key
        for finding in consequences:
            root = _root(finding, host.findings)
            if root in key_of:
                follows[key_of[root]] = follows.get(key_of[root], 0) + 1
    order = worst_first(first.values())
    by_id = {id(finding): key for key, finding in first.items()}
    rows = []
    for finding in order:
        key = by_id[id(finding)]
        rows.append(_Row(finding, tuple(hosts[key]), follows.get(key, 0)))
    return rows


def _root(finding: Finding, findings: Sequence[Finding]) -> str:
    """Id of the finding at the end of the because chain."""
    by_id = {item.id: item for item in findings}
    seen = set()
    while finding.because in by_id and finding.id not in seen:
        seen.add(finding.id)
        finding = by_id[finding.because or ""]
    return finding.id


def _table(rows: Sequence[_Row], width: int) -> List[str]:
    heads = ("SEVERITY", "STATE", "HOST", "CHECK", "SUBJECT", "WANT", "HAVE")
    cells = [
        (
            row.finding.severity,
            row.finding.state,
            _hosts(row.hosts),
            row.finding.check,
            row.finding.subject,
            row.finding.want or "-",
            (row.finding.have or "-") + (" [%d more follow from this]" % row.follows if row.follows else ""),
        )
        for row in rows
    ]
    limits = (8, 11, 22, 28, 30)
    widths = [min(limit, max(len(line[i]) for line in [heads, *cells])) for i, limit in enumerate(limits)]
    rest = max(48, width - sum(widths) - 2 * len(heads) + 2)
    widths += [rest * 2 // 5, rest - rest * 2 // 5]
    lines = []
    for line in [heads, *cells]:
        wrapped = [textwrap.wrap(text, size, break_on_hyphens=False) or ["-"] for text, size in zip(line, widths)]
        for i in range(max(map(len, wrapped))):
            parts = [(part[i] if i < len(part) else "").ljust(size) for part, size in zip(wrapped, widths)]
            lines.append("  ".join(parts).rstrip())
    return lines


def _remedies(rows: Sequence[_Row], width: int) -> List[str]:
    """Each remedy once, in the order of the table, with why it matters and the hosts that the table had no room for."""
    hosts: Dict[Tuple[str, str], List[str]] = {}
    for row in rows:
        hosts.setdefault((row.finding.check, row.finding.fix), []).extend(row.hosts)
    lines: List[str] = []
    for row in rows:
        named = hosts.pop((row.finding.check, row.finding.fix), None)
        if named is None:
            continue
        names = sorted(set(named))
        parts = ["%s: %s" % (row.finding.check, row.finding.why), "do: " + row.finding.fix]
        if len(names) > 2:
            more = ["and %d more" % (len(names) - NAMES)] if len(names) > NAMES else []
            parts.append("on: " + ", ".join(names[:NAMES] + more))
        for number, part in enumerate(parts):
            indent = "    " if number else ""
            lines += textwrap.wrap(
                part, width - 4, initial_indent=indent, subsequent_indent=indent + "    ", break_on_hyphens=False
            )
    return lines + [""]


def _hosts(hosts: Sequence[str]) -> str:
    if len(hosts) <= 2:
        return ", ".join(hosts)
    return "%s and %d more" % (hosts[0], len(hosts) - 1)


def _counts(verdict: Verdict) -> str:
    everything = [finding for host in verdict.hosts for finding in host.findings]
    counts = [(severity, sum(f.severity == severity for f in everything)) for severity in SEVERITIES]
    return ", ".join("%d %s" % (count, severity) for severity, count in counts if count)
