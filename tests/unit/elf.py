# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Small ELF files, sound and damaged."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import strategies as st

IDENT = b"\x7fELF\x02\x01\x01" + bytes(9)
# Of sections by their names; any other has type 1.
_TYPES = {"": 0, ".dynstr": 3, ".dynamic": 6}


def elf(sections: dict[str, bytes], ident: bytes = IDENT, machine: int = 62) -> bytes:
    """An ELF file with these sections and nothing else.   machine: 62 for x86_64, 183 for aarch64."""
    contents = {"": b"", **sections, ".shstrtab": b""}
    contents[".shstrtab"] = b"".join(name.encode() + b"\0" for name in contents)
    body, table, name_at = b"", b"", 0
    for name, data in contents.items():
        link = list(contents).index(".dynstr") if name == ".dynamic" else 0
        kind = _TYPES.get(name, 1)
        table += struct.pack("<IIQQQQIIQQ", name_at, kind, 0, 0, 64 + len(body), len(data), link, 0, 1, 0)
        body += data
        name_at += len(name) + 1
    count = len(contents)
    header = ident + struct.pack(
        "<HHIQQQIHHHHHH", 3, machine, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, count, count - 1
    )
    return header + body + table


def linked_with(libraries: list[str]) -> bytes:
    """An ELF file whose dynamic section needs these libraries."""
    names, dynamic = b"\0", b""
    for name in libraries:
        dynamic += struct.pack("<qQ", 1, len(names))
        names += name.encode() + b"\0"
    return elf({".dynstr": names, ".dynamic": dynamic + struct.pack("<qQ", 0, 0)})


def damaged(good: bytes) -> st.SearchStrategy[bytes]:
    """The file with some bytes changed, cut off or whole."""

    def spoil(changes: list[tuple[int, int]], length: int) -> bytes:
        data = bytearray(good)
        for offset, value in changes:
            data[offset] = value
        return bytes(data[:length] if length % 2 else data)

    changes = st.lists(st.tuples(st.integers(0, len(good) - 1), st.integers(0, 255)), max_size=6)
    return st.builds(spoil, changes, st.integers(0, len(good)))


@contextmanager
def as_file(data: bytes) -> Iterator[str]:
    """Path of a file that holds this."""
    with tempfile.NamedTemporaryFile() as stream:
        stream.write(data)
        stream.flush()
        yield stream.name
