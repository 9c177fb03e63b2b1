# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Report a round of the benchmark between nodes as soon as it has ended: first figures, no verdict yet."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.size import size_text
from ansible_collections.busbar.fabric.plugins.plugin_utils import cluster_record, nodeset
from ansible_collections.busbar.fabric.plugins.plugin_utils.cluster_table import EACH, number, percent

# Characters of host names, and of the reason for no figure.
_NAMES, _WHY = 60, 120


def lines(
    position: int,
    count: int,
    jobs: Sequence[Mapping[str, Any]],
    results: Mapping[str, Mapping[str, Any]],
    failures: Mapping[str, str],
) -> list[str]:
    """Return a line for each job; of many, one for those with figures and one for each reason of the others.

    position: of the round, from 1, of so many.   jobs: as the plan has them.   results, failures: by their names.
    """
    head = f"round {position} of {count}"
    with_figure = [job for job in jobs if _busbw(job, results) is not None]
    if len(jobs) <= EACH:
        return [printable(f"{head}: {_named(job)}: {_failure_text(job, results, failures)}") for job in jobs]
    found = []
    if with_figure:
        by_figure = sorted(with_figure, key=lambda job: _busbw(job, results) or 0.0)
        middle = statistics.median(_busbw(job, results) or 0.0 for job in with_figure)
        low = by_figure[0]
        found.append(
            f"{head}: {len(with_figure)} of {len(jobs)} jobs, {_what(low)}: median {number(middle)} GB/s, lowest"
            f" {number(_busbw(low, results))} over {nodeset.brief(low['hosts'], _NAMES)}, bar {number(low['bar'])}"
        )
    silent: dict[str, list[str]] = {}
    for job in jobs:
        if _busbw(job, results) is None:
            silent.setdefault(_failure_text(job, results, failures), []).extend(job["hosts"])
    told = sorted(silent.items(), key=lambda item: -len(item[1]))
    found += [f"{head}: {nodeset.brief(hosts, _NAMES)}: {why}" for why, hosts in told[:EACH]]
    if len(told) > EACH:
        found.append(f"{head}: and {len(told) - EACH} other reasons without a result")
    return [printable(line) for line in found]


def _named(job: Mapping[str, Any]) -> str:
    return f"{_what(job)} over {nodeset.brief(job['hosts'], _NAMES)}"


def _what(job: Mapping[str, Any]) -> str:
    collective = f"{job['collective']} ({job['algorithm']})" if job["algorithm"] else job["collective"]
    return " ".join(filter(None, (collective, size_text(job["max_bytes"]), cluster_record.rail_of(str(job["name"])))))


def _busbw(job: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]]) -> float | None:
    busbw: float | None = results.get(str(job["name"]), {}).get("busbw")
    return busbw


def _failure_text(job: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]], failures: Mapping[str, str]) -> str:
    name = str(job["name"])
    result = results.get(name, {})
    bad = next((one for one in result.get("findings") or [] if one["state"] != "ok" and one["because"] is None), None)
    busbw = _busbw(job, results)
    if busbw is not None:
        of_bar = f", {percent(busbw / job['bar'])} of the bar" if job["bar"] else ""
        text = f"{number(busbw)} GB/s{of_bar}"
    else:
        text = f"no figure{': ' + failures[name] if name in failures else ''}"
    if bad is not None:
        text += f"; {bad['state']}: {bad['have'] or 'wanted ' + str(bad['want'])}"
    return text if len(text) <= _WHY else text[: _WHY - 3] + "..."
