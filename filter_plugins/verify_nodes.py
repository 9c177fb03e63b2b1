# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The hosts whose network is to be proven, for ``hosts:``. Documented in verify_nodes.yml."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ansible_collections.busbar.fabric.plugins.plugin_utils import verdict

# Matches nobody, and without the warning that a name which is not there would give.
NOBODY = ["!all"]


def verify_nodes(hosts: Iterable[str], hostvars: Any) -> list[str]:
    """Chosen before the play begins: to end each host by itself costs Ansible the cube of their number.

    hostvars: Ansible's own; of each host only what the run has registered is looked at.
    """
    asked: dict[str, bool] = {}
    names = list(hosts)
    for host in names:
        if host not in asked:
            of_host = hostvars.raw_get(host)
            values = (of_host.get("busbar_intent") or {}).get("values") or {}
            asked[host] = bool(values.get("busbar_verify"))
            # Any host's variables say it of all: to gather those of each takes Ansible a millisecond a host.
            asked.update({name: bool(answer.get("verify")) for name, answer in verdict.audited(of_host).items()})
    return [host for host in names if asked[host]] or NOBODY


class FilterModule:
    def filters(self) -> dict[str, Callable[..., list[str]]]:
        return {"verify_nodes": verify_nodes}
