# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge growth of the counters of the rails' ports since an earlier run, on InfiniBand and RoCE. Changes nothing.

Growth and rates, never totals. ib_fabric and verify judge links between nodes and the other end of a cable; the
control node compares a port with others of the fleet. Limits and their sources: port_limits.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ..core.check import Check
from ..core.finding import Finding
from ..core.host import Problem
from ..core.plan import Plan
from . import port_counters, port_limits, record
from .node import NodeState
from .port_counters import Growth, Port
from .port_limits import DAY, Rate
from .service import RECHECK

_CABLE = "clean and reseat the cable at both ends, then exchange it, then the transceivers"
PORT_COUNTERS = Check(
    "node_health.port_counters",
    why="if a port's counters cannot be read, packet loss is unknown",
    fix="fix the reported cause: install ethtool, or read the file by hand as root; " + RECHECK,
    severity="minor",
)
"Can the counters of each rail's port be read: sysfs, and on Ethernet `ethtool -S`"
PORT_SATURATED = Check(
    "node_health.port_saturated",
    why="a counter at its maximum counts no further errors",
    severity="minor",
)
"Are no error counters at their maximum"
PORT_LINK_DOWNED = Check(
    "node_health.port_link_downed",
    why="a link that goes down while jobs run ends them, though it comes back within seconds",
    fix="read in dmesg when the link went down, and ask whether the switch was under maintenance; if not, %s; %s"
    % (_CABLE, RECHECK),
    severity="minor",
)
"Did no rail's link go down and come back since the previous run; three times a day are major"
PORT_SYMBOL_ERRORS = Check(
    "node_health.port_symbol_errors",
    why="symbol errors that error correction could not repair predict a failing link; the limit is UFM's rule for"
    " isolating a port from NDR on, and 120 an hour on older links",
    fix="%s; %s" % (_CABLE, RECHECK),
)
"""Had no rail more symbol errors since the previous run than its speed allows: NDR 3 in 125 minutes, XDR 6, older ones
120 an hour"""
PORT_ERRORS = Check(
    "node_health.port_errors",
    why="a packet that arrives damaged is sent again, and all ranks wait for it",
    fix=PORT_SYMBOL_ERRORS.fix,
    severity="minor",
)
"Did few packets arrive damaged, and no buffer overrun, since the previous run"
PORT_DISCARDS = Check(
    "node_health.port_discards",
    why="the network accepted packets so slowly that this port dropped some",
    fix="the cause is on the switch's side: check congestion on its leaf, adaptive routing, and PFC of both ends"
    " (roce_qos.*, lldp.*); " + RECHECK,
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
    fix="check PFC and DSCP map of both ends and of the switches between them (roce_qos.*, lldp.*), and the other"
    " nodes of its jobs; test the paths: ansible-playbook playbooks/verify.yml -i INVENTORY; " + RECHECK,
    severity="minor",
)
"Were few RDMA packets retransmitted since the previous run"
PORT_PAUSE = Check(
    "node_health.port_pause",
    why="a host that pauses its senders receives more slowly than its link, and congestion spreads from it",
    fix="this host is the slow receiver: look at platform.rail_pcie, pcie_path.*, iommu.domains and node_health.aer of"
    " it; " + RECHECK,
    severity="minor",
)
"Did this host stop its senders by PFC for less than one per cent of the time"

_PCIE = (
    "this host's PCIe is slower than the link: look at platform.rail_pcie, platform.pcie_link, pcie_path.*,"
    " iommu.domains and node_health.aer of it; " + RECHECK
)
_BUFFERS = (
    "the port's own buffers were full: look at PFC of this rail and of its switch port (roce_qos.*, lldp.*), then at"
    " platform.rail_pcie and pcie_path.*; " + RECHECK
)
_SOFTWARE = (
    "no program had posted a buffer for what came: look at the CPU load of this rail's jobs and their affinity, not at"
    " the network; " + RECHECK
)
_UP = "up all the time"
# Counters whose growth the control node compares over the fleet.
FLEET_COUNTERS = (
    *("port_xmit_packets", "port_rcv_packets", "port_xmit_wait", "symbol_error", "rx_pcs_symbol_err_phy"),
    *(*port_limits.ERRORS, *port_limits.DISCARDS, *port_limits.HOST_DISCARDS, *port_limits.STALLS),
    *(*port_limits.RETRIES, "out_of_sequence", "duplicate_request"),
    *("np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled", "rp_cnp_ignored"),
)
# Counters that each of these checks compares, by their names in fleet_counters().
_COUNTERS: Mapping[str, Sequence[str]] = {
    PORT_LINK_DOWNED.id: ("link_downed",),
    PORT_SYMBOL_ERRORS.id: ("symbol_error", "rx_pcs_symbol_err_phy"),
    PORT_ERRORS.id: tuple(port_limits.ERRORS),
    PORT_DISCARDS.id: tuple(port_limits.DISCARDS),
    PORT_HOST_DISCARDS.id: (*port_limits.HOST_DISCARDS, *port_limits.STALLS),
    PORT_RDMA_RETRIES.id: tuple(port_limits.RETRIES),
    PORT_PAUSE.id: ("tx_paused_us",),
}


def plan(have: NodeState) -> Plan:
    """Return a finding for each port and check that is not ok; for a check that is ok everywhere, one for all ports."""
    found: List[Finding] = []
    checks = (PORT_LINK_DOWNED, PORT_SYMBOL_ERRORS, PORT_ERRORS, PORT_DISCARDS, PORT_HOST_DISCARDS)
    well = {check.id: check for check in (PORT_COUNTERS, PORT_SATURATED, *checks, PORT_RDMA_RETRIES, PORT_PAUSE)}
    for port in have.ports:
        growth = since(have, port)
        own = [*_unreadable(port, growth.gone if growth else ()), *_saturated(port)]
        compared: Dict[str, bool] = {}
        if growth is not None:
            own += _link(port, growth, compared)
            own += _traffic(port, growth, compared, own)
        said = {one.check for one in own}
        for name in list(well):
            asked = name in (PORT_COUNTERS.id, PORT_SATURATED.id) or compared.get(name, False)
            if name in said or not asked:
                # A check is ok only if every port was compared.
                del well[name]
        found += own
    if have.ports:
        subject = "ports of %d rails" % len(have.ports)
        grown = [port.grown for port in fleet_counters(have)]
        found += [check.judge("ports", "ok", have=_most(check, grown), source=subject) for check in well.values()]
    return Plan(tuple(found))


def _most(check: Check, grown: Sequence[Mapping[str, int]]) -> str:
    """Name the counter that grew most where every port passes the check. grown: by how much, of each port."""
    if check.id not in _COUNTERS:
        return "%d ports read" % len(grown)
    most = max(((n, name) for port in grown for name, n in port.items() if name in _COUNTERS[check.id]), default=None)
    return "%s +%d at most" % most[::-1] if most else "+0 on %d ports" % len(grown)


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
            moved["rx_paused_us"], moved["tx_paused_us"] = _paused("rx", growth) or 0, _paused("tx", growth) or 0
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


def _unreadable(port: Port, gone: Sequence[str]) -> List[Finding]:
    """Report counters that could not be read. gone: counters that the last record has."""
    problems = list(port.problems)
    if gone and not problems:
        text = "shows no more %s%s" % (", ".join(gone[:3]), " and %d others" % (len(gone) - 3) if gone[3:] else "")
        problems.append(Problem("/sys/class/infiniband/%s/ports/%d" % (port.device, port.number), text))
    if not problems:
        return []
    more = "; and %d more" % (len(problems) - 1) if len(problems) > 1 else ""
    first = problems[0]
    return [PORT_COUNTERS.judge(port.label, "unknown", "counters", str(first) + more, first.source)]


def _saturated(port: Port) -> List[Finding]:
    ended = port_counters.saturated(port)
    if not ended:
        return []
    how = "drain the node and reload mlx5_core, or reboot"
    if port.link_layer == "InfiniBand":
        how = "perfquery -C %s -P %d -R" % (port.device, port.number)
    fix = "reset this port's counters to 0, because only that makes them count again: %s; other tools that read them"
    fix = fix % how + " sees a reset; " + RECHECK
    text = "saturated: %s" % ", ".join("%s at %d" % (name, port_limits.END[name]) for name in ended)
    source = "/sys/class/infiniband/%s/ports/%d/counters" % (port.device, port.number)
    return [PORT_SATURATED.judge(port.label, "unknown", "counters that count", text, source, fix)]


def _link(port: Port, growth: Growth, compared: Dict[str, bool]) -> List[Finding]:
    """Judge the cable: each finding is caused by those before it."""
    found: List[Finding] = []
    source, downs = _source(port), port_counters.downs(port, growth)
    compared[PORT_LINK_DOWNED.id] = downs is not None
    if downs:
        grave = downs >= port_limits.DOWNS * max(1.0, growth.seconds / DAY)
        often = "%d times" % downs if downs > 1 else "once"
        text = "went down and came up again %s%s" % (often, _within(growth))
        severity = "major" if grave else None
        found.append(PORT_LINK_DOWNED.judge(port.label, "drift", _UP, text, source, severity=severity))
    symbol = "symbol_error" if port.link_layer == "InfiniBand" else "rx_pcs_symbol_err_phy"
    many = growth.counts.get(symbol)
    compared[PORT_SYMBOL_ERRORS.id] = many is not None and symbol not in port_counters.saturated(port)
    allowed = port_limits.symbol_limit(growth.speed, growth.seconds)
    if many is not None and many > allowed:
        want, text = "%d at most at %s" % (allowed, growth.speed or "an unknown speed"), _counted(growth, [symbol])
        cause = found[0] if found else None
        found.append(PORT_SYMBOL_ERRORS.judge(port.label, "drift", want, text, source, because=cause))
    return found + _rated(PORT_ERRORS, port, growth, port_limits.ERRORS, compared, found[0] if found else None)


def _rated(
    check: Check,
    port: Port,
    growth: Growth,
    rates: Mapping[str, Rate],
    compared: Dict[str, bool],
    because: Optional[Finding],
    packets: str = "",
) -> List[Finding]:
    """Judge counters of which a few are normal. packets: the counter of those of which a small share is."""
    compared[check.id] = _exposed(growth, rates, port_counters.saturated(port))
    bad, grave = _above(growth, rates, growth.counts.get(packets))
    if not bad:
        return []
    text, severity = _counted(growth, bad, packets), "major" if grave else None
    return [check.judge(port.label, "drift", "few", text, _source(port), because=because, severity=severity)]


def _traffic(port: Port, growth: Growth, compared: Dict[str, bool], before: Sequence[Finding]) -> List[Finding]:
    """Judge the traffic: the switch's side, the host's, and their consequences.

    before: findings of the link, which cause retransmissions.
    """
    link = next((one for one in before if one.state == "drift"), None)
    found = _rated(PORT_DISCARDS, port, growth, port_limits.DISCARDS, compared, link, "port_xmit_packets")
    host = _host_discards(port, growth)
    compared[PORT_HOST_DISCARDS.id] = _exposed(growth, port_limits.HOST_DISCARDS, port_counters.saturated(port))
    found += host
    compared[PORT_PAUSE.id] = port.link_layer != "Ethernet" or _paused("tx", growth) is not None
    paused = (_paused("tx", growth) or 0) / 1e6
    storms = growth.counts.get("tx_pause_storm_error_events", 0)
    if storms or paused > port_limits.PAUSED * growth.seconds:
        want = "%g %% at most" % (100 * port_limits.PAUSED)
        text = "paused its senders for %.1f %% of %.1f h" % (100 * paused / growth.seconds, growth.seconds / 3600)
        text += "; %d pause storms, after which the NIC gave up pausing" % storms if storms else ""
        cause, severity = host[0] if host else None, "major" if storms else None
        found.append(PORT_PAUSE.judge(port.label, "drift", want, text, _source(port), because=cause, severity=severity))
    cause = link or (found[0] if found else None)
    return found + _rated(PORT_RDMA_RETRIES, port, growth, port_limits.RETRIES, compared, cause)


def _host_discards(port: Port, growth: Growth) -> List[Finding]:
    counts = growth.counts
    bad, grave = _above(growth, port_limits.HOST_DISCARDS, counts.get("port_rcv_packets"))
    stalls = [name for name, share in port_limits.STALLS.items() if counts.get(name, 0) > share * _span(growth)]
    if not bad and not stalls:
        return []
    texts = [_counted(growth, bad, "port_rcv_packets")] if bad else []
    texts += ["%s +%d s of %.1f h" % (name, counts[name], growth.seconds / 3600) for name in stalls]
    fix = _SOFTWARE
    if stalls or any(name in port_limits.PCIE for name in bad):
        fix = _PCIE
    elif any(name in port_limits.BUFFERS for name in bad):
        fix = _BUFFERS
    severity = "major" if grave else None
    source = _source(port)
    return [PORT_HOST_DISCARDS.judge(port.label, "drift", "few", "; ".join(texts), source, fix, severity=severity)]


def _above(growth: Growth, of: Mapping[str, Rate], packets: Optional[int] = None) -> Tuple[List[str], bool]:
    """Return counters of ``of`` that have grown by too much, and whether any has gravely.

    packets: in this direction; a small share of them is normal. None if not counted, or not relevant.
    """
    bad, grave = [], False
    for name, (few, rate) in of.items():
        many = growth.counts.get(name, 0)
        if many > max(few * max(1.0, growth.seconds / DAY), port_limits.SHARE * (packets or 0)):
            bad.append(name)
            grave = grave or (rate is not None and many > rate[0] * _span(growth) / rate[1])
    return bad, grave


def _exposed(growth: Growth, of: Mapping[str, Rate], stuck: Sequence[str]) -> bool:
    return any(name in growth.counts for name in of) and not any(name in stuck for name in of)


def _span(growth: Growth) -> float:
    """Return seconds over which a rate is spread."""
    return max(growth.seconds, port_limits.LEAST)


def _paused(way: str, growth: Growth) -> Optional[int]:
    """Return microseconds of the priority that was paused longest; None if the driver has no such counter."""
    names = ["%s_prio%d_pause_duration" % (way, priority) for priority in range(8)]
    return max((growth.counts[name] for name in names if name in growth.counts), default=None)


def _counted(growth: Growth, names: Sequence[str], of: str = "") -> str:
    """Return ``port_rcv_errors +400 in 24.0 h, of 1.2e+09 packets``."""
    said = []
    for name in names:
        least = "at least " if name in growth.reset else ""
        said.append("%s +%s%d" % (name, least, growth.counts[name]))
    packets = growth.counts.get(of)
    return ", ".join(said) + _within(growth) + (", of %.2g packets" % packets if packets else "")


def _within(growth: Growth) -> str:
    return " in %.1f h" % (growth.seconds / 3600)


def _source(port: Port) -> str:
    tool = ", ethtool -S %s" % port.netdev if port.netdev else ""
    return "/sys/class/infiniband/%s/ports/%d%s; %s" % (port.device, port.number, tool, record.FILE)
