# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Declare each port setting that RoCE depends on: reason, when it is wanted, how it is read, compared and written.

``mlnx_qos`` reads those without ``read``; the others are files of sysfs or configfs, or ethtool's.
Sources: kernel mlx5 en_dcbnl.c; ABI testing/configfs-rdma_cm; OFED's ecn and tc directories.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from ..core import fix_command
from ..core.check import Check
from ..core.host import Host, ParseError, ReadError
from ..machine import netdev, rdma
from ..machine.pci import fullmatch, parse_decimal
from . import mlnx_qos
from .chain import Chain, PortConfig
from .port import Gap, Pause, Port, PortState

CONFIGFS = "/sys/kernel/config/rdma_cm"
# Attributes of a port, for str.format. Of ECN: np marks, rp reacts; a priority follows.
ECN_FOLDER = netdev.INTERFACES + "/{0.netdev}/ecn"
ECN_ENABLE = ECN_FOLDER + "/roce_{1}/enable/{2}"
CNP_PATHS = (ECN_FOLDER + "/roce_np/cnp_dscp", ECN_FOLDER + "/roce_np/cnp_802p_prio")
TOS_PATH = CONFIGFS + "/{0.rdma}/ports/{0.rdma_port}/default_roce_tos"
CLASS_PATH = rdma.DEVICES + "/{0.rdma}/tc/{0.rdma_port}/traffic_class"
_RUN = fix_command.run_tag("roce_qos")
_PAUSE = re.compile(r"(Autonegotiate|RX|TX):\s*(on|off)")
# The number alone is how it is written.
_GLOBAL_CLASS = re.compile(r"(?:Global tclass=)?(-1|[0-9]{1,3})")


# The argv of a tool, "" and ""; or (), and path and value of an attribute in sysfs or configfs.
Change = Tuple[Tuple[str, ...], str, str]


class Comparison(NamedTuple):
    """Comparison of a setting of one port: whether it is as wanted, both in words, and the changes."""

    good: bool
    want: str
    have: str
    changes: Tuple[Change, ...] = ()


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else "not shown" if value is None else str(value)


class Setting(NamedTuple):
    """One setting of a port.

    wanted: the wanted value; None if the setting is not wanted.
    special: compares it, also if it could not be read; None for an attribute of Dcb with the setting's name.
    text: the words for a value.
    read: adds the value to the state, or returns why there is none; None if mlnx_qos reads it. Raises ReadError and
        ParseError. place: the file or command that it reads, for str.format.
    """

    check: Check
    wanted: Callable[[PortConfig], object]
    special: Optional[Callable[[PortState, PortConfig], Comparison]] = None
    read: Optional[Callable[[Host, PortState, PortConfig], Union[PortState, Gap]]] = None
    place: str = ""
    text: Callable[[object], str] = _text

    @property
    def name(self) -> str:
        return self.check.id.partition(".")[2]

    def source(self, port: Port) -> str:
        return self.place.format(port) if self.place else " ".join(mlnx_qos.show(port.netdev))

    def compare(self, state: PortState, want: PortConfig) -> Comparison:
        if self.special is not None:
            return self.special(state, want)
        return _equal(state, self.name, self.wanted(want), getattr(state.dcb, self.name), self.text)


def _call(state: PortState, setting: str, *values: object) -> Change:
    return mlnx_qos.call(state.port.netdev, setting, *values), "", ""


def _equal(
    state: PortState, setting: str, wanted: object, have: object, text: Callable[[object], str] = _text
) -> Comparison:
    return Comparison(have == wanted, text(wanted), text(have), (_call(state, setting, wanted),))


# -- DCBX and global pause -------------------------------------------------------------------------------------------

DCBX = Check(
    "roce_qos.dcbx",
    why="the owner of DCBX, firmware or lldpad, overwrites trust, PFC and ETS on each message of the switch",
    fix=_RUN,
)
"Does the kernel own the port's DCB settings, with no lldpad running; or, if configured, the firmware"
_OWNERS = {"os": "the kernel owns the port", "firmware": "firmware and the switch own the port"}


def _dcbx(state: PortState, want: PortConfig) -> Comparison:
    expected, owner = want.dcbx or "os", state.dcb.owner
    calls = (_call(state, "dcbx", want.dcbx),) if want.dcbx and owner != expected else ()
    return Comparison(owner == expected, _OWNERS[expected], _OWNERS.get(owner or "", "not shown"), calls)


PAUSE = Check(
    "roce_qos.pause",
    why="global pause stops all priorities at once and cannot be used together with PFC",
    fix=_RUN,
    disruption="link",  # other drivers than mlx5 negotiate it anew when pause changes
)
"Is global pause off where PFC is configured"


_ETHTOOL = "ethtool -a {0.netdev}"


def _read_pause(host: Host, state: PortState, _want: PortConfig) -> PortState:
    return replace(state, pause=parse_pause(host.query(_ETHTOOL.format(state.port).split())))


def parse_pause(text: str) -> Pause:
    """``ethtool -a``. What was negotiated is not looked at: it changes with the switch. Raises ParseError."""
    matches = filter(None, (_PAUSE.fullmatch(line.strip()) for line in text.splitlines()))
    found = {match.group(1): match.group(2) == "on" for match in matches}
    if len(found) != 3:
        raise ParseError("%r names no Autonegotiate, RX and TX" % text[:160])
    return Pause(found["Autonegotiate"], found["RX"], found["TX"])


def _pause(state: PortState, _want: PortConfig) -> Comparison:
    pause = state.pause or Pause(False, False, False)
    negotiated = ("autoneg", "off") if pause.autonegotiate else ()
    have = "RX %s, TX %s" % tuple("on" if flag else "off" for flag in (pause.rx, pause.tx))
    call = ("ethtool", "-A", state.port.netdev, *negotiated, "rx", "off", "tx", "off")
    return Comparison(not pause.rx and not pause.tx, "RX off, TX off", have, ((call, "", ""),))


# -- read by mlnx_qos --------------------------------------------------------------------------------------

TRUST = Check(
    "roce_qos.trust",
    why="RoCE v2 carries its class in the DSCP: a NIC that trusts the PCP puts all of it into priority 0",
    fix=_RUN,
)
"Does the port take the priority from the DSCP, as configured"


DSCP2PRIO = Check("roce_qos.dscp2prio", why="the map decides the priority of a packet, and so its queue", fix=_RUN)
"Does the map of DSCPs give the priority of the chain"


def _dscp2prio(state: PortState, want: PortConfig) -> Comparison:
    """A DSCP that is not listed has priority 0 in hardware. One that is listed twice is wrong in any case."""
    pairs = sorted(want.chain.dscp2prio.items())
    listed: Dict[int, List[int]] = {}
    for dscp, priority in state.dcb.dscp2prio:
        listed.setdefault(dscp, []).append(priority)
    have = {dscp: listed.get(dscp, [0]) for dscp, _priority in pairs}
    wrong = [(dscp, priority) for dscp, priority in pairs if have[dscp] != [priority]]
    text = ", ".join("%d:%s" % (dscp, "+".join(map(str, found))) for dscp, found in have.items())
    trusted = state.dcb.trust == "dscp"
    if not trusted:
        # With trust comes the default map.
        wrong = [pair for pair in pairs if pair[1] != pair[0] >> 3]
        text = "not in force: trust is %s" % state.dcb.trust
    calls = (_call(state, "dscp2prio", wrong),) if wrong else ()
    return Comparison(trusted and not wrong, ", ".join("%d:%d" % pair for pair in pairs), text, calls)


PRIO2TC = Check(
    "roce_qos.prio2tc", why="the traffic class decides which priorities share a queue", fix=_RUN, severity="minor"
)
"If configured: is each priority in its traffic class"

ETS = Check(
    "roce_qos.ets",
    why="without its share of the bandwidth RoCE starves behind other traffic",
    fix=_RUN,
    severity="minor",
)
"If configured: has each traffic class its algorithm and its share of the bandwidth"


def _ets(state: PortState, want: PortConfig) -> Comparison:
    """A class that no priority uses is not shown by mlnx_qos, and makes no difference."""
    wanted = list(zip(want.tsa or (), want.bandwidth or ()))
    have = list(zip(state.dcb.tsa or (), state.dcb.bandwidth or ()))
    # Only ets has a share.
    good = all(now[0] is None or now == to or now[0] == to[0] != "ets" for now, to in zip(have, wanted))
    return Comparison(good, _shares(wanted), _shares(have), (_call(state, "ets", want.tsa, want.bandwidth),))


def _shares(classes: Sequence[Tuple[Optional[str], Optional[int]]]) -> str:
    return ", ".join(
        "%d %s%s" % (number, algorithm, " %s%%" % share if algorithm == "ets" else "")
        for number, (algorithm, share) in enumerate(classes)
        if algorithm is not None
    )


PFC = Check(
    "roce_qos.pfc",
    why="a priority without PFC on one side is lossy: one lost packet stalls a whole collective; PFC on another"
    " priority stops other traffic",
    fix=_RUN,
    disruption="link",  # mlx5 bounces it for a changed mask
)
"Is PFC on for the priority of the chain, and for no other"

BUFFERS = Check(
    "roce_qos.buffers",
    why="without headroom for the length of the cable packets are lost although PFC is on",
    fix=_RUN,
    severity="minor",
)
"If configured: are the length of the cable and the receive buffers as declared"


def _buffers(state: PortState, want: PortConfig) -> Comparison:
    found = [
        (text, _equal(state, name, getattr(want, name), getattr(state.dcb, name)))
        for name, text in (
            ("cable_length", "cable %s m"),
            ("prio2buffer", "priorities %s"),
            ("buffer_size", "bytes %s"),
        )
        if getattr(want, name) is not None
    ]
    calls = [call for _text, one in found if not one.good for call in one.changes]
    wanted, have = ("; ".join(parts) for parts in zip(*((text % one.want, text % one.have) for text, one in found)))
    return Comparison(not calls, wanted, have, tuple(calls))


# -- files: ECN and its notifications in the directory of OFED, and those of the RDMA device ---------------------------


def _files(
    wanted: Callable[[Port, Chain], Mapping[str, Optional[int]]], text: str, names: Mapping[Optional[int], str]
) -> Callable[[PortState, PortConfig], Comparison]:
    """Return the comparison of attributes. wanted: path -> value. text: of all values. names: of values with a name."""

    def compare(state: PortState, want: PortConfig) -> Comparison:
        to = wanted(state.port, want.chain)
        have = {path: state.numbers.get(path) for path in to}
        words = [text % tuple(names.get(value, value) for value in values.values()) for values in (to, have)]
        writes = tuple(((), path, str(value)) for path, value in to.items() if have[path] != value)
        return Comparison(not writes, words[0], words[1], writes)

    return compare


def _add_numbers(host: Host, state: PortState, paths: Iterable[str]) -> PortState:
    """Add attributes; an absent one is an error."""
    numbers = dict(state.numbers)
    for path in paths:
        try:
            numbers[path] = parse_decimal(host.require(path))
        except ParseError as error:
            raise ReadError(path, str(error)) from error
    return replace(state, numbers=numbers)


ECN = Check(
    "roce_qos.ecn", why="without ECN only PFC slows senders down, and congestion spreads through the fabric", fix=_RUN
)
"Is ECN on for the priority of the chain: marking and reaction"


def _ecn_paths(port: Port, chain: Chain) -> Dict[str, Tuple[str, int]]:
    places = [(side, number) for side in ("np", "rp") for number in chain.ecn]
    return {ECN_ENABLE.format(port, *place): place for place in places}


def _ecn(state: PortState, want: PortConfig) -> Comparison:
    paths = _ecn_paths(state.port, want.chain)
    off = [path for path in paths if not state.numbers.get(path)]
    on = "marking and reaction on for %s" % _text(want.chain.ecn)
    have = ", ".join("roce_%s off for %d" % paths[path] for path in off) or on
    return Comparison(not off, on, have, tuple(((), path, "1") for path in off))


CNP = Check(
    "roce_qos.cnp",
    why="a congestion notification that waits in the congested queue arrives too late",
    fix=_RUN,
    severity="minor",
)
"Do congestion notifications have the configured class"


def _cnp(port: Port, chain: Chain) -> Mapping[str, Optional[int]]:
    return {path.format(port): value for path, value in zip(CNP_PATHS, (chain.cnp_dscp, chain.cnp_priority))}


def _read_ofed(host: Host, state: PortState, chain: Chain, paths: Iterable[str]) -> Union[PortState, Gap]:
    port = state.port
    folder = ECN_FOLDER.format(port)
    if host.listdir(folder):
        return _add_numbers(host, state, paths)
    settings = "ROCE_CC_PRIO_MASK_P%d=255" % port.number
    if chain.cnp_dscp is not None:
        values = (port.number, chain.cnp_dscp, port.number, chain.cnp_priority or 0)
        settings += " CNP_DSCP_P%d=%d CNP_802P_PRIO_P%d=%d" % values
    fix = "mlxconfig -d %s -y set %s, then reboot; or install OFED (role mofed)" % (port.pci, settings)
    missing = "no ecn directory: with the kernel's own driver ECN is firmware configuration"
    return Gap("unsupported", missing, folder, fix)


TOS = Check("roce_qos.tos", why="connections that rdma_cm makes without their own traffic class get this one", fix=_RUN)
"Does traffic of rdma_cm have the class of the chain"


def _read_tos(host: Host, state: PortState, _want: PortConfig) -> Union[PortState, Gap]:
    """rdma_cm shows a device in the directory of its name, which a run makes when it writes. To read it makes none."""
    path = TOS_PATH.format(state.port)
    if not os.path.isdir(host.hardware(CONFIGFS)):
        problem = "%s is not there: rdma_cm is not loaded, or configfs not mounted" % CONFIGFS
        fix = "modprobe rdma_cm && mount -t configfs none /sys/kernel/config, as far as either is missing"
        return Gap("unknown", problem, path, fix)
    is_there = os.path.isdir(host.hardware("%s/%s" % (CONFIGFS, state.port.rdma)))
    return _add_numbers(host, state, [path]) if is_there else state


TRAFFIC_CLASS = Check("roce_qos.traffic_class", why="it is forced upon every queue pair of the device", fix=_RUN)
"If configured: is the traffic class, or none, forced on every queue pair of the device"


def _read_class(host: Host, state: PortState, _want: PortConfig) -> Union[PortState, Gap]:
    path = CLASS_PATH.format(state.port)
    try:
        text = host.read(path)
    except ReadError as error:
        if error.problem.message != "is empty":
            raise
        text = ""
    if text is None:
        fix = "install OFED (role mofed), or leave traffic_class unset and give jobs NCCL_IB_TC"
        return Gap("unsupported", "only OFED's driver can force a traffic class", path, fix)
    return replace(state, numbers={**state.numbers, path: parse_traffic_class(text)})


def parse_traffic_class(text: str) -> int:
    """The global one, -1 for none. Rules for single addresses stand in further lines. Raises ParseError."""
    first = text.partition("\n")[0].strip()
    if not first or first.startswith("tclass="):
        return -1
    return int(fullmatch(_GLOBAL_CLASS, first, "a line like Global tclass=106").group(1))


# -- all of them -----------------------------------------------------------------------------------------------------

# In the order of writing: the port's owner comes first, and pause before PFC, which shares its register.
SETTINGS: Mapping[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting(
            DCBX,
            lambda want: want.dcbx or any(SETTINGS[name].wanted(want) is not None for name in DCB) or None,
            _dcbx,
        ),
        Setting(PAUSE, lambda want: want.pause_off or None, _pause, _read_pause, _ETHTOOL),
        Setting(TRUST, lambda want: want.chain.trust),
        Setting(
            DSCP2PRIO,
            lambda want: None if want.chain.trust == "pcp" else want.chain.dscp2prio or None,
            _dscp2prio,
        ),
        Setting(PRIO2TC, lambda want: want.prio2tc),
        Setting(ETS, lambda want: want.tsa, _ets),
        Setting(PFC, lambda want: want.chain.pfc, text=lambda on: "on for %s" % _text(on) if on else "off"),
        Setting(BUFFERS, lambda want: True if want.sizes_buffers else want.cable_length, _buffers),
        Setting(
            *(ECN, lambda want: want.chain.ecn or None, _ecn),
            lambda host, state, want: _read_ofed(host, state, want.chain, _ecn_paths(state.port, want.chain)),
            ECN_FOLDER,
        ),
        Setting(
            *(CNP, lambda want: want.chain.cnp_dscp),
            _files(_cnp, "DSCP %s, priority %s", {}),
            lambda host, state, want: _read_ofed(host, state, want.chain, _cnp(state.port, want.chain)),
            ECN_FOLDER,
        ),
        Setting(
            *(TOS, lambda want: want.chain.tos),
            _files(
                lambda port, chain: {TOS_PATH.format(port): chain.tos},
                "%s",
                {None: "not shown: rdma_cm has no directory for the device; the kernel's default is 0"},
            ),
            *(_read_tos, TOS_PATH),
        ),
        Setting(
            *(TRAFFIC_CLASS, lambda want: want.chain.traffic_class),
            _files(
                lambda port, chain: {CLASS_PATH.format(port): chain.traffic_class},
                "%s",
                dict.fromkeys((None, -1), "none forced"),
            ),
            *(_read_class, CLASS_PATH),
        ),
    )
}
# Settings that the owner of DCBX overwrites.
DCB: Tuple[str, ...] = tuple(name for name, setting in SETTINGS.items() if setting.read is None and name != "dcbx")


def enabled(want: PortConfig) -> Tuple[str, ...]:
    """Return names of the wanted settings, in the order of SETTINGS."""
    return tuple(name for name, setting in SETTINGS.items() if setting.wanted(want) is not None)
