# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""--all leaves nothing out that a small log says: what rules have told in part stands there as it is."""

from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, untold
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.jobs import split
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.judge import judge
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render

TITLE = "the rest of the log"
LINES = [
    "n1:10:11 [0] NCCL INFO Bootstrap : Using eth7:10.1.2.3<0>",
    "n1:10:11 [0] NCCL INFO Kernel quirk 77 taken",
    "n1:10:12 [1] NCCL INFO Kernel quirk 78 taken",
    *[
        f"[rank{rank}]:[E703 21:51:54.11{rank} ProcessGroupNCCL.cpp:1987] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
        f" Received a dump signal due to a collective timeout from rank 7 and we will try our best to dump the debug"
        f" info. Last enqueued NCCL work: {600 + rank}, last completed NCCL work: 598."
        for rank in range(3)
    ],
    "| 512 | 128 | 4 | 0.151 | 850.01 |",
    "| 512 | 128 | 8 | 0.302 | 861.44 |",
    "all went well",
    "   [12] Timeout",
    "link 12 has no Timeout of its own in this long line",
    "[  +0.000004] pcieport 0000:00:03.0:    [13] Replayed",
    "[  +0.000009] pcieport 0000:00:03.0:   device status 00001000 of link 13",
]


def printed(lines: list[str]) -> str:
    log = job.read(["".join(f"{line}\n" for line in lines).encode()])
    return " ".join(render(log, split(log), judge(log), 120).split())


def test_a_kind_stands_there_once_and_what_is_printed_not_again() -> None:
    said = printed([*LINES, *[f"n1:10:11 [0] NCCL INFO Kernel quirk {number} taken" for number in range(100, 300)]])
    rest = said.partition(TITLE)[2]
    assert (rest.count("Kernel quirk"), rest.count("Bootstrap : Using")) == (1, 0)
    assert "202 such up to line 213" in rest


def test_of_a_large_log_no_line_is_kept() -> None:
    many = [f"step {number} of something else entirely" for number in range(untold.LINES)]
    log = job.read(["".join(f"{line}\n" for line in [*LINES, *many]).encode()])
    assert log.small.kept == []
    assert TITLE not in printed([*LINES, *many])
