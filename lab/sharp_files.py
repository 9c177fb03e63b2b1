#!/usr/bin/env python3
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Files that stand for HPC-X on a node, its SHARP library and NCCL's network plugin.

``sharp_files.py ROOT`` puts them below a directory. They are ELF files with names in them and no code: whoever loads
one gets an error. Layout from HPC-X 2.21 and nccl-rdma-sharp-plugins; no switch stands behind them (simulated).
"""

from __future__ import annotations

import shutil
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

HPCX = "opt/hpcx-v2.21"
COLL, SONAME = "libsharp_coll.so.5.1.0", "libsharp_coll.so.5"
PLUGIN = "libnccl-net.so.0.0.0"
EXPORTED = ("ncclNetPlugin_v9", "ncclCollNetPlugin_v8", "ncclCollNetPlugin_v9")
CONF, ENVIRONMENT = "etc/nccl.conf", "etc/environment"


def shared_object(exported: Sequence[str], needed: Sequence[str]) -> bytes:
    """A 64-bit ELF with .dynstr, .dynamic and the table of their names."""
    strings, tags = b"\0", b""
    for name in needed:
        tags += struct.pack("<qQ", 1, len(strings))
        strings += name.encode() + b"\0"
    tags += struct.pack("<qQ", 0, 0)
    strings += b"".join(name.encode() + b"\0" for name in exported)
    names = b"\0.dynstr\0.dynamic\0.shstrtab\0"
    parts = ((1, 3, strings, 0), (9, 6, tags, 1), (18, 3, names, 0))
    offset, body, table = 64, b"", bytes(64)
    for at, kind, content, link in parts:
        table += struct.pack("<IIQQQQIIQQ", at, kind, 0, 0, offset + len(body), len(content), link, 0, 1, 0)
        body += content
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, offset + len(body), 0, 64, 0, 0, 64, 4, 3)
    return header + body + table


def library(folder: Path, name: str, content: bytes, links: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    for link in links:
        (folder / link).symlink_to(name)


def install(root: Path, hpcx: str = HPCX, needs: str = SONAME) -> None:
    """Library and plugin of one release. needs: name under which the plugin asks for the library."""
    library(root / hpcx / "sharp/lib", COLL, shared_object(("sharp_coll_init",), ()), (SONAME, "libsharp_coll.so"))
    plugin(root, hpcx, EXPORTED, (needs, "libibverbs.so.1"))


def plugin(root: Path, hpcx: str, exported: Sequence[str], needed: Sequence[str]) -> None:
    folder = root / hpcx / "nccl_rdma_sharp_plugin/lib"
    shutil.rmtree(folder, ignore_errors=True)
    library(folder, PLUGIN, shared_object(exported, needed), ("libnccl-net.so.0", "libnccl-net.so"))


def switch_on(root: Path) -> None:
    add(root, CONF, "NCCL_COLLNET_ENABLE=1")


def add(root: Path, path: str, line: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text((file.read_text() if file.is_file() else "") + line + "\n")


if __name__ == "__main__":
    install(Path(sys.argv[1]))
