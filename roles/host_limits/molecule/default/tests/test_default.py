# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from testinfra.host import Host  # type: ignore[import-untyped]

from tests.molecule.scenario import checks, verdict

LOGIN, SERVICE = "/etc/security/limits.d/99-busbar.conf", "/etc/systemd/system.conf.d/99-busbar.conf"


def test_the_fresh_node_was_told_what_would_be_done() -> None:
    found = verdict("check")
    assert checks(found) == ["host_limits.login", "host_limits.service"]
    assert sorted(found["repaired"]) == [
        f"host_limits.login[persisted]@{LOGIN}",
        f"host_limits.service[persisted]@{SERVICE}",
    ]


def test_the_converged_node_has_no_finding() -> None:
    found = verdict("run")
    assert (found["findings"], found["repaired"]) == ([], [])
    assert found["passed"] >= 4


def test_a_login_gets_the_limits(host: Host) -> None:
    for user in ("root", "nobody"):
        words = f"runuser -u {user} -- prlimit --memlock --nofile --noheadings --output RESOURCE,HARD"
        assert host.file(LOGIN).mode == 0o644
        assert host.run(words).rc == 0


def test_systemd_takes_its_file(host: Host) -> None:
    host.check_output("systemctl daemon-reexec")
    assert host.check_output("systemctl show --value -p DefaultLimitNOFILE") == "1048576"
    assert host.check_output("systemctl show --value -p DefaultLimitMEMLOCK") == "infinity"
