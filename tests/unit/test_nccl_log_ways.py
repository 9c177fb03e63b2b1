# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whose lines are whose where heads are cut or glued, and what is told of connections, rings and trees."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, jobs, judge, lines, pairs
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.lines import Head
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render


def printed(text: str) -> str:
    log = job.read([text.encode()])
    return " ".join(render(log, jobs.split(log), judge.judge(log)).split())


def info(*texts: str, who: str = "n1:7:8 [0]") -> str:
    return "".join(f"{who} NCCL INFO {text}\n" for text in texts)


def begun(comm: str, rank: int, ranks: int, **more: object) -> str:
    said = {"nvmlDev": rank, "commId": "0xabc", **more}
    return (
        f"ncclCommInitRank comm {comm} rank {rank} nranks {ranks} cudaDev {rank} nvmlDev {said['nvmlDev']} "
        f"busId {rank}000 commId {said['commId']} - Init START"
    )


@pytest.mark.parametrize(
    ("before", "wanted"),
    [
        ("web2:41 [3]", Head("web2", 41, None, 3)),
        ("[1,0]<stdout>:web2:41 [3]", Head("web2", 41, None, 3, rank=0)),
        ("41:97 [3]", Head("", 41, 97, 3)),
        ("97 [3]", Head("", None, None, 3)),
        ("web2:41:97 misc/socket.cc:50", Head("web2", 41, 97, None, "misc/socket.cc:50")),
        ("\u2026b2:41:97 [1]", Head("b2", 41, 97, 1)),
    ],
)
def test_heads_of_which_something_is_left_out(before: str, wanted: Head) -> None:
    assert lines.head(before) == wanted


@pytest.mark.parametrize(
    "text",
    [
        # The begin of the first name was cut off.
        info("Connected all rings", who="a1b2:7:9 [0]") + info("Connected all rings", who="pool-a1b2:7:8 [0]"),
        # Behind what another process wrote, before and after the name is known.
        info("Connected all rings", who="pool-a1b2:5:5 [1]")
        + info("x busId capool-a1b2:7:7 [0] NCCL INFO Connected all rings", who="pool-a1b2:6:6 [1]"),
        info("x busId capool-a1b2:7:7 [0] NCCL INFO Connected all rings", who="fapool-a1b2:6:6 [1]")
        + info("Connected all rings", who="pool-a1b2:5:5 [1]"),
    ],
)
def test_a_name_that_is_cut_or_glued_is_no_other_host(text: str) -> None:
    hosts = {process.host for process in job.read([text.encode()]).processes.values()}
    assert "pool-a1b2" in hosts
    assert not hosts & {"a1b2", "capool-a1b2"}


def test_hosts_whose_names_end_alike_stay_apart() -> None:
    text = info("Connected all rings", who="web2:7:8 [0]") + info("Connected all rings", who="cobweb2:9:9 [0]")
    assert {process.host for process in job.read([text.encode()]).processes.values()} == {"web2", "cobweb2"}


def test_connections_are_told_by_rank_pair() -> None:
    said = printed(
        info("NET/Socket : Using [0]eth3:10.1.2.3<0>", "Using network Socket")
        + info(*(f"Channel 0{n}/0 : 5[0] -> 2[0] [receive] via NET/Socket/0" for n in (0, 1)))
        + info(*(f"Channel 0{n}/0 : 2[0] -> 5[0] [send] via NET/Socket/0" for n in (0, 1)))
        + info("Channel 07/0 : 2[0] -> 3[1] via P2P/CUMEM/read", "Channel 08/0 : 2[0] -> 3[1] via P2P/CUMEM/read")
        + info("Channel 00/1 : 4[0] -> 2[2] [receive] via NET/AWS Libfabric/7/GDRDMA/Shared", who="n2:1:2 [2]")
    )
    assert "5->2, 2->5 by NET/Socket/0 (eth3), 2 channels each (according to n1)" in said
    assert "2->3 by P2P/CUMEM/read, channels 7-8 (according to n1)" in said
    assert "4->2 by NET/AWS Libfabric/7/GDRDMA/Shared, 1 channel (according to n2)" in said


def test_hosts_that_have_other_numbers_of_channels_are_named() -> None:
    eight, two = (info(f"Channel 00/{n:02} : 0 1 2", who=who) for n, who in ((8, "n1:7:8 [0]"), (2, "n2:1:2 [0]")))
    said = printed(eight + two)
    assert "channels for collectives: 8 on n1, 2 on n2" in said
    assert "2 channels (Channel 00/02) on n2, the first ring shown: 0 1 2" in said
    assert "these hosts have other numbers of channels" in said
    assert "these hosts" not in printed(eight + eight.replace("n1", "n3"))
    # Two communicators of the same hosts.
    assert "these hosts" not in printed(eight + two + two.replace("n2:1:2", "n1:7:8") + eight.replace("n1:7", "n2:1"))


def test_devices_are_of_the_hosts_that_list_them() -> None:
    said = printed(
        info("NET/IB : Using [0]hca5:1/IB/SHARP [RO]; OOB eth4:10.9.8.7<0>", "NET/Socket : Using [0]eth4:10.9.8.7<0>")
        + info("NET/Socket : Using [0]eth4:10.9.8.6<0>", "Bootstrap: Using eth4:10.9.8.6<0>", who="n2:1:2 [0]")
    )
    assert "HCAs (reported by n1): hca5 (InfiniBand, with SHARP), port 1" in said
    assert "NET/Socket lists [0] eth4 10.9.8.6 of n2, 10.9.8.7 of n1" in said


def test_every_reason_against_gpudirect_is_told() -> None:
    said = printed(info("NET/OFI Could not turn HMEM off, disabling GDR", "NET/OFI Simple alone: GDR not supported"))
    assert "the plugin reports: Could not turn HMEM off, disabling GDR; Simple alone: GDR not supported (the" in said


def test_a_rank_that_prints_its_host() -> None:
    assert "a world of 2 ranks; rank 1 on big7" in printed("[rank 1] world_size=2 hostname=big7\n")


def test_of_many_connections_no_list_is_told() -> None:
    many = info(*(f"Channel 00/0 : {n}[0] -> {n + 1}[0] via P2P/IPC" for n in range(pairs.PAIRS + 2)))
    assert "from rank to rank" not in printed(many)
    assert f"{pairs.PAIRS + 2} by P2P/IPC" in printed(many)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Channel 00/12 :    0   2   1   3", "12 channels (Channel 00/12), the first ring shown: 0 2 1 3"),
        ("Channel 00/12 :  0 9 4 ...", "the first ring shown: 0 9 4 ...; so there are at least 10 ranks"),
        ("Ring 01 : 3 -> 0 -> 2", "from rank over rank to rank: 3->0->2, channel 1"),
        ("Trees [0] 1/2/-1->0->-1 [1] 4/-1/-1->0->3", "rank 0 is the root, above 1 and 2, or below 3, above 4"),
        ("Tree 0 : -1 -> 0 -> 1/-1/-1", "in the trees: rank 0 is the root, above 1"),
    ],
)
def test_rings_and_trees_are_told(text: str, wanted: str) -> None:
    assert wanted in printed(info(text))


SHAPE = "comm 0xa rank 0 nRanks 4 nNodes 2 localRanks 2 localRank 0 MNNVL 0"


@pytest.mark.parametrize(
    "line", [SHAPE, "Channel 00/02 :    0   1   2   3", "Channel 00/0 : 3[1] -> 0[0] [receive] via NET/IB/0"]
)
def test_who_has_nodes_or_channels_has_heard_of_all_ranks(line: str) -> None:
    said = printed(info(begun("0xa", 0, 4), line))
    assert "minor, unknown: all 4 ranks took part (a line here comes only after the bootstrap, in which all" in said
    assert "did not begin" not in said
    assert "minor, unknown: ranks 1-3 of 4 are not in this log, and no" in printed(info(begun("0xa", 0, 4)))


def gone(rank: int, how: str, device: int = 3) -> str:
    return f"comm 0xb{rank} rank {rank} nranks 8 cudaDev {device} busId {rank}000 - {how} COMPLETE"


def test_the_ends_of_communicators_are_told_by_rank() -> None:
    text = info(gone(5, "Abort", 5), who="n1:5:5 [0]") + info(gone(2, "Destroy", 2), who="n1:2:2 [0]")
    said = printed(text)
    assert "2 of 8 ranks in this log" in said
    assert (
        "of 8 ranks, whose beginning (Init START) is not in the log: lines name rank 2,5, ended in order"
        " (Destroy COMPLETE)" in said
    )
    assert "by rank 2, aborted (Abort COMPLETE) by rank 5" in said
    # Its own device, and not that of the thread.
    assert "rank 2 (n1:2) GPU 2" in said
    assert "all use device" not in said
    assert "did not begin" not in said


def test_waits_that_an_abort_ends_are_no_failure() -> None:
    waits = info("misc/socket.cc:47 -> 3", "misc/socket.cc:781 -> 3", "proxy.cc:1521 -> 3")
    said = printed(waits + info(gone(0, "Abort")))
    assert "calls on sockets that returned 3 on rank 0 (n1:7) go with the end of their communicators" in said
    assert "calls of NCCL returned an error" not in said
    for other in (waits, info("misc/socket.cc:47 -> 6", gone(0, "Abort")), info("init.cc:1 -> 3", gone(0, "Abort"))):
        assert "calls of NCCL returned an error" in printed(other)


def test_ranks_of_torn_lines_take_part() -> None:
    torn = begun("0xc", 1, 2)[:60] + "n1:8:8 [0] NCCL INFO Connected all rings"
    assert "2 of 2 ranks in this log" in printed(info(torn) + info(begun("0xd", 0, 2), who="n1:9:9 [0]"))


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("NCCL version 2.24.3+cuda.", "NCCL 2.24.3"),
        ("NCCL version 2.24.3+cu", "NCCL 2.24.3"),
        ("NCCL version 2.24.3", "NCCL 2.24.3"),
        ("n1:7:8 [0] NCCL INFO NCCL version 2.24.3+cuda12.", "NCCL 2.24.3"),
        ("$ python run.py --world-size 6 --rank 4", "programs report: a world of 6 ranks; ranks that report it: 4"),
        ("./pairs --nranks 6", "programs report: a world of 6 ranks"),
        ("Local rank size: 4", "programs report: 4 ranks on a node"),
    ],
)
def test_releases_that_are_cut_and_numbers_of_ranks(line: str, wanted: str) -> None:
    said = printed(info("Connected all rings") + line + "\n")
    assert wanted in said
    assert "RCCL" not in said


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "NET/IB : Using [0]={[0] roce7:1/RoCE, [1] roce7:2/RoCE} [RO]; OOB eth4:10.9.8.7<0>",
            "HCAs: roce7:1 and roce7:2 as one device (RoCE); control messages over eth4 10.9.8.7 (OOB)",
        ),
        ("NET/IB : Made virtual device [0] name=roce7 speed=200000 ndevs=1", "HCAs: roce7, port 1; 200 Gb/s each"),
        ("NET/Socket : GPU Direct RDMA Disabled for HCA 0 'eth4'", "NET/Socket has no GPUDirect RDMA on eth4, as is"),
        (
            "NET/OFI Could not turn HMEM off, disabling GDR",
            "as NCCL reports; the plugin reports: Could not turn HMEM off, disabling GDR",
        ),
        ("Connected all rings, use ring PXN 0 GDR 0", "GDR 0: not all rings have GPUDirect RDMA, PXN 0"),
        ("NET/Plugin: Loaded net plugin Fast (v9)", "plugins loaded: NET Fast (v9)"),
        ("RMA/Plugin: Loaded rma plugin Fast (v13)", "plugins loaded: RMA Fast (v13)"),
        ("PROFILER/Plugin: Loaded Watch (v4)", "plugins loaded: PROFILER Watch (v4)"),
        ("TUNER/Plugin: Using Knob (v4)", "plugins loaded: TUNER Knob (v4)"),
        (
            "NET/OFI Running on p9.big platform, topology file /a/b.xml",
            "runs on p9.big; its file of the topology: /a/b",
        ),
        ("Plugin version : 2.0@Somebody", "the network plugin's version: 2.0@Somebody"),
        (
            "Init timings - ncclCommInitRank: rank 0 nranks 2 total 4.25 (kernels 0.25, bootstrap 4.00)",
            "took 4.25 s, most of it, 4 s, in bootstrap (waiting for others): kernels 0.25, bootstrap 4.00",
        ),
    ],
)
def test_what_a_line_says_of_devices_and_plugins(text: str, wanted: str) -> None:
    assert wanted in printed(info(text))


def test_parts_of_an_initialisation_that_are_torn_are_not_told() -> None:
    said = printed(info("Init timings - x: rank 0 nranks 2 total 4.25 (kernels 0.25, alloc 000 commId 0x1 - Init"))
    assert "took 4.25 s: kernels 0.25" in said


def test_devices_that_are_not_cudas_number() -> None:
    said = printed(info(begun("0xa", 2, 4, nvmlDev=2), begun("0xb", 3, 4, nvmlDev=5)))
    assert "(rank 3's is nvmlDev 5: the job sees a part of the GPUs)" in said


def test_why_a_plugin_has_gpudirect_off_is_the_cause() -> None:
    text = info("Using network AWS Libfabric", "NET/OFI Could not turn HMEM off, disabling GDR", "Connected all trees")
    text += info("NET/OFI Need to force simple protocol: GDR not supported", who="n2:1:2 [0]")
    text += info("Channel 00/0 : 0[0] -> 1[0] [receive] via NET/AWS Libfabric/0", who="n2:1:2 [0]")
    assert "cause: the plugin reports: Could not turn HMEM off, disabling GDR" in printed(text)


def test_a_list_of_ranks_without_addresses_of_gpus() -> None:
    rows = "".join(f"#  Rank  {n} Group  0 Pid  {70 + n} on box{n // 2} device  {n % 2} Tesla V100\n" for n in range(4))
    said = printed(rows + info("Using network IB", who="box0:70 [0]"))
    assert "nccl-tests' list has 4 ranks in 4 processes on 2 hosts: box0 (2), box1 (2); Tesla V100" in said


def test_a_line_break_that_a_warning_quotes() -> None:
    text = "n1:7:7 [0] graph/xml.cc:155 NCCL WARN XML Parse : expected >, got '\n'\n"
    assert "expected >, got '(a line break)'" in printed(text)


def test_whose_a_note_is_is_told_where_not_all_say_it() -> None:
    note, other = info("NET/OFI Using Libfabric version 9.1"), info("Connected all rings", who="n2:1:2 [0]")
    assert "libfabric 9.1 (according to n1)" in printed(note + other)
    assert "(says" not in printed(note + note.replace("n1:7", "n2:1"))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (info("NVLS multicast support is available on dev 0"), "NVLS multicast is available on these GPUs"),
        (
            info("NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)"),
            "NVLS multicast is available on these GPUs (16 channels for it)",
        ),
        (
            info("NVLS multicast support is available on dev 0", "24 coll channels, 16 nvls channels, 32 p2p channels"),
            "24 channels for collectives, 32 for point-to-point, 16 for NVLS (NVLink SHARP); NVLS multicast is",
        ),
        (
            info("24 coll channels, 24 collnet channels, 16 nvls channels,"),
            "24 channels for collectives, 16 for NVLS (NVLink SHARP)",
        ),
        (
            info("NVLS multicast support is available on dev 0")
            + info("NVLS multicast support is not available on dev 0", who="n2:7:8 [0]"),
            "NVLS multicast is available on GPUs of n1, and not available on GPUs of n2",
        ),
    ],
)
def test_what_is_said_of_nvls_is_told(text: str, wanted: str) -> None:
    assert wanted in printed(text)
    assert "no rule has read" not in printed(text)


def test_no_variable_is_advice_that_the_log_does_not_show() -> None:
    said = "Cannot initialize CollNet, using point-to-point network instead"
    for text in (info(said), info("Connected all rings") + f"n1:7:8 [0] transport.cc:9 NCCL WARN {said}\n"):
        assert "NCCL_COLLNET_ENABLE" not in printed(text)
