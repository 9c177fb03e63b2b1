# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Report nodes at the gate, from the audit's results of the role ``gate``. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ansible_collections.busbar.fabric.plugins.module_utils.gate import plan as gate
from ansible_collections.busbar.fabric.plugins.plugin_utils import nodeset
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

from .run import HostResult

KEPT_OUT, HELD, VERDICT = gate.KEPT_OUT.id, gate.HELD.id, gate.VERDICT.id
_KINDS = {KEPT_OUT: "kept_out", HELD: "held", VERDICT: "unknown"}
# Lines of each kind; characters of names and of a text.
ROWS, NAMES, SAID = 30, 300, 400
# As the check prints it: moment and reason, of which the moment differs between nodes.
_SINCE = re.compile(r"out since (\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ): (.*)", re.DOTALL)
_HOURS = re.compile(r", -?\d{1,9} h ago")


def build(hosts: Mapping[str, HostResult]) -> Plain | None:
    """Return the section; None where no node has a gate. Keys: docs/report.md."""
    asked = passed = 0
    groups: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for name, host in hosts.items():
        ok = {finding.partition("[")[0] for finding in host.passed}
        bad = [finding for finding in host.findings if finding.check in _KINDS]
        asked += bool(bad or ok & _KINDS.keys())
        passed += KEPT_OUT in ok
        for finding in bad:
            have = finding.have or "-"
            since = _SINCE.fullmatch(have) if finding.check == KEPT_OUT else None
            when, text = since.groups() if since else ("", have)
            # The moment is reported once, and not as hours before now, which differ.
            text = _HOURS.sub("", nodeset.nameless(text, name) or "-")
            groups.setdefault((finding.check, finding.state, text), []).append((name, when))
    if not asked:
        return None
    lines: dict[str, list[Plain]] = {kind: [] for kind in _KINDS.values()}
    for (check, state, text), nodes in sorted(groups.items(), key=lambda item: -len(item[1])):
        names, moments = [name for name, _when in nodes], [when for _name, when in nodes if when]
        line: Plain = {"nodes": nodeset.brief(names, NAMES), "count": len(nodes), "since": min(moments, default="")}
        said = text if len(text) <= SAID else text[: SAID - 3] + "..."
        lines[_KINDS[check]].append({**line, "state": state, "said": said})
    shown = {kind: found[:ROWS] for kind, found in lines.items()}
    left_out = sum(len(found[ROWS:]) for found in lines.values())
    return {"asked": asked, "in_service": passed, **shown, "left_out": left_out}
