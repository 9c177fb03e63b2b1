# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""host_audit on a whole node writes nothing. What it finds of each fault is in test_faults.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab.audited import ask
from tests.lab.test_faults import MODULES

# Every file system that is there, for this process and its children.
READ_ONLY = """
cut -d ' ' -f 5 /proc/self/mountinfo | while read -r place; do
    mount -o remount,bind,ro "$(printf %b "$place")" || exit 99
done || exit 99
! touch "$0" 2>/dev/null || exit 98
exec "$@"
"""
Steps = Callable[[str], list[dict[str, Any]]]


@pytest.fixture
def run_module() -> Callable[..., dict[str, Any]]:
    """What would be asked, in place of the answer."""
    return lambda name, check_mode=False, **arguments: {"module": name, "arguments": arguments}


@pytest.fixture
def steps(on_node: Callable[..., dict[str, Any]]) -> Steps:
    return lambda node: [on_node(module, node) for module in MODULES]


def findings(answer: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert [one["msg"] for one in answer if one.get("failed")] == []
    return [finding for one in answer for finding in one["findings"]]


def test_where_nothing_can_be_written_it_finds_the_same(lab: Path, steps: Steps) -> None:
    # A node that no run has touched: there is all to do.
    asked = steps("node02")
    plain = ask(asked)
    within = ["unshare", "--mount", "sh", "-c", READ_ONLY, str(lab / "written")]
    assert ask(asked, within) == plain
    assert len(findings(plain)) > 50
