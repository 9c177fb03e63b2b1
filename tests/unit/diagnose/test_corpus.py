# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Logs of jobs in tests/unit/diagnose/logs, diagnosed as recorded in tests/golden."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.judge import Result
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.report import verdict
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import HEIGHT, render, screenful

from tests import goldens
from tests.unit.diagnose import corpus

CASES = dict(corpus.cases())


@pytest.mark.golden
@pytest.mark.parametrize("case", CASES)
def test_a_log_is_diagnosed_as_recorded(case: str) -> None:
    goldens.check("diagnose", case, corpus.rows(corpus.diagnose(CASES[case])))


@pytest.mark.golden
def test_the_screen_of_each_log() -> None:
    screens = {case: screenful(corpus.diagnose(files), 100) for case, files in CASES.items()}
    assert {case for case, text in screens.items() if text.count("\n") >= HEIGHT} == set()
    goldens.text("diagnose", "".join(f"== {case}\n{text}\n" for case, text in screens.items()))


def test_everything_of_a_log_is_printed_on_request() -> None:
    for files in CASES.values():
        result = corpus.diagnose(files)
        text = " ".join(render(result, 100).split())
        for finding in result.bad:
            assert f"[{finding.check}]" in text


TIME = "2026-11-28T04:06:17.123456789Z"
# How collectors hand a line on.
COLLECTORS: dict[str, Callable[[str], str]] = {
    "kubectl": lambda line: f"{TIME} {line}",
    "containerd": lambda line: f"{TIME} stderr F {line}",
    "docker": lambda line: json.dumps({"log": f"{line}\n", "stream": "stderr", "time": TIME}),
    "journal": lambda line: f"Nov 28 04:06:17 node1 python[1234]: {line}",
}


@pytest.mark.parametrize(("collector", "first"), [(name, number) for number, name in enumerate(COLLECTORS)])
def test_a_collector_of_logs_changes_no_verdict(collector: str, first: int) -> None:
    """Each form with a part of the cases: those of one file, since all lines get one time."""
    for case, files in [(case, files) for case, files in CASES.items() if len(files) == 1][
        first :: 2 * len(COLLECTORS)
    ]:
        lines = [line and COLLECTORS[collector](line) for line in files[0][1].decode("utf-8", "replace").split("\n")]
        found = corpus.diagnose([("log", "\n".join(lines).encode())])
        assert _root(found) == _root(corpus.diagnose(files)), case


def _root(result: Result) -> tuple[str, str]:
    return verdict(result)[0], result.root.event if result.root is not None else ""
