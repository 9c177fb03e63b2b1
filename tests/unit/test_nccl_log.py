"""What a NCCL_DEBUG log says: prefixes, events, jobs, findings. Whole logs: readings/nccl_log.report.parse."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, worst_first
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import (
    events,
    excerpt,
    failures,
    job,
    jobs,
    judge,
    lines,
    shared,
    texts,
    training,
)
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.process import Key
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.transport import transport
from ansible_collections.busbar.fabric.plugins.plugin_utils import diagnose

from busbar import cli


def found(text: str) -> dict[str, Finding]:
    """Check -> its finding that is not ok, the worst of several."""
    result: dict[str, Finding] = {}
    for finding in judge.judge(job.read([text.encode()])):
        if not finding.ok:
            result.setdefault(finding.check, finding)
    return result


def ranks(*said: str, nodes: int = 2, network: str = "IB") -> str:
    """A job with a rank on each node; said: further lines of all of them."""
    text = []
    for rank in range(nodes):
        head = f"node{rank}:{100 + rank}:{100 + rank} [0] NCCL INFO "
        text += [
            f"{head}NCCL version 2.27.7+cuda12.9",
            f"{head}Bootstrap: Using eth0:10.0.0.{rank}<0>",
            f"{head}Using network {network}",
        ]
        text.append(f"{head}ncclCommInitRank comm 0xa{rank} rank {rank} nranks {nodes} cudaDev 0 nvmlDev 0 busId 1b000 "
                    "commId 0xabc - Init START")  # fmt: skip
        text.append(f"{head}comm 0xa{rank} rank {rank} nRanks {nodes} nNodes {nodes} localRanks 1 localRank 0 MNNVL 0")
        text += [head + line for line in said]
        text.append(f"{head}ncclCommInitRank comm 0xa{rank} rank {rank} nranks {nodes} cudaDev 0 nvmlDev 0 busId 1b000 "
                    "commId 0xabc - Init COMPLETE")  # fmt: skip
    return "\n".join(text) + "\n"


HEALTHY = (
    "NET/Plugin: Could not find: libnccl-net.so",
    "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>",
    "GPU Direct RDMA Disabled for GPU 0 / HCA 7 (distance 9 > 5)",
    "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA",
    "Connected all rings, use ring PXN 0 GDR 1",
)


@pytest.mark.parametrize(
    ("prefix", "rank", "clock"),
    [
        ("", None, ""),
        ("[default3]:", None, ""),
        ("[rank3]:", 3, ""),
        ("3: ", 3, ""),
        ("[1,3]<stdout>:", 3, ""),
        ("[3] ", 3, ""),
        ("node9: ", None, ""),
        ("(RayTrainWorker pid=77, ip=10.0.0.1) ", None, ""),
        ("2025-11-24T03:20:21.001125857Z stdout F ", None, "container"),
        ("2025-11-24T03:20:21.001125857Z stdout F 3: ", 3, "container"),
        ("[2025-11-24 03:20:21] ", None, "nccl"),
        ("[rank3]:[2025-11-24 03:20:21] ", 3, "nccl"),
        ("\x1b[36m[rank3]:\x1b[0m ", 3, ""),
    ],
)
def test_every_launchers_prefix_leaves_the_same_line(prefix: str, rank: int | None, clock: str) -> None:
    [record] = lines.records(f"{prefix}node1:4242:4243 [5] NCCL INFO Using network IB\r")
    assert (record.head.host, record.head.pid, record.head.tid, record.head.device) == ("node1", 4242, 4243, 5)
    assert (record.head.rank, record.head.clock) == (rank, clock)
    assert (record.level, record.text) == ("INFO", "Using network IB")


def test_heads_of_warnings_and_traces() -> None:
    [warn] = lines.records("node1:1:2 [5] misc/socket.cc:46 (socketProgress) NCCL WARN Connection closed")
    assert (warn.level, warn.head.place, warn.head.pid) == ("WARN", "misc/socket.cc:46 (socketProgress)", 1)
    [trace] = lines.records("node1:1:2 [5] 123.456 ncclIbTest:12 NCCL TRACE req 1")
    assert (trace.level, trace.head.place, trace.head.pid) == ("TRACE", "ncclIbTest:12", 1)
    [bare] = lines.records("[1] misc/shmutils.cc:103 NCCL WARN Cuda failure 'invalid argument'")
    assert (bare.head.host, bare.head.pid, bare.head.device) == ("", None, 1)


def test_torn_lines_are_taken_apart() -> None:
    text = "   8   2 float sum -1node1:1:2 [0] NCCL INFO Using network IB node2:3:4 [1] NCCL INFO Using network Socket"
    first, second = lines.records(text)
    assert (first.text, second.head.host, second.text) == ("Using network IB", "node2", "Using network Socket")
    log = job.read([f"node1:1:2 [0] NCCL INFO NCCL version 2.27.7+cuda12.9\n{text}\n".encode()])
    assert {key[0]: process.networks for key, process in log.processes.items()} == {
        "node1": {"IB"},
        "node2": {"Socket"},
    }


@pytest.mark.parametrize(
    ("text", "event"),
    [
        (
            "NET/IB : Using [0]={[0] mlx5_2:1/RoCE, [1] mlx5_3:1/RoCE} [1]={[2] mlx5_0:1/RoCE} [RO]; OOB b0:1.2.3.4<0>",
            events.Devices(
                "IB",
                (events.Device(0, "mlx5_2+mlx5_3", 1, "RoCE"), events.Device(1, "mlx5_0", 1, "RoCE")),
                "b0",
                "1.2.3.4",
            ),
        ),
        ("NET/IB : Using [RO]; OOB eth0:10.0.0.1<0>", events.Devices("IB", (), "eth0", "10.0.0.1")),
        (
            "Channel 03/1 : 12[4] -> 5[5] [receive] via NET/AWS Libfabric/7(6)/GDRDMA/Shared",
            events.Channel("net", "AWS Libfabric", 12, 5, False, 7, 6, True),
        ),
        ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", events.Channel("shm", "direct/direct", 0, 1)),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", events.Channel("p2p", "CUMEM/read", 0, 1)),
        ("CollNet 00/0 : 3 [send] via"
            " COLLNET/SHARP/0/GDRDMA", events.Channel("collnet", "SHARP", 3, -1, True, 0, None, True)),
        ("NCCL_IB_TIMEOUT set by environment to 22.", events.Variable("NCCL_IB_TIMEOUT", "22")),
        ("NCCL_IB_HCA set to ^mlx5_bond", events.Variable("NCCL_IB_HCA", "^mlx5_bond")),
        ("Comm config netName reset to NCCL_NET=Socket", events.Variable("NCCL_NET", "Socket")),
        (
            "[Rank 3] ncclCommSplit comm 0xab rank 1 nranks 4 cudaDev 3 nvmlDev 3 busId e0 parent 0xaa"
            " splitCount 1 color 7 "
            "key 1- Init START",
            events.Init("0xab", "", "0xaa", "7", 1, 4, 3, "e0", False),
        ),
        ("comm 0xab rank 1 nranks 4 cudaDev 3 busId e0 - Destroy COMPLETE", events.Gone("0xab", 1, "Destroy", 4, 3)),
        ("64 coll channels, 64 collnet channels, 16 nvls channels, 64 p2p channels, 8 p2p channels per peer",
         events.Channels(64, 16, 64)),
        ("GPU Direct RDMA Disabled for GPU 3 / HCA 2 (distance 9 > 5)", events.GdrPair(False, "3", "2", 9, 5)),
        ("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", events.GdrDevice("IB", "mlx5_0", False)),
        ("PROFILER/Plugin: Could not find: libnccl-profiler.so",
         events.Plugin("PROFILER", "missing", "libnccl-profiler.so")),
        ("ENV/Plugin: Could not find: libnccl-env.so", events.Plugin("ENV", "missing", "libnccl-env.so")),
        ("ENV/Plugin: Closing env plugin ncclEnvDefault", None),
        ("Channel 00/02 :    0   1   2   3", None),
    ],
)  # fmt: skip
def test_lines_say(text: str, event: events.Event | None) -> None:
    assert texts.event(text) == event
    # The quick way past what says nothing must not pass over what does.
    log = job.read([f"n:1:1 [0] NCCL INFO {text}\n".encode()])
    assert bool(log.processes) or event is None


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        ("NET/IB : Got completion from peer 10.0.0.6<58683> with status=12 opcode=0 len=0 vendor err 129"
            " (Recv)", "completion", "12"),
        ("NET/IB : Got completion from peer 10.0.0.6<1> with error 5, opcode 0, len 0, vendor err"
            " 249", "completion", "5"),
        ("NET/IB: Got completion from peer 10.0.0.6<1> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=X(1)"
            " hca mlx5_3", "completion", "12"),
        ("NET/IB : mlx5_3:1 Got async event : port error", "port", "port error"),
        ("NET/IB : mlx5_3:1 async fatal event on QP (0xab): path migration request"
            " error", "completion", "path migration request error"),
        ("Call to ibv_modify_qp failed with 110 Connection timed out, on dev"
            " mlx5_0:1", "queue_pair", "110 Connection timed out"),
        ("Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory", "memory_limit", ""),
        ("Call to ibv_create_qp failed with error Cannot allocate memory errno 12", "memory_limit", ""),
        ("Cuda failure 802 'system not yet initialized'", "fabric_manager", ""),
        ("Cuda failure 'out of memory'", "cuda", "out of memory"),
        ("Duplicate GPU detected : rank 2 and rank 0 both on CUDA device 1000", "duplicate_gpu", "1000"),
        ("Error: failed to extend /dev/shm/nccl-WU to 9637892 bytes, error: No space left on device"
            " (28)", "shared_memory", ""),
        ("socketProgress: Connection closed by remote peer node2<42830>", "closed", ""),
        ("socketProgressOpt: Call to recv from 10.0.0.9<4> failed : Connection reset by peer", "closed", ""),
        ("socketStartConnect: Connect to 10.0.0.9<4> failed : No route to host", "connect", ""),
        ("Error: network Foo not found.", "no_network", "Foo"),
        ("something that was never seen", "warning", ""),
    ],
)  # fmt: skip
def test_warnings_say(text: str, kind: str, code: str) -> None:
    said = failures.failure(text)
    assert said is not None
    assert (said.kind, said.code) == (kind, code)


def test_what_is_harmless_is_no_failure() -> None:
    assert failures.failure("NET/IB : No device found") is None
    assert failures.failure("dlvsym failed on ibv_x - /lib/libibverbs.so: undefined symbol") is None


def test_a_healthy_job_has_no_finding_and_its_transport_is_proven() -> None:
    log = job.read([ranks(*HEALTHY).encode()])
    assert [finding.check for finding in judge.judge(log) if not finding.ok] == []
    [one] = jobs.split(log)
    proof = transport(one)
    assert (proof.proven, proof.rdma, proof.gdr, proof.networks, proof.nodes) == (True, True, True, ("IB",), 2)
    assert {rank.host: rank.devices for rank in proof.ranks} == {"node0": ("mlx5_0",), "node1": ("mlx5_0",)}


def test_what_is_not_shown_is_not_proven() -> None:
    half = ranks(*HEALTHY[:3])
    [one] = jobs.split(job.read([half.encode()]))
    assert not transport(one).proven
    assert found(half)["nccl_log.gdr"].state == "unknown"
    one_rank = ranks(*HEALTHY).splitlines()[:10]
    [one] = jobs.split(job.read(["\n".join(one_rank).encode()]))
    assert transport(one).missing == ("rank 1 of 2 is not in this log",)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("NCCL_IB_DISABLE set by environment to 1.", "cause: NCCL_IB_DISABLE=1"),
        ("NCCL_IB_DISABLE set by environment to 0.", "possible causes: unknown"),
        # NCCL reads a number: this is 0.
        ("NCCL_IB_DISABLE set by environment to true.", "possible causes: unknown"),
        ("Comm config netName reset to NCCL_NET=Socket", "cause: NCCL_NET=Socket"),
        ("Failed to open libibverbs.so[.1]", "possible causes: libibverbs.so.1 cannot be opened"),
        ("NET/IB : No device found.", "cause: NET/IB found no RDMA device with an active port; behind that, possible"),
        ("NET/IB : Using [0]mlx5_0:1/IB ; OOB eth0:10.0.0.1<0>", "possible causes: HCAs were found and not used"),
        ("NCCL_IB_HCA set by environment to mlx5_0", "possible causes: unknown"),
    ],
)
def test_sockets_between_nodes_and_why(line: str, cause: str) -> None:
    finding = found(ranks(line, network="Socket"))["nccl_log.network"]
    # Where no HCA is shown TCP may be all there is.
    assert (finding.state, finding.severity) == ("drift", "critical" if "mlx5_0" in line else "major")
    assert cause in (finding.have or "")


def test_an_hca_filter_that_may_fit_nothing_is_a_possible_cause() -> None:
    finding = found(ranks("NCCL_IB_HCA set to mlx4", "NET/IB : No device found.", network="Socket"))["nccl_log.network"]
    assert (
        "cause: NET/IB found no RDMA device with an active port; behind that, possible causes: NCCL_IB_HCA=mlx4 fits"
        in (finding.have or "")
    )


def test_sockets_on_one_node_are_no_fault_and_on_unknown_nodes_unknown() -> None:
    assert "nccl_log.network" not in found(ranks(nodes=1, network="Socket"))
    finding = found("n:1:1 [0] NCCL INFO Using network Socket\n")["nccl_log.network"]
    assert finding.state == "unknown"


@pytest.mark.parametrize("line", ["docker0:172.17.0.1", "lo:127.0.0.1", "virbr0:192.168.122.1", "eth9:fe80::1%eth9"])
def test_interfaces_that_end_on_the_node(line: str) -> None:
    text = ranks(*HEALTHY).replace("Using eth0:10.0.0.1<0>", f"Using {line}<0>")
    assert line.split(":")[0] in (found(text)["nccl_log.interface"].have or "")
    assert "nccl_log.interface" not in found(ranks(nodes=1).replace("eth0:10.0.0.0<0>", f"{line}<0>"))


def test_hcas_that_carry_nothing() -> None:
    text = ranks(*HEALTHY).replace("[0]mlx5_0:1/IB", "[0]mlx5_0:1/IB [1]mlx5_1:1/IB")
    assert "nccl_log.hcas" not in found(text)  # one rank a node cannot use two
    finding = found(text.replace("localRanks 1", "localRanks 2"))["nccl_log.hcas"]
    assert finding.state == "unknown"  # the other rank's connections are not in the log
    text += "".join(
        f"node{n}:20{n}:20{n} [1] NCCL INFO Channel 00/0 : {n + 2}[1] -> 9[0] [send] via NET/IB/0/GDRDMA\n"
        for n in (0, 1)
    ) + "".join(f"node{n}:20{n}:20{n} [1] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB ;\n" for n in (0, 1))
    finding = found(text.replace("localRanks 1", "localRanks 2"))["nccl_log.hcas"]
    assert (finding.state, finding.have) == ("drift", "1 of 2 HCAs idle on node0: mlx5_1")
    # How many ranks a node has follows from where all of them began.
    bare = ranks(*HEALTHY).replace(" nNodes 2 localRanks 1 localRank 0 MNNVL 0", "")
    assert "nccl_log.hcas" not in found(bare.replace("[0]mlx5_0:1/IB", "[0]mlx5_0:1/IB [1]mlx5_1:1/IB"))


def test_a_node_that_sees_fewer_hcas_than_the_others() -> None:
    text = ranks(*HEALTHY).replace("[0]mlx5_0:1/IB", "[0]mlx5_0:1/IB [1]mlx5_1:1/IB", 1)
    assert found(text)["nccl_log.hcas"].have == "NCCL sees 1 HCAs, 2 on other nodes"


@pytest.mark.parametrize(
    ("version", "line", "cause"),
    [
        ("2.27.7", "GPU Direct RDMA Disabled for GPU 0 / HCA 0 (distance 9"
            " > 5)", "cause: path SYS between GPU 0 and HCA exceeds level PXB"),
        ("2.21.5", "GPU Direct RDMA Disabled for GPU 1b000 / HCA 0 (distance 6"
            " > 4)", "cause: path PHB between GPU 1b000 and HCA exceeds level PXB"),
        ("2.27.7", "NET/IB : GPU Direct RDMA Disabled for HCA 0"
            " 'mlx5_0'", "cause: NCCL finds neither nvidia_peermem nor DMA-BUF"),
        ("2.27.7", "NCCL_NET_GDR_LEVEL set by environment to LOC", "cause: NCCL_NET_GDR_LEVEL=LOC"),
        ("2.27.7", "NCCL_NET_GDR_READ set by environment to 0.", "cause: NCCL_NET_GDR_READ=0"),
        ("2.27.7", "DMA-BUF is available on GPU device 0", "possible causes:"),
        # Of another GPU, and of another HCA: far apart, and never used together.
        ("2.21.5", "GPU Direct RDMA Disabled for GPU 43000 / HCA 0 (distance 6 > 4)", "possible causes:"),
        ("2.27.7", "GPU Direct RDMA Disabled for GPU 0 / HCA 3 (distance 9 > 5)", "possible causes:"),
    ],
)  # fmt: skip
def test_gpudirect_that_is_off_and_why(version: str, line: str, cause: str) -> None:
    said = (line, *HEALTHY[:2], "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0")
    finding = found(ranks(*said).replace("2.27.7", version))["nccl_log.gdr"]
    assert cause in (finding.have or "")
    assert (finding.state, "possible" in (finding.have or "")) == ("drift", cause.startswith("possible"))


def test_a_host_that_nccl_counts_as_two_because_its_gpus_are_kept_apart_has_no_network_that_is_wrong() -> None:
    """As two real H200 with NCCL 2.28.9 log it."""
    sockets = "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0"
    off = ("NCCL_P2P_DISABLE set by environment to 1", "NCCL_SHM_DISABLE set by environment to 1.", sockets)
    said = found(ranks(*off, network="Socket").replace("node1:", "node0:"))
    assert "nccl_log.network" not in said
    cause = "GPUs of node0 reach each other over the network; cause: NCCL_P2P_DISABLE=1; NCCL_SHM_DISABLE=1"
    assert cause in (said["nccl_log.intra_node"].have or "")
    # Of two hosts it is.
    assert found(ranks(*off, network="Socket"))["nccl_log.network"].state == "drift"


def test_gpus_of_a_node_that_do_not_reach_each_other_directly() -> None:
    shm = "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"
    assert found(ranks(shm, nodes=1))["nccl_log.intra_node"].state == "unknown"
    finding = found(ranks("NCCL_P2P_DISABLE set by environment to 1.", shm, nodes=1))["nccl_log.intra_node"]
    assert (finding.state, "cause: NCCL_P2P_DISABLE=1" in (finding.have or "")) == ("drift", True)
    # Older releases log NCCL_P2P_DISABLE=1 as this.
    finding = found(ranks("NCCL_P2P_LEVEL set by environment to LOC", shm, nodes=1))["nccl_log.intra_node"]
    assert "or NCCL_P2P_DISABLE=1" in (finding.have or "")


def test_nvlinks_and_channels() -> None:
    gpu = "              + PCI[48.0] - GPU/0-{0} (0)"
    link = "                            + NVL[{0}] - NVS/0"
    graph = ("=== System : maxBw 370.8 totalBw 370.8 ===", gpu.format("60"), link.format("370.8"), gpu.format("70"))
    slow = found(ranks(*graph, link.format("350.2"), nodes=1))["nccl_log.nvlink"]
    assert slow.have == "NVLink of GPU 0-70: 350.2 GB/s; on others 370.8"
    two = found(ranks(*graph, link.format("350.2").replace("NVS/0", "GPU/0-60"), nodes=1).replace("NVS/0", "GPU/0-70"))
    assert "of two GPUs that is one direction of the link" in (two["nccl_log.nvlink"].have or "")
    file = "NCCL_TOPO_FILE set by environment to /x/topo.xml"
    told = found(ranks(file, *graph, link.format("350.2"), nodes=1))["nccl_log.nvlink"]
    assert (told.state, "that of a file (NCCL_TOPO_FILE=/x/topo.xml)" in (told.have or "")) == ("unknown", True)
    pattern = "Pattern 4, crossNic 0, nChannels {0}, bw 30.000000/30.000000, type NVL/PIX, sameChannels 1"
    assert "nccl_log.nvlink" not in found(ranks(*graph, link.format("370.8"), pattern.format(12), nodes=1))
    few = found(ranks(*graph, "NCCL_MAX_NCHANNELS set by environment to 4.", pattern.format(4), nodes=1))[
        "nccl_log.nvlink"
    ]
    assert few.have == "rings over NVLink: 4 channels of 30 GB/s; cause: NCCL_MAX_NCHANNELS=4"


def test_two_releases_in_a_job_and_two_jobs_in_a_file() -> None:
    one = ranks(*HEALTHY)
    mixed = found(one.replace("NCCL version 2.27.7", "NCCL version 2.21.5", 1))["nccl_log.version"]
    assert mixed.have == "2.21.5 on node0; 2.27.7 on node1"
    # nccl-tests names the library that it runs with, whatever NCCL_DEBUG is; a file may hold several runs.
    first = "# nccl-tests version 2.19.6 nccl-headers=22707 nccl-library=22809\n"
    assert jobs.split(job.read([first.encode()]))[0].versions == ("2.28.9",)
    assert jobs.split(job.read([(first + one).encode()]))[0].versions == ("2.27.7",)
    assert jobs.split(job.read([(first + first.replace("22809", "22102")).encode()]))[0].versions == ()
    # The same release mix in two jobs of a file is no fault of either.
    other = one.replace("2.27.7", "2.21.5").replace("node", "host").replace("0xabc", "0xdef").replace(":10", ":20")
    assert found(one + other) == {}
    failed = "host1:201:201 [0] init.cc:1 NCCL WARN Cuda failure 'out of memory'\nCUDA out of memory\n"
    both = jobs.split(job.read([(one + other + failed).encode()]))
    assert [each.name for each in both] == ["job 1", "job 2"]
    assert [[one.key for one in each.communicators] for each in both] == [["abc"], ["def"]]
    assert [[said.failure.kind for said in each.failures] for each in both] == [[], ["cuda"]]


def test_ranks_that_never_came() -> None:
    whole = ranks(*HEALTHY).replace("nranks 2", "nranks 4").splitlines()
    later = ("COMPLETE", "nnel", "nNodes", "rings")
    text = "".join(line + "\n" for line in whole if not any(word in line for word in later))
    finding = found(text)["nccl_log.ranks"]
    assert (finding.state, (finding.have or "").startswith("ranks 2-3 of 4 are not in this log")) == ("unknown", True)
    # A rank that has completed proves that all have begun, wherever they wrote it.
    assert "nccl_log.ranks" not in found(ranks(*HEALTHY).replace("nranks 2", "nranks 4"))


def test_the_first_failure_and_its_victims() -> None:
    text = ranks(*HEALTHY) + "\n".join(
        (
            "[2026-01-01 10:00:05] node0:100:1 [0] misc/socket.cc:46 NCCL WARN socketProgress: Connection"
            " closed by remote peer 10.0.0.1<5>",
            "[2026-01-01 10:00:01] node1:101:1 [0] enqueue.cc:1 NCCL WARN Cuda failure 'an illegal memory"
            " access was encountered'",
        )
    )  # fmt: skip
    log = found(text + "\n")
    cuda, closed = log["nccl_log.cuda"], log["nccl_log.connection"]
    assert "the first failure of this log" in (cuda.have or "")
    assert "rank 1 (node1:101)" in (cuda.have or "")
    assert (cuda.because, closed.because) == (None, cuda.id)
    assert "the lost peers are 10.0.0.1 = node1 (1)" in (closed.have or "")


def test_victims_alone_accuse_nobody() -> None:
    text = (
        ranks(*HEALTHY)
        + "node0:100:1 [0] a.cc:1 NCCL WARN socketProgress: Connection closed by remote peer 10.0.0.1<5>\n"
    )
    finding = found(text)["nccl_log.connection"]
    assert finding.because is None
    assert "no failure is reported by rank 1 (node1:101)" in (finding.have or "")


def test_a_process_that_was_killed_is_the_cause() -> None:
    text = ranks(*HEALTHY) + (
        "node0:100:1 [0] a.cc:1 NCCL WARN socketProgress: Connection closed by remote peer 10.0.0.1<5>\n"
        "srun: error: node1: task 1: Out Of Memory\n"
    )
    log = found(text)
    assert "a process ended with Out Of Memory" in (log["nccl_log.exit"].have or "")
    assert log["nccl_log.connection"].because == log["nccl_log.exit"].id


def test_retries_name_the_hca_that_most_reports_have_in_common() -> None:
    line = (
        "node{0}:10{0}:1 [0] transport/net_ib.cc:1 NCCL WARN NET/IB: Got completion from peer 10.0.0.{1}<5> with "
        "status=12 opcode=0 len=0 vendor err 129 (Recv) hca mlx5_{2}\n"
    )
    text = ranks(*HEALTHY) + line.format(0, 1, 3) + line.format(1, 0, 3) + line.format(1, 0, 3).replace("=12", "=5")
    findings = [finding for finding in judge.judge(job.read([text.encode()])) if finding.check == "nccl_log.completion"]
    retry, flushed = findings
    assert "HCA mlx5_3 (2)" in (retry.have or "")
    assert "possible causes: right after the start" in (retry.have or "")
    assert flushed.because == retry.id


def test_an_exception_of_pytorch_names_the_warning() -> None:
    text = (
        "torch.distributed.DistBackendError: NCCL error in: x/ProcessGroupNCCL.cpp:1691, invalid usage (run with "
        "NCCL_DEBUG=WARN for details), NCCL version 2.19.3\nncclInvalidUsage: This usually reflects invalid usage.\n"
        "Last error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 10\n"
    )
    log = found(text)
    assert log["nccl_log.duplicate_gpu"].state == "drift"
    assert "nccl_log.warning" not in log


def test_variables_of_which_nothing_came() -> None:
    log = found(
        ranks(*HEALTHY, "NCCL_COLLNET_ENABLE set by environment to 1.", "NCCL_SOCKET_NTHREADS set by environment to 4.")
    )
    assert log["nccl_log.variable_effect"].have == (
        "NCCL_COLLNET_ENABLE=1: 2 of 2 ranks did not connect to SHARP (Connected CollNet)"
    )
    missing = "PROFILER/Plugin: Could not find: libnccl-profiler-inspector.so"
    log = found(ranks(*HEALTHY, "NCCL_PROFILER_PLUGIN set by environment to inspector", missing))
    assert "no line says that it was loaded" in (log["nccl_log.variable_effect"].have or "")
    assert "nccl_log.variable_effect" not in found(ranks(*HEALTHY, missing))
    log = found(ranks(*HEALTHY).replace("Connected all rings", "NCCL_ALGO set by environment to Ring\nx", 1)
                + "node1:101:1 [0] NCCL INFO NCCL_ALGO set by environment to Tree\n"
                + "node0:100:1 [0] NCCL INFO NCCL_ALGO set by environment to Ring\n")  # fmt: skip
    assert log["nccl_log.same_settings"].have == "Ring on node0; Tree on node1"


def test_a_log_of_warnings_says_what_it_does_not_tell() -> None:
    log = found("node0:1:1 [0] init.cc:1 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 10\n")
    assert set(log) == {"nccl_log.duplicate_gpu", "nccl_log.level"}
    assert "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,NET,GRAPH" in log["nccl_log.level"].fix


def test_blocks_of_any_size_give_the_same() -> None:
    data = ranks(*HEALTHY).encode()
    whole = judge.judge(job.read([data]))
    assert judge.judge(job.read(data[i : i + 7] for i in range(0, len(data), 7))) == whole
    assert judge.judge(job.read([data.replace(b"\n", b"\r\n")])) == whole
    assert judge.judge(job.read([data[:-1]])) == whole


def test_hostile_logs_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "PROCESSES", 100)
    monkeypatch.setattr(job, "RANKS", 100)
    many = "".join(
        f"n{i}:{i}:1 [0] NCCL INFO ncclCommInitRank comm 0xa rank {i} nranks 1000000 cudaDev 0 nvmlDev 0 busId 1 "
        "commId 0xa - Init START\n" for i in range(300)
    )  # fmt: skip
    log = job.read([many.encode()])
    assert (len(log.processes), log.beyond) == (100, {"lines of further processes": 200})
    assert found(many)["nccl_log.readable"].have == "not stored: 200 lines of further processes"
    names = "".join(f"n:1:1 [0] NCCL INFO NCCL_X{i} set by environment to 1.\n" for i in range(600))
    names += "".join(f"n:1:1 [0] NCCL INFO Using network net{i}\n" for i in range(600))
    [process] = job.read([names.encode()]).processes.values()
    assert (len(process.variables), len(process.networks)) == (shared.KINDS, shared.KINDS)
    endless = job.read([b"x" * 40_000, b"y" * 40_000, b"\nn:1:1 [0] NCCL INFO Using network IB\n"])
    assert [process.networks for process in endless.processes.values()] == [{"IB"}]
    assert job.read([b"\0" * 1000 + b"\n"] * 3).binary == 3


def test_ranks_that_connect_in_the_same_ways_hold_them_once() -> None:
    text = "".join(
        f"n{rank}:{rank}:1 [0] NCCL INFO Channel {channel:02d}/0 : {rank}[0] -> {rank + 8}[0] [send]"
        f" via NET/IB/{channel % 2}/GDRDMA\n" for rank in range(100) for channel in range(4)
    )  # fmt: skip
    processes = job.read([text.encode()]).processes.values()
    assert [list(process.connections) for process in processes] == [[rank] for rank in range(100)]
    assert {tuple(process.connections[rank].values()) for rank, process in enumerate(processes)} == {(2, 2)}
    assert len({id(process.connections[rank]) for rank, process in enumerate(processes)}) == 1


def test_what_the_reader_forgets_costs_time_and_no_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches that are emptied, and sets that processes share, are seen in no result."""
    text = ranks(*HEALTHY, "NCCL_IB_TIMEOUT set by environment to 22.", nodes=5).splitlines()
    timeout, algorithm = "NCCL_IB_TIMEOUT set by environment to 22.", "NCCL_ALGO set by environment to Ring"
    text += ranks(timeout, algorithm, nodes=3).splitlines() + ranks(algorithm, nodes=6).splitlines()
    # The ranks write at a time.
    mixed = "\n".join(line for i in range(10) for line in text[i::10]).encode() + b"\n"

    def facts() -> dict[Key, dict[str, object]]:
        return {key: vars(process) for key, process in job.read([mixed]).processes.items()}

    whole = facts()
    assert whole["node4", 104, None]["variables"] == {"NCCL_IB_TIMEOUT": "22", "NCCL_ALGO": "Ring"}
    assert whole["node5", 105, None]["variables"] == {"NCCL_ALGO": "Ring"}
    alike_ranks = [whole[f"node{number}", 100 + number, None]["connections"] for number in (1, 3)]
    assert alike_ranks[0] == alike_ranks[1] != {}
    for known, alike in ((1, 16), (2, 1), (3, 0), (100, 2)):
        monkeypatch.setattr(shared, "KNOWN", known)
        monkeypatch.setattr(shared, "ALIKE", alike)
        assert facts() == whole
    # A process that is beyond the limit is counted for each of its lines, as well where its head is known.
    monkeypatch.setattr(job, "PROCESSES", 1)
    lines_of_others = sum(b"node0" not in line for line in mixed.splitlines())
    [(_what, count)] = job.read([mixed]).beyond.items()
    monkeypatch.setattr(shared, "KNOWN", 100)
    assert {"lines of further processes": count} == job.read([mixed]).beyond
    assert count <= lines_of_others


def test_what_is_well_on_many_hosts_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text(ranks(*HEALTHY, nodes=7))
    cli.main(["diagnose", str(tmp_path / "log")])
    out = capsys.readouterr().out
    assert "ok: 1 of 1 HCAs have connections [nccl_log.hcas], 7 times\n" in out
    assert out.count("HCAs have connections") == 1
    assert "ok: IB, over 7 nodes [nccl_log.network]\n" in out


def test_nothing_from_a_log_commands_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    log.write_text(ranks("NCCL_IB_HCA set to \x1b[31mred", *HEALTHY).replace("node0", "no\x1b]0;de"))
    cli.main(["diagnose", str(log)])
    assert "\x1b" not in capsys.readouterr().out


def test_the_command_reads_packed_files_and_says_what_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log.gz").write_bytes(gzip.compress(ranks(*HEALTHY).encode()))
    (tmp_path / "wide").write_bytes(ranks(*HEALTHY).encode("utf-16"))
    assert cli.main(["diagnose", str(tmp_path / "log.gz")]) == 0
    assert cli.main(["diagnose", "--json", str(tmp_path / "wide")]) == 0
    said = capsys.readouterr().out
    data = json.loads(said[said.index("\n{") :])
    assert data["jobs"][0]["transport"]["rdma"] is True
    (tmp_path / "log.zst").write_bytes(b"\x28\xb5\x2f\xfdrest")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(ranks(*HEALTHY).encode())[:-20])
    for name, why in (("log.zst", "zstd -dc FILE"), ("cut.gz", "cannot be read"), ("absent", "No such file")):
        assert cli.main(["diagnose", str(tmp_path / name)]) == 1
        assert why in capsys.readouterr().err
        assert cli.main(["diagnose", str(tmp_path / name), str(tmp_path / "log.gz")]) == 3
    # What was read before the end was lost is judged.
    monkeypatch.setattr("busbar.diagnose.BLOCK", 64)
    assert cli.main(["diagnose", str(tmp_path / "cut.gz")]) == 3
    assert "HCAs have connections" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["", "\n", "Bonjour tout le monde\n", "\0\0\0\1\2\n"])
def test_what_is_no_log_is_never_good(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text(content)
    assert cli.main(["diagnose", str(tmp_path / "log")]) == 3


def test_a_watchdog_tells_who_waits_and_who_is_behind() -> None:
    text = "".join(
        f"[rank{rank}]:[E909 09:55 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum=2070, OpType=REDUCE, NumelIn=1) ran for 600068 milliseconds\n"
        f"[rank{rank}]:[E909 09:55 ProcessGroupNCCL.cpp:1664] [PG 0 (default_pg) Rank 1] Exception (either an error or "
        f"timeout) detected by watchdog at work: 2070, last enqueued NCCL work: {number}, last completed"
        " NCCL work: 2069.\n"
        for rank, number in ((7, 2082), (13, 2070))
    )
    have = found(text)["nccl_log.watchdog"].have or ""
    assert "waiting: ranks 7,13" in have
    assert "in group 0 (default_pg) rank 13 enqueued 2070 collectives, others up to 2082: look there first" in have


def test_a_port_that_went_down_explains_the_retries() -> None:
    text = ranks(*HEALTHY) + (
        "node0:100:1 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_0:1 Got async event : port error\n"
        "node1:101:1 [0] transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer node0<3> with"
        " error 12, opcode 2\n"
    )
    log = found(text)
    assert log["nccl_log.completion"].because == log["nccl_log.port"].id


@pytest.mark.parametrize(
    "line",
    [
        "iteration 7/ 100 | consumed samples: 1 | elapsed time per iteration (ms): 523.0 | learning rate: 1E-4",
        "step 7 loss 2.3 step_time: 0.523",
        "iter 7: loss 1.94, time: 523.00ms, speed: 1771 toks/s/device",
        "ep 13 train, step 7, mem_usage:cuda:0 8.9GB, 0.523 sec/step",
        "{'loss': 2.1, 'step_time_ms': 523.0}",
    ],
)
def test_step_times_in_the_forms_of_trainers(line: str) -> None:
    assert list(training.read([line]).seconds) == pytest.approx([0.523])


def test_even_steps_and_busy_gpus_leave_the_network_alone() -> None:
    even = training.read(["step_time: 0.50 gpu_util: 92%"] * 40)
    clean = judge.judge(job.read([ranks(*HEALTHY).encode()]))
    said = {finding.check: finding for finding in training.judge(even, clean)}
    assert [said[f"nccl_log.{name}"].state for name in ("step_time", "gpu_utilisation", "beyond_network")] == [
        "ok",
        "ok",
        "unknown",
    ]
    uneven = training.read(f"step_time: {0.5 if n % 4 else 0.9} GPU utilization: 68 %" for n in range(40))
    said = {finding.check: finding for finding in training.judge(uneven, clean)}
    assert [said[f"nccl_log.{name}"].state for name in ("step_time", "gpu_utilisation", "beyond_network")] == [
        "drift",
        "drift",
        "ok",
    ]
    assert "look at compute, input or overlap" in (said["nccl_log.beyond_network"].have or "")
    # What the network does wrong comes first.
    slow = judge.judge(job.read([ranks("NCCL_IB_DISABLE set by environment to 1.", network="Socket").encode()]))
    said = {finding.check: finding for finding in training.judge(uneven, slow)}
    assert "nccl_log.beyond_network" not in said
    assert said["nccl_log.step_time"].because == "nccl_log.network[live]@job"


def test_a_training_log_without_steps_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text(ranks(*HEALTHY))
    (tmp_path / "train").write_text("nothing here\n")
    assert cli.main(["diagnose", str(tmp_path / "log"), "--training", str(tmp_path / "train")]) == 3
    assert "0 steps after the first 5" in capsys.readouterr().out
    assert cli.main(["diagnose", str(tmp_path / "log"), "--training", str(tmp_path / "absent")]) == 3


def test_an_excerpt_says_what_the_log_says(tmp_path: Path) -> None:
    text = ranks(*HEALTHY, *[f"Channel {n:02}/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA" for n in range(32)])
    text += "step 1\nsrun: error: node1: task 1: Out Of Memory\n"
    text += "node0:100:1 [0] a.cc:1 NCCL WARN socketProgress: Connection closed by remote peer 10.0.0.1<5>"
    (tmp_path / "log").write_text(text + "\nnode0:100:1 [0] NCCL INFO AllReduce: opCount 1\n" * 100)
    one = excerpt.read(Host("/", str(tmp_path)), "/log", 1 << 20, 1 << 20)
    assert (one.read, one.left_out, one.text.count("Channel"), "step 1" in one.text) == (one.size, 0, 2, False)
    whole = judge.judge(job.read([(tmp_path / "log").read_bytes()]))
    kept = judge.judge(job.read([one.text.encode()]))
    assert [(finding.id, finding.state) for finding in kept] == [(finding.id, finding.state) for finding in whole]
    short = excerpt.read(Host("/", str(tmp_path)), "/log", 1 << 20, 500)
    assert (len(short.text) <= 500, short.left_out > 10) == (True, True)
    assert excerpt.read(Host("/", str(tmp_path)), "/log", 100, 500).read == 100


def test_an_excerpt_is_taken_of_no_link_pipe_or_directory(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(ranks(*HEALTHY))
    (tmp_path / "link").symlink_to("secret")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "log").write_text(ranks(*HEALTHY))
    (tmp_path / "way").symlink_to("inner")
    os.mkfifo(tmp_path / "pipe")
    host = Host("/", str(tmp_path))
    assert excerpt.read(host, "/inner/log", 1 << 20, 1 << 20).text
    for path in ("/link", "/way/log", "/pipe", "/inner", "/absent", "log", "/inner/../secret"):
        with pytest.raises(ReadError):
            excerpt.read(host, path, 1 << 20, 1 << 20)


def test_logs_of_several_hosts_are_judged_together() -> None:
    lines = ranks(*HEALTHY).splitlines(keepends=True)
    logs = {
        node: {"findings": [], "passed": [], "logs": [
            {"path": "/l", "size": 9, "read": 9, "left_out": 0, "text": "".join(x for x in lines if x.startswith(node))}
        ]}
        for node in ("node0", "node1")
    }  # fmt: skip
    _log, _jobs, findings = diagnose.join(logs)
    assert all(finding.ok for finding in findings)
    logs["node1"]["logs"][0]["size"] = 10
    _log, _jobs, findings = diagnose.join({**logs, "node2": None, "node3": {"unreachable": True, "msg": "no route"}})
    assert [(finding.subject, finding.have) for finding in findings if not finding.ok] == [
        ("node1 /l", "/l: 1 bytes not read"),
        ("node2", "no result"),
        ("node3", "no route"),
    ]


def test_logs_from_nodes_are_told_in_the_order_of_a_file() -> None:
    warn = "node0:100:1 [0] a.cc:1 NCCL WARN {0}\n"
    text = warn.format("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 10")
    text += warn.format("Cuda failure 'out of memory'")
    told = {"findings": [], "passed": [], "logs": [{"path": "/l", "size": 9, "read": 9, "left_out": 0, "text": text}]}
    judged = judge.judge(job.read([text.encode()]))
    ids = [finding.id for finding in judged]
    assert [finding.id for finding in worst_first(judged)] != ids
    assert [finding.id for finding in diagnose.join({"node0": told})[2]] == ids


def test_a_process_that_shows_no_connection_is_not_proven() -> None:
    text = "".join(
        line
        for line in ranks(*HEALTHY).splitlines(keepends=True)
        if not line.startswith("node1") or "rings" not in line
    )
    text = "".join(
        line for line in text.splitlines(keepends=True) if not line.startswith("node1") or "Channel" not in line
    )
    [one] = jobs.split(job.read([text.encode()]))
    assert transport(one).missing == ("1 of 2 processes show no connection",)


@pytest.mark.parametrize("timed", [True, False])
def test_of_several_files_only_times_tell_what_came_first(timed: bool) -> None:
    warn = "node{0}:10{0}:1 [0] a.cc:1 NCCL WARN {1}\n"
    oom, dup = "Cuda failure 'out of memory'", "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 10"
    reader = job.Reader()
    for node, text, time in ((0, oom, "10:00:09"), (1, dup, "10:00:01")):
        reader.source(f"nccl.node{node}")
        reader.feed(((f"[2026-01-01 {time}] " if timed else "") + warn.format(node, text)).encode())
    reader.end()
    first = [finding for finding in judge.judge(reader.log) if "the first failure" in (finding.have or "")]
    assert [finding.check for finding in first] == (["nccl_log.duplicate_gpu"] if timed else [])


def test_rdma_that_is_switched_off_is_said_where_the_network_is_not() -> None:
    finding = found("n:1:1 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n")["nccl_log.network"]
    assert (finding.state, "cause: NCCL_IB_DISABLE=1" in (finding.have or "")) == ("unknown", True)
