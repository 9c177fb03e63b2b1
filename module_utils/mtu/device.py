# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read an interface as the programs that set it up see it: names, addresses, driver and path.

Sources: kernel Documentation/ABI/testing/sysfs-class-net; ip-link(8); systemd.network(5), systemd.link(5) of 252.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ..core import udev_rules
from ..core.host import Host, ParseError, Problem, attempt
from ..machine.netdev import Netdev
from ..machine.netdev_address import parse_json

LINKS = ("ip", "-j", "link", "show")


@dataclass(frozen=True)
class Device:
    """kind: DEVTYPE of the kernel, "" for a NIC. permanent: its own MAC address, None if it has another one now.

    path: udev's ID_PATH, "" where it has none. altnames: None where they are not known. lower, upper: interfaces below
    and above it, one step. properties: as udev has recorded them.
    """

    name: str
    mtu: Optional[int]
    kind: str = ""
    mac: Optional[str] = None
    permanent: Optional[str] = None
    driver: str = ""
    path: str = ""
    ether: bool = True
    index: str = ""
    altnames: Optional[Tuple[str, ...]] = ()
    master: Optional[str] = None
    lower: Tuple[str, ...] = ()
    upper: Tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


class Link(NamedTuple):
    """Data of ip on a Device. permanent: original hardware address, "" if it still has that."""

    altnames: Tuple[str, ...] = ()
    permanent: str = ""


def parse_links(text: str) -> Dict[str, Link]:
    """Return the links by interface, from the output of LINKS. Raises ParseError."""
    try:
        return {
            str(one["ifname"]): Link(tuple(map(str, one.get("altnames", ()))), str(one.get("permaddr", "")))
            for one in parse_json(text.strip() or "no output", LINKS)
        }
    except (KeyError, TypeError) as error:
        raise ParseError("%r is not what ip -j link show prints" % text[:80]) from error


def read(host: Host, netdevs: Sequence[Netdev], problems: List[Problem]) -> Dict[str, Device]:
    """Return all Ethernet and InfiniBand interfaces of ``netdevs`` by name. problems: gets what could not be read."""
    # If ip fails, the alternative names are unknown, which is reported where it matters.
    links = attempt(lambda: parse_links(host.run(LINKS).stdout), " ".join(LINKS), [])
    lower = {one.name: set(one.lower) for one in netdevs}
    for one in netdevs:
        if one.master in lower:
            lower[one.master].add(one.name)
    return {one.name: _device(host, one, links, lower, problems) for one in netdevs if one.arp_type in (1, 32)}


def _device(
    host: Host, one: Netdev, links: Optional[Mapping[str, Link]], lower: Mapping[str, Set[str]], problems: List[Problem]
) -> Device:
    def value(name: str) -> str:
        path = "%s/%s" % (one.source, name)
        return attempt(lambda: host.read(path), path, problems) or ""

    kinds = [line[8:] for line in value("uevent").splitlines() if line.startswith("DEVTYPE=")]
    driver = attempt(lambda: host.realpath("%s/device/driver" % one.source), one.source, []) or ""
    # 0: the permanent address. A bond gives its members another one.
    permanent = one.mac if value("addr_assign_type") == "0" and one.master is None else None
    index = value("ifindex")
    link = (links or {}).get(one.name)
    if link is not None and not kinds:
        permanent = link.permanent or one.mac
    return Device(
        name=one.name,
        mtu=one.mtu,
        kind=(kinds or ["bond" if one.is_bond else ""])[0],
        mac=one.mac,
        permanent=permanent,
        driver=driver.rpartition("/")[2],
        path="pci-%s" % one.pci if one.pci else "",
        ether=one.arp_type == 1,
        index=index,
        altnames=None if links is None else link.altnames if link else (),
        master=one.master,
        lower=tuple(sorted(lower[one.name])),
        upper=tuple(sorted(name for name, below in lower.items() if one.name in below)),
        properties=attempt(lambda: udev_rules.properties(host, index), "udev", problems) or {},
    )


def globs(words: Sequence[str], text: str) -> bool:
    """Return whether a text matches patterns as systemd's net_condition_test_strv: an exclamation mark excludes."""
    if any(word[:1] == "!" and fnmatchcase(text, word[1:]) for word in words):
        return False
    positive = [word for word in words if word[:1] != "!"]
    return not positive or any(bool(text) and fnmatchcase(text, word) for word in positive)


def same_mac(one: str, other: str) -> bool:
    """Compare two MAC addresses in any notation."""
    return re.sub(r"[:.-]", "", one).lower() == re.sub(r"[:.-]", "", other).lower()


def every(results: Sequence[Optional[bool]]) -> Optional[bool]:
    """Return whether all conditions hold; None if that is not known of one, and none of them fails."""
    return False if False in results else None if None in results else True
