# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVLink between hosts (MNNVL): which ranks NCCL joins to cliques, and when it refuses, as 2.21 to 2.30 do it.

A rank whose GPU is of no domain, or a variable, switches it off for all ranks without a word. IMEX that does not work
on a tray ends the job there: each rank tries a handle of its own first. Sources: health.md 6, nccl.md 5.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .variables import number, p2p_allowed

if TYPE_CHECKING:
    from .job import Process

SINCE, TRIES, WORDED, COUNTS_DOMAIN = 22105, 22501, 22707, 23003
SYSTEM_ERROR = "unhandled system error (run with NCCL_DEBUG=INFO for details)"
_CHANNEL = "dev/nvidia-caps-imex-channels/channel0"
_SERVICE = "sys/fs/cgroup/system.slice/nvidia-imex.service/cgroup.procs"


def domains(text: str) -> list[str]:
    """Of each GPU in what ``nvidia-smi -q -x`` prints: UUID and clique of its domain, "" where it is of none."""
    cliques = re.findall(r"<cliqueId>([^<]*)</cliqueId>", text)
    uuids = re.findall(r"<clusterUuid>([^<]*)</clusterUuid>", text)
    found = []
    for one, clique in zip(uuids, cliques):  # noqa: B905 Python 3.9
        known = re.fullmatch(r"[0-9a-f-]{36}", one) and uuid.UUID(one).int
        found.append(f"{one} {clique}" if known else "")
    return found


def imex(hardware: str) -> str:
    """What keeps a tray's processes from memory of others: "channel", "service"; "" for nothing."""
    if not os.path.exists(f"{hardware}/{_CHANNEL}"):
        return "channel"
    return "" if os.path.exists(f"{hardware}/{_SERVICE}") else "service"


def renamed(domain: str, found: Mapping[str, str]) -> str:
    """As a variable has it."""
    own, _, clique = domain.partition(" ")
    return f"{own} {number(found, 'NCCL_MNNVL_CLIQUE_ID', int(clique))}" if domain else ""


def wanted(processes: Sequence[Process]) -> bool:
    """Whether NCCL looks for NVLink between hosts at all: by the variables of every process."""
    if len({one.host for one in processes}) < 2 or any(one.library < SINCE for one in processes):
        return False
    for one in processes:
        enabled = number(one.variables, "NCCL_MNNVL_ENABLE", 2)
        if enabled == 0 or number(one.variables, "NCCL_CUMEM_ENABLE", 1) == 0:
            return False
        if not p2p_allowed(one.variables):
            return False
    return True


def cliques(processes: Sequence[Process]) -> list[str]:
    """Of each process the domain that joins it to others, "" where NVLink between hosts is off."""
    named = [renamed(one.gpus[0].domain, one.variables) if one.gpus else "" for one in processes]
    if not wanted(processes) or not all(gpu.domain for one in processes for gpu in one.gpus):
        return [""] * len(named)
    sizes: dict[str, int] = {}
    for one, domain in zip(processes, named):  # noqa: B905 Python 3.9
        sizes[domain] = sizes.get(domain, 0) + len(one.gpus)
    return [domain if sizes[domain] > 1 else "" for domain in named]


def refusal(library: int, size: int, lacks: str) -> tuple[str, str]:
    """Where a rank says it, and what, of a clique of this size. lacks: as ``imex`` says."""
    if library < WORDED:
        said = f"MNNVL (cliqueSize {size}) is available but not supported on this system. Check the IMEX configuration."
        return "mnnvl.cc:69", said
    what = "channel configuration (/dev/nvidia-caps-imex-channels)" if lacks == "channel" else ""
    said = f"MNNVL (cliqueSize {size}) is available but not working on this system. Check the IMEX "
    said += f"{what or 'configuration (nvidia-imex-ctl -N)'}. Set NCCL_MNNVL_ENABLE=0 to ignore this issue."
    return ("mnnvl.cc:67" if what else "mnnvl.cc:78"), said


def fabric(domain: str, bus: str) -> str:
    """The line of a GPU; the UUID as two numbers in the order of the CPU's bytes."""
    own, _, clique = domain.partition(" ")
    data = uuid.UUID(own).bytes
    halves = [int.from_bytes(data[at : at + 8], "little") for at in (0, 8)]
    told = f"fabric UUID {halves[0]:x}.{halves[1]:x} cliqueId 0x{int(clique):x} state 3 healthMask 0x1aa"
    return f"MNNVL busId 0x{bus} {told}"


def joined(library: int, domain: str, size: int, place: int) -> str:
    """The line of a rank that is the place-th of its clique."""
    clique = int(domain.partition(" ")[2])
    end = "" if library >= TRIES else " "
    end = f" nvlDomainSize {size}" if library >= COUNTS_DOMAIN else end
    return f"MNNVL 1 cliqueId {clique:x} cliqueSize {size} cliqueRank {place}{end}"
