# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One virtual machine of QEMU: starts, reboots, loses power, and is reached by ssh with its host key checked.

Needs no root and no KVM: where KVM does not boot the guest, its CPU is emulated.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# Seconds. An emulated machine is up after 20; the cores may be busy with other tests.
BOOT_LIMIT = 1200.0
KVM_LIMIT = 25.0
STOP_LIMIT = 600.0
# A machine's name for its host key: its port is another one each time.
ALIAS = "busbar-vm"
# An emulated machine has one CPU. The kernel patches its own code as it runs, and a second CPU of QEMU 7.2 may meet
# there a breakpoint that is gone already ("Oops: int3", a panic), or spin for ever.
_ACCELERATORS = {"kvm": ("kvm", "2"), "tcg": ("tcg,tb-size=128", "1")}
# Without AMD's virtualization, which costs a module at every boot. With RDRAND the kernel has its random numbers before
# there is a process.
_CPU = "qemu64,-svm,+rdrand"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_PUT = """\
import json, os, sys
for path, text in json.load(sys.stdin).items():
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, "w").write(text)
"""


class VmError(Exception):
    """The machine did not do what it was told. The message ends with the last lines of its serial console."""


@dataclass(frozen=True)
class Image:
    """A folder with a disk that is never written to, and the keys to it."""

    folder: Path

    @property
    def disk(self) -> Path:
        return self.folder / "disk.img"

    @property
    def key(self) -> Path:
        return self.folder / "id"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"


class Machine:
    """A machine with a disk of its own over the image.

    folder: where the disk and the console's log are kept; it exists.
    accelerator: "kvm" or "tcg", as ``accelerator`` found.
    iommu: an emulated Intel IOMMU, and nothing that gives away a hypervisor: of a virtual machine's IOMMU the suite
    asks nothing.
    devices: more of them, as QEMU's -device takes them. netdevs: what is behind those that are NICs, as -netdev does.
    """

    def __init__(
        self,
        image: Image,
        folder: Path,
        accelerator: str,
        *,
        iommu: bool = False,
        devices: Sequence[str] = (),
        netdevs: Sequence[str] = (),
    ) -> None:
        self.image = image
        self.accelerator = accelerator
        self.iommu = iommu
        self.devices = devices
        self.netdevs = netdevs
        self.disk = folder / "disk.qcow2"
        self.log = folder / "console.log"
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        argv = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", str(image.disk.resolve())]
        subprocess.run([*argv, str(self.disk)], check=True)

    def start(self, limit: float = BOOT_LIMIT) -> None:
        """Until ssh works. Raises VmError after ``limit`` seconds."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        # Should the tests be killed, the machine goes with them.
        self._process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *self._qemu()])
        self._wait(limit)

    def _qemu(self) -> list[str]:
        accelerator, cpus = _ACCELERATORS[self.accelerator]
        argv = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none"]
        argv += ["-accel", accelerator, "-smp", cpus, "-m", "768"]
        argv += ["-chardev", f"file,id=console,path={self.log},append=on", "-serial", "chardev:console"]
        argv += ["-drive", f"if=none,id=disk,file={self.disk},format=qcow2", "-device", "virtio-blk-pci,drive=disk"]
        # The guest reaches nothing, and only ssh reaches it.
        argv += ["-netdev", f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{self.port}-:22"]
        argv += ["-device", "virtio-net-pci,netdev=net,romfile="]
        argv += [word for netdev in self.netdevs for word in ("-netdev", netdev)]
        argv += [word for device in self.devices for word in ("-device", device)]
        if not self.iommu:
            return [*argv, "-machine", "q35", "-cpu", _CPU]
        argv += ["-machine", "q35,kernel-irqchip=split", "-device", "intel-iommu,intremap=on"]
        argv += ["-cpu", f"{_CPU},vendor=GenuineIntel,-hypervisor", "-smbios", "type=1,manufacturer=Busbar"]
        return argv

    # -- talking to it -----------------------------------------------------------------------------------------------

    def ssh_options(self) -> list[str]:
        options = {
            "UserKnownHostsFile": self.image.known_hosts,
            "GlobalKnownHostsFile": "none",
            "HostKeyAlias": ALIAS,
            "StrictHostKeyChecking": "yes",
            "IdentitiesOnly": "yes",
            "BatchMode": "yes",
            "ConnectTimeout": 10,
            # A machine that has lost its power does not close its connections.
            "ServerAliveInterval": 10,
        }
        return ["-F", "none", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]

    def ssh(self, *argv: str, check: bool = True, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Runs a command as root. Raises VmError where it does not end with 0."""
        command = ["ssh", *self.ssh_options(), "-i", str(self.image.key), "-p", str(self.port), "root@127.0.0.1"]
        done = subprocess.run(
            [*command, "--", shlex.join(argv)], input=stdin, capture_output=True, text=True, check=False
        )
        if check and done.returncode != 0:
            raise VmError(f"{shlex.join(argv)} exited with {done.returncode}: {done.stderr.strip()}\n{self.console()}")
        return done

    def read(self, path: str) -> str:
        return self.ssh("cat", path).stdout

    def put(self, texts: Mapping[str, str]) -> None:
        """Writes files: path -> text. One connection for all: to an emulated machine it takes a second."""
        self.ssh("python3", "-c", _PUT, stdin=json.dumps(dict(texts)))

    def boot_id(self) -> str:
        return self.read(_BOOT_ID).strip()

    def console(self, lines: int = 30) -> str:
        """The end of the serial console's log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(["-- serial console --", *text.splitlines()[-lines:]])

    def _wait(self, limit: float, other_than: str = "") -> None:
        """For a boot, ``other_than`` the one that was. Raises VmError."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                raise VmError(f"the machine has ended\n{self.console()}")
            # QEMU accepts a connection before anybody listens in the guest: only the banner tells.
            if self._banner():
                done = self.ssh("cat", _BOOT_ID, check=False)
                if done.returncode == 0 and done.stdout.strip() != other_than:
                    return
            time.sleep(0.2)
        raise VmError(f"not reached by ssh within {limit:g} s\n{self.console()}")

    def _banner(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    # -- power -------------------------------------------------------------------------------------------------------

    def reboot(self) -> None:
        """Until ssh works in another boot. Raises VmError."""
        before = self.boot_id()
        # The connection may be gone before the answer.
        self.ssh("systemctl", "reboot", check=False)
        self._wait(BOOT_LIMIT, other_than=before)

    def stop(self) -> None:
        """Shuts down. Raises VmError where that does not end."""
        if self._process is None:
            return
        self.ssh("systemctl", "poweroff", check=False)
        try:
            self._process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired as error:
            raise VmError(f"has not shut down within {STOP_LIMIT:g} s\n{self.console()}") from error
        self._process = None

    def cut(self) -> None:
        """Takes the power away, if it is on. What the guest had not synced is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def accelerator(image: Image, folder: Path) -> tuple[str, str]:
    """Where a machine boots under it in time "kvm", else "tcg"; and why, for people.

    A kernel may hang under KVM for ever where the host is a virtual machine itself.
    """
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg", "/dev/kvm is not there or not ours"
    trial = Machine(image, folder, "kvm", iommu=True)
    try:
        trial.start(KVM_LIMIT)
    except VmError:
        return "tcg", f"no boot under KVM within {KVM_LIMIT:g} s"
    finally:
        trial.cut()
    return "kvm", "a boot under KVM succeeded"
