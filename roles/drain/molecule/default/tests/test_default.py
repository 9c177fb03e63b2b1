# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from tests.molecule.scenario import Role

ROLE = Role(__file__)


def test_a_node_in_service_has_nothing_to_report() -> None:
    for name in ("check", "run"):
        found = ROLE.verdict(name)
        notes = [note for note in found["notes"] if not note.startswith("SHARP: ")]
        assert (found["findings"], found["repaired"], notes) == ([], [], [])
        assert found["passed"] == 1
