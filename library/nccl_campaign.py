#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: nccl_campaign
short_description: (internal) Measure over teams of nodes, round by round
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. Plays the benchmark between the nodes of the play, or the search for what is slow
    among them - queries which nodes can take part (M(busbar.fabric.nccl_cluster_member)), plans rounds of jobs on
    disjoint hosts, runs them with M(busbar.fabric.nccl_perf) and M(busbar.fabric.perftest), prints each round, and
    judges all of them together. A node that is lost, or gives no valid result, costs its own jobs their result.
  - Prints the table, stores record and plots in C(nccl_benchmark_results_path) on the control node, and leaves on each
    node when it was measured (M(busbar.fabric.nccl_cluster_record)).
attributes:
  check_mode:
    support: full
    description: Nothing is measured. Prints what would be run; each host gets the findings of its last record.
options:
  campaign:
    description: V(cluster) is the benchmark between nodes, V(localise) the search for the slow node, rail or GPU.
    type: str
    choices: [cluster, localise]
    required: true
  judged:
    description: For V(localise), RV(hosts) of the benchmark, whose findings the search may explain.
    type: dict
    default: {}
  drained:
    description: Hosts that this run has drained, which therefore can take part.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - busbar.fabric.node.no_diff
"""

EXAMPLES = r"""
- name: Measure between the nodes
  busbar.fabric.nccl_campaign:
    campaign: cluster
  run_once: true
  register: nccl_cluster_judged
"""

RETURN = r"""
hosts:
  description: Host to its C(findings) and C(passed), for the verdict.
  type: dict
  returned: success
search:
  description: Of V(cluster), whether a bar of several nodes was missed and the site lets the search start
    (C(nccl_benchmark_localise)).
  type: bool
  returned: success
cluster:
  description: Of V(localise), O(judged) with the cause of each finding that the search explains.
  type: dict
  returned: success
record:
  description: Of V(localise), the record of the search.
  type: dict
  returned: success
"""
