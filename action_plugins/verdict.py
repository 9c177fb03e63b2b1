# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Prints the verdict over all hosts and fails on anything but ok. Documented in library/verdict.py."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.busbar.fabric.plugins.module_utils import verdict

display = Display()


class ActionModule(ActionBase):
    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False
    _VALID_ARGS = frozenset({"roles", "path"})
    # One verdict for all hosts, whatever `run_once` says.
    BYPASS_HOST_LOOP = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        _validation, arguments = self.validate_argument_spec(
            argument_spec={
                "roles": {"type": "list", "elements": "str", "required": True},
                "path": {"type": "path", "default": ""},
            }
        )
        roles = arguments["roles"]
        # Every host of the play before any was lost: an unreachable one is not in ansible_play_hosts any more.
        hosts = variables["ansible_play_hosts_all"]
        hostvars = variables["hostvars"]
        results = {}
        for host in hosts:
            # Ansible gathers all of a host's variables anew at each of these look-ups: one a host.
            of_host = hostvars[host]
            results[host] = {role: of_host[f"{role}_result"] for role in roles if f"{role}_result" in of_host}
        judged = verdict.judge(results, roles, partial=_limited_by_tags(variables))
        check_mode = bool(self._task.check_mode)
        width = shutil.get_terminal_size((120, 40)).columns
        display.display("\n" + verdict.render(judged, check_mode, max(width, 100)) + "\n")
        if arguments["path"]:
            try:
                _write(arguments["path"], dict(judged.to_dict(), check_mode=check_mode))
            except OSError as error:
                result.update(failed=True, msg=f"busbar_findings_path {arguments['path']}: {error.strerror}")
                return result
        bad = [host.host for host in judged.hosts if not host.ok]
        result.update(changed=False, ok=judged.ok)
        if not judged.ok:
            names = ", ".join(bad[:5]) + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")
            result.update(failed=True, msg=f"not ok on {names or 'any host'}; the table above says what and why")
        return result


def _limited_by_tags(variables: dict[str, Any]) -> bool:
    return list(variables.get("ansible_run_tags") or ["all"]) != ["all"] or bool(variables.get("ansible_skip_tags"))


def _write(path: str, data: dict[str, Any]) -> None:
    """Whole or not at all: a reader never sees half a findings file."""
    folder = os.path.dirname(path) or "."
    with tempfile.NamedTemporaryFile("w", dir=folder, prefix=".busbar-", delete=False, encoding="utf-8") as stream:
        json.dump(data, stream, indent=2, sort_keys=True)
        stream.write("\n")
    os.chmod(stream.name, 0o644)
    os.replace(stream.name, path)
