# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""iblinkinfo, with ``--line`` and without: state, width and speed of every port, also of those that are down.

``(Could be 53.125 Gbps)`` is what both ends of a link support and it does not run at. It names host ports by the
GUIDs of the ports; without ``--line`` the other end only by its LID. All ports of a node are printed in ascending
order, so that a host port with a number above 1 belongs to the node of the port before it.
Source: rdma-core infiniband-diags/iblinkinfo.c, ibdiag_common.c (get_max_msg).
"""

from __future__ import annotations

import re
from typing import Optional, Tuple

from . import told
from .sweep import CA, ROUTER, SWITCH, WIDTHS
from .told import PortTold, Told

_KINDS = {"Switch": SWITCH, "CA": CA, "Router": ROUTER}
_OWN = r" *([0-9]{1,5}) +([0-9]{1,3})\[ *[0-9]*\] "
_RATE = r"==\( *(?:([0-9]{1,2})X +(\S.*?) +)?([A-Za-z?]+) ?/ *(\S[^)]*?)\)(?: \(HOQ:[0-9]+ VL_Stall:[0-9]+\))?==>"
_FAR = r' +(?:%s *([0-9]{1,5}) +([0-9]{1,3})\[ *[0-9]*\] "(.*)" \((.*)\)|\[ *\] "" \( *\)|("Port not available"))'
# A description is between quotes and may hold some: the first that what must follow it follows ends it, so that a node
# can make nothing up but of itself.
_LINE = re.compile(r'0x([0-9a-f]{16}) "(.*?)"' + _OWN + _RATE + _FAR % "0x([0-9a-f]{16})")
_PORT = re.compile(r"(?:0x([0-9a-f]{16}))?" + _OWN + _RATE + _FAR % "()")
_HEADER = re.compile(r"(?:(Switch): 0x([0-9a-f]{16}) (.*)|(CA|Router): (.*)):")
_WIDTH = re.compile(r"Could be ([0-9]{1,2})X")
_SPEED = re.compile(r"Could be (?:([0-9.]+ Gbps)|(FDR10))")


def parse(text: str, source: str = "iblinkinfo") -> Told:
    """Of both forms."""
    found = Told(source, both_ends=True, all_ports=True)
    kind: Optional[str] = None
    node, description = "", ""
    undecoded = 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if len(line) > told.LONGEST:
            found.odd(number, raw)
            continue
        match = _LINE.fullmatch(line)
        if match is not None:
            port = _port(match.groups(), None)
        else:
            header = _HEADER.fullmatch(line)
            if header is not None:
                switch, digits, name, other, other_name = header.groups()
                kind, node = _KINDS[switch or other], digits or ""
                description = told.text(name if switch else other_name)
                continue
            match = _PORT.fullmatch(line)
            if match is None or kind is None or (kind == SWITCH) == (match.group(1) is not None):
                found.odd(number, raw)
                continue
            values = match.groups()
            port = _port((values[0] or node, description, *values[1:]), kind)
        if port is None:
            found.odd(number, raw)
            continue
        undecoded += port.state not in ("down", None) and (port.speed is None or port.width is None)
        found.ports.append(_with_first_port(port, found.ports[-1] if found.ports else None))
    if not found.ports:
        found.cut = "it names no port"
    if undecoded:
        found.notes.append(
            "%d ports are printed without a rate; tools that are older than the links do so (XDR: rdma-core before"
            " 50): install a newer infiniband-diags" % undecoded
        )
    return found


def _with_first_port(port: PortTold, before: Optional[PortTold]) -> PortTold:
    """Add the GUID of an HCA's first port to its further ports."""
    if before is None or port.kind == SWITCH or port.port_guid in (None, before.port_guid):
        return port
    same = (port.kind, port.description) == (before.kind, before.description)
    return (
        port._replace(first_port=before.first_port or before.port_guid)
        if same and port.number > before.number
        else port
    )


def _port(values: Tuple[Optional[str], ...], kind: Optional[str]) -> Optional[PortTold]:
    own_guid, description, own_lid, number, width, speed, state, physical = [value or "" for value in values[:8]]
    far_guid, far_lid, far, _far_description, could, unavailable = [value or "" for value in values[8:]]
    if int(number) > 254 or int(far or 0) > 254:
        return None
    # A port that is down has none: what stands in its PortInfo means nothing then, and the tool leaves it away.
    lanes: Optional[int] = int(width) if width else None
    if lanes not in WIDTHS:
        lanes = None
    lane = told.lane(speed) if speed else None
    most_width, most_lane = lanes, lane
    better = _WIDTH.search(could)
    if better is not None and int(better.group(1)) in WIDTHS:
        most_width = int(better.group(1))
    better = _SPEED.search(could)
    if better is not None:
        most_lane = "FDR10" if better.group(2) else told.lane(better.group(1))
    linked: Optional[bool] = bool(far)
    if unavailable:
        linked = None
    by_lid = told.lid(far_lid) if far and not far_guid else None
    return PortTold(
        "",
        int(number),
        port_guid=own_guid or None,
        lid=told.lid(own_lid),
        state=told.state(state),
        physical=told.text(physical)[:64],
        width=lanes,
        speed=lane,
        width_supported=most_width if far else None,
        speed_supported=most_lane if far else None,
        peer_port=(far_guid, int(far)) if far_guid else None,
        peer_lid=(by_lid, int(far)) if by_lid else None,
        linked=linked,
        kind=kind,
        description=told.text(description),
    )
