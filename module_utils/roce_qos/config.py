# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The site's settings of the rails' ports: the chain that busbar_roce declares, and further options."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, List, Mapping, Optional, Tuple

from ..core.host import ParseError
from .chain import Chain
from .port import Eight

OWNERS = ("", "os", "firmware")
TSA = ("strict", "ets", "vendor")


@dataclass(frozen=True)
class PortConfig:
    """Wanted settings, else None or empty. Lists of eight: by priority (prio2tc, prio2buffer) or by class or buffer.

    bandwidth: per cent.   cable_length: metres.   buffer_size: bytes.
    dcbx: "" for the kernel's, with its present owner; os takes it over; firmware leaves all to the switch.
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

    @classmethod
    def from_values(cls, chain: Chain, given: Mapping[str, Any], prefix: str = "") -> PortConfig:
        """given: prio2tc, tsa, tc_bandwidth, cable_length, prio2buffer, buffer_size, dcbx, pause_off.

        prefix: of their names, in messages. Raises ParseError that names every invalid one.
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
        return cls(
            chain=chain,
            prio2tc=prio2tc,
            tsa=None if tsa is None else tuple(tsa),
            bandwidth=bandwidth,
            cable_length=cable,
            prio2buffer=prio2buffer,
            buffer_size=buffer_size,
            dcbx=dcbx,
            # Without PFC, pause is no conflict.
            pause_off=bool(given.get("pause_off") and chain.pfc),
        )

    @property
    def sizes_buffers(self) -> bool:
        """Return whether buffers are sized: the cable's length needs PFC, and no driver that reports its buffers."""
        return self.prio2buffer is not None or self.buffer_size is not None


def _eight(given: Mapping[str, object], name: str, most: int, errors: List[str]) -> Eight:
    value = given.get(name)
    if value is None:
        return None
    if len(value) != 8 or any(not 0 <= one <= most for one in value):
        errors.append("%s is %r, expected eight numbers from 0 to %d" % (name, value, most))
        return None
    return tuple(value)
