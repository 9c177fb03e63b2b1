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

_HEADERS = 28


def ping(system: str, root: str, arguments: list[str]) -> int:
    options, words = getopt.gnu_getopt(arguments, "nqM:s:c:W:i:I:")
    given = dict(options)
    here = _interface(root, given.get("-I", ""))
    if len(words) != 1 or here is None:
        run_real(system, "ping", arguments)
    count, payload = int(given.get("-c", 3)), int(given.get("-s", 56))
    size, target = payload + _HEADERS, words[0]
    source = here["ipv4"].partition("/")[0]
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
        return False, [f"ping: local error: message too long, mtu={here['mtu']}"]
    there = next(
        (found for other in glob.glob(f"{root}/../../*/hw") if (found := _interface(other, target)) is not None), None
    )
    if there is None or "down" in (here["operstate"], there["operstate"]):
        source = here["ipv4"].partition("/")[0]
        return False, [f"From {source} icmp_seq={{number}} Destination Host Unreachable"]
    ways = (there["mtu"], here["switch"], there["switch"])
    return not whole or all(size <= int(way) for way in ways), []


def _interface(root: str, address: str) -> dict[str, str] | None:
    """The one that has the address, or is called so."""
    try:
        there = interfaces(root)
    except FileNotFoundError:
        return None
    return next(
        (
            about
            for name, about in there.items()
            if about.get("ipv4", "").partition("/")[0] == address or name == address
        ),
        None,
    )
