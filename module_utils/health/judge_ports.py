# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge growth of the counters of the rails' ports since an earlier run, on InfiniBand and RoCE. Changes nothing.

Growth and rates, never totals. ib_fabric and verify judge links between nodes and the other end of a cable; the
control node compares a port with others of the fleet. Limits and their sources: port_counters.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Problem
from ..core.plan import Plan
from . import port_counters, record
from .judge_gpu import within
from .node import NodeState
from .port_counters import DAY, Growth, Port
from .service import RECHECK

_CABLE = "clean and reseat the cable at both ends, then exchange it, then the transceivers; " + RECHECK
PORT_COUNTERS = Check(
    "node_health.port_counters",
    why="if a port's counters cannot be read, packet loss is unknown",
    fix="fix the reported cause: install ethtool, or read the file by hand as root; " + RECHECK,
    severity="minor",
)
"Can the counters of each rail's port be read: sysfs, and on Ethernet `ethtool -S`"
PORT_SATURATED = Check(
    "node_health.port_saturated", why="a counter at its maximum counts no further errors", severity="minor"
)
"Are no error counters at their maximum"
PORT_LINK_DOWNED = Check(
    "node_health.port_link_downed",
    why="a link that goes down while jobs run ends them, though it comes back within seconds",
    fix="read in dmesg when the link went down, and ask whether the switch was under maintenance; if not, " + _CABLE,
    severity="minor",
)
"Did no rail's link go down and come back since the previous run; three times a day are major"
PORT_SYMBOL_ERRORS = Check(
    "node_health.port_symbol_errors",
    why="symbol errors that error correction could not repair predict a failing link (UFM's rule from NDR on)",
    fix=_CABLE,
)
"""Had no rail more symbol errors since the previous run than its speed allows: NDR 3 in 125 minutes, XDR 6, older ones
120 an hour"""
PORT_ERRORS = Check(
    "node_health.port_errors",
    why="a packet that arrives damaged is sent again, and all ranks wait for it",
    fix=_CABLE,
    severity="minor",
)
"Did few packets arrive damaged, and no buffer overrun, since the previous run"
PORT_DISCARDS = Check(
    "node_health.port_discards",
    why="the network accepted packets so slowly that this port dropped some",
    fix="look at the switch: congestion on its leaf, adaptive routing, PFC of both ends (roce_qos.*, lldp.*); "
    + RECHECK,
    severity="minor",
)
"Did the switch accept what the rails sent"
PORT_HOST_DISCARDS = Check(
    "node_health.port_host_discards",
    why="this host accepted packets so slowly that its NIC dropped some: the switch is not the cause",
    severity="minor",
)
"Did this host accept all incoming data: PCIe, the port's buffers, receive requests"
PORT_RDMA_RETRIES = Check(
    "node_health.port_rdma_retries",
    why="a path that loses packets is slow rather than broken: RoCE sends a whole window again for each lost packet",
    fix="check PFC and DSCP map of both ends and of the switches between them (roce_qos.*, lldp.*); test the paths:"
    " ansible-playbook playbooks/verify.yml -i INVENTORY; " + RECHECK,
    severity="minor",
)
"Were few RDMA packets retransmitted since the previous run"
_PCIE = "look at this host's PCIe: platform.rail_pcie, pcie_path.*, iommu.domains, node_health.aer; " + RECHECK
PORT_PAUSE = Check(
    "node_health.port_pause",
    why="a host that pauses its senders receives more slowly than its link, and congestion spreads from it",
    fix=_PCIE,
    severity="minor",
)
"Did this host stop its senders by PFC for less than one per cent of the time"

_BUFFERS = "look at PFC of this rail and of its switch port (roce_qos.*, lldp.*), then " + _PCIE
_SOFTWARE = "no program had posted a buffer: look at the CPU load and affinity of this rail's jobs; " + RECHECK
# Counters whose growth the control node compares over the fleet.
FLEET_COUNTERS = tuple(one.name for one in port_counters.COUNTERS if one.check not in ("link_downed", "pause"))
# Check -> its finding on one port, None if the port passes it. A check that was not compared has no key.
_Results = Dict[Check, Optional[Finding]]


class _Fault(NamedTuple):
    want: str
    text: str
    severity: Optional[str] = None
    fix: Optional[str] = None


# Whether the port has all counters of a check, and what is wrong.
_Judged = Tuple[bool, Optional[_Fault]]


def plan(have: NodeState) -> Plan:
    """Return a finding for each port and check that is not ok; for a check that is ok everywhere, one for all ports."""
    results = [_judge(port, since(have, port)) for port in have.ports]
    found = [finding for result in results for finding in result.values() if finding is not None]
    for check in (PORT_COUNTERS, PORT_SATURATED, *_JUDGES) if have.ports else ():
        # A check is ok only if every port was compared.
        if all(check in result and result[check] is None for result in results):
            text = "no growth beyond its limits" if check in _JUDGES else "every counter read"
            found.append(check.judge("ports", "ok", have=text, source="ports of %d rails" % len(have.ports)))
    return Plan(tuple(found))


def since(have: NodeState, port: Port) -> Optional[Growth]:
    """Return growth since the record; None without one, or if too little time has passed."""
    growth = _growth(have, port)
    return None if growth is None or growth.seconds < record.SHORTEST else growth


def _growth(have: NodeState, port: Port) -> Optional[Growth]:
    before = have.before
    if before is None or before.driver_loaded.get("mlx5_core") != have.driver_loaded.get("mlx5_core"):
        return None
    return port_counters.grown(port, before.ports.get(port.key))


@dataclass(frozen=True)
class PortGrowth:
    """Growth of a port's counters since the previous run. speed: ``NDR``.   seconds: None without an earlier record."""

    rail: int
    pci: str
    device: str
    link_layer: str
    speed: str
    seconds: Optional[float]
    grown: Mapping[str, int]


def fleet_counters(have: NodeState) -> List[PortGrowth]:
    """Return growth of each port's counters since the previous run, for the control node: those that moved."""
    found = []
    for port in have.ports:
        growth = since(have, port)
        moved: Dict[str, int] = {}
        if growth is not None:
            moved = {name: growth.counts.get(name, 0) for name in FLEET_COUNTERS}
            moved["rx_paused_us"] = port_counters.paused("rx", growth) or 0
            moved["tx_paused_us"] = port_counters.paused("tx", growth) or 0
            moved["link_downed"] = port_counters.downs(port, growth) or 0
        speed = (growth.speed if growth else port.speed) or ""
        grown = {name: n for name, n in moved.items() if n}
        seconds = growth.seconds if growth else None
        found.append(PortGrowth(port.rail, port.pci, port.device, port.link_layer or "", speed, seconds, grown))
    return found


def notes(have: NodeState) -> List[str]:
    """Return a note on ports without an earlier record, if others have one."""
    new = [port for port in have.ports if have.before is not None and _growth(have, port) is None]
    if not new or have.before is None or have.now - have.before.at < record.SHORTEST:
        return []
    rails = ", ".join(str(port.rail) for port in new)
    return ["counters of rails %s were reset since the previous run; growth is judged from the next run on" % rails]


def _judge(port: Port, growth: Optional[Growth]) -> _Results:
    """Judge one port: what was read, the cable, the traffic. Each finding is caused by the first drift before it."""
    found: _Results = {
        PORT_COUNTERS: _unreadable(port, growth.gone if growth else ()),
        PORT_SATURATED: _saturated(port),
    }
    tool = ", ethtool -S %s" % port.netdev if port.netdev else ""
    source = "%s%s; %s" % (port.folder, tool, record.FILE)
    for check, judge in _JUDGES.items() if growth is not None else ():
        compared, fault = judge(port, growth)
        if fault is not None:
            first = next((one for one in found.values() if one is not None and one.state == "drift"), None)
            cause = {PORT_HOST_DISCARDS: None, PORT_PAUSE: found.get(PORT_HOST_DISCARDS)}.get(check, first)
            want, text, severity, fix = fault
            found[check] = check.judge(port.label, "drift", want, text, source, fix, cause, severity=severity)
        elif compared:
            found[check] = None
    return found


def _unreadable(port: Port, gone: Sequence[str]) -> Optional[Finding]:
    """Report counters that could not be read. gone: counters that the last record has."""
    problems = list(port.problems)
    if gone and not problems:
        problems.append(Problem(port.folder, "shows no more " + ", ".join(gone[:3])))
    if not problems:
        return None
    more = "; and %d more" % (len(problems) - 1) if len(problems) > 1 else ""
    return PORT_COUNTERS.judge(port.label, "unknown", "counters", str(problems[0]) + more, problems[0].source)


def _saturated(port: Port) -> Optional[Finding]:
    if not port.saturated:
        return None
    how = "drain the node and reload mlx5_core, or reboot"
    if port.link_layer == "InfiniBand":
        how = "perfquery -C %s -P %d -R" % (port.device, port.number)
    fix = "reset this port's counters to 0, because only that makes them count again: %s; %s" % (how, RECHECK)
    text = "saturated: %s" % ", ".join("%s at %d" % (name, port_counters.END[name]) for name in port.saturated)
    return PORT_SATURATED.judge(port.label, "unknown", "counters that count", text, port.folder + "/counters", fix)


def _link_downed(port: Port, growth: Growth) -> _Judged:
    downs = port_counters.downs(port, growth)
    if not downs:
        return downs is not None, None
    severity = "major" if downs >= port_counters.DOWNS * max(1.0, growth.seconds / DAY) else None
    times = "%d times" % downs if downs > 1 else "once"
    text = "went down and came up again %s%s" % (times, within(growth.seconds))
    return True, _Fault("up all the time", text, severity)


def _symbol_errors(port: Port, growth: Growth) -> _Judged:
    name = "symbol_error" if port.link_layer == "InfiniBand" else "rx_pcs_symbol_err_phy"
    many, allowed = growth.counts.get(name), port_counters.symbol_limit(growth.speed, growth.seconds)
    if many is None or many <= allowed:
        return many is not None and name not in port.saturated, None
    return True, _Fault("%d at most at %s" % (allowed, growth.speed or "an unknown speed"), _counted(growth, [name]))


def _rated(check: str, packets: str = "") -> Callable[[Port, Growth], _Judged]:
    """Judge counters of which a few are normal. packets: the counter of those of which a small share is."""

    def judge(port: Port, growth: Growth) -> _Judged:
        bad, severity = _above(check, growth, packets)
        return _exposed(check, port, growth), _Fault("few", _counted(growth, bad, packets), severity) if bad else None

    return judge


def _host_discards(port: Port, growth: Growth) -> _Judged:
    bad, severity = _above("host_discards", growth, "port_rcv_packets")
    counts, span = growth.counts, max(growth.seconds, port_counters.LEAST)
    stalls = [name for name in port_counters.judged("stalls") if counts.get(name, 0) > port_counters.STALLED * span]
    texts = [_counted(growth, bad, "port_rcv_packets")] if bad else []
    texts += ["%s +%d s%s" % (name, counts[name], within(growth.seconds)) for name in stalls]
    fix = _BUFFERS if any(name in port_counters.BUFFERS for name in bad) else _SOFTWARE
    fix = _PCIE if stalls or any(name in port_counters.PCIE for name in bad) else fix
    exposed = _exposed("host_discards", port, growth)
    return exposed, _Fault("few", "; ".join(texts), severity, fix) if texts else None


def _pause(port: Port, growth: Growth) -> _Judged:
    pause, storms = port_counters.paused("tx", growth), growth.counts.get("tx_pause_storm_error_events", 0)
    paused = (pause or 0) / 1e6
    if not storms and paused <= port_counters.PAUSED * growth.seconds:
        return port.link_layer != "Ethernet" or pause is not None, None
    text = "paused its senders for %.1f %% of %.1f h" % (100 * paused / growth.seconds, growth.seconds / 3600)
    text += "; %d pause storms, after which the NIC gave up pausing" % storms if storms else ""
    return True, _Fault("%g %% at most" % (100 * port_counters.PAUSED), text, "major" if storms else None)


def _exposed(check: str, port: Port, growth: Growth) -> bool:
    """Return whether the port has a counter of the check, and none that stands still."""
    names = port_counters.judged(check)
    return any(name in growth.counts for name in names) and not any(name in port.saturated for name in names)


def _above(check: str, growth: Growth, packets: str) -> Tuple[List[str], Optional[str]]:
    """Return counters that have grown by too much, and the severity: None for the check's usual one."""
    bad, severity, days = [], None, max(1.0, growth.seconds / DAY)
    for one in port_counters.COUNTERS:
        many = growth.counts.get(one.name, 0) if one.check == check else 0
        if many > max(one.few * days, port_counters.SHARE * growth.counts.get(packets, 0)):
            bad.append(one.name)
            span = max(growth.seconds, port_counters.LEAST)
            severity = "major" if one.grave and many > one.grave[0] * span / one.grave[1] else severity
    return bad, severity


def _counted(growth: Growth, names: Sequence[str], packets: str = "") -> str:
    """Return ``port_rcv_errors +400 in 24.0 h, of 1.2e+09 packets``."""
    least = {name: "at least " if name in growth.reset else "" for name in names}
    texts = ["%s +%s%d" % (name, least[name], growth.counts[name]) for name in names]
    share = ", of %.2g packets" % growth.counts[packets] if growth.counts.get(packets) else ""
    return ", ".join(texts) + within(growth.seconds) + share


# In the order of causes.
_JUDGES: Mapping[Check, Callable[[Port, Growth], _Judged]] = {
    PORT_LINK_DOWNED: _link_downed,
    PORT_SYMBOL_ERRORS: _symbol_errors,
    PORT_ERRORS: _rated("errors"),
    PORT_DISCARDS: _rated("discards", "port_xmit_packets"),
    PORT_HOST_DISCARDS: _host_discards,
    PORT_PAUSE: _pause,
    PORT_RDMA_RETRIES: _rated("rdma_retries"),
}
