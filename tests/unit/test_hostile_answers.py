"""Answers that no module gives, at every entrance: what is wrong with one host's costs no other host its verdict.

Each is made of an honest answer: a type, a length, a key, a nesting is not what it should be.
"""

from __future__ import annotations

import copy
import json
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.action import host_audit
from ansible_collections.busbar.fabric.plugins.action import nccl_benchmark as nccl_benchmark_action
from ansible_collections.busbar.fabric.plugins.action import verdict as verdict_action
from ansible_collections.busbar.fabric.plugins.module_utils import perftest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.plugin_utils import (
    codec,
    due_roles,
    host_variables,
    rail_pairs,
    rail_results,
    reboot,
    result_fields,
    result_schema,
    validated_action,
    verdict,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import cluster_table
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.engine import Call, Result
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.nodes import checked
from ansible_collections.busbar.fabric.plugins.plugin_utils.fleet.compare import compare
from ansible_collections.busbar.fabric.plugins.plugin_utils.fleet.stage import Fleet
from ansible_collections.busbar.fabric.plugins.plugin_utils.verification import Proof, failure
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from busbar.drift import runner
from tests import goldens
from tests.campaigns import ANSWER, FACTS, Nodes, Play, perf, rails_of
from tests.campaigns import RUN as OWN_RUN
from tests.localising import Cluster, Fault
from tests.unit import test_nccl_benchmark
from tests.unit.test_result_schema import FINDING, NIC, PLAN, PLATFORM, RAIL, RAIL_INFO
from tests.unit.test_verdict import typed

DEEP: Any = "x"
for _level in range(300):
    DEEP = [DEEP]
JUNK: tuple[Any, ...] = (
    *(None, True, 0, -1, 10**30, 1e300, float("inf"), float("nan"), "", [], {}, [[]], {"a": 1}, DEEP, [1] * 30000),
    *("x\n", "ok\n", "\x1b[2J\x07", "{{ lookup('pipe', 'touch /tmp/pwned') }}", "../../../root/.ssh/authorized_keys"),
    *("-f", "--help", "node02", "127.0.0.1", "10.19.0.1\n", "\ud800", "x" * 70000, "$(reboot)", "'; reboot #", "a b"),
)
EVERY = settings(
    max_examples=5 * settings().max_examples, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


@st.composite
def broken(draw: st.DrawFn, honest: Any) -> Any:
    """The honest answer with one to three things that are otherwise."""
    found = [copy.deepcopy(honest)]
    for _change in range(draw(st.integers(1, 3))):
        holder: Any = found
        key: Any = 0
        while isinstance(holder[key], (dict, list)) and holder[key] and draw(st.integers(0, 5)):
            holder = holder[key]
            key = draw(st.sampled_from(sorted(holder, key=str) if isinstance(holder, dict) else range(len(holder))))
        way = draw(st.integers(0, 9))
        if way == 0 and holder is not found:
            del holder[key]
        elif way == 1 and isinstance(holder[key], dict):
            holder[key][draw(st.sampled_from(("more", "ansible_facts", "unreachable", "skipped", "failed")))] = True
        elif way == 2 and isinstance(holder[key], str):
            holder[key] += draw(st.sampled_from(("\n", "\r\n", "\x00", " ", "/..", "\u202e", "{{ 1 }}")))
        elif way == 3:
            holder[key] = [holder[key]]
        elif way == 4 and isinstance(holder, list) and holder is not found:
            holder.append(holder[key])
        else:
            holder[key] = copy.deepcopy(draw(st.sampled_from(JUNK)))
    return found[0]


GOOD = {"platform": PLATFORM, "iommu": PLAN | {"passed": ["iommu.mode[live]@host"]}}
ROLES = ["platform", "iommu"]


def judged(of_bad: dict[str, Any]) -> verdict.HostVerdict:
    """The verdict on a host that has registered this, beside an honest one, whose verdict is as it is without."""
    results = {"bad": of_bad, "good": GOOD}
    found = verdict.judge(typed(results), ROLES, partial=False)
    alone = verdict.judge(typed({"good": GOOD}), ROLES, partial=False)
    bad, good = found.hosts
    assert good == alone.hosts[0]
    assert found.to_dict()["hosts"]["good"] == alone.to_dict()["hosts"]["good"]
    shown = verdict.render(found, check_mode=True)
    assert all(line.isprintable() for line in shown.split("\n"))
    json.dumps(found.to_dict()).encode()
    return bad


CASES = Path(__file__).parent / "cases"
PERFTEST, MEASURED = (json.loads((CASES / f"answer_of_{name}.json").read_text()) for name in ("perftest", "nccl_perf"))
STEPS = [{"role": "platform", "module": "topology_info"}, {"role": "iommu", "module": "iommu"}]


@given(
    broken([GOOD["platform"], GOOD["iommu"]]).map(json.dumps)
    | st.builds(
        lambda text, place, more: text[: place % len(text)] + more,
        st.just(json.dumps([GOOD["platform"], GOOD["iommu"]])),
        st.integers(0, 10**6),
        st.sampled_from(("", "]", "[" * 100_000, '{"a":' * 100_000, "9" * 5000, "\ufffd\x00", "NaN]", "\nbye")),
    )
)
@EVERY
def test_the_audits_entrance(said: str) -> None:
    heard = host_audit.read(STEPS, {"stdout": f"motd\n{said}\n", "stderr": "", "rc": 0})
    audit: dict[str, Any] = {"failed": True, "msg": heard.get("msg")}
    if "results" in heard:
        wanted = {"profile_name": "hgx-h100", "benchmark_runs": []}
        audit = {"roles": json.dumps(host_audit._by_role(ROLES, STEPS, heard["results"], wanted)), "due": []}
    of_host = {"inventory_hostname": "a", "fleet_audit_result": {"hosts": {"a": audit}}}
    bad = judged(due_roles.results(of_host, ROLES, ROLES[0], nightly=False))
    assert ("msg" in heard) <= (not bad.ok)


@given(broken(GOOD["platform"]))
@EVERY
def test_the_entrance_of_ordinary_tasks(said: Any) -> None:
    action: Any = SimpleNamespace()
    registered = validated_action.validate(action, "topology_info", lambda: said)
    assert registered.keys() <= result_schema._ALL.keys() | result_schema.ANSWERS["topology_info"].keys()
    bad = judged({**GOOD, "platform": registered})
    assert not registered.get("failed") or not bad.ok
    # As if there were no gate.
    judged({**GOOD, "platform": said})


HOSTS = ("bad", "node02", "node03", "node04")
INTENT = {"profile_name": "hgx-h200", "values": {"busbar_fabric": "ethernet", "busbar_mtu": 9000}}


def variables(of_bad: Any) -> dict[str, dict[str, Any]]:
    found = {}
    for number, host in enumerate(HOSTS):
        mine: dict[str, Any] = copy.deepcopy(RAIL_INFO) | {"busy": []}
        mine["rail_info"]["rails"][0]["address"] = f"10.19.0.{number + 1}"
        found[host] = {"busbar_intent": INTENT, "rail_info_result": mine}
    found["bad"]["rail_info_result"] = of_bad
    return found


NOTHING = variables({"failed": True, "msg": "x"})


def is_out(of_bad: Any) -> bool:
    return rail_pairs.candidate("bad", variables(of_bad)["bad"], True, False).info is None


@given(broken(RAIL_INFO))
@EVERY
def test_the_comparison_of_all_hosts(said: Any) -> None:
    def compared(hosts: dict[str, Any]) -> dict[str, Any]:
        fleet = Fleet()
        for host in HOSTS:
            fleet.add(host, hosts[host], {})
        return compare([fleet.member(host, {}, True) for host in HOSTS]).judged

    found = compared(variables(said))
    info = host_variables.of_host(variables(said)["bad"])
    # A host without rails, of a product of its own, has nothing that could be compared.
    alone = {"bad"} if info is not None and not info.rails else set()
    assert set(found) | alone == set(HOSTS)
    if info is None:
        assert {host: found[host] for host in HOSTS[1:]} == {host: compared(NOTHING)[host] for host in HOSTS[1:]}
        assert not all(one.finding.ok for one in found["bad"])


@given(broken(RAIL_INFO))
@EVERY
def test_whose_rails_ping_each_other(said: Any) -> None:
    hosts = variables(said)
    ready = [rail_pairs.candidate(host, hosts[host], True, False) for host in HOSTS]
    planned = rail_pairs.plan_pings([one for one in ready if one.info is not None])
    for asked, _findings in planned.values():
        for one in asked:
            for peer in (one.source, one.target):
                assert not ip_address(peer.address).is_loopback
                codec.text(15, result_fields.NETDEV, empty=True)(peer.netdev or "x")
    if is_out(said):
        assert set(planned) == set(HOSTS[1:])


@given(broken(RAIL_INFO))
@EVERY
def test_who_tests_with_whom(said: Any) -> None:
    hosts = variables(said)
    planned = rail_pairs.plan([rail_pairs.candidate(host, hosts[host], True, False) for host in HOSTS], 2)
    for host in HOSTS:
        for sessions in planned.passes:
            for session in (dict(session.__dict__) for session in sessions.get(host, ())):
                result_schema.session(session)
                words = perftest.argv(perftest.session_of(session), perftest.Port("mlx5_0", 1, 3), "bw", OPTIONS)
                assert not any(word.startswith("-") for word in words[-1:] if session["role"] == "client")
    if is_out(said):
        without = [rail_pairs.candidate(host, NOTHING[host], True, False) for host in HOSTS]
        assert planned.passes == rail_pairs.plan(without, 2).passes
        assert planned.findings["bad"]


OPTIONS = perftest.Options(5)
SESSION = perftest.Session("client", 3, NIC, "mlx5_9", "node02", "10.19.0.2", 400.0, gpu="0000:19:00.0")


def valid(module: str, said: Any) -> Result:
    """Return what is left of the result of a module on a node."""
    return checked(Call("bad", module, {}), said if isinstance(said, dict) else {})


@given(broken(PERFTEST), broken(PLATFORM), broken(PLATFORM))
@EVERY
def test_what_is_joined_of_one_host(said: Any, pinged: Any, role: Any) -> None:
    tested, ping = valid("perftest", said), valid("topology_info", pinged)
    proof = Proof((), (), (SESSION,), ping, [tested], {"bad": failure([tested])})
    found = proof.result("bad", {**variables(RAIL_INFO)["bad"], "roce_qos_result": role})
    if not proof.measured:
        assert any(finding["check"] == "perftest.bandwidth" for finding in found["findings"])
    judged({**GOOD, "platform": {**PLAN, **{key: found[key] for key in ("findings", "passed", "evidence")}}})
    rail_results.render({"good": {**PERFTEST, "stored": False}, "bad": found})


[RUN] = test_nccl_benchmark.wanted("hgx-h100", nccl_benchmark_collectives=["all_reduce"])


@given(broken(MEASURED), broken(PLATFORM), broken(RUN))
@EVERY
def test_the_benchmark_and_its_table(said: Any, role: Any, run: Any) -> None:
    honest = nccl_benchmark_action.judged("hgx-h100", [RUN], [MEASURED], {})
    found = nccl_benchmark_action.judged("hgx-h100", [RUN], [said], {"platform": role})
    assert "runs" not in found or found["runs"][0]["name"] == RUN["name"]
    for registered in (found, {**found, "runs": [run]}, said):
        results = {"bad": nccl_benchmark_action.reported(registered), "good": nccl_benchmark_action.reported(honest)}
        results = {host: one for host, one in results.items() if one}
        assert "good" in cluster_table.render_nodes(results, 1.8e9)
        verdict_action._busbw(registered if isinstance(registered, dict) else {})


# A whole search or benchmark each: few of them.
FEW = settings(EVERY, max_examples=20)
SLOW = perf(100.0, 200.0)
# What the first host has registered before, and what its modules say in the campaign.
BEFORE: dict[str, Any] = {
    "nccl_benchmark_result": {**ANSWER, "runs": [OWN_RUN]},
    "node_lock_result": {**ANSWER, "held": True, "holder": None},
}
SAYS: dict[str, Any] = {"member": FACTS, "record": {**ANSWER, "due": "x"}, "rails": rails_of(1), "node_health": ANSWER}


def campaign(cluster: Cluster, before: Any, says: Any, measured: Any) -> Play:
    """Return a play in which the first host is hostile."""
    play = Play(Nodes(cluster))
    if isinstance(before, dict):
        play.raw["n0000"].update({key: value for key, value in before.items() if key in BEFORE})
    given = says if isinstance(says, dict) else {}
    play.nodes.says = {("n0000", module): given[module] for module in SAYS if module in given}
    play.nodes.says.update({("n0000", module): measured for module in ("nccl_perf", "perftest")})
    return play


@given(broken(BEFORE), broken(SAYS), broken(SLOW))
@example({"nccl_benchmark_result": True}, {}, SLOW)
@example({}, {}, [])
@example({"nccl_benchmark_result": ["x"], "node_lock_result": 1}, {}, SLOW)
@FEW
def test_the_search_for_slow_nodes(before: Any, says: Any, measured: Any) -> None:
    slow = Cluster(4, [Fault("receives slowly", "n0000", 3)], noise=False)
    hosts = campaign(slow, before, says, measured).localise().hosts
    assert all(of_host["findings"] or of_host["passed"] for of_host in hosts.values())
    json.dumps(hosts)


PROVEN = {**MEASURED, "evidence": {MEASURED["passed"][0]: ["445 GB/s", "nccl-tests"]}}


@given(broken(BEFORE), broken(SAYS), broken(PROVEN))
@example({"node_lock_result": True}, {}, None)
@example({}, {}, MEASURED)
@example({}, {}, [])
@FEW
def test_the_benchmark_between_nodes(before: Any, says: Any, measured: Any) -> None:
    outcome = campaign(Cluster(4, noise=False), before, says, measured).benchmark()
    states = {name: {one["state"] for one in of_host.get("findings", ())} for name, of_host in outcome.hosts.items()}
    found = result_schema.given(measured, "nccl_perf")
    heads = {job.hosts[0] for job in outcome.record.jobs} if outcome.record else set()
    if "n0000" in heads and (not found or found.get("failed") or "evidence" not in found):
        assert "unknown" in states["n0000"]
    assert all(result_schema.given(outcome.hosts[name]).get("findings") is not None for name in [*outcome.hosts][1:])
    json.dumps(outcome.hosts)


DECIDED = reboot.Decision(True, ("x",), (Finding("reboot.returned", "n", "ok", "minor", "a", "b", "c", "d"),)).to_dict()
DONE = {"rebooted": True, "elapsed": 61, "changed": True}


@given(broken(DECIDED), broken(DONE), broken({**PLAN, "drained": True, "jobs": [], "ours": True}), broken(PLATFORM))
@EVERY
def test_who_may_be_rebooted(decided: Any, done: Any, drain: Any, role: Any) -> None:
    reasons = reboot.reasons([result_schema.given(role)])
    decision = reboot.decide(["x"], "reboot", {"bad": decided}, (), result_schema.given(drain, "slurm_node") or None)
    # A host before it that says nonsense, or did not come back, stops the rollout; a node that is not drained stays up.
    assert decision.reboot or decision.findings[0].check in ("reboot.rollout", "reboot.idle")
    after = reboot.judge(DECIDED, done if isinstance(done, dict) else {}, reasons)
    given_back = reboot.give_back(after, [result_schema.given(role)])
    judged({**GOOD, "platform": json.loads(json.dumps(after.to_dict()))})
    assert given_back["state"] in ("resumed", "undone")


KEPT = {
    **verdict.judge(typed({"host": GOOD}), ROLES, partial=False).to_dict()["hosts"]["host"],
    "intent": "0" * 64,
    "end": None,
    "busbw": {"all_reduce-8G": {"busbw": 445.0, "bar": 440.0, "finished": 1.7e9, "simulated": False}},
}


@given(broken(KEPT))
@EVERY
def test_what_the_nightly_check_takes_from_the_findings_file(said: Any) -> None:
    manifest: Any = SimpleNamespace(hosts=["bad", "good"], secrets=())
    found = runner.results({"hosts": {"bad": said, "good": KEPT}}, manifest, {})
    assert found["good"] == runner.results({"hosts": {"good": KEPT}}, manifest, {})["good"]
    assert all(finding.subject.isprintable() for finding in found["bad"].findings)


def test_an_honest_answer_goes_through_every_entrance() -> None:
    assert RAIL["address"] == "10.19.0.1"
    assert not is_out(RAIL_INFO)
    assert result_schema.given(PERFTEST, "perftest") == PERFTEST
    assert result_schema.given(MEASURED, "nccl_perf") == MEASURED
    benchmark = nccl_benchmark_action.judged("hgx-h100", [RUN], [MEASURED], {})
    assert nccl_benchmark_action.reported(benchmark)
    assert result_schema.given(benchmark)["due"] == "1 of 1 runs: 1.1 days old"
    assert judged(GOOD).findings == (FINDING,)


@pytest.mark.parametrize("module", sorted({"multirail", *result_schema.ANSWERS} - {""}))
def test_nothing_at_all_is_no_answer_of_any_module(module: str) -> None:
    nothing: tuple[Any, ...] = (None, [], "", 1, {})
    for said in nothing:
        with pytest.raises(codec.Invalid):
            result_schema.check(module, said)


@pytest.mark.golden
@pytest.mark.parametrize("role", GOOD)
def test_which_junk_is_a_valid_value(role: str) -> None:
    def is_lost(key: str, junk: Any) -> bool:
        bad = judged({**GOOD, role: {**GOOD[role], key: junk}})
        missing = {(one.state, one.severity) for one in bad.findings if one.check == f"run.{role}"}
        assert missing == ({("unknown", "critical")} if role in bad.lost else set())
        return role in bad.lost

    rows = [[key, [number for number, junk in enumerate(JUNK) if not is_lost(key, junk)]] for key in GOOD[role]]
    goldens.check("malformed_answers", role, rows)
