# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Name the kernel settings of several rails in one host. The right ones differ by site: a policy is never guessed.

Source: kernel Documentation/networking/ip-sysctl.rst, include/linux/inetdevice.h (MAXCONF, ORCONF).
"""

from __future__ import annotations

from typing import Any, List, Mapping, NamedTuple, Optional

from ..core.host import ParseError
from ..machine.profile import Profile, roce_rails

KEYS = ("arp_ignore", "arp_announce", "rp_filter", "accept_local")
GATEWAYS = ("none", "first", "last")
_LARGEST = {"arp_ignore": 8, "arp_announce": 2, "rp_filter": 2, "accept_local": 1}


class Policy(NamedTuple):
    """values: kernel setting -> value, for every rail. source: where they are from. routing: a table for each rail.

    has_values, has_routing: whether the inventory reports it; else Busbar's files for it stay.
    """

    name: str
    values: Mapping[str, int]
    source: str
    routing: bool
    has_values: bool = True
    has_routing: bool = True


_OCI = "oracle-quickstart/oci-hpc, roles/rdma-interface/tasks/el.yml"
_NVIDIA = "Mellanox/network-operator, README, RDMA shared devices on one subnet"

POLICIES = {
    "oci": Policy("oci", {"arp_ignore": 2, "arp_announce": 1, "rp_filter": 2}, _OCI, routing=False),
    "nvidia": Policy("nvidia", {"arp_ignore": 1, "arp_announce": 2, "rp_filter": 0}, _NVIDIA, routing=True),
    "none": Policy("none", {}, "", routing=False),
}


class MultirailConfig(NamedTuple):
    """gateway: of each rail's table: none, or the first or last address of the rail's subnet; "" leaves it.

    mtu_judged: netdev_mtu judges the same rails, and has a finding if the owner of one is not clear.
    """

    policy: Policy
    gateway: str = ""
    mtu_judged: bool = False


def policy(name: str, values: Optional[Mapping[str, Any]], routing: Optional[bool]) -> Policy:
    """Return the policy of this name; of "" nothing is judged. Raises ParseError.

    values, routing: of the policy ``custom``, which the site defines; None if the inventory does not.
    """
    if name != "custom":
        if values or routing:
            said = "policy %s has its own values" % name if name else "no policy is set"
            raise ParseError("multirail: %s; values and source routing are those of policy custom" % said)
        return POLICIES[name] if name else Policy("", {}, "", False, has_values=False, has_routing=False)
    given = dict(values or {})
    for key, value in given.items():
        if key not in KEYS:
            raise ParseError("multirail: %r is not one of %s" % (key, ", ".join(KEYS)))
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST[key]:
            raise ParseError("multirail: %s is %r, expected a number from 0 to %d" % (key, value, _LARGEST[key]))
    return Policy("custom", given, "the inventory", bool(routing), values is not None, routing is not None)


def undecided(policy: Policy, asked: Profile) -> List[str]:
    """Return a note that no policy is set. One rail alone needs none."""
    if policy.name or roce_rails(asked) < 2:
        return []
    return ["multirail_policy is not set: ARP and routes between the RoCE rails of a host are not judged"]
