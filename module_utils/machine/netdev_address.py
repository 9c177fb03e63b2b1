# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read IP addresses of network interfaces with ip: sysfs and procfs do not assign them to interfaces.

Source: ip-address(8) of iproute2, whose JSON is the same from 4.19 on.
"""

from __future__ import annotations

import json
from ipaddress import IPv4Network, ip_address, ip_interface
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple

from ..core.host import Host, ParseError, read_once

ADDRESSES = ("ip", "-j", "address", "show")
# Seconds: a short limit for nvidia-smi does not apply to the kernel.
_TIMEOUT = 20.0
_FAMILIES = {"inet": 4, "inet6": 6}


class Address(NamedTuple):
    """An address with the length of its subnet's prefix: ``10.0.0.1``, 24."""

    address: str
    length: int
    family: int = 4

    @property
    def network(self) -> str:
        """Return the subnet of an address of either family, as ip prints it."""
        return str(ip_interface("%s/%d" % (self.address, self.length)).network)

    @property
    def subnet(self) -> IPv4Network:
        """Return the subnet of an IPv4 address."""
        return IPv4Network("%s/%d" % (self.address, self.length), strict=False)


def parse_json(text: str, argv: Sequence[str]) -> List[Dict[str, Any]]:
    """Parse ``ip -j``: a list of objects, some of them empty. Raises ParseError, which names ``argv``."""
    try:
        found = json.loads(text) if text.strip() else []
    except (ValueError, RecursionError) as error:
        raise ParseError("%r is not what %s prints" % (text[:80], " ".join(argv))) from error
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ParseError("%r is not what %s prints" % (text[:80], " ".join(argv)))
    return [one for one in found if one]


def parse(text: str) -> Dict[str, Tuple[Address, ...]]:
    """Return interface -> addresses beyond link scope, from the output of ADDRESSES. Raises ParseError.

    One that is tentative, or that another host has (dadfailed), is none yet.
    """
    found: Dict[str, Tuple[Address, ...]] = {}
    for one in parse_json(text, ADDRESSES):
        try:
            addresses = [
                Address(str(ip_address(each["local"])), int(each["prefixlen"]), _FAMILIES[each["family"]])
                for each in one.get("addr_info", [])
                if each and each.get("family") in _FAMILIES and each.get("scope") == "global"
                if not (each.get("tentative") or each.get("dadfailed"))
            ]
            found[str(one["ifname"])] = tuple(addresses)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ParseError("%r is not what ip -j address prints" % str(one)[:80]) from error
    return found


@read_once
def read(host: Host) -> Dict[str, Tuple[Address, ...]]:
    """Read the addresses. Raises ReadError, ParseError."""
    return parse(host.query(ADDRESSES, _TIMEOUT))
