from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.verdict import judge, render

ROOT = Finding(
    "platform.rail_device", "rail 3", "drift", "critical", "a NIC", "none", "/sys", "every node waits", "reseat it"
)
FOLLOWS = Finding(
    "nccl_conf.rails",
    "rail 3",
    "unknown",
    "critical",
    "a device",
    "none",
    "/sys",
    "left untouched",
    "mend",
    because=ROOT.id,
)
GOOD = {"findings": [], "passed": ["a.b[live]@c"]}


def bad(*findings: Finding) -> dict[str, Any]:
    return {"findings": [finding.to_dict() for finding in findings], "passed": []}


def test_all_good_is_ok() -> None:
    verdict = judge({"n1": {"platform": GOOD, "nccl_conf": GOOD}}, ["platform", "nccl_conf"], partial=False)
    assert verdict.ok
    assert "VERDICT ok: 1 of 1 hosts ok, 2 checks passed" in render(verdict, check_mode=True)


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (None, "the role did not run on this host"),
        ({"skipped": True}, "the role did not run on this host"),
        ({"unreachable": True, "msg": "ssh: timed out"}, "unreachable: ssh: timed out"),
        ({"failed": True, "msg": "boom\nat line 3"}, "failed: boom at line 3"),
        ({"rc": 0}, "returned no findings"),
        ({"findings": [{"check": "x"}], "passed": []}, "not a finding"),
        ({"findings": ["x"], "passed": []}, "not a finding"),
    ],
)
def test_what_did_not_answer_counts_as_unknown(result: dict[str, Any] | None, says: str) -> None:
    results = {"n1": {"platform": GOOD}, "n2": {} if result is None else {"platform": result}}
    verdict = judge(results, ["platform"], partial=False)
    assert not verdict.ok
    assert [(f.state, f.check) for f in verdict.hosts[1].findings] == [("unknown", "run.platform")]
    assert says in str(verdict.hosts[1].findings[0].have)


def test_the_findings_file_names_what_passed() -> None:
    verdict = judge({"n1": {"platform": GOOD, "nccl_conf": GOOD}}, ["platform", "nccl_conf"], partial=False)
    host = verdict.to_dict()["hosts"]["n1"]
    assert (host["passed"], host["passed_ids"]) == (2, ["a.b[live]@c", "a.b[live]@c"])


def test_no_host_at_all_is_not_ok() -> None:
    assert not judge({}, ["platform"], partial=False).ok


def test_a_host_where_nothing_was_checked_is_not_ok() -> None:
    verdict = judge({"n1": {"platform": {"findings": [], "passed": []}}}, ["platform"], partial=False)
    assert not verdict.ok


def test_a_role_that_ran_nowhere_is_a_finding_unless_tags_left_it_out() -> None:
    results = {"n1": {"platform": GOOD}}
    assert not judge(results, ["platform", "nccl_conf"], partial=False).ok
    partial = judge(results, ["platform", "nccl_conf"], partial=True)
    assert partial.ok
    assert "NOT checked, left out by tags: nccl_conf" in render(partial, check_mode=False)


def test_one_cause_is_one_row() -> None:
    verdict = judge(
        {"n1": {"platform": bad(ROOT), "nccl_conf": bad(FOLLOWS)}}, ["platform", "nccl_conf"], partial=False
    )
    text = render(verdict, check_mode=True)
    rows = [line for line in text.splitlines() if line.startswith("critical")]
    assert len(rows) == 1
    assert "platform.rail_device" in rows[0]
    assert "[1 more" in text
    assert "nccl_conf.rails" not in text


def test_a_consequence_without_its_root_is_shown() -> None:
    text = render(judge({"n1": {"nccl_conf": bad(FOLLOWS)}}, ["nccl_conf"], partial=False), check_mode=True)
    assert "nccl_conf.rails" in text


def test_consequences_of_consequences_count_at_the_root() -> None:
    chain = replace(FOLLOWS, subject="deep", because=FOLLOWS.id)
    verdict = judge({"n1": {"nccl_conf": bad(ROOT, FOLLOWS, chain)}}, ["nccl_conf"], partial=False)
    assert "[2 more" in render(verdict, check_mode=True)


def test_a_loop_of_causes_ends() -> None:
    a = replace(ROOT, because=FOLLOWS.id)
    verdict = judge({"n1": {"x": bad(a, FOLLOWS)}}, ["x"], partial=False)
    assert "NOT OK" in render(verdict, check_mode=True)


def test_the_same_finding_on_many_hosts_is_one_row_that_counts_them() -> None:
    results = {f"n{i:03}": {"x": bad(ROOT)} for i in range(300)}
    text = render(judge(results, ["x"], partial=False), check_mode=True)
    assert "n000 and 299 more" in " ".join(text.split())
    assert "on: n000, n001," in text
    assert "n099, and 200 more" in " ".join(text.split())
    assert "n100" not in text
    assert len(text.splitlines()) < 25


def test_hosts_that_are_unreachable_alike_are_one_row() -> None:
    results = {
        f"n{i}.example.org": {"x": {"unreachable": True, "msg": f"no route to n{i}.example.org"}} for i in range(5)
    }
    text = render(judge(results, ["x"], partial=False), check_mode=True)
    assert len([line for line in text.splitlines() if line.startswith("critical")]) == 1
    assert "unreachable: no route to it" in " ".join(text.split())
    assert "on: n0.example.org, n1.example.org" in text


def test_many_different_rows_are_cut_and_counted() -> None:
    results = {"n1": {"x": bad(*(replace(ROOT, subject=f"rail {i}") for i in range(200)))}}
    text = render(judge(results, ["x"], partial=False), check_mode=True)
    assert "and 140 more rows" in text


def test_terminal_escapes_do_not_reach_the_terminal() -> None:
    text = render(judge({"n1": {"x": bad(replace(ROOT, have="\x1b[2Jgone"))}}, ["x"], partial=False), check_mode=True)
    assert "\x1b" not in text
    assert "\\x1b" in text


def test_worst_comes_first() -> None:
    minor = replace(ROOT, check="a.minor", severity="minor")
    text = render(judge({"n1": {"x": bad(minor, ROOT)}}, ["x"], partial=False), check_mode=True)
    assert text.index("platform.rail_device") < text.index("a.minor")


def test_what_was_repaired_is_named() -> None:
    result = dict(GOOD, repaired=["nccl_conf.file[persisted]@/etc/nccl.conf"])
    verdict = judge({"n1": {"x": result}}, ["x"], partial=False)
    assert verdict.ok
    assert "repaired on n1: nccl_conf.file[persisted]@/etc/nccl.conf" in render(verdict, check_mode=False)


def test_the_findings_file_holds_everything() -> None:
    data = judge({"n1": {"x": bad(ROOT)}}, ["x"], partial=False).to_dict()
    assert data["ok"] is False
    assert data["hosts"]["n1"]["findings"] == [ROOT.to_dict()]
