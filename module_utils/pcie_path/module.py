# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Set the registers of the PCIe paths now and for each boot: the module pcie_path."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ..change import apply, module
from ..core import effective_unit
from ..core.host import Host
from ..core.plan import Plan, merge
from ..machine import nic_functions, platform, platform_checks, profile, rails, topology
from . import boot_argument
from .boot_unit import OWN
from .plan import AT_BOOT, PathConfig, PathState, argument, compute_nics, notes, plan
from .registers import execute

SPEC: module.Spec = {
    "clear_acs": {"type": "bool", "default": True},
    "acs_owner": {"type": "str", "choices": ["unit", "kernel"], "default": "unit"},
    "max_read_request": {"type": "int", "choices": [-1, 0, *profile.READ_REQUESTS], "default": -1},
    "persist": {"type": "bool", "default": True},
    **module.PROFILE,
    **module.DISRUPTION,
    **module.ROOTS,
}


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, object]:
    """Return the module's result. Raises ParseError and ReadError."""
    of_site = profile.from_options(given)
    size = of_site.max_read_request if given["max_read_request"] < 0 else given["max_read_request"]
    want = PathConfig(given["clear_acs"], size, given["persist"], given["acs_owner"] == "kernel")
    machine = topology.read(host, ask_nvidia_smi=False)
    nics = compute_nics(machine, rails.match(machine, of_site))
    missing = platform.missing(machine, of_site, platform_checks.GPU_COUNT, platform_checks.RAIL_DEVICE)
    if of_site.data_direct and missing is None:
        found = nic_functions.judge(machine, nics, nic_functions.read(host, nics), True)
        missing = next((one for one in found if one.check == nic_functions.DATA_DIRECT.id and not one.ok), None)
    states = []

    def look() -> Plan:
        states.append(PathState(host, machine, nics))
        if states[-1].is_vm:
            return plan(states[-1], want, missing)
        unknown = (one for one in plan(states[-1], want, missing).findings if one.state == "unknown")
        asked, cause = argument(states[-1], want), missing or next(unknown, None)
        of_kernel = boot_argument.plan(host, states[-1].release, asked, cause)
        pending = next((one.because or one.id for one in of_kernel.findings if not one.ok), None)
        found = merge(plan(states[-1], want, missing, pending), of_kernel)
        return merge(found.limit(given["max_disruption"]), effective_unit.overrides(host, AT_BOOT, OWN))

    done = apply.converge(host, check_mode, look, execute, apply.either)
    return dict(done, notes=[*done["notes"], *notes(states[0], want)])
