#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_audit
short_description: Run host_audit on every host of the play from one worker
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Runs M(busbar.fabric.host_audit) for all hosts of the play at once, as many at a time as there are forks, without a
    fork for each of them.
  - Connection, become method and interpreter of a host are those of its variables. Keywords of the task and its play
    are evaluated for the first host and used for all.
  - A host that cannot be reached, or does not respond in time, is reported in its result; the task does not fail for
    it.
options:
  host_timeout:
    description: Seconds for a host, from login to result. A host that takes longer is abandoned.
    type: float
    default: 300
  collect:
    description: Query no host; join what M(busbar.fabric.host_audit) has registered as C(host_audit_result)
      on each host. For releases of ansible-core with RV(by_task).
    type: bool
    default: false
  engine:
    description: How hosts are queried. C(ssh) uses a connection for each host. C(slurm) queries all of them by one
      Slurm step, as root, on nodes on which no job runs; the connection and C(become) of a host are ignored, and
      O(host_timeout) applies to all of them together. docs/scale.md#slurm lists the requirements.
    type: str
    choices: [ssh, slurm]
    default: ssh
  heard:
    description: File to which each result is written as it arrives, to judge a run that was interrupted. Without
      it, a file in Ansible's temporary folder on the control node, removed after the run.
    type: path
    default: ""
  manifest:
    description: File to which the expected hosts and the suite's values in the inventory are written before any host is
      queried. It contains the inventory's passwords; C(busbar drift) reads and removes it at once.
    type: path
    default: ""
extends_documentation_fragment:
  - busbar.fabric.node.reads
"""

EXAMPLES = r"""
- name: Audit every host
  busbar.fabric.fleet_audit:
  run_once: true
  register: fleet_audit_result
"""

RETURN = r"""
hosts:
  description: Host to what M(busbar.fabric.host_audit) returns for it, or C(failed), C(unreachable) or C(timedout) and
    C(msg).
  type: dict
  returned: always
begun:
  description: When the first host was queried, in UTC.
  type: str
  returned: when the inventory is valid
  sample: "2026-11-21T02:00:07Z"
by_task:
  description: No host was queried, because this release of ansible-core is not supported. Query every host
    by a separate task.
  type: bool
  returned: when true
msg:
  description: Errors in the variables of hosts; all other hosts have been queried.
  type: str
  returned: failure
"""
