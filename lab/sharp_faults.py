# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Faults of SHARP's files and variables on a node: rows of data/sharp_faults.json, and the changes that they name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from .nccl_tests import DATA
from .sharp_files import CONF, HPCX, PLUGIN, add, plugin

# name: change, which ``make`` does; check, subject and state of the one finding that it has to cause.
FAULTS: dict[str, dict[str, Any]] = {row["name"]: row for row in json.loads((DATA / "sharp_faults.json").read_text())}


def make(root: Path, fault: str) -> None:
    """Change the files below a node's root."""
    change, *arguments = FAULTS[fault]["change"]
    if change == "add":
        add(root, *arguments)
    elif change == "cut_off":
        file = root / HPCX / "nccl_rdma_sharp_plugin/lib" / PLUGIN
        file.write_bytes(file.read_bytes()[:100])
    elif change == "remove":
        shutil.rmtree(root / HPCX / arguments[0])
    elif change == "replace_plugin":
        plugin(root, HPCX, *arguments)
    if change == "off" or arguments == ["1"]:
        (root / CONF).write_text("NCCL_DEBUG=WARN\n")
    if change == "one_user":
        add(root, "etc/passwd", "eve:x:1000:1000::/home/eve:/bin/bash")
        add(root, "home/eve/.nccl.conf", f"NCCL_COLLNET_ENABLE={arguments[0]}")
