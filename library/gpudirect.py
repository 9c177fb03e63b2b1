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
  - Says which of the two paths the node can have, loads C(nvidia_peermem) where that is the one, and has it loaded at
    every boot. On Debian and Ubuntu through C(/etc/modules-load.d), with OFED and elsewhere by a systemd unit after
    C(openibd), because dracut would copy the module into the initramfs.
  - Tells why the module does not load. Whether it does is read from C(/sys/module), not from an exit code.
  - A run unloads no module. An old C(nv_peer_mem) loses its start at boot, and is left loaded until somebody drains the
    node.
attributes:
  check_mode:
    support: full
    description: Shows files and commands and touches nothing.
  diff_mode:
    support: full
    description: The difference of every file.
options:
  mode:
    description:
      - Path that is asked for. V(auto) is DMA-BUF where the open GPU kernel modules and kernel 5.12 or later are, else
        C(nvidia_peermem). With V(off) nothing is asked for and Busbar's own files are removed.
    type: str
    choices: [auto, peermem, dmabuf, "off"]
    default: auto
  max_disruption:
    description: Most that the run may cost; nothing that this module does costs anything.
    type: str
    choices: [none, link, driver, reboot]
    default: none
  hardware_root:
    description: Directory that holds C(/sys) and C(/proc).
    type: path
    default: /
  system_root:
    description: Directory that holds C(/etc), C(/usr) and C(/boot), and the tools.
    type: path
    default: /
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
  description: Ids of the findings that this run has mended, or would in check mode.
  type: list
  elements: str
  returned: success
commands:
  description: Commands that were run, or would be.
  type: list
  elements: str
  returned: success
notes:
  description: What somebody has to do in the end, such as to build the initramfs anew.
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
from typing import List, Optional

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.busbar.fabric.plugins.module_utils import gpudirect
from ansible_collections.busbar.fabric.plugins.module_utils.change import apply
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "mode": {"type": "str", "choices": ["auto", "peermem", "dmabuf", "off"], "default": "auto"},
            "max_disruption": {"type": "str", "choices": ["none", "link", "driver", "reboot"], "default": "none"},
            "hardware_root": {"type": "path", "default": "/"},
            "system_root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    given = module.params
    host = Host(given["hardware_root"], given["system_root"])

    def plan(failed: Optional[gpudirect.Failure] = None) -> Plan:
        have = gpudirect.read(host, given["mode"])
        return gpudirect.plan(have, given["mode"], failed).limit(given["max_disruption"])

    backups: List[str] = []
    failed = None
    try:
        host.require_roots()
        planned = after = plan()
        if planned.changed and not module.check_mode:
            for change in planned.changes:
                backup = apply.write(host, replace(change, backup=change.path not in gpudirect.OWN))
                backups += [backup] if backup else []
            failed = gpudirect.load(host) if planned.commands else None
            # What counts is what is there now, not what was meant to be.
            after = plan(failed)
    except ReadError as error:
        module.fail_json(msg=str(error))
    result = apply.result(planned, after)
    result["changed"] = bool(planned.changes) or (bool(planned.commands) and failed is None)
    still = {finding.id for finding in after.findings if not finding.ok} if after is not planned else set()
    if planned.commands:
        # What a module's loading mends is live.
        result["repaired"] += [f.id for f in planned.findings if f.check == "gpudirect.path" and f.id not in still]
    module.exit_json(**result, notes=gpudirect.notes(planned), backup_files=backups)


if __name__ == "__main__":
    main()
