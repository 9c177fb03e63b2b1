"""What a NCCL_DEBUG log says: prefixes, events, jobs, findings. Whole logs: readings/nccl_log.report.parse."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import (
    excerpt,
    failures,
    job,
    judge,
    lines,
    shared,
    training,
)
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.process import Key
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
