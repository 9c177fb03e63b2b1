# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Resolve what the inventory declares of the ports: the DSCP chain, which is one value in five places, and the rest.

Traffic class -> DSCP -> priority -> PFC and ECN. DSCP and priority are declared once, in busbar_roce; undeclared
settings of the NIC follow from these two. Source: RFC 2474 and RFC 3168 (traffic class = DSCP * 4 + ECN).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, List, Mapping, Optional, Sequence, Tuple

from ..core.host import ParseError
from ..core.number import whole

TRUSTS = ("dscp", "pcp")
OWNERS = ("", "os", "firmware")
TSA = ("strict", "ets", "vendor")
Eight = Optional[Tuple[int, ...]]
# The ECN bits of a traffic class, ECT(0): the device sets them in packets under congestion control anyway.
_ECT = 2
# DSCP of congestion notification packets where busbar_roce declares none: CS6, as the NICs send them by default.
_CNP_DSCP = 48


@dataclass(frozen=True)
class Chain:
    """Wanted settings of the ports of a node's RoCE rails. None or empty: not wanted.

    dscp, priority: of RDMA traffic. DSCPs are 0 to 63, priorities 0 to 7.
    cnp_dscp, cnp_priority: of congestion notification packets (CNP).
    trust: the header field from which the NIC takes a packet's priority, a word of TRUSTS.
    dscp2prio: DSCP -> priority, wanted entries of the NIC's map; all other entries stay as they are.
    pfc: priorities with PFC, every other priority is without; () is a fabric without any PFC, which is lossy.
    ecn: priorities on which the NIC marks congestion and reacts to it.
    tos: type of service byte, 0 to 255, that rdma_cm gives its connections.
    traffic_class: 0 to 255, forced upon every queue pair of the port; -1 forces none.
    """

    dscp: Optional[int] = None
    priority: Optional[int] = None
    cnp_dscp: Optional[int] = None
    cnp_priority: Optional[int] = None
    trust: Optional[str] = None
    dscp2prio: Mapping[int, int] = field(default_factory=dict)
    pfc: Optional[Tuple[int, ...]] = None
    ecn: Tuple[int, ...] = ()
    tos: Optional[int] = None
    traffic_class: Optional[int] = None

    def priority_of(self, dscp: int) -> int:
        """Return the priority of a DSCP: by dscp2prio, else by the NIC's default map, eight DSCPs each."""
        return self.dscp2prio.get(dscp, dscp >> 3)


# Of each value the least and the most; how many a list has, 0 for any number of priorities; None for a number alone.
_Table = Mapping[str, Tuple[int, int, Optional[int]]]
_ROCE: _Table = {
    "dscp": (0, 63, None),
    "priority": (0, 7, None),
    "cnp_dscp": (0, 63, None),
    "cnp_priority": (0, 7, None),
}
_CHAIN: _Table = {"pfc": (0, 7, 0), "ecn": (0, 7, 0), "tos": (0, 255, None), "traffic_class": (-1, 255, None)}
_QUEUES: _Table = {
    "prio2tc": (0, 7, 8),
    "tc_bandwidth": (0, 100, 8),
    "cable_length": (1, 999, None),
    "prio2buffer": (0, 7, 8),
    "buffer_size": (0, 0xFFFFFFFF, 8),
}
_EXPECTED = {None: "%d to %d", 0: "a list of priorities %d to %d", 8: "eight numbers from %d to %d"}


def _read(given: Mapping[str, Any], table: _Table, prefix: str, errors: List[str]) -> List[Any]:
    """Return the values of a table's names. errors: gets a sentence for each that is not as it has to be."""
    found = []
    for name, (least, most, count) in table.items():
        value = given.get(name)
        values = [value] if count is None else value if isinstance(value, (list, tuple)) else None
        is_list = values is not None and len(values) == (count or len(values))
        good = is_list and all(_is_whole(one, least, most) for one in values or ())
        if value is not None and not good:
            errors.append("%s%s is %r, expected %s" % (prefix, name, value, _EXPECTED[count] % (least, most)))
        found.append(value if count is None or values is None else tuple(values))
    return found


def _word(given: Mapping[str, Any], name: str, choices: Sequence[str], prefix: str, errors: List[str]) -> str:
    value = given.get(name) or ""
    if value not in ("", *choices):
        errors.append("%s%s is %r, expected one of %s" % (prefix, name, value, ", ".join(choices)))
    return str(value)


def _dscp_map(given: Mapping[str, Any], prefix: str, errors: List[str]) -> Mapping[int, int]:
    """Return dscp2prio. A DSCP may be text, for JSON knows no other keys."""
    value = given.get("dscp2prio") or {}
    if not isinstance(value, Mapping):
        errors.append("%sdscp2prio is %r, expected a mapping of DSCPs to priorities" % (prefix, value))
        return {}
    found = [(whole(key) if isinstance(key, str) else key, key, priority) for key, priority in value.items()]
    for dscp, key, priority in found:
        if not _is_whole(dscp, 0, 63) or not _is_whole(priority, 0, 7):
            wrong = (prefix, key, priority)
            errors.append("%sdscp2prio has %r: %r, expected a DSCP 0 to 63 and a priority 0 to 7" % wrong)
    return {dscp: priority for dscp, _key, priority in found if dscp is not None}


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def resolve(roce: Mapping[str, Any], settings: Mapping[str, Any], prefix: str = "") -> Chain:
    """Return the chain that the inventory declares.

    roce: the value of busbar_roce: dscp, priority, cnp_dscp, cnp_priority.
    settings: trust, dscp2prio, pfc, ecn, tos, traffic_class; one that is None or absent follows from roce.
    prefix: what messages put before the name of a setting, such as ``roce_qos_``.
    Raises ParseError that names every value which is of the wrong type or out of its range.
    """
    errors: List[str] = []
    dscp, priority, cnp_dscp, cnp_priority = _read(roce, _ROCE, "busbar_roce.", errors)
    maps, trust = _dscp_map(settings, prefix, errors), _word(settings, "trust", TRUSTS, prefix, errors)
    pfc, ecn, tos, traffic_class = _read(settings, _CHAIN, prefix, errors)
    if errors:
        raise ParseError("; ".join(errors))
    # What is not declared is as in the NIC's default map, which gives eight DSCPs in a row to each priority.
    if dscp is not None:
        priority = dscp >> 3 if priority is None else priority
        cnp_dscp = _CNP_DSCP if cnp_dscp is None else cnp_dscp
        tos = dscp << 2 | _ECT if tos is None else tos
    if cnp_priority is None and cnp_dscp is not None:
        cnp_priority = cnp_dscp >> 3
    trust = trust or ("dscp" if dscp is not None or maps else "")
    pairs = ((dscp, priority), (cnp_dscp, cnp_priority)) if trust == "dscp" else ()
    maps = {**{code: to for code, to in pairs if code is not None and to is not None}, **maps}
    wanted = () if priority is None else (priority,)
    pfc = (wanted or None) if pfc is None else tuple(sorted(set(pfc)))
    ecn = wanted if ecn is None else tuple(sorted(set(ecn)))
    return Chain(dscp, priority, cnp_dscp, cnp_priority, trust or None, maps, pfc, ecn, tos, traffic_class)


@dataclass(frozen=True)
class Queues:
    """Queues and buffers of a port; None: not known, or not wanted.

    prio2tc, prio2buffer: by priority.   tsa, bandwidth (per cent): by traffic class, None for a class that no priority
    uses.   cable_length: metres.   buffer_size: bytes, by receive buffer.
    """

    prio2tc: Eight = None
    tsa: Optional[Tuple[Optional[str], ...]] = None
    bandwidth: Optional[Tuple[Optional[int], ...]] = None
    cable_length: Optional[int] = None
    prio2buffer: Eight = None
    buffer_size: Eight = None


@dataclass(frozen=True)
class PortConfig(Queues):
    """Wanted settings.

    dcbx: "" for the kernel's, with its present owner; os takes it over; firmware leaves all to the switch.
    """

    chain: Chain = field(default_factory=Chain)
    dcbx: str = ""
    pause_off: bool = False

    @classmethod
    def from_values(cls, chain: Chain, given: Mapping[str, Any], prefix: str = "") -> PortConfig:
        """given: prio2tc, tsa, tc_bandwidth, cable_length, prio2buffer, buffer_size, dcbx, pause_off.

        prefix: of their names, in messages. Raises ParseError that names every invalid one.
        """
        errors: List[str] = []
        prio2tc, bandwidth, cable, prio2buffer, buffer_size = _read(given, _QUEUES, prefix, errors)
        tsa = given.get("tsa")
        if tsa is not None and not (
            isinstance(tsa, (list, tuple)) and len(tsa) == 8 and all(one in TSA for one in tsa)
        ):
            errors.append("%stsa is %r, expected eight of %s" % (prefix, tsa, ", ".join(TSA)))
        elif (tsa is None) != (bandwidth is None):
            errors.append("%stsa and tc_bandwidth go together: set both or none" % prefix)
        elif tsa is not None and not errors:
            others = [number for number, one in enumerate(tsa) if one != "ets" and bandwidth[number]]
            if others:
                wrong = (prefix, others[0], tsa[others[0]])
                errors.append("%stc_bandwidth of class %d is not 0, but its tsa is %s" % wrong)
            elif "ets" in tsa and sum(bandwidth) != 100:
                total = (prefix, sum(bandwidth))
                errors.append("%stc_bandwidth makes %d per cent over the ets classes, expected 100" % total)
        dcbx = _word(given, "dcbx", OWNERS[1:], prefix, errors)
        if errors:
            raise ParseError("; ".join(errors))
        tsa = None if tsa is None else tuple(tsa)
        # Without PFC, pause is no conflict.
        pause_off = bool(given.get("pause_off") and chain.pfc)
        return cls(prio2tc, tsa, bandwidth, cable, prio2buffer, buffer_size, chain, dcbx, pause_off)

    @property
    def sizes_buffers(self) -> bool:
        """Return whether buffers are sized: the cable's length needs PFC, and no driver that reports its buffers."""
        return self.prio2buffer is not None or self.buffer_size is not None
