#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: nccl_benchmark
short_description: (internal) Judge benchmark runs of hosts, report them, and measure between hosts
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. V(judge) judges the results of M(busbar.fabric.nccl_perf), one for each run that
    the intent requires. A run without a bar is C(unknown). A slow or failed run names its cause if an earlier role
    found it on the host.
  - V(report) prints the registered results of all hosts as a table, and writes a directory with a JSON file for each
    host and plots (with matplotlib), unless nothing was measured in this run.
  - V(cluster) is the benchmark between the nodes of the play, V(localise) the search for the slow node, rail or GPU
    among them. Each runs rounds of jobs on disjoint hosts, judges all of them together, prints the table, and stores
    record and plots in C(nccl_benchmark_results_path) on the control node. A node that is lost costs its own jobs
    their result.
attributes:
  check_mode:
    support: full
    description: Judges and prints stored results; measures and writes nothing. V(cluster) prints what would be run.
options:
  phase:
    description: V(judge) for each host, the others once for all of them.
    type: str
    choices: [judge, report, cluster, localise]
    required: true
  measured:
    description: Of V(judge), what M(busbar.fabric.nccl_perf) returned for each run of the intent, in their order.
    type: list
    elements: dict
    default: []
  path:
    description: Of V(report), the directory on the control node that takes one for each run. Empty for none.
    type: path
    default: ""
  judged:
    description: Of V(localise), RV(hosts) of V(cluster), whose findings the search may explain.
    type: dict
    default: {}
  drained:
    description: Of V(localise), hosts that this run has drained, which therefore can take part.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - busbar.fabric.node.no_diff
"""

EXAMPLES = r"""
- name: Judge the runs of this host
  busbar.fabric.nccl_benchmark:
    phase: judge
    measured: "{{ measured.results }}"
  register: nccl_benchmark_result

- name: Measure between the nodes
  busbar.fabric.nccl_benchmark:
    phase: cluster
  run_once: true
  register: nccl_cluster_judged
"""

RETURN = r"""
findings:
  description: Of V(judge), what is not ok, as in C(docs/findings.md).
  type: list
  elements: dict
  returned: success
passed:
  description: Of V(judge), ids of the checks that are ok.
  type: list
  elements: str
  returned: success
runs:
  description: Of V(judge), each run with its bar, prediction, busbw by size in GB/s, time and command.
  type: list
  elements: dict
  returned: success
due:
  description: Of V(judge), why runs of this host were measured, or would be; empty where all stored results stand.
  type: str
  returned: success
notes:
  description: Of V(judge), what could not be compared with how the node was when it was measured.
  type: list
  elements: str
  returned: success
path:
  description: Of V(report), the directory of this run, empty where nothing was written.
  type: str
  returned: success
plots:
  description: Of V(report), the plots in it.
  type: list
  elements: str
  returned: success
hosts:
  description: Of V(cluster) and V(localise), host to its C(findings) and C(passed), for the verdict.
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
