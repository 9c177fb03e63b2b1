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
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.action_log import Entry
from ansible_collections.busbar.fabric.plugins.plugin_utils.localise import Node
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediate import CurrentResult, Limits
from ansible_collections.busbar.fabric.plugins.plugin_utils.suspects import Suspect

from busbar import remediate as command
from tests import goldens

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


def accused(*found: Finding, host: str = "node01", **more: Any) -> list[Suspect]:
    return [Suspect(host, one, "f.json", NOW - DAY, **more) for one in found]


def fresh(*found: Finding, passed: Sequence[str] = (), **more: Any) -> CurrentResult:
    given = {"asked": ASKED | {"nccl_benchmark"}, "boot_id": "b1", **more}
    return CurrentResult({one.id: one for one in found}, frozenset(passed), **given)


def entry(action: str, outcome: str = "done", days: float = 1.0, **more: Any) -> Entry:
    given = {"run": "r1", "host": "node01", "finding": MTU.id, **more}
    return Entry(at=NOW - days * DAY, action=action, outcome=outcome, **given)


def planned(
    found: Sequence[Suspect], now: CurrentResult, limits: Limits = FREE, log: Sequence[Entry] = (), name: str = "node01"
) -> remediate.Host:
    return remediate.of_host(name, found, now, limits, log, NOW)


KEPT_OUT = replace(FREE, quarantine=True)
LINK = replace(MTU, disruption="link")
CAUSE = finding("ofed.packages", "run site.yml --tags mofed for this host", disruption="driver")
RAIL = finding("perftest.bandwidth")
NODE = localise_judge.NODE.judge("host", "drift", "fast", "slow", "tests")
GOOD = fresh(passed=[NODE.id], searched=True)
JOB = finding("nccl_cluster.job")
OLD_FIGURE = finding("nccl_perf.fresh", state="unknown")
TRIED = [entry("role", "begun", run=f"r{number}", role="mtu") for number in range(2)]
LONG_AGO = [replace(one, at=NOW - 15 * DAY) for one in TRIED]
ELSEWHERE = [replace(one, host="node02") for one in TRIED]
LEFT = [entry("drained", "begun"), entry("left_drained")]
# What cannot be queried again.
OTHERS = ("consistency.mtu", "nccl_log.node", "made_up.check", "localise.leaf", "localise.member", "localise.node")
PLANS: dict[str, remediate.Host] = {
    "ok now": planned(accused(MTU), fresh(passed=[MTU.id])),
    "no longer checked": planned(accused(MTU), fresh()),
    "still there": planned(accused(MTU), fresh(LINK)),
    "a file alone": planned(accused(MTU), fresh(MTU)),
    "no scheduler": planned(accused(MTU), fresh(LINK), replace(FREE, drains=False)),
    "the role of the cause": planned(accused(MTU), fresh(replace(MTU, because=CAUSE.id, fix="see to it"), CAUSE)),
    **{
        f"a driver, where {most} is permitted": planned(
            accused(MTU), fresh(replace(MTU, disruption="driver")), replace(FREE, max_disruption=most)
        )
        for most in ("none", "link", "driver", "reboot")
    },
    "no role mends it": planned(accused(LINKS), fresh(LINKS)),
    "no role mends it, kept out": planned(accused(LINKS), fresh(LINKS), KEPT_OUT),
    "a minor one is not kept out": planned(accused(LINKS), fresh(replace(LINKS, severity="minor")), KEPT_OUT),
    "an unknown one is not kept out": planned(accused(LINKS), fresh(replace(LINKS, state="unknown")), KEPT_OUT),
    "unreachable": planned(accused(MTU), CurrentResult(silent="unreachable"), KEPT_OUT),
    "its role was not queried": planned(accused(MTU), fresh(asked=ASKED - {"mtu"}), KEPT_OUT),
    **{f"{check} cannot be queried": planned(accused(finding(check)), fresh(), KEPT_OUT) for check in OTHERS},
    # What a node has stored of it is as old as it is.
    "an old job": planned(accused(JOB), fresh(JOB, asked=ASKED | {"nccl_cluster"}), KEPT_OUT),
    "an old figure": planned(accused(OLD_FIGURE), fresh(OLD_FIGURE), KEPT_OUT),
    "a measurement of another boot": planned(accused(RAIL, boot_id="b0"), fresh()),
    "a setting of another boot": planned(accused(MTU, boot_id="b0"), fresh(MTU)),
    "slow, not searched again": planned(accused(NODE), fresh(), KEPT_OUT),
    "slow, not searched again, still there": planned(accused(NODE), fresh(NODE), KEPT_OUT),
    "slow no longer": planned(accused(NODE), GOOD, KEPT_OUT),
    "slow, searched without a result": planned(accused(NODE), fresh(searched=True), KEPT_OUT),
    "slow, now unknown": planned(accused(NODE), fresh(replace(NODE, state="unknown"), searched=True), KEPT_OUT),
    "slow again": planned(accused(NODE), fresh(NODE, searched=True), KEPT_OUT),
    "slow again, and a reason for it": planned(accused(NODE), fresh(NODE, MTU, searched=True), KEPT_OUT),
    "a figure": planned(accused(SLOW), fresh(SLOW, MTU, LINKS)),
    "tried once": planned(accused(MTU), fresh(MTU), log=TRIED[:1]),
    "tried twice": planned(accused(MTU), fresh(MTU), log=TRIED),
    "tried long ago, and elsewhere": planned(accused(MTU), fresh(MTU), log=[*LONG_AGO, *ELSEWHERE]),
    "tried twice, kept out": planned(accused(MTU), fresh(MTU), KEPT_OUT, TRIED),
    "mended, and back": planned(accused(MTU), fresh(MTU), log=[entry("verified", days=3)]),
    "mended long ago": planned(accused(MTU), fresh(MTU), log=[entry("verified", days=20)]),
    "drained by a killed run": planned([], fresh(), log=[entry("drained", "begun", why="netdev_mtu.live: 1500")]),
    "left drained, now ok": planned(accused(MTU), fresh(passed=[MTU.id]), log=LEFT),
    "resumed, now ok": planned(accused(MTU), fresh(passed=[MTU.id]), log=[*LEFT, entry("resumed")]),
    "left drained, still there": planned(accused(MTU), fresh(MTU), log=LEFT),
}


def told(name: str, host: remediate.Host) -> str:
    """Return what is done to a node, and what becomes of each accusation."""
    plan = host.to_dict()
    done = [word for word in ("act", "drain", "reboot", "measure", "between", "left", "returns") if plan[word]]
    done += [f"{word} {','.join(plan[word])}" for word in ("roles", "after") if plan[word]]
    lines = [f"{name}: {', '.join(done) or 'nothing'}; {host.refused or host.reason or '-'}"]
    for item in host.items:
        lines.append(f"    {item.verdict}, attempt {item.attempt}, {','.join(item.roles) or 'no role'}: {item.why}")
        if item.said is not None:
            lines.append(f"        {item.said.state} {item.said.check}: {item.said.have}; do: {item.said.fix}")
    return "\n".join(lines)


@pytest.mark.golden
def test_what_is_done_and_what_came_of_it() -> None:
    lines = [told(name, host) for name, host in PLANS.items()]
    for name, (plan, now, done) in OUTCOMES.items():
        found = outcome(plan, now, done)
        proofs = [(proof.finding, proof.state, proof.have) for proof in found.proofs]
        lines.append(f"outcome, {name}: {'ok' if found.ok else 'not ok'}, {found.state}; {found.reason or '-'}")
        lines.append(f"    proofs {proofs}; worse {[*found.worse]}")
    for name, (plan, state, check_mode) in REPORTS.items():
        of = remediate_report.result(plan.to_dict(), state, "", check_mode)
        lines.append(f"report, {name}: repaired {of['repaired']}; notes {of['notes']}")
        lines += [f"    {one['state']} {one['check']}: {one['have']}; do: {one['fix']}" for one in of["findings"]]
    goldens.text("remediate", "\n".join([*lines, ""]))


def test_partners_are_good_of_the_same_leaf_and_shared_out() -> None:
    slow = NODE
    suspects = [*accused(slow, host="node01", good=tuple(NODES)), *accused(slow, host="node02", good=tuple(NODES))]
    leaves = {name: "a" if name < "node07" else "b" for name in NODES}
    found = remediate.partners(suspects, NODES, leaves)
    assert found == {"node01": ["node03", "node04"], "node02": ["node05", "node06"]}
    assert remediate.good_first(found) == ["node03", "node04", "node05", "node06", "node01", "node02"]
    assert remediate.partners(suspects, NODES[:2], leaves) == {}
    assert remediate.partners(accused(MTU, good=tuple(NODES)), NODES, leaves) == {}


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


def outcome(plan: remediate.Host, now: CurrentResult, done: bool = True) -> remediate_judge.Outcome:
    return remediate_judge.judge(json.loads(json.dumps(plan.to_dict())), now, done)


MENDED, MEASURED, QUARANTINED = (
    PLANS[name] for name in ("a file alone", "slow again, and a reason for it", "no role mends it, kept out")
)
NEW = finding("gpudirect.loaded", "see to it")
CRITICAL = replace(LINKS, severity="critical")
TWO_FAULTS = planned(accused(MTU), fresh(MTU, CRITICAL))
# What several nodes share is damage of none of them.
BAR = localise_judge.BAR.judge("bar", "drift", "more good than bad", "fewer", "tests")
OUTCOMES: dict[str, tuple[remediate.Host, CurrentResult, bool]] = {
    "the check that failed is ok": (MENDED, fresh(passed=[MTU.id]), True),
    "not mended": (MENDED, fresh(MTU), True),
    "unknown now": (MENDED, fresh(replace(MTU, state="unknown")), True),
    "no longer checked": (MENDED, fresh(), True),
    "unreachable": (MENDED, CurrentResult(silent="unreachable"), True),
    "worse": (MENDED, fresh(NEW, passed=[MTU.id]), True),
    "a new minor one": (MENDED, fresh(replace(NEW, severity="minor"), passed=[MTU.id]), True),
    # A result that has become old is no damage.
    "a figure of before": (MENDED, fresh(SLOW, passed=[MTU.id]), True),
    "a critical one of before": (TWO_FAULTS, fresh(CRITICAL, passed=[MTU.id]), True),
    "nothing done": (MENDED, fresh(MTU), False),
    "nothing done, kept out": (QUARANTINED, fresh(LINKS), False),
    "fast with others": (MEASURED, GOOD, True),
    "the others have a bar": (MEASURED, fresh(passed=["localise.bar[live]@bar"]), True),
    "slow with others": (MEASURED, fresh(NODE, searched=True), True),
    "a bar that all miss": (MEASURED, replace(GOOD, findings={BAR.id: BAR}), True),
}
SEVERAL = planned(accused(MTU, LINKS, finding("nccl_conf.file"), finding("consistency.mtu")), fresh(MTU, LINKS))
PROVEN = {"proofs": [{"finding": MTU.id, "state": "ok", "have": "ok"}], "begun": True, "closed": True, "done": ["mtu"]}
REPORTS: dict[str, tuple[remediate.Host, dict[str, Any], bool]] = {
    "each accusation once": (SEVERAL, PROVEN, False),
    "each accusation once, check mode": (SEVERAL, {}, True),
    "not ended": (MENDED, {"begun": True, "done": ["mtu"]}, False),
}


def test_what_is_worse_or_not_known_stops_all_others() -> None:
    state = {"worse": list(outcome(*OUTCOMES["worse"]).worse), "begun": True, "closed": True}
    assert "node01 got worse: gpudirect.loaded" in remediate_judge.stop({"node01": state})
    assert "unknown" in remediate_judge.stop({"node01": {"begun": True}})
    assert remediate_judge.stop({"node01": {"worse": [], "begun": True, "closed": True}}) == ""
    assert remediate_judge.stop({"node01": {"begun": True, "pending": True}}) == ""


def test_a_critical_finding_that_nobody_names_keeps_out_only_what_was_kept_out_before() -> None:
    now = fresh(CRITICAL, passed=[MTU.id])
    kept = remediate_judge.judge(TWO_FAULTS.to_dict(), now, True, kept_out=True)
    assert kept.reason.startswith("platform.nvlinks 0000:1b:00.0")


def test_what_was_not_mended_on_one_node_is_not_tried_on_the_next() -> None:
    state = {"missed": ["netdev_mtu.live"]}
    assert "netdev_mtu.live was not repaired on a" in remediate_judge.in_vain({"a": state}, ["netdev_mtu.live"])
    assert remediate_judge.in_vain({"a": state}, ["nccl_conf.file"]) == ""


def test_a_figure_that_is_fast_enough_when_measured_again_is_stale() -> None:
    plan = planned(accused(SLOW), fresh(SLOW)).to_dict()
    run = {"name": "all_reduce", "subject": "0000:1b:00.0 ens1", "collective": "all_reduce", "gpus": 8, "bar": 300.0}
    run |= {"max_bytes": 1, "prediction": None, "busbw": 310.5, "finished": 1.0, "simulated": True, "stored": False}
    measured = {"findings": [], "passed": [SLOW.id], "runs": [{**run, "due": "", "rows": []}]}
    now = remediate_judge.with_measured(CurrentResult(), measured)
    assert remediate_judge.stale(plan, now)
    assert remediate_judge.figure(SLOW, measured) == 310.5
    assert not remediate_judge.stale(plan, remediate_judge.with_measured(CurrentResult(), {"failed": True, "msg": "x"}))


# -- the log -----------------------------------------------------------------------------------------------------------


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
    def pair(number: int, hosts: tuple[str, str], figure: float | None) -> localise_record.MeasuredTest:
        outcome = "silent" if figure is None else "pass" if figure > 80 else "fail"
        return localise_record.MeasuredTest(
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


BOOTS = {
    "this boot": ({"boot_id": "b1"}, "b1"),
    "not read": ({"boot_id": ""}, ""),
    "an older module": ({}, ""),
    "two lines": ({"boot_id": "b1\nb2"}, ""),
}


@pytest.mark.parametrize("case", BOOTS)
def test_the_boot_is_the_one_that_the_audit_read(case: str) -> None:
    given, boot_id = BOOTS[case]
    node_health = {"findings": [], "passed": [], "devices": [], "ports": [], **given}
    assert remediate.fresh({"roles": json.dumps({"node_health": node_health})}).boot_id == boot_id
