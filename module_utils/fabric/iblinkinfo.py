# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parse iblinkinfo, with ``--line`` and without: state, width and speed of every port.

``(Could be 53.125 Gbps)`` is what both ends support. Host ports are named by the GUIDs of the ports; without
``--line`` the other end has only a LID. Ports of a node are printed in ascending order: a host port with a number
above 1 belongs to the node of the port before it.
Source: rdma-core infiniband-diags/iblinkinfo.c, ibdiag_common.c (get_max_msg).
"""

from __future__ import annotations

import re
from typing import Optional, Sequence

from . import tool_output
from .sweep import CA, MOST_PORT_NUMBER, ROUTER, SWITCH, WIDTHS
from .tool_output import PortRow, ToolOutput

_KINDS = {"Switch": SWITCH, "CA": CA, "Router": ROUTER}
_STATES = {"down": "down", "initialize": "init", "init": "init", "armed": "armed", "active": "active"}
_OWN = r" *([0-9]{1,5}) +([0-9]{1,3})\[ *[0-9]*\] "
_RATE = r"==\( *(?:([0-9]{1,2})X +(\S.*?) +)?([A-Za-z?]+) ?/ *(\S[^)]*?)\)(?: \(HOQ:[0-9]+ VL_Stall:[0-9]+\))?==>"
_FAR = r' +(?:%s *([0-9]{1,5}) +([0-9]{1,3})\[ *[0-9]*\] ".*" \((.*)\)|\[ *\] "" \( *\)|("Port not available"))'
# A description may hold quotes: the first that the rest of a line follows ends it, so a node can only fake itself.
_LINE = re.compile(r'0x([0-9a-f]{16}) "(.*?)"' + _OWN + _RATE + _FAR % "0x([0-9a-f]{16})")
_PORT = re.compile(r"(?:0x([0-9a-f]{16}))?" + _OWN + _RATE + _FAR % "()")
_HEADER = re.compile(r"(Switch|CA|Router): (?:(?<=Switch: )0x([0-9a-f]{16}) |(?<!Switch: ))(.*):")
_WIDTH = re.compile(r"Could be ([0-9]{1,2})X")
_SPEED = re.compile(r"Could be (?:([0-9.]+ Gbps)|(FDR10))")


def parse(text: str, source: str = "iblinkinfo") -> ToolOutput:
    """Parse both forms."""
    output = ToolOutput(source, both_ends=True, all_ports=True)
    kind: Optional[str] = None
    node, description = "", ""
    for number, line in output.lines(text):
        full = _LINE.fullmatch(line)
        header, short = (None, None) if full else (_HEADER.fullmatch(line), _PORT.fullmatch(line))
        if header is not None:
            kind, node, description = _KINDS[header.group(1)], header.group(2) or "", header.group(3)
            continue
        port = _port(full.groups(""), None) if full else None
        # Only a host port has its own GUID.
        if short and kind is not None and (kind == SWITCH) == (short.group(1) is None):
            port = _port((short.group(1) or node, description, *short.groups("")[1:]), kind)
        if port is None:
            output.odd(number, line)
            continue
        output.undecoded += port.state not in ("down", None) and (port.speed is None or port.width is None)
        output.ports.append(_with_first_port(port, output.ports[-1] if output.ports else None))
    if not output.ports:
        output.cut = "it names no port"
    return output


def _with_first_port(port: PortRow, before: Optional[PortRow]) -> PortRow:
    """Add the GUID of an HCA's first port to its further ports."""
    if before is None or port.kind == SWITCH or port.port_guid in (None, before.port_guid):
        return port
    if (port.kind, port.description) != (before.kind, before.description) or port.number <= before.number:
        return port
    return port._replace(first_port=before.first_port or before.port_guid)


def _port(values: Sequence[str], kind: Optional[str]) -> Optional[PortRow]:
    own_guid, description, own_lid, number, width, speed, state, physical = values[:8]
    far_guid, far_lid, far, could, unavailable = values[8:]
    if int(number) > MOST_PORT_NUMBER or int(far or 0) > MOST_PORT_NUMBER:
        return None
    # The tool prints no rate of a port that is down.
    lanes = int(width) if width and int(width) in WIDTHS else None
    lane = tool_output.lane(speed)
    wider, faster = _WIDTH.search(could), _SPEED.search(could)
    most_width = int(wider.group(1)) if wider and int(wider.group(1)) in WIDTHS else lanes
    most_lane = lane if faster is None else "FDR10" if faster.group(2) else tool_output.lane(faster.group(1))
    peer = far_guid or (tool_output.lid(far_lid) if far else None)
    return PortRow(
        "",
        int(number),
        port_guid=own_guid or None,
        lid=tool_output.lid(own_lid),
        state=_STATES.get(state.lower()),
        physical=tool_output.text(physical)[:64],
        width=lanes,
        speed=lane,
        width_supported=most_width if far else None,
        speed_supported=most_lane if far else None,
        peer=(peer, int(far)) if peer else None,
        linked=None if unavailable else bool(far),
        kind=kind,
        description=tool_output.text(description),
    )
