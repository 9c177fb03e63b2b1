# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge mlxlink's readings of the rails' modules and links. Changes nothing.

Growth since an earlier run counts. Without one the port's rate since it was last cleared does, so that a bad cable is
reported on the day that it is plugged in. Errors before error correction (raw) do not count. Sources: port_limits.py.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence

from ..core.check import Check
from ..core.finding import Finding, one_cause
from ..core.plan import Plan
from . import judge_ports, port_limits
from .judge import NIC_TEMPERATURE
from .mlxlink import ERRORS, TOOL, Module, Reading, command
from .node import NodeState
from .port_counters import Port
from .service import RECHECK

MLXLINK = Check(
    "node_health.mlxlink",
    why="without mlxlink's output the temperature of the module and the errors of the link are unknown",
    fix="run {0} on the node as root and repair what it reports: a locked-down kernel (Secure Boot) needs"
    " MFT's signed kernel module and mst start; if mlxlink is not wanted, uninstall mft; " + RECHECK,
    severity="minor",
)
"Does mlxlink, if installed, work for each rail's port"
MODULE_TEMPERATURE = Check(
    "node_health.module_temperature",
    why="a transceiver that is too warm causes bit errors, and at its alarm it may switch its laser off",
    fix="check the node's fans and the airflow at its cages, reseat the module, then exchange it; " + RECHECK,
)
"Is each rail's module below its own alarm and warning temperature, a warning is minor; checked if mlxlink is installed"
BIT_ERRORS = Check(
    "node_health.bit_errors",
    why="data that error correction cannot repair is sent again, and all ranks wait for it; such a link soon fails",
    fix="clean and reseat the cable at both ends, then exchange it, then the transceivers; wait %d minutes for new"
    " counts, %s" % (port_limits.LONG // 60, RECHECK),
)
"""Does each rail's link have few bit errors after error correction: a share of 1e-15 from NDR on, 1e-12 before;
checked if mlxlink is installed"""
_UNKNOWN = "an unknown speed"


def plan(have: NodeState, before: Sequence[Finding]) -> Plan:
    """Judge modules. before: findings of the node so far, which may be causes."""
    modules = have.modules or ()
    ports = {port.pci: port for port in have.ports}
    silent = [_silent(module) for module in modules if module.reading is None]
    judged: Dict[Check, List[Optional[Finding]]] = {MODULE_TEMPERATURE: [], BIT_ERRORS: []}
    for module in modules:
        warm = wrong = None
        if module.reading is not None:
            warm = _temperature(module, module.reading, have)
            wrong = _bit_errors(module, module.reading, have, ports.get(module.pci), _cause(module, before, warm))
        judged[MODULE_TEMPERATURE].append(warm)
        judged[BIT_ERRORS].append(wrong)
    found = []
    if modules and not silent:
        found.append(MLXLINK.judge("mlxlink", "ok", have="%d modules read" % len(modules), source=TOOL))
    for check, results in judged.items():
        found += [one for one in results if one is not None and not one.ok]
        # A check is ok only if every rail was compared.
        good = [one.have or "" for one in results if one is not None and one.ok]
        if modules and len(good) == len(modules):
            text = ", ".join(dict.fromkeys(good))
            found.append(check.judge("rails", "ok", have=text, source="mlxlink on %d rails" % len(modules)))
    return Plan((*one_cause(silent, ("unknown",)), *found))


def notes(have: NodeState) -> List[str]:
    """Return limits of what is reported."""
    if have.modules is None:
        return ["mlxlink is not installed: module temperatures and bit errors are not checked"]
    alone = [one for one in have.modules if one.reading is not None and one.reading.is_near and one.warning is None]
    if not alone:
        return []
    rails = ", ".join(str(one.rail) for one in alone)
    return ["the modules of rails %s have no warning threshold in mlxlink --ddm: only their alarm is judged" % rails]


def _silent(module: Module) -> Finding:
    text = "no response" if module.problem is None else module.problem.message
    source = " ".join(command(module.pci))
    return MLXLINK.judge(module.label, "unknown", "a response", text, source, MLXLINK.fix.format(source))


def _temperature(module: Module, reading: Reading, have: NodeState) -> Optional[Finding]:
    if reading.degrees is None or reading.alarm is None:
        return None
    source = " ".join(command(module.pci))
    if reading.degrees >= reading.alarm:
        # Both may be the heat of one card, and hwmon may have the very same sensor.
        hot = next((one for one in have.hot if one.pci == module.pci), None)
        want, text = "below %g C" % reading.alarm, "%g C, its alarm is at %g" % (reading.degrees, reading.alarm)
        because = None if hot is None else NIC_TEMPERATURE.finding_id(hot.pci)
        return MODULE_TEMPERATURE.judge(module.label, "drift", want, text, source, because=because)
    if module.warning is not None and reading.degrees >= module.warning:
        want = "below %g C" % module.warning
        text = "%g C, it warns from %g on; its alarm is at %g" % (reading.degrees, module.warning, reading.alarm)
        return MODULE_TEMPERATURE.judge(module.label, "drift", want, text, source, severity="minor")
    return MODULE_TEMPERATURE.judge(module.label, "ok", have="%g C" % reading.degrees, source=source)


def _cause(module: Module, before: Sequence[Finding], warm: Optional[Finding]) -> Optional[Finding]:
    """Return the finding on the same port's counters, else a module that is too warm."""
    of_link = (judge_ports.PORT_LINK_DOWNED.id, judge_ports.PORT_SYMBOL_ERRORS.id)
    counted = (one for one in before if one.check in of_link and one.subject == module.label and one.state == "drift")
    return next(counted, warm)


def _bit_errors(
    module: Module, reading: Reading, have: NodeState, port: Optional[Port], because: Optional[Finding]
) -> Optional[Finding]:
    """Judge one module; None if there is nothing to judge: the link is down, or was cleared a moment ago."""
    source = " ".join(command(module.pci))
    growth = None if port is None else judge_ports.since(have, port)
    if (
        growth is not None
        and ERRORS in growth.counts
        and ERRORS not in growth.reset
        and port_limits.LONG <= growth.seconds <= (reading.seconds or 0.0)
    ):
        many, allowed = growth.counts[ERRORS], port_limits.symbol_limit(growth.speed, growth.seconds)
        bad, want = many > allowed, "%d at most at %s" % (allowed, growth.speed or _UNKNOWN)
        text = "+%d in %.1f h" % (many, growth.seconds / 3600)
    elif reading.rate is not None and reading.seconds is not None and reading.seconds >= port_limits.SHORT:
        speed = None if port is None else port.speed
        limit = port_limits.error_rate(speed, reading.seconds)
        bad, want = reading.rate > limit, "%g at most at %s" % (limit, speed or _UNKNOWN)
        text = "a share of %.2g in %.1f h, since the port was cleared" % (reading.rate, reading.seconds / 3600)
        text += "" if reading.errors is None else ": %d errors" % reading.errors
    else:
        return None
    return BIT_ERRORS.judge(module.label, "drift" if bad else "ok", want, text, source, because=because)
