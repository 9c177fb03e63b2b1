# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Faults of OFED: its packages, their repository, what dkms has built for which kernel, and what of it is loaded.

Each changes one thing of the node and leaves the rest as it would be found then. From field.md F2, F13, F14,
F30 and F44.
"""

from __future__ import annotations

from collections.abc import Callable

from . import ofed
from .fault import Command, CommandFault, Fault, FileFault, provisioned, removed, said
from .machine import LabError, Machine

STATUS = "/var/lib/dpkg/status"
# Where the suite keeps them.
SOURCES = "/etc/apt/sources.list.d/busbar-mofed.sources"
KEY = "/etc/apt/keyrings/busbar-mofed.asc"
UMAD_LIST = "/etc/modules-load.d/busbar-ib-umad.conf"
MODULES_DEP = f"/lib/modules/{Machine.kernel}/modules.dep"
NEWER_KERNEL = "6.8.0-71-generic"

_RELEASE, _OLDER = ofed.RELEASES[ofed.INSTALLED], ofed.RELEASES["3.1.0"]
_NVLINK_5 = ("hgx-b200",)
_LEFT = "mlnx-ofed-basic"
_NFS = "storage01:/export /mnt/data nfs4 rw,relatime,vers=4.2,hard,proto=rdma,port=20049,addr=10.40.0.250 0 0"


def _meta_package(change: Callable[[str], str]) -> Callable[[Machine, str | None], str]:
    """Changes what dpkg knows of the package that depends on all others; "" takes it away."""

    def edit(machine: Machine, text: str | None) -> str:
        stanzas = (text or "").split("\n\n")
        found = [n for n, stanza in enumerate(stanzas) if stanza.startswith(f"Package: {_RELEASE.meta}\n")]
        if not found:
            raise LabError(f"{_RELEASE.meta} is not installed on {machine.hostname}")
        stanzas[found[0]] = change(stanzas[found[0]])
        return "\n\n".join(stanza for n, stanza in enumerate(stanzas) if stanza or n not in found)

    return edit


def _older_version(stanza: str) -> str:
    return stanza.replace(f"Version: {_RELEASE.meta_version}", f"Version: {_OLDER.meta_version}")


def _leave_mlnx_ofed(machine: Machine, text: str | None) -> str:
    # By itself, as after a removal that was not finished. mlnx-ofed-all would conflict with doca-ofed, and apt would
    # do nothing at all before that is settled.
    left = ofed.Package(_LEFT, ofed.RELEASES["24.10-2.1.8.0"].meta_version, "MLNX_OFED: basic packages")
    return (text or "") + ofed.status([left], "install")


def _older_repository(machine: Machine, text: str | None) -> str:
    return provisioned(SOURCES, text).replace(f"/{_RELEASE.folder}/", f"/{_OLDER.folder}/")


def _another_key(machine: Machine, text: str | None) -> str:
    lines = provisioned(KEY, text).splitlines()
    return "\n".join([*lines[:2], *reversed(lines[2:-1]), lines[-1]]) + "\n"


def _lose_umad(machine: Machine) -> None:
    machine.modules.pop("ib_umad", None)


def _shadow(machine: Machine, text: str | None) -> str:
    """As depmod would write it with a search order that puts the kernel's own modules first."""
    inbox = "kernel/drivers/net/ethernet/mellanox/mlx5/core/mlx5_core.ko:"
    kept = [line for line in (text or "").splitlines() if not line.startswith("updates/dkms/mlx5_core.ko:")]
    return "".join(f"{line}\n" for line in [*kept, inbox])


def _load_older(machine: Machine) -> None:
    machine.load_ofed("3.1.0")


def _mount_over_rdma(machine: Machine) -> None:
    machine.mounts.append(_NFS)
    machine.modules["rpcrdma"] = None


_LAB_KERNEL, _UPDATE_GRUB = "/usr/local/sbin/busbar-lab-kernel", Command(("/usr/sbin/update-grub",))
_BUILD = ("/usr/sbin/dkms", "install", f"mlnx-ofed-kernel/{_RELEASE.build}", "-k", NEWER_KERNEL)
_NVIDIA = ("nvidia/{machine.driver_version}", "-k", "{machine.kernel}", "--force")
_PACKAGE_FAULTS = ("ofed-missing", "ofed-other-version", "ofed-not-held", "mlnx-ofed-left")
# A new boot loader's configuration would take back what these have done to the old one.
_KERNEL_FAULTS = ("kernel-without-ofed", "headers-missing", "dkms-build-failed", "grub-forgetful")


def _package_fault(
    name: str, description: str, check: str, edit: Callable[[Machine, str | None], str], subject: str = _RELEASE.meta
) -> Fault:
    return Fault(name, description, check, said(subject), FileFault(STATUS, edit), excludes=_PACKAGE_FAULTS)


def _kernel_fault(
    name: str,
    description: str,
    check: str,
    headers: str,
    *more: Command,
    consequences: tuple[str, ...] = (),
    stays: bool = False,
) -> Fault:
    """Another kernel has been installed, and the next boot is into it."""
    change = CommandFault(
        (Command((_LAB_KERNEL, "install", NEWER_KERNEL, headers)), _UPDATE_GRUB, *more),
        (Command((_LAB_KERNEL, "remove", NEWER_KERNEL)), _UPDATE_GRUB),
    )
    return Fault(
        name,
        description,
        check,
        said(NEWER_KERNEL),
        change,
        consequences=consequences,
        excludes=_KERNEL_FAULTS,
        stays=stays,
    )


CATALOGUE = (
    _package_fault(
        "ofed-missing", f"somebody has removed {_RELEASE.meta}", "ofed.packages", _meta_package(lambda stanza: "")
    ),
    _package_fault(
        "ofed-other-version",
        f"{_RELEASE.meta} is {_OLDER.meta_version}",
        "ofed.packages",
        _meta_package(_older_version),
    ),
    _package_fault(
        "ofed-not-held",
        f"apt may upgrade {_RELEASE.meta} any night",
        "ofed.hold",
        _meta_package(lambda stanza: stanza.replace("Status: hold ok", "Status: install ok")),
    ),
    _package_fault(
        "mlnx-ofed-left",
        "a package of MLNX_OFED is installed beside those of DOCA-OFED",
        "ofed.conflict",
        _leave_mlnx_ofed,
        "packages",
    ),
    Fault(
        "ofed-repository-changed",
        f"{SOURCES} names the repository of another version",
        "ofed.repository",
        said(SOURCES),
        FileFault(SOURCES, _older_repository),
    ),
    Fault(
        "ofed-key-changed",
        f"{KEY} is another key",
        "ofed.repository",
        said(SOURCES),
        FileFault(KEY, _another_key),
        excludes=("ofed-repository-changed",),
    ),
    _kernel_fault(
        "kernel-without-ofed",
        f"the next boot is into {NEWER_KERNEL}, for which no OFED is built",
        "ofed.dkms",
        "headers",
        consequences=("ofed.module",),
    ),
    _kernel_fault(
        "headers-missing",
        f"{NEWER_KERNEL} was installed without its headers, so nothing is built for it",
        "ofed.headers",
        "no-headers",
        consequences=("ofed.dkms", "ofed.module"),
        stays=True,
    ),
    _kernel_fault(
        "dkms-build-failed",
        f"the build for {NEWER_KERNEL} has failed",
        "ofed.dkms",
        "broken-headers",
        Command(_BUILD, fails=True),
        consequences=("ofed.module",),
        stays=True,
    ),
    Fault(
        "inbox-shadows",
        "modprobe would load mlx5_core of the kernel and not that of OFED",
        "ofed.module",
        lambda machine: machine.kernel,
        FileFault(MODULES_DEP, _shadow),
        consequences=("ofed.loaded",),
        excludes=("ofed-old-loaded",),
    ),
    Fault(
        "ofed-old-loaded",
        f"the modules of {_OLDER.name} are still loaded",
        "ofed.loaded",
        said("mlx5_core"),
        _load_older,
        state="withheld",
    ),
    Fault(
        "nvidia-built-before-ofed",
        "nvidia_peermem was built against another OFED",
        "ofed.nvidia",
        lambda machine: machine.kernel,
        CommandFault(
            (Command((_LAB_KERNEL, "stale-nvidia")),),
            # dkms builds nothing again by installing it, not even with --force.
            tuple(Command(("/usr/sbin/dkms", action, *_NVIDIA)) for action in ("build", "install")),
        ),
    ),
    Fault(
        "nfs-without-ofed",
        "NFS is mounted over RDMA, and rpcrdma is not of OFED",
        "ofed.dependents",
        said("NFS over RDMA at /mnt/data"),
        _mount_over_rdma,
    ),
    Fault(
        "umad-missing",
        "ib_umad is not loaded, by way of which the fabric manager reaches the NVSwitches",
        "ofed.ib_umad",
        said("ib_umad"),
        _lose_umad,
        platforms=_NVLINK_5,
        # Whoever has loaded another OFED's modules has loaded this one with them.
        excludes=("ofed-old-loaded",),
    ),
    Fault(
        "umad-forgotten",
        "nothing loads ib_umad at the next boot",
        "ofed.ib_umad",
        said(UMAD_LIST),
        removed(UMAD_LIST),
        platforms=_NVLINK_5,
    ),
)
