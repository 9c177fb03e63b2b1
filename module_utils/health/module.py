# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge the health of a node: options and work of the module ``node_health``."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Dict, Mapping

from ..change import module
from ..core.host import Host, ParseError
from ..core.plan import Plan, merge
from ..machine import profile, topology
from . import device_report, imex, judge, judge_modules, judge_ports, node, record, system

SPEC: module.Spec = {
    "power_limit": {"type": "int", "default": 0},
    "tool_timeout": {"type": "float", "default": 20},
    "states_only": {"type": "bool", "default": False},
    "record": {"type": "bool", "default": True},
    "since_boot": {"type": "bool", "default": False},
    **module.PROFILE,
    **module.ROOTS,
}


def work(host: Host, given: Mapping[str, Any], _check_mode: bool) -> Dict[str, Any]:
    asked, timeout = profile.from_options(given), module.seconds(given)
    if given["power_limit"] < 0:
        raise ParseError("power_limit is %d, expected watts, or 0 for the GPUs' default" % given["power_limit"])
    machine = topology.read(host, ask_nvidia_smi=False)
    have = node.read(host, machine, asked, timeout, given["states_only"], since_boot=given["since_boot"])
    if given["since_boot"] and have.before is None and have.uptime:
        have = replace(have, before=record.since_boot(judge.counters(have), have.uptime))
    wanted = judge.Wanted(asked, given["power_limit"] or None)
    version = machine.driver.version if machine.driver else None
    host_wide = (*system.judge_page_size(host, asked.page_size), *system.judge_libraries(host, version))
    found = merge(judge.plan(have, machine, wanted), judge_ports.plan(have), Plan(host_wide))
    found = merge(found, judge_modules.plan(have, found.findings))
    if given["record"]:
        found = judge.store_counters(host, have, found)
    devices = device_report.devices(host, have, machine, asked, found.findings)
    notes = [*judge.notes(have), *judge_ports.notes(have), *judge_modules.notes(have), *found.notes]
    domain = imex.fleet_facts(have.imex, have.gpus or {})
    more: Dict[str, Any] = {} if domain is None else {"imex": domain}
    images = (
        None
        if have.gpus is None
        else sorted({gpu.texts["firmware"] for gpu in have.gpus.values() if "firmware" in gpu.texts})
    )
    more["facts"] = {"vbios": None if images is None else ", ".join(images)}
    more["boot_id"] = have.boot_id
    ports = [asdict(port) for port in judge_ports.fleet_counters(have)]
    return dict(found.result(), notes=notes, devices=devices, ports=ports, **more)
