# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a NIC has counted while data went over it, and what that means: wrong priority, pauses, ECN, loss.

A counter since the boot says nothing of today: only differences are judged. Names and meanings: host.md 7.4; kernel
Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst, drivers/infiniband/hw/mlx5/counters.c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from .finding import Finding
from .host import Host, ParseError, Problem, attempt
from .pci import parse_decimal, read_value

_LINE = re.compile(r"\s+(.+): ([0-9]{1,20})")
_PAUSED = re.compile(r"(rx|tx)_prio([0-7])_pause")
_OF_PRIORITY = re.compile(r"(?:rx|tx)_prio[0-7]_(?:bytes|packets|pause|discards|buf_discard)")
# Of a priority that is not meant to carry data: LLDP, ARP, congestion notifications.
_OTHERS = 0.05
# Packets came twice, out of turn for good, or not at all. Adaptive routing alone moves out_of_sequence, so that says
# nothing by itself. The last two are the names of software devices (rxe).
LOST = (
    "packet_seq_err",
    "local_ack_timeout_err",
    "implied_nak_seq_err",
    "roce_adp_retrans",
    "req_transport_retries_exceeded",
    "rcvd_seq_err",
    "retry_exceeded_err",
)
# Of the port: what was thrown away, and what was received damaged.
_DISCARDED = (
    "rx_discards_phy",
    "tx_discards_phy",
    "rx_out_of_buffer",
    "rx_crc_errors_phy",
    "port_xmit_discards",
    "port_rcv_errors",
)
_DISCARDED_OF_PRIORITY = ("rx_prio%d_discards", "rx_prio%d_buf_discard")
_MEANING = {
    "np_ecn_marked_roce_packets": "packets came marked: a switch on the way was congested",
    "np_cnp_sent": "this host told senders to slow down",
    "rp_cnp_handled": "this host slowed down when it was told to",
    "rp_cnp_ignored": "this host was told to slow down and did not",
    "out_of_sequence": "packets came out of turn: loss, or adaptive routing, which is normal",
    "packet_seq_err": "the other end missed packets and said so",
    "local_ack_timeout_err": "the other end did not answer in time",
    "rx_out_of_buffer": "no receive buffer was left",
    "rx_global_pause": "the network stopped all priorities",
    "tx_global_pause": "this host stopped all priorities",
    "link_down_events_phy": "the link went down",
    "link_downed": "the link went down",
}
# Of a thousand.
_KNOWN = frozenset((*LOST, *_DISCARDED, *_MEANING))
WHY = {
    "counters.priority": "data in another priority than the lossless one is dropped under congestion, and PFC and ECN"
    " do nothing for it",
    "counters.pause": "a receiver that keeps up with its link sends no pause; one of all priorities, or of another one,"
    " stops traffic that nobody meant",
    "counters.ecn": "without congestion notifications PFC alone slows senders down, and congestion spreads",
    "counters.loss": "one lost packet makes RoCE send a whole window again: a link that loses is slow and not broken",
}


@dataclass(frozen=True)
class Counters:
    """Name -> count, of the counters that say something here. problems: what did not answer."""

    values: Mapping[str, int]
    problems: Tuple[Problem, ...] = ()


def parse_statistics(text: str) -> Dict[str, int]:
    """Of ``ethtool -S``. Raises ParseError."""
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


def read(host: Host, device: str, port: int, netdev: str) -> Counters:
    """device: RDMA device, with its port. netdev: "" where there is none to ask."""
    values: Dict[str, int] = {}
    problems: List[Problem] = []
    if netdev:
        argv = ("ethtool", "-S", netdev)
        said = attempt(lambda: parse_statistics(host.ask(argv)), " ".join(argv), problems) or {}
        values.update({name: said[name] for name in said if name in _KNOWN or _OF_PRIORITY.fullmatch(name)})
    for kind in ("counters", "hw_counters"):
        directory = "/sys/class/infiniband/%s/ports/%d/%s" % (device, port, kind)
        for name in attempt(partial(host.listdir, directory), directory, problems) or []:
            if name in _KNOWN:
                count = read_value(host, "%s/%s" % (directory, name), parse_decimal, problems)
                values.update({name: count} if count is not None else {})
    return Counters(values, tuple(problems))


def difference(before: Counters, after: Counters) -> Counters:
    """What was counted in between. A counter that went back was reset, and says nothing."""
    values, problems = {}, [*before.problems]
    problems += [problem for problem in after.problems if problem not in problems]
    for name, count in after.values.items():
        if name in before.values:
            if count < before.values[name]:
                problems.append(Problem(name, "went back from %d to %d" % (before.values[name], count)))
            else:
                values[name] = count - before.values[name]
    return Counters(values, tuple(problems))


def meaning(moved: Counters) -> List[str]:
    """A line for each counter that moved and tells something: ``rx_prio3_pause +12: the network ...``."""
    found = []
    for name, count in sorted(moved.values.items()):
        match = _PAUSED.fullmatch(name)
        text = _MEANING.get(name)
        if match is not None:
            who = "the network stopped this host" if match.group(1) == "rx" else "this host, too slow, stopped senders"
            text = "%s in priority %s" % (who, match.group(2))
        if count and text is not None:
            found.append("%s +%d: %s" % (name, count, text))
    return found


# -- what it means ---------------------------------------------------------------------------------------------------


def judge(subject: str, moved: Counters, sends: bool, priority: Optional[int], source: str) -> Tuple[Finding, ...]:
    """Findings on one end of one path.

    sends: the data left here, else it came in.   priority: the lossless one, None where the fabric has none
    (InfiniBand, or nothing declared): then only loss is asked for.
    """
    found = []
    if priority is not None:
        found += [_priority(moved, sends, priority), _pause(moved, priority), _ecn(moved, sends, priority)]
    found.append(_loss(moved, priority))
    return tuple(
        Finding(
            check=check,
            subject=subject,
            state=state,
            severity="minor" if check in ("counters.ecn", "counters.pause") else "major",
            want=want,
            have=have,
            source=source,
            why=WHY[check],
            fix=fix,
        )
        for check, state, want, have, fix in found
    )


_Answer = Tuple[str, str, str, str, str]


def _unread(check: str, want: str, moved: Counters, names: str) -> _Answer:
    have = str(moved.problems[0]) if moved.problems else "this driver shows no %s" % names
    return check, "unknown", want, have, "look at ethtool -S and hw_counters by hand; a virtual function has not all"


def _priority(moved: Counters, sends: bool, priority: int) -> _Answer:
    check, way = "counters.priority", "tx" if sends else "rx"
    want = "the data %s in priority %d alone" % ("leaves" if sends else "comes in", priority)
    names = {number: "%s_prio%d_bytes" % (way, number) for number in range(8)}
    counted = {number: moved.values[name] for number, name in names.items() if name in moved.values}
    if priority not in counted:
        return _unread(check, want, moved, names[priority])
    total = sum(counted.values())
    if not total:
        fix = "see why nothing was sent; if something was, this driver does not count RDMA by priority"
        return check, "unknown", want, "no %s_prioN_bytes moved" % way, fix
    wrong = sorted((number for number in counted if number != priority), key=lambda number: -counted[number])
    if sum(counted[number] for number in wrong) <= _OTHERS * total:
        return check, "ok", want, "priority %d" % priority, ""
    have = ", ".join(
        "priority %d: %s" % (number, _bytes(counted[number]))
        for number in [*(n for n in wrong if counted[n] > _OTHERS * total), priority]
    )
    first = (
        "this host's traffic class and DSCP map"
        if sends
        else "the sender's traffic class, then this host's trust and DSCP map"
    )
    return check, "drift", want, have, "look at %s: run site.yml --tags roce_qos for both hosts" % first


def _pause(moved: Counters, priority: int) -> _Answer:
    check, want = "counters.pause", "no pause but what the network asks for in priority %d" % priority
    paused: Dict[str, int] = {}
    for name, count in moved.values.items():
        match = _PAUSED.fullmatch(name)
        if count and (name in ("rx_global_pause", "tx_global_pause") or match is not None):
            paused[name] = count
    of_network = "rx_prio%d_pause" % priority
    wrong = {name: count for name, count in paused.items() if name != of_network}
    if not wrong:
        if of_network not in moved.values:
            # Shown only for priorities that have PFC.
            return _unread(check, want, moved, of_network + ": PFC is off there")
        return check, "ok", want, "%s +%d" % (of_network, moved.values[of_network]), ""
    own = "tx_prio%d_pause" % priority
    if own in wrong:
        fix = "this host receives slower than its link: look at platform.rail_pcie, iommu.domains and pcie_path.* on it"
    else:
        fix = "run site.yml --tags roce_qos for this host, and compare the switch port's PFC with it"
    return check, "drift", want, "; ".join(_moved(paused)), fix


def _ecn(moved: Counters, sends: bool, priority: int) -> _Answer:
    check, values = "counters.ecn", moved.values
    want = "congestion is answered by notifications"
    names = ("rp_cnp_handled", "rp_cnp_ignored") if sends else ("np_ecn_marked_roce_packets", "np_cnp_sent")
    if any(name not in values for name in names):
        return _unread(check, want, moved, names[0])
    have = "; ".join(_moved({name: values[name] for name in names if values[name]})) or "no congestion"
    fix = "run site.yml --tags roce_qos for this host: ECN is off for priority %d" % priority
    if sends and values["rp_cnp_ignored"]:
        return check, "drift", want, have, fix
    if not sends and values["np_ecn_marked_roce_packets"] and not values["np_cnp_sent"]:
        return check, "drift", want, have, fix
    paused = "rx_prio%d_pause" % priority
    if sends and values.get(paused) and not values["rp_cnp_handled"]:
        fix = "look at ECN marking on the switches of this rail, and roce_qos.ecn and roce_qos.cnp of the receiver"
        return check, "drift", want, "%s +%d, and no notification came" % (paused, values[paused]), fix
    return check, "ok", want, have, ""


def _loss(moved: Counters, priority: Optional[int]) -> _Answer:
    check, values = "counters.loss", moved.values
    want = "no packet lost or sent twice"
    if not any(name in values for name in LOST):
        return _unread(check, want, moved, LOST[0])
    names = [*LOST, *_DISCARDED]
    if priority is not None:
        names += [name % priority for name in _DISCARDED_OF_PRIORITY]
    lost = {name: values[name] for name in names if values.get(name)}
    if not lost:
        return check, "ok", want, "none", ""
    fix = (
        "look at cable and switch port (link_down_events_phy, symbol errors), then at PFC and DSCP map of both hosts"
        " (roce_qos.*) and of the switches between them"
    )
    return check, "drift", want, "; ".join(_moved(lost)), fix


def _moved(counts: Mapping[str, int]) -> Sequence[str]:
    return ["%s +%d" % (name, count) for name, count in sorted(counts.items())]


def _bytes(count: int) -> str:
    return "%.1f GB" % (count / 1e9) if count >= 1e8 else "%.1f MB" % (count / 1e6)
