# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Plan the changes of the ports' settings. A changed PFC mask bounces the link: equal values are never written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ..core.finding import Finding, one_cause
from ..core.plan import Command, Plan
from ..machine.profile import Profile, roce_rails
from .chain import Chain
from .config import PortConfig
from .port import Comparison, Port, PortState
from .read import QosState
from .settings import DCBX, SETTINGS, enabled


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


def plan(have: QosState, wanted: PortConfig, failed: Optional[Mapping[Tuple[str, str], str]] = None) -> Plan:
    """Plan. failed: (port's label, setting) -> error of its write, after a run."""
    lldpad = _lldpad(have, wanted)
    findings = [] if lldpad is None else [lldpad]
    steps: List[Step] = []
    for state in have.ports:
        found, more = _plan_port(state, lldpad, wanted, failed or {})
        findings += found
        steps += more
    return Plan(one_cause(findings, ("unknown", "unsupported", "not_owned")), commands=tuple(steps))


def _lldpad(have: QosState, wanted: PortConfig) -> Optional[Finding]:
    """Judge lldpad, one process for all ports; None if nothing wanted would be overwritten by it."""
    if wanted.dcbx == "firmware" or "dcbx" not in enabled(wanted) or not any(one.port.of_port for one in have.ports):
        return None
    runs = have.lldpad or any(state.dcb.lldpad for state in have.ports)
    return DCBX.judge(
        "lldpad",
        "not_owned" if runs else "ok",
        want="not running",
        have="running: it sends its configuration" if runs else "not running",
        source="/proc",
        fix="systemctl disable --now lldpad.service lldpad.socket",
    )


def _plan_port(
    state: PortState, lldpad: Optional[Finding], wanted: PortConfig, failed: Mapping[Tuple[str, str], str]
) -> Tuple[List[Finding], List[Step]]:
    findings: Dict[str, Finding] = {}
    steps: List[Step] = []
    label = state.port.label
    # The other program that sets the port.
    owner = None if lldpad is None or lldpad.ok else lldpad
    for name in enabled(wanted):
        if not state.port.has(name):
            continue
        setting, gap = SETTINGS[name], state.gaps.get(name)
        compared = setting.compare(state, wanted)
        if gap is not None:
            findings[name] = setting.check.judge(label, gap.state, compared.want, gap.have, gap.source, gap.fix)
            continue
        result, fix, root = "ok" if compared.good else "drift", None, None
        if setting.kinds and owner is not None and not compared.good:
            result, root = "not_owned", owner
            fix = root.fix or "set it on the switch, which owns the port (dcbx is firmware)"
        elif name == "dcbx" and not compared.good and not compared.calls:
            result, fix = _not_ours(state, wanted)
        elif name == "dscp2prio":
            root = findings.get("trust")
        source, have = setting.source(state), compared.have
        error = failed.get((label, name))
        if error and result == "drift":
            have, fix = "%s; %s" % (have, error), "look at dmesg and at %s" % source
        finding = setting.check.judge(label, result, compared.want, have, source, fix, because=root)
        findings[name] = finding
        if name == "dcbx" and owner is None and (result in ("not_owned", "unsupported") or wanted.dcbx == "firmware"):
            owner = finding
        if result == "drift":
            steps += _steps(label, setting.check.disruption, name, compared)
    _lost_at_once(state, findings)
    return list(findings.values()), steps


def _steps(label: str, disruption: str, setting: str, compared: Comparison) -> List[Step]:
    todo = [(argv, "", "") for argv in compared.calls] + [((), path, value) for path, value in compared.writes]
    why = "%s of %s" % (setting, label)
    return [Step(argv, why, disruption, 60.0, label, setting, path, value) for argv, path, value in todo]


def _lost_at_once(state: PortState, findings: Dict[str, Finding]) -> None:
    """A port that is as out of the box has one cause: nothing set it since its driver was loaded."""
    those = [name for name in ("trust", "pfc", "pause") if name in findings and findings[name].state == "drift"]
    paused = state.pause is not None and (state.pause.rx or state.pause.tx)
    if len(those) == 3 and state.dcb.trust == "pcp" and state.dcb.pfc == () and paused:
        trust = findings["trust"]
        findings["trust"] = replace(trust, have="%s; the whole port has the driver's defaults" % trust.have)
        for name in ("pfc", "pause"):
            findings[name] = replace(findings[name], because=trust.id)


def _not_ours(state: PortState, wanted: PortConfig) -> Tuple[str, str]:
    """Return state and fix if another program owns the port and no call changes that."""
    if wanted.dcbx == "firmware":
        return "unsupported", "install mlnx-tools: only mlnx_qos hands a port over (mlnx_qos -i %s -d fw)" % (
            state.port.netdev
        )
    return "not_owned", "set dcbx to os to take the port over, or to firmware to leave it to the switch"


def diff(planned: Plan) -> List[Dict[str, str]]:
    """Return Ansible's diff structure, one per port: the changes by its writes."""
    written = {(step.port, step.setting) for step in planned.commands if isinstance(step, Step)}
    result = []
    for label in dict.fromkeys(port for port, _setting in sorted(written)):
        those = [f for f in planned.findings if f.subject == label and (label, f.check.partition(".")[2]) in written]
        lines = {
            "before": "".join("%s: %s\n" % (f.check, f.have) for f in those),
            "after": "".join("%s: %s\n" % (f.check, f.want) for f in those),
        }
        result.append({"before_header": label, "after_header": label, **lines})
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
