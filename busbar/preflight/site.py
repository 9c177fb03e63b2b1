# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Return the bars of a job's nodes: by an inventory, or by a platform's name."""

# pylint: disable=disallowed-name  # a bar is the field's own word

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.size import parse_size
from ansible_collections.busbar.fabric.plugins.plugin_utils import intent, nodeset, prediction
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import cluster_wanted
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.cluster_plan import Expected, job_of
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.cluster_wanted import Kind
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.engine import Job
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.localise_record import Bar, Test
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.members import Member
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.trials import COLLECTIVE, SCOPES
from ansible_collections.busbar.fabric.plugins.plugin_utils.profile_files import BUILT_IN, load, with_planes

from ..drift import inventory

ALONE = "alone"
# Of the program: a first look, not a benchmark.
ITERATIONS = 5
# Values that have to be the same for all nodes of a job.
_ALIKE = (
    *("busbar_platform", "busbar_fabric", "busbar_hardware_root", "nccl_tests_path", "nccl_conf_extra"),
    *("nccl_benchmark_max_bytes", "nccl_benchmark_environment", "nccl_benchmark_launcher_options"),
)
_ROOM = 60


@dataclass
class Site:
    """size: bytes of each message.   tests: directory of nccl-tests.   leaves: node -> leaf, {} where unknown."""

    kind: Kind
    size: int
    tests: str
    leaves: Mapping[str, str] = field(default_factory=dict)

    @property
    def program(self) -> str:
        return f"{self.tests}/{COLLECTIVE}_perf"

    @property
    def options(self) -> list[str]:
        """Return the site's options of srun."""
        values = self.kind.values
        return [*values["nccl_benchmark_launcher_options"]] if values["nccl_benchmark_launcher"] == "srun" else []

    def job(self, team: Sequence[str], names: Mapping[str, str], kind: str) -> Job:
        """Return the job of a team. names: node -> its own host name, which its ranks print.   kind: of the test."""
        members = tuple(Member(node, self.kind.settings, names[node], node) for node in team)
        scope = SCOPES.get(kind, "node")
        measure = self.kind.of_scope(scope).one_size(self.size)
        return job_of(members, measure, Expected(), name="+".join(team), scope=scope, repeats=1)

    def values(self, limit: float) -> Mapping[str, object]:
        """Return the values of a job's call. limit: seconds of the program."""
        own = self.kind.values["nccl_benchmark_environment"].items()
        return {
            "nccl_tests_path": self.tests,
            "nccl_benchmark_launcher": "srun",
            "nccl_benchmark_launcher_options": [],
            "nccl_benchmark_environment": {
                **self.kind.settings.environment,
                **{name: str(value) for name, value in own},
            },
            "nccl_benchmark_iterations": ITERATIONS,
            "nccl_benchmark_timeout": limit,
            "busbar_hardware_root": self.kind.values["busbar_hardware_root"],
            "busbar_system_root": "/",
        }

    def node_bar(self) -> Bar:
        """Return the bar of each node alone."""
        of = self.kind
        run = (of.bars, of.name, of.profile, of.nvls, 1, "node", COLLECTIVE, self.size)
        return Bar(*prediction.bar_or_prediction(*run))

    def bar(self, test: Test) -> Bar:
        kind = self.kind.of_scope(SCOPES[test.kind])
        wanted = kind.expected(kind.one_size(self.size), len(test.hosts))
        return Bar(wanted.bar, wanted.bar_source)


def of_platform(platform: str, fabric: str, size: str | None, tests: str | None) -> Site:
    """Return the site by the suite's profile and bars. Raises ParseError."""
    given = {"busbar_platform": platform, "busbar_fabric": fabric}
    # The job's current folder is not searched for profiles or bars: with an inventory they are beside it.
    return _site(given, Path("/nonexistent"), size, tests, {})


def inventory_hosts(paths: Sequence[Path], nodes: Sequence[str]) -> dict[str, tuple[str, Mapping[str, object]]]:
    """Return node -> its name in the inventory, and its variables, of those that are there. Raises InventoryError."""
    found: dict[str, tuple[str, Mapping[str, object]]] = {}
    for host, variables in inventory.variables(paths).items():
        for name in (host, host.partition(".")[0], variables.get("drain_slurm_node") or host):
            found.setdefault(str(name), (host, variables))
    return {node: found[node] for node in nodes if node in found}


def of_inventory(paths: Sequence[Path], nodes: Sequence[str], size: str | None, tests: str | None) -> Site:
    """Return the site by the inventory's values for the job's nodes, which all have to be the same.

    Raises ParseError, InventoryError.
    """
    of_node = {node: variables for node, (_host, variables) in inventory_hosts(paths, nodes).items()}
    missing = [node for node in nodes if node not in of_node]
    if missing:
        raise ParseError(
            f"{nodeset.brief(missing, _ROOM)}: not among gpu_nodes of the inventory; where Slurm calls a node"
            " otherwise, set drain_slurm_node for it"
        )
    alike = nodeset.grouped((repr([of_node[node].get(name) for name in _ALIKE]), node) for node in nodes)
    if len(alike) > 1:
        groups = " and ".join(nodeset.brief(group, _ROOM) for group in alike.values())
        raise ParseError(f"the nodes of this job want different things ({groups}: one of {', '.join(_ALIKE)} differs)")
    own = {name: value for name, value in of_node[nodes[0]].items() if intent.mine(name)}
    templates = sorted(name for name in _ALIKE if "{{" in repr(own.get(name)))
    if templates:
        raise ParseError(f"{templates[0]} is a template, which is not filled in here: write the value itself")
    folder = paths[0] if paths[0].is_dir() else paths[0].parent
    leaf_of = {node: str(of_node[node].get("busbar_leaf") or "") for node in nodes}
    return _site(own, folder, size, tests, leaf_of if any(leaf_of.values()) else {})


def _site(
    given: Mapping[str, object], folder: Path, size: str | None, tests: str | None, leaf_of: Mapping[str, str]
) -> Site:
    from ansible_collections.busbar.fabric.plugins.action import intent as files  # here: it loads Ansible

    # Templates, such as paths on the control node, are not needed here.
    values = intent.read({name: value for name, value in given.items() if "{{" not in repr(value)})
    name = values["busbar_platform"]
    _path, data = load(name, [folder / "profiles", BUILT_IN])
    data = with_planes(data, values["busbar_planes"])
    words = " ".join(filter(None, (name, values["busbar_fabric"])))
    settings, profile = cluster_wanted.settings({"values": values, "profile": data, "profile_name": name}, words)
    if not profile.gpus.count or not profile.rails:
        raise ParseError(
            f"profile {name} has no {'rails' if profile.gpus.count else 'GPUs'}: there is nothing to measure"
        )
    kind = Kind(replace(settings, scope="pair"), values, profile, name, files.bars_of(folder))
    found = tests or values["nccl_tests_path"]
    site = Site(kind, parse_size(size or values["nccl_benchmark_max_bytes"]), found.rstrip("/"), leaf_of)
    bar = site.node_bar()
    if bar.value is None:
        raise ParseError(f"there is no bar for a single node: {bar.source}")
    return site
