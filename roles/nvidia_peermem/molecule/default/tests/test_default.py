# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from testinfra.host import Host  # type: ignore[import-untyped]

from tests.molecule.scenario import Role

ROLE = Role(__file__)
LIST = "/etc/modules-load.d/busbar-nvidia-peermem.conf"
# Of the simulated hardware.
MODULES = "/srv/busbar-lab/hw/sys/module"


def test_systemd_would_load_it_at_boot(host: Host) -> None:
    file = host.file(LIST)
    assert (file.user, file.mode) == ("root", 0o644)
    assert [line for line in file.content_string.splitlines() if not line.startswith("#")] == ["nvidia_peermem"]
    assert host.file("/etc/modules-load.d").listdir() == ["busbar-nvidia-peermem.conf", "modules.conf"]


def test_a_node_with_openibd_gets_a_unit_that_is_restarted_with_it(host: Host) -> None:
    unit = host.check_output("systemctl show -p PartOf -p LoadState busbar-nvidia-peermem.service")
    assert sorted(unit.split()) == ["LoadState=loaded", "PartOf=openibd.service"]
    # systemd reads it at the next boot: nothing has to be started before.
    dropin = host.file("/etc/systemd/system/multi-user.target.d/busbar-nvidia-peermem.conf")
    assert "Wants=busbar-nvidia-peermem.service" in dropin.content_string


def test_the_module_comes_back_with_an_openibd_that_was_stopped_before(host: Host) -> None:
    # As after a boot: the module has been loaded by the unit.
    host.check_output("systemctl daemon-reload && systemctl start busbar-nvidia-peermem.service")
    host.check_output("systemctl stop openibd")
    assert not {"ib_core", "nvidia_peermem"} & set(host.file(MODULES).listdir())
    host.check_output("systemctl start openibd")
    # systemctl waits for openibd, and not for what it wants.
    host.check_output(f"timeout 20 sh -c 'until test -d {MODULES}/nvidia_peermem; do sleep 0.1; done'")
