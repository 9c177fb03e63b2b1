# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Follow the life of HCA ports in a log: errors, returns, how often, how long, and what came of it.

NCCL reports them as asynchronous events (ncclIbAsyncThreadMain in src/transport/net_ib): fatal until 2.28.3, from
2.28.7 on "non-fatal", as the job survives where the link returns within the retry time.
"""

from __future__ import annotations

from datetime import datetime
from typing import Dict, List, Optional, Tuple

from .engine import Diagnosis
from .event import CAUSE, EFFECT, NETWORK, OUTSIDE, WEAK, Group, Occurrence
from .log_reader import Log
from .names import UNNAMED


def _ports(log: Log) -> Dict[Tuple[str, str], List[Occurrence]]:
    """Return host and device of the ports that reported an error, and their errors and returns in order."""
    found: Dict[Tuple[str, str], List[Occurrence]] = {}
    for one in sorted(log.occurrences(), key=lambda one: one.order):
        if one.event.id == "port_active" or (one.event.id == "port" and one.code == "port error"):
            found.setdefault((one.host, str(one.fields.get("device") or "a port")), []).append(one)
    return {port: events for port, events in found.items() if any(one.event.id == "port" for one in events)}


def tolerate(log: Log, diagnosis: Diagnosis) -> None:
    """Take a port error for no failure where each port came back and nothing else failed."""
    root = diagnosis.root
    if root is None or root.event.id != "port" or root.code != "port error":
        return
    failed = {group.event.id for group in diagnosis.groups if group.tier in (OUTSIDE, CAUSE, NETWORK, EFFECT)}
    if failed == {"port"} and all(events[-1].event.id == "port_active" for events in _ports(log).values()):
        root.tier = WEAK
        diagnosis.root, diagnosis.confidence = None, ""


def describe(log: Log, group: Group) -> List[str]:
    """Return the life of each port of a group, in sentences."""
    found = []
    for (host, device), events in list(_ports(log).items())[:4] if group.code == "port error" else ():
        spans = [
            _seconds(one, back) for one, back in zip(events, events[1:]) if one.event.id == "port" != back.event.id
        ]
        longest = max((seconds for seconds in spans if seconds is not None), default=None)
        count = sum(one.event.id == "port" for one in events)
        end = "came back" + ("" if longest is None else " after %g s at most" % longest)
        end = end if events[-1].event.id == "port_active" else "is not back here"
        times = "once" if count == 1 else "%d times" % count
        found.append("link of %s on %s went down %s and %s" % (device, host or UNNAMED, times, end))
    return found


def _seconds(one: Occurrence, other: Occurrence) -> Optional[float]:
    try:
        begin, end = (datetime.strptime(each.time, "%Y-%m-%d %H:%M:%S") for each in (one, other))
    except ValueError:
        return None
    return (end - begin).total_seconds()
