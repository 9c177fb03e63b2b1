# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Logs of jobs in tests/unit/diagnose/logs, diagnosed as recorded in tests/golden."""

from __future__ import annotations

import pytest
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
