# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Faults that a rail's port has only counted: its link is up, and every setting is as it should be.

Each comes with the record of the night before (health_faults.py), in which the port had counted nothing. Of rails that
no other fault takes away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .fault import HGX, Fault, FileFault, rail_nic
from .health_faults import RECORD, last_night
from .machine import Machine

ETHERNET, INFINIBAND = ("hgx-h200",), tuple(platform for platform in HGX if platform != "hgx-h200")


def _counts(
    rail: int,
    counters: Mapping[str, int] | None = None,
    hw_counters: Mapping[str, int] | None = None,
    statistics: Mapping[str, int] | None = None,
    flaps: int = 0,
) -> Callable[[Machine], None]:
    def apply(machine: Machine) -> None:
        rdma = machine.rail(rail)
        rdma.counters.update(counters or {})
        rdma.hw_counters.update(hw_counters or {})
        rdma.statistics.update(statistics or {})
        rdma.flaps += flaps

    return apply


def _garble(rail: int, counter: str) -> Callable[[Machine], None]:
    def apply(machine: Machine) -> None:
        rdma = machine.rail(rail)
        machine.damaged[f"{rdma.address}/infiniband/{rdma.name}/ports/1/counters/{counter}"] = "[Unknown Error]\n"

    return apply


def _fault(
    name: str,
    description: str,
    check: str,
    rail: int,
    change: Callable[[Machine], None],
    grows: bool = True,
    **more: Any,
) -> Fault:
    file = FileFault(RECORD, last_night) if grows else None
    return Fault(name, description, f"node_health.port_{check}", rail_nic(rail), change, file=file, **more)


CATALOGUE = (
    _fault("rail-flapped", "the link of rail 0 went down once in the night", "link_downed", 0, _counts(0, flaps=1)),
    _fault(
        "rail-flaps",
        "the link of rail 4 went down 12 times in the night, and lost packets each time",
        "link_downed",
        4,
        _counts(4, {"port_rcv_errors": 300}, {"packet_seq_err": 9000}, flaps=12),
        consequences=("node_health.port_errors", "node_health.port_rdma_retries"),
    ),
    _fault(
        "cable-symbols",
        "the cable of rail 1 had 900 symbol errors in the night",
        "symbol_errors",
        1,
        _counts(1, {"symbol_error": 900, "port_rcv_errors": 211}),
        consequences=("node_health.port_errors",),
        platforms=INFINIBAND,
    ),
    _fault(
        "cable-symbols-roce",
        "the cable of rail 1 had 900 symbol errors in the night that FEC did not mend",
        "symbol_errors",
        1,
        _counts(1, statistics={"rx_pcs_symbol_err_phy": 900}),
        platforms=ETHERNET,
    ),
    _fault(
        "cable-crc",
        "20,000 frames reached rail 6 damaged",
        "errors",
        6,
        _counts(6, statistics={"rx_crc_errors_phy": 20_000}),
        platforms=ETHERNET,
    ),
    _fault(
        "buffer-overrun",
        "the receive buffer of rail 6 overran three times",
        "errors",
        6,
        _counts(6, {"excessive_buffer_overrun_errors": 3}),
        platforms=INFINIBAND,
    ),
    _fault(
        "counter-saturated",
        "the recoveries of rail 7's link have been counted to their end",
        "saturated",
        7,
        _counts(7, {"link_error_recovery": 255}),
        grows=False,
        state="unknown",
    ),
    _fault(
        "counter-garbage",
        "the kernel cannot tell what rail 6 has received damaged",
        "counters",
        6,
        _garble(6, "port_rcv_errors"),
        grows=False,
        state="unknown",
    ),
    _fault(
        "switch-congested",
        "rail 0 threw 50,000 packets away that the switch did not take in time",
        "discards",
        0,
        _counts(0, {"port_xmit_discards": 50_000}),
        # It follows from a link that went down.
        excludes=("rail-flapped",),
    ),
    _fault(
        "pcie-stalls",
        "PCIe held the NIC of rail 1 up for half of the night",
        "host_discards",
        1,
        _counts(1, statistics={"outbound_pci_stalled_wr_events": 40_000, "rx_prio3_cong_discard": 9000}),
    ),
    _fault(
        "port-buffers-full",
        "the buffers of rail 7's port were full, 90,000 packets were lost",
        "host_discards",
        7,
        _counts(7, statistics={"rx_discards_phy": 90_000}),
        platforms=ETHERNET,
    ),
    _fault(
        "slow-receiver",
        "rail 4 stopped its senders for three hours of the night",
        "pause",
        4,
        _counts(4, statistics={"tx_prio3_pause_duration": 10_800_000_000}),
        platforms=ETHERNET,
    ),
    _fault(
        "path-loses",
        "what rail 5 sent was not answered in time 200,000 times",
        "rdma_retries",
        5,
        _counts(5, hw_counters={"local_ack_timeout_err": 200_000}),
    ),
)
