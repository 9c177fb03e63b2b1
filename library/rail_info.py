#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: rail_info
short_description: Read a host's rails as other hosts have to know them
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Reads for each rail of the profile its PCI address, RDMA device, interface, address, MTU, firmware, PSID and QoS,
    the driver's version, and who uses the node. M(busbar.fabric.consistency) compares this over all hosts, and
    M(busbar.fabric.rail_pairs) makes pairs of it.
  - Changes nothing.
attributes:
  check_mode:
    support: full
    description: Reads only, so check mode and the real run are the same.
  diff_mode:
    support: full
    description: There is never a difference to show.
options:
  profile:
    description: Platform profile as in C(profiles/NAME.yml).
    type: dict
    required: true
  profile_name:
    description: Name of the profile, for messages.
    type: str
    default: unnamed
  fabric:
    description: The site's fabric; needed where the profile exists with both.
    type: str
    choices: ["", infiniband, ethernet]
    default: ""
  address_family:
    description: Kind of RoCE v2 address that an Ethernet rail has.
    type: str
    choices: [ipv4, ipv6]
    default: ipv4
  dscp:
    description: Of the lossless queue; -1 where there is none, and then the ports' QoS is not read.
    type: int
    default: -1
  hardware_root:
    description: Directory that holds C(/sys) and C(/proc).
    type: path
    default: /
  system_root:
    description: Directory that holds C(/etc) and C(/usr).
    type: path
    default: /
"""

EXAMPLES = r"""
- name: Read the rails
  busbar.fabric.rail_info:
    profile: "{{ busbar_intent.profile }}"
    fabric: ethernet
  register: rail_info_result
"""

RETURN = r"""
info:
  description: Product, driver, rails and missing rails.
  type: dict
  returned: success
busy:
  description: Who uses the node, or why that is not known; empty for nobody.
  type: list
  elements: str
  returned: success
findings:
  description: Empty; values are judged over all hosts.
  type: list
  elements: dict
  returned: success
passed:
  description: Empty likewise.
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

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.busbar.fabric.plugins.module_utils import rail_info
from ansible_collections.busbar.fabric.plugins.module_utils.change import busy
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile, rails, topology


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "profile": {"type": "dict", "required": True},
            "profile_name": {"type": "str", "default": "unnamed"},
            "fabric": {"type": "str", "choices": ["", "infiniband", "ethernet"], "default": ""},
            "address_family": {"type": "str", "choices": ["ipv4", "ipv6"], "default": "ipv4"},
            "dscp": {"type": "int", "default": -1},
            "hardware_root": {"type": "path", "default": "/"},
            "system_root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    given = module.params
    host = Host(given["hardware_root"], given["system_root"])
    try:
        host.require_roots()
        want = profile.asked(given)
        machine = topology.read(host, ask_nvidia_smi=False)
        dscp = given["dscp"] if given["dscp"] >= 0 else None
        info = rail_info.read(host, machine, rails.match(machine, want), want, given["address_family"], dscp)
    except (ParseError, ReadError) as error:
        module.fail_json(msg=str(error))
    users = busy.read(host)
    said = [*users.reasons, *("not known to be idle: %s" % problem for problem in users.problems)]
    module.exit_json(info=info.to_dict(), busy=said, **Plan().result())


if __name__ == "__main__":
    main()
