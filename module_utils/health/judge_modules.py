# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge mlxlink's readings of the rails' modules and links. Changes nothing.

Growth since an earlier run counts. Without one the port's rate since it was last cleared does, so that a bad cable is
reported on the day that it is plugged in. Errors before error correction (raw) do not count. Sources: port_counters.py.
"""

from __future__ import annotations

from typing import Optional, Sequence

from ..core.check import Check
from ..core.finding import Finding, one_cause
from ..core.host import Problem
from ..core.plan import Plan
from . import judge_ports, port_counters
from .judge import NIC_TEMPERATURE
from .judge_gpu import within
from .mlxlink import ERRORS, TOOL, Module, Reading, command
from .node import NodeState
from .service import RECHECK

MLXLINK = Check(
    "node_health.mlxlink",
    why="without mlxlink's output the temperature of the module and the errors of the link are unknown",
    fix="run {0} as root; with Secure Boot it needs MFT's signed kernel module and mst start; " + RECHECK,
    severity="minor",
)
"Does mlxlink, if installed, work for each rail's port"
MODULE_TEMPERATURE = Check(
    "node_health.module_temperature",
    why="a transceiver that is too warm causes bit errors, and at its alarm it may switch its laser off",
    fix="check the node's fans and the airflow at its cages, reseat the module, then exchange it; " + RECHECK,
)
"Is each rail's module below its own alarm temperature; checked if mlxlink is installed"
BIT_ERRORS = Check(
    "node_health.bit_errors",
    why="data that error correction cannot repair is sent again, and all ranks wait for it; such a link soon fails",
    fix="wait %d minutes after each try: %s" % (port_counters.LONG // 60, judge_ports.CABLE),
)
"""Does each rail's link have few bit errors after error correction: a share of 1e-15 from NDR on, 1e-12 before;
checked if mlxlink is installed"""


def plan(have: NodeState, before: Sequence[Finding]) -> Plan:
    """Judge modules. before: findings of the node so far, which may be causes."""
    modules = have.modules or ()
    silent, warm, wrong = [], [], []
    for module in modules:
        if module.reading is None:
            source, problem = " ".join(command(module.pci)), module.problem or Problem(TOOL, "no response")
            fix = MLXLINK.fix.format(source)
            silent.append(MLXLINK.judge(module.label, "unknown", "a response", problem.message, source, fix))
            continue
        degrees = _temperature(module, module.reading, have)
        warm += [degrees] if degrees else []
        errors = _bit_errors(module, module.reading, have, _cause(module, before, degrees))
        wrong += [errors] if errors else []
    found = []
    if modules and not silent:
        found.append(MLXLINK.judge("mlxlink", "ok", have="%d modules read" % len(modules), source=TOOL))
    for check, judged in ((MODULE_TEMPERATURE, warm), (BIT_ERRORS, wrong)):
        found += [one for one in judged if not one.ok]
        # A check is ok only if every rail was compared.
        good = [one.have or "" for one in judged if one.ok]
        if modules and len(good) == len(modules):
            text = ", ".join(dict.fromkeys(good))
            found.append(check.judge("rails", "ok", have=text, source="mlxlink on %d rails" % len(modules)))
    notes = ("mlxlink is not installed: module temperatures and bit errors are not checked",)
    return Plan((*one_cause(silent, ("unknown",)), *found), notes=notes if have.modules is None else ())


def _temperature(module: Module, reading: Reading, have: NodeState) -> Optional[Finding]:
    """Judge the temperature; None of a cable that has no sensor."""
    if reading.degrees is None or reading.alarm is None:
        return None
    source, text = " ".join(command(module.pci)), "%g C" % reading.degrees
    if reading.degrees < reading.alarm:
        return MODULE_TEMPERATURE.judge(module.label, "ok", have=text, source=source)
    text += ", its alarm is at %g" % reading.alarm
    # Both may be the heat of one card, and hwmon may have the very same sensor.
    hot = next((NIC_TEMPERATURE.finding_id(one.pci) for one in have.hot if one.pci == module.pci), None)
    return MODULE_TEMPERATURE.judge(module.label, "drift", "below %g C" % reading.alarm, text, source, because=hot)


def _cause(module: Module, before: Sequence[Finding], warm: Optional[Finding]) -> Optional[Finding]:
    """Return the finding on the same port's counters, else a module that is too warm."""
    of_link = (judge_ports.PORT_LINK_DOWNED.id, judge_ports.PORT_SYMBOL_ERRORS.id)
    counted = (one for one in before if one.check in of_link and one.subject == module.label and one.state == "drift")
    return next(counted, warm)


def _bit_errors(module: Module, reading: Reading, have: NodeState, because: Optional[Finding]) -> Optional[Finding]:
    """Judge one module; None if there is nothing to judge: the link is down, or was cleared a moment ago."""
    port = next((one for one in have.ports if one.pci == module.pci), None)
    growth = None if port is None else judge_ports.since(have, port)
    since_clear = reading.seconds or 0.0
    compared = growth is not None and ERRORS in growth.counts and ERRORS not in growth.reset
    if growth is not None and compared and port_counters.LONG <= growth.seconds <= since_clear:
        many, allowed = growth.counts[ERRORS], port_counters.symbol_limit(growth.speed, growth.seconds)
        bad, want = many > allowed, "%d at most at %s" % (allowed, growth.speed or "an unknown speed")
        text = "+%d%s" % (many, within(growth.seconds))
    elif reading.rate is not None and since_clear >= port_counters.SHORT:
        speed = None if port is None else port.speed
        limit = port_counters.error_rate(speed, since_clear)
        bad, want = reading.rate > limit, "%g at most at %s" % (limit, speed or "an unknown speed")
        text = "a share of %.2g%s, since the port was cleared" % (reading.rate, within(since_clear))
        text += "" if reading.errors is None else ": %d errors" % reading.errors
    else:
        return None
    source = " ".join(command(module.pci))
    return BIT_ERRORS.judge(module.label, "drift" if bad else "ok", want, text, source, because=because)
