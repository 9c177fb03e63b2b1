# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Render the related results for a terminal: fabric, slow nodes, repairs, nodes at the gate."""

from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.plugin_utils import nodeset
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

# Lines of each section, and characters of names; the HTML and JSON reports have all.
LINES, NAMES = 12, 60
# Section -> its name, the event of which the age is shown, the key of its lines, and a line.
_SECTIONS = {
    "fabric": ("fabric", ", swept ", "bad", "{state}  {check}  {where}: {said}"),
    "localised": (
        "slow nodes",
        ", searched until ",
        "causes",
        "{severity}  {state}  {check}  {subject}  on {nodes}: expected {want}; actual {have}; do: {fix}",
    ),
    "actions": ("repaired", "", "out", "out of service since {since}, {state}: {nodes}: {reason}"),
}


def sections(report: Plain) -> list[list[str]]:
    """Return the sentences of each section. A site without searches or repairs is not reminded in each report."""
    found = [_lines(report[name], *words) for name, words in _SECTIONS.items() if report[name]]
    if gate := report["gate"]:
        # Nodes that it keeps out have findings.
        found.append([f"gate: {gate['in_service']:,} of {gate['asked']:,} nodes with a gate are in service by it"])
    return [lines for lines in found if lines]


def _lines(section: Plain, title: str, event: str, key: str, line: str) -> list[str]:
    if section["state"] != "measured":
        return [f"{title}: {section['why']}"] if section["state"] != "absent" else []
    first, *rest = section["said"]
    found = [f"{title}{event}{_when(section) if event else ''}: {first}", *rest]
    for row in section[key][:LINES]:
        back = f"; repaired and given back since: {row['given_back']}" if row.get("given_back") else ""
        values = {name: value or "-" for name, value in row.items()}
        found.append(line.format_map({**values, "nodes": nodeset.cut(row.get("nodes", ""), NAMES)}) + back)
    more = section[f"{key}_left_out"] + len(section[key][LINES:])
    return found + ([f"and {more} more: busbar report --html FILE or --json FILE has them"] if more else [])


def _when(section: Plain) -> str:
    old = ", too old to show the current state of the cluster" if section["old"] else ""
    days = int(max(section["age_days"], 0))
    age = f"{days} day{'s' * (days != 1)} old" if days else "less than a day old"
    return f"{section['finished']}, {age}{old}"
