# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the last search for slow nodes and its age, for check mode, which measures none."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.plugin_utils import screen, terminal
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import (
    localise_judge,
    localise_record,
    localise_table,
)

_DAY = 86400

RECORD = Check(
    "localise.record",
    severity="minor",
    why="what a search found some time ago, or without this node, does not show the node's current state",
    fix="run ansible-playbook playbooks/localise.yml -i INVENTORY, not in check mode, while the nodes are idle",
)
"With `--check`: is there a complete, recent search that included this node"


def cut_off(path: str) -> list[str]:
    """Return lines on the last search where it was not finished. path: as of ``judged``.

    Nothing of it is used: nodes that were slow may be repaired since, and good ones may be slow.
    """
    try:
        record = localise_record.read(localise_record.folder(path)) if path else None
    except (OSError, ParseError):
        return []
    if record is None or record.complete:
        return []
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(record.finished))
    said = "the last search was cut off after round %d, at %s" % (record.rounds, when)
    found = (localise_record.folder(path) / "latest").resolve()
    return [f"LOCALISE: {said}: a new search starts; the results of the old one are in {found}"]


def judged(path: str, hosts: Sequence[str], most_days: float, now: float) -> tuple[str, dict[str, dict[str, Any]]]:
    """Return the text to print, and host -> its result.

    path: nccl_benchmark_results_path, "" where no record is kept.   most_days: how old the record may be.
    now: seconds since 1970.
    """
    want = "a complete search, at most %g days old" % most_days
    source = str(localise_record.folder(path)) if path else "the inventory"
    try:
        record = localise_record.read(localise_record.folder(path)) if path else None
        problem = "" if path else "nccl_benchmark_results_path is empty: no record is stored"
    except FileNotFoundError:
        record, problem = None, "never searched"
    except (OSError, ParseError) as error:
        record, problem = None, f"the last record cannot be read: {error_text(error)}"
    if record is None:
        missing = RECORD.judge("host", "unknown", want, problem, source)
        return f"LOCALISE: {problem}", {host: Plan((missing,)).result() for host in hosts}
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(record.finished))
    days = (now - record.finished) / _DAY
    state, have = "ok", "%.1f days ago" % days
    if not record.complete:
        state, have = "unknown", f"cut off after round {record.rounds}, at {when}"
    elif not -1 / 24 <= days <= most_days:
        state, have = "unknown", "%.0f days %s" % (abs(days), "ago" if days > 0 else "in the future")
    known = {node.host for node in record.nodes}
    of_host = localise_judge.findings(record.findings)
    results = {}
    for host in hosts:
        # Nodes of another run are not reported; an unfinished or old search gives no finding.
        if host not in known:
            found = [RECORD.judge("host", "unknown", want, "it was none of the nodes of the last search", source)]
        else:
            found = [RECORD.judge("host", state, want, have, source), *(of_host.get(host, ()) if state == "ok" else ())]
        results[host] = Plan(tuple(found)).result()
    table = screen.cut(localise_table.render(record, terminal.COLUMNS), terminal.COLUMNS, "its record")
    return f"\nLAST SEARCH, not of this run: {when}\n{table}\n", results
