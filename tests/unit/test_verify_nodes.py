# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ansible_collections.busbar.fabric.plugins.filter.verify_nodes import NOBODY, verify_nodes


def of(**hosts: dict[str, Any]) -> SimpleNamespace:
    """In place of Ansible's hostvars."""
    return SimpleNamespace(raw_get=hosts.__getitem__)


def test_who_is_asked_says_so_in_its_intent_or_its_audit() -> None:
    asked = {"values": {"busbar_verify": True}}
    not_asked = {"values": {"busbar_verify": False}}
    heard = {"hosts": {"c": {"verify": True}, "d": {"unreachable": True, "msg": "no route to host"}}}
    hostvars = of(
        a={"busbar_intent": asked},
        b={"busbar_intent": not_asked},
        c={"fleet_audit_result": heard},
        d={"fleet_audit_result": heard},
        e={},
    )
    assert verify_nodes("abcde", hostvars) == ["a", "c"]
    # No pattern at all would be an error of Ansible's.
    assert verify_nodes("bde", hostvars) == verify_nodes([], hostvars) == NOBODY
