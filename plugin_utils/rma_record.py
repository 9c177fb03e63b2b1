# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The record of a node that is kept out of service: what is wrong, what proves it, its parts, and what was tried.

One JSON file for each time, ``rma/HOST-TIME.json`` below ``nccl_benchmark_results_path``, for its owner alone.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable
from ansible_collections.busbar.fabric.plugins.plugin_utils import results_folder
from ansible_collections.busbar.fabric.plugins.plugin_utils.action_log import Entry

FORMAT = 1
FOLDER = "rma"


def record(
    host: str,
    at: float,
    run: str,
    reason: str,
    plan: Mapping[str, Any],
    hardware: Mapping[str, Any] | None,
    entries: Iterable[Entry],
    proofs: Iterable[Mapping[str, Any]] = (),
    simulated: bool = False,
) -> dict[str, Any]:
    """plan: of the host, as ``remediate.Host.to_dict``.   hardware: as ``rma_info`` has answered, None where it did
    not.   entries: of the action log, those of other hosts are left out.   proofs: what the checks say at the end.
    """
    ids = {item["finding"]["id"] for item in plan["items"]}
    return {
        "format": FORMAT,
        "simulated": simulated,
        "host": host,
        "at": at,
        "run": run,
        "reason": printable(reason),
        "boot_id": (hardware or {}).get("boot_id") or plan["boot_id"],
        "faults": list(plan["items"]),
        "proofs": list(proofs),
        # None: the node did not answer any more.
        "hardware": hardware,
        "attempts": [
            asdict(entry)
            for entry in entries
            if entry.host == host and (not entry.finding or not ids or entry.finding in ids)
        ],
    }


def write(results: str | Path, data: Mapping[str, Any]) -> Path:
    """The new file, on the disk. Raises OSError."""
    folder = Path(results) / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(data["at"]))
    text = json.dumps(data, indent=1, sort_keys=True, allow_nan=False)
    for number in range(1000):
        path = folder / (
            f"{results_folder.file_name(str(data['host']))}-{stamp}" + (f"-{number}" if number else "") + ".json"
        )
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            continue
        with results_folder.removed_unless_written(path), open(descriptor, "w", encoding="utf-8") as stream:
            stream.write(text + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        return path
    raise FileExistsError(f"{folder} holds a thousand records of this node and second")
