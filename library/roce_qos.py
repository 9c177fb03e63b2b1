#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: roce_qos
short_description: Trust, PFC, maps, queues, buffers, ECN and ToS of all rails' ports, in one call
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Holds the Ethernet port of every rail, of a bond each member, to the site's RoCE values. What O(roce) declares once
    gives trust, the map of DSCPs, PFC, ECN and the ToS of rdma_cm; the other options say otherwise, or more.
  - Uses C(mlnx_qos) where it is installed and the NIC is a ConnectX, else C(dcb) of iproute2. ECN can be set where the
    driver has a directory C(ecn), which is OFED's; else the finding names the firmware's variables.
  - Writes only what differs and reads each write back. A changed PFC mask bounces the link, so that it needs
    O(max_disruption=link) and a node that nobody uses. Other settings of the port stay as they are.
  - None of these settings outlives a reboot or a reload of the driver. So a udev rule, a unit of systemd for each port
    and a script, which is this module's own code, set them again whenever a port's netdev comes. Where nobody uses the
    link that may bounce it, whatever O(max_disruption) says.
attributes:
  check_mode:
    support: full
    description: Shows commands and writes, and does none of them. To read the ToS of rdma_cm the device's directory in
      configfs is made and removed again.
  diff_mode:
    support: full
    description: By port, the settings that a run changes.
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
  roce:
    description:
      - The site's C(busbar_roce), of which C(dscp), C(priority), C(cnp_dscp) and C(cnp_priority) are used.
      - With C(dscp) alone, C(priority) is the one that NICs have for it by default, DSCP / 8, and congestion
        notifications are DSCP 48 with priority 6.
    type: dict
    default: {}
  trust:
    description: What the NIC takes the priority from; empty is V(dscp) where O(roce) has a C(dscp), else not asked.
    type: str
    choices: ["", dscp, pcp]
    default: ""
  dscp2prio:
    description: Entries of the map beside those that follow from O(roce); entries that are not named stay.
    type: dict
    default: {}
  pfc:
    description: Priorities with PFC, all others without. By default the one of O(roce); V([]) for a lossy fabric.
    type: list
    elements: int
  prio2tc:
    description: Traffic class of each of the eight priorities.
    type: list
    elements: int
  tsa:
    description: Algorithm of each of the eight traffic classes, V(strict), V(ets) or V(vendor); with O(tc_bandwidth).
    type: list
    elements: str
  tc_bandwidth:
    description: Per cent for each of the eight traffic classes; 100 over those of C(ets), 0 for the others.
    type: list
    elements: int
  cable_length:
    description: Longest cable of the rails in metres, from which the driver sizes the buffers.
    type: int
  prio2buffer:
    description: Receive buffer of each of the eight priorities. From then on the driver sizes none by itself.
    type: list
    elements: int
  buffer_size:
    description: Bytes of each of the eight receive buffers.
    type: list
    elements: int
  ecn:
    description: Priorities with ECN, marking and reaction; others stay. By default the one of O(roce).
    type: list
    elements: int
  tos:
    description: Default ToS of rdma_cm. By default DSCP * 4 + 2.
    type: int
  traffic_class:
    description: Forced upon every queue pair of the device, V(-1) for none. By default it is not asked.
    type: int
  dcbx:
    description:
      - Who owns the port. Empty is the kernel, and a port that firmware owns is reported and left alone.
      - V(os) takes it over. V(firmware) leaves it to the switch; what is wrong then is reported and not written.
    type: str
    choices: ["", os, firmware]
    default: ""
  pause_off:
    description: Switch global pause off where PFC is asked for.
    type: bool
    default: true
  max_disruption:
    description: Most that the run may cost; V(link) lets it change PFC and pause.
    type: str
    choices: [none, link, driver, reboot]
    default: none
  hardware_root:
    description: Directory that holds C(/sys) and C(/proc).
    type: path
    default: /
  system_root:
    description: Directory that holds C(/usr) with the tools.
    type: path
    default: /
"""

EXAMPLES = r"""
- name: One lossless priority for RoCE on all rails
  busbar.fabric.roce_qos:
    profile: "{{ busbar_intent.profile }}"
    fabric: ethernet
    roce: {dscp: 26, priority: 3, cnp_dscp: 48, cnp_priority: 6}
    max_disruption: link
  register: roce_qos_result
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
  description: Commands and writes that were done, or would be.
  type: list
  elements: str
  returned: success
notes:
  description: Sentences for the verdict, such as that the ports are the hypervisor's.
  type: list
  elements: str
  returned: success
reboot_required:
  description: Empty; nothing here waits for a reboot.
  type: list
  elements: str
  returned: success
withheld:
  description: Ids of the findings whose repair costs more than O(max_disruption), or would disturb somebody.
  type: list
  elements: str
  returned: success
"""


from ansible.module_utils.basic import AnsibleModule
from ansible_collections.busbar.fabric.plugins.module_utils.change import apply
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import merge
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile, rails, topology
from ansible_collections.busbar.fabric.plugins.module_utils.roce import chain as roce_chain
from ansible_collections.busbar.fabric.plugins.module_utils.roce import qos as roce_qos
from ansible_collections.busbar.fabric.plugins.module_utils.roce import unit as roce_unit


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "profile": {"type": "dict", "required": True},
            "profile_name": {"type": "str", "default": "unnamed"},
            "fabric": {"type": "str", "choices": ["", "infiniband", "ethernet"], "default": ""},
            "roce": {"type": "dict", "default": {}},
            "trust": {"type": "str", "choices": ["", "dscp", "pcp"], "default": ""},
            "dscp2prio": {"type": "dict", "default": {}},
            "pfc": {"type": "list", "elements": "int"},
            "prio2tc": {"type": "list", "elements": "int"},
            "tsa": {"type": "list", "elements": "str"},
            "tc_bandwidth": {"type": "list", "elements": "int"},
            "cable_length": {"type": "int"},
            "prio2buffer": {"type": "list", "elements": "int"},
            "buffer_size": {"type": "list", "elements": "int"},
            "ecn": {"type": "list", "elements": "int"},
            "tos": {"type": "int"},
            "traffic_class": {"type": "int"},
            "dcbx": {"type": "str", "choices": ["", "os", "firmware"], "default": ""},
            "pause_off": {"type": "bool", "default": True},
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
        asked = profile.asked(given)
        want = roce_qos.want(roce_chain.resolve(given["roce"], given), given)
        machine = topology.read(host, ask_nvidia_smi=False)
        is_roce = any("Ethernet" in rail.link_layers for rail in asked.rails)
        ports = roce_qos.ports(machine, rails.match(machine, asked)) if is_roce else ()
        permit = apply.Permission(host, [port.pci for port in ports], given["max_disruption"])
        boot = roce_unit.intent(ports, want, given, host.hardware_root, host.system_root)
        missing = roce_unit.missing_rail(machine, asked) if is_roce else None
        have = roce_qos.read(host, ports, want)
        live = permit(roce_qos.plan(have, want))
        unit = roce_unit.plan(roce_unit.read(host, boot), boot, ports, missing)
        planned = after = merge(live, unit)
        steps = list(planned.commands)
        if planned.changed and not module.check_mode:
            done, failed = roce_qos.execute(host, have, want, permit)
            roce_unit.execute(host, unit)
            steps = [*done, *unit.commands]
            # What counts is what is there now, not what was meant to be.
            live = permit(roce_qos.plan(roce_qos.read(host, ports, want), want, failed))
            after = merge(live, roce_unit.plan(roce_unit.read(host, boot), boot, ports, missing))
    except (ParseError, ReadError) as error:
        module.fail_json(msg=str(error))
    result = apply.result(planned, after, apply.either)
    result.update(changed=bool(steps or unit.changes), commands=[str(step) for step in steps])
    result["diff"] = roce_qos.diff(planned) + roce_unit.diff(unit)
    module.exit_json(**result, notes=roce_qos.undecided(want.chain, asked) + roce_qos.notes(ports))


if __name__ == "__main__":
    main()
