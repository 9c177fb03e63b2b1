# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Diagnoses of real NCCL_DEBUG logs; each golden was first compared with the log by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.formats import RELEASES
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.report import report, verdict
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import HEIGHT, screenful

from tests import goldens
from tests.unit.diagnose import corpus

# Below the samples; all_reduce_nccl_debug_info.txt is cut off after its line 700.
LOGS = (
    "h200x1/one-gpu-debug-all.txt",
    "h200x8/all_reduce_nccl_debug_info.txt",
    "h200x8/torch_two_hostids_socket_nccl_debug_info.txt",
    "nccl-log/gdr-disabled-nccl1537.txt",
    "nccl-log/gdrdma-channels-azure-aks-rdma-infiniband-pr36.txt",
    # NCCL 2.8 to 2.10, with the one INFO line "Launch mode Parallel"; no line names the release.
    "nccl-tests/superbench-nccl_allgather.log",
    "nccl-tests/superbench-nccl_allreduce.log",
)
# Without a line of NCCL's: programs of nccl-tests, and logs of others.
OTHERS = (
    *(f"h200x8/all_reduce_{name}.txt" for name in ("p2p_disabled", "plain", "min_bw_failed")),
    *("gpud/fabricmanager.log", "gpud/kmsg.2.peermem.log"),
)
STALLS = ("healthy", "slow", "sleep", "stop", "uneven", "order")
# Log of a job with two GPUs -> event and ranks of the root, and what the first screen names.
CASES = {
    "real-ctrlc": ("order", [], "interrupted"),
    "real-illegal": ("cuda", [1], "illegal memory access"),
    "real-kill9": ("exit", [1], "signal 9"),
    "real-order": ("ranks", [], "in another order"),
    "real-uneven": ("watchdog", [0], "rank 1 did not come"),
    "real-validation": ("watchdog", [1], "rank 0 did not come"),
    "pe1": ("port", [1], "link of mlx5_0 on n2 went down once"),
    "pe2": ("port", [1], "then: completion 12 on n1"),
    "speed25": (None, [], "mlx5_0 25 Gbit/s on n2"),
}


@pytest.mark.golden
@pytest.mark.parametrize("name", [*LOGS, *OTHERS])
def test_a_captured_log_is_diagnosed_as_recorded(samples: Path, name: str) -> None:
    result = corpus.diagnose([(name, (samples / name).read_bytes())])
    assert screenful(result).count("\n") < HEIGHT
    goldens.check("captured_logs", name, corpus.rows(result))


@pytest.mark.parametrize(
    ("name", "check", "cause"),
    [
        # No RDMA device is a fact; whether the node has none, the log does not show.
        (LOGS[2], "nccl_log.network", "which NCCL_HOSTID makes of fewer hosts; cause: NET/IB found no RDMA"),
        (LOGS[3], "nccl_log.gdr", "cause: NCCL finds neither nvidia_peermem nor DMA-BUF"),
    ],
)
def test_a_finding_names_its_cause(samples: Path, name: str, check: str, cause: str) -> None:
    result = corpus.diagnose([(name, (samples / name).read_bytes())])
    assert any(cause in str(finding.have) for finding in result.bad if finding.check == check)


@pytest.mark.parametrize("case", STALLS)
def test_a_job_that_stalls_fails_and_one_that_is_slow_does_not(samples: Path, case: str) -> None:
    result = corpus.diagnose([("log", (samples / "h100x2-stall" / case / "log.txt").read_bytes())])
    root = {"stop": "watchdog", "uneven": "watchdog", "order": "ranks"}.get(case)
    assert verdict(result)[0] == ("failed" if root else "healthy")
    assert (result.root and result.root.event) == root


@pytest.mark.parametrize("case", CASES)
def test_a_real_failure_is_named_first(samples: Path, case: str) -> None:
    path = samples.parent / "cases" / "diagnose" / f"{case}.log"
    if not path.is_file():
        pytest.skip("the logs are not beside this checkout (../shared/cases/diagnose)")
    result = corpus.diagnose([(case, path.read_bytes())])
    event, ranks, words = CASES[case]
    root = result.root
    assert (root and root.event) == event
    assert not ranks or (root is not None and list(root.ranks) == ranks)
    screen = " ".join(screenful(result).split())
    assert words in screen
    assert screenful(result).count("\n") < HEIGHT


def test_the_release_is_inferred_where_no_line_names_it(samples: Path) -> None:
    names = re.compile(rb"NCCL version (2[0-9.]*)\S*|(?:nccl_version_code|nccl-library)[ =][0-9]*")
    judged = 0
    for log in sorted([*samples.rglob("*.txt"), *samples.parent.glob("cases/diagnose/real-*")]):
        text = log.read_bytes()
        versions = {version.decode() for version in names.findall(text)} - {""}
        if len(versions) != 1 or text.count(b" NCCL ") < 50:
            continue
        [job, *_others] = report(corpus.diagnose([(log.name, names.sub(b"", text))]))["jobs"]
        assert job["nccl"] == [], log
        first, last = map(RELEASES.index, job["nccl_between"])
        assert first <= RELEASES.index(versions.pop()) <= last < first + 4, log
        judged += 1
    assert judged > 12


def test_every_captured_log_of_nccl_is_read_here(samples: Path) -> None:
    """A capture that is added to the samples waits here for a person who reads it by hand."""
    found = [path for path in samples.rglob("*") if path.suffix in (".log", ".txt") and b"NCCL" in path.read_bytes()]
    assert {str(path.relative_to(samples)) for path in found} == {
        *(f"h100x2-stall/{case}/log.txt" for case in STALLS),
        *(f"h100x2-stall/{case}/ras.txt" for case in ("healthy", "slow", "sleep", "uneven")),  # test_ras.py
        "h200x1/ras-text.txt",  # tests/samples/test_ras.py
        *LOGS,
    }
