# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan remediation: which node is repaired how, from accusations, current results and the action log. Pure.

An accusation is never acted on, only the node's current result of the same check.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core import fix_command
from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import (
    DISRUPTIONS,
    SEVERITIES,
    Finding,
    from_dict,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    action_log,
    due_roles,
    localise_judge,
    nodeset,
    result_schema,
    suite,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.action_log import Entry
from ansible_collections.busbar.fabric.plugins.plugin_utils.suspects import Suspect

DAY = 86400.0
# Characters of host names in a sentence, and of a finding's text in Slurm's reason.
_ROOM, _REASON = 120, 160
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
STALE, MEND, MEASURE, QUARANTINE, TOLD = "stale", "mend", "measure", "quarantine", "told"
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


@dataclass(frozen=True)
class CurrentResult:
    """A node's current result. findings: id -> those that are not ok.   repairs: ids of findings that a role repairs.

    waits: roles with a pending reboot.   asked: roles with a result.   silent: why there is no result, "".
    searched: it was measured with others; the result is in findings or passed.
    """

    findings: Mapping[str, Finding] = field(default_factory=dict)
    passed: frozenset[str] = frozenset()
    repairs: frozenset[str] = frozenset()
    waits: frozenset[str] = frozenset()
    asked: frozenset[str] = frozenset()
    silent: str = ""
    boot_id: str = ""
    searched: bool = False


def fresh(heard: Mapping[str, object]) -> CurrentResult:
    """heard: what fleet_audit has registered of a host, or host_audit as its own task."""
    if "roles" not in heard:
        return CurrentResult(silent=" ".join(str(heard.get("msg") or "it did not respond").split())[:300])
    found: dict[str, Finding] = {}
    passed, repairs, waits, asked = set[str](), set[str](), set[str](), set[str]()
    boot_id = ""
    for role, given in due_roles.roles(heard).items():
        result = result_schema.given(given)
        if "findings" not in result:
            continue
        if role == "node_health":
            boot_id = result_schema.given(given, role).get("boot_id", "")
        asked.add(role)
        found.update((one.id, one) for one in map(from_dict, result["findings"]))
        passed.update(result["passed"])
        repairs.update(result.get("repaired") or [])
        if result.get("reboot_required"):
            waits.add(role)
    return CurrentResult(found, frozenset(passed), frozenset(repairs), frozenset(waits), frozenset(asked), "", boot_id)


@dataclass(frozen=True)
class Item:
    """One accusation and its verdict.

    finding: of the node now, else of the file.   verdict: one of STALE ... TOLD.   why: for people.
    roles: that repair it, in the suite's order.   said: finding of the run where nothing is done.
    """

    accusation: Suspect
    finding: Finding
    verdict: str
    why: str
    roles: tuple[str, ...] = ()
    reboot: bool = False
    attempt: int = 0
    said: Finding | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "finding": self.finding.to_dict(),
            "verdict": self.verdict,
            "why": self.why,
            "roles": list(self.roles),
            "attempt": self.attempt,
            "file": self.accusation.file,
            "at": self.accusation.at,
            "partners": list(self.accusation.partners),
            "evidence": list(self.accusation.evidence),
            "said": None if self.said is None else self.said.to_dict(),
        }


@dataclass(frozen=True)
class Host:
    """The plan of one node.

    roles: played in any case.   after: played where one of these has changed something.
    drain: the node is taken out of service first.   measure, between: it is measured again, alone or with others.
    act: anything is done to it.   refused: why not.   left: an earlier run drained it and was killed.
    returns: it was left drained for a fault that is repaired now.
    reason: for its drain.
    """

    name: str
    items: tuple[Item, ...]
    fresh: CurrentResult
    leaf: str = ""
    roles: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    drain: bool = False
    reboot: bool = False
    measure: bool = False
    between: bool = False
    left: bool = False
    returns: bool = False
    act: bool = False
    refused: str = ""
    reason: str = ""

    @property
    def worst(self) -> int:
        """Return the worst severity that is acted on, as an index of SEVERITIES."""
        return min((SEVERITIES.index(i.finding.severity) for i in self.items if i.verdict in _ACTED), default=9)

    def to_dict(self) -> dict[str, Any]:
        return {
            "items": [item.to_dict() for item in self.items],
            "boot_id": self.fresh.boot_id,
            "before": sorted(self.fresh.findings),
            **{name: list(getattr(self, name)) for name in ("roles", "after")},
            **{name: getattr(self, name) for name in _PLAIN},
        }


_PLAIN = ("leaf", "drain", "reboot", "measure", "between", "left", "returns", "act", "refused", "reason")
_ACTED = (MEND, MEASURE, QUARANTINE)


# -- one accusation ----------------------------------------------------------------------------------------------------


def judge(one: Suspect, now: CurrentResult, limits: Limits, log: Sequence[Entry], moment: float) -> Item:
    """Return the verdict on one accusation. log: of this host. moment: seconds since 1970."""
    accused = one.finding
    noun = accused.check.partition(".")[0]
    role = _OF_NOUN.get(noun)
    if accused.check in BETWEEN and not now.silent:
        return _between(one, now, limits, log, moment)
    if accused.check == _ABSENT:
        return _unasked(one, f"it took no part in the measurement, and is accused of nothing: {accused.have}")
    if accused.check in OF_NO_NODE:
        why = "it accuses what several nodes share, and no node: nothing is done to nodes for it"
        return _reported(
            one, accused, why, ROLE.judge(accused.id, "drift", "a role that repairs it", why, fix=accused.fix)
        )
    if now.silent:
        return _unasked(one, f"the node did not respond: {now.silent}")
    if now.boot_id and one.boot_id and now.boot_id != one.boot_id and (role is None or not role.audited):
        return Item(one, accused, STALE, "the node was booted since, and the fault has not been seen again")
    if role is None or not role.audited or role.name == suite.CLUSTER:
        return _unasked(one, f"{noun} does not check a single node: run the playbook that found it again")
    if role.name not in now.asked:
        return _unasked(one, f"role {role.name} did not respond")
    if role.name == suite.BENCHMARK and accused.state == "drift":
        return _figure(one, now, limits, log, moment)
    standing = now.findings.get(accused.id)
    if standing is None:
        ok = accused.id in now.passed
        return Item(one, accused, STALE, "it is ok now" if ok else "the node is no longer checked for that")
    if standing.state in ("unknown", "unsupported", "not_owned"):
        return _reported(one, standing, f"{standing.state}: {standing.have}", _person(standing, standing.have or "-"))
    return _standing(one, standing, now, limits, log, moment)


def _unasked(one: Suspect, why: str) -> Item:
    said = ASKED.judge(one.finding.id, "unknown", "a result of the same check", why, "host_audit")
    return _reported(one, one.finding, why, said)


def _reported(one: Suspect, finding: Finding, why: str, said: Finding) -> Item:
    return Item(one, finding, TOLD, why, said=said)


def _person(finding: Finding, why: str) -> Finding:
    have = f"{finding.have or '-'}; {why}" if why != finding.have else why
    return ROLE.judge(
        finding.id, "drift", finding.want, have, finding.source, fix=finding.fix, severity=finding.severity
    )


def _standing(
    one: Suspect, standing: Finding, now: CurrentResult, limits: Limits, log: Sequence[Entry], moment: float
) -> Item:
    root = _root(standing, now)
    roles = mending(root, now)
    if not roles:
        return _hardware(one, standing, limits, "no role repairs it")
    cost = max(root.disruption, standing.disruption, key=DISRUPTIONS.index)
    if DISRUPTIONS.index(cost) > DISRUPTIONS.index(limits.max_disruption):
        why = f"its repair costs {cost}, busbar_max_disruption is {limits.max_disruption}"
        said = ROLE.judge(
            *(standing.id, "withheld", f"a repair that costs {cost} at most", why, "busbar_max_disruption"),
            fix=f"allow it (busbar_max_disruption: {cost}), then remediate again",
            severity=standing.severity,
            disruption=cost,
        )
        return _reported(one, standing, why, said)
    held, attempt = _too_often(one, standing, limits, log, moment)
    if held:
        return held
    return Item(one, standing, MEND, f"role {roles[0]} repairs it", roles, cost == "reboot", attempt)


def _root(finding: Finding, now: CurrentResult) -> Finding:
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


def dependents(roles: Iterable[str]) -> tuple[str, ...]:
    """Return roles that check what these can change, directly or not, without these, in the suite's order."""
    found = set(roles)
    for role in suite.SUITE:
        if role.play == "provision" and found & set(role.after):
            found.add(role.name)
    return tuple(name for name in PROVISION if name in found - set(roles))


def _figure(one: Suspect, now: CurrentResult, limits: Limits, log: Sequence[Entry], moment: float) -> Item:
    """Return the verdict on a slow figure: repair any wrong configuration of the node, and measure again."""
    held, attempt = _too_often(one, one.finding, limits, log, moment)
    if held:
        return held
    ordered, reboot = _able(now, limits)
    why = "it is measured again" + (f", and if it is still there, repaired by {', '.join(ordered)}" if ordered else "")
    return Item(one, one.finding, MEASURE, why, ordered, reboot, attempt)


def _able(now: CurrentResult, limits: Limits) -> tuple[tuple[str, ...], bool]:
    """Return roles with a repair within the permission, and whether it may need a reboot."""
    able = [
        each
        for each in now.findings.values()
        if each.state in ("drift", "withheld")
        and mending(each, now)
        and DISRUPTIONS.index(each.disruption) <= DISRUPTIONS.index(limits.max_disruption)
    ]
    roles = {name for each in able for name in mending(each, now)}
    return tuple(name for name in PROVISION if name in roles), any(each.disruption == "reboot" for each in able)


def _between(one: Suspect, now: CurrentResult, limits: Limits, log: Sequence[Entry], moment: float) -> Item:
    """Return the verdict on a figure with others, which was measured with good ones again before this."""
    ordered, reboot = _able(now, limits)
    standing = now.findings.get(one.finding.id)
    if not now.searched:
        return _unasked(one, "it has to be measured with good nodes of its leaf first, but none is known or available")
    if standing is None and GOOD in now.passed:
        return Item(one, one.finding, STALE, "measured again with good nodes, it is as fast as it has to be")
    if standing is None:
        return _unasked(one, "measured again with good nodes, it is neither proven good nor proven slow")
    if standing.state != "drift":
        return _reported(one, standing, f"{standing.state}: {standing.have}", _person(standing, standing.have or "-"))
    held, attempt = _too_often(one, standing, limits, log, moment)
    if held:
        return held
    if not ordered:
        return _hardware(
            one, standing, limits, "it is still there when measured again, and no role has anything to repair"
        )
    why = f"it is still there when measured again; {', '.join(ordered)} may repair it"
    return Item(one, standing, MEND, why, ordered, reboot, attempt)


def _too_often(
    one: Suspect, standing: Finding, limits: Limits, log: Sequence[Entry], moment: float
) -> tuple[Item | None, int]:
    """Return the item for a person after too many attempts, and the number of this attempt."""
    since = moment - limits.days * DAY
    tried = action_log.attempts(log, one.host, standing.id, since)
    mended = action_log.mended(log, one.host, standing.id, since)
    if mended is not None:
        why = "it was repaired %.3g days ago and is back" % ((moment - mended) / DAY)
    elif tried >= limits.attempts:
        why = "it was tried %d times within %d days without success" % (tried, limits.days)
    else:
        return None, tried + 1
    said = ATTEMPTS.judge(standing.id, "drift", "a lasting repair", why, action_log.NAME, severity=standing.severity)
    return _hardware(one, standing, limits, why, said), 0


def _hardware(one: Suspect, standing: Finding, limits: Limits, why: str, said: Finding | None = None) -> Item:
    """Return the verdict where no role repairs it: out of service where the site allows that, else reported."""
    said = said or _person(standing, why)
    if limits.quarantine and limits.drains and standing.state == "drift" and standing.severity != "minor":
        return Item(one, standing, QUARANTINE, f"{why}; the node stays out of service", said=said)
    return Item(one, standing, TOLD, why, said=said)


# -- one node ----------------------------------------------------------------------------------------------------------


def of_host(
    name: str, accusations: Sequence[Suspect], now: CurrentResult, limits: Limits, log: Sequence[Entry], moment: float
) -> Host:
    """Plan one node. log: of all hosts. ``plan`` decides over all of them whether it is acted on."""
    own = [entry for entry in log if entry.host == name]
    left = action_log.open_drains(own).get(name)
    items = [judge(one, now, limits, own, moment) for one in accusations]
    stale = bool(items) and all(item.verdict == STALE for item in items)
    returns = stale and limits.drains and name in action_log.held(own)
    acted = [item for item in items if item.verdict in _ACTED]
    roles = tuple(role for role in PROVISION if any(role in item.roles for item in acted))
    costly = any(item.finding.disruption != "none" or item.verdict in (MEASURE, QUARANTINE) for item in acted)
    mended = [item.finding.check for item in acted if item.verdict == MEND]
    between = any(check in BETWEEN for check in mended)
    costly = costly or between or any(_root(item.finding, now).disruption != "none" for item in acted)
    reason = "; ".join(f"{item.finding.check}: {item.finding.have or '-'}" for item in acted)
    return Host(
        name=name,
        items=tuple(items),
        fresh=now,
        roles=roles,
        after=dependents(roles),
        drain=limits.drains and (costly or returns or left is not None),
        reboot=any(item.reboot for item in acted),
        measure=any(item.verdict == MEASURE for item in acted) or localise_judge.ALONE.id in mended,
        between=between,
        left=left is not None,
        returns=returns,
        act=bool(acted) or returns or left is not None,
        reason=(reason or (left.why if left else "") or "proven to be repaired")[:_REASON],
    )


def placed(host: Host, leaf: str) -> Host:
    """Return the host with its leaf in the inventory, "" for none."""
    return replace(host, leaf=leaf)


# -- all nodes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """hosts: of each accused node.   order: those that are acted on, the canary first and its leaf after it.

    most: how many may be.   held: nodes that remediation keeps out already.
    """

    hosts: Mapping[str, Host]
    order: tuple[str, ...]
    most: int
    held: tuple[str, ...] = ()


def plan(hosts: Sequence[Host], inventory: Sequence[str], share: float, log: Sequence[Entry]) -> Plan:
    """Return the plan. inventory: all nodes, of which share is the limit."""
    most = max(1, int(share * len(inventory)))
    kept = [name for name in inventory if name in action_log.held(log)]
    acted = {host.name for host in hosts if host.act}
    room = most - sum(name not in acted for name in kept)
    wanted = sorted(
        (host for host in hosts if host.act), key=lambda host: (not (host.left or host.returns), host.worst)
    )
    # Nodes that remediation has drained already are finished, whatever the share.
    chosen = [host for number, host in enumerate(wanted) if host.left or host.returns or number < room]
    canary = chosen[0].leaf if chosen else ""
    places = list(dict.fromkeys([canary, *(host.leaf for host in chosen)]))
    chosen.sort(key=lambda host: places.index(host.leaf))
    names = {host.name for host in chosen}
    why = "%d of %d nodes may be acted on or held at once (busbar_remediate_max_share: %g)" % (
        *(most, len(inventory)),
        share,
    )
    if kept:
        why += ", and %s held already" % nodeset.brief(kept, _ROOM)
    found = {host.name: host for host in hosts}
    for host in wanted:
        if host.name not in names:
            found[host.name] = replace(host, act=False, refused=why)
    return Plan(found, tuple(host.name for host in chosen), most, tuple(kept))


def batches(sizes: Sequence[int | str], nodes: int) -> list[int]:
    """Return numbers of nodes, from ``[1, "10%"]``: the last one is repeated. As Ansible's ``serial``."""
    found: list[int] = []
    given = list(sizes) or [1]
    while sum(found) < nodes:
        size = given[min(len(found), len(given) - 1)]
        text = str(size)
        count = int(float(text[:-1]) * nodes / 100) if text.endswith("%") else int(text)
        found.append(min(max(1, count), nodes - sum(found)))
    return found


def partners(accused: Sequence[Suspect], fit: Sequence[str], leaves: Mapping[str, str]) -> dict[str, list[str]]:
    """Return node that is accused between nodes -> two good ones to measure it with, as different as possible.

    fit: nodes that may take part.   leaves: node -> leaf.
    """
    suspects = {one.host for one in accused if not one.finding.ok}
    found: dict[str, list[str]] = {}
    used: dict[str, int] = {}
    for one in accused:
        if one.finding.check not in BETWEEN or one.host in found or one.host not in fit:
            continue
        near = [name for name in fit if name in one.good and name not in suspects]
        near = [name for name in near if leaves.get(name) == leaves.get(one.host)]
        chosen = sorted(near, key=lambda name: used.get(name, 0))[:2]
        if chosen:
            found[one.host] = chosen
            used.update((name, used.get(name, 0) + 1) for name in chosen)
    return found


def good_first(pairs: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the nodes of a search: good ones first, so that some node is known to be good."""
    return list(dict.fromkeys([*(name for others in pairs.values() for name in others), *pairs]))


# -- text --------------------------------------------------------------------------------------------------------------


def plan_lines(found: Plan, check_mode: bool) -> list[str]:
    """Return the plan as text, a line for each node and accusation."""
    lines = [
        "REMEDIATION: %d of %d accused nodes %s acted on, %d at most at once"
        % (len(found.order), len(found.hosts), "would be" if check_mode else "are", found.most)
    ]
    names = [*found.order, *(name for name in found.hosts if name not in found.order)]
    for name in names:
        lines += _of_host(found.hosts[name])
    return lines


def _of_host(host: Host) -> Iterator[str]:
    if host.left:
        yield f"  {host.name}: an earlier run has drained it and was ended before it gave it back; that is finished now"
    steps = [*(["drain"] if host.drain else []), *(["measure"] if host.measure else []), *host.roles]
    steps += ["reboot where that is still needed"] if host.reboot else []
    steps += ["audit it again", "measure with good nodes" if host.between else "", "give back" if host.drain else ""]
    if host.returns:
        yield f"  {host.name}: it was left drained for what is ok now: it is proven again and given back"
    if host.act:
        yield f"  {host.name}: " + ", ".join(filter(None, steps))
    else:
        yield f"  {host.name}: nothing is done" + (f", {host.refused}" if host.refused else "")
    for item in host.items:
        yield f"    {item.verdict}: {item.finding.check} {item.finding.subject}: {item.why}"
