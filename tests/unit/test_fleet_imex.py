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


def run(lists: Mapping[str, Sequence[str]], domains: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Host -> what is said of its list; "" where it stays ok."""
    results = {}
    for host, nodes in lists.items():
        told = {"domain": (domains or {}).get(host, f"{RACK}.32766"), "nodes": list(nodes)}
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


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (ALL[:2], "lacks 10.0.0.3, compared with 2 other hosts of the domain"),
        ((*ALL, "10.0.0.9"), "has 10.0.0.9 too many, compared with 2 other hosts of the domain"),
        (("10.0.0.8", "10.0.0.9", "10.0.0.1"), "lacks 10.0.0.2 and 1 more and has 10.0.0.8 and 1 more too many, "),
        (tuple(reversed(ALL)), "has another order, compared with"),
    ],
)
def test_the_one_that_differs_is_named(nodes: Sequence[str], said: str) -> None:
    found = run({"a": ALL, "b": nodes, "c": ALL})
    assert (found["a"], found["c"]) == ("", "")
    assert found["b"].startswith(said)


def test_of_two_that_differ_nobody_knows_which_is_right() -> None:
    found = run({"a": ALL, "b": ALL[:2]})
    assert [one.split(",")[0] for one in found.values()] == ["has 10.0.0.3 too many", "lacks 10.0.0.3"]


def test_another_rack_has_another_list_though_its_clique_has_the_same_number() -> None:
    other = {"c": f"{RACK[:-1]}0.32766", "d": f"{RACK}.1"}
    assert set(run({"a": ALL, "b": ALL, "c": ALL[:2], "d": ALL[1:]}, other).values()) == {""}


def test_a_list_that_is_too_short_for_the_hosts_of_the_run() -> None:
    found = run({"a": ALL[:1], "b": ALL[:1]})
    assert set(found.values()) == {"1 addresses, and 2 hosts of this run are in the domain"}


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
