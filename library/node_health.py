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
imex:
  description: C(domain), the UUID and clique of the node's NVLink domain, and C(nodes), the addresses of IMEX's list.
  type: dict
  returned: on a tray of an NVLink domain
facts:
  description: VBIOS of the GPUs, which the control node compares between hosts.
  type: dict
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
    - {pci: "0000:9a:00.0", name: GPU5, seconds: 86400.0, grown: {slowed hw_thermal_slowdown: 340000000, replays: 2},
       product: NVIDIA H100 80GB HBM3, serial: "1654922006536", part: 2330-885-A1, firmware: 96.00.5E.00.01,
       slot: "12", board: S917AB123}
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
    - {rail: 0, pci: "0000:1b:00.0", device: mlx5_0, link_layer: InfiniBand, speed: NDR, seconds: 86400.0,
       grown: {port_rcv_packets: 812345678, symbol_error: 1}}
"""

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.health.module import SPEC, work

main = module.entry(SPEC, work)

if __name__ == "__main__":
    main()
