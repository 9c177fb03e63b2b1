# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Write NCCL's INFO lines of a small job."""

from __future__ import annotations

# Lines of each rank of a job over InfiniBand.
HEALTHY = (
    "NET/Plugin: Could not find: libnccl-net.so",
    "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>",
    "GPU Direct RDMA Disabled for GPU 0 / HCA 7 (distance 9 > 5)",
    "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA",
    "Connected all rings, use ring PXN 0 GDR 1",
)


def ranks(*lines: str, nodes: int = 2, network: str = "IB") -> str:
    """Return the log of a job with one rank on each node. lines: further lines of all of them."""
    text = []
    for rank in range(nodes):
        head = f"node{rank}:{100 + rank}:{100 + rank} [0] NCCL INFO "
        init = f"{head}ncclCommInitRank comm 0xa{rank} rank {rank} nranks {nodes} cudaDev 0 nvmlDev 0"
        init += " busId 1b000 commId 0xabc"
        text += [
            f"{head}NCCL version 2.27.7+cuda12.9",
            f"{head}Bootstrap: Using eth0:10.0.0.{rank}<0>",
            f"{head}Using network {network}",
            f"{init} - Init START",
            f"{head}comm 0xa{rank} rank {rank} nRanks {nodes} nNodes {nodes} localRanks 1 localRank 0 MNNVL 0",
            *(head + line for line in lines),
            f"{init} - Init COMPLETE",
        ]
    return "\n".join(text) + "\n"
