# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Checks of a running job by NCCL's RAS."""

from __future__ import annotations

from ..core.check import Check

COLLECT = "before you kill anything, save what would be lost: docs/diagnose.md#a-job-hangs"
ANSWERED = Check(
    "nccl_hang.answer",
    why="RAS runs in the job's own processes: where it is silent on all of them, they are stopped or dead",
    fix="look at the processes: ps -o pid,stat,wchan:32,cmd -p PID",
)
"Does RAS give a valid response, twice"
MISSING = Check(
    "nccl_hang.missing",
    why="every other rank waits for it forever",
    severity="critical",
)
"Do all processes of the job respond to RAS"
ERROR = Check(
    "nccl_hang.error",
    why="NCCL has given up in this rank; the others do not know and wait for it",
    severity="critical",
)
"Has no rank an error of NCCL"
INITIALIZED = Check(
    "nccl_hang.init",
    why="a communicator is complete only when all of its ranks have joined",
    severity="critical",
)
"Have all ranks of a communicator started its initialisation"
STATUS = Check(
    "nccl_hang.status",
    why="a rank that ends a communicator, or has left it, launches nothing any more, and the others wait for it",
    severity="major",
)
"If ranks leave a communicator, do all of them leave it"
BEHIND = Check(
    "nccl_hang.behind",
    why="a collective begins when its last rank launches it: the others wait for the rank that has launched the fewest",
    severity="critical",
)
"Have all ranks of a communicator launched as many collectives, or do the numbers move"
ORDER = Check(
    "nccl_hang.order",
    why="ranks that launch different collectives, or the same in another order, wait for each other forever",
    severity="critical",
    fix="the cause is the program: compare the stacks (py-spy dump --pid PID) of a rank of each kind",
)
"Have all ranks of a communicator launched the same kinds of collectives"
PROGRESS = Check(
    "nccl_hang.progress",
    why="a job that launches nothing computes, reads data, or is stuck within a collective, which RAS cannot see",
)
"Does the job launch collectives"
RAS = Check(
    "nccl_hang.ras",
    why="without RAS (its JSON: NCCL 2.28.7 and later) nothing outside of a job's processes knows what its ranks wait"
    " for",
    fix="start the job with NCCL 2.28.7 or later, and without NCCL_RAS_ENABLE=0",
)
"Has each NCCL job on the node a RAS that can be queried"
READABLE = Check(
    "nccl_hang.readable",
    why="a job whose processes cannot be read is not queried",
)
"Can the node's processes be read"
