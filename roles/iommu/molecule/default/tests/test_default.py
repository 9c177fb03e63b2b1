# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from testinfra.host import Host  # type: ignore[import-untyped]

from tests.molecule.scenario import Role

ROLE = Role(__file__)
DROPIN = "/etc/default/grub.d/99-busbar.cfg"


def test_the_arguments_are_in_a_file_of_our_own(host: Host) -> None:
    file = host.file(DROPIN)
    assert (file.user, file.mode) == ("root", 0o644)
    assert file.content_string.splitlines()[-2:] == [
        f"busbar_argument add {arg}" for arg in ("intel_iommu=on", "iommu=pt")
    ]
    assert 'GRUB_CMDLINE_LINUX="console=tty0"' in host.file("/etc/default/grub").content_string


def test_every_boot_entry_has_them_behind_what_was_there(host: Host) -> None:
    lines = [line for line in host.file("/boot/grub/grub.cfg").content_string.splitlines() if "vmlinuz" in line]
    linux = [line for line in lines if line.startswith("\tlinux")]
    assert len(linux) == 2
    assert all("console=tty0 intel_iommu=on iommu=pt" in line for line in linux)


def test_nothing_is_left_behind(host: Host) -> None:
    assert host.file("/etc/default/grub.d").listdir() == ["99-busbar.cfg"]
    assert host.file("/boot/grub").listdir() == ["grub.cfg"]
