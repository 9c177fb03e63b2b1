# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Build the module calls of a first verdict: those of the audit, from the roles' variables, without Ansible.

The roles' templates are plain expressions of Jinja over values of the intent. A test
compares the calls with those of host_audit.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.busbar.fabric.plugins.plugin_utils import intent, profile_files, suite
from jinja2 import Environment, StrictUndefined

from .classes import OTHER, TABLE

ROLES = [role for role in suite.AUDITED.values() if any(TABLE.get(noun) != OTHER for noun in role.nouns)]
Data = Mapping[str, Any]
Values = dict[str, Any]
_OMIT = object()
_EXPRESSION = re.compile(r"\s*\{\{((?:(?!\{\{|\}\}).)*)\}\}\s*", re.DOTALL)
_JINJA = Environment(undefined=StrictUndefined, autoescape=False)  # noqa: S701 - arguments of modules, not HTML
# No record is written, and a first look has no earlier counters.
_MORE = {"node_health": {"record": False, "since_boot": True}}


def recognition(roots: Mapping[str, str], draft: bool) -> Values:
    """Return the step that reads the platform's facts. roots: hardware_root, system_root.   draft: of a profile."""
    more = {"draft": True} if draft else {}
    return {"role": "platform", "module": "topology_info", "arguments": {"recognition": True, **roots, **more}}


def steps(values: Data, profile: Data, name: str) -> list[Values]:
    """Return ``role``, ``module`` and ``arguments`` of each call. values: of the site. Raises WrongIntent.

    profile, name: of the platform.
    """
    every = intent.read(dict(values))
    wanted = {"values": every, "profile": profile, "profile_name": name}
    known = {**every, "busbar_intent": wanted, "omit": _OMIT}
    result = []
    for role in ROLES:
        for key, value in _variables(role.name).items():
            known[key] = _rendered(value, known)
        arguments = {**known[f"__{role.name}_arguments"], **_MORE.get(role.module, {})}
        result.append({"role": role.name, "module": role.module, "arguments": arguments})
    return result


@functools.cache
def _variables(role: str) -> Values:
    read = profile_files.read(profile_files.BUILT_IN.parent / "roles" / role / "vars" / "main.yml")
    names = sorted((name for name in read if name.startswith(f"__{role}_")), key=lambda one: one.endswith("_arguments"))
    return {name: read[name] for name in names}


def _rendered(value: Any, known: Data) -> Any:
    """Return the value with its templates filled in; an expression alone keeps its type, as with Ansible."""
    if isinstance(value, dict):
        items = {key: _rendered(item, known) for key, item in value.items()}
        return {key: item for key, item in items.items() if item is not _OMIT}
    if isinstance(value, list):
        return [_rendered(item, known) for item in value]
    if not isinstance(value, str) or "{{" not in value:
        return value
    alone = _EXPRESSION.fullmatch(value)
    if alone is None:
        return _JINJA.from_string(value).render(known)
    return _JINJA.compile_expression(alone[1], undefined_to_none=False)(**known)
