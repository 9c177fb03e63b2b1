# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    action_log,
    localise_judge,
    localise_record,
    remediate,
    remediate_judge,
    remediate_report,
    results_folder,
    rma_record,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.accusation import Accusation
from ansible_collections.busbar.fabric.plugins.plugin_utils.action_log import Entry
from ansible_collections.busbar.fabric.plugins.plugin_utils.localise import Node
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediate import Fresh, Limits

from busbar import remediate as command

NOW = 1_800_000_000.0
DAY = 86400.0
NODES = [f"node{number:02d}" for number in range(1, 41)]
ASKED = frozenset(remediate.PROVISION)


def finding(check: str = "netdev_mtu.live", fix: str = "run site.yml --tags mtu for this host", **more: Any) -> Finding:
    given: dict[str, Any] = {"state": "drift", "severity": "major", "want": "9000", "have": "1500", "source": "/sys"}
    return Finding(check=check, subject="0000:1b:00.0 ens1", why="why", fix=fix, **{**given, **more})


MTU = finding()
LINKS = finding("platform.nvlinks", "check Xid 74; then run site.yml --tags platform for this host again")
SLOW = finding("nccl_perf.busbw", "look for slowed clocks")
FREE = Limits(max_disruption="reboot", drains=True)


def accused(*found: Finding, host: str = "node01", **more: Any) -> list[Accusation]:
    return [Accusation(host, one, "f.json", NOW - DAY, **more) for one in found]


def fresh(*found: Finding, passed: Sequence[str] = (), **more: Any) -> Fresh:
    given = {"asked": ASKED | {"nccl_benchmark"}, "boot_id": "b1", **more}
    return Fresh({one.id: one for one in found}, frozenset(passed), **given)


def entry(action: str, outcome: str = "done", days: float = 1.0, **more: Any) -> Entry:
    given = {"run": "r1", "host": "node01", "finding": MTU.id, **more}
    return Entry(at=NOW - days * DAY, action=action, outcome=outcome, **given)


def planned(
    found: Sequence[Accusation], now: Fresh, limits: Limits = FREE, log: Sequence[Entry] = (), name: str = "node01"
) -> remediate.Host:
    return remediate.of_host(name, found, now, limits, log, NOW)


def test_what_is_ok_now_is_dropped_and_nothing_is_done() -> None:
    for now, why in (
        (fresh(passed=[MTU.id]), "ok now"),
        (fresh(), "no longer checked"),
    ):
        found = planned(accused(MTU), now)
        assert (found.act, found.items[0].verdict) == (False, remediate.STALE)
        assert why in found.items[0].why


def test_what_still_stands_is_mended_by_its_role_and_those_that_depend_on_it() -> None:
    found = planned(accused(MTU), fresh(replace(MTU, disruption="link")))
    assert (found.act, found.drain, found.roles) == (True, True, ("mtu",))
    assert found.after == ("multirail", "roce_qos", "nccl_conf", "nccl_tests")
    # A file alone disturbs nobody, and without a scheduler nobody is drained.
    assert not planned(accused(MTU), fresh(MTU)).drain
    assert not planned(accused(MTU), fresh(replace(MTU, disruption="link")), replace(FREE, drains=False)).drain


def test_the_role_that_mends_the_cause_is_played() -> None:
    cause = finding("ofed.packages", "run site.yml --tags mofed for this host", disruption="driver")
    now = fresh(replace(MTU, because=cause.id, fix="see to it"), cause)
    found = planned(accused(MTU), now)
    assert (found.roles, found.drain) == (("mofed",), True)


@pytest.mark.parametrize(("most", "act"), [("none", False), ("link", False), ("driver", True), ("reboot", True)])
def test_nothing_above_the_leave_of_the_inventory_is_done(most: str, act: bool) -> None:
    found = planned(accused(MTU), fresh(replace(MTU, disruption="driver")), replace(FREE, max_disruption=most))
    assert found.act is act
    if not act:
        said = found.items[0].said
        assert said is not None
        assert (said.check, said.state) == ("remediate.role", "withheld")
        assert "busbar_max_disruption: driver" in said.fix


def test_what_no_role_mends_is_told_or_kept_out_where_the_site_allows_that() -> None:
    found = planned(accused(LINKS), fresh(LINKS))
    assert (found.act, found.items[0].verdict) == (False, remediate.TOLD)
    kept = planned(accused(LINKS), fresh(LINKS), replace(FREE, quarantine=True))
    assert (kept.act, kept.drain, kept.roles, kept.items[0].verdict) == (True, True, (), remediate.QUARANTINE)
    for other in (replace(LINKS, severity="minor"), replace(LINKS, state="unknown")):
        assert not planned(accused(LINKS), fresh(other), replace(FREE, quarantine=True)).act


@pytest.mark.parametrize(
    ("check", "now"),
    [
        ("netdev_mtu.live", Fresh(silent="unreachable")),
        ("netdev_mtu.live", fresh(asked=ASKED - {"mtu"})),
        ("consistency.mtu", fresh()),
        ("nccl_log.node", fresh()),
        ("made_up.check", fresh()),
        ("localise.leaf", fresh()),
        ("localise.member", fresh()),
        ("localise.node", fresh()),
        # What a node has kept of it is as old as it is.
        ("nccl_cluster.job", fresh(finding("nccl_cluster.job"), asked=ASKED | {"nccl_cluster"})),
        ("nccl_perf.fresh", fresh(finding("nccl_perf.fresh", state="unknown"))),
    ],
)
def test_what_cannot_be_asked_again_is_never_acted_on(check: str, now: Fresh) -> None:
    state = "unknown" if check == "nccl_perf.fresh" else "drift"
    found = planned(accused(finding(check, state=state)), now, replace(FREE, quarantine=True))
    assert (found.act, found.items[0].verdict) == (False, remediate.TOLD)
    assert found.items[0].said is not None
    assert not found.items[0].said.ok


def test_of_another_boot_only_what_is_asked_again_stands() -> None:
    rail = finding("perftest.bandwidth")
    found = planned(accused(rail, boot_id="b0"), fresh())
    assert (found.act, found.items[0].verdict) == (False, remediate.STALE)
    assert planned(accused(MTU, boot_id="b0"), fresh(MTU)).act


def test_what_was_measured_with_others_is_acted_on_once_it_stands_with_good_ones() -> None:
    slow = localise_judge.NODE.judge("host", "drift", "fast", "slow", "tests")
    good = fresh(passed=[slow.id], searched=True)
    for now, verdict in (
        (fresh(), remediate.TOLD),
        (fresh(slow), remediate.TOLD),
        (good, remediate.STALE),
        (fresh(searched=True), remediate.TOLD),
        (fresh(replace(slow, state="unknown"), searched=True), remediate.TOLD),
        (fresh(slow, searched=True), remediate.QUARANTINE),
        (fresh(slow, MTU, searched=True), remediate.MEND),
    ):
        found = planned(accused(slow), now, replace(FREE, quarantine=True))
        assert found.items[0].verdict == verdict, now
    assert (found.roles, found.drain, found.between) == (("mtu",), True, True)
    assert outcome(found, good).ok
    assert not outcome(found, fresh(passed=["localise.bar[live]@bar"])).ok
    assert not outcome(found, fresh(slow, searched=True)).ok
    # What several nodes share is nobody's damage.
    bar = localise_judge.BAR.judge("bar", "drift", "more good than bad", "fewer", "tests")
    assert outcome(found, replace(good, findings={bar.id: bar})).ok


def test_partners_are_good_of_the_same_leaf_and_shared_out() -> None:
    slow = localise_judge.NODE.judge("host", "drift", "fast", "slow", "tests")
    suspects = [*accused(slow, host="node01", good=tuple(NODES)), *accused(slow, host="node02", good=tuple(NODES))]
    leaves = {name: "a" if name < "node07" else "b" for name in NODES}
    found = remediate.partners(suspects, NODES, leaves)
    assert found == {"node01": ["node03", "node04"], "node02": ["node05", "node06"]}
    assert remediate.good_first(found) == ["node03", "node04", "node05", "node06", "node01", "node02"]
    assert remediate.partners(suspects, NODES[:2], leaves) == {}
    assert remediate.partners(accused(MTU, good=tuple(NODES)), NODES, leaves) == {}


def test_a_figure_is_measured_again_and_mended_by_whatever_is_not_as_it_should_be() -> None:
    found = planned(accused(SLOW), fresh(SLOW, MTU, LINKS))
    assert (found.act, found.drain, found.measure, found.roles) == (True, True, True, ("mtu",))


def test_attempts_count_by_run_in_the_window_and_then_a_person_has_to_look() -> None:
    tried = [entry("role", "begun", run=f"r{number}", role="mtu") for number in range(2)]
    now = fresh(MTU)
    assert planned(accused(MTU), now, log=tried[:1]).items[0].attempt == 2
    found = planned(accused(MTU), now, log=tried)
    assert (found.act, found.items[0].verdict) == (False, remediate.TOLD)
    assert found.items[0].said is not None
    assert found.items[0].said.check == "remediate.attempts"
    old = [replace(one, at=NOW - 15 * DAY) for one in tried]
    other = [replace(one, host="node02") for one in tried]
    assert planned(accused(MTU), now, log=[*old, *other]).items[0].attempt == 1
    assert planned(accused(MTU), now, replace(FREE, quarantine=True), tried).items[0].verdict == remediate.QUARANTINE


def test_what_was_mended_and_is_back_goes_to_a_person() -> None:
    found = planned(accused(MTU), fresh(MTU), log=[entry("verified", days=3)])
    assert (found.act, "repaired 3 days ago and is back" in found.items[0].why) == (False, True)
    assert planned(accused(MTU), fresh(MTU), log=[entry("verified", days=20)]).act


def test_what_a_killed_run_has_drained_is_finished_whatever_it_is_accused_of() -> None:
    log = [entry("drained", "begun", why="netdev_mtu.live: 1500")]
    found = planned([], fresh(), log=log)
    assert (found.act, found.left, found.drain, found.roles) == (True, True, True, ())
    assert found.reason == "netdev_mtu.live: 1500"


def test_what_was_kept_out_goes_back_when_the_check_that_failed_is_ok() -> None:
    log = [entry("drained", "begun"), entry("left_drained")]
    assert planned(accused(MTU), fresh(passed=[MTU.id]), log=log).returns
    assert not planned(accused(MTU), fresh(passed=[MTU.id]), log=[*log, entry("resumed")]).act
    assert not planned(accused(MTU), fresh(MTU), log=log).returns


# -- all nodes ---------------------------------------------------------------------------------------------------------


def fleet(count: int, severity: str = "major", leaves: int = 1) -> list[remediate.Host]:
    one = replace(MTU, severity=severity)
    hosts = [planned(accused(one, host=name), fresh(one), name=name) for name in NODES[:count]]
    return [remediate.placed(host, f"leaf{number % leaves}") for number, host in enumerate(hosts)]


@pytest.mark.parametrize(("share", "most"), [(0.05, 2), (0.0, 1), (0.01, 1), (0.5, 20), (1.0, 40)])
def test_no_more_than_a_share_of_all_nodes_is_acted_on(share: float, most: int) -> None:
    plan = remediate.plan(fleet(40), NODES, share, ())
    assert (len(plan.order), plan.most) == (most, most)
    refused = [host for host in plan.hosts.values() if not host.act]
    assert len(refused) == 40 - most
    assert all("busbar_remediate_max_share" in host.refused for host in refused)


def test_nodes_that_are_kept_out_already_count_against_the_share() -> None:
    log = [entry("left_drained", host=name) for name in NODES[30:32]]
    plan = remediate.plan(fleet(5), NODES, 0.05, log)
    assert plan.order == ()
    assert "node[31-32]" in plan.hosts["node01"].refused
    # What was left by a killed run is finished all the same.
    left = planned([], fresh(), log=[entry("drained", "begun", host="node09")], name="node09")
    assert remediate.plan([*fleet(5), left], NODES, 0.05, log).order == ("node09",)


def test_the_worst_is_first_and_its_leaf_after_it() -> None:
    hosts = fleet(6, leaves=2)
    hosts[3] = replace(fleet(4, "critical")[3], leaf="leaf1")
    plan = remediate.plan(hosts, NODES, 1.0, ())
    assert plan.order[0] == "node04"
    assert [plan.hosts[name].leaf for name in plan.order] == ["leaf1"] * 3 + ["leaf0"] * 3


@pytest.mark.parametrize(
    ("sizes", "nodes", "found"),
    [
        ([1, "10%"], 30, [1, *[3] * 9, 2]),
        ([1, 5], 8, [1, 5, 2]),
        (["100%"], 3, [3]),
        ([1, "10%"], 0, []),
        ([], 2, [1, 1]),
    ],
)
def test_batches_are_those_of_serial(sizes: list[int | str], nodes: int, found: list[int]) -> None:
    assert remediate.batches(sizes, nodes) == found


# -- what came of it ---------------------------------------------------------------------------------------------------


def outcome(plan: remediate.Host, now: Fresh, done: bool = True) -> remediate_judge.Outcome:
    return remediate_judge.outcome(json.loads(json.dumps(plan.to_dict())), now, done)


def test_a_node_goes_back_only_when_the_very_check_that_failed_is_ok() -> None:
    plan = planned(accused(MTU), fresh(MTU))
    assert outcome(plan, fresh(passed=[MTU.id])) == remediate_judge.Outcome(
        (remediate_judge.Proof(MTU.id, "ok", "ok"),), (), "resumed", ""
    )
    for now, said in (
        (fresh(MTU), "netdev_mtu.live not repaired: 1500"),
        (fresh(replace(MTU, state="unknown")), "not repaired"),
        (fresh(), "no longer checked for netdev_mtu.live"),
        (Fresh(silent="unreachable"), "did not respond any more: unreachable"),
    ):
        found = outcome(plan, now)
        assert (found.ok, found.state, said in found.reason) == (False, "resumed", True), found


def test_what_was_not_there_before_makes_it_worse_and_stops_all_others() -> None:
    plan = planned(accused(MTU), fresh(MTU))
    new = finding("gpudirect.loaded", "see to it")
    found = outcome(plan, fresh(new, passed=[MTU.id]))
    assert found.worse == ("gpudirect.loaded: 1500",)
    assert found.reason.startswith("got worse, gpudirect.loaded")
    assert outcome(plan, fresh(replace(new, severity="minor"), passed=[MTU.id])).worse == ()
    # A result that has become old is no damage.
    assert outcome(plan, fresh(SLOW, passed=[MTU.id])).worse == ()
    state = {"worse": list(found.worse), "begun": True, "closed": True}
    assert "node01 got worse: gpudirect.loaded" in remediate_judge.stop({"node01": state})
    assert "unknown" in remediate_judge.stop({"node01": {"begun": True}})
    assert remediate_judge.stop({"node01": {"worse": [], "begun": True, "closed": True}}) == ""
    assert remediate_judge.stop({"node01": {"begun": True, "pending": True}}) == ""


def test_a_critical_finding_that_nobody_names_keeps_out_only_what_was_kept_out_before() -> None:
    plan = planned(accused(MTU), fresh(MTU, replace(LINKS, severity="critical")))
    now = fresh(replace(LINKS, severity="critical"), passed=[MTU.id])
    assert outcome(plan, now).reason == ""
    kept = remediate_judge.outcome(plan.to_dict(), now, True, kept_out=True)
    assert kept.reason.startswith("platform.nvlinks 0000:1b:00.0")


def test_what_was_not_mended_on_one_node_is_not_tried_on_the_next() -> None:
    state = {"missed": ["netdev_mtu.live"]}
    assert "netdev_mtu.live was not repaired on a" in remediate_judge.in_vain({"a": state}, ["netdev_mtu.live"])
    assert remediate_judge.in_vain({"a": state}, ["nccl_conf.file"]) == ""


def test_a_node_to_which_nothing_was_done_goes_back_as_it_was() -> None:
    plan = planned(accused(MTU), fresh(MTU))
    assert outcome(plan, fresh(MTU), done=False).state == "undone"
    kept = planned(accused(LINKS), fresh(LINKS), replace(FREE, quarantine=True))
    found = outcome(kept, fresh(LINKS), done=False)
    assert (found.state, found.reason.startswith("platform.nvlinks")) == ("resumed", True)


def test_a_figure_that_is_fast_enough_when_measured_again_is_stale() -> None:
    plan = planned(accused(SLOW), fresh(SLOW)).to_dict()
    run = {"name": "all_reduce", "subject": "0000:1b:00.0 ens1", "collective": "all_reduce", "gpus": 8, "bar": 300.0}
    run |= {"max_bytes": 1, "prediction": None, "busbw": 310.5, "finished": 1.0, "simulated": True, "stored": False}
    measured = {"findings": [], "passed": [SLOW.id], "runs": [{**run, "due": "", "rows": []}]}
    now = remediate_judge.with_measured(Fresh(), measured)
    assert remediate_judge.stale(plan, now)
    assert remediate_judge.figure(SLOW, measured) == 310.5
    assert not remediate_judge.stale(plan, remediate_judge.with_measured(Fresh(), {"failed": True, "msg": "x"}))


@pytest.mark.parametrize("check_mode", [False, True])
def test_every_accusation_ends_in_the_report_once(check_mode: bool) -> None:
    items = [MTU, LINKS, finding("nccl_conf.file"), finding("consistency.mtu")]
    plan = planned(accused(*items), fresh(MTU, LINKS)).to_dict()
    state = {
        "proofs": [{"finding": MTU.id, "state": "ok", "have": "ok"}],
        "begun": True,
        "closed": True,
        "done": ["mtu"],
    }
    found = remediate_report.result(plan, {} if check_mode else state, "", check_mode)
    told = {one["check"]: one["state"] for one in found["findings"]}
    mended = {"remediate.mended": "drift"} if check_mode else {}
    assert told == {**mended, "remediate.role": "drift", "remediate.asked": "unknown"}
    assert found["repaired"] == [MTU.id]
    assert len(found["notes"]) == 1


def test_a_run_that_did_not_come_to_its_end_is_said_to_be_unknown() -> None:
    plan = planned(accused(MTU), fresh(MTU)).to_dict()
    found = remediate_report.result(plan, {"begun": True, "done": ["mtu"]}, "", False)
    assert {one["check"]: one["state"] for one in found["findings"]} == {
        "remediate.mended": "unknown",
        "remediate.left": "unknown",
    }


# -- the record --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../../etc/x", "a/b", ".hidden", "a\nb", "..", "ä", "x" * 300, ""])
def test_no_name_of_a_host_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    data = {"host": name, "at": NOW}
    path = rma_record.write(tmp_path, data)
    assert path.parent == tmp_path / "rma"
    assert path.name.isascii()
    assert not path.name.startswith(".")
    assert results_folder.file_name(name) != results_folder.file_name(name + "_")
    assert (path.stat().st_mode & 0o777, json.loads(path.read_text())) == (0o600, data)
    assert rma_record.write(tmp_path, data) != path


def test_the_record_has_what_was_tried_on_this_node_for_this_finding() -> None:
    plan = planned(accused(MTU, evidence=("pair: 10 GB/s of 45",), partners=("node02",)), fresh(MTU)).to_dict()
    log = [entry("role", "begun"), entry("role", "begun", host="node02"), entry("role", finding="other")]
    made = rma_record.record("node01", NOW, "r1", "not repaired", plan, {"boot_id": "b1", "nics": []}, log)
    assert [one["action"] for one in made["attempts"]] == ["role"]
    assert made["faults"][0]["partners"] == ["node02"]
    assert (made["boot_id"], made["hardware"]["nics"], made["faults"][0]["finding"]["id"]) == ("b1", [], MTU.id)
    assert rma_record.record("node01", NOW, "r1", "gone", plan, None, log)["hardware"] is None


def test_the_log_knows_every_action_that_is_written() -> None:
    source = (Path(__file__).parents[2] / "action_plugins/remediate_step.py").read_text()
    written = {part.split('"')[0] for part in source.split('step.log("')[1:]}
    assert written <= set(action_log.ACTIONS)


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hosts", "ended", "code"),
    [
        ({}, 0, 0),
        ({"a": []}, 0, 0),
        ({"a": []}, 2, 1),
        ({"a": ["drift"], "b": ["unknown"]}, 2, 2),
        ({"a": ["withheld"]}, 2, 2),
        ({"a": ["unknown"]}, 2, 3),
    ],
)
def test_the_exit_code_tells_what_is_left_from_what_is_not_known(
    hosts: dict[str, list[str]], ended: int, code: int
) -> None:
    data = {"hosts": {name: {"findings": [{"state": state} for state in states]} for name, states in hosts.items()}}
    assert command.exit_code(data, ended) == code


def test_the_figure_of_a_node_with_another_is_not_that_of_a_slow_partner() -> None:
    def pair(number: int, hosts: tuple[str, str], figure: float | None) -> localise_record.Measured:
        outcome = "silent" if figure is None else "pass" if figure > 80 else "fail"
        return localise_record.Measured(
            number=number, kind="pair", hosts=hosts, outcome=outcome, figure=figure, bar=85.0
        )

    tests = (pair(1, ("a", "b"), 46.3), pair(2, ("a", "c"), 95.2), pair(2, ("b", "d"), None), pair(3, ("b", "c"), 46.1))
    nodes = tuple(Node(host) for host in "abcd")
    record = localise_record.Record(
        simulated=True, begun=1.8e9, finished=1.8e9 + 60, launcher="mpirun", nodes=nodes, tests=tests
    )
    figures = [remediate_judge.between(localise_record.to_dict(record), host) for host in "abd"]
    assert figures == [95.2, 46.3, None]
    assert remediate_judge.between(None, "a") is None
