#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_audit
short_description: Ask every host of the play what host_audit asks, from one worker
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Runs M(busbar.fabric.host_audit) for all hosts of the play at once, as many at a time as there are forks, without a
    fork for each of them.
  - Connection, become method and interpreter of a host are those of its variables. Keywords of the task and of its play
    count for all hosts as they are for the first.
  - A host that cannot be reached, or does not answer in time, has that in its answer; the task does not fail for it.
options:
  host_timeout:
    description: Seconds for a host, from the login to its answer. What takes longer is left behind.
    type: float
    default: 300
  collect:
    description: Ask nobody, and put together what M(busbar.fabric.host_audit) has registered as C(host_audit_result)
      on each host. For releases of ansible-core on which RV(by_task) says so.
    type: bool
    default: false
  engine:
    description: Who fans out. C(ssh) asks each host over its own connection. C(slurm) asks all of them by one step of
      Slurm's, as root, on nodes on which no job runs; the connection and C(become) of a host do not count then, and
      O(host_timeout) counts for all of them at once. docs/slurm.md has what it needs.
    type: str
    choices: [ssh, slurm]
    default: ssh
  overlap:
    description: With O(engine=slurm), also ask nodes on which jobs run, where their partition lets jobs share a node.
    type: bool
    default: false
  heard:
    description: File in which each answer is kept as it comes, for whoever judges a run that was interrupted. Without
      it, a file in Ansible's temporary folder on the control node, which goes with the run.
    type: path
    default: ""
  manifest:
    description: File that takes, before any host is queried, which hosts have to report and what the inventory sets
      for the suite. It holds the inventory's passwords; C(busbar drift) reads and removes it at once.
    type: path
    default: ""
extends_documentation_fragment:
  - busbar.fabric.node.reads
"""

EXAMPLES = r"""
- name: Ask every host everything
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
  description: When the first question was asked, in UTC.
  type: str
  returned: where the inventory is right
  sample: "2026-11-21T02:00:07Z"
by_task:
  description: Nobody was asked, for the inside of this ansible-core is not known. Every host is to be asked by a task
    of its own.
  type: bool
  returned: where that is so
msg:
  description: What is wrong with the variables of hosts; all hosts with right ones have been asked.
  type: str
  returned: failure
"""
