# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The gate in a real Slurm: its HealthCheckProgram, Prolog and Epilog, started by slurmd itself.

The nodes are simulated ones of the lab; what is wrong with them is a GPU that is gone. A Slurm of its own, whose
slurm.conf has the lines that the role says.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.gate import read as gate
from ansible_collections.busbar.fabric.plugins.module_utils.gate import slurm as gate_slurm
from ansible_collections.busbar.fabric.plugins.plugin_utils import gate_files

from lab import store, tree
from lab.machines import hgx_h100
from tests import debian
from tests.slurm_daemons import PROGRAMS, Slurm, wait
from tests.trees import put
from tests.unit.test_gate import THEIRS

ROOT = Path(__file__).resolve().parent.parent.parent
NODES = ("node01", "node02", "node03", "node04")
EVERY = 4
DIRECT = "health"
OUT = "IDLE+DRAIN busbar gate: "
# States that an administrator can set, and what of THEIRS a real Slurm takes.
STATES = {"IDLE+DRAIN": "DRAIN", "DOWN": "DOWN", "IDLE+FAIL": "FAIL", "DOWN+DRAIN": "DOWN"}
FORMS = [(STATES[states], reason) for states, reason in THEIRS if states in STATES and reason]
FORMS += [("DRAIN", reason) for reason in ("a", "busbar gate:", "Busbar gate: x", "busbar gate: #00000000", "x" * 400)]


class Gate:
    """A Slurm whose nodes are simulated ones, with the gate on each of them."""

    def __init__(self, slurm: Slurm, lab: Path) -> None:
        self.slurm = slurm
        self.lab = lab

    def install(self, stages: tuple[str, ...], direct: str = "", **more: Any) -> None:
        """Program, intents, and launchers, which find their node's by the name that slurmd gives them.

        stages: at which slurmd starts them.   direct: a stage at which ``check`` does, and slurmd does not.
        """
        profile = yaml.safe_load((ROOT / "profiles" / "hgx-h100.yml").read_text())
        (self.lab / "gate.py").write_text(gate_files.program())
        for node in NODES:
            roots = {"hardware_root": str(self.lab / node / "hw"), "system_root": str(self.lab / node / "sys")}
            asked = {"profile": profile, "profile_name": "hgx-h100", "fabric": "infiniband", **roots}
            steps = [{"role": "platform", "module": "topology_info", "arguments": asked}]
            given = {"scontrol": "scontrol", "budget": 20, "fail": "open", "max_share": 0.5, "ignore": [], **roots}
            (self.lab / node / "intent.json").write_text(gate_files.intent({**given, **more}, steps, node))
        for stage in gate.STAGES:
            text = gate_files.launcher(stage).replace(gate.PROGRAM, str(self.lab / "gate.py"))
            call = f"gate.py {stage}"
            for started in (f"gate-{stage}", f"slurmd-{stage}"):
                wanted = stage == direct if started.startswith("gate-") else stage in stages
                started_text = text.replace(call, f"{call} {self.lab}/$SLURMD_NODENAME/intent.json", 1)
                put(self.lab, started, started_text if wanted else "#!/bin/sh\n", 0o755)

    def lose(self, node: str, lost: bool = True) -> None:
        """A GPU of the node is gone, or back."""
        machine = hgx_h100(node)
        if lost:
            machine.gpus.pop()
        tree.write_hardware(machine, self.lab / node / "hw")

    def state(self, node: str = "node01") -> dict[str, Any]:
        path = self.lab / node / "sys" / gate.STATE[1:]
        return gate.parse_state(path.read_text()) if path.exists() else {}

    def check(self, *nodes: str, stage: str = "health") -> list[str]:
        """Starts what slurmd would start, on all these nodes at the same time. Returns what was done on each."""
        argv = ["sh", str(self.lab / f"gate-{stage}")]
        started = [
            subprocess.Popen(argv, env={"SLURMD_NODENAME": node}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            for node in nodes
        ]
        assert [one.wait() for one in started] == [0] * len(nodes)
        return [self.state(node)["action"] for node in nodes]


@pytest.fixture(scope="module")
def _gate() -> Iterator[Gate]:
    lacking = debian.install(PROGRAMS)
    assert not lacking, lacking
    with tempfile.TemporaryDirectory(prefix="busbar-gate-") as folder:
        lab = Path(folder) / "lab"
        store.create(lab, dict.fromkeys(NODES, hgx_h100))
        top = Path(folder) / "slurm"
        top.mkdir()
        lines = {gate.PARAMETERS[stage]: f"{lab}/slurmd-{stage}" for stage in gate.STAGES}
        lines |= {"HealthCheckInterval": str(EVERY), "HealthCheckNodeState": "IDLE"}
        slurm = Slurm(top, NODES, "".join(f"{name}={value}\n" for name, value in lines.items()))
        made = Gate(slurm, lab)
        made.install(())
        for node in NODES:
            slurm.put_tools(lab / node / "sys")
        try:
            slurm.start()
            yield made
        finally:
            slurm.stop()


@pytest.fixture
def given(_gate: Gate) -> Iterator[Gate]:
    """Four idle, healthy nodes; no stage of the gate is installed."""
    yield _gate
    _gate.install(())
    for node in NODES:
        _gate.lose(node, False)
        (_gate.lab / node / "sys" / gate.STATE[1:]).unlink(missing_ok=True)
    _gate.slurm.reset()


def test_slurmd_has_a_sick_node_drained_and_given_back_once_it_is_well(given: Gate) -> None:
    given.install(("health",))
    given.lose("node01")
    wait("a drain", lambda: given.slurm.node().startswith(OUT))
    wait("its state", lambda: given.state().get("action") == "drained" or given.state()["history"])
    reason = given.state()["kept_out"]["reason"]
    assert given.slurm.node() == f"IDLE+DRAIN {reason}"
    assert reason.startswith("busbar gate: platform.gpu_")
    given.lose("node01", False)
    wait("the node", lambda: given.slurm.node() == "IDLE")
    wait("its state", lambda: given.state()["kept_out"] is None)
    assert "resumed" in [one["action"] for one in [given.state(), *given.state()["history"]]]
    assert [given.slurm.node(node) for node in NODES] == ["IDLE"] * 4


def test_a_comment_with_a_line_break_stops_no_node(given: Gate) -> None:
    given.slurm.run("scontrol", "update", "NodeName=node02", "Comment=first\nNodeName=node09 second")
    given.lose("node01")
    given.install((), DIRECT)
    assert given.check("node01") == ["drained"]
    given.slurm.run("scontrol", "update", "NodeName=node02", "Comment=")


def test_all_nodes_sick_at_once_are_never_all_out_and_come_back(given: Gate) -> None:
    for node in NODES:
        given.lose(node)
    given.install((), DIRECT)
    actions = given.check(*NODES)
    assert sorted(actions) == ["drained", "drained", "held_by_breaker", "held_by_breaker"]
    out = [node for node in NODES if given.slurm.node(node).startswith(OUT)]
    assert out == [node for node, action in zip(NODES, actions, strict=True) if action == "drained"]
    # Once more it is the same ones.
    assert given.check(*NODES) == ["none" if node in out else "held_by_breaker" for node in NODES]
    # A reason that somebody has changed makes the node his, and still counts.
    given.slurm.run(
        "scontrol", "update", f"NodeName={out[0]}", f"Reason={given.state(out[0])['kept_out']['reason']} RMA"
    )
    for node in NODES:
        given.lose(node, False)
    assert dict(zip(NODES, given.check(*NODES), strict=True)) == {
        node: {out[0]: "left_alone", out[1]: "resumed"}.get(node, "none") for node in NODES
    }
    assert given.slurm.node(out[0]).endswith(" RMA")


def test_what_others_have_drained_or_set_down_stays_whatever_is_found(given: Gate) -> None:
    """Each form on a sick and on a healthy node, by what the program does in Slurm."""
    assert len(FORMS) >= 20
    host = Host(system_root=str(given.slurm.top / "sys"))
    for number, (state, reason) in enumerate(FORMS):
        node = NODES[number % len(NODES)]
        given.slurm.run("scontrol", "update", f"NodeName={node}", f"State={state}", f"Reason={reason}")
        before = given.slurm.node(node)
        assert before.endswith(reason)
        slurmctld = gate_slurm.Slurm(host, "scontrol", node, float("inf"))
        assert gate_slurm.keep_out(slurmctld, "7 GPUs", 0.5, lambda _reason: None).action == "left_alone"
        assert gate_slurm.give_back(slurmctld).action == "left_alone"
        assert given.slurm.node(node) == before
        given.slurm.run("scontrol", "update", f"NodeName={node}", "State=RESUME")


def test_a_sick_node_refuses_the_job_and_comes_back_without_a_person(given: Gate) -> None:
    given.install(("prolog",))
    given.lose("node01")
    argv = ("sbatch", "--parsable", "--nodelist=node01", "--output=/dev/null", "--wrap", "sleep 60")
    job = given.slurm.run(*argv).strip()
    asked = ("squeue", "--noheader", "--format=%T %r", f"--jobs={job}")
    wait("the job to be held", lambda: given.slurm.run(*asked).strip() == "PENDING launch failed requeued held")
    # Slurm's own "Prolog error" does not take its place.
    assert given.slurm.node() == f"IDLE+DRAIN {given.state()['kept_out']['reason']}"
    assert (given.state()["stage"], given.state()["action"]) == ("prolog", "drained")
    given.lose("node01", False)
    given.install(("prolog",), DIRECT)
    assert given.check("node01") == ["resumed"]
    # Slurm lets a job that was requeued wait for two minutes: another one goes there.
    given.slurm.run("scancel", job)
    job = given.slurm.submit(60)
    wait("a Prolog that passes", lambda: given.state()["stage"] == "prolog" and given.state()["verdict"] == "pass")
    given.lose("node01")
    given.install(("epilog",))
    given.slurm.run("scancel", job)
    wait("the Epilog", lambda: given.state()["stage"] == "epilog")
    wait("the node", lambda: given.slurm.node() == f"IDLE+DRAIN {given.state()['kept_out']['reason']}")


def test_what_nobody_can_tell_is_kept_and_drains_where_the_site_says_so(given: Gate) -> None:
    smi = given.lab / "node01/sys/usr/bin/nvidia-smi"
    kept = smi.read_text()
    smi.write_text("#!/bin/sh\nsleep 1000\n")
    try:
        given.install((), DIRECT, budget=4)
        assert (given.check("node01"), given.state()["verdict"], given.slurm.node()) == (["none"], "unknown", "IDLE")
        given.install((), DIRECT, budget=8, fail="closed")
        assert (given.check("node01"), given.state()["verdict"]) == (["drained"], "unknown")
        assert given.slurm.node().startswith(OUT + "not known: ")
    finally:
        smi.write_text(kept)
    given.install((), DIRECT)
    assert (given.check("node01"), given.slurm.node()) == (["resumed"], "IDLE")


def test_the_node_that_slurmd_is_and_the_one_of_the_intent_are_the_same_or_nothing_is_done(given: Gate) -> None:
    path = given.lab / "node02/intent.json"
    given.install((), DIRECT)
    given.lose("node02")
    path.write_text(json.dumps({**json.loads(path.read_text()), "node": "node03"}))
    assert given.check("node02") == ["none"]
    assert "this node is node02" in given.state("node02")["said"]
    assert [given.slurm.node(node) for node in NODES] == ["IDLE"] * 4
