# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Print a diagnosed log for people: one screen of at most 12 lines, or all of it as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import (
    SEVERITIES,
    Finding,
    from_dict,
    printable,
)
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.engine import PROVEN, REPORTED
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.judge import Result, judge
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.log_reader import Reader
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.report import facts_line, lines_of, report, verdict
from ansible_collections.busbar.fabric.plugins.plugin_utils import result_schema, screen
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

# Lines of the first screen, and findings on it beside the verdict.
HEIGHT, FINDINGS = 12, 3
NODE = Check(
    "nccl_log.node",
    why="the log of a node that did not respond is missing, or part of it: the state of its ranks is unknown",
    fix="check that diagnose_logs names real paths of files there, and run it again for that host (--limit HOST)",
)
"Did every node give its logs (`playbooks/diagnose.yml`)"
_CONFIDENCE = {
    PROVEN: "a line states the cause",
    "likely": "it comes before all other failures of this log",
    REPORTED: "reported; its cause is not in this log",
}


def join(registered: Plain) -> tuple[Result, list[Finding]]:
    """Return the logs of all hosts as one, and findings on what is missing.

    registered: host -> what nccl_log_info returned, checked by the gate, or None.
    """
    reader = Reader()
    missing: list[tuple[str, str]] = []
    for host in sorted(registered):
        result = result_schema.given(registered[host], "nccl_log_info")
        logs, unread = result.get("logs") or [], list(map(from_dict, result.get("findings") or []))
        missing += [(f"{host} {finding.subject}", finding.have or "not read") for finding in unread]
        if not logs and not unread:
            missing.append((host, str(result.get("msg") or "no result")))
        for log in logs:
            reader.source(f"{host}:{log['path']}")
            reader.feed(log["text"].encode("utf-8", "replace"))
            short = [f"{log['size'] - log['read']} bytes not read"] if log["read"] < log["size"] else []
            short += [f"{log['left_out']} lines had no room"] if log["left_out"] else []
            if short:
                missing.append((f"{host} {log['path']}", f"{log['path']}: {', '.join(short)}"))
    reader.end()
    return judge(reader.log), [
        NODE.judge(subject, "unknown", "its whole log", have, "nccl_log_info") for subject, have in missing
    ]


def screenful(result: Result, width: int = 100, missing: Sequence[Finding] = ()) -> str:
    """Return the verdict, up to three findings and one line of facts, in at most HEIGHT lines."""
    bad = [*_shown(result.bad), *missing]
    if result.root is not None and bad[:1] == [result.root.finding]:
        # The verdict has its first words.
        bad[0] = replace(bad[0], have=(bad[0].have or "").partition("; ")[2])
    lines = _verdict(result, width, 2)
    facts = screen.wrapped(facts_line(result.log, result.jobs[0]), width, 0, 2) if result.jobs else []
    shown, rest = bad[:FINDINGS], len(bad) - FINDINGS
    room = HEIGHT - len(lines) - len(facts) - 1
    # Of one finding there is room for four lines and its advice; of three for one line each and theirs.
    most = max(room // max(len(shown), 1) // 2, 1)
    for number, finding in enumerate(shown):
        block = _finding(finding, width, most)
        left = room - sum(len(_finding(later, width, 1)) for later in shown[number + 1 :])
        lines += block[:left]
        room -= len(block[:left])
    lines = lines[: HEIGHT - len(facts) - 1]
    more = f"{rest} more findings, details: --all" if rest > 0 else "details: --all"
    return "\n".join(map(printable, [*lines, *facts, f"{more}, --json for programs"]))


def _shown(bad: Sequence[Finding]) -> list[Finding]:
    """Return findings that stand for themselves, and one of several with the same advice."""
    first: dict[tuple[str, str, str], Finding] = {}
    for finding in bad:
        if finding.because is None:
            first.setdefault((finding.check, finding.state, finding.fix), finding)
    return [finding for finding in first.values() if finding.severity != "minor"] or list(first.values())


def _verdict(result: Result, width: int, most: int | None) -> list[str]:
    state, text = verdict(result)
    lines = screen.wrapped(f"VERDICT {state.upper()}: {text}", width, 0, most)
    if result.root is not None:
        where = f" (line {result.root.line})" if result.root.line else ""
        lines += screen.wrapped(f"confidence: {_CONFIDENCE[result.root.confidence]}{where}", width, 4, 1)
    return lines


def _finding(finding: Finding, width: int, most: int | None) -> list[str]:
    state = "" if finding.state == "drift" else f", {finding.state}"
    head = f"{finding.severity}{state} [{finding.check}]"
    lines = screen.wrapped(f"{head}: {finding.have}" if finding.have else head, width, 0, most)
    lines += screen.wrapped(f"do: {finding.fix}", width, 4, most)
    return lines


def render(result: Result, width: int = 100, missing: Sequence[Finding] = ()) -> str:
    """Return all findings with their reasons, what is right, and the facts of each job."""
    lines = _verdict(result, width, None)
    for finding in [*result.bad, *missing]:
        follows = " (caused by another finding)" if finding.because else ""
        lines += ["", *_finding(finding, width, None)]
        lines += screen.wrapped(f"why: {finding.why}{follows}", width, 4, None)
        lines += screen.wrapped(f"from: {finding.subject}, {finding.source}", width, 4, None)
    good = [f"ok [{finding.check}]: {finding.have}" for finding in result.findings if finding.ok]
    lines += [""] * bool(good) + [line for text in good for line in screen.wrapped(text, width, 0, None)]
    data = report(result)
    lines += ["", "events, in the order of cause and effect:"] if data["events"] else []
    for event in data["events"]:
        because = f" <- {event['because']}" if event["because"] else ""
        times = f", {event['count']} times" if event["count"] > 1 else ""
        text = f"line {event['line']}{times} {event['event']}{because}: {event['text']}"
        lines += screen.wrapped(text, width, 2, 2)
    for job in data["jobs"]:
        lines += ["", *_facts(job, width)]
    return "\n".join(map(printable, [*lines, "", lines_of(result)]))


def _facts(job: Plain, width: int) -> list[str]:
    """Return the facts of a job as rows of a name and its values."""
    lines = [f"facts of {job['name']}:"]
    rows = [(f"{name:<14} {_plain(value)}", 6) for name, value in job.items()
            if name not in ("name", "transport", "variables") and value not in (None, [], {}, 0, "")]  # fmt: skip
    rows += [(f"{name}={' | '.join(values)}", 2) for name, values in job["variables"].items()]
    rows += [(f"not proven: {text}", 2) for text in job["transport"]["missing"]]
    return lines + [line for text, most in rows for line in screen.wrapped(text, width, 2, most)]


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_plain(item)}" for key, item in value.items() if item not in (None, "", [], 0))
    if isinstance(value, list | tuple):
        return " ".join(f"({_plain(item)})" if isinstance(item, Mapping) else str(item) for item in value[:32])
    return str(value)


def ordered(result: Result, missing: Sequence[Finding]) -> list[Finding]:
    """Return findings of the logs and of what is missing: worst first, effects behind their causes."""
    found = [*result.findings, *missing]
    found.sort(key=lambda one: (one.ok, one.because is not None, SEVERITIES.index(one.severity)))
    return found
