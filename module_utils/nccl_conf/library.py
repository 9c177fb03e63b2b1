# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Scan an installed libnccl.so.2 for its version, its architecture and the variables it reads.

Read from the ELF file, never loaded: loading would run its code. Only the section with the string constants is read;
the other 300 MB are GPU code. Every ``NCCL_NAME`` that ends a string there counts as read. That finds all names that
the library reads, and a few ends of messages, which do no harm to "is this name read at all".
"""

from __future__ import annotations

import os
import re
import stat
import struct
from typing import BinaryIO, Dict, FrozenSet, NamedTuple, Optional, Sequence, Tuple

from ..core.host import Host, ReadError
from .version import Version, parse_version

# Where Debian, Ubuntu and EL packages and NVIDIA's tarball put the library, for x86_64 and aarch64.
STANDARD_PATHS = (
    "/usr/lib/x86_64-linux-gnu/libnccl.so.2",
    "/usr/lib/aarch64-linux-gnu/libnccl.so.2",
    "/usr/lib64/libnccl.so.2",
    "/usr/local/lib/libnccl.so.2",
    "/usr/local/lib64/libnccl.so.2",
    "/usr/local/nccl/lib/libnccl.so.2",
    "/usr/local/cuda/lib64/libnccl.so.2",
)

# No release has more than 0.5 MB of constants; a header that claims more than this is damaged.
_SECTION_LIMIT = 64 * 1024 * 1024
# e_machine of an ELF file -> name of the architecture (elf(5), System V ABI).
_MACHINES = {62: "x86_64", 183: "aarch64"}
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # Elf64_Ehdr
_SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr

_NAME = re.compile(rb"(NCCL_[A-Z0-9_]+)\0")
_VERSION = re.compile(rb"NCCL version ([0-9.]+)\+cuda")


class Library(NamedTuple):
    """path: the file that was read.   names: what it reads, ``NCCL_...``.   architecture: None for another one."""

    path: str
    version: Version
    names: FrozenSet[str]
    architecture: Optional[str] = None


def find(host: Host) -> Tuple[str, ...]:
    """Libraries in the standard places, as paths below the system root, each file once however many links it has."""
    found: Dict[str, str] = {}
    for path in STANDARD_PATHS:
        full = host.system(path)
        if os.path.isfile(full):
            found.setdefault(os.path.realpath(full), path)
    return tuple(found.values())


def scan(path: str) -> Library:
    """Read one library. Raises ReadError that names the file and what is wrong with it."""
    architecture, constants = _section(path, ".rodata")
    if constants is None:
        raise ReadError(path, "has no .rodata section, so it is not a NCCL library")
    match = _VERSION.search(constants)
    if match is None:
        raise ReadError(path, "holds no text like 'NCCL version 2.27.7+cuda12.9', so it is not a NCCL library")
    try:
        version = parse_version(match.group(1).decode("ascii"))
    except ValueError as error:
        raise ReadError(path, str(error)) from error
    names = frozenset(name.decode("ascii") for name in _NAME.findall(constants))
    if not names:
        raise ReadError(path, "holds no name of a NCCL variable, so it is not a whole NCCL library")
    return Library(path, version, names, architecture)


def section(path: str, name: str) -> bytes:
    """Return a section of an ELF file, b"" without one of this name. Raises ReadError as ``scan`` does."""
    return _section(path, name)[1] or b""


def _section(path: str, name: str) -> Tuple[Optional[str], Optional[bytes]]:
    """Return the architecture and the section of a little-endian 64-bit ELF file."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise ReadError(path, "is not a regular file")
        # A pipe put there meanwhile must not block.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            header = stream.read(_HEADER.size)
            if header[:4] != b"\x7fELF":
                raise ReadError(path, "is not an ELF file")
            if header[4:6] != b"\x02\x01":
                raise ReadError(path, "is not a 64-bit little-endian ELF file")
            fields = _HEADER.unpack(header)
            place = _sections(path, stream, fields).get(name)
            return _MACHINES.get(fields[2]), _read(path, stream, name, place) if place is not None else None
    except OSError as error:
        raise ReadError(path, "cannot be read: %s" % error.strerror) from error
    except ValueError as error:  # a zero byte in the name
        raise ReadError(repr(path), "is not a file name: %s" % error) from error
    except struct.error as error:
        raise ReadError(path, "is a damaged ELF file: %s" % error) from error


def _sections(path: str, stream: BinaryIO, fields: Sequence[int]) -> Dict[str, Tuple[int, ...]]:
    """Name -> (offset, size) of each section.   fields: of the header."""
    table, entry_size, count, names_index = fields[6], fields[11], fields[12], fields[13]
    if table == 0 or entry_size != _SECTION.size or names_index >= count:
        raise ReadError(path, "has no usable ELF section headers")
    headers = list(_SECTION.iter_unpack(_read(path, stream, "section headers", (table, entry_size * count))))
    names = _read(path, stream, "section names", headers[names_index][4:6])
    ends = [names.find(b"\0", each[0]) for each in headers]
    return {names[each[0] : end].decode("ascii", "replace"): each[4:6] for each, end in zip(headers, ends)}


def _read(path: str, stream: BinaryIO, what: str, place: Tuple[int, ...]) -> bytes:
    offset, size = place
    end = os.fstat(stream.fileno()).st_size
    if size > _SECTION_LIMIT or offset + size > end:
        raise ReadError(path, "is cut off or damaged: its %s should end at byte %d of %d" % (what, offset + size, end))
    stream.seek(offset)
    data = stream.read(size)
    if len(data) != size:
        raise ReadError(path, "is cut off: its %s cannot be read whole" % what)
    return data
