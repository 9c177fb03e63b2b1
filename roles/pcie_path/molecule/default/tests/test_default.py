# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from testinfra.host import Host  # type: ignore[import-untyped]

from tests.molecule.scenario import Role

ROLE = Role(__file__)
NAME = "busbar-pcie-path.service"
UNIT = f"/etc/systemd/system/{NAME}"
DEVICES = "/srv/busbar-lab/hw/sys/bus/pci/devices"


def word(host: Host, address: str, offset: int) -> str:
    command = f"od --address-radix=n --format=x2 --read-bytes=2 --skip-bytes={offset} {DEVICES}/{address}/config"
    return str(host.check_output(command).strip())


def test_systemd_takes_the_unit_and_it_sets_the_registers(host: Host) -> None:
    for address, offset, byte in (("0000:17:00.0", 0x14E, r"\035"), ("0000:18:00.0", 0x71, r"\051")):
        file = f"{DEVICES}/{address}/config"
        host.check_output(f"printf '{byte}' | dd of={file} bs=1 seek={offset} conv=notrunc")
    assert (word(host, "0000:17:00.0", 0x14E), word(host, "0000:18:00.0", 0x70)) == ("001d", "2930")
    host.check_output("systemctl daemon-reload")
    assert NAME in host.check_output("systemctl show --value -p Wants multi-user.target").split()
    host.check_output(f"systemctl restart {NAME}")
    assert (word(host, "0000:17:00.0", 0x14E), word(host, "0000:18:00.0", 0x70)) == ("0000", "5930")


def test_ports_that_are_nobodys_business_are_as_they_were(host: Host) -> None:
    # Above the NVSwitches; and nothing else is installed.
    assert word(host, "0000:04:00.0", 0x14E) == "001d"
    assert host.file("/usr/local/libexec/busbar").listdir() == ["pcie-path"]
    started = host.file("/etc/systemd/system/multi-user.target.d").listdir()
    assert [name for name in started if "pcie" in name] == ["busbar-pcie-path.conf"]
