# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What no node shows of itself: the network between the nodes, and what goes wrong there. One JSON file, FILE:

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

Size 0 is before anything is connected. Every key may be left out. All nodes have to have the same file, as they are in
one network: that of rank 0 counts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any

PLACE = "/srv/busbar-lab/fabric.json"


@dataclass(frozen=True)
class Fabric:
    leaves: dict[str, list[str]] = field(default_factory=dict)
    oversubscription: float = 1.0
    uplinks: dict[str, float] = field(default_factory=dict)
    lossy: list[str] = field(default_factory=list)
    nodes: dict[str, float] = field(default_factory=dict)
    rails: dict[str, dict[str, float]] = field(default_factory=dict)
    sends: dict[str, dict[str, float]] = field(default_factory=dict)
    receives: dict[str, dict[str, float]] = field(default_factory=dict)
    both: dict[str, dict[str, float]] = field(default_factory=dict)
    gpus: dict[str, dict[str, float]] = field(default_factory=dict)
    without_gdr: dict[str, list[str]] = field(default_factory=dict)
    sockets: list[str] = field(default_factory=list)
    libraries: dict[str, int] = field(default_factory=dict)
    noise: dict[str, float] = field(default_factory=dict)
    hang: dict[str, Any] = field(default_factory=dict)
    crash: dict[str, Any] = field(default_factory=dict)

    def leaf(self, host: str) -> str:
        """Hosts that no leaf names are on one of their own."""
        return next((name for name, hosts in self.leaves.items() if host in hosts), "")


def read(path: str) -> Fabric:
    """An ideal one where there is no file. Raises ValueError, with the file's name, for one that cannot be used."""
    try:
        with open(path, encoding="utf-8") as stream:
            data = json.load(stream)
    except FileNotFoundError:
        return Fabric()
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be used: {error}") from error
    known = {one.name: one for one in fields(Fabric)}
    strange = sorted(data.keys() - known.keys()) if isinstance(data, dict) else [str(data)]
    if strange:
        raise ValueError(f"{path} cannot be used: there is no {', '.join(strange)}; there are {', '.join(known)}")
    ideal = Fabric()
    for name, value in data.items():
        wanted = (int, float) if name == "oversubscription" else type(getattr(ideal, name))
        if not isinstance(value, wanted):
            raise ValueError(f"{path} cannot be used: {name} is {value!r}")
    return Fabric(**data)
