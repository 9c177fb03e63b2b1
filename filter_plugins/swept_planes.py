# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Return the planes of the InfiniBand fabric swept whole in this run. Documented in swept_planes.yml."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ansible_collections.busbar.fabric.plugins.plugin_utils import fabric_run


def swept_planes(hosts: Iterable[str], hostvars: Any) -> list[str]:
    """Return the GUIDs of their subnet managers. hostvars: of Ansible."""
    answers = (fabric_run.answer_of(host, hostvars.raw_get(host)) for host in hosts)
    return sorted({one.plane for given in answers for one in given.sweeps if one.complete and one.plane})


class FilterModule:
    def filters(self) -> dict[str, Callable[..., list[str]]]:
        return {"swept_planes": swept_planes}
