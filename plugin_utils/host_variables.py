# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read a host's rails from its variables, for plans over several hosts: consistency, pings, rail pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.rail_info import HostInfo
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.chain import Chain, resolve

from . import codec, result_schema, roce_chain
from .plain_data import PlainView


def of_host(variables: Mapping[str, object]) -> HostInfo | None:
    """Return a host's rails, of its registered result of topology_info; None without a valid one."""
    registered = variables.get("rail_info_result")
    read = registered.get("rail_info") if isinstance(registered, dict) else None
    return codec.build(HostInfo, read) if read and codec.is_valid(result_schema.info, read) else None


def values(variables: PlainView) -> PlainView:
    """Return the values of the host's intent; {} where it was not read."""
    found: PlainView = (variables.get("busbar_intent") or {}).get("values", {})
    return found


def rendered(value: object, templar: Any) -> Any:
    """Return a variable with its templates filled in. Most hold none, which is tested first: Ansible is slow at it."""
    return value if _plain(value) else templar.template(value)


def _plain(value: object) -> bool:
    """Return whether a value consists of numbers and of texts without templates. A vault's text is neither."""
    if not value or isinstance(value, (bool, int, float)):
        return True
    if isinstance(value, str):
        return "{" not in value and not value.startswith("#jinja2:")
    if isinstance(value, dict):
        return all(isinstance(key, str) and _plain(key) and _plain(each) for key, each in value.items())
    return isinstance(value, list) and all(map(_plain, value))


def kind(variables: PlainView) -> str:
    """Return profile and fabric: hosts of one kind can be compared and tested with each other."""
    read = variables.get("busbar_intent") or {}
    words = (read.get("profile_name", "unknown"), values(variables).get("busbar_fabric"))
    return " ".join(word for word in words if word)


def chain(intent: PlainView) -> Chain:
    """Return the RoCE chain of a consistent intent."""
    return resolve(intent.get("busbar_roce") or {}, roce_chain.settings(intent))
