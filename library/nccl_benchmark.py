#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: nccl_benchmark
short_description: (internal) Judge all benchmark runs of a host together
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. Takes the result of M(busbar.fabric.nccl_perf) for each run that the intent
    requires. A run without a bar is C(unknown). A slow or failed run names its cause if an earlier role found it on the
    host.
options:
  platform:
    description: The profile's name, for which there are bars.
    type: str
    required: true
  runs:
    description: The configured runs, as M(busbar.fabric.intent) returns them.
    type: list
    elements: dict
    required: true
  measured:
    description: What M(busbar.fabric.nccl_perf) returned for each, in the same order.
    type: list
    elements: dict
    required: true
extends_documentation_fragment:
  - busbar.fabric.node.control
"""

EXAMPLES = r"""
- name: Judge the runs of this host
  busbar.fabric.nccl_benchmark:
    platform: "{{ busbar_intent.profile_name }}"
    runs: "{{ busbar_intent.benchmark_runs }}"
    measured: "{{ measured.results }}"
  register: nccl_benchmark_result
"""

RETURN = r"""
findings:
  description: What is not ok, as in C(docs/findings.md).
  type: list
  elements: dict
  returned: always
passed:
  description: Ids of the checks that are ok.
  type: list
  elements: str
  returned: always
runs:
  description:
    - Each run with its bar, prediction, bus bandwidth by size in GB/s, time and command; C(stored) where an earlier run
      is judged, C(due) why it was measured or is to be.
  type: list
  elements: dict
  returned: always
due:
  description: Why runs of this host were measured, or with C(--check) would be; empty where all stored results stand.
  type: str
  returned: always
notes:
  description: What could not be compared with how the node was when it was measured.
  type: list
  elements: str
  returned: always
"""
