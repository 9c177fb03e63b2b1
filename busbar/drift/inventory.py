# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who is expected to answer: the nodes of an inventory, and what in it must not be repeated."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.core import redaction

from ..ansible_process import environment, kept

GROUP = "gpu_nodes"


class InventoryError(ValueError):
    """Nobody to ask, or nobody knows whom; the message says why."""


@dataclass(frozen=True)
class Manifest:
    """hosts: every one of them has to end in the report. secrets: texts that must not."""

    hosts: tuple[str, ...]
    secrets: tuple[str, ...]
    simulated: bool


def read(paths: Sequence[Path], limit: str | None) -> Manifest:
    """Raises InventoryError, also for a limit that selects nobody or that Ansible would take for everybody."""
    from ansible.errors import AnsibleError  # here, so that the other commands start without Ansible
    from ansible_collections.busbar.fabric.plugins.filter.target_nodes import target_nodes

    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise InventoryError(f"inventory {', '.join(missing)} does not exist")
    argv = ["ansible-inventory", "--list", *(word for path in paths for word in ("-i", str(path)))]
    everything = _list(argv)
    groups = {GROUP: _members(everything, GROUP)} if GROUP in everything else {}
    nodes = groups.get(GROUP, [])
    # An empty limit is refused below; Ansible would list every host for it.
    chosen = set(nodes) if not limit else set(_members(_list([*argv, "--limit", limit]), GROUP))
    try:
        target_nodes(groups, sorted(chosen), limit, [str(path) for path in paths])
    except AnsibleError as error:
        raise InventoryError(str(error)) from error
    variables: Mapping[str, Any] = everything.get("_meta", {}).get("hostvars", {})
    hidden = redaction.worth_hiding(redaction.among([*variables.values()]))
    roots = [of_host.get("busbar_hardware_root", "/") for name, of_host in variables.items() if name in chosen]
    return Manifest(tuple(node for node in nodes if node in chosen), hidden, any(root != "/" for root in roots))


def _list(argv: list[str]) -> dict[str, Any]:
    try:
        done = subprocess.run(kept(argv), env=environment(), capture_output=True, text=True, timeout=600, check=False)
        data = json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise InventoryError(f"ansible-inventory: {error}") from error
    if not isinstance(data, dict):
        raise InventoryError(f"ansible-inventory ended with {done.returncode}: {' '.join(done.stderr.split())[:500]}")
    return data


def _members(data: Mapping[str, Any], group: str, seen: frozenset[str] = frozenset()) -> list[str]:
    """The hosts of a group and of its children, each once, in the inventory's order."""
    of_group = data.get(group) or {}
    hosts = [str(host) for host in of_group.get("hosts") or []]
    for child in of_group.get("children") or []:
        if child not in seen:
            hosts += _members(data, child, seen | {group, child})
    return list(dict.fromkeys(hosts))
