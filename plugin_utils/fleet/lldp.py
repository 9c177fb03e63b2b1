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
from typing import Any, TypeVar

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.lldp.plan import NEIGHBOUR

from .. import result_schema, suite
from ..codec import many
from ..fabric import cabling_plan
from ..role_result import RoleResult
from . import lldp_leaf, lldp_uplinks
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
    def from_values(cls, values: Mapping[str, Any]) -> Files:
        """Return the files. values: of the host's intent; {} where that was not read."""
        return cls(values.get("busbar_fabric_plan") or "", values.get("busbar_lldp_neighbours") or "")


def join(results: Results, files: Mapping[str, Files]) -> None:
    """Add the findings of the comparison to the role's results (host -> role -> result). files: by host."""
    heard = {host: _read_ends(host, of_host.get(ROLE)) for host, of_host in results.items()}
    alike: dict[Files, list[str]] = defaultdict(list)
    for host, ends in heard.items():
        if ends:
            alike[files.get(host, Files())].append(host)
    for named, hosts in alike.items():
        plan, no_plan = _loaded(named.plan, cabling_plan.load)
        known, no_table = _loaded(named.neighbours, _neighbours)
        if no_plan or no_table:
            for host in hosts:
                _add(results[host], [*no_plan, *no_table])
            continue
        ends = [end for host in hosts for end in heard[host]]
        own = [end for end in ends if end.chassis]
        told = _ends_from_table([end for end in ends if not end.chassis], known or (), own)
        judged = lldp_leaf.judge([*own, *told], plan)
        for host, findings in judged.items():
            _add(results[host], findings)
        for end in told:
            _close_gap(results[end.host], end, named.neighbours)
        _point(results, [*own, *told])


def _read_ends(host: str, role: RoleResult | None) -> list[End]:
    """Return the ends of a host; [] without a valid result, which the verdict reports."""
    said = (role and role.part("neighbours", _NEIGHBOURS)) or ()
    return [End(host, **{name: one[name] for name in one if name not in ("label", "pci")}) for one in said]


def _loaded(path: str, load: Callable[[Path], T]) -> tuple[T | None, list[Finding]]:
    if not path:
        return None, []
    try:
        return load(Path(path)), []
    except (OSError, ParseError) as error:
        said = error_text(error)
    return None, [PLAN.judge(path, "unknown", "a file that can be read", said, path)]


def _neighbours(path: Path) -> tuple[cabling_plan.Neighbour, ...]:
    return cabling_plan.neighbours(cabling_plan.read_text(path), str(path))


def _ends_from_table(silent: Iterable[End], known: Iterable[cabling_plan.Neighbour], heard: Iterable[End]) -> list[End]:
    """Return ends without LLDP, as the table has them. A switch that others report is the same switch."""
    table = {(host, port): one for one in known for host in aliases(one.host) for port in _port_names(one.port)}
    if not table:
        return []
    switches = {alias: end for end in heard for alias in aliases(end.name, end.chassis)}
    found = []
    for end in silent:
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


def _add(of_host: dict[str, RoleResult], findings: Iterable[Finding]) -> None:
    of_host[ROLE] = of_host[ROLE].adding(findings)


def _point(results: Results, ends: Iterable[End]) -> None:
    leaves: dict[tuple[str, int], frozenset[str]] = defaultdict(frozenset)
    for end in ends:
        leaves[end.host, end.rail] |= {end.switch}
    tested = []
    for host in sorted({end for end, _rail in leaves}):
        proven = results[host].get(suite.VERIFY, RoleResult())
        tested += lldp_uplinks.tests(host, proven.findings, proven.passed)
    for host, said in lldp_uplinks.evidence(tested, leaves).items():
        results[host][ROLE] = results[host][ROLE].adding((), [said])


def _close_gap(of_host: dict[str, RoleResult], end: End, source: str) -> None:
    """Replace the finding that an end has no neighbour: the table has it."""
    before = of_host[ROLE]
    silent = {
        one.id
        for one in before.findings
        if one.check == NEIGHBOUR.id and one.state == "unknown" and end.netdev in one.subject.split()
    }
    note = f"rail {end.rail} has no LLDP neighbour, and is judged by {source}"
    of_host[ROLE] = before.passing(silent, [end.switch, source]).adding((), [note])
