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
  - Writes the options of the NVIDIA driver in the profile's C(driver_options) into
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
findings:
  description: What is not ok after this run, as in C(docs/findings.md); in check mode, what is not ok now.
  type: list
  elements: dict
  returned: success
passed:
  description: Ids of the checks that are ok.
  type: list
  elements: str
  returned: success
repaired:
  description: Ids of the findings that this run repaired, or would repair in check mode.
  type: list
  elements: str
  returned: success
commands:
  description: Commands that were run, or would be.
  type: list
  elements: str
  returned: success
notes:
  description: What an administrator still has to do, such as rebuild the initramfs.
  type: list
  elements: str
  returned: success
reboot_required:
  description: Empty; nothing here waits for a reboot.
  type: list
  elements: str
  returned: success
withheld:
  description: Ids of the findings whose repair would unload a module.
  type: list
  elements: str
  returned: success
backup_files:
  description: Copies of other people's files that were replaced.
  type: list
  elements: str
  returned: success
"""

from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional

from ansible_collections.busbar.fabric.plugins.module_utils import gpudirect
from ansible_collections.busbar.fabric.plugins.module_utils.change import apply, module
from ansible_collections.busbar.fabric.plugins.module_utils.core import effective_unit
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan, merge
from ansible_collections.busbar.fabric.plugins.module_utils.driver import nvidia_options, peermem
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile

SPEC = {
    "mode": {"type": "str", "choices": ["auto", "peermem", "dmabuf", "off"], "default": "auto"},
    **module.PROFILE,
    "profile": {"type": "dict", "required": False},
    **module.DISRUPTION,
    **module.ROOTS,
}


def main() -> None:
    module.main(SPEC, work)


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
    failed: Optional[peermem.Failure] = None
    plans: List[Plan] = []
    wanted = given["profile"]
    asked = profile.parse(wanted, given["profile_name"]).driver_options if wanted is not None else ()

    def look() -> Plan:
        have = gpudirect.read(host, given["mode"])
        found = gpudirect.plan(have, given["mode"], failed)
        names = [gpudirect.LOADER] if have.own.get(gpudirect.LIST) is not None else []
        found = merge(found, effective_unit.overrides(host, gpudirect.PERSISTED, gpudirect.OWN, names))
        if asked or host.read_system(nvidia_options.FILE) is not None:
            found = merge(found, nvidia_options.plan(nvidia_options.read(host), asked))
        plans.append(found.limit(given["max_disruption"]))
        return plans[-1]

    def make(host: Host, plan: Plan) -> List[str]:
        nonlocal failed
        backups = apply.execute(host, replace(plan, commands=()))
        failed = peermem.load(host) if plan.commands else None
        return backups

    result = apply.converge(host, check_mode, look, make)
    planned = plans[0]
    if planned.commands:
        result["changed"] = bool(planned.changes) or failed is None
        # What a module's loading mends is live.
        left = [] if check_mode else [finding["id"] for finding in result["findings"]]
        mended = [finding.id for finding in planned.findings if finding.check == gpudirect.PATH.id]
        result["repaired"] += [id for id in mended if id not in left]
    return dict(result, notes=[*result["notes"], *gpudirect.notes(planned)])


if __name__ == "__main__":
    main()
