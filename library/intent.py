#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: intent
short_description: Read and check the suite's variables of a host
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Collects the variables of the suite that the inventory sets for a host, rejects unknown names and wrong types, and
    finds the platform profile that C(busbar_platform) names, first in C(profiles/) beside the inventory, then in the
    suite.
  - Finds the bar of every configured benchmark, first in C(bars.yml) beside the inventory, then in the suite.
  - Runs on the control node and touches no host.
options:
  fail:
    description: Whether to fail if the inventory is wrong; V(false) leaves that to a task with O(together).
    type: bool
    default: true
  together:
    description:
      - Reads nothing, and fails if what was registered as C(busbar_intent) is wrong for any host of the play. The
        message names each mistake once, with the hosts that have it. For a task with C(run_once).
    type: bool
    default: false
notes:
  - C(docs/variables.md) lists the variables.
extends_documentation_fragment:
  - busbar.fabric.node.reads
"""

EXAMPLES = r"""
- name: Check the intent of every host before any host is touched
  busbar.fabric.intent:
    fail: false
  register: busbar_intent

- name: Stop before any host is touched where the inventory is wrong
  busbar.fabric.intent:
    together: true
  run_once: true
"""

RETURN = r"""
errors:
  description: A sentence for each mistake in the inventory.
  type: list
  elements: str
  returned: when there is one
values:
  description: Every variable of the suite, as set or by default.
  type: dict
  returned: success
profile:
  description: The platform profile as in its file.
  type: dict
  returned: success
profile_name:
  description: The platform.
  type: str
  returned: success
profile_path:
  description: The file that the profile came from.
  type: str
  returned: success
benchmark_runs:
  description: What the benchmark is to run on the host, each with its bar and prediction in GB/s; sizes in bytes.
  type: list
  elements: dict
  returned: success
"""
