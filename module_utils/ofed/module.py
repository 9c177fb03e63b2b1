# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring a node to one release of OFED: options and work of the module ``ofed``."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ..change import apply, busy, guard, module
from ..core.host import Host, ReadError
from ..core.plan import Plan, merge
from ..kernel_args import read as kernel_args
from ..machine import profile, rails, topology
from ..roce_qos.settings import CONFIGFS
from . import checks, packages
from . import plan as ofed
from . import read as ofed_state

SPEC: module.Spec = {
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


def _want(host: Host, given: Mapping[str, Any], umad: bool, machine: str) -> checks.OfedWanted:
    repository, flavour, version = given["repository"], given["flavour"], given["version"]
    if not repository and flavour != "inbox":
        system = packages.read_system(host)
        repository = ofed.repository_url(given["repository_top"], flavour, version, system, machine)
    return checks.OfedWanted(
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
        if failed and command.argv[0] != "dkms" and command != checks.UNMASK:
            continue
        # Where a device has a directory there, rdma_cm cannot be unloaded.
        for name in host.listdir(CONFIGFS) if command == checks.RESTART else ():
            with suppress(OSError):
                os.rmdir(host.hardware("%s/%s" % (CONFIGFS, name)))
        try:
            apply.run(host, command)
        except ReadError as error:
            failed[command.argv] = error.problem.message
    return failed
