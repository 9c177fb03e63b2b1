# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Render the report for a terminal and for a chat: the verdict, the findings, and what to run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.plugin_utils import nodeset, repair, screen, terminal
from ansible_collections.busbar.fabric.plugins.plugin_utils.finding_groups import Group, Row
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
# Characters of node names, and columns of a chat.
NODES, COLUMNS = 300, 100
# Groups in a message at most.
BRIEF = 15
MORE = "-v, --json FILE, or busbar report --html FILE"
_WORDS = {"in sync": "OK", "drift": "NOT OK", "incomplete": "INCOMPLETE"}
# Fields that are the same in all findings of a group.
_FIELDS = ("check", "aspect", "state", "severity", "source", "why", "fix", "disruption")


def rendered(report: Plain, again: Sequence[str] = (), width: int = terminal.WIDTH, verbose: bool = False) -> str:
    """Return one screen for a terminal, or all with ``verbose``. again: the command that shows the run."""
    rows = screen.rows(_groups(report))
    counts, hosts = report["counts"], report["counts"]["hosts"]
    accepted = sum(group["count"] for group in report["waived"])
    ok, total = hosts["in_sync"] + hosts["waived"], counts["total"]
    head = screen.summary(_WORDS[report["verdict"]], ok, total, counts["passed"], accepted)
    notes = [
        f"note ({'all hosts' if note['count'] == total > 1 else note['nodes']}): {note['text']}"
        for note in report["notes"]
    ]
    not_judged = [f"{name.replace('_', ' ')}: {nodes}" for name, nodes in report["open"].items()]
    parts = [not_judged, notes, [*_changes(report)], [*_accepted(report)], *sections(report)]
    rest = [line for part in parts for line in screen.each(part, width, verbose)]

    remarks = {group["fingerprint"]: _history({**group, "follows": 0}) for group in report["groups"]}
    mode = "check mode" + ") (simulated" * report["simulated"]

    def command(fix: str, names: Sequence[str], groups: str) -> str:
        return repair.command(fix, names, report["run"]["inventory"], again, groups)

    return screen.render(head, mode, rows, rest, command, width, MORE, verbose, remarks) + "\n"


def _groups(report: Plain) -> list[Group]:
    # Groups that differ in severity only share a fingerprint.
    groups = {(group["fingerprint"], group["severity"]): group for group in report["groups"]}
    found: dict[tuple[str, str], list[Row]] = {key: [] for key in groups}
    for host, of_host in report["hosts"].items():
        for given in of_host["findings"]:
            key = (given["group"], given["severity"])
            if key in groups:
                words = {name: given[name] for name in ("subject", "want", "have")}
                finding = Finding(**{name: groups[key][name] for name in _FIELDS}, **words)
                found[key].append(Row(host, finding, 0 if found[key] else groups[key]["follows"]))
    return [Group(key[0], of[0].finding, None, tuple(of), not groups[key]["alike"]) for key, of in found.items()]


def markdown(report: Plain, again: Sequence[str]) -> str:
    """Return the screen for a chat. Indented, so that nothing in it is markup and nothing can end the block."""
    run = report["run"]
    lines = [f"**{report['verdict'].upper()}**: run {run['id']}, {run['started']}", ""]
    return "\n".join([*lines, *(f"    {line}" for line in rendered(report, again, COLUMNS).splitlines())]) + "\n"


def brief(report: Plain, again: Sequence[str]) -> str:
    """Return the text of a notification: checks and nodes, no output of tools. again: command that shows the run."""
    groups = report["groups"]
    lines = [report["headline"]]
    lines += [f"{name.replace('_', ' ')}: {_cut(nodes)}" for name, nodes in report["open"].items()]
    for group in groups[:BRIEF]:
        kind = f"{group['severity']} {group['state']} {group['check']}"
        lines.append(f"{kind} on {_cut(group['nodes'])} ({_history(group)})")
    lines += [f"and {len(groups) - BRIEF} more groups"] if len(groups) > BRIEF else []
    lines.append(shlex.join(again))
    return "\n".join(lines) + "\n"


def _changes(report: Plain) -> Iterator[str]:
    for kind, text in (
        ("fixed", "fixed"),
        ("flapping", "flapping, so find the cause before the next repair"),
        ("gone", "not checked any more"),
        ("unverified", "found before, and not judged this time"),
    ):
        for row in report[kind]:
            yield f"{text}: {row['check']} on {_cut(row['nodes'])}"
    run = report["run"]
    if run["since"]:
        yield f"compared with run {run['since']['id']} of {run['since']['started']}"
    else:
        yield f"compared with run {run['previous']['id']}" if run["previous"] else "no earlier run to compare with"


def _accepted(report: Plain) -> Iterator[str]:
    for waiver in report["waivers"]:
        text = f"accepted, {waiver['state']}: {waiver['check']} on {_cut(waiver['hosts'])}, {waiver['owner']}"
        yield f"{text}, until {waiver['expires']}: {waiver['reason']}"


def _history(group: Plain) -> str:
    """Return ``new, corrective``, or since when and why."""
    parts = [f"since {group['first']['started'][:10]}"] if group["standing"] else []
    parts += ["new on some" if group["standing"] else "new"] if group["new"] else []
    parts += [name.replace("_", " ") for name in sorted(group["origins"])]
    parts += ["flapping"] if group["flapping"] else []
    parts += [f"{group['follows']} more follow{'s' if group['follows'] == 1 else ''}"] if group["follows"] else []
    return ", ".join(parts) or "not judged"


def _cut(nodes: str) -> str:
    found = nodeset.cut(nodes, NODES)
    return found if found == nodes else f"{found} (busbar report --json FILE names all)"


# -- results beside the history ----------------------------------------------------------------------------------------


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
