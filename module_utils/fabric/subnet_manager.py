# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parse what ``sminfo`` and ``saquery SMIR`` list, logs of opensm and nvlsm, and opensm's dump of unhealthy ports.

Sources: rdma-core infiniband-diags/sminfo.c, saquery.c (dump_one_sminfo_record), SMInfo of the IBTA (14.2.5.13), opensm
osm_ucast_mgr.c, osm_vendor_ibumad.c, osm_log.c and main.c; MLNX_OFED's manual, "Unhealthy Ports Detection".
"""

from __future__ import annotations

import calendar
import re
import time
from functools import lru_cache
from typing import Dict, List, Optional

from . import told
from .sweep import EXITED, MOST_PORT_NUMBER, ManagerEvent, SubnetManager
from .told import Told

# SMState of the IBTA.
STATES = {0: "not_active", 1: "discovering", 2: "standby", 3: "master"}
_SMINFO = re.compile(
    r"sminfo: sm lid ([0-9]{1,5}) sm guid 0x([0-9a-f]{1,16}), activity count [0-9]+"
    r" priority ([0-9]{1,2}) state ([0-9]{1,2}) .*"
)
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


def parse_sminfo(text: str, source: str = "sminfo") -> Told:
    found = Told(source)
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        match = _SMINFO.fullmatch(line)
        if match is None:
            found.odd(number, raw)
            continue
        lid, guid, priority, state = match.groups()
        found.managers.append(_manager(guid, state, priority, lid))
    if not found.managers:
        found.cut = "it names no subnet manager"
    return found


def parse_records(text: str, source: str = "saquery SMIR") -> Told:
    """A record that is not whole is one of the odd lines."""
    found = Told(source)
    record: Optional[Dict[str, str]] = None
    for number, raw in enumerate([*text.splitlines(), "SMInfoRecord dump:"], 1):
        line = raw.strip()
        if line == "SMInfoRecord dump:":
            if record is not None:
                try:
                    found.managers.append(
                        _manager(
                            record["GUID"].replace("0x", "", 1), record["SMState"], record["Priority"], record["LID"]
                        )
                    )
                except (KeyError, ValueError):
                    found.odd(number - 1, "SMInfoRecord %s" % ", ".join("%s %s" % pair for pair in record.items()))
            record = {}
            continue
        match = _FIELD.fullmatch(line)
        if match is not None and record is not None:
            record[match.group(1)] = match.group(2).strip()
        elif line not in ("", "RID", "SMInfo dump:"):
            found.odd(number, raw)
    if not found.managers:
        found.cut = "it names no subnet manager"
    return found


def routing_of_log(text: str) -> Dict[str, str]:
    """GUID of the port that opensm was bound to -> the engine that it has routed with last, such as ``ftree``."""
    found: Dict[str, str] = {}
    port = ""
    for line in text.splitlines():
        bound = _BOUND.search(line)
        if bound is not None:
            port = told.guid(bound.group(1))
            continue
        routed = _ROUTED.search(line)
        if routed is not None and port:
            found[port] = routed.group(1)
    return found


def covers_recent(text: str, now: time.struct_time) -> bool:
    """Return whether a log, or its end, begins more than RECENT seconds before ``now``."""
    heads = (LOG_LINE.match(line) for line in text.splitlines())
    first = next((head for head in heads if head), None)
    return first is not None and not _is_recent(first.group(1), now)


def parse_log(text: str, source: str = "opensm.log") -> Told:
    """Parse a log of one opensm or nvlsm."""
    engines = set(routing_of_log(text).values())
    return Told(source, routing=engines.pop() if len(engines) == 1 else None, events=events_of_log(text))


def events_of_log(text: str, now: Optional[time.struct_time] = None) -> List[ManagerEvent]:
    """Return errors and the exit of a subnet manager, of the RECENT seconds before ``now``, else before the last line.

    now: local time of the machine that wrote the log, which prints no year and no time zone.
    """
    lines = text.splitlines()
    heads = (LOG_LINE.match(line) for line in reversed(lines))
    last = next((head for head in heads if head), None)
    end = now or (last and _time(last.group(1), None))
    found: Dict[str, ManagerEvent] = {}
    for line in lines:
        if _STARTED.search(line):
            found.pop(EXITED, None)
        error = _ERROR.search(line)
        head = LOG_LINE.match(line) if error or line.rstrip().endswith(EXITED) else None
        if head is None or not _is_recent(head.group(1), end):
            continue
        code = error.group(1) if error else EXITED
        count = found[code].count if code in found else 0
        found[code] = ManagerEvent(code, count + 1, head.group(1), told.text(line[head.end() :]))
    return list(found.values())


@lru_cache(maxsize=4096)
def _time(words: str, end: Optional[time.struct_time]) -> Optional[time.struct_time]:
    """``Mar 11 19:32:26`` in the newest year in which it is not after ``end``; None where it is not a time."""
    year = end.tm_year if end else 2024
    for each in (year, year - 1):
        try:
            found = time.strptime("%d %s" % (each, words), "%Y %b %d %H:%M:%S")
        except ValueError:
            continue
        if end is None or calendar.timegm(found) <= calendar.timegm(end) + RECENT:
            return found
    return None


def _is_recent(words: str, end: Optional[time.struct_time]) -> bool:
    """Return whether a line's time is not more than RECENT before ``end``; an unreadable time counts as recent."""
    at = _time(words, end)
    return at is None or end is None or calendar.timegm(end) - calendar.timegm(at) <= RECENT


def parse_unhealthy(text: str, source: str = "opensm-unhealthy-ports.dump") -> Told:
    """Parse opensm's dump of unhealthy ports: one line a port, with the conditions in braces."""
    found = Told(source)
    for number, raw in enumerate(text.splitlines(), 1):
        if not raw.strip() or raw.startswith("#"):
            continue
        match = UNHEALTHY_LINE.fullmatch(raw) if len(raw) <= told.LONGEST else None
        if match is None or int(match.group(2)) > MOST_PORT_NUMBER:
            found.odd(number, raw)
            continue
        said = told.text("%s since %s" % (match.group(3).strip() or "no condition", match.group(4).strip(" ,")))
        found.unhealthy[told.guid(match.group(1)), int(match.group(2))] = said
    return found


def _manager(guid: str, state: str, priority: str, lid: str) -> SubnetManager:
    number = int(priority)
    return SubnetManager(
        told.guid(guid),
        STATES.get(int(state), "unknown"),
        number if number <= 15 else None,
        told.lid(lid),
    )
