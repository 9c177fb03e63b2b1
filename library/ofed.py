#!/usr/bin/python
# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: ofed
short_description: Keep a node at one release of OFED, for every kernel that it could boot
version_added: 0.1.0
author: Busbar contributors (@busbar)
description:
  - Compares repository, packages, hold, the modules of every installed kernel and the ones that are loaded with the
    configured release, and brings the node there with the system's own package manager and DKMS.
  - Reloads no driver below O(max_disruption=driver). While packages are installed, openibd is masked, so that their
    scripts do not restart it.
  - Does nothing on a host that has none of its profile's NICs.
options:
  flavour:
    description: Whose drivers. V(inbox) are the distribution's.
    type: str
    choices: [doca-ofed, mlnx-ofed, inbox]
    default: doca-ofed
  version:
    description: Release of DOCA or MLNX_OFED, such as V(3.2.1). Without it O(manage=false) takes any.
    type: str
    default: ""
  package:
    description: The metapackage that is installed; without it that of the flavour.
    type: str
    default: ""
  manage:
    description: With V(false) everything is judged and nothing is changed.
    type: bool
    default: true
  repository_top:
    description: Top of the vendor's repositories or of a mirror of them.
    type: str
    default: https://linux.mellanox.com/public/repo
  repository:
    description: URL of the very repository, where it is not below O(repository_top).
    type: str
    default: ""
  repository_key:
    description: The repository's public key, armoured; without it nothing is installed.
    type: str
    default: ""
  gpudirect:
    description: The site's path of GPUDirect RDMA. It decides whether NVIDIA's module has to fit.
    type: str
    choices: [auto, peermem, dmabuf, "off"]
    default: auto
  third_party:
    description: File systems whose RDMA modules the site builds itself.
    type: list
    elements: str
    choices: [lustre]
    default: []
extends_documentation_fragment:
  - busbar.fabric.node
  - busbar.fabric.node.profile
  - busbar.fabric.node.disruption
  - busbar.fabric.node.changes
"""

EXAMPLES = r"""
- name: See whether the node has what the fleet has
  busbar.fabric.ofed:
    profile: "{{ busbar_intent.profile }}"
    version: "3.2.1"
    manage: false
  register: mofed_result
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
  description: What was run, or would be, without what a package's own scripts build.
  type: list
  elements: str
  returned: success
facts:
  description: Release of OFED, or C(inbox), which the control node compares between hosts.
  type: dict
  returned: success
notes:
  description: Sentences for the verdict.
  type: list
  elements: str
  returned: success
reboot_required:
  description: Why the installed driver is active only after a reboot.
  type: list
  elements: str
  returned: success
withheld:
  description: Ids of the findings whose repair would reload drivers.
  type: list
  elements: str
  returned: success
"""

import os
from contextlib import suppress
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.busbar.fabric.plugins.module_utils.change import apply, busy, guard, module
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan, merge
from ansible_collections.busbar.fabric.plugins.module_utils.kernel_args import plan as kernel_args
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile, rails, topology
from ansible_collections.busbar.fabric.plugins.module_utils.ofed import packages
from ansible_collections.busbar.fabric.plugins.module_utils.ofed import plan as ofed
from ansible_collections.busbar.fabric.plugins.module_utils.ofed import read as ofed_state
from ansible_collections.busbar.fabric.plugins.module_utils.roce.nouns import CONFIGFS

SPEC = {
    **module.PROFILE,
    "flavour": {"type": "str", "choices": ["doca-ofed", "mlnx-ofed", "inbox"], "default": "doca-ofed"},
    "version": {"type": "str", "default": ""},
    "package": {"type": "str", "default": ""},
    "manage": {"type": "bool", "default": True},
    "repository_top": {"type": "str", "default": "https://linux.mellanox.com/public/repo"},
    "repository": {"type": "str", "default": ""},
    "repository_key": {"type": "str", "default": "", "no_log": False},
    "gpudirect": {"type": "str", "choices": ["auto", "peermem", "dmabuf", "off"], "default": "auto"},
    "third_party": {"type": "list", "elements": "str", "choices": ["lustre"], "default": []},
    **module.DISRUPTION,
    **module.ROOTS,
}
# Packages first, then what their scripts have not built, then what was not foreseen.
_ROUNDS = 4
_PACKAGES = {"doca-ofed": "doca-ofed", "mlnx-ofed": "mlnx-ofed-all", "inbox": ""}
# nvidia_peermem is wanted; None: that depends on the driver.
_PEERMEM = {"auto": None, "peermem": True, "dmabuf": False, "off": False}


def main() -> None:
    module.run(AnsibleModule(SPEC, supports_check_mode=True), work)


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
    asked = profile.from_options(given)
    node = topology.read(host, ask_nvidia_smi=False)
    if not rails.match(node, asked).nics:
        note = "OFED was not requested: none of the NICs of profile %s is there" % given["profile_name"]
        return dict(apply.result(Plan(), Plan()), notes=[note] if asked.rails else [])
    machine = os.uname().machine
    want = _want(host, given, ofed.needs_umad(asked.gpus.models), machine)
    # The driver serves all of them at once.
    devices = [nic.pci for nic in node.nics if nic.device.driver == ofed_state.MLX5]
    failed: Dict[Tuple[str, ...], str] = {}

    facts: Dict[str, Optional[str]] = {}

    def look() -> Plan:
        have = ofed_state.read(host, _PEERMEM[given["gpudirect"]], machine, kernel_args.next_boot(host))
        facts["ofed"] = "inbox" if have.release == "" else have.release
        found = ofed.plan(have, want, failed)
        allowed = found.limit(given["max_disruption"])
        if all(command.disruption == "none" for command in allowed.commands):
            return allowed
        users = busy.read(host, devices, guard.connection())
        return ofed.unload_first(found.block(users.against), users.unload_first).limit(given["max_disruption"])

    planned = after = look()
    rounds: List[Plan] = []
    while after.changed and not check_mode and len(rounds) < _ROUNDS:
        rounds.append(after)
        failed.update(_execute(host, after))
        after = look()
    done = merge(*rounds).result() if rounds else planned.result()
    return dict(apply.result(planned, after), diff=done["diff"], commands=done["commands"], facts=facts)


def _want(host: Host, given: Mapping[str, Any], umad: bool, machine: str) -> ofed.Want:
    repository, flavour, version = given["repository"], given["flavour"], given["version"]
    if not repository and flavour != "inbox":
        system = packages.read_system(host)
        repository = ofed.repository_url(given["repository_top"], flavour, version, system, machine)
    return ofed.Want(
        flavour=flavour,
        version=version,
        package=given["package"] or _PACKAGES[flavour],
        manage=given["manage"],
        repository=repository,
        key=given["repository_key"],
        umad=umad,
        third_party=tuple(given["third_party"]),
    )


def _execute(host: Host, plan: Plan) -> Dict[Tuple[str, ...], str]:
    """Return argv -> error of what failed. A module that fails to build for one kernel does not stop the others.

    Raises ReadError if a file cannot be written.
    """
    failed: Dict[Tuple[str, ...], str] = {}
    for change in plan.changes:
        apply.write(host, change)
    for command in plan.commands:
        if failed and command.argv[0] != "dkms" and command != ofed.UNMASK:
            continue
        # Where a device has a directory there, rdma_cm cannot be unloaded.
        for name in host.listdir(CONFIGFS) if command == ofed.RESTART else ():
            with suppress(OSError):
                os.rmdir(host.hardware("%s/%s" % (CONFIGFS, name)))
        try:
            apply.run(host, command)
        except ReadError as error:
            failed[command.argv] = error.problem.message
    return failed


if __name__ == "__main__":
    main()
