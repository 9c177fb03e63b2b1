# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Lists of IMEX compared over the nodes of each NVLink domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.health.imex import NODES, NODES_CONFIG
from ansible_collections.busbar.fabric.plugins.plugin_utils.fleet import imex
from ansible_collections.busbar.fabric.plugins.plugin_utils.role_result import role_results

RACK = "0f1e2d3c-0000-4000-8000-aabbccddeeff"
ID = NODES_CONFIG.finding_id(NODES)
ALL = ("10.0.0.1", "10.0.0.2", "10.0.0.3")


def run(lists: Mapping[str, Sequence[str]], domains: Mapping[str, str]) -> dict[str, Any]:
    """Host -> what is said of its list; "" where it stays ok."""
    results = {}
    for host, nodes in lists.items():
        told = {"domain": domains.get(host, f"{RACK}.32766"), "nodes": list(nodes)}
        results[host] = role_results({"node_health": {"findings": [], "passed": [ID, "x.y[live]@z"], "imex": told}})
    imex.join(results)
    found = {}
    for host, of_host in results.items():
        said = of_host["node_health"]
        assert (ID in said.passed) == (not said.findings)
        assert "x.y[live]@z" in said.passed
        assert [one.id for one in said.findings] == [ID] * len(said.findings)
        found[host] = said.findings[0].have if said.findings else ""
    return found


TOO_MANY = "1 addresses, and 2 hosts of this run are in the domain"


@pytest.mark.parametrize(
    ("lists", "said"),
    [
        # The one that differs is named; of two that differ nobody knows which is right.
        ({"a": ALL, "b": ALL[:2], "c": ALL}, {"b": "lacks 10.0.0.3, compared with 2 other hosts of the domain"}),
        ({"a": ALL, "b": (*ALL, "10.0.0.9"), "c": ALL}, {"b": "has 10.0.0.9 too many, compared with 2 other hosts"}),
        (
            {"a": ALL, "b": ("10.0.0.8", "10.0.0.9", "10.0.0.1"), "c": ALL},
            {"b": "lacks 10.0.0.2 and 1 more and has 10.0.0.8 and 1 more too many, "},
        ),
        ({"a": ALL, "b": tuple(reversed(ALL)), "c": ALL}, {"b": "has another order, compared with"}),
        ({"a": ALL, "b": ALL[:2]}, {"a": "has 10.0.0.3 too many,", "b": "lacks 10.0.0.3,"}),
        ({"a": ALL[:1], "b": ALL[:1]}, {"a": TOO_MANY, "b": TOO_MANY}),
        # Another rack has another list, though its clique has the same number.
        ({"a": ALL, "b": ALL, "other rack": ALL[:2], "other clique": ALL[1:]}, {}),
    ],
)
def test_a_list_is_compared_within_its_domain(lists: Mapping[str, Sequence[str]], said: Mapping[str, str]) -> None:
    domains = {"other rack": f"{RACK[:-1]}0.32766", "other clique": f"{RACK}.1"}
    for host, text in run(lists, domains).items():
        assert text.startswith(said[host]) if host in said else text == ""


@pytest.mark.parametrize(
    "told",
    [None, {}, {"domain": "x", "nodes": []}, {"domain": f"{RACK}.1", "nodes": ["; rm"]}, {"domain": 4, "nodes": "a"}],
)
def test_what_is_no_valid_answer_is_not_compared(told: Any) -> None:
    bad = role_results({"node_health": {"findings": [], "passed": [], "imex": told}})
    results = {"a": dict(bad), "b": {}, "c": role_results({"node_health": {"findings": [], "passed": []}})}
    imex.join(results)
    assert results["a"] == bad


def test_a_list_that_is_wrong_in_itself_is_said_once() -> None:
    own = NODES_CONFIG.judge(NODES, "drift", "x", "10.0.0.1 is listed twice")
    told = {"domain": f"{RACK}.1", "nodes": ["10.0.0.1", "10.0.0.1"]}
    of = {"findings": [own.to_dict()], "passed": [], "imex": told}
    good = {"findings": [], "passed": [ID], "imex": {**told, "nodes": list(ALL)}}
    results = {host: role_results({"node_health": of if host == "a" else good}) for host in "abc"}
    imex.join(results)
    assert results["a"]["node_health"].findings == (own,)
