# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""ibnetdiscover, both of its forms: the topology file (nodes with their cables) and ``-p`` (a line a port).

The topology has what no other output has: GUID of nodes and of their systems, device ids. ``-p`` names host ports by
the GUIDs of the ports, as iblinkinfo does. Both end with 0 also where most of the fabric did not answer.
Sources: rdma-core infiniband-diags/ibnetdiscover.c; libibnetdisc.
"""

from __future__ import annotations

import re
from typing import Dict, Optional, Tuple

from ..core.number import whole
from . import told
from .sweep import CA, LANE_GBPS, ROUTER, SWITCH, WIDTHS
from .told import NodeTold, PortTold, Told

_KINDS = {
    "Switch": SWITCH,
    "Ca": CA,
    "Rt": ROUTER,
    "SW": SWITCH,
    "CA": CA,
    "RT": ROUTER,
    "S": SWITCH,
    "H": CA,
    "R": ROUTER,
}
_HEX = r"(?:0x)?([0-9a-fA-F]{1,16})"
_ATTRIBUTE = re.compile(
    r"(vendid|devid|sysimgguid|switchguid|caguid|rtguid)\s*=\s*" + _HEX + r"(?:\(" + _HEX + r"\))?\s*(?:#.*)?"
)
_NODE = re.compile(r'(Switch|Ca|Rt)\s*([0-9]{1,3})\s*"([SHR])-' + _HEX + r'"\s*#\s*"(.*)"([^"]*)')
_SWITCH_LID = re.compile(r"\s*(?:base|enhanced) port 0 lid ([0-9]{1,5}) lmc [0-7]\s*")
_LINK = (
    r"\s*(?:([0-9]{1,2}|\?\?)x?(SDR|DDR|QDR|FDR10|FDR|EDR|HDR|NDR|XDR|\?\?\?))?"
    r"(?: [a-z]=[0-9]+)*(?: slot [0-9]+| \(scp\))?\s*"
)
_TO = r'\s*"([SHR])-' + _HEX + r'"\s*\[\s*([0-9]{1,3})\](?:\[ext [0-9]+\])?\s*(?:\(' + _HEX + r"\))?\s*#\s*"
_SWITCH_PORT = re.compile(r"\[\s*([0-9]{1,3})\](?:\[ext [0-9]+\])?" + _TO + r'"(.*)" lid ([0-9]{1,5})' + _LINK)
_CA_PORT = re.compile(
    r"\[\s*([0-9]{1,3})\](?:\[ext [0-9]+\])?\("
    + _HEX
    + r"\)"
    + _TO
    + r'lid ([0-9]{1,5}) lmc [0-7] "(.*)" lid ([0-9]{1,5})'
    + _LINK
)
# What stands between nodes where chassis are grouped (-g).
_AROUND = re.compile(r"Chassis [0-9]+.*|Hostname: .*|Non-Chassis Nodes|(?:Spine|Line) Nodes|Chassis Switches")
_PORT_LINE = re.compile(
    r"(SW|CA|RT)\s+([0-9]{1,5})\s+([0-9]{1,3}) 0x([0-9a-f]{16}) ([0-9]{1,2}x|\?\?) (\w{3,5}|\?\?\?)"
    r"(?: - (SW|CA|RT)\s+([0-9]{1,5})\s+([0-9]{1,3}) 0x([0-9a-f]{16}) \( '(.*?)' - '(.*)' \)|\s+(\S.*))"
)


def parse(text: str, source: str = "ibnetdiscover") -> Told:
    """Of a topology file."""
    found = Told(source, both_ends=True)
    before: Dict[str, int] = {}
    own_guid: Optional[str] = None
    node, kind, at = "", CA, 0
    undecoded = 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if len(line) > told.LONGEST:
            found.odd(number, raw)
            continue
        if line.startswith("["):
            port = _port(line, node, kind) if node else None
            if port is None:
                found.odd(number, raw)
                continue
            undecoded += port.speed is None or port.width is None
            found.ports.append(port)
            continue
        attribute = _ATTRIBUTE.fullmatch(line)
        if attribute is not None:
            if attribute.group(1) == "vendid":
                # Of a node that never came.
                if before:
                    found.odd(at, "vendid=...")
                node, before = "", {}
            before[attribute.group(1)] = int(attribute.group(2), 16)
            own_guid = attribute.group(3) and told.guid(attribute.group(3))
            at = number
            continue
        header = _NODE.fullmatch(line)
        if header is None:
            if not _AROUND.fullmatch(line):
                found.odd(number, raw)
            continue
        word, ports, _letter, digits, description, rest = header.groups()
        node, kind = told.guid(digits), _KINDS[word]
        system = before.get("sysimgguid")
        found.nodes.append(
            NodeTold(
                node,
                kind,
                told.text(description),
                None if not system else "%016x" % system,
                before.get("devid") or None,
                port_count=int(ports),
            )
        )
        before = {}
        own = _SWITCH_LID.fullmatch(rest)
        if own is not None:
            found.ports.append(PortTold(node, 0, port_guid=own_guid, lid=told.lid(own.group(1))))
    if before:
        found.cut = "it ends within a node: run the tool again, or copy the whole of its output"
    elif not found.nodes:
        found.cut = "it names no node"
    _undecoded(found, undecoded)
    return found


def _port(line: str, node: str, kind: str) -> Optional[PortTold]:
    if kind == SWITCH:
        match = _SWITCH_PORT.fullmatch(line)
        if match is None:
            return None
        number, _letter, far, far_port, _far_guid, _far, _far_lid, width, speed = match.groups()
        own_guid, own_lid = None, None
    else:
        match = _CA_PORT.fullmatch(line)
        if match is None:
            return None
        number, own_guid, _letter, far, far_port, _far_guid, own_lid, _far, _far_lid, width, speed = match.groups()
    if int(number) > 254 or int(far_port) > 254:
        return None
    lanes, name = _rate(width, speed)
    return PortTold(
        node,
        int(number),
        port_guid=own_guid and told.guid(own_guid),
        lid=own_lid and told.lid(own_lid),
        width=lanes,
        speed=name,
        peer=(told.guid(far), int(far_port)),
        linked=True,
    )


def _rate(width: Optional[str], speed: Optional[str]) -> Tuple[Optional[int], Optional[str]]:
    lanes = whole((width or "").rstrip("x"))
    return (lanes if lanes in WIDTHS else None), (speed if speed in LANE_GBPS else None)


def parse_ports(text: str, source: str = "ibnetdiscover -p") -> Told:
    """Of ``-p``. A switch's port without a cable has no other end, and says 4x SDR, which is nothing."""
    found = Told(source, both_ends=True, all_ports=True)
    undecoded = 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        match = _PORT_LINE.fullmatch(line) if len(line) <= told.LONGEST else None
        if match is None or int(match.group(3)) > 254 or int(match.group(9) or 0) > 254:
            found.odd(number, raw)
            continue
        word, own_lid, own, own_guid, width, speed, _word, _far_lid, far, far_guid, name, _name, alone = match.groups()
        linked = far is not None
        lanes, lane = _rate(width, speed) if linked else (None, None)
        undecoded += linked and (lanes is None or lane is None)
        found.ports.append(
            PortTold(
                "",
                int(own),
                port_guid=own_guid,
                lid=told.lid(own_lid),
                width=lanes,
                speed=lane,
                peer_port=(far_guid, int(far)) if linked else None,
                linked=linked,
                kind=_KINDS[word],
                description=told.text(
                    name if alone is None else alone[1:-1] if alone[:1] == alone[-1:] == "'" else alone
                ),
            )
        )
    if not found.ports:
        found.cut = "it names no port"
    _undecoded(found, undecoded)
    return found


def _undecoded(found: Told, count: int) -> None:
    if count:
        found.notes.append(
            "%d ports are printed without a rate; tools that are older than the links do so (XDR: rdma-core before"
            " 50): install a newer infiniband-diags" % count
        )
