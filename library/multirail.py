#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: multirail
short_description: Set ARP, reverse path filter and source routing of the rails, by a named policy
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Sets the kernel's ARP and reverse path settings for the interface of every Ethernet rail, now and in a sysctl
    drop-in. A line of another sysctl file that contradicts them is reported, and left as it is.
  - If the policy requires it, sets a routing table and a rule for the address of every rail, now by C(ip) and at boot
    by a file for systemd-networkd or netplan. With other network managers a finding lists what to add.
  - This module assigns no addresses.
options:
  policy:
    description:
      - V(oci) is arp_ignore 2, arp_announce 1, rp_filter 2. V(nvidia) is arp_ignore 1, arp_announce 2, rp_filter 0 and
        source routing. V(custom) takes O(values) and O(source_routing). V(none) removes Busbar's own files; what is set
        now stays until a reboot. Empty judges nothing, and leaves them.
    type: str
    choices: ["", oci, nvidia, none, custom]
    default: ""
  values:
    description: Kernel settings for V(custom), from arp_ignore, arp_announce, rp_filter and accept_local to a number.
    type: dict
  source_routing:
    description: For V(custom), whether each rail gets its own routing table.
    type: bool
  gateway:
    description:
      - Default gateway in each rail's table, the first or last address of the rail's subnet. With V(none) the table
        reaches the subnet only; empty leaves what is there.
    type: str
    choices: ["", none, first, last]
    default: ""
  mtu_judged:
    description:
      - Whether M(busbar.fabric.netdev_mtu) judges the same rails. An unclear owner is then its finding.
    type: bool
    default: false
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.profile
  - busbar.fabric.node.disruption
  - busbar.fabric.node.changes
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
  description: Ids of the findings that this run repaired, or would repair in check mode.
  type: list
  elements: str
  returned: success
commands:
  description: Commands that were run, or would be.
  type: list
  elements: str
  returned: success
notes:
  description: Sentences for the verdict, such as that no policy is configured.
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
backup_files:
  description: Empty; the files are Busbar's own.
  type: list
  elements: str
  returned: success
"""

from typing import Any, Dict, Mapping

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.busbar.fabric.plugins.module_utils.change import apply, module
from ansible_collections.busbar.fabric.plugins.module_utils.core import effective_unit
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan, merge
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile, rails, topology
from ansible_collections.busbar.fabric.plugins.module_utils.multirail import plan as multirail

SPEC = {
    "policy": {"type": "str", "choices": ["", *multirail.POLICIES, "custom"], "default": ""},
    "values": {"type": "dict"},
    "source_routing": {"type": "bool"},
    "gateway": {"type": "str", "choices": ["", *multirail.GATEWAYS], "default": ""},
    "mtu_judged": {"type": "bool", "default": False},
    **module.PROFILE,
    **module.DISRUPTION,
    **module.ROOTS,
}


def main() -> None:
    module.run(AnsibleModule(SPEC, supports_check_mode=True), work)


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
    policy = multirail.policy(given["policy"], given["values"], given["source_routing"])
    want = multirail.Want(policy, given["gateway"], given["mtu_judged"])
    asked = profile.from_options(given)
    # Without a policy the rails' NICs are not needed.
    machine = topology.read(host, ask_nvidia_smi=False) if policy.name else None
    nics = rails.ethernet(rails.match(machine, asked), asked) if machine is not None else {}
    permitted = apply.Permission(host, [nic.pci for nic in nics.values()], given["max_disruption"])

    def look() -> Plan:
        names = ["systemd-sysctl.service"] if policy.values and nics else []
        units = effective_unit.overrides(host, multirail.SETTINGS, (), names)
        return merge(permitted(multirail.plan(multirail.read(host, nics, policy), want)), units)

    done = apply.converge(host, check_mode, look, mends=apply.either)
    return dict(done, notes=[*done["notes"], *multirail.undecided(policy, asked)])


if __name__ == "__main__":
    main()
