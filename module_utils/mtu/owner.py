# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find the program that sets an interface up at boot: netplan, NetworkManager, systemd-networkd or ifupdown.

Each has its rules, in the module of its name. If the owner is not clear, Owner.unclear has the reason.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Callable, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..core import effective_unit
from ..core.host import Host, ParseError, ReadError
from . import ifupdown, networkd, networkmanager
from .claim import Claim, Claims, Doubts
from .device import Device
from .ifupdown import Ifupdown
from .networkmanager import NetworkManager

IFCFG = "/etc/sysconfig/network-scripts/ifcfg-%s"


def _refuse_ifcfg(host: Host, devices: Mapping[str, Device], _claims: Claims, doubts: Doubts) -> None:
    """Doubt the owner of an interface with an ifcfg file, which NetworkManager or network-scripts may use."""
    for name in devices if networkmanager.is_used(host) or host.has("ifup") else ():
        if host.mode_system(IFCFG % name) is not None:
            text = "%s may set it up, which Busbar does not read: nmcli connection migrate, or remove it"
            doubts[name].append(text % (IFCFG % name))


# Everything that can set an interface up at boot (its MTU, addresses, rules and routes), and the unit that runs it, ""
# where others do. A new program needs one row.
Read = Callable[[Host, Mapping[str, Device], Claims, Doubts], None]
PROGRAMS: Tuple[Tuple[Read, str], ...] = (
    (networkd.read, networkd.UNIT),
    (networkmanager.read, networkmanager.UNIT),
    (ifupdown.read, ""),
    (_refuse_ifcfg, ""),
)


class Owner(NamedTuple):
    """claims: of the programs that set an interface up. doubt: what could not be read or understood, "" for nothing."""

    claims: Tuple[Claim, ...] = ()
    doubt: str = ""

    @property
    def unclear(self) -> str:
        """Return why the owner is unknown; "" if it is clear."""
        if self.doubt or len(self.claims) < 2:
            return self.doubt
        return "%s %s set it up" % (" and ".join(map(str, self.claims)), "both" if len(self.claims) == 2 else "all")

    @property
    def claim(self) -> Optional[Claim]:
        """Return the claim of the one owner; None if there is none, or if it is not clear."""
        return self.claims[0] if self.claims and not self.unclear else None


def read(host: Host, devices: Mapping[str, Device]) -> Dict[str, Owner]:
    """Return owners by interface. What cannot be read is a doubt about all of them."""
    claims: Claims = {name: [] for name in devices}
    doubts: Doubts = {name: [] for name in devices}
    links: List[networkd.ConfigFile] = []
    steps: List[Callable[[], None]] = [partial(_read_program, host, devices, claims, doubts, *row) for row in PROGRAMS]
    steps.append(lambda: links.extend(networkd.config_files(host, ".link")))
    for step in steps:
        try:
            step()
        except (ReadError, ParseError) as error:
            for name in devices:
                doubts[name].append(str(error))
    owners = {}
    for name, device in devices.items():
        managed = [claim for claim in claims[name] if not claim.unmanaged]
        owner = Owner(_in_use(host, device, managed or claims[name][:1]), "; ".join(doubts[name]))
        owners[name] = _with_link(device, owner, links)
    return owners


def _read_program(
    host: Host, devices: Mapping[str, Device], claims: Claims, doubts: Doubts, read_claims: Read, unit: str
) -> None:
    """Add the claims of one program; those of a program that the boot does not start count for nothing."""
    found: Claims = {name: [] for name in devices}
    read_claims(host, devices, found, doubts)
    idle = effective_unit.idle(host, unit) if unit and any(found.values()) else ""
    fix = "systemctl %s %s" % ("unmask" if "masked" in idle else "enable", unit)
    for name, new in found.items():
        for one in new:
            if idle:
                refused = ("%s, so that %s has no effect at boot" % (idle, one.path), fix)
                one = replace(one, mtu=None, unmanaged=True, refused=refused)
            claims[name].append(one)


def _in_use(host: Host, device: Device, claims: Sequence[Claim]) -> Tuple[Claim, ...]:
    """The profile that NetworkManager uses, where all claims are its keyfiles; else all claims."""
    if len(claims) > 1 and all(isinstance(claim, NetworkManager) for claim in claims):
        uuid = networkmanager.state(host, device).get("connection-uuid")
        used = [claim for claim in claims if uuid and uuid in (claim.before or "")]
        if len(used) == 1:
            return tuple(used)
    return tuple(claims)


def _with_link(device: Device, owner: Owner, links: Sequence[networkd.ConfigFile]) -> Owner:
    """Apply a .link file's MTU, which is not edited, if the owner sets none."""
    if owner.unclear or (owner.claims and owner.claims[0].mtu is not None):
        return owner
    doubts: List[str] = []
    link = networkd.link(device, links, doubts)
    if doubts:
        return Owner(owner.claims, doubts[0])
    if link is None:
        return owner
    return Owner((replace(owner.claims[0], mtu=link.mtu, source=link.source) if owner.claims else link,))


def shared(claim: Claim, owners: Mapping[str, Owner], but: Collection[str]) -> Tuple[str, ...]:
    """Interfaces beside ``but`` that the claim's file sets up, too. A stanza of ifupdown is for one interface."""
    if isinstance(claim, Ifupdown):
        return ()
    return tuple(
        other
        for other, owner in owners.items()
        if other not in but and any(claim.path in (one.path, one.source) for one in owner.claims)
    )
