# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read ranks, nodes and hosts of a job from command lines of launchers and from what programs print of their world.

Sources: mpirun(1) of Open MPI, srun(1), torchrun --help, deepspeed --help, accelerate launch --help.
"""

from __future__ import annotations

import re
from typing import Dict, List, Optional, Set, Tuple

# Marks, one of which a line has to contain, and patterns. ranks, nodes: of the job.   each: ranks of a node.   gpus: of
# each process of nccl-tests.
_MPI, _SLURM = r"\b(?:mpirun|mpiexec|prterun)\b.{0,1500}? ", r"\b(?:srun|SBATCH|salloc)\b.{0,999}? "
_ROWS: Tuple[Tuple[str, str], ...] = (
    ("mpirun|mpiexec|prterun|-np ", "(?:" + _MPI + r"-{1,2}(?:np?|c)|^\s*-{1,2}np)[= ](?P<ranks>\d{1,6})\b"),
    (
        "mpirun|mpiexec|-H |--host",
        "(?:" + _MPI + r"|^\s*(?:-np \d{1,6} +)?)-{1,2}(?:H|host)[= ](?P<hosts>[\w.:,-]{1,999})",
    ),
    ("_perf ", r"_perf .{0,600}?-g (?P<gpus>[1-9]\d?)\b"),
    ("srun|SBATCH|salloc", _SLURM + r"(?:-N ?|--nodes[= ])(?P<nodes>\d{1,6})\b"),
    ("srun|SBATCH|salloc", _SLURM + r"(?:-n ?|--ntasks[= ])(?P<ranks>\d{1,6})\b"),
    ("srun|SBATCH|salloc", _SLURM + r"--ntasks-per-node[= ](?P<each>\d{1,4})\b"),
    ("nnodes|num_nodes|num_machines", r"--(?:nnodes|num_nodes|num_machines)[= ](?P<nodes>\d{1,6})\b"),
    ("nproc|num_gpus", r"--(?:nproc[-_]per[-_]node|num_gpus)[= ](?P<each>\d{1,4})\b"),
    ("num_processes", r"--num_processes[= ](?P<ranks>\d{1,6})\b"),
    ("nodes", r"\b(?:max_nodes|nnodes)\s{0,12}: (?P<nodes>\d{1,6})$"),
    ("nproc_per_node", r"\bnproc_per_node\s{0,12}: (?P<each>\d{1,4})$"),
    ("nnodes=", r"\bnnodes=(?P<nodes>\d{1,6}), (?:num_local_procs=(?P<each>\d{1,4})\b|node_rank=)"),
    ("following workers", r"on the following workers: (?P<hosts>[\w.,-]{1,999})"),
    ("dist_world_size", r"\bdist_world_size=(?P<ranks>\d{1,6})\b"),
    ("world", r"(?<![\w.-])(?<!parallel )(?<!group )world[ _]size['\"]?\s?[:=]{1,2}\s?(?P<ranks>\d{1,6})\b(?![.%])"),
    ("WORLD_SIZE", r"(?<![\w.-])WORLD_SIZE['\"]?\s?[:=]\s?['\"]?(?P<ranks>\d{1,6})\b"),
    ("NNODES", r"(?<![\w.-])N?NODES['\"]?\s?[:=]\s?['\"]?(?P<nodes>\d{1,6})\b"),
    ("MEMBER: |Num processes: |MPI size: ", r"\b(?:MEMBER: \d{1,6}/|Num processes: |MPI size: )(?P<ranks>\d{1,6})\b"),
)
_PATTERNS = [(tuple(marks.split("|")), re.compile(pattern)) for marks, pattern in _ROWS]
MARKS = tuple(sorted({mark for marks, _pattern in _PATTERNS for mark in marks}))


class Launch:
    """Statements of lines on a job. A number of which lines state several values is not known."""

    def __init__(self) -> None:
        self._numbers: Dict[str, Set[int]] = {}
        self.hosts: List[str] = []

    def line(self, text: str) -> bool:
        """Take a line in. Return whether it states something."""
        found = False
        for marks, pattern in _PATTERNS if any(mark in text for mark in MARKS) else ():
            match = pattern.search(text[:2000]) if any(mark in text for mark in marks) else None
            found = found or match is not None
            for name, value in match.groupdict().items() if match is not None else ():
                if name == "hosts":
                    self.hosts = self.hosts or [host.partition(":")[0] for host in value.split(",") if host][:1024]
                elif int(value or 0):
                    self._numbers.setdefault(name, set()).add(int(value))
        return found

    def number(self, name: str) -> Optional[int]:
        values = self._numbers.get(name, set())
        return min(values) if len(values) == 1 else None

    @property
    def nodes(self) -> Optional[int]:
        return self.number("nodes") or len(self.hosts) or None

    @property
    def ranks(self) -> Optional[int]:
        nodes, each = self.nodes, self.number("each")
        processes = self.number("ranks") or (nodes * each if nodes and each else 0)
        return processes * (self.number("gpus") or 1) or None
