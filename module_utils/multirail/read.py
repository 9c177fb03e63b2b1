# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the kernel settings, addresses, rules and routes of the rails, now and in the files for the next boot."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ..core import sysctl_files
from ..core.finding import Finding
from ..core.host import Host, Problem, attempt
from ..core.sysctl_files import Assignment
from ..machine import netdev, netdev_address
from ..machine.netdev_address import ADDRESSES, Address
from ..machine.netdev_routing import ROUTES, RULES, Route, Rule, parse_routes, parse_rules
from ..machine.pci import parse_decimal, read_value
from ..machine.rail_address import RAIL_ADDRESS, RAIL_GID
from ..machine.rdma import ADDRESS_FAMILIES, gids_of_family
from ..machine.topology import Nic
from ..mtu import device, netplan, networkd, owner, persisted_address
from ..mtu import plan as netdev_mtu
from ..mtu.owner import Owner
from .policy import Policy

CONF = "/proc/sys/net/ipv4/conf"

# After 50-default.conf of distributions and most sites' files, before 99-sysctl.conf, which is /etc/sysctl.conf.
SYSCTL_FILE = "/etc/sysctl.d/98-busbar-multirail.conf"

# Rules of the kernel and of people are mostly at 0 and above 32765; tables 253 to 255 are the kernel's.
FIRST_TABLE = 1000


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
class MultirailState:
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


def read(host: Host, nics: Mapping[int, Nic], policy: Policy) -> MultirailState:
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
        if own:
            live = {key: _live(host, own[0], key) for key in policy.values}
            table = (routes or {}).get(str(FIRST_TABLE + number), ())
            rails.append(_rail(host, number, nic, own[0], owners, addresses, live=live, routes=table))
        else:
            problems.append(Problem(nic.label, "has no network interface"))
    assignments, main = sysctl_files.read(host)
    of_all = [one for owned in owners.values() for one in owned.claims if not one.unmanaged]
    return MultirailState(
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


def _rail(
    host: Host,
    number: int,
    nic: Nic,
    name: str,
    owners: Mapping[str, Owner],
    addresses: Mapping[str, Sequence[Address]],
    live: Mapping[str, Optional[int]],
    routes: Tuple[Route, ...],
) -> Rail:
    owned, on_wire = owners.get(name, Owner()), addresses.get(name, ())
    kept = owned.claims[0].table_file(number) if owned.claims else ""
    seen = partial(networkd.text_of, host) if kept.endswith(".conf") else host.read_system
    at_boot = persisted_address.judge(nic.label, name, owned, on_wire)
    return Rail(
        number=number,
        subject=nic.label,
        netdev=name,
        live=live,
        addresses=tuple(one for one in on_wire if one.family == 4),
        routes=routes,
        owner=owned,
        # Also other rails: what one rail's address is routed by must not be done for another.
        shared=owner.shared(owned.claims[0], owners, (name,)) if owned.claims else (),
        kept=seen(kept) if kept else None,
        no_gid=_no_gid(nic),
        other_address=None if at_boot is None or at_boot.ok else at_boot,
    )


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
