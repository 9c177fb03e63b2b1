# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parse what a watch reads of its node: nvidia-smi's loop, GPU processes, ports and lines of the kernel's log. Pure.

Sources: ``nvidia-smi --help-query-gpu``, ``--help-query-compute-apps``; cgroups(7); Documentation/ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import re
from typing import Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..core.host import ParseError
from ..core.number import whole
from ..health import xid
from ..machine.pci import parse_address
from .job_state import Gpu

FIELDS = ("pci.bus_id", "utilization.gpu", "utilization.memory", "power.draw", "enforced.power.limit")
PROCESS_FIELDS = ("gpu_bus_id", "pid")
# Characters of a line of a tool, of a job's name.
LINE, NAME = 1024, 80
_MOST_RANKS = 1 << 20
# Environment variables with the rank of a process in its job: torchrun, Open MPI, PMIx, Slurm, Hydra.
_RANKS = (b"RANK", b"OMPI_COMM_WORLD_RANK", b"PMIX_RANK", b"SLURM_PROCID", b"PMI_RANK")
# Fields of orphans.read_stat.
_PARENT, _SESSION, _INIT = 1, 3, 1
_CGROUPS = (
    ("Slurm job", re.compile(r"/job_([0-9]{1,10})(?:/|$)", re.M)),
    ("pod", re.compile(r"[/-]pod([0-9a-f]{8}[-_][0-9a-f_-]{27})", re.M)),
    ("container", re.compile(r"(?:docker|libpod|cri-containerd)[-/]([0-9a-f]{12})[0-9a-f]{52}", re.M)),
)


class Process(NamedTuple):
    """A process that uses a GPU."""

    pid: int
    job: str
    rank: Optional[int]


class Port(NamedTuple):
    """state: as sysfs has it, such as ``4: ACTIVE``.   downed: how often the link went down. "", None: not read."""

    state: str
    downed: Optional[int]


def gpu_line(line: str) -> Gpu:
    """Return the reading of a line of the loop. Values that the driver does not have are None. Raises ParseError."""
    cells = [cell.strip() for cell in line[:LINE].split(",")]
    if len(cells) != len(FIELDS):
        raise ParseError(f"{line[:80]!r} has {len(cells)} values, expected {len(FIELDS)}")
    utilisation, memory, watts, limit = map(_figure, cells[1:])
    return Gpu(parse_address(cells[0]), utilisation, memory, watts, limit)


def _figure(text: str) -> Optional[float]:
    return float(text) if re.fullmatch(r"[0-9]{1,6}(?:\.[0-9]{1,4})?", text, re.ASCII) else None


def process_lines(text: str) -> List[Tuple[int, str]]:
    """Return each process and a GPU that it uses. Lines of other forms, as of an error, are none."""
    found = []
    for line in text[: 1 << 20].splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        pid = whole(cells[1]) if len(cells) == len(PROCESS_FIELDS) else None
        if pid is not None:
            try:
                found.append((pid, parse_address(cells[0])))
            except ParseError:
                continue
    return found


def rank_of(environment: Iterable[bytes]) -> Optional[int]:
    """Return the rank that a launcher has given a process. environment: NAME=value; only the rank is taken of it."""
    values = {name: value for name, _sign, value in (each.partition(b"=") for each in environment)}
    ranks = (whole(values[name].decode(errors="replace")) for name in _RANKS if name in values)
    return next((rank for rank in ranks if rank is not None and rank < _MOST_RANKS), None)


def job_of(cgroup: str, stat: Sequence[bytes]) -> str:
    """Return a job's name: of Slurm, a pod or a container; else its processes have the same parent, or session.

    stat: as orphans.read_stat returns it. "" where the process is not known.
    """
    for kind, pattern in _CGROUPS:
        match = pattern.search(cgroup)
        if match is not None:
            return f"{kind} {match.group(1)}"[:NAME]
    numbers = [whole(field.decode(errors="replace")) for field in stat]
    if len(numbers) <= _SESSION or numbers[_PARENT] is None or numbers[_SESSION] is None:
        return ""
    # Programs of any users have init as their parent.
    is_orphan = numbers[_PARENT] == _INIT
    return f"session {numbers[_SESSION]}" if is_orphan else f"processes of PID {numbers[_PARENT]}"


def with_processes(gpus: Iterable[Gpu], processes: Mapping[str, Process]) -> List[Gpu]:
    """Return the GPUs with their job. processes: GPU -> one of its processes."""
    found = []
    for gpu in gpus:
        process = processes.get(gpu.pci)
        found.append(gpu if process is None else gpu._replace(job=process.job, rank=process.rank, pid=process.pid))
    return found


def xid_of(message: str) -> Optional[Tuple[str, int]]:
    """Return GPU and number of an Xid in a record of /dev/kmsg."""
    event = xid.parse(message[:LINE])
    return None if event is None or event.switch else (event.pci, event.number)
