# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who fell silent first, of small logs whose lines are signed."""

from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, last_lines
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.jobs import split

BEGUN = (
    "h{0}:1{0}:2{0} [0] NCCL INFO ncclCommInitRank comm 0x{0}a rank {0} nranks 3 cudaDev 0 nvmlDev 0 busId 18000"
    " commId 0x7 - Init START"
)


def told(*lines: str) -> list[str]:
    log = job.read(["".join(f"{line}\n" for line in lines).encode()])
    return last_lines.told(log, split(log)[0])


def test_by_heads_and_by_programs_marks_and_who_signs_none() -> None:
    assert told(BEGUN.format(0), BEGUN.format(1), "2026-11-23 16:28:05,804 - rank0 - INFO - step 3", "") == [
        "the last line of each rank, in the order in which they fell silent: rank 1 (line 2), rank 0 (line 3, 16:28:05)"
        "; no line is signed by rank 2; the log ends with line 4"
    ]


def test_what_a_line_says_of_another_rank_does_not_sign_it() -> None:
    # And it may be of rank 0 itself.
    lines = ["[rank0]:[E1 16:30:00.1 x.cc:1] timeout from rank 1", "[rank2]: bye", "waiting for rank 1 - dead"]
    assert told(*lines) == [
        "the last line of each rank, the earliest first (lines that name no rank follow it, and may be its own):"
        " rank 0 (line 1, 16:30:00), rank 2 (line 2); the log ends with line 3"
    ]


def test_of_one_rank_or_of_a_thousand_nothing_is_told() -> None:
    assert told("[rank0]: one", "[rank0]: two") == []
    assert told(*[f"[rank{rank}]: one" for rank in range(1000)]) == []
