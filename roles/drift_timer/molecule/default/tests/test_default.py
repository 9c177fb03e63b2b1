# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import json
import time
from typing import Any

import pytest
from testinfra.host import Host  # type: ignore[import-untyped]

from tests.molecule.scenario import Role, checks

ROLE = Role(__file__)
SERVICE, TIMER = "busbar-drift.service", "busbar-drift.timer"
STATE = "/var/lib/busbar-drift"


def runs(host: Host, code: int) -> dict[str, Any]:
    """What the stand-in was told when the timer next started it, once it has ended with that code."""
    host.check_output(f"echo {code} > /srv/site/exit; rm -f {STATE}/told.json")
    end = time.monotonic() + 30
    while time.monotonic() < end:
        shown = host.check_output(f"systemctl show {SERVICE} --property=ExecMainStatus,ActiveState")
        told = host.run(f"cat {STATE}/told.json")
        if told.rc == 0 and f"ExecMainStatus={code}\n" in shown and "activating" not in shown:
            return dict(json.loads(told.stdout))
        time.sleep(0.2)
    raise AssertionError(host.check_output(f"systemctl status {TIMER} {SERVICE}; journalctl -u {SERVICE}; true"))


def test_the_timer_waits_for_the_night_and_comes_back_after_a_boot(host: Host) -> None:
    assert host.service(TIMER).is_enabled
    assert host.service(TIMER).is_running
    # Nothing was asked when the role was played.
    assert not host.file(f"{STATE}/told.json").exists
    shown = host.check_output(f"systemctl show {TIMER} --property=NextElapseUSecRealtime --value")
    assert " 02:00:0" in shown
    assert host.run(f"systemd-analyze verify /etc/systemd/system/{SERVICE} /etc/systemd/system/{TIMER}").stderr == ""


def test_the_user_has_a_home_and_no_password(host: Host) -> None:
    user = host.user("busbar")
    assert (user.home, user.uid < 1000, host.file(STATE).user) == (STATE, True, "busbar")
    assert host.check_output("passwd --status busbar").split()[1] == "L"


def test_the_timer_fires_and_what_it_starts_has_all_it_needs(host: Host) -> None:
    assert checks(ROLE.play("-e", "drift_timer_schedule=*:*:0/3", check=False)) == []
    told = runs(host, 2)
    assert (told["cwd"], told["user"], told["HOME"]) == ("/srv/site", "busbar", STATE)
    assert told["argv"] == [
        *("/srv/busbar/bin/busbar", "drift", "-i", "inventory", "--history", f"{STATE}/drift.sqlite"),
        *("--keep-days", "400", "--notify", "mail -s '100 % Busbar' ops@example.org"),
        *("--html", f"{STATE}/drift.html"),
    ]
    assert told["ANSIBLE_CONFIG"] == "/srv/site/ansible.cfg"
    assert told["ANSIBLE_VAULT_PASSWORD_FILE"] == "/srv/site/price $5"
    assert told["PATH"].startswith("/srv/busbar/bin:")
    assert host.file(STATE).mode == 0o750
    log = host.check_output(f"journalctl --output=cat --identifier=busbar-drift --unit={SERVICE}")
    assert "998 of 1,000 hosts checked in full" in log
    # Drift is an answer, and no failure of the service.
    assert host.check_output(f"systemctl show {SERVICE} --property=Result --value") == "success"
    host.check_output(f"systemctl stop {TIMER} && echo 4 > /srv/site/exit")
    assert host.run(f"systemctl start {SERVICE}").rc == 1
    found = ROLE.play(check=True)
    assert checks(found) == ["drift_timer.enabled", "drift_timer.last_run", "drift_timer.units"]
    assert "exit-code, status 4" in [finding["have"] for finding in found["findings"]]
    host.check_output(f"systemctl reset-failed {SERVICE}")


@pytest.mark.long
def test_absent_leaves_history_and_user_and_nothing_that_starts(host: Host) -> None:
    host.check_output(f"touch {STATE}/drift.sqlite")
    assert checks(ROLE.play("-e", "drift_timer_state=absent", check=False)) == []
    assert host.check_output("find /etc/systemd /run/systemd/generator -name 'busbar-drift*'") == ""
    assert host.check_output(f"systemctl show {TIMER} --property=LoadState,ActiveState").split() == [
        "LoadState=not-found",
        "ActiveState=inactive",
    ]
    assert host.file(f"{STATE}/drift.sqlite").exists
    assert host.user("busbar").exists
    assert checks(ROLE.play(check=False)) == []
