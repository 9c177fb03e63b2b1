# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""ibdiagnet2.db_csv: sections between ``START_X`` and ``END_X``, each with a header, whose columns are found by name.

Names differ by release (NodeGUID and NodeGuid, PortNum and PortNumber); before 2.7.0 ports without a cable are left
away. Sections that are not named here are of no use to a sweep, and left alone.
Sources: NVIDIA's ibdiagnet manual, for AR_INFO its structure adaptive_routing_info; codes as PortInfo of the IBTA has
them, extended speeds in the second byte.
"""

from __future__ import annotations

import csv
import re
from typing import Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from . import told
from .subnet_manager import STATES
from .sweep import CA, MOST_PORT_NUMBER, ROUTER, SWITCH, SubnetManager
from .told import NodeTold, PortTold, Told

_START = re.compile(r"START_([A-Z0-9_]+)\s*")
_KINDS = {1: CA, 2: SWITCH, 3: ROUTER}
_PORT_STATES = {1: "down", 2: "init", 3: "armed", 4: "active"}
_PHYSICAL = {
    1: "Sleep",
    2: "Polling",
    3: "Disabled",
    4: "PortConfigurationTraining",
    5: "LinkUp",
    6: "LinkErrorRecovery",
    7: "PhyTest",
}
_WIDTHS = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
# Bytes of a speed's code in the order in which they are believed: LinkSpeedExt2, LinkSpeedExt, the vendor's, LinkSpeed.
# A link of an extended speed may say something in the lower ones, too. Bits, the fastest first.
_SPEEDS = (
    (0xFF000000, ((0x1000000, "XDR"),)),
    (0xFF00, ((0x800, "NDR"), (0x400, "HDR"), (0x200, "EDR"), (0x100, "FDR"))),
    (0xFF0000, ((0x10000, "FDR10"),)),
    (0xFF, ((0x4, "QDR"), (0x2, "DDR"), (0x1, "SDR"))),
)
# A column of PM_INFO -> the IBTA's name; with Ext or Extended at its end it is the one of 64 bits, which is believed.
COUNTERS = (
    *("SymbolErrorCounter", "LinkErrorRecoveryCounter", "LinkDownedCounter", "PortRcvErrors"),
    *("PortRcvRemotePhysicalErrors", "PortRcvSwitchRelayErrors", "PortXmitDiscards", "PortXmitConstraintErrors"),
    *("PortRcvConstraintErrors", "LocalLinkIntegrityErrors", "ExcessiveBufferOverrunErrors", "VL15Dropped"),
    *("QP1Dropped", "PortXmitWait", "PortXmitData", "PortRcvData", "PortXmitPkts", "PortRcvPkts"),
    *("PortUnicastXmitPkts", "PortUnicastRcvPkts", "PortMulticastXmitPkts", "PortMulticastRcvPkts"),
    # Of PortRcvErrors and PortXmitDiscards.
    *("PortLocalPhysicalErrors", "PortMalformedPktErrors", "PortBufferOverrunErrors", "PortDLIDMappingErrors"),
    *("PortVLMappingErrors", "PortLoopingErrors", "PortInactiveDiscards", "PortNeighborMTUDiscards"),
    *("PortSwLifetimeLimitDiscards", "PortSwHOQLifetimeLimitDiscards"),
)
_NAMES = {name.lower(): name for name in COUNTERS}
_NAMES.update(
    excessivebufferoverruns="ExcessiveBufferOverrunErrors",
    linkdowned="LinkDownedCounter",
    linkerrorrecovery="LinkErrorRecoveryCounter",
    portmalformedpacketerrors="PortMalformedPktErrors",
    symbolerror="SymbolErrorCounter",
)
_NEEDED = ("NODES", "PORTS", "LINKS")
Row = Mapping[str, str]


def parse(text: str, source: str = "ibdiagnet2.db_csv") -> Told:
    found = Told(source, every=True)
    readers: Dict[str, Callable[[Told, Row], None]] = {
        "NODES": _node,
        "NODES_INFO": _firmware,
        "PORTS": _port,
        "LINKS": _link,
        "PM_INFO": _counters,
        "SM_INFO": _manager,
        "AR_INFO": _adaptive,
    }
    seen = set()
    open_section = ""
    for name, number, lines, closed in _sections(text, found):
        seen.add(name)
        if not closed:
            open_section = name
        read = readers.get(name)
        if read is None and not _is_complaint(name):
            continue
        for line, row in _rows(lines, number, found):
            try:
                if read is not None:
                    read(found, row)
                elif _told_of(row):
                    found.partial.append("%s: %s" % (name, told.shown(_told_of(row))))
            except (KeyError, ValueError):
                found.odd(line, ",".join(row.values()))
    found.partial = [*found.partial[: told.QUOTED], *_more(len(found.partial) - told.QUOTED)]
    missing = [name for name in _NEEDED if name not in seen]
    if open_section:
        found.cut = "it ends within section %s" % open_section
    elif missing:
        found.cut = "it has no section %s" % ", ".join(missing)
    return found


def _more(number: int) -> List[str]:
    return ["and %d more of ibdiagnet's messages" % number] if number > 0 else []


def _sections(text: str, found: Told) -> Iterator[Tuple[str, int, List[str], bool]]:
    """Name, number of the line after its start, its lines, and whether it has its end."""
    name, begin, lines = "", 0, []  # type: str, int, List[str]
    for number, line in enumerate(text.splitlines(), 1):
        if not name:
            start = _START.fullmatch(line)
            if start is not None:
                name, begin, lines = start.group(1), number + 1, []
            elif line.strip() and not line.startswith("#"):
                found.odd(number, line)
        elif line.strip() == "END_" + name:
            yield name, begin, lines, True
            name = ""
        elif _START.fullmatch(line):
            # Its end is lost, and with it what stood before that.
            yield name, begin, lines, False
            name, begin, lines = line.strip()[len("START_") :], number + 1, []
        else:
            lines.append(line)
    if name:
        yield name, begin, lines, False


def _rows(lines: Sequence[str], begin: int, found: Told) -> Iterator[Tuple[int, Row]]:
    """Number of a line and its values by the columns' names in lower case; one of another length is odd."""
    header: Optional[List[str]] = None
    for number, line in enumerate(lines, begin):
        if not line.strip():
            continue
        try:
            [values] = csv.reader([line], skipinitialspace=True)
        except (csv.Error, ValueError):
            found.odd(number, line)
            continue
        if header is None:
            header = [value.strip().lower() for value in values]
        elif len(values) != len(header):
            found.odd(number, line)
        else:
            yield number, dict(zip(header, values))


def _is_complaint(name: str) -> bool:
    return name.startswith(("ERRORS_", "WARNINGS_")) and "DISCOVER" in name


def _told_of(row: Row) -> str:
    return row.get("summary") or row.get("eventname") or ""


def _get(row: Row, *names: str) -> str:
    for name in names:
        if row.get(name) not in (None, ""):
            return row[name].strip()
    raise KeyError(names[0])


def _number(value: str) -> Optional[int]:
    """None for N/A. Raises ValueError."""
    if value.upper() in ("N/A", "NA", "ERR", ""):
        return None
    return int(value, 0) if value.lower().startswith("0x") else int(value)


def _port_of(row: Row, number: str = "portnum", guid: str = "nodeguid") -> Tuple[str, int]:
    port = _number(_get(row, number, number.replace("portnum", "portnumber")))
    if port is None or not 0 <= port <= MOST_PORT_NUMBER:
        raise ValueError("no port")
    return told.guid(_get(row, guid)), port


def _node(found: Told, row: Row) -> None:
    device, ports = _number(row.get("deviceid", "")), _number(row.get("numports", ""))
    found.nodes.append(
        NodeTold(
            told.guid(_get(row, "nodeguid")),
            _KINDS[_number(_get(row, "nodetype")) or 0],
            told.text(row.get("nodedesc", "")),
            told.guid(row["systemimageguid"]) if row.get("systemimageguid") else None,
            device,
            port_count=ports,
        )
    )


def _firmware(found: Told, row: Row) -> None:
    numbers = []
    for part in ("major", "minor", "subminor"):
        value = _number(row.get("fwinfo_extended_" + part, "") or row.get("fwinfo_" + part, ""))
        if value is None:
            value = _number(row.get("fwinfo_" + part, ""))
        numbers.append(value)
    known = [number for number in numbers if number is not None and 0 <= number <= 0xFFFF]
    version = "%d.%04d.%04d" % (known[0], known[1], known[2]) if len(known) == 3 else None
    psid = told.text(row.get("fwinfo_psid", ""))
    found.nodes.append(
        NodeTold(told.guid(_get(row, "nodeguid")), firmware=version, psid=psid if psid not in ("", "N/A") else None)
    )


def _speed(code: Optional[int], highest: bool) -> Optional[str]:
    """Of a code that names one speed; with ``highest`` the fastest of those that it names. None for any other."""
    for mask, names in _SPEEDS:
        part = (code or 0) & mask
        if part:
            named = [name for bit, name in names if part & bit]
            unknown = part & ~sum(bit for bit, _name in names)
            return named[0] if named and (highest or (len(named) == 1 and not unknown)) else None
    return None


def _port(found: Told, row: Row) -> None:
    guid, number = _port_of(row)
    if number == 0:
        found.ports.append(PortTold(guid, 0, port_guid=told.guid(_get(row, "portguid")), lid=_lid(row)))
        return
    state = _PORT_STATES.get(_number(_get(row, "portstate")) or 0)
    width, speed = _number(row.get("linkwidthactv", "")), _number(row.get("linkspeedactv", ""))
    down = state == "down"
    most = _number(row.get("linkwidthsup", "")) or 0
    if not down and (_WIDTHS.get(width or 0) is None or _speed(speed, False) is None):
        found.notes.append("%s port %d has a rate that is not known: width %s, speed %s" % (guid, number, width, speed))
    found.ports.append(
        PortTold(
            guid,
            number,
            port_guid=told.guid(_get(row, "portguid")),
            lid=_lid(row),
            state=state,
            physical=_PHYSICAL.get(_number(row.get("portphystate", "")) or 0),
            width=None if down else _WIDTHS.get(width or 0),
            speed=None if down else _speed(speed, False),
            width_supported=max((lanes for bit, lanes in _WIDTHS.items() if most & bit), default=None),
            speed_supported=_speed(_number(row.get("linkspeedsup", "")), True),
        )
    )


def _lid(row: Row) -> Optional[int]:
    value = _number(row.get("lid", ""))
    return value if value is not None and 0 < value <= told.MOST_UNICAST else None


def _link(found: Told, row: Row) -> None:
    ends = _port_of(row, "portnum1", "nodeguid1"), _port_of(row, "portnum2", "nodeguid2")
    for (guid, number), far in (ends, ends[::-1]):
        found.ports.append(PortTold(guid, number, peer=far, linked=True))


def _counters(found: Told, row: Row) -> None:
    place = _port_of(row)
    counters: Dict[str, int] = {}
    wide = set()
    for column, said in row.items():
        base = column
        for ending in ("extended", "ext"):
            if column.endswith(ending):
                base = column[: -len(ending)]
        name = _NAMES.get(base)
        if name is None or (name in wide and base == column):
            continue
        value = _number(said)
        # All ones, or one less, say that the device has no such counter.
        if value is None or not 0 <= value < (1 << 64) - 2:
            continue
        counters[name] = value
        if base != column:
            wide.add(name)
    found.counters[place] = counters


def _manager(found: Told, row: Row) -> None:
    priority = _number(row.get("priority", ""))
    found.managers.append(
        SubnetManager(
            told.guid(_get(row, "portguid", "guid")),
            STATES.get(_number(_get(row, "smstate", "state")) or 0, "unknown"),
            priority if priority is not None and 0 <= priority <= 15 else None,
        )
    )


def _adaptive(found: Told, row: Row) -> None:
    """Column ``e`` of a switch: its adaptive routing is enabled."""
    enabled = _number(_get(row, "e"))
    if enabled in (0, 1):
        found.adaptive[told.guid(_get(row, "nodeguid"))] = enabled == 1
