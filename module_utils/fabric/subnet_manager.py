# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Subnet managers: the master by ``sminfo``, all of them by ``saquery SMIR``, and what opensm's log says of routing.

Sources: rdma-core infiniband-diags/sminfo.c, saquery.c (dump_one_sminfo_record), SMInfo of the IBTA (14.2.5.13), opensm
osm_ucast_mgr.c and osm_vendor_ibumad.c.
"""

from __future__ import annotations

import re
from typing import Dict, Optional

from . import told
from .sweep import SubnetManager
from .told import Told

# SMState of the IBTA.
STATES = {0: "not_active", 1: "discovering", 2: "standby", 3: "master"}
_SMINFO = re.compile(
    r"sminfo: sm lid ([0-9]{1,5}) sm guid 0x([0-9a-f]{1,16}), activity count [0-9]+"
    r" priority ([0-9]{1,2}) state ([0-9]{1,2}) .*"
)
# A line of opensm's log, of which these two say something.
LOG_LINE = re.compile(r"[A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8} [0-9]{6} \[[0-9A-F]{1,16}\] 0x[0-9a-fA-F]{2} -> ")
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


def parse_log(text: str, source: str = "opensm.log") -> Told:
    """Of a log of one opensm."""
    engines = set(routing_of_log(text).values())
    return Told(source, routing=engines.pop() if len(engines) == 1 else None)


def _manager(guid: str, state: str, priority: str, lid: str) -> SubnetManager:
    number = int(priority)
    return SubnetManager(
        told.guid(guid),
        STATES.get(int(state), "unknown"),
        number if number <= 15 else None,
        told.lid(lid),
    )
