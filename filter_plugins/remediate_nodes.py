# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Return the hosts of a play of remediate.yml, for ``hosts:``. Documented in remediate_nodes.yml."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation import rollout

# Matches no host, without the warning for a name that does not exist.
NO_HOSTS = ["!all"]
PLAYS = (
    *("accused", "paired", "canary", "others"),
    *("canary_paired", "others_paired", "canary_pending", "others_pending"),
)


def remediate_nodes(hosts: Iterable[str], hostvars: Any, play: str) -> list[str]:
    """Return the hosts in the order of their repair. hostvars: of Ansible; {} in a syntax check."""
    if play not in PLAYS:
        raise AnsibleFilterError(f"remediate_nodes knows {', '.join(PLAYS)}, not {play!r}")
    wanted = set(hosts)
    read = registered_of(hostvars, "remediate_read_result")
    turn, _under, what = play.partition("_")
    found = read.get(play) or []
    if turn in ("canary", "others"):
        order = registered_of(hostvars, "remediate_plan_result").get("order") or []
        found = order[:1] if turn == "canary" else order[1:]
    if what:
        states = {host: (hostvars.raw_get(host).get("remediate_state") or {}).get("state") or {} for host in found}
        found = [host for host, state in states.items() if state.get("pending")]
    if what == "paired":
        pairs = read.get("pairs") or {}
        found = rollout.good_first({host: pairs.get(host, []) for host in found})
    return [host for host in found if host in wanted] or NO_HOSTS


def registered_of(hostvars: Any, name: str) -> Mapping[str, Any]:
    """Return what was registered once for all hosts of a play: the same on each of them."""
    for host in hostvars:
        result = hostvars.raw_get(host).get(name)
        if result:
            return result  # type: ignore[no-any-return]
    return {}


class FilterModule:
    def filters(self) -> dict[str, Callable[..., list[str]]]:
        return {"remediate_nodes": remediate_nodes}
