# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Join the LLDP neighbours of all hosts of a run with the comparison over them (``lldp_leaf.py``)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError

from .. import result_schema
from ..codec import many
from ..fabric import cabling_plan
from . import lldp_leaf
from .lldp_leaf import End
from .table import Results

ROLE = "lldp"
PLAN = Check(
    "lldp.plan",
    why="without the file that the inventory names, the intended cabling is unknown",
    fix="repair the file; or remove it from the inventory, and the hosts are compared with each other",
)
"Can the cabling plan of the inventory be read"
_NEIGHBOURS = many(result_schema.neighbour, 200)


def join(results: Results, plans: Mapping[str, str]) -> None:
    """Add the findings of the comparison to the role's results (host -> role -> result).

    plans: host -> path of its cabling plan on the control node, "" for none.
    """
    ends_of: dict[str, list[End]] = defaultdict(list)
    for host, of_host in results.items():
        # Without a valid result, which the verdict reports, there are none.
        own = (of_host[ROLE].part("neighbours", _NEIGHBOURS) if ROLE in of_host else None) or ()
        ends_of[plans.get(host, "")] += [
            End(host, **{name: one[name] for name in one if name not in ("label", "pci")}) for one in own
        ]
    for path, ends in ends_of.items():
        try:
            plan = cabling_plan.load(Path(path)) if path and ends else None
            found = lldp_leaf.judge([end for end in ends if end.chassis], plan)
        except (OSError, ParseError) as error:
            wrong = PLAN.judge(path, "unknown", "a file that can be read", error_text(error), path)
            found = {end.host: [wrong] for end in ends}
        for host, findings in found.items():
            results[host][ROLE] = results[host][ROLE].adding(findings)
