# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The image of the lab's container nodes, made from Debian's packages: no image registry is needed."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from . import ofed, repository
from .machine import LabError, Machine
from .nccl_tests import TOOLKIT

SUITES = ("bookworm", "trixie")
REPOSITORY = "localhost/busbar-lab"
SOURCES = "/usr/src/busbar-lab"
# What the node's Python loads at its start, and where it is on nodes. What it keeps there is that of this machine.
COMPILED = Path(__file__).resolve().parent / "compiled" / "sitecustomize.py"
COMPILED_ON_NODE = "/usr/lib/busbar-lab-compiled"
_PTH = "/usr/lib/python3/dist-packages/busbar-lab.pth"
_PACKAGES = (
    "systemd-sysv", "dbus", "udev", "kmod", "procps", "iproute2", "iputils-ping", "ethtool", "pciutils", "numactl",
    "python3", "python3-apt", "sudo", "openssh-server", "openssh-client", "git", "make", "g++", "ca-certificates",
)  # fmt: skip
# The last is the one that depends on the others.
_OFED = [package.name for package in ofed.standard(ofed.INSTALLED)]
_DEBS = [
    f"{repository.TOP}/{ofed.RELEASES[ofed.INSTALLED].folder}/{repository.DISTRIBUTIONS[0]}/x86_64/{package.file}"
    for package in ofed.standard(ofed.INSTALLED)
]
# Every node makes its own host keys and machine id. A container has no console, no firmware and no devices to wait for.
_HOOKS = (
    'rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/hostname "$1"/etc/resolv.conf',
    'echo uninitialized > "$1/etc/machine-id"',
    'mkdir -p "$1/etc/systemd/system/ssh.service.d"',
    'printf "[Service]\\nExecStartPre=\\nExecStartPre=ssh-keygen -A\\nExecStartPre=sshd -t\\n"'
    ' > "$1/etc/systemd/system/ssh.service.d/keys.conf"',
    'chroot "$1" systemctl --quiet mask console-getty.service getty.target systemd-udevd.service'
    " systemd-firstboot.service",
    f'mkdir -p "$1{SOURCES}"',
    f"sync-in {{toolkit}} {SOURCES}",
    f'chroot "$1" make --quiet -C {SOURCES} install',
    f'mkdir -p "$1{COMPILED_ON_NODE}"',
    f"upload {{compiled}} {COMPILED_ON_NODE}/busbar_lab_compiled.py",
    f'printf "{COMPILED_ON_NODE}\\nimport busbar_lab_compiled\\n" > "$1{_PTH}"',
    f'mkdir -p "$1{repository.TOP}"',
    f"sync-in {{repository}} {repository.TOP}",
    # A script of a package may look for a program in any of these.
    f'PATH="$PATH:/usr/sbin:/sbin"; chroot "$1" dpkg --install {" ".join(_DEBS)} >&2',
    f'chroot "$1" apt-mark auto {" ".join(_OFED[:-1])} && chroot "$1" apt-mark hold {" ".join(_OFED)}',
    # After OFED: its headers are what nvidia_peermem is built with.
    f'chroot "$1" /usr/local/sbin/busbar-lab-kernel nvidia {Machine.driver_version}',
)
_WITHOUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")

Podman = Callable[..., subprocess.CompletedProcess[bytes]]


def wanted() -> str:
    """The release that nodes have where a command names none."""
    return os.environ.get("BUSBAR_LAB_RELEASE", SUITES[0])


def tag(suite: str) -> str:
    """The image's name: another one as soon as anything that goes into it is another."""
    if suite not in SUITES:
        raise LabError(f"there is no image of {suite!r}; there are {', '.join(SUITES)}")
    digest = hashlib.sha256(
        repr((suite, _PACKAGES, _HOOKS, _WITHOUT, repository.digest(), COMPILED.read_text())).encode()
    )
    for path in sorted(path for path in TOOLKIT.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        digest.update(repr((str(path.relative_to(TOOLKIT)), os.access(path, os.X_OK))).encode() + path.read_bytes())
    return f"{REPOSITORY}:{suite}-{digest.hexdigest()[:12]}"


def ensure(podman: Podman, suite: str, say: Callable[[str], None]) -> str:
    """The image's name, after it was built if it was not there. Of two that want it at once, one builds."""
    name = tag(suite)
    with one_by_one():
        if podman("image", "exists", name, check=False).returncode != 0:
            say(f"building the image {name} from Debian's packages (about a minute, once)")
            _build(podman, name, suite)
    return name


@contextlib.contextmanager
def locked(directory: Path, how: int = 0) -> Iterator[None]:
    """Hold a lock of a directory: no file of ours stays behind. how: LOCK_NB raises BlockingIOError if it is held."""
    lock = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | how)
        yield
    finally:
        os.close(lock)


def one_by_one() -> contextlib.AbstractContextManager[None]:
    """For what all labs of this checkout share: the machine's packages and the images."""
    return locked(TOOLKIT)


def _build(podman: Podman, name: str, suite: str) -> None:
    argv = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(_PACKAGES)}"]
    argv += [f"--dpkgopt=path-exclude={pattern}" for pattern in _WITHOUT]
    with tempfile.TemporaryDirectory(prefix="busbar-lab-") as folder:
        packages = Path(folder) / "repository"
        repository.create(packages)
        copied = (("{toolkit}", TOOLKIT), ("{repository}", packages), ("{compiled}", COMPILED))
        for hook in _HOOKS:
            for placeholder, path in copied:
                hook = hook.replace(placeholder, shlex.quote(str(path)))
            argv.append(f"--customize-hook={hook}")
        archive = f"{folder}/image.tar"
        done = subprocess.run([*argv, suite, archive], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            last = "\n".join((done.stderr or done.stdout).splitlines()[-15:])
            raise LabError(f"mmdebstrap could not make a {suite} system:\n{last}")
        changes = ['--change=CMD ["/sbin/init"]', "--change=STOPSIGNAL SIGRTMIN+3"]
        podman("import", "--quiet", *changes, archive, name)


def remove(podman: Podman) -> list[str]:
    """Every image that the lab has made; their names."""
    listed = podman("images", "--format", "{{.Repository}}:{{.Tag}}", REPOSITORY).stdout.decode().split()
    if listed:
        podman("rmi", *listed)
    return listed
