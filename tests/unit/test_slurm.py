# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The pure part; tests/slurm asks a real one."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import slurm
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, Problem
from ansible_collections.busbar.fabric.plugins.module_utils.slurm import Node, SlurmState
from hypothesis import given
from hypothesis import strategies as st

from tests import readings
from tests.trees import tool

IDLE = SlurmState(Node("node01", ("IDLE",)))
OURS = SlurmState(Node("node01", ("IDLE", "DRAIN"), "busbar: firmware (run-1)", "root@2026-11-21T13:03:06"))
KEPT = SlurmState(Node("node01", ("IDLE", "DRAIN"), "busbar: not resumed, x (run-1)", "root@2026-11-21T13:03:06"))
THEIRS = SlurmState(Node("node01", ("IDLE", "DRAIN"), "disk", "ann@2026-11-21T13:03:06"))
BUSY = SlurmState(Node("node01", ("MIXED",)), ("Slurm job 7 of ann (running, train)",))
NODES = {"IDLE": IDLE, "OURS": OURS, "KEPT": KEPT, "THEIRS": THEIRS, "BUSY": BUSY}
LINE = "NodeName=node01 Arch=x86_64 OS=Linux 6.1 #1 SMP State={} ThreadsPerCore=1 Partitions=main  AllocTRES={}"


@pytest.mark.parametrize(("have", "state", "command"), readings.cases("slurm_plan"))
def test_only_what_is_busbars_or_free_is_touched(have: str, state: str, command: str | None) -> None:
    plan = slurm.plan(NODES[have], "node01", state, "firmware" if state == "drained" else "", "run-2")
    assert [argv.argv[3] for argv in plan.commands] == ([command] if command else [])
    assert ("withheld" in {one.state for one in plan.findings}) == (have == "BUSY")


@pytest.mark.parametrize(("after", "states", "drained"), [("IDLE", ["unknown"], False), ("IDLE+DRAIN", [], True)])
def test_a_command_that_succeeds_and_does_nothing_is_reported(
    tmp_path: Path, after: str, states: list[str], drained: bool
) -> None:
    reason = " Reason=busbar: firmware (run-1) [root@2026-11-21T13:03:06]" if drained else ""
    tool(
        tmp_path,
        "usr/bin/scontrol",
        f'if [ "$1" = update ]; then touch {tmp_path}/done; elif [ -e {tmp_path}/done ]; then echo "{LINE}{reason}"; '
        f'else echo "{LINE}"; fi'.format(after, "", "IDLE", ""),
    )
    tool(tmp_path, "usr/bin/squeue", "exit 0")
    given = {"scheduler": "slurm", "node": "node01", "state": "drained", "reason": "firmware", "run": "run-1"}
    host = Host(str(tmp_path), str(tmp_path))
    result = slurm.work(host, {**given, "wait": False, "timeout": 60}, False)
    assert ([one["state"] for one in result["findings"]], result["drained"]) == (states, drained)


def test_what_stays_drained_says_why_in_words_that_slurm_takes() -> None:
    [command] = slurm.plan(OURS, "node01", "resumed", 'a "b"\n\x1bc' + "d" * 500, "run-2").commands
    reason = command.argv[4]
    assert reason.startswith("Reason=busbar: not resumed, a  b   cddd")
    assert reason.endswith("ddd (run-2)")
    assert len(reason) < 330
    assert not slurm.plan(THEIRS, "node01", "resumed", "a", "run-2").commands


def test_the_same_outage_on_many_nodes_reads_the_same() -> None:
    problem = Problem("scontrol -o show node node01", "exited with 1: no controller for node01")
    [finding] = slurm.plan(SlurmState(None, problem=problem), "node01", "drained").findings
    assert (finding.check, finding.state) == ("drain.state", "unknown")
    assert finding.have == "exited with 1: no controller for it"


@pytest.mark.parametrize(("states", "drained"), [("DOWN", True), ("IDLE FAIL", True), ("MIXED PLANNED", False)])
def test_what_is_down_or_fails_counts_as_drained(states: str, drained: bool) -> None:
    assert Node("node01", tuple(states.split())).drained is drained


@given(st.text(), st.text())
def test_any_text_is_a_node_or_a_parse_error(text: str, reason: str) -> None:
    for line in (text, LINE.format(text, reason), LINE.format("IDLE+DRAIN", "") + " Reason=" + reason):
        try:
            slurm.parse_node(line, "node01")
        except ParseError as error:
            assert str(error)
    try:
        slurm.parse_jobs(text)
    except ParseError as error:
        assert str(error)
