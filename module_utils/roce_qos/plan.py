# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the RoCE settings of the rails' ports, and plan the changes to the wanted ones.

ConnectX is read by ``mlnx_qos`` if OFED's tools are installed, else by ``dcb`` of iproute2. Both end with 0 on some
failures, so that every write is read back. A changed PFC mask bounces the link: equal values are never written.
Sources: Mellanox/mlnx-tools; dcb(8); kernel mlx5 en_dcbnl.c.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ..core.finding import Finding, one_cause
from ..core.host import Host, ParseError, ReadError
from ..core.plan import Command, Plan
from ..machine import netdev
from ..machine.profile import Profile, roce_rails
from . import dcb, mlnx_qos
from .chain import Chain
from .config import Want
from .port import Dcb, Gap, Port, State
from .settings import DCBX, NOUNS, Comparison, Unreadable, as_root, enabled


@dataclass(frozen=True)
class Have:
    """lldpad: whether a process of that name runs on the node."""

    lldpad: bool
    ports: Tuple[State, ...]


@dataclass(frozen=True)
class Step(Command):
    """A call of a tool for one noun of one port or, with a path, one value written into sysfs or configfs.

    Such an attribute takes no temporary file and no rename, so it is no FileChange: it is opened and written in place.
    port: its label.
    """

    port: str = ""
    noun: str = ""
    path: str = ""
    value: str = ""

    def __str__(self) -> str:
        return "echo %s > %s" % (self.value, self.path) if self.path else super().__str__()


# -- state ---------------------------------------------------------------------------------------------------


def read(host: Host, ports: Sequence[Port], wanted: Want) -> Have:
    """Read the wanted settings."""
    return Have(_lldpad_runs(host), tuple(read_port(host, port, wanted) for port in ports))


def _lldpad_runs(host: Host) -> bool:
    for pid in host.listdir("/proc"):
        if pid.isdigit():
            with contextlib.suppress(ReadError):  # it has ended meanwhile
                if host.read("/proc/%s/comm" % pid) == "lldpad":
                    return True
    return False


def read_port(host: Host, port: Port, wanted: Want) -> State:
    port = replace(port, gap=port.gap or _of_subfunction(host, port))
    nouns = [noun for noun in enabled(wanted) if port.has(noun)]
    gaps = {noun: gap for noun in nouns for gap in [port.gap_of(noun)] if gap is not None}
    left = [noun for noun in nouns if noun not in gaps]
    state = State(port)
    of_tool = [noun for noun in left if NOUNS[noun].kinds]
    if of_tool:
        tool, found = _read_dcb(host, port, wanted, of_tool, gaps)
        state = replace(state, tool=tool, dcb=found)
    for noun in left:
        reader = NOUNS[noun].read
        if reader is not None:
            try:
                state = reader(host, state, wanted)
            except Unreadable as error:
                gaps[noun] = error.gap
    return replace(state, gaps=gaps)


def _of_subfunction(host: Host, port: Port) -> Optional[Gap]:
    device = host.realpath("%s/%s/device" % (netdev.INTERFACES, port.netdev)) or ""
    if re.fullmatch(r"mlx5_core\.sf\.[0-9]+", device.rpartition("/")[2]) is None:
        return None
    text = "a subfunction: its port is set at the physical function"
    return Gap("unsupported", text, device, "name the physical functions in the profile")


def _read_dcb(host: Host, port: Port, wanted: Want, nouns: Sequence[str], gaps: Dict[str, Gap]) -> Tuple[str, Dcb]:
    """Return the port's tool, and its output. Of two the one that reports more counts: mlnx_qos breaks off, or omits
    lines, on kernels and drivers that it was not written for, where dcb may work."""
    tools = (mlnx_qos.TOOL, dcb.TOOL) if port.is_mellanox else (dcb.TOOL, mlnx_qos.TOOL)
    answers: List[Tuple[str, Dcb, Dict[str, Gap]]] = []
    for tool in tools:
        if host.has(tool) and not (answers and (answers[0][0] == dcb.TOOL or not answers[0][2])):
            missing: Dict[str, Gap] = {}
            ask = _by_mlnx_qos if tool == mlnx_qos.TOOL else _by_dcb
            answers.append((tool, ask(host, port, wanted, nouns, missing), missing))
    if not answers:
        fix = "install mlnx-tools (it comes with OFED, role mofed), or iproute2 5.11 or later"
        gap = Gap("unknown", "neither mlnx_qos nor dcb is installed", "mlnx_qos, dcb", fix)
        gaps.update(dict.fromkeys(nouns, gap))
        return "", Dcb()
    tool, found, missing = min(answers, key=lambda answer: len(answer[2]))
    gaps.update(missing)
    return tool, found


def _by_mlnx_qos(host: Host, port: Port, wanted: Want, nouns: Sequence[str], gaps: Dict[str, Gap]) -> Dcb:
    argv = mlnx_qos.show(port.netdev)
    try:
        done = host.run(argv)
        # If the driver has no DCB, it ends with 1, and its output has the reason.
        refused = "not supported on your system" in done.stdout
        found, cannot = mlnx_qos.parse(done.stdout if refused else done.answer())
    except mlnx_qos.NotSupported as error:
        gaps.update(dict.fromkeys(nouns, _no_dcb(str(error), argv)))
        return Dcb()
    except (ParseError, ReadError) as error:
        gaps.update(dict.fromkeys(nouns, _failed_query(error, argv)))
        return Dcb()
    if found.trust == "none":
        gap = _no_dcb("this driver can neither report nor set its trust mode", argv)
        gaps.update({noun: gap for noun in ("trust", "dscp2prio") if noun in nouns})
    for noun, value in (("trust", found.trust), ("dcbx", found.owner), ("prio2tc", found.prio2tc), ("ets", found.tsa)):
        if value is None and noun in nouns:
            text = "this version or driver does not show it (%s)" % noun
            gaps[noun] = Gap("unknown", text, " ".join(argv), "update mlnx-tools (it comes with OFED, role mofed)")
    if "buffers" in nouns and wanted.sizes_buffers and found.prio2buffer is None and "Buffers commands" in cannot:
        gaps["buffers"] = _no_dcb("this driver has no commands for buffers", argv)
    return found


def _by_dcb(host: Host, port: Port, wanted: Want, nouns: Sequence[str], gaps: Dict[str, Gap]) -> Dcb:
    found = Dcb()
    for kind, parse in dcb.PARSERS.items():
        shown = [noun for noun in nouns if kind in NOUNS[noun].kinds]
        if not shown or (kind == "buffer" and not wanted.sizes_buffers):
            continue
        argv = dcb.show(kind, port.netdev)
        try:
            found = parse(host.query(argv), found)
        except (ParseError, ReadError) as error:
            # The second: the kernel answers, without an attribute of this kind.
            refused = any(words in str(error) for words in ("Operation not supported", "Attribute not found"))
            gap = _no_dcb("dcb has no %s for this driver or interface" % kind, argv) if refused else None
            gaps.update(dict.fromkeys(shown, gap or _failed_query(error, argv)))
    return found


def _no_dcb(text: str, argv: Sequence[str]) -> Gap:
    fix = "check that the interface is a physical port with its own driver (ethtool -i); if it is not, leave this unset"
    return Gap("unsupported", text, " ".join(argv), fix)


def _failed_query(error: Exception, argv: Sequence[str]) -> Gap:
    return Gap("unknown", str(error), " ".join(argv), as_root(argv))


# -- the plan --------------------------------------------------------------------------------------------------------


def plan(have: Have, wanted: Want, failed: Optional[Mapping[Tuple[str, str], str]] = None) -> Plan:
    """Plan. failed: (port's label, noun) -> error of its write, after a run."""
    lldpad = _lldpad(have, wanted)
    findings = [] if lldpad is None else [lldpad]
    steps: List[Step] = []
    for state in have.ports:
        found, more = _plan_port(state, lldpad, wanted, failed or {})
        findings += found
        steps += more
    return Plan(one_cause(findings, ("unknown", "unsupported", "not_owned")), commands=tuple(steps))


def _lldpad(have: Have, wanted: Want) -> Optional[Finding]:
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
    state: State, lldpad: Optional[Finding], wanted: Want, failed: Mapping[Tuple[str, str], str]
) -> Tuple[List[Finding], List[Step]]:
    findings: Dict[str, Finding] = {}
    steps: List[Step] = []
    label = state.port.label
    # The other program that sets the port.
    owner = None if lldpad is None or lldpad.ok else lldpad
    for name in enabled(wanted):
        if not state.port.has(name):
            continue
        noun, gap = NOUNS[name], state.gaps.get(name)
        answer = noun.answer(state, wanted)
        if gap is not None:
            findings[name] = noun.check.judge(label, gap.state, answer.want, gap.have, gap.source, gap.fix)
            continue
        result, fix, root = "ok" if answer.good else "drift", None, None
        if noun.kinds and owner is not None and not answer.good:
            result, root = "not_owned", owner
            fix = root.fix or "set it on the switch, which owns the port (dcbx is firmware)"
        elif name == "dcbx" and not answer.good and not answer.calls:
            result, fix = _not_ours(state, wanted)
        elif name == "dscp2prio":
            root = findings.get("trust")
        source, have = noun.source(state), answer.have
        said = failed.get((label, name))
        if said and result == "drift":
            have, fix = "%s; %s" % (have, said), "look at dmesg and at %s" % source
        finding = noun.check.judge(label, result, answer.want, have, source, fix, because=root)
        findings[name] = finding
        if name == "dcbx" and owner is None and (result in ("not_owned", "unsupported") or wanted.dcbx == "firmware"):
            owner = finding
        if result == "drift":
            steps += _steps(label, noun.check.disruption, name, answer)
    _lost_at_once(state, findings)
    return list(findings.values()), steps


def _steps(label: str, disruption: str, noun: str, answer: Comparison) -> List[Step]:
    todo = [(argv, "", "") for argv in answer.calls] + [((), path, value) for path, value in answer.writes]
    why = "%s of %s" % (noun, label)
    return [Step(argv, why, disruption, 60.0, label, noun, path, value) for argv, path, value in todo]


def _lost_at_once(state: State, findings: Dict[str, Finding]) -> None:
    """A port that is as out of the box has one cause: nothing set it since its driver was loaded."""
    those = [noun for noun in ("trust", "pfc", "pause") if noun in findings and findings[noun].state == "drift"]
    paused = state.pause is not None and (state.pause.rx or state.pause.tx)
    if len(those) == 3 and state.dcb.trust == "pcp" and state.dcb.pfc == () and paused:
        trust = findings["trust"]
        findings["trust"] = replace(trust, have="%s; the whole port has the driver's defaults" % trust.have)
        for noun in ("pfc", "pause"):
            findings[noun] = replace(findings[noun], because=trust.id)


def _not_ours(state: State, wanted: Want) -> Tuple[str, str]:
    """Return state and fix if another program owns the port and no call changes that."""
    if wanted.dcbx == "firmware":
        return "unsupported", "install mlnx-tools: only mlnx_qos hands a port over (mlnx_qos -i %s -d fw)" % (
            state.port.netdev
        )
    return "not_owned", "set dcbx to os to take the port over, or to firmware to leave it to the switch"


def diff(planned: Plan) -> List[Dict[str, str]]:
    """Return Ansible's diff structure, one per port: the changes by its writes."""
    written = {(step.port, step.noun) for step in planned.commands if isinstance(step, Step)}
    result = []
    for label in dict.fromkeys(port for port, _noun in sorted(written)):
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
