#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_conf
short_description: Write /etc/nccl.conf from the platform profile and the host's devices, linted and proven
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Takes the rails from the profile and the device names from the host. Writes only the variables that follow from
    these, each below a comment with the reason, in the form that every NCCL version parses the same way.
  - Lints the text against the variables that the jobs' own libraries read. Each library's parser reads it in a private
    mount namespace before the file is changed.
  - If a rail has no device, the file is not changed, and the finding names the rail.
  - On a machine of Azure, OCI, AWS or Google Cloud, variables of the image's own file stay if neither profile nor site
    declares them and the linter accepts them; C(notes) names them.
attributes:
  check_mode:
    support: full
    description: Everything but the write, so the prediction is the same.
  diff_mode:
    support: full
    description: The difference of every file.
options:
  path: {type: path, default: /etc/nccl.conf, description: The file; NCCL itself reads no other place.}
  extra:
    description:
      - The site's own variables, name to value. They are linted like the rest. Without it the file retains those that
        it has.
    type: dict
  accepted:
    description:
      - Variables that jobs may get from other places than O(path), C(NAME) or C(NAME=VALUE) to the site's reason. They
        are named in C(notes) and are not findings.
    type: dict
    default: {}
  containers:
    description: Runtimes that get a file with which their containers see O(path).
    type: list
    elements: str
    choices: [enroot, docker, kubernetes]
    default: []
  libraries:
    description:
      - Every libnccl.so.2 that jobs on this host use. The text is linted against what these read, and proven with them.
      - If none is listed and O(nccl_version) is not set, the usual install paths are searched.
    type: list
    elements: path
    default: []
  prove:
    description: Load each library and let it read the file. The gate does without, since a library may never return.
    type: bool
    default: true
  nccl_version:
    description: Version to lint against if no library can be listed, for example if jobs bring their own.
    type: str
    default: ""
  gpudirect:
    description: How GPUs and NICs exchange data; V(off) switches GPUDirect RDMA off.
    type: str
    choices: [auto, peermem, dmabuf, "off"]
    default: auto
  dscp:
    description: DSCP of the fabric's lossless queue, for rails on Ethernet; -1 for none, unset leaves what is there.
    type: int
  address_family:
    description: Kind of RoCE v2 address that the rails have.
    type: str
    choices: ["", ipv4, ipv6]
    default: ""
  net_plugin:
    description:
      - Network plugin that jobs use, V(spcx) for example, or the path of its library; V(none) for NCCL's own networks.
        Empty writes no line; unset leaves one that is there.
    type: str
  gpu_initiated:
    description: Traffic that GPUs of jobs start themselves; what it needs of variables and libraries is judged.
    type: list
    elements: str
    choices: [gin, nvshmem, deepep]
    default: []
  management_interface:
    description: Interface for NCCL's bootstrap; empty means that of the default route.
    type: str
    default: ""
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.profile
  - busbar.fabric.node.backup
  - busbar.fabric.node.disruption
"""

EXAMPLES = r"""
- name: Write a proven /etc/nccl.conf
  busbar.fabric.nccl_conf:
    profile: "{{ busbar_intent.profile }}"
    profile_name: "{{ busbar_intent.profile_name }}"
    fabric: infiniband
    libraries: [/usr/lib/x86_64-linux-gnu/libnccl.so.2]
  register: nccl_conf_result
"""

RETURN = r"""
# What every module returns: see the notes.
facts:
  description: Versions of the NCCL libraries, which the control node compares between hosts.
  type: dict
  returned: success
variables: {type: dict, returned: success, description: The variables that the file should hold.}
"""

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf.module import SPEC, work

main = module.entry(SPEC, work)

if __name__ == "__main__":
    main()
