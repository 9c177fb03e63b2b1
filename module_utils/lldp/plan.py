# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge by LLDP whether the switch port at the other end of each RoCE rail is set as the rail needs.

The control node compares the leaves over all hosts; here is what one host can judge alone. What a switch does not send
is not a fault: `docs/cabling.md#lldp`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from ..core.check import Check
from ..core.finding import Finding, one_cause
from ..core.host import ParseError
from ..core.plan import Plan
from ..core.systemd_files import start
from ..machine.profile import Profile
from ..machine.rails import Rails, ethernet
from ..machine.topology import Topology
from ..roce_qos.chain import PortConfig
from ..roce_qos.port import ports
from . import dcbx
from .neighbour import UNIT, LldpState, Neighbour

# Modes: judge neighbours if there are any, require neighbours, or do nothing.
ASKED = ("auto", "none", "required")
AUTO, NONE, REQUIRED = ASKED
# Of an Ethernet frame without its payload and checksum: some switches count the checksum or a tag as well.
HEADER = 14

AGENT = Check(
    "lldp.agent",
    why="without an LLDP agent it is unknown which switch port a rail is plugged into, and how that port is configured",
    fix="install lldpd, then %s; or let systemd-networkd 256 or later manage the rails (LLDP=yes); if neither is"
    " possible, set busbar_lldp: none" % start(UNIT, ""),
)
"Does lldpd, or systemd-networkd, respond"

NEIGHBOUR = Check(
    "lldp.neighbour",
    why="a rail whose neighbour is unknown may be plugged into the wrong switch port, or into one with other settings",
    fix="run lldpcli show neighbors on the host; enable LLDP on the switch port; if the NIC's firmware consumes the"
    " frames (mlxconfig -d DEVICE query: LLDP_NB_RX_MODE, ethtool --show-priv-flags INTERFACE), switch that off",
)
"Does each rail that is up, or each member of a bond, receive LLDP from one switch; none is `unknown`"

MTU = Check(
    "lldp.mtu",
    why="a switch port drops frames that are larger than its MTU, so large messages never arrive",
    fix="raise the MTU of the switch port, usually to 9216; or lower busbar_mtu on all hosts",
)
"Does the switch port accept frames of the rail's MTU, if the switch announces its maximum"

PFC = Check(
    "lldp.pfc",
    why="if only one end of the link pauses a priority, the queue is lossless in one direction, or in none",
    fix="set PFC of the switch port to these priorities; or, where the switch is right, correct busbar_roce.priority"
    " (roce_qos_pfc)",
)
"Has the switch port PFC on the priorities of busbar_roce and on no other, according to its DCBX"

DSCP = Check(
    "lldp.dscp",
    why="a switch that maps the DSCP of RDMA to another priority than the NIC moves it out of the lossless queue",
    fix="map the DSCP on the switch as in busbar_roce (dscp, priority, cnp_dscp, cnp_priority), or correct busbar_roce",
)
"Does the switch give the DSCPs of busbar_roce, and RoCE's UDP port, their priorities, according to its DCBX"

ETS = Check(
    "lldp.ets",
    why="a lossless priority that shares a queue stalls with the other traffic in it; without bandwidth it starves",
    fix="give the lossless priority of busbar_roce a separate traffic class on the switch, with bandwidth",
)
"""Does the lossless priority have a traffic class of the switch with bandwidth, which no priority without PFC
shares; with roce_qos_tc_bandwidth, with that bandwidth"""

# Checks whose faults slow a rail: frames are dropped, or sent without the lossless queue.
SLOWING = tuple(check.id for check in (MTU, PFC, DSCP, ETS))


@dataclass(frozen=True)
class LldpIntent:
    """asked: a word of ASKED.   dcbx: a switch that sends nothing about PFC and DSCP is a finding.

    mtu: that the site declares, None for none.   roce: settings that the site wants on the rails' ports.
    """

    asked: str = AUTO
    dcbx: bool = False
    mtu: Optional[int] = None
    roce: PortConfig = field(default_factory=PortConfig)


class RailPort(NamedTuple):
    """A port of a rail, of a bond each member. mtu: of its interface, in bytes.   mac: its address, or its bond's."""

    rail: int
    label: str
    pci: str
    netdev: str
    device: str
    mtu: Optional[int]
    mac: str = ""


class PortNeighbour(NamedTuple):
    """A rail's port and its neighbour, "" without one, which the control node compares over hosts.

    chassis, name: of the switch.   port, description: of its port.
    """

    rail: int
    label: str
    pci: str
    netdev: str
    device: str
    mac: str
    chassis: str
    name: str
    port: str
    description: str


def rail_ports(machine: Topology, rails: Rails, profile: Profile) -> Tuple[RailPort, ...]:
    """Return the host's Ethernet ports that are up; platform reports what is down or missing.

    The port of a virtual function is the hypervisor's, which receives LLDP.
    """
    nics = {nic.pci: nic for nic in machine.nics}
    found = []
    for number, nic in ethernet(rails, profile).items():
        for port in ports(machine, Rails({number: nic}, {}, None)):
            own = nics[port.pci]
            carrying = {gid.netdev for one in (own.rdma.ports if own.rdma else ()) for gid in one.gids}
            netdev = next((one for one in own.netdevs if one.name in carrying), None) or next(iter(own.netdevs), None)
            up = own.port is None or own.port.state == "ACTIVE"
            if port.of_port and netdev is not None and up and netdev.operstate not in ("down", "lowerlayerdown"):
                about = (number, port.label, port.pci, netdev.name, port.rdma or "")
                found.append(RailPort(*about, netdev.mtu, netdev.mac or ""))
    return tuple(found)


def plan(heard: LldpState, own: Sequence[RailPort], want: LldpIntent) -> Plan:
    """Judge the neighbours. The plan has no changes: a switch is not changed from here."""
    if not own or want.asked == NONE:
        return Plan()
    of_port = {port: heard.switches(port.netdev) for port in own}
    seen = [one for found in of_port.values() for one in found if one.is_switch is not False]
    if want.asked == AUTO and heard.problem is None and not seen:
        return Plan(notes=_notes(heard, seen, want))
    if heard.problem is not None or not heard.source:
        problem = heard.problem
        fix = "run %s on the host; repair what it reports, or restart its daemon" % heard.source
        have, source = (problem.message, problem.source) if problem else (heard.silent, "lldpcli, networkctl")
        fix = fix if problem else AGENT.fix.replace(start(UNIT, ""), start(UNIT, heard.mask))
        return Plan((AGENT.judge("lldp", "unknown", "lldpd or systemd-networkd", have, source, fix),))
    findings = [AGENT.judge("lldp", "ok", "a response", heard.source, heard.source)]
    known = {port: found[0] for port, found in of_port.items() if _is_switch(found)}
    findings += [_judge_neighbour(port, found, heard.source) for port, found in of_port.items()]
    findings += [_mtu(port, one, want, heard.source) for port, one in known.items() if one.mfs is not None]
    # DCBX: if one switch port sends it, another that does not is a finding, wanted or not.
    chain = want.roce.chain
    if heard.tlvs and chain.pfc is not None:
        findings += _each(PFC, known, (dcbx.PFC,), _pfc, want, heard.source)
    if heard.tlvs and chain.dscp is not None and chain.trust == "dscp":
        findings += _each(DSCP, known, (dcbx.APPLICATION,), _dscp, want, heard.source)
    if heard.tlvs and chain.pfc and chain.priority in chain.pfc:
        findings += _each(ETS, known, (dcbx.ETS, dcbx.RECOMMENDED_ETS), _ets, want, heard.source)
    return Plan(one_cause(findings, ("unknown",)), notes=_notes(heard, seen, want))


def _notes(heard: LldpState, seen: Sequence[Neighbour], want: LldpIntent) -> Tuple[str, ...]:
    """Return limits of the result that are not faults.   seen: neighbours that may be switches."""
    if not seen:
        text = heard.silent or "no rail has a switch as its LLDP neighbour"
        return () if want.asked == REQUIRED else ("where the rails are plugged in is not judged: " + text,)
    if not heard.tlvs:
        return ("systemd-networkd does not report the switches' MTU, PFC and DSCP: install lldpd to have them judged",)
    sent = {subtype for one in seen for subtype in one.dcbx}
    if want.roce.chain.pfc is not None and not want.dcbx and not sent & {dcbx.PFC, dcbx.APPLICATION, dcbx.ETS}:
        return ("the switches send no DCBX: their PFC, DSCP map and ETS are not judged",)
    return ()


def port_neighbours(heard: LldpState, own: Sequence[RailPort], want: LldpIntent) -> List[PortNeighbour]:
    """Return each port with its neighbour."""
    found = []
    for port in own if want.asked != NONE else ():
        of_port = heard.switches(port.netdev)
        one = of_port[0] if _is_switch(of_port) else Neighbour(port.netdev, "", "")
        of_host = (port.rail, port.label, port.pci, port.netdev, port.device, port.mac)
        found.append(PortNeighbour(*of_host, one.chassis, one.name, one.port, one.description))
    return found


def _is_switch(found: Sequence[Neighbour]) -> bool:
    return len(found) == 1 and found[0].is_switch is not False


def _judge_neighbour(port: RailPort, found: Sequence[Neighbour], source: str) -> Finding:
    if _is_switch(found):
        return NEIGHBOUR.judge(port.label, "ok", "a switch", found[0].label, source)
    if len(found) == 1:
        have = "%s announces no switch (capability Bridge or Router)" % found[0].label
        fix = "if that is the switch, let it announce Bridge or Router; if it is a host, plug the rail's cable into its"
        fix += " switch; if it is a DPU in between, the switch is not heard: set busbar_lldp: none"
        return NEIGHBOUR.judge(port.label, "unknown", "a switch", have, source, fix)
    if not found:
        return NEIGHBOUR.judge(port.label, "unknown", "a switch", "has no LLDP neighbour", source)
    have = "has %d LLDP neighbours: %s" % (len(found), ", ".join(one.label for one in found[:4]))
    fix = "run lldpcli show neighbors ports %s; stop LLDP on those that are not its switch" % port.netdev
    return NEIGHBOUR.judge(port.label, "unknown", "one switch", have, source, fix)


def _mtu(port: RailPort, one: Neighbour, want: LldpIntent, source: str) -> Finding:
    mtu = want.mtu or port.mtu
    if mtu is None:
        return MTU.judge(port.label, "unknown", "the rail's MTU", "its MTU cannot be read", source)
    state, have = "ok" if (one.mfs or 0) >= mtu + HEADER else "drift", "%s accepts frames of %s bytes"
    have %= (one.label, one.mfs)
    return MTU.judge(port.label, state, "frames of %d bytes (MTU %d)" % (mtu + HEADER, mtu), have, source)


# What the intent wants of a TLV, what of it is wrong ("" for nothing), and what was sent; None: nothing about RDMA.
_Comparison = Optional[Tuple[str, str, str]]


def _each(
    check: Check,
    known: Mapping[RailPort, Neighbour],
    subtypes: Sequence[int],
    compare: Callable[[Sequence[int], PortConfig], _Comparison],
    want: LldpIntent,
    source: str,
) -> List[Finding]:
    """Judge each port. subtypes: the first that is sent counts."""
    results: Dict[RailPort, Union[_Comparison, ParseError]] = {}
    for port, one in known.items():
        try:
            sent = (dcbx.decode(one.dcbx, subtype, lambda data: compare(data, want.roce)) for subtype in subtypes)
            results[port] = next((result for result in sent if result is not None), None)
        except ParseError as error:
            results[port] = error
    needed = any(isinstance(result, tuple) for result in results.values()) or (want.dcbx and check is not ETS)
    found = []
    for port, result in results.items():
        switch, label = known[port], port.label
        if isinstance(result, ParseError):
            have = "%s: %s" % (switch.label, result)
            found.append(check.judge(label, "unknown", "a TLV of IEEE 802.1Qaz", have, source))
        elif result is not None:
            wanted, wrong, have = result
            state, have = "drift" if wrong else "ok", "%s: %s" % (switch.label, wrong or have)
            found.append(check.judge(label, state, wanted, have, source))
        elif needed:
            fix = "let %s send DCBX (IEEE 802.1Qaz) on this port" % (switch.name or "the switch")
            fix += ", or set busbar_lldp_dcbx: false" if want.dcbx else ""
            have = "the switch does not send it (DCBX)"
            found.append(check.judge(label, "unknown", "what the switch sends", have, source, fix))
    return found


def _pfc(data: Sequence[int], roce: PortConfig) -> _Comparison:
    sent, pfc = dcbx.pfc(data), tuple(roce.chain.pfc or ())
    have = "PFC %s" % _listed(sent)
    return "PFC %s" % _listed(pfc), "" if sent == pfc else have, have


def _dscp(data: Sequence[int], roce: PortConfig) -> _Comparison:
    sent, chain = dcbx.applications(data), roce.chain
    if not sent.dscp and not sent.roce:
        return None
    # Unnamed DSCPs get the switch's default, which is wrong only for RDMA data.
    rows: List[Tuple[str, Optional[Tuple[int, ...]], Optional[int]]] = [
        ("DSCP %d" % dscp, sent.dscp.get(dscp), priority)
        for dscp, priority in sorted(chain.dscp2prio.items())
        if dscp in sent.dscp or (dscp == chain.dscp and sent.dscp)
    ]
    rows += [("UDP port %d" % dcbx.ROCE_V2, sent.roce, chain.priority)] if sent.roce else []
    wrong: List[str] = []
    right: List[str] = []
    for name, given, priority in rows:
        text = "%s to %s" % (name, _listed(given) if given else "none")
        (right if given == (priority,) else wrong).append(text)
    wanted = ["DSCP %d to %d" % entry for entry in sorted(chain.dscp2prio.items())]
    return ", ".join(wanted), ", ".join(wrong), ", ".join(right)


def _ets(data: Sequence[int], roce: PortConfig) -> _Comparison:
    sent, chain = dcbx.ets(data), roce.chain
    priority, pfc = chain.priority or 0, chain.pfc or ()
    number = sent.prio2tc[priority]
    share, shares = sent.bandwidth[number], sent.tsa[number] == dcbx.SHARES
    others = [one for one in range(8) if sent.prio2tc[one] == number and one not in pfc]
    wanted, wrong = "priority %d in a separate class, with bandwidth" % priority, []
    if others:
        wrong.append("class %d has priority %d and %s, which are without PFC" % (number, priority, _listed(others)))
    own = share
    if roce.bandwidth is not None and roce.tsa is not None and roce.prio2tc is not None:
        of_host = roce.prio2tc[priority]
        if roce.tsa[of_host] == "ets":
            own = roce.bandwidth[of_host] or 0
            wanted += " of %d %%" % own
    if shares and (not share or share != own):
        wrong.append("class %d of priority %d has %d %%" % (number, priority, share))
    have = "class %d of priority %d%s" % (number, priority, " has %d %%" % share if shares else "")
    return wanted, "; ".join(wrong), have


def _listed(priorities: Sequence[int]) -> str:
    return ",".join(map(str, priorities)) or "off"
