# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A preflight of simulated nodes: who is left out, who is unknown, and what is said where nobody can tell.

With the real srun: tests/cluster/test_preflight.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import launch, roll_call
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import localise_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.engine import Call, Result
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.preflight import Outcome, RollCallResult
from ansible_collections.busbar.fabric.plugins.plugin_utils.slurm_engine import SlurmError

from busbar.preflight import site as sites
from busbar.preflight import steps
from busbar.preflight.command import print_outcome
from busbar.preflight.search import Preflight
from tests import goldens

GOOD_ALONE, GOOD = 470.0, 360.0


@dataclass
class Nodes:
    """Simulated nodes. slow: node -> what it leaves of a figure.   hung, dead: from the number of that step on.

    seconds: that a good step takes.
    """

    names: list[str]
    slow: dict[str, float] = field(default_factory=dict)
    slow_alone: dict[str, float] = field(default_factory=dict)
    hung: dict[str, int] = field(default_factory=dict)
    dead: dict[str, int] = field(default_factory=dict)
    gates: dict[str, int] = field(default_factory=dict)
    seconds: float = 4.0
    good: float = GOOD
    step: int = 0
    now: float = 0.0
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def _gone(self, node: str) -> bool:
        return self.dead.get(node, 1 << 30) <= self.step

    def query(self, nodes: Sequence[str], limit: float) -> tuple[dict[str, RollCallResult], dict[str, str]]:
        self.now += 1
        there = [node for node in nodes if not self._gone(node)]
        found = {node: RollCallResult(node, node, self.gates.get(node), "GPU 3 lost") for node in there}
        return found, dict.fromkeys(set(nodes) - set(there), "Communication connection failure")

    def __call__(self, calls: Sequence[Call]) -> list[Result]:
        self.step += 1
        found = [self._result(call.arguments["launch"]["addresses"], call.arguments["timeout"]) for call in calls]
        self.now += max(one["seconds"] for one in found)
        return found

    def _result(self, team: Sequence[str], limit: float) -> Result:
        self.asked.append(tuple(team))
        if any(self._gone(node) or self.hung.get(node, 1 << 30) <= self.step for node in team):
            return {"failed": True, "msg": "nccl_perf.ran: no end within %g s" % limit, "seconds": limit}
        share = min((self.slow if len(team) > 1 else self.slow_alone).get(node, 1.0) for node in team)
        figure = (GOOD_ALONE if len(team) == 1 else self.good) * share
        return {"busbw": figure, "findings": [], "seconds": self.seconds, "simulated": True}


def names(count: int) -> list[str]:
    return ["node%02d" % number for number in range(1, count + 1)]


@pytest.fixture(scope="module")
def site() -> sites.Site:
    return sites.of_platform("hgx-h100", "infiniband", None, None)


# Case -> number of nodes, what is wrong with them, and the limit in seconds.
JOBS: dict[str, tuple[int, dict[str, Any], float]] = {
    **{f"{count} healthy": (count, {}, 120) for count in (1, 2, 3, 8, 9, 64)},
    "slow with others": (8, {"slow": {"node03": 0.6}}, 120),
    "slow alone": (8, {"slow_alone": {"node03": 0.6}}, 120),
    "hangs alone": (8, {"hung": {"node03": 1}}, 120),
    "hangs with others": (8, {"hung": {"node03": 2}}, 120),
    "no answer": (8, {"dead": {"node03": 0}}, 120),
    "lost meanwhile": (8, {"dead": {"node03": 2}}, 120),
    "failed gate": (8, {"gates": {**dict.fromkeys(names(8), 0), "node03": 1}}, 120),
    "gate without a verdict": (4, {"gates": dict.fromkeys(names(4), 2)}, 120),
    # No single node is the cause.
    "one of two is slow": (2, {"slow": {"node02": 0.5}}, 120),
    "slow fabric": (8, {"good": 100.0}, 120),
    **{f"8 healthy within {limit} s": (8, {}, limit) for limit in (4, 12, 16)},
    # It is a mistake of Busbar's, and of no node.
    "no figure at all": (4, {"hung": dict.fromkeys(names(4), 1)}, 120),
}


def simulated(name: str, site: sites.Site, said: list[str] | None = None) -> tuple[Preflight, Nodes, Outcome]:
    count, more, limit = JOBS[name]
    nodes = Nodes(names(count), **more)
    run = Preflight(nodes.names, {}, site, nodes, limit, ([] if said is None else said).append, nodes.clock)
    return run, nodes, run.run()


@pytest.mark.golden
@pytest.mark.parametrize("name", JOBS)
def test_who_is_left_out_of_a_job(site: sites.Site, name: str) -> None:
    run, nodes, found = simulated(name, site)
    # Each alone, all in pairs, and then all at once, but for those that are left out.
    if found.code == 0:
        assert nodes.asked[: len(nodes.names)] == [(node,) for node in nodes.names]
    if (found.code == 0 and len(nodes.names) > 2) or found.exclude:
        assert nodes.asked[-1] == tuple(node for node in nodes.names if node not in found.exclude)
    # What is not known by measuring is known by that: the limit holds, but for what ends a step.
    assert nodes.now < 120
    record = run.record(True)
    assert localise_record.from_dict(localise_record.to_dict(record)) == record
    assert record.simulated or not found.exclude
    bad = sorted({one.finding.check for one in found.verdicts if not one.finding.ok})
    rows: list[Any] = [{"code": found.code, "exclude": list(found.exclude), "unknown": list(found.unknown)}]
    goldens.check("preflight", name, [*rows, *bad])


@pytest.mark.golden
def test_what_is_printed_of_jobs(site: sites.Site, capsys: pytest.CaptureFixture[str]) -> None:
    parts = []
    for name in JOBS:
        _run, nodes, found = simulated(name, site)
        print_outcome(found, nodes.names)
        said = capsys.readouterr()
        parts += [f"== {name}", said.out + said.err]
    goldens.text("preflight", "\n".join(parts) + "\n")


def test_a_gate_without_a_verdict_is_told_and_counts_for_nothing(site: sites.Site) -> None:
    lines: list[str] = []
    simulated("gate without a verdict", site, lines)
    assert any("no verdict on node[01-04]: GPU 3 lost" in line for line in lines)


# -- what the nodes have to reach ------------------------------------------------------------------------------------


def inventory(tmp_path: Path, **hosts: Any) -> Path:
    given = {"busbar_platform": "hgx-h100", "busbar_fabric": "infiniband"}
    path = tmp_path / "hosts.yml"
    path.write_text(yaml.safe_dump({"gpu_nodes": {"hosts": hosts, "vars": given}}))
    return path


def test_an_inventory_says_bars_leaves_and_programs(tmp_path: Path) -> None:
    hosts = {"a.example": {"busbar_leaf": "l1"}, "other": {"drain_slurm_node": "b", "busbar_leaf": "l2"}, "c": {}}
    found = sites.of_inventory([inventory(tmp_path, **hosts)], ["a", "b"], None, None)
    assert (found.size, found.program) == (8 << 30, "/opt/nccl-tests/all_reduce_perf")
    assert found.leaves == {"a": "l1", "b": "l2"}
    assert found.node_bar().value == 455


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        ({"a": {}}, "b: not among gpu_nodes"),
        ({"a": {}, "b": {"busbar_fabric": "roce"}}, "want different things (a and b"),
        ({name: {"nccl_tests_path": "{{ somewhere }}"} for name in "ab"}, "nccl_tests_path is a template"),
        ({name: {"busbar_platform": "hgx-h10"} for name in "ab"}, "did you mean hgx-h100"),
        ({name: {"busbar_platforms": "x"} for name in "ab"}, "busbar_platforms is not a variable"),
        ({name: {"nccl_benchmark_max_bytes": "1G"} for name in "ab"}, "no bar for a single node"),
    ],
)
def test_an_inventory_that_does_not_say_it_is_refused(tmp_path: Path, hosts: Any, said: str) -> None:
    with pytest.raises(ParseError, match=said.replace("(", r"\(")):
        sites.of_inventory([inventory(tmp_path, **hosts)], ["a", "b"], None, None)


# -- what Slurm and the nodes say ------------------------------------------------------------------------------------

TOPOLOGY = """\
SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=leaf[1-2]
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[3-4]
"""


@pytest.mark.parametrize(
    ("said", "nodes", "found"),
    [
        (TOPOLOGY, ["n2", "n3"], {"n2": "leaf1", "n3": "leaf2"}),
        (TOPOLOGY, ["n2", "n5"], {}),
        ("", ["n1"], {}),
        ("SwitchName=a Level=0 Nodes=n[1-\n", ["n1"], {}),
        (TOPOLOGY + "SwitchName=leaf3 Level=0 Nodes=n2\n", ["n1"], {}),
    ],
)
def test_leaves_are_slurms_lowest_switches(said: str, nodes: list[str], found: dict[str, str]) -> None:
    assert steps.leaves(said, nodes) == found


def test_an_answer_is_of_a_node_that_was_asked_and_typed() -> None:
    mark = roll_call.MARK
    said = f"""\
0: {mark}{{"node": "n1", "host": "n1.example", "gate": null, "said": ""}}
{mark}{{"node": "n2", "host": "n2", "gate": 1, "said": "\\u001b[31mred"}}
{mark}{{"node": "n3", "host": "n3", "gate": 0, "said": ""}}
{mark}{{"node": "n4", "host": "n4;rm", "gate": 0, "said": ""}}
{mark}{{"node": "n5", "host": "n5", "gate": true, "said": ""}}
{mark}[[[
"""
    found = steps.answers(said, ["n1", "n2", "n4", "n5"])
    assert found == {"n1": RollCallResult("n1", "n1.example"), "n2": RollCallResult("n2", "n2", 1, "\\x1b[31mred")}


CRITICAL = {"severity": "critical", "check": "a.b", "subject": "c", "have": "d"}


@pytest.mark.parametrize(
    ("changed", "gate", "says"),
    [
        ({}, roll_call.PASSED, "its verdict is pass"),
        ({"verdict": "fail", "findings": [CRITICAL]}, 1, "a.b of c: d"),
        ({"verdict": "unknown"}, 2, "its verdict is unknown"),
        ({"at": 0}, 2, "hours old"),
        ({"boot_id": "x"}, 2, "of an earlier boot"),
        ({"findings": 7}, 2, "cannot be read"),
        ({"at": None}, 2, "cannot be read"),
    ],
)
def test_the_gates_last_verdict_is_of_this_boot_and_young(tmp_path: Path, changed: Any, gate: int, says: str) -> None:
    path = tmp_path / "state.json"
    assert roll_call.last(str(path)) == (None, "")
    boot = Path(roll_call.BOOT_ID).read_text().strip()
    path.write_text(json.dumps({"verdict": "pass", "at": time.time(), "boot_id": boot, "findings": [], **changed}))
    found = roll_call.last(str(path))
    assert (found[0], says in found[1]) == (gate, True)


def test_a_job_is_read_from_the_environment_or_missed_with_the_way_out() -> None:
    with pytest.raises(SlurmError, match="below salloc"):
        steps.allocation({}, {"scontrol": "/bin/false"})
    with pytest.raises(SlurmError, match="scontrol show"):
        steps.allocation({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}, {"scontrol": "/bin/false"})


def test_a_step_is_one_of_the_jobs_own_with_none_of_its_counts(site: sites.Site, tmp_path: Path) -> None:
    job = steps.Allocation("42", ("n1", "n2"), {})
    given = {"SLURM_NTASKS": "1", "SLURM_CONF": "/c", "NCCL_IB_TC": "106", "NCCL_DEBUG_FILE": "/x", "SECRET": "hush"}
    runs = steps.Steps(job, "/usr/bin/srun", tmp_path, ["--qos=x"], environment={**given, "PATH": "/p"})
    assert runs._handed_on == {"NCCL_IB_TC": "106", "PATH": "/p:/usr/local/bin:/usr/bin:/bin"}
    call = site.job(["n1", "n2"], {"n1": "n1", "n2": "n2"}, "pair").call(site.values(20))
    of_team = runs._launch(call.arguments["launch"])
    assert steps._wanted(call, of_team).sizes == (8 << 30,)
    words = launch.words(of_team, runs.launcher, ["NCCL_IB_TC"], 20)
    assert {"--jobid=42", "--overlap", "--overcommit", "--nodelist=n1,n2", "--ntasks=16", "--qos=x"} <= set(words)
    assert not {"--exclusive", "--immediate=60"} & set(words)
    with pytest.raises(ParseError, match="'hostname' is not an option"):
        steps.Steps(job, "/usr/bin/srun", tmp_path, ["hostname"])
