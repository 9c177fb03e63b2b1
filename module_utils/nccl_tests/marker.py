# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The marker of a build of nccl-tests, ``busbar-build.json`` beside the programs: what they were made from.

A build's directory is renamed into place whole, and the marker carries the SHA-256 of every program, so neither can
claim what is not there. The marker:

    {"format": 1, "commit": "<40 hex>", "archive_sha256": "<64 hex>" or null,
     "cuda": {"home": "/usr/local/cuda-13.0", "library": ".../libcudart.so.13", "version": "13.0.88"},
     "nccl": {"header": "/usr/include", "library": ".../libnccl.so.2.27.7", "version": "2.27.7"},
     "mpi": {"include": "...", "library": ".../libmpi.so.40.30.4", "version": "Open MPI 4.1.4"} or null,
     "arch": ["9.0"],
     "library_path": ["directories that LD_LIBRARY_PATH needs: the programs do not name their libnccl"],
     "argv": ["make", ...],
     "binaries": {"all_reduce_perf": "<64 hex>", ...}}
"""

from __future__ import annotations

import json
import posixpath
from dataclasses import asdict, dataclass
from typing import Dict, List, Mapping, Optional, Tuple

from ..core.host import ParseError
from .codec import decode, expect, quoted

# Every release since 2.10 has these; later ones have more, and what is built beside them is recorded, too.
PROGRAMS = ("all_reduce", "all_gather", "broadcast", "reduce_scatter", "reduce", "alltoall", "sendrecv")
MARKER = "busbar-build.json"
LOG = "build.log"
_FORMAT = 1


@dataclass(frozen=True)
class Cuda:
    home: str
    library: str  # libcudart.so, or libcudart.so.13 where a wheel has no other
    version: str  # 13.0.88, of nvcc


@dataclass(frozen=True)
class Nccl:
    header: str  # directory of nccl.h
    library: str  # the file, links followed
    version: str


@dataclass(frozen=True)
class Mpi:
    include: str  # directory of mpi.h
    library: str  # the file that libmpi.so leads to
    version: str  # "Open MPI 4.1.4"


@dataclass(frozen=True)
class Inputs:
    """All that a build is made from besides the sources. mpi is None for a build without MPI."""

    cuda: Cuda
    nccl: Nccl
    mpi: Optional[Mpi]
    arch: Tuple[str, ...]  # compute capabilities, "9.0"

    @property
    def library_path(self) -> List[str]:
        """The directories that LD_LIBRARY_PATH needs, in order."""
        files = [self.nccl.library, self.cuda.library] + ([self.mpi.library] if self.mpi else [])
        return list(dict.fromkeys(posixpath.dirname(path) for path in files))


@dataclass(frozen=True)
class Marker:
    """Description of a build."""

    commit: str
    archive_sha256: Optional[str]
    inputs: Inputs
    argv: Tuple[str, ...]
    binaries: Mapping[str, str]  # file name -> SHA-256


def parse_marker(text: str) -> Marker:
    """The marker of a build. Raises ParseError for anything that ``render_marker`` does not write."""
    try:
        data = expect(dict, json.loads(text), "the marker")
    except (ValueError, RecursionError) as error:
        raise ParseError("is not JSON: %s" % error) from error
    if data.get("format") != _FORMAT:
        raise ParseError("has format %s, expected %d" % (quoted(data.get("format")), _FORMAT))
    # An earlier release also stored the host's runtime.
    data.pop("runtime", None)
    try:
        marker: Marker = decode(Marker, {**data, "inputs": data}, "the marker")
    except ParseError as error:
        raise ParseError("is not a marker: %s" % error) from error
    if to_dict(marker) != data:
        raise ParseError("is not a marker: it holds something else than what is written there")
    odd = [name for name in marker.binaries if "/" in name or name in ("", ".", "..") or "\0" in name]
    if odd or not {"%s_perf" % program for program in PROGRAMS} <= set(marker.binaries):
        raise ParseError("lists %s, expected the programs of nccl-tests" % quote(", ".join(marker.binaries)))
    return marker


def render_marker(marker: Marker) -> str:
    """The text of the file."""
    return json.dumps(to_dict(marker), indent=2) + "\n"


def to_dict(marker: Marker) -> Dict[str, object]:
    """Plain data, in the shape of the file."""
    return {
        "format": _FORMAT,
        "commit": marker.commit,
        "archive_sha256": marker.archive_sha256,
        "cuda": asdict(marker.inputs.cuda),
        "nccl": asdict(marker.inputs.nccl),
        "mpi": None if marker.inputs.mpi is None else asdict(marker.inputs.mpi),
        "arch": list(marker.inputs.arch),
        "library_path": marker.inputs.library_path,
        "argv": list(marker.argv),
        "binaries": dict(sorted(marker.binaries.items())),
    }


def quote(text: str) -> str:
    """For a message: one line of at most 120 characters."""
    line = " ".join(text.split())
    return repr(line if len(line) <= 120 else line[:120] + "...")
