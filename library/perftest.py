#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: perftest
short_description: Run one host's end of RDMA tests between rails, and judge bandwidth, latency, counters and pings
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Runs C(ib_write_bw) and C(ib_write_lat) on all rails of O(sessions) at once, as servers or as clients, under one
    time limit, and ends every process that it started. Both hosts of a pair run it at the same time, see
    M(busbar.fabric.verify).
  - Reads the NICs' counters before and after, and judges their change.
  - Pings the same rail of other hosts (O(pings)), all at once, with three packets that must not be fragmented. Reports
    which end has too small an MTU, or that a switch between them has.
  - Tests nothing on a node in use, see O(require_idle); pings disturb no job.
  - Changes nothing on the host but C(/var/lib/busbar/perftest), where the last result of each role is stored
    (O(store_result)).
attributes:
  check_mode:
    support: full
    description:
      - Tests nothing and returns what it would run; judges the last result of each rail and role, and its age. Pings
        are the same.
options:
  sessions:
    description:
      - This host's end of each test, as M(busbar.fabric.verify) plans them. Outside check mode all of one role.
    type: list
    elements: dict
    default: []
  pings:
    description: What this host pings, as M(busbar.fabric.verify) plans it.
    type: list
    elements: dict
    default: []
  tests:
    description: What is measured, bandwidth and latency.
    type: list
    elements: str
    choices: [bw, lat]
    default: [bw, lat]
  seconds: {type: int, default: 5, description: 'Of each bandwidth test, 3 or more.'}
  timeout:
    description: Time limit of all tests together in seconds, including the wait for the other end.
    type: float
    default: 120
  share: {type: float, default: 0.9, description: 'Minimum bandwidth, as a share of what the rail carries.'}
  latency:
    description: Maximum typical latency in microseconds; 0 for no bar. By default it depends on link layer and rate.
    type: float
  traffic_class: {type: int, default: -1, description: Of RoCE packets; -1 for none.}
  priority:
    description: The lossless priority, whose counters have to move and no others; -1 where the fabric has none.
    type: int
    default: -1
  address_family:
    description: Kind of RoCE v2 address whose GID is taken.
    type: str
    choices: [ipv4, ipv6]
    default: ipv4
  memory:
    description: V(auto) is the memory of the rail's GPU if it has one and C(ib_write_bw) is built with CUDA.
    type: str
    choices: [auto, host]
    default: auto
  require_idle:
    description: Run only if no process uses a GPU, no Slurm job is on the node and no pod has a GPU.
    type: bool
    default: true
  max_age_days: {type: float, default: 30, description: How old a stored result may be.}
  store_result:
    description: Store the results on the node in place of the last ones, for check mode.
    type: bool
    default: true
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.no_diff
"""

EXAMPLES = r"""
- name: Serve rail 0 to node03
  busbar.fabric.perftest:
    sessions:
      - {role: server, rail: 0, pci: "0000:1a:00.0", device: mlx5_6, peer: node03, address: "", rate_gbps: 400}
    priority: 3
    traffic_class: 106
  async: 150
  poll: 0
"""

RETURN = r"""
# What every module returns: see the notes.
sessions:
  description: Each session with its results and the growth of its rail's counters (C(moved)).
  type: list
  elements: dict
  returned: success
finished_at:
  description: When the results were taken, seconds since 1970; null without any.
  type: float
  returned: success
simulated: {type: bool, returned: success, description: Whether the figures are of a simulated node.}
"""

import signal
from typing import Any, Dict, Mapping

from ansible_collections.busbar.fabric.plugins.module_utils import perftest, rail_ping, rail_test
from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.machine.rdma import ADDRESS_FAMILIES

SPEC: module.Spec = {
    **{name: {"type": "list", "elements": "dict", "default": []} for name in ("sessions", "pings")},
    "tests": {
        "type": "list",
        "elements": "str",
        "choices": list(perftest.TESTS),
        "default": list(perftest.TESTS),
    },
    "seconds": {"type": "int", "default": 5},
    "timeout": {"type": "float", "default": 120},
    "share": {"type": "float", "default": 0.9},
    "latency": {"type": "float"},
    "traffic_class": {"type": "int", "default": -1},
    "priority": {"type": "int", "default": -1},
    "address_family": {"type": "str", "choices": list(ADDRESS_FAMILIES), "default": "ipv4"},
    "memory": {"type": "str", "choices": ["auto", "host"], "default": "auto"},
    "require_idle": {"type": "bool", "default": True},
    "max_age_days": {"type": "float", "default": 30},
    "store_result": {"type": "bool", "default": True},
    **module.ROOTS,
}


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
    if not given["sessions"]:
        pinged = rail_ping.ping_all(host, rail_ping.pings(given["pings"]))
        return dict(Plan(pinged).result(), sessions=[], finished_at=None, simulated=False)
    task = rail_test.Task(host, rail_test.Given(**{name: given[name] for name in rail_test.Given._fields}))
    if not check_mode:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, stop)
    found, finished = task.recall() if check_mode else task.measure()
    return dict(
        Plan(tuple(found)).result(),
        commands=task.commands(),
        sessions=task.sessions(),
        # Not `finished`: Ansible uses that key for background tasks.
        finished_at=finished,
        simulated=task.simulated,
        notes=task.notes,
    )


def stop(number: int, _frame: object) -> None:
    """Raise an exception, so that the programs are ended on the way out."""
    raise SystemExit(128 + number)


main = module.entry(SPEC, work)

if __name__ == "__main__":
    main()
