# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parse ibdiagnet2.db_csv: sections between ``START_X`` and ``END_X``, whose columns are found by name; ibdiagnet2.pm.

Names differ by release (NodeGUID and NodeGuid, PortNum and PortNumber); before 2.7.0 ports without a cable are left
out. Other sections are skipped.
Sources: NVIDIA's ibdiagnet manual, for AR_INFO its structure adaptive_routing_info; codes of PortInfo of the IBTA,
extended speeds in the second byte.
"""

from __future__ import annotations

import csv
import re
from typing import Callable, Dict, Iterable, List, Mapping, Optional, Tuple

from . import tool_output
from .subnet_manager import STATES
from .sweep import CA, MOST_PORT_NUMBER, READ_COUNTERS, ROUTER, SWITCH, SubnetManager
from .tool_output import NodeRow, PortRow, ToolOutput

_START = re.compile(r"START_([A-Z0-9_]+)\s*")
_DISCOVERY = re.compile("(ERRORS|WARNINGS)_.*DISCOVER")
_KINDS = {1: CA, 2: SWITCH, 3: ROUTER}
_PORT_STATES = {1: "down", 2: "init", 3: "armed", 4: "active"}
_PHYSICAL = dict(
    enumerate(
        ("Sleep", "Polling", "Disabled", "PortConfigurationTraining", "LinkUp", "LinkErrorRecovery", "PhyTest"), 1
    )
)
_WIDTHS = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
# Bytes of a speed's code in the order of trust: LinkSpeedExt2, LinkSpeedExt, the vendor's, LinkSpeed. A link of an
# extended speed may have bits in the lower ones, too. Bits, the fastest first.
_SPEEDS = (
    (0xFF000000, ((0x1000000, "XDR"),)),
    (0xFF00, ((0x800, "NDR"), (0x400, "HDR"), (0x200, "EDR"), (0x100, "FDR"))),
    (0xFF0000, ((0x10000, "FDR10"),)),
    (0xFF, ((0x4, "QDR"), (0x2, "DDR"), (0x1, "SDR"))),
)
# Columns of PM_INFO, by release, and of ibdiagnet2.pm. One that ends in Ext or Extended has 64 bits and is preferred.
_COUNTERS = {
    **{name.lower(): name for name in READ_COUNTERS},
    **dict.fromkeys(("excessivebufferoverruns", "excessivebuffererrors"), "ExcessiveBufferOverrunErrors"),
    **dict.fromkeys(("linkdowned", "linkdowncounter"), "LinkDownedCounter"),
    "linkerrorrecovery": "LinkErrorRecoveryCounter",
    "symbolerror": "SymbolErrorCounter",
    "portxmitdiscard": "PortXmitDiscards",
}


class _Row:
    """A row by its columns' names in lower case. Every method raises KeyError and ValueError."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = values

    def text(self, *names: str) -> str:
        return next((self.values[name] for name in names if self.values.get(name)), self.values[names[0]]).strip()

    def number(self, *names: str) -> Optional[int]:
        """Return None for N/A and for no such column."""
        return _number(next((self.values[name] for name in names if self.values.get(name)), ""))

    def guid(self, *names: str) -> str:
        return tool_output.guid(self.text(*names))

    def end(self, suffix: str = "") -> Tuple[str, int]:
        port = self.number("portnum" + suffix, "portnumber" + suffix)
        if port is None or not 0 <= port <= MOST_PORT_NUMBER:
            raise ValueError("no port")
        return self.guid("nodeguid" + suffix), port


def _number(value: str) -> Optional[int]:
    if value.upper() in ("N/A", "NA", "ERR", ""):
        return None
    return int(value, 0) if value.lower().startswith("0x") else int(value)


def parse(text: str, source: str = "ibdiagnet2.db_csv") -> ToolOutput:
    output = ToolOutput(source, every=True)
    found = set()
    section, unclosed = "", ""
    header: List[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        start = _START.fullmatch(line)
        if start is not None:
            unclosed = unclosed or section
            section, header = start.group(1), []
            found.add(section)
        elif section and line.strip() == "END_" + section:
            section = ""
        elif not section and line.strip() and not line.startswith("#"):
            output.odd(number, line)
        elif section and line.strip() and (section in _READERS or _DISCOVERY.match(section)):
            try:
                [values] = csv.reader([line], skipinitialspace=True)
                if header and len(values) != len(header):
                    raise ValueError("another number of columns")
                if header:
                    _READERS.get(section, _message)(output, _Row(dict(zip(header, values))))
                else:
                    header = [value.strip().lower() for value in values]
            except (csv.Error, KeyError, ValueError):
                output.odd(number, line)
    more = len(output.partial) - tool_output.QUOTED
    if more > 0:
        output.partial[tool_output.QUOTED :] = ["and %d more of ibdiagnet's messages" % more]
    missing = [name for name in ("NODES", "PORTS", "LINKS") if name not in found]
    if unclosed or section:
        output.cut = "it ends within section %s" % (unclosed or section)
    elif missing:
        output.cut = "it has no section %s" % ", ".join(missing)
    return output


def _message(output: ToolOutput, row: _Row) -> None:
    """Read a message of a section of errors: the discovery lacks something."""
    if row.values.get("summary") or row.values.get("eventname"):
        output.partial.append(tool_output.quote(row.text("summary", "eventname")))


def _node(output: ToolOutput, row: _Row) -> None:
    kind = _KINDS[row.number("nodetype") or 0]
    system = row.guid("systemimageguid") if row.values.get("systemimageguid") else None
    description = tool_output.text(row.values.get("nodedesc", ""))
    device, ports = row.number("deviceid"), row.number("numports")
    output.nodes.append(NodeRow(row.guid("nodeguid"), kind, description, system, device, port_count=ports))


def _firmware(output: ToolOutput, row: _Row) -> None:
    parts = [
        (row.number("fwinfo_extended_" + part), row.number("fwinfo_" + part)) for part in ("major", "minor", "subminor")
    ]
    numbers = [usual if extended is None else extended for extended, usual in parts]
    valid = [number for number in numbers if number is not None and 0 <= number <= 0xFFFF]
    version = "%d.%d.%04d" % tuple(valid) if len(valid) == 3 else None
    psid = tool_output.text(row.values.get("fwinfo_psid", ""))
    output.nodes.append(NodeRow(row.guid("nodeguid"), firmware=version, psid=psid if psid not in ("", "N/A") else None))


def _speed(code: Optional[int], highest: bool) -> Optional[str]:
    """Return the one speed of a code, or with ``highest`` the fastest of several. None for any other code."""
    for mask, names in _SPEEDS:
        part = (code or 0) & mask
        if part:
            named = [name for bit, name in names if part & bit]
            unknown = part & ~sum(bit for bit, _name in names)
            return named[0] if named and (highest or (len(named) == 1 and not unknown)) else None
    return None


def _port(output: ToolOutput, row: _Row) -> None:
    guid, number = row.end()
    own, lid = row.guid("portguid"), row.number("lid")
    lid = lid if lid is not None and 0 < lid <= tool_output.MOST_UNICAST else None
    if number == 0:
        output.ports.append(PortRow(guid, 0, port_guid=own, lid=lid))
        return
    state = _PORT_STATES.get(_number(row.text("portstate")) or 0)
    lanes, code = row.number("linkwidthactv"), row.number("linkspeedactv")
    width, speed = (None, None) if state == "down" else (_WIDTHS.get(lanes or 0), _speed(code, False))
    if state != "down" and (width is None or speed is None):
        output.notes.append("%s port %d has a rate that is not known: width %s, speed %s" % (guid, number, lanes, code))
    physical, most = _PHYSICAL.get(row.number("portphystate") or 0), row.number("linkwidthsup") or 0
    widest = max((lanes for bit, lanes in _WIDTHS.items() if most & bit), default=None)
    fastest = _speed(row.number("linkspeedsup"), True)
    output.ports.append(PortRow(guid, number, own, lid, state, physical, width, speed, widest, fastest))


def _link(output: ToolOutput, row: _Row) -> None:
    ends = row.end("1"), row.end("2")
    for (guid, number), far in (ends, ends[::-1]):
        output.ports.append(PortRow(guid, number, peer=far, linked=True))


def _counters(output: ToolOutput, row: _Row) -> None:
    output.counters[row.end()] = _read_counters(row.values.items())


def _read_counters(columns: Iterable[Tuple[str, str]]) -> Dict[str, int]:
    """Return counters by the IBTA's names. Raises ValueError."""
    found: Dict[bool, Dict[str, int]] = {False: {}, True: {}}
    for column, text in columns:
        base = re.sub("ext(ended)?$", "", column)
        value = _number(text) if base in _COUNTERS else None
        # All ones, or one less: the device has no such counter.
        if value is not None and 0 <= value < (1 << 64) - 2:
            found[base != column][_COUNTERS[base]] = value
    return {**found[False], **found[True]}


def _manager(output: ToolOutput, row: _Row) -> None:
    priority = row.number("priority")
    state = STATES.get(_number(row.text("smstate", "state")) or 0, "unknown")
    priority = priority if priority is not None and 0 <= priority <= 15 else None
    output.managers.append(SubnetManager(row.guid("portguid", "guid"), state, priority))


def _adaptive(output: ToolOutput, row: _Row) -> None:
    """Read column ``e`` of a switch: its adaptive routing is enabled."""
    enabled = _number(row.text("e"))
    if enabled in (0, 1):
        output.adaptive[row.guid("nodeguid")] = enabled == 1


_READERS: Dict[str, Callable[[ToolOutput, _Row], None]] = {
    "NODES": _node,
    "NODES_INFO": _firmware,
    "PORTS": _port,
    "LINKS": _link,
    "PM_INFO": _counters,
    "SM_INFO": _manager,
    "AR_INFO": _adaptive,
}


_PM_PORT = re.compile(r"Port=([0-9]{1,3}) Lid=0x[0-9a-fA-F]{1,8} GUID=0x([0-9a-fA-F]{1,16}) Device=[0-9]+ Port Name=.*")
PM_LINE = re.compile(r"Port=[0-9]+ Lid=0x[0-9a-fA-F]+ GUID=0x|-{20,}\s*$")
_PM_VALUE = re.compile(r"(\w{1,64})=(\S*)")


def parse_pm(text: str, source: str = "ibdiagnet2.pm") -> ToolOutput:
    """Parse ibdiagnet2.pm: for each port a line that names it, and one for each counter, ``vl15_dropped=0x0``."""
    output = ToolOutput(source, every=True)
    ports: List[Tuple[Tuple[str, int], Dict[str, str]]] = []
    for number, line in output.lines(text):
        port, value = _PM_PORT.fullmatch(line), _PM_VALUE.fullmatch(line)
        if port is not None and int(port.group(1)) <= MOST_PORT_NUMBER:
            ports.append(((tool_output.guid(port.group(2)), int(port.group(1))), {}))
        elif value is not None and ports:
            column = value.group(1).lower().replace("_", "")
            try:
                _read_counters([(column, value.group(2))])
            except ValueError:
                output.odd(number, line)
            else:
                ports[-1][1][column] = value.group(2)
        elif line.strip("-"):
            output.odd(number, line)
    output.counters = {end: _read_counters(columns.items()) for end, columns in ports}
    if not ports:
        output.cut = "it names no port"
    return output
