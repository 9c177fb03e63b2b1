#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: watch
short_description: Run busbar watch on a node as a service
version_added: 0.2.0
author: Busbar contributors (@busbar)
description:
  - Writes C(/usr/local/lib/busbar/watch.py) and C(busbar-watch.service), enables and starts the service, and reports
    whether it runs and gets samples of the GPUs. Without O(enabled) it stops the service and removes both files.
  - What was watched, C(/var/lib/busbar/watch), stays.
options:
  enabled:
    description: Whether the service is wanted.
    type: bool
    default: false
  interval:
    description: Seconds between two samples.
    type: float
    default: 5
  patience:
    description: Seconds without a working GPU after which a job is reported as stalled.
    type: float
    default: 300
  window:
    description: Seconds in which a link that comes back has flapped; after them it is down.
    type: float
    default: 60
  inspector:
    description: Directory with the records of NCCL's Inspector plugin, read when a job stalls; empty for none.
    type: path
    default: ""
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.changes
"""

EXAMPLES = r"""
- name: Report stalled jobs and flapping links
  busbar.fabric.watch:
    enabled: true
    patience: 600
  register: watch_result
"""

RETURN = r"""
# What every module returns: see the notes.
"""

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.watch.module import SPEC, work

main = module.entry(SPEC, work)

if __name__ == "__main__":
    main()
