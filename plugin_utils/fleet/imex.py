# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Compare IMEX over all hosts of a run: every node of an NVLink domain has to have the same list of nodes.

A domain is identified by UUID and clique: the clique's number alone is repeated in other racks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ansible_collections.busbar.fabric.plugins.module_utils.health.imex import NODES, NODES_CONFIG

from .. import result_schema
from .table import Results

ROLE = "node_health"


def join(results: Results) -> None:
    """Add the findings of the comparison to the role's results. results: host -> role -> result."""
    domains: dict[str, dict[str, tuple[str, ...]]] = defaultdict(dict)
    for host, of_host in results.items():
        reported = of_host[ROLE].part("imex", result_schema.imex) if ROLE in of_host else None
        if reported is not None:
            domains[reported["domain"]][host] = tuple(reported["nodes"])
    for domain, lists in domains.items():
        for host, text in _differences(lists):
            before = results[host][ROLE]
            found = NODES_CONFIG.judge(NODES, "drift", f"the same on all nodes of the domain {domain}", text)
            # A list that is wrong in itself has its finding already.
            if all(one.id != found.id for one in before.findings):
                rest = [name for name in before.passed if name != found.id]
                results[host][ROLE] = replace(before, passed=rest).adding([found])


def _differences(lists: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    """Yield host and difference of its list from the majority's; in a tie all of them differ."""
    ranked = Counter(lists.values()).most_common()
    usual = ranked[0][0]
    if len(ranked) == 1 and len(lists) > len(usual):
        text = "%d addresses, and %d hosts of this run are in the domain" % (len(usual), len(lists))
        yield from dict.fromkeys(lists, text).items()
    split = len(ranked) > 1 and ranked[0][1] == ranked[1][1]
    for host, nodes in lists.items():
        if nodes != usual or split:
            other = next(one for one, _count in ranked if one != nodes) if split else usual
            parts = []
            for text, names in (("lacks %s", set(other) - set(nodes)), ("has %s too many", set(nodes) - set(other))):
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                parts += [text % (min(names) + more)] if names else []
            others = sum(one == other for one in lists.values())
            difference = " and ".join(parts) or "has another order"
            yield host, f"{difference}, compared with {others} other hosts of the domain"
