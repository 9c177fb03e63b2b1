# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a plan comes to, as rows of a golden: no prose, and nothing that depends on where the tests run."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan


def bad_findings(plan: Plan) -> list[Any]:
    """Return id, state, severity, disruption and cause of each finding that is not ok, after the number of ok ones."""
    bad = [[f.id, f.state, f.severity, f.disruption, f.because] for f in plan.findings if not f.ok]
    return [{"ok": len(plan.findings) - len(bad)}, *bad]


def measured(plan: Plan) -> list[Any]:
    """Return the same with values that are wanted and there in place of disruption, but without prose about them."""
    bad = [f for f in plan.findings if not f.ok]
    rows = [[f.id, f.state, f.severity, values(f.want), values(f.have), f.because] for f in bad]
    return [{"ok": len(plan.findings) - len(bad)}, *rows]


def values(text: str | None) -> str:
    """Return the words of a text that have a digit or a capital."""
    return " ".join(re.findall(r"[\w.:/-]*[0-9A-Z][\w.:/-]*", text or ""))


def unsealed(lines: list[str]) -> list[str]:
    """Return lines without the head that has the release."""
    return [line for line in lines if not line.startswith("# Written by Busbar")]


def plan_rows(plan: Plan, texts: bool = False) -> list[Any]:
    """Return its findings, files, commands and the number of reasons for a reboot.

    texts: with the lines of each file that was there before; test_rendered_host has those of new ones.
    """
    rows = bad_findings(plan)
    for change in plan.changes:
        lines = (change.after or "").splitlines() if texts and change.before is not None else []
        rows.append(["remove" if change.after is None else "write", change.path, oct(change.mode), *unsealed(lines)])
    rows += [["run", str(command)] for command in plan.commands]
    return rows + ([["reboot", len(plan.reboot)]] if plan.reboot else [])
