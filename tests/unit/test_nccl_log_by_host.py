# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Of lines that several hosts write alike it stays told which host wrote which, and when."""

from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, jobs, judge
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render

COMPLETION = (
    "[2026-02-03 04:05:{}] {}:{}:9 [0] transport/net_ib/p2p.cc:600 NCCL WARN NET/IB: Got completion from peer {}<4000>"
    " with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129 localGid ::ffff:10.1.{}.1 remoteGids"
    "::ffff:10.1.{}.1 hca mlx5_{}\n"
)


def printed(text: str) -> str:
    log = job.read([text.encode()])
    return " ".join(render(log, jobs.split(log), judge.judge(log)).split())


def test_failures_of_several_hosts_keep_who_reported_which_peer_and_when() -> None:
    said = printed(
        COMPLETION.format("06", "n1", 7, "10.0.0.2", 1, 2, 3)
        + COMPLETION.format("08", "n2", 8, "10.0.0.1", 2, 1, 4)
        + COMPLETION.format("08", "n2", 9, "10.0.0.1", 2, 1, 4)
    )
    assert "that is, mlx5_4 of n2 to 10.0.0.1 2 times, mlx5_3 of n1 to 10.0.0.2" in said
    assert "by the lines' times n1 at 2026-02-03 04:05:06, n2 at 2026-02-03 04:05:08" in said
    assert "from: line 1 of n1:7" in said
    # Of one host and one time there is no order to tell.
    assert "by the lines' times" not in printed(COMPLETION.format("06", "n1", 7, "10.0.0.2", 1, 2, 3))


def test_a_peer_is_named_by_its_host_where_an_address_is_one_hosts_alone() -> None:
    lists = "{}:{}:1 [0] NCCL INFO NET/IB : Using [0]mlx5_3:1/RoCE [RO]; OOB eth0:{}<0>\n"
    text = lists.format("n1", 7, "10.0.0.1") + lists.format("n2", 8, "10.0.0.2")
    said = printed(
        text
        + COMPLETION.format("06", "n1", 7, "10.0.0.2", 1, 2, 3)
        + COMPLETION.format("08", "n2", 8, "10.0.0.1", 2, 1, 4)
    )
    assert "control messages over eth0 10.0.0.1 of n1, eth0 10.0.0.2 of n2 (OOB)" in said
    assert "mlx5_3 of n1 to 10.0.0.2 (n2)" in said


def test_a_quote_that_several_hosts_share_says_who_was_first() -> None:
    line = "{}:{}:1 [0] transport/net_ib/p2p.cc:700 NCCL WARN NET/IB: ncclIbTest: Got CQE with error (wr_id={})\n"
    text = "".join(line.format(host, pid, 0) for host, pid in (("n9", 5), ("n2", 8), ("n2", 9)))
    said = printed(text + COMPLETION.format("06", "n9", 5, "10.0.0.2", 1, 2, 3))
    assert "NCCL on n9:5, transport/net_ib/p2p.cc:700, 3 times, up to line 3, then on n2:8, n2:9:" in said


def test_of_few_processes_with_rings_it_is_told_which_they_are() -> None:
    rings = "n1:{0}:{0} [{1}] NCCL INFO {2}\n"
    text = rings.format(7, 0, "Using network Socket") + rings.format(8, 1, "Using network Socket")
    said = printed(text + rings.format(8, 1, "Connected all rings"))
    assert "on 1 of 2 processes (n1:8, GPU 1)" in said
