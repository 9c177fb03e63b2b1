# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Report the last benchmark between nodes: read from the control node, typed, at most a page."""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import cluster_record, cluster_table
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain
from ansible_collections.busbar.fabric.plugins.plugin_utils.terminal import Line

from .related_results import RelatedResults


def latest(beside: RelatedResults) -> Plain:
    """Return the section of the report. Keys: docs/report.md."""
    path = cluster_record.folder(beside.results) / "latest" / cluster_record.NAME
    way = "playbooks/benchmark.yml with nccl_benchmark_scope: cluster measures it"
    found, record = beside.read(path, lambda: cluster_record.read(path), way)
    if record is None:
        return found
    *sentences, verdict = cluster_table.sentences(record)
    section = {
        **found,
        **beside.aged(record.finished),
        "simulated": record.simulated,
        "scope": record.scope,
        "verdict": verdict,
        "ok": bool(record.jobs) and all(job.ok for job in record.jobs) and not record.findings,
        "said": sentences,
        "jobs": _table(*cluster_table.jobs(record.jobs)),
        "scaling": _table(*cluster_table.scaling(record.scaling)),
    }
    return beside.clean(section)


def _table(heads: Sequence[str], lines: Sequence[Line], left_out: int) -> Plain:
    rows = [{"cells": [*cells], "notes": [*notes]} for cells, notes in lines]
    return {"heads": [*heads], "lines": rows, "left_out": left_out}
