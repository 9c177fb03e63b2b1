#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: gpudirect
short_description: Give NICs a direct path to the GPUs' memory, by DMA-BUF or by nvidia_peermem, now and after a reboot
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Reports which of the two paths the node supports. If it is C(nvidia_peermem), loads that module now and at every
    boot. On Debian and Ubuntu through C(/etc/modules-load.d), with OFED and elsewhere by a systemd unit after
    C(openibd), because dracut would copy the module into the initramfs.
  - Writes the options of the NVIDIA driver in the profile's C(driver_options), and those of IBGDA, into
    C(/etc/modprobe.d/busbar-nvidia.conf), unless another file there sets them; they are in effect after a reboot.
  - Reports why the module does not load. Whether it is loaded is read from C(/sys/module), not from an exit code.
  - A run unloads no module. An old C(nv_peer_mem) is no longer started at boot, and stays loaded until an administrator
    drains the node.
options:
  mode:
    description:
      - Configured path. V(auto) is DMA-BUF with the open GPU kernel modules and kernel 5.12 or later, else
        C(nvidia_peermem). With V(off) none is configured and Busbar's own files are removed.
    type: str
    choices: [auto, peermem, dmabuf, "off"]
    default: auto
  gpu_initiated:
    description:
      - Traffic that GPUs of jobs start themselves. For V(deepep) the driver's options for IBGDA are written, for V(gin)
        the path is judged. Unset leaves options that are there; an empty list removes them.
    type: list
    elements: str
    choices: [gin, nvshmem, deepep]
  profile:
    description: Platform profile as in C(profiles/NAME.yml), for its C(driver_options).
    type: dict
    required: false
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.profile
  - busbar.fabric.node.disruption
  - busbar.fabric.node.changes
"""

EXAMPLES = r"""
- name: GPUDirect RDMA
  busbar.fabric.gpudirect:
    mode: auto
  register: nvidia_peermem_result
"""

RETURN = r"""
# What every module returns: see the notes.
"""

from ansible_collections.busbar.fabric.plugins.module_utils.change import module
from ansible_collections.busbar.fabric.plugins.module_utils.gpudirect.module import SPEC, work

main = module.entry(SPEC, work)

if __name__ == "__main__":
    main()
