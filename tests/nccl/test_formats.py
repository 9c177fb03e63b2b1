# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The table of NCCL's formats against NVIDIA's own libraries."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.formats import RELEASES, ReleaseEvidence, formats

pytestmark = pytest.mark.nccl

# Without a GPU the second call fails; what it prints until then is NCCL's.
PROGRAM = """
import ctypes, sys
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]
library, id, communicator = ctypes.CDLL(sys.argv[1]), Id(), ctypes.c_void_p()
library.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, Id, ctypes.c_int]
library.ncclGetUniqueId(ctypes.byref(id))
library.ncclCommInitRank(ctypes.byref(communicator), 1, id, 0)
"""
RECORD = re.compile(r"^.*?(?: (\S+:\d+(?: \(\w+\))?))? NCCL (?:INFO|WARN) (.*)", re.MULTILINE)


def test_the_messages_of_a_library_name_its_release(library: str, version: str, tmp_path: Path) -> None:
    environment = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL", "NCCL_SOCKET_IFNAME": "lo", "HOME": str(tmp_path)}
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, library]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=1800)
    messages = RECORD.findall(done.stdout)
    assert len(messages) > 2
    evidence = ReleaseEvidence()
    for place, text in messages:
        evidence.add(place, text)
    assert evidence.recognised > 0
    # One without a tag may have the forms of the tags on either side of it.
    newer = [release for release in RELEASES if [*map(int, release.split("."))] >= [*map(int, version.split("."))]]
    at = len(RELEASES) - len(newer)
    assert {*RELEASES[at - (version not in RELEASES) : at + 1]} & {*evidence.releases}


def test_a_library_has_the_formats_of_its_release(library: str, version: str) -> None:
    if version not in RELEASES:
        pytest.skip(f"the sources of {version} are not public")
    binary = Path(library).read_bytes()
    number = {release: i for i, release in enumerate(RELEASES)}
    rows = [row for row in formats() if number[row.first] <= number[version] <= number[row.last]]
    missing = [row.text for row in rows if row.text.replace("\\n", "\n").encode() not in binary]
    # Names of calls that a macro puts into a text, and what is compiled for Windows or an old CUDA alone.
    assert len(missing) < 0.05 * len(rows), missing
