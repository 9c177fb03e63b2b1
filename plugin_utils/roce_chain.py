# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Check that the site's values besides busbar_roce lead from a job's traffic class to the lossless queue.

A wrong link is named before any host is touched. A class is the DSCP times four.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.chain import Chain

from .plain_data import Plain

# Prefix of the variables of a site that refine busbar_roce.
PREFIX = "roce_qos_"
# Variables in which a job names a traffic class: NCCL's, of its GPU-initiated traffic, UCX's, NVSHMEM's, Mooncake's.
_CLASSES = ("NCCL_IB_TC", "NCCL_GIN_IB_TC", "UCX_IB_TRAFFIC_CLASS", "NVSHMEM_IB_TRAFFIC_CLASS", "MC_IB_TC")
# And a service level, which is the priority where trust is pcp: also DeepEP's.
_LEVELS = ("NCCL_IB_SL", "UCX_IB_SL", "NVSHMEM_IB_SL", "EP_OVERRIDE_RDMA_SL")


def settings(values: Mapping[str, object]) -> Plain:
    """Return the site's roce_qos_* by the names of the module's options."""
    return {name[len(PREFIX) :]: value for name, value in values.items() if name.startswith(PREFIX)}


def disagreements(chain: Chain, variables: Mapping[str, object]) -> list[str]:
    """Return a sentence for each wrong link, empty where all agree.

    variables: NCCL_IB_TC and others of jobs, also as PLACE.NCCL_IB_TC if sentences have to name the place.
    """
    said: list[str] = []
    if chain.dscp is not None and chain.trust == "pcp":
        said.append("trust is pcp, so that NICs do not look at DSCP %d (busbar_roce.dscp): trust dscp" % chain.dscp)
    classes, wrong_values = _classes(chain, variables)
    said += wrong_values
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
            maps = (
                f"congestion notifications are DSCP {chain.cnp_dscp}; DSCP {chain.cnp_dscp} maps to priority {mapped}"
            )
            said.append(f"{maps}; busbar_roce.cnp_priority is {chain.cnp_priority}")
    return said


def _classes(chain: Chain, variables: Mapping[str, object]) -> tuple[list[tuple[str, int]], list[str]]:
    """Return the traffic classes that jobs name, and a sentence for each value that is wrong in itself."""
    wrong: list[str] = []
    classes: list[tuple[str, int]] = []
    for name, given in variables.items():
        variable, value = name.rpartition(".")[2], str(given)
        most = 255 if variable in _CLASSES else 15
        if variable not in (*_CLASSES, *_LEVELS) or (value == "-1" and variable not in ("NCCL_IB_TC", "MC_IB_TC")):
            continue  # -1 is the default: the value of NCCL_IB_TC or the system
        if not re.fullmatch("[0-9]{1,3}", value) or int(value) > most:
            wrong.append("%s is %r, expected 0 to %d" % (name, given, most))
        elif variable in _CLASSES:
            classes.append((name, int(value)))
        elif chain.trust == "pcp" and chain.priority is not None and int(value) % 8 != chain.priority:
            wrong.append(f"{name} {value} is priority {int(value) % 8}; busbar_roce.priority is {chain.priority}")
    return classes, wrong


def _wrong_link(chain: Chain, dscp: int) -> str | None:
    """Return the first link that does not lead on from a DSCP to the lossless queue."""
    if chain.dscp is not None and dscp != chain.dscp:
        return "busbar_roce.dscp is %d" % chain.dscp
    if chain.trust != "dscp":
        return None  # the map is not used
    priority = chain.priority_of(dscp)
    maps = "DSCP %d maps to priority %d" % (dscp, priority)
    if chain.priority is not None and priority != chain.priority:
        return "%s; busbar_roce.priority is %d" % (maps, chain.priority)
    for name, priorities in (("PFC", chain.pfc), ("ECN", chain.ecn)):
        if priorities and priority not in priorities:
            return f"{maps}; {name} is on for {', '.join(map(str, priorities))}"
    return None
