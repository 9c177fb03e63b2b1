# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Measure over teams of nodes in rounds, each against a bar: what every campaign has in common.

A campaign is a plan beside this file (cluster.py: the benchmark between nodes; localise.py: the search for slow nodes).
A plan is pure: it gives the trials of a round, on disjoint teams, takes their results, and gives the next round. Its
state stays in the one process that plays it. ``Run`` is the only way to nodes: in a playbook nodes.py, which runs
modules of the suite as tasks of Ansible; in tests a simulation.

    while trials := plan.next_round():
        plan.take(measure(trials, run))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Call:
    """One module of the suite on one node.

    module: without the collection's name.   seconds: its time limit where it runs in the background of the node, which
    no lost connection ends; 0 for a module that only reads, and is waited for.
    """

    host: str
    module: str
    arguments: Mapping[str, Any]
    seconds: float = 0.0


# Runs all calls at the same time. Returns the result of each, in their order, valid by plugin_utils/answer.py: keys of
# the module, or ``failed`` and ``msg``, or ``unreachable``. Never raises for what a node does.
Run = Callable[[Sequence[Call]], Sequence[Result]]


@dataclass(frozen=True)
class Trial:
    """One measurement over a team of nodes.

    name: unique in its round.   passes: calls that run at the same time; one pass follows the other.
    """

    name: str
    hosts: tuple[str, ...]
    passes: tuple[tuple[Call, ...], ...]


def measure(trials: Sequence[Trial], run: Run) -> dict[str, list[list[Result]]]:
    """Run a round: the passes of all trials side by side. Return name -> of each pass the result of each call."""
    found: dict[str, list[list[Result]]] = {trial.name: [] for trial in trials}
    for number in range(max((len(trial.passes) for trial in trials), default=0)):
        there = [(trial.name, trial.passes[number]) for trial in trials if number < len(trial.passes)]
        results = iter(run([call for _name, calls in there for call in calls]))
        for name, calls in there:
            found[name].append([next(results) for _call in calls])
    return found


def query(run: Run, module: str, arguments: Mapping[str, Mapping[str, Any]]) -> dict[str, Result]:
    """Run a module that only reads on several nodes. arguments: host -> its options. Return host -> result."""
    results = run([Call(host, module, of_host) for host, of_host in arguments.items()])
    return dict(zip(arguments, results, strict=True))
