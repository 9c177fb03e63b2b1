# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge what a NIC has counted during a transfer: wrong priority, pauses, ECN, loss.

A total since boot shows no recent error: only differences are judged. Names and meanings: kernel
Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst (as of 6.15, which a test holds our list
to), drivers/infiniband/hw/mlx5/counters.c, drivers/infiniband/core/sysfs.c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from .core.check import Check
from .core.finding import Finding
from .core.host import Host, ParseError, Problem, attempt
from .machine.pci import parse_decimal, read_value

_LINE = re.compile(r"\s+(.+): ([0-9]{1,20})")
_PAUSED = re.compile(r"(rx|tx)_prio([0-7])_pause")
_OF_PRIORITY = re.compile(r"((?:rx|tx)_prio)([0-7])(_.+)")
# Counted by the ring, too, and the sum has the same name without a number.
_OF_RING = re.compile(r"(?:rx|tx|ch|ptp_[a-z]+)[0-9]+_.+")
# Share of a priority without data: LLDP, ARP, congestion notifications.
_OTHERS = 0.05
# Classes of counters. RESENT, LINK and HOST are losses, by where they happen: somewhere between two NICs; on the cable
# of this one, where what came was damaged or did not fit; in this host, which dropped what arrived. EXPLAINED may grow
# on a healthy path (docs/verify.md), NORMAL is ignored: not about RDMA, or it grows on every node.
RESENT, LINK, HOST, EXPLAINED, NORMAL = "resent", "link", "host", "explained", "normal"
# Packets came twice, out of turn for good, or not at all. Adaptive routing alone moves out_of_sequence, so that proves
# nothing alone. From rcvd_seq_err on the names are those of software devices (rxe).
LOST = (
    *("packet_seq_err", "local_ack_timeout_err", "implied_nak_seq_err", "roce_adp_retrans", "roce_adp_retrans_to"),
    *("req_transport_retries_exceeded", "req_rnr_retries_exceeded", "rcvd_seq_err", "retry_exceeded_err"),
    *("retry_rnr_exceeded_err", "completer_retry_err", "send_err"),
)
_NAMES = {
    RESENT: LOST,
    LINK: (
        *("rx_crc_errors_phy", "rx_symbol_err_phy", "rx_pcs_symbol_err_phy", "rx_icrc_encapsulated"),
        *("rx_in_range_len_errors_phy", "rx_out_of_range_len_phy", "rx_oversize_pkts_phy", "rx_undersize_pkts_phy"),
        *("rx_fragments_phy", "rx_jabbers_phy", "link_down_events_phy", "tx_discards_phy", "tx_errors_phy"),
        *("module_bus_stuck", "module_high_temp", "module_bad_shorted", "module_unplug"),
        *("link_downed", "link_error_recovery", "local_link_integrity_errors", "port_rcv_errors"),
        *("port_rcv_remote_physical_errors", "port_rcv_constraint_errors", "port_xmit_constraint_errors"),
        "port_xmit_discards",
    ),
    HOST: (
        *("rx_discards_phy", "rx_out_of_buffer", "rx_prioN_discards", "rx_prioN_buf_discard", "rx_prioN_cong_discard"),
        *("outbound_pci_buffer_overflow", "dev_internal_queue_oob", "dev_out_of_buffer", "rx_if_down_packets"),
        *("rx_oversize_pkts_buffer", "tx_pause_storm_error_events", "excessive_buffer_overrun_errors"),
        *("rx_pci_signal_integrity", "tx_pci_signal_integrity"),
    ),
    EXPLAINED: (
        *("np_ecn_marked_roce_packets", "np_cnp_sent", "rp_cnp_handled", "rp_cnp_ignored", "rx_prioN_marked"),
        *("out_of_sequence", "duplicate_request", "rnr_nak_retry_err", "out_of_buffer", "rx_global_pause"),
        *("tx_global_pause", "rx_prioN_pause", "tx_prioN_pause", "outbound_pci_stalled_rd_events"),
        *("outbound_pci_stalled_wr_events", "tx_pause_storm_warning_events", "rx_buffer_passed_thres_phy"),
        *("roce_slow_restart", "rx_unsupported_op_phy", "rx_prioN_bytes", "tx_prioN_bytes"),
    ),
    # Raw errors that the FEC has corrected, which every link of 100 Gb/s a lane has; the netdev's queues, which RDMA
    # does not use; work left when a queue pair was closed; packets that no flow of this host requested.
    NORMAL: (
        *("rx_corrected_bits_phy", "rx_err_lane_N_phy", "symbol_error", "VL15_dropped", "rx_steer_missed_packets"),
        *("port_rcv_switch_relay_errors", "tx_recover", "rx_recover", "tx_cqe_err", "rx_wqe_err", "tx_queue_dropped"),
        *("rx_buff_alloc_err", "rx_oversize_pkts_sw_drop", "ch_eq_rearm", "rx_xdp_drop"),
        *("req_cqe_error", "resp_cqe_error", "req_cqe_flush_error", "resp_cqe_flush_error", "resp_local_length_error"),
        *("rcvd_rnr_err", "send_rnr_err"),
    ),
}
_CLASSES = {name: kind for kind, names in _NAMES.items() for name in names}
# The netdev's queues for XDP, AF_XDP, TLS, flow steering and clocks.
_SOFTWARE = re.compile(r"(?:rx|tx)_(?:xdp|xsk|tls|arfs)_.+|ptp_.+")
# What a counter that we do not know is called where it counts a loss.
_LOSSY = re.compile(
    r"discard|drop|err(?:or|s|_|$)|crc|overflow|overrun|lost|loss|fail|bad|corrupt|timeout|exceed|retrans|oob"
)
_WHERE = {
    RESENT: "look at PFC and DSCP map of both hosts (roce_qos.*) and of the switches between them",
    LINK: "look at cable, transceiver and switch port of this rail (mlxlink -d DEVICE -m -c -e), and at the MTU of both"
    " ends",
    HOST: "this host receives too slowly: look at platform.pcie_link, platform.rail_pcie, pcie_path.* and"
    " iommu.domains on it",
}
PRIORITY = Check(
    "counters.priority",
    why="data in another priority than the lossless one is dropped under congestion, and PFC and ECN do nothing for it",
)
"Did the data leave and arrive in the lossless priority alone"

PAUSE = Check(
    "counters.pause",
    why="a receiver that is fast enough for its link sends no pause; global pause, or pause of another priority, stops"
    " other traffic",
    severity="minor",
)
"Did only the network pause this host, and in the lossless priority alone"

ECN = Check(
    "counters.ecn",
    why="without congestion notifications PFC alone slows senders down, and congestion spreads",
    severity="minor",
)
"Did congestion lead to notifications"

LOSS = Check(
    "counters.loss",
    why="RoCE sends a whole window again for one lost packet: a link that loses packets is slow rather than broken",
)
"Was nothing lost or retransmitted (`docs/verify.md`)"

CHECKS = (PRIORITY, PAUSE, ECN, LOSS)


@dataclass(frozen=True)
class Counters:
    """Name -> count of the relevant counters. problems: what could not be read."""

    values: Mapping[str, int]
    problems: Tuple[Problem, ...] = ()

    @property
    def to_store(self) -> Dict[str, int]:
        """Return the values without the problems: beside one, a counter that stood still proves nothing."""
        return {name: count for name, count in self.values.items() if count or not self.problems}


def parse_statistics(text: str) -> Dict[str, int]:
    """Parse ``ethtool -S``. Raises ParseError."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != "NIC statistics:":
        raise ParseError("%r is not what ethtool -S prints" % text[:80])
    found = {}
    for line in lines[1:]:
        match = _LINE.fullmatch(line)
        # Some drivers put a heading, or a hexadecimal word, among the counters.
        if match is not None:
            found[match.group(1)] = int(match.group(2))
    return found


def class_of(name: str) -> Optional[str]:
    """None where a counter is neither known nor called like a loss, "" where it is called so and not known."""
    if _OF_RING.fullmatch(name) or _SOFTWARE.fullmatch(name):
        return NORMAL
    known = _CLASSES.get(_general(name))
    return "" if known is None and _LOSSY.search(name) else known


def _general(name: str) -> str:
    """``rx_prioN_discards`` of rx_prio3_discards, ``rx_err_lane_N_phy`` of rx_err_lane_0_phy."""
    match = _OF_PRIORITY.fullmatch(name)
    if match is not None:
        return "%sN%s" % (match.group(1), match.group(3))
    return re.sub(r"^rx_err_lane_[0-9]_", "rx_err_lane_N_", name)


def read(host: Host, device: str, port: int, netdev: str) -> Counters:
    """Read the counters. device: RDMA device, with its port. netdev: "" without an interface."""
    values: Dict[str, int] = {}
    problems: List[Problem] = []
    if netdev:
        argv = ("ethtool", "-S", netdev)
        said = attempt(lambda: parse_statistics(host.query(argv)), " ".join(argv), problems) or {}
        values.update({name: said[name] for name in said if class_of(name) not in (None, NORMAL)})
    for kind in ("counters", "hw_counters"):
        directory = "/sys/class/infiniband/%s/ports/%d/%s" % (device, port, kind)
        for name in attempt(partial(host.listdir, directory), directory, problems) or []:
            if class_of(name) not in (None, NORMAL):
                count = read_value(host, "%s/%s" % (directory, name), parse_decimal, problems)
                values.update({name: count} if count is not None else {})
    return Counters(values, tuple(problems))


def difference(before: Counters, after: Counters) -> Counters:
    """Return the growth in between. A counter that went back was reset, and is a problem."""
    values, problems = {}, [*before.problems]
    problems += [problem for problem in after.problems if problem not in problems]
    for name, count in after.values.items():
        if name in before.values:
            if count < before.values[name]:
                problems.append(Problem(name, "went back from %d to %d" % (before.values[name], count)))
            else:
                values[name] = count - before.values[name]
    return Counters(values, tuple(problems))


# -- what it means ---------------------------------------------------------------------------------------------------


def judge(subject: str, moved: Counters, sends: bool, priority: Optional[int], source: str) -> Tuple[Finding, ...]:
    """Return findings on one end of one path.

    sends: the data left here, else it came in.   priority: the lossless one, None where the fabric has none
    (InfiniBand, or nothing declared): then only loss is judged.
    """
    results = [(LOSS, _loss(moved, priority))]
    if priority is not None:
        own = ((PRIORITY, _priority(moved, sends, priority)), (PAUSE, _pause(moved, priority)))
        results = [*own, (ECN, _ecn(moved, sends, priority)), *results]
    return tuple(check.judge(subject, state, want, have, source, fix) for check, (state, want, have, fix) in results)


# State, want, have, fix.
_Result = Tuple[str, str, str, str]


def _not_counted(want: str, moved: Counters, names: str) -> _Result:
    have = str(moved.problems[0]) if moved.problems else "this driver shows no %s" % names
    return "unknown", want, have, "look at ethtool -S and hw_counters by hand; a virtual function has not all"


def _priority(moved: Counters, sends: bool, priority: int) -> _Result:
    way = "tx" if sends else "rx"
    want = "the data %s in priority %d alone" % ("leaves" if sends else "comes in", priority)
    names = {number: "%s_prio%d_bytes" % (way, number) for number in range(8)}
    counted = {number: moved.values[name] for number, name in names.items() if name in moved.values}
    if priority not in counted:
        return _not_counted(want, moved, names[priority])
    total = sum(counted.values())
    if not total:
        fix = "find out why nothing was sent; if data was sent, this driver does not count RDMA per priority"
        return "unknown", want, "no %s_prioN_bytes moved" % way, fix
    wrong = sorted((number for number in counted if number != priority), key=lambda number: -counted[number])
    if sum(counted[number] for number in wrong) <= _OTHERS * total:
        return "ok", want, "priority %d" % priority, ""
    many = [number for number in wrong if counted[number] > _OTHERS * total]
    have = ", ".join("priority %d: %s" % (number, _bytes(counted[number])) for number in [*many, priority])
    fix = "look at %s traffic class%s DSCP map: run site.yml --tags roce_qos for both hosts"
    fix %= ("this host's", " and") if sends else ("the sender's", ", then this host's trust and")
    return "drift", want, have, fix


def _pause(moved: Counters, priority: int) -> _Result:
    want = "no pause except what the network requests in priority %d" % priority
    of_network, own = "rx_prio%d_pause" % priority, "tx_prio%d_pause" % priority
    global_pauses = ("rx_global_pause", "tx_global_pause")
    paused = {name: n for name, n in moved.values.items() if n and (name in global_pauses or _PAUSED.fullmatch(name))}
    if set(paused) <= {of_network}:
        if of_network not in moved.values:
            # Shown only for priorities that have PFC.
            return _not_counted(want, moved, of_network + ": PFC is off there")
        return "ok", want, "%s +%d" % (of_network, moved.values[of_network]), ""
    fix = "run site.yml --tags roce_qos for this host, and compare the switch port's PFC with it"
    if own in paused:
        fix = "this host receives slower than its link: look at platform.rail_pcie, iommu.domains and pcie_path.* on it"
    return "drift", want, "; ".join(_moved(paused)), fix


def _ecn(moved: Counters, sends: bool, priority: int) -> _Result:
    values, want = moved.values, "congestion leads to notifications"
    names = ("rp_cnp_handled", "rp_cnp_ignored") if sends else ("np_ecn_marked_roce_packets", "np_cnp_sent")
    if any(name not in values for name in names):
        return _not_counted(want, moved, names[0])
    have = "; ".join(_moved({name: values[name] for name in names if values[name]})) or "no congestion"
    if values["rp_cnp_ignored"] if sends else values["np_ecn_marked_roce_packets"] and not values["np_cnp_sent"]:
        return "drift", want, have, "run site.yml --tags roce_qos for this host: ECN is off for priority %d" % priority
    paused = "rx_prio%d_pause" % priority
    if sends and values.get(paused) and not values["rp_cnp_handled"]:
        fix = "look at ECN marking on the switches of this rail, and roce_qos.ecn and roce_qos.cnp of the receiver"
        return "drift", want, "%s +%d, and no notification came" % (paused, values[paused]), fix
    return "ok", want, have, ""


def _loss(moved: Counters, priority: Optional[int]) -> _Result:
    values, want = moved.values, "no packet lost or sent twice"
    lost: Dict[str, Dict[str, int]] = {}
    for name, count in values.items():
        of_priority, kind = _OF_PRIORITY.fullmatch(name), class_of(name)
        # Discards of other priorities are allowed: these are not lossless.
        lossy = of_priority is not None and priority is not None and int(of_priority.group(2)) != priority
        if count and kind is not None and not lossy:
            lost.setdefault(kind, {})[name] = count
    known = [text for kind in (RESENT, LINK, HOST) for text in _moved(lost.get(kind, {}))]
    strange = ["%s (a counter that the suite does not know)" % text for text in _moved(lost.get("", {}))]
    fix = "; ".join(advice for kind, advice in _WHERE.items() if kind in lost)
    if strange and not known:
        fix = "look up in the driver's documents what these count, and report the case"
        return "unknown", want, "; ".join(strange), fix
    if not known and (moved.problems or not any(name in values for name in LOST)):
        return _not_counted(want, moved, LOST[0])
    return "drift" if known else "ok", want, "; ".join([*known, *strange]) or "none", fix


def _moved(counts: Mapping[str, int]) -> Sequence[str]:
    return ["%s +%d" % (name, count) for name, count in sorted(counts.items())]


def _bytes(count: int) -> str:
    return "%.1f GB" % (count / 1e9) if count >= 1e8 else "%.1f MB" % (count / 1e6)
