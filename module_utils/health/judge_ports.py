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
from .judge_gpu import within
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
# Counters whose growth the control node compares over the fleet.
FLEET_COUNTERS = (
    *("port_xmit_packets", "port_rcv_packets", "port_xmit_wait", "symbol_error", "rx_pcs_symbol_err_phy"),
    *(*port_limits.ERRORS, *port_limits.DISCARDS, *port_limits.HOST_DISCARDS, *port_limits.STALLS),
    *(*port_limits.RETRIES, "out_of_sequence", "duplicate_request"),
    *("np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled", "rp_cnp_ignored"),
)
# Counters that each of these checks compares, by their names in fleet_counters(). One of their limits is enough.
_COUNTERS: Mapping[Check, Sequence[str]] = {
    PORT_LINK_DOWNED: ("link_downed",),
    PORT_SYMBOL_ERRORS: ("symbol_error", "rx_pcs_symbol_err_phy"),
    PORT_ERRORS: tuple(port_limits.ERRORS),
    PORT_DISCARDS: tuple(port_limits.DISCARDS),
    PORT_HOST_DISCARDS: (*port_limits.HOST_DISCARDS, *port_limits.STALLS),
    PORT_RDMA_RETRIES: tuple(port_limits.RETRIES),
    PORT_PAUSE: ("tx_paused_us",),
}
# Check -> its finding on one port, None if the port passes it. A check that was not compared has no key.
_Results = Dict[Check, Optional[Finding]]


def plan(have: NodeState) -> Plan:
    """Return a finding for each port and check that is not ok; for a check that is ok everywhere, one for all ports."""
    results = [_judge(port, since(have, port)) for port in have.ports]
    found = [finding for result in results for finding in result.values() if finding is not None]
    if have.ports:
        subject = "ports of %d rails" % len(have.ports)
        grown = [port.grown for port in fleet_counters(have)]
        for check in (PORT_COUNTERS, PORT_SATURATED, *_COUNTERS):
            # A check is ok only if every port was compared.
            if all(check in result and result[check] is None for result in results):
                found.append(check.judge("ports", "ok", have=_most(check, grown), source=subject))
    return Plan(tuple(found))


def _most(check: Check, grown: Sequence[Mapping[str, int]]) -> str:
    """Name the counter that grew most where every port passes the check. grown: by how much, of each port."""
    if check not in _COUNTERS:
        return "%d ports read" % len(grown)
    most = max(((n, name) for port in grown for name, n in port.items() if name in _COUNTERS[check]), default=None)
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


def _judge(port: Port, growth: Optional[Growth]) -> _Results:
    """Judge one port: what was read, the cable, the traffic. Each finding is caused by those before it."""
    found = {
        PORT_COUNTERS: _unreadable(port, growth.gone if growth else ()),
        PORT_SATURATED: _saturated(port),
    }
    if growth is not None:
        judge = _GrowthJudge(port, growth, found)
        judge.link_downed()
        judge.symbol_errors()
        judge.rated(PORT_ERRORS, port_limits.ERRORS)
        judge.rated(PORT_DISCARDS, port_limits.DISCARDS, "port_xmit_packets")
        judge.host_discards()
        judge.pause()
        judge.rated(PORT_RDMA_RETRIES, port_limits.RETRIES)
    return found


def _unreadable(port: Port, gone: Sequence[str]) -> Optional[Finding]:
    """Report counters that could not be read. gone: counters that the last record has."""
    problems = list(port.problems)
    if gone and not problems:
        text = "shows no more %s%s" % (", ".join(gone[:3]), " and %d others" % (len(gone) - 3) if gone[3:] else "")
        problems.append(Problem(_folder(port), text))
    if not problems:
        return None
    more = "; and %d more" % (len(problems) - 1) if len(problems) > 1 else ""
    first = problems[0]
    return PORT_COUNTERS.judge(port.label, "unknown", "counters", str(first) + more, first.source)


def _saturated(port: Port) -> Optional[Finding]:
    ended = port_counters.saturated(port)
    if not ended:
        return None
    how = "drain the node and reload mlx5_core, or reboot"
    if port.link_layer == "InfiniBand":
        how = "perfquery -C %s -P %d -R" % (port.device, port.number)
    fix = "reset this port's counters to 0, because only that makes them count again: %s; other tools that read them"
    fix = fix % how + " sees a reset; " + RECHECK
    text = "saturated: %s" % ", ".join("%s at %d" % (name, port_limits.END[name]) for name in ended)
    return PORT_SATURATED.judge(port.label, "unknown", "counters that count", text, _folder(port) + "/counters", fix)


@dataclass(frozen=True)
class _GrowthJudge:
    """Judge the growth of one port's counters.   found: results so far, which causes are taken from."""

    port: Port
    growth: Growth
    found: _Results

    def link_downed(self) -> None:
        downs, seconds = port_counters.downs(self.port, self.growth), self.growth.seconds
        self._compared(PORT_LINK_DOWNED, downs is not None)
        if downs:
            severity = "major" if downs >= port_limits.DOWNS * max(1.0, seconds / DAY) else None
            text = "went down and came up again %s" % ("%d times" % downs if downs > 1 else "once") + within(seconds)
            self._drift(PORT_LINK_DOWNED, "up all the time", text, severity)

    def symbol_errors(self) -> None:
        name = "symbol_error" if self.port.link_layer == "InfiniBand" else "rx_pcs_symbol_err_phy"
        many, speed = self.growth.counts.get(name), self.growth.speed
        allowed = port_limits.symbol_limit(speed, self.growth.seconds)
        self._compared(PORT_SYMBOL_ERRORS, many is not None and name not in port_counters.saturated(self.port))
        if many is not None and many > allowed:
            want = "%d at most at %s" % (allowed, speed or "an unknown speed")
            self._drift(PORT_SYMBOL_ERRORS, want, self._counted([name]), None, because=self._first())

    def rated(self, check: Check, rates: Mapping[str, Rate], packets: str = "") -> None:
        """Judge counters of which a few are normal. packets: the counter of those of which a small share is."""
        bad, severity = self._above(check, rates, packets)
        if bad:
            self._drift(check, "few", self._counted(bad, packets), severity, because=self._first())

    def host_discards(self) -> None:
        counts, hours = self.growth.counts, self.growth.seconds / 3600
        bad, severity = self._above(PORT_HOST_DISCARDS, port_limits.HOST_DISCARDS, "port_rcv_packets")
        stalls = [name for name, share in port_limits.STALLS.items() if counts.get(name, 0) > share * self._span]
        texts = [self._counted(bad, "port_rcv_packets")] if bad else []
        texts += ["%s +%d s of %.1f h" % (name, counts[name], hours) for name in stalls]
        fix = _BUFFERS if any(name in port_limits.BUFFERS for name in bad) else _SOFTWARE
        fix = _PCIE if stalls or any(name in port_limits.PCIE for name in bad) else fix
        if texts:
            self._drift(PORT_HOST_DISCARDS, "few", "; ".join(texts), severity, fix)

    def pause(self) -> None:
        pause, seconds = _paused("tx", self.growth), self.growth.seconds
        self._compared(PORT_PAUSE, self.port.link_layer != "Ethernet" or pause is not None)
        paused, storms = (pause or 0) / 1e6, self.growth.counts.get("tx_pause_storm_error_events", 0)
        if storms or paused > port_limits.PAUSED * seconds:
            want = "%g %% at most" % (100 * port_limits.PAUSED)
            text = "paused its senders for %.1f %% of %.1f h" % (100 * paused / seconds, seconds / 3600)
            text += "; %d pause storms, after which the NIC gave up pausing" % storms if storms else ""
            cause, severity = self.found.get(PORT_HOST_DISCARDS), "major" if storms else None
            self._drift(PORT_PAUSE, want, text, severity, because=cause)

    def _compared(self, check: Check, compared: bool) -> None:
        self.found.update({check: None} if compared else {})

    def _first(self) -> Optional[Finding]:
        """Return the first fault of the port."""
        return next((one for one in self.found.values() if one is not None and one.state == "drift"), None)

    def _drift(
        self,
        check: Check,
        want: str,
        text: str,
        severity: Optional[str],
        fix: Optional[str] = None,
        because: Optional[Finding] = None,
    ) -> None:
        tool = ", ethtool -S %s" % self.port.netdev if self.port.netdev else ""
        source = "%s%s; %s" % (_folder(self.port), tool, record.FILE)
        label = self.port.label
        self.found[check] = check.judge(label, "drift", want, text, source, fix, because, severity=severity)

    @property
    def _span(self) -> float:
        """Return seconds over which a rate is spread."""
        return max(self.growth.seconds, port_limits.LEAST)

    def _above(self, check: Check, rates: Mapping[str, Rate], packets: str) -> Tuple[List[str], Optional[str]]:
        """Return counters that have grown by too much, and the severity: None for the check's usual one.

        packets: counter of those in this direction, of which a small share is normal; "" if it is not relevant.
        """
        counts, stuck = self.growth.counts, port_counters.saturated(self.port)
        exposed = any(name in counts for name in rates) and not any(name in stuck for name in rates)
        self._compared(check, exposed)
        bad, severity = [], None
        for name, (few, rate) in rates.items():
            many, days = counts.get(name, 0), max(1.0, self.growth.seconds / DAY)
            if many > max(few * days, port_limits.SHARE * counts.get(packets, 0)):
                bad.append(name)
                grave = rate is not None and many > rate[0] * self._span / rate[1]
                severity = "major" if grave else severity
        return bad, severity

    def _counted(self, names: Sequence[str], of: str = "") -> str:
        """Return ``port_rcv_errors +400 in 24.0 h, of 1.2e+09 packets``."""
        counts, reset = self.growth.counts, self.growth.reset
        texts = ["%s +%s%d" % (name, "at least " if name in reset else "", counts[name]) for name in names]
        packets = ", of %.2g packets" % counts[of] if counts.get(of) else ""
        return ", ".join(texts) + within(self.growth.seconds) + packets


def _paused(way: str, growth: Growth) -> Optional[int]:
    """Return microseconds of the priority that was paused longest; None if the driver has no such counter."""
    names = ["%s_prio%d_pause_duration" % (way, priority) for priority in range(8)]
    return max((growth.counts[name] for name in names if name in growth.counts), default=None)


def _folder(port: Port) -> str:
    return "/sys/class/infiniband/%s/ports/%d" % (port.device, port.number)
