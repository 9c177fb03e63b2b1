# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan and judge ARP and source routing of several rails in one host.

Linux answers ARP for any of its addresses on any interface, and takes one route for all rails of a subnet: then all
traffic uses one NIC, or none.
Sources: sysctl.d(5) and systemd-sysctl of 252; systemd.network(5); netplan(5) and netplan generate 0.106; ip-rule(8).
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ..change import written
from ..core import fix_command, sysctl_files
from ..core.check import Check
from ..core.finding import Finding
from ..core.number import whole
from ..core.plan import Command, FileChange, Plan, merge
from ..core.sysctl_files import Assignment
from ..machine.netdev_address import Address
from ..machine.netdev_routing import RULES, Route, Rule
from ..mtu import netplan
from ..mtu import plan as netdev_mtu
from ..mtu.claim import Addressing, Table
from . import routers
from .policy import KEYS, MultirailConfig, Policy
from .read import CONF, SYSCTL_FILE, MultirailState, Rail

RUN = fix_command.run_tag("multirail")
# More than a host has rails: below the first table after theirs no rule of others may be.
RAIL_TABLES = 64
_KEY = "net/ipv4/conf/%s/%s"

SETTINGS = Check(
    "multirail.sysctl",
    why="without them the wrong rail responds for an address, or the kernel drops packets that arrive by another rail;"
    " it uses the larger of an interface's value and that of 'all'",
    fix=RUN,
    aspect="persisted",
)
"""Does each rail's interface have the values of the policy, now (the larger of its value and that of `all`) and
after a boot"""

SOURCE_ROUTING = Check(
    "multirail.rules",
    why="without its own table a rail's traffic leaves by the rail with the first route to the subnet",
    fix=RUN,
    aspect="persisted",
)
"With source routing: does traffic from the rail's address use the rail's own table, now and after a boot"

CONFLICT = Check(
    "multirail.conflict",
    why="the kernel uses the larger of an interface's value and that of 'all', and a later file wins",
    aspect="persisted",
)
"Does no other sysctl file, live value of `all` or earlier rule override the policy; names file and line"

READABLE = Check("multirail.readable", why="what cannot be read cannot be judged")
"Could addresses, rules and routes be read"


def plan(have: MultirailState, want: MultirailConfig) -> Plan:
    """Return the findings, files and commands of kernel settings and of source routing."""
    unread = Plan(tuple(READABLE.unreadable(problem) for problem in have.problems))
    routing = [_plan_rail(have, rail, want) for rail in have.rails if want.policy.routing or rail.vrf is not None]
    rules = Plan(tuple(routers.judge_rules(have.rails)))
    found = merge(_plan_sysctl(have, want.policy), _plan_leftover(have, want.policy), rules, *routing, unread)
    if any(change.path.startswith(netplan.FOLDER) for change in found.changes):
        return found._replace(commands=(netplan.GENERATE, *found.commands))
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


# -- kernel settings -------------------------------------------------------------------------------------------------


def render_sysctl(rails: Sequence[Rail], policy: Policy) -> str:
    """Our file: a reason above each setting. Slashes, because a VLAN has a dot in its name."""
    lines = ["# Written by Busbar (role multirail): policy %s." % policy.name]
    for key in KEYS:
        if key in policy.values:
            lines.append("# %s: %s" % (key, policy.source))
            lines += ["%s = %d" % (_KEY % (rail.netdev, key), policy.values[key]) for rail in rails]
    return written.seal(SYSCTL_FILE, "\n".join(lines) + "\n")


def _plan_sysctl(have: MultirailState, policy: Policy) -> Plan:
    """Plan the values of the policy. Nothing is written if other files set them."""
    conflicts = _conflicts(have, policy) if have.rails else []
    findings = [finding for finding, _key in conflicts]
    if not policy.values or not have.rails:
        return Plan()
    if not conflicts:
        findings.append(CONFLICT.judge(SYSCTL_FILE, "ok", "no file overrides it", "none does"))
    because = {key: finding.id for finding, key in reversed(conflicts)}
    rendered = render_sysctl(have.rails, policy)
    # All lines as boot reads them once our file has this text.
    others = [one for one in have.assignments if one.path != SYSCTL_FILE]
    with_ours = others + sysctl_files.parse(rendered, SYSCTL_FILE)
    with_ours.sort(key=lambda one: one.path.rpartition("/")[2])
    files = written.compare([FileChange(SYSCTL_FILE, have.sysctl, rendered)])
    needed = have.sysctl is not None and (files.severity is not None or not files.wrong)
    commands: List[Command] = []
    for rail in have.rails:
        wrong, left = (_wrong_at_boot(lines, rail, policy) for lines in (have.assignments, with_ours))
        needed = needed or wrong != left
        findings.append(_live_sysctl(have, rail, policy, because, commands))
        text = ", ".join("%s %d" % item for item in wrong.items()) or "as wanted"
        state, fix, cause = "drift" if wrong else "ok", RUN, None
        if left:
            # Still wrong once our file is as rendered.
            state, fix, cause = "not_owned", "correct the file that is not Busbar's", because.get(next(iter(left)))
        findings.append(SETTINGS.judge(rail.subject, state, _wanted_text(policy), text, SYSCTL_FILE, fix, cause))
    findings += files.edited(SETTINGS) if needed else ()
    return Plan(tuple(findings), files.changes if needed else (), tuple(commands), notes=files.notes)


def _wanted_text(policy: Policy) -> str:
    return ", ".join("%s %d" % (key, policy.values[key]) for key in KEYS if key in policy.values)


def _wrong_at_boot(assignments: Sequence[Assignment], rail: Rail, policy: Policy) -> Dict[str, int]:
    """Settings that are not as wanted after a boot, and what they are. Without a value 'default' has that of a rail."""
    found = {}
    for key, wanted in policy.values.items():
        of_rail, of_default, of_all = (
            sysctl_files.effective(assignments, _KEY % (name, key)) for name in (rail.netdev, "default", "all")
        )
        values = [whole(one.value) or 0 if one is not None else 0 for one in (of_rail or of_default, of_all)]
        found.update({key: max(values)} if max(values) != wanted else {})
    return found


def _conflicts(have: MultirailState, policy: Policy) -> List[Tuple[Finding, str]]:
    """Return findings, each with its setting: lines of other files that override ours, and a live 'all'."""
    found = []
    judged = {_KEY % (rail.netdev, key): key for rail in have.rails for key in policy.values}
    for one in have.assignments + have.main:
        at_boot, key = one.path != sysctl_files.MAIN, judged.get(one.key, "")
        is_later = bool(one.program) or one.path.rpartition("/")[2] > SYSCTL_FILE.rpartition("/")[2] or not at_boot
        if key and is_later and one.path != SYSCTL_FILE and one.value != str(policy.values[key]):
            reason = "it comes after %s" % SYSCTL_FILE if at_boot else "sysctl -p and sysctl --system set it"
            found.append((_conflict(one, policy, key, reason, severity="major" if at_boot else "minor"), key))
    for key, wanted in policy.values.items():
        at_boot_all = sysctl_files.effective(have.assignments, _KEY % ("all", key))
        live, name = have.live_all.get(key) or 0, "net.ipv4.conf.all.%s" % key
        if at_boot_all is not None and (whole(at_boot_all.value) or 0) > wanted:
            then = ", then sysctl -w %s=%d" % (name, wanted) if live > wanted else ""
            found.append((_conflict(at_boot_all, policy, key, "the larger of it and an interface's counts", then), key))
        elif live > wanted:
            fix = "sysctl -w %s=%d, and find out what set it: no sysctl file does" % (name, wanted)
            text = "%d now, set by no file" % live
            found.append((CONFLICT.judge(name, "not_owned", "at most %d" % wanted, text, fix=fix, aspect="live"), key))
    return found


def _conflict(
    one: Assignment, policy: Policy, key: str, reason: str, then: str = "", severity: str = "major"
) -> Finding:
    fix = "correct or remove %s of %s%s" % ("line %d" % one.line if one.line else one.key, one.path, then)
    text = "%s = %s; %s" % (one.key, one.value, reason)
    wanted = "%s %d (policy %s)" % (key, policy.values[key], policy.name)
    return CONFLICT.judge(one.place, "not_owned", wanted, text, one.path, fix, severity=severity)


def _live_sysctl(
    have: MultirailState, rail: Rail, policy: Policy, because: Mapping[str, str], commands: List[Command]
) -> Finding:
    """Judge the values of now, and add the command that sets them to ``commands``."""
    source = "%s/%s" % (CONF, rail.netdev)
    wrong, unread = [], []
    mendable: List[str] = []
    forced: List[str] = []
    for key, value in policy.values.items():
        own, of_all = rail.live.get(key), have.live_all.get(key)
        if own is None or of_all is None:
            unread.append("%s/%s" % (source, key))
        elif max(own, of_all) != value:
            wrong.append("%s %d" % (key, own) + (" (all: %d)" % of_all if of_all > value else ""))
            (forced if of_all > value else mendable).append(key)
    state, text, fix, cause = "drift" if wrong else "ok", ", ".join(wrong) or "as wanted", RUN, None
    if forced:
        state, fix, cause = "not_owned", "lower net.ipv4.conf.all where it is set", because.get(forced[0])
    if unread:
        state, text = "unknown", "%s cannot be read" % ", ".join(unread)
        fix = "look at %s and %s/all" % (source, CONF)
    if mendable:
        settings = ["%s=%d" % (_KEY % (rail.netdev, key), policy.values[key]) for key in mendable]
        why = "%s of rail %d" % (", ".join(mendable), rail.number)
        commands.append(Command(("sysctl", "-w", *settings), why))
    return SETTINGS.judge(rail.subject, state, _wanted_text(policy), text, source, fix, cause, aspect="live")


# -- source routing --------------------------------------------------------------------------------------------------


def table_of(rail: Rail, gateway: str) -> Table:
    """Return the wanted table of the rail: its subnets, and a default route if a gateway is wanted."""
    subnets: Dict[str, str] = {}
    for one in rail.addresses:
        subnets.setdefault(str(one.subnet), one.address)
    found = [Route(subnet, "", address, rail.netdev) for subnet, address in subnets.items()]
    vias = [via for via in (gateway_of(one, gateway) for one in rail.addresses) if via]
    if not gateway:
        vias = re.findall(r"(?:Gateway=|via: )(\S+)", rail.kept or "")
    found += [Route("default", via, "", rail.netdev) for via in vias[:1]]
    return Table(rail.table, tuple(one.address for one in rail.addresses), tuple(found))


def gateway_of(address: Address, gateway: str) -> str:
    """Address of the gateway, "" for none. gateway: as in MultirailConfig; in a /31 it is the other address."""
    subnet = address.subnet
    if gateway in ("", "none") or subnet.prefixlen == 32:
        return ""
    ends = [str(subnet[0]), str(subnet[1])] if subnet.prefixlen == 31 else [str(subnet[1]), str(subnet[-2])]
    if subnet.prefixlen == 31:
        ends = [end for end in ends if end != address.address]
    via = ends[0 if gateway == "first" else -1]
    return "" if via == address.address else via


def _plan_rail(have: MultirailState, rail: Rail, want: MultirailConfig) -> Plan:
    """Plan the table of a rail, now and for the boot."""
    if rail.vrf is not None:
        ours = (FileChange(rail.file, rail.kept, None),) if rail.file and rail.kept is not None else ()
        wanted = "no such file: the rail is in a VRF"
        found = [SOURCE_ROUTING.judge(one.path, "drift", wanted, "it is there") for one in ours]
        return Plan((routers.judge_vrf(rail, rail.vrf, have.rails), *found), ours)
    if rail.ipv6 and not rail.addresses:
        return Plan((routers.judge_ipv6(SOURCE_ROUTING, rail, have.rails),))
    if rail.twice or rail.other_address:
        return Plan((_undecided_rules(rail, "live"), _undecided_rules(rail, "persisted")))
    table = table_of(rail, want.gateway)
    finding, commands = _live_rules(have, rail, table)
    claim = rail.owner.claim
    # Whether the owner's files bring the table, without a file of ours.
    brought = claim is not None and rail.kept is None and not _lacking(claim.addressing, table)
    candidates = []
    if claim is not None and rail.file and rail.addresses and not brought:
        candidates = [FileChange(rail.file, rail.kept, claim.with_table(table), claim.mode)]
    files = written.compare(candidates)
    findings = (finding, *_foreign_rules(have, rail), _boot_rules(rail, files, want, table, brought))
    return Plan(findings, files.changes, tuple(commands), notes=files.notes)


def _undecided_rules(rail: Rail, aspect: str) -> Finding:
    text = "not judged while another rail has one of its addresses, too"
    fix = "give %s its own address; run ip address show %s" % (rail.netdev, rail.netdev)
    if rail.other_address is not None and not rail.twice:
        text, fix = "not judged while its addresses are not those of the next boot", rail.other_address.fix
    wanted, cause = "table %d for packets from its address" % rail.table, rail.twice or rail.other_address
    return SOURCE_ROUTING.judge(rail.subject, "unknown", wanted, text, " ".join(RULES), fix, cause, aspect=aspect)


def _live_rules(have: MultirailState, rail: Rail, table: Table) -> Tuple[Finding, List[Command]]:
    number, addresses = str(rail.table), sorted({one.address for one in rail.addresses})
    # Faults in words, and the arguments of ip that mend them.
    wrong: List[Tuple[str, Tuple[str, ...]]] = []
    for route in table.routes:
        there = [one for one in rail.routes if (one.destination, one.netdev) == (route.destination, rail.netdev)]
        if not any(one.gateway == route.gateway and route.source in ("", one.source) for one in there):
            way = ("via", route.gateway) if route.gateway else ("scope", "link", "src", route.source)
            argv = ("route", "replace", route.destination, *way, "dev", rail.netdev, "table", number)
            wrong.append(("no route to %s in table %s" % (route.destination, number), argv))
    # A rule for virtual routers (l3mdev) has the priority 1000 wherever there is one.
    ours = [rule for rule in have.rules or () if rule.priority == rail.table and "l3mdev" not in rule.table]
    right = [rule for rule in ours if rule.source in addresses and rule.table == number and not rule.other]
    for rule in (rule for rule in ours if rule not in right):
        argv = ("rule", "del", "from", rule.source or "all", "lookup", rule.table, "priority", number)
        wrong.append(("a rule from %s at priority %s" % (rule.source or "all", number), argv))
    for address in sorted(set(addresses) - {rule.source for rule in right}):
        argv = ("rule", "add", "from", address, "lookup", number, "priority", number)
        wrong.append(("no rule from %s" % address, argv))
    state, text, fix = ("drift", ", ".join(text for text, _argv in wrong), RUN) if wrong else ("ok", "as wanted", "")
    if have.rules is None:
        state, text, fix = "unknown", "the rules or routes cannot be read", "run %s" % " ".join(RULES)
    elif not addresses:
        state, text, fix = _no_address(rail)
    wanted = "table %s for packets from %s" % (number, ", ".join(addresses) or "its address")
    finding = SOURCE_ROUTING.judge(
        *(rail.subject, state, wanted, text, " ".join(RULES), fix, None if addresses else rail.no_gid),
        aspect="live",
        disruption="link",
    )
    why = "rail %d (%s) gets its own table; running connections may move to it" % (rail.number, rail.netdev)
    commands = [Command(("ip", "-4", *argv), why, "link") for _text, argv in wrong]
    return finding, commands if state == "drift" else []


def _no_address(rail: Rail) -> Tuple[str, str, str]:
    """State, have and fix of a rail without an address."""
    fix = "give it one; run ip address show %s" % rail.netdev
    return "unknown", "%s has no IPv4 address" % rail.netdev, fix


def _foreign_rules(have: MultirailState, rail: Rail) -> List[Finding]:
    """Judge foreign rules that route the rail's address elsewhere, before ours applies."""
    found = []
    live = [(rule, " ".join(RULES), "live") for rule in have.rules or ()]
    for rule, source, aspect in [*live, *((rule, path, "persisted") for rule, path in have.boot_rules)]:
        if _comes_before(rule, rail):
            subject = "rule %d from %s" % (rule.priority, rule.source or "all")
            text = "a rule from %s to table %s at priority %d" % (rule.source or "all", rule.table, rule.priority)
            fix = "remove the rule where it is configured, or give it a priority above %d" % (rail.table + RAIL_TABLES)
            fix += "" if aspect == "persisted" else "; now: ip -4 rule del priority %d" % rule.priority
            wanted = "no other rule for its packets before priority %d" % rail.table
            found.append(CONFLICT.judge(subject, "not_owned", wanted, text, source, fix, aspect=aspect))
    return found


def _comes_before(rule: Rule, rail: Rail) -> bool:
    """Return whether a rule takes all of a rail's packets, or all to some of its subnets, before the rail's rule."""
    if not 0 < rule.priority < rail.table or rule.some or rule.table in (str(rail.table), "local", "nop"):
        return False
    try:
        sources, to = (IPv4Network(text or "0.0.0.0/0", strict=False) for text in (rule.source, rule.destination))
    except ValueError:
        return False
    mine = [one for one in rail.addresses if IPv4Address(one.address) in sources]
    return any(to.overlaps(one.subnet) for one in mine)


def _boot_rules(rail: Rail, files: written.Files, want: MultirailConfig, table: Table, brought: bool) -> Finding:
    path = rail.file or "the network manager of %s" % rail.netdev
    wanted = "table %d in %s" % (rail.table, rail.file or "the configuration of its network manager")
    state, text, fix = files.state, files.wrong or "as wanted", RUN
    because: Optional[str] = None
    owned, claims = rail.owner, rail.owner.claims
    if not rail.addresses:
        state, text, fix = _no_address(rail)
        because = rail.no_gid
    elif not rail.file or brought:
        state, text, fix = netdev_mtu.unwritable(owned, rail.shared, rail.netdev)
        if not state and owned.claim is not None:
            # Its owner may have them.
            state, text = "ok", "rules and routes of table %d in %s" % (table.number, owned.claim)
            lacking = _lacking(owned.claim.addressing, table)
            if lacking:
                state, text = "not_owned", "%s brings no %s" % (owned.claim, ", no ".join(lacking))
                fix = "let %s bring them, in its own syntax: %s" % (owned.claim, "; ".join(table.lines))
        refused = not claims or rail.shared or claims[0].refused[0]
        if want.mtu_judged and (owned.unclear or (refused and (not claims or claims[0].mtu is None))):
            because = netdev_mtu.OWNER.finding_id(rail.subject)
    return SOURCE_ROUTING.judge(rail.subject, state, wanted, text, path, fix, because, severity=files.severity)


def _lacking(given: Addressing, table: Table) -> List[str]:
    """Return the parts of a table that an owner's files lack."""
    number = str(table.number)
    rules = {(one.source, one.table) for one in given.rules if not one.other and one.priority == table.number}
    routes = {(one.destination, one.gateway, one.source) for name, one in given.routes if name == number}
    found = ["rule from %s" % one for one in table.sources if (one, number) not in rules]
    for one in table.routes:
        # Without a source in the route the kernel takes the interface's address, of which there may be several.
        sources = (one.source, "") if len(table.sources) == 1 else (one.source,)
        if not any((one.destination, one.gateway, source) in routes for source in sources):
            found.append("route to %s" % one.destination)
    return found
