#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: nccl_benchmark
short_description: (internal) Judge the benchmark runs of a host, and report those of all hosts
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. V(judge) takes the result of M(busbar.fabric.nccl_perf) for each run that the
    intent requires. A run without a bar is C(unknown). A slow or failed run names its cause if an earlier role found it
    on the host.
  - V(report) reads the registered result of every host of the play; for hosts that were audited in the same run, and
    whose stored results are still valid, the result of M(busbar.fabric.fleet_audit). It prints a table, and writes a
    directory with a JSON file for each host, C(busbw.svg) and C(busbw.png). The plots need matplotlib.
  - Where nothing was measured in this run, and a directory of an earlier run is there, no other is written.
attributes:
  check_mode:
    support: full
    description: Judges and prints stored results; writes nothing.
options:
  phase:
    description: V(judge) for each host, V(report) once for all of them.
    type: str
    choices: [judge, report]
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
extends_documentation_fragment:
  - busbar.fabric.node.no_diff
"""

EXAMPLES = r"""
- name: Judge the runs of this host
  busbar.fabric.nccl_benchmark:
    phase: judge
    measured: "{{ measured.results }}"
  register: nccl_benchmark_result
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
  description:
    - Of V(judge), each run with its bar, prediction, bus bandwidth by size in GB/s, time and command; C(stored) where
      an earlier run is judged, C(due) why it was measured or is to be.
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
"""
