# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module nccl_perf over four nodes, by the real mpirun and srun: what is no proof of a run, and what ends it.

The lab's nccl-tests behind a shell that keeps a rank from doing what it should. A good run: test_faults.py.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests import series, slurm_daemons
from tests.trees import tool

from .jobs import asked
from .simulated import Simulated
from .test_faults import CODE, PER_NODE, ended, measure, roots, start

HEADER = "#  Rank  0 Group  0 Pid   4999 on node04 device  0 [0000:1b:00] NVIDIA H100"
ROW = "1073741824 268435456 float sum -1 1073.7 1000.00 1500.00 0 1073.7 1000.00 1500.00 0"
# Without a rank it is asked for its options.
WRAPPER = """\
rank=${{OMPI_COMM_WORLD_RANK:-$PMIX_RANK}} program={program}
[ -z "$rank" ] || {{ {before}; }}
exec "$program" "$@"
"""


def program(simulated: Simulated, tmp_path: Path, before: str) -> str:
    """before: what the shell does in each rank, which is $rank, before the program."""
    tool(tmp_path, "all_reduce_perf", WRAPPER.format(program=simulated.program("all_reduce"), before=before))
    return str(tmp_path / "all_reduce_perf")


def states(result: dict[str, Any]) -> dict[str, str]:
    return {finding["check"].partition(".")[2]: finding["state"] for finding in result["findings"]}


@pytest.mark.parametrize(
    ("kind", "before", "expected"),
    series.first(
        # NCCL_DEBUG does not reach a rank.
        ("srun", '[ "$(hostname)" != node03 ] || unset NCCL_DEBUG', {"transport": "unknown", "busbw": "unknown"}),
        # Exit code 0, and nothing.
        ("mpirun", "exit 0", {"ran": "unknown", "transport": "unknown", "busbw": "unknown"}),
        # Somebody else's table among it.
        ("srun", f"[ $rank != 3 ] || printf '{HEADER}\\n{ROW}\\n'", {"ranks": "drift"}),
        brief=2,
    ),
    ids=["no log of a rank", "nothing", "another's table"],
)
def test_what_is_no_proof_is_never_ok(
    simulated: Simulated, tmp_path: Path, kind: str, before: str, expected: dict[str, str]
) -> None:
    found = states(measure(simulated, tmp_path, kind, binary=program(simulated, tmp_path, before)))
    assert {name: found.get(name, "ok") for name in expected} == expected


@pytest.mark.long
def test_a_rank_that_fails_is_seen_where_the_launcher_passes_over_it(simulated: Simulated, tmp_path: Path) -> None:
    job = {**asked(simulated.nodes, "mpirun", PER_NODE), "options": ["--mca", "orte_abort_on_non_zero_status", "0"]}
    binary = program(simulated, tmp_path, '[ $rank != 2 ] || { "$program" "$@"; exit 3; }')
    assert roots(measure(simulated, tmp_path, "mpirun", binary=binary, launch=job)) == {"nccl_perf.ran": "drift"}


@pytest.mark.long
def test_a_run_that_hangs_is_ended_everywhere(simulated: Simulated, tmp_path: Path) -> None:
    """The fixture waits until nothing is left on any node."""
    started = time.monotonic()
    with simulated.broken("hung-rank"):
        result = measure(simulated, tmp_path, "mpirun", timeout=8, repeats=3)
    assert states(result)["ran"] == "drift"
    assert "no end within 8 s" in next(f["have"] for f in result["findings"] if f["check"] == "nccl_perf.ran")
    assert len(result["repeats"]) == 1
    assert time.monotonic() - started < 100


@pytest.mark.parametrize(("kind", "where", "victim"), series.first(("srun", 0, "module"), ("mpirun", 2, "rank guard")))
def test_what_is_killed_is_never_ok_and_leaves_nothing(
    simulated: Simulated, tmp_path: Path, kind: str, where: int, victim: str
) -> None:
    """The fixture waits until nothing is left on any node."""
    module = start(simulated, tmp_path, kind, binary=program(simulated, tmp_path, f"touch {tmp_path}/$rank; sleep 600"))
    ranks = range(PER_NODE * len(simulated.nodes))
    slurm_daemons.wait("all ranks", lambda: all((tmp_path / str(rank)).exists() for rank in ranks), 60)
    marks = {"rank guard": "--limit", "module": CODE}
    found = simulated.nodes[where].processes()
    pids = [pid for pid, words in found.items() if any(marks[victim] in word for word in words)]
    assert pids
    os.kill(min(pids), signal.SIGKILL)
    if victim == "module":
        assert not module.communicate(timeout=300)[0]
    else:
        result = ended(module)
        assert states(result)["ran"] in ("drift", "unknown")
        assert states(result)["busbw"] == "unknown"
