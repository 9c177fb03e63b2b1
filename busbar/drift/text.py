# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The report for a terminal and, as Markdown, for a chat: the headline, what is wrong and what to run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.busbar.fabric.plugins.plugin_utils import nodeset, terminal

from . import beside_text

# More groups than this are not read at night; all are in the HTML and JSON reports.
GROUPS = 30
NODES = 300
# And more than this in no message.
BRIEF = 15
MORE = "busbar report --html FILE or --json FILE has them"


def rendered(report: Mapping[str, Any], width: int = terminal.WIDTH) -> str:
    """For a terminal. width: of what is a table; commands and what is to be copied are not cut."""
    lines = [report["headline"]]
    lines += [f"{name.replace('_', ' ')}: {_cut(nodes)}" for name, nodes in report["open"].items()]
    lines += _notes(report)
    for group in report["groups"][:GROUPS]:
        lines += ["", f"{group['severity']}  {group['state']}  {group['check']}  {_where(group)}"]
        lines += [f"    on {_cut(group['nodes'])} ({_history(group)})"]
        lines += [f"    want {group['want'] or '-'}, have {group['have'] or '-'}"]
        lines += [f"    {group['alike']}"] if group["alike"] else []
        lines += [f"    do: {group['fix']}"]
        lines += [f"    {'' if group['repairs'] else 'then '}$ {group['command']}"] if group["command"] else []
    lines += [*beside_text.lines(report, width), "", *_rest(report)]
    return "\n".join(lines) + "\n"


def markdown(report: Mapping[str, Any]) -> str:
    run = report["run"]
    lines = [f"**{report['verdict'].upper()}**: {_escape(report['headline'])}", ""]
    lines += [f"- {name.replace('_', ' ')}: {_escape(_cut(nodes))}" for name, nodes in report["open"].items()]
    lines += [f"- {_escape(line)}" for line in _notes(report)]
    if report["groups"]:
        lines += ["", "| severity | check | nodes | want | have | since |", "|---|---|---|---|---|---|"]
    for group in report["groups"][:GROUPS]:
        cells = (
            group["severity"],
            f"{group['check']} {_where(group)}",
            f"{_cut(group['nodes'])} ({group['count']})",
            group["want"] or "-",
            group["have"] or "-",
            _history(group),
        )
        lines.append("| " + " | ".join(_escape(cell) for cell in cells) + " |")
    remedies: dict[str, tuple[str, bool]] = {}
    for group in report["groups"][:GROUPS]:
        remedies.setdefault(group["fix"], (group["command"], group["repairs"]))
    for fix, (command, repairs) in remedies.items():
        lines += ["", f"To repair: {_escape(fix)}"]
        # Indented, so that nothing in it can end the block.
        lines += [*["", "After that:"] * (not repairs), "", f"    {command}"] if command else []
    told = [*beside_text.sentences(report), *_rest(report)]
    lines += ["", *(f"- {_escape(line)}" for line in told), "", f"Run {run['id']}, {run['started']}"]
    return "\n".join(lines) + "\n"


def brief(report: Mapping[str, Any], again: Sequence[str]) -> str:
    """For a message: checks and nodes, and no word of a tool's. again: the command that shows the night."""
    groups = report["groups"]
    lines = [report["headline"]]
    lines += [f"{name.replace('_', ' ')}: {_cut(nodes)}" for name, nodes in report["open"].items()]
    for group in groups[:BRIEF]:
        said = f"{group['severity']} {group['state']} {group['check']} on {_cut(group['nodes'])}"
        lines.append(f"{said} ({_history(group)})")
    lines += [f"and {len(groups) - BRIEF} more groups"] if len(groups) > BRIEF else []
    lines.append(shlex.join(again))
    return "\n".join(lines) + "\n"


def _notes(report: Mapping[str, Any]) -> list[str]:
    """What was seen is to be read with these in mind, so they stand before it."""
    notes = report["notes"]
    lines = [f"note ({_cut(note['nodes'])}): {note['text']}" for note in notes[:GROUPS]]
    more = f"and {len(notes) - GROUPS} more notes: {MORE}"
    return [*lines, more] if len(notes) > GROUPS else lines


def _rest(report: Mapping[str, Any]) -> Iterator[str]:
    if len(report["groups"]) > GROUPS:
        yield f"and {len(report['groups']) - GROUPS} more groups: {MORE}"
    for kind, said in (
        ("fixed", "fixed"),
        ("flapping", "flapping, so find the cause before the next repair"),
        ("gone", "not asked any more"),
        ("unverified", "was there, and was not judged this time"),
    ):
        for row in report[kind][:GROUPS]:
            yield f"{said}: {row['check']} on {_cut(row['nodes'])}"
    for waiver in report["waivers"]:
        said = f"accepted, {waiver['state']}: {waiver['check']} on {_cut(waiver['hosts'])}, {waiver['owner']}"
        yield f"{said}, until {waiver['expires']}: {waiver['reason']}"
    run = report["run"]
    if run["since"]:
        yield f"compared with run {run['since']['id']} of {run['since']['started']}"
    else:
        yield f"compared with run {run['previous']['id']}" if run["previous"] else "no earlier run to compare with"


def _where(group: Mapping[str, Any]) -> str:
    more = f" and {group['more_subjects']} more" if group["more_subjects"] else ""
    return ", ".join(group["subjects"]) + more


def _history(group: Mapping[str, Any]) -> str:
    """``new, corrective``, or since when and why."""
    parts = [f"since {group['first']['started'][:10]}"] if group["standing"] else []
    parts += ["new on some" if group["standing"] else "new"] if group["new"] else []
    parts += [name.replace("_", " ") for name in sorted(group["origins"])]
    parts += ["flapping"] if group["flapping"] else []
    parts += [f"{group['follows']} more follow{'s' if group['follows'] == 1 else ''}"] if group["follows"] else []
    return ", ".join(parts) or "not judged"


def _cut(nodes: str) -> str:
    found = nodeset.cut(nodes, NODES)
    return found if found == nodes else f"{found} (busbar report --json FILE names all)"


def _escape(text: str) -> str:
    """Text that means nothing to Markdown or to HTML within it."""
    return re.sub(r"([\\`*_{}\[\]()#+!|~@-])", r"\\\1", text).replace("&", "&amp;").replace("<", "&lt;")
