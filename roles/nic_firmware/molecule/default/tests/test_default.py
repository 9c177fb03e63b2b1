# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import pytest
from testinfra.host import Host  # type: ignore[import-untyped]

from tests.molecule.scenario import Role, checks

ROLE = Role(__file__)
CARD = "0000:18:00.0"


def next_boot(host: Host, name: str) -> str:
    table = host.check_output(f"mstconfig -d {CARD} -e query {name}")
    return str(next(line.split()[-1] for line in table.splitlines() if name in line.split()))


def test_the_fresh_node_has_no_finding_and_neither_has_the_converged_one() -> None:
    # Two answers of each card, and that it has the settings.
    for when in ("check", "run"):
        found = ROLE.verdict(when)
        assert (checks(found), found["repaired"], found["passed"]) == ([], [], 24)


@pytest.mark.long
def test_what_somebody_has_written_is_written_back_without_a_reset(host: Host) -> None:
    host.check_output(f"mstconfig -d {CARD} -y set ATS_ENABLED=1")
    found = ROLE.play(check=True)
    assert (checks(found), next_boot(host, "ATS_ENABLED")) == (["nic_firmware.settings"], "True(1)")
    assert checks(ROLE.play(check=False)) == []
    assert next_boot(host, "ATS_ENABLED") == "False(0)"
    assert not host.file("/var/lib/busbar/nic_firmware/pending.json").exists
