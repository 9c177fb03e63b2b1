# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Only molecule's pytest can run the drift test; it has a node then."""

from __future__ import annotations

import os

import pytest

collect_ignore = [] if "MOLECULE_SCENARIO_DIRECTORY" in os.environ else ["test_drift.py"]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Molecule sorts files by path: what changes the node comes last."""
    items.sort(key=lambda item: item.path.name == "test_drift.py")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Seconds of each scenario: a test only waits for it."""
    reports = [r for key in ("passed", "failed") for r in terminalreporter.stats.get(key, []) if r.when == "call"]
    took = [(dict(report.user_properties).get("seconds"), report.nodeid.rpartition("::")[2]) for report in reports]
    for seconds, name in sorted(((seconds, name) for seconds, name in took if seconds is not None), reverse=True):
        terminalreporter.write_line(f"{seconds:6.1f} s  {name}")
