# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Debian's packages that tests need on this machine, installed as root where they lack."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.image import one_by_one

PLACES = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))


def install(programs: Mapping[str, str]) -> str:
    """Why programs lack; empty once all are there.

    programs: program, or a file as an absolute path with wildcards -> the packages that bring it.

    Several workers may need them at once, and apt lets only one of them in.
    """
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    said = ""
    if _missing(programs) and os.geteuid() == 0 and shutil.which("apt-get"):
        with one_by_one():
            for argv in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *_missing(programs)]):
                if _missing(programs) and not said:
                    done = subprocess.run(
                        ["apt-get", *argv], env=environment, capture_output=True, text=True, check=False
                    )
                    said = f"; apt-get {argv[0]}: {done.stderr[-600:]}" if done.returncode else ""
    lacking = _missing(programs)
    return f"this machine lacks {' '.join(lacking)}{said}" if lacking else ""


def unpack(packages: Sequence[str], folder: Path) -> None:
    """Files of packages below a folder: nothing is installed, and none of their services starts on this machine.

    Raises AssertionError with apt's words.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with one_by_one():
        argv = ["apt-get", "download", "-qq", *packages]
        if subprocess.run(argv, cwd=folder, capture_output=True, check=False).returncode != 0:
            # A fresh machine has no lists, an old one those of packages that are gone.
            subprocess.run(["apt-get", "update", "-qq"], capture_output=True, check=False)
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"apt-get download: {done.stderr[-600:]}"
    for archive in sorted(folder.glob("*.deb")):
        subprocess.run(["dpkg-deb", "--extract", str(archive), str(folder)], check=True)


def _missing(programs: Mapping[str, str]) -> list[str]:
    lacking = (packages for program, packages in programs.items() if not _is_there(program))
    return [package for packages in lacking for package in packages.split()]


def _is_there(program: str) -> bool:
    return bool(glob.glob(program)) if program.startswith("/") else shutil.which(program, path=PLACES) is not None
