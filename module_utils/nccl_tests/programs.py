# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The programs of a build of nccl-tests: what they are linked with, and whether they are the files that were built.

Source: elf(5) (Elf64_Dyn).
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from typing import BinaryIO, Dict, List, Mapping

from ..core.host import ReadError
from ..nccl_conf import library
from .marker import PROGRAMS

_CHUNK = 1 << 20
_DYNAMIC = struct.Struct("<qQ")  # Elf64_Dyn
_DT_NEEDED = 1


def digest(stream: BinaryIO) -> str:
    """SHA-256 of what an open file still holds, as 64 hex digits."""
    found = hashlib.sha256()
    for chunk in iter(lambda: stream.read(_CHUNK), b""):
        found.update(chunk)
    return found.hexdigest()


def sha256(path: str) -> str:
    """SHA-256 of a regular file, as 64 hex digits. Raises ReadError."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ReadError(path, "is not a regular file")
        with open(path, "rb") as stream:
            return digest(stream)
    except OSError as error:
        raise ReadError(path, "cannot be read: %s" % error.strerror) from error


def verify(directory: str, mpi: bool) -> Dict[str, str]:
    """File name -> SHA-256 of the programs in a directory.

    mpi: they were built with MPI. Raises ReadError for a program that is missing, not executable, or not linked with
    NCCL (and MPI).
    """
    try:
        names = {name for name in os.listdir(directory) if name.endswith("_perf")}
    except OSError as error:
        raise ReadError(directory, "cannot be listed: %s" % error.strerror) from error
    found = {}
    for name in sorted(names | {"%s_perf" % program for program in PROGRAMS}):
        path = "%s/%s" % (directory, name)
        needed = needed_libraries(path)
        for wanted in ["libnccl.so.2"] + (["libmpi"] if mpi else []):
            if not any(library == wanted or library.startswith(wanted + ".") for library in needed):
                raise ReadError(path, "is not linked with %s, only with %s" % (wanted, ", ".join(needed) or "nothing"))
        if not os.access(path, os.X_OK):
            raise ReadError(path, "is not executable")
        found[name] = sha256(path)
    return found


def wrong(directory: str, digests: Mapping[str, str]) -> Dict[str, str]:
    """File name -> "missing", "unreadable", "altered" or "not executable" of each program that is not as it was built.

    digests: file name -> SHA-256 of each program when it was built.
    """
    found = {}
    for name, built in digests.items():
        path = "%s/%s" % (directory, name)
        try:
            if sha256(path) != built:
                found[name] = "altered"
            elif not os.stat(path).st_mode & stat.S_IXUSR:
                found[name] = "not executable"
        except (ReadError, OSError):
            found[name] = "missing" if not os.path.lexists(path) else "unreadable"
    return found


def needed_libraries(path: str) -> List[str]:
    """Names of the libraries that an ELF program asks the loader for (DT_NEEDED). Raises ReadError."""
    names, dynamic = library.section(path, ".dynstr"), library.section(path, ".dynamic")
    entries = _DYNAMIC.iter_unpack(dynamic[: len(dynamic) // _DYNAMIC.size * _DYNAMIC.size])
    try:
        return [
            names[offset : names.index(b"\0", offset)].decode("ascii") for tag, offset in entries if tag == _DT_NEEDED
        ]
    except ValueError as error:
        raise ReadError(path, "is a damaged ELF file: %s" % error) from error
