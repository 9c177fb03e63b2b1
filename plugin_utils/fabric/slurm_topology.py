# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Compare ``scontrol show topology`` with the fabric: nodes of one Slurm switch or block have to share their leaves.

A leaf of the fabric has one rail, so a Slurm switch of level 0 (topology/tree), or a block (topology/block), is a group
of nodes with the same leaves. Pure. Source: topology.conf(5), topology.yaml(5) of Slurm 24.05.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError

from .. import nodeset
from .map import Fabric, hosts_by_name, several, short_name

NODES = 20_000
_LINE = re.compile(r"(SwitchName|BlockName|AggregatedBlock)=([^\s=]{1,255})((?: [A-Za-z]+=\S*)*)")
_FIELD = re.compile(r"([A-Za-z]+)=(\S*)")


def parse(text: str, source: str) -> dict[str, list[str]]:
    """Return Slurm's switches of level 0, or blocks, with their nodes. Raises ParseError that names the line."""
    groups: dict[str, list[str]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.fullmatch(line.strip())
        if not line.strip():
            continue
        if match is None:
            shown = f"{printable(line)[:80]!r} is not a line of scontrol show topology: store all that it prints"
            raise ParseError(f"{source}, line {number}: {shown}")
        kind, name, rest = match.groups()
        fields = dict(_FIELD.findall(rest))
        if kind == "AggregatedBlock" or fields.get("Level", "0") != "0":
            continue
        try:
            groups[name] = nodeset.expand(fields["Nodes"]) if fields.get("Nodes") else []
        except ParseError as error:
            raise ParseError(f"{source}, line {number}: {printable(str(error))[:200]}") from None
        if sum(map(len, groups.values())) > NODES:
            raise ParseError(f"{source}: more than {NODES} nodes")
    if not groups:
        raise ParseError(f"{source}: no switch and no block in it: Slurm has topology/flat, or the file is another one")
    return groups


def compare(groups: Mapping[str, list[str]], fabric: Fabric) -> list[str]:
    """Return the differences, a sentence each."""
    # Host -> rail and GUID of the switch of each rail.
    of_host: dict[str, set[tuple[int, str]]] = defaultdict(set)
    for end, (host, rail) in fabric.rails.items():
        if end in fabric.cables:
            of_host[host].add((rail.rail, fabric.cables[end][0]))
    leaves = {host: tuple(sorted(rails)) for host, rails in of_host.items()}
    # Slurm's node names may lack the domain of the inventory's, or have one.
    hosts = hosts_by_name(leaves)
    found: list[str] = []
    listed: set[str] = set()
    owner: dict[tuple[tuple[int, str], ...], str] = {}
    for name, nodes in groups.items():
        by_node = {node: hosts.get(node.lower()) or hosts.get(short_name(node)) for node in nodes}
        known = [host for host in by_node.values() if host is not None]
        listed.update(known)
        unknown = [node for node, host in by_node.items() if host is None]
        shown = printable(name)[:64]
        if unknown:
            found.append(f"{shown}: no sweep shows a rail of {nodeset.brief(unknown, 120)}")
        if not known:
            continue
        [(common, number)] = Counter(leaves[node] for node in known).most_common(1)
        if number * 2 <= len(known) and len(known) > 1:
            found.append(f"{shown}: its {len(known)} nodes have no leaves in common: {nodeset.brief(known, 120)}")
            continue
        for node in (node for node in known if leaves[node] != common):
            at = [f"{fabric.node(guid)} with rail {rail}" for rail, guid in leaves[node] if (rail, guid) not in common]
            what = f"on {several(at, 3, ', ')}" if at else f"without {len(common) - len(leaves[node])} rails"
            found.append(f"{shown}: {node} is {what}, and {number} others are on the leaves of this group")
        other = owner.setdefault(common, shown)
        if other != shown:
            found.append(f"{shown} and {other}: their nodes are on the same leaves, but are two groups of Slurm")
    missing = sorted(set(leaves) - listed)
    if missing:
        found.append(f"no switch or block of Slurm has {nodeset.brief(missing, 120)}")
    return found
