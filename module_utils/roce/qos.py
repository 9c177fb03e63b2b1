# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The RoCE settings of each rail's port: trust, PFC, maps, queues, buffers, ECN, ToS, DCBX and global pause.

``mlnx_qos`` speaks for ConnectX where OFED's tools are installed, ``dcb`` of iproute2 else. Both end with 0 on some
failures, so that every write is read back. A changed PFC mask bounces the link: what is equal is never written.
Sources: host.md 1 and 2; kernel mlx5 en_dcbnl.c; ABI testing/configfs-rdma_cm; OFED's ecn and tc directories.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple, TypeVar

from ..change import apply
from ..core import advice
from ..core.finding import Finding
from ..core.host import Host, ParseError, ReadError, ToolMissing
from ..core.plan import Command, Plan
from ..machine import netdev, rdma
from ..machine.pci import parse_decimal
from ..machine.profile import Profile, active_port, roce_rails
from ..machine.rails import Rails
from ..machine.topology import Nic, Topology
from . import dcb, mlnx_qos
from .chain import Chain

# In the order in which they are written: whoever owns the port comes first, and pause before PFC, which shares its
# register.
DCB = ("trust", "dscp2prio", "prio2tc", "ets", "pfc", "buffers")
NOUNS = ("dcbx", "pause", *DCB, "ecn", "cnp", "tos", "traffic_class")
OF_RDMA = ("tos", "traffic_class")  # of the RDMA device
OF_PORT = tuple(noun for noun in NOUNS if noun not in OF_RDMA)
CONFIGFS = "/sys/kernel/config/rdma_cm"
OWNERS = ("", "os", "firmware")
TSA = ("strict", "ets", "vendor")
_MELLANOX = 0x15B3
# The number alone is how it is written.
_GLOBAL_CLASS = re.compile(r"(?:Global tclass=)?(-1|[0-9]{1,3})")
_PAUSE = re.compile(r"(Autonegotiate|RX|TX):\s*(on|off)")
_RUN = advice.run("roce_qos")
WHY = {
    "dcbx": "whoever owns DCBX, firmware or lldpad, overwrites trust, PFC and ETS whenever it hears the switch",
    "pause": "global pause stops all priorities at once and cannot be on beside PFC",
    "trust": "RoCE v2 carries its class in the DSCP: a NIC that trusts the PCP puts all of it into priority 0",
    "dscp2prio": "the map decides in which priority, and so in which queue, a packet is",
    "prio2tc": "the traffic class decides with whom a priority shares its queue",
    "ets": "without its share of the bandwidth RoCE starves behind other traffic",
    "pfc": "a priority without PFC on one side is lossy: one lost packet stalls a whole collective; PFC on another"
    " priority stops traffic that nobody meant",
    "buffers": "without headroom for the length of the cable packets are lost although PFC is on",
    "ecn": "without ECN only PFC slows senders down, and congestion spreads through the fabric",
    "cnp": "a notification of congestion that waits behind the congestion comes too late",
    "tos": "what connects by rdma_cm and names no class of its own gets this one",
    "traffic_class": "it is forced upon every queue pair of the device",
}
_MINOR = ("buffers", "cnp", "ets", "prio2tc")

T = TypeVar("T")
Eight = Optional[Tuple[int, ...]]


@dataclass(frozen=True)
class Want:
    """None, or empty, is not asked for. Lists of eight are by priority (prio2tc, prio2buffer) or by class or buffer.

    bandwidth: per cent.   cable_length: metres.   buffer_size: bytes.
    dcbx: the kernel's for "", whoever has it now; os takes it over; firmware leaves all to the switch.
    """

    chain: Chain = field(default_factory=Chain)
    prio2tc: Eight = None
    tsa: Optional[Tuple[str, ...]] = None
    bandwidth: Eight = None
    cable_length: Optional[int] = None
    prio2buffer: Eight = None
    buffer_size: Eight = None
    dcbx: str = ""
    pause_off: bool = False


@dataclass(frozen=True)
class Gap:
    """Why something is not known: state unknown, or unsupported where it cannot be."""

    state: str
    have: str
    source: str
    fix: str


@dataclass(frozen=True)
class Port:
    """One Ethernet port of a rail, of a bond each member.

    nouns: what can be asked of it at all.   gap: why nothing is known of the nouns in ``silent``.
    rdma: None for a member of a bond whose RDMA device is with another one.
    """

    label: str
    pci: str
    netdev: str
    rdma: Optional[str]
    rdma_port: int = 1
    is_mellanox: bool = True
    nouns: Tuple[str, ...] = NOUNS
    gap: Optional[Gap] = None
    silent: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Dcb:
    """What either tool says; None: it does not. dscp2prio: pairs. tsa, bandwidth: by class, None for an unused one."""

    owner: Optional[str] = None  # os, firmware
    lldpad: bool = False
    trust: Optional[str] = None
    dscp2prio: Tuple[Tuple[int, int], ...] = ()
    pfc: Optional[Tuple[int, ...]] = None
    prio2tc: Eight = None
    tsa: Optional[Tuple[Optional[str], ...]] = None
    bandwidth: Optional[Tuple[Optional[int], ...]] = None
    cable_length: Optional[int] = None
    prio2buffer: Eight = None
    buffer_size: Eight = None


@dataclass(frozen=True)
class Pause:
    autonegotiate: bool
    rx: bool
    tx: bool


@dataclass(frozen=True)
class State:
    """A port as it is. gaps: noun -> why it is not known; then the value means nothing.

    backend: mlnx_qos, dcb, "".   np, rp: priority -> whether it marks, reacts.   traffic_class: -1 for none forced.
    tos_by_tool: the ToS is cma_roce_tos's to read and write, because configfs is not mounted.
    """

    port: Port
    backend: str = ""
    dcb: Dcb = field(default_factory=Dcb)
    np: Mapping[int, bool] = field(default_factory=dict)
    rp: Mapping[int, bool] = field(default_factory=dict)
    cnp_dscp: Optional[int] = None
    cnp_priority: Optional[int] = None
    tos: Optional[int] = None
    tos_by_tool: bool = False
    traffic_class: int = -1
    pause: Optional[Pause] = None
    gaps: Mapping[str, Gap] = field(default_factory=dict)


@dataclass(frozen=True)
class Have:
    lldpad: bool
    ports: Tuple[State, ...]


@dataclass(frozen=True)
class Step(Command):
    """A call of a tool for one noun of one port or, with a path, one value written into sysfs or configfs.

    Those take no temporary file and no rename, so it is no FileChange: the attribute is opened and written in place.
    """

    port: str = ""
    noun: str = ""
    path: str = ""
    value: str = ""

    def __str__(self) -> str:
        return "echo %s > %s" % (self.value, self.path) if self.path else super().__str__()


@dataclass(frozen=True)
class _Answer:
    """What a noun comes to on one port. steps: argv, or (path, value) of an attribute."""

    good: bool
    want: str
    have: str
    calls: Tuple[Tuple[str, ...], ...] = ()
    writes: Tuple[Tuple[str, str], ...] = ()


# -- what is asked for -----------------------------------------------------------------------------------------------


def want(chain: Chain, given: Mapping[str, Any], prefix: str = "") -> Want:
    """given: prio2tc, tsa, tc_bandwidth, cable_length, prio2buffer, buffer_size, dcbx, pause_off.

    prefix: of their names, in messages. Raises ParseError that names all that cannot be.
    """
    errors: List[str] = []
    prio2tc, prio2buffer = (_eight(given, name, 7, errors) for name in ("prio2tc", "prio2buffer"))
    bandwidth = _eight(given, "tc_bandwidth", 100, errors)
    buffer_size = _eight(given, "buffer_size", 0xFFFFFFFF, errors)
    tsa, cable = given.get("tsa"), given.get("cable_length")
    if tsa is not None and (len(tsa) != 8 or any(one not in TSA for one in tsa)):
        errors.append("tsa is %r, expected eight of %s" % (tsa, ", ".join(TSA)))
    elif (tsa is None) != (bandwidth is None):
        errors.append("tsa and tc_bandwidth go together: set both or none")
    elif tsa is not None and bandwidth is not None:
        others = [number for number, one in enumerate(tsa) if one != "ets" and bandwidth[number]]
        if others:
            errors.append("tc_bandwidth of class %d is not 0, but its tsa is %s" % (others[0], tsa[others[0]]))
        elif "ets" in tsa and sum(bandwidth) != 100:
            errors.append("tc_bandwidth makes %d per cent over the ets classes, expected 100" % sum(bandwidth))
    if cable is not None and not 0 < cable < 1000:
        errors.append("cable_length is %r, expected 1 to 999 metres" % cable)
    dcbx = given.get("dcbx") or ""
    if dcbx not in OWNERS:
        errors.append("dcbx is %r, expected one of %s" % (dcbx, ", ".join(OWNERS[1:])))
    if errors:
        raise ParseError("; ".join(prefix + error for error in errors))
    return Want(
        chain=chain,
        prio2tc=prio2tc,
        tsa=None if tsa is None else tuple(tsa),
        bandwidth=bandwidth,
        cable_length=cable,
        prio2buffer=prio2buffer,
        buffer_size=buffer_size,
        dcbx=dcbx,
        # Without PFC, pause is nobody's rival.
        pause_off=bool(given.get("pause_off") and chain.pfc),
    )


def _eight(given: Mapping[str, Any], name: str, most: int, errors: List[str]) -> Eight:
    value = given.get(name)
    if value is None:
        return None
    if len(value) != 8 or any(not 0 <= one <= most for one in value):
        errors.append("%s is %r, expected eight numbers from 0 to %d" % (name, value, most))
        return None
    return tuple(value)


def asked(wanted: Want) -> Tuple[str, ...]:
    """Nouns that somebody asks for, in the order of NOUNS."""
    chain = wanted.chain
    there = {
        "pause": wanted.pause_off,
        "trust": chain.trust is not None,
        "dscp2prio": bool(chain.dscp2prio) and chain.trust != "pcp",
        "prio2tc": wanted.prio2tc is not None,
        "ets": wanted.tsa is not None,
        "pfc": chain.pfc is not None,
        "buffers": any(one is not None for one in (wanted.cable_length, wanted.prio2buffer, wanted.buffer_size)),
        "ecn": bool(chain.ecn),
        "cnp": chain.cnp_dscp is not None,
        "tos": chain.tos is not None,
        "traffic_class": chain.traffic_class is not None,
    }
    there["dcbx"] = bool(wanted.dcbx) or any(there[noun] for noun in DCB)
    return tuple(noun for noun in NOUNS if there[noun])


# -- parsers ---------------------------------------------------------------------------------------------------------


def parse_pause(text: str) -> Pause:
    """``ethtool -a``. What was negotiated is not looked at: it changes with the switch. Raises ParseError."""
    found = {}
    for line in text.splitlines():
        match = _PAUSE.fullmatch(line.strip())
        if match is not None:
            found[match.group(1)] = match.group(2) == "on"
    if len(found) != 3:
        raise ParseError("%r names no Autonegotiate, RX and TX" % text[:160])
    return Pause(found["Autonegotiate"], found["RX"], found["TX"])


def parse_traffic_class(text: str) -> int:
    """The global one, -1 for none. Rules for single addresses stand in further lines. Raises ParseError."""
    first = text.partition("\n")[0].strip()
    if not first or first.startswith("tclass="):
        return -1
    match = _GLOBAL_CLASS.fullmatch(first)
    if match is None:
        raise ParseError("%r is not a line like Global tclass=106" % first[:80])
    return int(match.group(1))


def of_mlnx_qos(qos: mlnx_qos.Qos) -> Dcb:
    classes = qos.by_class()
    prio2tc: Eight = None
    tsa: Optional[Tuple[Optional[str], ...]] = None
    bandwidth: Optional[Tuple[Optional[int], ...]] = None
    if classes is not None:
        tsa = tuple(classes[number].tsa if number in classes else None for number in range(8))
        bandwidth = tuple(classes[number].bandwidth or 0 if number in classes else None for number in range(8))
        of = {priority: number for number, one in classes.items() for priority in one.priorities}
        prio2tc = tuple(of[priority] for priority in range(8))
    return Dcb(
        owner=qos.dcbx,
        lldpad=qos.lldpad,
        trust=qos.trust,
        dscp2prio=qos.dscp2prio or (),
        pfc=tuple(priority for priority, on in enumerate(qos.enabled) if on),
        prio2tc=prio2tc,
        tsa=tsa,
        bandwidth=bandwidth,
        cable_length=qos.cable_length,
        prio2buffer=qos.prio2buffer,
        buffer_size=qos.buffer_size,
    )


# -- what is there ---------------------------------------------------------------------------------------------------


def ports(topology: Topology, rails: Rails) -> Tuple[Port, ...]:
    """The ports of all rails in rail order, those of a bond after the member that has the RDMA device."""
    found: Dict[str, Port] = {}
    for _number, nic in sorted(rails.nics.items()):
        masters = {one.master for one in nic.netdevs if nic.role == "bond" and one.master}
        members = [nic] + [
            other for other in topology.nics if other is not nic and any(d.master in masters for d in other.netdevs)
        ]
        for member in members:
            port = _port(member, topology.virtualization.is_vm)
            found.setdefault(port.label, port)
    return tuple(found.values())


def _port(nic: Nic, in_guest: bool) -> Port:
    source = nic.device.source
    nouns, silent = NOUNS if nic.rdma is not None else OF_PORT, OF_PORT
    gap = None
    active = active_port(nic)
    if nic.role == "vf" and in_guest:
        # The port, and with it everything else, is the hypervisor's.
        nouns = OF_RDMA
    elif nic.role == "vf":
        gap = Gap(
            "unsupported",
            "a virtual function: its port is set at the physical function",
            source,
            "name the physical functions in the profile",
        )
    elif active is not None and active.link_layer == "InfiniBand":
        silent = NOUNS
        gap = Gap(
            "unsupported",
            "an InfiniBand port",
            rdma.DEVICES,
            "set the port to Ethernet (mlxconfig -d %s set LINK_TYPE_P%d=2, then reboot), or correct busbar_fabric"
            % (nic.pci, _port_number(nic.pci)),
        )
    elif not nic.netdevs:
        gap = Gap(
            "unknown",
            "no netdev: nothing can be asked of the port",
            netdev.INTERFACES,
            "look for %s in dmesg; reload its driver" % nic.pci,
        )
    return Port(
        label=nic.label,
        pci=nic.pci,
        netdev=nic.netdevs[0].name if nic.netdevs else "",
        rdma=nic.rdma.name if nic.rdma is not None else None,
        rdma_port=active.number if active is not None else 1,
        is_mellanox=nic.device.vendor == _MELLANOX,
        nouns=nouns,
        gap=gap,
        silent=silent,
    )


def _port_number(pci: str) -> int:
    """Of firmware's variables: each port of a card is a function."""
    return int(pci[-1]) + 1


def read(host: Host, those: Sequence[Port], wanted: Want) -> Have:
    """Only what is asked for is read."""
    return Have(_lldpad_runs(host), tuple(read_port(host, port, wanted) for port in those))


def _lldpad_runs(host: Host) -> bool:
    for pid in host.listdir("/proc"):
        if pid.isdigit():
            with contextlib.suppress(ReadError):  # it has ended meanwhile
                if host.read("/proc/%s/comm" % pid) == "lldpad":
                    return True
    return False


def read_port(host: Host, port: Port, wanted: Want) -> State:
    nouns = [noun for noun in asked(wanted) if noun in port.nouns]
    gaps: Dict[str, Gap] = {}
    if port.gap is not None:
        gaps = {noun: port.gap for noun in nouns if noun in port.silent}
    else:
        device = host.realpath("%s/%s/device" % (netdev.INTERFACES, port.netdev)) or ""
        if re.fullmatch(r"mlx5_core\.sf\.[0-9]+", device.rpartition("/")[2]):
            text = "a subfunction: its port is set at the physical function"
            of_sf = Gap("unsupported", text, device, "name the physical functions in the profile")
            gaps = {noun: of_sf for noun in nouns if noun in OF_PORT}
    left = [noun for noun in nouns if noun not in gaps]
    state = State(port)
    if any(noun in ("dcbx", *DCB) for noun in left):
        backend, found = _read_dcb(host, port, wanted, left, gaps)
        state = replace(state, backend=backend, dcb=found)
    if "ecn" in left or "cnp" in left:
        state = _read_ecn(host, state, wanted, left, gaps)
    if "tos" in left:
        by_tool = not os.path.isdir(host.hardware(CONFIGFS))
        state = replace(state, tos=_read_tos(host, port, by_tool, gaps), tos_by_tool=by_tool)
    if "traffic_class" in left:
        state = replace(state, traffic_class=_read_traffic_class(host, port, gaps))
    if "pause" in left:
        state = replace(state, pause=_read_pause(host, port, gaps))
    return replace(state, gaps=gaps)


def _read_dcb(host: Host, port: Port, wanted: Want, nouns: Sequence[str], gaps: Dict[str, Gap]) -> Tuple[str, Dcb]:
    """The tool that speaks for the port, and what it says. Of two it is the one that says more: mlnx_qos breaks off, or
    leaves lines out, on kernels and drivers that it was not written for, where dcb may know."""
    those = [noun for noun in nouns if noun in ("dcbx", *DCB)]
    tools = (mlnx_qos.TOOL, dcb.TOOL) if port.is_mellanox else (dcb.TOOL, mlnx_qos.TOOL)
    read: List[Tuple[str, Dcb, Dict[str, Gap]]] = []
    for tool in tools:
        if host.has(tool) and not (read and (read[0][0] == dcb.TOOL or not read[0][2])):
            missing: Dict[str, Gap] = {}
            ask = _by_mlnx_qos if tool == mlnx_qos.TOOL else _by_dcb
            read.append((tool, ask(host, port, wanted, those, missing), missing))
    if not read:
        fix = "install mlnx-tools (it comes with OFED, role mofed), or iproute2 5.11 or later"
        gaps.update(dict.fromkeys(those, Gap("unknown", "neither mlnx_qos nor dcb is installed", "mlnx_qos, dcb", fix)))
        return "", Dcb()
    backend, found, missing = min(read, key=lambda one: len(one[2]))
    gaps.update(missing)
    return backend, found


def _by_mlnx_qos(host: Host, port: Port, wanted: Want, nouns: Sequence[str], gaps: Dict[str, Gap]) -> Dcb:
    argv = mlnx_qos.show(port.netdev)
    try:
        qos = mlnx_qos.parse(_ask(host, argv))
    except mlnx_qos.NotSupported as error:
        gaps.update(dict.fromkeys(nouns, _no_dcb(str(error), argv)))
        return Dcb()
    except (ParseError, ReadError) as error:
        gaps.update(dict.fromkeys(nouns, _unread(error, argv)))
        return Dcb()
    found = of_mlnx_qos(qos)
    if qos.trust == "none":
        for noun in ("trust", "dscp2prio"):
            gaps[noun] = _no_dcb("this driver does not tell or take whom it trusts", argv)
    for noun, value in (("trust", found.trust), ("dcbx", found.owner), ("prio2tc", found.prio2tc), ("ets", found.tsa)):
        if value is None:
            gaps.setdefault(noun, _silent(noun, argv))
    if _asks_for_buffers(wanted) and found.prio2buffer is None and "Buffers commands" in qos.not_supported:
        gaps["buffers"] = _no_dcb("this driver has no commands for buffers", argv)
    for noun in [noun for noun in gaps if noun not in nouns]:
        del gaps[noun]
    return found


def _asks_for_buffers(wanted: Want) -> bool:
    """The length of the cable goes with PFC, and needs no driver that tells its buffers."""
    return wanted.prio2buffer is not None or wanted.buffer_size is not None


def _by_dcb(host: Host, port: Port, wanted: Want, nouns: Sequence[str], gaps: Dict[str, Gap]) -> Dcb:
    def one(kind: str, parse: Callable[[str], T], of: Sequence[str]) -> Optional[T]:
        argv = dcb.show(kind, port.netdev)
        if not any(noun in nouns for noun in of):
            return None
        try:
            return parse(_ask(host, argv))
        except (ParseError, ReadError) as error:
            # The second: the kernel answers, without an attribute of this kind.
            refused = any(words in str(error) for words in ("Operation not supported", "Attribute not found"))
            gap = _no_dcb("dcb has no %s for this driver or interface" % kind, argv) if refused else None
            gaps.update({noun: gap or _unread(error, argv) for noun in of if noun in nouns})
            return None

    owner = one("dcbx", dcb.parse_dcbx, ("dcbx",))
    app = one("app", dcb.parse_app, ("trust", "dscp2prio"))
    ets = one("ets", dcb.parse_ets, ("prio2tc", "ets"))
    pfc = one("pfc", dcb.parse_pfc, ("pfc", "buffers"))
    buffer = one("buffer", dcb.parse_buffer, ("buffers",) if _asks_for_buffers(wanted) else ())
    return Dcb(
        owner=None if owner is None else "os" if owner.host else "firmware",
        # mlx5 trusts the DSCP as soon as one entry is there.
        trust=None if app is None else "dscp" if app.dscp_prio else "pcp",
        dscp2prio=() if app is None else app.dscp_prio,
        pfc=None if pfc is None else tuple(priority for priority, on in enumerate(pfc.prio_pfc) if on),
        prio2tc=None if ets is None else ets.prio_tc,
        tsa=None if ets is None else ets.tc_tsa,
        bandwidth=None if ets is None else ets.tc_bw,
        cable_length=None if pfc is None else pfc.delay,
        prio2buffer=None if buffer is None else buffer.prio_buffer,
        buffer_size=None if buffer is None else buffer.buffer_size,
    )


def _ask(host: Host, argv: Sequence[str]) -> str:
    """What the tool prints. mlnx_qos ends with 1, and says why in its output, where the driver has no DCB."""
    done = host.run(argv)
    refused = argv[0] == mlnx_qos.TOOL and "not supported on your system" in done.stdout
    return done.stdout if refused else done.answer()


def _no_dcb(text: str, argv: Sequence[str]) -> Gap:
    fix = "look whether the interface is a physical port with a driver of its own (ethtool -i); else leave this unset"
    return Gap("unsupported", text, " ".join(argv), fix)


def _unread(error: Exception, argv: Sequence[str]) -> Gap:
    return Gap("unknown", str(error), " ".join(argv), "run %s as root and look at dmesg" % " ".join(argv))


def _silent(noun: str, argv: Sequence[str]) -> Gap:
    text = "this version or driver does not show it (%s)" % noun
    return Gap("unknown", text, " ".join(argv), "update mlnx-tools (it comes with OFED, role mofed)")


def _read_ecn(host: Host, state: State, wanted: Want, nouns: Sequence[str], gaps: Dict[str, Gap]) -> State:
    port, folder = state.port, _ecn(state.port)
    try:
        there = host.listdir(folder)
    except ReadError as error:
        gap = Gap("unknown", str(error), folder, "look at %s" % folder)
        gaps.update({noun: gap for noun in ("ecn", "cnp") if noun in nouns})
        return state
    if not there:
        number, chain = _port_number(port.pci), wanted.chain
        settings = "ROCE_CC_PRIO_MASK_P%d=255" % number
        if chain.cnp_dscp is not None:
            settings += " CNP_DSCP_P%d=%d CNP_802P_PRIO_P%d=%d" % (
                number,
                chain.cnp_dscp,
                number,
                chain.cnp_priority or 0,
            )
        fix = "mlxconfig -d %s -y set %s, then reboot; or install OFED (role mofed)" % (port.pci, settings)
        missing = "no ecn directory: with the kernel's own driver ECN is firmware configuration"
        gaps.update({noun: Gap("unsupported", missing, folder, fix) for noun in ("ecn", "cnp") if noun in nouns})
        return state
    values: Dict[str, Optional[int]] = {}
    paths = [(noun, path) for noun in ("ecn", "cnp") if noun in nouns for path in _ecn_paths(port, noun, wanted)]
    for noun, path in paths:
        try:
            text = host.read(path)
            if text is None:
                raise ReadError(path, "is not there")
            values[path] = parse_decimal(text)
        except (ParseError, ReadError) as error:
            gaps[noun] = Gap("unknown", str(error), path, "look at %s" % path)
    on = {path for path, value in values.items() if value}
    return replace(
        state,
        np={priority: _enable(port, "np", priority) in on for priority in wanted.chain.ecn},
        rp={priority: _enable(port, "rp", priority) in on for priority in wanted.chain.ecn},
        cnp_dscp=values.get("%s/roce_np/cnp_dscp" % folder),
        cnp_priority=values.get("%s/roce_np/cnp_802p_prio" % folder),
    )


def _ecn(port: Port) -> str:
    return "%s/%s/ecn" % (netdev.INTERFACES, port.netdev)


def _enable(port: Port, side: str, priority: int) -> str:
    return "%s/roce_%s/enable/%d" % (_ecn(port), side, priority)


def _ecn_paths(port: Port, noun: str, wanted: Want) -> List[str]:
    if noun == "ecn":
        return [_enable(port, side, priority) for side in ("np", "rp") for priority in wanted.chain.ecn]
    return ["%s/roce_np/%s" % (_ecn(port), name) for name in ("cnp_dscp", "cnp_802p_prio")]


def _read_tos(host: Host, port: Port, by_tool: bool, gaps: Dict[str, Gap]) -> Optional[int]:
    path = _tos_path(port)
    try:
        if by_tool:
            return parse_decimal(_ask(host, _cma_roce_tos(port)).strip())
        with _in_configfs(host, port.rdma or ""):
            text = host.read(path)
        if text is None:
            raise ReadError(path, "is not there")
        return parse_decimal(text)
    except ToolMissing:
        text = "%s is not there: rdma_cm is not loaded, or configfs not mounted" % CONFIGFS
    except (ParseError, ReadError) as error:
        text = str(error)
    fix = "modprobe rdma_cm && mount -t configfs none /sys/kernel/config, as far as either is missing"
    gaps["tos"] = Gap("unknown", text, path, fix)
    return None


def _cma_roce_tos(port: Port) -> Tuple[str, ...]:
    """OFED's script for the same file. It mounts configfs, and ends with 0 also where a write has failed."""
    return ("cma_roce_tos", "-d", port.rdma or "", "-p", str(port.rdma_port))


def _tos_path(port: Port) -> str:
    return "%s/%s/ports/%d/default_roce_tos" % (CONFIGFS, port.rdma, port.rdma_port)


@contextlib.contextmanager
def _in_configfs(host: Host, device: str) -> Iterator[None]:
    """rdma_cm shows a device as long as somebody has made a directory of its name; the values stay without it."""
    path = "%s/%s" % (CONFIGFS, device)
    made = False
    try:
        os.mkdir(host.hardware(path))
        made = True
    except FileExistsError:
        pass
    except OSError as error:
        raise ReadError(path, "cannot be made: %s" % error.strerror) from error
    try:
        yield
    finally:
        if made:
            with contextlib.suppress(OSError):
                os.rmdir(host.hardware(path))


def _read_traffic_class(host: Host, port: Port, gaps: Dict[str, Gap]) -> int:
    path = _class_path(port)
    try:
        text = host.read(path)
        if text is None:
            fix = "install OFED (role mofed), or leave traffic_class unset and give jobs NCCL_IB_TC"
            gaps["traffic_class"] = Gap("unsupported", "only OFED's driver can force a traffic class", path, fix)
            return -1
        return parse_traffic_class(text)
    except (ParseError, ReadError) as error:
        if isinstance(error, ReadError) and error.problem.message == "is empty":
            return -1
        gaps["traffic_class"] = Gap("unknown", str(error), path, "look at %s" % path)
        return -1


def _class_path(port: Port) -> str:
    return "%s/%s/tc/%d/traffic_class" % (rdma.DEVICES, port.rdma, port.rdma_port)


def _read_pause(host: Host, port: Port, gaps: Dict[str, Gap]) -> Optional[Pause]:
    argv = ("ethtool", "-a", port.netdev)
    try:
        return parse_pause(_ask(host, argv))
    except (ParseError, ReadError) as error:
        gaps["pause"] = _unread(error, argv)
        return None


# -- the plan --------------------------------------------------------------------------------------------------------


def plan(have: Have, wanted: Want, failed: Optional[Mapping[Tuple[str, str], str]] = None) -> Plan:
    """failed: (port's label, noun) -> what a write of it has come to, after a run."""
    lldpad = _lldpad(have, wanted)
    findings = [] if lldpad is None else [lldpad]
    steps: List[Step] = []
    for state in have.ports:
        found, more = _plan_port(state, lldpad, wanted, failed or {})
        findings += found
        steps += more
    return Plan(tuple(_one_cause(findings)), commands=tuple(steps))


def _lldpad(have: Have, wanted: Want) -> Optional[Finding]:
    """One process for all ports; None where nothing is asked that it would overwrite."""
    if wanted.dcbx == "firmware" or not any("dcbx" in asked(wanted) and "dcbx" in one.port.nouns for one in have.ports):
        return None
    runs = have.lldpad or any(state.dcb.lldpad for state in have.ports)
    return Finding(
        check="roce_qos.dcbx",
        subject="lldpad",
        state="not_owned" if runs else "ok",
        severity="major",
        want="not running",
        have="running: it sends what it has been told" if runs else "not running",
        source="/proc",
        why=WHY["dcbx"],
        fix="systemctl disable --now lldpad, or set PFC, ETS and the map there" if runs else "",
    )


def _plan_port(
    state: State, lldpad: Optional[Finding], wanted: Want, failed: Mapping[Tuple[str, str], str]
) -> Tuple[List[Finding], List[Step]]:
    findings: Dict[str, Finding] = {}
    steps: List[Step] = []
    label = state.port.label
    # Says who else sets the port.
    owner = None if lldpad is None or lldpad.ok else lldpad
    for noun in asked(wanted):
        if noun not in state.port.nouns:
            continue
        gap = state.gaps.get(noun)
        if gap is not None:
            # What could not be read does not matter for what is wanted.
            want_text = _ANSWERS[noun](state, wanted).want
            findings[noun] = _finding(state, noun, gap.state, want_text, gap.have, gap)
            continue
        answer = _ANSWERS[noun](state, wanted)
        result, fix, root = "ok" if answer.good else "drift", "", None
        if noun in ("dcbx", *DCB) and owner is not None and not answer.good:
            result, root = "not_owned", owner
            fix = root.fix or "set it on the switch, which owns the port (dcbx is firmware)"
        elif noun == "dcbx" and not answer.good and not answer.calls:
            result, fix = _not_ours(state, wanted)
        elif noun == "dscp2prio" and not answer.good:
            root = findings.get("trust")
        cause = root.id if root is not None and not root.ok else None
        finding = _finding(state, noun, result, answer.want, answer.have, None, fix, cause)
        said = failed.get((label, noun))
        if said and result == "drift":
            finding = replace(
                finding, have="%s; %s" % (finding.have, said), fix="look at dmesg and at %s" % finding.source
            )
        findings[noun] = finding
        if noun == "dcbx" and owner is None and (result in ("not_owned", "unsupported") or wanted.dcbx == "firmware"):
            owner = finding
        if result == "drift":
            steps += _steps(label, noun, answer)
    _lost_at_once(state, findings)
    return list(findings.values()), steps


def _lost_at_once(state: State, findings: Dict[str, Finding]) -> None:
    """A port that is as out of the box has one cause: nothing set it since its driver was loaded."""
    those = [noun for noun in ("trust", "pfc", "pause") if noun in findings and findings[noun].state == "drift"]
    paused = state.pause is not None and (state.pause.rx or state.pause.tx)
    if len(those) == 3 and state.dcb.trust == "pcp" and state.dcb.pfc == () and paused:
        trust = findings["trust"]
        findings["trust"] = replace(trust, have="%s; the whole port is as out of the box" % trust.have)
        for noun in ("pfc", "pause"):
            findings[noun] = replace(findings[noun], because=trust.id)


def _not_ours(state: State, wanted: Want) -> Tuple[str, str]:
    """State and way out where somebody else owns the port and no call changes that."""
    if wanted.dcbx == "firmware":
        return "unsupported", "install mlnx-tools: only mlnx_qos hands a port over (mlnx_qos -i %s -d fw)" % (
            state.port.netdev
        )
    return "not_owned", "set dcbx to os to take the port over, or to firmware to leave it to the switch"


def _steps(label: str, noun: str, answer: _Answer) -> List[Step]:
    why = "%s of %s" % (noun, label)
    disruption = _disruption(noun)
    about: Dict[str, Any] = {"why": why, "disruption": disruption, "port": label, "noun": noun}
    calls = [Step(argv=argv, timeout=60.0, **about) for argv in answer.calls]
    return calls + [Step(argv=(), path=path, value=value, **about) for path, value in answer.writes]


def _disruption(noun: str) -> str:
    """mlx5 bounces the link for a changed PFC mask; other drivers negotiate it anew when pause changes."""
    return "link" if noun in ("pfc", "pause") else "none"


def _finding(
    state: State,
    noun: str,
    result: str,
    want_text: str,
    have_text: str,
    gap: Optional[Gap] = None,
    fix: str = "",
    because: Optional[str] = None,
) -> Finding:
    disruption = _disruption(noun)
    if gap is not None:
        fix = gap.fix
    return Finding(
        check="roce_qos.%s" % noun,
        subject=state.port.label,
        state=result,
        severity="minor" if noun in _MINOR else "major",
        want=want_text,
        have=have_text,
        source=gap.source if gap is not None else _source(state, noun),
        why=WHY[noun],
        fix="" if result == "ok" else fix or _RUN,
        disruption=disruption,
        because=because,
    )


def _source(state: State, noun: str) -> str:
    port = state.port
    if noun in ("ecn", "cnp"):
        return _ecn(port)
    if noun == "tos":
        return _tos_path(port)
    if noun == "traffic_class":
        return _class_path(port)
    if noun == "pause":
        return "ethtool -a %s" % port.netdev
    kinds = {"trust": "app", "dscp2prio": "app", "prio2tc": "ets", "buffers": "buffer"}
    if state.backend == dcb.TOOL:
        return " ".join(dcb.show(kinds.get(noun, noun), port.netdev))
    return " ".join(mlnx_qos.show(port.netdev))


def _dcbx(state: State, wanted: Want) -> _Answer:
    expected = wanted.dcbx or "os"
    words = {"os": "the kernel owns the port", "firmware": "firmware and the switch own the port"}
    owner = state.dcb.owner
    if owner == expected:
        return _Answer(True, words[expected], words[expected])
    name = state.port.netdev
    calls: Tuple[Tuple[str, ...], ...] = ()
    if wanted.dcbx == "os":
        calls = (mlnx_qos.set_dcbx(name, "os") if state.backend == mlnx_qos.TOOL else dcb.set_host(name),)
    elif wanted.dcbx == "firmware" and state.backend == mlnx_qos.TOOL:
        calls = (mlnx_qos.set_dcbx(name, "firmware"),)
    return _Answer(False, words[expected], words.get(owner or "", "not shown"), calls)


def _pause(state: State, wanted: Want) -> _Answer:
    pause, argv = state.pause or Pause(False, False, False), ["ethtool", "-A", state.port.netdev]
    if pause.autonegotiate:
        argv += ["autoneg", "off"]
    text = "RX %s, TX %s" % (_on(pause.rx), _on(pause.tx))
    calls = ((*argv, "rx", "off", "tx", "off"),)
    return _Answer(not pause.rx and not pause.tx, "RX off, TX off", text, calls)


def _trust(state: State, wanted: Want) -> _Answer:
    name, trust = state.port.netdev, wanted.chain.trust or ""
    if state.backend == dcb.TOOL:
        every = [(dscp, wanted.chain.priority_of(dscp)) for dscp in range(64)]
        call = dcb.replace_dscp(name, every) if trust == "dscp" else dcb.flush_dscp(name)
    else:
        call = mlnx_qos.set_trust(name, trust)
    return _Answer(state.dcb.trust == trust, trust, state.dcb.trust or "not shown", (call,))


def _dscp2prio(state: State, wanted: Want) -> _Answer:
    """A DSCP that is not listed has priority 0 in hardware. One that is listed twice is wrong in any case."""
    those = sorted(wanted.chain.dscp2prio.items())
    name, by_dcb = state.port.netdev, state.backend == dcb.TOOL
    if state.dcb.trust != "dscp":
        # With trust comes a map: all that is wanted from _trust by dcb, the default one from mlnx_qos.
        wrong = [] if by_dcb else [(dscp, priority) for dscp, priority in those if priority != dscp >> 3]
        calls = (mlnx_qos.set_dscp2prio(name, wrong),) if wrong else ()
        return _Answer(False, _pairs(those), "not in force: trust is %s" % state.dcb.trust, calls)
    is_there: Dict[int, List[int]] = {}
    for dscp, priority in state.dcb.dscp2prio:
        is_there.setdefault(dscp, []).append(priority)
    wrong = [(dscp, priority) for dscp, priority in those if is_there.get(dscp, [0]) != [priority]]
    call = (dcb.replace_dscp if by_dcb else mlnx_qos.set_dscp2prio)(name, wrong)
    have = ", ".join("%d:%s" % (dscp, "+".join(map(str, is_there.get(dscp, [0])))) for dscp, _priority in those)
    return _Answer(not wrong, _pairs(those), have, (call,))


def _prio2tc(state: State, wanted: Want) -> _Answer:
    classes, name = wanted.prio2tc or (), state.port.netdev
    call = dcb.set_prio2tc(name, classes) if state.backend == dcb.TOOL else mlnx_qos.set_prio2tc(name, classes)
    return _Answer(state.dcb.prio2tc == classes, _comma(classes), _comma(state.dcb.prio2tc or ()), (call,))


def _ets(state: State, wanted: Want) -> _Answer:
    """A class that no priority uses is not shown by mlnx_qos, and makes no difference."""
    tsa, bandwidth, name = wanted.tsa or (), wanted.bandwidth or (), state.port.netdev
    have_tsa, have_bandwidth = state.dcb.tsa or (), state.dcb.bandwidth or ()
    used = [number for number, one in enumerate(have_tsa) if one is not None]
    wrong = [
        number
        for number in used
        if have_tsa[number] != tsa[number] or (tsa[number] == "ets" and have_bandwidth[number] != bandwidth[number])
    ]
    call = (dcb if state.backend == dcb.TOOL else mlnx_qos).set_ets(name, tsa, bandwidth)
    return _Answer(not wrong, _shares(tsa, bandwidth), _shares(have_tsa, have_bandwidth), (call,))


def _pfc(state: State, wanted: Want) -> _Answer:
    on, name = wanted.chain.pfc or (), state.port.netdev
    call = dcb.set_pfc(name, on) if state.backend == dcb.TOOL else mlnx_qos.set_pfc(name, on)
    return _Answer(state.dcb.pfc == on, _on_for(on), _on_for(state.dcb.pfc or ()), (call,))


def _buffers(state: State, wanted: Want) -> _Answer:
    name, by_dcb = state.port.netdev, state.backend == dcb.TOOL
    calls: List[Tuple[str, ...]] = []
    want_words, have_words = [], []
    have = state.dcb
    if wanted.cable_length is not None:
        want_words.append("cable %d m" % wanted.cable_length)
        have_words.append("cable %s m" % have.cable_length)
        if have.cable_length != wanted.cable_length:
            setter = dcb.set_delay if by_dcb else mlnx_qos.set_cable_length
            calls.append(setter(name, wanted.cable_length))
    for words, asked_for, there, setter_of in (
        ("priorities", wanted.prio2buffer, have.prio2buffer, (dcb if by_dcb else mlnx_qos).set_prio2buffer),
        ("bytes", wanted.buffer_size, have.buffer_size, (dcb if by_dcb else mlnx_qos).set_buffer_size),
    ):
        if asked_for is not None:
            want_words.append("%s %s" % (words, _comma(asked_for)))
            have_words.append("%s %s" % (words, _comma(there or ()) or "not shown"))
            if there != asked_for:
                calls.append(setter_of(name, asked_for))
    return _Answer(not calls, "; ".join(want_words), "; ".join(have_words), tuple(calls))


def _ecn_answer(state: State, wanted: Want) -> _Answer:
    port, those = state.port, wanted.chain.ecn
    off = [("np", one) for one in those if not state.np.get(one)]
    off += [("rp", one) for one in those if not state.rp.get(one)]
    have = "on for %s" % _comma(those)
    if off:
        have = ", ".join("roce_%s off for %d" % pair for pair in off)
    writes = tuple((_enable(port, side, priority), "1") for side, priority in off)
    return _Answer(not off, "marking and reaction on for %s" % _comma(those), have, writes=writes)


def _cnp(state: State, wanted: Want) -> _Answer:
    chain, folder = wanted.chain, "%s/roce_np" % _ecn(state.port)
    writes = []
    if state.cnp_dscp != chain.cnp_dscp:
        writes.append((folder + "/cnp_dscp", str(chain.cnp_dscp)))
    if state.cnp_priority != chain.cnp_priority:
        writes.append((folder + "/cnp_802p_prio", str(chain.cnp_priority)))
    words = "DSCP %s, priority %s"
    have = words % (state.cnp_dscp, state.cnp_priority)
    return _Answer(not writes, words % (chain.cnp_dscp, chain.cnp_priority), have, writes=tuple(writes))


def _tos(state: State, wanted: Want) -> _Answer:
    value, port = str(wanted.chain.tos), state.port
    calls = ((*_cma_roce_tos(port), "-t", value),) if state.tos_by_tool else ()
    writes = () if state.tos_by_tool else ((_tos_path(port), value),)
    return _Answer(state.tos == wanted.chain.tos, value, str(state.tos), calls, writes)


def _traffic_class(state: State, wanted: Want) -> _Answer:
    value = wanted.chain.traffic_class if wanted.chain.traffic_class is not None else -1
    words = ["none forced" if one < 0 else str(one) for one in (value, state.traffic_class)]
    write = (_class_path(state.port), str(value))
    return _Answer(state.traffic_class == value, words[0], words[1], writes=(write,))


_ANSWERS: Mapping[str, Callable[[State, Want], _Answer]] = {
    "dcbx": _dcbx,
    "pause": _pause,
    "trust": _trust,
    "dscp2prio": _dscp2prio,
    "prio2tc": _prio2tc,
    "ets": _ets,
    "pfc": _pfc,
    "buffers": _buffers,
    "ecn": _ecn_answer,
    "cnp": _cnp,
    "tos": _tos,
    "traffic_class": _traffic_class,
}


def _on(flag: bool) -> str:
    return "on" if flag else "off"


def _comma(values: Sequence[int]) -> str:
    return ",".join(map(str, values))


def _pairs(pairs: Sequence[Tuple[int, int]]) -> str:
    return ", ".join("%d:%d" % pair for pair in pairs)


def _on_for(priorities: Sequence[int]) -> str:
    return "on for %s" % _comma(priorities) if priorities else "off"


def _shares(tsa: Sequence[Optional[str]], bandwidth: Sequence[Optional[int]]) -> str:
    words = [
        "%d %s%s" % (number, one, " %s%%" % bandwidth[number] if one == "ets" else "")
        for number, one in enumerate(tsa)
        if one is not None
    ]
    return ", ".join(words)


def _one_cause(findings: Sequence[Finding]) -> List[Finding]:
    """What nobody can tell for one and the same reason is told once."""
    first: Dict[Tuple[str, Optional[str]], Finding] = {}
    result = []
    for finding in findings:
        if finding.because is None and finding.state in ("unknown", "unsupported", "not_owned"):
            cause = first.setdefault((finding.state, finding.have), finding)
            if cause is not finding:
                finding = replace(finding, because=cause.id)
        result.append(finding)
    return result


def diff(planned: Plan) -> List[Dict[str, str]]:
    """Ansible's diff structure, one per port: what its writes change."""
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


def undecided(chain: Chain, asked: Profile) -> List[str]:
    """What a reader should know where no queue is asked for. PFC for none is a decision, too."""
    if not roce_rails(asked) or (chain.dscp, chain.trust, chain.pfc) != (None, None, None):
        return []
    return ["busbar_roce is not set: trust, PFC, ECN and DSCP of the RoCE rails are not judged"]


def notes(those: Sequence[Port]) -> List[str]:
    """Why there is no finding where one might look for it."""
    guests = [port for port in those if port.nouns == OF_RDMA]
    if guests:
        return [
            "the ports of %d virtual functions are the hypervisor's: trust, PFC and ECN are set there" % len(guests)
        ]
    return []


# -- what is written -------------------------------------------------------------------------------------------------


def execute(
    host: Host, have: Have, wanted: Want, permit: Callable[[Plan], Plan]
) -> Tuple[List[Step], Dict[Tuple[str, str], str]]:
    """Port by port and noun by noun, each planned anew from what is there: trust, for one, rewrites the map.

    permit: leaves out of a plan what may not be done. Returns the steps done, and (port, noun) -> what went wrong;
    nothing more is written to that port then.
    """
    done: List[Step] = []
    failed: Dict[Tuple[str, str], str] = {}
    for state in have.ports:
        tried: Set[str] = set()
        while True:
            planned = permit(plan(Have(have.lldpad, (state,)), wanted))
            steps = [step for step in planned.commands if isinstance(step, Step)]
            for step in steps:
                if step.noun in tried:
                    failed[(step.port, step.noun)] = "%s ended well, and it is not so" % step
            if not steps or failed.keys() & {(step.port, step.noun) for step in steps}:
                break
            # Files have nothing to do with each other: they are written in one go.
            steps = [step for step in steps if step.noun == steps[0].noun or (step.path and steps[0].path)]
            try:
                for step in steps:
                    tried.add(step.noun)
                    _do(host, step)
                    done.append(step)
            except ReadError as error:
                failed[(step.port, step.noun)] = str(error)
                break
            state = read_port(host, state.port, wanted)
    return done, failed


def _do(host: Host, step: Step) -> None:
    """Raises ReadError."""
    if not step.path:
        apply.run(host, step)
    elif step.path.startswith(CONFIGFS):
        with _in_configfs(host, step.path[len(CONFIGFS) + 1 :].partition("/")[0]):
            _write(host, step.path, step.value)
    else:
        _write(host, step.path, step.value)


def _write(host: Host, path: str, value: str) -> None:
    """Never makes the file: an attribute that is not there is an error."""
    try:
        flags = os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(host.hardware(path), flags), "w", encoding="ascii") as stream:
            stream.write(value)
    except OSError as error:
        raise ReadError(path, "cannot be written: %s" % error.strerror) from error
