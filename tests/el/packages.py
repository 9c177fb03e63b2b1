# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Repositories of our own tiny RPM packages, by the real rpmbuild, rpmsign and createrepo_c.

The packages have names and forms of the vendor's on EL and none of what is in those. DKMS sources among them are the
lab's text files (lab/toolkit/dkms.py), which their scripts build as the vendor's do.

TOP/doca/3.2.1/rhel9/x86_64/     one release each, as the vendor's tree has them
TOP/mlnx_ofed/24.10-2.1.8.0/...
TOP/baseos/                      what comes with the distribution
TOP/GPG-KEY.asc, OTHER-KEY.asc   the key that has signed them, and one that has signed nothing
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.toolkit.dkms import dkms_conf
from lab.toolkit.kernel_node import PEER_SYMBOL

KEY, OTHER_KEY = "GPG-KEY.asc", "OTHER-KEY.asc"
PLACE = "rhel9/x86_64"
VERSIONLOCK = "python3-dnf-plugin-versionlock"
_NAMES = "%%{NAME}-%%{VERSION}-%%{RELEASE}.rpm"
_TITLE = "Stand-in of Busbar's tests (simulated)"
_MODULES = f"""\
mlx_compat {{0}} - - -
ib_core - mlx_compat - {PEER_SYMBOL}
ib_uverbs - mlx_compat,ib_core - -
rdma_cm - mlx_compat,ib_core - -
mlx5_core {{0}} mlx_compat - -
mlx5_ib {{0}} mlx_compat,ib_core,ib_uverbs,mlx5_core - -
"""


@dataclass(frozen=True)
class Release:
    """folder: below TOP.   meta: version and release of the metapackage.   kernel: those of the driver's packages."""

    folder: str
    name: str
    meta: tuple[str, str]
    kernel: tuple[str, str]
    info: str

    @property
    def build(self) -> str:
        """The driver's version in DKMS."""
        return ".".join(self.kernel).removesuffix(".el9")


def _doca(version: str, build: str, kernel: tuple[str, str], info: str) -> Release:
    return Release(f"doca/{version}", "doca-ofed", (version, build), kernel, info)


RELEASES = {
    "3.1.0": _doca("3.1.0", "091000.el9", ("25.07", "OFED.25.07.0.9.7.1.el9"), "OFED-internal-25.07-0.9.7"),
    "3.2.1": _doca("3.2.1", "044000.el9", ("25.10", "OFED.25.10.1.7.1.1.el9"), "OFED-internal-25.10-1.7.1"),
    "24.10-2.1.8.0": Release(
        "mlnx_ofed/24.10-2.1.8.0",
        "mlnx-ofed-all",
        ("24.10", "2.1.8.0.rhel9u4"),
        ("24.10", "OFED.24.10.2.1.8.1.el9"),
        "MLNX_OFED_LINUX-24.10-2.1.8.0",
    ),
}


def create(top: Path, work: Path) -> None:
    """All of it, in a directory that is not there yet. ``work``: one for what it is made from."""
    homes = [_key(work / name, top / file) for name, file in (("ours", KEY), ("theirs", OTHER_KEY))]
    for release in RELEASES.values():
        _fill(top / release.folder / PLACE, _spec(release), homes[0], work)
    _fill(top / "baseos", _BASEOS, homes[0], work)


def _run(argv: Sequence[object], **environment: str) -> str:
    """Raises AssertionError with the last that the tool has said."""
    environment = {**os.environ, "LC_ALL": "C", **environment}
    done = subprocess.run([*map(str, argv)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{argv[0]} ended with {done.returncode}: {(done.stderr or done.stdout)[-2000:]}"
    return done.stdout


def _key(home: Path, public: Path) -> Path:
    """GNUPGHOME with a key of its own."""
    home.mkdir(mode=0o700, parents=True)
    public.parent.mkdir(parents=True, exist_ok=True)
    argv = ["gpg", "--batch", "--quiet", "--homedir", home, "--passphrase", ""]
    _run([*argv, "--quick-gen-key", f"{home.name}@busbar.invalid", "rsa2048", "sign", "never"])
    public.write_text(_run([*argv, "--armor", "--export"]))
    return home


def _fill(folder: Path, spec: str, home: Path, work: Path) -> None:
    folder.mkdir(parents=True)
    file = work / "packages.spec"
    file.write_text(spec)
    defined = {"_topdir": work / "rpmbuild", "_rpmdir": folder, "_build_name_fmt": _NAMES}
    # Debian's rpm keeps its own database apart; ours is nobody's.
    defined |= {"_dbpath": work / "rpmdb", "_build_id_links": "none", "debug_package": "%{nil}"}
    options = [word for name, value in defined.items() for word in ("--define", f"{name} {value}")]
    _run(["rpmbuild", "-bb", "--quiet", *options, file])
    # Where rpm was built there was no gpg.
    defined = {"_gpg_name": f"{home.name}@busbar.invalid", "__gpg": shutil.which("gpg") or "gpg"}
    options = [word for name, value in defined.items() for word in ("--define", f"{name} {value}")]
    _run(["rpmsign", "--addsign", *options, *sorted(folder.glob("*.rpm"))], GNUPGHOME=str(home))
    index(folder)


def index(folder: Path) -> None:
    """The repository's metadata, of the packages that are in it now."""
    shutil.rmtree(folder / "repodata", ignore_errors=True)
    _run(["createrepo_c", "--quiet", folder])


# -- specs -----------------------------------------------------------------------------------------------------------

_HEAD = """\
Name: busbar-source
Version: 1
Release: 1
Summary: {title}
License: GPL-3.0-or-later
BuildArch: noarch
%description
{title}
%install
{install}
"""
_PACKAGE = """\
%package -n {name}
Version: {version}
Release: {release}
Summary: {title}
{tags}
%description -n {name}
{title}
{scripts}%files -n {name}
{files}
"""


def _package(name: str, version: tuple[str, str], tags: str = "", files: str = "", scripts: str = "") -> str:
    first, second = version
    return _PACKAGE.format(
        name=name, version=first, release=second, title=_TITLE, tags=tags, files=files, scripts=scripts
    )


def _spec(release: Release) -> str:
    source = f"/usr/src/mlnx-ofa_kernel-{release.build}"
    modules = _MODULES.format(release.build)
    conf = dkms_conf("mlnx-ofa_kernel", release.build, modules)
    install = "\n".join(
        [
            _file(f"{source}/dkms.conf", conf),
            _file(f"{source}/modules", modules),
            _file("/usr/bin/ofed_info", f'#!/bin/sh\necho "{release.info}:"\n'),
            "chmod 755 %{buildroot}/usr/bin/ofed_info",
        ]
    )
    named = f"mlnx-ofa_kernel -v {release.build}"
    scripts = (
        f"%post -n mlnx-ofa_kernel-dkms\n/usr/sbin/dkms install -m {named} || :\n"
        f"%preun -n mlnx-ofa_kernel-dkms\n/usr/sbin/dkms remove -m {named} --all || :\n"
    )
    exactly = "-".join(release.kernel)
    parts = ("mlnx-ofa_kernel", "mlnx-ofa_kernel-dkms", "ofed-scripts")
    needs = "\n".join(f"Requires: {name} = {exactly}" for name in parts)
    other = "mlnx-ofed-all" if release.name == "doca-ofed" else "doca-ofed"
    return _HEAD.format(title=_TITLE, install=install) + "".join(
        (
            _package(release.name, release.meta, f"{needs}\nConflicts: {other}"),
            _package("mlnx-ofa_kernel", release.kernel),
            _package("mlnx-ofa_kernel-dkms", release.kernel, f"Requires: mlnx-ofa_kernel = {exactly}", source, scripts),
            _package("ofed-scripts", release.kernel, files="/usr/bin/ofed_info"),
            _package("mlnx-nfsrdma-dkms", release.kernel, f"Requires: mlnx-ofa_kernel-dkms = {exactly}"),
        )
    )


def _file(path: str, text: str) -> str:
    """Lines of %install. The text is quoted: neither the shell nor rpm expands anything in it."""
    folder = path.rpartition("/")[0]
    quoted = text.replace("%", "%%")
    return f"mkdir -p %{{buildroot}}{folder}\ncat > %{{buildroot}}{path} <<'END'\n{quoted}END"


_BASEOS = _HEAD.format(title=_TITLE, install=":") + "".join(
    (
        _package(
            "el-release",
            ("9.4", "1.el9"),
            "Provides: system-release = 9.4\nProvides: system-release(releasever) = 9\nProvides: /bin/sh",
        ),
        _package(VERSIONLOCK, ("4.3.0", "13.el9")),
    )
)
