"""One value in five places: what follows from busbar_roce, and the link that is named where one is wrong."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.busbar.fabric.plugins.filter.roce_chain import roce_chain as as_filter
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.chain import resolve
from ansible_collections.busbar.fabric.plugins.plugin_utils.roce_chain import disagreements
from hypothesis import given
from hypothesis import strategies as st

from tests import goldens

DSCP = {"dscp": 26}


def test_pfc_set_to_nothing_is_a_lossy_fabric_and_no_wrong_link() -> None:
    chain = resolve(DSCP, {"pfc": []})
    assert (chain.pfc, disagreements(chain, {"NCCL_IB_TC": 106})) == ((), [])


NAMES = ("NCCL_GIN_IB_TC", "NVSHMEM_IB_TRAFFIC_CLASS", "job.MC_IB_TC", "job.NCCL_IB_TC", "NCCL_IB_TC")
# busbar_roce, the settings and a job's variables.
CHAINS: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    (DSCP, {"pfc": [4]}, {"NCCL_IB_TC": 106}),
    (DSCP, {"pfc": [4]}, {}),
    (DSCP, {"ecn": [4, 5]}, {"NCCL_IB_TC": "104"}),
    (DSCP, {}, {"UCX_IB_TRAFFIC_CLASS": "105"}),
    *((DSCP, {}, {name: value}) for name in NAMES for value in ("0", 136)),
    (DSCP, {}, {"NCCL_GIN_IB_TC": -1, "NVSHMEM_IB_TRAFFIC_CLASS": "106", "NCCL_IB_SL": 5}),
    ({"priority": 3}, {"trust": "pcp"}, {"EP_OVERRIDE_RDMA_SL": 5, "NCCL_IB_SL": "3"}),
    ({"priority": 5}, {"trust": "pcp"}, {"NVSHMEM_IB_SL": 13}),
    (DSCP, {}, {"NCCL_IB_TC": "-1"}),
    (DSCP, {}, {"NCCL_IB_TC": "²"}),
    (DSCP, {}, {"NCCL_IB_TC": "0x6a"}),
    (DSCP, {"tos": 26}, {}),
    (DSCP, {"traffic_class": 160}, {}),
    (DSCP, {"traffic_class": -1}, {}),
    ({"dscp": 26, "priority": 4}, {"dscp2prio": {26: 3}}, {}),
    (DSCP, {"trust": "pcp"}, {}),
    ({"dscp": 26, "cnp_priority": 7}, {"dscp2prio": {48: 6}}, {}),
    ({}, {"pfc": [3]}, {"NCCL_IB_TC": 106}),
    ({}, {"pfc": [4], "dscp2prio": {26: 3}}, {"NCCL_IB_TC": 106}),
]


@pytest.mark.golden
def test_the_wrong_link_is_named() -> None:
    said = []
    for roce, changed, variables in CHAINS:
        said += [f"== {roce} {changed} {variables}", *disagreements(resolve(roce, changed), variables)]
    goldens.text("roce_chain", "\n".join(said) + "\n")


@given(st.integers(0, 63), st.none() | st.integers(0, 7), st.none() | st.integers(0, 63), st.integers(0, 3))
def test_what_is_declared_once_and_set_nowhere_else_always_agrees(
    dscp: int, priority: int | None, cnp_dscp: int | None, ecn_bits: int
) -> None:
    if cnp_dscp == dscp:
        cnp_dscp = None
    cnp = 48 if cnp_dscp is None else cnp_dscp
    # Congestion notifications in the very DSCP of the data have its priority.
    roce = {"dscp": dscp, "priority": priority, "cnp_dscp": cnp_dscp, "cnp_priority": priority if cnp == dscp else None}
    assert disagreements(resolve(roce, {}), {"NCCL_IB_TC": dscp << 2 | ecn_bits}) == []


def test_the_filter_gives_plain_data() -> None:
    assert as_filter(DSCP) == json.loads(json.dumps(asdict(resolve(DSCP, {}))))


def test_the_filter_fails_with_the_sentence() -> None:
    with pytest.raises(AnsibleFilterError, match=r"NCCL_IB_TC 106 is DSCP 26; .* priority 3; PFC is on for 4$"):
        as_filter(DSCP, {"pfc": [4]}, {"NCCL_IB_TC": 106})
    with pytest.raises(AnsibleFilterError, match="expected 0 to 63"):
        as_filter({"dscp": 99})
