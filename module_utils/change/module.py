# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Common part of the modules that run on nodes: options, and the frame around their work.

doc_fragments/node.py documents the options.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, NoReturn

from ..core.finding import DISRUPTIONS
from ..core.host import Host, ParseError, ReadError

Spec = Dict[str, Dict[str, Any]]
ROOTS: Spec = {
    "hardware_root": {"type": "path", "default": "/"},
    "system_root": {"type": "path", "default": "/"},
}
PROFILE: Spec = {
    "profile": {"type": "dict", "required": True},
    "profile_name": {"type": "str", "default": "unnamed"},
    "fabric": {"type": "str", "choices": ["", "infiniband", "ethernet"], "default": ""},
}
DISRUPTION: Spec = {"max_disruption": {"type": "str", "choices": list(DISRUPTIONS), "default": "none"}}
BACKUP: Spec = {"backup": {"type": "bool", "default": True}}
# Seconds that a tool may be granted.
LONGEST_TIMEOUT = 3600
# (machine, checked options, check mode) -> result of the module.
Work = Callable[[Host, Mapping[str, Any], bool], Dict[str, Any]]


def seconds(given: Mapping[str, object]) -> float:
    """Return option tool_timeout in seconds. Raises ParseError."""
    found = given["tool_timeout"]
    if not 0 < found <= LONGEST_TIMEOUT:
        raise ParseError("tool_timeout is %g, expected seconds up to %d" % (found, LONGEST_TIMEOUT))
    return float(found)


def run(module: Any, work: Work) -> NoReturn:
    """End the module with the result of ``work``, or with the text of the ParseError or ReadError that it raises.

    module: an AnsibleModule, or its stand-in in an audit.
    """
    given = module.params
    host = Host(given.get("hardware_root", "/"), given.get("system_root", "/"))
    try:
        host.require_roots()
        result = work(host, given, bool(module.check_mode))
    except (ParseError, ReadError) as error:
        module.fail_json(msg=str(error))
    except BlockingIOError:
        module.fail_json(msg="an earlier run of this module still works here; run it again when that run has ended")
    module.exit_json(**result)
    raise AssertionError("exit_json returned")
