# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""ping between nodes of one lab of trees, with the texts of iputils. It knows both ends, and the switch between them.

What is larger than the MTU of its own interface is refused at once; what a switch or the other end does not take is
lost without a word. Anything else than an address of such a node is left to the real ping.
"""

from __future__ import annotations

import getopt
import glob
import sys

from .iproute import interfaces
from .roce_program import run_real

_HEADERS = {4: 28, 6: 48}


def ping(system: str, root: str, arguments: list[str]) -> int:
    options, words = getopt.gnu_getopt(arguments, "nqM:s:c:W:i:I:")
    given, within = dict(options), [value for name, value in options if name == "-I"]
    here = _interface(root, given.get("-I", ""))
    if len(words) != 1 or here is None:
        run_real(system, "ping", arguments)
    if here["in_vrf"] and here["master"] not in within:
        # The main table has no way to what a VRF has.
        print("ping: connect: Network is unreachable", file=sys.stderr)
        return 2
    count, payload = int(given.get("-c", 3)), int(given.get("-s", 56))
    target = words[0]
    size, source = payload + _HEADERS[6 if ":" in target else 4], _address(here)
    print(f"PING {target} ({target}) from {source} : {payload}({size}) bytes of data.", flush=True)
    answers, errors = _answers(root, here, target, size, given.get("-M") == "do")
    for number in range(1, count + 1):
        for line in errors:
            print(line.format(number=number), file=sys.stderr if line.startswith("ping:") else sys.stdout)
        if answers:
            print(f"{payload + 8} bytes from {target}: icmp_seq={number} ttl=64 (simulated)")
    received = count if answers else 0
    said = f" +{count} errors," if errors else ""
    loss = 100 - 100 * received // count
    print(f"\n--- {target} ping statistics ---")
    print(f"{count} packets transmitted, {received} received,{said} {loss}% packet loss, time 0ms")
    return 0 if answers else 1


def _answers(root: str, here: dict[str, str], target: str, size: int, whole: bool) -> tuple[bool, list[str]]:
    """Whether there is an answer to each packet, and what is said of each.

    whole: it must not be fragmented; else it always fits.
    """
    if whole and size > int(here["mtu"]):
        return False, [f"ping: local error: message too long, mtu{': ' if ':' in target else '='}{here['mtu']}"]
    there = next(
        (found for other in glob.glob(f"{root}/../../*/hw") if (found := _interface(other, target)) is not None), None
    )
    if there is None or "down" in (here["operstate"], there["operstate"]):
        return False, [f"From {_address(here)} icmp_seq={{number}} Destination Host Unreachable"]
    ways = (there["mtu"], here["switch"], there["switch"])
    return not whole or all(size <= int(way) for way in ways), []


def _interface(root: str, address: str) -> dict[str, str] | None:
    """The one that has the address, or is called so."""
    try:
        there = interfaces(root)
    except FileNotFoundError:
        return None
    for name, about in there.items():
        about["in_vrf"] = there.get(about["master"], {}).get("vrf", "")
        if name == address or _address(about) == address:
            return about
    return None


def _address(about: dict[str, str]) -> str:
    return (about.get("ipv4") or about.get("ipv6", "")).partition("/")[0]
