# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Compare a RoCE rail's present IPv4 addresses and netmasks with those of its owner's file at boot.

A check of the ``platform`` role; multirail makes no rules from addresses that differ.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Sequence

from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Host
from ..machine import netdev
from ..machine.netdev_address import Address
from ..machine.rail_address import RAIL_ADDRESS
from ..machine.topology import Nic
from . import device, owner
from . import plan as netdev_mtu
from .owner import Owner

PERSISTED_ADDRESS = Check(
    "platform.rail_address_persisted",
    why="the next boot sets the address in the file; rules and routes for another netmask or address are then wrong",
    aspect="persisted",
)
"""RoCE: does the file that configures the rail's interface at boot set its current IPv4 addresses and netmasks; not
judged with DHCP alone, or without addresses"""


def judge(
    subject: str, name: str, owned: Owner, live: Sequence[Address], causes: Sequence[Finding] = ()
) -> Optional[Finding]:
    """Compare live addresses with the file's. None if it has none, or if none is live, which rail_gid reports.

    causes: findings on rails; one that has the address of another rail explains the difference.
    """
    claim = owned.claims[0] if owned.claims and not owned.unclear else None
    present = {"%s/%d" % (one.address, one.length) for one in live if one.family == 4}
    if claim is None or claim.unmanaged or claim.addressing.addresses is None or not present:
        return None
    given, dynamic = claim.addressing.addresses, claim.addressing.dynamic
    if not given and dynamic:
        return None
    same = present >= set(given) if dynamic else present == set(given)
    again = claim.apply_again % {"name": name}
    fix = "correct %s, or what adds to it, where it is wrong; then on a drained node: %s" % (claim.path, again)
    twice = (RAIL_ADDRESS.id, subject)
    cause = next((finding for finding in causes if (finding.check, finding.subject) == twice), None)
    want = "%s in %s (%s)" % (", ".join(given) or "no address", claim.path, claim.stack)
    have = ", ".join(sorted(present))
    return PERSISTED_ADDRESS.judge(subject, "ok" if same else "drift", want, have, claim.path, fix, cause)


def findings(
    host: Host, nics: Mapping[int, Nic], addresses: Mapping[str, Sequence[Address]], causes: Sequence[Finding]
) -> List[Finding]:
    """Judge the interfaces of each rail.

    nics: rail number -> its NIC, of the rails that are Ethernet. addresses: of each interface. causes: as judge.
    """
    devices = device.read(host, netdev.read(host)[0], []) if nics else {}
    owners = owner.read(host, devices) if devices else {}
    found: Dict[str, Optional[Finding]] = {}
    for nic in nics.values():
        for name in netdev_mtu.wanted(nic, devices):
            subject = nic.label if name in [one.name for one in nic.netdevs] else name
            found.setdefault(name, judge(subject, name, owners.get(name, Owner()), addresses.get(name, ()), causes))
    return [finding for finding in found.values() if finding is not None]
