# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The hosts that a play of reboot.yml is for, for ``hosts:``. Documented in reboot_nodes.yml."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.busbar.fabric.plugins.plugin_utils import reboot

WHAT = ("reboot", "give_back")
# Matches nobody, and without the warning that a name which is not there would give.
NOBODY = ["!all"]


def reboot_nodes(hosts: Iterable[str], hostvars: Any, what: str) -> list[str]:
    """Of these hosts, in the order of the inventory: the first of them is rebooted alone. intersect() has no order.

    hostvars: Ansible's own; of each host only what the run has registered is looked at.
    """
    if what not in WHAT:
        raise AnsibleFilterError(f"reboot_nodes knows {' and '.join(WHAT)}, not {what!r}")
    wanted = set(hosts)
    return [host for host in hostvars if host in wanted and reboot.turn(hostvars.raw_get(host)) == what] or NOBODY


class FilterModule:
    def filters(self) -> dict[str, Callable[..., list[str]]]:
        return {"reboot_nodes": reboot_nodes}
