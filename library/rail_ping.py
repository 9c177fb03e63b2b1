#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: rail_ping
short_description: (internal) Ping the same rail of other hosts with packets of the full MTU
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. Pings what M(busbar.fabric.verify) has planned for this host, all at once,
    with packets that must not be fragmented. Reports which end has too small an MTU, or that a switch between them has.
    Three packets each, on an idle or a busy node.
  - Changes nothing.
options:
  pings:
    description: C(pings) of this host, as planned.
    type: list
    elements: dict
    required: true
  findings:
    description: C(findings) of this host, as planned; they are part of the result.
    type: list
    elements: dict
    default: []
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.reads
"""

EXAMPLES = r"""
- name: Ping the rails of other hosts
  busbar.fabric.rail_ping:
    pings: "{{ planned_pings }}"
  register: rail_ping_result
"""

RETURN = r"""
findings:
  description: What does not pass, and what could not be tested, as in C(docs/findings.md).
  type: list
  elements: dict
  returned: success
passed:
  description: Ids of the checks that are ok.
  type: list
  elements: str
  returned: success
commands:
  description: Empty; nothing is changed.
  type: list
  elements: str
  returned: success
reboot_required:
  description: Empty; nothing is changed.
  type: list
  elements: str
  returned: success
withheld:
  description: Empty; nothing is changed.
  type: list
  elements: str
  returned: success
"""

from typing import Any, Dict, Mapping

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.busbar.fabric.plugins.module_utils import rail_ping
from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.core import finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan

SPEC = {
    "pings": {"type": "list", "elements": "dict", "required": True},
    "findings": {"type": "list", "elements": "dict", "default": []},
    **module.ROOTS,
}


def main() -> None:
    module.run(AnsibleModule(SPEC, supports_check_mode=True), work)


def work(host: Host, given: Mapping[str, Any], _check_mode: bool) -> Dict[str, Any]:
    try:
        asked = [rail_ping.from_dict(one) for one in given["pings"]]
        known = [finding.from_dict(one) for one in given["findings"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ParseError("pings and findings come from verify, these do not: %r" % error) from error
    return Plan((*known, *rail_ping.ping_all(host, asked))).result()


if __name__ == "__main__":
    main()
