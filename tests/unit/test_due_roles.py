# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What an audit leaves to be done: which roles are played on a host, and whose answer its verdict takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.busbar.fabric.plugins.action import host_audit, nccl_benchmark, reboot
from ansible_collections.busbar.fabric.plugins.filter.is_due import is_due
from ansible_collections.busbar.fabric.plugins.filter.play_nodes import NO_HOSTS, PLAYS, play_nodes
from ansible_collections.busbar.fabric.plugins.plugin_utils import due_roles, partial_results, slurm_engine, suite

OK: dict[str, Any] = {"findings": [], "passed": ["a.b[live]@c"], "changed": False}
ROLES = [role.name for role in suite.SUITE if role.audited]
LOST = {"unreachable": True, "msg": "no route to host"}
LATE = {"failed": True, "timedout": True, "msg": "did not respond within 300 s"}


def heard(*due: str, **more: Any) -> dict[str, Any]:
    """An audit's answer."""
    said = {**dict.fromkeys(ROLES, OK), "node_lock": {"held": True}}
    return {"roles": json.dumps(said), "due": [*due], "verify": False, "scope": "node", "drain": False, **more}


class Run(dict[str, dict[str, Any]]):
    """A run's hostvars: host -> what it has registered, with an audit's answer for each of them."""

    def __init__(self, audit: dict[str, Any] | None, **registered: dict[str, Any]) -> None:
        asked = {} if audit is None else {"fleet_audit_result": {"hosts": audit}}
        super().__init__({host: {"inventory_hostname": host, **asked, **of} for host, of in registered.items()})
        self.looked_at: list[str] = []

    def raw_get(self, host: str) -> dict[str, Any]:
        self.looked_at.append(host)
        return self[host]


@pytest.mark.parametrize(
    ("said", "in_a_run", "in_check_mode"),
    [
        ({}, False, False),
        ({"changed": True}, True, True),
        ({"failed": True}, True, True),
        ({"reboot_required": ["/proc/cmdline"]}, True, True),
        ({"withheld": ["a.b[live]@c"]}, True, False),
        ({"due": "never measured"}, True, False),
        # What no role mends: the audit has said all that there is to say.
        ({"findings": [{"check": "platform.gpu_count"}]}, False, False),
    ],
)
def test_a_role_has_work(said: dict[str, Any], in_a_run: bool, in_check_mode: bool) -> None:
    assert due_roles.to_do({**OK, **said}, check_mode=False) is in_a_run
    assert due_roles.to_do({**OK, **said}, check_mode=True) is in_check_mode


def test_what_was_heard_is_there_for_a_run_that_was_ended(tmp_path: Path) -> None:
    path = tmp_path / "heard"
    assert partial_results.read(path) == {}
    file = partial_results.PartialResults(path)
    for host in ("a", "b"):
        file.add(host, heard("mtu"))
    assert partial_results.read(path) == {"a": heard("mtu"), "b": heard("mtu")}
    # What was being written when it was killed.
    whole = path.read_bytes()
    for size in range(len(whole) // 2, len(whole)):
        path.write_bytes(whole[:size])
        assert partial_results.read(path) == {"a": heard("mtu")}
    # A disk that is full, or a folder that is gone, ends no run.
    partial_results.PartialResults(tmp_path / "no" / "such").add("a", {})


def test_a_node_that_slurm_has_lost_is_tried_over_its_connection() -> None:
    lost = {"inventory_hostname": "a", "fleet_audit_result": {"hosts": {"a": LOST}}}
    assert not due_roles.due("mtu", lost)
    down = {"hosts": {"a": slurm_engine.unreachable("down* in Slurm")}}
    assert due_roles.due("mtu", {**lost, "fleet_audit_result": down})


def test_what_is_seen_while_another_run_works_on_the_host_counts_for_none() -> None:
    found = {"node_lock": {"held": True, "notes": []}, "mtu": OK, "iommu": {**OK, "changed": True}}
    assert host_audit._due(found, False) == host_audit._due(found, True) == ["iommu"]
    busy = {**found, "node_lock": {"held": True, "notes": ["run 2 works on the node"]}}
    assert host_audit._due(busy, False) == ["mtu", "iommu"]
    assert host_audit._due(busy, True) == ["iommu"]
    assert host_audit._due({**found, "node_lock": {"failed": True, "msg": "no"}}, True) == ["mtu", "iommu"]


def test_the_table_of_the_benchmark_has_also_the_hosts_whose_stored_results_stand() -> None:
    stands = {"roles": json.dumps({"nccl_benchmark": {**OK, "runs": ["of the audit"]}}), "due": []}
    audit = {"a": {**stands, "due": ["nccl_benchmark"]}, "b": stands, "c": {**stands, "due": ["mtu"]}, "d": LOST}
    # This one was to be measured, and was lost before its turn came.
    audit["e"] = {**stands, "due": ["nccl_benchmark"]}
    # Something has been changed on this one, and it was lost then.
    audit["f"] = {**stands, "due": ["mtu"]}
    run = Run(audit, **{host: {} for host in audit})
    run["a"]["nccl_benchmark_result"] = {**OK, "runs": ["of the role"]}
    run["f"]["mtu_result"] = {**OK, "changed": True}
    found = {host: said and said["runs"][0] for host, said in nccl_benchmark.registered(run, [*audit])}
    assert found == {"a": "of the role", "b": "of the audit", "c": "of the audit", "d": None, "e": None, "f": None}
    assert "b" not in run.looked_at


def test_a_role_is_due_for_its_own_sake_or_for_one_before_it() -> None:
    run = Run({"a": heard("mtu")}, a={})
    assert [role for role in ROLES if is_due(role, run, "a")] == ["mtu"]
    run["a"]["mtu_result"] = OK
    assert [role for role in ROLES if is_due(role, run, "a")] == ["mtu"]
    run["a"]["mtu_result"] = {**OK, "changed": True}
    after = ["mtu", "multirail", "roce_qos", "nccl_conf", "nccl_benchmark", "nccl_cluster"]
    assert [role for role in ROLES if is_due(role, run, "a")] == after
    rebooted = Run({"a": heard()}, a={"reboot_result": {"reboot": True}})
    assert [role for role in ROLES if is_due(role, rebooted, "a")] == ["nccl_benchmark", "nccl_cluster"]
    # A run in check mode says so of what it would change.
    run["a"]["ansible_check_mode"] = True
    assert [role for role in ROLES if is_due(role, run, "a")] == ["mtu"]


@pytest.mark.parametrize(("audit", "due"), [({"a": LATE}, True), (None, True), ({}, True), ({"a": LOST}, False)])
def test_a_host_without_an_answer_is_worked_on_as_if_nobody_had_asked(audit: dict[str, Any] | None, due: bool) -> None:
    run = Run(audit, a={})
    assert [is_due(role, run, "a") for role in ROLES] == [due] * len(ROLES)
    assert play_nodes(["a"], run, "provision") == (["a"] if due else NO_HOSTS)


def test_the_table_names_only_earlier_roles() -> None:
    names = [role.name for role in suite.SUITE]
    for place, role in enumerate(suite.SUITE):
        assert set(role.after) <= set(names[:place]), role.name


def test_as_soon_as_one_host_is_due_all_that_want_it_are_measured_together() -> None:
    wanted = {"a": heard(scope="pair"), "b": heard(scope="pair"), "c": heard(), "d": LOST, "e": LATE}
    run = Run(wanted, a={}, b={}, c={}, d={}, e={})
    assert play_nodes("abcde", run, "cluster") == NO_HOSTS
    run = Run({**wanted, "b": heard("nccl_cluster", scope="pair")}, a={}, b={}, c={}, d={}, e={})
    assert play_nodes("abcde", run, "cluster") == ["a", "b", "d", "e"]
    assert play_nodes("abcde", run, "benchmark") == ["e"]
    # Nobody was asked, as by benchmark.yml alone.
    scopes = ({"busbar_intent": {"values": {"nccl_benchmark_scope": scope}}} for scope in ("node", "leaf"))
    run = Run(None, a=next(scopes), b=next(scopes))
    assert play_nodes("ab", run, "cluster") == ["b"]
    run = Run({"a": heard(), "d": LOST, "e": LATE}, a={}, d={}, e={})
    assert play_nodes("ade", run, "cluster") == NO_HOSTS


def test_whoever_is_well_is_not_looked_at() -> None:
    audit = {"a": heard(), "b": heard("iommu"), "c": heard(verify=True), "d": LOST, "e": heard("nccl_benchmark")}
    audit["f"] = heard(sharp=True)
    run = Run(audit, a={}, b={}, c={}, d={}, e={}, f={})
    some = {play: nodes for play in PLAYS if (nodes := play_nodes("abcdef", run, play)) != NO_HOSTS}
    assert some == {"provision": ["b"], "sharp": ["f"], "verify": ["c"], "benchmark": ["e"]}
    run.looked_at.clear()
    play_nodes("abcde", run, "provision")
    # The first tells what was heard of all.
    assert run.looked_at == ["a", "b", "d", "e"]
    assert play_nodes("ac", run, "provision") == play_nodes([], run, "provision") == NO_HOSTS
    with pytest.raises(AnsibleFilterError, match="play_nodes knows alone, inventory"):
        play_nodes("a", run, "prvision")


def test_hosts_are_asked_alone_where_fleet_audit_says_so() -> None:
    run = Run({}, a={}, b={})
    assert play_nodes("ab", run, "alone") == NO_HOSTS
    for of_host in run.values():
        of_host["fleet_audit_result"]["by_task"] = True
    assert play_nodes("ba", run, "alone") == play_nodes("ab", run, "inventory") == ["a", "b"]
    # A syntax check has no host.
    no_variables: Any = {}
    assert play_nodes([], no_variables, "alone") == NO_HOSTS


def test_who_is_verified_says_so_in_its_intent_or_its_audit() -> None:
    asked, not_asked = ({"busbar_intent": {"values": {"busbar_verify": wanted}}} for wanted in (True, False))
    run = Run(None, a=asked, b=not_asked, e={})
    assert play_nodes("abe", run, "verify") == ["a"]
    audit = {"a": heard("mtu", verify=True), "b": heard(verify=True), "c": LOST, "d": heard()}
    run = Run(audit, a=asked, b={}, c={}, d={})
    assert play_nodes("abcd", run, "verify") == ["a", "b"]


def test_a_host_without_work_can_be_given_back() -> None:
    run = Run({"a": heard(drain=True), "b": heard("mtu", drain=True), "c": {**LOST, "drain": True}}, a={}, b={}, c={})
    assert play_nodes("abc", run, "give_back") == ["a", "b"]


def results(of_host: dict[str, Any], nightly: bool = False) -> dict[str, Any]:
    return due_roles.results(of_host, ["platform", "mtu", "nccl_conf"], "platform", nightly)


def test_the_audits_answer_counts_for_whoever_had_nothing_to_do() -> None:
    own = {**OK, "passed": ["d.e[live]@f"]}
    run = Run({"a": heard("mtu")}, a={"mtu_result": own, "node_lock_result": {"held": True}})
    found = results(run["a"])
    assert (found["platform"], found["mtu"], found["node_lock"]) == (OK, own, {"held": True})
    # The host was lost before its turn.
    del run["a"]["mtu_result"]
    assert "mtu" not in results(run["a"])
    assert results(run["a"], nightly=True)["mtu"] == OK
    # What the audit has heard of nccl_conf was before mtu changed.
    run["a"]["mtu_result"] = {**own, "changed": True}
    assert "nccl_conf" not in results(run["a"])
    run["a"]["nccl_conf_result"] = own
    assert results(run["a"])["nccl_conf"] == own


def test_a_host_that_gave_no_answer_is_one_result_with_its_reason() -> None:
    assert results(Run({"a": LOST}, a={})["a"]) == {"platform": LOST}
    # It was worked on without one.
    assert results(Run({"a": LATE}, a={"platform_result": OK})["a"]) == {"platform": OK}
    assert results(Run(None, a={"node_lock_result": {"skipped": True}})["a"]) == {}


def test_who_is_given_back_is_judged_by_what_the_audit_heard_of_roles_that_were_not_played() -> None:
    run = Run({"a": heard("mtu", drain=True), "b": LOST}, a={"mtu_result": {**OK, "changed": True}}, b={})
    found = dict(zip(suite.AFTER_REBOOT, reboot._results(run["a"], suite.AFTER_REBOOT), strict=True))
    assert found["platform"]["passed"] == OK["passed"]
    # What the change of mtu may have changed is not known before it is looked at.
    assert found["nccl_conf"] == {}
    assert reboot._results(run["b"], ["platform"]) == [{}]


def test_the_benchmark_alone_judges_each_role_that_it_plays() -> None:
    plays = yaml.safe_load((Path(__file__).resolve().parents[2] / "playbooks/benchmark.yml").read_text())
    [verdict] = [task["busbar.fabric.verdict"] for task in plays[-1]["tasks"]]
    assert verdict["roles"] == [role.name for role in suite.SUITE if role.play == "benchmark" and not role.on_demand]
    # Also of hosts that are not measured with others.
    assert plays[-1]["hosts"] == "gpu_nodes"
