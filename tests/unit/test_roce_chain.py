"""One value in five places: what follows from busbar_roce, and the link that is named where one is wrong."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.busbar.fabric.plugins.filter.roce_chain import roce_chain as as_filter
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.chain import Chain, resolve
from ansible_collections.busbar.fabric.plugins.plugin_utils.roce_chain import disagreements
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import goldens

DSCP = {"dscp": 26}


def test_a_dscp_alone_makes_a_whole_chain() -> None:
    assert resolve(DSCP, {}) == Chain(
        dscp=26,
        priority=3,
        cnp_dscp=48,
        cnp_priority=6,
        trust="dscp",
        dscp2prio={26: 3, 48: 6},
        pfc=(3,),
        ecn=(3,),
        tos=106,
        traffic_class=None,
    )


def test_without_a_dscp_nothing_is_asked_for() -> None:
    assert resolve({"address_family": "ipv6"}, {"trust": "", "dscp2prio": {}, "pfc": None}) == Chain()


def test_what_is_set_counts_and_the_rest_follows_from_it() -> None:
    chain = resolve({"dscp": 40, "priority": 5, "cnp_dscp": 46}, {"dscp2prio": {"30": 6}, "tos": 160, "ecn": [5, 5]})
    assert (chain.cnp_priority, dict(chain.dscp2prio)) == (5, {40: 5, 46: 5, 30: 6})
    assert (chain.tos, chain.pfc, chain.ecn) == (160, (5,), (5,))


def test_a_map_alone_asks_for_trust_in_it() -> None:
    chain = resolve({}, {"dscp2prio": {26: 3}})
    assert (chain.trust, chain.pfc, chain.tos) == ("dscp", None, None)


def test_pfc_set_to_nothing_is_a_lossy_fabric_and_no_wrong_link() -> None:
    chain = resolve(DSCP, {"pfc": []})
    assert (chain.pfc, disagreements(chain, {"NCCL_IB_TC": 106})) == ((), [])


@pytest.mark.parametrize(
    ("roce", "changed", "says"),
    [
        ({"dscp": 64}, {}, "busbar_roce.dscp is 64, expected 0 to 63"),
        ({"dscp": True}, {}, "busbar_roce.dscp is True"),
        ({"dscp": 26, "cnp_priority": 8}, {}, "busbar_roce.cnp_priority is 8, expected 0 to 7"),
        (DSCP, {"pfc": 3}, "pfc is 3, expected a list"),
        (DSCP, {"ecn": [8]}, r"ecn is \[8\], expected a list"),
        (DSCP, {"dscp2prio": {"AF31": 3}}, "dscp2prio has 'AF31': 3"),
        (DSCP, {"dscp2prio": {26: 8}}, "dscp2prio has 26: 8"),
        (DSCP, {"dscp2prio": [26]}, r"dscp2prio is \[26\], expected a mapping"),
        (DSCP, {"tos": 256}, "tos is 256, expected 0 to 255"),
        (DSCP, {"traffic_class": -2}, "traffic_class is -2, expected -1 to 255"),
        (DSCP, {"trust": "both"}, "trust is 'both'"),
        ({"dscp": 64, "priority": 9}, {"tos": 256}, "dscp is 64.*priority is 9.*tos is 256"),
    ],
)
def test_a_value_that_cannot_be_is_named(roce: dict[str, Any], changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ParseError, match=says):
        resolve(roce, changed)


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
@settings(max_examples=100)
def test_what_is_declared_once_and_set_nowhere_else_always_agrees(
    dscp: int, priority: int | None, cnp_dscp: int | None, ecn_bits: int
) -> None:
    if cnp_dscp == dscp:
        cnp_dscp = None
    cnp = 48 if cnp_dscp is None else cnp_dscp
    # Congestion notifications in the very DSCP of the data have its priority.
    roce = {"dscp": dscp, "priority": priority, "cnp_dscp": cnp_dscp, "cnp_priority": priority if cnp == dscp else None}
    assert disagreements(resolve(roce, {}), {"NCCL_IB_TC": dscp << 2 | ecn_bits}) == []


def test_settings_are_named_as_the_inventory_names_them() -> None:
    with pytest.raises(ParseError, match=r"^busbar_roce\.dscp is 64.*; roce_qos_tos is 256"):
        resolve({"dscp": 64}, {"tos": 256}, "roce_qos_")


def test_the_filter_gives_plain_data() -> None:
    assert as_filter(DSCP) == json.loads(json.dumps(asdict(resolve(DSCP, {}))))


def test_the_filter_fails_with_the_sentence() -> None:
    with pytest.raises(AnsibleFilterError, match=r"NCCL_IB_TC 106 is DSCP 26; .* priority 3; PFC is on for 4$"):
        as_filter(DSCP, {"pfc": [4]}, {"NCCL_IB_TC": 106})
    with pytest.raises(AnsibleFilterError, match="expected 0 to 63"):
        as_filter({"dscp": 99})
