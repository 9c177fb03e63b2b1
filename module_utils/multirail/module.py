# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring the rails of a host to a policy: the module multirail."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ..change import apply, module
from ..core import effective_unit
from ..core.host import Host
from ..core.plan import Plan, merge
from ..machine import profile, rails, topology
from .plan import SETTINGS, plan
from .policy import GATEWAYS, POLICIES, MultirailConfig, policy, undecided
from .read import read

SPEC: module.Spec = {
    "policy": {"type": "str", "choices": ["", *POLICIES, "custom"], "default": ""},
    "values": {"type": "dict"},
    "source_routing": {"type": "bool"},
    "gateway": {"type": "str", "choices": ["", *GATEWAYS], "default": ""},
    "mtu_judged": {"type": "bool", "default": False},
    **module.PROFILE,
    **module.DISRUPTION,
    **module.ROOTS,
}


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
    """Return the module's result. Raises ParseError and ReadError."""
    wanted = policy(given["policy"], given["values"], given["source_routing"])
    want = MultirailConfig(wanted, given["gateway"], given["mtu_judged"])
    of_site = profile.from_options(given)
    # Without a policy the rails' NICs are not needed.
    machine = topology.read(host, ask_nvidia_smi=False) if wanted.name else None
    nics = rails.ethernet(rails.match(machine, of_site), of_site) if machine is not None else {}
    permitted = apply.Permission(host, [nic.pci for nic in nics.values()], given["max_disruption"])

    def look() -> Plan:
        names = ["systemd-sysctl.service"] if wanted.values and nics else []
        units = effective_unit.overrides(host, SETTINGS, (), names)
        return merge(permitted(plan(read(host, nics, wanted), want)), units)

    done = apply.converge(host, check_mode, look, mends=apply.either)
    return dict(done, notes=[*done["notes"], *undecided(wanted, of_site)])
