# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Follow the life of HCA ports in a log: errors, returns, how often, how long, and what came of it.

NCCL reports them as asynchronous events (ncclIbAsyncThreadMain in src/transport/net_ib): fatal until 2.28.3, from
2.28.7 on "non-fatal", as the job survives where the link returns within the retry time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Dict, List, Optional, Tuple

from .engine import Diagnosis
from .event import CAUSE, EFFECT, NETWORK, OUTSIDE, WEAK, Group, Occurrence
from .log_reader import Log
from .names import UNNAMED


@dataclass
class Port:
    """host, device: of the port.   errors, returns: its events in order."""

    host: str
    device: str
    errors: List[Occurrence] = field(default_factory=list)
    returns: List[Occurrence] = field(default_factory=list)

    @property
    def up(self) -> bool:
        """Return whether the last event is a return."""
        last = max([*self.errors, *self.returns], key=lambda one: one.order, default=None)
        return last is not None and last in self.returns

    @property
    def seconds(self) -> Optional[float]:
        """Return how long the port was down at most, by the times of its lines; None where they have none."""
        spans = []
        for error in self.errors:
            after = [one for one in self.returns if one.order > error.order]
            begin, end = _time(error), _time(after[0]) if after else None
            if begin is not None and end is not None:
                spans.append((end - begin).total_seconds())
        return max(spans, default=None)


def _time(one: Occurrence) -> Optional[datetime]:
    try:
        return datetime.strptime(one.time, "%Y-%m-%d %H:%M:%S")
    except ValueError:
        return None


def read(log: Log) -> List[Port]:
    """Return the ports that reported an error or a return."""
    found: Dict[Tuple[str, str], Port] = {}
    for one in log.occurrences():
        error = one.event.id == "port" and one.code == "port error"
        if not error and one.event.id != "port_active":
            continue
        device = str(one.fields.get("device") or "a port")
        port = found.setdefault((one.host, device), Port(one.host, device))
        (port.errors if error else port.returns).append(one)
    return list(found.values())


def tolerate(log: Log, diagnosis: Diagnosis) -> None:
    """Take a port error for no failure where each port came back and nothing else failed."""
    root = diagnosis.root
    if root is None or root.event.id != "port" or root.code != "port error":
        return
    failed = [group for group in diagnosis.groups if group.tier in (OUTSIDE, CAUSE, NETWORK, EFFECT)]
    others = [group for group in failed if group.event.id != "port"]
    broken = [port for port in read(log) if port.errors]
    if not others and broken and all(port.up for port in broken):
        root.tier = WEAK
        diagnosis.root, diagnosis.confidence = None, ""


def describe(log: Log, group: Group) -> List[str]:
    """Return the life of each port of a group, in sentences."""
    if group.code != "port error":
        return []
    found = []
    for port in [port for port in read(log) if port.errors][:4]:
        times = "once" if len(port.errors) == 1 else "%d times" % len(port.errors)
        after = "" if port.seconds is None else " after %g s at most" % port.seconds
        end = "came back%s" % after if port.up else "is not back here"
        found.append("link of %s on %s went down %s and %s" % (port.device, port.host or UNNAMED, times, end))
    return found
