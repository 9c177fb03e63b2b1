# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge the health of a node: options and work of the module ``node_health``."""

from __future__ import annotations

from dataclasses import replace
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


def work(host: Host, given: Mapping[str, Any], _check_mode: bool) -> Dict[str, object]:
    wanted, timeout = judge.Wanted(profile.from_options(given), given["power_limit"] or None), module.seconds(given)
    if given["power_limit"] < 0:
        raise ParseError("power_limit is %d, expected watts, or 0 for the GPUs' default" % given["power_limit"])
    machine = topology.read(host, ask_nvidia_smi=False)
    have = node.read(host, machine, wanted.profile, timeout, given["states_only"], since_boot=given["since_boot"])
    if given["since_boot"] and have.before is None and have.uptime:
        have = replace(have, before=record.since_boot(judge.counters(have), have.uptime))
    version = machine.driver.version if machine.driver else None
    pages = system.judge_page_size(host, wanted.profile.page_size)
    host_wide = Plan((*pages, *system.judge_libraries(host, version)))
    found = merge(judge.plan(have, machine, wanted), judge_ports.plan(have), host_wide)
    found = merge(found, judge_modules.plan(have, found.findings))
    if given["record"]:
        found = judge.store_counters(host, have, found)
    domain = imex.fleet_facts(have.imex, have.gpus or {})
    images = None if have.gpus is None else {gpu.texts.get("firmware", "") for gpu in have.gpus.values()} - {""}
    return {
        **found.result(),
        "devices": device_report.devices(host, have, machine, wanted.profile, found.findings),
        "ports": [port._asdict() for port in judge_ports.fleet_counters(have)],
        **({} if domain is None else {"imex": domain}),
        "facts": {"vbios": None if images is None else ", ".join(sorted(images))},
        "boot_id": have.boot_id,
    }
