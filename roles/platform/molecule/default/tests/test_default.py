# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from tests.molecule.scenario import Role

ROLE = Role(__file__)


def test_the_node_is_what_its_profile_says_and_nothing_would_be_changed() -> None:
    for name in ("check", "run"):
        found = ROLE.verdict(name)
        assert (found["findings"], found["repaired"]) == ([], [])
        assert found["passed"] > 80
