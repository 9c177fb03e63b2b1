# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What INFO lines, PyTorch's watchdog and lines without a head say beside networks and failures."""

from __future__ import annotations

import re

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import events, job, jobs, judge, notes, texts
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render


def found(text: str) -> dict[str, Finding]:
    """Check -> its finding that is not ok, the worst of several."""
    result: dict[str, Finding] = {}
    for finding in judge.judge(job.read([text.encode()])):
        if not finding.ok:
            result.setdefault(finding.check, finding)
    return result


def shown(text: str) -> str:
    log = job.read([text.encode()])
    return " ".join(render(log, jobs.split(log), judge.judge(log)).split())


def info(text: str, who: str = "n1:7:8 [0]") -> str:
    return f"{who} NCCL INFO {text}\n"


# A line of each kind, in the least that tells it from others.
LINES = [
    ("Topology detection : could not read /sys/x/../max_link_width, ignoring", "harmless"),
    ("KV Convert to int : could not find value of 'x' in dictionary, falling back to 60", "harmless"),
    ("Could not find a path for pattern 1, falling back to simple order", "fallback"),
    ("dlvsym failed on mlx5dv_x - y version Z", "harmless"),
    ("NET/IB : Failed to open mlx5dv symbols. Advance features", "harmless"),
    ("NET/Plugin: Failed to find ncclNetPlugin_v9 symbol.", "older"),
    ("NET/Plugin: Failed to find ncclCollNetPlugin_v9 symbol.", "collnet"),
    ("cuMem host allocations do not appear to be working; falling back to a /dev/shm/", "fallback"),
    ("fallocate: Failed to extend /dev/shm/nccl-x to 9 bytes, error: No space left (28) - retrying", "odd"),
    ("ncclMaxSharedMem 9 exceeds device/fn maxSharedMem 8", "odd"),
    ("MNNVL 1 cliqueId 7 cliqueSize 4 cliqueRank 1", "fact"),
    ("Failed to register memory with DMA-BUF, error=1. Trying a different method.", "fallback"),
    ("PXN Disabled as plugin is v4", "fallback"),
    ("HINT: In many cases this error occurs when x", "odd"),
    ("NET/OFI Initializing aws-ofi-nccl 1.2.3", "fact"),
    ("NET/OFI Setting provider_filter to efa", "fact"),
    ("NCCL_CGA_CLUSTER_SIZE value 99 is too big. Limiting value to 8.", "odd"),
]


@pytest.mark.parametrize(("text", "kind"), LINES)
def test_notes(text: str, kind: str) -> None:
    said = texts.event(text)
    assert isinstance(said, events.Note)
    assert said.kind == kind
    assert said.text in shown(info(text))


def test_every_note_has_its_groups_and_no_other_line_is_one() -> None:
    for _keys, pattern, kind, sentence in notes.NOTES:
        assert re.compile(pattern).groups >= len(re.findall(r"\{\d", sentence))
        assert kind in (
            "harmless",
            "fallback",
            "odd",
            "fact",
            "closed",
            "older",
            "collnet",
            "plugin_set",
            "matrix",
            "last_words",
            "host_memory",
        )
    assert not isinstance(texts.event("NET/IB : No device found."), events.Note)
    assert texts.event("MNNVL 0 cliqueId 0 cliqueSize 1 cliqueRank 0") is None
    fabric = texts.event("MNNVL busId 0x901000 fabric UUID 1f.2e cliqueId 0x7ffe state 3 healthMask 0x1aa")
    assert fabric == events.Fabric("1f.2e", "0x7ffe", 3)


def test_interfaces_that_a_plugin_does_not_have_are_one_line() -> None:
    lacks = "".join(info(f"NET/Plugin: Failed to find ncclCollNetPlugin_v{n} symbol.") for n in (9, 10))
    said = " ".join(shown(lacks).split())
    assert "the network plugin has no interface for CollNet (v10, v9): no SHARP by it" in said
    other = shown(lacks + info("NET/Plugin: Loaded collnet plugin Fast (v8)"))
    assert "newer interfaces of a CollNet plugin first (v10, v9) and takes the one that it has" in " ".join(
        other.split()
    )
    assert "no SHARP by it" not in other


def test_what_somebody_wrote_behind_a_line_is_no_part_of_it() -> None:
    said = shown(info("NCCL_IB_HCA set by environment to mlx5_4.   # only this one") + info("Using network IB  # good"))
    assert "NCCL_IB_HCA=mlx5_4 " in said
    assert "network: IB on n1" in said
    assert "#" not in said.partition("the rest of the log")[0]


def test_a_finding_on_sockets_names_a_line_that_is_there() -> None:
    way = info("Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0")
    assert found(way)["nccl_log.network"].source == "Channel ... via NET/Socket"
    assert found(way + info("Using network Socket"))["nccl_log.network"].source == "Using network Socket"


def test_a_warning_that_the_next_one_tells_better_is_no_finding_of_its_own() -> None:
    first = "n1:7:8 [0] misc/shmutils.cc:9 NCCL WARN Call to open failed: %s\n"
    second = (
        "n1:7:8 [0] misc/shmutils.cc:19 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-q,"
        " error: No such file or directory (2)\n"
    )
    assert "nccl_log.warning" not in found(first % "No such file or directory" + second)
    assert "nccl_log.warning" in found(first % "Permission denied" + second)


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("libnccl-net.so: /lib/libc.so.6: version `GLIBC_2.99' not found (required by x)", "a newer glibc"),
        ("dlerror=libfabric.so.1: cannot open shared object file: No such file", "a library that it needs"),
        ("Plugin load returned 0 : libnccl-net.so: undefined symbol: fi_x : when loading libnccl-net.so", "two builds"),
    ],
)
def test_a_plugin_that_the_loader_refuses(said: str, cause: str) -> None:
    finding = found(info("NET/Plugin: " + said))["nccl_log.net_plugin"]
    assert (finding.state, f"cause: {cause}" in (finding.have or "") or cause in (finding.have or "")) == (
        "drift",
        True,
    )


def test_a_plugin_that_is_not_there_is_no_finding() -> None:
    absent = "NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file: No such file or directory No plugin"
    assert "nccl_log.net_plugin" not in found(info(absent))


def test_releases_by_the_form_of_lines() -> None:
    old = info("NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file: No such file", "n1:7:8 [0]")
    new = info("NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.", "n2:9:9 [0]")
    have = found(old + new)["nccl_log.version"].have or ""
    assert "lines of n1:7 have the form of NCCL before 2.21, those of n2:9 that of 2.22 or later" in have
    assert "nccl_log.version" not in found(new + new.replace("n2:9", "n1:7"))
    signed = info("NCCL version 2.27.5+cuda12.9", "n2:9:9 [0]")
    assert "of 2.27 or later; only 2.27.5 is named" in (found(old + signed)["nccl_log.version"].have or "")


def test_a_log_without_any_head_is_read_and_one_with_heads_is_not_mixed_with_it() -> None:
    bare = "NET/IB : No device found.\nChannel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0\n"
    assert "connections: 1 by NET/Socket" in shown(bare)
    assert "connections: 1" not in shown(bare + info("cudaDriverVersion 12040"))


def test_the_lines_of_a_site_that_builds_nccl_itself() -> None:
    text = "[0604/1024][2030-01-01 00:00:01,4] [misc/socket.cc:5] [n9:pid=42] NCCL WARN Call to x failed\n"
    [one] = jobs.split(job.read([text.encode()]))
    assert [(by.key, by.launcher_rank) for by in one.processes] == [(("n9", 42, None), 604)]
    assert one.failures[0].place == "misc/socket.cc:5"
    # Whoever publishes a log may put words into the places of numbers.
    [one] = jobs.split(job.read([info("Using network IB", "pod-id:num:num [3]").encode()]))
    assert one.processes[0].host == "pod-id"


WATCHDOG = (
    "[rank{0}]:[E1 00:00:00 x.cpp:1] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={1},"
    " OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=60000) ran for 60001 milliseconds before timing out.\n"
)
PROGRESS = "[rank{0}]:[E1 00:00:00 x.cpp:1] [PG 1 Rank {0}] Timeout at NCCL work: {1}, last enqueued NCCL work: {2},"
PROGRESS += " last completed NCCL work: {3}.\n"


def waits(text: str) -> str:
    return found(text)["nccl_log.watchdog"].have or ""


def test_what_the_numbers_of_a_timeout_tell() -> None:
    assert "it is the first collective of its process group" in waits(WATCHDOG.format(2, 1))
    assert "first collective of" not in waits(WATCHDOG.format(2, 7))
    alone = WATCHDOG.format(1, 7) + PROGRESS.format(1, 7, 7, 6)
    assert "nothing behind the collective that it waits for: it waits for another rank" in waits(alone)
    assert "nothing behind" not in waits(alone.replace("enqueued NCCL work: 7", "enqueued NCCL work: 9"))
    both = "".join(WATCHDOG.format(rank, 7) + PROGRESS.format(rank, 7, 9, 6) for rank in (0, 3))
    assert "ranks 0,3 completed 6 and had enqueued up to 9 (3 not completed): these are all at the same point" in waits(
        both
    )
    assert "same point" not in waits(both.replace("work: 9", "work: 8", 1))


def test_a_rank_that_left_before_others_waited_for_it() -> None:
    left = "[rank0]:[W1] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL.\n"
    assert "before it rank 0 ended its process without destroying" in waits(left + WATCHDOG.format(1, 4))
    for other in (WATCHDOG.format(1, 4) + left, left + WATCHDOG.format(0, 4)):
        assert "ended its process" not in waits(other)
    # By itself it is nothing.
    assert [check for check in found(left) if check != "nccl_log.readable"] == []


def listed(rank: int, pid: int, host: str = "n1") -> str:
    return f"#  Rank {rank} Group  0 Pid {pid} on {host} device {rank} [0x0{rank}] GPU\n"


def test_one_process_of_the_list_is_one_node() -> None:
    socket = info("Using network Socket") + info("Using network Socket", "n1:7:9 [3]")
    assert jobs.split(job.read([(listed(3, 7) + socket).encode()]))[0].nodes == 1
    assert jobs.split(job.read([(listed(0, 7) + listed(1, 9, "n2") + info("Using network IB")).encode()]))[0].nodes == 2
    # Of a rank alone in its process the others may be anywhere.
    assert jobs.split(job.read([(listed(3, 7) + info("Using network Socket")).encode()]))[0].nodes is None


def test_a_driver_that_is_a_major_release_older_is_told_and_another_is_a_fact() -> None:
    text = info("cudaDriverVersion {}") + info("NCCL version 2.27.5+cuda12.9")
    assert found(text.format(11080))["nccl_log.cuda"].severity == "major"
    assert "nccl_log.cuda" not in found(text.format(12020))
    assert "the driver is of CUDA 12.2 and this NCCL was built for 12.9" in shown(text.format(12020))
    assert "was built for" not in shown(text.format(13000))


@pytest.mark.parametrize(
    ("warning", "check", "said"),
    [
        ("Call to ibv_create_cq failed", "verbs", "`ulimit -l`"),
        (
            "NET/OFI Unable to register memory (type = 2) for device 1. RC: -22",
            "net_plugin",
            "memory of a GPU (type 2)",
        ),
        (
            "NET/OFI Request 0x1 completed with error. RC: 113 (UNDELIVERABLE)",
            "net_plugin",
            "the path to a peer",
        ),
        ("Attribute arch of node cpu not found", "topology", "NCCL_TOPO_FILE"),
        (
            "Error while attaching to shared memory segment /dev/shm/nccl-? (size 0)",
            "shared_memory",
            "CUMEM_HOST_ENABLE=0",
        ),
    ],
)
def test_causes_that_fit_a_warning(warning: str, check: str, said: str) -> None:
    have = found(f"n1:7:8 [0] x/y.cc:1 NCCL WARN {warning}\n")[f"nccl_log.{check}"].have or ""
    assert (said in have, "; cause:" in have) == (True, False)


def test_a_device_that_failed_is_no_cable() -> None:
    warn = "n1:7:8 [0] {} NCCL WARN {}\n"
    text = warn.format("transport/net_ib.cc:1", "NET/IB : Got async event : local catastrophic error")
    log = judge.judge(job.read([(text + warn.format("i.cc:2", "Call to ibv_get_async_event failed")).encode()]))
    port = next(one for one in log if one.check == "nccl_log.port")
    assert ("the HCA itself" in port.why, "cable" in port.fix) == (True, False)
    assert [one.because for one in log if one.check == "nccl_log.verbs"] == [port.id]


def test_link_local_gids_are_told_of_roce_alone() -> None:
    text = "n1:7:8 [0] t.cc:1 NCCL WARN Got completion from peer 10.0.0.9 with status=12 localGid fe80::1 hca {}\n"
    assert "link-local" in (found(text.format("rocep1s0"))["nccl_log.completion"].have or "")
    assert "link-local" not in (found(text.format("mlx5_0"))["nccl_log.completion"].have or "")


def test_the_first_failure_stands_first_of_those_as_severe() -> None:
    text = "n1:7:8 [0] misc/shmutils.cc:1 NCCL WARN Error: failed to extend /dev/shm/x to 9 bytes, error: x\n"
    text += "terminate: Failed: CUDA error /x/y.cpp:89 'an illegal memory access was encountered'\n"
    first, *rest = judge.judge(job.read([text.encode()]))
    assert (first.check, "the first failure" in (first.have or "")) == ("nccl_log.shared_memory", True)
    assert "nccl_log.cuda" in [one.check for one in rest]


def test_two_jobs_of_one_host_each() -> None:
    text = "NCCL version 2.27.5+cuda12.9\n"
    assert "is here 2 times" in shown(text + info("Using network IB") + text + info("Using network IB", "n2:9:9 [0]"))
    assert "on a separate line" not in shown(text + info("Using network IB"))
