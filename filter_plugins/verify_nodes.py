# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The hosts whose network is to be proven, for ``hosts:``. Documented in verify_nodes.yml."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils import verdict

# Matches nobody, and without the warning that a name which is not there would give.
NOBODY = ["!all"]


def verify_nodes(hosts: Iterable[str], hostvars: Any) -> list[str]:
    """Chosen before the play begins: to end each host by itself costs Ansible the cube of their number.

    hostvars: Ansible's own; of each host only what the run has registered is looked at.
    """
    return [host for host in hosts if _asked(host, hostvars.raw_get(host))] or NOBODY


def _asked(host: str, of_host: Mapping[str, Any]) -> bool:
    values = (of_host.get("busbar_intent") or {}).get("values") or {}
    return bool(values.get("busbar_verify") or verdict.audited(of_host, host).get("verify"))


class FilterModule:
    def filters(self) -> dict[str, Callable[..., list[str]]]:
        return {"verify_nodes": verify_nodes}
