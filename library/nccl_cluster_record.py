#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_cluster_record
short_description: (internal) Store and judge a node's record of the last benchmark between it and others
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. Judges the record of the last benchmark of this scope that the node took part in,
    or writes it.
  - Changes nothing on the host but C(/var/lib/busbar/nccl_cluster).
attributes:
  check_mode:
    support: full
    description: Writes nothing.
options:
  scope:
    description: Configured scope; V(node) requires no record.
    type: str
    choices: [node, pair, rail, leaf, nvlink_domain, cluster]
    default: node
  max_age_days:
    description: How old a record may be.
    type: float
    default: 30
  measured:
    description: What was measured just now, to be stored; C(finished), C(over), C(state) and C(said).
    type: dict
    default: {}
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.no_diff
"""

EXAMPLES = r"""
- name: Judge the last benchmark of the cluster
  busbar.fabric.nccl_cluster_record:
    scope: cluster
  register: stored
"""

RETURN = r"""
due:
  description: Why it is to be measured; empty if the record is still valid.
  type: str
  returned: success
"""

import time
from typing import Any, Dict, Mapping

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import FileChange, Plan
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import cluster_member

SPEC: Dict[str, Dict[str, Any]] = {
    "scope": {"type": "str", "choices": ["node", *cluster_member.SCOPES], "default": "node"},
    "max_age_days": {"type": "float", "default": 30},
    "measured": {"type": "dict", "default": {}},
    **module.ROOTS,
}


def main() -> None:
    module.main(SPEC, work)


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
    if given["scope"] == "node":
        return dict(Plan().result(), due="")
    if given["measured"] and not check_mode:
        store_record(host, given)
    plan = cluster_member.judge(host, given["scope"], given["max_age_days"], time.time())
    due = "; ".join("%s: %s" % (finding.subject, finding.have) for finding in plan.findings if not finding.ok)
    return dict(plan.result(), due=due[:1000])


def store_record(host: Host, given: Mapping[str, Any]) -> None:
    """Write the record. Raises ReadError, ParseError."""
    # The audit's script does not contain what only writes.
    from ansible_collections.busbar.fabric.plugins.module_utils.change import apply

    path = cluster_member.STORE % given["scope"]
    try:
        text = cluster_member.render(given["measured"], host)
    except (TypeError, ValueError) as error:
        raise ParseError("measured: %s" % error) from error
    apply.write(host, FileChange(path, host.read_system(path), text, mode=0o600))


if __name__ == "__main__":
    main()
