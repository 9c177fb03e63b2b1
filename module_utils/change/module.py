# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Common part of the modules that run on nodes: options, and the frame around their work.

doc_fragments/node.py documents the options.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional

from ..core.finding import DISRUPTIONS
from ..core.host import Host, ParseError, ReadError, Session

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
# Values shorter than this are no secrets, and masking every "1" or "INFO" would blot out the figures.
MASKED_LENGTH = 8
# (machine, checked options, check mode) -> result of the module.
Work = Callable[[Host, Mapping[str, Any], bool], Dict[str, Any]]


def seconds(given: Mapping[str, Any]) -> float:
    """Return option tool_timeout in seconds. Raises ParseError."""
    found = given["tool_timeout"]
    if not 0 < found <= LONGEST_TIMEOUT:
        raise ParseError("tool_timeout is %g, expected seconds up to %d" % (found, LONGEST_TIMEOUT))
    return float(found)


class Failed(Exception):
    """The work failed. more: what is returned beside the message."""

    def __init__(self, message: str, **more: Any) -> None:
        super().__init__(message)
        self.more = more


def entry(spec: Spec, work: Work) -> Callable[[], None]:
    """Return the function main of a module."""
    return lambda: _main(spec, work)


def _main(spec: Spec, work: Work) -> None:
    # The audit works without it: importing it takes longer than reading the whole machine.
    from ansible.module_utils.basic import AnsibleModule

    module = AnsibleModule(spec, supports_check_mode=True)
    given = dict(module.params)
    for name, option in spec.items():
        if option.get("no_log"):
            # Taken out, it cannot be returned.
            del module.params[name]
    # What of it may be a secret is masked also where a tool quotes it.
    module.no_log_values = set(filter(is_secret, module.no_log_values))
    result = execute(work, given, bool(module.check_mode))
    if result.get("failed"):
        module.fail_json(**result)
    module.exit_json(**result)


def is_secret(value: str) -> bool:
    """Return whether a value of an option with no_log must be masked in every text; figures and paths must not be."""
    return len(value) >= MASKED_LENGTH and not value.isdigit() and not value.startswith("/")


def host_of(given: Mapping[str, object], session: Optional[Session] = None) -> Host:
    """Return the machine that the options name."""
    roots = str(given.get("hardware_root", "/")), str(given.get("system_root", "/"))
    if session is None:
        return Host(*roots)
    host = session.make_host(*roots)
    host.session = session
    return host


def execute(
    work: Work, given: Mapping[str, Any], check_mode: bool, session: Optional[Session] = None
) -> Dict[str, Any]:
    """Return the result of the work, or its failure. session: of the audit that it belongs to."""
    host = host_of(given, session)
    try:
        host.require_roots()
        return work(host, given, check_mode)
    except Failed as error:
        return {"failed": True, "msg": str(error), **error.more}
    except (ParseError, ReadError) as error:
        return {"failed": True, "msg": str(error)}
    except BlockingIOError:
        said = "an earlier run of this module still works here; run it again when that run has ended"
        return {"failed": True, "msg": said}
