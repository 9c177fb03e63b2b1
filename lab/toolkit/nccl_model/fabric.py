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
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PLACE = "/srv/busbar-lab/fabric.json"
_Shares = Mapping[str, Mapping[str, float]]


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
