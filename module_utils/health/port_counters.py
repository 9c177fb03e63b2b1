# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the counters of the rails' ports, and compute their growth since a stored record.

Sources are files of sysfs, and one ethtool -S per rail: PFC, discards and PCIe stalls are nowhere else. Only rails of
the profile are read (node.py). A port is identified by its PCI address: names of device and interface may change.
An absent counter is not exposed, which is not 0. Names: kernel
Documentation/ABI/stable/sysfs-class-infiniband; widths: port_limits.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Tuple

from ..core.host import Host, ParseError, Problem, ReadError, ToolHung
from ..machine import rdma
from ..machine.pci import parse_text, read_value
from ..machine.topology import Nic
from . import port_limits

ERRORS = (
    *("link_downed", "symbol_error", "port_rcv_errors", "link_error_recovery", "local_link_integrity_errors"),
    *("excessive_buffer_overrun_errors", "port_xmit_discards"),
)
DATA = ("port_xmit_packets", "port_rcv_packets", "port_xmit_wait")
# Counters of queue pairs (32 bits), and of congestion (64 bits, not on a virtual function).
QUEUE_PAIRS = (
    *("out_of_sequence", "packet_seq_err", "implied_nak_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err"),
    *("duplicate_request", "roce_adp_retrans", "roce_slow_restart", "out_of_buffer"),
    *("req_transport_retries_exceeded", "req_rnr_retries_exceeded"),
)
CONGESTION = (
    *("np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled", "rp_cnp_ignored", "rx_icrc_encapsulated"),
)
PHYSICAL = (
    *("link_down_events_phy", "rx_crc_errors_phy", "rx_pcs_symbol_err_phy", "rx_discards_phy", "tx_discards_phy"),
    *("rx_out_of_buffer", "outbound_pci_buffer_overflow", "outbound_pci_stalled_rd_events"),
    *("outbound_pci_stalled_wr_events", "tx_pause_storm_error_events"),
)
CARRIER = "carrier_changes"
# Per-priority counters; those of pauses exist only for priorities with PFC.
_OF_PRIORITY = re.compile(r"([rt]x)_prio[0-7]_(discards|buf_discard|cong_discard|pause|pause_duration)")
_NUMBER = re.compile(r"[0-9]{1,20}")
_SUMMED = ("discards", "buf_discard", "cong_discard")
# Groups that are reset to 0 together: by perfquery -R, ibqueryerrors -k and -K, or a reload of the device.
_GROUPS = {name: number for number, names in enumerate((ERRORS, DATA, (*QUEUE_PAIRS, *CONGESTION))) for name in names}
_ETHTOOL, _MOST = 3, 1 << 64


@dataclass(frozen=True)
class Port:
    """One port of a rail, at ``at``, in seconds of the epoch.

    label: subject of its findings.   up: its link is.   speed: ``NDR``; None of a port that is down, or does not say.
    loaded: what changes when its device is made anew: the number of its interface; "" where it has none.
    netdev: "" likewise.   problems: why some of it could not be read.
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
    def record_entry(self) -> Dict[str, Any]:
        """Return the port's entry in the record."""
        names = ("guid", "loaded", "speed", "at", "values")
        return {name: getattr(self, name) for name in names}


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


def read(host: Host, nics: Mapping[int, Nic], now: float) -> Tuple[Port, ...]:
    """Return the ports of the rails in their order.   nics: rail -> NIC."""
    found: List[Port] = []
    hung: List[Problem] = []
    for rail, nic in sorted(nics.items()):
        if nic.rdma is not None and nic.port is not None:
            found.append(_port(host, rail, nic, nic.rdma, nic.port, now, hung))
    return tuple(found)


def _port(
    host: Host, rail: int, nic: Nic, device: rdma.RdmaDevice, port: rdma.Port, now: float, hung: List[Problem]
) -> Port:
    problems: List[Problem] = []
    netdev = nic.netdevs[0] if nic.netdevs else None
    values: Dict[str, int] = {}
    base = "/sys/class/infiniband/%s/ports/%d" % (device.name, port.number)
    for folder, names in (("counters", (*ERRORS, *DATA)), ("hw_counters", (*QUEUE_PAIRS, *CONGESTION))):
        for name in names:
            _add(values, name, read_value(host, "%s/%s/%s" % (base, folder, name), _count, problems))
    if not any(name in values for name in ERRORS) and not problems:
        problems.append(Problem(base + "/counters", "shows no counter"))
    loaded = ""
    if netdev is not None:
        folder = "/sys/class/net/" + netdev.name
        loaded = read_value(host, folder + "/ifindex", parse_text, problems) or ""
        if port.link_layer == "Ethernet":
            _add(values, CARRIER, read_value(host, "%s/%s" % (folder, CARRIER), _count, problems))
        values.update(_statistics(host, netdev.name, port.link_layer == "Ethernet", hung, problems))
    up = port.phys_state == "LinkUp" or port.state == "ACTIVE"
    return Port(
        rail=rail,
        pci=nic.pci,
        label=nic.label,
        device=device.name,
        number=port.number,
        link_layer=port.link_layer,
        speed=port.rate_name.split()[-1] if up and port.rate_name else None,
        up=up,
        guid=device.node_guid or "",
        netdev=netdev.name if netdev else "",
        loaded=loaded[:20],
        at=now,
        values=values,
        problems=tuple(problems),
    )


def _statistics(host: Host, netdev: str, needed: bool, hung: List[Problem], problems: List[Problem]) -> Dict[str, int]:
    """Return ethtool's counters. needed: Ethernet has its pauses only there; on InfiniBand the tool may fail.

    hung: why it did not respond for another port; then it is not run for this one.
    """
    argv = ("ethtool", "-S", netdev)
    if hung:
        problems += hung
        return {}
    try:
        return parse_statistics(host.query(argv))
    except ToolHung as error:
        hung.append(error.problem)
        problems.append(error.problem)
    except ReadError as error:
        if needed:
            problems.append(error.problem)
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
        if match is not None and match.group(2) in _SUMMED:
            name = "%s_prio_%s" % match.groups()
        if match is not None or name in PHYSICAL:
            found[name] = found.get(name, 0) + _count(value)
    return found


def _add(values: Dict[str, int], name: str, value: Optional[int]) -> None:
    if value is not None:
        values[name] = value


def _count(text: str) -> int:
    """Parse a count. Raises ParseError."""
    if not _NUMBER.fullmatch(text) or int(text) >= _MOST:
        raise ParseError("%r is not a count" % text[:40])
    return int(text)


def grown(port: Port, kept: Optional[Mapping[str, object]]) -> Optional[Growth]:
    """Return growth since a record of this port, of the same boot and driver. kept: as in Record.ports.

    None without a comparable record: there is none, or it is of another card, or the device was recreated since.
    """
    if kept is None or kept.get("guid") != port.guid or kept.get("loaded") != port.loaded:
        return None
    before, at, speed = kept.get("values"), kept.get("at"), kept.get("speed")
    if not isinstance(before, dict) or isinstance(at, bool) or not isinstance(at, (int, float)):
        return None
    then = {name: n for name, n in before.items() if type(n) is int and 0 <= n < _MOST and name in port.values}
    if not 0 <= port.at - at < 1e9:
        return None
    counts, reset = difference(then, port.values)
    gone = tuple(sorted(name for name in before if name in _GROUPS and name not in port.values))
    speed = port.speed or (speed if isinstance(speed, str) else None)
    return Growth(counts, port.at - at, speed, frozenset(reset), gone)


def difference(before: Mapping[str, int], now: Mapping[str, int]) -> Tuple[Dict[str, int], List[str]]:
    """Return the least growth of each counter that both have, and the names of counters that were reset in between.

    A queue pair's counter that was near its end and fell alone of its group has wrapped: it was not reset.
    """
    back = [name for name in before if now[name] < before[name]]
    wrapped = {}
    for name in back:
        more = now[name] + port_limits.WRAP - before[name]
        if name in QUEUE_PAIRS and before[name] < port_limits.WRAP and more < port_limits.MOST_OF_A_WRAP:
            wrapped[name] = more
    # If others of the group fell, too, the group was reset.
    groups = {_GROUPS.get(name, _ETHTOOL) for name in back if name not in wrapped}
    wrapped = {name: more for name, more in wrapped.items() if _GROUPS[name] not in groups}
    counts = {name: now[name] - (0 if name in back else then) for name, then in before.items()}
    return {**counts, **wrapped}, [name for name in back if name not in wrapped]


def saturated(port: Port) -> List[str]:
    """Return counters that have reached their maximum and stay there."""
    return [name for name, end in port_limits.END.items() if port.values.get(name) == end]


def downs(port: Port, growth: Growth) -> Optional[int]:
    """Return how often the link went down and came back; None without a counter. platform reports a link that is down.

    The port's counters are preferred: an interface loses its carrier also when it is set up again. A saturated counter
    is ignored, and one that was reset gives the minimum.
    """
    counts = growth.counts
    told = [name for name in ("link_down_events_phy", "link_downed") if name in counts]
    told = [name for name in told if port.values[name] != port_limits.END.get(name)]
    if told:
        return max(0, max(counts[name] for name in told) - (not port.up))
    if CARRIER in counts:
        return max(0, counts[CARRIER] - (not port.up)) // 2
    return None
