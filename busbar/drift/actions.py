# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Report recent repairs and their effect, from the action log of the control node.

Nodes with the same repair in the same run share a line. Figures are GB/s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.busbar.fabric.plugins.plugin_utils import nodeset
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation import action_log
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation.action_log import Entry

from .related_results import ABSENT, DAY, NO_ACTIONS, RelatedResults, limited, moment

# Days before the run's end whose actions are shown; nodes still out of service are shown regardless of age.
WINDOW = 30
# Lines of a table; characters of a text, of names, and of a name; roles that a line names.
ROWS, SAID, NAMES, NAME, ROLES = 30, 300, 200, 100, 8
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
_DID = {"role": "role", "rebooted": "reboot", "measured": "measured again"}
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
        for one in self.entries:
            result = _RESULTS.get((one.action, one.outcome))
            # A node that is kept out after a repair is reported by the check that failed again.
            if result and not (one.action == "left_drained" and found):
                found, why = result, one.why
        return (found, why) if found else ("not ended", self.entries[-1].why)

    @property
    def did(self) -> tuple[str, ...]:
        """Return roles that were played, a reboot, a measurement."""
        words = ((one, _DID.get(one.action)) for one in self.entries)
        return tuple(dict.fromkeys(one.role if one.action == "role" else word for one, word in words if word))

    def figure(self, when: str) -> float | None:
        """Return the last figure ``before`` or ``after`` in GB/s, None without one."""
        return next((value for one in reversed(self.entries) if (value := getattr(one, when)) is not None), None)


def latest(beside: RelatedResults) -> Plain:
    """Return the section of the report. Keys: docs/report.md."""
    found, log = beside.actions
    if log is None:
        return found
    path = action_log.file(beside.results)
    if not path.exists():
        return {**found, "state": ABSENT, "why": beside.text(f"{path} does not exist: {NO_ACTIONS}")}
    since = beside.now - WINDOW * DAY
    recent = [one for one in log.entries if one.at >= since]
    stories = _stories(recent)
    of_node = _of_nodes(recent)
    lines = [_line(group, of_node, beside) for group in _grouped(stories, of_node)]
    lines.sort(key=lambda line: line["at"], reverse=True)
    done = [line for line in lines if line["result"] not in _NOT_DONE]
    refused = [line for line in lines if line["result"] in _NOT_DONE]
    return {
        **found,
        "days": WINDOW,
        "torn": log.torn,
        "said": [*_sentences(recent, stories, of_node, log.torn)],
        **limited("out", _out(log.entries, beside), ROWS),
        **limited("done", done, ROWS),
        **limited("refused", refused, ROWS),
    }


def _stories(entries: Sequence[Entry]) -> list[Repair]:
    found: dict[tuple[str, str, str], Repair] = {}
    plain: dict[tuple[str, str], list[Entry]] = {}
    for one in entries:
        if one.finding:
            key = (one.run, one.host, one.finding)
            found.setdefault(key, Repair(one.host, one.run, one.check, one.subject)).entries.append(one)
        else:
            plain.setdefault((one.run, one.host), []).append(one)
    # An action for none of a node's findings counts for each of them; without findings it has its own line.
    for (run, host, _finding), story in found.items():
        story.entries += plain.get((run, host), [])
        story.entries.sort(key=lambda one: one.at)
    told = {(run, host) for run, host, _finding in found}
    return [
        *found.values(),
        *(Repair(host, run, "", "", of_node) for (run, host), of_node in plain.items() if (run, host) not in told),
    ]


def _of_nodes(entries: Sequence[Entry]) -> dict[tuple[str, str], str]:
    """Return (run, host) -> state of the node after it; "" of a node that was never drained."""
    found: dict[tuple[str, str], str] = {}
    for one in entries:
        key = (one.run, one.host)
        if (one.action, one.outcome) == ("drained", "begun"):
            found[key] = "drained, and not ended"
        elif (one.action, one.outcome) in _NODE and found.get(key):
            found[key] = _NODE[one.action, one.outcome]
    return found


def _grouped(stories: Sequence[Repair], of_node: Mapping[tuple[str, str], str]) -> list[list[Repair]]:
    groups: dict[tuple[object, ...], list[Repair]] = {}
    for story in stories:
        result, why = story.result
        attempt = max(one.attempt for one in story.entries)
        key = (story.run, story.check, story.subject, story.did, attempt, result, nodeset.nameless(why, story.host))
        groups.setdefault((*key, of_node.get((story.run, story.host), "")), []).append(story)
    return [*groups.values()]


def _line(group: Sequence[Repair], of_node: Mapping[tuple[str, str], str], beside: RelatedResults) -> Plain:
    first = group[0]
    result, why = first.result
    moments = [one.at for story in group for one in story.entries]
    return {
        "run": beside.text(first.run, 40),
        "at": moment(min(moments)),
        "until": moment(max(moments)),
        "age_days": round((beside.now - max(moments)) / DAY, 2),
        "nodes": beside.text(nodeset.brief((story.host for story in group), NAMES), NAMES),
        "count": len(group),
        "check": beside.text(first.check, NAME),
        "subject": beside.text(first.subject, NAME),
        "did": [beside.text(word, 40) for word in first.did[:ROLES]],
        "attempt": max(one.attempt for one in first.entries),
        "result": result,
        "why": beside.text((nodeset.nameless(why, first.host) if len(group) > 1 else why) or "", SAID),
        "node": of_node.get((first.run, first.host), ""),
        "before": _range(group, "before"),
        "after": _range(group, "after"),
    }


def _range(group: Sequence[Repair], when: str) -> list[float] | None:
    found = [value for story in group if (value := story.figure(when)) is not None]
    return [min(found), max(found)] if found else None


def _out(entries: Sequence[Entry], beside: RelatedResults) -> list[Plain]:
    left, held = action_log.open_drains(entries), action_log.held(entries)
    reasons: dict[str, Entry] = {}
    since: dict[str, float] = {}
    for one in entries:
        if (one.action, one.outcome) == ("left_drained", "begun"):
            reasons[one.host] = one
        if (one.action, one.outcome) == ("left_drained", "done") and one.host not in since:
            since[one.host] = one.at
        if (one.action, one.outcome) == ("resumed", "done"):
            for known in (reasons, since):
                known.pop(one.host, None)
    groups: dict[tuple[str, ...], list[str]] = {}
    for host in dict.fromkeys([*left, *sorted(held)]):
        if host in left:
            since[host] = left[host].at
            key = ("not ended", left[host].check, left[host].why)
        else:
            reason = reasons.get(host)
            key = ("left drained", reason.check if reason else "", reason.why if reason else "")
        groups.setdefault((*key[:2], nodeset.nameless(key[2], host) or ""), []).append(host)
    return [
        {
            "state": state,
            "nodes": beside.text(nodeset.brief(hosts, NAMES), NAMES),
            "count": len(hosts),
            "since": moment(min(since[host] for host in hosts)),
            "age_days": round((beside.now - min(since[host] for host in hosts)) / DAY, 2),
            "check": beside.text(check, NAME),
            "reason": beside.text(reason, SAID),
        }
        for (state, check, reason), hosts in groups.items()
    ]


def _sentences(
    entries: Sequence[Entry], stories: Sequence[Repair], of_node: Mapping[tuple[str, str], str], torn: int
) -> Iterator[str]:
    if not entries:
        yield f"nothing was done in the last {WINDOW} days"
    else:
        hosts = {story.host for story in stories if story.did}
        ends = list(of_node.values())
        results = [story.result[0] for story in stories]
        counts = [
            (len(hosts), "node{s} acted on"),
            (results.count("mended"), "finding{s} mended"),
            (results.count("not mended"), "not mended"),
            (results.count("stale, dropped"), "stale and dropped"),
            (sum(result in _NOT_DONE for result in results), "refused or held back"),
            (ends.count("given back"), "node{s} given back"),
            (ends.count("left drained"), "left drained"),
        ]
        told = [f"{number:,} {words.format(s='s' * (number != 1))}" for number, words in counts if number]
        yield f"in the last {WINDOW} days: " + (", ".join(told) or "nothing that was acted on")
    pairs = [(story.figure("before"), story.figure("after")) for story in stories]
    gained = [(before, after) for before, after in pairs if before is not None and after is not None]
    if gained:
        better = sum(after > before for before, after in gained)
        spans = [span([min(each), max(each)]) for each in zip(*gained, strict=True)]
        line = f"{better} of {len(gained)} figures that were measured before and after are higher now"
        yield f"{line}: {spans[0]} GB/s, then {spans[1]} GB/s"
    if torn:
        yield f"lines of the action log that a crash has cut off: {torn}"


def span(figures: Sequence[float] | None) -> str:
    """Format figures: ``231``, ``231 to 240``, ``-`` for none."""
    if not figures:
        return "-"
    low, high = ("%.4g" % figure for figure in figures)
    return low if low == high else f"{low} to {high}"
