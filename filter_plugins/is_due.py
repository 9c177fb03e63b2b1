# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Return whether a role is to be played on a host, for ``when:``. Documented in is_due.yml."""

from __future__ import annotations

from collections.abc import Callable

from ansible_collections.busbar.fabric.plugins.plugin_utils import due_roles
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import HostVars


def is_due(role: str, hostvars: HostVars, host: str) -> bool:
    """Return whether the role is due. hostvars: of Ansible; only registered results of the host are read."""
    return due_roles.due(role, hostvars.raw_get(host))


class FilterModule:
    def filters(self) -> dict[str, Callable[..., bool]]:
        return {"is_due": is_due}
