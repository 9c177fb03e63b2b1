# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What lies beside the history, for a terminal: the fabric, who is slow, what was repaired, nodes at the gate."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.busbar.fabric.plugins.plugin_utils import nodeset, terminal

from .actions import span

# Of each kind, of strips of rails, and characters of names; all are in the HTML and JSON reports.
LINES, STRIPS, NAMES = 12, 4, 60
_MORE = "busbar report --html FILE or --json FILE has them"


def lines(report: Mapping[str, object], width: int) -> list[str]:
    """No line is longer than ``width``, names of hosts aside."""
    found: list[str] = []
    for section in (_fabric, _localised, _actions, _gate):
        found += section(report, width)
    return found


def sections(report: Mapping[str, Any]) -> list[list[str]]:
    """Return the same in a few sentences for each section."""
    found = []
    for name, sentences in (("fabric", _swept), ("localised", _searched), ("actions", _repaired)):
        section = report[name]
        # A site that has never searched, or repaired from here, is not reminded each night.
        if section and section["state"] != "absent":
            found.append(sentences(section))
    return [*found, _at_gate(report["gate"])] if report["gate"] else found


def _swept(section: Mapping[str, Any]) -> list[str]:
    if section["state"] != "measured":
        return [f"fabric: {section['why']}"]
    first, *rest = section["said"]
    return [f"fabric, swept {_when(section)}: {first}", *rest]


def _when(section: Mapping[str, Any]) -> str:
    old = ", too old to say what the cluster does today" if section["old"] else ""
    days = int(max(section["age_days"], 0))
    age = f"{days} day{'s' * (days != 1)} old" if days else "less than a day old"
    return f"{section['finished']}, {age}{old}"


def _searched(section: Mapping[str, Any]) -> list[str]:
    if section["state"] != "measured":
        return [f"who is slow: {section['why']}"]
    first, *rest = section["said"]
    return [f"who is slow, searched until {_when(section)}: {first}", *rest]


def _repaired(section: Mapping[str, Any]) -> list[str]:
    if section["state"] != "measured":
        return [f"repaired: {section['why']}"]
    found = [f"repaired: {text}" for text in section["said"]]
    for out in section["out"][:LINES]:
        why = f": {out['reason']}" if out["reason"] else ""
        found.append(f"out of service since {out['since']}, {out['state']}: {_short(out['nodes'])}{why}")
    return found


def _at_gate(section: Mapping[str, Any]) -> list[str]:
    found = [f"gate: {section['in_service']:,} of {section['asked']:,} nodes with a gate are in service by it"]
    for kind, word in (
        ("kept_out", "kept out"),
        ("held", "would be kept out, and is held back"),
        ("unknown", "gives no verdict that counts"),
    ):
        for line in section[kind][:LINES]:
            since = f" since {line['since']}" if line["since"] else ""
            found.append(f"gate: {word}{since}: {_short(line['nodes'])} ({line['count']}): {line['said']}")
    return found


def _fabric(report: Mapping[str, Any], width: int) -> Iterator[str]:
    section = report["fabric"]
    if not section:
        return
    yield ""
    for text in _swept(section):
        yield from _wrapped(text, width)
    if section["state"] != "measured":
        return
    for bad in section["bad"][:LINES]:
        yield from _wrapped(f"{bad['state']}  {bad['check']}  {bad['where']}: {bad['said']}", width, "  ")
    more = section["bad_left_out"] + len(section["bad"][LINES:])
    if more:
        yield from _wrapped(f"and {more} more bad links: {_MORE}", width, "  ")


def _localised(report: Mapping[str, Any], width: int) -> Iterator[str]:
    section = report["localised"]
    if not section:
        return
    yield ""
    for text in _searched(section):
        yield from _wrapped(text, width)
    if section["state"] != "measured":
        return
    told = set()
    for cause in section["causes"][:LINES]:
        head = f"{cause['severity']}  {cause['state']}  {cause['check']}  {cause['subject']}"
        yield from _wrapped(f"{head}  on {_short(cause['nodes'])}", width, "  ")
        yield from _wrapped(f"want {cause['want']}", width, "    ")
        yield from _wrapped(f"have {cause['have']}", width, "    ")
        if cause["given_back"]:
            yield from _wrapped(f"repaired and given back since: {cause['given_back']}", width, "    ")
        # Of many of one kind it is the same.
        if cause["fix"] not in told:
            yield from _wrapped(f"do: {cause['fix']}", width, "    ")
        told.add(cause["fix"])
    more = section["causes_left_out"] + len(section["causes"][LINES:])
    if more:
        yield from _wrapped(f"and {more} more causes: {_MORE}", width, "  ")
    strips = [
        grid
        for grid in section["maps"]
        if grid["kind"] == "rails" and any(cell["outcome"] != "pass" for cell in grid["cells"])
    ]
    for grid in strips[:STRIPS]:
        yield from _strip(grid, width)
    if len(strips) > STRIPS:
        yield from _wrapped(f"rails of further nodes, {len(strips) - STRIPS}: {_MORE}", width, "  ")


def _strip(grid: Mapping[str, Any], width: int) -> Iterator[str]:
    """The rails of one node by the ways that were measured; what is slow is marked."""
    cells: dict[int, dict[int, str]] = {}
    marks = {"fail": "!", "silent": "?"}
    for cell in grid["cells"]:
        figure = "" if cell["figure"] is None else f"{cell['figure']:.1f}"
        cells.setdefault(cell["row"], {})[cell["column"]] = figure + marks.get(cell["outcome"], "")
    numbers = range(len(grid["columns"]))
    rows = [
        ((f"  {name}", *(cells.get(row, {}).get(column, "") for column in numbers)), ())
        for row, name in enumerate(grid["rows"])
    ]
    if rows:
        heads = [f"  {grid['title']}", *(name.rpartition(" ")[2] for name in grid["columns"])]
        yield from terminal.table(heads, rows, width)


def _actions(report: Mapping[str, Any], width: int) -> Iterator[str]:
    section = report["actions"]
    if not section:
        return
    yield ""
    for text in _repaired(section):
        yield from _wrapped(text, width)
    if section["state"] != "measured":
        return
    found = [*section["done"], *section["refused"]]
    rows = [_row(line) for line in found[:LINES]]
    if rows:
        heads = ["  NODES", "WHEN", "CHECK", "DONE", "RESULT", "BEFORE", "AFTER", "NODE"]
        yield from terminal.table(heads, rows, width, (("CHECK", "NODE"), ("CHECK", "DONE", "NODE", "WHEN")))
    more = section["done_left_out"] + section["refused_left_out"] + len(found[LINES:])
    if more:
        yield from _wrapped(f"and {more} more lines: {_MORE}", width, "  ")


def _row(line: Mapping[str, Any]) -> terminal.Line:
    nodes = nodeset.cut(line["nodes"], 30) + (f" ({line['count']})" if line["count"] > 1 else "")
    done = ", ".join(line["did"]) + (f", attempt {line['attempt']}" if line["attempt"] > 1 else "")
    when = f"{line['at'][5:10]} {line['at'][11:16]}"
    why = line["why"] if line["why"] != "ok" else ""
    figures = (span(line["before"]), span(line["after"]))
    return (f"  {nodes}", when, line["check"] or "-", done or "-", line["result"], *figures, line["node"] or "-"), (
        why,
    )


def _gate(report: Mapping[str, Any], width: int) -> Iterator[str]:
    if report["gate"]:
        yield ""
        for text in _at_gate(report["gate"]):
            yield from _wrapped(text, width)


def _short(nodes: str) -> str:
    return nodeset.cut(nodes, NAMES)


def _wrapped(text: str, width: int, indent: str = "") -> Sequence[str]:
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=f"{indent}    ", break_on_hyphens=False
    ) or [""]
