# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge addresses of a RoCE rail: its port needs a RoCE v2 GID of its interface's, which no other rail has.

Checks of the ``platform`` role, called by platform.py. Sources: kernel Documentation/ABI/stable/sysfs-class-infiniband
(gids, gid_attrs); NCCL src/transport/net_ib (GID selection).
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence, Tuple, Union

from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Problem
from .netdev_address import ADDRESSES, Address
from .platform_checks import RECHECK
from .profile import Profile, Rail
from .rails import Rails
from .rdma import Gid, Port, gids_of_family, rocev2
from .topology import Nic

# By interface; a Problem if they cannot be read, None if not wanted.
Addresses = Union[Mapping[str, Sequence[Address]], Problem, None]

RAIL_GID = Check(
    "platform.rail_gid",
    why="RoCE v2 needs an address on the rail; without it NCCL falls back to TCP or fails to connect",
    fix="give the rail's interface its address; if it has one, set the interface down and up (ip link), which makes"
    " new GIDs, then check gids and gid_attrs/types of the port; " + RECHECK,
    severity="critical",
)
"""RoCE: does the rail have a RoCE v2 GID, at any index, with an address of its interface; `unknown` if addresses or
types cannot be read"""
RAIL_ADDRESS = Check(
    "platform.rail_address",
    why="two rails have one address: both respond for it, and connections end on the wrong NIC or hang",
    fix="give the rail its own address in the file that sets its interface up, and apply that; " + RECHECK,
    severity="critical",
)
"RoCE: does no other rail of the node have one of its addresses"


def judge_gid(
    nic: Nic, port: Port, source: str, address_family: str, addresses: Addresses, down: Optional[Finding]
) -> Finding:
    """Judge by type and address: indices move when a link flaps."""
    want = "a RoCE v2 GID with an %s address of the rail's interface" % ("IPv4" if address_family == "ipv4" else "IPv6")
    found = gids_of_family(port, address_family)
    usable = [gid for gid in found if gid.type == "RoCE v2"]
    state, have, fix = "drift", "none among %d GIDs" % len(port.gids), None
    other = "ipv6" if address_family == "ipv4" else "ipv4"
    if usable:
        known = addresses if isinstance(addresses, Mapping) else {}
        bound = [gid for gid in usable if gid.address in _addresses(known, _carriers(gid, nic))]
        gid = (bound or usable)[0]
        state, have = "ok", "index %d: %s" % (gid.index, gid.address)
        if isinstance(addresses, Problem):
            state, have = "unknown", "%s, and it is unknown which interface has that address: %s" % (have, addresses)
        elif addresses is not None and not bound:
            state, have = (
                "drift",
                "%s, which %s does not have" % (have, " or ".join(_carriers(gid, nic)) or "its interface"),
            )
    elif found:
        state = "unknown" if any(gid.type is None for gid in found) else "drift"
        have += " that is known to be RoCE v2; %s is %s" % (found[0].address, found[0].type or "of an unreadable type")
    elif rocev2(port, other) is not None:
        have += ", but one with an address of %s" % other.replace("ip", "IP")
        fix = "set busbar_roce.address_family: %s, or give the rail the other address; %s" % (other, RECHECK)
    elif isinstance(addresses, Mapping):
        own = _addresses(addresses, [one.name for one in nic.netdevs])
        have += "; its interface has %s" % (", ".join(own) or "no address")
    return RAIL_GID.judge(nic.label, state, want, have, source + "/gids", fix, down)


def judge(profile: Profile, rails: Rails, addresses: Addresses) -> List[Finding]:
    """Judge whether addresses are unique: of two rails with the same one, the second has the finding."""
    findings: List[Finding] = []
    first: Dict[str, Tuple[str, Rail]] = {}
    # rail_gid reports why addresses are not known.
    known = addresses if isinstance(addresses, Mapping) else {}
    for rail in profile.rails:
        nic = rails.nics.get(rail.number)
        port = nic.port if nic is not None else None
        if nic is None or port is None or port.link_layer != "Ethernet":
            continue
        own = {address: name for name in interfaces(nic, port) for address in _addresses(known, [name])}
        twice = sorted(address for address in own if address in first and first[address][0] != own[address])
        also = ["%s, which %s (%s) also has" % (one, first[one][1].label, first[one][0]) for one in twice]
        if own:
            state, have = "drift" if twice else "ok", "; ".join(also) or ", ".join(sorted(own))
            want, source = "addresses that no other rail has", " ".join(ADDRESSES)
            findings.append(RAIL_ADDRESS.judge(nic.label, state, want, have, source))
        for address, name in own.items():
            first.setdefault(address, (name, rail))
    return findings


def interfaces(nic: Nic, port: Port) -> List[str]:
    """Return the NIC's interfaces, and a bond or VLAN above them that its GIDs name."""
    return sorted({one.name for one in nic.netdevs} | {gid.netdev for gid in port.gids if gid.netdev})


def _carriers(gid: Gid, nic: Nic) -> List[str]:
    """Return interfaces that may have its address. Only the GID names a bond or VLAN above the NIC's interface."""
    return [gid.netdev] if gid.netdev else [one.name for one in nic.netdevs]


def _addresses(addresses: Mapping[str, Sequence[Address]], names: Sequence[str]) -> List[str]:
    return [one.address for name in names for one in addresses.get(name, ())]
