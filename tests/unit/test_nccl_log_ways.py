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
    assert "5->2, 2->5 by NET/Socket/0 (eth3), 2 channels each (says n1)" in said
    assert "2->3 by P2P/CUMEM/read, channels 7-8 (says n1)" in said
    assert "4->2 by NET/AWS Libfabric/7/GDRDMA/Shared, 1 channel (says n2)" in said


def test_of_many_connections_no_list_is_told() -> None:
    many = info(*(f"Channel 00/0 : {n}[0] -> {n + 1}[0] via P2P/IPC" for n in range(pairs.PAIRS + 2)))
    assert "from rank to rank" not in printed(many)
    assert f"{pairs.PAIRS + 2} by P2P/IPC" in printed(many)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Channel 00/12 :    0   2   1   3", "12 channels (Channel 00/12), the ring of the first: 0 2 1 3"),
        ("Channel 00/12 :  0 9 4 ...", "the ring of the first: 0 9 4 ...; so there are at least 10 ranks"),
        ("Ring 01 : 3 -> 0 -> 2", "from rank over rank to rank: 3->0->2, channel 1"),
        ("Trees [0] 1/2/-1->0->-1 [1] 4/-1/-1->0->3", "rank 0 is the root, above 1 and 2, or below 3, above 4"),
        ("Tree 0 : -1 -> 0 -> 1/-1/-1", "in the trees: rank 0 is the root, above 1"),
    ],
)
def test_rings_and_trees_are_told(text: str, wanted: str) -> None:
    assert wanted in printed(info(text))
