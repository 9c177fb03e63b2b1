# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from testinfra.host import Host  # type: ignore[import-untyped]

from tests.molecule.scenario import Role

ROLE = Role(__file__)


def test_a_node_that_waits_for_nothing_is_not_rebooted(host: Host) -> None:
    for name in ("check", "run"):
        found = ROLE.verdict(name)
        assert (found["findings"], found["repaired"]) == ([], [])
    assert host.check_output("systemctl is-system-running") == "running"
