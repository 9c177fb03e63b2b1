# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plans and findings as rows of a golden, without prose, and the sentences of findings as lines of its text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import FileChange, Plan


def findings(found: Sequence[Finding]) -> list[Any]:
    """Return the number of those that are ok; name, state, severity, disruption and cause of each other."""
    bad = [one for one in found if not one.ok]
    rows = [[_name(one), one.state, one.severity, one.disruption, one.because] for one in bad]
    return [{"ok": len(found) - len(bad)}, *rows]


def measured(found: Sequence[Finding]) -> list[Any]:
    """Return the same with the values that are expected and actual in place of the disruption."""
    bad = [one for one in found if not one.ok]
    rows = [[_name(one), one.state, one.severity, values(one.want), values(one.have), one.because] for one in bad]
    return [{"ok": len(found) - len(bad)}, *rows]


def _name(finding: Finding) -> str:
    """The id with the whole subject, of which the id has the lasting part."""
    return f"{finding.check}[{finding.aspect}]@{finding.subject}"


def plan(made: Plan, texts: bool = False) -> list[Any]:
    """Return its findings, files, commands, and the values of reasons for a reboot.   texts: with lines of files."""
    rows = findings(made.findings)
    rows += [_file(change, texts) for change in made.changes]
    rows += [{"run": str(command), "disruption": command.disruption} for command in made.commands]
    return rows + [{"reboot": values(reason)} for reason in made.reboot]


def _file(change: FileChange, texts: bool) -> dict[str, Any]:
    if change.after is None:
        return {"remove": change.path, "mode": f"{change.mode:04o}"}
    named = {"create" if change.before is None else "edit": change.path, "mode": f"{change.mode:04o}"}
    return {**named, "lines": lines(change.after)} if texts else named


def lines(text: str) -> list[str]:
    """Return the lines of a file without the seal, which has the release and hashes."""
    return [line for line in text.splitlines() if "Written by Busbar" not in line]


def values(text: str | None) -> str:
    """Return the words of a sentence that have a digit or a capital."""
    return " ".join(re.findall(r"[\w.:/-]*[0-9A-Z][\w.:/-]*", text or ""))


def sentences(case: str, made: Plan) -> list[str]:
    bad = [one for one in made.findings if not one.ok]
    told = [f"{one.check} {one.subject}: {one.have}; expected {one.want}; {one.fix}" for one in bad]
    return [f"== {case}", *told, *made.notes]
