# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan the changes of the ports' settings, and execute them port by port; each write is read back.

A changed PFC mask bounces the link: equal values are never written.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Callable, Dict, List, Optional, Sequence, Set, Tuple

from ..change import apply
from ..core.finding import Finding, one_cause
from ..core.host import Host, ReadError
from ..core.plan import Command, Plan
from ..machine.profile import Profile, roce_rails
from .chain import Chain, PortConfig
from .port import Port, PortState
from .read import QosState, read_port
from .settings import CONFIGFS, DCBX, SETTINGS, enabled

# (port's label, setting) -> what went wrong.
Failed = Dict[Tuple[str, str], str]


@dataclass(frozen=True)
class Step(Command):
    """A call of a tool for one setting of one port or, with a path, one value written into sysfs or configfs.

    Such an attribute takes no temporary file and no rename, so it is no FileChange: it is opened and written in place.
    port: its label.
    """

    port: str = ""
    setting: str = ""
    path: str = ""
    value: str = ""

    def __str__(self) -> str:
        return "echo %s > %s" % (self.value, self.path) if self.path else super().__str__()


def plan(have: QosState, wanted: PortConfig, failed: Optional[Failed] = None) -> Plan:
    """Plan. failed: errors of writes, after a run."""
    lldpad = _lldpad(have, wanted)
    findings = [] if lldpad is None else [lldpad]
    steps: List[Step] = []
    for state in have.ports:
        findings += _plan_port(state, lldpad, wanted, failed or {}, steps)
    return Plan(one_cause(findings, ("unknown", "unsupported", "not_owned")), commands=tuple(steps))


def _lldpad(have: QosState, wanted: PortConfig) -> Optional[Finding]:
    """Judge lldpad, one process for all ports; None if nothing wanted would be overwritten by it."""
    if wanted.dcbx == "firmware" or "dcbx" not in enabled(wanted) or not any(one.port.of_port for one in have.ports):
        return None
    runs = have.lldpad or any(state.dcb.lldpad for state in have.ports)
    said = "running: it sends its configuration" if runs else "not running"
    fix = "systemctl disable --now lldpad.service lldpad.socket"
    return DCBX.judge("lldpad", "not_owned" if runs else "ok", "not running", said, "/proc", fix)


def _plan_port(
    state: PortState, lldpad: Optional[Finding], wanted: PortConfig, failed: Failed, steps: List[Step]
) -> List[Finding]:
    """Judge one port, and add the writes that it needs to ``steps``."""
    findings: Dict[str, Finding] = {}
    label = state.port.label
    # The other program that sets the port.
    owner = None if lldpad is None or lldpad.ok else lldpad
    for name in filter(state.port.has, enabled(wanted)):
        setting, gap = SETTINGS[name], state.gaps.get(name)
        compared = setting.compare(state, wanted)
        if gap is not None:
            findings[name] = setting.check.judge(label, gap.state, compared.want, gap.have, gap.source, gap.fix)
            continue
        result, fix, root = "ok" if compared.good else "drift", None, None
        if setting.read is None and owner is not None and not compared.good:
            result, root = "not_owned", owner
            fix = root.fix or "set it on the switch, which owns the port (dcbx is firmware)"
        elif name == "dcbx" and not compared.good and not compared.changes:
            result, fix = "not_owned", "set dcbx to os to take the port over, or to firmware to leave it to the switch"
        elif name == "dscp2prio":
            root = findings.get("trust")
        source, have = setting.source(state.port), compared.have
        error = failed.get((label, name))
        if error and result == "drift":
            have, fix = "%s; %s" % (have, error), "look at dmesg and at %s" % source
        finding = findings[name] = setting.check.judge(label, result, compared.want, have, source, fix, because=root)
        if name == "dcbx" and owner is None and (result == "not_owned" or wanted.dcbx == "firmware"):
            owner = finding
        if result == "drift":
            common = ("%s of %s" % (name, label), setting.check.disruption, 60.0, label, name)
            steps += [Step(argv, *common, path, value) for argv, path, value in compared.changes]
    _lost_at_once(state, findings)
    return list(findings.values())


def _lost_at_once(state: PortState, findings: Dict[str, Finding]) -> None:
    """A port that is as out of the box has one cause: nothing set it since its driver was loaded."""
    paused = state.pause is not None and (state.pause.rx or state.pause.tx)
    lost = all(name in findings and findings[name].state == "drift" for name in ("trust", "pfc", "pause"))
    if lost and state.dcb.trust == "pcp" and state.dcb.pfc == () and paused:
        trust = findings["trust"]
        findings["trust"] = replace(trust, have="%s; the whole port has the driver's defaults" % trust.have)
        findings.update({name: replace(findings[name], because=trust.id) for name in ("pfc", "pause")})


def execute(
    host: Host, have: QosState, wanted: PortConfig, permit: Callable[[Plan], Plan]
) -> Tuple[List[Step], Failed]:
    """Port by port and setting by setting, each planned anew from what is there: trust, for one, rewrites the map.

    permit: leaves out of a plan what may not be done. Returns the steps done and what failed; nothing more is written
    to that port then.
    """
    done: List[Step] = []
    failed: Failed = {}
    for state in have.ports:
        tried: Set[str] = set()
        while True:
            planned = permit(plan(QosState(have.lldpad, (state,)), wanted))
            steps = [step for step in planned.commands if isinstance(step, Step)]
            again = [step for step in steps if step.setting in tried]
            failed.update(
                ((step.port, step.setting), "%s succeeded, but the value has not changed" % step) for step in again
            )
            if not steps or again:
                break
            # Files have nothing to do with each other: they are written in one go.
            steps = [step for step in steps if step.setting == steps[0].setting or (step.path and steps[0].path)]
            try:
                for step in steps:
                    tried.add(step.setting)
                    _write(host, step.path, step.value) if step.path else apply.run(host, step)
                    done.append(step)
            except ReadError as error:
                failed[(step.port, step.setting)] = str(error)
                break
            state = read_port(host, state.port, wanted)
    return done, failed


def _write(host: Host, path: str, value: str) -> None:
    """Write an existing attribute: an absent one is an error. Raises ReadError."""
    try:
        if path.startswith(CONFIGFS):
            # So rdma_cm shows the device. The directory stays, since no check makes one; the unit's stop removes it.
            os.makedirs(host.hardware("/".join(path.split("/")[: CONFIGFS.count("/") + 2])), exist_ok=True)
        flags = os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(host.hardware(path), flags), "w", encoding="ascii") as stream:
            stream.write(value)
    except OSError as error:
        raise ReadError(path, "cannot be written: %s" % error.strerror) from error


def diff(planned: Plan) -> List[Dict[str, str]]:
    """Return Ansible's diff structure, one per port: the changes by its writes."""
    written = {(step.port, step.setting) for step in planned.commands if isinstance(step, Step)}
    result = []
    for label in sorted({port for port, _setting in written}):
        those = [f for f in planned.findings if f.subject == label and (label, f.check.partition(".")[2]) in written]
        before, after = (
            "".join("%s: %s\n" % row for row in rows)
            for rows in ([(f.check, f.have) for f in those], [(f.check, f.want) for f in those])
        )
        result.append({"before_header": label, "after_header": label, "before": before, "after": after})
    return result


def notes(chain: Chain, asked: Profile, ports: Sequence[Port]) -> List[str]:
    """Return why there is no finding where a reader might expect one. PFC for no priority is a decision, too."""
    said = []
    if roce_rails(asked) and (chain.dscp, chain.trust, chain.pfc) == (None, None, None):
        said.append("busbar_roce is not set: trust, PFC, ECN and DSCP of the RoCE rails are not judged")
    guests = sum(not port.of_port for port in ports)
    if guests:
        said.append("the ports of %d virtual functions are the hypervisor's: trust, PFC and ECN are set there" % guests)
    return said
