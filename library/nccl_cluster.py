#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_cluster
short_description: (internal) Read what a node has of the benchmark between it and others
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Internal module of busbar.fabric. V(record) judges the record of the last benchmark of this scope that the node took
    part in, or writes it. It changes nothing on the host but C(/var/lib/busbar/nccl_cluster).
  - V(member) reads the node's own short name, who uses it, its build of nccl-tests and the RDMA devices of its rails.
    M(busbar.fabric.nccl_benchmark) makes jobs of it. It changes nothing.
attributes:
  check_mode:
    support: full
    description: Writes nothing.
options:
  phase:
    description: V(record) or V(member).
    type: str
    choices: [record, member]
    default: record
  scope:
    description: Of V(record), the configured scope; V(node) requires no record.
    type: str
    choices: [node, pair, rail, leaf, nvlink_domain, cluster]
    default: node
  max_age_days:
    description: Of V(record), how old a record may be.
    type: float
    default: 30
  measured:
    description: Of V(record), what was measured just now, to be stored; C(finished), C(over), C(state) and C(said).
    type: dict
    default: {}
  nccl_tests_path:
    description: Of V(member), directory of the build.
    type: path
    default: ""
  launcher:
    description: Of V(member), what is to start programs on several nodes.
    type: str
    choices: [mpirun, srun]
    default: mpirun
  slurm_node:
    description: Of V(member), the node's name in Slurm, to query whether it is drained; empty if Slurm is not to be
      queried.
    type: str
    default: ""
  nvlink_domain:
    description: Of V(member), query the NVLink domain of the GPUs.
    type: bool
    default: false
  profile:
    description: Of V(member), platform profile as in C(profiles/NAME.yml).
    type: dict
    required: false
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.profile
  - busbar.fabric.node.no_diff
"""

EXAMPLES = r"""
- name: Judge the last benchmark of the cluster
  busbar.fabric.nccl_cluster:
    scope: cluster
  register: stored

- name: See whether the node can take part
  busbar.fabric.nccl_cluster:
    phase: member
    nccl_tests_path: /opt/nccl-tests
    profile: "{{ busbar_intent.profile }}"
  register: member
"""

RETURN = r"""
due:
  description: Of V(record), why it is to be measured; empty if the record is still valid.
  type: str
  returned: success
member:
  description:
    - Of V(member), its C(name) as in C(hostname -s), C(build) (NCCL, MPI and commit that the programs are made with)
      and C(rails), number to C(device) and C(gpu). With O(nvlink_domain) C(domain), UUID and clique, and C(no_domain),
      why there is none.
  type: dict
  returned: success
unfit:
  description: Of V(member), why it cannot take part, each with C(have) and C(fix); empty where it can.
  type: list
  elements: dict
  returned: success
"""

import time
from typing import Any, Dict, Mapping

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import FileChange, Plan
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import cluster_member

SPEC: Dict[str, Dict[str, Any]] = {
    "phase": {"type": "str", "choices": ["record", "member"], "default": "record"},
    "scope": {"type": "str", "choices": ["node", *cluster_member.SCOPES], "default": "node"},
    "max_age_days": {"type": "float", "default": 30},
    "measured": {"type": "dict", "default": {}},
    "nccl_tests_path": {"type": "path", "default": ""},
    "launcher": {"type": "str", "choices": ["mpirun", "srun"], "default": "mpirun"},
    "slurm_node": {"type": "str", "default": ""},
    "nvlink_domain": {"type": "bool", "default": False},
    **module.PROFILE,
    "profile": {"type": "dict", "required": False},
    **module.ROOTS,
}


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
    if given["phase"] == "member":
        # The audit's script contains neither this nor what only writes.
        from ansible_collections.busbar.fabric.plugins.module_utils import cluster_membership

        return dict(Plan().result(), due="", **cluster_membership.read_member(host, given))
    if given["scope"] == "node":
        return dict(Plan().result(), due="")
    if given["measured"] and not check_mode:
        store_record(host, given)
    plan = cluster_member.judge(host, given["scope"], given["max_age_days"], time.time())
    due = "; ".join("%s: %s" % (finding.subject, finding.have) for finding in plan.findings if not finding.ok)
    return dict(plan.result(), due=due[:1000])


def store_record(host: Host, given: Mapping[str, Any]) -> None:
    """Write the record. Raises ReadError, ParseError."""
    from ansible_collections.busbar.fabric.plugins.module_utils.change import apply

    path = cluster_member.STORE % given["scope"]
    try:
        text = cluster_member.render(given["measured"], host)
    except (TypeError, ValueError) as error:
        raise ParseError("measured: %s" % error) from error
    apply.write(host, FileChange(path, host.read_system(path), text, mode=0o600))


main = module.entry(SPEC, work)

if __name__ == "__main__":
    main()
