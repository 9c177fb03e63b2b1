# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.action import remediate as action
from ansible_collections.busbar.fabric.plugins.filter.play_nodes import play_nodes
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.plugin_utils import codec
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import localise_judge, localise_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.localise_record import Node
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation import (
    action_log,
    machine,
    plan,
    proof,
    report,
    rollout,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation.accusations import Accusation
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation.action_log import Entry
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation.machine import Remediation, State
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation.plan import CurrentResult, Limits, NodePlan

from busbar import remediate as command
from tests import goldens
from tests.campaigns import RUN

from . import sample_localise_record as sample

NOW = 1_800_000_000.0
DAY = 86400.0
NODES = [f"node{number:02d}" for number in range(1, 41)]
ASKED = frozenset(plan.PROVISION)


def finding(check: str = "netdev_mtu.live", fix: str = "run site.yml --tags mtu for this host", **more: Any) -> Finding:
    given: dict[str, Any] = {"state": "drift", "severity": "major", "want": "9000", "have": "1500", "source": "/sys"}
    return Finding(check=check, subject="0000:1b:00.0 ens1", why="why", fix=fix, **{**given, **more})


MTU = finding()
LINKS = finding("platform.nvlinks", "check Xid 74; then run site.yml --tags platform for this host again")
SLOW = finding("nccl_perf.busbw", "look for slowed clocks")
FREE = Limits(max_disruption="reboot", drains=True)


def accused(*found: Finding, host: str = "node01", **more: Any) -> list[Accusation]:
    return [Accusation(host, one, NOW - DAY, **more) for one in found]


def fresh(*found: Finding, passed: Sequence[str] = (), **more: Any) -> CurrentResult:
    given = {"audited": ASKED | {"nccl_benchmark"}, "boot_id": "b1", **more}
    return CurrentResult({one.id: one for one in found}, frozenset(passed), **given)


def entry(action: str, outcome: str = "done", days: float = 1.0, **more: Any) -> Entry:
    given = {"run": "r1", "host": "node01", "finding": MTU.id, **more}
    return Entry(at=NOW - days * DAY, action=action, outcome=outcome, **given)


def planned(
    found: Sequence[Accusation],
    now: CurrentResult,
    limits: Limits = FREE,
    log: Sequence[Entry] = (),
    name: str = "node01",
) -> NodePlan:
    return plan.plan_node(name, found, now, limits, log, NOW)


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
PLANS: dict[str, NodePlan] = {
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
    "not judged for another's sake": planned(
        accused(MTU), fresh(replace(MTU, state="unknown", because=CAUSE.id), CAUSE)
    ),
    "no role mends it": planned(accused(LINKS), fresh(LINKS)),
    "no role mends it, kept out": planned(accused(LINKS), fresh(LINKS), KEPT_OUT),
    "a minor one is not kept out": planned(accused(LINKS), fresh(replace(LINKS, severity="minor")), KEPT_OUT),
    "an unknown one is not kept out": planned(accused(LINKS), fresh(replace(LINKS, state="unknown")), KEPT_OUT),
    "unreachable": planned(accused(MTU), CurrentResult(silent="unreachable"), KEPT_OUT),
    "its role was not queried": planned(accused(MTU), fresh(audited=ASKED - {"mtu"}), KEPT_OUT),
    **{f"{check} cannot be queried": planned(accused(finding(check)), fresh(), KEPT_OUT) for check in OTHERS},
    # What a node has stored of it is as old as it is.
    "an old job": planned(accused(JOB), fresh(JOB, audited=ASKED | {"nccl_cluster"}), KEPT_OUT),
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


def told(name: str, host: NodePlan) -> str:
    """Return what is done to a node, and what becomes of each accusation."""
    data = host.to_dict()
    done = [word for word in ("act", "drain", "reboot", "measure", "between", "left", "returns") if data[word]]
    done += [f"{word} {','.join(data[word])}" for word in ("roles", "after") if data[word]]
    lines = [f"{name}: {', '.join(done) or 'nothing'}; {host.refused or host.reason or '-'}"]
    for item in host.items:
        lines.append(f"    {item.verdict}, attempt {item.attempt}, {','.join(item.roles) or 'no role'}: {item.why}")
        if item.report is not None:
            lines.append(f"        {item.report.state} {item.report.check}: {item.report.have}; do: {item.report.fix}")
    return "\n".join(lines)


@pytest.mark.golden
def test_what_is_done_and_what_came_of_it() -> None:
    lines = [told(name, host) for name, host in PLANS.items()]
    for name, (host, now, done) in OUTCOMES.items():
        found = judged(host, now, done)
        proofs = [(one.finding, one.state, one.have) for one in found.proofs]
        lines.append(f"outcome, {name}: {found.state}; {found.reason or '-'}")
        lines.append(f"    proofs {proofs}; worse {[*found.worse]}")
    for name, (host, state, check_mode) in REPORTS.items():
        of = report.result(host, state, "", check_mode)
        lines.append(f"report, {name}: repaired {of['repaired']}; notes {of['notes']}")
        lines += [f"    {one['state']} {one['check']}: {one['have']}; do: {one['fix']}" for one in of["findings"]]
    for name, case in RUNS.items():
        lines += [f"steps, {name}", *replace(case, entries=[], state=State()).lines()]
    goldens.text("remediate", "\n".join([*lines, ""]))


def test_partners_are_good_of_the_same_leaf_and_shared_out() -> None:
    slow = NODE
    suspects = [*accused(slow, host="node01", good=tuple(NODES)), *accused(slow, host="node02", good=tuple(NODES))]
    leaves = {name: "a" if name < "node07" else "b" for name in NODES}
    found = rollout.partners(suspects, NODES, leaves)
    assert found == {"node01": ["node03", "node04"], "node02": ["node05", "node06"]}
    assert rollout.good_first(found) == ["node03", "node04", "node05", "node06", "node01", "node02"]
    assert rollout.partners(suspects, NODES[:2], leaves) == {}
    assert rollout.partners(accused(MTU, good=tuple(NODES)), NODES, leaves) == {}


# -- all nodes ---------------------------------------------------------------------------------------------------------


def fleet(count: int, severity: str = "major", leaves: int = 1) -> list[NodePlan]:
    one = replace(MTU, severity=severity)
    hosts = [planned(accused(one, host=name), fresh(one), name=name) for name in NODES[:count]]
    return [replace(host, leaf=f"leaf{number % leaves}") for number, host in enumerate(hosts)]


@pytest.mark.parametrize(("share", "most"), [(0.05, 2), (0.0, 1), (0.01, 1), (0.5, 20), (1.0, 40)])
def test_no_more_than_a_share_of_all_nodes_is_acted_on(share: float, most: int) -> None:
    plan = rollout.plan_rollout(fleet(40), NODES, share, ())
    assert (len(plan.order), plan.most) == (most, most)
    refused = [host for host in plan.nodes.values() if not host.act]
    assert len(refused) == 40 - most
    assert all("busbar_remediate_max_share" in host.refused for host in refused)


def test_nodes_that_are_kept_out_already_count_against_the_share() -> None:
    log = [entry("left_drained", host=name) for name in NODES[30:32]]
    plan = rollout.plan_rollout(fleet(5), NODES, 0.05, log)
    assert plan.order == ()
    assert "node[31-32]" in plan.nodes["node01"].refused
    # What was left by a killed run is finished all the same.
    left = planned([], fresh(), log=[entry("drained", "begun", host="node09")], name="node09")
    assert rollout.plan_rollout([*fleet(5), left], NODES, 0.05, log).order == ("node09",)


def test_the_worst_is_first_and_its_leaf_after_it() -> None:
    hosts = fleet(6, leaves=2)
    hosts[3] = replace(fleet(4, "critical")[3], leaf="leaf1")
    plan = rollout.plan_rollout(hosts, NODES, 1.0, ())
    assert plan.order[0] == "node04"
    assert [plan.nodes[name].leaf for name in plan.order] == ["leaf1"] * 3 + ["leaf0"] * 3


@pytest.mark.parametrize(
    ("sizes", "nodes", "found"),
    [
        ([1, "10%"], 30, [*[3] * 9, 2]),
        ([1, 5], 8, [5, 2]),
        ([4, 5], 8, [3, 4]),
        (["100%"], 3, [2]),
        ([1, "10%"], 0, [1]),
        ([], 2, [1]),
    ],
)
def test_batches_are_those_of_serial(sizes: list[int | str], nodes: int, found: list[int]) -> None:
    assert rollout.batches(sizes, nodes) == found


def result(*found: Finding, **more: Any) -> dict[str, Any]:
    return {"findings": [one.to_dict() for one in found], "passed": [], "changed": False, **more}


def audit(*found: Finding, passed: Sequence[str] = ()) -> dict[str, Any]:
    return {"roles": json.dumps({"mtu": result(*found, passed=list(passed))})}


class HostVars(dict[str, Any]):
    """As Ansible's."""

    raw_get = dict.__getitem__


READ = {"accused": ["b", "c", "d"], "paired": ["e", "c"], "pairs": {"c": ["e"], "d": ["e", "f"]}}
PENDING = {"state": {"pending": True}}


PLAYS = {"accused": "bcd", "paired": "ec", "canary": "c", "others": "db", "canary_pending": "c", "canary_paired": "ec"}
# One that was not drained, or is closed, waits for nothing.
PLAYS |= {"others_pending": "d", "others_paired": "efd"}


@pytest.mark.parametrize(("play", "hosts"), PLAYS.items())
def test_the_hosts_of_each_play_are_in_the_order_of_their_repair(play: str, hosts: str) -> None:
    registered = {"remediate_read_result": READ, "remediate_plan_result": {"order": ["c", "d", "b"]}}
    states = {"b": {"state": {"pending": False}}, "c": PENDING, "d": PENDING}
    # A host without a plan comes first, as one that is only a good partner does.
    hostvars = HostVars(a={}, **{host: {**registered, "remediate_state": states.get(host)} for host in "bcdef"})
    assert play_nodes("abcdef", hostvars, f"remediate_{play}") == [*hosts]
    assert play_nodes("a", hostvars, f"remediate_{play}") == ["!all"]
    no_variables: Any = {}
    assert play_nodes("a", no_variables, f"remediate_{play}") == ["!all"]


class Play:
    """The phases of the action for a play, as a run registers their results."""

    def __init__(self, folder: Path, hosts: str, check_mode: bool = False) -> None:
        self.folder, self.check_mode, self.hosts = folder, check_mode, list(hosts)
        values = {"busbar_drain": "slurm", "busbar_max_disruption": "link", "busbar_remediate_max_share": 1.0}
        audits = {"hosts": dict.fromkeys("abc", audit(LINK))}
        registered = {"fleet_audit_result": audits, "busbar_intent": {"values": values}}
        self.of_host = HostVars({host: {"inventory_hostname": host, **registered} for host in "abc"})
        self.shared = {"groups": {"gpu_nodes": [*"abc"]}, "ansible_play_hosts_all": self.hosts}

    def run(self, phase: str, register: str, host: str = "a", **given: Any) -> dict[str, Any]:
        task = SimpleNamespace(args={"phase": phase, "results": str(self.folder), **given}, async_val=0, diff=False)
        task.check_mode = self.check_mode
        connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="/nonexistent"))
        plugin = action.ActionModule(task, connection, None, None, None, None)
        result: dict[str, Any] = plugin.run(None, {**self.of_host[host], **self.shared, "hostvars": self.of_host})
        for each in self.hosts if phase in ("read", "plan") else host:
            self.of_host[each][register] = result
        return result

    def step(self, host: str) -> tuple[str, bool]:
        taken = self.run("step", "remediate_state", host)
        return taken["step"], taken["more"]


@pytest.mark.parametrize("check_mode", [False, True])
def test_a_play_plans_over_all_and_takes_each_step_after_it_is_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], check_mode: bool
) -> None:
    """Of b an earlier run has left what it repaired; c is accused, and left out; x is in no inventory."""
    old = [entry("drained", "begun", host="b", finding=LINK.id), entry("role", "begun", host="b", finding=LINK.id)]
    action_log.append(tmp_path, [*old, entry("drained", "begun", host="y")])
    file = tmp_path / "f.json"
    file.write_text(json.dumps({"hosts": {host: {"findings": [LINK.to_dict()]} for host in "acx"}}))
    play = Play(tmp_path, "ab", check_mode)
    read = play.run("read", "remediate_read_result", findings=[str(file)])
    assert (read["accused"], read["drained"], read["wrong"]) == (["a", "b"], ["b", "y"], {})
    planned = play.run("plan", "remediate_plan_result")
    # What was begun is finished first; the rest of its batches is one host.
    assert (planned["order"], planned["batches"]) == (["b", "a"], [1])
    assert planned["hosts"]["b"]["left"]
    said = capsys.readouterr().out
    for line in ("nothing is done there: x", "left out by --limit: c", "and not in the inventory: y"):
        assert line in said
    steps = [play.step("b"), play.step("b"), play.step("a")]
    logged = [(one.host, one.action, one.outcome) for one in action_log.read(tmp_path).entries[3:]]
    if check_mode:
        assert (steps, logged) == ([("", False)] * 3, [])
        return
    assert steps[:2] == [("look", True), ("drain", True)]
    # The run of the node before it has no end.
    assert steps[2] == ("", False)
    asked = [(host, "asked", "done") for host in "ab"]
    assert logged == [*asked, ("b", "drained", "begun"), ("a", "refused", "held")]
    assert play.run("failed", "remediate_state", "b", message="x\ny")["more"]
    assert play.step("b") == ("resume", True)
    report = play.run("report", "remediate_result", "a")
    assert [one["check"] for one in report["findings"]] == ["remediate.rollout"]


@pytest.mark.parametrize(("found", "verdict"), [(result(NODE), "mend"), ({}, "told")])
def test_what_was_measured_with_good_nodes_is_planned_by_that(tmp_path: Path, found: Any, verdict: str) -> None:
    file = tmp_path / "f.json"
    good = {"findings": [], "passed_ids": [NODE.id]}
    file.write_text(json.dumps({"hosts": {"a": {"findings": [NODE.to_dict()]}, "b": good, "c": good}}))
    play = Play(tmp_path, "abc")
    read = play.run("read", "remediate_read_result", findings=[str(file)])
    assert (read["pairs"], read["paired"]) == ({"a": ["b", "c"]}, ["b", "c", "a"])
    play.of_host["a"]["localise_round_result"] = {"hosts": {"a": found} if found else {}, "record": {}}
    [item] = play.run("plan", "remediate_plan_result")["hosts"]["a"]["items"]
    assert item["verdict"] == verdict


def test_without_a_log_nothing_is_done(tmp_path: Path) -> None:
    assert "without a log of it" in Play(tmp_path, "a").run("read", "x", results="")["msg"]
    (tmp_path / "file").touch()
    assert "nothing is done without a record of it" in Play(tmp_path / "file", "a").run("read", "x")["msg"]


# -- what came of it ---------------------------------------------------------------------------------------------------


def judged(host: NodePlan, now: CurrentResult, done: bool = True, kept_out: bool = False) -> proof.Outcome:
    """Judge a plan after its way through a registered variable."""
    again = codec.build(NodePlan, host.to_dict())
    assert again == host
    return proof.judge(again, now, done, kept_out)


MENDED, MEASURED, QUARANTINED = (
    PLANS[name] for name in ("a file alone", "slow again, and a reason for it", "no role mends it, kept out")
)
NEW = finding("gpudirect.loaded", "see to it")
CRITICAL = replace(LINKS, severity="critical")
NEIGHBOUR = "netdev_mtu.live[live]@0000:2a:00.0"
BESIDE = planned(accused(MTU), fresh(MTU, passed=[NEIGHBOUR]))
TWO_FAULTS = planned(accused(MTU), fresh(MTU, CRITICAL))
# What several nodes share is damage of none of them.
BAR = localise_judge.BAR.judge("bar", "drift", "more good than bad", "fewer", "tests")
OUTCOMES: dict[str, tuple[NodePlan, CurrentResult, bool]] = {
    "the check that failed is ok": (MENDED, fresh(passed=[MTU.id]), True),
    "not mended": (MENDED, fresh(MTU), True),
    "unknown now": (MENDED, fresh(replace(MTU, state="unknown")), True),
    "no longer checked": (MENDED, fresh(), True),
    "back by another name": (MENDED, fresh(passed=["netdev_mtu.live[live]@0000:3c:00.0"]), True),
    "its neighbour is ok, as before": (BESIDE, fresh(passed=[NEIGHBOUR]), True),
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
PROVEN = State(proofs=[{"finding": MTU.id, "state": "ok", "have": "ok"}], begun=True, closed=True, done=["mtu"])
REPORTS: dict[str, tuple[NodePlan, State, bool]] = {
    "each accusation once": (SEVERAL, PROVEN, False),
    "each accusation once, check mode": (SEVERAL, State(), True),
    "not ended": (MENDED, State(begun=True, done=["mtu"]), False),
}


def test_a_critical_finding_that_nobody_names_keeps_out_only_what_was_kept_out_before() -> None:
    found = judged(TWO_FAULTS, fresh(CRITICAL, passed=[MTU.id]), kept_out=True)
    assert found.reason.startswith("platform.nvlinks 0000:1b:00.0")


# -- step by step ------------------------------------------------------------------------------------------------------


def figures(busbw: float, *found: Finding, passed: Sequence[str] = ()) -> dict[str, Any]:
    run = {**RUN, "subject": SLOW.subject, "bar": 300.0, "busbw": busbw, "stored": False}
    return result(*found, passed=list(passed), runs=[run])


@dataclass
class Case:
    """A remediation whose steps register what is given; of a list one after the other. fails: steps that fail."""

    host: NodePlan
    results: Mapping[str, Any] = field(default_factory=dict)
    fails: Sequence[str] = ()
    earlier: Mapping[str, State] = field(default_factory=dict)
    search: machine.Search = field(default_factory=machine.Search)
    entries: list[Entry] = field(default_factory=list)
    state: State = field(default_factory=State)

    def run(self) -> Iterator[str]:
        """Yield each step before it is done, after its entries in the log."""
        registered: dict[str, Any] = {}
        results = {**USUAL, **self.results}
        left = {name: [*given] if isinstance(given, list) else [given] for name, given in results.items()}
        turn = self._turn(registered)
        turn.begin(self.earlier)
        while True:
            turn.advance()
            self.entries += turn.entries
            if step := self.state.step:
                yield step
            elif self.state.pending:
                yield "(pairs)"
            else:
                return
            name = REGISTERED.get(step, f"{step}_result")
            if step in self.fails:
                turn = self._turn(registered)
                turn.fail("it failed")
                self.entries += turn.entries
            elif name in left:
                registered[name] = left[name].pop(0) if len(left[name]) > 1 else left[name][0]
            else:
                registered[name] = result(changed=True)
            turn = self._turn(registered)

    def _turn(self, registered: Mapping[str, Any]) -> Remediation:
        # As through a registered variable.
        self.state = State(**json.loads(json.dumps(asdict(self.state))))
        return Remediation(self.host, self.state, registered, "r9", search=self.search)

    def lines(self) -> Iterator[str]:
        """Yield each step below what is logged before it."""
        seen = 0
        for step in itertools.chain(self.run(), ["(end)"]):
            for one in self.entries[seen:]:
                taken = f" {one.before} to {one.after} GB/s" if one.before or one.after else ""
                yield f"        {one.action} {one.outcome}{f' {one.role}' if one.role else ''}{taken}: {one.why or '-'}"
            seen = len(self.entries)
            yield f"    {step}"
        state = self.state
        why = state.reason or state.refused or state.held or "-"
        yield f"    {state.back}; {why}; worse {state.worse}, missed {state.missed}"


REGISTERED = {"look": "drain_result", "drain": "drain_result", "resume": "drain_result", "decide": "reboot_result"}
REGISTERED |= {"reboot": "reboot_result", "measure": "nccl_benchmark_result", "figure": "nccl_benchmark_result"}
REGISTERED |= {"busy": "remediate_busy", "audit": "remediate_audit"}
FREE_NODE = result(drained=False, ours=False, jobs=[])
DRAINED = result(drained=True, ours=True, jobs=[])
FOREIGN = result(drained=True, ours=False, jobs=[])
IDLE = result(reasons=[], unload_first=[])
USUAL = {
    "drain_result": [FREE_NODE, DRAINED, FREE_NODE],
    "remediate_busy": IDLE,
    "remediate_audit": audit(passed=[MTU.id]),
}
LINKED, QUIET = (planned(accused(MTU), fresh(one)) for one in (LINK, MTU))
FIGURE = planned(accused(SLOW), fresh(SLOW, MTU))
REBOOTED = planned(accused(MTU), fresh(replace(MTU, disruption="reboot")))
JOBS = result(finding("drain.idle", state="withheld", have="job 7"), drained=False, ours=False, jobs=["7"])
FAST = figures(310.0, passed=[SLOW.id])
WAITS = result(reboot=True, reasons=["kernel_args: iommu"])
LOST_SLURM = {"failed": True, "msg": "scontrol: no response"}
WORSE = State(worse=["gpudirect.loaded: 1500"], begun=True, closed=True)
RUNS: dict[str, Case] = {
    "repaired in service": Case(QUIET),
    "drained and repaired": Case(LINKED),
    "a job runs there": Case(LINKED, {"drain_result": [FREE_NODE, JOBS]}),
    "a process runs there": Case(LINKED, {"remediate_busy": result(reasons=["pid 7"], unload_first=[])}),
    "its users are not known": Case(LINKED, {"remediate_busy": {"failed": True, "msg": "no nvidia-smi"}}),
    "drained by an administrator": Case(LINKED, {"drain_result": FOREIGN}),
    "Slurm does not drain it": Case(LINKED, {"drain_result": [FREE_NODE, LOST_SLURM, FREE_NODE]}),
    "Slurm does not give it back": Case(LINKED, {"drain_result": [FREE_NODE, DRAINED, LOST_SLURM]}),
    "not repaired": Case(LINKED, {"remediate_audit": audit(LINK), "drain_result": [FREE_NODE, DRAINED, DRAINED]}),
    "no response": Case(LINKED, {"remediate_audit": {"failed": True, "unreachable": True, "msg": "no route"}}),
    "a role changes nothing": Case(LINKED, {"mtu_result": result()}),
    "a role has no result": Case(LINKED, {"mtu_result": {"failed": True, "msg": "no such file"}}),
    "a role fails": Case(LINKED, fails=["mtu"]),
    "a role fails in service": Case(QUIET, fails=["mtu"]),
    "the first step fails": Case(LINKED, fails=["look"]),
    "the drain fails": Case(LINKED, fails=["drain"]),
    "the last step fails": Case(LINKED, fails=["resume"]),
    "kept out": Case(PLANS["no role mends it, kept out"], {"remediate_audit": audit(LINKS)}),
    "a figure that is fast now": Case(FIGURE, {"nccl_benchmark_result": FAST}),
    "a figure that is repaired": Case(FIGURE, {"nccl_benchmark_result": [figures(100.0, SLOW), FAST]}),
    "rebooted": Case(REBOOTED, {"reboot_result": WAITS}),
    "no reboot needed": Case(REBOOTED, {"reboot_result": result(reboot=False, reasons=[])}),
    "not back after a reboot": Case(REBOOTED, {"reboot_result": [WAITS, result(finding("reboot.returned"))]}),
    "proven with others": Case(MEASURED, search=machine.Search({**result(), "passed": [NODE.id]})),
    "slow with others again": Case(MEASURED, search=machine.Search(result(NODE))),
    "not measured with others": Case(MEASURED),
    "drained by a killed run": Case(PLANS["drained by a killed run"]),
    "left drained, now ok": Case(PLANS["left drained, now ok"]),
    "one before it got worse": Case(LINKED, earlier={"node00": WORSE}),
    "one before it has no end": Case(LINKED, earlier={"node00": State(begun=True)}),
    "one before it waits": Case(QUIET, earlier={"node00": State(begun=True, pending=True)}),
    "not repaired on one before it": Case(QUIET, earlier={"node00": State(missed=["netdev_mtu.live"])}),
    "something else not repaired on one before it": Case(QUIET, earlier={"node00": State(missed=["nccl_conf.file"])}),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_is_killed_at_any_step_has_logged_it(name: str) -> None:
    """What is drained then has a line that the next run finds, until it is given back."""
    case = replace(RUNS[name], entries=[], state=State())
    begun = {"drain": "drained", "measure": "measured", "reboot": "rebooted", "audit": "verified"}
    drained = False
    for step in case.run():
        drained = drained or step == "drain"
        last = case.entries[-1] if case.entries else None
        if step in begun or step in plan.PROVISION:
            assert last
            assert (last.action, last.outcome) == (begun.get(step, "role"), "begun")
        assert bool(action_log.open_drains(case.entries)) == drained
        assert step != "resume" or (last and last.action in ("resumed", "left_drained"))
    assert {one.action for one in case.entries} <= set(action_log.ACTIONS)


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
    def pair(number: int, hosts: str, figure: float | None, outcome: str) -> localise_record.MeasuredTest:
        return replace(sample.PAIR, number=number, hosts=tuple(hosts), figure=figure, outcome=outcome)

    tests = [pair(1, "ab", 46.3, "fail"), pair(2, "ac", 95.2, "pass"), pair(2, "bd", None, "silent")]
    tests.append(pair(3, "bc", 46.1, "fail"))
    record = replace(sample.RECORD, nodes=tuple(map(Node, "abcd")), tests=tuple(tests), findings=())
    figures = [proof.figure_between(localise_record.to_dict(record), host) for host in "abd"]
    assert figures == [95.2, 46.3, None]
    assert proof.figure_between(None, "a") is None


@pytest.mark.parametrize(("said", "boot_id"), [("b1", "b1"), ("", ""), (None, ""), ("b1\nb2", "")])
def test_the_boot_is_the_one_that_the_audit_read(said: str | None, boot_id: str) -> None:
    """None: of an older module."""
    node_health: dict[str, Any] = {"findings": [], "passed": [], "devices": [], "ports": []}
    node_health |= {} if said is None else {"boot_id": said}
    assert plan.current_result({"roles": json.dumps({"node_health": node_health})}).boot_id == boot_id
