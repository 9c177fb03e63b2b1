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
from ansible_collections.busbar.fabric.plugins.plugin_utils import localise_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.preflight import Answer, Outcome
from ansible_collections.busbar.fabric.plugins.plugin_utils.slurm_engine import SlurmError

from busbar.preflight import site as sites
from busbar.preflight import steps
from busbar.preflight.command import told
from busbar.preflight.search import Preflight
from busbar.preflight.steps import Asked, Taken

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

    def ask(
        self, nodes: Sequence[str], limit: float, gate: Sequence[str] = ()
    ) -> tuple[dict[str, Answer], dict[str, str]]:
        self.now += 1
        there = [node for node in nodes if not self._gone(node)]
        found = {node: Answer(node, node, self.gates.get(node), "GPU 3 lost") for node in there}
        return found, {node: "Communication connection failure" for node in nodes if node not in there}

    def measure(self, teams: Sequence[Sequence[str]], asked: Asked, limit: float) -> list[Taken]:
        self.step += 1
        found = []
        for team in teams:
            self.asked.append(tuple(team))
            if any(self._gone(node) or self.hung.get(node, 1 << 30) <= self.step for node in team):
                found.append(Taken(None, "nccl_perf.ran: no end within %g s" % limit, limit))
                continue
            share = min((self.slow if len(team) > 1 else self.slow_alone).get(node, 1.0) for node in team)
            found.append(Taken((GOOD_ALONE if len(team) == 1 else self.good) * share, "", self.seconds, True))
        self.now += max(one.seconds for one in found)
        return found


def names(count: int) -> list[str]:
    return ["node%02d" % number for number in range(1, count + 1)]


@pytest.fixture(scope="module")
def site() -> sites.Site:
    return sites.of_platform("hgx-h100", "infiniband", None, None)


def preflight(nodes: Nodes, site: sites.Site, limit: float = 120, **more: Any) -> Preflight:
    lines: list[str] = []
    return Preflight(nodes.names, {}, site, nodes, limit, ("gate",), lines.append, nodes.clock, **more)


def outcome(nodes: Nodes, site: sites.Site, limit: float = 120) -> Outcome:
    return preflight(nodes, site, limit).run()


@pytest.mark.parametrize("count", [1, 2, 3, 8, 9, 64])
def test_healthy_nodes_are_all_good(site: sites.Site, count: int) -> None:
    nodes = Nodes(names(count))
    found = outcome(nodes, site)
    assert (found.code, dict(found.exclude), dict(found.unknown)) == (0, {}, {})
    # Each alone, all in pairs, and then all at once.
    assert nodes.asked[:count] == [(name,) for name in nodes.names]
    assert count < 3 or nodes.asked[-1] == tuple(nodes.names)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"slow": {"node03": 0.6}}, "localise.node: slow with node01 (216 GB/s), node02 (216 GB/s)"),
        ({"slow_alone": {"node03": 0.6}}, "localise.alone: 282 GB/s"),
        ({"hung": {"node03": 1}}, "preflight.alone: nccl_perf.ran: no end within 30 s"),
        ({"hung": {"node03": 2}}, "no result with two good nodes"),
        ({"dead": {"node03": 0}}, "preflight.answers: Communication connection failure"),
        ({"dead": {"node03": 2}}, "it was lost while it was measured: Communication"),
        ({"gates": {**dict.fromkeys(names(8), 0), "node03": 1}}, "preflight.gate: GPU 3 lost"),
    ],
)
def test_one_bad_node_is_named_and_nobody_else_is(site: sites.Site, more: dict[str, Any], why: str) -> None:
    nodes = Nodes(names(8), **more)
    run = preflight(nodes, site)
    found = run.run()
    assert (found.code, list(found.exclude), dict(found.unknown)) == (2, ["node03"], {})
    assert why in found.exclude["node03"]
    # The rest of them was measured together, without it.
    assert nodes.asked[-1] == tuple(name for name in nodes.names if name != "node03")
    # What is not known of it by measuring is known by that: the limit holds, but for what ends a step.
    assert nodes.now < 120
    record = run.record(True)
    assert localise_record.from_dict(localise_record.to_dict(record)) == record
    assert record.simulated


def test_what_takes_three_times_as_long_as_a_good_step_hangs(site: sites.Site) -> None:
    """The first of a kind has a quarter of the limit; a good one took 4 s then."""
    found = outcome(Nodes(names(8), hung={"node03": 2}), site)
    assert "no end within 30 s" in found.exclude["node03"]
    assert "no end within 17 s" in found.exclude["node03"]


def test_a_gate_without_a_verdict_is_told_and_counts_for_nothing(site: sites.Site) -> None:
    nodes = Nodes(names(4), gates=dict.fromkeys(names(4), 2))
    lines: list[str] = []
    run = Preflight(nodes.names, {}, site, nodes, 120, ("gate",), lines.append, nodes.clock)
    assert run.run().code == 0
    assert any("no verdict on node[01-04]: GPU 3 lost" in line for line in lines)


def test_two_nodes_do_not_tell_which_of_them_is_slow(site: sites.Site, capsys: pytest.CaptureFixture[str]) -> None:
    found = outcome(Nodes(names(2), slow={"node02": 0.5}), site)
    assert found.code == 2
    told(found, names(2))
    said = capsys.readouterr()
    assert said.out == "UNKNOWN=node01,node02\nPREFLIGHT=bad\n"
    assert "no single node is the cause" in said.err


def test_a_slow_fabric_is_no_nodes_fault(site: sites.Site, capsys: pytest.CaptureFixture[str]) -> None:
    found = outcome(Nodes(names(8), good=100.0), site)
    assert (found.code, dict(found.exclude)) == (2, {})
    told(found, names(8))
    assert "localise.bar" in capsys.readouterr().err


@pytest.mark.parametrize("limit", [4, 12, 16])
def test_what_the_limit_cuts_off_is_unknown(site: sites.Site, limit: float) -> None:
    found = outcome(Nodes(names(8)), site, limit)
    assert found.code == 3
    assert "preflight.complete" in {one.finding.check for one in found.verdicts if not one.finding.ok}


def test_nobody_that_gives_a_figure_is_our_mistake_and_no_nodes(site: sites.Site) -> None:
    found = outcome(Nodes(names(4), hung=dict.fromkeys(names(4), 1)), site)
    assert (found.code, dict(found.exclude), len(found.unknown)) == (3, {}, 4)


def test_relative_compares_pairs_with_their_median_and_judges_nothing_that_all_share() -> None:
    relative = sites.relative(8, None, "/opt/nccl-tests")
    nodes = Nodes(names(8), slow={"node05": 0.7}, good=20.0)
    found = outcome(nodes, relative)
    assert (found.code, list(found.exclude)) == (2, ["node05"])
    assert "0.9 of the median" in found.exclude["node05"]
    assert outcome(Nodes(names(8), good=20.0), sites.relative(8, None, "/opt/nccl-tests")).code == 0
    # All at once is tried twice, and then it is unknown.
    assert outcome(Nodes(names(8), hung={"node01": 3}), sites.relative(8, None, "/opt/nccl-tests")).code == 3
    # Of two pairs nobody can tell which is slow.
    assert outcome(Nodes(names(4)), sites.relative(8, None, "/opt/nccl-tests")).code == 3


# -- what the nodes have to reach ------------------------------------------------------------------------------------


def inventory(tmp_path: Path, **hosts: Any) -> Path:
    given = {"busbar_platform": "hgx-h100", "busbar_fabric": "infiniband"}
    path = tmp_path / "hosts.yml"
    path.write_text(yaml.safe_dump({"gpu_nodes": {"hosts": hosts, "vars": given}}))
    return path


def test_an_inventory_says_bars_leaves_and_programs(tmp_path: Path) -> None:
    hosts = {"a.example": {"busbar_leaf": "l1"}, "other": {"drain_slurm_node": "b", "busbar_leaf": "l2"}, "c": {}}
    found = sites.of_inventory([inventory(tmp_path, **hosts)], ["a", "b"], None, None)
    assert (found.gpus, found.size, found.program) == (8, 8 << 30, "/opt/nccl-tests/all_reduce_perf")
    assert found.leaves == {"a": "l1", "b": "l2"}
    assert found.alone().value == 455


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
    assert found == {"n1": Answer("n1", "n1.example"), "n2": Answer("n2", "n2", 1, "\\x1b[31mred")}


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, (roll_call.PASSED, "its verdict is pass")),
        (
            {"verdict": "fail", "findings": [{"severity": "critical", "check": "a.b", "subject": "c", "have": "d"}]},
            (1, "a.b of c: d"),
        ),
        ({"verdict": "unknown"}, (2, "its verdict is unknown")),
        ({"at": 0}, (2, "hours old")),
        ({"boot_id": "x"}, (2, "of an earlier boot")),
        ({"findings": 7}, (2, "cannot be read")),
        ({"at": None}, (2, "cannot be read")),
    ],
)
def test_the_gates_last_verdict_is_of_this_boot_and_young(tmp_path: Path, changed: Any, found: tuple[int, str]) -> None:
    path = tmp_path / "state.json"
    assert roll_call.last(str(path)) == (None, "")
    boot = Path(roll_call.BOOT_ID).read_text().strip()
    path.write_text(json.dumps({"verdict": "pass", "at": time.time(), "boot_id": boot, "findings": [], **changed}))
    gate, said = roll_call.last(str(path))
    assert gate == found[0]
    assert found[1] in said


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("exit 0", (0, "exit code 0")),
        ("echo bad; exit 1", (1, "bad")),
        ("exit 3", (1, "exit code 3")),
        ("exit 2", (2, "exit code 2")),
        ("sleep 60", (2, "no end within 0.5 s")),
    ],
)
def test_a_program_of_the_sites_own_says_it_by_its_exit_code(
    tmp_path: Path, script: str, found: tuple[int, str]
) -> None:
    program = tmp_path / "check"
    assert roll_call.ask(0.5, [str(program)]) == (None, "")
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    gate, said = roll_call.ask(0.5, [str(program)])
    assert gate == found[0]
    assert found[1] in said


def test_a_job_is_read_from_the_environment_or_missed_with_the_way_out() -> None:
    with pytest.raises(SlurmError, match="below salloc"):
        steps.allocation({}, {"scontrol": "/bin/false"})
    with pytest.raises(SlurmError, match="scontrol show"):
        steps.allocation({"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}, {"scontrol": "/bin/false"})


def test_a_step_is_one_of_the_jobs_own_with_none_of_its_counts(tmp_path: Path) -> None:
    job = steps.Allocation("42", ("n1", "n2"), {})
    given = {"SLURM_NTASKS": "1", "SLURM_CONF": "/c", "NCCL_IB_TC": "106", "NCCL_DEBUG_FILE": "/x", "SECRET": "hush"}
    runs = steps.Steps(job, "/usr/bin/srun", tmp_path, ["--qos=x"], environment={**given, "PATH": "/p"})
    runs.hosts = {"n1": "n1.example", "n2": "n2"}
    assert runs._handed_on == {"NCCL_IB_TC": "106", "PATH": "/p:/usr/local/bin:/usr/bin:/bin"}
    of_team = runs._job(["n1", "n2"], Asked("/t/all_reduce_perf", 1 << 30, 8))
    words = launch.words(of_team, runs.launcher, ["NCCL_IB_TC"], 20)
    assert {"--jobid=42", "--overlap", "--overcommit", "--nodelist=n1,n2", "--ntasks=16", "--qos=x"} <= set(words)
    assert not {"--exclusive", "--immediate=60"} & set(words)
    with pytest.raises(ParseError, match="take '--nodelist=n3' out"):
        steps.Steps(job, "/usr/bin/srun", tmp_path, ["--nodelist=n3"])
