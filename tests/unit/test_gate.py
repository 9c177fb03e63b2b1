# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The gate: its verdict, what it does in Slurm and what it leaves alone, its files, and what it asks of slurm.conf."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import slurm
from ansible_collections.busbar.fabric.plugins.module_utils.core import bundle, orphans
from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.gate import module, plan, program, read
from ansible_collections.busbar.fabric.plugins.module_utils.gate import slurm as gate_slurm
from ansible_collections.busbar.fabric.plugins.plugin_utils import gate_files

from tests import goldens, readings
from tests.trees import put_all, tool

CRITICAL = Check("a.critical", why="w", fix="f", severity="critical")
MINOR = Check("a.minor", why="w", fix="f", severity="minor")
ROOT = "root@2026-11-22T20:00:%02d"
SILENT = {"failed": True, "msg": "did not respond"}
# What administrators, Slurm and other tools say of a node: states, reason. Also ours, as somebody has changed it.
OWN = gate_slurm.signed("platform.gpu_count of the node: 7, wanted 8")
THEIRS = readings.cases("gate_others")


def line(name: str, states: str = "IDLE", reason: str = "", at: int = 0, partitions: str = "main") -> str:
    said = f" Reason={reason} [{ROOT % at}]" if reason else ""
    return f"NodeName={name} Arch=x86_64 State={states} ThreadsPerCore=1 Partitions={partitions} BootTime=x{said}"


class Controller(gate_slurm.Slurm):
    """A slurmctld of many nodes. now: seconds of its clock."""

    def __init__(self, name: str, nodes: dict[str, list[Any]], now: int = 0) -> None:
        self.name, self.known, self.now = name, nodes, now

    def nodes(self, name: str = "") -> list[slurm.Node]:
        return gate_slurm.parse("\n".join(line(one, *of) for one, of in self.known.items() if name in ("", one)))

    def drain(self, reason: str) -> None:
        self.known[self.name] = ["IDLE+DRAIN", reason, self.now]

    def resume(self) -> None:
        self.known[self.name] = ["IDLE", "", 0]


def idle(count: int) -> dict[str, list[Any]]:
    return {f"n{number:03}": ["IDLE", "", 0] for number in range(count)}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_slurm, "SETTLE", 0)


def keep_out(name: str, nodes: dict[str, list[Any]], share: float = 0.1) -> gate_slurm.Done:
    return gate_slurm.keep_out(Controller(name, nodes), "why", share, lambda _reason: None)


@pytest.mark.parametrize(("text", "lost"), readings.cases("gate_free_text"))
def test_a_free_text_with_line_breaks_costs_one_node_at_most(text: str, lost: list[str]) -> None:
    records = [line(name, "IDLE") for name in ("n0", "n1", "n2", "n3")]
    records[1] += f" Comment={text}"
    found = gate_slurm.parse("\n".join(records))
    assert [node.name for node in found] == [name for name in ("n0", "n1", "n2", "n3") if name not in lost]
    assert all(node.states == ("IDLE",) for node in found)


def test_a_reason_is_ours_with_its_sum_and_not_without() -> None:
    for why in ("7 GPUs", 'a\n"b" [root@2026-01-01T00:00:00] \x1b[31m', "x" * 1000, ""):
        reason = gate_slurm.signed(why)
        node = gate_slurm.parse(line("n", "IDLE+DRAIN", reason))[0]
        assert (node.reason, gate_slurm.is_own(node)) == (reason, True)
        assert reason.isprintable()
        assert not slurm.Node("n", ("IDLE", "DRAIN"), reason).ours
        assert not gate_slurm.is_own(replace(node, reason=reason + "."))
        assert not gate_slurm.is_own(replace(node, states=("IDLE",)))


@pytest.mark.parametrize(("states", "reason"), THEIRS)
def test_what_others_have_decided_stays_whatever_the_verdict(states: str, reason: str) -> None:
    nodes: dict[str, list[Any]] = {**idle(20), "me": [states, reason, 0]}
    before = dict(nodes)
    assert (keep_out("me", nodes).action, nodes) == ("left_alone", before)
    assert gate_slurm.give_back(Controller("me", nodes)).action in ("left_alone", "none")
    assert nodes == before
    # A Prolog that fails sets a reason where none is yet.
    drained = bool({"DRAIN", "DOWN", "FAIL", "FAILING"} & {*states.split("+")})
    assert keep_out("me", nodes).out is drained


def test_a_sick_node_is_drained_once_and_given_back_once() -> None:
    nodes = idle(20)
    noted: list[str] = []
    done = gate_slurm.keep_out(Controller("n003", nodes), "7 GPUs", 0.1, noted.append)
    assert (done.action, done.out, noted) == ("drained", True, [gate_slurm.signed("7 GPUs")])
    assert nodes["n003"][:2] == ["IDLE+DRAIN", gate_slurm.signed("7 GPUs")]
    again = keep_out("n003", nodes)
    assert (again.action, again.out, again.reason) == ("none", True, nodes["n003"][1])
    assert [gate_slurm.give_back(Controller("n003", nodes)).action for _again in range(2)] == ["resumed", "none"]
    assert nodes == idle(20)


@pytest.mark.parametrize(
    ("count", "share", "out"),
    [(100, 0.1, 10), (3, 0.1, 1), (2, 1, 1), (1, 1, 0), (100, 1, 99), (100, 0, 0), (19, 0.1, 1)],
)
def test_when_all_are_sick_one_after_another_no_more_than_the_share_are_out(count: int, share: float, out: int) -> None:
    nodes = idle(count)
    actions = [keep_out(name, nodes, share).action for name in list(nodes)]
    assert (actions.count("drained"), actions.count("held_by_breaker")) == (out, count - out)
    assert sum(of[0] != "IDLE" for of in nodes.values()) == out


def test_a_small_partition_is_kept_too_and_one_of_a_single_node_says_nothing_beside_it() -> None:
    text = "\n".join(line(f"n{n}", partitions="all,small" if n < 2 else "all") for n in range(100))
    nodes = gate_slurm.parse(text + "\n" + line("x", "IDLE+DRAIN", OWN, partitions="all"))
    nodes[0] = replace(nodes[0], states=("IDLE", "DRAIN"), reason=OWN)
    assert "partition small" in gate_slurm.too_many(nodes, "n1", 0.5)
    assert gate_slurm.too_many(nodes, "n2", 0.5) == ""
    others = [line(f"n{n}", partitions="all") for n in range(9)]
    alone = gate_slurm.parse("\n".join([line("debug", partitions="all,debug"), *others]))
    assert gate_slurm.too_many(alone, "debug", 0.5) == ""
    assert "no partition" in gate_slurm.too_many(gate_slurm.parse("NodeName=n State=IDLE Arch=x "), "n", 0.5)


@pytest.mark.parametrize("seed", range(20))
def test_when_all_are_sick_at_the_same_time_the_first_of_them_stay_out(seed: int) -> None:
    """Each sees the others only once they are drained. Whatever the order of what they do, some stay and no more."""
    chance = random.Random(seed)
    nodes, clock = idle(50), 0
    # All have counted before any was drained.
    for name in chance.sample(list(nodes), len(nodes)):
        clock += chance.random() < 0.3
        Controller(name, nodes, clock).drain(OWN)
    for name in chance.sample(list(nodes), len(nodes)):
        controller = Controller(name, nodes)
        gate_slurm._yield(controller, controller.nodes(), 0.1)
    out = sorted(name for name, of in nodes.items() if of[0] != "IDLE")
    assert len(out) == 5
    assert all(nodes[name][2] <= 50 for name in out)


def result(*states: str, passed: int = 3) -> dict[str, Any]:
    """Return a step's result. states: of critical findings, or of minor ones where they end in a dot."""
    checks = [(MINOR if state[-1] == "." else CRITICAL, state.rstrip(".")) for state in states]
    findings = [check.judge(f"s{n}", state, "w", "h").to_dict() for n, (check, state) in enumerate(checks)]
    return {"findings": findings, "passed": ["p"] * passed}


@pytest.mark.parametrize(
    ("results", "ignore", "verdict"),
    [
        ([result()], (), "pass"),
        *(([result(state)], (), "warn") for state in ("drift.", "unknown.", "not_owned")),
        *(([result(state)], (), "fail") for state in ("drift", "withheld", "unsupported")),
        ([result("unknown")], (), "unknown"),
        ([result("unknown", "drift")], (), "fail"),
        ([result("drift")], ("a.critical",), "warn"),
        ([result("drift")], ("a.other",), "fail"),
        ([SILENT, result()], (), "unknown"),
        ([SILENT, result("drift")], (), "fail"),
        ([result(passed=0)], (), "unknown"),
    ],
)
def test_only_what_is_seen_to_be_wrong_and_critical_fails(
    results: list[Any], ignore: tuple[str, ...], verdict: str
) -> None:
    said, found = program.judge([{"module": "m"}] * len(results), results, ignore)
    assert said == verdict
    if verdict in ("fail", "unknown"):
        assert found[0].severity == "critical"
        assert (found[0].state == "unknown") is (verdict == "unknown")


def test_whatever_hangs_below_the_check_is_ended_in_time(tmp_path: Path) -> None:
    def hangs() -> dict[str, Any]:
        # In a session of its own, as a tool is.
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
        time.sleep(1000)
        return {}

    pid = os.fork()
    if not pid:
        orphans.prctl()(36, 1)
        said = program._within(hangs, 0.5)
        while orphans.below(os.getpid()):
            time.sleep(0.01)
        os._exit(0 if "did not respond within 0.5 s" in said["msg"] else 1)
    assert os.waitpid(pid, 0)[1] == 0


CONFIG = (readings.FOLDER.parent / "cases/gate/scontrol-show-config.txt").read_text()
LAST = "var__lib__busbar__gate__state.json"
SCONTROL = "#!/bin/sh\ncat <<'E'\n%sE\n"


def played(
    folder: Path, config: str = CONFIG, stages: tuple[str, ...] = read.STAGES, nhc: bool = False, **files: str
) -> tuple[read.GateState, read.GateWanted]:
    """A node on which the role has been played, with a Slurm that says this of its configuration."""
    host = Host(str(folder), str(folder))
    tool(folder, "usr/bin/scontrol", SCONTROL % config)
    texts = gate_files.texts("#\n", read.intent_text({"node": "n1"}), stages, nhc)
    want = read.GateWanted(stages, 10.0, gate_files.sums(texts), "scontrol", texts)
    given = {name: option.get("default") for name, option in module.SPEC.items()}
    given.update(stages=list(stages), sums=want.sums, texts=bundle.pack(json.dumps(texts)))
    assert module.work(host, given, False)["changed"]
    put_all(folder, {name.replace("__", "/"): text for name, text in files.items()})
    return read.read(host, want), want


def state(**more: Any) -> str:
    given = {"at": time.time(), "stage": "health", "verdict": "pass", "action": "none", "findings": [], "history": []}
    return json.dumps({**given, "kept_out": None, "said": "", **more})


def test_the_state_has_the_last_fifty_runs_before_it_and_forty_findings_in_short(tmp_path: Path) -> None:
    host = Host(str(tmp_path), str(tmp_path))
    done = gate_slurm.Done("none", "")
    long = MINOR.judge("x", "drift", "w", "y" * 301, "z")
    for number in range(52):
        stored = program.store(
            host, {"at": number, "stage": "health", "verdict": "pass", "action": "none"}, [long] * 41, done
        )
    assert [one["at"] for one in stored["history"]] == [*range(50, 0, -1)]
    assert [one["have"] for one in stored["findings"]] == ["y" * 300] * 40
    for at, reason, since in ((60, "a", 60), (61, "a", 60), (62, "b", 62), (63, None, None)):
        stored = program.store(host, {**stored, "at": at}, [], replace(done, reason=reason))
        assert stored["kept_out"] == (since and {"reason": reason, "at": since})


def test_a_node_without_stages_is_left_alone_and_one_that_had_some_is_cleared(tmp_path: Path) -> None:
    host, nothing = Host(str(tmp_path), str(tmp_path)), read.GateWanted(())
    assert not plan.plan(read.read(host, nothing), nothing).findings
    played(tmp_path, nhc=True)
    # Nobody has said that they are not wanted.
    undecided = plan.plan(read.read(host, read.GateWanted()), read.GateWanted())
    assert (undecided.findings, undecided.changes, len(undecided.notes)) == ((), (), 1)
    found = plan.plan(read.read(host, nothing), nothing)
    assert [(change.path, change.after) for change in found.changes] == [(path, None) for path in read.owned_files()]
    plan.execute(host, found)
    assert not plan.plan(read.read(host, nothing), nothing).findings


def test_the_wrapper_calls_the_gate_goes_when_it_is_off_and_replaces_no_other_program(tmp_path: Path) -> None:
    host = Host(str(tmp_path), str(tmp_path))
    config = CONFIG.replace(HEALTH, read.NHC)
    have, want = played(tmp_path, config, ("health",), nhc=True, **{LAST: state()})
    assert {one.check: one.state for one in plan.plan(have, want).findings if not one.ok} == {}
    assert (tmp_path / read.NHC[1:]).stat().st_mode & 0o777 == 0o755
    sums = {path: total for path, total in want.sums.items() if path != read.NHC}
    off = plan.plan(have, replace(want, sums=sums))
    assert [(change.path, change.after) for change in off.changes] == [(read.NHC, None)]
    (tmp_path / read.NHC[1:]).write_bytes(b"#!/bin/bash\n# NHC\xff\n")
    have = read.read(host, want)
    found = [one for one in plan.plan(have, want).findings if not one.ok and one.check != "gate.wired"]
    assert [(one.check, one.state, one.severity) for one in found] == [("gate.nhc", "not_owned", "minor")]
    for wanted in (want, replace(want, sums=sums), read.GateWanted(())):
        assert read.NHC not in {change.path for change in plan.plan(have, wanted).changes}


def test_what_is_written_is_ok_and_its_drift_is_found(tmp_path: Path) -> None:
    given: dict[str, Any] = {LAST: state()}
    have, want = played(tmp_path, **given)
    for path, check in (
        (read.PROGRAM, "gate.program"),
        (read.INTENT, "gate.intent"),
        (read.LAUNCHERS["prolog"], "gate.program"),
    ):
        kept = (tmp_path / path[1:]).read_text()
        (tmp_path / path[1:]).write_text(kept + "#\n")
        found = plan.plan(read.read(Host(str(tmp_path), str(tmp_path)), want), want)
        assert [one.check for one in found.findings if one.state == "drift" and one.check != "gate.wired"] == [check]
        assert [change.path for change in found.changes] == [path]
        (tmp_path / path[1:]).write_text(kept)
    # The name is not in the question; where it is told, it counts.
    assert plan.plan(have, replace(want, node="n1")).changes == ()
    assert [change.path for change in plan.plan(have, replace(want, node="n2")).changes] == [read.INTENT]
    (tmp_path / read.INTENT[1:]).chmod(0o644)
    found = plan.plan(read.read(Host(str(tmp_path), str(tmp_path)), want), want)
    assert [one.have for one in found.findings if one.check == "gate.intent"] == [f"{read.INTENT} has mode 0644"]


def with_config(old: str, new: str, stage: str, **files: str) -> dict[str, Any]:
    assert re.search(old, CONFIG)
    return {"config": re.sub(old, new, CONFIG), "stages": (stage,), LAST: state(), **files}


# What the gate has last said, at its stage health.
STATES = {
    "passed": state(),
    "long ago": state(at=time.time() - 50 * 3600),
    "unknown": state(verdict="unknown"),
    "kept out": state(verdict="fail", kept_out={"reason": "r", "at": 1.0}),
    "held": state(verdict="fail", action="held_by_breaker", said="5 of 9"),
    "of others": state(verdict="fail", action="left_alone", said="bob"),
    "of others, passed": state(verdict="pass", action="left_alone", said="bob"),
    "cut off": "{",
    "kept out by a number": state(kept_out=3),
    "an escape": state(verdict="\x1b[31m"),
    "without its time": state(at=None),
}
HEALTH, NO_PROLOG = "/usr/local/lib/busbar/gate-health", r"Prolog +=.*"
CALL = read.LAUNCHERS["prolog"]
GATES: dict[str, dict[str, Any]] = {
    **{name: {"stages": ("health",), LAST: text} for name, text in STATES.items()},
    "all stages": {LAST: state()},
    "no health program": with_config(HEALTH, "(null)", "health"),
    "never": with_config("300 sec", "0 sec", "health"),
    "only at the start of slurmd": with_config("CYCLE,IDLE", "IDLE,START_ONLY", "health"),
    "only nodes in service": with_config("CYCLE,IDLE", "NONDRAINED_IDLE", "health"),
    "another health program": with_config(HEALTH, "/usr/sbin/nhc", "health"),
    "another prolog": with_config(NO_PROLOG, "Prolog = /opt/p", "prolog"),
    "a folder without ours": with_config(r"Epilog\[1\].*\n", "", "epilog"),
    **{
        f"{given}: {text!r}": with_config(NO_PROLOG, f"Prolog = {given}", "prolog", etc__slurm__prolog__10=text)
        for given in ("/etc/slurm/prolog/*", "/etc/slurm/prolog/10")
        for text in (f"{CALL} || exit 1\n", "#\n", f"# {CALL}\n")
    },
    **{
        f"{name} {seconds}": with_config(f"{name} += [0-9]+", f"{name} = {seconds}", "epilog")
        for name, enough in (("MessageTimeout", 7), ("PrologEpilogTimeout", 5), ("BatchStartTimeout", 5))
        for seconds in (enough - 1, enough)
    },
    # Newer releases have a limit for each of the two.
    "a limit of the Epilog": with_config("PrologEpilogTimeout += 65534", "EpilogTimeout = 4", "epilog"),
    "no limit of the Epilog": with_config("PrologEpilogTimeout += 65534", "EpilogTimeout = 65534", "epilog"),
    "limits not printed": with_config("(PrologEpilog|Message)Timeout.*", "", "epilog"),
    "Slurm says nothing": {"config": ""},
    "Slurm says something else": {"config": "nothing\n"},
}


@pytest.mark.golden
def test_what_is_found_of_files_verdict_and_slurm(tmp_path: Path) -> None:
    written = []
    for number, (name, given) in enumerate(GATES.items()):
        made = plan.plan(*played(tmp_path / str(number), **given))
        found = [
            f"{one.state} {one.check} {one.subject}: {one.have}; do: {one.fix}" for one in made.findings if not one.ok
        ]
        good = ", ".join(one.check for one in made.findings if one.ok)
        written += [f"== {name}", *found, f"good: {good}", f"commands: {len(made.commands)}", ""]
        assert not made.changes
    goldens.text("gate_node", "\n".join(written))


@pytest.mark.parametrize(("code", "ends"), [(0, 0), (read.KEEP_OUT, 1), (1, 0), (read.UNKNOWN, 0), (127, 0), (137, 0)])
def test_only_a_verdict_ends_what_slurm_starts_with_an_error(code: int, ends: int, tmp_path: Path) -> None:
    text = gate_files.launcher("prolog")
    assert f"{read.PYTHON} -I -S {read.PROGRAM} prolog" in text
    path = tmp_path / "launcher"
    path.write_text(text.replace(read.PYTHON, f"sh -c 'exit {code}'").replace("/usr/bin/logger", "/nonexistent"))
    done = subprocess.run(["sh", str(path)], capture_output=True, text=True, env={}, check=False)
    assert (done.returncode, "gave no verdict" in done.stderr) == (ends, code not in (0, read.KEEP_OUT))
