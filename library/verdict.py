#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of the action plugin of the same name: Ansible wants it here."""

DOCUMENTATION = r"""
module: verdict
short_description: Print the findings of all hosts, worst first, and fail on anything but ok
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Reads the variable C(ROLE_result) of every host of the play for each role named, and judges all of them at once.
  - A host without a result, unreachable or failed, counts as C(unknown).
  - The last task of each role of the suite judges that role on each host, unless C(busbar_role_verdict) is
    false. What a role has repaired is not a failure.
  - Fails in check mode, too; Ansible itself ends with return code 0 on drift.
options:
  roles:
    description: The roles that had to report; without it, all of C(site.yml), or, with O(nightly), of the nightly
      check. With C(--tags) or C(--skip-tags), roles that ran nowhere are named but not counted.
    type: list
    elements: str
  nightly:
    description: Use only the results of M(busbar.fabric.fleet_audit). Otherwise they count for the roles
      that had nothing to do; a role that should have run and has no result counts as C(unknown).
    type: bool
    default: false
  path:
    description: File on the control node to which the findings are written as JSON; empty for none.
    type: path
    default: ""
extends_documentation_fragment:
  - busbar.fabric.node.control
"""

EXAMPLES = r"""
- name: Print the verdict
  busbar.fabric.verdict:
    roles: [platform, nccl_conf]
"""

RETURN = r"""
ok:
  description: Whether every check on every host is ok.
  type: bool
  returned: always
"""
