#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: nccl_benchmark_report
short_description: (internal) Print the benchmark of all hosts as one table and keep it as files and plots
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. Reads the variable C(nccl_benchmark_result) of every host of the play; for hosts
    that were audited in the same run, and whose stored results are still valid, the result of
    M(busbar.fabric.fleet_audit).
  - Writes a directory with a JSON file for each host, C(busbw.svg) and C(busbw.png) on the control node. The plots need
    matplotlib there; without it the report notes that they are missing.
  - Where nothing was measured in this run, and a directory of an earlier run is there, no other is written.
attributes:
  check_mode:
    support: full
    description: Prints the table of the stored results; writes nothing.
options:
  path:
    description: Directory on the control node that takes a directory for each run. Empty for none.
    type: path
    default: ""
extends_documentation_fragment:
  - busbar.fabric.node.no_diff
"""

EXAMPLES = r"""
- name: Report
  busbar.fabric.nccl_benchmark_report:
    path: busbar-results
"""

RETURN = r"""
path:
  description: The directory of this run, empty where nothing was written.
  type: str
  returned: always
plots:
  description: The plots in it.
  type: list
  elements: str
  returned: always
"""
