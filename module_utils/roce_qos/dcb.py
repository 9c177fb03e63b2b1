# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``dcb`` of iproute2: what its ``-j`` prints, and the calls that change it.

``dcb app replace`` always ends with 0, so its output proves nothing. Rates are not set here: up to iproute2 6.1 they
are wrong by a factor of 125. Source: iproute2 dcb/*.c of 6.1 and 7.1.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any, Callable, Dict, Iterable, List, Mapping, Sequence, Tuple

from ..core.host import ParseError
from .port import Dcb

TOOL = "dcb"
Data = Dict[str, Any]
_TSA = ("strict", "cbs", "ets", "vendor", "???")  # ??? is a number that dcb has no name for
# After a pair: nothing, or in iproute2 6.15 (Debian 13) the blank that separates pairs in plain text.
_BEHIND = ([], [" "])
_FLAGS = (False, True)


# -- JSON ------------------------------------------------------------------------------------------------------------


def _check(value: object, allowed: Sequence[object], name: str) -> Any:
    """Return a value, which has to be one of ``allowed`` and of their type. Raises ParseError."""
    if type(value) is not type(allowed[0]) or value not in allowed:
        numbers = "a number from 0 to %s" % allowed[-1] if isinstance(allowed, range) else ""
        expected = numbers or "one of %s" % ", ".join(map(str, allowed))
        raise ParseError("%s holds %.80r, expected %s" % (name, value, expected))
    return value


def _eight(data: Data, name: str, allowed: Sequence[object]) -> Tuple[Any, ...]:
    value = data[name]
    if not isinstance(value, list) or len(value) != 8:
        raise ParseError("%s is %.160r, expected eight values" % (name, value))
    return tuple(_check(one, allowed, name) for one in value)


def _dcbx(data: Data) -> Data:
    # Without this flag firmware owns the settings.
    return {"owner": "os" if _check(data.get("host", False), _FLAGS, "host") else "firmware"}


def _app(data: Data) -> Data:
    pairs = data.get("dscp_prio", [])
    if not isinstance(pairs, list):
        raise ParseError("dscp_prio is %.80r, expected a list of pairs" % (pairs,))
    wrong = [pair for pair in pairs if not isinstance(pair, list) or len(pair) < 2 or pair[2:] not in _BEHIND]
    if wrong:
        raise ParseError("dscp_prio holds %.80r, expected a pair of protocol and priority" % (wrong[0],))
    found = tuple((_check(pair[0], range(64), "dscp_prio"), _check(pair[1], range(8), "dscp_prio")) for pair in pairs)
    # mlx5 trusts the DSCP as soon as one entry is there.
    return {"trust": "dscp" if found else "pcp", "dscp2prio": found}


def _ets(data: Data) -> Data:
    algorithms, bandwidth = _eight(data, "tc_tsa", _TSA), _eight(data, "tc_bw", range(101))
    return {"prio2tc": _eight(data, "prio_tc", range(8)), "tsa": algorithms, "bandwidth": bandwidth}


def _pfc(data: Data) -> Data:
    on = tuple(priority for priority, state in enumerate(_eight(data, "prio_pfc", _FLAGS)) if state)
    return {"pfc": on, "cable_length": _check(data["delay"], range(0x10000), "delay")}


def _buffer(data: Data) -> Data:
    sizes = _eight(data, "buffer_size", range(1 << 32))
    return {"prio2buffer": _eight(data, "prio_buffer", range(8)), "buffer_size": sizes}


# By dcb's name of an object: keys that have to be there, others that may be there, and what they mean. Of APP,
# default_prio has the priority for what no entry names, a bare number.
_APP = "ethtype_prio dscp_prio stream_port_prio dgram_port_prio port_prio pcp_prio default_prio"
_ETS = "willing ets_cap cbs tc_bw pg_bw tc_tsa prio_tc reco_tc_bw reco_tc_tsa reco_prio_tc"
_OBJECTS: Mapping[str, Tuple[str, str, Callable[[Data], Data]]] = {
    "dcbx": ("", "host lld_managed cee ieee static", _dcbx),
    "app": ("", _APP, _app),
    "ets": (_ETS, "", _ets),
    "pfc": ("pfc_cap macsec_bypass delay prio_pfc", "requests indications", _pfc),
    "buffer": ("prio_buffer buffer_size total_size", "", _buffer),
}


def parse(kind: str, text: str, found: Dcb) -> Dcb:
    """Add to what is known of a port. kind: one of _OBJECTS.

    Raises ParseError, also for a key that is not known: a value passed over may be the one that matters.
    """
    needed, allowed, read = _OBJECTS[kind]
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ParseError("%r is not JSON of dcb" % text[:160]) from error
    if not isinstance(data, dict):
        raise ParseError("%r is not a JSON object of dcb" % text[:160])
    wrong = ["unknown key %r" % name for name in data if name not in (*needed.split(), *allowed.split())]
    wrong += ["no key %r" % name for name in needed.split() if name not in data]
    if wrong:
        raise ParseError("%r: %s" % (text[:160], wrong[0]))
    return replace(found, **read(data))


PARSERS: Mapping[str, Callable[[str, Dcb], Dcb]] = {kind: partial(parse, kind) for kind in _OBJECTS}


# -- calls -----------------------------------------------------------------------------------------------------------


def _pairs(pairs: Iterable[Tuple[int, object]]) -> List[str]:
    return ["%d:%s" % pair for pair in pairs]


def _list(word: str, values: Iterable[object]) -> List[str]:
    return [word, *_pairs(enumerate(values))]


_WORDS: Mapping[str, Tuple[str, str, Callable[..., Iterable[str]]]] = {
    # mlx5 takes the kernel as owner only together with both versions.
    "dcbx": ("dcbx", "set", lambda _owner: ("host", "cee", "ieee")),
    # A port that trusts the PCP turns to DSCP with the first entry: then write all 64.
    "dscp2prio": ("app", "replace", lambda pairs: ["dscp-prio", *_pairs(pairs)]),
    # Without an entry a port trusts the PCP.
    "trust": ("app", "flush", lambda _pcp: ["dscp-prio"]),
    # On for these priorities, off for all others. A mask that differs bounces the link.
    "pfc": ("pfc", "set", lambda on: _list("prio-pfc", ["on" if number in on else "off" for number in range(8)])),
    # mlx5 takes the delay, bit times by the man page, for metres of cable.
    "cable_length": ("pfc", "set", lambda metres: ["delay", str(metres)]),
    "prio2tc": ("ets", "set", lambda classes: _list("prio-tc", classes)),
    "ets": ("ets", "set", lambda tsa, bandwidth: _list("tc-tsa", tsa) + _list("tc-bw", bandwidth)),
    "prio2buffer": ("buffer", "set", lambda buffers: _list("prio-buffer", buffers)),
    "buffer_size": ("buffer", "set", lambda sizes: _list("buffer-size", sizes)),
}


def show(kind: str, netdev: str) -> Tuple[str, ...]:
    """Return the call that prints one of PARSERS."""
    return (TOOL, "-j", kind, "show", "dev", netdev)


def call(netdev: str, setting: str, *values: object) -> Tuple[str, ...]:
    """Return the call that sets one of _WORDS."""
    kind, verb, words = _WORDS[setting]
    return (TOOL, kind, verb, "dev", netdev, *words(*values))
