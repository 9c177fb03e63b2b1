# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The last benchmark between nodes, for the report: read from the control node, typed, and never more than a page."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils import cluster_record, cluster_table
from ansible_collections.busbar.fabric.plugins.plugin_utils.terminal import Line

# Days from which on a result says nothing of the cluster as it is.
OLD = 30.0
_DAY = 86400.0


def latest(results: Path, ended: str) -> dict[str, Any]:
    """What the report says of it. Keys: docs/drift.md.

    results: nccl_benchmark_results_path.   ended: when the night ended, ``2026-11-21T02:00:07Z``.
    """
    path = cluster_record.folder(results) / "latest" / cluster_record.NAME
    found: dict[str, Any] = {"path": printable(str(path)), "state": "measured", "why": "", "simulated": False}
    try:
        record = cluster_record.read(path)
    except FileNotFoundError:
        why = f"{path} does not exist: playbooks/benchmark.yml with nccl_benchmark_scope: cluster measures it"
        return {**found, "state": "absent", "why": printable(why)}
    except OSError as error:
        return {**found, "state": "unreadable", "why": printable(f"{path}: {error.strerror}")}
    except ParseError as error:
        return {**found, "state": "unreadable", "why": str(error)}
    now = datetime.datetime.fromisoformat(ended).timestamp()
    age = (now - record.finished) / _DAY
    finished = datetime.datetime.fromtimestamp(min(record.finished, 2e11), datetime.UTC)
    *sentences, verdict = cluster_table.sentences(record)
    return {
        **found,
        "simulated": record.simulated,
        "scope": record.scope,
        "finished": finished.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "age_days": round(age, 2),
        "old": age > OLD,
        "verdict": printable(verdict),
        "ok": bool(record.jobs) and all(job.ok for job in record.jobs) and not record.findings,
        "said": [printable(text) for text in sentences],
        "jobs": _table(*cluster_table.jobs(record)),
        "scaling": _table(*cluster_table.scaling(record.scaling)),
    }


def _table(heads: Sequence[str], lines: Sequence[Line], left_out: int) -> dict[str, Any]:
    return {
        "heads": [*heads],
        "lines": [
            {"cells": [printable(cell) for cell in cells], "notes": [printable(note) for note in notes]}
            for cells, notes in lines
        ],
        "left_out": left_out,
    }
