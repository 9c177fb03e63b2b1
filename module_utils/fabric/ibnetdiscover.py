# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parse ibnetdiscover, with ``-f`` or without: nodes with their GUIDs, device ids and cables.

It ends with 0 even where most of the fabric did not respond.
Sources: rdma-core infiniband-diags/ibnetdiscover.c; libibnetdisc.
"""

from __future__ import annotations

import re
from typing import Dict, Optional

from ..core.number import whole
from . import tool_output
from .sweep import CA, LANE_GBPS, MOST_PORT_NUMBER, ROUTER, SWITCH, WIDTHS
from .tool_output import NodeRow, PortRow, ToolOutput

_KINDS = {"Switch": SWITCH, "Ca": CA, "Rt": ROUTER}
_HEX = r"(?:0x)?([0-9a-fA-F]{1,16})"
_ATTRIBUTE = re.compile(
    r"(vendid|devid|sysimgguid|switchguid|caguid|rtguid)\s*=\s*" + _HEX + r"(?:\(" + _HEX + r"\))?\s*(?:#.*)?"
)
_NODE = re.compile(r'(Switch|Ca|Rt)\s*([0-9]{1,3})\s*"[SHR]-' + _HEX + r'"\s*#\s*"(.*)"([^"]*)')
_SWITCH_LID = re.compile(r"\s*(?:base|enhanced) port 0 lid ([0-9]{1,5}) lmc [0-7]\s*")
# [own port](own GUID) "H-node"[port](GUID) # lid 4 lmc 0 "description" lid 2 4xHDR; a switch's port has no own GUID.
_PORT = re.compile(
    r"\[\s*([0-9]{1,3})\](?:\[ext [0-9]+\])?(?:\("
    + _HEX
    + r'\))?\s*"[SHR]-'
    + _HEX
    + r'"\s*\[\s*([0-9]{1,3})\](?:\[ext [0-9]+\])?\s*(?:\([0-9a-fA-Fx]+\))?\s*#\s*'
    r'(?:lid ([0-9]{1,5}) lmc [0-7] )?"(?:.*)" lid [0-9]{1,5}'
    r"\s*(?:([0-9]{1,2}|\?\?)x?(SDR|DDR|QDR|FDR10|FDR|EDR|HDR|NDR|XDR|\?\?\?))?"
    r"(?: [a-z]=[0-9]+)*(?: slot [0-9]+| \(scp\))?\s*"
)
# Lines between nodes where chassis are grouped (-g).
_AROUND = re.compile(r"Chassis [0-9]+.*|Hostname: .*|Non-Chassis Nodes|(?:Spine|Line) Nodes|Chassis Switches")


def parse(text: str, source: str = "ibnetdiscover") -> ToolOutput:
    """Parse a topology file."""
    output = ToolOutput(source, both_ends=True)
    before: Dict[str, int] = {}
    own_guid: Optional[str] = None
    node, kind, at = "", CA, 0
    for number, line in output.lines(text):
        attribute, header = _ATTRIBUTE.fullmatch(line), _NODE.fullmatch(line)
        if line.startswith("["):
            port = _port(line, node, kind) if node else None
            if port is None:
                output.odd(number, line)
            else:
                output.ports.append(port)
                output.undecoded += port.speed is None or port.width is None
        elif attribute is not None:
            if attribute.group(1) == "vendid":
                if before:
                    # Of a node without a header.
                    output.odd(at, "vendid=...")
                node, before = "", {}
            before[attribute.group(1)] = int(attribute.group(2), 16)
            own_guid = attribute.group(3) and tool_output.guid(attribute.group(3))
            at = number
        elif header is not None:
            word, ports, digits, description, rest = header.groups()
            node, kind = tool_output.guid(digits), _KINDS[word]
            system = "%016x" % before["sysimgguid"] if before.get("sysimgguid") else None
            about = (tool_output.text(description), system, before.get("devid") or None)
            output.nodes.append(NodeRow(node, kind, *about, port_count=int(ports)))
            before = {}
            own = _SWITCH_LID.fullmatch(rest)
            if own is not None:
                output.ports.append(PortRow(node, 0, port_guid=own_guid, lid=tool_output.lid(own.group(1))))
        elif not _AROUND.fullmatch(line):
            output.odd(number, line)
    if before:
        output.cut = "it ends within a node: run the tool again, or copy the whole of its output"
    elif not output.nodes:
        output.cut = "it names no node"
    return output


def _port(line: str, node: str, kind: str) -> Optional[PortRow]:
    match = _PORT.fullmatch(line)
    number, own_guid, far, far_port, own_lid, width, speed = match.groups() if match else ("999", *[""] * 6)
    if int(number) > MOST_PORT_NUMBER or int(far_port) > MOST_PORT_NUMBER:
        return None
    if not bool(own_guid) == bool(own_lid) == (kind != SWITCH):
        return None
    lanes = whole((width or "").rstrip("x"))
    return PortRow(
        node,
        int(number),
        port_guid=own_guid and tool_output.guid(own_guid),
        lid=own_lid and tool_output.lid(own_lid),
        width=lanes if lanes in WIDTHS else None,
        speed=speed if speed in LANE_GBPS else None,
        peer=(tool_output.guid(far), int(far_port)),
        linked=True,
    )
