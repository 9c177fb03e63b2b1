# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether a role is to be played on a host, for ``when:``. Documented in is_due.yml."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible_collections.busbar.fabric.plugins.plugin_utils import work


def is_due(role: str, hostvars: Any, host: str) -> bool:
    """hostvars: Ansible's own; of the host only what the run has registered is looked at."""
    return work.due(role, hostvars.raw_get(host))


class FilterModule:
    def filters(self) -> dict[str, Callable[..., bool]]:
        return {"is_due": is_due}
