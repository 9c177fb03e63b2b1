# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plans as rows of a golden, and the sentences of their findings as lines of its text."""

from __future__ import annotations

from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import FileChange, Plan


def rows(plan: Plan, texts: bool = True) -> list[Any]:
    """Return how many findings are ok, those that are not, what becomes of each file, and the commands.

    texts: whether with the lines of the files.
    """
    bad = [one for one in plan.findings if not one.ok]
    found: list[Any] = [{"ok": len(plan.findings) - len(bad)}] if plan.findings else []
    found += [[one.check, one.aspect, one.subject, one.state, one.severity, one.because] for one in bad]
    found += [of_file(change, texts) for change in plan.changes]
    return found + [{"run": str(command), "disruption": command.disruption} for command in plan.commands]


def of_file(change: FileChange, texts: bool) -> dict[str, Any]:
    if change.after is None:
        return {"remove": change.path}
    named = {"create" if change.before is None else "edit": change.path, "mode": f"{change.mode:04o}"}
    return {**named, "lines": lines(change.after)} if texts else named


def lines(text: str) -> list[str]:
    """Return the lines of a file without comments: those have the release and hashes."""
    return [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]


def sentences(case: str, plan: Plan) -> list[str]:
    bad = [one for one in plan.findings if not one.ok]
    told = [f"{one.check} {one.subject}: {one.have}; expected {one.want}; {one.fix}" for one in bad]
    return [f"== {case}", *told, *plan.notes]
