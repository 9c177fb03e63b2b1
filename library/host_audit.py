#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: host_audit
short_description: Ask a node everything that site.yml would check, in one question
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Runs the modules of the roles in check mode, with the arguments that the roles' own tasks give them, in one process
    on the node. It finds what C(site.yml --check) finds, in a fraction of the time. Changes nothing.
  - An action plugin pipes one script to C(python3 -I -S -) over the connection; where a become method takes its
    password from there (C(su)), the script travels as an argument of the module of this name.
attributes:
  check_mode:
    support: full
    description: Reads the same.
  diff_mode:
    support: none
    description: There is nothing to show.
options:
  roles:
    description: Roles whose state is asked for; without it, all that own a state of a host.
    type: list
    elements: str
  timeout:
    description: Seconds for each module; what does not answer in time is C(failed) in RV(roles), and the others go on.
    type: float
    default: 60
  script:
    description: For the action plugin's own use.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Ask the node everything
  busbar.fabric.host_audit:
  register: host_audit_result
"""

RETURN = r"""
roles:
  description: Role to what the role registers in check mode, such as C(findings) and C(passed).
  type: dict
  returned: success
"""

import sys

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "roles": {"type": "list", "elements": "str"},
            "timeout": {"type": "float", "default": 60},
            "script": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    rc, stdout, stderr = module.run_command([sys.executable, "-I", "-S", "-"], data=module.params["script"])
    module.exit_json(changed=False, rc=rc, stdout=stdout, stderr=stderr)


if __name__ == "__main__":
    main()
