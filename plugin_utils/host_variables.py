# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the variables of a host say of its rails, for plans over several hosts: consistency, pings, rail pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.rail_info import HostInfo, from_dict
from ansible_collections.busbar.fabric.plugins.module_utils.roce.chain import Chain, resolve
from ansible_collections.busbar.fabric.plugins.plugin_utils import answer, roce_chain


def of_host(variables: Mapping[str, object]) -> HostInfo | None:
    """What the module rail_info has returned; None where it has not, or nothing that is valid."""
    registered = variables.get("rail_info_result")
    read = registered.get("info") if isinstance(registered, dict) else None
    return from_dict(read) if read and answer.is_valid(answer.info, read) else None


def values(variables: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of the host's intent; {} where that was not read."""
    found: Mapping[str, Any] = (variables.get("busbar_intent") or {}).get("values", {})
    return found


def rendered(value: object, templar: Any) -> Any:
    """A variable with its templates filled in. Most hold none, which Ansible takes long to find out."""
    return value if _plain(value) else templar.template(value)


def _plain(value: object) -> bool:
    """Whether it is made of numbers, and of texts that cannot be templates. A vault's text is neither."""
    if not value or isinstance(value, (bool, int, float)):
        return True
    if isinstance(value, str):
        return "{" not in value and not value.startswith("#jinja2:")
    if isinstance(value, dict):
        return all(isinstance(key, str) and _plain(key) and _plain(each) for key, each in value.items())
    return isinstance(value, list) and all(map(_plain, value))


def kind(variables: Mapping[str, Any]) -> str:
    """Profile and fabric: hosts of one kind can be compared and tested with each other."""
    read = variables.get("busbar_intent") or {}
    words = (read.get("profile_name", "unknown"), values(variables).get("busbar_fabric"))
    return " ".join(word for word in words if word)


def chain(intent: Mapping[str, Any]) -> Chain:
    """intent: values of one that has been found to be consistent."""
    return resolve(intent.get("busbar_roce") or {}, roce_chain.settings(intent))
