# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import json
import time

import pytest
from testinfra.host import Host  # type: ignore[import-untyped]

from tests.molecule.scenario import Role, checks

ROLE = Role(__file__)
PROGRAM, UNIT, RING = "/usr/local/lib/busbar/watch.py", "busbar-watch.service", "/var/lib/busbar/watch"


def test_the_service_runs_at_low_priority_and_samples_every_gpu(host: Host) -> None:
    assert host.service(UNIT).is_enabled
    assert host.service(UNIT).is_running
    assert host.file(PROGRAM).mode == 0o755
    assert host.file(RING).mode == 0o700
    assert host.run(f"systemd-analyze verify /etc/systemd/system/{UNIT}").stderr == ""
    assert host.check_output(f"systemctl show {UNIT} --property=Nice --value") == "10"
    end, record = time.monotonic() + 60, ""
    while not record and time.monotonic() < end:
        time.sleep(0.5)
        record = host.run(f"cat {RING}/*.jsonl").stdout.partition("\n")[0]
    assert len(json.loads(record)["gpus"]) == 8


@pytest.mark.long
def test_switched_off_nothing_of_it_stays_but_what_was_watched(host: Host) -> None:
    off = ("-e", '{"watch_enabled": false}')
    assert checks(ROLE.play(*off, check=True)) == ["watch.files"]
    # A role that has nothing to judge does not prove that the node is well.
    assert checks(ROLE.play(*off, check=False)) == ["run.host"]
    assert host.run(f"ls {PROGRAM} /etc/systemd/system/{UNIT}").stdout == ""
    assert host.check_output(f"systemctl show {UNIT} --property=LoadState --value") == "not-found"
    assert host.file(RING).is_directory
    assert checks(ROLE.play(check=False)) == []
