# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring the IOMMU into passthrough mode: options and work of the module ``iommu``."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ..change import apply, module
from ..core.host import Host
from ..core.plan import Plan
from ..machine import profile
from . import iommu
from . import read as kernel_args

SPEC: module.Spec = {
    "passthrough": {"type": "bool", "default": True},
    **module.PROFILE,
    "profile": {"type": "dict", "required": False},
    **module.BACKUP,
    **module.DISRUPTION,
    **module.ROOTS,
}


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
    state = iommu.read(host)
    wanted = given["profile"]
    asked = profile.parse(wanted, given["profile_name"]).kernel_args if wanted is not None else ()

    def look() -> Plan:
        boot = kernel_args.read(host) if asked or (given["passthrough"] and state.decides) else None
        found = iommu.plan(state, boot, given["passthrough"], asked)
        return found.with_backup(given["backup"]).limit(given["max_disruption"])

    notes = [] if state.decides else ["the IOMMU is the hypervisor's (%s): there is nothing to set" % state.hypervisor]
    done = apply.converge(host, check_mode, look)
    return dict(done, notes=[*done["notes"], *notes])
