# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``dcb`` of iproute2: what its ``-j`` prints, and the calls that change it.

``dcb app replace`` ends with 0 whatever happened, so nothing it says is a proof. Rates are not set here: up to
iproute2 6.1 they are wrong by a factor of 125. Source: iproute2 dcb/*.c of 6.1 and 7.1; host.md 1.6.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple, TypeVar, Union

from ..core.host import ParseError

TOOL = "dcb"
TSA = ("strict", "cbs", "ets", "vendor", "???")  # ??? is a number that dcb has no name for
# Selectors of the APP table; a priority for what no entry names is a bare number.
_SELECTORS = (
    ("ethtype_prio", "dscp_prio", "stream_port_prio", "dgram_port_prio", "port_prio", "pcp_prio")
)  # fmt: skip
_DCBX_FLAGS = ("host", "lld_managed", "cee", "ieee", "static")

Pairs = Tuple[Tuple[Union[int, str], int], ...]


@dataclass(frozen=True)
class Pfc:
    """delay: in bit times by the man page; mlx5 takes it for metres of cable. requests, indications: only with -s."""

    pfc_cap: int
    macsec_bypass: bool
    delay: int
    prio_pfc: Tuple[bool, ...]
    requests: Optional[Tuple[int, ...]] = None
    indications: Optional[Tuple[int, ...]] = None


@dataclass(frozen=True)
class App:
    """(protocol, priority) by selector. A PCP may be a name such as ``3de``. default_prio: bare priorities."""

    ethtype_prio: Pairs = ()
    default_prio: Tuple[int, ...] = ()
    dscp_prio: Tuple[Tuple[int, int], ...] = ()
    stream_port_prio: Pairs = ()
    dgram_port_prio: Pairs = ()
    port_prio: Pairs = ()
    pcp_prio: Pairs = ()


@dataclass(frozen=True)
class Ets:
    """Lists of eight: bandwidth in per cent and algorithm by traffic class, traffic class by priority."""

    willing: bool
    ets_cap: int
    cbs: bool
    tc_bw: Tuple[int, ...]
    pg_bw: Tuple[int, ...]
    tc_tsa: Tuple[str, ...]
    prio_tc: Tuple[int, ...]
    reco_tc_bw: Tuple[int, ...]
    reco_tc_tsa: Tuple[str, ...]
    reco_prio_tc: Tuple[int, ...]


@dataclass(frozen=True)
class Buffer:
    """Bytes; prio_buffer is the receive buffer of priorities 0 to 7."""

    prio_buffer: Tuple[int, ...]
    buffer_size: Tuple[int, ...]
    total_size: int


@dataclass(frozen=True)
class Maxrate:
    """As printed, by traffic class: in 6.1 and before the unit is not the one it says."""

    tc_maxrate: Tuple[int, ...]


@dataclass(frozen=True)
class Dcbx:
    """host: the kernel owns the settings; without it firmware does."""

    host: bool = False
    lld_managed: bool = False
    cee: bool = False
    ieee: bool = False
    static: bool = False


Object = Union[Pfc, App, Ets, Buffer, Maxrate, Dcbx]
T = TypeVar("T")


# -- JSON ------------------------------------------------------------------------------------------------------------


def parse_pfc(text: str) -> Pfc:
    """All parsers raise ParseError, also for a key that is not known."""
    data = _load(text, ("pfc_cap", "macsec_bypass", "delay", "prio_pfc"), ("requests", "indications"))
    return Pfc(
        pfc_cap=_number(data, "pfc_cap", 8),
        macsec_bypass=_flag(data["macsec_bypass"], "macsec_bypass"),
        delay=_number(data, "delay", 0xFFFF),
        prio_pfc=tuple(_flag(one, "prio_pfc") for one in _eight(data, "prio_pfc")),
        requests=_numbers(data, "requests", 1 << 64) if "requests" in data else None,
        indications=_numbers(data, "indications", 1 << 64) if "indications" in data else None,
    )


def parse_app(text: str) -> App:
    data = _load(text, (), (*_SELECTORS, "default_prio"))
    found: Dict[str, Any] = {name: _pairs(data[name], name) for name in _SELECTORS if name in data}
    default = data.get("default_prio", [])
    if not isinstance(default, list):
        raise ParseError("default_prio is %.80r, expected a list of priorities" % (default,))
    wrong = [dscp for dscp, _priority in found.get("dscp_prio", ()) if not isinstance(dscp, int) or dscp > 63]
    if wrong:
        raise ParseError("dscp_prio names DSCP %r, expected 0 to 63" % wrong[0])
    return App(default_prio=tuple(_integer(one, "default_prio", 7) for one in default), **found)


def parse_ets(text: str) -> Ets:
    data = _load(text, tuple(Ets.__dataclass_fields__), ())
    return Ets(
        willing=_flag(data["willing"], "willing"),
        ets_cap=_number(data, "ets_cap", 8),
        cbs=_flag(data["cbs"], "cbs"),
        tc_bw=_numbers(data, "tc_bw", 100),
        pg_bw=_numbers(data, "pg_bw", 100),
        tc_tsa=_algorithms(data, "tc_tsa"),
        prio_tc=_numbers(data, "prio_tc", 7),
        reco_tc_bw=_numbers(data, "reco_tc_bw", 100),
        reco_tc_tsa=_algorithms(data, "reco_tc_tsa"),
        reco_prio_tc=_numbers(data, "reco_prio_tc", 7),
    )


def parse_buffer(text: str) -> Buffer:
    data = _load(text, ("prio_buffer", "buffer_size", "total_size"), ())
    return Buffer(
        _numbers(data, "prio_buffer", 7), _numbers(data, "buffer_size", 1 << 32), _number(data, "total_size", 1 << 32)
    )


def parse_maxrate(text: str) -> Maxrate:
    return Maxrate(_numbers(_load(text, ("tc_maxrate",), ()), "tc_maxrate", 1 << 64))


def parse_dcbx(text: str) -> Dcbx:
    data = _load(text, (), _DCBX_FLAGS)
    return Dcbx(**{name: _flag(data.get(name, False), name) for name in _DCBX_FLAGS})


def render(one: Object) -> str:
    """The JSON as dcb prints it; the parser of its kind takes it back."""
    data = asdict(one)
    # Empty parts of the APP table, statistics not asked for and flags that are off are left out.
    optional = (*_SELECTORS, "default_prio", "requests", "indications", *_DCBX_FLAGS)
    kept = {name: value for name, value in data.items() if name not in optional or value not in (None, False, ())}
    return json.dumps(kept, separators=(",", ":")) + "\n"


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


def _number(data: Dict[str, Any], name: str, most: int) -> int:
    return _integer(data[name], name, most)


def _eight(data: Dict[str, Any], name: str) -> List[Any]:
    value = data[name]
    if not isinstance(value, list) or len(value) != 8:
        raise ParseError("%s is %.160r, expected eight values" % (name, value))
    return value


def _numbers(data: Dict[str, Any], name: str, most: int) -> Tuple[int, ...]:
    return tuple(_integer(one, name, most) for one in _eight(data, name))


def _algorithms(data: Dict[str, Any], name: str) -> Tuple[str, ...]:
    value = _eight(data, name)
    wrong = [one for one in value if one not in TSA]
    if wrong:
        raise ParseError("%s holds %.80r, expected one of %s" % (name, wrong[0], ", ".join(TSA[:4])))
    return tuple(value)


def _pairs(value: object, name: str) -> Pairs:
    if not isinstance(value, list):
        raise ParseError("%s is %.80r, expected a list of pairs" % (name, value))
    found: List[Tuple[Union[int, str], int]] = []
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2:
            raise ParseError("%s holds %.80r, expected a pair of protocol and priority" % (name, pair))
        protocol = pair[0] if name == "pcp_prio" and isinstance(pair[0], str) else _integer(pair[0], name, 0xFFFF)
        found.append((protocol, _integer(pair[1], name, 7)))
    return tuple(found)


# -- calls -----------------------------------------------------------------------------------------------------------


def show(kind: str, netdev: str) -> Tuple[str, ...]:
    """kind: pfc, app, ets, buffer, maxrate, dcbx."""
    return (TOOL, "-j", kind, "show", "dev", netdev)


def set_host(netdev: str) -> Tuple[str, ...]:
    """mlx5 takes the kernel as owner only together with both versions."""
    return (TOOL, "dcbx", "set", "dev", netdev, "host", "cee", "ieee")


def replace_dscp(netdev: str, pairs: Iterable[Tuple[int, int]]) -> Tuple[str, ...]:
    """A port that trusts the PCP turns to DSCP with the first entry: then write all 64."""
    return (TOOL, "app", "replace", "dev", netdev, "dscp-prio", *_mapping(pairs))


def flush_dscp(netdev: str) -> Tuple[str, ...]:
    """Without an entry a port trusts the PCP."""
    return (TOOL, "app", "flush", "dev", netdev, "dscp-prio")


def set_pfc(netdev: str, priorities: Iterable[int]) -> Tuple[str, ...]:
    """On for these, off for all others. A mask that differs bounces the link."""
    on = set(priorities)
    states = ["%d:%s" % (priority, "on" if priority in on else "off") for priority in range(8)]
    return (TOOL, "pfc", "set", "dev", netdev, "prio-pfc", *states)


def set_delay(netdev: str, delay: int) -> Tuple[str, ...]:
    return (TOOL, "pfc", "set", "dev", netdev, "delay", str(delay))


def set_prio2tc(netdev: str, classes: Sequence[int]) -> Tuple[str, ...]:
    return (TOOL, "ets", "set", "dev", netdev, "prio-tc", *_mapping(enumerate(classes)))


def set_ets(netdev: str, tsa: Sequence[str], bandwidth: Sequence[int]) -> Tuple[str, ...]:
    algorithms = ["%d:%s" % pair for pair in enumerate(tsa)]
    return (TOOL, "ets", "set", "dev", netdev, "tc-tsa", *algorithms, "tc-bw", *_mapping(enumerate(bandwidth)))


def set_prio2buffer(netdev: str, buffers: Sequence[int]) -> Tuple[str, ...]:
    return (TOOL, "buffer", "set", "dev", netdev, "prio-buffer", *_mapping(enumerate(buffers)))


def set_buffer_size(netdev: str, sizes: Sequence[int]) -> Tuple[str, ...]:
    return (TOOL, "buffer", "set", "dev", netdev, "buffer-size", *_mapping(enumerate(sizes)))


def _mapping(pairs: Iterable[Tuple[int, int]]) -> List[str]:
    return ["%d:%d" % pair for pair in pairs]
