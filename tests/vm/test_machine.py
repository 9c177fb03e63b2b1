# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import debian

from . import image as images
from .conftest import NewVm
from .machine import Image, Machine, VmError

WAIT = ("systemctl", "is-system-running", "--wait")


def test_a_debian_boots_by_its_own_grub(vm: Machine) -> None:
    assert vm.ssh(*WAIT).stdout == "running\n"
    assert f"VERSION_CODENAME={images.SUITE}\n" in vm.read("/etc/os-release")
    assert "### BEGIN /etc/grub.d/10_linux ###" in vm.read("/boot/grub/grub.cfg")
    # Only grub.cfg as update-grub writes it names the kernel in full.
    assert vm.read("/proc/cmdline").startswith("BOOT_IMAGE=/boot/vmlinuz-6.")


def test_each_disk_gives_a_machine_an_id_of_its_own_and_leaves_the_image_alone(new_vm: NewVm, image: Image) -> None:
    before = image.disk.stat().st_mtime_ns
    first, second = (new_vm().read("/etc/machine-id").strip() for _ in range(2))
    assert len(first) == len(second) == 32
    assert first != second
    assert image.disk.stat().st_mtime_ns == before


def test_a_machine_with_another_host_key_is_refused(vm: Machine, tmp_path: Path) -> None:
    pinned = vm.image.known_hosts.read_text().split()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    other = (tmp_path / "other.pub").read_text().split()
    (tmp_path / "known_hosts").write_text(f"{pinned[0]} {other[0]} {other[1]}\n")
    (tmp_path / "id").symlink_to(vm.image.key)
    vm.image = Image(tmp_path)
    done = vm.ssh("true", check=False)
    assert done.returncode == 255
    assert "HOST IDENTIFICATION HAS CHANGED" in done.stderr


def test_a_machine_that_does_not_boot_shows_its_console(image: Image, tmp_path: Path) -> None:
    (tmp_path / "disk.img").write_bytes(bytes(1 << 20))
    machine = Machine(Image(tmp_path), tmp_path, "tcg")
    try:
        with pytest.raises(VmError, match="not reached by ssh within 3 s\n-- serial console --"):
            machine.start(3)
    finally:
        machine.cut()


def test_all_missing_packages_are_named_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(debian, "PLACES", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(images.ImageError, match="lacks qemu-system-x86 qemu-utils mmdebstrap e2fsprogs fdisk openssh"):
        images.ensure(print)


def test_half_an_image_is_no_image_and_of_two_at_once_one_makes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setattr(images, "CACHE", cache)
    # What a process leaves that was killed: its folder, with the image in it.
    (cache / "tmpabc" / "image").mkdir(parents=True)
    made = []

    def make(scratch: Path) -> None:
        made.append(scratch)
        (scratch / "image").mkdir()
        if len(made) == 1:
            raise images.ImageError("mmdebstrap ended with 1")
        # Long enough for the other one to come to the door.
        time.sleep(0.5)

    monkeypatch.setattr(images, "_make", make)
    with pytest.raises(images.ImageError, match="mmdebstrap ended with 1"):
        images.ensure(print)
    assert list(cache.iterdir()) == []
    with ThreadPoolExecutor(2) as pool:
        [image] = set(pool.map(images.ensure, [print, print]))
    assert list(cache.iterdir()) == [image.folder]
    assert len(made) == 2
