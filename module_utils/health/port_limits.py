# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Limits of a port's counters between two runs, each with its source, by generation where that matters.

NVSentinel: docs/nic-health-monitor/link-counter-detection.md of NVIDIA's, which calls its limits heuristics. UFM: its
PDR plugin, pdr_algorithm.py and constants.py. ibdiags: /etc/infiniband-diags/error_thresholds. "own" is this suite's
choice if no limit is published. Counters are called as sysfs and ethtool -S of mlx5 call them.
"""

from __future__ import annotations

from typing import Mapping, Optional, Tuple

DAY, HOUR = 86400.0, 3600.0
# Seconds over which a burst is spread at least, so that a short test is not taken for a whole day. own
LEAST = HOUR
# Where a counter of sysfs stands still: it has 4, 8 or 16 bits and sticks there (IBTA 1, 16.1.3; kernel
# drivers/infiniband/core/sysfs.c has the widths).
END: Mapping[str, int] = {
    "link_downed": 0xFF,
    "link_error_recovery": 0xFF,
    "symbol_error": 0xFFFF,
    "port_rcv_errors": 0xFFFF,
    "port_xmit_discards": 0xFFFF,
    "local_link_integrity_errors": 0xF,
    "excessive_buffer_overrun_errors": 0xF,
}
# Counters of a queue pair's errors have 32 bits in the firmware's answer and begin again at 0 (kernel
# include/linux/mlx5/mlx5_ifc.h, query_q_counter_out). What grew by more than a share of that was no wrap. own
WRAP, MOST_OF_A_WRAP = 1 << 32, 1 << 29

# UFM's rule for isolating a port, by speed: symbol errors after FEC in 12 and in 125 minutes, that is symbol error
# rates of 1e-14 and 1e-15.
PDR: Mapping[str, Tuple[float, float]] = {"NDR": (2.88, 3.0), "XDR": (5.8, 6.0)}
SHORT, LONG = 12 * 60.0, 125 * 60.0
# Of older links in an hour (IBTA, NVSentinel); up to so many a short time says nothing (ibdiags).
SYMBOLS_AN_HOUR, FEW_SYMBOLS = 120, 10
# Share of bits, or symbols, that error correction could not correct, as mlxlink reports it: UFM's rule again, for
# SHORT and LONG. Older links: the default of ibdiagnet, and of DCGM for an effective rate of NVLinks.
ERROR_RATE: Mapping[str, Tuple[float, float]] = {"NDR": (1e-14, 1e-15), "XDR": (1e-14, 1e-15)}
OLDER_ERROR_RATE = 1e-12
# Links that went down and came back in a day. Once is a warning; three times fail (gpud flaps at three).
DOWNS = 3

# Counter -> (so many a day are none; so many in so many seconds are grave, None: never).
Rate = Tuple[float, Optional[Tuple[float, float]]]
ERRORS: Mapping[str, Rate] = {
    "port_rcv_errors": (10, (10, 1.0)),  # ibdiags; NVSentinel
    "link_error_recovery": (10, (5, 60.0)),  # ibdiags; NVSentinel
    "local_link_integrity_errors": (0, None),  # NVSentinel: any; healthy ports have had some, so a warning
    "excessive_buffer_overrun_errors": (0, None),  # the same
    "rx_crc_errors_phy": (10, (10, 1.0)),  # own, as port_rcv_errors
    "rx_icrc_encapsulated": (10, (10, 1.0)),  # own, as port_rcv_errors
}
# What could not leave the port in time: (so many a day are none, and so small a share of the packets; grave).
SHARE = 1e-6  # own
DISCARDS: Mapping[str, Rate] = {
    "port_xmit_discards": (100, (100, 1.0)),  # ibdiags; NVSentinel
    "tx_discards_phy": (100, (100, 1.0)),  # own, the same on Ethernet
}
# Packets that arrived and were dropped. From left to right: the PCIe link, the port's buffers, no receive request.
PCIE = ("outbound_pci_buffer_overflow", "rx_prio_cong_discard", "rx_prio_buf_discard")
BUFFERS = ("rx_discards_phy", "rx_prio_discards")
SOFTWARE = ("rx_out_of_buffer", "out_of_buffer")
HOST_DISCARDS: Mapping[str, Rate] = {
    **dict.fromkeys((*PCIE, *BUFFERS), (1000, (100, 1.0))),  # own, as what could not leave
    # Of receive requests that a program had not posted: it is slow, the path is not. own
    **dict.fromkeys(SOFTWARE, (1e6, None)),
}
# Share of the seconds in which PCIe held the NIC up (mlx5: more than 30 % of such a second). own
STALLS: Mapping[str, float] = {"outbound_pci_stalled_rd_events": 0.01, "outbound_pci_stalled_wr_events": 0.01}
# Sent again. A job that ends takes its queue pairs with it on every node, so a few say nothing; own where no other is
# named.
RETRIES: Mapping[str, Rate] = {
    "local_ack_timeout_err": (HOUR, (1, 1.0)),  # NVSentinel: 1 a second
    "packet_seq_err": (HOUR, (100, 1.0)),
    "implied_nak_seq_err": (HOUR, (100, 1.0)),
    "roce_adp_retrans": (HOUR, (100, 1.0)),
    "rnr_nak_retry_err": (10 * HOUR, None),
    "roce_slow_restart": (10 * HOUR, (10, 1.0)),  # NVSentinel: 10 a second
    "req_transport_retries_exceeded": (1000, None),
    "req_rnr_retries_exceeded": (1000, None),
}
# Share of the time in which this host stopped its senders, of one priority: it takes less than its link brings. own
PAUSED = 0.01


def symbol_limit(speed: Optional[str], seconds: float) -> float:
    """The most symbol errors in this time; what a shorter window allows cannot be more than a longer one's."""
    if speed is not None and speed in PDR:
        short, long = PDR[speed]
        return short if seconds <= SHORT else long * max(1.0, seconds / LONG)
    return max(FEW_SYMBOLS, SYMBOLS_AN_HOUR * seconds / HOUR)


def error_rate(speed: Optional[str], seconds: float) -> float:
    """The largest share of a link that has counted for this time."""
    short, long = ERROR_RATE.get(speed or "", (OLDER_ERROR_RATE, OLDER_ERROR_RATE))
    return long if seconds >= LONG else short
