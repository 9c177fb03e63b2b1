# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parse outputs about subnet managers and single ports: sminfo, saquery SMIR, smpquery, logs of opensm and nvlsm.

Sources: rdma-core infiniband-diags/sminfo.c, saquery.c (dump_one_sminfo_record), smpquery.c (pkey_table, node_info),
SMInfo of the IBTA (14.2.5.13), opensm osm_ucast_mgr.c, osm_vendor_ibumad.c, osm_log.c and main.c; MLNX_OFED's manual,
"Unhealthy Ports Detection".
"""

from __future__ import annotations

import calendar
import re
import time
from functools import lru_cache
from typing import Dict, List, Mapping, Optional, Tuple

from ..core.check import Check
from ..core.host import ParseError
from . import tool_output
from .sweep import EXITED, MOST_PORT_NUMBER, ManagerEvent, SubnetManager
from .tool_output import ToolOutput

MANAGER_LOG = Check("ib_fabric.manager_log", why="nodes may be without routes, or have old ones", severity="minor")
"Are the logs of the subnet managers free of errors and of an exit, in the last 24 hours"
UNHEALTHY = Check("ib_fabric.unhealthy_port", why="the subnet manager may ignore or isolate the port")
"Does the subnet manager list no port as unhealthy"
# SMState of the IBTA.
STATES = {0: "not_active", 1: "discovering", 2: "standby", 3: "master"}
_SMINFO = re.compile(
    r"sminfo: sm lid (?P<LID>[0-9]{1,5}) sm guid 0x(?P<GUID>[0-9a-f]{1,16}), activity count [0-9]+"
    r" priority (?P<Priority>[0-9]{1,2}) state (?P<SMState>[0-9]{1,2}) .*"
)
_RECORD = "SMInfoRecord dump:"
# A line of opensm's log; nvlsm writes the same form.
LOG_LINE = re.compile(r"([A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8}) [0-9]{6} \[[0-9A-F]{1,16}\] 0x[0-9a-fA-F]{2} -> ")
_ERROR = re.compile(r"(ERR [0-9A-Fa-f]{2,8}): ")
_STARTED = re.compile(r"-> (?:OpenSM|NVLSM|nvlsm) v?[0-9]|-> osm_vendor_bind: ")
UNHEALTHY_LINE = re.compile(
    r'\s*0x([0-9a-fA-F]{1,16}), *([0-9]{1,3}), *".*?", *0x[0-9a-fA-F]{1,16}, *[0-9]{1,3}, *".*?", *\{([^}]*)\}(.*)'
)
# Seconds. Older errors of a log are history: the manager has swept the fabric many times since.
RECENT = 24 * 3600
_BOUND = re.compile(r"-> osm_vendor_bind: Mgmt class 0x[0-9a-f]{2} binding to port GUID 0x([0-9a-f]{1,16})$")
_ROUTED = re.compile(r"-> osm_ucast_mgr_process: ([A-Za-z0-9_-]{1,32}) tables configured on all switches$")
_FIELD = re.compile(r"(\w+)\.{2,}(.*)")
_KEYS = re.compile(r"[0-9]+:((?: 0x[0-9a-f]{4}){1,8})")
_CAPACITY = re.compile(r"([0-9]+) pkeys capacity for this port")


def parse_sminfo(text: str, source: str = "sminfo") -> ToolOutput:
    output = ToolOutput(source)
    for number, line in output.lines(text):
        match = _SMINFO.fullmatch(line)
        _add_manager(output, number, line, match.groupdict() if match else {})
    output.cut = "" if output.managers else "it names no subnet manager"
    return output


def parse_records(text: str, source: str = "saquery SMIR") -> ToolOutput:
    """Parse SMInfo records; a record that is not whole is an odd line."""
    output = ToolOutput(source)
    record: Optional[Dict[str, str]] = None
    for number, line in output.lines(text + "\n" + _RECORD):
        field = _FIELD.fullmatch(line)
        if line == _RECORD:
            if record is not None:
                shown = "SMInfoRecord %s" % ", ".join("%s %s" % pair for pair in record.items())
                _add_manager(output, number - 1, shown, record)
            record = {}
        elif field is not None and record is not None:
            record[field.group(1)] = field.group(2).strip()
        elif line not in ("RID", "SMInfo dump:"):
            output.odd(number, line)
    output.cut = "" if output.managers else "it names no subnet manager"
    return output


def _add_manager(output: ToolOutput, number: int, line: str, record: Mapping[str, str]) -> None:
    try:
        guid, state, priority = record["GUID"].replace("0x", "", 1), int(record["SMState"]), int(record["Priority"])
        about = (STATES.get(state, "unknown"), priority if priority <= 15 else None, tool_output.lid(record["LID"]))
        output.managers.append(SubnetManager(tool_output.guid(guid), *about))
    except (KeyError, ValueError):
        output.odd(number, line)


def parse_pkeys(text: str) -> Tuple[int, ...]:
    """Return the keys in use of ``smpquery pkeys``; 0x0000 is an empty place. Raises ParseError."""
    keys = []
    capacity = None
    for line in filter(None, map(str.strip, text.splitlines())):
        row, match = _KEYS.fullmatch(line), _CAPACITY.fullmatch(line)
        if row is not None:
            keys += [int(key, 16) for key in row.group(1).split()]
        elif match is not None:
            capacity = int(match.group(1))
        elif not line.startswith("#"):
            raise ParseError("%.80r is not a row of partition keys" % line)
    if capacity is None or len(keys) < capacity:
        raise ParseError("it shows %d partition keys of %s" % (len(keys), capacity or "an unknown number"))
    return tuple(key for key in keys if key)


def parse_node_guid(text: str) -> str:
    """Return the node GUID of ``smpquery nodeinfo``. Raises ParseError."""
    match = re.search(r"^Guid:\.+0x([0-9a-f]{1,16})\s*$", text, re.MULTILINE)
    if match is None:
        raise ParseError("it has no Guid")
    return tool_output.guid(match.group(1))


def parse_log_routing(text: str) -> Dict[str, str]:
    """Return GUID of the port that opensm was bound to -> its last routing engine, such as ``ftree``."""
    found: Dict[str, str] = {}
    port = ""
    for line in text.splitlines():
        bound, routed = _BOUND.search(line), _ROUTED.search(line)
        if bound is not None:
            port = tool_output.guid(bound.group(1))
        elif routed is not None and port:
            found[port] = routed.group(1)
    return found


def covers_recent(text: str, now: time.struct_time) -> bool:
    """Return whether a log, or its end, begins more than RECENT seconds before ``now``."""
    heads = (LOG_LINE.match(line) for line in text.splitlines())
    first = next(filter(None, heads), None)
    return first is not None and _age(first.group(1), now) > RECENT


def parse_log(text: str, source: str = "opensm.log") -> ToolOutput:
    """Parse a log of one opensm or nvlsm."""
    engines = set(parse_log_routing(text).values())
    return ToolOutput(source, routing=engines.pop() if len(engines) == 1 else None, events=parse_log_events(text))


def parse_log_events(text: str, now: Optional[time.struct_time] = None) -> List[ManagerEvent]:
    """Return errors and the exit of a subnet manager, of the RECENT seconds before ``now``, else before the last line.

    now: local time of the machine that wrote the log, which prints no year and no time zone.
    """
    lines = text.splitlines()
    last = next(filter(None, (LOG_LINE.match(line) for line in reversed(lines))), None)
    end = now or (last and _time(last.group(1), 2024))
    found: Dict[str, ManagerEvent] = {}
    for line in lines:
        if _STARTED.search(line):
            found.pop(EXITED, None)
        error = _ERROR.search(line)
        head = LOG_LINE.match(line) if error or line.rstrip().endswith(EXITED) else None
        if head is not None and (end is None or _age(head.group(1), end) <= RECENT):
            code = error.group(1) if error else EXITED
            count = found[code].count if code in found else 0
            found[code] = ManagerEvent(code, count + 1, head.group(1), tool_output.text(line[head.end() :]))
    return list(found.values())


@lru_cache(maxsize=4096)
def _time(words: str, year: int) -> Optional[time.struct_time]:
    try:
        return time.strptime("%d %s" % (year, words), "%Y %b %d %H:%M:%S")
    except ValueError:
        return None


def _age(words: str, end: time.struct_time) -> float:
    """Return the seconds from ``Mar 11 19:32:26`` of any year to ``end``; 0 where it is no time, or a little later."""
    at, year = _time(words, end.tm_year), (366 if calendar.isleap(end.tm_year) else 365) * 86400
    age = (calendar.timegm(end) - calendar.timegm(at)) % year if at is not None else 0
    return age if age < year - RECENT else 0


def parse_unhealthy(text: str, source: str = "opensm-unhealthy-ports.dump") -> ToolOutput:
    """Parse opensm's dump of unhealthy ports: a line for each port, with the conditions in braces."""
    output = ToolOutput(source)
    for number, line in output.lines(text):
        match = UNHEALTHY_LINE.fullmatch(line)
        if match is None or int(match.group(2)) > MOST_PORT_NUMBER:
            output.odd(number, line)
            continue
        conditions = "%s since %s" % (match.group(3).strip() or "no condition", match.group(4).strip(" ,"))
        output.unhealthy[tool_output.guid(match.group(1)), int(match.group(2))] = tool_output.text(conditions)
    return output
