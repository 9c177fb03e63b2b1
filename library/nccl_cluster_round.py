#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: nccl_cluster_round
short_description: (internal) Print what a round of jobs between nodes has measured
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. Prints a line for each job of a round of M(busbar.fabric.nccl_cluster_plan) as
    soon as the round has ended, and of many jobs one for all. They are first figures; M(busbar.fabric.nccl_cluster)
    judges all rounds together.
options:
  round:
    description: Number of the round, from 0.
    type: int
    required: true
extends_documentation_fragment:
  - busbar.fabric.node.control
"""

EXAMPLES = r"""
- name: Print the first round
  busbar.fabric.nccl_cluster_round:
    round: 0
  run_once: true
"""

RETURN = r"""
lines:
  description: What was printed.
  type: list
  elements: str
  returned: success
"""
