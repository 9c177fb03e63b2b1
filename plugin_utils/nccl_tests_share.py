# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Choose the hosts that build nccl-tests: of the hosts of one class, one builds and the others copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def choose(results: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return host -> {"source": host to copy from, or "" to build, "pack": for others}; no entry: nothing to do.

    results: each host's module result, in the inventory's order: ``class_id`` and ``share``. A host that was
    lost or has failed has neither.
    """
    classes: dict[str, list[str]] = {}
    for host, result in results.items():
        if result.get("share"):
            # A host that cannot be compared is alone.
            classes.setdefault(result.get("class_id") or f"host {host}", []).append(host)
    steps: dict[str, dict[str, Any]] = {}
    for hosts in classes.values():
        able = [host for way in ("has", "can_build") for host in hosts if results[host]["share"][way]]
        if not able:
            continue
        source = able[0]
        copies = [host for host in hosts if host != source and results[host]["share"]["can_copy"]]
        if copies or results[source]["share"]["can_build"]:
            steps[source] = {"source": "", "pack": bool(copies)}
        steps.update((host, {"source": source, "pack": False}) for host in copies)
    return steps
