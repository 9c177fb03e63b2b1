"""Logs of jobs in tests/unit/logs, each read by nccl_log and judged as recorded in tests/golden.

A file holds cases: ``#== NAME`` begins one, ``#-- FILE`` a further file of its job, and a name that ends in a backslash
marks a log whose last line has no end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import judge
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.job import Log, Reader
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.jobs import Job, split
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.report import report
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import screenful
from ansible_collections.busbar.fabric.plugins.plugin_utils.exit_code import of_states

from tests import goldens

# Sentences of a job, of its transport and of a quoted line.
PROSE = {"shown", "not_shown", "missing", "text", "behind", "about", "calls"}


def cases() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """Yield each case's name and its files."""
    for file in sorted((Path(__file__).parent / "logs").glob("*.txt")):
        for part in re.split(rb"^#== ", file.read_bytes(), flags=re.MULTILINE)[1:]:
            head, _end, text = part.partition(b"\n")
            name = head.decode()
            if name.endswith(" \\"):
                name, text = name[:-2], text[:-1]
            first, *rest = re.split(rb"^#-- (.*)\n", text, flags=re.MULTILINE)
            files = list(zip(map(bytes.decode, rest[::2]), rest[1::2], strict=True)) or [("log", first)]
            yield f"{file.stem}: {name}", files


CASES = dict(cases())


def read(case: str) -> tuple[Log, list[Job], list[Finding]]:
    reader = Reader()
    for name, text in CASES[case]:
        reader.source(name)
        reader.feed(text)
    reader.end()
    return reader.log, split(reader.log), judge.judge(reader.log)


def typed(value: Any) -> Any:
    """The value without its sentences."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items() if key not in PROSE and item not in (None, [], {}, "")}
    return [typed(item) for item in value] if isinstance(value, list) else value


@pytest.mark.golden
@pytest.mark.parametrize("case", CASES)
def test_a_log_is_read_and_judged_as_recorded(case: str) -> None:
    log, jobs, findings = read(case)
    found = report(log, jobs, findings)
    rows: list[Any] = [{"exit": of_states(finding.state for finding in findings), "unread": len(found["unread"])}]
    rows += [typed(one) for name in ("jobs", "quotes", "results") for one in found[name]]
    rows += [[one.check, one.subject, one.state, one.severity, one.because] for one in findings]
    goldens.check("diagnose", case, rows)


@pytest.mark.golden
def test_the_screen_of_each_log() -> None:
    goldens.text("diagnose", "".join(f"== {case}\n{screenful(*read(case), 100)}\n" for case in CASES))
