# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The line of a connection between two ranks, as NCCL 2.18 to 2.32 print it, and as people cut it."""

from __future__ import annotations

import re
from typing import Dict, Match, Optional, Union

from .events import Channel, Network

# What somebody has left out.
_CUT = r" ?(?:\.{2,}|\u2026)"
LINE = (
    r"Channel (?P<channel>\d{1,4})(?:/\S{1,6})? : (?P<source>\d{1,8})(?:\[[0-9a-f]{1,16}\])? -> "
    r"(?P<target>\d{1,8})(?:\[[0-9a-f]{1,16}\])?(?: \[(?P<side>send|receive)\])?(?:" + _CUT + r")? +via "
    r"(?P<path>\S.{0,79}?)(?: comm 0x[0-9a-f.]{0,16}(?: nRanks \d{0,8})?)?(?P<cut>" + _CUT + r".{0,200})?$"
)
# The same where nothing is cut off, in one look: most of a log's lines are such.
WHOLE = (
    r"Channel (?P<channel>\d{1,4})/\S{1,6} : (?P<source>\d{1,8})(?:\[[0-9a-f]{1,16}\])? -> "
    r"(?P<target>\d{1,8})(?:\[[0-9a-f]{1,16}\])?(?: \[(?P<side>send|receive)\])? via "
    r"(?P<path>NET/(?P<net>[^/\s.]{1,40})/(?P<device>\d{1,5})(?:\((?P<proxy>\d{1,8})\))?(?P<gdr>/GDRDMA)?|"
    r"(?P<kind>P2P|SHM)/(?P<how>[^\s.]{1,60}))$"
)
# A connection of which no more is left than that it is over a network.
NETWORK = r"(?:Channel|\.\.\.) .{0,80}?\bvia NET/(?P<name>[A-Z][^/]{0,39})/\d"
_NAMED = re.compile(r"NET/(?P<name>[A-Z][^/]{0,39})/\d")
_NET = re.compile(
    r"NET/(?P<net>.{1,40}?)/(?P<device>\d{1,5})(?:\((?P<proxy>\d{1,8})\))?(?P<gdr>/GDRDMA)?(?:\(PCI\))?(?:/Shared)?$"
)
_LOCAL = re.compile(r"(?P<kind>P2P|SHM)/(?P<how>.{1,60})$")
_SIDES: Dict[Optional[str], bool] = {"send": True, "receive": False}


def whole(line: Match[str]) -> Channel:
    """What a match of WHOLE says."""
    source, target, side, path, net, device, proxy, gdr, kind, how = line.group(
        "source", "target", "side", "path", "net", "device", "proxy", "gdr", "kind", "how"
    )
    if net is None:
        return Channel(kind.lower(), how, int(source), int(target), path=path)
    proxied = int(proxy) if proxy else None
    return Channel("net", net, int(source), int(target), _SIDES.get(side), int(device), proxied, gdr is not None, path)


def said(line: Match[str]) -> Union[Channel, Network, None]:
    """What a match of LINE says; of a path with more behind it the network alone, None of a way that nobody knows."""
    path = line.group("path")
    peers = int(line.group("source")), int(line.group("target"))
    local = _LOCAL.match(path)
    if local is not None:
        return Channel(local.group("kind").lower(), local.group("how"), *peers, path=path)
    net = _NET.match(path)
    if net is None:
        named = _NAMED.match(path)
        return Network(named.group("name")) if named is not None else None
    # /GDRDMA stands behind all that may be left.
    gdr = True if net.group("gdr") else (None if line.group("cut") else False)
    return Channel(
        "net",
        net.group("net"),
        *peers,
        _SIDES.get(line.group("side") or ""),
        int(net.group("device")),
        int(net.group("proxy")) if net.group("proxy") else None,
        gdr,
        path,
    )
