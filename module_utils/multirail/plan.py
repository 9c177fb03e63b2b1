# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan and judge ARP and source routing of several rails in one host.

Linux answers ARP for any of its addresses on any interface, and takes one route for all rails of a subnet: then all
traffic uses one NIC, or none.
Sources: sysctl.d(5) and systemd-sysctl of 252.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, List, Mapping, Sequence, Tuple

from ..change import written
from ..core import sysctl_files
from ..core.finding import Finding
from ..core.number import whole
from ..core.plan import Command, FileChange, Plan, merge
from ..core.sysctl_files import Assignment
from ..mtu import netplan
from .checks import CONFLICT, READABLE, RUN, SETTINGS, SOURCE_ROUTING
from .policy import KEYS, MultirailConfig, Policy
from .read import CONF, SYSCTL_FILE, MultirailState, Rail
from .routing import plan_routing


def plan(have: MultirailState, want: MultirailConfig) -> Plan:
    """Return the findings, files and commands of kernel settings and of source routing."""
    unread = Plan(tuple(READABLE.unreadable(problem) for problem in have.problems))
    routing = plan_routing(have, want) if want.policy.routing else Plan()
    found = merge(_plan_sysctl(have, want.policy), _plan_leftover(have, want.policy), routing, unread)
    if any(change.path.startswith(netplan.FOLDER) for change in found.changes):
        return replace(found, commands=(netplan.GENERATE, *found.commands))
    return found


def _plan_leftover(have: MultirailState, policy: Policy) -> Plan:
    """Remove our files that the policy does not need; those that the inventory does not decide stay."""
    findings, changes, notes = [], [], []
    for path, text in have.leftover.items():
        if not (policy.has_values if path == SYSCTL_FILE else policy.has_routing):
            notes.append("%s is not judged, and stays; multirail_policy: none would remove it" % path)
            continue
        changes.append(FileChange(path, text, None))
        check = SETTINGS if path == SYSCTL_FILE else SOURCE_ROUTING
        want = "no such file (policy %s does not need it)" % policy.name
        findings.append(check.judge(path, "drift", want, "it is there"))
    return Plan(tuple(findings), tuple(changes), notes=tuple(notes))


def conf_key(name: str, setting: str) -> str:
    return "net/ipv4/conf/%s/%s" % (name, setting)


def render_sysctl(rails: Sequence[Rail], policy: Policy) -> str:
    """Our file: a reason above each setting. Slashes, because a VLAN has a dot in its name."""
    lines = ["# Written by Busbar (role multirail): policy %s." % policy.name]
    for key in KEYS:
        if key in policy.values:
            lines.append("# %s: %s" % (key, policy.source))
            lines += ["%s = %d" % (conf_key(rail.netdev, key), policy.values[key]) for rail in rails]
    return written.seal(SYSCTL_FILE, "\n".join(lines) + "\n")


def _plan_sysctl(have: MultirailState, policy: Policy) -> Plan:
    """Plan the values of the policy. Nothing is written if other files set them."""
    conflicts = _conflicts(have, policy)
    findings = [finding for finding, _key in conflicts]
    if not policy.values or not have.rails:
        return Plan(tuple(findings))
    if not conflicts:
        findings.append(CONFLICT.judge(SYSCTL_FILE, "ok", "no file overrides it", "none does"))
    because = {key: finding.id for finding, key in reversed(conflicts)}
    rendered = render_sysctl(have.rails, policy)
    with_ours = _with_ours(have, rendered)
    files = written.compare([FileChange(SYSCTL_FILE, have.sysctl, rendered)])
    needed = have.sysctl is not None and (files.severity is not None or not files.wrong)
    commands: List[Command] = []
    for rail in have.rails:
        finding, sysctls = _live_sysctl(have, rail, policy, because)
        commands += sysctls
        wrong, left = (_kept_wrong(lines, rail, policy) for lines in (have.assignments, with_ours))
        needed = needed or wrong != left
        findings += [finding, _kept_sysctl(rail, wrong, left, policy, because)]
    findings += files.edited(SETTINGS) if needed else ()
    return Plan(tuple(findings), files.changes if needed else (), tuple(commands), notes=files.notes)


def _wanted_text(policy: Policy) -> str:
    return ", ".join("%s %d" % (key, policy.values[key]) for key in KEYS if key in policy.values)


def _with_ours(have: MultirailState, text: str) -> List[Assignment]:
    """All lines as boot reads them once our file has this text."""
    others = [one for one in have.assignments if one.path != SYSCTL_FILE]
    return sorted(others + sysctl_files.parse(text, SYSCTL_FILE), key=lambda one: one.path.rpartition("/")[2])


def _kept_values(assignments: Sequence[Assignment], interface: str, key: str) -> Tuple[int, int]:
    """Return the values of the interface and 'all' after a boot. An interface without one gets that of 'default'."""
    values = []
    for name in (interface, "all"):
        found = sysctl_files.effective(assignments, conf_key(name, key))
        if found is None and name != "all":
            found = sysctl_files.effective(assignments, conf_key("default", key))
        values.append(whole(found.value if found is not None else None) or 0)
    return values[0], values[1]


def _kept_wrong(assignments: Sequence[Assignment], rail: Rail, policy: Policy) -> Dict[str, int]:
    """Settings that are not as wanted after a boot, and what they are."""
    found = {key: max(_kept_values(assignments, rail.netdev, key)) for key in policy.values}
    return {key: value for key, value in found.items() if value != policy.values[key]}


def _conflicts(have: MultirailState, policy: Policy) -> List[Tuple[Finding, str]]:
    """Return findings, each with its setting: lines of other files that override ours, and a live 'all'."""
    found = []
    ours = SYSCTL_FILE.rpartition("/")[2]
    judged = {conf_key(rail.netdev, key): key for rail in have.rails for key in policy.values}
    for one in have.assignments + have.main:
        at_boot = one.path != sysctl_files.MAIN
        later = bool(one.program) or one.path.rpartition("/")[2] > ours or not at_boot
        key = judged.get(one.key, "")
        if key and later and one.path != SYSCTL_FILE and one.value != str(policy.values[key]):
            found.append((_conflict(one, policy, key, at_boot, "it comes after %s" % SYSCTL_FILE), key))
    for key in policy.values:
        wanted = policy.values[key]
        kept = sysctl_files.effective(have.assignments, conf_key("all", key)) if have.rails else None
        live = have.live_all.get(key)
        if kept is not None and (whole(kept.value) or 0) > wanted:
            then = ", then sysctl -w net.ipv4.conf.all.%s=%d" % (key, wanted) if (live or 0) > wanted else ""
            found.append((_conflict(kept, policy, key, True, "the larger of it and an interface's counts", then), key))
        elif have.rails and live is not None and live > wanted:
            name = "net.ipv4.conf.all.%s" % key
            fix = "sysctl -w %s=%d, and find out what set it: no sysctl file does" % (name, wanted)
            said = "%d now, set by no file" % live
            wanted_text = "at most %d" % wanted
            found.append((CONFLICT.judge(name, "not_owned", wanted_text, said, fix=fix, aspect="live"), key))
    return found


def _conflict(one: Assignment, policy: Policy, key: str, at_boot: bool, reason: str, then: str = "") -> Finding:
    fix = "correct or remove %s of %s%s" % ("line %d" % one.line if one.line else one.key, one.path, then)
    said = "%s = %s; %s" % (one.key, one.value, reason if at_boot else "sysctl -p and sysctl --system set it")
    wanted = "%s %d (policy %s)" % (key, policy.values[key], policy.name)
    severity = "major" if at_boot else "minor"
    return CONFLICT.judge(one.place, "not_owned", wanted, said, one.path, fix, severity=severity)


def _live_sysctl(
    have: MultirailState, rail: Rail, policy: Policy, because: Mapping[str, str]
) -> Tuple[Finding, Tuple[Command, ...]]:
    unread = [key for key in policy.values if rail.live.get(key) is None or have.live_all.get(key) is None]
    wrong = {}
    mendable = []
    for key, value in policy.values.items():
        if key in unread:
            continue
        own, everywhere = rail.live[key] or 0, have.live_all[key] or 0
        if max(own, everywhere) != value:
            wrong[key] = "%s %d" % (key, own) + (" (all: %d)" % everywhere if everywhere > value else "")
            if everywhere <= value:
                mendable.append(key)
    source = "%s/%s" % (CONF, rail.netdev)
    said = ", ".join(wrong.values()) or "as wanted"
    state, fix, cause = ("drift", RUN, None) if wrong else ("ok", "", None)
    forced = [key for key in wrong if key not in mendable]
    if forced:
        cause = because.get(forced[0])
        state, fix = "not_owned", "lower net.ipv4.conf.all where it is set"
    if unread:
        state, said = "unknown", "%s cannot be read" % ", ".join("%s/%s" % (source, key) for key in unread)
        fix = "look at %s and %s/all" % (source, CONF)
    settings = ["%s=%d" % (conf_key(rail.netdev, key), policy.values[key]) for key in mendable]
    why = "%s of rail %d" % (", ".join(mendable), rail.number)
    commands = (Command(("sysctl", "-w", *settings), why),) if mendable else ()
    wanted = _wanted_text(policy)
    return SETTINGS.judge(rail.subject, state, wanted, said, source, fix, cause, aspect="live"), commands


def _kept_sysctl(
    rail: Rail, wrong: Mapping[str, int], left: Mapping[str, int], policy: Policy, because: Mapping[str, str]
) -> Finding:
    """left: what is wrong still, once our file is as rendered."""
    said = ", ".join("%s %d" % item for item in wrong.items()) or "as wanted"
    state, fix, cause = ("drift", RUN, None) if wrong else ("ok", "", None)
    if left:
        cause = because.get(next(iter(left)))
        state, fix = "not_owned", "correct the file that is not Busbar's"
    return SETTINGS.judge(rail.subject, state, _wanted_text(policy), said, SYSCTL_FILE, fix, cause)
