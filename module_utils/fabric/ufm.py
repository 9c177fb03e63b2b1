# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Answers of UFM's REST: lists of ports, links and systems as ``GET ufmRest/resources/...`` gives them.

Which list it is is seen by its keys. The names of keys differ between releases, and some hold N/A: a port without a
GUID or a number is one of the odd, all else is only not known. A port's ``name`` is its node's GUID and its number.
Sources: NVIDIA's UFM REST manual (resources); Mellanox/ufm_sdk_3.0.
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ..core.number import whole
from . import told
from .db_csv import COUNTERS
from .sweep import CA, MOST_PORT_NUMBER, ROUTER, SPEEDS, SWITCH, WIDTHS
from .told import NodeTold, PortTold, Told

# What is asked, in this order; nothing but GET is ever sent.
RESOURCES = (
    "resources/systems",
    "resources/ports?monitoring_counters_info=true",
    "resources/links",
)
_STATES = {"active": "active", "armed": "armed", "init": "init", "initialize": "init", "down": "down"}
_PHYSICAL = {"link up": "LinkUp", "linkup": "LinkUp", "polling": "Polling", "disabled": "Disabled", "sleep": "Sleep"}
_KINDS = {"switch": SWITCH, "host": CA, "hca": CA, "router": ROUTER}
_NAMED = re.compile(r"(?:0x)?([0-9a-fA-F]{16})_([0-9]{1,3})")
_GUID = re.compile(r"(?:0x)?([0-9a-fA-F]{16})")
_NONE = ("", "n/a", "none", "null")


def parse(text: str, source: str = "UFM") -> Told:
    """Of one answer."""
    found = Told(source, every=True)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        found.cut = "is no JSON, or not all of it: %.100s" % error
        return found
    if isinstance(data, dict):
        # A table by name, or one that wraps its list.
        lists = [value for value in data.values() if isinstance(value, list)]
        data = lists[0] if len(lists) == 1 else [value for value in data.values() if isinstance(value, dict)] or [data]
    rows = [row for row in data if isinstance(row, dict)] if isinstance(data, list) else []
    if not isinstance(data, list) or len(rows) != len(data):
        found.cut = "is no list of ports, links or systems"
    for number, row in enumerate(rows, 1):
        try:
            if "source_guid" in row and "destination_guid" in row:
                _link(found, row)
            elif any(key in row for key in ("logical_state", "physical_state", "peer_guid", "active_speed")):
                _port(found, row)
            elif "guid" in row and any(key in row for key in ("fw_version", "type", "technology", "system_name")):
                _system(found, row)
            else:
                found.odd(number, json.dumps(row)[:200])
        except (ValueError, TypeError):
            found.odd(number, json.dumps(row)[:200])
    return found


def _text(row: Mapping[str, Any], *names: str) -> Optional[str]:
    for name in names:
        value = row.get(name)
        if isinstance(value, (str, int)) and not isinstance(value, bool) and str(value).strip().lower() not in _NONE:
            return told.text(str(value))
    return None


def _guid(row: Mapping[str, Any], *names: str) -> Optional[str]:
    for name in names:
        match = _GUID.fullmatch(_text(row, name) or "")
        if match is not None:
            return told.guid(match.group(1))
    return None


def _number(row: Mapping[str, Any], *names: str) -> int:
    """A port's number. Raises ValueError."""
    value = whole(_text(row, *names))
    if value is None or value > MOST_PORT_NUMBER:
        raise ValueError("no port number")
    return value


def _system(found: Told, row: Mapping[str, Any]) -> None:
    guid = _guid(row, "guid", "system_guid")
    if guid is None:
        raise ValueError("no GUID")
    kind = _KINDS.get((_text(row, "type") or "").lower())
    if kind == CA:
        # A host is one system of several HCAs; its ports say which.
        return
    found.nodes.append(
        NodeTold(
            guid,
            kind,
            _text(row, "system_name", "name", "description"),
            _guid(row, "system_guid", "guid"),
            firmware=_text(row, "fw_version"),
            psid=_text(row, "psid"),
        )
    )


def _port(found: Told, row: Mapping[str, Any]) -> None:
    number = _number(row, "number", "dname", "external_number")
    node, own = _ends(row)
    if node is None:
        raise ValueError("no GUID")
    peer: Optional[Tuple[str, int]] = None
    match = _NAMED.fullmatch(_text(row, "peer") or "")
    far = _guid(row, "peer_node_guid")
    if match is not None:
        peer = told.guid(match.group(1)), int(match.group(2))
        if far is not None:
            peer = far, peer[1]
    state = _STATES.get((_text(row, "logical_state") or "").lower())
    down = state == "down"
    width, speed = _width(_text(row, "active_width")), _speed(_text(row, "active_speed"))
    found.ports.append(
        PortTold(
            node,
            number,
            port_guid=own,
            lid=_lid(_text(row, "lid")),
            state=state,
            physical=_PHYSICAL.get((_text(row, "physical_state") or "").lower(), _text(row, "physical_state")),
            width=None if down else width,
            speed=None if down else speed,
            width_supported=max((w for w in map(_width, _all(row, "supported_width")) if w), default=None),
            speed_supported=max(
                (s for s in map(_speed, _all(row, "supported_speed")) if s), key=SPEEDS.index, default=None
            ),
            peer=peer,
            linked=True if peer else None,
            kind=SWITCH if (_text(row, "description") or "").startswith("Switch") else None,
            description=_text(row, "node_description", "system_name"),
            peer_description=_text(row, "peer_node_description", "peer_node_name"),
        )
    )
    counters = _counters(row)
    if counters:
        found.counters[node, number] = counters


def _ends(row: Mapping[str, Any]) -> Tuple[Optional[str], Optional[str]]:
    """GUID of the node, and that of the port. systemID is that of a box, which may hold several nodes."""
    own = _guid(row, "guid")
    match = _NAMED.fullmatch(_text(row, "name") or "")
    if match is not None:
        return told.guid(match.group(1)), own
    return _guid(row, "node_guid") or own or _guid(row, "systemID"), own


def _link(found: Told, row: Mapping[str, Any]) -> None:
    ends = []
    for end in ("source", "destination"):
        guid = _guid(row, end + "_guid")
        if guid is None:
            raise ValueError("no GUID")
        ends.append((guid, _number(row, end + "_port")))
    for (guid, number), far in ((ends[0], ends[1]), (ends[1], ends[0])):
        found.ports.append(PortTold(guid, number, peer=far, linked=True))


def _counters(row: Mapping[str, Any]) -> Dict[str, int]:
    """By the IBTA's names; UFM nests them, and leads some with its own words."""
    inner = row.get("monitoring_counters_info", row.get("counters", {}))
    tables = inner if isinstance(inner, list) else [inner]
    names = {name.lower(): name for name in COUNTERS}
    found = {}
    for table in tables:
        for key, value in table.items() if isinstance(table, dict) else ():
            name = names.get(str(key).replace("_", "").lower())
            if name is not None and isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64:
                found[name] = value
    return found


def _all(row: Mapping[str, Any], name: str) -> List[str]:
    value = row.get(name)
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _width(said: Optional[str]) -> Optional[int]:
    lanes = whole((said or "").lower().replace("ib_", "").rstrip("x"))
    return lanes if lanes in WIDTHS else None


def _speed(said: Optional[str]) -> Optional[str]:
    name = (said or "").upper().replace("IB_", "").replace("NDR200", "NDR")
    return name if name in SPEEDS else None


def _lid(said: Optional[str]) -> Optional[int]:
    value = int(said, 0) if said is not None and re.fullmatch(r"[0-9]{1,5}|0x[0-9a-f]{1,4}", said) else 0
    return value if 0 < value <= told.MOST_UNICAST else None
