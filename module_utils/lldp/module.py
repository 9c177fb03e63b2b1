# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge the switch ports of the rails by LLDP: the module lldp."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Tuple

from ..change import module
from ..core.host import Host
from ..machine import profile, rails, topology
from ..roce_qos import chain
from ..roce_qos.chain import PortConfig
from . import neighbour
from .plan import ASKED, AUTO, NONE, LldpIntent, RailPort, plan, port_neighbours, rail_ports

_NUMBERS = {"type": "list", "elements": "int"}
SPEC: module.Spec = {
    "asked": {"type": "str", "choices": list(ASKED), "default": AUTO},
    "dcbx": {"type": "bool", "default": False},
    "mtu": {"type": "int"},
    "roce": {"type": "dict", "default": {}},
    "trust": {"type": "str", "choices": ["", *chain.TRUSTS], "default": ""},
    "dscp2prio": {"type": "dict", "default": {}},
    "pfc": _NUMBERS,
    "prio2tc": _NUMBERS,
    "tsa": {"type": "list", "elements": "str"},
    "tc_bandwidth": _NUMBERS,
    **module.PROFILE,
    **module.ROOTS,
}


def work(host: Host, given: Mapping[str, Any], _check_mode: bool) -> Dict[str, Any]:
    """Return the module's result. Raises ParseError."""
    of_site = profile.from_options(given)
    settings = {name: given[name] for name in ("prio2tc", "tsa", "tc_bandwidth")}
    roce = PortConfig.from_values(chain.resolve(given["roce"], given), settings)
    want = LldpIntent(given["asked"], given["dcbx"], given["mtu"], roce)
    own: Tuple[RailPort, ...] = ()
    if want.asked != NONE and profile.roce_rails(of_site):
        machine = topology.read(host, ask_nvidia_smi=False)
        own = rail_ports(machine, rails.match(machine, of_site), of_site)
    heard = neighbour.read(host) if own else neighbour.LldpState()
    neighbours = [one._asdict() for one in port_neighbours(heard, own, want)]
    return dict(plan(heard, own, want).result(), neighbours=neighbours)
