# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Set the ports of the rails now and for each boot: the module roce_qos."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

from ..change import apply, module
from ..core import effective_unit
from ..core.host import Host
from ..core.plan import Command, Plan, merge
from ..health import record
from ..machine import platform, platform_checks, profile, rails, topology
from . import boot_setters, boot_unit, chain
from .chain import OWNERS, PortConfig
from .plan import diff, execute, notes, plan
from .port import ports
from .read import read

_NUMBERS = {"type": "list", "elements": "int"}
SETTINGS: module.Spec = {
    "trust": {"type": "str", "choices": ["", *chain.TRUSTS], "default": ""},
    "dscp2prio": {"type": "dict", "default": {}},
    "pfc": _NUMBERS,
    "prio2tc": _NUMBERS,
    "tsa": {"type": "list", "elements": "str"},
    "tc_bandwidth": _NUMBERS,
    "cable_length": {"type": "int"},
    "prio2buffer": _NUMBERS,
    "buffer_size": _NUMBERS,
    "ecn": _NUMBERS,
    "tos": {"type": "int"},
    "traffic_class": {"type": "int"},
    "dcbx": {"type": "str", "choices": list(OWNERS), "default": ""},
    "pause_off": {"type": "bool", "default": True},
}
SPEC: module.Spec = {"roce": {"type": "dict"}, **SETTINGS, **module.PROFILE, **module.DISRUPTION, **module.ROOTS}


def work(host: Host, given: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
    """Return the module's result. Raises ParseError and ReadError."""
    wanted_profile, roce = profile.from_options(given), given["roce"]
    want = PortConfig.from_values(chain.resolve(roce or {}, given), given)
    machine = topology.read(host, ask_nvidia_smi=False)
    is_roce = any("Ethernet" in rail.link_layers for rail in wanted_profile.rails)
    of_rails = ports(machine, rails.match(machine, wanted_profile)) if is_roce else ()
    permit = apply.Permission(host, [port.pci for port in of_rails], given["max_disruption"])
    stored = host.read_system(boot_unit.INTENT)
    kept, settings, stored_notes = boot_unit.with_unset(stored, roce, {name: given[name] for name in SETTINGS})
    want_at_boot = PortConfig.from_values(chain.resolve(kept, settings), settings)
    at_boot = boot_unit.intent(host, of_rails, want_at_boot, kept, settings)
    missing = platform.missing(machine, wanted_profile, platform_checks.RAIL_DEVICE) if is_roce else None

    def look_at_boot() -> Plan:
        if at_boot is None and roce != {}:
            return Plan()
        unit = boot_unit.plan(boot_unit.read(host, at_boot), at_boot, of_rails, missing)
        units = [boot_unit.instance(port) for port in sorted(at_boot.ports)[:1]] if at_boot is not None else []
        return merge(unit, effective_unit.overrides(host, boot_unit.AT_BOOT, boot_unit.OWN, units))

    have = read(host, of_rails, want)
    others = Plan(tuple(boot_setters.findings(host, of_rails, want)))
    live, files = merge(permit(plan(have, want)), others), look_at_boot()
    planned = after = merge(live, files)
    steps: List[Command] = list(planned.commands)
    if planned.changed and not check_mode:
        if any(step.disruption != "none" for step in live.commands):
            record.begin_ports_anew(host)
        done, failed = execute(host, have, want, permit)
        boot_unit.execute(host, files)
        steps = [*done, *files.commands]
        # The present state counts.
        live = merge(permit(plan(read(host, of_rails, want), want, failed)), others)
        after = merge(live, look_at_boot())
    found = apply.result(planned, after, apply.either)
    found.update(changed=bool(steps or files.changes), commands=[str(step) for step in steps])
    found["diff"] = diff(planned) + found["diff"]
    return dict(found, notes=[*found["notes"], *stored_notes, *notes(want.chain, wanted_profile, of_rails)])
