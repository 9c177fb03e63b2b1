# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Report recent repairs and their effect, from the action log of the control node.

Nodes with the same repair in the same run share a line. Figures are GB/s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.busbar.fabric.plugins.plugin_utils import nodeset
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation import action_log
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation.action_log import Entry

from .related_results import ABSENT, DAY, NO_ACTIONS, RelatedResults, limited, moment

# Days before the run's end whose actions are shown; nodes still out of service are shown regardless of age.
WINDOW = 30
# Lines of a table; characters of names; roles that a line names.
ROWS, NAMES, ROLES = 30, 200, 8
# Outcome of a finding, by the last of its entries that has one.
_RESULTS = {
    ("verified", "done"): "mended",
    ("verified", "failed"): "not mended",
    ("dropped", "done"): "stale, dropped",
    ("refused", "held"): "refused",
    ("refused", "failed"): "refused",
    ("drained", "held"): "held back",
    ("drained", "failed"): "held back",
    ("left_drained", "begun"): "kept out",
}
# State of the node afterwards.
_NODE = {
    ("resumed", "done"): "given back",
    ("resumed", "failed"): "not given back: Slurm did not respond",
    ("left_drained", "done"): "left drained",
    ("left_drained", "failed"): "left as it was: Slurm did not respond",
    ("drained", "held"): "left alone",
}
# Action, where it is not the role itself.
_DID = {"rebooted": "reboot", "measured": "measured again"}
_NOT_DONE = ("refused", "held back")


@dataclass
class Repair:
    """The actions of one run on one node for one finding. entries: of that finding, in order, each with its outcome."""

    host: str
    run: str
    check: str
    subject: str
    entries: list[Entry] = field(default_factory=list)

    @property
    def result(self) -> tuple[str, str]:
        """Return the outcome of the finding, and why."""
        found, why = "", ""
        for entry in self.entries:
            result = _RESULTS.get((entry.action, entry.outcome))
            # A node that is kept out after a repair is reported by the check that failed again.
            if result and not (entry.action == "left_drained" and found):
                found, why = result, entry.why
        return (found, why) if found else ("not ended", self.entries[-1].why)

    @property
    def did(self) -> tuple[str, ...]:
        """Return roles that were played, a reboot, a measurement."""
        words = (entry.role if entry.action == "role" else _DID.get(entry.action) for entry in self.entries)
        return tuple(dict.fromkeys(filter(None, words)))

    def figure(self, when: str) -> float | None:
        """Return the last figure ``before`` or ``after`` in GB/s, None without one."""
        return next((value for entry in reversed(self.entries) if (value := getattr(entry, when)) is not None), None)


def latest(beside: RelatedResults) -> Plain:
    """Return the section of the report. Keys: docs/report.md."""
    found, log = beside.actions
    if log is None:
        return found
    path = action_log.file(beside.results)
    if not path.exists():
        return beside.clean({**found, "state": ABSENT, "why": f"{path} does not exist: {NO_ACTIONS}"})
    since = beside.now - WINDOW * DAY
    recent = [entry for entry in log.entries if entry.at >= since]
    repairs = _repairs(recent)
    states = _node_states(recent)
    lines = _lines(repairs, states, beside.now)
    section = {
        **found,
        "days": WINDOW,
        "torn": log.torn,
        "said": [*_sentences(repairs, states, log.torn)],
        **limited("out", _out(log.entries, beside.now), ROWS),
        **limited("done", [line for line in lines if line["result"] not in _NOT_DONE], ROWS),
        **limited("refused", [line for line in lines if line["result"] in _NOT_DONE], ROWS),
    }
    return beside.clean(section)


def _repairs(entries: Sequence[Entry]) -> list[Repair]:
    found: dict[tuple[str, str, str], Repair] = {}
    plain: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        if entry.finding:
            key = (entry.run, entry.host, entry.finding)
            found.setdefault(key, Repair(entry.host, entry.run, entry.check, entry.subject)).entries.append(entry)
        else:
            plain.setdefault((entry.run, entry.host), []).append(entry)
    # An action for none of a node's findings counts for each of them; without findings it has its own line.
    for repair in found.values():
        repair.entries += plain.get((repair.run, repair.host), [])
        repair.entries.sort(key=lambda entry: entry.at)
    for run, host, _finding in found:
        plain.pop((run, host), None)
    return [*found.values(), *(Repair(host, run, "", "", of_node) for (run, host), of_node in plain.items())]


def _node_states(entries: Sequence[Entry]) -> dict[tuple[str, str], str]:
    """Return (run, host) -> state of the node after it, of nodes that were drained."""
    found: dict[tuple[str, str], str] = {}
    for entry in entries:
        key = (entry.run, entry.host)
        if (entry.action, entry.outcome) == ("drained", "begun"):
            found[key] = "drained, and not ended"
        elif key in found:
            found[key] = _NODE.get((entry.action, entry.outcome), found[key])
    return found


def _lines(repairs: Sequence[Repair], states: Mapping[tuple[str, str], str], now: float) -> list[Plain]:
    """Return a line for equal repairs of a run, the newest first."""
    groups: dict[tuple[object, ...], list[tuple[Repair, Plain]]] = {}
    for repair in repairs:
        result, why = repair.result
        same: Plain = {
            "run": repair.run,
            "check": repair.check,
            "subject": repair.subject,
            "did": [*repair.did[:ROLES]],
            "attempt": max(entry.attempt for entry in repair.entries),
            "result": result,
            "node": states.get((repair.run, repair.host), ""),
        }
        groups.setdefault((*map(str, same.values()), nodeset.nameless(why, repair.host)), []).append((repair, same))
    found = []
    for (*_same, reason), group in groups.items():
        of, moments = [repair for repair, _same in group], [one.at for repair, _ in group for one in repair.entries]
        line = {
            **group[0][1],
            "at": moment(min(moments)),
            "until": moment(max(moments)),
            "age_days": round((now - max(moments)) / DAY, 2),
            "nodes": nodeset.brief((repair.host for repair in of), NAMES),
            "count": len(group),
            "why": (reason if len(group) > 1 else of[0].result[1]) or "",
        }
        for when in ("before", "after"):
            figures = [value for repair in of if (value := repair.figure(when)) is not None]
            line[when] = [min(figures), max(figures)] if figures else None
        found.append(line)
    return sorted(found, key=lambda line: str(line["at"]), reverse=True)


def _out(entries: Sequence[Entry], now: float) -> list[Plain]:
    """Return nodes that a killed run left drained, and those that were left drained for a person to look at."""
    left: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.action == "left_drained":
            left.setdefault(entry.host, []).append(entry)
        elif (entry.action, entry.outcome) == ("resumed", "done"):
            left.pop(entry.host, None)
    out = {host: ("not ended", entry.at, entry) for host, entry in action_log.open_drains(entries).items()}
    for host in sorted(action_log.held(entries)):
        since = next(entry.at for entry in left[host] if entry.outcome == "done")
        reason = next((entry for entry in reversed(left[host]) if entry.outcome == "begun"), left[host][-1])
        out.setdefault(host, ("left drained", since, reason))
    groups: dict[tuple[str, str, str], dict[str, float]] = {}
    for host, (state, since, reason) in out.items():
        key = (state, reason.check, nodeset.nameless(reason.why, host) or "")
        groups.setdefault(key, {})[host] = since
    found = []
    for (state, check, why), hosts in groups.items():
        line: Plain = {"state": state, "check": check, "reason": why, "nodes": nodeset.brief(hosts, NAMES)}
        age = round((now - min(hosts.values())) / DAY, 2)
        found.append({**line, "count": len(hosts), "since": moment(min(hosts.values())), "age_days": age})
    return found


def _sentences(repairs: Sequence[Repair], states: Mapping[tuple[str, str], str], torn: int) -> Iterator[str]:
    results = [repair.result[0] for repair in repairs if repair.check]
    parts = [_tally("finding", results), _tally("node", states.values())]
    yield f"in the last {WINDOW} days: " + ("; ".join(filter(None, parts)) or "no finding was acted on")
    pairs = [(repair.figure("before"), repair.figure("after")) for repair in repairs]
    gained = [(before, after) for before, after in pairs if before is not None and after is not None]
    if gained:
        better = sum(after > before for before, after in gained)
        spans = [span([min(each), max(each)]) for each in zip(*gained, strict=True)]
        line = f"{better} of {len(gained)} figures that were measured before and after are higher now"
        yield f"{line}: {spans[0]} GB/s, then {spans[1]} GB/s"
    if torn:
        yield f"lines of the action log that a crash has cut off: {torn}"


def _tally(noun: str, words: Collection[str]) -> str:
    counts = ", ".join(f"{number:,} {word}" for word, number in Counter(words).most_common())
    return f"{len(words):,} {noun}{'s' * (len(words) != 1)}: {counts}" if words else ""


def span(figures: Sequence[float] | None) -> str:
    """Format figures: ``231``, ``231 to 240``, ``-`` for none."""
    if not figures:
        return "-"
    low, high = ("%.4g" % figure for figure in figures)
    return low if low == high else f"{low} to {high}"
