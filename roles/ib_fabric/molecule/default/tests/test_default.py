# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import pytest

from tests.molecule.scenario import Role, checks

ROLE = Role(__file__)


def test_what_was_written_down_of_a_plane_is_read() -> None:
    for name in ("check", "run"):
        found = ROLE.verdict(name)
        assert (found["findings"], found["repaired"]) == ([], [])
        assert found["passed_ids"] == ["ib_fabric.answer[live]@sweep"]


@pytest.mark.long
def test_a_node_without_the_tools_says_so() -> None:
    assert set(checks(ROLE.play("-e", '{"ib_fabric_dumps": ""}', check=True))) == {"ib_fabric.tools"}
