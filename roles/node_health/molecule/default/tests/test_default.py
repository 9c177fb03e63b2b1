# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from tests.molecule.scenario import Role

ROLE = Role(__file__)
GPUS, CHECKS = 8, ("recovery_action", "xid", "ecc", "row_remap", "throttle", "power_limit", "mig", "nvlink_state")


def test_the_node_is_well_and_nothing_would_be_changed() -> None:
    for name in ("check", "run"):
        found = ROLE.verdict(name)
        assert (found["findings"], found["repaired"]) == ([], [])
        assert found["passed"] > GPUS * len(CHECKS)
        # mlxlink is there and has answered for every rail.
        assert {f"node_health.{name}[live]@rails" for name in ("module_temperature", "bit_errors")} <= {
            *found["passed_ids"]
        }
