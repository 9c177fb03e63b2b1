#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: nccl_cluster
short_description: (internal) Join what a benchmark between nodes has measured
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. Joins the jobs that M(busbar.fabric.nccl_cluster_plan) has planned
    (C(nccl_cluster_plan_result)) and M(busbar.fabric.nccl_perf) has run (C(nccl_cluster_measured) of the hosts that
    started them). Each host gets the findings of its jobs, all in the same words. A job without a result costs its own
    hosts their verdict.
  - Prints the table of all jobs and stores the record and its plots on the control node.
attributes:
  check_mode:
    support: full
    description: Nothing is measured. Each host gets the findings of its last record, and nothing is written.
options:
  path:
    description: Directory on the control node, of which C(cluster) takes the record; empty stores none.
    type: path
    default: ""
extends_documentation_fragment:
  - busbar.fabric.node.no_diff
"""

EXAMPLES = r"""
- name: Judge all jobs together
  busbar.fabric.nccl_cluster:
    path: busbar-results
  register: nccl_cluster_judged
"""

RETURN = r"""
hosts:
  description: Host to its C(findings) and C(passed), for the verdict.
  type: dict
  returned: success
search:
  description: Whether a bar of several nodes was missed, and the site lets M(busbar.fabric.localise_round) search for
    what is slow (C(nccl_benchmark_localise)).
  type: bool
  returned: success
records:
  description: Host to what the node itself stores, see M(busbar.fabric.nccl_cluster_record); of hosts that were
    measured.
  type: dict
  returned: success
path:
  description: Directory of the record; empty if none was stored.
  type: str
  returned: success
"""
