# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Add the bandwidth of jobs to a run: busbw of each host, by the records of NCCL's Inspector plugin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.inspector import Collector, Figure, figures

from .. import inspector
from .run import HostResult

# A series of jobs begins with it. Their hosts are not compared: they may have been in different jobs.
PREFIX = "jobs: "
DAY = 86400


def add(hosts: Mapping[str, HostResult], directory: Path, now: float) -> dict[str, HostResult]:
    """Return the results with the busbw of the last day's jobs.   now: seconds since 1970.

    Raises JobFilesError, OSError.
    """
    collector = inspector.load(directory, since=int((now - DAY) * 1e6))
    # The records have the host's own name, which may be the first part of the inventory's, or the other way round.
    names: dict[str, list[str]] = {}
    for host in hosts:
        names.setdefault(host.partition(".")[0], []).append(host)
    found = dict(hosts)
    for name, largest in _largest(collector).items():
        matches = [name] if name in hosts else names.get(name.partition(".")[0], [])
        if len(matches) == 1:
            [host] = matches
            series = {f"{PREFIX}{printable(str(one.operation))}": _plain(one, now) for one in largest}
            found[host] = replace(found[host], busbw={**found[host].busbw, **series})
    return found


def _plain(figure: Figure, now: float) -> dict[str, object]:
    return {"busbw": figure.busbw, "bar": None, "finished": now, "simulated": False}


def _largest(collector: Collector) -> dict[str, list[Figure]]:
    """Return of each host and collective the size that has moved most bytes."""
    best: dict[tuple[str, str], Figure] = {}
    for figure in figures(collector):
        key = (figure.host, figure.operation.name)
        bytes_moved = figure.records * figure.operation.size
        if key not in best or bytes_moved > best[key].records * best[key].operation.size:
            best[key] = figure
    found: dict[str, list[Figure]] = {}
    for (host, _name), figure in best.items():
        found.setdefault(host, []).append(figure)
    return found
