# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The audit by a step of a real Slurm: every node ends in its class, and nothing is left running."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible import constants
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.busbar.fabric.plugins.plugin_utils import slurm_audit, slurm_engine

from lab import store
from tests.debian import PLACES
from tests.drift.conftest import argv, environment, hosts_of, write_inventory
from tests.processes import marked
from tests.slurm_daemons import NODES, ROOT, Slurm, ended, wait
from tests.trees import tool

SITE = {"busbar_platform": "hgx-h100", "busbar_fabric": "infiniband", "ansible_run_tags": ["host_limits"]}
Asked = dict[str, dict[str, Any]]
Ask = Callable[..., Asked]
# In a task's environment, and so in what it starts: whom a test looks for on the nodes.
MARK = "BUSBAR_TEST_STEP"


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lab, and what questions share."""
    folder = tmp_path_factory.mktemp("engine")
    store.create(folder / "lab")
    return folder


@pytest.fixture
def ask(slurm: Slurm, top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """Asks nodes for host_limits. Their names' arguments: shell that a node's python is, else a real one."""
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    monkeypatch.setattr(constants, "DEFAULT_LOCAL_TMP", str(top))
    lab = hosts_of(top / "lab")["node01"]

    def run(names: tuple[str, ...] = NODES, limit: float = 60, **python: str) -> Asked:
        cases = [f"{name}) {text};;" for name, text in python.items()]
        words = [f"export {MARK}={tmp_path}", 'case "$SLURMD_NODENAME" in', *cases, "esac"]
        tool(tmp_path, "python", "\n".join([*words, f'exec {sys.executable} "$@"']))
        own = {**lab, **SITE, "ansible_python_interpreter": str(tmp_path / "python")}

        def variables(name: str) -> dict[str, Any]:
            return {**own, "inventory_hostname": name, "inventory_hostname_short": name.partition(".")[0]}

        return slurm_audit.audit(names, variables, Templar(loader=DataLoader()), limit, print)

    yield run
    # Slurm ends what is left of a step with KillWait and a prolog of its own.
    wait("the end of all that was started", lambda: not running(str(tmp_path)))
    assert steps_of(slurm) == []


def running(mark: str) -> dict[int, str]:
    return marked(MARK, mark)


def steps_of(slurm: Slurm) -> list[str]:
    lines = slurm.run("squeue", "--noheader", "--states=RUNNING", "--format=%A %j").splitlines()
    return [line.split()[0] for line in lines if slurm_engine.JOB in line]


def meanwhile(slurm: Slurm, do: Callable[[str], object], begun: Callable[[], bool] = lambda: True) -> threading.Thread:
    """Does it to the audit's job once that runs."""

    def work() -> None:
        wait("the audit's job", lambda: steps_of(slurm) and begun())
        do(steps_of(slurm)[0])

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def answered(found: Asked) -> list[str]:
    return [name for name, answer in found.items() if "host_limits" in json.loads(answer.get("roles", "{}"))]


def test_nodes_that_slurm_cannot_give_are_in_their_class_and_the_others_are_asked(ask: Ask, slurm: Slurm) -> None:
    slurm.run("scontrol", "update", "NodeName=node02", "State=DRAIN", "Reason=disk")
    job = slurm.submit(300, "node03")
    found = ask((*NODES, "node01.site.org", "node09"))
    assert answered(found) == ["node01"]
    assert {name: answer["msg"] for name, answer in found.items() if name != "node01"} == {
        "node02": "not queried: drained in Slurm (disk), which starts nothing there",
        "node03": "not queried: busy in Slurm: allocated",
        "node01.site.org": "not queried: node01 is the name in Slurm of node01, too",
        "node09": "not queried: Slurm has no node of its name",
    }
    slurm.run("scancel", job)
    for change in ("State=RESUME", "State=DOWN"):
        slurm.run("scontrol", "update", "NodeName=node02", change, "Reason=dead")
    found = ask(("node01", "node02"))
    assert (answered(found), found["node02"]["unreachable"]) == (["node01"], True)


def test_nodes_with_jobs_are_not_asked_also_where_their_partition_shares(ask: Ask, slurm: Slurm) -> None:
    shared = slurm.submit(300, "node02", "--partition=shared", "--oversubscribe", "--mem=10")
    alone = slurm.submit(300, "node03")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_PARTITION", "shared")
        patch.setattr(slurm_engine, "IMMEDIATE", 4)
        found = ask()
    assert answered(found) == ["node01"]
    assert found["node03"]["msg"].startswith("not queried: busy in Slurm")
    slurm.run("scancel", shared, alone)


LOUD = 'yes "$(head -c 900 /dev/zero | tr "\\0" a)" | head -c 1000000000'
WRONG = {
    "garbage": ("head -c 3000 /dev/urandom; exit 0", "ended without a result"),
    "nothing": ("cat >/dev/null; exit 3", "Slurm reports: Exited with exit code 3"),
    "no python": ("exec /no/such/python", "/no/such/python"),
    "a gigabyte": (f"cat >/dev/null; {LOUD}", "its result is not valid: more than 1048576 bytes"),
    "cut off": (f"echo busbar-answer 9000 {'0' * 64}; echo AAAA; kill -9 $PPID; kill -9 $$",
                "it is cut off, 4 of 9000 bytes; Slurm reports: Killed"),
    "another's name": ("echo busbar-node node03; exit 1", "Exited with exit code 1"),
}  # fmt: skip


FEW = {"garbage", "cut off"}


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[] if kind in FEW else pytest.mark.long) for kind in WRONG])
def test_what_one_node_answers_costs_no_other_its_verdict(ask: Ask, kind: str) -> None:
    program, said = WRONG[kind]
    found = ask(node02=program)
    assert sorted(answered(found)) == ["node01", "node03"], json.dumps(found, indent=1)[:4000]
    assert (said in found["node02"]["msg"], found["node02"]["msg"].isprintable()) == (True, True), found["node02"]


@pytest.mark.long
def test_a_node_that_says_nothing_is_left_behind_at_the_limit(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    # Seconds that count for the answers, too.
    monkeypatch.setattr(slurm_engine, "IMMEDIATE", 4)
    begin = time.monotonic()
    found = ask(limit=3, node02="trap '' TERM; sleep 600")
    assert (sorted(answered(found)), found["node02"]["timedout"]) == (["node01", "node03"], True)
    assert time.monotonic() - begin < 120


@pytest.mark.parametrize("how", ["scancel", pytest.param("time limit", marks=pytest.mark.long)])
def test_a_step_that_slurm_ends_is_no_answer(ask: Ask, slurm: Slurm, how: str) -> None:
    def end(job: str) -> None:
        slurm.run(*(("scancel", job) if how == "scancel" else ("scontrol", "update", f"JobId={job}", "EndTime=now")))

    other = meanwhile(slurm, end)
    found = ask(**dict.fromkeys(NODES, "cat >/dev/null; sleep 600"))
    other.join()
    assert len(found) == 3
    for answer in found.values():
        assert ("Slurm reports: " in answer["msg"], "timedout" in answer) == (True, False), answer


def test_a_node_that_is_lost_costs_no_other_its_verdict(ask: Ask, slurm: Slurm, tmp_path: Path) -> None:
    """First while it is asked, then before Slurm has seen that it is gone."""

    def lose(_job: str) -> None:
        slurm.kill_node("node02")
        # What slurmctld does by itself once SlurmdTimeout is over.
        slurm.run("scontrol", "update", "NodeName=node02", "State=DOWN", "Reason=power")

    other = meanwhile(slurm, lose, (tmp_path / "begun").exists)
    hung = f"touch {shlex.quote(str(tmp_path))}/begun; exec sleep 600"
    found = ask(limit=300, node02=hung)
    other.join()
    # The rest of what the node's power takes with it.
    for pid in running(str(tmp_path)):
        os.kill(pid, signal.SIGKILL)
    wait("the other nodes", lambda: slurm.node("node01") == slurm.node("node03") == "IDLE")
    slurm.kill_node("node03")
    try:
        assert sorted(answered(found)) == ["node01", "node03"], json.dumps(found, indent=1)[:4000]
        assert found["node02"] == slurm_engine.unreachable("Slurm lost the node during the audit (node failure)")
        found = ask(("node01", "node03"))
        assert answered(found) == ["node01"], found
        assert found["node03"]["msg"].startswith("Slurm could not start the step on it: "), found["node03"]
    finally:
        for name in ("node02", "node03"):
            slurm.revive_node(name)


@pytest.fixture
def fleet(slurm: Slurm, tmp_path: Path) -> Path:
    """An inventory of the three nodes, in each of which something is wrong or nothing is, as the lab has it."""
    lab = tmp_path / "lab"
    store.create(lab)
    store.break_(lab, "node02", "pfc-off")
    hosts = hosts_of(lab)
    return write_inventory(lab / "inventory", {**hosts, "node03": hosts["node01"]})


def drift(slurm: Slurm, inventory: Path, tmp_path: Path, *more: str) -> dict[str, Any]:
    out = tmp_path / "report.json"
    words = argv("drift", "-i", str(inventory), "--json", str(out), "--history", str(tmp_path / "h.sqlite"), *more)
    given = {**environment(tmp_path), "SLURM_CONF": slurm.environment["SLURM_CONF"]}
    done = ended(words, given, tmp_path)
    assert done.returncode in (0, 2, 3), done.stdout + done.stderr
    found: dict[str, Any] = json.loads(out.read_text())["hosts"]
    return found


def own(host: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Without what comes of a comparison of all hosts that have answered."""
    found = [one for one in host["findings"] if not one["check"].startswith("consistency.")]
    return {one["id"]: (one["want"], one["have"]) for one in found}


def test_it_finds_what_a_connection_finds(slurm: Slurm, fleet: Path, tmp_path: Path) -> None:
    slurm.run("scontrol", "update", "NodeName=node03", "State=DRAIN", "Reason=disk")
    by_slurm = drift(slurm, fleet, tmp_path, "--engine", "slurm")
    by_connection = drift(slurm, fleet, tmp_path)
    assert (by_slurm["node03"]["class"], by_connection["node03"]["class"]) == ("not_run", "drift")
    for name in ("node01", "node02"):
        assert own(by_slurm[name]) == own(by_connection[name])
        assert len(own(by_slurm[name])) > 0


@pytest.mark.long
def test_site_asks_by_slurm_and_works_over_the_connection_on_all(slurm: Slurm, tmp_path: Path) -> None:
    """Also on nodes that Slurm could not ask: drained, down, or busy with a job, which goes on."""
    lab = tmp_path / "lab"
    store.create(lab, dict.fromkeys(NODES, next(iter(store.STANDARD.values()))))
    job = slurm.submit(900, "node03")

    def play(*more: str) -> dict[str, Any]:
        out = tmp_path / "findings.json"
        words = [str(Path(sys.executable).with_name("ansible-playbook")), str(ROOT / "site.yml")]
        words += ["-i", str(lab / "inventory"), "--tags", "nccl_conf", "-e", "busbar_engine=slurm"]
        given = {**environment(tmp_path), "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
        given["SLURM_CONF"] = slurm.environment["SLURM_CONF"]
        done = ended([*words, "-e", f"busbar_findings_path={out}", *more], given, tmp_path)
        assert out.exists(), done.stdout + done.stderr
        hosts = json.loads(out.read_text())["hosts"]
        out.unlink()
        return {
            name: (host["end"], tuple(one["check"] for one in host["findings"]), bool(host["repaired"]))
            for name, host in hosts.items()
        }

    slurm.run("scontrol", "update", "NodeName=node02", "State=DRAIN", "Reason=disk")
    assert play("--check") == dict.fromkeys(NODES, (None, ("nccl_conf.file",), True))
    for change in ("State=RESUME", "State=DOWN"):
        slurm.run("scontrol", "update", "NodeName=node02", change, "Reason=dead")
    assert play() == dict.fromkeys(NODES, (None, (), True))
    assert play("--check") == dict.fromkeys(NODES, (None, (), False))
    assert slurm.run("squeue", "--noheader", "--format=%A %t").split() == [job, "R"]


@pytest.mark.parametrize("program", ["busbar", pytest.param("ansible-playbook", marks=pytest.mark.long)])
def test_nothing_is_left_on_the_nodes_by_whoever_is_killed(
    program: str, slurm: Slurm, fleet: Path, tmp_path: Path
) -> None:
    # One process: proctrack/linuxproc loses what is forked while it kills.
    tool(tmp_path, "python", f"trap '' TERM HUP\nexec env {MARK}={tmp_path} sleep 900")
    hung = {"ansible_python_interpreter": str(tmp_path / "python")}
    hosts = {name: {**host, **hung} for name, host in hosts_of(fleet.parent).items()}
    inventory = write_inventory(tmp_path / "hung", hosts)
    # A controller that is slow: srun takes longer to end its step than the end of all that busbar has started.
    real = shutil.which("srun", path=PLACES)
    tool(tmp_path, "slow/srun", f"trap 'sleep 4; kill -s TERM $!; exit' TERM\n{real} \"$@\" <&0 &\nwait $!")
    given = {**environment(tmp_path), "SLURM_CONF": slurm.environment["SLURM_CONF"]}
    given["PATH"] = f"{tmp_path}/slow{os.pathsep}{given['PATH']}"
    words = argv("drift", "-i", str(inventory), "--engine", "slurm")
    if program != "busbar":
        playbook = str(ROOT / "playbooks/drift.yml")
        words = [str(Path(sys.executable).with_name(program)), playbook, "-i", str(inventory), "--check"]
        words += ["-e", "busbar_engine=slurm"]
        given["ANSIBLE_CONFIG"] = str(ROOT / "ansible.cfg")
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, env=given, cwd=tmp_path, **quiet) as command:
        try:
            wait("the tasks", lambda: len(running(str(tmp_path))) == len(NODES) or command.poll() is not None)
            assert command.poll() is None
        finally:
            os.kill(command.pid, signal.SIGKILL)
    wait("the nodes to be free", lambda: not running(str(tmp_path)) and not steps_of(slurm))
