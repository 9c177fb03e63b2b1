# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who fell silent first, of small logs whose lines are signed."""

from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, last_lines
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.jobs import split


def told(*lines: str) -> list[str]:
    log = job.read(["".join(f"{line}\n" for line in lines).encode()])
    return last_lines.told(log, split(log)[0])


def test_of_one_rank_or_of_a_thousand_nothing_is_told() -> None:
    assert told("[rank0]: one", "[rank0]: two") == []
    assert told(*[f"[rank{rank}]: one" for rank in range(1000)]) == []
