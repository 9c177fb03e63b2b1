# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``dcb`` of iproute2: what its ``-j`` prints, and the calls that change it.

``dcb app replace`` always ends with 0, so its output proves nothing. Rates are not set here: up to iproute2 6.1 they
are wrong by a factor of 125. Source: iproute2 dcb/*.c of 6.1 and 7.1.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Callable, Dict, Iterable, List, Mapping, Sequence, Tuple

from ..core.host import ParseError
from .port import Dcb

TOOL = "dcb"
_TSA = ("strict", "cbs", "ets", "vendor", "???")  # ??? is a number that dcb has no name for
# Parts of the APP table; a priority for what no entry names is a bare number.
_APP = (
    *("ethtype_prio", "dscp_prio", "stream_port_prio", "dgram_port_prio", "port_prio", "pcp_prio"),
    "default_prio",
)
# After a pair: nothing, or in iproute2 6.15 (Debian 13) the blank that separates pairs in plain text.
_BEHIND = ([], [" "])
_ETS = (
    *("willing", "ets_cap", "cbs", "tc_bw", "pg_bw", "tc_tsa", "prio_tc"),
    *("reco_tc_bw", "reco_tc_tsa", "reco_prio_tc"),
)


# -- JSON ------------------------------------------------------------------------------------------------------------
# Each parser adds to what is known of a port. It raises ParseError, also for a key that is not known: a value passed
# over may be the one that matters.


def parse_dcbx(text: str, found: Dcb) -> Dcb:
    data = _load(text, (), ("host", "lld_managed", "cee", "ieee", "static"))
    # Without this flag firmware owns the settings.
    return replace(found, owner="os" if _flag(data.get("host", False), "host") else "firmware")


def parse_app(text: str, found: Dcb) -> Dcb:
    pairs = _load(text, (), _APP).get("dscp_prio", [])
    if not isinstance(pairs, list):
        raise ParseError("dscp_prio is %.80r, expected a list of pairs" % (pairs,))
    wrong = [pair for pair in pairs if not isinstance(pair, list) or len(pair) < 2 or pair[2:] not in _BEHIND]
    if wrong:
        raise ParseError("dscp_prio holds %.80r, expected a pair of protocol and priority" % (wrong[0],))
    dscp2prio = tuple((_integer(pair[0], "dscp_prio", 63), _integer(pair[1], "dscp_prio", 7)) for pair in pairs)
    # mlx5 trusts the DSCP as soon as one entry is there.
    return replace(found, trust="dscp" if dscp2prio else "pcp", dscp2prio=dscp2prio)


def parse_ets(text: str, found: Dcb) -> Dcb:
    data = _load(text, _ETS, ())
    algorithms = _eight(data, "tc_tsa")
    wrong = [one for one in algorithms if one not in _TSA]
    if wrong:
        raise ParseError("tc_tsa holds %.80r, expected one of %s" % (wrong[0], ", ".join(_TSA[:4])))
    bandwidth = _numbers(data, "tc_bw", 100)
    return replace(found, prio2tc=_numbers(data, "prio_tc", 7), tsa=tuple(algorithms), bandwidth=bandwidth)


def parse_pfc(text: str, found: Dcb) -> Dcb:
    data = _load(text, ("pfc_cap", "macsec_bypass", "delay", "prio_pfc"), ("requests", "indications"))
    states = [_flag(one, "prio_pfc") for one in _eight(data, "prio_pfc")]
    on = tuple(priority for priority, state in enumerate(states) if state)
    return replace(found, pfc=on, cable_length=_integer(data["delay"], "delay", 0xFFFF))


def parse_buffer(text: str, found: Dcb) -> Dcb:
    data = _load(text, ("prio_buffer", "buffer_size", "total_size"), ())
    sizes = _numbers(data, "buffer_size", 1 << 32)
    return replace(found, prio2buffer=_numbers(data, "prio_buffer", 7), buffer_size=sizes)


# By the name that dcb has for each of its objects.
PARSERS: Mapping[str, Callable[[str, Dcb], Dcb]] = {
    "dcbx": parse_dcbx,
    "app": parse_app,
    "ets": parse_ets,
    "pfc": parse_pfc,
    "buffer": parse_buffer,
}


def _load(text: str, needed: Sequence[str], allowed: Sequence[str]) -> Dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParseError("%r is not JSON of dcb" % text[:160]) from error
    if not isinstance(data, dict):
        raise ParseError("%r is not a JSON object of dcb" % text[:160])
    unknown = [name for name in data if name not in needed and name not in allowed]
    missing = [name for name in needed if name not in data]
    if unknown or missing:
        raise ParseError(
            "%r: %s" % (text[:160], "unknown key %r" % unknown[0] if unknown else "no key %r" % missing[0])
        )
    return data


def _integer(value: object, name: str, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ParseError("%s holds %.80r, expected a number from 0 to %d" % (name, value, most))
    return value


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise ParseError("%s holds %.80r, expected true or false" % (name, value))
    return value


def _eight(data: Dict[str, Any], name: str) -> List[Any]:
    value = data[name]
    if not isinstance(value, list) or len(value) != 8:
        raise ParseError("%s is %.160r, expected eight values" % (name, value))
    return value


def _numbers(data: Dict[str, Any], name: str, most: int) -> Tuple[int, ...]:
    return tuple(_integer(one, name, most) for one in _eight(data, name))


# -- calls -----------------------------------------------------------------------------------------------------------

_WORDS: Mapping[str, Tuple[str, str, Callable[..., Iterable[str]]]] = {
    # mlx5 takes the kernel as owner only together with both versions.
    "dcbx": ("dcbx", "set", lambda _owner: ("host", "cee", "ieee")),
    # A port that trusts the PCP turns to DSCP with the first entry: then write all 64.
    "dscp2prio": ("app", "replace", lambda pairs: ("dscp-prio", *_mapping(pairs))),
    # Without an entry a port trusts the PCP.
    "trust": ("app", "flush", lambda _pcp: ("dscp-prio",)),
    # On for these priorities, off for all others. A mask that differs bounces the link.
    "pfc": (
        *("pfc", "set"),
        lambda on: ("prio-pfc", *("%d:%s" % (priority, "on" if priority in on else "off") for priority in range(8))),
    ),
    # mlx5 takes the delay, bit times by the man page, for metres of cable.
    "cable_length": ("pfc", "set", lambda metres: ("delay", str(metres))),
    "prio2tc": ("ets", "set", lambda classes: ("prio-tc", *_mapping(enumerate(classes)))),
    "ets": (
        *("ets", "set"),
        lambda tsa, bandwidth: (
            *("tc-tsa", *("%d:%s" % pair for pair in enumerate(tsa))),
            *("tc-bw", *_mapping(enumerate(bandwidth))),
        ),
    ),
    "prio2buffer": ("buffer", "set", lambda buffers: ("prio-buffer", *_mapping(enumerate(buffers)))),
    "buffer_size": ("buffer", "set", lambda sizes: ("buffer-size", *_mapping(enumerate(sizes)))),
}


def show(kind: str, netdev: str) -> Tuple[str, ...]:
    """Return the call that prints one of PARSERS."""
    return (TOOL, "-j", kind, "show", "dev", netdev)


def call(netdev: str, setting: str, *values: object) -> Tuple[str, ...]:
    """Return the call that sets one of _WORDS."""
    kind, verb, words = _WORDS[setting]
    return (TOOL, kind, verb, "dev", netdev, *words(*values))


def _mapping(pairs: Iterable[Tuple[int, int]]) -> List[str]:
    return ["%d:%d" % pair for pair in pairs]
