#!/usr/bin/env python3
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Files that stand for HPC-X on a node, its SHARP library and NCCL's network plugin, and what can be wrong with them.

``sharp_files.py ROOT`` puts them below a directory. They are ELF files with names in them and no code: whoever loads
one gets an error. Layout from HPC-X 2.21 and nccl-rdma-sharp-plugins; no switch stands behind them (simulated).
"""

from __future__ import annotations

import shutil
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

HPCX = "opt/hpcx-v2.21"
COLL, SONAME = "libsharp_coll.so.5.1.0", "libsharp_coll.so.5"
PLUGIN = "libnccl-net.so.0.0.0"
EXPORTED = ("ncclNetPlugin_v9", "ncclCollNetPlugin_v8", "ncclCollNetPlugin_v9")
DEBIAN = "usr/lib/x86_64-linux-gnu"
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


def _library(folder: Path, name: str, content: bytes, links: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    for link in links:
        (folder / link).symlink_to(name)


def install(root: Path, hpcx: str = HPCX, needs: str = SONAME) -> None:
    """Library and plugin of one release. needs: name under which the plugin asks for the library."""
    _library(root / hpcx / "sharp/lib", COLL, shared_object(("sharp_coll_init",), ()), (SONAME, "libsharp_coll.so"))
    plugin(root, hpcx, EXPORTED, (needs, "libibverbs.so.1"))


def plugin(root: Path, hpcx: str, exported: Sequence[str], needed: Sequence[str]) -> None:
    folder = root / hpcx / "nccl_rdma_sharp_plugin/lib"
    shutil.rmtree(folder, ignore_errors=True)
    _library(folder, PLUGIN, shared_object(exported, needed), ("libnccl-net.so.0", "libnccl-net.so"))


def switch_on(root: Path) -> None:
    add(root, CONF, "NCCL_COLLNET_ENABLE=1")


def add(root: Path, path: str, line: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text((file.read_text() if file.is_file() else "") + line + "\n")


# -- what can be wrong -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SharpFault:
    """change: of the files below a node's root.   check, subject, state: the one finding that it has to cause."""

    name: str
    description: str
    change: Callable[[Path], None]
    check: str
    subject: str
    state: str = "drift"


def _no_library(root: Path) -> None:
    shutil.rmtree(root / HPCX / "sharp")


def _spherical(root: Path) -> None:
    """Debian's package of that name: transforms on the sphere."""
    _no_library(root)
    _library(root / DEBIAN, "libsharp.so.0.0.0", shared_object(("sharp_execute",), ()), ("libsharp.so.0",))
    add(root, "var/lib/dpkg/info/libsharp0:amd64.list", "/usr/lib/x86_64-linux-gnu/libsharp.so.0")


def _no_plugin(root: Path) -> None:
    shutil.rmtree(root / HPCX / "nccl_rdma_sharp_plugin")


def _cut_off(root: Path) -> None:
    file = root / HPCX / "nccl_rdma_sharp_plugin/lib" / PLUGIN
    file.write_bytes(file.read_bytes()[:100])


def _two_trees(root: Path) -> None:
    _no_plugin(root)
    plugin(root, "opt/hpcx-v2.18", EXPORTED, (SONAME,))


def _line(path: str, line: str) -> Callable[[Path], None]:
    return lambda root: add(root, path, line)


def _user(root: Path) -> None:
    add(root, "etc/passwd", "eve:x:1000:1000::/home/eve:/bin/bash")
    (root / "home/eve").mkdir(parents=True)


def _one_user(root: Path) -> None:
    _off(root)
    _user(root)
    add(root, "home/eve/.nccl.conf", "NCCL_COLLNET_ENABLE=1")


def _not_eve(root: Path) -> None:
    _user(root)
    add(root, "home/eve/.nccl.conf", "NCCL_COLLNET_ENABLE=0")


def _off(root: Path) -> None:
    (root / CONF).write_text("NCCL_DEBUG=WARN\n")


_BOTH, _NET = "libsharp_coll.so and libnccl-net.so", "libnccl-net.so"
FAULTS = {
    fault.name: fault
    for fault in (
        SharpFault("sharp-missing", "no libsharp_coll.so", _no_library, "library", "libsharp_coll.so"),
        SharpFault("sharp-spherical", "Debian's libsharp0 in its place", _spherical, "library", "libsharp_coll.so"),
        SharpFault("plugin-missing", "no network plugin", _no_plugin, "plugin", _NET),
        SharpFault(
            "plugin-other",
            "a network plugin without CollNet",
            lambda root: plugin(root, HPCX, ("ncclNetPlugin_v9",), ("libfabric.so.1",)),
            *("plugin", _NET),
        ),
        SharpFault("plugin-cut", "the plugin's file is cut off", _cut_off, "plugin", _NET, "unknown"),
        SharpFault(
            "release-older",
            "the plugin is of an older release than the library",
            lambda root: plugin(root, HPCX, EXPORTED, ("libsharp_coll.so.4",)),
            *("release", _BOTH),
        ),
        SharpFault("release-two", "plugin and library of two HPC-X", _two_trees, "release", _BOTH),
        SharpFault(
            "release-open",
            "a plugin that does not say which library it takes",
            lambda root: plugin(root, HPCX, EXPORTED, ()),
            *("release", _BOTH, "unknown"),
        ),
        SharpFault("collnet-off", "nothing switches SHARP on", _off, "variable", "NCCL_COLLNET_ENABLE"),
        SharpFault(
            "collnet-zero",
            "every login switches CollNet off",
            _line(ENVIRONMENT, "NCCL_COLLNET_ENABLE=0"),
            *("variable", "NCCL_COLLNET_ENABLE"),
        ),
        SharpFault(
            "collnet-clever",
            "a profile sets CollNet by a command",
            _line("etc/profile.d/nccl.sh", "export NCCL_COLLNET_ENABLE=$(ask-somebody)"),
            *("variable", "NCCL_COLLNET_ENABLE", "unknown"),
        ),
        SharpFault(
            "collnet-perhaps",
            "a profile switches CollNet off for some",
            _line("etc/profile.d/nccl.sh", 'if [ "$USER" = eve ]; then export NCCL_COLLNET_ENABLE=0; fi'),
            *("variable", "NCCL_COLLNET_ENABLE", "unknown"),
        ),
        SharpFault(
            "collnet-one-user",
            "one user alone has switched it on",
            _one_user,
            *("variable", "NCCL_COLLNET_ENABLE"),
        ),
        SharpFault(
            "collnet-not-eve",
            "one user has switched it off",
            _not_eve,
            *("variable", "NCCL_COLLNET_ENABLE"),
        ),
        SharpFault(
            "sharp-disabled",
            "the plugin's own switch is off",
            _line(ENVIRONMENT, "NCCL_SHARP_DISABLE=1"),
            *("variable", "NCCL_SHARP_DISABLE"),
        ),
        SharpFault("algo-tree", "Tree alone, as guides say", _line(CONF, "NCCL_ALGO=TREE"), "variable", "NCCL_ALGO"),
        SharpFault(
            "folk-enable",
            "a name that spreads by copying",
            _line(CONF, "NCCL_SHARP_ENABLE=1"),
            *("folk_variable", "NCCL_SHARP_ENABLE"),
        ),
        SharpFault(
            "folk-ib-enable",
            "another one, for every login",
            _line(ENVIRONMENT, "NCCL_IB_SHARP_ENABLE=1"),
            *("folk_variable", "NCCL_IB_SHARP_ENABLE"),
        ),
        SharpFault(
            "threshold-nodes",
            "more nodes are asked for than there are",
            _line(CONF, "NCCL_COLLNET_NODE_THRESHOLD=9"),
            *("threshold", "NCCL_COLLNET_NODE_THRESHOLD"),
        ),
        SharpFault(
            "threshold-group",
            "the plugin asks for more nodes than there are",
            _line(CONF, "NCCL_SHARP_GROUP_SIZE_THRESH=16"),
            *("threshold", "NCCL_SHARP_GROUP_SIZE_THRESH"),
        ),
    )
}

if __name__ == "__main__":
    install(Path(sys.argv[1]))
