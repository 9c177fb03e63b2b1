# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring a node to the wanted path to the GPUs' memory: options and work of the module ``gpudirect``."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional

from ..change import apply, module
from ..core import effective_unit
from ..core.host import Host
from ..core.plan import Plan, merge
from ..driver import nvidia_options
from ..machine import profile
from . import peermem, plan, read

SPEC: module.Spec = {
    "mode": {"type": "str", "choices": ["auto", "peermem", "dmabuf", "off"], "default": "auto"},
    **module.PROFILE,
    "profile": {"type": "dict", "required": False},
    "gpu_initiated": {"type": "list", "elements": "str", "choices": list(nvidia_options.INITIATED)},
    **module.DISRUPTION,
    **module.ROOTS,
}


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, object]:
    failed: Optional[peermem.Failure] = None
    plans: List[Plan] = []
    wanted, initiated = given["profile"], given["gpu_initiated"]
    asked = profile.parse(wanted, given["profile_name"]).driver_options if wanted is not None else ()

    def look() -> Plan:
        have = read.State(host, given["mode"])
        found = plan.plan(have, given["mode"], failed)
        names = [plan.LOADER] if have.own.get(read.LIST) is not None else []
        found = merge(found, effective_unit.overrides(host, plan.PERSISTED, read.OWN, names))
        if "gin" in (initiated or ()):
            found = merge(found, Plan(tuple(plan.judge_gin(have, given["mode"]))))
        if asked or initiated or host.read_system(nvidia_options.FILE) is not None:
            options = nvidia_options.read(host, have.next_boot)
            found = merge(found, nvidia_options.plan(options, nvidia_options.wanted_options(options, asked, initiated)))
        plans.append(found.limit(given["max_disruption"]))
        return plans[-1]

    def make(host: Host, changes: Plan) -> List[str]:
        nonlocal failed
        backups = apply.execute(host, changes._replace(commands=()))
        failed = peermem.load(host) if changes.commands else None
        return backups

    result = apply.converge(host, check_mode, look, make)
    planned = plans[0]
    if planned.commands:
        result["changed"] = bool(planned.changes) or failed is None
        # What a module's loading mends is live.
        left = [] if check_mode else [finding["id"] for finding in result["findings"]]
        mended = [finding.id for finding in planned.findings if finding.check == plan.PATH.id]
        result["repaired"] += [id for id in mended if id not in left]
    return dict(result, notes=[*result["notes"], *plan.notes(planned)])
