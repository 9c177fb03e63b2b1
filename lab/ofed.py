# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Stand-ins for the packages of DOCA-OFED and MLNX_OFED: names, versions and scripts as the vendor's, no driver inside.

What they build is text (toolkit/kernel_node.py). Names and versions: the vendor's repositories and manifests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .nccl_tests import DATA
from .toolkit.dkms import dkms_conf
from .toolkit.kernel_node import PEER_SYMBOL, STACK, inbox_srcversion, srcversion

INSTALLED = "3.2.1"


@dataclass(frozen=True)
class Release:
    """One OFED, with the words of the vendor.

    name, number: what `ofed_info -s` prints before its colon, and `ofed_info -n`.   driver: the version of modinfo.
    build, tools: versions of the kernel's part and of mlnx-tools.   folder: its place in the repository.
    meta, meta_version: the package that depends on all others.
    """

    name: str
    number: str
    driver: str
    build: str
    tools: str
    meta: str
    meta_version: str
    folder: str

    @property
    def source(self) -> str:
        return f"mlnx-ofed-kernel-{self.build}"

    @property
    def conflicts(self) -> str:
        return "mlnx-ofed-all" if self.meta == "doca-ofed" else "doca-ofed"


def _doca(version: str, number: str, driver: str, tools: str) -> Release:
    dotted = driver.replace("-", ".")
    build = f"{driver.partition('-')[0]}.OFED.{dotted}.1"
    return Release(
        f"OFED-internal-{driver}", driver, driver, build, tools, "doca-ofed", f"{version}-{number}", f"doca/{version}"
    )


RELEASES = {
    "3.1.0": _doca("3.1.0", "091000", "25.07-0.9.7", "25.07-0.2507097"),
    "3.2.1": _doca("3.2.1", "044000", "25.10-1.7.1", "25.10-0.2510171"),
    "24.10-2.1.8.0": Release(
        name="MLNX_OFED_LINUX-24.10-2.1.8.0",
        number="24.10-2.1.8.0",
        driver="24.10-2.1.8",
        build="24.10.OFED.24.10.2.1.8.1",
        tools="24.10-0.2410218",
        meta="mlnx-ofed-all",
        meta_version="24.10-2.1.8.0",
        folder="mlnx_ofed/24.10-2.1.8.0",
    ),
}

_KERNEL_MODULES = f"""\
mlx_compat {{0}} - - -
ib_core - mlx_compat - {PEER_SYMBOL}
ib_uverbs - mlx_compat,ib_core - -
ib_umad - mlx_compat,ib_core - -
rdma_cm - mlx_compat,ib_core - -
mlx5_core {{0}} mlx_compat - -
mlx5_ib {{0}} mlx_compat,ib_core,ib_uverbs,mlx5_core - -
ib_ipoib {{0}} mlx_compat,ib_core - -
"""
_VERSIONED = ("mlx_compat", "mlx5_core", "mlx5_ib", "ib_ipoib")


def shown(release: str | None, kernel: str, name: str) -> tuple[str | None, str]:
    """version and srcversion that a module of the stack shows while it is loaded. ``release``: None for inbox."""
    if release is None:
        return None, inbox_srcversion(kernel, name)
    known = RELEASES[release]
    return known.driver if name in _VERSIONED else None, srcversion(known.source, name)


@dataclass(frozen=True)
class Package:
    """A stand-in. files: path -> text.   programs: those of them that can be run.   scripts: dpkg's, by name.

    dkms: name and version of what its postinst builds; () where it builds nothing.
    """

    name: str
    version: str
    title: str
    depends: str = ""
    conflicts: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    programs: tuple[str, ...] = ()
    conffiles: tuple[str, ...] = ()
    scripts: Mapping[str, str] = field(default_factory=dict)
    dkms: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        return f"{self.name}_{self.version}_all.deb"

    def control(self) -> str:
        fields = {
            "Package": self.name,
            "Version": self.version,
            "Architecture": "all",
            "Maintainer": "Busbar contributors <lab@busbar.invalid>",
            "Depends": self.depends,
            "Conflicts": self.conflicts,
            "Section": "net",
            "Priority": "optional",
            "Description": f"{self.title}\n Stand-in of the Busbar lab: it has the name and the version of the vendor's"
            "\n package and nothing of what is in it. (simulated)",
        }
        return "".join(f"{key}: {value}\n" for key, value in fields.items() if value)


_SCRIPT = "#!/bin/sh\n# Stand-in of the Busbar lab (simulated).\n"


def _dkms_package(release: Release, package: str, name: str, modules: str, title: str, depends: str = "") -> Package:
    source = f"/usr/src/{name}-{release.build}"
    built_with = "mlnx-ofed-kernel" if depends else ""
    remove = f"dkms remove -m {name} -v {release.build} --all || true"
    return Package(
        package,
        f"{release.build}-1",
        title,
        depends=depends,
        files={
            f"{source}/modules": modules,
            f"{source}/dkms.conf": dkms_conf(name, release.build, modules, built_with),
        },
        scripts={
            "postinst": f"{_SCRIPT}set -e\n"
            f'if [ "$1" = configure ]; then /usr/lib/dkms/common.postinst {name} {release.build}; fi\n',
            "prerm": f'{_SCRIPT}case "$1" in remove | upgrade | deconfigure) {remove} ;; esac\n',
        },
        dkms=(name, release.build),
    )


def _text(name: str) -> str:
    """Read a file of the vendor's packages, in its own words."""
    return (DATA / "ofed" / name).read_text()


# Removing it leaves the modules where they are, as the vendor's does: the next boot is without them.
_UTILS_PRERM = (
    _SCRIPT + 'if [ "$1" = remove ]; then systemctl --quiet disable openibd.service 2>/dev/null || true; fi\n'
)


def _ofed_info(release: Release) -> str:
    return (
        f'{_SCRIPT}case "$1" in\n-s) echo "{release.name}:" ;;\n-n) echo {release.number} ;;\n'
        f'*) echo "{release.name} (simulated)" ;;\nesac\n'
    )


def packages(version: str) -> list[Package]:
    """All of one release, in an order in which dpkg can install them."""
    release = RELEASES[version]
    user = release.build.rpartition(".")[0]
    modules = _KERNEL_MODULES.format(release.driver)
    # mlx_compat comes with those that need it, and a kernel without OFED has none.
    openibd = _text("openibd").replace("FORWARDS", " ".join(STACK[1:])).replace("BACKWARDS", " ".join(reversed(STACK)))
    kernel = _dkms_package(
        release, "mlnx-ofed-kernel-dkms", "mlnx-ofed-kernel", modules, "DKMS support for mlnx-ofed kernel modules"
    )
    utils = Package(
        "mlnx-ofed-kernel-utils",
        f"{release.build}-1",
        "Userspace tools to restart and tune mlnx-ofed kernel modules",
        files={
            "/etc/init.d/openibd": _SCRIPT + openibd,
            "/etc/infiniband/openib.conf": _text("openib.conf"),
            "/lib/systemd/system/openibd.service": _text("openibd.service"),
        },
        programs=("/etc/init.d/openibd",),
        conffiles=("/etc/init.d/openibd", "/etc/infiniband/openib.conf"),
        scripts={"postinst": _SCRIPT + _text("postinst"), "prerm": _UTILS_PRERM},
    )
    names = [release.meta, kernel.name, utils.name, "ofed-scripts", "mlnx-tools", "mlnx-nfsrdma-dkms", "mlnx-nvme-dkms"]
    scripts = Package(
        "ofed-scripts",
        f"{user}-1",
        "OFED scripts: ofed_info and ofed_uninstall.sh",
        files={
            "/usr/bin/ofed_info": _ofed_info(release),
            "/usr/sbin/ofed_uninstall.sh": _SCRIPT + _text("ofed_uninstall.sh").replace("NAMES", " ".join(names)),
        },
        programs=("/usr/bin/ofed_info", "/usr/sbin/ofed_uninstall.sh"),
    )
    tools = Package("mlnx-tools", release.tools, "Userspace tools of OFED")
    parts = [kernel, utils, scripts, tools]
    meta = Package(
        release.meta,
        release.meta_version,
        f"{release.meta}: all of it",
        depends=", ".join(f"{part.name} (= {part.version})" for part in parts),
        conflicts=release.conflicts,
    )
    needs = f"{kernel.name} (= {kernel.version})"
    storage = [
        _dkms_package(release, f"mlnx-{name}-dkms", f"mlnx-{name}", text, f"DKMS support for {name} modules", needs)
        for name, text in (
            ("nfsrdma", f"rpcrdma {release.driver} mlx_compat,ib_core,rdma_cm - -\n"),
            ("nvme", f"nvme-rdma {release.driver} mlx_compat,ib_core,rdma_cm - -\n"),
        )
    ]
    return [*parts, meta, *storage]


def standard(version: str) -> list[Package]:
    """What installing the meta package brings."""
    return packages(version)[:5]


def status(installed: list[Package], selection: str = "hold") -> str:
    """/var/lib/dpkg/status of a system that has these packages."""
    state = f"\nStatus: {selection} ok installed\n"
    return "".join(package.control().replace("\n", state, 1) + "\n" for package in installed)
