# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The machines' disk: a Debian that boots by BIOS and GRUB, made of Debian's packages without loop devices.

Kept in .cache/vm/<release>-<hash of this file>/, with the keys to it. Two minutes, once; root only to make it.
BUSBAR_VM_RELEASE=trixie is Debian 13, with its kernel 6.12.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests import debian

from .machine import ALIAS, Image, Machine

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "vm"
SUITES = ("bookworm", "trixie")
SUITE = os.environ.get("BUSBAR_VM_RELEASE", SUITES[0])
_PACKAGES = (
    "linux-image-amd64", "initramfs-tools", "zstd", "grub-pc-bin", "grub2-common", "systemd-sysv", "udev", "dbus",
    "kmod", "procps", "iproute2", "openssh-server", "python3",
    # Of the pair: Debian's kernel has rdma_rxe, its cloud kernel has not.
    "rdma-core", "ibverbs-providers", "ibverbs-utils", "perftest", "iputils-ping", "ethtool",
)  # fmt: skip
_WITHOUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")
# Program -> Debian's package.
_TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "sfdisk": "fdisk",
    "ssh-keygen": "openssh-client",
}

SECTOR = 512
FIRST_SECTOR = 2048
MEBIBYTES = 2048
_UUID = "6f1c2d3e-0000-4000-8000-000000000001"
# Before the kernel's package writes its initramfs: only what this machine has, which is a third of it.
_INITRAMFS = """\
mkdir -p "$1/etc/initramfs-tools/conf.d"
echo MODULES=list > "$1/etc/initramfs-tools/conf.d/vm"
printf "virtio_pci\\nvirtio_blk\\next4\\n" > "$1/etc/initramfs-tools/modules"
"""
# An emulated CPU needs no protection from itself, and is faster without. Its timer is late where the cores are busy,
# and the kernel would take it for broken: a panic.
_CMDLINE = "console=ttyS0,115200 no_timer_check mitigations=off"
_FILES = {
    "/etc/hostname": "vm\n",
    "/etc/hosts": "127.0.0.1 localhost\n127.0.1.1 vm\n",
    # Every overlay makes its own at its first boot.
    "/etc/machine-id": "",
    "/etc/fstab": f"UUID={_UUID} / ext4 defaults 0 1\n",
    "/etc/ssh/sshd_config.d/vm.conf": "PasswordAuthentication no\nUseDNS no\n",
    "/etc/systemd/network/10-vm.network": "[Match]\nType=ether\n[Network]\nDHCP=ipv4\nLinkLocalAddressing=no\n",
    "/etc/default/grub": (
        "GRUB_DEFAULT=0\nGRUB_TIMEOUT=0\nGRUB_TERMINAL=serial\nGRUB_SERIAL_COMMAND='serial --unit=0 --speed=115200'\n"
        f'GRUB_CMDLINE_LINUX="{_CMDLINE}"\n'
    ),
    # For the first boot, in which update-grub writes the real one.
    "/boot/grub/grub.cfg": f"linux /vmlinuz root=UUID={_UUID} ro {_CMDLINE}\ninitrd /initrd.img\nboot\n",
}
# Since OpenSSH 9.8 who connects and says nothing, as we do to see whether it listens, is shut out for a while.
if SUITE != "bookworm":
    _FILES["/etc/ssh/sshd_config.d/vm.conf"] += "PerSourcePenalties no\n"
_UNITS_ON = ("systemd-networkd.service", "ssh.service")
_UNITS_OFF = (
    "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "fstrim.timer",
    "e2scrub_reap.service", "getty@tty1.service", "systemd-networkd-wait-online.service",
)  # fmt: skip


class ImageError(Exception):
    """There is no image, with the way to one."""


def ensure(say: Callable[[str], None]) -> Image:
    """The image, made if it is not there. Of two that want it at once, one makes it. Raises ImageError and VmError."""
    if lacking := debian.install(_TOOLS):
        raise ImageError(f"virtual machines need packages: {lacking}")
    if SUITE not in SUITES:
        raise ImageError(f"BUSBAR_VM_RELEASE is {SUITE!r}, and there are {', '.join(SUITES)}")
    digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    made = CACHE / f"{SUITE}-{digest}"
    others = tuple(f"{suite}-" for suite in SUITES if suite != SUITE)
    CACHE.mkdir(parents=True, exist_ok=True)
    with _alone():
        if not made.is_dir():
            if os.geteuid() != 0:
                raise ImageError(f"{made} is not there, and only root can make it: run the tests as root once")
            # Older images, and what a killed run has left.
            for path in [path for path in CACHE.iterdir() if not path.name.startswith(others)]:
                shutil.rmtree(path)
            say(f"making {made} from Debian's packages (two to three minutes, once)")
            with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
                _make(Path(scratch))
                (Path(scratch) / "image").rename(made)
    return Image(made)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    # A directory can be locked as a file can, and no file of ours stays behind.
    lock = os.open(CACHE, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _run(*argv: object, stdin: str = "") -> None:
    """Raises ImageError with the tool's last words."""
    words = list(map(str, argv))
    environment = {**os.environ, "PATH": debian.PLACES, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(words, input=stdin, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        last = "\n".join((done.stderr or done.stdout).splitlines()[-15:])
        raise ImageError(f"{words[0]} ended with {done.returncode}:\n{last}")


def _make(scratch: Path) -> None:
    """An image in ``scratch``/image."""
    root, image = scratch / "root", Image(scratch / "image")
    image.folder.mkdir()
    argv = ["mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", f"--include={','.join(_PACKAGES)}"]
    argv += [f"--dpkgopt=path-exclude={pattern}" for pattern in _WITHOUT]
    _run(*argv, f"--essential-hook={_INITRAMFS}", SUITE, root)
    _keys(root, image, scratch)
    for path, text in _FILES.items():
        target = root / path[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    _run("chroot", root, "systemctl", "--quiet", "enable", *_UNITS_ON)
    _run("chroot", root, "systemctl", "--quiet", "mask", *_UNITS_OFF)
    _disk(root, image.disk)
    shutil.rmtree(root)
    _first_boot(image, scratch)
    image.disk.chmod(0o444)


def _keys(root: Path, image: Image, scratch: Path) -> None:
    """Ours goes in. The machine's is pinned outside, so that it can be checked from the first connection on."""
    host_key = scratch / "host_key"
    for path in (image.key, host_key):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", ALIAS, "-f", path)
    kind, key = host_key.with_suffix(".pub").read_text().split()[:2]
    image.known_hosts.write_text(f"{ALIAS} {kind} {key}\n")
    for path in (root / "etc/ssh").glob("ssh_host_*"):
        path.unlink()
    shutil.copy(host_key, root / "etc/ssh/ssh_host_ed25519_key")
    (root / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
    shutil.copy(image.key.with_suffix(".pub"), root / "root/.ssh/authorized_keys")


def _disk(root: Path, disk: Path) -> None:
    """What grub-install and mkfs do to a device, done to a file: boot sector, GRUB's core behind it, one partition."""
    modules = root / "usr/lib/grub/i386-pc"
    shutil.copytree(modules, root / "boot/grub/i386-pc", ignore=shutil.ignore_patterns("*.img"))
    core = "/boot/grub/i386-pc/core.img"
    argv = ["chroot", root, "grub-mkimage", "-O", "i386-pc", "-o", core, "-p", "(hd0,msdos1)/boot/grub"]
    _run(*argv, "biosdisk", "part_msdos", "ext2", "normal", "linux")
    with disk.open("wb") as stream:
        stream.truncate(MEBIBYTES << 20)
    _run("sfdisk", "--quiet", disk, stdin=f"label: dos\nstart={FIRST_SECTOR}, type=83, bootable\n")
    # Both differ from what Debian 12 has by default: its GRUB could not read the file system.
    features = "^metadata_csum_seed,^orphan_file"
    argv = ["mke2fs", "-q", "-F", "-t", "ext4", "-U", _UUID, "-O", features, "-d", root]
    _run(*argv, "-E", f"offset={FIRST_SECTOR * SECTOR}", disk, f"{MEBIBYTES - 1}M")
    with disk.open("r+b") as stream:
        # Code only: the partition table is behind it. It loads the core from the next sector on.
        stream.write((modules / "boot.img").read_bytes()[:440])
        stream.seek(SECTOR)
        stream.write((root / core[1:]).read_bytes())


def _first_boot(image: Image, scratch: Path) -> None:
    """The guest's own update-grub writes grub.cfg: outside it does not know the disk."""
    machine = Machine(image, scratch, "tcg")
    try:
        machine.start()
        machine.ssh("update-grub")
        machine.ssh("truncate", "--size=0", "/etc/machine-id")
        machine.stop()
    finally:
        machine.cut()
    _run("qemu-img", "commit", "-q", machine.disk)
