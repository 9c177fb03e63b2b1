# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Resolve the DSCP chain from a job's traffic class to the lossless queue: one value in five places.

Traffic class -> DSCP -> priority -> PFC and ECN. DSCP and priority are declared once, in busbar_roce; undeclared
settings of the NIC follow from these two. Source: RFC 2474 and RFC 3168 (traffic class = DSCP * 4 + ECN).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ..core.host import ParseError
from ..core.number import whole

TRUSTS = ("dscp", "pcp")
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


def resolve(roce: Mapping[str, Any], settings: Mapping[str, Any], prefix: str = "") -> Chain:
    """Return the chain that the inventory declares.

    roce: the value of busbar_roce: dscp, priority, cnp_dscp, cnp_priority.
    settings: trust, dscp2prio, pfc, ecn, tos, traffic_class; one that is None or absent follows from roce.
    prefix: what messages put before the name of a setting, such as ``roce_qos_``.
    Raises ParseError that names every value which is of the wrong type or out of its range.
    """
    errors: List[str] = []
    dscp, priority, cnp_dscp, cnp_priority = (
        _number(roce, name, 0, most, errors, "busbar_roce.")
        for name, most in (("dscp", 63), ("priority", 7), ("cnp_dscp", 63), ("cnp_priority", 7))
    )
    # What is not declared is as in the NIC's default map, which gives eight DSCPs in a row to each priority.
    if dscp is not None:
        priority = dscp >> 3 if priority is None else priority
        cnp_dscp = _CNP_DSCP if cnp_dscp is None else cnp_dscp
    if cnp_priority is None and cnp_dscp is not None:
        cnp_priority = cnp_dscp >> 3
    wrong: List[str] = []
    dscp2prio = _map(settings, wrong)
    trust = settings.get("trust") or ("dscp" if dscp is not None or dscp2prio else None)
    if trust not in (None, *TRUSTS):
        wrong.append("trust is %r, expected one of %s" % (trust, ", ".join(TRUSTS)))
    pairs = ((dscp, priority), (cnp_dscp, cnp_priority)) if trust == "dscp" else ()
    derived = {code: to for code, to in pairs if code is not None and to is not None}
    wanted = () if priority is None else (priority,)
    pfc, ecn = (_priorities(settings, name, wrong) for name in ("pfc", "ecn"))
    tos = _number(settings, "tos", 0, 255, wrong)
    traffic_class = _number(settings, "traffic_class", -1, 255, wrong)
    errors += [prefix + error for error in wrong]
    if errors:
        raise ParseError("; ".join(errors))
    pfc = wanted or None if pfc is None else pfc
    tos = dscp << 2 | _ECT if tos is None and dscp is not None else tos
    maps = {**derived, **dscp2prio}
    marked = wanted if ecn is None else ecn
    return Chain(dscp, priority, cnp_dscp, cnp_priority, trust, maps, pfc, marked, tos, traffic_class)


def _number(
    values: Mapping[str, object], name: str, least: int, most: int, errors: List[str], prefix: str = ""
) -> Optional[int]:
    """A whole number from least to most; None where it is not given or wrong, and then errors has a sentence more."""
    value = values.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        errors.append("%s%s is %r, expected %d to %d" % (prefix, name, value, least, most))
        return None
    return int(value)


def _priorities(values: Mapping[str, object], name: str, errors: List[str]) -> Optional[Tuple[int, ...]]:
    """A list of priorities, sorted, each once; None where it is not given or wrong, and then errors has a sentence."""
    value = values.get(name)
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or any(_is_outside(one, 7) for one in value):
        errors.append("%s is %r, expected a list of priorities 0 to 7" % (name, value))
        return None
    return tuple(sorted({int(one) for one in value}))


def _map(values: Mapping[str, object], errors: List[str]) -> Dict[int, int]:
    """dscp2prio: DSCP -> priority, without the entries that are wrong, for which errors has a sentence each.

    A DSCP may be text, for JSON knows no other keys.
    """
    value = values.get("dscp2prio") or {}
    found: Dict[int, int] = {}
    if not isinstance(value, Mapping):
        errors.append("dscp2prio is %r, expected a mapping of DSCPs to priorities" % (value,))
        return found
    for key, priority in value.items():
        dscp = whole(key) if isinstance(key, str) else key
        if _is_outside(dscp, 63) or _is_outside(priority, 7):
            errors.append("dscp2prio has %r: %r, expected a DSCP 0 to 63 and a priority 0 to 7" % (key, priority))
        else:
            found[dscp] = priority
    return found


def _is_outside(value: object, most: int) -> bool:
    """Return whether the value is not a whole number from 0 to most."""
    return isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most
