# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge growth of the counters of the rails' ports since an earlier run, on InfiniBand and RoCE. Changes nothing.

Growth and rates, never totals. ib_fabric and verify judge links between nodes and the other end of a cable; the
control node compares a port with others of the fleet. Limits and their sources: port_counters.py.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Problem
from ..core.plan import Plan
from . import port_counters, record
from .judge_gpu import within
from .node import NodeState
from .port_counters import Counter, Growth, Port
from .service import RECHECK

CABLE = "clean and reseat the cable at both ends, then exchange it, then the transceivers; " + RECHECK
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
    fix="read in dmesg when the link went down, and ask whether the switch was under maintenance; if not, " + CABLE,
    severity="minor",
)
"Did no rail's link go down and come back since the previous run; three times a day are major"
PORT_SYMBOL_ERRORS = Check(
    "node_health.port_symbol_errors",
    why="symbol errors that error correction could not repair predict a failing link (UFM's rule from NDR on)",
    fix=CABLE,
)
"""Had no rail more symbol errors since the previous run than its speed allows: NDR 3 in 125 minutes, XDR 6, older ones
120 an hour"""
PORT_ERRORS = Check(
    "node_health.port_errors",
    why="a packet that arrives damaged is sent again, and all ranks wait for it",
    fix=CABLE,
    severity="minor",
)
"Did few packets arrive damaged, and no buffer overrun, since the previous run"
PORT_DISCARDS = Check(
    "node_health.port_discards",
    why="the network accepted packets so slowly that this port dropped some",
    fix="look at congestion on its leaf, adaptive routing, PFC of both ends (roce_qos.*, lldp.*); " + RECHECK,
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
    fix="check PFC and DSCP map on the path (roce_qos.*, lldp.*): ansible-playbook playbooks/verify.yml -i INVENTORY",
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

_FIXES = {
    "pcie": _PCIE,
    "buffers": "look at PFC of this rail and of its switch port (roce_qos.*, lldp.*), then " + _PCIE,
    "software": "no program had posted a buffer: look at the CPU load and affinity of this rail's jobs; " + RECHECK,
}
# In the order of causes: what judges growth, and the counter of packets of which a small share may be dropped.
_GROWTH = {
    PORT_LINK_DOWNED: "",
    PORT_SYMBOL_ERRORS: "",
    PORT_ERRORS: "",
    PORT_DISCARDS: "port_xmit_packets",
    PORT_HOST_DISCARDS: "port_rcv_packets",
    PORT_PAUSE: "",
    PORT_RDMA_RETRIES: "",
}
# Counters that the control node does not compare over the fleet, and those that it names otherwise.
_ALONE = ("link_downed", "link_down_events_phy", "tx_pause_storm_error_events")
_NAMES = {"link downs": "link_downed"}
# Check -> its finding on one port, None if the port passes it. A check that was not compared has no key.
_Results = Dict[Check, Optional[Finding]]


def plan(have: NodeState) -> Plan:
    """Return a finding for each port and check that is not ok; for a check that is ok everywhere, one for all ports."""
    results = [_judge(port, since(have, port)) for port in have.ports]
    found = [finding for result in results for finding in result.values() if finding is not None]
    for check in (PORT_COUNTERS, PORT_SATURATED, *_GROWTH) if have.ports else ():
        # A check is ok only if every port was compared.
        if all(check in result and result[check] is None for result in results):
            text = "no growth beyond its limits" if check in _GROWTH else "every counter read"
            found.append(check.judge("ports", "ok", have=text, source="ports of %d rails" % len(have.ports)))
    return Plan(tuple(found), notes=_notes(have))


def since(have: NodeState, port: Port, least: float = record.SHORTEST) -> Optional[Growth]:
    """Return growth since the record; None without one, or if fewer than ``least`` seconds have passed."""
    before = have.before
    if before is None or before.driver_loaded.get("mlx5_core") != have.driver_loaded.get("mlx5_core"):
        return None
    growth = port_counters.grown(port, before.ports.get(port.key))
    return None if growth is None or growth.seconds < least else growth


class PortGrowth(NamedTuple):
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
    names = [one.name for one in port_counters.COUNTERS if one.name not in _ALONE]
    for port in have.ports:
        growth = since(have, port)
        counts = {} if growth is None else growth.counts
        grown = {_NAMES.get(name, name): counts[name] for name in names if counts.get(name)}
        speed, seconds = (port.speed, None) if growth is None else (growth.speed, growth.seconds)
        layer = port.link_layer or ""
        found.append(PortGrowth(port.rail, port.pci, port.device, layer, speed or "", seconds, grown))
    return found


def _notes(have: NodeState) -> Tuple[str, ...]:
    """Return a note on ports without an earlier record, if others have one."""
    new = [port for port in have.ports if since(have, port, 0.0) is None]
    if not new or have.before is None or have.now - have.before.at < record.SHORTEST:
        return ()
    rails = ", ".join(str(port.rail) for port in new)
    return ("counters of rails %s were reset since the previous run; growth is judged from the next run on" % rails,)


def _judge(port: Port, growth: Optional[Growth]) -> _Results:
    """Judge one port: what was read, the cable, the traffic. Each finding is caused by the first drift before it."""
    found: _Results = {
        PORT_COUNTERS: _unreadable(port, growth.gone if growth else ()),
        PORT_SATURATED: _saturated(port),
    }
    for check in _GROWTH if growth is not None else ():
        first = next((one for one in found.values() if one is not None and one.state == "drift"), None)
        cause = {PORT_HOST_DISCARDS: None, PORT_PAUSE: found.get(PORT_HOST_DISCARDS)}.get(check, first)
        _judge_growth(check, port, growth or Growth(), cause, found)
    return found


def _judge_growth(check: Check, port: Port, growth: Growth, cause: Optional[Finding], found: _Results) -> None:
    """Judge the counters of one check that the port has, and add the result if it has one that does not stand still."""
    name, packets, counts = check.id.partition("port_")[2], _GROWTH[check], growth.counts
    sent = counts.get(packets, 0)
    counters = [
        one
        for one in port_counters.COUNTERS
        if one.check == name and one.name in counts and one.layer in ("", port.link_layer)
    ]
    bad = [one for one in counters if counts[one.name] > port_counters.allowed(one, growth, sent)]
    if bad:
        least = {name: "at least " if name in growth.reset else "" for name in counts}
        texts = [_grown(one, counts[one.name], growth.seconds, least[one.name]) for one in bad]
        text = ", ".join(texts) + within(growth.seconds) + (", of %.2g packets" % sent if sent else "")
        # Findings are the same from run to run: a limit of the seconds between two runs is not.
        want = "%g a day at most" % bad[0].few
        if bad[0].share:
            want = "%g %% of the time at most" % (100 * bad[0].share / bad[0].of_second)
        if check is PORT_SYMBOL_ERRORS:
            most = port_counters.symbol_limit(growth.speed, growth.seconds)
            want = "%d at most at %s" % (most, growth.speed or "an unknown speed")
        tool = ", ethtool -S %s" % port.netdev if port.netdev else ""
        source, fix = "%s%s; %s" % (port.folder, tool, record.FILE), _FIXES.get(bad[0].remedy)
        severity = "major" if any(port_counters.is_grave(one, growth) for one in bad) else None
        found[check] = check.judge(port.label, "drift", want, text, source, fix, cause, severity=severity)
    elif check is PORT_PAUSE and port.link_layer == "Ethernet" and "tx_paused_us" not in counts:
        return
    elif check is PORT_PAUSE or (counters and not any(one.name in port.saturated for one in counters)):
        found[check] = None


def _grown(counter: Counter, count: int, seconds: float, least: str) -> str:
    if counter.share:
        return "%s %s%.3g %% of the time" % (counter.name, least, 100 * count / seconds / counter.of_second)
    return "%s +%s%d" % (counter.name, least, count)


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
