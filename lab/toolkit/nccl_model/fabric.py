# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is between nodes, and what goes wrong there, which no node shows: one JSON file, PLACE, the same on all nodes.

    {"leaves": {"leaf1": ["node01", "node02"]}, "oversubscription": 2.0,   share of an uplink that a node has: 1/2
     "uplinks": {"leaf1": 0.4},                  what is left of a leaf's uplinks
     "lossy": ["node03"],                        what it sends and receives is lost now and then
     "nodes": {"node03": 0.6},                   what is left of all rails of a node
     "rails": {"node03": {"mlx5_3": 0.5}},       a rail's share of its bandwidth
     "sends": {"node03": {"mlx5_3": 0.5}},       ... of what it sends; "receives": of what it receives
     "both": {"node03": {"mlx5_3": 0.5}},        ... of either direction, while both are full
     "gpus": {"node03": {"2": 0.6}},             a GPU's share of its speed, by its place on the node
     "without_gdr": {"node03": ["mlx5_3"]},      devices that cannot reach the memory of GPUs
     "sockets": ["node03"],                      nodes on which no RDMA device can be opened
     "libraries": {"node03": 21803},             version of NCCL there
     "noise": {"cv": 0.02, "seed": 7},           of every time, from run to run
     "hang": {"host": "node03", "local": 1, "bytes": 1024},   a rank that does not come back, at this size or a larger
     "crash": {"host": "node03", "local": 1, "bytes": 1024, "how": "error"}}   ... or ends: "error" (of NCCL) or "kill"

Size 0 is before anything is connected. Every key may be left out. The file of rank 0 counts.

And what one RDMA port moves, in each direction, in GB/s: collectives (bandwidth.py) and perftest go by the same. What a
small read request and what full traffic the other way cost is assumed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PLACE = "/srv/busbar-lab/fabric.json"
_Shares = Mapping[str, Mapping[str, float]]
# Of the wire's bytes, what a card loses on its own; what is around the payload of a packet, by link layer.
CARD = 0.99
HEADERS = {"RoCE": 82, "IB": 26}
# Several times the packets for the same bytes: the card's packet rate, not the wire, is the limit.
SMALL, LARGE_MTU = 0.85, 4096
# Without PFC under load RoCE goes back to the lost packet again and again.
LOSSY = 0.35
# A NIC that fetches what it sends in small requests waits for each of them.
READ_REQUEST, SMALL_READS = 1024, 0.6
GIB = 1 << 30


@dataclass(frozen=True)
class Fabric:
    leaves: Mapping[str, list[str]] = field(default_factory=dict)
    oversubscription: float = 1.0
    uplinks: Mapping[str, float] = field(default_factory=dict)
    lossy: tuple[str, ...] = ()
    nodes: Mapping[str, float] = field(default_factory=dict)
    rails: _Shares = field(default_factory=dict)
    sends: _Shares = field(default_factory=dict)
    receives: _Shares = field(default_factory=dict)
    both: _Shares = field(default_factory=dict)
    gpus: _Shares = field(default_factory=dict)
    without_gdr: Mapping[str, list[str]] = field(default_factory=dict)
    sockets: tuple[str, ...] = ()
    libraries: Mapping[str, int] = field(default_factory=dict)
    noise: Mapping[str, float] = field(default_factory=dict)
    hang: Mapping[str, Any] = field(default_factory=dict)
    crash: Mapping[str, Any] = field(default_factory=dict)

    def leaf(self, host: str) -> str:
        """Return the leaf of a host, "" for one that no leaf names."""
        return next((name for name, hosts in self.leaves.items() if host in hosts), "")


def read(path: str) -> Fabric:
    """Read the file; without one the fabric is ideal. Raises TypeError for a key that a fabric does not have."""
    try:
        with open(path, encoding="utf-8") as stream:
            return Fabric(**json.load(stream))
    except FileNotFoundError:
        return Fabric()


@dataclass(frozen=True)
class Ways:
    """GB/s that a port sends and receives, and what is left of either while the other direction is full, too."""

    sends: float
    receives: float
    both: float


def wire(gbps: float, mtu: int, layer: str) -> float:
    """Return GB/s of payload on a link, in full packets. layer: of HEADERS."""
    share = CARD * mtu / (mtu + HEADERS[layer])
    return gbps / 8 * share * (1 if mtu >= LARGE_MTU else SMALL)


def ways(fabric: Fabric, host: str, device: str, port: float, read_request: int) -> Ways:
    """port: GB/s that slot, link and its configuration leave.   read_request: the largest, in bytes."""
    whole = port * fabric.nodes.get(host, 1.0) * fabric.rails.get(host, {}).get(device, 1.0)
    fetched = 1.0 if read_request >= READ_REQUEST else SMALL_READS
    sends, receives, both = (of.get(host, {}).get(device, 1.0) for of in (fabric.sends, fabric.receives, fabric.both))
    return Ways(whole * fetched * sends, whole * receives, both)


def between(fabric: Fabric, one: str, other: str) -> float:
    """Return the share of its bandwidth that a port has from a host to another: all of a leaf send at once."""
    leaves = fabric.leaf(one), fabric.leaf(other)
    if leaves[0] == leaves[1]:
        return 1.0
    return min(fabric.uplinks.get(leaf, 1.0) for leaf in leaves) / max(1.0, fabric.oversubscription)


def errors(fabric: Fabric, host: str, device: str, sent: int, received: int) -> dict[str, int]:
    """Return the counters below ports/1 that move with these bytes: a bad fibre is seen where it arrives.

    What arrives broken at the switch only the switch counts; the sender sees that it has to send again.
    """
    found: dict[str, int] = {}
    if received and fabric.receives.get(host, {}).get(device, 1.0) < 1:
        found["counters/symbol_error"] = 1 + received // GIB
        found["counters/port_rcv_errors"] = 1 + received // (4 * GIB)
        found["hw_counters/out_of_sequence"] = 1 + received // GIB
    if sent and fabric.sends.get(host, {}).get(device, 1.0) < 1:
        found["hw_counters/packet_seq_err"] = 1 + sent // GIB
        found["hw_counters/local_ack_timeout_err"] = 1 + sent // (16 * GIB)
    return found
