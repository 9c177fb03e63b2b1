# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""InfiniBand fabrics as tests describe them: nodes, cables and link rates, and what ibsim is to load of them.

Nothing here is the product's, so that a test's arithmetic is not the one that it tests.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Node:
    """A switch, or an HCA with one port, whose GUID is the node's and one."""

    guid: int
    ports: int
    description: str
    switch: bool
    device_id: int

    @property
    def name(self) -> str:
        """As ibnetdiscover and ibsim call it: S- or H- and 16 hex digits."""
        return f"{'S' if self.switch else 'H'}-{self.guid:016x}"

    @property
    def id(self) -> str:
        """Node GUID as 16 hex digits."""
        return f"{self.guid:016x}"

    @property
    def port_guid(self) -> int:
        return self.guid if self.switch else self.guid + 1


@dataclass(frozen=True, order=True)
class End:
    """A port: node GUID and number."""

    guid: int
    port: int


@dataclass
class Fabric:
    """One plane."""

    name: str
    nodes: dict[int, Node] = field(default_factory=dict)
    # Every cable in both directions.
    cables: dict[End, End] = field(default_factory=dict)
    # Lanes of links that have not four, under both ends.
    widths: dict[End, int] = field(default_factory=dict)
    # (host, rail) -> node GUID.
    rails: dict[tuple[str, int], int] = field(default_factory=dict)

    def copy(self) -> Fabric:
        return Fabric(self.name, dict(self.nodes), dict(self.cables), dict(self.widths), dict(self.rails))

    def hca(self, host: str, rail: int) -> Node:
        return self.nodes[self.rails[host, rail]]

    def leaf_port(self, host: str, rail: int) -> End:
        """The switch port that a rail of a host is cabled to."""
        return self.cables[End(self.rails[host, rail], 1)]

    def switches(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.switch]

    def links(self) -> Iterator[tuple[End, End]]:
        """Each cable once, from its lesser end."""
        return ((a, z) for a, z in sorted(self.cables.items()) if a < z)

    def add(self, node: Node) -> Node:
        assert not {node.guid, node.port_guid} & self.nodes.keys(), f"{node.name} is there already"
        self.nodes[node.guid] = node
        return node

    def connect(self, a: End, z: End) -> None:
        for end in (a, z):
            assert end not in self.cables, f"{end} has a cable already"
            assert 1 <= end.port <= self.nodes[end.guid].ports, f"{end} is not a port"
        self.cables[a], self.cables[z] = z, a

    def cut(self, end: End) -> End:
        """Takes out the cable at a port. Returns its other end."""
        other = self.cables.pop(end)
        del self.cables[other]
        return other

    def degrade(self, end: End, width: int) -> None:
        self.widths[end] = self.widths[self.cables[end]] = width


def rail_optimised(
    name: str,
    plane: int,
    hosts: Sequence[str],
    rails: Sequence[int],
    *,
    leaves_per_rail: int = 1,
    spines: int = 2,
    cables_per_spine: int = 1,
    radix: int = 40,
) -> Fabric:
    """A plane in which rail r of every host is on the leaves of rail r, and every leaf on every spine.

    plane: a small number that keeps the planes' GUIDs apart.
    Leaves: ports 1... go to hosts, in order, and the uplinks follow. Spines: a leaf's cables are side by side.
    """
    fabric = Fabric(name)
    base = 0x0C42A10300000000 + (plane << 24)
    tops = [
        fabric.add(Node(base + 0x800000 + 16 * s, radix, f"MF0;{name}-spine{s + 1:02d}:MQM8700/U1", True, 0xD2F0))
        for s in range(spines)
    ]
    per_leaf = -(-len(hosts) // leaves_per_rail)
    leaf_number = 0
    for rail in rails:
        for group in range(leaves_per_rail):
            leaf = fabric.add(
                Node(
                    base + 0x400000 + 16 * leaf_number,
                    radix,
                    f"MF0;{name}-rail{rail}-leaf{group + 1}:MQM8700/U1",
                    True,
                    0xD2F0,
                )
            )
            mine = hosts[group * per_leaf : (group + 1) * per_leaf]
            for port, host in enumerate(mine, 1):
                number = rail * len(hosts) + hosts.index(host)
                hca = fabric.add(Node(base + 16 * (number + 1), 1, f"{host} mlx5_{rail}", False, 0x101B))
                fabric.rails[host, rail] = hca.guid
                fabric.connect(End(hca.guid, 1), End(leaf.guid, port))
            for s, top in enumerate(tops):
                for cable in range(cables_per_spine):
                    fabric.connect(
                        End(leaf.guid, per_leaf + 1 + s * cables_per_spine + cable),
                        End(top.guid, 1 + leaf_number * cables_per_spine + cable),
                    )
            leaf_number += 1
    return fabric


def names(count: int) -> list[str]:
    return [f"node{number:03d}" for number in range(1, count + 1)]


def netfile(fabric: Fabric) -> str:
    """The fabric as a topology file, without LIDs: a subnet manager gives them."""
    # ibsim 0.10 speaks no newer speed than HDR.
    # What a port can that no cable is in: else it is QDR, whatever is put into it later. 7: FDR, EDR and HDR.
    lines = ["# Topology file: written by a test", "extspeed=7", ""]
    ends: dict[int, list[End]] = {
        guid: list(group) for guid, group in itertools.groupby(sorted(fabric.cables), lambda end: end.guid)
    }
    for node in sorted(fabric.nodes.values(), key=lambda node: (not node.switch, node.guid)):
        kind = "switchguid" if node.switch else "caguid"
        guid = f"0x{node.guid:x}"
        lines += ["vendid=0x2c9", f"devid=0x{node.device_id:x}", f"sysimgguid={guid}"]
        lines += [f"{kind}={guid}({node.guid:x})" if node.switch else f"{kind}={guid}"]
        head = f'{"Switch" if node.switch else "Ca"}\t{node.ports} "{node.name}"\t\t# "{node.description}"'
        lines.append(f"{head} base port 0 lid 0 lmc 0" if node.switch else head)
        for end in ends.get(node.guid, []):
            far = fabric.cables[end]
            other = fabric.nodes[far.guid]
            mine = "" if node.switch else f"({node.port_guid:x})"
            theirs = "" if other.switch else f"({other.port_guid:x})"
            own = "" if node.switch else "lid 0 lmc 0 "
            shown = f'{own}"{other.description}" lid 0 {fabric.widths.get(end, 4)}xHDR'
            lines.append(f'[{end.port}]{mine}\t"{other.name}"[{far.port}]{theirs}\t\t# {shown}')
        lines.append("")
    return "\n".join(lines) + "\n"
