# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Render the related results for a terminal: fabric, slow nodes, repairs, nodes at the gate."""

from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.plugin_utils import nodeset
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

from .actions import span

# Lines of each kind, and characters of names; the HTML and JSON reports have all, and the maps.
LINES, NAMES = 12, 60
_MORE = "busbar report --html FILE or --json FILE has them"


def sections(report: Plain) -> list[list[str]]:
    """Return the sentences of each section."""
    found = []
    for name, sentences in (("fabric", _swept), ("localised", _searched), ("actions", _repaired)):
        section = report[name]
        # A site without searches or repairs is not reminded in each report.
        if section and section["state"] != "absent":
            found.append(sentences(section))
    return [*found, _at_gate(report["gate"])] if report["gate"] else found


def _swept(section: Plain) -> list[str]:
    if section["state"] != "measured":
        return [f"fabric: {section['why']}"]
    first, *rest = section["said"]
    bad = [f"{bad['state']}  {bad['check']}  {bad['where']}: {bad['said']}" for bad in section["bad"][:LINES]]
    more = section["bad_left_out"] + len(section["bad"][LINES:])
    rest += [*bad, *([f"and {more} more bad links: {_MORE}"] if more else [])]
    return [f"fabric, swept {_when(section)}: {first}", *rest]


def _when(section: Plain) -> str:
    old = ", too old to show the current state of the cluster" if section["old"] else ""
    days = int(max(section["age_days"], 0))
    age = f"{days} day{'s' * (days != 1)} old" if days else "less than a day old"
    return f"{section['finished']}, {age}{old}"


def _searched(section: Plain) -> list[str]:
    if section["state"] != "measured":
        return [f"slow nodes: {section['why']}"]
    first, *rest = section["said"]
    found = [f"slow nodes, searched until {_when(section)}: {first}", *rest]
    for cause in section["causes"][:LINES]:
        head = f"{cause['severity']}  {cause['state']}  {cause['check']}  {cause['subject']}"
        text = f"{head}  on {_short(cause['nodes'])}: expected {cause['want']}; actual {cause['have']}"
        text += f"; repaired and given back since: {cause['given_back']}" if cause["given_back"] else ""
        found.append(f"{text}; do: {cause['fix']}")
    more = section["causes_left_out"] + len(section["causes"][LINES:])
    return found + ([f"and {more} more causes: {_MORE}"] if more else [])


def _repaired(section: Plain) -> list[str]:
    if section["state"] != "measured":
        return [f"repaired: {section['why']}"]
    found = [f"repaired: {text}" for text in section["said"]]
    for out in section["out"][:LINES]:
        why = f": {out['reason']}" if out["reason"] else ""
        found.append(f"out of service since {out['since']}, {out['state']}: {_short(out['nodes'])}{why}")
    done = [*section["done"], *section["refused"]]
    found += map(_done, done[:LINES])
    more = section["done_left_out"] + section["refused_left_out"] + len(done[LINES:])
    return found + ([f"and {more} more actions: {_MORE}"] if more else [])


def _done(line: Plain) -> str:
    attempt = f", attempt {line['attempt']}" if line["attempt"] > 1 else ""
    figures = [f"{when} {span(line[when])}" for when in ("before", "after") if line[when]]
    why = [line["why"]] if line["why"] not in ("", "ok") else []
    head = f"{line['at'][5:10]} {line['at'][11:16]} {_short(line['nodes'])}: {line['check'] or '-'}"
    words = [", ".join(line["did"]) or "-", line["result"], *figures, line["node"], *why]
    return f"{head}: {'; '.join(filter(None, words))}{attempt}"


def _at_gate(section: Plain) -> list[str]:
    found = [f"gate: {section['in_service']:,} of {section['asked']:,} nodes with a gate are in service by it"]
    for kind, word in (
        ("kept_out", "kept out"),
        ("held", "would be kept out, but the limit prevents it"),
        ("unknown", "has no current verdict"),
    ):
        for line in section[kind][:LINES]:
            since = f" since {line['since']}" if line["since"] else ""
            found.append(f"gate: {word}{since}: {_short(line['nodes'])} ({line['count']}): {line['said']}")
    return found


def _short(nodes: str) -> str:
    return nodeset.cut(nodes, NAMES)
