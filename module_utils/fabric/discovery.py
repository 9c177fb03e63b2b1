# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parse ibnetdiscover, iblinkinfo and ibqueryerrors: nodes and cables, rates and states, counters.

Each of them ends with 0 even where most of the fabric did not respond.
Sources: rdma-core infiniband-diags (ibnetdiscover.c, iblinkinfo.c, ibqueryerrors.c, ibdiag_common.c); libibnetdisc.
"""

from __future__ import annotations

import re
from typing import Dict, Optional, Sequence

from ..core.number import whole
from . import tool_output
from .sweep import CA, LANE_GBPS, MOST_COUNTERS, MOST_PORT_NUMBER, READ_COUNTERS, ROUTER, SWITCH, WIDTHS
from .tool_output import NodeRow, PortRow, ToolOutput

_KINDS = {"Switch": SWITCH, "Ca": CA, "CA": CA, "Rt": ROUTER, "Router": ROUTER}
_HEX = r"(?:0x)?([0-9a-fA-F]{1,16})"
_ATTRIBUTE = re.compile(
    r"(vendid|devid|sysimgguid|switchguid|caguid|rtguid)\s*=\s*" + _HEX + r"(?:\(" + _HEX + r"\))?\s*(?:#.*)?"
)
_NODE_HEAD = re.compile(r'(Switch|Ca|Rt)\s*([0-9]{1,3})\s*"[SHR]-' + _HEX + r'"\s*#\s*"(.*)"([^"]*)')
_SWITCH_LID = re.compile(r"\s*(?:base|enhanced) port 0 lid ([0-9]{1,5}) lmc [0-7]\s*")
# [own port](own GUID) "H-node"[port](GUID) # lid 4 lmc 0 "description" lid 2 4xHDR; a switch's port has no own GUID.
_CABLE = re.compile(
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


def parse_ibnetdiscover(text: str, source: str = "ibnetdiscover") -> ToolOutput:
    """Parse a topology file, with ``-f`` or without."""
    output = ToolOutput(source, both_ends=True)
    before: Dict[str, int] = {}
    own_guid: Optional[str] = None
    node, kind, at = "", CA, 0
    for number, line in output.lines(text):
        attribute, header = _ATTRIBUTE.fullmatch(line), _NODE_HEAD.fullmatch(line)
        if line.startswith("["):
            port = _topology_port(line, node, kind) if node else None
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


def _topology_port(line: str, node: str, kind: str) -> Optional[PortRow]:
    match = _CABLE.fullmatch(line)
    if match is None:
        return None
    number, own_guid, far, far_port, own_lid, width, speed = match.groups()
    if int(number) > MOST_PORT_NUMBER or int(far_port) > MOST_PORT_NUMBER:
        return None
    if not bool(own_guid) == bool(own_lid) == (kind != SWITCH):
        return None
    lanes = whole((width or "").rstrip("x"))
    return PortRow(
        node,
        int(number),
        port_guid=tool_output.guid(own_guid) if own_guid else None,
        lid=tool_output.lid(own_lid) if own_lid else None,
        width=lanes if lanes in WIDTHS else None,
        speed=speed if speed in LANE_GBPS else None,
        peer=(tool_output.guid(far), int(far_port)),
        linked=True,
    )


# -- iblinkinfo --------------------------------------------------------------------------------------------------------

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


def parse_iblinkinfo(text: str, source: str = "iblinkinfo") -> ToolOutput:
    """Parse state, width and speed of every port, with ``--line`` and without.

    ``(Could be 53.125 Gbps)`` is what both ends support. Host ports are named by the GUIDs of the ports; without
    ``--line`` the other end has only a LID. Ports of a node are printed in ascending order: a host port with a number
    above 1 belongs to the node of the port before it.
    """
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
        before = output.ports[-1] if output.ports else port
        # A further port of an HCA gets the GUID of its first port.
        same = port.kind != SWITCH and (port.kind, port.description) == (before.kind, before.description)
        if same and port.number > before.number and port.port_guid not in (None, before.port_guid):
            port = port._replace(first_port=before.first_port or before.port_guid)
        output.ports.append(port)
    if not output.ports:
        output.cut = "it names no port"
    return output


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


# -- ibqueryerrors -----------------------------------------------------------------------------------------------------

_COUNTERS_OF = re.compile(r'(Errors|Data Counters) for (?:0x[0-9a-f]{1,16} )?".*"')
_COUNTED = re.compile(
    r"GUID 0x([0-9a-f]{1,16}) port ([0-9]{1,3}|ALL):((?: *\[[A-Za-z]\w{0,63} == [0-9]{1,20}(?: \([^()\]]*\))?\])*)",
    re.ASCII,
)
_COUNTER = re.compile(r"\[(\w+) == ([0-9]+)", re.ASCII)
_SUMMARY = re.compile(r"## Summary: [0-9]+ nodes checked, [0-9]+ bad nodes found")
_FAILURES = re.compile(r"## +([0-9]+) PMA query failures")
_UNREAD = re.compile(
    r"ibwarn: \[[0-9]+\] \w+: (\w+) query failed on .*, (?:DR path .*; )?Lid ([0-9]{1,5})(?: .*)? port ([0-9]{1,3})"
)
# libibmad's lines before the tool's own report of a failed query.
_NO_RESPONSE = re.compile(
    r"ibwarn: \[[0-9]+\] (?:_do_)?mad_?rpc: (?:_do_madrpc failed; dport \(.*\)|(?:recv|send) failed[:;] .*"
    r"|timeout after [0-9]+ retries, [0-9]+ ms|MAD completed with error status 0x[0-9a-f]+; dport \(.*\))"
)


def parse_ibqueryerrors(text: str, stderr: str = "", source: str = "ibqueryerrors") -> ToolOutput:
    """Parse counters of ports.

    Without ``--counters`` it prints ports with errors: with thresholds of 0 a port that it leaves out has none, unless
    stderr reports a failed query. ``--counters`` prints the data of every port. ``port ALL`` is the sum of a switch.
    """
    output = ToolOutput(source)
    failures = 0
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        header, match, failed = _COUNTERS_OF.fullmatch(line), _COUNTED.fullmatch(line), _FAILURES.fullmatch(line)
        if line.startswith("##"):
            output.clean = output.clean or _SUMMARY.fullmatch(line) is not None
            failures += int(failed.group(1)) if failed else 0
        elif header is not None:
            output.every = output.every or header.group(1) != "Errors"
        elif match is not None and match.group(2) == "ALL":
            continue
        elif match is None or int(match.group(2)) > MOST_PORT_NUMBER or match.group(3).count("[") > MOST_COUNTERS:
            if line and not line.startswith("Link info:"):
                output.odd(number, line)
        else:
            counters = output.counters.setdefault((tool_output.guid(match.group(1)), int(match.group(2))), {})
            found = _COUNTER.findall(match.group(3))
            counters.update({name: min(int(value), (1 << 64) - 1) for name, value in found if name in READ_COUNTERS})
    if not output.clean:
        output.cut = "it ends before its summary"
    others = []
    for line in map(str.strip, stderr.splitlines()):
        unread = _UNREAD.fullmatch(line)
        if unread is not None:
            query, lid, port = unread.groups()
            failures -= 1
            # Without the capabilities the tool goes on, port by port; without the sum of all ports (255) it does not.
            if query != "classportinfo":
                output.unread[int(lid), None if port == "255" else int(port)] = "its query failed (%s)" % query
        elif not _NO_RESPONSE.fullmatch(line):
            others.append(line)
    output.complain("\n".join(others))
    # A failed query that stderr does not name may be that of any port.
    output.clean = output.clean and not output.every and not output.odd_count and failures <= 0
    return output
