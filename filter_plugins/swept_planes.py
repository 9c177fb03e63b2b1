# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Return the planes of the InfiniBand fabric swept whole in this run. Documented in swept_planes.yml."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import run as fabric_run
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import HostVars


def swept_planes(hosts: Iterable[str], hostvars: HostVars) -> list[str]:
    """GUIDs of their subnet managers. hostvars: Ansible's own."""
    answers = (fabric_run.read_result(host, hostvars.raw_get(host)) for host in hosts)
    return sorted({one.plane for given in answers for one in given.sweeps if one.complete and one.plane})


class FilterModule:
    def filters(self) -> dict[str, Callable[..., list[str]]]:
        return {"swept_planes": swept_planes}
