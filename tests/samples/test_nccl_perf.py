"""What real programs of nccl-tests printed, judged: eight H200, healthy and crippled, and eight A100 years ago."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import judge as perf
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import output as perf_output
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf import record as perf_run
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_perf.record import Run, Wanted

ROOT = Path(__file__).resolve().parent.parent.parent
M, G = 1 << 20, 1 << 30


def wanted(least: int, most: int, factor: int, collective: str = "all_reduce", host: str = "vm") -> Wanted:
    return Wanted(collective, 8, (host,), perf_run.sizes(least, most, factor), bar_busbw=340.0)


def judged(asked: Wanted, stdout: str, rc: int = 0) -> tuple[float | None, dict[str, str]]:
    """busbw at the largest size, and check -> state of what is not ok."""
    run = Run(("program",), rc, "", 60.0, 1.0, stdout=stdout)
    result, problem = perf.read(run)
    assert result is not None, problem
    plan = perf.judge(result, asked, run, 1.0, problem)
    return perf.reached(result, asked), {f.check.partition(".")[2]: f.state for f in plan.findings if not f.ok}


@pytest.mark.parametrize(
    ("capture", "asked", "busbw", "not_ok"),
    [
        ("all_reduce_plain", wanted(8, 16 * G, 2), 367.16, {}),
        # NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1: nothing crashed, the exit code is 0.
        ("all_reduce_p2p_disabled", wanted(1 * M, 1 * G, 4), 11.87, {"busbw": "drift"}),
        # NCCL_TESTS_MIN_BW was set above what the node reached; the figure itself clears our bar.
        ("all_reduce_min_bw_failed", wanted(1 * G, 1 * G, 2), 358.89, {"ran": "drift"}),
    ],
)
def test_text_of_eight_h200(samples: Path, capture: str, asked: Wanted, busbw: float, not_ok: dict[str, str]) -> None:
    stdout, _mark, rc = (samples / f"h200x8/{capture}.txt").read_text().rpartition("rc=")
    assert judged(asked, stdout, rc=int(rc)) == (busbw, not_ok)


def test_text_among_nccl_s_own_lines(samples: Path) -> None:
    stdout = (samples / "h200x8/all_reduce_nccl_debug_info.txt").read_text()
    assert stdout.count("NCCL INFO") > 500
    assert perf_output.without_log(stdout).count("NCCL INFO") == 0
    # The capture is the head of a longer run: that no table is there must not pass.
    _busbw, found = judged(wanted(8, 8 * G, 2), stdout)
    assert {"ran", "sizes", "correct", "busbw"} <= set(found)


def test_the_layout_of_years_ago_without_validation_proves_no_correctness(samples: Path) -> None:
    stdout = (samples / "nccl-tests/superbench-nccl_allreduce.log").read_text()
    busbw, found = judged(wanted(4, 8 * G, 2, host="localhost"), stdout)
    assert (busbw, found) == (235.26, {"correct": "unknown", "busbw": "drift"})


def test_no_row_of_a_real_table_is_refused(samples: Path) -> None:
    counted = 0
    for path in [*samples.glob("nccl-tests/*.log"), *samples.glob("h200x8/*.txt")]:
        try:
            result = perf_output.parse_text(path.read_text())
        except ParseError:
            continue
        collective = next(
            name
            for name in ("all_gather", "reduce_scatter", "all_reduce")
            if name.replace("_", "") in path.name.replace("_", "")
        )
        for row in result.rows:
            asked = Wanted(collective, 8, ("vm",), (max(1, row.size),))
            alone = replace(result, rows=(replace(row, size=max(1, row.size)),))
            counted += row.size == 0 or perf.reached(alone, asked) is not None
    assert counted > 100
