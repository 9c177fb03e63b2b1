# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether what a site says beside busbar_roce leads from a job's traffic class to the lossless queue.

A link that somebody set otherwise is named before any host is touched. Arithmetic: host.md 2.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.busbar.fabric.plugins.module_utils.roce.chain import Chain

# Of the variables of a site that say more than busbar_roce.
PREFIX = "roce_qos_"
# Variables in which a job names a traffic class.
_JOB_VARIABLES = ("NCCL_IB_TC", "UCX_IB_TRAFFIC_CLASS")


def settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The site's roce_qos_* by the names that the module's options have."""
    return {name[len(PREFIX) :]: value for name, value in values.items() if name.startswith(PREFIX)}


def disagreements(chain: Chain, variables: Mapping[str, Any]) -> list[str]:
    """A sentence for each wrong link, empty where all agree.

    variables: NCCL_IB_TC and others that jobs get, also as PLACE.NCCL_IB_TC where sentences have to name one.
    """
    said: list[str] = []
    if chain.dscp is not None and chain.trust == "pcp":
        said.append("trust is pcp, so that NICs do not look at DSCP %d (busbar_roce.dscp): trust dscp" % chain.dscp)
    classes: list[tuple[str, int]] = []
    for name, given in variables.items():
        if name.rpartition(".")[2] in _JOB_VARIABLES:
            value = str(given)
            if value.isascii() and value.isdigit() and int(value) < 256:
                classes.append((name, int(value)))
            else:
                said.append("%s is %r, expected 0 to 255" % (name, given))
    classes += [(name, value) for name, value in (("rdma_cm's ToS", chain.tos),) if value is not None]
    if chain.traffic_class is not None and chain.traffic_class >= 0:
        classes.append(("traffic_class", chain.traffic_class))
    links = [("%s %d is DSCP %d" % (name, value, value >> 2), value >> 2) for name, value in classes]
    if not links and chain.dscp is not None:
        links = [("busbar_roce.dscp is %d" % chain.dscp, chain.dscp)]
    seen: set[int] = set()
    for words, dscp in links:
        wrong = None if dscp in seen else _wrong_link(chain, dscp)
        seen.add(dscp)
        if wrong is not None:
            said.append("%s; %s" % (words, wrong))
    if chain.cnp_dscp is not None and chain.trust == "dscp":
        mapped = chain.priority_of(chain.cnp_dscp)
        if mapped != chain.cnp_priority:
            said.append(
                "congestion notifications are DSCP %d; DSCP %d maps to priority %d; busbar_roce.cnp_priority is %s"
                % (chain.cnp_dscp, chain.cnp_dscp, mapped, chain.cnp_priority)
            )
    return said


def _wrong_link(chain: Chain, dscp: int) -> str | None:
    """The first link that does not lead on from a DSCP to the lossless queue."""
    if chain.dscp is not None and dscp != chain.dscp:
        return "busbar_roce.dscp is %d" % chain.dscp
    if chain.trust != "dscp":
        return None  # the map is not looked at
    priority = chain.priority_of(dscp)
    maps = "DSCP %d maps to priority %d" % (dscp, priority)
    if chain.priority is not None and priority != chain.priority:
        return "%s; busbar_roce.priority is %d" % (maps, chain.priority)
    if chain.pfc and priority not in chain.pfc:
        return "%s; PFC is on for %s" % (maps, _listed(chain.pfc))
    if chain.ecn and priority not in chain.ecn:
        return "%s; ECN is on for %s" % (maps, _listed(chain.ecn))
    return None


def _listed(priorities: Sequence[int]) -> str:
    return ", ".join(map(str, priorities))
