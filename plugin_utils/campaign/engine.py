# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# pylint: disable=disallowed-name  # a bar is the field's own word
"""Measure over teams of nodes in rounds, each against a bar: what every campaign has in common.

A campaign is a plan beside this file (cluster.py: the benchmark between nodes; localise.py: the search for slow nodes).
A plan is pure: it gives the programs of a round, on disjoint teams, takes their results, and gives the next round. Its
state stays in the one process that plays it. ``Run`` is the only way to nodes: in a playbook nodes.py, which runs
modules of the suite as tasks of Ansible; in tests a simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.busbar.fabric.plugins.module_utils.nccl.cluster_member import NVLINK_DOMAIN

from ..plain_data import Plain, PlainView
from .cluster_record import Program

STEP_FACTOR = 2
STORE = "/var/lib/busbar/nccl_cluster"
# Seconds that a program's runs may take beyond their own limits, before the node ends it.
SPARE = 120
Result = PlainView


@dataclass(frozen=True)
class Call:
    """One module of the suite on one node.

    module: without the collection's name.   seconds: its time limit where it runs in the background of the node, which
    no lost connection ends; 0 for a module that only reads, and is waited for.
    """

    host: str
    module: str
    arguments: PlainView
    seconds: float = 0.0


# Runs all calls at the same time. Returns the result of each, in their order, valid by plugin_utils/answer.py: keys of
# the module, or ``failed`` and ``msg``, or ``unreachable``. Never raises for what a node does.
Run = Callable[[Sequence[Call]], Sequence[Result]]


# Calls that run at the same time; one pass follows the other.
Passes = Sequence[Sequence[Call]]


def measure(trials: Sequence[Passes], run: Run) -> list[list[list[Result]]]:
    """Run the passes of all trials side by side. Return of each trial and pass the result of each call."""
    found: list[list[list[Result]]] = [[] for _trial in trials]
    for number in range(max(map(len, trials), default=0)):
        there = [(place, passes[number]) for place, passes in enumerate(trials) if number < len(passes)]
        results = iter(run([call for _place, calls in there for call in calls]))
        for place, calls in there:
            found[place].append([next(results) for _call in calls])
    return found


@dataclass(frozen=True, kw_only=True)
class Job(Program):
    """A program that the team's first host starts.

    names, addresses: of the hosts, in their order.   kind: profile and fabric.   per_node: ranks.
    rails: how many HCAs of each node have to carry data, 0 where unknown.   repeats: 0 for those of the inventory.
    scaling: over a part of the nodes of its scope, for the comparison.   queue_pairs: per connection, 0 where they are
    not compared; used_queue_pairs: those of jobs.
    directory: of its results on that host, "" for one of its scope.
    """

    kind: str
    names: tuple[str, ...]
    addresses: tuple[str, ...]
    per_node: int
    rails: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    scaling: bool = False
    repeats: int = 0
    directory: str = ""
    queue_pairs: int = 0
    used_queue_pairs: int = 0

    @property
    def head(self) -> str:
        return self.hosts[0]

    @property
    def ranks(self) -> int:
        return self.per_node * len(self.hosts)

    @property
    def way(self) -> str:
        return "nvlink" if self.scope == NVLINK_DOMAIN else "network"

    def call(self, values: PlainView) -> Call:
        """Return the call of nccl_perf. values: of the head's intent."""
        repeats = self.repeats or values["nccl_benchmark_repeats"]
        what = f"-{self.queue_pairs}-queue-pairs" if self.queue_pairs else ""
        directory = self.directory or f"{self.scope}/{self.collective}-{self.max_bytes}-{len(self.hosts)}{what}"
        launch = {
            "kind": values["nccl_benchmark_launcher"],
            "hosts": list(self.names),
            "addresses": list(self.addresses),
            "per_node": self.per_node,
            "options": values["nccl_benchmark_launcher_options"],
        }
        arguments = {
            **perf_arguments(values, self.collective, self.environment, directory),
            "launch": launch,
            "repeats": repeats,
            "algorithm": self.algorithm,
            "rails": self.rails or None,
            "way": self.way,
            "min_bytes": self.min_bytes,
            "max_bytes": self.max_bytes,
            "step_factor": STEP_FACTOR,
            **({"bar_busbw": self.bar} if self.bar else {}),
        }
        return Call(self.head, "nccl_perf", arguments, values["nccl_benchmark_timeout"] * repeats + SPARE)


@dataclass(frozen=True)
class Measured:
    """A job and its result of nccl_perf; {} where there is none, and ``failure`` has the reason."""

    job: Job
    result: Result
    failure: str = ""

    @property
    def busbw(self) -> float | None:
        """Return GB/s at the largest size; None where nothing was measured. A figure of 0 is none."""
        return self.result.get("busbw") or None


def perf_arguments(values: PlainView, collective: str, environment: Mapping[str, str], directory: str) -> Plain:
    """Return the options of nccl_perf that a node's inventory decides. environment: more variables of the program."""
    return {
        "binary": f"{values['nccl_tests_path']}/{collective}_perf",
        "iterations": values["nccl_benchmark_iterations"],
        "timeout": values["nccl_benchmark_timeout"],
        "environment": {**values["nccl_benchmark_environment"], **environment},
        "result_directory": f"{str(values['busbar_system_root']).removesuffix('/')}{STORE}/{directory}",
        **roots(values),
    }


def roots(values: PlainView) -> Plain:
    """Return the options that every module on a node has."""
    return {name: values[f"busbar_{name}"] for name in ("hardware_root", "system_root")}
