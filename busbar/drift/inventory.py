# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the nodes of an inventory that have to report, and its secrets."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.error_text import error_text
from ansible_collections.busbar.fabric.plugins.plugin_utils import manifest
from ansible_collections.busbar.fabric.plugins.plugin_utils.findings_file import GROUP
from ansible_collections.busbar.fabric.plugins.plugin_utils.manifest import Manifest as Manifest
from ansible_collections.busbar.fabric.plugins.plugin_utils.manifest import build
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

from ..ansible_process import environment, passed, reaped


class InventoryError(ValueError):
    """The inventory gives no nodes to audit; the message has the reason."""


@dataclass
class Expected:
    """Hold the manifest of a run, once the inventory is read."""

    manifest: Manifest | None = None


def read(paths: Sequence[Path], limit: str | None) -> Manifest:
    """Return the manifest. Raises InventoryError, also for a limit that selects no host, or that Ansible ignores."""
    from ansible.errors import AnsibleError  # here, so that the other commands start without Ansible
    from ansible_collections.busbar.fabric.plugins.filter.target_nodes import target_nodes

    argv = _argv(paths)
    everything = _list(argv)
    groups = {GROUP: _members(everything, GROUP)} if GROUP in everything else {}
    nodes = groups.get(GROUP, [])
    # An empty limit is refused below; Ansible would list every host for it.
    chosen = set(nodes) if not limit else set(_members(_list([*argv, "--limit", limit]), GROUP))
    try:
        target_nodes(groups, sorted(chosen), limit, [str(path) for path in paths])
    except AnsibleError as error:
        raise InventoryError(str(error)) from error
    variables: Plain = everything.get("_meta", {}).get("hostvars", {})
    return build(nodes, chosen, variables.items())


def sources(paths: Sequence[Path]) -> list[str]:
    """Return what ansible-playbook takes after ``-i``, from any folder: ``a,b`` are hosts and no path."""
    return [str(path) if "," in str(path) else os.path.realpath(path) for path in paths]


def variables(paths: Sequence[Path]) -> dict[str, Plain]:
    """Return node -> its variables, as ansible-inventory prints them: templates and vaults stay closed.

    Raises InventoryError.
    """
    everything = _list(_argv(paths))
    of_host: Plain = everything.get("_meta", {}).get("hostvars", {})
    return {node: of_host.get(node, {}) for node in _members(everything, GROUP)}


def require_protected(paths: Sequence[Path]) -> None:
    """Raise InventoryError if an inventory is missing, or others can write it or the folder that it lies in.

    Ansible executes every executable of an inventory directory, and reads group_vars beside an inventory file.
    """
    paths = [path for path in paths if "," not in str(path)]
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise InventoryError(f"inventory {', '.join(missing)} does not exist")
    for path in paths:
        full = path.resolve()
        folder = full if full.is_dir() else full.parent
        for place in (full, folder, *folder.parents):
            mode = place.stat().st_mode
            # In a sticky folder further up no other user can replace our files.
            if mode & stat.S_IWOTH and (place in (full, folder) or not mode & stat.S_ISVTX):
                way = f"move the inventory, or run: chmod o-w {shlex.quote(str(place))}"
                why = f"everybody can write {place}, and Ansible would run what lies there"
                raise InventoryError(f"inventory {path}: {why}; {way}")


def _argv(paths: Sequence[Path]) -> list[str]:
    require_protected(paths)
    # Its group_vars count for ansible-playbook, those of the current folder do not.
    playbooks = Path(manifest.__file__).parents[2] / "playbooks"
    named = [word for path in paths for word in ("-i", str(path))]
    return ["ansible-inventory", "--list", "--playbook-dir", str(playbooks), *passed(), *named]


def _list(argv: list[str]) -> Plain:
    try:
        done = subprocess.run(reaped(argv), env=environment(), capture_output=True, text=True, timeout=600, check=False)
        data = json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise InventoryError(f"ansible-inventory: {error_text(error)}") from error
    if not isinstance(data, dict):
        raise InventoryError(f"ansible-inventory ended with {done.returncode}: {' '.join(done.stderr.split())[:500]}")
    return data


def _members(data: Plain, group: str, seen: frozenset[str] = frozenset()) -> list[str]:
    """Return the hosts of a group and of its children, each once, in the inventory's order."""
    of_group = data.get(group) or {}
    hosts = [str(host) for host in of_group.get("hosts") or []]
    for child in of_group.get("children") or []:
        if child not in seen:
            hosts += _members(data, child, seen | {group, child})
    return list(dict.fromkeys(hosts))
