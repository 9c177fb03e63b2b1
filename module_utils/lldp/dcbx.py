# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Decode a switch port's lossless queue: the DCBX TLVs of IEEE 802.1Qaz (802.1Q, annex D.2.8 to D.2.11).

Bytes are those after the subtype. A TLV that is cut short is refused.
"""

from __future__ import annotations

from typing import Callable, Dict, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, TypeVar

from ..core.host import ParseError

ETS, RECOMMENDED_ETS, PFC, APPLICATION = 9, 10, 11, 12
# Selectors of an application: UDP port, UDP or TCP port, DSCP.
UDP, ANY_PORT, DSCP = 3, 4, 5
ROCE_V2 = 4791
# Transmission selection algorithm of a class that shares bandwidth (IEEE 802.1Q, table 8-6).
SHARES = 2
T = TypeVar("T")


class Ets(NamedTuple):
    """prio2tc: class of each priority.   bandwidth: per cent of each class.   tsa: algorithm of each, as a number."""

    prio2tc: Tuple[int, ...]
    bandwidth: Tuple[int, ...]
    tsa: Tuple[int, ...]


class Applications(NamedTuple):
    """dscp: DSCP -> priorities that it is given.   roce: priorities of RoCE v2 by its UDP port. Two are a mistake."""

    dscp: Mapping[int, Tuple[int, ...]]
    roce: Tuple[int, ...]


def pfc(data: Sequence[int]) -> Tuple[int, ...]:
    """Priorities with PFC: willing, bypass and capability in the first byte, a bit for each priority in the second."""
    if len(data) != 2:
        raise ParseError("its PFC TLV has %d bytes, expected 2" % len(data))
    return tuple(priority for priority in range(8) if data[1] >> priority & 1)


def ets(data: Sequence[int]) -> Ets:
    """One byte of flags, half a byte for each priority (the first half is priority 0), then a byte for each class,
    twice."""
    prio2tc = tuple(half for byte in data[1:5] for half in (byte >> 4, byte & 15))
    found = Ets(prio2tc, tuple(data[5:13]), tuple(data[13:21]))
    if len(data) != 21 or max(prio2tc) > 7 or max(found.bandwidth) > 100:
        raise ParseError("its ETS TLV has %d bytes, expected 21, with classes up to 7 and 100 %%" % len(data))
    return found


def applications(data: Sequence[int]) -> Applications:
    """One byte that is reserved, then three for each: priority (3 bits), reserved (2), selector (3), and what it is."""
    if len(data) % 3 != 1:
        raise ParseError("its application TLV has %d bytes, expected 1 and 3 for each entry" % len(data))
    dscp: Dict[int, Set[int]] = {}
    roce: Set[int] = set()
    for at in range(1, len(data), 3):
        priority, selector, protocol = data[at] >> 5, data[at] & 7, data[at + 1] << 8 | data[at + 2]
        if selector == DSCP and protocol > 63:
            raise ParseError("its application TLV names DSCP %d, expected 0 to 63" % protocol)
        if selector == DSCP:
            dscp.setdefault(protocol, set()).add(priority)
        elif selector in (UDP, ANY_PORT) and protocol == ROCE_V2:
            roce.add(priority)
    return Applications({code: tuple(sorted(to)) for code, to in dscp.items()}, tuple(sorted(roce)))


def decode(
    sent: Mapping[int, Tuple[Sequence[int], ...]], subtype: int, read: Callable[[Sequence[int]], T]
) -> Optional[T]:
    """Decode the only TLV of a subtype; None if none was sent. Raises ParseError, also if two differ."""
    datas = set(sent.get(subtype, ()))
    if len(datas) > 1:
        raise ParseError("it sends %d different TLVs of subtype %d, expected one" % (len(datas), subtype))
    return read(datas.pop()) if datas else None
