# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Declare each port setting that RoCE depends on: reason, when it is wanted, how it is read, compared and written.

``mlnx_qos`` or ``dcb`` reads those that have ``kinds``; the others have a reader (attributes.py).
Source: kernel mlx5 en_dcbnl.c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ..core import fix_command
from ..core.check import Check
from ..core.host import Host, ParseError
from . import dcb, mlnx_qos
from .attributes import (
    CNP,
    ECN,
    TOS,
    TRAFFIC_CLASS,
    class_path,
    compare_cnp,
    compare_ecn,
    compare_tos,
    compare_traffic_class,
    ecn_folder,
    read_cnp,
    read_ecn,
    read_tos,
    read_traffic_class,
    tos_path,
)
from .config import PortConfig
from .port import Call, Comparison, Pause, Port, PortState, as_root, or_unread

_PAUSE = re.compile(r"(Autonegotiate|RX|TX):\s*(on|off)")
_RUN = fix_command.run_tag("roce_qos")


@dataclass(frozen=True)
class Setting:
    """One setting of a port.

    enabled: whether it is wanted.
    compare: names the wanted value even if the setting could not be read.
    kinds: of the objects of dcb that show it; the first is named as the source.
    read: adds the value to the state, or raises Unreadable; None if mlnx_qos or dcb reads it.
    place: the file or command of ``read``.
    """

    check: Check
    enabled: Callable[[PortConfig], bool]
    compare: Callable[[PortState, PortConfig], Comparison]
    kinds: Tuple[str, ...] = ()
    read: Optional[Callable[[Host, PortState, PortConfig], PortState]] = None
    place: Optional[Callable[[Port], str]] = None

    @property
    def name(self) -> str:
        return self.check.id.partition(".")[2]

    def source(self, state: PortState) -> str:
        if self.place is not None:
            return self.place(state.port)
        name = state.port.netdev
        return " ".join(dcb.show(self.kinds[0], name) if state.tool == dcb.TOOL else mlnx_qos.show(name))


def _call(state: PortState, setting: str, *values: object) -> Call:
    """Return the call of the port's tool: both know most settings by the same names."""
    return (dcb if state.tool == dcb.TOOL else mlnx_qos).call(state.port.netdev, setting, *values)


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
    # dcb hands no port over.
    can = want.dcbx == "os" or (want.dcbx and state.tool == mlnx_qos.TOOL)
    calls = (_call(state, "dcbx", want.dcbx),) if can and owner != expected else ()
    return Comparison(owner == expected, _OWNERS[expected], _OWNERS.get(owner or "", "not shown"), calls)


PAUSE = Check(
    "roce_qos.pause",
    why="global pause stops all priorities at once and cannot be used together with PFC",
    fix=_RUN,
    disruption="link",  # other drivers than mlx5 negotiate it anew when pause changes
)
"Is global pause off where PFC is configured"


def _ethtool(port: Port) -> Call:
    return ("ethtool", "-a", port.netdev)


def _read_pause(host: Host, state: PortState, _want: PortConfig) -> PortState:
    argv = _ethtool(state.port)
    with or_unread(" ".join(argv), as_root(argv)):
        state = replace(state, pause=parse_pause(host.query(argv)))
    return state


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
    return Comparison(not pause.rx and not pause.tx, "RX off, TX off", have, (call,))


# -- read by mlnx_qos or dcb --------------------------------------------------------------------------------------

TRUST = Check(
    "roce_qos.trust",
    why="RoCE v2 carries its class in the DSCP: a NIC that trusts the PCP puts all of it into priority 0",
    fix=_RUN,
)
"Does the port take the priority from the DSCP, as configured"


def _trust(state: PortState, want: PortConfig) -> Comparison:
    trust = want.chain.trust or ""
    call = _call(state, "trust", trust)
    if state.tool == dcb.TOOL and trust == "dscp":
        call = _call(state, "dscp2prio", [(dscp, want.chain.priority_of(dscp)) for dscp in range(64)])
    return Comparison(state.dcb.trust == trust, trust, state.dcb.trust or "not shown", (call,))


DSCP2PRIO = Check(
    "roce_qos.dscp2prio",
    why="the map decides the priority of a packet, and so its queue",
    fix=_RUN,
)
"Does the map of DSCPs give the priority of the chain"


def _dscp2prio(state: PortState, want: PortConfig) -> Comparison:
    """A DSCP that is not listed has priority 0 in hardware. One that is listed twice is wrong in any case."""
    pairs = sorted(want.chain.dscp2prio.items())
    words = ", ".join("%d:%d" % pair for pair in pairs)
    have: Dict[int, List[int]] = {}
    for dscp, priority in state.dcb.dscp2prio:
        have.setdefault(dscp, []).append(priority)
    wrong = [(dscp, priority) for dscp, priority in pairs if have.get(dscp, [0]) != [priority]]
    have_words = ", ".join("%d:%s" % (dscp, "+".join(map(str, have.get(dscp, [0])))) for dscp, _priority in pairs)
    trusted = state.dcb.trust == "dscp"
    if not trusted:
        # With trust comes a map: all that is wanted from _trust by dcb, the default one from mlnx_qos.
        wrong = [] if state.tool == dcb.TOOL else [pair for pair in pairs if pair[1] != pair[0] >> 3]
        have_words = "not in force: trust is %s" % state.dcb.trust
    calls = (_call(state, "dscp2prio", wrong),) if wrong else ()
    return Comparison(trusted and not wrong, words, have_words, calls)


PRIO2TC = Check(
    "roce_qos.prio2tc",
    why="the traffic class decides which priorities share a queue",
    fix=_RUN,
    severity="minor",
)
"If configured: is each priority in its traffic class"


def _prio2tc(state: PortState, want: PortConfig) -> Comparison:
    classes, have = want.prio2tc or (), state.dcb.prio2tc
    return Comparison(have == classes, _comma(classes), _comma(have or ()), (_call(state, "prio2tc", classes),))


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
    call = _call(state, "ets", want.tsa or (), want.bandwidth or ())
    return Comparison(good, _shares(wanted), _shares(have), (call,))


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


def _pfc(state: PortState, want: PortConfig) -> Comparison:
    on = want.chain.pfc or ()
    words = ["on for %s" % _comma(mask) if mask else "off" for mask in (on, state.dcb.pfc or ())]
    return Comparison(state.dcb.pfc == on, words[0], words[1], (_call(state, "pfc", on),))


BUFFERS = Check(
    "roce_qos.buffers",
    why="without headroom for the length of the cable packets are lost although PFC is on",
    fix=_RUN,
    severity="minor",
)
"If configured: are the length of the cable and the receive buffers as declared"


def _buffers(state: PortState, want: PortConfig) -> Comparison:
    have = state.dcb
    calls: List[Call] = []
    want_words, have_words = [], []
    if want.cable_length is not None:
        want_words.append("cable %d m" % want.cable_length)
        have_words.append("cable %s m" % have.cable_length)
        if have.cable_length != want.cable_length:
            calls.append(_call(state, "cable_length", want.cable_length))
    for words, name, wanted, given in (
        ("priorities", "prio2buffer", want.prio2buffer, have.prio2buffer),
        ("bytes", "buffer_size", want.buffer_size, have.buffer_size),
    ):
        if wanted is not None:
            want_words.append("%s %s" % (words, _comma(wanted)))
            have_words.append("%s %s" % (words, _comma(given or ()) or "not shown"))
            calls += [_call(state, name, wanted)] if given != wanted else []
    return Comparison(not calls, "; ".join(want_words), "; ".join(have_words), tuple(calls))


def _comma(values: Sequence[int]) -> str:
    return ",".join(map(str, values))


# -- all of them -----------------------------------------------------------------------------------------------------

# In the order of writing: the port's owner comes first, and pause before PFC, which shares its register.
SETTINGS: Mapping[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting(
            DCBX, lambda want: bool(want.dcbx) or any(SETTINGS[name].enabled(want) for name in DCB), _dcbx, ("dcbx",)
        ),
        Setting(PAUSE, lambda want: want.pause_off, _pause, (), _read_pause, lambda port: " ".join(_ethtool(port))),
        Setting(TRUST, lambda want: want.chain.trust is not None, _trust, ("app",)),
        Setting(DSCP2PRIO, lambda want: bool(want.chain.dscp2prio) and want.chain.trust != "pcp", _dscp2prio, ("app",)),
        Setting(PRIO2TC, lambda want: want.prio2tc is not None, _prio2tc, ("ets",)),
        Setting(ETS, lambda want: want.tsa is not None, _ets, ("ets",)),
        Setting(PFC, lambda want: want.chain.pfc is not None, _pfc, ("pfc",)),
        Setting(BUFFERS, lambda want: want.cable_length is not None or want.sizes_buffers, _buffers, ("buffer", "pfc")),
        Setting(ECN, lambda want: bool(want.chain.ecn), compare_ecn, (), read_ecn, ecn_folder),
        Setting(CNP, lambda want: want.chain.cnp_dscp is not None, compare_cnp, (), read_cnp, ecn_folder),
        Setting(TOS, lambda want: want.chain.tos is not None, compare_tos, (), read_tos, tos_path),
        Setting(
            *(TRAFFIC_CLASS, lambda want: want.chain.traffic_class is not None, compare_traffic_class),
            read=read_traffic_class,
            place=class_path,
        ),
    )
}
# Settings that the owner of DCBX overwrites.
DCB = tuple(name for name, setting in SETTINGS.items() if setting.kinds and name != "dcbx")


def enabled(want: PortConfig) -> Tuple[str, ...]:
    """Return names of the wanted settings, in the order of SETTINGS."""
    return tuple(name for name, setting in SETTINGS.items() if setting.enabled(want))
