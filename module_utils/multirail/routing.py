# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan and judge the routing table of each rail, and the rule that leads to it.

Sources: systemd.network(5); netplan(5) and netplan generate 0.106; ip-rule(8).
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network
from typing import Iterator, List, Tuple, Union

from ..change import written
from ..core.finding import Finding
from ..core.plan import Command, FileChange, Plan, merge
from ..machine.netdev_address import Address
from ..machine.netdev_routing import RULES, Route, Rule
from ..mtu import plan as netdev_mtu
from ..mtu.addressing import Addressing
from ..mtu.claim import Table
from .checks import CONFLICT, RUN, SOURCE_ROUTING
from .policy import MultirailConfig
from .read import MultirailState, Rail

# More than a host has rails: below the first table after theirs no rule of others may be.
RAIL_TABLES = 64


def table_of(rail: Rail, gateway: str) -> Table:
    """Return the wanted table of the rail: its subnets, and a default route if a gateway is wanted."""
    found: List[Route] = []
    for one in rail.addresses:
        if str(one.subnet) not in [route.destination for route in found]:
            found.append(Route(str(one.subnet), "", one.address, rail.netdev))
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
    ends = (subnet[0], subnet[1]) if subnet.prefixlen == 31 else (subnet[1], subnet[-2])
    via = str(ends[0] if gateway == "first" else ends[1])
    if subnet.prefixlen == 31 and via == address.address:
        via = str(ends[1] if gateway == "first" else ends[0])
    return "" if via == address.address else via


def plan_routing(have: MultirailState, want: MultirailConfig) -> Plan:
    """Plan the tables of all rails, live and for the boot."""
    return merge(*(_plan_rail(have, rail, want) for rail in have.rails))


def _plan_rail(have: MultirailState, rail: Rail, want: MultirailConfig) -> Plan:
    if rail.twice or rail.other_address:
        return Plan((_undecided_rules(rail, "live"), _undecided_rules(rail, "persisted")))
    table = table_of(rail, want.gateway)
    finding, commands = _live_rules(have, rail, table)
    brought = _brought(rail, table)
    candidates = []
    if rail.file and rail.addresses and not brought:
        claim = rail.owner.claims[0]
        candidates = [FileChange(rail.file, rail.kept, claim.with_table(table), claim.mode)]
    files = written.compare(candidates)
    findings = (finding, *_foreign_rules(have, rail), _kept_rules(rail, files, want, table, brought))
    return Plan(findings, files.changes, tuple(commands), notes=files.notes)


def _undecided_rules(rail: Rail, aspect: str) -> Finding:
    said = "not judged while another rail has one of its addresses, too"
    fix = "give %s its own address; run ip address show %s" % (rail.netdev, rail.netdev)
    because: Union[Finding, str, None] = rail.twice
    if rail.other_address is not None and not rail.twice:
        said, fix = "not judged while its addresses are not those of the next boot", rail.other_address.fix
        because = rail.other_address
    wanted = "table %d for packets from its address" % rail.table
    return SOURCE_ROUTING.judge(rail.subject, "unknown", wanted, said, " ".join(RULES), fix, because, aspect=aspect)


def _live_rules(have: MultirailState, rail: Rail, table: Table) -> Tuple[Finding, List[Command]]:
    wrong = [*_missing_routes(rail, table), *_wrong_rules(have, rail)]
    addresses = sorted({one.address for one in rail.addresses})
    state, said, fix = ("drift", ", ".join(text for text, _argv in wrong), RUN) if wrong else ("ok", "as wanted", "")
    if have.rules is None:
        state, said, fix = "unknown", "the rules or routes cannot be read", "run %s" % " ".join(RULES)
    elif not addresses:
        state, said, fix = _no_address(rail)
    wanted = "table %d for packets from %s" % (rail.table, ", ".join(addresses) or "its address")
    because = None if addresses else rail.no_gid
    finding = SOURCE_ROUTING.judge(
        *(rail.subject, state, wanted, said, " ".join(RULES), fix, because), aspect="live", disruption="link"
    )
    why = "rail %d (%s) gets its own table; running connections may move to it" % (rail.number, rail.netdev)
    commands = [Command(("ip", "-4", *argv), why, "link") for _text, argv in wrong]
    return finding, commands if state == "drift" else []


# A fault in words, and the arguments of ip that mend it.
_Fault = Tuple[str, Tuple[str, ...]]


def _missing_routes(rail: Rail, table: Table) -> Iterator[_Fault]:
    for route in table.routes:
        there = [one for one in rail.routes if (one.destination, one.netdev) == (route.destination, rail.netdev)]
        if not any(one.gateway == route.gateway and route.source in ("", one.source) for one in there):
            way = ("via", route.gateway) if route.gateway else ("scope", "link", "src", route.source)
            argv = ("route", "replace", route.destination, *way, "dev", rail.netdev, "table", str(rail.table))
            yield "no route to %s in table %d" % (route.destination, rail.table), argv


def _wrong_rules(have: MultirailState, rail: Rail) -> Iterator[_Fault]:
    table = str(rail.table)
    addresses = {one.address for one in rail.addresses}
    # A rule for virtual routers (l3mdev) has the priority 1000 wherever there is one.
    ours = [rule for rule in have.rules or () if rule.priority == rail.table and "l3mdev" not in rule.table]
    for rule in ours:
        if rule.source not in addresses or rule.table != table or rule.other:
            source = rule.source or "all"
            argv = ("rule", "del", "from", source, "lookup", rule.table, "priority", table)
            yield "a rule from %s at priority %d" % (source, rule.priority), argv
    for address in sorted(addresses - {rule.source for rule in ours if rule.table == table and not rule.other}):
        yield "no rule from %s" % address, ("rule", "add", "from", address, "lookup", table, "priority", table)


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
            said = "a rule from %s to table %s at priority %d" % (rule.source or "all", rule.table, rule.priority)
            fix = "remove the rule where it is configured, or give it a priority above %d" % (rail.table + RAIL_TABLES)
            fix += "" if aspect == "persisted" else "; now: ip -4 rule del priority %d" % rule.priority
            subject = "rule %d from %s" % (rule.priority, rule.source or "all")
            wanted = "no other rule for its packets before priority %d" % rail.table
            found.append(CONFLICT.judge(subject, "not_owned", wanted, said, source, fix, aspect=aspect))
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


def _brought(rail: Rail, table: Table) -> bool:
    """Return whether the owner's files bring the table, without a file of ours."""
    claims = () if rail.owner.unclear or rail.kept is not None else rail.owner.claims
    return bool(claims) and not _lacking(claims[0].addressing, table)


def _kept_rules(rail: Rail, files: written.Files, want: MultirailConfig, table: Table, brought: bool) -> Finding:
    path = rail.file or "the network manager of %s" % rail.netdev
    wanted = "table %d in %s" % (rail.table, rail.file or "the configuration of its network manager")
    state, said, fix = files.state, files.wrong or "as wanted", RUN
    because = None
    if not rail.addresses:
        state, said, fix = _no_address(rail)
        because = rail.no_gid
    elif not rail.file or brought:
        state, said, fix = _unwritable(rail, table)
        mtu = rail.owner.claims[0].mtu if rail.owner.claims else None
        refused = not rail.owner.claims or rail.shared or rail.owner.claims[0].refused[0]
        if want.mtu_judged and (rail.owner.unclear or (refused and mtu is None)):
            because = netdev_mtu.OWNER.finding_id(rail.subject)
    return SOURCE_ROUTING.judge(rail.subject, state, wanted, said, path, fix, because, severity=files.severity)


def _unwritable(rail: Rail, table: Table) -> Tuple[str, str, str]:
    """State, have and fix where the rules of a rail cannot be in a file of ours: its owner's may have them."""
    owned, name = rail.owner, rail.netdev
    if owned.unclear:
        return "unknown", owned.unclear, "configure %s in one file only, in a form that Busbar can read" % name
    if not owned.claims:
        return "unknown", "no file configures %s" % name, "give %s its own file, with its addresses" % name
    claim = owned.claims[0]
    if claim.refused[0]:
        return "not_owned", claim.refused[0], claim.refused[1]
    if rail.shared:
        said = "%s also configures %s" % (claim, ", ".join(rail.shared[:4]))
        return "not_owned", said, "give every rail its own file"
    lacking = _lacking(claim.addressing, table)
    if not lacking:
        return "ok", "rules and routes of table %d in %s (%s)" % (table.number, claim.path, claim.stack), ""
    said = "%s (%s) brings no %s" % (claim.path, claim.stack, ", no ".join(lacking))
    return "not_owned", said, claim.table_advice(table, name)


def _lacking(given: Addressing, table: Table) -> List[str]:
    """Return the parts of a table that an owner's files lack."""
    number = str(table.number)
    rules = {(one.source, one.table) for one in given.rules if not one.other and one.priority == table.number}
    routes = {(one.destination, one.gateway, one.source) for name, one in given.routes if name == number}
    # Without a source in the route the kernel takes the interface's address, of which there may be several.
    alone = len(table.sources) == 1
    found = ["rule from %s" % one for one in table.sources if (one, number) not in rules]
    for one in table.routes:
        ways = [(one.destination, one.gateway, one.source), (one.destination, one.gateway, "")][: 1 + alone]
        found += [] if routes & set(ways) else ["route to %s" % one.destination]
    return found
