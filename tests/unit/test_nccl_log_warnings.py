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


def warn(text: str, place: str = "transport/x.cc:1") -> str:
    return f"n1:7:8 [0] {place} NCCL WARN {text}\n"


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


def test_a_warning_that_is_not_known_is_quoted_with_who_said_it_and_where_to_look() -> None:
    finding = found(warn("the flux is low: Permission denied", "transport/net_ib/flux.cc:77"))["nccl_log.warning"]
    assert finding.state == "unknown"
    assert "the flux is low: Permission denied; not known to Busbar; on n1:7" in (finding.have or "")
    assert "possible causes: the process may not" in (finding.have or "")
    assert finding.fix.startswith("it is from its RDMA code: see `ibv_devinfo -v`")
    # Without a place nothing is said of it.
    assert found(warn("the flux is low", "?"))["nccl_log.warning"].fix == failure_checks.WARNING.fix


def test_a_failure_is_not_called_the_first_where_an_unknown_warning_came_before() -> None:
    failed = warn("Cuda failure 'out of memory'") + warn("socketProgress: Connection closed by remote peer 10.0.0.1<5>")
    assert "(the first failure of this log)" in (found(failed)["nccl_log.cuda"].have or "")
    before = found(warn("the flux is low") + failed)["nccl_log.cuda"].have or ""
    assert "(the first failure of this log that is known here)" in before


@pytest.mark.parametrize(
    "line",
    [
        "n1:7:8 [0] NCCL INFO transport/net.cc:345 -> 6",
        "n1:7:8 [0] transport/net.cc:345 (f) NCCL INFO -> 6 [Async thread]",
    ],
)
def test_calls_that_returned_an_error_without_a_warning(line: str) -> None:
    finding = found(f"{line}\nn1:7:8 [0] NCCL INFO init.cc:900 -> 6\n")["nccl_log.warning"]
    assert (finding.state, finding.severity) == ("unknown", "critical")
    assert (
        "first transport/net.cc:345 -> 6 on n1:7, GPU 0; over the network transport; that is, usually: another rank"
        in (finding.have or "")
    )
    assert "nccl_log.warning" not in found(line.replace("-> 6", "-> 7"))  # in progress
    # The warning says more.
    assert "returned an error" not in (found(warn("the flux is low") + line)["nccl_log.warning"].have or "")


def test_gpus_without_peer_access_are_named_where_shared_memory_is_used() -> None:
    text = "n1:7:8 [0] NCCL INFO Could not enable P2P between dev 0(=1a000) and dev 3(=88000)\n"
    text += "n1:7:8 [0] NCCL INFO Channel 00 : 0[0] -> 1[3] via SHM/direct/direct\n"
    have = found(text)["nccl_log.intra_node"].have or ""
    assert "possible causes: CUDA allows no P2P among GPUs 0,3" in have


def test_nvls_that_is_refused_at_info_is_a_failure() -> None:
    text = "n1:7:8 [0] NCCL INFO Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2 : CUDA error 2 'x'\n"
    assert "nccl_log.fabric_manager" in found(text)


def test_imex_and_fabric_manager_have_each_their_own_fix() -> None:
    imex = found(warn("MNNVL (cliqueSize 4) is available but not working on this system. Check the IMEX configuration"))
    assert "nvidia-imex-ctl" in imex["nccl_log.fabric_manager"].fix
    assert "nvidia-fabricmanager" in found(warn("Cuda failure 802 'x'"))["nccl_log.fabric_manager"].fix


@pytest.mark.parametrize("name", ["tun0", "wg0", "tailscale0", "flannel.1"])
def test_tunnels_are_not_called_good(name: str) -> None:
    text = f"n1:7:8 [0] NCCL INFO Bootstrap : Using {name}:10.9.0.1<0>\nn1:7:8 [0] NCCL INFO Using network Socket\n"
    finding = found(text)["nccl_log.interface"]
    assert (finding.state, "by its name a tunnel" in (finding.have or "")) == ("unknown", True)
    assert "nccl_log.interface" not in found(text.replace(name, "eth0"))


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


@pytest.mark.parametrize("line", ["cloning into /home/ann/rccl/build", "HIP error: none", "ls: librccl.so: +hip6.3"])
@pytest.mark.parametrize("version", ["n1:7:8 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n", ""])
def test_a_word_of_rccl_costs_no_job_of_nccl_its_verdict(line: str, version: str) -> None:
    warning = (
        "n1:7:8 [0] transport/net_ib.cc:12 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<4321> with status=12\n"
    )
    log, split = both(f"{line}\n{version}{warning}")
    assert (not judge.not_judged(log, split)) == (bool(version) or line.startswith("cloning"))


def test_beside_a_job_of_an_old_release_another_one_is_judged() -> None:
    begin = "n{0}:{0}:8 [0] NCCL INFO comm 0x{0} rank 0 nranks 1 cudaDev 0 busId 1 commId 0x{0} - Init START\n"
    version = "n{}:{}:8 [0] NCCL INFO NCCL version {}+cuda12.1\n"
    text = begin.format(1) + version.format(1, 1, "2.14.3") + begin.format(2) + version.format(2, 2, "2.28.9")
    log, split = both(text)
    assert len(split) == 2
    assert not judge.not_judged(log, split)
    found = {one.check: one for one in judge.judge(log)}
    assert found["nccl_log.readable"].state == "unknown"
    assert found["nccl_log.version"].have == "2.28.9"
    # Two releases in one job are a fault, whatever they are.
    mixed = version.format(1, 1, "2.14.3") + version.format(1, 2, "2.28.9")
    assert {one.check: one for one in judge.judge(both(mixed)[0])}["nccl_log.version"].state == "drift"


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


def test_a_torn_host_is_that_of_its_process() -> None:
    whole, torn = "node1:7:8 [0] NCCL INFO Using network IB", "de1:7:8 [0] NCCL INFO Using network IB"
    assert {key[0] for key in job.read([f"{whole}\n{torn}\n".encode()]).processes} == {"node1"}


@pytest.mark.parametrize("before", ["node2:5:5 [0] NCCL INFO ", "node1:5:5 [0] NCCL INFO "])
@pytest.mark.parametrize("stuck", ["Channel 00/0 : 0[0] -> 1[1] via P2P/IPC/re", "Channel 0", "NCCL_DEB"])
def test_a_process_whose_first_line_sticks_to_anothers_has_the_host_of_its_own_lines(before: str, stuck: str) -> None:
    own = "node1:7:8 [0] NCCL INFO Using network IB\n"
    said = job.read([f"{before}Using network IB\n{before}{stuck}{own}{own}{own.replace(':7:8', ':9:9')}".encode()])
    assert {key[:2] for key in said.processes} == {(before[:5], 5), ("node1", 7), ("node1", 9)}


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


def test_what_an_exception_quotes_is_known_with_its_rank() -> None:
    text = "[rank6]: DistBackendError: NCCL error in: x.cpp:1, unhandled system error, NCCL version 2.19.3\n"
    text += "[rank6]: Last error:\n[rank6]: Call to socket failed : Too many open files\n"
    log = found(text)
    assert "on rank 6" in (log["nccl_log.limits"].have or "")
    assert "lines of others (PyTorch, a launcher, the scheduler, a program, the kernel) report something" in (
        log["nccl_log.readable"].have or ""
    )


def test_a_failure_says_which_gpu_at_what_and_how_much() -> None:
    text = "n1:7:9 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'\n"
    text += "n1:7:9 [3] include/alloc.h:185 NCCL WARN Failed to CUDA calloc 6291456 bytes\n"
    text += "n1:7:9 [3] NCCL INFO transport/p2p.cc:204 -> 1\nn1:7:9 [3] NCCL INFO proxy.cc:1303 -> 1\n"
    have = found(text)["nccl_log.cuda"].have or ""
    assert "after which NCCL warns of more; on n1:7, GPU 3; on a connection by P2P between GPUs" in have
    assert "6291456 bytes; possible causes: the GPU's memory is full" in have
    # What another GPU's thread did does not tell.
    assert "by P2P" not in (found(text.replace("[3] NCCL INFO", "[4] NCCL INFO"))["nccl_log.cuda"].have or "")
    # The thread that hears of an HCA's events has no GPU.
    event = found(warn("NET/IB : mlx5_0:1 Got async event : port error", "transport/net_ib.cc:9"))["nccl_log.port"]
    assert ("GPU" in (event.have or ""), "over NET/IB (RDMA)" in (event.have or "")) == (False, True)


def test_events_that_are_no_failure_and_ras_are_minor() -> None:
    for text, place, check in (
        ("NET/IB : Got async event : client reregistration", "transport/net_ib.cc:93", "nccl_log.port"),
        ("Call to bind failed: Address already in use", "ras/client_support.cc:160", "nccl_log.warning"),
    ):
        finding = found(warn(text, place))[check]
        assert (finding.state, finding.severity) == ("unknown", "minor")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Call to posix_fallocate failed : No space left on device", "cause: /dev/shm is full"),
        ("Error while attaching to shared memory segment /dev/shm/x (size 8), error: No such file or directory (2)",
            "/dev/shm is not full"),
        ("Cuda failure 'operation not supported'", "virtual machine"),
        ("NET/IB : mlx5_0:1 Got async event : local access violation work queue error", "no cable"),
        ("Duplicate GPU detected : rank 4 and rank 0 both on CUDA device 1000", "ranks 0,4"),
    ],
)  # fmt: skip
def test_what_the_words_of_a_failure_tell(text: str, said: str) -> None:
    [have] = [finding.have or "" for finding in found(warn(text)).values() if finding.check != "nccl_log.level"]
    assert said in have


def test_a_connection_that_was_never_made_comes_before_those_that_were_lost_for_it() -> None:
    never = warn(
        "socketStartConnect: Connect to 10.0.0.2<4> failed : Software caused connection abort", "misc/socket.cc:4"
    )
    lost = warn("socketProgress: Connection closed by remote peer n2<5>", "misc/socket.cc:4")
    both = [finding for finding in judge.judge(job.read([(never + lost).encode()])) if not finding.ok]
    assert [bool(finding.because) for finding in both if finding.check == "nccl_log.connection"] == [False, True]
    # What was lost first was not lost for it.
    other = [finding for finding in judge.judge(job.read([(lost + never).encode()])) if not finding.ok]
    assert [bool(finding.because) for finding in other if finding.check == "nccl_log.connection"] == [False, False]


def test_calls_that_failed_before_a_connection_was_closed_are_named() -> None:
    text = "n1:7:8 [2] NCCL INFO transport/net_socket.cc:336 -> 2\n"
    text += "n1:5:8 [0] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer n2<5>\n"
    have = found(text)["nccl_log.connection"].have or ""
    assert (
        "before it calls of NCCL failed on n1:7, GPU 2: transport/net_socket.cc:336 -> 2 (a call of the system" in have
    )


@pytest.mark.parametrize(
    ("line", "state", "said"),
    [
        (
            "socketPollConnect: connect returned No route to host, retrying (34/34) after sleep",
            "drift",
            "34 of 34 tries",
        ),
        (
            "socketPollConnect: connect to 10.0.0.2<5> returned No route to host, retrying (3/34)",
            "unknown",
            "to 10.0.0.2",
        ),
        ("Call to connect returned Connection timed out, retrying", "unknown", "the address is not named"),
    ],
)
def test_connections_that_are_tried_again_and_again(line: str, state: str, said: str) -> None:
    finding = found(f"n1:7:8 [0] NCCL INFO {line}\n")["nccl_log.connection"]
    assert (finding.state, said in (finding.have or "")) == (state, True)


def test_ranks_of_which_only_the_times_are_there_are_complete() -> None:
    done = "n1:7:8 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1b000 commId 0xabc - Init COMPLETE\n"
    both = done + "n1:9:9 [1] NCCL INFO Init timings - ncclCommInitRank: rank 1 nranks 2 total 1.4 (kernels 0.1)\n"
    for text, ranks in ((done, {0}), (both, {0, 1})):
        [one] = jobs.split(job.read([text.encode()]))
        assert one.world is not None
        assert one.world.done == ranks


def test_gpudirect_that_a_plugin_or_a_module_takes_away_is_said_without_a_network() -> None:
    module = "n1:7:8 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0' (no module)\n"
    assert "cause: no module for it (nvidia_peermem" in (found(module)["nccl_log.gdr"].have or "")
    plugin = "n1:7:8 [0] NCCL INFO NET/OFI Could not disable CUDA API usage for HMEM, disabling GDR\n"
    assert "cause: the plugin reports: Could not" in (found(plugin)["nccl_log.gdr"].have or "")


def test_processes_whose_host_is_not_named_are_not_said_to_be_on_one_node() -> None:
    line = "[0] NCCL INFO comm 0x{0} rank {0} nranks 2 cudaDev 0 busId 1e0 commId 0xabc - Init START\n"
    [one] = jobs.split(job.read([(line.format(0) + line.format(1)).encode()]))
    assert one.nodes is None
    [one] = jobs.split(job.read([("n1:1:1 " + line.format(0) + "n1:2:2 " + line.format(1)).encode()]))
    assert one.nodes == 1


def test_what_was_lost_before_the_first_failure_is_not_said_to_follow_from_it() -> None:
    lost = "n1:7:8 [0] misc/socket.cc:1 NCCL WARN socketProgress: Connection closed by remote peer n2<5>\n"
    died = "n2:9:9 [1] enqueue.cc:1 NCCL WARN Cuda failure 'an illegal memory access was encountered'\n"
    log = found(lost + died)
    assert "a connection was lost before it in the log: which came first is unknown" in (
        log["nccl_log.cuda"].have or ""
    )
    assert log["nccl_log.connection"].because is None
    assert found(died + lost)["nccl_log.connection"].because == log["nccl_log.cuda"].id
    # Times of one clock tell it, whatever the order of the lines.
    early, late = "[2026-01-01 10:00:01] ", "[2026-01-01 10:00:05] "
    assert found(late + lost + early + died)["nccl_log.connection"].because == log["nccl_log.cuda"].id


def test_a_link_layer_that_is_not_said_is_not_named() -> None:
    log = job.read([b"n1:7:8 [0] NCCL INFO NET/IB : Made virtual device [0] name=roce0 speed=200000 ndevs=1\n"])
    [process] = log.processes.values()
    assert [device.layer for device in process.devices.values()] == [""]


def test_words_of_the_system_go_before_a_plugins_usual_causes() -> None:
    have = found(warn("NET/OFI Unable to register memory. RC: 12, Error: Cannot allocate memory"))
    assert "possible causes: memory that may be locked" in (have["nccl_log.net_plugin"].have or "")
    have = found(warn("Call to ibv_create_cq failed with error Cannot allocate memory"))
    assert "or the HCA has no more queues" in (have["nccl_log.memory_limit"].have or "")


def test_a_place_alone_before_a_warning_tells_what_went_on() -> None:
    finding = found("transport/nvls.cc:165 NCCL WARN Cuda failure 'invalid argument'\n")["nccl_log.fabric_manager"]
    assert "NCCL_NVLS_ENABLE=0" in finding.fix


def test_watchdogs_of_two_process_groups_are_not_compared() -> None:
    text = "".join(
        f"[rank{rank}]:[E x.cpp:1] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={number},"
        f" OpType=ALLREDUCE, Timeout(ms)=600000) ran\n[rank{rank}]:[E x.cpp:2] [PG ID 1 PG GUID {group} Rank 0] failure"
        f" at work: {number}, last enqueued NCCL work: {number}, last completed NCCL work: {number - 1}.\n"
        for rank, number, group in ((13, 216, 119), (15, 57, 112))
    )
    have = found(text)["nccl_log.watchdog"].have or ""
    assert "these are of several process groups" in have
    assert "the lowest number is the rank that is behind" not in have
    same = found(text.replace("GUID 119", "GUID 112"))["nccl_log.watchdog"].have or ""
    assert "in one process group the lowest number is the rank that is behind" in same
    assert "the log does not show the groups" not in same


def test_ranks_with_one_gpu_are_told_without_a_warning() -> None:
    line = "n1:{0}:1 [0] NCCL INFO comm 0x{0} rank {0} nranks 2 cudaDev 0 busId {1} commId 0xabc - Init {2}\n"
    begun = line.format(0, "1b000", "START") + line.format(1, "1b000", "START")
    assert "ranks 0-1 have the same GPU (bus id 1b000) on n1" in (found(begun)["nccl_log.duplicate_gpu"].have or "")
    assert "nccl_log.duplicate_gpu" not in found(line.format(0, "1b000", "START") + line.format(1, "1c000", "START"))
    assert "nccl_log.duplicate_gpu" not in found(begun.replace("START", "COMPLETE"))


def test_connections_over_sockets_within_a_node_are_seen_without_a_communicator() -> None:
    text = "n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0\n"
    text += "n1:2:2 [1] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [receive] via NET/Socket/0\n"
    assert "reach each other over the network" in (found(text)["nccl_log.intra_node"].have or "")
    assert "nccl_log.intra_node" not in found(text.replace("n1:2", "n2:2"))


@pytest.mark.parametrize("torn", ["0x55cd375node1", "16126node1", "[7]node1"])
def test_what_a_torn_line_leaves_before_a_host_is_no_part_of_its_name(torn: str) -> None:
    text = "node1:1:1 [0] NCCL INFO Using network IB\n{}:2:2 [1] NCCL INFO Using network IB\n"
    assert {key[0] for key in job.read([text.format(torn).encode()]).processes} == {"node1"}
    assert {key[0] for key in job.read([text.format("gpu-node1").encode()]).processes} == {"node1", "gpu-node1"}


def test_libfabric_says_much_that_is_no_failure() -> None:
    for text, known in (("endpoint created! address: x", False), ("FI_HMEM needs RDMA, not supported", True)):
        said = elsewhere.said_elsewhere(f"libfabric:46:17:efa:core:f():506<warn> {text}", False)
        assert (said is not None) == known


def told(text: str) -> list[str]:
    """What findings that are not ok say, with why and what to do."""
    found = judge.judge(job.read([text.encode()]))
    return ["%s; %s; %s" % (one.have, one.why, one.fix) for one in found if not one.ok]


def warned(text: str, place: str = "transport/net.cc:9", device: int = 0) -> str:
    return f"n1:4:5 [{device}] {place} NCCL WARN {text}\n"


@pytest.mark.parametrize("words", ["no kernel image is available for execution on the device"])
def test_a_library_without_code_for_the_gpu_is_told_as_that(words: str) -> None:
    [said] = [one for one in told(warned(f"Cuda failure '{words}'", "enqueue.cc:66")) if "Cuda failure" in one]
    assert "for this GPU" in said
    assert "LAUNCH_BLOCKING" not in said


@pytest.mark.parametrize(("words", "times"), [("invalid argument", 1), ("out of memory", 2)])
def test_an_error_of_the_call_that_the_line_before_names_is_one_failure(words: str, times: int) -> None:
    text = warned("hipIpcGetMemHandle failed : invalid argument", "transport/p2p.cc:20")
    text += warned(f"Cuda failure '{words}'", "transport/p2p.cc:22")
    assert len([one for one in told(text) if "failed :" in one or "Cuda failure" in one]) == times


def test_what_to_do_about_a_peer_that_does_not_answer_is_to_look_at_it() -> None:
    text = warned(
        "NET/OFI Request 0x1 completed with error. RC: 5. Error: 4 (Unresponsive receiver). Completed length: 0"
    )
    [said] = [one for one in told(text) if "Unresponsive" in one]
    assert "look at the peer" in said
    assert "fi_info" not in said


def test_a_plugin_that_does_not_register_a_gpus_memory_is_not_taken_for_efa() -> None:
    text = warned("NET/OFI Unable to register memory (type = 2) for device 3. RC: -22, Error: Invalid argument")
    [said] = [one for one in told(text) if "register memory" in one]
    assert "EFA" not in said
    assert "security group" not in said


@pytest.mark.parametrize(
    ("number", "address"), [("9f000", "9f:00.0"), ("101b30", "0001:01:b3.0"), ("1000", "01:00.0"), ("3", "")]
)
def test_the_number_of_a_duplicate_gpu_is_its_pci_address(number: str, address: str) -> None:
    [said] = [one for one in told(warned(f"Duplicate GPU detected : rank 0 and rank 1 both on CUDA device {number}"))
              if "Duplicate" in one]  # fmt: skip
    assert ("%s is %s" % (number, address) in said) if address else "PCI address" not in said
