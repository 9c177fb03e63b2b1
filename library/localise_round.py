#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: localise_round
short_description: Take the results of a round of the search for slow nodes, and decide on the next
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Begins a search over the hosts of the play, or goes on with the one that it has registered before
    (C(localise_round_result)). Who takes part follows from M(busbar.fabric.nccl_cluster_member)
    (C(nccl_cluster_member_result)) and the node's own benchmark.
  - Reads what M(busbar.fabric.nccl_perf) and M(busbar.fabric.perftest) have measured in the last round, prints a line,
    writes the record on the control node, and says what is to be measured next.
  - Before the end it asks for the health of each node that is slow, or has a slow GPU or rail
    (C(localise_health)). What that says of it, right after the load, is what it follows from.
  - At the end it prints what was found, and gives each host its findings. What M(busbar.fabric.nccl_cluster) has found
    follows from that where the search explains it.
attributes:
  check_mode:
    support: full
    description: Nothing is measured. The last record is judged, and its age.
options:
  path:
    description: Directory on the control node, of which C(localise) takes the record; empty - none is kept.
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
  description: Of the last round, the hosts that are slow, whose M(busbar.fabric.node_health) is to be asked.
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
  description: At the end, host to its findings of M(busbar.fabric.nccl_cluster) with what they follow from.
  type: dict
  returned: success
record:
  description: The search so far.
  type: dict
  returned: success
path:
  description: Directory of the record; empty where none was kept.
  type: str
  returned: success
"""
