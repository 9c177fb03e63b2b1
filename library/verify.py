#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: verify
short_description: (internal) Verify the network between all hosts of the play
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric, for C(playbooks/verify.yml). Once for all hosts of the play, it reads their rails
    (M(busbar.fabric.topology_info)) and compares them, pings the same rail of other hosts, and tests the rails of
    disjoint pairs of idle hosts of one profile and fabric (both by M(busbar.fabric.perftest)). Each host
    sends once and receives once in a round; in a pass it has one role.
  - Prints the worst and the median of each rail, and writes all figures and counters as JSON on the control node.
attributes:
  check_mode:
    support: full
    description: Tests no rail, and judges the last results of each, also of nodes in use; writes nothing.
options:
  path:
    description: Directory on the control node for a file of each run and the link C(latest.json); empty for none.
    type: path
    default: ""
extends_documentation_fragment:
  - busbar.fabric.node.no_diff
"""

EXAMPLES = r"""
- name: Verify
  busbar.fabric.verify:
    path: busbar-results/verify
  register: verify_fleet_result
"""

RETURN = r"""
hosts:
  description: Host to C(findings), what is not ok, C(passed), and C(sessions), every test with figures and counters.
  type: dict
  returned: always
rails:
  description: Host to the result of M(busbar.fabric.topology_info).
  type: dict
  returned: always
not_stored:
  description: Why the figures were not written, empty where they were.
  type: str
  returned: always
"""
