# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether switches reduced for a job (SHARP, by NCCL's CollNet): ``rank r Connected CollNet`` of every rank, no less.

The plugin's own ``SHARP rank r/n initialized on DEV`` is none: NCCL may give CollNet up afterwards and go by P2P
(nccl-rdma-sharp-plugins#151). Channels of NVLS are NVLink SHARP, which reduces within a node and is another thing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from . import jobs
from .jobs import Job


@dataclass(frozen=True)
class Proof:
    """ranks: of the job's largest communicator, None where none is begun in the log.   connected: ranks that said so.

    plugin: ranks for which the plugin said that it has set itself up.   nvls: NVLink SHARP has channels.
    why: what NCCL says of a rank that is not connected; "" where it says nothing.
    """

    ranks: Optional[int]
    connected: Tuple[int, ...]
    plugin: int
    nvls: bool
    why: str

    @property
    def proven(self) -> bool:
        return self.ranks is not None and len(self.connected) == self.ranks

    @property
    def missing(self) -> str:
        """Why it is not proven, a sentence; "" where it is."""
        if self.proven:
            return ""
        if self.ranks is None:
            return (
                "no communicator is started in the log: which ranks connected to SHARP (Connected CollNet) is not known"
            )
        without = self.ranks - len(self.connected)
        said = "%d of %d ranks did not connect to SHARP (Connected CollNet)" % (without, self.ranks)
        if self.connected:
            said += ": ranks %s" % jobs.missing(self.connected, self.ranks)
        if self.why:
            said += "; NCCL reports: %s" % self.why
        elif self.plugin:
            said += "; the plugin's own line of %d ranks is not a proof: NCCL gave CollNet up after it" % self.plugin
        elif self.nvls:
            said += "; NVLS is there, which reduces in the node's NVSwitch and not in the fabric"
        return said


def proof(job: Job) -> Proof:
    """Of the job's largest communicator."""
    world = job.world
    why = next((one.collnet_why for one in job.processes if one.collnet_why), "")
    return Proof(
        ranks=None if world is None else world.ranks,
        connected=()
        if world is None
        else tuple(sorted(rank for rank, one in world.began.items() if (world.key, rank) in one.collnet_ranks)),
        plugin=sum(len(one.sharp) for one in job.processes),
        nvls=any(one.nvls_channels for one in job.processes),
        why=why,
    )
