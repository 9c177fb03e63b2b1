# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Checks of the path from a NIC to the GPUs' memory."""

from __future__ import annotations

from ..core import fix_command
from ..core.check import Check

RUN = fix_command.run_tag("nvidia_peermem")
PATH = Check(
    "gpudirect.path",
    why="without it NCCL stages everything through host memory, at a fraction of the rate",
    fix=RUN,
    severity="critical",
)
"is there a direct path from the NICs to the GPUs' memory: DMA-BUF possible, or nvidia_peermem loaded; if not, why"
PERSISTED = Check(
    "gpudirect.persisted",
    why="nvidia_peermem has to be loaded at every boot, after the ib_core that it was built for",
    fix=RUN,
    aspect="persisted",
)
"Will nvidia_peermem be loaded at every boot and after a restart of openibd, and on EL not from the initramfs"
OLD_MODULE = Check(
    "gpudirect.legacy",
    why="only one of nv_peer_mem and nvidia_peermem can register with ib_core; the old one is not maintained",
    fix=RUN,
    aspect="persisted",
)
"is the old nv_peer_mem neither loaded nor started at boot"
BLOCKED = Check(
    "gpudirect.blocked",
    why="a blacklist stops systemd from loading the module at boot; an install line stops modprobe, too",
    fix=RUN,
    aspect="persisted",
)
"does no blacklist, install line or kernel argument forbid nvidia_peermem"
READABLE = Check("gpudirect.readable", why="what cannot be read cannot be judged")
"Could the files and tools for the path to the GPUs' memory be read"
