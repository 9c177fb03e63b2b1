# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Render the report for a terminal and for a notification: the verdict, the findings, and what to run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.plugin_utils import nodeset, repair, screen, terminal
from ansible_collections.busbar.fabric.plugins.plugin_utils.finding_groups import Group, Row
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

from .related_results import MEASURED

# Lines of each section's table; the HTML and JSON reports have more.
LINES = 12
# Characters of node names.
NODES = 300
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
    parts = [not_judged, notes, [*_changes(report)], [*_accepted(report)], *map(related, report["related"])]
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
    previous = report["run"]["previous"]
    yield f"compared with run {previous['id']}" if previous else "no earlier run to compare with"


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


def related(section: Plain) -> list[str]:
    """Return the sentences and the table of a section of ``related_results``."""
    if section["state"] != MEASURED:
        return [f"{section['title']}: {section['why']}"]
    first, *rest = section["sentences"]
    title = ", ".join(filter(None, (section["title"], section["age"])))
    more = section["left_out"] + len(section["table"][LINES:])
    has_all = [f"and {more} more: busbar report --html FILE or --json FILE has them"] if more else []
    return [f"{title}: {first}", *rest, *section["table"][:LINES], *has_all]
