# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The hosts that fleet_audit has left to tasks of their own, for ``hosts:``. Documented in asked_alone.yml."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

# Matches nobody, and without the warning that a name which is not there would give.
NOBODY = ["!all"]


def asked_alone(hosts: Sequence[str], hostvars: Any) -> list[str]:
    """All or nobody. hostvars: Ansible's own; what the task has registered is the same on every host.

    A syntax check has none: {} stands for them.
    """
    if not hostvars:
        return NOBODY
    said = [hostvars.raw_get(host).get("fleet_audit_result") or {} for host in hosts[:1]]
    return list(hosts) if any(result.get("by_task") for result in said) else NOBODY


class FilterModule:
    def filters(self) -> dict[str, Callable[..., list[str]]]:
        return {"asked_alone": asked_alone}
