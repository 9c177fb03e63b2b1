#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: multirail
short_description: ARP, reverse path filter and source routing of the rails, by a named policy
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Sets the kernel's ARP and reverse path settings for the interface of every Ethernet rail, now and in a sysctl
    drop-in. What another sysctl file says against it is named with its line, and left as it is.
  - Where the policy asks for it, gives every rail a routing table of its own and a rule from its address, now by C(ip)
    and at boot by a file of Busbar's own for systemd-networkd or netplan. With other owners a finding says what to add.
  - Addresses are those that the rails have; nothing here gives an interface an address.
attributes:
  check_mode:
    support: full
    description: Shows files and commands and touches nothing.
  diff_mode:
    support: full
    description: The difference of every file; live changes are in RV(commands).
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
    description: The site's fabric; needed where the profile exists with both. Nothing is asked for on InfiniBand.
    type: str
    choices: ["", infiniband, ethernet]
    default: ""
  policy:
    description:
      - V(oci) is arp_ignore 2, arp_announce 1, rp_filter 2. V(nvidia) is arp_ignore 1, arp_announce 2, rp_filter 0 and
        source routing. V(custom) takes O(values) and O(source_routing). Empty asks for nothing, and Busbar's own files
        are removed; what is set now stays until a reboot.
    type: str
    choices: ["", oci, nvidia, custom]
    default: ""
  values:
    description: Kernel settings for V(custom), from arp_ignore, arp_announce, rp_filter and accept_local to a number.
    type: dict
    default: {}
  source_routing:
    description: For V(custom), whether each rail gets a routing table of its own.
    type: bool
    default: false
  gateway:
    description:
      - Default gateway in each rail's table, the first or last address of the rail's subnet. With V(none) the table
        reaches the subnet only.
    type: str
    choices: [none, first, last]
    default: none
  mtu_judged:
    description:
      - Whether M(busbar.fabric.netdev_mtu) judges the same rails. An owner that is not clear is its finding then.
    type: bool
    default: false
  max_disruption:
    description: Most that the run may cost. Routes and rules of a running node cost V(link).
    type: str
    choices: [none, link, driver, reboot]
    default: none
  hardware_root:
    description: Directory that holds C(/sys) and C(/proc).
    type: path
    default: /
  system_root:
    description: Directory that holds C(/etc), C(/run) and C(/usr), and the tools.
    type: path
    default: /
"""

EXAMPLES = r"""
- name: Rails in one subnet
  busbar.fabric.multirail:
    profile: "{{ busbar_intent.profile }}"
    fabric: ethernet
    policy: nvidia
  register: multirail_result
"""

RETURN = r"""
findings:
  description: What is not ok after this run, as in C(docs/findings.md); in check mode, what is not ok now.
  type: list
  elements: dict
  returned: success
passed:
  description: Ids of the checks that are ok.
  type: list
  elements: str
  returned: success
repaired:
  description: Ids of the findings that this run has mended, or would in check mode.
  type: list
  elements: str
  returned: success
commands:
  description: Commands that were run, or would be.
  type: list
  elements: str
  returned: success
notes:
  description: Sentences for the verdict, such as that no policy is asked for.
  type: list
  elements: str
  returned: success
reboot_required:
  description: Empty; nothing here waits for a reboot.
  type: list
  elements: str
  returned: success
withheld:
  description: Ids of the findings whose repair would move running traffic, which was not allowed.
  type: list
  elements: str
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.busbar.fabric.plugins.module_utils import multirail, netdev_mtu
from ansible_collections.busbar.fabric.plugins.module_utils.change import apply
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile, rails, topology


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "profile": {"type": "dict", "required": True},
            "profile_name": {"type": "str", "default": "unnamed"},
            "fabric": {"type": "str", "choices": ["", "infiniband", "ethernet"], "default": ""},
            "policy": {"type": "str", "choices": ["", "oci", "nvidia", "custom"], "default": ""},
            "values": {"type": "dict", "default": {}},
            "source_routing": {"type": "bool", "default": False},
            "gateway": {"type": "str", "choices": ["none", "first", "last"], "default": "none"},
            "mtu_judged": {"type": "bool", "default": False},
            "max_disruption": {"type": "str", "choices": ["none", "link", "driver", "reboot"], "default": "none"},
            "hardware_root": {"type": "path", "default": "/"},
            "system_root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    given = module.params
    host = Host(given["hardware_root"], given["system_root"])
    try:
        host.require_roots()
        policy = multirail.policy(given["policy"], given["values"], given["source_routing"])
        want = multirail.Want(policy, given["gateway"], given["mtu_judged"])
        asked = profile.asked(given)
        nics = {}
        if policy.name:
            matched = rails.match(topology.read(host, ask_nvidia_smi=False), asked)
            nics = netdev_mtu.ethernet_rails(matched, asked)
        permitted = apply.Permission(host, [nic.pci for nic in nics.values()], given["max_disruption"])
        planned = after = permitted(multirail.plan(multirail.read(host, nics, policy), want))
        if planned.changed and not module.check_mode:
            apply.execute(host, planned)
            # What counts is what is there now, not what was meant to be.
            after = permitted(multirail.plan(multirail.read(host, nics, policy), want))
    except (ParseError, ReadError) as error:
        module.fail_json(msg=str(error))
    result = apply.result(planned, after, apply.either)
    module.exit_json(**result, notes=multirail.undecided(policy, asked))


if __name__ == "__main__":
    main()
