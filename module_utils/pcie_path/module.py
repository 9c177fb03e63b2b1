# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Set the registers of the PCIe paths now and for each boot: the module pcie_path."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ..change import apply, module
from ..core import effective_unit
from ..core.host import Host
from ..core.plan import Plan, merge
from ..machine import platform, platform_checks, profile, rails, topology
from .boot_unit import OWN
from .plan import AT_BOOT, PathConfig, PathState, compute_nics, notes, plan
from .registers import SIZES, execute

SPEC: module.Spec = {
    "clear_acs": {"type": "bool", "default": True},
    "max_read_request": {"type": "int", "choices": [0, *SIZES], "default": 4096},
    "persist": {"type": "bool", "default": True},
    **module.PROFILE,
    **module.ROOTS,
}


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, object]:
    """Return the module's result. Raises ParseError and ReadError."""
    want = PathConfig(given["clear_acs"], given["max_read_request"], given["persist"])
    of_site = profile.from_options(given)
    machine = topology.read(host, ask_nvidia_smi=False)
    nics = compute_nics(machine, rails.match(machine, of_site))
    missing = platform.missing(machine, of_site, platform_checks.GPU_COUNT, platform_checks.RAIL_DEVICE)
    states = []

    def look() -> Plan:
        states.append(PathState(host, machine, nics))
        return merge(plan(states[-1], want, missing), effective_unit.overrides(host, AT_BOOT, OWN))

    found = apply.converge(host, check_mode, look, execute, apply.either)
    return dict(found, notes=[*found["notes"], *notes(states[0], want)])
