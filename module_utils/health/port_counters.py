# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the counters of the rails' ports, and compute their growth since a stored record.

Sources are files of sysfs, and one ethtool -S per rail: PFC, discards and PCIe stalls are nowhere else. A port is
identified by its PCI address. An absent counter is not exposed, which is not 0. Names and limits: kernel
Documentation/ABI/stable/sysfs-class-infiniband; NVSentinel docs/nic-health-monitor/link-counter-detection.md; UFM's PDR
plugin; /etc/infiniband-diags/error_thresholds (ibdiags). "own" is this suite's choice if no limit is published.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..core.host import Host, ParseError, Problem, ReadError, ToolHung
from ..machine import rdma
from ..machine.pci import parse_text, read_value
from ..machine.topology import Nic
from . import record

DAY, HOUR = 86400.0, 3600.0


class Counter(NamedTuple):
    """name: of sysfs or ``ethtool -S``.   group: it is read, and reset to 0, with the others of its group.

    check: the part of ``node_health.port_*`` that judges it.   few: so many a day are none.
    grave: (n, seconds): more than so many in this time are major.
    end: its maximum by its 4, 8 or 16 bits, where it stands still (IBTA 1, 16.1.3; drivers/infiniband/core/sysfs.c).
    share: of so many a second this share is none, instead of few.   remedy: of several of one check.
    layer: it counts only on this link layer.
    """

    name: str
    group: str
    check: str = ""
    few: float = 0
    grave: Optional[Tuple[float, float]] = None
    end: Optional[int] = None
    share: float = 0
    remedy: str = ""
    layer: str = ""

    @property
    def of_second(self) -> float:
        """Return by how much a counter of time rises in one second."""
        return 1e6 if self.name.endswith("_us") else 1


_PCIE = ("outbound_pci_buffer_overflow", "rx_prio_cong_discard", "rx_prio_buf_discard")
_BUFFERS = ("rx_discards_phy", "rx_prio_discards")
_OF_TRAFFIC = ("np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled", "rp_cnp_ignored")
# Groups: counters (errors, data) and hw_counters (queue, congestion) of sysfs, ethtool, computed ones.
COUNTERS = (
    # Once is a warning; three times a day fail (gpud).
    Counter("link downs", "computed", "link_downed", grave=(2.5, DAY)),
    Counter("link_downed", "errors", end=0xFF),
    Counter("symbol_error", "errors", "symbol_errors", end=0xFFFF, layer="InfiniBand"),
    Counter("port_rcv_errors", "errors", "errors", 10, (10, 1), 0xFFFF),  # ibdiags; NVSentinel
    Counter("link_error_recovery", "errors", "errors", 10, (5, 60), 0xFF),  # ibdiags; NVSentinel
    # NVSentinel: any; healthy ports have had some, so a warning
    Counter("local_link_integrity_errors", "errors", "errors", end=0xF),
    Counter("excessive_buffer_overrun_errors", "errors", "errors", end=0xF),
    Counter("port_xmit_discards", "errors", "discards", 100, (100, 1), 0xFFFF),  # ibdiags; NVSentinel
    *(Counter(name, "data") for name in ("port_xmit_packets", "port_rcv_packets", "port_xmit_wait")),
    # Sent again. A job that ends takes its queue pairs with it on every node, so a few say nothing. own
    Counter("local_ack_timeout_err", "queue", "rdma_retries", HOUR, (1, 1)),  # NVSentinel
    Counter("packet_seq_err", "queue", "rdma_retries", HOUR, (100, 1)),
    Counter("implied_nak_seq_err", "queue", "rdma_retries", HOUR, (100, 1)),
    Counter("roce_adp_retrans", "queue", "rdma_retries", HOUR, (100, 1)),
    Counter("rnr_nak_retry_err", "queue", "rdma_retries", 10 * HOUR),
    Counter("roce_slow_restart", "queue", "rdma_retries", 10 * HOUR, (10, 1)),  # NVSentinel
    Counter("req_transport_retries_exceeded", "queue", "rdma_retries", 1000),
    Counter("req_rnr_retries_exceeded", "queue", "rdma_retries", 1000),
    *(Counter(name, "queue") for name in ("out_of_sequence", "duplicate_request")),
    Counter("rx_icrc_encapsulated", "congestion", "errors", 10, (10, 1)),  # own, as port_rcv_errors
    *(Counter(name, "congestion") for name in _OF_TRAFFIC),
    Counter("link_down_events_phy", "ethtool"),
    Counter("rx_pcs_symbol_err_phy", "ethtool", "symbol_errors", layer="Ethernet"),
    Counter("rx_crc_errors_phy", "ethtool", "errors", 10, (10, 1)),  # own, as port_rcv_errors
    Counter("tx_discards_phy", "ethtool", "discards", 100, (100, 1)),  # own, as port_xmit_discards
    # Seconds in which PCIe held the NIC up for more than 30 %. own
    Counter("outbound_pci_stalled_rd_events", "ethtool", "host_discards", share=0.01, remedy="pcie"),
    Counter("outbound_pci_stalled_wr_events", "ethtool", "host_discards", share=0.01, remedy="pcie"),
    *(Counter(name, "ethtool", "host_discards", 1000, (100, 1), remedy="pcie") for name in _PCIE),  # own
    *(Counter(name, "ethtool", "host_discards", 1000, (100, 1), remedy="buffers") for name in _BUFFERS),  # own
    # A program that has posted no receive request is slow, the path is not. own
    Counter("rx_out_of_buffer", "ethtool", "host_discards", 1e6, remedy="software"),
    Counter("out_of_buffer", "queue", "host_discards", 1e6, remedy="software"),
    # After a storm the NIC has given up pausing.
    Counter("tx_pause_storm_error_events", "ethtool", "pause", grave=(0, 1)),
    # Microseconds of the priority that was paused longest. own
    Counter("tx_paused_us", "computed", "pause", share=0.01 * 1e6),
    Counter("rx_paused_us", "computed"),
)
ERRORS, DATA, QUEUE_PAIRS, CONGESTION, PHYSICAL = (
    tuple(one.name for one in COUNTERS if one.group == group)
    for group in ("errors", "data", "queue", "congestion", "ethtool")
)
CARRIER = "carrier_changes"
END: Mapping[str, int] = {one.name: one.end for one in COUNTERS if one.end is not None}
# Share of packets that may be dropped. own
SHARE = 1e-6
# Seconds over which a burst is spread at least, so that a short test is not taken for a whole day. own
LEAST = HOUR
# UFM's rule for isolating a port, by speed: symbol errors after FEC in 12 and in 125 minutes, that is symbol error
# rates of 1e-14 and 1e-15.
PDR: Mapping[str, Tuple[float, float]] = {"NDR": (2.88, 3.0), "XDR": (5.8, 6.0)}
SHORT, LONG = 12 * 60.0, 125 * 60.0
# Of older links in an hour (IBTA, NVSentinel); up to so many a short time says nothing (ibdiags).
SYMBOLS_AN_HOUR, FEW_SYMBOLS = 120, 10
# Share of symbols beyond error correction: UFM's rule again; of older links the default of ibdiagnet.
OLDER_ERROR_RATE = 1e-12
# Per-priority counters; those of pauses exist only for priorities with PFC.
_OF_PRIORITY = re.compile(r"([rt]x)_prio[0-7]_(discards|buf_discard|cong_discard|pause|pause_duration)")
_NUMBER = re.compile(r"[0-9]{1,20}")
_MOST = 1 << 64


@dataclass(frozen=True)
class Port:
    """One port of a rail, at ``at``, in seconds of the epoch.

    label: subject of its findings.   up: its link is.   speed: ``NDR``; None of a port that is down, or does not say.
    loaded: what changes when its device is made anew: the number of its interface; "" where it has none, as netdev.
    problems: why some of it could not be read.
    """

    rail: int
    pci: str
    label: str
    device: str
    number: int = 1
    link_layer: Optional[str] = None
    speed: Optional[str] = None
    up: bool = True
    guid: str = ""
    netdev: str = ""
    loaded: str = ""
    at: float = 0.0
    values: Mapping[str, int] = field(default_factory=dict)
    problems: Tuple[Problem, ...] = ()

    @property
    def key(self) -> str:
        return "%s/%d" % (self.pci, self.number)

    @property
    def folder(self) -> str:
        return "/sys/class/infiniband/%s/ports/%d" % (self.device, self.number)

    @property
    def record_entry(self) -> Dict[str, Any]:
        """Return the port's entry in the record."""
        return {name: getattr(self, name) for name in ("guid", "loaded", "speed", "at", "values")}

    @property
    def saturated(self) -> List[str]:
        """Return counters that have reached their maximum and stay there."""
        return [name for name, end in END.items() if self.values.get(name) == end]


@dataclass(frozen=True)
class Growth:
    """counts: growth of each counter that both have; at least, for those that were reset.

    seconds: in which.   speed: of the link, also of one that is down now.   reset: names that were set back.
    gone: counters of sysfs that the record has and the port has no more.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    speed: Optional[str] = None
    reset: FrozenSet[str] = frozenset()
    gone: Tuple[str, ...] = ()


def judged(check: str, remedies: Sequence[str] = ()) -> Tuple[str, ...]:
    """Return the names of the counters that a check judges; only those of some remedies if these are named."""
    return tuple(one.name for one in COUNTERS if one.check == check and (not remedies or one.remedy in remedies))


def read(host: Host, nics: Mapping[int, Nic], now: float) -> Tuple[Port, ...]:
    """Return the ports of the rails in their order.   nics: rail -> NIC."""
    found: List[Port] = []
    hung: List[Problem] = []
    for rail, nic in sorted(nics.items()):
        if nic.rdma is not None and nic.port is not None:
            found.append(_read_port(host, rail, nic, nic.rdma, nic.port, now, hung))
    return tuple(found)


def _read_port(
    host: Host, rail: int, nic: Nic, device: rdma.RdmaDevice, port: rdma.Port, now: float, hung: List[Problem]
) -> Port:
    problems: List[Problem] = []
    base = "/sys/class/infiniband/%s/ports/%d" % (device.name, port.number)
    netdev, ethernet = nic.netdevs[0].name if nic.netdevs else "", port.link_layer == "Ethernet"
    paths = {name: "%s/counters/%s" % (base, name) for name in (*ERRORS, *DATA)}
    paths.update({name: "%s/hw_counters/%s" % (base, name) for name in (*QUEUE_PAIRS, *CONGESTION)})
    if netdev and ethernet:
        paths[CARRIER] = "/sys/class/net/%s/%s" % (netdev, CARRIER)
    read = {name: read_value(host, path, _count, problems) for name, path in paths.items()}
    values = {name: value for name, value in read.items() if value is not None}
    if not any(name in values for name in ERRORS) and not problems:
        problems.append(Problem(base + "/counters", "shows no counter"))
    loaded = None
    if netdev:
        loaded = read_value(host, "/sys/class/net/%s/ifindex" % netdev, parse_text, problems)
        values.update(_statistics(host, netdev, ethernet, hung, problems))
    up = port.phys_state == "LinkUp" or port.state == "ACTIVE"
    speed = port.rate_name.split()[-1] if up and port.rate_name else None
    about = (rail, nic.pci, nic.label, device.name, port.number, port.link_layer, speed, up, device.node_guid or "")
    return Port(*about, netdev, (loaded or "")[:20], now, values, tuple(problems))


def _statistics(host: Host, netdev: str, needed: bool, hung: List[Problem], problems: List[Problem]) -> Dict[str, int]:
    """Return ethtool's counters. needed: Ethernet has its pauses only there; on InfiniBand the tool may fail.

    hung: why it did not respond for another port; then it is not run for this one.
    """
    argv = ("ethtool", "-S", netdev)
    try:
        if not hung:
            return parse_statistics(host.query(argv))
        problems += hung
    except ToolHung as error:
        hung.append(error.problem)
        problems.append(error.problem)
    except ReadError as error:
        problems += [error.problem] if needed else []
    except ParseError as error:
        problems.append(Problem(" ".join(argv), str(error)))
    return {}


def parse_statistics(text: str) -> Dict[str, int]:
    """Parse ``ethtool -S``: PHYSICAL, pauses by priority, discards of all priorities. Raises ParseError.

    A driver prints hundreds of lines, most of them on its rings, which are skipped.
    """
    lines = text.splitlines()
    if not lines or lines[0].strip() != "NIC statistics:":
        raise ParseError("%r is not what ethtool -S prints" % text[:80])
    found: Dict[str, int] = {}
    for line in lines[1:]:
        name, _colon, value = line.strip().partition(": ")
        match = _OF_PRIORITY.fullmatch(name)
        if match is not None and match.group(2).endswith(("discard", "discards")):
            name = "%s_prio_%s" % match.groups()
        if match is not None or name in PHYSICAL:
            found[name] = found.get(name, 0) + _count(value)
    return found


def _count(text: str) -> int:
    """Parse a count. Raises ParseError."""
    if not _NUMBER.fullmatch(text) or int(text) >= _MOST:
        raise ParseError("%r is not a count" % text[:40])
    return int(text)


def grown(port: Port, entry: Optional[Mapping[str, object]]) -> Optional[Growth]:
    """Return growth since a record of this port, of the same boot and driver. entry: as in Record.ports.

    None without a comparable record: there is none, or it is of another card, or the device was recreated since.
    """
    if entry is None or entry.get("guid") != port.guid or entry.get("loaded") != port.loaded:
        return None
    before, at, speed = entry.get("values"), entry.get("at"), entry.get("speed")
    if not isinstance(before, dict) or isinstance(at, bool) or not isinstance(at, (int, float)):
        return None
    if not 0 <= port.at - at < 1e9:
        return None
    then = {name: n for name, n in before.items() if type(n) is int and 0 <= n < _MOST and name in port.values}
    counts = record.grown(then, port.values)
    counts.update(_computed(port, counts))
    reset = frozenset(name for name, n in then.items() if port.values[name] < n)
    in_sysfs = {*ERRORS, *DATA, *QUEUE_PAIRS, *CONGESTION}
    gone = tuple(sorted(name for name in before if name in in_sysfs and name not in port.values))
    speed = port.speed or (speed if isinstance(speed, str) else None)
    return Growth(counts, port.at - at, speed, reset, gone)


def _computed(port: Port, counts: Mapping[str, int]) -> Dict[str, int]:
    """Return growth of what several counters tell together.

    How often the link went down and came back: the port's counters are preferred, since an interface loses its carrier
    also when it is set up again. A saturated counter is ignored. platform reports a link that is down.
    """
    found = {}
    phys = [
        counts[name]
        for name in ("link_down_events_phy", "link_downed")
        if name in counts and name not in port.saturated
    ]
    if phys:
        found["link downs"] = max(0, max(phys) - (not port.up))
    elif CARRIER in counts:
        found["link downs"] = max(0, counts[CARRIER] - (not port.up)) // 2
    for way in ("rx", "tx"):
        names = ["%s_prio%d_pause_duration" % (way, priority) for priority in range(8)]
        times = [counts[name] for name in names if name in counts]
        found.update({way + "_paused_us": max(times)} if times else {})
    return found


def allowed(counter: Counter, growth: Growth, packets: int) -> float:
    """Return the growth that is none. packets: in this direction, of which a small share may be dropped."""
    if counter.check == "symbol_errors":
        return symbol_limit(growth.speed, growth.seconds)
    if counter.share:
        return counter.share * (growth.seconds if counter.group == "computed" else max(growth.seconds, LEAST))
    return max(counter.few * max(1.0, growth.seconds / DAY), SHARE * packets)


def is_grave(counter: Counter, growth: Growth) -> bool:
    """Return whether its growth is major."""
    n, period = counter.grave or (math.inf, 1.0)
    return growth.counts[counter.name] > n * max(1.0, max(growth.seconds, LEAST) / period)


def symbol_limit(speed: Optional[str], seconds: float) -> float:
    """The most symbol errors in this time; what a shorter window allows cannot be more than a longer one's."""
    if speed is not None and speed in PDR:
        short, long = PDR[speed]
        return short if seconds <= SHORT else long * max(1.0, seconds / LONG)
    return max(FEW_SYMBOLS, SYMBOLS_AN_HOUR * seconds / HOUR)


def error_rate(speed: Optional[str], seconds: float) -> float:
    """The largest share of a link that has counted for this time."""
    if speed not in PDR:
        return OLDER_ERROR_RATE
    return 1e-15 if seconds >= LONG else 1e-14
