# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Return the batch sizes of remediation, for ``serial:``. Documented in remediate_batches.yml."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible_collections.busbar.fabric.plugins.filter.remediate_nodes import registered_of


def remediate_batches(hostvars: Any, turn: str) -> list[int]:
    """Return batch sizes. hostvars: of Ansible; {} in a syntax check.   turn: "canary" (one host) or "others"."""
    sizes = list(registered_of(hostvars, "remediate_plan_result").get("batches") or [1])
    if turn == "canary":
        return [1]
    # The rest of the canary's batch comes after it.
    return ([sizes[0] - 1] if sizes[0] > 1 else []) + sizes[1:] or [1]


class FilterModule:
    def filters(self) -> dict[str, Callable[..., list[int]]]:
        return {"remediate_batches": remediate_batches}
