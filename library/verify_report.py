#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: verify_report
short_description: (internal) Print the rail tests of all hosts and keep them in a file
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. Reads the variable C(verify_result) of every host of the play, prints the worst
    and the median of each rail, and writes all figures and counters as JSON on the control node.
attributes:
  check_mode:
    support: full
    description: Prints the stored results; writes nothing.
options:
  path:
    description: Directory on the control node for a file of each run and the link C(latest.json); empty for none.
    type: path
    default: ""
extends_documentation_fragment:
  - busbar.fabric.node.no_diff
"""

EXAMPLES = r"""
- name: Report
  busbar.fabric.verify_report:
    path: busbar-results/verify
"""

RETURN = r"""
path:
  description: The file of this run, empty where nothing was written.
  type: str
  returned: always
"""
