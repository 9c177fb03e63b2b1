"""playbooks/diagnose.yml on two simulated nodes: logs of one job that lie on both."""

from __future__ import annotations

from pathlib import Path

from tests.site.conftest import Play

LINES = """\
{node}:{pid}:{pid} [0] NCCL INFO NCCL version 2.27.7+cuda12.9
{node}:{pid}:{pid} [0] NCCL INFO Bootstrap: Using eth0:10.0.0.{rank}<0>
{node}:{pid}:{pid} [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.
{node}:{pid}:{pid} [0] NCCL INFO Using network Socket
{node}:{pid}:{pid} [0] NCCL INFO ncclCommInitRank comm 0xa{rank} rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0xabc - Init START
{node}:{pid}:{pid} [0] NCCL INFO comm 0xa{rank} rank {rank} nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0
{node}:{pid}:{pid} [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
{node}:{pid}:{pid} [0] NCCL INFO ncclCommInitRank comm 0xa{rank} rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0xabc - Init COMPLETE
"""  # noqa: E501


def test_logs_on_two_nodes_are_one_job_and_a_missing_one_is_named(lab: Path, play: Play) -> None:
    for rank, node in enumerate(("node01", "node02")):
        (lab / node / "sys" / "tmp").mkdir(exist_ok=True)
        (lab / node / "sys" / "tmp" / "nccl.log").write_text(LINES.format(node=node, rank=rank, pid=100 + rank))
    given = ("-i", lab / "inventory", "-e", '{"diagnose_logs": ["/tmp/nccl.log"]}')
    done = play(*given, playbook="playbooks/diagnose.yml")
    assert done.rc == 2, done.out
    assert "2 ranks, 2 nodes (node01, node02), network Socket" in " ".join(done.out.split())
    assert "cause: NCCL_IB_DISABLE=1" in done.out
    assert "nccl_log.node" not in done.out
    # A link is not followed, and the others are judged without it.
    (lab / "node02" / "sys" / "tmp" / "nccl.log").rename(lab / "node02" / "sys" / "tmp" / "other")
    (lab / "node02" / "sys" / "tmp" / "nccl.log").symlink_to("other")
    done = play(*given, playbook="playbooks/diagnose.yml")
    assert done.rc == 2, done.out
    assert "it is read by no link: give its real path" in " ".join(done.out.split())
    assert "1 of 2 ranks" in done.out
