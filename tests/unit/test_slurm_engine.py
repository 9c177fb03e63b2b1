# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whom Slurm can ask, and whose answer is whose. A real Slurm: tests/slurm/test_engine.py."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.action import host_audit
from ansible_collections.busbar.fabric.plugins.module_utils.core import bundle
from ansible_collections.busbar.fabric.plugins.plugin_utils import slurm_audit, slurm_engine, slurm_step, verdict
from ansible_collections.busbar.fabric.plugins.plugin_utils.role_result import role_results
from ansible_collections.busbar.fabric.plugins.plugin_utils.slurm_engine import NodeOutputs, SlurmError, SrunMessages

from tests import goldens
from tests.trees import tool

SINFO = (Path(__file__).parent / "cases/slurm_engine/sinfo.txt").read_text()


def frame(node: str, text: bytes, label: int, packed: bytes | None = None) -> bytes:
    data = base64.b64encode(zlib.compress(text)) if packed is None else packed
    lines = [data[start : start + 900] for start in range(0, len(data), 900)]
    head = f"busbar-answer {len(data)} {hashlib.sha256(data).hexdigest()}".encode()
    return b"".join(b"%3d: %s\n" % (label, line) for line in (b"busbar-node " + node.encode(), head, *lines))


def heard(answers: NodeOutputs, pieces: Iterable[bytes]) -> dict[str, bytes]:
    return {node: text for piece in pieces for node, text in answers.feed(piece)}


def test_what_is_no_line_of_sinfo_asks_nobody() -> None:
    with pytest.raises(SlurmError, match="which is not a node"):
        slurm_engine.nodes_of("slurm_load_partitions: Unable to contact slurm controller")


def test_as_few_jobs_as_partitions_allow() -> None:
    nodes = slurm_engine.nodes_of("a|idle|one|up|none\na|idle|all|up|none\nb|idle|all|up|none\nc|idle|two|up|none\n")
    assert slurm_engine.by_partition("abc", nodes, None) == {"all": ["a", "b"], "two": ["c"]}
    assert slurm_engine.by_partition("abc", nodes, "one") == {"one": ["a"], "all": ["b"], "two": ["c"]}


def test_every_node_finds_its_own_question_in_what_is_sent_to_all() -> None:
    common, other = [{"module": "node_lock", "arguments": {"state": "held"}}], [{"module": "none"}]
    text = slurm_engine.main_of({"n1": common, "n2": other, "n3": common}, 5, 60)
    stand_in = "class audit:\n    run = staticmethod(lambda steps, limit: [steps, limit])\n"
    script = stand_in + text.replace(f"from {bundle.PACKAGE} import audit\n", "")
    found = {}
    for number, node in enumerate(("n1", "n2", "n3")):
        words, given = [sys.executable, "-I", "-S", "-"], {**os.environ, "SLURMD_NODENAME": node}
        said = subprocess.run(words, input=script, env=given, stdout=subprocess.PIPE, text=True, check=True).stdout
        lines = [f"{number}: {line}\n" for line in (f"busbar-node {node}", *said.splitlines())]
        found.update(heard(NodeOutputs(("n1", "n2", "n3")), ["".join(lines).encode()]))
    expected = {"n1": [common, 5], "n2": [other, 5], "n3": [common, 5]}
    assert {node: json.loads(said) for node, said in found.items()} == expected


def test_answers_come_together_from_pieces_of_any_size_and_in_any_order() -> None:
    text = os.urandom(3000).hex().encode()
    lines = [frame(name, text + name.encode(), number).splitlines(True) for number, name in enumerate("abc")]
    mixed = b"".join(line for of_all in zip(*lines, strict=True) for line in of_all)
    pieces = [mixed[start : start + 7] for start in range(0, len(mixed), 7)]
    assert heard(NodeOutputs("abc"), pieces) == {name: text + name.encode() for name in "abc"}


BROKEN = {
    "two tasks of a name": frame("b", b"[]", 1) + frame("b", b"[]", 2),
    "more behind its end": frame("b", b"[]", 1) + b"1: more\n",
    "another length": frame("b", b"[]", 1).replace(b"busbar-answer 16 ", b"busbar-answer 12 "),
    "another digest": frame("b", b"[]", 1).replace(b": eJ", b": eK"),
    "not packed": frame("b", b"", 1, b"A" * 8),
    "half of what was packed": frame("b", b"", 1, base64.b64encode(zlib.compress(b"x" * 99)[:-4])),
    "large once unpacked": frame("b", b"x" * 5000, 1),
    "noise": b"1: busbar-node b\n" + b"1: noise\n" * 800,
}


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_no_answer_costs_its_own_host_and_no_other(kind: str) -> None:
    answers = NodeOutputs("abc", limit=4000)
    found = heard(answers, [frame("a", b"[1]", 0), BROKEN[kind]])
    assert {name: text for name, text in found.items() if name not in answers.wrong} == {"a": b"[1]"}
    assert set(answers.wrong) == {"b"}
    assert slurm_engine.silent("b", answers, SrunMessages(frozenset("abc")), 60, False)["msg"] == answers.wrong["b"]


def test_nobody_answers_for_a_host_that_was_not_asked() -> None:
    answers = NodeOutputs("ab")
    assert heard(answers, [frame("c", b"[1]", 0), frame("../a", b"[1]", 1), frame("a", b"[1]", 2)]) == {}
    assert (answers.wrong, answers.begun("a")) == ({}, False)


def test_what_all_have_sent_and_not_ended_is_bounded() -> None:
    answers = NodeOutputs("ab", whole=3000)
    begun = b"".join(line for line in frame("b", b"", 1, b"A" * 9000).splitlines(True)[:-1])
    assert heard(answers, [begun, frame("a", b"[1]", 0)]) == {"a": b"[1]"}
    assert "all results are more than 3000 bytes" in answers.wrong["b"]
    # A line without an end is not kept either.
    heard(answers, [b"x" * 100000] * 3)
    assert len(answers._rest) <= slurm_engine.LINE


def ended(text: str, *said: str, late: bool = False, name: str = "n1") -> dict[str, Any]:
    answers, words = NodeOutputs(("n1", "n2")), SrunMessages(frozenset(("n1", "n2")))
    heard(answers, [text.encode()])
    for line in said:
        words.read_line(line)
    return slurm_engine.silent(name, answers, words, 60, late)


IO_ERROR = "srun: error: step_launch_notify_io_failure: aborting, io error with slurmstepd on node 1"
KILLED = "srun: error: a: task 0: Killed"
ABORTED = "srun: Job step aborted: Waiting up to 32 seconds for job step to finish."


@pytest.mark.parametrize(
    ("lines", "again"),
    [
        ([IO_ERROR, ABORTED, KILLED], "abc"),
        ([IO_ERROR, ABORTED, KILLED, "srun: error: Node failure on b"], "ac"),
        ([ABORTED, KILLED], ""),
        (["srun: Force Terminated StepId=12.0", KILLED], "bc"),
    ],
)
def test_only_nodes_without_an_answer_through_others_are_tried_again(lines: list[str], again: str) -> None:
    words = SrunMessages(frozenset("abc"))
    for line in lines:
        words.read_line(line)
    assert words.blameless("abc") == set(again)


HALF = frame("n1", b"", 0, b"A" * 4000)[:2000].decode()
BEGUN = "0: busbar-node n1\n"
EXITED = "srun: error: n[1-2]: tasks 0-1: Exited with exit code 127"
LAUNCH = "srun: error: Task launch for StepId=12.0 failed on node n1: Communication connection failure"
STRANGERS = ("srun: error: n[3-9999999]: tasks 0: Killed", "srun: error: Node failure on x")


@pytest.mark.golden
def test_a_node_is_asked_or_in_its_class() -> None:
    """Names that were not asked, and what no list of nodes is, are nobody's."""
    nodes = slurm_engine.nodes_of(SINFO)
    given = {f"n{number}": slurm_engine.refused(nodes.get(f"n{number}")) for number in range(1, 18)}
    for kind, said in BROKEN.items():
        answers = NodeOutputs("abc", limit=4000)
        heard(answers, [said])
        given[kind] = slurm_engine.silent("b", answers, SrunMessages(frozenset("abc")), 60, False)
    given["no launch"] = ended("", LAUNCH)
    given["a node failure"] = ended("", "srun: error: Node failure on n[1-2]")
    given["late"] = ended(BEGUN, late=True)
    given["no python"] = ended(f"{BEGUN}0: no python\n", EXITED)
    given["killed in its answer"] = ended(HALF[: HALF.rindex("\n") + 1], "srun: error: n1: task 0: Killed")
    given["of strangers"] = ended("", *STRANGERS)
    lines = []
    for name, answer in given.items():
        lines.append(f"== {name}: {'queried' if answer is None else ''}")
        lines += [f"{key}: {value}" for key, value in (answer or {}).items()]
    goldens.text("slurm_engine", "\n".join(lines) + "\n")


@pytest.mark.parametrize("name", ["n2", "n4"])
def test_a_node_that_was_not_asked_is_a_finding_with_its_fix(name: str) -> None:
    given = slurm_engine.refused(slurm_engine.nodes_of(SINFO)[name])
    found = verdict.judge({name: role_results({"platform": given})}, ["platform"], partial=False).hosts[0].findings[0]
    assert given is not None
    assert (found.have or "").removeprefix("unreachable: ") == given["msg"]
    assert found.fix == given["fix"]


@pytest.mark.parametrize("text", ["\x1b[31mred", "{{ lookup('pipe', 'id') }}\x07"])
def test_what_a_task_writes_commands_no_terminal(text: str) -> None:
    assert ended(f"{BEGUN}0: {text}\n")["msg"].isprintable()


def test_a_fleet_that_may_not_ask_is_told_before_anything_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask() -> None:
        slurm_audit.audit(["n1"], lambda name: {}, None, 60, print)

    monkeypatch.setattr(slurm_step, "run_program", lambda path, argv: "DisableRootJobs         = YES\n")
    monkeypatch.setattr(slurm_step, "programs", lambda: {"scontrol": "scontrol"})
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(SlurmError, match="DisableRootJobs=YES"):
        ask()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SlurmError, match="as root"):
        ask()


def test_what_slurm_keeps_from_a_step_is_no_missing_gpu() -> None:
    said = slurm_audit._judged(host_audit.Question([], [], {}, False, True), b'{"withheld": "/dev/nvidia0\\u001b"}')
    assert (said["not_run"], "ConstrainDevices" in said["msg"], said["msg"].isprintable()) == (True, True, True)


def test_a_controller_that_hangs_or_refuses_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, "hangs", "exec sleep 600")
    tool(tmp_path, "fails", "printf 'Unable to\ncontact \033[1m%0999d' 0 >&2; exit 1")
    monkeypatch.setattr(slurm_step, "PATIENCE", 0.2)
    with pytest.raises(SlurmError, match="is slurmctld up"):
        slurm_step.run_program(str(tmp_path / "hangs"), slurm_engine.SINFO)
    monkeypatch.setattr(slurm_step, "PATIENCE", 60)
    with pytest.raises(SlurmError, match=r"sinfo --all exited with 1: Unable to contact \\x1b\[1m0{278}$"):
        slurm_step.run_program(str(tmp_path / "fails"), slurm_engine.SINFO)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(slurm_step, "PLACES", str(tmp_path))
    with pytest.raises(SlurmError, match="this machine has no srun, sinfo, scontrol, scancel"):
        slurm_step.programs()


def test_nothing_of_the_users_environment_reaches_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_EXCLUSIVE", "SLURM_ACCOUNT", "LD_PRELOAD", "VAULT_PASSWORD"):
        monkeypatch.setenv(name, "1")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    assert set(slurm_step.environment()) == {"PATH", "LC_ALL", "SLURM_ACCOUNT"}
