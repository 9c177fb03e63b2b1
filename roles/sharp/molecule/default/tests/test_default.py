# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import pytest

from tests.molecule.scenario import Role, checks

ROLE = Role(__file__)


def test_a_node_that_has_all_it_needs_has_nothing_to_report() -> None:
    for name in ("check", "run"):
        found = ROLE.verdict(name)
        assert (found["findings"], found["repaired"], found["passed"]) == ([], [], 9)
        assert "only NCCL's log proves" in found["notes"][0]


@pytest.mark.long
def test_a_job_of_one_node_has_nothing_to_reduce_in_a_switch() -> None:
    assert checks(ROLE.play("-e", '{"sharp_nodes": 1}', check=True)) == ["sharp.threshold"]
