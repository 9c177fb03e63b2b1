# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Several rails in one host: who answers for an address, which way back is taken, and by which rail a packet leaves.

Linux answers ARP for any of its addresses on any interface, and takes one route for all rails of a subnet: then all
traffic uses one NIC, or none. Which kernel settings cure that differs by site, so a policy is named and not guessed.
Sources: kernel Documentation/networking/ip-sysctl.rst, include/linux/inetdevice.h (MAXCONF, ORCONF); sysctl.d(5) and
systemd-sysctl of 252; systemd.network(5); netplan(5) and netplan generate 0.106; ip-rule(8); host.md 2.5.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from . import netdev_mtu
from .core import advice
from .core.finding import Finding, printable, unreadable
from .core.host import Host, ParseError, Problem, ReadError, attempt
from .core.plan import Command, FileChange, Plan
from .machine import netdev, netdev_address
from .machine.netdev_address import ADDRESSES, Address, parse_json
from .machine.platform import ADDRESS_FAMILIES
from .machine.profile import Profile, active_port, roce_rails
from .machine.rdma import of_family
from .machine.topology import Nic
from .owner import owner as netdev_owner
from .owner.owner import Owner

KEYS = ("arp_ignore", "arp_announce", "rp_filter", "accept_local")
CONF = "/proc/sys/net/ipv4/conf"
SYSCTL_FOLDERS = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d", "/lib/sysctl.d")
# After the distributions' 50-default.conf and most sites' own, before 99-sysctl.conf, which is /etc/sysctl.conf.
SYSCTL_FILE = "/etc/sysctl.d/98-busbar-multirail.conf"
# Read by sysctl -p and sysctl --system, and at boot only where 99-sysctl.conf points at it.
SYSCTL_MAIN = "/etc/sysctl.conf"
NETPLAN_FOLDER, NETPLAN_FILE = "/etc/netplan", "90-busbar-multirail-%d.yaml"
DROPIN = "90-busbar-multirail.conf"
GATEWAYS = ("none", "first", "last")
RULES = ("ip", "-j", "-4", "rule", "show")
ROUTES = ("ip", "-j", "-4", "route", "show", "table", "all")
# Rules of the kernel and of people are mostly at 0 and above 32765; tables 253 to 255 are the kernel's.
FIRST_TABLE = 1000
_COMMENT = "Written by Busbar (role multirail): a table for what comes from this rail's address."
RUN = advice.run("multirail")
WHY = {
    "sysctl": "without them the wrong rail answers for an address, or the kernel drops what comes back by another rail;"
    " it uses the larger of an interface's value and that of 'all'",
    "rules": "without a table of its own a rail's traffic leaves by whichever rail has the first route to the subnet",
    "conflict": "the kernel uses the larger of an interface's value and that of 'all', and a later file wins",
}


@dataclass(frozen=True)
class Policy:
    """values: kernel setting -> value, for every rail. sources: where each is from. routing: a table for each rail."""

    name: str
    values: Mapping[str, int]
    sources: Mapping[str, str]
    routing: bool


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
}


def undecided(policy: Policy, asked: Profile) -> List[str]:
    """What a reader should know where nothing is asked for. One rail alone needs no policy."""
    if policy.name or roce_rails(asked) < 2:
        return []
    return ["multirail_policy is not set: ARP and routes between the RoCE rails of a host are not judged"]


_LARGEST = {"arp_ignore": 8, "arp_announce": 2, "rp_filter": 2, "accept_local": 1}


def policy(name: str, values: Mapping[str, Any], routing: bool) -> Policy:
    """values, routing: of the policy ``custom``, which is the site's own; "" asks for nothing. Raises ParseError."""
    if name != "custom":
        if values or routing:
            said = "policy %s has its own values" % name if name else "no policy is set"
            raise ParseError("multirail: %s; values and source routing are those of policy custom" % said)
        return POLICIES[name] if name else Policy("", {}, {}, routing=False)
    for key, value in values.items():
        if key not in KEYS:
            raise ParseError("multirail: %r is not one of %s" % (key, ", ".join(KEYS)))
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST[key]:
            raise ParseError("multirail: %s is %r, expected a number from 0 to %d" % (key, value, _LARGEST[key]))
    return Policy("custom", dict(values), dict.fromkeys(values, "the inventory"), routing)


@dataclass(frozen=True)
class Want:
    """gateway: of each rail's table: none, or the first or last address of the rail's subnet.

    mtu_judged: netdev_mtu judges the same rails, and has a finding where it is not clear who sets one up.
    """

    policy: Policy
    gateway: str = "none"
    mtu_judged: bool = False


@dataclass(frozen=True)
class Assignment:
    """One line of a sysctl file. key: with slashes, below /proc/sys. value: None excludes the key from globs."""

    key: str
    value: Optional[str]
    path: str
    line: int

    @property
    def place(self) -> str:
        return "%s:%d" % (self.path, self.line)


@dataclass(frozen=True)
class Rule:
    """priority, source address and table of ``ip rule``; source "" is all. other: it asks for more than the source."""

    priority: int
    source: str
    table: str
    other: bool = False


@dataclass(frozen=True)
class Route:
    """destination: ``default`` or ``10.0.0.0/24``. gateway, source: "" for none."""

    destination: str
    gateway: str
    source: str
    netdev: str = ""


@dataclass(frozen=True)
class Rail:
    """number: of the rail. live: setting -> value, None where it cannot be read. routes: of its own table.

    owner: what sets it up at boot. shared: other interfaces that its file sets up, too. kept: text of our own file for
    the boot, None where there is none. no_gid, twice: id of the finding that a rail without an address, or with one
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

    @property
    def table(self) -> int:
        return FIRST_TABLE + self.number


@dataclass(frozen=True)
class Have:
    """live_all: values of net.ipv4.conf.all. assignments: of all sysctl files, in the order in which boot reads them.

    main: those of /etc/sysctl.conf where boot does not read it. rules: None where they are not asked for, or they or
    the routes cannot be read. sysctl: our own file. leftover: our files that the policy does not ask for, path -> text.
    """

    rails: Tuple[Rail, ...]
    live_all: Mapping[str, Optional[int]]
    assignments: Tuple[Assignment, ...]
    main: Tuple[Assignment, ...] = ()
    rules: Optional[Tuple[Rule, ...]] = None
    sysctl: Optional[str] = None
    leftover: Mapping[str, str] = field(default_factory=dict)
    problems: Tuple[Problem, ...] = ()


# -- sysctl files ----------------------------------------------------------------------------------------------------


def normalized(key: str) -> str:
    """With slashes, as systemd-sysctl does: the first separator decides, and a dot of a name is the other one."""
    separators = [char for char in key if char in "./"]
    if separators[:1] == ["."]:
        key = key.translate({ord("."): "/", ord("/"): "."})
    return re.sub("/+", "/", key).strip("/")


def parse_sysctl(text: str, path: str) -> List[Assignment]:
    """Lines that systemd-sysctl would refuse are passed over, as it does after a word in the journal."""
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        key, equals, value = line.partition("=")
        key = key.strip()
        ignore_errors = key.startswith("-")
        key = normalized(key[1:].strip() if ignore_errors else key)
        if key and (equals or ignore_errors):
            found.append(Assignment(key, value.strip() if equals else None, path, number))
    return found


def sysctl_files(host: Host) -> List[Tuple[str, str]]:
    """Path and text in systemd-sysctl's order: by name, the first folder that has it. Raises ReadError."""
    first: Dict[str, str] = {}
    for folder in SYSCTL_FOLDERS:
        for name in host.listdir_system(folder):
            if name.endswith(".conf") and not name.startswith("."):
                first.setdefault(name, "%s/%s" % (folder, name))
    found = [(path, host.read_system(path)) for _name, path in sorted(first.items())]
    return [(path, text) for path, text in found if text is not None]


def _is_glob(key: str) -> bool:
    return any(char in key for char in "*?[")


def effective(assignments: Sequence[Assignment], key: str) -> Optional[Assignment]:
    """The line that counts for one setting. One that names it wins over globs, wherever they are."""
    table: Dict[str, Assignment] = {}
    for one in assignments:
        if one.key in table and table[one.key].value == one.value:
            continue  # said already: it keeps its place
        table.pop(one.key, None)
        table[one.key] = one
    if key in table:
        # "-KEY" alone keeps globs away and sets nothing.
        return table[key] if table[key].value is not None else None
    globs = [one for one in table.values() if _is_glob(one.key) and one.value is not None and _fits(one.key, key)]
    return globs[-1] if globs else None


def _fits(pattern: str, key: str) -> bool:
    """As glob(3) does it: an asterisk does not cross a slash."""
    parts, names = pattern.split("/"), key.split("/")
    return len(parts) == len(names) and all(fnmatchcase(name, part) for part, name in zip(parts, names))


def conf_key(name: str, setting: str) -> str:
    return "net/ipv4/conf/%s/%s" % (name, setting)


def render_sysctl(rails: Sequence[Rail], policy: Policy) -> str:
    """Our file: a reason above each setting. Slashes, because a VLAN has a dot in its name."""
    lines = ["# Written by Busbar (role multirail): policy %s." % policy.name]
    for key in KEYS:
        if key in policy.values:
            lines.append("# %s: %s" % (key, policy.sources[key]))
            lines += ["%s = %d" % (conf_key(rail.netdev, key), policy.values[key]) for rail in rails]
    return "\n".join(lines) + "\n"


# -- ip --------------------------------------------------------------------------------------------------------------


def parse_rules(text: str) -> Tuple[Rule, ...]:
    """Of RULES. Raises ParseError."""
    found = []
    for one in parse_json(text, RULES):
        priority, source = one.get("priority"), str(one.get("src", "all"))
        if not isinstance(priority, int):
            raise ParseError("%r is not a rule: it has no priority" % str(one)[:80])
        length = one.get("srclen", 32)
        source = "" if source == "all" else source if length == 32 else "%s/%s" % (source, length)
        other = bool(set(one) - {"priority", "src", "srclen", "table", "protocol"})
        found.append(Rule(priority, source, str(one.get("table", "")), other))
    return tuple(found)


def parse_routes(text: str) -> Dict[str, Tuple[Route, ...]]:
    """Table -> its routes, of ROUTES. Raises ParseError."""
    found: Dict[str, Tuple[Route, ...]] = {}
    for one in parse_json(text, ROUTES):
        route = Route(*(str(one.get(key, "")) for key in ("dst", "gateway", "prefsrc", "dev")))
        table = str(one.get("table", "main"))
        found[table] = (*found.get(table, ()), route)
    return found


# -- what is there ---------------------------------------------------------------------------------------------------


def read(host: Host, nics: Mapping[int, Nic], policy: Policy) -> Have:
    """nics: rail number -> its NIC, of the rails that are Ethernet. Raises ReadError where our files cannot be read."""
    problems: List[Problem] = []
    # What cannot be read of an interface itself, netdev_mtu and platform say.
    devices = netdev_owner.read_devices(host, netdev.read(host)[0], []) if nics else {}
    routing = bool(nics) and policy.routing
    owners = netdev_owner.read_owners(host, devices) if routing else {}
    addresses, rules, routes = _read_ip(host, problems) if routing else ({}, None, None)
    rails = []
    for number, nic in sorted(nics.items()):
        own = netdev_mtu.wanted(nic, devices)
        if not own:
            problems.append(Problem(nic.label, "has no network interface"))
            continue
        name = own[0]
        owner = owners.get(name, Owner())
        rails.append(
            Rail(
                number=number,
                subject=nic.label,
                netdev=name,
                live={key: _live(host, name, key, problems) for key in policy.values},
                addresses=tuple(one for one in addresses.get(name, ()) if one.family == 4),
                routes=(routes or {}).get(str(FIRST_TABLE + number), ()),
                owner=owner,
                # Also other rails: what one rail's address is routed by must not be done for another.
                shared=netdev_owner.shared(owner.claims[0], owners, (name,)) if owner.claims else (),
                kept=host.read_system(own_path(owner, number)) if owner.claims else None,
                no_gid=_no_gid(nic),
            )
        )
    files = sysctl_files(host)
    linked = any(path.endswith("/99-sysctl.conf") for path, _text in files)
    main = "" if linked else host.read_system(SYSCTL_MAIN) or ""
    return Have(
        rails=tuple(_told_apart(rails)),
        live_all={key: _live(host, "all", key, problems) for key in policy.values},
        assignments=tuple(one for path, text in files for one in parse_sysctl(text, path)),
        main=tuple(parse_sysctl(main, SYSCTL_MAIN)),
        rules=None if routes is None else rules,
        sysctl=host.read_system(SYSCTL_FILE),
        leftover=_leftover(host, policy),
        problems=tuple(problems),
    )


def _told_apart(rails: Sequence[Rail]) -> List[Rail]:
    """No rule can tell two rails apart that have one address."""
    taken: Dict[str, str] = {}
    found = []
    for rail in rails:
        if any(taken.get(one.address, rail.netdev) != rail.netdev for one in rail.addresses):
            rail = replace(rail, twice="platform.rail_address[live]@%s" % rail.subject.split(" ", 1)[0])
        for one in rail.addresses:
            taken.setdefault(one.address, rail.netdev)
        found.append(rail)
    return found


def _no_gid(nic: Nic) -> Optional[str]:
    port = active_port(nic)
    found = [gid for family in ADDRESS_FAMILIES for gid in (of_family(port, family) if port is not None else ())]
    return None if found else "platform.rail_gid[live]@%s" % nic.pci


def _live(host: Host, name: str, key: str, problems: List[Problem]) -> Optional[int]:
    path = "%s/%s/%s" % (CONF, name, key)
    try:
        text = host.read(path)
        if text is None or not text.isdigit():
            raise ReadError(path, "is not there" if text is None else "%r is not a number" % text[:40])
        return int(text)
    except ReadError as error:
        problems.append(error.problem)
        return None


def _read_ip(
    host: Host, problems: List[Problem]
) -> Tuple[Dict[str, Tuple[Address, ...]], Optional[Tuple[Rule, ...]], Optional[Dict[str, Tuple[Route, ...]]]]:
    """Addresses by interface, rules, and routes by table; None for what cannot be read."""
    addresses = attempt(lambda: netdev_address.read(host), " ".join(ADDRESSES), problems)
    rules = attempt(lambda: parse_rules(host.ask(RULES)), " ".join(RULES), problems)
    routes = attempt(lambda: parse_routes(host.ask(ROUTES)), " ".join(ROUTES), problems)
    return addresses or {}, rules, routes


def _leftover(host: Host, policy: Policy) -> Dict[str, str]:
    """Our files for what the policy does not ask for."""
    paths = [] if policy.values else [SYSCTL_FILE]
    if not policy.routing:
        folder, prefix = netdev_owner.NETWORKD_FOLDERS[0], NETPLAN_FILE.partition("%")[0]
        plans = [name for name in host.listdir_system(NETPLAN_FOLDER) if name.startswith(prefix)]
        dropins = [name for name in host.listdir_system(folder) if name.endswith(".network.d")]
        paths += ["%s/%s" % (NETPLAN_FOLDER, name) for name in plans]
        paths += ["%s/%s/%s" % (folder, name, DROPIN) for name in dropins]
    found = {path: host.read_system(path) for path in paths}
    return {path: text for path, text in found.items() if text is not None}


def own_path(owner: Owner, number: int) -> str:
    """Of our file with a rail's rules: a drop-in of its .network file, or a file of netplan's, one for each rail."""
    if owner.claims[0].stack == "netplan":
        return "%s/%s" % (NETPLAN_FOLDER, NETPLAN_FILE % number)
    return "%s/%s.d/%s" % (netdev_owner.NETWORKD_FOLDERS[0], owner.claims[0].path.rpartition("/")[2], DROPIN)


# -- the plan --------------------------------------------------------------------------------------------------------


def plan(have: Have, want: Want) -> Plan:
    conflicts = _conflicts(have, want.policy)
    findings: List[Finding] = [finding for finding, _key in conflicts]
    values = want.policy.values
    if values and have.rails and not conflicts:
        findings.append(_finding("conflict", SYSCTL_FILE, "ok", "no file says otherwise", "none does", "", SYSCTL_FILE))
    changes: List[FileChange] = []
    commands: List[Command] = []
    because = {key: finding.id for finding, key in reversed(conflicts)}
    rendered = render_sysctl(have.rails, want.policy)
    with_ours = _with_ours(have, rendered)
    for rail in have.rails if values else ():
        finding, sysctls = _live_sysctl(have, rail, want.policy, because)
        commands += sysctls
        wrong, left = (_kept_wrong(lines, rail, want.policy) for lines in (have.assignments, with_ours))
        if wrong != left and not changes:
            changes.append(FileChange(SYSCTL_FILE, have.sysctl, rendered))
        findings += [finding, _kept_sysctl(rail, wrong, left, want.policy, because)]
    for path, text in have.leftover.items():
        changes.append(FileChange(path, text, None))
        asked = "policy %s has no use for it" % want.policy.name if want.policy.name else "no policy is set"
        check = "sysctl" if path == SYSCTL_FILE else "rules"
        findings.append(_finding(check, path, "drift", "no such file (%s)" % asked, "it is there", RUN, path))
    if want.policy.routing:
        routing = _routing(have, want)
        findings += routing.findings
        changes += routing.changes
        commands += routing.commands
    # What is wrong with a rail's own settings is in the findings about them.
    findings += [
        unreadable("multirail.readable", problem) for problem in have.problems if not problem.source.startswith(CONF)
    ]
    if any(change.path.startswith(NETPLAN_FOLDER) for change in changes):
        commands.insert(0, Command(("netplan", "generate"), "what netplan makes of it, for the next boot"))
    return Plan(tuple(findings), tuple(changes), tuple(commands))


def _wanted_text(policy: Policy) -> str:
    return ", ".join("%s %d" % (key, policy.values[key]) for key in KEYS if key in policy.values)


def _with_ours(have: Have, text: str) -> List[Assignment]:
    """All lines as boot reads them once our file has this text."""
    others = [one for one in have.assignments if one.path != SYSCTL_FILE]
    return sorted(others + parse_sysctl(text, SYSCTL_FILE), key=lambda one: one.path.rpartition("/")[2])


def _kept_values(assignments: Sequence[Assignment], interface: str, key: str) -> Tuple[int, int]:
    """What the interface and 'all' have after a boot. An interface without a value is given that of 'default'."""
    values = []
    for name in (interface, "all"):
        found = effective(assignments, conf_key(name, key))
        if found is None and name != "all":
            found = effective(assignments, conf_key("default", key))
        text = found.value if found is not None else None
        values.append(int(text) if text is not None and text.isdigit() else 0)
    return values[0], values[1]


def _kept_wrong(assignments: Sequence[Assignment], rail: Rail, policy: Policy) -> Dict[str, int]:
    """Settings that are not as wanted after a boot, and what they are."""
    found = {key: max(_kept_values(assignments, rail.netdev, key)) for key in policy.values}
    return {key: value for key, value in found.items() if value != policy.values[key]}


def _conflicts(have: Have, policy: Policy) -> List[Tuple[Finding, str]]:
    """With the setting that each is about: lines of other files that keep ours from taking effect, and a live 'all'."""
    found = []
    ours = SYSCTL_FILE.rpartition("/")[2]
    rails = {conf_key(rail.netdev, key): (rail, key) for rail in have.rails for key in policy.values}
    for one in have.assignments + have.main:
        at_boot = one.path != SYSCTL_MAIN
        later = one.path.rpartition("/")[2] > ours or not at_boot
        rail_key = rails.get(one.key)
        if one.path == SYSCTL_FILE or rail_key is None or not later or one.value == str(policy.values[rail_key[1]]):
            continue
        found.append((_conflict(one, policy, rail_key[1], at_boot, "it comes after %s" % SYSCTL_FILE), rail_key[1]))
    for key in policy.values:
        wanted = policy.values[key]
        kept = effective(have.assignments, conf_key("all", key)) if have.rails else None
        live = have.live_all.get(key)
        if kept is not None and (kept.value or "").isdigit() and int(kept.value or 0) > wanted:
            found.append((_conflict(kept, policy, key, True, "the larger of it and an interface's counts"), key))
        elif have.rails and live is not None and live > wanted:
            name = "net.ipv4.conf.all.%s" % key
            fix = "sysctl -w %s=%d, and find out what set it: no sysctl file does" % (name, wanted)
            said = "%d now, in no file" % live
            finding = _finding("conflict", name, "not_owned", "at most %d" % wanted, said, fix, name, "live")
            found.append((finding, key))
    return found


def _conflict(one: Assignment, policy: Policy, key: str, at_boot: bool, reason: str) -> Finding:
    fix = "correct or remove line %d of %s" % (one.line, one.path)
    said = "%s = %s; %s" % (one.key, one.value, reason if at_boot else "sysctl -p and sysctl --system set it")
    wanted = "%s %d (policy %s)" % (key, policy.values[key], policy.name)
    severity = "major" if at_boot else "minor"
    return _finding("conflict", one.place, "not_owned", wanted, said, fix, one.path, severity=severity)


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
    finding = _finding("sysctl", rail.subject, state, _wanted_text(policy), said, fix, source, "live", because=cause)
    return finding, commands


def _kept_sysctl(
    rail: Rail, wrong: Mapping[str, int], left: Mapping[str, int], policy: Policy, because: Mapping[str, str]
) -> Finding:
    """left: what is wrong still, once our file is as rendered."""
    said = ", ".join("%s %d" % item for item in wrong.items()) or "as wanted"
    state, fix, cause = ("drift", RUN, None) if wrong else ("ok", "", None)
    if left:
        cause = because.get(next(iter(left)))
        state, fix = "not_owned", "correct the file that is not Busbar's"
    return _finding("sysctl", rail.subject, state, _wanted_text(policy), said, fix, SYSCTL_FILE, because=cause)


# -- source routing --------------------------------------------------------------------------------------------------


def wanted_routes(rail: Rail, gateway: str) -> Tuple[Route, ...]:
    """Of the rail's own table: its subnets, and a default route where a gateway is asked for."""
    found: List[Route] = []
    for one in rail.addresses:
        if str(one.subnet) not in [route.destination for route in found]:
            found.append(Route(str(one.subnet), "", one.address, rail.netdev))
    vias = [via for via in (gateway_of(one, gateway) for one in rail.addresses) if via]
    return (*found, *(Route("default", via, "", rail.netdev) for via in vias[:1]))


def gateway_of(address: Address, gateway: str) -> str:
    """Empty for none. Of two addresses (a /31) it is the other one."""
    subnet = address.subnet
    if gateway == "none" or subnet.prefixlen == 32:
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
    for rail in have.rails:
        if rail.twice:
            findings += [_undecided_rules(rail, "live"), _undecided_rules(rail, "persisted")]
            continue
        finding, mending = _live_rules(have, rail, want)
        commands += mending
        text = render(rail, want.gateway) if _writable(rail) and rail.addresses else rail.kept
        if text is not None and text != rail.kept:
            is_netplan = rail.owner.claims[0].stack == "netplan"
            path = own_path(rail.owner, rail.number)
            changes.append(FileChange(path, rail.kept, text, 0o600 if is_netplan else 0o644))
        findings += [finding, *_foreign_rules(have, rail), _kept_rules(rail, text != rail.kept, want.mtu_judged)]
    return Plan(tuple(findings), tuple(changes), tuple(commands))


def _undecided_rules(rail: Rail, aspect: str) -> Finding:
    said = "not judged while another rail has one of its addresses, too"
    fix = "give %s its own address; run ip address show %s" % (rail.netdev, rail.netdev)
    wanted = "table %d for what comes from its address" % rail.table
    return _finding("rules", rail.subject, "unknown", wanted, said, fix, " ".join(RULES), aspect, because=rail.twice)


def _writable(rail: Rail) -> bool:
    """Whether its owner takes rules from a file of ours."""
    owner = rail.owner
    if owner.unclear or not owner.claims or rail.shared or owner.claims[0].refused[0]:
        return False
    return owner.claims[0].stack in ("networkd", "netplan")


def _live_rules(have: Have, rail: Rail, want: Want) -> Tuple[Finding, List[Command]]:
    said: List[str] = []
    commands: List[Command] = []
    table = str(rail.table)
    why = "rail %d (%s) has a table of its own; running connections may move to it" % (rail.number, rail.netdev)
    for route in wanted_routes(rail, want.gateway):
        there = [one for one in rail.routes if (one.destination, one.netdev) == (route.destination, rail.netdev)]
        if not any(one.gateway == route.gateway and route.source in ("", one.source) for one in there):
            said.append("no route to %s in table %s" % (route.destination, table))
            way = ["via", route.gateway] if route.gateway else ["scope", "link", "src", route.source]
            way += ["dev", rail.netdev, "table", table]
            commands.append(Command(("ip", "-4", "route", "replace", route.destination, *way), why, "link"))
    own = {one.address for one in rail.addresses}
    ours = [rule for rule in have.rules or () if rule.priority == rail.table]
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
    wanted = "table %s for what comes from %s" % (table, ", ".join(sorted(own)) or "its address")
    cause, source = None if own else rail.no_gid, " ".join(RULES)
    finding = _finding(
        "rules", rail.subject, state, wanted, have_text, fix, source, "live", disruption="link", because=cause
    )
    return finding, commands if state == "drift" else []


def _no_address(rail: Rail) -> Tuple[str, str, str]:
    """State, what there is, and the way out."""
    fix = "give it one; run ip address show %s" % rail.netdev
    return "unknown", "%s has no IPv4 address" % rail.netdev, fix


def _foreign_rules(have: Have, rail: Rail) -> List[Finding]:
    """Rules of others that take the rail's address elsewhere, before ours is asked."""
    found = []
    for rule in have.rules or ():
        mine = rule.source in {one.address for one in rail.addresses}
        if mine and rule.priority < rail.table and rule.table != str(rail.table):
            said = "a rule from %s to table %s at priority %d" % (rule.source, rule.table, rule.priority)
            fix = "remove it where it is made, or: ip -4 rule del priority %d" % rule.priority
            subject = "rule %d from %s" % (rule.priority, rule.source)
            wanted = "no rule before %d" % rail.table
            found.append(_finding("conflict", subject, "not_owned", wanted, said, fix, " ".join(RULES), "live"))
    return found


def _kept_rules(rail: Rail, changing: bool, mtu_judged: bool) -> Finding:
    writable = _writable(rail)
    path = own_path(rail.owner, rail.number) if writable else "who sets up %s" % rail.netdev
    wanted = "table %d in %s" % (rail.table, path if writable else "the file of its owner")
    state, said, fix = ("drift", "%s is not as rendered" % path, RUN) if changing else ("ok", "as wanted", "")
    because = None
    if not rail.addresses:
        state, said, fix = _no_address(rail)
        because = rail.no_gid
    elif not writable:
        state, said, fix = _unwritable(rail)
        if mtu_judged and (rail.owner.unclear or not rail.owner.claims):
            because = "netdev_mtu.owner[persisted]@%s" % rail.subject.split(" ", 1)[0]
    return _finding("rules", rail.subject, state, wanted, said, fix, path, because=because)


def _unwritable(rail: Rail) -> Tuple[str, str, str]:
    """State, what there is, and the way out, where the rules of a rail cannot be kept by us."""
    owner, name = rail.owner, rail.netdev
    add = "ip rule add from its address lookup %d priority %d, and its routes" % (rail.table, rail.table)
    if owner.unclear:
        return "unknown", owner.unclear, "let one file set %s up, in a way that can be read" % name
    if not owner.claims:
        return "unknown", "no file sets %s up" % name, "give %s a file of its own, with its addresses" % name
    claim = owner.claims[0]
    if claim.refused[0]:
        return "not_owned", claim.refused[0], claim.refused[1]
    if rail.shared:
        said = "%s (%s) sets up %s, too" % (claim.path, claim.stack, ", ".join(rail.shared[:4]))
        return "not_owned", said, "give every rail a file of its own"
    fix = "put into %s what does this at boot: %s" % (claim.path, add)
    return "not_owned", "%s belongs to %s, which Busbar gives no rules" % (claim.path, claim.stack), fix


def render(rail: Rail, gateway: str) -> str:
    return (render_netplan if rail.owner.claims[0].stack == "netplan" else render_networkd)(rail, gateway)


def render_networkd(rail: Rail, gateway: str) -> str:
    lines = ["# " + _COMMENT]
    for one in rail.addresses:
        lines += ["[RoutingPolicyRule]", "From=%s" % one.address, "Table=%d" % rail.table, "Priority=%d" % rail.table]
        lines.append("")
    for route in wanted_routes(rail, gateway):
        lines.append("[Route]")
        if route.gateway:
            lines.append("Gateway=%s" % route.gateway)
        else:
            lines += ["Destination=%s" % route.destination, "Scope=link", "PreferredSource=%s" % route.source]
        lines += ["Table=%d" % rail.table, ""]
    return "\n".join(lines[:-1]) + "\n"


def render_netplan(rail: Rail, gateway: str) -> str:
    """netplan adds these lists to those that other files have for the same ID."""
    lines = ["routing-policy:"]
    for one in rail.addresses:
        lines += ["  - from: %s" % one.address, "    table: %d" % rail.table, "    priority: %d" % rail.table]
    lines.append("routes:")
    for route in wanted_routes(rail, gateway):
        if route.gateway:
            lines += ["  - to: 0.0.0.0/0", "    via: %s" % route.gateway]
        else:
            lines += ["  - to: %s" % route.destination, "    scope: link", "    from: %s" % route.source]
        lines.append("    table: %d" % rail.table)
    return netdev_owner.render_netplan(_COMMENT, {rail.owner.claims[0].ident: lines})


def _finding(
    check: str,
    subject: str,
    state: str,
    want: str,
    have: str,
    fix: str,
    source: str,
    aspect: str = "persisted",
    severity: str = "major",
    disruption: str = "none",
    because: Optional[str] = None,
) -> Finding:
    return Finding(
        check="multirail.%s" % check,
        subject=printable(subject),
        state=state,
        severity=severity,
        want=want,
        have=printable(have),
        source=source,
        why=WHY[check],
        fix="" if state == "ok" else fix,
        aspect=aspect,
        disruption=disruption,
        because=because,
    )
