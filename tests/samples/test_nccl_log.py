"""What real NCCL_DEBUG logs say, field by field; each golden was first compared with the log by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, jobs, judge
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.process import Process
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.transport import transport

from tests import goldens

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
# Without a line of NCCL's: programs of nccl-tests, and logs of others, in which nothing is concluded from errors.
OTHERS = (
    *(f"h200x8/all_reduce_{name}.txt" for name in ("p2p_disabled", "plain", "min_bw_failed")),
    *("gpud/fabricmanager.log", "gpud/kmsg.2.peermem.log"),
)
# What is in the golden of other tests, or follows from what is shown.
NOT_SHOWN = {
    *("forms", "met", "gpus", "notes", "nvswitch", "nvls_said", "topology", "p2p", "p2p_per_peer", "init_seconds"),
    *("init_parts", "sources", "begins", "processes", "communicators", "table", "ras", "quotes", "programs", "trace"),
    *("unread", "matrix", "stacks", "results", "pairs", "last_done", "small", "key"),
}


def said(one: object) -> dict[str, Any]:
    """Every field that holds something: what is not expected shows as well as what is missing."""
    names = [*vars(one), *type(one).__annotations__]
    return {name: plain(getattr(one, name)) for name in sorted({*names} - NOT_SHOWN) if getattr(one, name)}


def plain(value: Any) -> Any:
    if isinstance(value, Process):
        return plain(value.key)
    if is_dataclass(value):
        return plain(tuple(vars(value).values()))
    if isinstance(value, Mapping):
        return [[plain(key), plain(item)] for key, item in sorted(value.items())]
    if isinstance(value, set | frozenset):
        return sorted((plain(item) for item in value), key=str)
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


@pytest.mark.golden
@pytest.mark.parametrize("name", [*LOGS, *OTHERS])
def test_what_a_log_says(samples: Path, name: str) -> None:
    log = job.read([(samples / name).read_bytes()])
    [one] = jobs.split(log)
    proof = transport(one)
    rows: list[Any] = [["log", said(log), [line.text for line in log.unread.kept[:1]]]]
    rows += [["process", plain(key), said(process)] for key, process in log.processes.items()]
    rows += [["communicator", key, said(communicator)] for key, communicator in log.communicators.items()]
    world = one.world and one.world.key
    rows += [["job", one.nodes, plain(one.versions), plain(one.networks), world, len(one.processes)]]
    # "Connected all rings, use ring PXN 0 GDR 0" is not the same as no such line.
    gdr = sorted({str(process.rings_gdr) for process in one.processes})
    rows += [["nodes", sorted({process.node for process in one.processes}), gdr]]
    rows += [
        [
            "proof",
            proof.proven,
            proof.rdma,
            proof.gdr,
            plain(proof.networks),
            proof.nodes,
            proof.expected,
            len(proof.missing),
        ]
    ]
    rows += [[rank.host, rank.pid, rank.rank, plain(rank.devices), plain(rank.paths)] for rank in proof.ranks]
    rows += [[f.check, f.aspect, f.subject, f.state, f.severity, f.because] for f in judge.judge(log)]
    goldens.check("captured_logs", name, rows)


@pytest.mark.parametrize(
    ("name", "check", "cause"),
    [
        # No RDMA device is a fact; whether the node has none, the log does not tell.
        (
            LOGS[2],
            "nccl_log.network",
            "over 2 nodes, which NCCL_HOSTID makes of fewer hosts; cause: NET/IB found no RDMA",
        ),
        (LOGS[3], "nccl_log.gdr", "cause: NCCL finds neither nvidia_peermem nor DMA-BUF"),
    ],
)
def test_a_finding_names_its_cause(samples: Path, name: str, check: str, cause: str) -> None:
    found = judge.judge(job.read([(samples / name).read_bytes()]))
    assert any(cause in str(one.have) for one in found if one.check == check)


# Case -> the failure that its log reports.
STALLS: dict[str, set[str]] = {
    "healthy": set(),
    "slow": set(),
    "sleep": set(),
    "stop": {"nccl_log.watchdog"},
    "uneven": {"nccl_log.watchdog"},
    "order": {"nccl_log.ranks"},
}


@pytest.mark.parametrize("case", STALLS)
def test_a_job_that_stalls_fails_and_one_that_is_slow_does_not(samples: Path, case: str) -> None:
    log = job.read([(samples / "h100x2-stall" / case / "log.txt").read_bytes()])
    bad = [one for one in judge.judge(log) if not one.ok and one.severity == "critical" and one.because is None]
    assert {one.check for one in bad[:1]} == STALLS[case]


def test_every_captured_log_of_nccl_is_read_here(samples: Path) -> None:
    """A capture that is added to the samples waits here for somebody who reads it by hand."""
    found = [path for path in samples.rglob("*") if path.suffix in (".log", ".txt") and b"NCCL" in path.read_bytes()]
    assert {str(path.relative_to(samples)) for path in found} == {
        *(f"h100x2-stall/{case}/log.txt" for case in STALLS),
        *(f"h100x2-stall/{case}/ras.txt" for case in ("healthy", "slow", "sleep", "uneven")),  # test_ras.py
        "h200x1/ras-text.txt",  # tests/samples/test_ras.py
        *LOGS,
    }
