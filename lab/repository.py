# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""An apt repository as the vendor of OFED has them, with stand-ins in it (ofed.py), signed with a key of its own.

TOP/doca/3.2.1/debian12/x86_64/./          flat: Packages, Release, InRelease and the packages themselves
TOP/mlnx_ofed/24.10-2.1.8.0/...            the same, of the packages that came before
TOP/GPG-KEY.asc                            the public key; the private one is gone when ``create`` returns
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from . import ofed
from .machine import LabError
from .ofed import Package
from .toolkit.kernel_node import write

# On a node.
TOP = "/opt/busbar-lab/repository"
KEY = "GPG-KEY.asc"
DISTRIBUTIONS = ("debian12", "debian13", "ubuntu22.04", "ubuntu24.04")
ARCHITECTURES = {"doca": ("x86_64", "arm64-sbsa"), "mlnx_ofed": ("x86_64", "aarch64")}
# Its time is part of what is signed and packed: the same everywhere.
_EPOCH = 1735689600
_DATE = "Wed, 01 Jan 2025 00:00:00 UTC"


def digest() -> str:
    """Changes with anything that is packed; the key is another one each time anyway."""
    contents = [ofed.packages(version) for version in ofed.RELEASES]
    text = repr((contents, DISTRIBUTIONS, ARCHITECTURES, Path(__file__).read_text()))
    return hashlib.sha256(text.encode()).hexdigest()


def create(top: Path) -> None:
    """Makes the repository in a directory that is not there yet. Raises LabError where gpg or dpkg-deb fail."""
    top.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="busbar-lab-") as name:
        home = Path(name) / "gnupg"
        home.mkdir(mode=0o700)
        try:
            _make_key(home, top / KEY)
            for version, release in ofed.RELEASES.items():
                product = release.folder.partition("/")[0]
                places = [f"{distro}/{arch}" for distro in DISTRIBUTIONS for arch in ARCHITECTURES[product]]
                first = top / release.folder / places[0]
                _fill(first, ofed.packages(version), Path(name))
                sign(first, home)
                for place in places[1:]:
                    other = top / release.folder / place
                    other.parent.mkdir(exist_ok=True)
                    other.symlink_to(f"../{places[0]}")
        finally:
            # An agent that outlives its home would wait for it to come back.
            subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], capture_output=True, check=False)


def _run(argv: Sequence[str], home: Path | None = None, epoch: bool = False) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    if home is not None:
        environment["GNUPGHOME"] = str(home)
    if epoch:
        environment["SOURCE_DATE_EPOCH"] = str(_EPOCH)
    try:
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise LabError(f"{argv[0]} is not installed: apt-get install gnupg dpkg") from error
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no word"]
        raise LabError(f"{' '.join(argv[:4])} failed ({done.returncode}): {last[0]}")
    return done.stdout


def _make_key(home: Path, public: Path) -> None:
    name = "Busbar lab, stand-in repository <lab@busbar.invalid>"
    argv = ["gpg", "--batch", "--quiet", "--passphrase", "", "--quick-gen-key", name, "ed25519", "sign", "never"]
    _run(argv, home)
    public.write_text(_run(["gpg", "--armor", "--export"], home))


def _fill(folder: Path, packages: Sequence[Package], work: Path) -> None:
    folder.mkdir(parents=True)
    stanzas = []
    for package in packages:
        pack(package, folder / package.file, work)
        data = (folder / package.file).read_bytes()
        about = {"Filename": f"./{package.file}", "Size": len(data), "SHA256": hashlib.sha256(data).hexdigest()}
        stanzas.append(package.control() + "".join(f"{key}: {value}\n" for key, value in about.items()))
    (folder / "Packages").write_text("\n".join(stanzas))


def pack(package: Package, file: Path, work: Path) -> None:
    """A .deb of a stand-in. ``work``: a directory for what goes into it."""
    with tempfile.TemporaryDirectory(dir=work) as name:
        base = Path(name)
        base.chmod(0o755)
        for path, text in package.files.items():
            write(base / path.lstrip("/"), text, 0o755 if path in package.programs else 0o644)
        write(base / "DEBIAN/control", package.control(), 0o644)
        for script, text in package.scripts.items():
            write(base / "DEBIAN" / script, text, 0o755)
        if package.conffiles:
            write(base / "DEBIAN/conffiles", "".join(f"{path}\n" for path in package.conffiles), 0o644)
        _run(["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(base), str(file)], epoch=True)


def sign(folder: Path, home: Path) -> None:
    """Release and InRelease for the Packages that is there. ``home``: GNUPGHOME with the private key."""
    data = (folder / "Packages").read_bytes()
    fields: Mapping[str, str] = {
        "Origin": "Busbar lab (simulated)",
        "Label": "Stand-ins",
        "Suite": "stable",
        "Architectures": "all amd64 arm64",
        "Date": _DATE,
        "SHA256": f"\n {hashlib.sha256(data).hexdigest()} {len(data)} Packages",
    }
    (folder / "Release").write_text("".join(f"{key}: {value}\n" for key, value in fields.items()))
    argv = ["gpg", "--batch", "--yes", "--quiet", "--passphrase", "", "--pinentry-mode", "loopback"]
    _run([*argv, "--clearsign", "--output", str(folder / "InRelease"), str(folder / "Release")], home)
    _run([*argv, "--armor", "--detach-sign", "--output", f"{folder}/Release.gpg", str(folder / "Release")], home)
