#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: host_audit
short_description: Run all checks of site.yml on a node, in one query
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Runs the modules of the roles in check mode, with the arguments that the roles' own tasks give them, in one process
    on the node. It finds what C(site.yml --check) finds, in a fraction of the time.
  - Writes no file but the record of counters of M(busbar.fabric.node_health), and works on a read-only file system.
  - An action plugin pipes one script to C(python3 -I -S) over the connection; where a become method takes its
    password from there (C(su)), the script travels as an argument of the module of this name.
  - A tool that hangs is abandoned after 20 seconds and not run again; what only it reports is C(unknown). A read
    that never returns, as of a dead device, costs the module that read it, after O(timeout).
  - C(--tags) and C(--skip-tags) leave out the roles that they leave out of C(site.yml).
options:
  roles:
    description: Roles to audit; by default all that check a host.
    type: list
    elements: str
  timeout:
    description: Seconds for each module. A module that takes longer is C(failed) in RV(roles), and the remaining ones
      run at once, so that the audit takes about twice this time at most.
    type: float
    default: 60
  first:
    description: For C(busbar check), which needs no inventory. V(query) audits the host by what it is recognised as,
      V(report) prints the verdict on all hosts of the play.
    type: str
    choices: ["", query, report]
    default: ""
  script:
    description: For the action plugin's own use.
    type: str
    default: ""
extends_documentation_fragment:
  - busbar.fabric.node.reads
"""

EXAMPLES = r"""
- name: Audit the node
  busbar.fabric.host_audit:
  register: host_audit_result
"""

RETURN = r"""
roles:
  description: JSON text of role to what the role registers in check mode, such as C(findings) and C(passed), without
    bulk data. Also C(node_lock), which names in C(notes) who works on the node. Read it with C(from_json).
  type: str
  returned: success
evidence:
  description: Value and source of each passed check, packed; C(busbar_findings_path) takes them as text.
  type: str
  returned: success
"off":
  description: Role to the site value that turns it off on this host.
  type: dict
  returned: success
intent:
  description: Hash of the host's intent.
  type: str
  returned: success
verify:
  description: Whether the inventory requires C(verify.yml).
  type: bool
  returned: success
scope:
  description: Scope of the benchmark in the inventory, C(nccl_benchmark_scope).
  type: str
  returned: success
due:
  description: Roles that C(site.yml) would have to play on the host; with C(--check), those with a diff to show.
  type: list
  elements: str
  returned: success
drain:
  description: Whether the inventory lets a run drain the host.
  type: bool
  returned: success
wrong_inventory:
  description: Errors in the host's variables, a sentence for each; the host was not queried.
  type: list
  elements: str
  returned: when there are errors
msg:
  description: Why there is no result.
  type: str
  returned: failure
"""

import base64
import sys

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.busbar.fabric.plugins.module_utils.core.bundle import RUN


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "roles": {"type": "list", "elements": "str"},
            "timeout": {"type": "float", "default": 60},
            "first": {"type": "str", "choices": ["", "query", "report"], "default": ""},
            "script": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    script = base64.b64decode(module.params["script"])
    rc, stdout, stderr = module.run_command([sys.executable, "-I", "-S", "-c", RUN], data=script, binary_data=True)
    module.exit_json(changed=False, rc=rc, stdout=stdout, stderr=stderr)


if __name__ == "__main__":
    main()
