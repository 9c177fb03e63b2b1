# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from testinfra.host import Host  # type: ignore[import-untyped]

from tests.molecule.scenario import EPHEMERAL, NODE, Role, checks

ROLE = Role(__file__)
RUNS = ["all_reduce-8G", "alltoall-8G"]
ON_NODE = "/var/lib/busbar/nccl_perf"
RESULTS = EPHEMERAL / "results"


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return dict(json.loads((RESULTS / "latest" / f"{NODE}.json").read_text()))


def test_the_fresh_node_was_told_that_nothing_has_been_measured() -> None:
    assert checks(ROLE.verdict("check")) == ["nccl_perf.ran", "nccl_perf.ran"]
    assert {finding["state"] for finding in ROLE.verdict("check")["findings"]} == {"unknown"}


def test_the_measured_node_has_no_finding() -> None:
    found = ROLE.verdict("run")
    assert (found["findings"], found["repaired"]) == ([], [])
    assert found["passed"] >= 16


def test_the_node_keeps_a_record_of_each_program(host: Host) -> None:
    assert sorted(host.file(ON_NODE).listdir()) == RUNS
    for name in RUNS:
        record = json.loads(host.file(f"{ON_NODE}/{name}/latest/record.json").content_string)
        assert (record["rc"], record["left_behind"]) == (0, [])
        assert "simulated" in record["stdout"]


def test_the_control_node_keeps_figures_that_say_they_are_simulated(result: dict[str, Any]) -> None:
    assert (result["host"], result["simulated"], result["findings"]) == (NODE, True, [])
    assert [run["name"] for run in result["runs"]] == RUNS
    for run in result["runs"]:
        assert run["simulated"]
        assert run["busbw"] > run["bar"]
        assert [row["size"] for row in run["rows"]] == [1 << power for power in range(20, 34)]


def test_the_control_node_keeps_plots_that_say_they_are_simulated() -> None:
    assert "simulated" in (RESULTS / "latest" / "busbw.svg").read_text()
    assert (RESULTS / "latest" / "busbw.png").read_bytes().startswith(b"\x89PNG")


def test_check_mode_kept_nothing_and_the_second_run_measured_nothing(host: Host) -> None:
    # Converge and idempotence have run; latest is a link.
    assert len([path for path in RESULTS.iterdir() if not path.is_symlink()]) == 1
    for name in RUNS:
        runs = [path for path in host.file(f"{ON_NODE}/{name}").listdir() if path.startswith("2")]
        assert len(runs) == 1


def test_the_environment_of_the_programs_is_kept_nowhere(host: Host) -> None:
    assert host.run(f"grep -r must-not-be-kept {ON_NODE} /tmp /var/log /root").stdout == ""
    kept = ["grep", "-r", "must-not-be-kept", RESULTS, *EPHEMERAL.glob("*.json")]
    assert subprocess.run(kept, capture_output=True, text=True, check=False).stdout == ""
