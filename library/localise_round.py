#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: localise_round
short_description: (internal) Process one round of the search for slow nodes, and plan the next
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. Starts a search over the hosts of the play, or continues the one that it has
    registered before (C(localise_round_result)). Which hosts take part depends on M(busbar.fabric.nccl_cluster_member)
    (C(nccl_cluster_member_result)) and the node's own benchmark.
  - Reads what M(busbar.fabric.nccl_perf) and M(busbar.fabric.perftest) have measured in the last round, prints a line,
    writes the record on the control node, and plans what is measured next.
  - At the end it requests the health of each node that is slow, or has a slow GPU or rail
    (C(localise_health)). A fault found right after the load is its cause.
  - Then it prints the result, and gives each host its findings. Findings of M(busbar.fabric.nccl_cluster)
    get them as their cause where the search explains them.
attributes:
  check_mode:
    support: full
    description: Nothing is measured. The last record is judged, and its age.
options:
  path:
    description: Directory on the control node, of which C(localise) takes the record; empty stores none.
    type: path
    default: ""
  max_age_days:
    description: How old the last record may be in check mode.
    type: float
    default: 30
extends_documentation_fragment:
  - busbar.fabric.node.no_diff
"""

EXAMPLES = r"""
- name: Take what the round has measured, decide on the next
  busbar.fabric.localise_round:
    path: busbar-results
  run_once: true
  register: localise_round_result
"""

RETURN = r"""
more:
  description: Whether there is another round.
  type: bool
  returned: success
number:
  description: Of that round, from 1.
  type: int
  returned: success
jobs:
  description: Of that round, by the host that starts them.
  type: dict
  returned: success
sessions:
  description: Of that round, by host - what M(busbar.fabric.perftest) is to do in each of its three passes.
  type: dict
  returned: success
gpus:
  description: Of that round, by host the pairs of its GPUs that M(busbar.fabric.nccl_perf) is to measure, and the bar.
  type: dict
  returned: success
ask:
  description: Of the last round, the slow hosts on which M(busbar.fabric.node_health) is to run.
  type: list
  elements: str
  returned: success
untested:
  description: Of that round, by host why its rails cannot be tested.
  type: dict
  returned: success
hosts:
  description: At the end, host to its C(findings) and C(passed), for the verdict.
  type: dict
  returned: success
cluster:
  description: At the end, host to its findings of M(busbar.fabric.nccl_cluster) with their causes.
  type: dict
  returned: success
record:
  description: The search so far.
  type: dict
  returned: success
path:
  description: Directory of the record; empty if none was stored.
  type: str
  returned: success
"""
