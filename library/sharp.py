#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: sharp
short_description: Check what a node needs for SHARP, reduction in the InfiniBand switches
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Looks for C(libsharp_coll.so) and a network plugin of NCCL that exports CollNet, of one release, connects to the
    port of the aggregation manager, and judges the variables that switch SHARP on and off, and the thresholds of nodes.
  - Reads files and loads none; runs no tool of SHARP, and changes nothing. Only NCCL's own log of a job proves
    that SHARP is used.
options:
  directories:
    description: Directories of library and plugin; empty means those of HPC-X and of NVIDIA's packages.
    type: list
    elements: path
    default: []
  manager:
    description:
      - The aggregation manager, C(HOST) or C(HOST:PORT). One TCP connection is opened and closed at once. Empty - a
        node cannot check whether there is one.
    type: str
    default: ""
  nodes:
    description: Maximum nodes of a job; 0 if unknown.
    type: int
    default: 0
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.profile
  - busbar.fabric.node.reads
"""

EXAMPLES = r"""
- name: What is missing for SHARP
  busbar.fabric.sharp:
    profile: "{{ busbar_intent.profile }}"
    fabric: infiniband
    manager: ufm01-ib
    nodes: 64
  register: sharp_result
"""

RETURN = r"""
# What every module returns: see the notes.
"""

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.sharp.module import SPEC, work

main = module.entry(SPEC, work)

if __name__ == "__main__":
    main()
