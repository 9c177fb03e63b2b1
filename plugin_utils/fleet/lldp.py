# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Join the LLDP neighbours of all hosts of a run with the comparison over them (``lldp_leaf.py``).

For a host without neighbours, a table exported by the switches' own tools may name its port.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.lldp.plan import NEIGHBOUR

from .. import result_schema
from ..codec import many
from ..fabric import cabling_plan
from ..plain_data import PlainView
from ..role_result import RoleResult
from . import lldp_leaf
from .lldp_leaf import End, aliases
from .table import Results

ROLE = "lldp"
PLAN = Check(
    "lldp.plan",
    why="without the file that the inventory names, the intended cabling is unknown",
    fix="repair the file; or remove it from the inventory, and the hosts are compared with each other",
)
"Can the cabling plan and the table of neighbours of the inventory be read"
T = TypeVar("T")
_NEIGHBOURS = many(result_schema.neighbour, 200)


@dataclass(frozen=True)
class Files:
    """Files on the control node: plan, a cabling plan; neighbours, a table of the switches. "" for none."""

    plan: str = ""
    neighbours: str = ""

    @classmethod
    def from_values(cls, values: PlainView) -> Files:
        """Return the files. values: of the host's intent; {} where that was not read."""
        return cls(values.get("busbar_fabric_plan") or "", values.get("busbar_lldp_neighbours") or "")


def join(results: Results, files: Mapping[str, Files]) -> None:
    """Add the findings of the comparison to the role's results (host -> role -> result). files: by host."""
    ends_of: dict[Files, list[End]] = defaultdict(list)
    for host, of_host in results.items():
        # Without a valid result, which the verdict reports, there are none.
        own = (of_host[ROLE].part("neighbours", _NEIGHBOURS) if ROLE in of_host else None) or ()
        ends_of[files.get(host, Files())] += [
            End(host, **{name: one[name] for name in one if name not in ("label", "pci")}) for one in own
        ]
    for named, ends in ends_of.items():
        plan, no_plan = _loaded(named.plan if ends else "", cabling_plan.load)
        known, no_table = _loaded(named.neighbours if ends else "", _neighbours)
        if no_plan or no_table:
            for host in {end.host for end in ends}:
                _add(results[host], [*no_plan, *no_table])
            continue
        read = [end for end in ends if end.chassis]
        listed = _ends_from_table([end for end in ends if not end.chassis], known or (), read)
        for host, findings in lldp_leaf.judge([*read, *listed], plan).items():
            _add(results[host], findings)
        for end in listed:
            _close_gap(results[end.host], end, named.neighbours)


def _loaded(path: str, load: Callable[[Path], T]) -> tuple[T | None, list[Finding]]:
    try:
        return (load(Path(path)) if path else None), []
    except (OSError, ParseError) as error:
        text = error_text(error)
    return None, [PLAN.judge(path, "unknown", "a file that can be read", text, path)]


def _neighbours(path: Path) -> tuple[cabling_plan.Neighbour, ...]:
    return cabling_plan.neighbours(cabling_plan.read_text(path), str(path))


def _ends_from_table(silent: Iterable[End], known: Iterable[cabling_plan.Neighbour], read: Iterable[End]) -> list[End]:
    """Return ends without LLDP, as the table has them. A switch that others report is the same switch."""
    table = {(host, port): one for one in known for host in aliases(one.host) for port in _port_names(one.port)}
    switches = {alias: end for end in read for alias in aliases(end.name, end.chassis)} if table else {}
    found = []
    for end in silent if table else ():
        ports = {name for of in (end.netdev, end.device, end.mac) for name in _port_names(of)}
        keys = ((host, port) for host in aliases(end.host) for port in sorted(ports))
        one = next((table[key] for key in keys if key in table), None)
        if one is not None:
            other = next((switches[alias] for alias in aliases(one.chassis) if alias in switches), None)
            chassis, name = (other.chassis, other.name) if other is not None else (one.chassis, one.chassis)
            found.append(replace(end, chassis=chassis, name=name, port=one.port_id))
    return found


def _port_names(name: str) -> set[str]:
    return {name, *(digits for digits in aliases(name) if len(digits) == 12)} - {""}


def _add(of_host: dict[str, RoleResult], findings: Iterable[Finding], notes: Iterable[str] = ()) -> None:
    of_host[ROLE] = of_host[ROLE].adding(findings, notes)


def _close_gap(of_host: dict[str, RoleResult], end: End, source: str) -> None:
    """Replace the finding that an end has no neighbour: the table has it."""
    silent = {
        one.id
        for one in of_host[ROLE].findings
        if one.check == NEIGHBOUR.id and one.state == "unknown" and end.netdev in one.subject.split()
    }
    of_host[ROLE] = of_host[ROLE].passing(silent, [end.switch, source])
    _add(of_host, (), [f"rail {end.rail} has no LLDP neighbour, and is judged by {source}"])
