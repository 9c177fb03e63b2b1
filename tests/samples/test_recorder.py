# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Real dumps of PyTorch 2.11 on two H100: one rank stopped, one in another collective, one that waits elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose import inspector, recorder

from busbar import inspector as inspector_command
from busbar import recorder as command

# Case -> verdict, roots (rank, kind, number, who waits), mismatch (number, what, names).
CASES = {
    "stop": ("stopped", [(1, recorder.NO_DUMP, 251, (0,))], []),
    "order": ("stopped", [(0, recorder.ABSENT, 2446, (1,))], []),
    "uneven": ("stopped", [], [(251, "collective", ["nccl:all_reduce", "nccl:all_reduce_barrier"])]),
}


@pytest.mark.parametrize("name", CASES)
def test_real_dumps(samples: Path, name: str) -> None:
    dumps = command.load(samples / "h100x2-stall" / name / "flight-recorder")
    found = recorder.judge(dumps.of_ranks, dumps.problems)
    verdict, roots, mismatches = CASES[name]
    assert command.verdict(found)[0] == verdict
    assert [(one.rank, one.kind, one.number, one.waiting) for one in found.roots] == roots
    assert [
        (one.number, one.what, [operation.name for operation, _ranks, _place in one.sides]) for one in found.mismatches
    ] == mismatches
    assert (found.releases, found.complete, found.missing) == (("2.28.9",), name != "stop", (1,) * (name == "stop"))


# Case -> verdict, late ranks, ranks behind.
INSPECTOR = {"healthy": ("ok", [], []), "slow": ("slow", [1], []), "stop": ("stopped", [], [1])}


@pytest.mark.parametrize("name", INSPECTOR)
def test_real_records_of_the_inspector(samples: Path, name: str) -> None:
    collector = inspector_command.load(samples / "h200x2-inspector" / name)
    end = max(member.time for members in collector.members.values() for member in members.values())
    found = inspector.judge(collector, end + inspector.QUIET)
    ranks = [late.rank for late in found.late], [behind.rank for behind in found.behind]
    assert (inspector_command.verdict(found)[0], *ranks) == INSPECTOR[name]
