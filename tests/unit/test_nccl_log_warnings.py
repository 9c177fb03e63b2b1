# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Every kind of warning in NCCL's sources is told from the others, and what is not known is said to be unknown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import (
    elsewhere,
    failure_causes,
    failure_checks,
    failures,
    job,
    jobs,
    judge,
)

from busbar.cli import main


def found(text: str) -> dict[str, Finding]:
    """Check -> its finding that is not ok, the worst of several."""
    result: dict[str, Finding] = {}
    for finding in judge.judge(job.read([text.encode()])):
        if not finding.ok:
            result.setdefault(finding.check, finding)
    return result


# What NCCL prints, in the least that tells it from others -> the kind. In the order of the rules.
KINDS = [
    ("Call to socket failed : Too many open files", "limits"),
    ("Thread creation failed: Resource temporarily unavailable", "limits"),
    ("NET/IB : mlx5_3:1 GID table changed", "port"),
    ("NET/IB : mlx5_3:1 Got async error event: port error", "port"),
    ("NET/IB: Device 1 marked as failed. Initiating recovery? yes", "hca_lost"),
    ("NET/IB: Fatal error. Detected 2 failed devices out of 2 devices", "hca_lost"),
    ("Call to ibv_poll_cq() returned -1", "verbs"),
    ("ibv_post_send() failed with error Invalid argument, Bad WR 0x1", "verbs"),
    ("NET/IB : Unable to open device mlx5_0", "hca_skipped"),
    ("This application was compiled with NCCL version 22304, but is running with 22203", "compiled"),
    ("ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER", "compiled"),
    ("Net : No interface found in the same subnet as remote address 10.0.0.1<5>", "no_interface"),
    ("no device found matching eth7, verify NCCL_OOB_NET_IFNAME", "no_interface"),
    ("Net : error encountered when getting address info : Name or service not known", "name"),
    ("unlink shared memory /dev/shm/nccl-x failed, error: No such file (2)", "consequence"),
    ("Error: failed to extend /tmp/nccl-x to 100 bytes, error: No space left (28)", "shared_memory"),
    ("Error: Could not map /dev/shm/nccl-x size 4096, error: Invalid argument (22)", "shared_memory"),
    ("UDS: Sending data over socket /tmp/x failed : Connection refused (111)", "uds"),
    ("socketPollConnect: exceeded timeouts (20)", "connect"),
    ("socketProgressOpt: Call to recv from 10.0.0.9<4> failed : No route to host", "closed"),
    ("Failed to malloc 4096 bytes", "host_memory"),
    ("Unrecoverable error detected: malloc(size=8) returned null.", "host_memory"),
    ("Comm 0x1 is in abort state", "consequence"),
    ("cudaIpcGetMemHandle failed : invalid argument", "peer_access"),
    ("MNNVL (cliqueSize 8) is available but not supported on this system. Check the IMEX", "fabric_manager"),
    ("Failed to find CUDA library libcuda.so", "driver_functions"),
    ("Coll X size 8 symmetric registration check failed on rank 1", "mismatch"),
    ('All entries except the first must have a prefix: "x"', "algorithm"),
    ("nvmlDeviceGetHandleByIndex(7) failed: Not Found", "nvml"),
    ("NET/IB : Local mergedDev a has a different number of devices=1 as remote b 2", "link_layer"),
    ("TOPO/NET : Could not force merge NICs a,b", "merge"),
    ("socketFinalizeAccept from 10.0.0.1<5>: wrong magic 1 != 2", "handshake"),
    ("Could not open XML topology file /x.xml : No such file or directory", "topology_file"),
    ("XML Mismatch : a / b", "topology_file"),
    ("Could not find a path for pattern 4, falling back to simple order", "fallback"),
    ("No NVML device handle. Skipping nvlink detection.", "topology"),
    ("NCCL_CGA_CLUSTER_SIZE value 16 is too big. Limiting value to 8.", "value"),
    ("User asked for a maximum of 0 channels, setting it to 1", "value"),
    ("gdr_pin_buffer(addr 0, size 8) failed: 22", "gdrcopy"),
    ("AllReduce : invalid root 9 (root should be in the 0..8 range)", "usage"),
    ("Trying to recv to self without a matching send", "usage"),
    ("comm 0x1 has already been destroyed", "usage"),
    ("User requested GIN but not all ranks in the communicator support GIN", "device_api"),
    ("Proxy append out of bounds", "internal"),
    ("NET/OFI Request 0x1 completed with error", "net_plugin"),
    ("something that no release has", "warning"),
]


@pytest.mark.parametrize(("text", "kind"), KINDS)
def test_kinds(text: str, kind: str) -> None:
    said = failures.failure(text)
    assert (said.kind if said else "harmless") == kind


@pytest.mark.parametrize(
    "text",
    ["NET/IB : mlx5_0:1 Got non-fatal async event: SM change(1)", "dlvsym failed on x"],
)
def test_what_changes_nothing_is_no_failure(text: str) -> None:
    assert failures.failure(text) is None


def test_every_kind_has_a_check_or_follows_from_another_one() -> None:
    told = {kind for kind, _pattern in failures._RULES} | {kind for _text, kind in KINDS}
    assert told - set(failure_checks.CHECKS) == {"consequence"}
    for kind, _code in [*failure_checks.OWN, *failure_causes.POSSIBLE]:
        assert kind in failure_checks.CHECKS
    assert {*failure_checks.OPEN, *failure_checks.MERELY} <= set(failure_checks.CHECKS)


@pytest.mark.parametrize(
    "line",
    [
        "n1:7:8 [0] NCCL INFO RCCL version : 2.22.3-HEAD:9351083",
        "n1:7:8 [0] NCCL INFO NCCL version 2.22.3+hip6.3 HEAD:x",
        "RCCL version 2.22.3+hip6.3",
        "n1:7:8 [0] /x/rccl/src/init.cc:3 NCCL WARN a thing",
        "n1:7:8 [0] NCCL INFO /x/build/hipify/src/init.cc:3 -> 2",
        "n1:7:8 [0] NCCL INFO NET/Plugin: Loaded net plugin librccl-net.so",
        "RuntimeError: HIP error: invalid argument",
        'n1:7:8 [0] init.cc:3 NCCL WARN Missing "iommu=pt" from kernel command line',
        "NCCL version 2.17.1+cuda12.1",
        "n1:7:8 [0] NCCL INFO NCCL version 2.14.3+cuda11.7",
    ],
)
def test_a_log_of_rccl_or_of_an_old_release_is_not_judged(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = line + "\nn1:7:8 [0] NCCL INFO Using network IB\n"
    log = job.read([text.encode()])
    [finding] = judge.judge(log)
    assert (finding.check, finding.state, finding.severity) == ("nccl_log.readable", "unknown", "major")
    path = tmp_path / "log"
    path.write_text(text)
    assert main(["diagnose", str(path)]) == 3
    assert "verdict: not judged" in capsys.readouterr().out
    assert not judge.not_judged(*both("n1:7:8 [0] NCCL INFO NCCL version 2.18.1+cuda12.1\n"))


def both(text: str) -> tuple[job.Log, list[jobs.Job]]:
    log = job.read([text.encode()])
    return log, jobs.split(log)


def test_lines_that_docker_has_put_into_json() -> None:
    line = "n1:7:8 [3] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>"
    wrapped = json.dumps({"log": line + "\n", "stream": "stderr", "time": "2025-11-24T03:20:21.02Z"})
    [process] = job.read([(wrapped + "\n").encode()]).processes.values()
    assert (process.host, process.bootstrap and process.bootstrap.address) == ("n1", "10.0.0.1")
    for other in ('{"a": 1}', '{"', '{"log": 3}', '{"time": "NCCL'):
        assert not job.read([other.encode()]).processes


# A line that is none of NCCL's -> what it says.
ELSEWHERE = [
    ("[rank3]:[E1 x.cpp:1] [PG ID 0 PG GUID 0 Rank 3] failure detected by watchdog at work sequence id: 1 PG"
        " status: last enqueued work: 1, last completed work: -1", "progress", 3),
    ("RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)", "exception", None),
    ("RuntimeError: NCCL Error 2: unhandled system error (run with NCCL_DEBUG=INFO)", "exception", None),
    ("ncclSystemError: System call or external library call failed", "exception", None),
    ("INTERNAL: NCCL operation ncclX() failed: unhandled cuda error. Last NCCL warning(error) log entry (may be"
        " unrelated) 'Cuda failure 'out of memory''.", "cuda", None),
    ("[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "cuda", 2),
    ("[5] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by key '0', but"
        " store->get('0') got error: Socket Timeout", "store", 5),
    ("[W socket.cpp:1] [c10d] The client socket has failed to connect to [::1]:29500 (errno: 97).", None, None),
    ("[rank1]: Heartbeat monitor timed out! Process will be terminated", "stuck", 1),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.", "oom", None),
    ("slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2025-01-01 DUE TO TIME LIMIT ***", "time_limit", None),
    ("slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2025-01-01T00:00:00 ***", "cancelled", None),
    ("srun: error: Node failure on n3", "node_failure", None),
    ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", "xid", None),
    ("  traceback : Signal 9 (SIGKILL) received by PID 123", "exit", None),
    ("srun: error: n1: task 3: Out Of Memory", "exit", None),
    ("step 5 loss 2.1 exit criterion not met", None, None),
]  # fmt: skip


def test_every_mark_has_a_coarse_one_in_it() -> None:
    assert [mark for mark in elsewhere.MARKS if not any(coarse in mark for coarse in elsewhere.COARSE)] == []


@pytest.mark.parametrize(("line", "kind", "rank"), ELSEWHERE)
def test_lines_of_others(line: str, kind: str | None, rank: int | None) -> None:
    assert kind is None or any(mark in line.encode() for mark in elsewhere.MARKS)
    said = elsewhere.said_elsewhere(line, False)
    assert (said.kind if said else None, said.rank if said else None) == (kind, rank)


def test_libfabric_says_much_that_is_no_failure() -> None:
    for text, known in (("endpoint created! address: x", False), ("FI_HMEM needs RDMA, not supported", True)):
        said = elsewhere.said_elsewhere(f"libfabric:46:17:efa:core:f():506<warn> {text}", False)
        assert (said is not None) == known


def told(text: str) -> list[str]:
    """What findings that are not ok say, with why and what to do."""
    found = judge.judge(job.read([text.encode()]))
    return ["%s; %s; %s" % (one.have, one.why, one.fix) for one in found if not one.ok]
