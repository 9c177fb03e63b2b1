# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Real libraries: the libnccl.so.2 of NVIDIA's wheels, downloaded once and kept in .cache/nccl.

Where others may write to a folder above, in ~/.cache/busbar/nccl. BUSBAR_NCCL_CACHE names another folder.
BUSBAR_OFFLINE=1 skips what is not there; without it a missing library fails.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core import trusted

VERSIONS = ("2.18.3", "2.21.5", "2.23.4", "2.26.2", "2.27.7", "2.30.7", "2.32.3")
# The wheels' platform tags changed over the years.
TAGS = ("manylinux1", "manylinux2014", "manylinux_2_17", "manylinux_2_18", "manylinux_2_27", "manylinux_2_28")
MEMBER = "nvidia/nccl/lib/libnccl.so.2"
_BESIDE = Path(__file__).resolve().parents[2] / ".cache" / "nccl"
# A library below a folder that others may write to, such as /tmp, is not loaded the way that these tests look at.
_DEFAULT = Path.home() / ".cache" / "busbar" / "nccl" if trusted.doubt(str(_BESIDE.parents[1])) else _BESIDE
CACHE = Path(os.environ.get("BUSBAR_NCCL_CACHE") or _DEFAULT)


# One of each grammar, and the newest.
BRIEF = {"2.18.3", "2.26.2", "2.30.7", "2.32.3"}


@pytest.fixture(params=[pytest.param(one, marks=[] if one in BRIEF else pytest.mark.long) for one in VERSIONS])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def library(version: str) -> str:
    """Path of the library of one version."""
    return obtain(version)


def obtain(version: str) -> str:
    target = CACHE / version / "libnccl.so.2"
    if target.exists():
        return str(target)
    if os.environ.get("BUSBAR_OFFLINE") == "1":
        pytest.skip(f"{target} is not there and BUSBAR_OFFLINE=1 forbids to download it")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir"]
        command += ["--no-deps", "--only-binary=:all:", "--python-version", "3.11", "--dest", scratch]
        for tag in TAGS:
            command += ["--platform", f"{tag}_{platform.machine()}"]
        done = subprocess.run([*command, f"nvidia-nccl-cu12=={version}"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.fail(f"libnccl {version} cannot be downloaded (BUSBAR_OFFLINE=1 skips): {done.stderr[-400:]}")
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            extracted = archive.extract(MEMBER, scratch)
        os.replace(extracted, target)
    return str(target)
