# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Declare each port setting that RoCE depends on: reason, when it is wanted, how it is read, compared and written.

``mlnx_qos`` or ``dcb`` reads those that have ``kinds``; the others have a reader.
Sources: kernel mlx5 en_dcbnl.c; ABI testing/configfs-rdma_cm; OFED's ecn and tc directories.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ..core import fix_command
from ..core.check import Check
from ..core.host import Host, ParseError, ReadError
from ..machine import netdev, rdma
from ..machine.pci import parse_decimal
from . import dcb, mlnx_qos
from .config import Want
from .port import Gap, Pause, Port, State

CONFIGFS = "/sys/kernel/config/rdma_cm"
# The number alone is how it is written.
_GLOBAL_CLASS = re.compile(r"(?:Global tclass=)?(-1|[0-9]{1,3})")
_PAUSE = re.compile(r"(Autonegotiate|RX|TX):\s*(on|off)")
_RUN = fix_command.run_tag("roce_qos")


class Unreadable(Exception):
    """Raised by a reader that has no value. gap: the reason."""

    def __init__(self, gap: Gap) -> None:
        self.gap = gap
        super().__init__(gap.have)


@dataclass(frozen=True)
class Comparison:
    """Comparison of a noun on one port: whether it is as wanted, both in words, and the changes.

    calls: argv of tools.   writes: (path, value) of attributes in sysfs or configfs.
    """

    good: bool
    want: str
    have: str
    calls: Tuple[Tuple[str, ...], ...] = ()
    writes: Tuple[Tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Noun:
    """One setting of a port.

    enabled: whether it is wanted.
    answer: compares; it names the wanted value even if the setting could not be read.
    kinds: of the objects of dcb that show it; the first is named as the source.
    read: adds the value to the state, or raises Unreadable; None if mlnx_qos or dcb reads it.
    place: the file or command of ``read``.
    """

    check: Check
    enabled: Callable[[Want], bool]
    answer: Callable[[State, Want], Comparison]
    kinds: Tuple[str, ...] = ()
    read: Optional[Callable[[Host, State, Want], State]] = None
    place: Optional[Callable[[Port], str]] = None

    @property
    def name(self) -> str:
        return self.check.id.partition(".")[2]

    def source(self, state: State) -> str:
        name = state.port.netdev
        if self.place is not None:
            return self.place(state.port)
        return " ".join(dcb.show(self.kinds[0], name) if state.tool == dcb.TOOL else mlnx_qos.show(name))


def _tool(state: State) -> ModuleType:
    """Return the module of the port's tool: both have setters of the same names for most nouns."""
    return dcb if state.tool == dcb.TOOL else mlnx_qos


@contextlib.contextmanager
def _or_unread(source: str, fix: str = "") -> Iterator[None]:
    """Makes Unread of a ParseError or ReadError of its body. source: the file or command that the body reads."""
    try:
        yield
    except (ParseError, ReadError) as error:
        raise Unreadable(Gap("unknown", str(error), source, fix or "look at %s" % source)) from error


def _number(host: Host, path: str) -> int:
    """Read a number. Raises ParseError, and ReadError also if the file is absent."""
    return parse_decimal(host.require(path))


# -- DCBX and global pause -------------------------------------------------------------------------------------------

DCBX = Check(
    "roce_qos.dcbx",
    why="the owner of DCBX, firmware or lldpad, overwrites trust, PFC and ETS on each message of the switch",
    fix=_RUN,
)
"Does the kernel own the port's DCB settings, with no lldpad running; or, if configured, the firmware"


def _dcbx(state: State, want: Want) -> Comparison:
    expected = want.dcbx or "os"
    words = {"os": "the kernel owns the port", "firmware": "firmware and the switch own the port"}
    owner = state.dcb.owner
    if owner == expected:
        return Comparison(True, words[expected], words[expected])
    name = state.port.netdev
    calls: Tuple[Tuple[str, ...], ...] = ()
    if want.dcbx and state.tool == mlnx_qos.TOOL:
        calls = (mlnx_qos.set_dcbx(name, want.dcbx),)
    elif want.dcbx == "os":
        calls = (dcb.set_host(name),)
    return Comparison(False, words[expected], words.get(owner or "", "not shown"), calls)


PAUSE = Check(
    "roce_qos.pause",
    why="global pause stops all priorities at once and cannot be used together with PFC",
    fix=_RUN,
    disruption="link",  # other drivers than mlx5 negotiate it anew when pause changes
)
"Is global pause off where PFC is configured"


def _ethtool(port: Port) -> Tuple[str, ...]:
    return ("ethtool", "-a", port.netdev)


def _read_pause(host: Host, state: State, want: Want) -> State:
    argv = _ethtool(state.port)
    with _or_unread(" ".join(argv), as_root(argv)):
        state = replace(state, pause=parse_pause(host.query(argv)))
    return state


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


def as_root(argv: Sequence[str]) -> str:
    """Return the fix for a tool that failed."""
    return "run %s as root and look at dmesg" % " ".join(argv)


def _pause(state: State, want: Want) -> Comparison:
    pause, argv = state.pause or Pause(False, False, False), ["ethtool", "-A", state.port.netdev]
    if pause.autonegotiate:
        argv += ["autoneg", "off"]
    have = "RX %s, TX %s" % tuple("on" if flag else "off" for flag in (pause.rx, pause.tx))
    return Comparison(not pause.rx and not pause.tx, "RX off, TX off", have, ((*argv, "rx", "off", "tx", "off"),))


# -- read by mlnx_qos or dcb --------------------------------------------------------------------------------------

TRUST = Check(
    "roce_qos.trust",
    why="RoCE v2 carries its class in the DSCP: a NIC that trusts the PCP puts all of it into priority 0",
    fix=_RUN,
)
"Does the port take the priority from the DSCP, as configured"


def _trust(state: State, want: Want) -> Comparison:
    name, trust = state.port.netdev, want.chain.trust or ""
    if state.tool == dcb.TOOL:
        every = [(dscp, want.chain.priority_of(dscp)) for dscp in range(64)]
        call = dcb.set_dscp2prio(name, every) if trust == "dscp" else dcb.flush_dscp(name)
    else:
        call = mlnx_qos.set_trust(name, trust)
    return Comparison(state.dcb.trust == trust, trust, state.dcb.trust or "not shown", (call,))


DSCP2PRIO = Check(
    "roce_qos.dscp2prio",
    why="the map decides the priority of a packet, and so its queue",
    fix=_RUN,
)
"Does the map of DSCPs give the priority of the chain"


def _dscp2prio(state: State, want: Want) -> Comparison:
    """A DSCP that is not listed has priority 0 in hardware. One that is listed twice is wrong in any case."""
    asked = sorted(want.chain.dscp2prio.items())
    name, words = state.port.netdev, ", ".join("%d:%d" % pair for pair in asked)
    if state.dcb.trust != "dscp":
        # With trust comes a map: all that is wanted from _trust by dcb, the default one from mlnx_qos.
        wrong = (
            [] if state.tool == dcb.TOOL else [(dscp, priority) for dscp, priority in asked if priority != dscp >> 3]
        )
        calls = (mlnx_qos.set_dscp2prio(name, wrong),) if wrong else ()
        return Comparison(False, words, "not in force: trust is %s" % state.dcb.trust, calls)
    have: Dict[int, List[int]] = {}
    for dscp, priority in state.dcb.dscp2prio:
        have.setdefault(dscp, []).append(priority)
    wrong = [(dscp, priority) for dscp, priority in asked if have.get(dscp, [0]) != [priority]]
    have_words = ["%d:%s" % (dscp, "+".join(map(str, have.get(dscp, [0])))) for dscp, _priority in asked]
    return Comparison(not wrong, words, ", ".join(have_words), (_tool(state).set_dscp2prio(name, wrong),))


PRIO2TC = Check(
    "roce_qos.prio2tc",
    why="the traffic class decides which priorities share a queue",
    fix=_RUN,
    severity="minor",
)
"If configured: is each priority in its traffic class"


def _prio2tc(state: State, want: Want) -> Comparison:
    classes = want.prio2tc or ()
    call = _tool(state).set_prio2tc(state.port.netdev, classes)
    return Comparison(state.dcb.prio2tc == classes, _comma(classes), _comma(state.dcb.prio2tc or ()), (call,))


ETS = Check(
    "roce_qos.ets",
    why="without its share of the bandwidth RoCE starves behind other traffic",
    fix=_RUN,
    severity="minor",
)
"If configured: has each traffic class its algorithm and its share of the bandwidth"


def _ets(state: State, want: Want) -> Comparison:
    """A class that no priority uses is not shown by mlnx_qos, and makes no difference."""
    tsa, bandwidth = want.tsa or (), want.bandwidth or ()
    have_tsa, have_bandwidth = state.dcb.tsa or (), state.dcb.bandwidth or ()
    wrong = [
        number
        for number, algorithm in enumerate(have_tsa)
        if algorithm is not None
        and (algorithm != tsa[number] or (algorithm == "ets" and have_bandwidth[number] != bandwidth[number]))
    ]
    call = _tool(state).set_ets(state.port.netdev, tsa, bandwidth)
    return Comparison(not wrong, _shares(tsa, bandwidth), _shares(have_tsa, have_bandwidth), (call,))


def _shares(tsa: Sequence[Optional[str]], bandwidth: Sequence[Optional[int]]) -> str:
    words = [
        "%d %s%s" % (number, algorithm, " %s%%" % bandwidth[number] if algorithm == "ets" else "")
        for number, algorithm in enumerate(tsa)
        if algorithm is not None
    ]
    return ", ".join(words)


PFC = Check(
    "roce_qos.pfc",
    why="a priority without PFC on one side is lossy: one lost packet stalls a whole collective; PFC on another"
    " priority stops other traffic",
    fix=_RUN,
    disruption="link",  # mlx5 bounces it for a changed mask
)
"Is PFC on for the priority of the chain, and for no other"


def _pfc(state: State, want: Want) -> Comparison:
    on = want.chain.pfc or ()
    words = ["on for %s" % _comma(mask) if mask else "off" for mask in (on, state.dcb.pfc or ())]
    return Comparison(state.dcb.pfc == on, words[0], words[1], (_tool(state).set_pfc(state.port.netdev, on),))


BUFFERS = Check(
    "roce_qos.buffers",
    why="without headroom for the length of the cable packets are lost although PFC is on",
    fix=_RUN,
    severity="minor",
)
"If configured: are the length of the cable and the receive buffers as declared"


def _buffers(state: State, want: Want) -> Comparison:
    tool, have = _tool(state), state.dcb
    calls: List[Tuple[str, ...]] = []
    want_words, have_words = [], []
    if want.cable_length is not None:
        want_words.append("cable %d m" % want.cable_length)
        have_words.append("cable %s m" % have.cable_length)
        if have.cable_length != want.cable_length:
            calls.append(tool.set_cable_length(state.port.netdev, want.cable_length))
    for words, asked, given, set_it in (
        ("priorities", want.prio2buffer, have.prio2buffer, tool.set_prio2buffer),
        ("bytes", want.buffer_size, have.buffer_size, tool.set_buffer_size),
    ):
        if asked is not None:
            want_words.append("%s %s" % (words, _comma(asked)))
            have_words.append("%s %s" % (words, _comma(given or ()) or "not shown"))
            if given != asked:
                calls.append(set_it(state.port.netdev, asked))
    return Comparison(not calls, "; ".join(want_words), "; ".join(have_words), tuple(calls))


def _comma(values: Sequence[int]) -> str:
    return ",".join(map(str, values))


# -- ECN and its notifications, in OFED's directory ------------------------------------------------------------------

ECN = Check(
    "roce_qos.ecn",
    why="without ECN only PFC slows senders down, and congestion spreads through the fabric",
    fix=_RUN,
)
"Is ECN on for the priority of the chain: marking and reaction"


def _folder(port: Port) -> str:
    return "%s/%s/ecn" % (netdev.INTERFACES, port.netdev)


def enable_path(port: Port, side: str, priority: int) -> str:
    """side: np for marking, rp for the reaction."""
    return "%s/roce_%s/enable/%d" % (_folder(port), side, priority)


def _read_ecn(host: Host, state: State, want: Want) -> State:
    paths = [enable_path(state.port, side, priority) for side in ("np", "rp") for priority in want.chain.ecn]
    return _read_folder(host, state, want, paths)


def _read_folder(host: Host, state: State, want: Want, paths: Sequence[str]) -> State:
    port, chain, folder = state.port, want.chain, _folder(state.port)
    with _or_unread(folder):
        is_there = bool(host.listdir(folder))
    if not is_there:
        settings = "ROCE_CC_PRIO_MASK_P%d=255" % port.number
        if chain.cnp_dscp is not None:
            values = (port.number, chain.cnp_dscp, port.number, chain.cnp_priority or 0)
            settings += " CNP_DSCP_P%d=%d CNP_802P_PRIO_P%d=%d" % values
        fix = "mlxconfig -d %s -y set %s, then reboot; or install OFED (role mofed)" % (port.pci, settings)
        missing = "no ecn directory: with the kernel's own driver ECN is firmware configuration"
        raise Unreadable(Gap("unsupported", missing, folder, fix))
    numbers = dict(state.numbers)
    # Of several that cannot be read the last is reported.
    for path in reversed(paths):
        with _or_unread(path):
            numbers[path] = _number(host, path)
    return replace(state, numbers=numbers)


def _ecn(state: State, want: Want) -> Comparison:
    priorities = want.chain.ecn
    off = [
        (side, priority)
        for side in ("np", "rp")
        for priority in priorities
        if not state.numbers.get(enable_path(state.port, side, priority))
    ]
    have = ", ".join("roce_%s off for %d" % pair for pair in off) or "on for %s" % _comma(priorities)
    writes = tuple((enable_path(state.port, side, priority), "1") for side, priority in off)
    return Comparison(not off, "marking and reaction on for %s" % _comma(priorities), have, writes=writes)


CNP = Check(
    "roce_qos.cnp",
    why="a congestion notification that waits in the congested queue arrives too late",
    fix=_RUN,
    severity="minor",
)
"Do congestion notifications have the configured class"


def cnp_paths(port: Port) -> Tuple[str, str]:
    return "%s/roce_np/cnp_dscp" % _folder(port), "%s/roce_np/cnp_802p_prio" % _folder(port)


def _read_cnp(host: Host, state: State, want: Want) -> State:
    return _read_folder(host, state, want, cnp_paths(state.port))


def _cnp(state: State, want: Want) -> Comparison:
    paths, wanted = cnp_paths(state.port), (want.chain.cnp_dscp, want.chain.cnp_priority)
    have = tuple(map(state.numbers.get, paths))
    writes = [(path, str(value)) for path, value, now in zip(paths, wanted, have) if value != now]
    words = "DSCP %s, priority %s"
    return Comparison(not writes, words % wanted, words % have, writes=tuple(writes))


# -- the RDMA device -------------------------------------------------------------------------------------------------

TOS = Check(
    "roce_qos.tos",
    why="connections that rdma_cm makes without their own traffic class get this one",
    fix=_RUN,
)
"Does traffic of rdma_cm have the class of the chain"


def tos_path(port: Port) -> str:
    return "%s/%s/ports/%d/default_roce_tos" % (CONFIGFS, port.rdma, port.rdma_port)


def _read_tos(host: Host, state: State, want: Want) -> State:
    """rdma_cm shows a device in the directory of its name, which a run makes when it writes. To read it makes none."""
    path = tos_path(state.port)
    if not os.path.isdir(host.hardware(CONFIGFS)):
        problem = "%s is not there: rdma_cm is not loaded, or configfs not mounted" % CONFIGFS
        fix = "modprobe rdma_cm && mount -t configfs none /sys/kernel/config, as far as either is missing"
        raise Unreadable(Gap("unknown", problem, path, fix))
    if not os.path.isdir(host.hardware("%s/%s" % (CONFIGFS, state.port.rdma))):
        return state
    with _or_unread(path):
        return replace(state, numbers={**state.numbers, path: _number(host, path)})


def _tos(state: State, want: Want) -> Comparison:
    path, value = tos_path(state.port), str(want.chain.tos)
    have = state.numbers.get(path)
    said = (
        "not shown: rdma_cm has no directory for the device; the kernel's default is 0" if have is None else str(have)
    )
    return Comparison(have == want.chain.tos, value, said, writes=((path, value),))


TRAFFIC_CLASS = Check(
    "roce_qos.traffic_class",
    why="it is forced upon every queue pair of the device",
    fix=_RUN,
)
"If configured: is the traffic class, or none, forced on every queue pair of the device"


def class_path(port: Port) -> str:
    return "%s/%s/tc/%d/traffic_class" % (rdma.DEVICES, port.rdma, port.rdma_port)


def _read_traffic_class(host: Host, state: State, want: Want) -> State:
    path = class_path(state.port)
    with _or_unread(path):
        try:
            text = host.read(path)
        except ReadError as error:
            if error.problem.message != "is empty":
                raise
            text = ""
        if text is None:
            fix = "install OFED (role mofed), or leave traffic_class unset and give jobs NCCL_IB_TC"
            raise Unreadable(Gap("unsupported", "only OFED's driver can force a traffic class", path, fix))
        state = replace(state, numbers={**state.numbers, path: parse_traffic_class(text)})
    return state


def parse_traffic_class(text: str) -> int:
    """The global one, -1 for none. Rules for single addresses stand in further lines. Raises ParseError."""
    first = text.partition("\n")[0].strip()
    if not first or first.startswith("tclass="):
        return -1
    match = _GLOBAL_CLASS.fullmatch(first)
    if match is None:
        raise ParseError("%r is not a line like Global tclass=106" % first[:80])
    return int(match.group(1))


def _traffic_class(state: State, want: Want) -> Comparison:
    path, wanted = class_path(state.port), want.chain.traffic_class
    values = (-1 if wanted is None else wanted, state.numbers.get(path, -1))
    words = ["none forced" if value < 0 else str(value) for value in values]
    return Comparison(values[0] == values[1], words[0], words[1], writes=((path, str(values[0])),))


# -- all of them -----------------------------------------------------------------------------------------------------

# In the order of writing: the port's owner comes first, and pause before PFC, which shares its register.
NOUNS: Mapping[str, Noun] = {
    noun.name: noun
    for noun in (
        Noun(DCBX, lambda want: bool(want.dcbx) or any(NOUNS[name].enabled(want) for name in DCB), _dcbx, ("dcbx",)),
        Noun(PAUSE, lambda want: want.pause_off, _pause, (), _read_pause, lambda port: " ".join(_ethtool(port))),
        Noun(TRUST, lambda want: want.chain.trust is not None, _trust, ("app",)),
        Noun(DSCP2PRIO, lambda want: bool(want.chain.dscp2prio) and want.chain.trust != "pcp", _dscp2prio, ("app",)),
        Noun(PRIO2TC, lambda want: want.prio2tc is not None, _prio2tc, ("ets",)),
        Noun(ETS, lambda want: want.tsa is not None, _ets, ("ets",)),
        Noun(PFC, lambda want: want.chain.pfc is not None, _pfc, ("pfc",)),
        Noun(BUFFERS, lambda want: want.cable_length is not None or want.sizes_buffers, _buffers, ("buffer", "pfc")),
        Noun(ECN, lambda want: bool(want.chain.ecn), _ecn, (), _read_ecn, _folder),
        Noun(CNP, lambda want: want.chain.cnp_dscp is not None, _cnp, (), _read_cnp, _folder),
        Noun(TOS, lambda want: want.chain.tos is not None, _tos, (), _read_tos, tos_path),
        Noun(
            TRAFFIC_CLASS,
            lambda want: want.chain.traffic_class is not None,
            _traffic_class,
            (),
            _read_traffic_class,
            class_path,
        ),
    )
}
# Nouns that the owner of DCBX overwrites.
DCB = tuple(name for name, noun in NOUNS.items() if noun.kinds and name != "dcbx")


def enabled(want: Want) -> Tuple[str, ...]:
    """Return names of the wanted nouns, in the order of NOUNS."""
    return tuple(name for name, noun in NOUNS.items() if noun.enabled(want))
