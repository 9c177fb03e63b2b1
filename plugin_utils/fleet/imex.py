# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Compare IMEX over all hosts of a run: every node of an NVLink domain has to have the same list of nodes.

A domain is identified by UUID and clique: the clique's number alone is repeated in other racks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace

from ansible_collections.busbar.fabric.plugins.module_utils.health.imex import NODES, NODES_CONFIG

from .. import result_schema
from ..role_result import RoleResult
from .table import Results

ROLE = "node_health"


def join(results: Results, _files: object = None) -> None:
    """Add the findings of the comparison to the role's results. results: host -> role -> result."""
    domains: dict[str, dict[str, tuple[str, ...]]] = defaultdict(dict)
    for host, of_host in results.items():
        told = of_host[ROLE].part("imex", result_schema.imex) if ROLE in of_host else None
        if told is not None:
            domains[told["domain"]][host] = tuple(told["nodes"])
    for domain, lists in domains.items():
        for host, said in _differences(lists).items():
            _add(results[host], domain, said)


def _differences(lists: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return host -> difference of its list from the majority's; in a tie all of them differ."""
    ranked = Counter(lists.values()).most_common()
    if len(ranked) == 1:
        nodes = ranked[0][0]
        if len(lists) > len(nodes):
            said = "%d addresses, and %d hosts of this run are in the domain" % (len(nodes), len(lists))
            return dict.fromkeys(lists, said)
        return {}
    split = ranked[0][1] == ranked[1][1]
    usual = ranked[0][0]
    found = {}
    for host, nodes in lists.items():
        if nodes == usual and not split:
            continue
        other = next(one for one, _count in ranked if one != nodes) if split else usual
        as_others = "%d other hosts of the domain" % sum(one == other for one in lists.values())
        lacks, more = sorted(set(other) - set(nodes)), sorted(set(nodes) - set(other))
        parts = [f"lacks {_some(lacks)}"] if lacks else []
        parts += [f"has {_some(more)} too many"] if more else []
        found[host] = "{}, compared with {}".format(" and ".join(parts) or "has another order", as_others)
    return found


def _some(names: list[str]) -> str:
    return names[0] + (" and %d more" % (len(names) - 1) if names[1:] else "")


def _add(of_host: dict[str, RoleResult], domain: str, said: str) -> None:
    """Add a finding. A list that is wrong in itself has its finding already."""
    before = of_host[ROLE]
    found = NODES_CONFIG.judge(NODES, "drift", f"the same on all nodes of the domain {domain}", said)
    if all(one.id != found.id for one in before.findings):
        rest = [name for name in before.passed if name != found.id]
        of_host[ROLE] = replace(before, passed=rest).adding([found])
