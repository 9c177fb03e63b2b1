# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The buyer's acceptance sheet: no question without an answer, and no pass that a fault does not turn."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.plugin_utils import accepted
from ansible_collections.busbar.fabric.plugins.plugin_utils.certify import criteria, sheet
from hypothesis import given
from hypothesis import strategies as st

from busbar import cli

TODAY = datetime.date(2026, 11, 30)
OURS = [one for one in criteria.CRITERIA if not one.owner]
FAULTS = json.loads((Path(__file__).parent.parent / "golden/faults.json").read_text())
# Checks of what the lab's nodes alone cannot show: benchmarks, pairs of nodes, sweeps, a declared gate or library.
BEYOND = (
    "nccl_perf.",
    "nccl_cluster.",
    "perftest.",
    "ib_fabric.",
    "sharp.",
    "gate.",
    "reboot.",
    "nccl_conf.library",
    "nccl_conf.container_view",
    # A guest on Grace, of which the lab has none.
    "iommu.command_queue",
)


def finding(check: str, state: str = "drift", subject: str = "rail 3") -> dict[str, Any]:
    return Finding(check, subject, state, "major", "on", "off", "/sys/x", "slow", "switch it on").to_dict()


def host(checks: tuple[str, ...], layer: str = "", **more: Any) -> dict[str, Any]:
    evidence = {f"{check}[live]@{check}": ["as read", "/sys/class/x"] for check in checks}
    evidence |= {"platform.rail_link_layer[live]@0000:18:00.0": [layer, "/sys"]} if layer else {}
    return {"findings": [], "evidence": evidence, **more}


def proofs(*hosts: dict[str, Any], group: int = 0, **more: Any) -> sheet.Proofs:
    names = [f"node{number:02}" for number in range(max(len(hosts), group))]
    run = {"ended": "2026-11-30T02:00:00Z", "group": names, "limit": None, "simulated": False}
    return sheet.proofs({"run": run, "hosts": dict(zip(names, hosts, strict=False)), **more}, TODAY)


def row(one: criteria.Criterion, known: sheet.Proofs, asked: dict[str, Any] | None = None) -> sheet.Row:
    return next(found for found in sheet.answer(known, asked) if found.criterion is one)


def test_every_check_of_the_audit_has_one_row_and_somebody_who_answers() -> None:
    audit = [one.key for one in criteria.CRITERIA if one.kind == criteria.AUDIT]
    assert (len(audit), len(set(audit))) == (59, 59)
    assert all(one.checks or one.owner for one in criteria.CRITERIA)
    assert all(bool(one.rule) == bool(one.reason) == bool(one.experiment) for one in criteria.CRITERIA)


def test_the_checks_are_declared() -> None:
    named = {check for one in criteria.CRITERIA for check in one.checks}
    assert named - set(accepted.known_checks()) == set()


@pytest.mark.parametrize("one", OURS, ids=lambda one: one.key)
def test_a_fault_of_the_lab_turns_a_pass(one: criteria.Criterion) -> None:
    first = one.checks[0]
    if not first.startswith(BEYOND):
        assert any(first == found[0] for findings in FAULTS.values() for found in findings), first


@pytest.mark.parametrize("one", OURS, ids=lambda one: one.key)
def test_only_a_result_of_every_host_is_a_pass(one: criteria.Criterion) -> None:
    good, first = host(one.checks, one.link), one.checks[0]
    answers = {
        "proven": row(one, proofs(good, good)).answer,
        "one host without a result": row(one, proofs(good, group=2)).answer,
        "one host with an invalid entry": row(one, proofs(good, {"findings": "x"})).answer,
        "the first check is missing": row(one, proofs(good, host(one.checks[1:], one.link))).answer,
        "no host": row(one, proofs()).answer,
    }
    well = sheet.DIFFERS if one.rule else sheet.PASS
    expected = {"proven": well, **dict.fromkeys([*answers][1:], sheet.OPEN)}
    if one.optional and not one.checks[1:]:
        # It is not on that host.
        expected["the first check is missing"] = well
    assert answers == expected
    for check in one.checks:
        for state in ("drift", "unknown", "withheld"):
            broken = row(one, proofs(good, host(one.checks, one.link, findings=[finding(check, state)])))
            assert (broken.answer, "node01" in broken.todo[0]) == (sheet.OPEN, True)
    entry = {"check": first, "reason": "until the next delivery", "owner": "ops", "until": "2027-01-31"}
    excused = host((), one.link, accepted=[finding(first)], acceptances=[entry])
    assert row(one, proofs(good, excused)).answer == sheet.ACCEPTED
    assert "until the next delivery (ops, until 2027-01-31)" in row(one, proofs(excused)).todo[0]
    # An accepted finding of another check proves nothing about the first one.
    for check in one.checks[1:]:
        beside = host((), one.link, accepted=[finding(check)], acceptances=[entry | {"check": check}])
        assert row(one, proofs(beside)).answer == sheet.OPEN
    for other in (entry | {"until": "2026-11-29"}, entry | {"check": "lock.held"}, {"check": first}, "x", None):
        assert row(one, proofs(excused | {"acceptances": [other]})).answer == sheet.OPEN


@pytest.mark.parametrize("one", [one for one in OURS if one.link], ids=lambda one: one.key)
def test_other_fabrics_are_not_asked(one: criteria.Criterion) -> None:
    other = {"Ethernet": "InfiniBand", "InfiniBand": "Ethernet"}[one.link]
    assert row(one, proofs(host((), other))).answer == sheet.NOT_ASKED
    # Where nobody knows the rails they may be of this kind.
    assert row(one, proofs(host((), other), host(()))).answer == sheet.OPEN


@pytest.mark.parametrize(
    ("key", "value", "tool"),
    [
        ("gpus.pcieAcs.enabled", True, "failed: True"),
        ("gpus.pcieAcs.enabled", False, "passed: False"),
        ("gpus.pcieAcs.enabled", "unknown", "failed: unknown"),
        ("networking.hcaNamingValid", "unknown", "failed: unknown"),
        ("securityVersions.virtioNetBluefield.exposure", "latent", "failed: latent"),
        ("gpus.gpuDirectRdmaPath", {"dmaBuf": False, "nvidiaPeermemLegacy": True}, "failed: {"),
        ("gpus.gpuDirectRdmaPath", {"nvidiaOpen": "true"}, "passed: {"),
        ("vm_iommu.status", "warning", "failed: warning"),
        ("vm_iommu.status", "not_applicable", "passed: not_applicable"),
        ("software.perf.perfEventParanoid", 4, "failed: 4"),
        ("software.perf.perfEventParanoid", -1, "passed: -1"),
        ("software.nccl.installed", None, "not collected"),
        ("bmc-ipmi", False, "passed: False"),
        ("bmc-ipmi", "unknown", "failed: unknown"),
        ("nvlink-boundary", {"nvlinkExposed": True, "domainExclusive": "unknown"}, "failed: {"),
        ("nvlink-boundary", {"nvlinkExposed": True, "domainExclusive": True}, "passed: {"),
        ("nvlink-boundary", {"nvlinkExposed": False, "targetIsVm": True}, "failed: {"),
        ("nvlink-boundary", {"nvlinkExposed": False, "targetIsVm": False}, "passed: {"),
        ("nvlink-boundary", {"nvidiaGpuPresent": False}, "passed: {"),
    ],
)
def test_what_the_tool_has_found(key: str, value: object, tool: str) -> None:
    [one] = [one for one in criteria.CRITERIA if one.key == key]
    asked: Any = value
    for name in reversed((one.path or key).split(".")):
        asked = {name: asked}
    assert row(one, proofs(host(one.checks)), asked).tool.startswith(tool)


def test_where_the_tool_agrees_nothing_differs() -> None:
    [one] = [one for one in OURS if one.key == "networking.hcaNamingValid"]
    known = proofs(host(one.checks))
    asked = {name: {"networking": {"hcaNamingValid": name == "good"}} for name in ("good", "bad")}
    assert [row(one, known, asked[name]).answer for name in ("good", "bad")] == [sheet.PASS, sheet.DIFFERS]


@pytest.mark.parametrize("one", [one for one in OURS if one.optional], ids=lambda one: one.key)
def test_what_no_host_has_is_open_where_the_tool_fails_it_and_nothing_says_that_it_needs_none(
    one: criteria.Criterion,
) -> None:
    answers = []
    for value in ("fail" if one.key.endswith("tatus") else "false", "pass"):
        asked: Any = value
        for name in reversed(one.key.split(".")):
            asked = {name: asked}
        found = row(one, proofs(host(())), asked)
        answers.append(found.answer)
        assert found.todo[0].startswith(
            one.unneeded or ("no host has a result" if value == "fail" else "no host needs")
        )
    failed = sheet.NOT_ASKED if one.unneeded or one.kind != criteria.AUDIT else sheet.OPEN
    assert answers == [failed, sheet.NOT_ASKED]


def ran(known: sheet.Proofs, day: int) -> sheet.Proofs:
    return replace(known, at=f"2026-11-{day:02}T02:00:00Z")


def test_of_several_runs_the_latest_result_of_each_check_counts() -> None:
    [one] = [one for one in OURS if one.subject == "all-reduce within each node at its bar"]
    first, *others = one.checks
    good, bad = host(one.checks), host(tuple(others), findings=[finding(first)])
    entry = {"check": first, "reason": "until the next delivery", "owner": "ops", "until": "2027-01-31"}
    excused = proofs(good, host((), accepted=[finding(first)], acceptances=[entry]))
    nightly = ran(proofs(host(("iommu.domains",)), host(()), off={"nccl_benchmark": "x", "gate": "gate_stages"}), 20)
    answers = {
        "nightly alone": row(one, sheet.joined([nightly])),
        "and a benchmark, before or after it": row(one, sheet.joined([ran(proofs(good, good), 10), nightly])),
        "of one of both hosts": row(one, sheet.joined([nightly, ran(proofs(good), 21)])),
        "then a bad one": row(one, sheet.joined([ran(proofs(good, bad), 22), ran(proofs(good, good), 21), nightly])),
        "a bad one, then a good one": row(one, sheet.joined([ran(proofs(bad, good), 21), ran(proofs(good, good), 22)])),
        "accepted once, but not later": row(one, sheet.joined([ran(excused, 1), ran(proofs(good, bad), 2)])),
        "invalid later": row(one, sheet.joined([ran(proofs(good), 1), ran(proofs({"findings": 1}), 2)])),
    }
    assert {name: found.answer for name, found in answers.items()} == {
        "nightly alone": sheet.OPEN,
        "and a benchmark, before or after it": sheet.PASS,
        "of one of both hosts": sheet.OPEN,
        "then a bad one": sheet.OPEN,
        "a bad one, then a good one": sheet.PASS,
        "accepted once, but not later": sheet.OPEN,
        "invalid later": sheet.OPEN,
    }
    both = sheet.joined([nightly, ran(proofs(good, off={"gate": "gate_stages"}), 21)])
    assert (both.off, [*both.hosts]) == ({"gate": "gate_stages"}, ["node00", "node01"])
    assert "iommu.domains" in both.hosts["node00"].evidence


def test_a_role_that_is_off_is_named() -> None:
    [one] = [one for one in OURS if one.key == "healthChecks.nhcInstalled"]
    assert (
        row(one, proofs(host(()), off={"gate": "gate_stages"})).todo[0].startswith("node00: gate is off (gate_stages)")
    )


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["run", "hosts", "a", "gpus"]), inner),
)


@given(anything, anything)
def test_any_json_is_refused_or_answered(data: Any, asked: Any) -> None:
    try:
        known = sheet.proofs(data, TODAY)
    except ParseError:
        known = proofs(host(()) | {"evidence": data})
    rows = sheet.answer(known, asked if isinstance(asked, dict) else None)
    assert sheet.PASS not in {found.answer for found in rows}
    assert "\n".join(sheet.markdown(rows, known, "x"))


def test_texts_of_nodes_are_no_markdown_and_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2J<script>alert(1)</script>|`x` [a](http://b)"
    one = finding("pcie_path.acs") | {"have": evil, "fix": evil}
    evidence = {"iommu.domains[live]@x": [evil, evil]}
    run = {"ended": "2026-11-30T02:00:00Z", "group": ["n"], "limit": None, "simulated": True}
    data = {"run": run, "hosts": {"n": {"findings": [one], "evidence": evidence}}}
    (tmp_path / "findings.json").write_text(json.dumps(data))
    code = cli.main(["certify", str(tmp_path / "findings.json"), "--markdown", str(tmp_path / "sheet.md")])
    text, shown = (tmp_path / "sheet.md").read_text(), capsys.readouterr().out
    assert code == 2
    assert len(shown.splitlines()) <= 24
    assert "simulated" in shown.splitlines()[0]
    assert not any(part in text for part in ("\x1b", "<script", "`x`", "[a]("))
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    ("findings", "answers", "said"),
    [
        ("{", None, "not JSON"),
        ('{"hosts": {}}', None, "not a findings file"),
        (None, None, "No such file"),
        ("good", "[]", "no audit_data"),
    ],
)
def test_wrong_input_is_one_sentence(
    findings: str | None, answers: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = '{"run": {"ended": "2026-11-30T02:00:00Z", "group": [], "limit": null, "simulated": false}, "hosts": {}}'
    argv = ["certify", str(tmp_path / "findings.json")]
    if findings is not None:
        (tmp_path / "findings.json").write_text(good if findings == "good" else findings)
    if answers is not None:
        (tmp_path / "values.json").write_text(answers)
        argv += ["--answers", str(tmp_path / "values.json")]
    assert cli.main(argv) == 1
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
