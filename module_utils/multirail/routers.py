# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge rails that need no rules of Busbar's: those in a VRF, and those with IPv6 addresses alone.

A VRF brings the rail its table, and one rule of the kernel leads to all of them. With IPv6 each rail mostly has a
separate prefix, from router advertisements: then the route to it is the rail's. Nothing of either is written.
Source: kernel Documentation/networking/vrf.rst.
"""

from __future__ import annotations

from typing import List, Sequence, Tuple

from ..core.check import Check
from ..core.finding import Finding
from ..machine.netdev_address import ADDRESSES
from ..machine.netdev_routing import VRFS, Vrf
from .read import Rail

VRF = Check(
    "multirail.vrf",
    why="in a VRF packets leave only if the rule for VRFs exists and the VRF's own table has the way",
    fix="repair the VRF where the site configures it",
)
"""Of a rail in a VRF: is the VRF up, is there the rule for VRFs in the families of the rail's addresses, has the VRF's
table the rail's subnets, and does no other rail in this VRF have one of them"""


def shared_subnets(rail: Rail, rails: Sequence[Rail]) -> List[str]:
    """Return the subnets that an earlier rail without a VRF, or in the same one, has too, each with that rail."""
    own, same = {one.network for one in (*rail.addresses, *rail.ipv6)}, rail.vrf and rail.vrf.name
    others = [one for one in rails if one.number < rail.number and (one.vrf and one.vrf.name) == same]
    pairs = [(address.network, one) for one in others for address in (*one.addresses, *one.ipv6)]
    return ["%s, as rail %d (%s)" % (network, one.number, one.netdev) for network, one in pairs if network in own]


def judge_rules(rails: Sequence[Rail]) -> List[Finding]:
    """Judge the rule for VRFs in each family that a rail in one has addresses of."""
    found = []
    inside = [(rail.vrf, rail) for rail in rails if rail.vrf is not None]
    for family in sorted({one.family for _vrf, rail in inside for one in (*rail.addresses, *rail.ipv6)}):
        there = family in inside[0][0].families
        have, want = "one" if there else "none", "the rule that leads to the tables of VRFs (l3mdev)"
        source, fix = "ip -%d rule show" % family, "ip -%d rule add l3mdev pref 1000; %s" % (family, VRF.fix)
        found.append(VRF.judge("IPv%d" % family, "ok" if there else "drift", want, have, source, fix))
    return found


def judge_vrf(rail: Rail, vrf: Vrf, rails: Sequence[Rail]) -> Finding:
    """Judge the VRF of a rail, without the rule for all of them."""
    addresses = (*rail.addresses, *rail.ipv6)
    wrong: List[Tuple[str, str]] = [] if vrf.is_up else [("it is down", "ip link set dev %s up" % vrf.name)]
    there = {(route.destination, route.netdev) for route in vrf.routes}
    for network in sorted({one.network for one in addresses}):
        if (network, rail.netdev) not in there:
            again = "ip route add %s dev %s table %s" % (network, rail.netdev, vrf.table)
            wrong.append(("no route to %s in table %s" % (network, vrf.table), again))
    wrong += [("it is in %s" % text, "give the rail its own subnet or VRF") for text in shared_subnets(rail, rails)]
    have = "%s, table %s: %s" % (vrf.name, vrf.table, ", ".join(text for text, _way in wrong) or "as wanted")
    fix = "%s; now: %s" % (VRF.fix, ", ".join(way for _text, way in wrong))
    want = "a way for %s in its VRF" % (", ".join(one.address for one in addresses) or "its address")
    source = "%s; ip rule, ip route" % " ".join(VRFS)
    if not addresses:
        have, fix = "%s has no address" % rail.netdev, "give it one; run ip address show %s" % rail.netdev
        return VRF.judge(rail.subject, "unknown", want, have, source, fix, rail.no_gid)
    return VRF.judge(rail.subject, "drift" if wrong else "ok", want, have, source, fix)


def judge_ipv6(check: Check, rail: Rail, rails: Sequence[Rail]) -> Finding:
    """Judge a rail with IPv6 addresses alone by a check of source routing."""
    shared, networks = shared_subnets(rail, rails), sorted({one.network for one in rail.ipv6})
    fix = "give each rail a separate prefix, or a VRF: Busbar writes rules of IPv4 only"
    have = "it is in %s" % "; ".join(shared) if shared else ", ".join(networks)
    want, state = "a separate subnet for %s" % rail.netdev, "not_owned" if shared else "ok"
    return check.judge(rail.subject, state, want, have, " ".join(ADDRESSES), fix, aspect="live")
