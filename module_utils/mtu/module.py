# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring the rails' interfaces to one MTU: the module netdev_mtu."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ..change import apply, module
from ..core.host import Host, ParseError
from ..core.plan import Plan
from ..machine import profile, rails, topology
from .plan import LEAST, MOST, mends, notes, plan, read

SPEC: module.Spec = {"mtu": {"type": "int"}, **module.PROFILE, **module.DISRUPTION, **module.ROOTS}


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
    """Return the module's result. Raises ParseError and ReadError."""
    of_site, mtu = profile.from_options(given), given["mtu"]
    if mtu is None:
        unset = "busbar_mtu is not set: the MTU of the RoCE rails is not judged"
        return dict(apply.converge(host, check_mode, Plan), notes=[unset] if profile.roce_rails(of_site) else [])
    if not LEAST <= mtu <= MOST:
        raise ParseError("mtu is %d, expected %d to %d" % (mtu, LEAST, MOST))
    nics = tuple(rails.ethernet(rails.match(topology.read(host, ask_nvidia_smi=False), of_site), of_site).values())
    permitted = apply.Permission(host, [nic.pci for nic in nics], given["max_disruption"])
    done = apply.converge(host, check_mode, lambda: permitted(plan(read(host, nics), mtu)), mends=mends)
    return dict(done, notes=[*done["notes"], *notes(nics, mtu)])
