# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan and judge ARP and source routing of several rails in one host.

Linux answers ARP for any of its addresses on any interface, and takes one route for all rails of a subnet: then all
traffic uses one NIC, or none. The right kernel settings differ by site, so a policy is named and not guessed.
Sources: kernel Documentation/networking/ip-sysctl.rst, include/linux/inetdevice.h (MAXCONF, ORCONF); sysctl.d(5) and
systemd-sysctl of 252; systemd.network(5); netplan(5) and netplan generate 0.106; ip-rule(8).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import IPv4Address, IPv4Network
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from ..change import written
from ..core import fix_command, sysctl_files
from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host, ParseError, Problem, attempt
from ..core.number import whole
from ..core.plan import Command, FileChange, Plan
from ..core.sysctl_files import Assignment
from ..machine import netdev, netdev_address
from ..machine.netdev_address import ADDRESSES, Address
from ..machine.netdev_routing import ROUTES, RULES, Route, Rule, parse_routes, parse_rules
from ..machine.pci import parse_decimal, read_value
from ..machine.profile import Profile, roce_rails
from ..machine.rail_address import RAIL_ADDRESS, RAIL_GID
from ..machine.rdma import ADDRESS_FAMILIES, gids_of_family
from ..machine.topology import Nic
from ..mtu import device, netplan, networkd, owner, persisted_address
from ..mtu import plan as netdev_mtu
from ..mtu.addressing import Addressing
from ..mtu.claim import Table
from ..mtu.owner import Owner

KEYS = ("arp_ignore", "arp_announce", "rp_filter", "accept_local")
CONF = "/proc/sys/net/ipv4/conf"
# After 50-default.conf of distributions and most sites' files, before 99-sysctl.conf, which is /etc/sysctl.conf.
SYSCTL_FILE = "/etc/sysctl.d/98-busbar-multirail.conf"
GATEWAYS = ("none", "first", "last")
# Rules of the kernel and of people are mostly at 0 and above 32765; tables 253 to 255 are the kernel's.
FIRST_TABLE = 1000
# More than a host has rails: below the first table after theirs no rule of others may be.
RAIL_TABLES = 64
RUN = fix_command.run_tag("multirail")

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


@dataclass(frozen=True)
class Policy:
    """values: kernel setting -> value, for every rail. sources: where each is from. routing: a table for each rail.

    has_values, has_routing: whether the inventory reports it; else Busbar's files for it stay.
    """

    name: str
    values: Mapping[str, int]
    sources: Mapping[str, str]
    routing: bool
    has_values: bool = True
    has_routing: bool = True


_OCI = "oracle-quickstart/oci-hpc, roles/rdma-interface/tasks/el.yml"
_NVIDIA = "Mellanox/network-operator, README, RDMA shared devices on one subnet"
POLICIES = {
    "oci": Policy(
        "oci",
        {"arp_ignore": 2, "arp_announce": 1, "rp_filter": 2},
        dict.fromkeys(("arp_ignore", "arp_announce", "rp_filter"), _OCI),
        routing=False,
    ),
    "nvidia": Policy(
        "nvidia",
        {"arp_ignore": 1, "arp_announce": 2, "rp_filter": 0},
        dict.fromkeys(("arp_ignore", "arp_announce", "rp_filter"), _NVIDIA),
        routing=True,
    ),
    "none": Policy("none", {}, {}, routing=False),
}


def undecided(policy: Policy, asked: Profile) -> List[str]:
    """Return a note that no policy is set. One rail alone needs none."""
    if policy.name or roce_rails(asked) < 2:
        return []
    return ["multirail_policy is not set: ARP and routes between the RoCE rails of a host are not judged"]


_LARGEST = {"arp_ignore": 8, "arp_announce": 2, "rp_filter": 2, "accept_local": 1}


def policy(name: str, values: Optional[Mapping[str, Any]], routing: Optional[bool]) -> Policy:
    """Return the policy of this name; of "" nothing is judged. Raises ParseError.

    values, routing: of the policy ``custom``, which the site defines; None if the inventory does not.
    """
    if name != "custom":
        if values or routing:
            said = "policy %s has its own values" % name if name else "no policy is set"
            raise ParseError("multirail: %s; values and source routing are those of policy custom" % said)
        return POLICIES[name] if name else Policy("", {}, {}, False, has_values=False, has_routing=False)
    given = dict(values or {})
    for key, value in given.items():
        if key not in KEYS:
            raise ParseError("multirail: %r is not one of %s" % (key, ", ".join(KEYS)))
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST[key]:
            raise ParseError("multirail: %s is %r, expected a number from 0 to %d" % (key, value, _LARGEST[key]))
    sources = dict.fromkeys(given, "the inventory")
    return Policy("custom", given, sources, bool(routing), values is not None, routing is not None)


@dataclass(frozen=True)
class Want:
    """gateway: of each rail's table: none, or the first or last address of the rail's subnet; "" leaves it.

    mtu_judged: netdev_mtu judges the same rails, and has a finding if the owner of one is not clear.
    """

    policy: Policy
    gateway: str = ""
    mtu_judged: bool = False


@dataclass(frozen=True)
class Rail:
    """number: of the rail. live: setting -> value, None if it cannot be read. routes: of the rail's table.

    owner: what sets it up at boot. shared: other interfaces that its file sets up, too. kept: text of our file for
    the boot, None if absent. no_gid, twice: id of the finding that a rail without an address, or with one
    that an earlier rail has too, has already.
    """

    number: int
    subject: str
    netdev: str
    live: Mapping[str, Optional[int]]
    addresses: Tuple[Address, ...] = ()
    routes: Tuple[Route, ...] = ()
    owner: Owner = field(default_factory=Owner)
    shared: Tuple[str, ...] = ()
    kept: Optional[str] = None
    no_gid: Optional[str] = None
    twice: Optional[str] = None
    other_address: Optional[Finding] = None

    @property
    def table(self) -> int:
        """Return the number of its table, and the priority of its rules."""
        return FIRST_TABLE + self.number

    @property
    def file(self) -> str:
        """Our file for the boot; "" where the rail's owner is not clear, or takes no rules from a file of ours."""
        owned = self.owner
        if owned.unclear or not owned.claims or self.shared or owned.claims[0].refused[0]:
            return ""
        return owned.claims[0].table_file(self.number)


@dataclass(frozen=True)
class Have:
    """live_all: values of net.ipv4.conf.all. assignments: of all sysctl files, in the order in which boot reads them.

    main: those of /etc/sysctl.conf where boot does not read it. rules: None if not wanted, or if they or
    the routes cannot be read. sysctl: our file. leftover: our files that the policy does not need, path -> text.
    """

    rails: Tuple[Rail, ...]
    live_all: Mapping[str, Optional[int]]
    assignments: Tuple[Assignment, ...]
    main: Tuple[Assignment, ...] = ()
    rules: Optional[Tuple[Rule, ...]] = None
    sysctl: Optional[str] = None
    leftover: Mapping[str, str] = field(default_factory=dict)
    problems: Tuple[Problem, ...] = ()
    boot_rules: Tuple[Tuple[Rule, str], ...] = ()


# -- sysctl files ----------------------------------------------------------------------------------------------------


def conf_key(name: str, setting: str) -> str:
    return "net/ipv4/conf/%s/%s" % (name, setting)


def render_sysctl(rails: Sequence[Rail], policy: Policy) -> str:
    """Our file: a reason above each setting. Slashes, because a VLAN has a dot in its name."""
    lines = ["# Written by Busbar (role multirail): policy %s." % policy.name]
    for key in KEYS:
        if key in policy.values:
            lines.append("# %s: %s" % (key, policy.sources[key]))
            lines += ["%s = %d" % (conf_key(rail.netdev, key), policy.values[key]) for rail in rails]
    return written.seal(SYSCTL_FILE, "\n".join(lines) + "\n")


# -- what is there ---------------------------------------------------------------------------------------------------


def read(host: Host, nics: Mapping[int, Nic], policy: Policy) -> Have:
    """nics: rail number -> its NIC, of the rails that are Ethernet. Raises ReadError where our files cannot be read."""
    problems: List[Problem] = []
    # netdev_mtu and platform report unreadable interfaces.
    devices = device.read(host, netdev.read(host)[0], []) if nics else {}
    routing = bool(nics) and policy.routing
    owners = owner.read(host, devices) if routing else {}
    addresses, rules, routes = _read_ip(host, problems) if routing else ({}, None, None)
    rails = []
    for number, nic in sorted(nics.items()):
        own = netdev_mtu.wanted(nic, devices)
        if not own:
            problems.append(Problem(nic.label, "has no network interface"))
            continue
        name = own[0]
        claims = owners.get(name, Owner()).claims
        kept = claims[0].table_file(number) if claims else ""
        seen = partial(networkd.text_of, host) if kept.endswith(".conf") else host.read_system
        rails.append(
            Rail(
                number=number,
                subject=nic.label,
                netdev=name,
                live={key: _live(host, name, key) for key in policy.values},
                addresses=tuple(one for one in addresses.get(name, ()) if one.family == 4),
                routes=(routes or {}).get(str(FIRST_TABLE + number), ()),
                owner=owners.get(name, Owner()),
                # Also other rails: what one rail's address is routed by must not be done for another.
                shared=owner.shared(claims[0], owners, (name,)) if claims else (),
                kept=seen(kept) if kept else None,
                no_gid=_no_gid(nic),
                other_address=_other_address(nic.label, name, owners, addresses),
            )
        )
    assignments, main = sysctl_files.read(host)
    of_all = [one for owned in owners.values() for one in owned.claims if not one.unmanaged]
    return Have(
        rails=tuple(_told_apart(rails)),
        live_all={key: _live(host, "all", key) for key in policy.values},
        assignments=tuple(assignments),
        main=tuple(main),
        rules=None if routes is None else rules,
        sysctl=host.read_system(SYSCTL_FILE),
        leftover=_leftover(host, policy),
        problems=tuple(problems),
        boot_rules=tuple(dict.fromkeys((rule, one.path) for one in of_all for rule in one.addressing.rules)),
    )


def _other_address(
    subject: str, name: str, owners: Mapping[str, Owner], addresses: Mapping[str, Sequence[Address]]
) -> Optional[Finding]:
    found = persisted_address.judge(subject, name, owners.get(name, Owner()), addresses.get(name, ()))
    return None if found is None or found.ok else found


def _told_apart(rails: Sequence[Rail]) -> List[Rail]:
    """Mark rails with the address of an earlier rail: no rule can distinguish the two."""
    taken: Dict[str, str] = {}
    found = []
    for rail in rails:
        if any(taken.get(one.address, rail.netdev) != rail.netdev for one in rail.addresses):
            rail = replace(rail, twice=RAIL_ADDRESS.finding_id(rail.subject))
        for one in rail.addresses:
            taken.setdefault(one.address, rail.netdev)
        found.append(rail)
    return found


def _no_gid(nic: Nic) -> Optional[str]:
    port = nic.port
    found = [gid for family in ADDRESS_FAMILIES for gid in (gids_of_family(port, family) if port is not None else ())]
    return None if found else RAIL_GID.finding_id(nic.pci)


def _live(host: Host, name: str, key: str) -> Optional[int]:
    """A kernel setting of an interface, or of ``all``; None if it cannot be read, which is a separate finding."""
    return read_value(host, "%s/%s/%s" % (CONF, name, key), parse_decimal, [])


def _read_ip(
    host: Host, problems: List[Problem]
) -> Tuple[Dict[str, Tuple[Address, ...]], Optional[Tuple[Rule, ...]], Optional[Dict[str, Tuple[Route, ...]]]]:
    """Addresses by interface, rules, and routes by table; None for what cannot be read."""
    addresses = attempt(lambda: netdev_address.read(host), " ".join(ADDRESSES), problems)
    rules = attempt(lambda: parse_rules(host.query(RULES)), " ".join(RULES), problems)
    routes = attempt(lambda: parse_routes(host.query(ROUTES)), " ".join(ROUTES), problems)
    return addresses or {}, rules, routes


def _leftover(host: Host, policy: Policy) -> Dict[str, str]:
    """Return our files that the policy does not need."""
    paths = [] if policy.values else [SYSCTL_FILE]
    paths += [] if policy.routing else netplan.table_files(host) + networkd.table_files(host)
    found = {path: host.read_system(path) for path in paths}
    return {path: text for path, text in found.items() if text is not None}


# -- the plan --------------------------------------------------------------------------------------------------------


def plan(have: Have, want: Want) -> Plan:
    conflicts = _conflicts(have, want.policy)
    findings: List[Finding] = [finding for finding, _key in conflicts]
    values = want.policy.values
    if values and have.rails and not conflicts:
        findings.append(CONFLICT.judge(SYSCTL_FILE, "ok", "no file overrides it", "none does"))
    changes: List[FileChange] = []
    commands: List[Command] = []
    because = {key: finding.id for finding, key in reversed(conflicts)}
    rendered = render_sysctl(have.rails, want.policy)
    with_ours = _with_ours(have, rendered)
    files = written.compare([FileChange(SYSCTL_FILE, have.sysctl, rendered)] if values and have.rails else [])
    # Nothing is written if other files set the values.
    needed = have.sysctl is not None and (files.severity is not None or not files.wrong)
    for rail in have.rails if values else ():
        finding, sysctls = _live_sysctl(have, rail, want.policy, because)
        commands += sysctls
        wrong, left = (_kept_wrong(lines, rail, want.policy) for lines in (have.assignments, with_ours))
        needed = needed or wrong != left
        findings += [finding, _kept_sysctl(rail, wrong, left, want.policy, because)]
    findings += files.edited(SETTINGS) if needed else ()
    changes += files.changes if needed else ()
    notes = list(files.notes)
    for path, text in have.leftover.items():
        if not (want.policy.has_values if path == SYSCTL_FILE else want.policy.has_routing):
            notes.append("%s is not judged, and stays; multirail_policy: none would remove it" % path)
            continue
        changes.append(FileChange(path, text, None))
        check = SETTINGS if path == SYSCTL_FILE else SOURCE_ROUTING
        asked = "no such file (policy %s does not need it)" % want.policy.name
        findings.append(check.judge(path, "drift", asked, "it is there"))
    routing = _routing(have, want) if want.policy.routing else Plan()
    findings += routing.findings
    changes += routing.changes
    commands += routing.commands
    findings += [READABLE.unreadable(problem) for problem in have.problems]
    if any(change.path.startswith(netplan.FOLDER) for change in changes):
        commands.insert(0, netplan.GENERATE)
    return Plan(tuple(findings), tuple(changes), tuple(commands), notes=(*notes, *routing.notes))


def _wanted_text(policy: Policy) -> str:
    return ", ".join("%s %d" % (key, policy.values[key]) for key in KEYS if key in policy.values)


def _with_ours(have: Have, text: str) -> List[Assignment]:
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


def _conflicts(have: Have, policy: Policy) -> List[Tuple[Finding, str]]:
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
    have: Have, rail: Rail, policy: Policy, because: Mapping[str, str]
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


# -- source routing --------------------------------------------------------------------------------------------------


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
    """Address of the gateway, "" for none. gateway: as in Want; in a subnet of two (/31) it is the other address."""
    subnet = address.subnet
    if gateway in ("", "none") or subnet.prefixlen == 32:
        return ""
    ends = (subnet[0], subnet[1]) if subnet.prefixlen == 31 else (subnet[1], subnet[-2])
    via = str(ends[0] if gateway == "first" else ends[1])
    if subnet.prefixlen == 31 and via == address.address:
        via = str(ends[1] if gateway == "first" else ends[0])
    return "" if via == address.address else via


def _routing(have: Have, want: Want) -> Plan:
    findings: List[Finding] = []
    commands: List[Command] = []
    changes: List[FileChange] = []
    notes: List[str] = []
    for rail in have.rails:
        if rail.twice or rail.other_address:
            findings += [_undecided_rules(rail, "live"), _undecided_rules(rail, "persisted")]
            continue
        finding, mending = _live_rules(have, rail, want)
        commands += mending
        files, table = written.collect([]), table_of(rail, want.gateway)
        brought = _brought(rail, table)
        if rail.file and rail.addresses and not brought:
            claim = rail.owner.claims[0]
            text = claim.with_table(table)
            files = written.compare([FileChange(rail.file, rail.kept, text, claim.mode)])
        changes += files.changes
        notes += files.notes
        findings += [finding, *_foreign_rules(have, rail), _kept_rules(rail, files, want, brought)]
    return Plan(tuple(findings), tuple(changes), tuple(commands), notes=tuple(notes))


def _undecided_rules(rail: Rail, aspect: str) -> Finding:
    said = "not judged while another rail has one of its addresses, too"
    fix = "give %s its own address; run ip address show %s" % (rail.netdev, rail.netdev)
    because: Union[Finding, str, None] = rail.twice
    if rail.other_address is not None and not rail.twice:
        said, fix = "not judged while its addresses are not those of the next boot", rail.other_address.fix
        because = rail.other_address
    wanted = "table %d for packets from its address" % rail.table
    return SOURCE_ROUTING.judge(rail.subject, "unknown", wanted, said, " ".join(RULES), fix, because, aspect=aspect)


def _live_rules(have: Have, rail: Rail, want: Want) -> Tuple[Finding, List[Command]]:
    said: List[str] = []
    commands: List[Command] = []
    table = str(rail.table)
    why = "rail %d (%s) gets its own table; running connections may move to it" % (rail.number, rail.netdev)
    for route in table_of(rail, want.gateway).routes:
        there = [one for one in rail.routes if (one.destination, one.netdev) == (route.destination, rail.netdev)]
        if not any(one.gateway == route.gateway and route.source in ("", one.source) for one in there):
            said.append("no route to %s in table %s" % (route.destination, table))
            way = ["via", route.gateway] if route.gateway else ["scope", "link", "src", route.source]
            way += ["dev", rail.netdev, "table", table]
            commands.append(Command(("ip", "-4", "route", "replace", route.destination, *way), why, "link"))
    own = {one.address for one in rail.addresses}
    # A rule for virtual routers (l3mdev) has the priority 1000 wherever there is one.
    ours = [rule for rule in have.rules or () if rule.priority == rail.table and "l3mdev" not in rule.table]
    for rule in ours:
        if rule.source not in own or rule.table != table or rule.other:
            said.append("a rule from %s at priority %d" % (rule.source or "all", rule.priority))
            gone = ("from", rule.source or "all", "lookup", rule.table, "priority", table)
            commands.append(Command(("ip", "-4", "rule", "del", *gone), why, "link"))
    for address in sorted(own - {rule.source for rule in ours if rule.table == table and not rule.other}):
        said.append("no rule from %s" % address)
        new = ("from", address, "lookup", table, "priority", table)
        commands.append(Command(("ip", "-4", "rule", "add", *new), why, "link"))
    state, have_text, fix = ("drift", ", ".join(said), RUN) if said else ("ok", "as wanted", "")
    if have.rules is None:
        state, have_text, fix = "unknown", "the rules or routes cannot be read", "run %s" % " ".join(RULES)
    elif not own:
        state, have_text, fix = _no_address(rail)
    wanted = "table %s for packets from %s" % (table, ", ".join(sorted(own)) or "its address")
    finding = SOURCE_ROUTING.judge(
        rail.subject,
        state,
        wanted,
        have_text,
        source=" ".join(RULES),
        fix=fix,
        because=None if own else rail.no_gid,
        aspect="live",
        disruption="link",
    )
    return finding, commands if state == "drift" else []


def _no_address(rail: Rail) -> Tuple[str, str, str]:
    """State, have and fix of a rail without an address."""
    fix = "give it one; run ip address show %s" % rail.netdev
    return "unknown", "%s has no IPv4 address" % rail.netdev, fix


def _foreign_rules(have: Have, rail: Rail) -> List[Finding]:
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


def _kept_rules(rail: Rail, files: written.Files, want: Want, brought: bool) -> Finding:
    path = rail.file or "the network manager of %s" % rail.netdev
    wanted = "table %d in %s" % (rail.table, rail.file or "the configuration of its network manager")
    state, said, fix = files.state, files.wrong or "as wanted", RUN
    because = None
    if not rail.addresses:
        state, said, fix = _no_address(rail)
        because = rail.no_gid
    elif not rail.file or brought:
        state, said, fix = _unwritable(rail, table_of(rail, want.gateway))
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
