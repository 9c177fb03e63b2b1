#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: node_health
short_description: Judge the health of a node's GPUs, NVLinks, PCIe links and rails' ports
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Reads C(nvidia-smi -q -x), its NVLinks, the kernel's log since the previous run, AER, hwmon, the Fabric Manager,
    the counters of the rails' ports and, where it is installed, mlxlink, each once. C(docs/health.md) explains what
    each finding means, and what is not a finding.
  - Growth counts, not totals. The counters of each run are stored on the node in
    C(/var/lib/busbar/health/last.json) below O(system_root), also in check mode, because the audit uses it. This is a
    record of the suite; the node's configuration is never changed.
  - A run within 12 hours of the previous one is compared with the same counters.
options:
  power_limit:
    description: Power cap of each GPU in watts; 0 for its default.
    type: int
    default: 0
  tool_timeout:
    description: Time limit of each call of nvidia-smi in seconds.
    type: float
    default: 20
  states_only:
    description:
      - Read only C(nvidia-smi -q -x), the kernel's log and the Fabric Manager, and no values that are judged by their
        growth. Short throttling is not reported. The gate uses this between two jobs.
    type: bool
    default: false
  record:
    description: Whether the counters of this run are stored.
    type: bool
    default: true
  since_boot:
    description: If no earlier counters are stored, judge what was counted since the boot.
    type: bool
    default: false
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.profile
  - busbar.fabric.node.reads
"""

EXAMPLES = r"""
- name: Judge the node's health
  busbar.fabric.node_health:
    profile: "{{ busbar_intent.profile }}"
    fabric: infiniband
  register: node_health_result
"""

RETURN = r"""
findings:
  description: What is not ok, as in C(docs/findings.md).
  type: list
  elements: dict
  returned: success
passed:
  description: Ids of the checks that are ok.
  type: list
  elements: str
  returned: success
imex:
  description: C(domain), the UUID and clique of the node's NVLink domain, and C(nodes), the addresses of IMEX's list.
  type: dict
  returned: on a tray of an NVLink domain
facts:
  description: VBIOS of the GPUs, which the control node compares between hosts.
  type: dict
  returned: success
notes:
  description: Sentences for the verdict, such as that persistence mode is off.
  type: list
  elements: str
  returned: success
devices:
  description:
    - GPUs, rails' NICs and bridges of which a counter has grown since the previous run, or with which something is
      wrong, for the report. C(seconds) is null where there is nothing to compare with; C(slowed) counters are
      microseconds.
  type: list
  elements: dict
  returned: success
  sample:
    - pci: 0000:9a:00.0
      name: GPU5
      seconds: 86400.0
      grown: {slowed hw_thermal_slowdown: 340000000, replays: 2}
      product: NVIDIA H100 80GB HBM3
      serial: "1654922006536"
      part: 2330-885-A1
      firmware: 96.00.5E.00.01
      slot: "12"
      board: S917AB123
boot_id:
  description: Id of this boot; empty if it cannot be read.
  type: str
  returned: success
ports:
  description:
    - What the port of each rail has counted since the previous run, which the control node compares over the fleet.
      C(seconds) is null where there is nothing to compare with.
  type: list
  elements: dict
  returned: success
  sample:
    - rail: 0
      pci: 0000:1b:00.0
      device: mlx5_0
      link_layer: InfiniBand
      speed: NDR
      seconds: 86400.0
      grown: {port_rcv_packets: 812345678, symbol_error: 1}
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

from dataclasses import replace
from typing import Any, Dict, Mapping

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan, merge
from ansible_collections.busbar.fabric.plugins.module_utils.health import (
    device_report,
    driver_library,
    imex,
    judge,
    judge_modules,
    judge_ports,
    node,
    page_size,
    record,
)
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile, topology

SPEC = {
    "power_limit": {"type": "int", "default": 0},
    "tool_timeout": {"type": "float", "default": 20},
    "states_only": {"type": "bool", "default": False},
    "record": {"type": "bool", "default": True},
    "since_boot": {"type": "bool", "default": False},
    **module.PROFILE,
    **module.ROOTS,
}


def main() -> None:
    module.run(AnsibleModule(SPEC, supports_check_mode=True), work)


def work(host: Host, given: Mapping[str, Any], _check_mode: bool) -> Dict[str, Any]:
    asked, timeout = profile.from_options(given), module.seconds(given)
    if given["power_limit"] < 0:
        raise ParseError("power_limit is %d, expected watts, or 0 for the GPUs' default" % given["power_limit"])
    machine = topology.read(host, ask_nvidia_smi=False)
    have = node.read(host, machine, asked, timeout, given["states_only"], since_boot=given["since_boot"])
    if given["since_boot"] and have.before is None and have.uptime:
        have = replace(have, before=record.since_boot(judge.counters(have), have.uptime))
    wanted = judge.Wanted(asked, given["power_limit"] or None)
    version = machine.driver.version if machine.driver else None
    system = Plan((*page_size.judge(host, asked.page_size), *driver_library.judge(host, version)))
    found = merge(judge.plan(have, machine, wanted), judge_ports.plan(have), system)
    found = merge(found, judge_modules.plan(have, found.findings))
    if given["record"]:
        found = judge.store_counters(host, have, found)
    devices = device_report.devices(host, have, machine, asked, found.findings)
    notes = [*judge.notes(have), *judge_ports.notes(have), *judge_modules.notes(have), *found.notes]
    domain = imex.fleet_facts(have.imex, have.gpus or {})
    more: Dict[str, Any] = {} if domain is None else {"imex": domain}
    images = None if have.gpus is None else sorted({gpu.firmware for gpu in have.gpus.values() if gpu.firmware})
    more["facts"] = {"vbios": None if images is None else ", ".join(images)}
    more["boot_id"] = have.boot_id
    return dict(found.result(), notes=notes, devices=devices, ports=judge_ports.fleet_counters(have), **more)


if __name__ == "__main__":
    main()
