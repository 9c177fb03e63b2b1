# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Faults of SHARP's files and variables on a node: rows of data/sharp_faults.json, and the changes that they name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import sharp_files
from .nccl_tests import DATA
from .sharp_files import CONF, EXPORTED, HPCX, PLUGIN, add


@dataclass(frozen=True)
class SharpFault:
    """change: of the files below a node's root.   check, subject, state: the one finding that it has to cause."""

    name: str
    description: str
    change: Callable[[Path], object]
    check: str
    subject: str
    state: str = "drift"


_PLUGIN = "nccl_rdma_sharp_plugin"


def _remove(root: Path, folder: str) -> None:
    shutil.rmtree(root / HPCX / folder)


def _cut_off(root: Path) -> None:
    file = root / HPCX / "nccl_rdma_sharp_plugin/lib" / PLUGIN
    file.write_bytes(file.read_bytes()[:100])


def _one_user(root: Path, value: str) -> None:
    """Set CollNet for one user; switched on, for nobody else."""
    if value == "1":
        (root / CONF).write_text("NCCL_DEBUG=WARN\n")
    add(root, "etc/passwd", "eve:x:1000:1000::/home/eve:/bin/bash")
    add(root, "home/eve/.nccl.conf", f"NCCL_COLLNET_ENABLE={value}")


_CHANGES: dict[str, Callable[..., object]] = {
    "add": add,
    "cut_off": _cut_off,
    "no_library": lambda root: _remove(root, "sharp"),
    "no_plugin": lambda root: _remove(root, _PLUGIN),
    "off": lambda root: (root / CONF).write_text("NCCL_DEBUG=WARN\n"),
    "one_user": _one_user,
    "replace_plugin": lambda root, exported, needed: sharp_files.plugin(root, HPCX, exported or EXPORTED, needed),
}


def _fault(row: dict[str, Any]) -> SharpFault:
    change, *arguments = row.pop("change")
    return SharpFault(change=lambda root: _CHANGES[change](root, *arguments), **row)


FAULTS = {row["name"]: _fault(row) for row in json.loads((DATA / "sharp_faults.json").read_text())}
