# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Build the keys of module nccl_perf's result on a run and its repeats."""

from __future__ import annotations

from dataclasses import asdict, replace
from statistics import median
from typing import Any, Dict, List, Optional, Sequence, Tuple

from ..core.plan import Plan
from . import judge as perf
from . import repeats as perf_repeats
from . import statistics as perf_statistics
from .output import Result
from .record import Run, Wanted
from .transport import Network

# Where nothing was run and no stored result can be read.
NOTHING: Dict[str, Any] = {
    "measured": {},
    "busbw": None,
    "finished_at": None,
    "simulated": False,
    "repeats": [],
    "statistics": [],
    "transport": {},
    "rails": {},
    "ranks": {},
    "nccl_version": "",
}


def judge(run: Run, wanted: Wanted, now: float, since: Sequence[str] = ()) -> Tuple[Plan, Dict[str, Any]]:
    """The findings on a run, and what the module returns of it beside them. now, since: as of perf.judge."""
    runs = (run, *run.others)
    read = [perf.read(one) for one in runs]
    statistics: List[Dict[str, Any]] = []
    if len(runs) == wanted.repeats == 1 and run.network is None and not wanted.several:
        plan = perf.judge(read[0][0], wanted, run, now, read[0][1], since)
    else:
        plan = perf_repeats.judge(read, wanted, run, now, since)
        sizes = perf_statistics.by_size([result for result, _problem in read if result is not None], wanted)
        statistics = [asdict(one) for one in sizes]
    results = [result for result, _problem in read]
    reached = [None if result is None else perf.reached(result, wanted) for result in results]
    network = transport_of(run)
    found: Dict[str, Any] = {
        "finished_at": runs[-1].finished,
        "repeats": [
            {"rc": one.rc, "busbw": figure, "finished": one.finished, "ending": one.ending[:300]}
            for one, figure in zip(runs, reached)
        ],
        **_of_network(network, wanted.several),
    }
    there = [result for result in results if result is not None]
    if not there:
        return plan, found
    figures = [figure for figure in reached if figure is not None]
    figure = median(figures) if len(figures) == len(runs) else None
    shown = _nearest_run(results, reached, figure)
    return plan, {
        **found,
        # Of a whole cluster the ranks of a host are one number.
        "measured": asdict(replace(shown, ranks=()) if network is not None else shown),
        "busbw": figure,
        "simulated": any(result.simulated for result in there),
        "statistics": statistics,
        "nccl_version": found.get("nccl_version") or shown.nccl_library or "",
    }


def transport_of(run: Run) -> Optional[Network]:
    """Return the transport of the run, among a run and its repeats, that proves least; None if one has none stored."""
    networks = [one.network for one in (run, *run.others)]
    kept = [one for one in networks if one is not None]
    if len(kept) < len(networks):
        return None
    return next((one for one in kept if not one.proven), next((one for one in kept if one.sockets), kept[-1]))


def _nearest_run(
    results: Sequence[Optional[Result]], reached: Sequence[Optional[float]], figure: Optional[float]
) -> Result:
    """Return the run that is nearest to the median; if one has no figure, the last with a result."""
    there: List[Tuple[float, int]] = []
    for number, (result, own) in enumerate(zip(results, reached)):
        if result is not None:
            far = abs(own - figure) if own is not None and figure is not None else -float(number)
            there.append((far, number))
    return results[min(there)[1]] or Result()


def _of_network(network: Optional[Network], several: bool) -> Dict[str, Any]:
    if network is None:
        return {}
    ranks = {"ranks": dict(network.ranks)}
    if not several:
        return ranks
    return {
        **ranks,
        "transport": {
            "networks": list(network.networks),
            "nodes": network.nodes,
            "expected": network.expected,
            "proven": network.proven,
            "missing": list(network.missing),
            "gdr": network.gdr,
            "hosts": {host: asdict(one) for host, one in network.hosts.items()},
        },
        "rails": {
            host: {device: asdict(moved) for device, moved in devices.items()}
            for host, devices in network.rails.items()
        },
        "nccl_version": ", ".join(network.versions),
    }
