# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Play a campaign over all hosts of the play: phases ``cluster`` and ``localise`` of module ``nccl_benchmark``."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from ansible.errors import AnsibleError
from ansible.utils.display import Display
from ansible_collections.busbar.fabric.plugins.action import intent as intent_action
from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError

from .. import screen, terminal
from ..control import Values
from . import cluster, cluster_table, localise, localise_record, localise_table
from .cluster_wanted import Kinds
from .members import Site
from .nodes import Nodes

display = Display()


def play(action: Any, variables: Values, given: Values) -> Values:
    """Return the result of the phase. action: the task's plugin.   variables: of the first host.   given: options."""
    hostvars, phase = variables["hostvars"], given["phase"]
    raw = {host: hostvars.raw_get(host) for host in variables["ansible_play_hosts_all"]}
    try:
        with contextlib.closing(Nodes(action, variables)) as nodes:
            site = Site(
                raw,
                set(variables["ansible_play_hosts"]),
                nodes,
                display.display,
                lambda host: str(hostvars[host].get("ansible_host") or host),
                given["drained"],
            )
            kinds = Kinds(site, intent_action.bars_of)
            values = next(map(site.values, site.ready), {})
            path = str(values.get("nccl_benchmark_results_path") or "")
            if phase == "cluster":
                result = _cluster(site, kinds, path, bool(action._task.check_mode))
            else:
                days = float(values.get("busbar_baseline_max_age_days", 30))
                result = _localise(site, kinds, path, days, given["judged"], bool(action._task.check_mode))
    except (OSError, AnsibleError, ParseError) as error:
        said = str(error) if isinstance(error, AnsibleError) else error_text(error)
        return {"changed": False, "failed": True, "msg": f"{phase}: {said}"}
    return {"changed": False, **result}


def _cluster(site: Site, kinds: Kinds, path: str, check_mode: bool) -> Values:
    outcome = cluster.play(site, kinds, check_mode)
    if outcome.record is not None:
        cluster.store(site, outcome.stores)
        _show(cluster_table.render(outcome.record, terminal.COLUMNS), path)
        if path:
            cluster.write(site, outcome.record, path)
    return {"hosts": outcome.hosts, "search": outcome.misses}


def _localise(site: Site, kinds: Kinds, path: str, days: float, judged: Values, check_mode: bool) -> Values:
    if check_mode:
        record, hosts = localise.judge_record(path, [*site.variables], days, time.time())
        if record is not None:
            when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(record.finished))
            display.display(f"\nLAST SEARCH, not of this run: {when}")
            _show(localise_table.render(record, terminal.COLUMNS), "its record")
        return {"hosts": hosts, "cluster": {}, "record": {}}
    outcome = localise.play(site, kinds, judged, path)
    _show(localise_table.render(outcome.record, terminal.COLUMNS), outcome.folder or "the record")
    if outcome.folder:
        display.display(f"results: {outcome.folder}")
    record_data = localise_record.to_dict(outcome.record)
    return {"hosts": outcome.hosts, "cluster": outcome.cluster, "record": record_data}


def _show(table: str, place: str) -> None:
    """Print as much of a table as fits on a screen. place: where all of it is."""
    more = f"-v, or {place or 'nccl_benchmark_results_path'}"
    display.display(f"\n{screen.cut(table, terminal.COLUMNS, more, display.verbosity > 0)}\n")
