# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one set of exit codes: which of several results decides."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.plugin_utils import exit_code


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ([], 0),
        (["ok"], 0),
        (["ok", "unknown"], 3),
        (["unknown", "drift"], 2),
        (["withheld"], 2),
        (["unsupported"], 2),
        (["not_owned"], 2),
    ],
)
def test_findings_come_before_what_is_not_judged(states: list[str], code: int) -> None:
    assert exit_code.of_states(states) == code


@pytest.mark.parametrize(("codes", "code"), [([0, 3], 3), ([3, 2, 0], 2), ([2, 1], 1), ([0], 0), ([], 3)])
def test_the_worst_result_decides(codes: list[int], code: int) -> None:
    assert exit_code.worst(codes) == code
