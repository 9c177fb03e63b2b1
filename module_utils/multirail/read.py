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
from ..machine import netdev, netdev_address, netdev_routing
from ..machine.netdev_address import ADDRESSES, Address
from ..machine.netdev_routing import ROUTES, RULES, VRFS, Route, Rule, Vrf, parse_routes, parse_rules
from ..machine.pci import parse_decimal, read_value
from ..machine.rail_address import RAIL_ADDRESS, RAIL_GID
from ..machine.rdma import ADDRESS_FAMILIES, gids_of_family
from ..machine.topology import Nic
from ..mtu import device, netplan, networkd, owner
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
    that an earlier rail has too, has already. addresses: of IPv4. vrf: that its interface is in.
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
    ipv6: Tuple[Address, ...] = ()
    vrf: Optional[Vrf] = None

    @property
    def table(self) -> int:
        """Return the number of its table, and the priority of its rules."""
        return FIRST_TABLE + self.number

    @property
    def file(self) -> str:
        """Our file for the boot; "" where the rail's owner is not clear, or takes no rules from a file of ours."""
        claim = self.owner.claim
        return "" if claim is None or self.shared or claim.refused[0] else claim.table_file(self.number)


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
    addresses, rules, routes, vrfs = None, None, None, _vrfs(host, nics, problems)
    if routing or vrfs:
        addresses = attempt(lambda: netdev_address.read(host), " ".join(ADDRESSES), problems)
    if routing:
        rules = attempt(lambda: parse_rules(host.query(RULES)), " ".join(RULES), problems)
        routes = attempt(lambda: parse_routes(host.query(ROUTES)), " ".join(ROUTES), problems)
    rails: List[Rail] = []
    for number, nic in sorted(nics.items()):
        own = netdev_mtu.wanted(nic, devices)
        if not own:
            problems.append(Problem(nic.label, "has no network interface"))
            continue
        rail = _rail(host, number, nic, own[0], owners, (addresses or {}).get(own[0], ()))
        live = {key: _live(host, own[0], key) for key in policy.values}
        rail = replace(rail, live=live, routes=(routes or {}).get(str(rail.table), ()), vrf=vrfs.get(own[0]))
        # No rule can distinguish it from an earlier rail with the same address.
        taken = {one.address for other in rails if other.netdev != rail.netdev for one in other.addresses}
        if any(one.address in taken for one in rail.addresses):
            rail = replace(rail, twice=RAIL_ADDRESS.finding_id(rail.subject))
        rails.append(rail)
    assignments, main = sysctl_files.read(host)
    of_all = [one for owned in owners.values() for one in owned.claims if not one.unmanaged]
    return MultirailState(
        rails=tuple(rails),
        live_all={key: _live(host, "all", key) for key in policy.values},
        assignments=tuple(assignments),
        main=tuple(main),
        rules=None if routes is None else rules,
        sysctl=host.read_system(SYSCTL_FILE),
        leftover=_leftover(host, policy),
        problems=tuple(problems),
        boot_rules=tuple(dict.fromkeys((rule, one.path) for one in of_all for rule in one.addressing.rules)),
    )


def _vrfs(host: Host, nics: Mapping[int, Nic], problems: List[Problem]) -> Dict[str, Vrf]:
    netdevs = [one for nic in nics.values() for one in nic.netdevs]
    return attempt(lambda: netdev_routing.read_vrfs(host, netdevs), " ".join(VRFS), problems) or {}


def _rail(
    host: Host, number: int, nic: Nic, name: str, owners: Mapping[str, Owner], on_wire: Sequence[Address]
) -> Rail:
    """Return a rail with what its owner brings, without its kernel settings and routes."""
    owned = owners.get(name, Owner())
    first = owned.claims[0] if owned.claims else None
    file = first.table_file(number) if first else ""
    read_file = partial(networkd.text_of, host) if file.endswith(".conf") else host.read_system
    at_boot = netdev_mtu.judge_address(nic.label, name, owned, on_wire)
    port = nic.port
    gids = [gid for family in ADDRESS_FAMILIES for gid in (gids_of_family(port, family) if port is not None else ())]
    return Rail(
        number=number,
        subject=nic.label,
        netdev=name,
        live={},
        addresses=tuple(one for one in on_wire if one.family == 4),
        ipv6=tuple(one for one in on_wire if one.family == 6),
        owner=owned,
        # Also other rails: what one rail's address is routed by must not be done for another.
        shared=owner.shared(first, owners, (name,)) if first else (),
        kept=read_file(file) if file else None,
        no_gid=None if gids else RAIL_GID.finding_id(nic.pci),
        other_address=None if at_boot is None or at_boot.ok else at_boot,
    )


def _leftover(host: Host, policy: Policy) -> Dict[str, str]:
    """Return our files that the policy does not need."""
    ours = [] if policy.values else [SYSCTL_FILE]
    ours += [] if policy.routing else netplan.table_files(host) + networkd.table_files(host)
    found = {path: host.read_system(path) for path in ours}
    return {path: text for path, text in found.items() if text is not None}


def _live(host: Host, name: str, key: str) -> Optional[int]:
    """A kernel setting of an interface, or of ``all``; None if it cannot be read, which is a separate finding."""
    return read_value(host, "%s/%s/%s" % (CONF, name, key), parse_decimal, [])
