# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan the remediation of one node, from accusations, its current result and the action log. Pure.

An accusation is never acted on, only the node's current result of the same check.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core import fix_command
from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import (
    DISRUPTIONS,
    SEVERITIES,
    Finding,
    from_dict,
)

from .. import due_roles, result_schema, suite
from ..campaign import localise_judge
from ..plain_data import Plain
from . import action_log
from .accusations import Accusation
from .action_log import Entry

DAY = 86400.0
# Characters of a finding's text in Slurm's reason.
REASON = 160
_WHY = "a node goes back into service when the failed check is ok; otherwise it stays out, with a record of the reason"

MENDED = Check("remediate.mended", why=_WHY)
"Is the node's fault repaired, according to the check that failed; a stale finding is ok"
ASKED = Check(
    "remediate.asked",
    why="a finding that is not seen on the node now is not acted on, because a file of findings may be old",
    fix="run busbar drift for this node, repair what prevents its audit, then remediate what that finds",
)
"Could the check that failed be repeated on the node"
ROLE = Check(
    "remediate.role",
    why="only what a role repairs within busbar_max_disruption is repaired without a person",
)
"""Does a role repair the node's findings, within `busbar_max_disruption`; otherwise the finding's `fix` lists what
to do"""
ATTEMPTS = Check(
    "remediate.attempts",
    why="a fault that a repair did not remove, or that came back, has a cause that another try does not repair",
    fix="find the cause, repair it by hand, and look at what was tried in the action log (docs/repair.md#remediate)",
)
"Was the repair not tried too often (`busbar_remediate_max_attempts`), and did the fault not return after a repair"
ROLLOUT = Check(
    "remediate.rollout",
    why="a mistake of remediation, or of a check, must not take many nodes out of service at once",
)
"May the node be repaired: within `busbar_remediate_max_share`, and no node before it got worse"
LEFT = Check(
    "remediate.left",
    why="a node that a run has drained and not resumed waits for an administrator",
)
"Is nothing left of a killed remediation, and does nothing wait for a person"

# Verdicts on one accusation.
STALE, MEND, MEASURE, QUARANTINE, REPORTED = "stale", "mend", "measure", "quarantine", "told"
_OF_NOUN = {noun: role for role in suite.SUITE for noun in role.nouns}
PROVISION = tuple(role.name for role in suite.SUITE if role.audited and role.play == "provision")
# Checks that accuse several nodes together, or a switch, accuse no single node.
_SHARED = (localise_judge.LEAF, localise_judge.UPLINK, localise_judge.CLUSTER, localise_judge.BAR)
# Checks of one node by tests with others: it is measured again with good ones.
BETWEEN = tuple(
    check.id for check in (localise_judge.ALONE, localise_judge.NODE, localise_judge.RAIL, localise_judge.RANK)
)
GOOD = localise_judge.NODE.finding_id("host")
OF_NO_NODE = tuple(check.id for check in (*_SHARED, localise_judge.MEMBER))
_ABSENT = localise_judge.MEMBER.id


@dataclass(frozen=True)
class Limits:
    """The limits of the inventory for a node, and for all of them together.

    drains: a scheduler is there to take the node out of service.   share: of all nodes, 0 to 1.
    """

    max_disruption: str = "none"
    drains: bool = False
    quarantine: bool = False
    share: float = 0.05
    attempts: int = 2
    days: int = 14

    def permits(self, disruption: str) -> bool:
        return DISRUPTIONS.index(disruption) <= DISRUPTIONS.index(self.max_disruption)


@dataclass(frozen=True)
class CurrentResult:
    """A node's current result. findings: id -> those that are not ok.   repairs: ids of findings that a role repairs.

    audited: roles with a result.   silent: why there is no result, "".   searched: it was measured with others; the
    result is in findings or passed.
    """

    findings: Mapping[str, Finding] = field(default_factory=dict)
    passed: frozenset[str] = frozenset()
    repairs: frozenset[str] = frozenset()
    audited: frozenset[str] = frozenset()
    silent: str = ""
    boot_id: str = ""
    searched: bool = False


def current_result(audit: Mapping[str, object]) -> CurrentResult:
    """Return a host's result. audit: registered by fleet_audit for a host, or by host_audit as its own task."""
    if "roles" not in audit:
        return CurrentResult(silent=" ".join(str(audit.get("msg") or "it did not respond").split())[:300])
    registered = due_roles.roles(audit)
    results = {role: result_schema.given(result) for role, result in registered.items()}
    results = {role: result for role, result in results.items() if "findings" in result}
    return CurrentResult(
        {one.id: one for result in results.values() for one in map(from_dict, result["findings"])},
        frozenset(name for result in results.values() for name in result["passed"]),
        frozenset(name for result in results.values() for name in result.get("repaired") or ()),
        frozenset(results),
        boot_id=result_schema.given(registered.get("node_health"), "node_health").get("boot_id", ""),
    )


@dataclass(frozen=True)
class Item:
    """One accusation and its verdict.

    finding: of the node now, else of the file.   verdict: one of STALE ... REPORTED.   why: for people.
    roles: that repair it, in the suite's order.   report: finding of the run where nothing is done.
    """

    finding: Finding
    verdict: str
    why: str
    roles: tuple[str, ...] = ()
    reboot: bool = False
    attempt: int = 0
    report: Finding | None = None


@dataclass(frozen=True)
class NodePlan:
    """The plan of one node.

    before: ids of its findings.   passed: ids of what was ok by the same checks.   leaf: of the inventory.
    roles: played in any case.   after: played where one of these has changed something.
    drain: the node is taken out of service first.   measure, between: it is measured again, alone or with others.
    figure: of a measurement with others before.   act: anything is done to it.   refused: why not.
    left: an earlier run drained it and was killed.   returns: it was left drained for a fault that is repaired now.
    known: an earlier run of remediation has drained it.   reason: for its drain.
    """

    name: str
    items: tuple[Item, ...] = ()
    boot_id: str = ""
    before: tuple[str, ...] = ()
    passed: tuple[str, ...] = ()
    leaf: str = ""
    roles: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    drain: bool = False
    reboot: bool = False
    measure: bool = False
    between: bool = False
    figure: float | None = None
    left: bool = False
    returns: bool = False
    known: bool = False
    act: bool = False
    refused: str = ""
    reason: str = ""

    @property
    def worst(self) -> int:
        """Return the worst severity that is acted on, as an index of SEVERITIES."""
        return min((SEVERITIES.index(item.finding.severity) for item in self.acted), default=9)

    @property
    def acted(self) -> tuple[Item, ...]:
        return tuple(item for item in self.items if item.verdict in (MEND, MEASURE, QUARANTINE))

    @property
    def repaired(self) -> tuple[Finding, ...]:
        """Return findings that have to be proven to be repaired."""
        return tuple(item.finding for item in self.items if item.verdict in (MEND, MEASURE))

    def entry(self, run: str, action: str, outcome: str, why: str, item: Item | None = None, **more: Any) -> Entry:
        """Return the log's entry on an action. item: the accusation that it is for.   more: fields of the entry."""
        given = {"at": time.time(), "boot_id": self.boot_id, **more}
        if item is not None:
            of = item.finding
            given |= {"check": of.check, "subject": of.subject, "finding": of.id, "attempt": item.attempt}
        return Entry(run=run, host=self.name, action=action, outcome=outcome, why=why, **given)

    def to_dict(self) -> Plain:
        """Return plain data of lists and dictionaries, for ``codec.build``."""
        data: Plain = json.loads(json.dumps(asdict(self)))
        return data


# -- one accusation ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One accusation with all that its verdict depends on. log: of this host.   moment: seconds since 1970."""

    accusation: Accusation
    now: CurrentResult
    limits: Limits
    log: Sequence[Entry]
    moment: float

    def judge(self) -> Item:
        accused, now = self.accusation.finding, self.now
        noun = accused.check.partition(".")[0]
        role = _OF_NOUN.get(noun)
        if accused.check in BETWEEN and not now.silent:
            return self._judge_between()
        if accused.check == _ABSENT:
            return self._unknown(f"it took no part in the measurement, and is accused of nothing: {accused.have}")
        if accused.check in OF_NO_NODE:
            why = "it accuses what several nodes share, and no node: nothing is done to nodes for it"
            report = ROLE.judge(accused.id, "drift", "a role that repairs it", why, fix=accused.fix)
            return Item(accused, REPORTED, why, report=report)
        if now.silent:
            return self._unknown(f"the node did not respond: {now.silent}")
        boots = {now.boot_id, self.accusation.boot_id} - {""}
        if len(boots) == 2 and (role is None or not role.audited):
            return Item(accused, STALE, "the node was booted since, and the fault has not been seen again")
        if role is None or not role.audited or role.name == suite.CLUSTER:
            return self._unknown(f"{noun} does not check a single node: run the playbook that found it again")
        if role.name not in now.audited:
            return self._unknown(f"role {role.name} did not respond")
        if role.name == suite.BENCHMARK and accused.state == "drift":
            return self._judge_figure()
        standing = now.findings.get(accused.id)
        if standing is None:
            ok = accused.id in now.passed
            return Item(accused, STALE, "it is ok now" if ok else "the node is no longer checked for that")
        if standing.state in ("unknown", "unsupported", "not_owned"):
            return self._not_judged(standing)
        return self._judge_standing(standing)

    def _unknown(self, why: str) -> Item:
        accused = self.accusation.finding
        report = ASKED.judge(accused.id, "unknown", "a result of the same check", why, "host_audit")
        return Item(accused, REPORTED, why, report=report)

    def _not_judged(self, standing: Finding) -> Item:
        root = root_of(standing, self.now)
        first = standing if root.id == standing.id else replace(standing, fix=f"repair {root.check} first")
        report = _for_person(first, standing.have or "-")
        return Item(standing, REPORTED, f"{standing.state}: {standing.have}", report=report)

    def _judge_standing(self, standing: Finding) -> Item:
        root = root_of(standing, self.now)
        roles = mending(root, self.now)
        if not roles:
            return self._hardware(standing, "no role repairs it")
        cost = max(root.disruption, standing.disruption, key=DISRUPTIONS.index)
        if self.limits.permits(cost):
            return self._repair(MEND, standing, f"role {roles[0]} repairs it", roles, cost == "reboot")
        why = f"its repair costs {cost}, busbar_max_disruption is {self.limits.max_disruption}"
        report = ROLE.judge(
            *(standing.id, "withheld", f"a repair that costs {cost} at most", why, "busbar_max_disruption"),
            fix=f"allow it (busbar_max_disruption: {cost}), then remediate again",
            severity=standing.severity,
            disruption=cost,
        )
        return Item(standing, REPORTED, why, report=report)

    def _judge_figure(self) -> Item:
        """Judge a slow figure: repair any wrong configuration of the node, and measure again."""
        roles, reboot = self._repairable()
        why = "it is measured again" + (f", and if it is still there, repaired by {', '.join(roles)}" if roles else "")
        return self._repair(MEASURE, self.accusation.finding, why, roles, reboot)

    def _judge_between(self) -> Item:
        """Judge a figure with others, which was measured with good ones again before this."""
        accused = self.accusation.finding
        standing = self.now.findings.get(accused.id)
        if not self.now.searched:
            return self._unknown(
                "it has to be measured with good nodes of its leaf first, but none is known or available"
            )
        if standing is None and GOOD in self.now.passed:
            return Item(accused, STALE, "measured again with good nodes, it is as fast as it has to be")
        if standing is None:
            return self._unknown("measured again with good nodes, it is neither proven good nor proven slow")
        if standing.state != "drift":
            return self._not_judged(standing)
        roles, reboot = self._repairable()
        why = f"it is still there when measured again; {', '.join(roles)} may repair it"
        item = self._repair(MEND, standing, why, roles, reboot)
        if item.verdict == MEND and not roles:
            return self._hardware(standing, "it is still there when measured again, and no role has anything to repair")
        return item

    def _repairable(self) -> tuple[tuple[str, ...], bool]:
        """Return roles with a repair within the permission, and whether it may need a reboot."""
        findings = [
            finding
            for finding in self.now.findings.values()
            if finding.state in ("drift", "withheld")
            and mending(finding, self.now)
            and self.limits.permits(finding.disruption)
        ]
        roles = {name for finding in findings for name in mending(finding, self.now)}
        return in_order(roles), any(finding.disruption == "reboot" for finding in findings)

    def _repair(self, verdict: str, standing: Finding, why: str, roles: tuple[str, ...], reboot: bool) -> Item:
        """Return the repair, or what a person has to do after too many attempts."""
        since = self.moment - self.limits.days * DAY
        tried = action_log.attempts(self.log, self.accusation.host, standing.id, since)
        mended = action_log.mended(self.log, self.accusation.host, standing.id, since)
        if mended is not None:
            why = "it was repaired %.3g days ago and is back" % ((self.moment - mended) / DAY)
        elif tried >= self.limits.attempts:
            why = "it was tried %d times within %d days without success" % (tried, self.limits.days)
        else:
            return Item(standing, verdict, why, roles, reboot, tried + 1)
        want = "a lasting repair"
        report = ATTEMPTS.judge(standing.id, "drift", want, why, action_log.NAME, severity=standing.severity)
        return self._hardware(standing, why, report)

    def _hardware(self, standing: Finding, why: str, report: Finding | None = None) -> Item:
        """Return the verdict where no role repairs it: out of service where the site allows that, else reported."""
        report = report or _for_person(standing, why)
        quarantine = self.limits.quarantine and self.limits.drains
        if quarantine and standing.state == "drift" and standing.severity != "minor":
            return Item(standing, QUARANTINE, f"{why}; the node stays out of service", report=report)
        return Item(standing, REPORTED, why, report=report)


def _for_person(finding: Finding, why: str) -> Finding:
    have = f"{finding.have or '-'}; {why}" if why != finding.have else why
    return ROLE.judge(
        finding.id, "drift", finding.want, have, finding.source, fix=finding.fix, severity=finding.severity
    )


def root_of(finding: Finding, now: CurrentResult) -> Finding:
    """Return the root cause of a finding, as far as the node's result has it."""
    seen = {finding.id}
    while finding.because in now.findings and finding.because not in seen:
        finding = now.findings[finding.because or ""]
        seen.add(finding.id)
    return finding


def mending(finding: Finding, now: CurrentResult) -> tuple[str, ...]:
    """Return the role that repairs it, from the node's result or the finding's advice; () where a person has to."""
    role = _OF_NOUN.get(finding.check.partition(".")[0])
    if role is None or role.play != "provision":
        return ()
    advised = fix_command.parse(finding.fix)
    if finding.id in now.repairs or (advised and advised.mends and role.name in advised.tags):
        return (role.name,)
    return ()


def in_order(roles: Iterable[str]) -> tuple[str, ...]:
    """Return the roles in the suite's order."""
    wanted = set(roles)
    return tuple(name for name in PROVISION if name in wanted)


def dependents(roles: Iterable[str]) -> tuple[str, ...]:
    """Return roles that check what these can change, directly or not, without these, in the suite's order."""
    found = set(roles)
    for role in suite.SUITE:
        if role.play == "provision" and found & set(role.after):
            found.add(role.name)
    return in_order(found - set(roles))


# -- one node ----------------------------------------------------------------------------------------------------------


def plan_node(
    name: str,
    accusations: Sequence[Accusation],
    now: CurrentResult,
    limits: Limits,
    log: Sequence[Entry],
    moment: float,
    leaf: str = "",
) -> NodePlan:
    """Plan one node. log: of all hosts.   leaf: of the inventory. ``rollout`` decides whether it is acted on."""
    own = [entry for entry in log if entry.host == name]
    left, held = action_log.open_drains(own).get(name), name in action_log.held(own)
    items = tuple(Case(one, now, limits, own, moment).judge() for one in accusations)
    returns = bool(items) and all(item.verdict == STALE for item in items) and limits.drains and held
    acted = NodePlan(name, items).acted
    failed = {item.finding.check for item in acted}
    roles = in_order(role for item in acted for role in item.roles)
    mended = {item.finding.check for item in acted if item.verdict == MEND}
    between = not mended.isdisjoint(BETWEEN)
    costly = between or any(
        item.verdict in (MEASURE, QUARANTINE)
        or {item.finding.disruption, root_of(item.finding, now).disruption} != {"none"}
        for item in acted
    )
    reasons = [f"{item.finding.check}: {item.finding.have or '-'}" for item in acted]
    reason = "; ".join(reasons) or (left.why if left else "") or "proven to be repaired"
    return NodePlan(
        name=name,
        items=items,
        boot_id=now.boot_id,
        before=tuple(sorted(now.findings)),
        passed=tuple(sorted(name for name in now.passed if name.partition("[")[0] in failed)),
        leaf=leaf,
        roles=roles,
        after=dependents(roles),
        drain=limits.drains and (costly or returns or left is not None),
        reboot=any(item.reboot for item in acted),
        measure=any(item.verdict == MEASURE for item in acted) or localise_judge.ALONE.id in mended,
        between=between,
        left=left is not None,
        returns=returns,
        known=left is not None or held,
        act=bool(acted) or returns or left is not None,
        reason=reason[:REASON],
    )
