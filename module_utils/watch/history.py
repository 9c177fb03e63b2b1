# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Add to findings on GPUs and ports since when, and how often, the watch has seen Xids and flaps of them."""

from __future__ import annotations

import posixpath
import re
import time
from contextlib import suppress
from dataclasses import replace
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

from ..core.finding import Finding, from_dict
from ..core.host import Host, ParseError, ReadError, read_once
from ..diagnose.checks import NODE_EVENTS
from ..health.kernel_log_rules import BY_NAME
from ..machine.pci import parse_address
from ..machine.platform_checks import GPU_DRIVER, RAIL_RATE, RAIL_STATE
from . import ports, ring

_DEVICES = "/sys/class/infiniband"
_PORT = re.compile(r"([\w.-]{1,64})/[0-9]{1,3}", re.ASCII)
# Checks on what a GPU or a port does; others are about what it is.
_LIVE = ("node_health.", *(check.id for check in (RAIL_STATE, RAIL_RATE, GPU_DRIVER)))
_CABLE = "read `dmesg -T` and the switch's log at that time; clean and reseat the cable at both ends"
_XID = "`dmesg -T` on the node at that time; `busbar check` reports which Xids need a reset (docs/health.md)"
# Events of one day that are held: a storm has no more to say.
_MOST = 20000


class Event(NamedTuple):
    """An Xid, a line of a NIC's driver, or a change of a link.

    device: PCI address, or name of an RDMA device.   fix: what to do about such an event.
    """

    device: str
    what: str
    since: float
    at: float
    fix: str


def read(host: Host, since: float = 0.0, folder: str = ring.FOLDER) -> List[Event]:
    """Return the events from a time on. Raises ReadError."""
    found: List[Event] = []
    for record in ring.read(host, since, folder):
        event = _event(record)
        if event is not None and len(found) < _MOST:
            found.append(event)
    return found


def _event(record: Mapping[str, object]) -> Optional[Event]:
    """Return the event of a record; None where it is none, or not what the watch writes."""
    kind, at, since = record.get("kind"), record["at"], record.get("since")
    if not isinstance(at, (int, float)) or isinstance(since, bool) or not isinstance(since, (int, float)):
        return None
    number, rule, port = record.get("number"), str(record.get("rule")), _PORT.fullmatch(str(record.get("port"))[:80])
    with suppress(ParseError):
        if kind == "Xid" and isinstance(number, int) and 0 <= number < 10000:
            return Event(parse_address(str(record.get("gpu"))), "Xid %d" % number, float(at), float(at), _XID)
        if kind == "NIC" and rule in BY_NAME:
            return Event(parse_address(str(record.get("device"))), rule, float(at), float(at), BY_NAME[rule].fix)
    if kind in (ports.FLAP, ports.DOWN) and port is not None and 0 <= since <= at:
        return Event(port.group(1), str(kind), float(since), float(at), _CABLE)
    return None


@read_once
def _by_address(host: Host) -> Dict[str, str]:
    """Return PCI address -> what was seen of it; {} where nothing was watched, or the ring cannot be read."""
    found: Dict[str, List[Event]] = {}
    with suppress(ReadError):
        for event in read(host):
            found.setdefault(event.device, []).append(event)
        for name in [name for name in found if ":" not in name]:
            device = posixpath.basename(host.realpath("%s/%s/device" % (_DEVICES, name)) or name)
            found.setdefault(device, []).extend(found.pop(name))
    return {device: describe(events) for device, events in found.items()}


def describe(events: Sequence[Event]) -> str:
    """Return ``link flapped 3 times since 2026-11-30 08:00:05 UTC, last 2026-11-30 09:10:00 UTC``."""
    texts = []
    for what in sorted({event.what for event in events}):
        same = [event for event in events if event.what == what]
        first, last = min(event.since for event in same), max(event.at for event in same)
        count = "%d times" % len(same) if len(same) > 1 else "once"
        texts.append("%s %s since %s, last %s" % (what, count, utc(first), utc(last)))
    return "; ".join(texts)


def utc(at: float) -> str:
    """Format seconds since 1970 for people."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def annotate(host: Host, findings: Sequence[Dict[str, object]]) -> List[Dict[str, object]]:
    """Return the findings, as plain data, with what the watch has seen of their GPU or port."""
    seen = _by_address(host)
    return [_annotated(from_dict(one), seen).to_dict() for one in findings] if seen else list(findings)


def _annotated(finding: Finding, seen: Mapping[str, str]) -> Finding:
    text = seen.get(finding.identity) if finding.check.startswith(_LIVE) else None
    return replace(finding, have="; ".join(filter(None, [finding.have, "busbar watch: " + text]))) if text else finding


def judge(events: Sequence[Event], want: str, source: str) -> List[Finding]:
    """Return a finding for each GPU and port with events, of the time when a job ran. want: says what time that is."""
    found = []
    for device in sorted({event.device for event in events}):
        same = [event for event in events if event.device == device]
        fix = "; ".join(dict.fromkeys(event.fix for event in same))
        found.append(NODE_EVENTS.judge(device, "drift", want, describe(same), source, fix))
    return found
