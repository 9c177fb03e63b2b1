# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is told of networks, their plugins and what NCCL may choose, where no fault is behind it."""

from __future__ import annotations

import time

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import (
    gdr_less,
    job,
    jobs,
    judge,
    table,
    table_rows,
)
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.matrix import Matrix
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render


def printed(text: str) -> str:
    log = job.read([text.encode()])
    return " ".join(render(log, jobs.split(log), judge.judge(log)).split())


def found(text: str) -> dict[str, Finding]:
    return {one.check: one for one in judge.judge(job.read([text.encode()])) if not one.ok}


def info(*texts: str, who: str = "n1:7:8 [0]") -> str:
    return "".join(f"{who} NCCL INFO {text}\n" for text in texts)


@pytest.mark.parametrize(
    "line",
    [
        "NET/OFI Adding NCCL_PROTO=simple to environment",
        "NET/OFI Setting NCCL_PROTO to simple",
        "NET/OFI Setting NCCL_PROTO environment variable to simple",
    ],
)
def test_variables_that_a_plugin_sets_are_told_apart(line: str) -> None:
    said = printed(info(line, "NCCL_PROTO set by environment to simple", "NCCL_ALGO set by environment to ring"))
    assert "set by the network plugin OFI, as it reports, and not by the job: NCCL_PROTO=simple set (by" in said
    assert "the log does not show which): NCCL_ALGO=ring" in said


def test_the_rings_word_on_gpudirect_is_of_all_ranks() -> None:
    rings = "Connected all rings, use ring PXN 0 GDR 0"
    assert "GDR 0: not all rings have GPUDirect RDMA, PXN 0" in printed(info(rings))
    said = printed(info("Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA", rings))
    assert "GDR 0 (of all ranks together, not of each connection" in said


MATRIX = """\
n1:7:8 [0] NCCL INFO Enabled NCCL Func/Proto/Algo Matrix:
     Function |       LL     LL128    Simple   |          Tree           Ring           NVLS
       Reduce |        1         2         1   |             1              1              0
n1:9:9 [1] NCCL INFO NVLS multicast support is available on dev 1
    AllReduce |        1         2         1   |             1              1              0
    Broadcast |        0         0         1   |             0              1              0
"""


def test_what_nccl_may_choose_is_read_from_its_matrix() -> None:
    said = printed(MATRIX)
    assert (
        "Reduce, AllReduce: protocols LL, LL128 (where the hardware is fit), Simple; algorithms Tree, Ring (off: NVLS)"
        " | Broadcast: protocols Simple (off: LL, LL128); algorithms Ring (off: Tree, NVLS)"
    ) in said
    assert "Function |" not in said.partition("the rest of the log")[0]


def test_a_table_without_its_begin_is_no_matrix() -> None:
    assert "its matrix" not in printed("".join(MATRIX.splitlines(True)[1:]))


@pytest.mark.parametrize("piece", [" ", "0 ", "Tree ", "1", "x", " |"])
def test_lines_like_a_matrix_are_read_at_once(piece: str) -> None:
    began = time.monotonic()
    for before in ("Function |", "Reduce |", ""):
        assert not Matrix().line((before + piece * 60000).encode())
        assert not Matrix().line((before + piece * 900)[:999].encode() + b"!")
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("figures", "wanted"),
    [
        ((2.4, 2.4, 2.5, 2.5, 2.6, 2.7, 2.8, 2.8, 2.8), None),
        ((1.0, 9.8, 10.2, 10.0, 10.0, 9.9, 10.1, 10.0), 10.0),
        ((1.0, 9.0, 10.2, 10.0, 10.0, 9.9, 10.1, 10.0), None),
    ],
)
def test_flat_is_what_lies_within_five_percent_of_the_mean(figures: tuple[float, ...], wanted: float | None) -> None:
    flat = table.Test(rows=[table_rows.Row(1 << (21 + at), one, None, "sum") for at, one in enumerate(figures)]).flat
    assert (flat and (flat[0], round(flat[1], 1))) == (wanted and (1 << 22, wanted))


OFF = "NET/IB : GPU Direct RDMA Disabled for HCA 0 '%s'"
LISTED = "#  Rank  %d Group  0 Pid      7 on         n%d device  0 [0x0f] NVIDIA %s\n"


@pytest.mark.parametrize(
    ("hca", "gpu", "wanted"),
    [
        ("rxe0", "H100", "minor likely cause: a software device by its name"),
        ("siw_eth0", "H100", "minor likely cause: a software device by its name"),
        ("mlx5_0", "GB10", "minor likely cause: the GPUs are GB10"),
        ("mlx5_0", "H100", "major cause: NCCL finds neither nvidia_peermem nor"),
    ],
)
def test_nothing_is_to_be_loaded_where_nothing_helps(hca: str, gpu: str, wanted: str) -> None:
    text = (
        LISTED % (0, 1, gpu)
        + LISTED % (1, 2, gpu)
        + info(f"NET/IB : Using [0]{hca}:1/RoCE [RO]; OOB eth0:10.0.0.1<0>", "Using network IB")
    )
    finding = found(text + info(OFF % hca))["nccl_log.gdr"]
    assert wanted in f"{finding.severity} {(finding.have or '').partition('; ')[2]}"
    assert ("nvidia_peermem" in (finding.fix or "")) == (finding.severity == "major")


def test_hcas_are_not_called_software_devices() -> None:
    assert gdr_less.likely("rxe0+mlx5_0", frozenset()) == "" == gdr_less.likely("rxemu", frozenset({"GB10", "H100"}))


NO_DEVICE = "NET/IB : No device found.", "Using network Socket", "comm 0x1 rank 0 nRanks 2 nNodes 2 localRanks 1"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ((), "TCP may be the only way there is"),
        (("NCCL_IB_DISABLE set by environment to 1.",), "TCP may be the only way there is"),
        # A plugin might have had a device.
        (("NET/OFI No eligible providers were found",), "no HCA is in these lines"),
        (("NET/Plugin: Plugin name set by env to libnccl-net-x.so",), "no HCA is in these lines"),
        (("NCCL_IB_HCA set by environment to mlx5_0",), "TCP may be the only way there is"),
    ],
)
def test_tcp_is_milder_where_no_device_is_shown(more: tuple[str, ...], why: str) -> None:
    one = begun(0) + info(*more, *NO_DEVICE[:2], NO_DEVICE[2] + " localRank 0 MNNVL 0")
    finding = found(one)["nccl_log.network"]
    assert (finding.severity, why in finding.why) == ("major", True)


def begun(rank: int) -> str:
    text = "ncclCommInitRank comm 0x1 rank %d nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0xabc - Init START"
    return info(text % rank)


WORDS = "NET/OFI Invalid kind of bus returned 7", "plugin/net.cc:118 -> 2"


def test_a_plugin_that_nccl_gives_up_is_told_with_its_last_words() -> None:
    said = printed(info(*WORDS, "Using network IB"))
    assert (
        'the network plugin OFI was given up on n1: its last words are "Invalid kind of bus returned 7"'
        " (plugin/net.cc:118 -> 2); IB is used in its place, which is not a failure"
    ) in said
    assert "what came in its place is not in these lines" in printed(info(*WORDS))
    assert "given up" not in printed(info(WORDS[0], "Using network AWS Libfabric"))
    # Another process's call is not this one's.
    assert "given up" not in printed(info(WORDS[0]) + info(WORDS[1], who="n2:9:9 [0]"))


def test_googles_plugin_is_named() -> None:
    line = "NET/gIB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'"
    assert "lines of a network plugin: gIB (gIB is RDMA)" in printed(info(line))
    assert "of a network plugin" not in printed(info(line.replace("gIB", "IB")))


def test_an_abort_without_a_failure_is_the_programs_own_end() -> None:
    text = begun(0) + info("comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1000 - Abort COMPLETE")
    own = "usually the program itself ended it so"
    assert own in printed(text)
    assert own not in printed("n1:7:8 [0] init.cc:1 NCCL WARN Cuda failure 'out of memory'\n" + text)
    assert own not in printed("RuntimeError: it broke\n" + text)


def test_collnet_that_was_tried_and_given_up() -> None:
    tried = info("CollNet 00/0 : 4 [receive] via COLLNET/SHARP/0/GDRDMA")
    warned = "n1:7:8 [0] transport.cc:3 NCCL WARN Cannot initialize CollNet, using point-to-point network instead\n"
    assert "tried before that: COLLNET/SHARP/GDRDMA on n1" in printed(tried + warned)
    assert "tried before" not in printed(warned)


def test_workers_of_ray_have_addresses() -> None:
    line = "(Worker pid=12, ip=10.1.2.3) begins [rank=5, world_size=16]\n"
    assert "rank 5 on 10.1.2.3" in printed(line + info("Using network IB"))


def test_a_list_of_nccl_tests_that_somebody_has_shortened() -> None:
    text = "#  Rank  0 .. Rank  3 on n1  NVIDIA X1\n#  Rank  4 .. Rank  7 on n2\n"
    assert "shortened list of nccl-tests names ranks 0-3 on n1 (NVIDIA X1); ranks 4-7 on n2" in printed(
        text + info("Using network IB")
    )


def test_host_memory_in_two_ways_is_told() -> None:
    by_file = info("MMAP imported shareable host buffer /dev/shm/nccl-a size 4096 ptr 0x1")
    by_cumem = info("CUMEM imported shareable host buffer from proxyRank 2 size 4096", who="n1:9:9 [1]")
    said = printed(by_file + by_cumem)
    assert "by cuMem (CUMEM) on n1:9, GPU 1; by files in /dev/shm (MMAP) on n1:7, GPU 0:" in said
    assert "in two ways" not in printed(by_file)
    assert "in two ways" not in printed(by_cumem)


def test_places_in_the_sources_tell_two_releases() -> None:
    older = (
        "n1:7:8 [0] misc/socket.cc:5 NCCL WARN socketPollConnect: connect to 10.0.0.9<5> returned Connection refused\n"
    )
    later = older.replace("misc/socket.cc:5", "os/linux.cc:5").replace("socketPoll", "ncclOsSocketPoll")
    later = later.replace("n1:7:8", "n2:9:9")
    finding = found(older + later)["nccl_log.version"]
    assert "lines of n1:7 have the form of NCCL before 2.29, those of n2:9 that of 2.29 or later" in (
        finding.have or ""
    )
    assert "nccl_log.version" not in found(later + later.replace("n2:9", "n3:9"))
    assert "nccl_log.version" not in found(older + older.replace("n1:7", "n3:9"))


def begun_on(rank: int, host: str, *more: str) -> str:
    who = f"{host}:7:8 [0]"
    shape = f"comm 0x1 rank {rank} nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0"
    return begun(rank).replace("n1:7:8 [0]", who) + info(shape, *more, who=who)


def test_what_variables_do_here_is_told() -> None:
    set_to = "NCCL_SHM_DISABLE set by environment to 1.", "NCCL_NET_GDR_LEVEL set by environment to SYS"
    said = printed(begun_on(0, "n1", *set_to) + begun_on(1, "n2", *set_to))
    assert "without effect here: NCCL_SHM_DISABLE: between GPUs of a node, and each node has one rank" in said
    assert "allows GPUDirect RDMA over any distance" in said
    two = begun_on(0, "n1", *set_to).replace("nNodes 2 localRanks 1", "nNodes 1 localRanks 2")
    assert "without effect here" not in printed(two)
    assert "over any distance" not in printed(two.replace("SYS", "PIX"))


SHORT = (
    "      size (B)     time (us)   busbw (GB/s)\n             8         10.5      0.00\n      67108864   900.5    %s\n"
)


def test_tables_of_three_columns_have_their_own_best_and_average() -> None:
    text = SHORT % "75.5" + "\nAvg bus bandwidth: 37.75\n" + SHORT % "7.5" + "\nAvg bus bandwidth: 3.75\n"
    said = printed(text + info("Using network IB"))
    first = "test 1 of 2, a table of busbw of unknown origin: 2 sizes up to 64 MiB; at 64 MiB busbw 75.5 GB/s, 900.5 us"
    assert first in said
    assert "average over all sizes 37.75 GB/s" in said.partition("test 2 of 2, a table")[0]
    assert "average over all sizes 3.75 GB/s" in said.partition("test 2 of 2, a table")[2]
    assert "wrong values" not in said
    assert "output of nccl-tests" not in printed(text)
    assert "a table of busbw" not in printed("Avg bus bandwidth: 37.75\n" + info("Using network IB"))


def test_interfaces_of_slingshot_ask_for_its_plugin() -> None:
    missing = "NET/Plugin: Could not find: libnccl-net.so. Using internal net plugin."
    lists = "NET/Socket : Using [0]hsn0:10.4.0.2<0>"
    one = begun(0) + info(missing, lists, *NO_DEVICE[:2], NO_DEVICE[2] + " localRank 0 MNNVL 0")
    finding = found(one)["nccl_log.network"]
    assert "interfaces named as Slingshot's" in (finding.have or "")
    assert finding.fix.startswith("over Slingshot give the job the plugin aws-ofi-nccl")
    other = found(one.replace("hsn0", "eth0"))["nccl_log.network"]
    assert "aws-ofi-nccl" not in other.fix


def _two_nodes(*speeds: int, used: int = 2) -> str:
    """Two ranks, of two nodes of that many HCAs each with its speed in Mbit/s; the first ``used`` carry connections."""
    half = len(speeds) // 2
    text = ""
    for rank, mine in enumerate((speeds[:half], speeds[half:])):
        listed = " ".join(f"[{index}]mlx5_{index}:1/RoCE" for index in range(half))
        lines = [
            *(
                f"NET/IB: [{index}] mlx5_{index}:uverbs{index}:1/RoCE provider=Mlx5 speed={mbit} context=0x7f ar=1"
                for index, mbit in enumerate(mine)
            ),
            f"NET/IB : Using {listed} [RO]; OOB eth0:10.0.0.{rank + 1}<0>",
            "Using network IB",
            f"ncclCommInitRank comm 0x1 rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0x5 - Init START",
            f"comm 0x1 rank {rank} nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0",
            *(f"Channel 0{n}/0 : {1 - rank}[0] -> {rank}[0] [receive] via NET/IB/{n}/GDRDMA" for n in range(used)),
        ]
        text += info(*lines, who=f"n{rank}:7:8 [0]")
    return text


@pytest.mark.parametrize(
    ("speeds", "used", "slow"),
    [
        ((400000, 400000, 400000, 400000), 2, []),
        ((400000, 400000, 25000, 400000), 2, ["n1"]),
        ((400000, 100000, 400000, 100000), 1, []),
        ((400000, 200000, 400000, 400000), 2, ["n0"]),
        ((25000, 400000, 400000, 200000), 2, ["n0", "n1"]),
    ],
)
def test_an_hca_that_is_slower_than_the_others_that_carry_connections_is_named(
    speeds: tuple[int, ...], used: int, slow: list[str]
) -> None:
    log = job.read([_two_nodes(*speeds, used=used).encode()])
    findings = [one for one in judge.judge(log) if one.check == "nccl_log.hca_speed"]
    assert [one.subject.split()[-1] for one in findings] == slow


@pytest.mark.parametrize(("event", "state"), [("port error(10)", "drift"), ("port active(9)", None)])
def test_a_port_that_went_down_is_a_failure_though_nccl_goes_on(event: str, state: str | None) -> None:
    line = f"n1:7:9 [0] transport/net_ib/common.cc:179 NCCL WARN NET/IB : mlx5_0:1 Got non-fatal async event: {event}\n"
    port = found(_two_nodes(400000, 400000) + line).get("nccl_log.port")
    assert (port.state if port else None) == state
