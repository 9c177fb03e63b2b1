from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.action import verdict as verdict_action
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.plugin_utils.nodeset import expand
from ansible_collections.busbar.fabric.plugins.plugin_utils.verdict import judge, not_ok, render

from .test_cluster_plan_action import host

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
LINTED = {"findings": [], "passed": ["nccl_conf.file[persisted]@/etc/nccl.conf"]}
EMPTY: dict[str, Any] = {"findings": [], "passed": []}


def bad(*findings: Finding) -> dict[str, Any]:
    return {"findings": [finding.to_dict() for finding in findings], "passed": []}


def test_all_good_is_ok() -> None:
    verdict = judge({"n1": {"platform": GOOD, "nccl_conf": GOOD}}, ["platform", "nccl_conf"], partial=False)
    assert verdict.ok
    assert "VERDICT OK: 1 of 1 hosts ok, 2 checks passed" in render(verdict, check_mode=True)


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (None, "the role did not run on this host"),
        ({"skipped": True}, "the role did not run on this host"),
        ({"unreachable": True, "msg": "Failed to connect to the host via ssh: refused"}, "unreachable: refused"),
        (
            {
                "unreachable": True,
                "msg": 'Task failed: Data could not be sent to remote host "h". Make sure this host can be reached over'
                " ssh: ssh: refused",
            },
            "unreachable: ssh: refused",
        ),
        ({"unreachable": True, "msg": "Failed to connect to the host via ssh:"}, "unreachable: Failed to connect"),
        ({"unreachable": True, "msg": "ssh: timed out"}, "unreachable: ssh: timed out"),
        ({"failed": True, "msg": "boom\nat line 3"}, "failed: boom at line 3"),
        ({"rc": 0}, "its result is not valid: findings: is missing"),
        ({"findings": [{"check": "x"}], "passed": []}, "its result is not valid: findings[0].aspect: is missing"),
        ({"findings": ["x"], "passed": []}, "its result is not valid: findings[0]: is 'x', expected a dictionary"),
    ],
)
def test_what_did_not_answer_counts_as_unknown(result: dict[str, Any] | None, says: str) -> None:
    results = {"n1": {"platform": GOOD}, "n2": {} if result is None else {"platform": result}}
    verdict = judge(results, ["platform"], partial=False)
    assert not verdict.ok
    assert [(f.state, f.check) for f in verdict.hosts[1].findings] == [("unknown", "run.platform")]
    assert says in str(verdict.hosts[1].findings[0].have)


def test_a_run_that_was_ended_is_never_ok_and_says_who_was_not_heard() -> None:
    results = {"n1": {"platform": GOOD, "mtu": GOOD}, "n2": {"platform": GOOD}, "n3": {}}
    verdict = judge(results, ["platform", "mtu"], partial=False, ended=True)
    assert [host.ok for host in verdict.hosts] == [True, False, False]
    assert [[(f.check, f.have) for f in host.findings] for host in verdict.hosts[1:]] == [
        [("run.mtu", "no result: the run was ended before the role was done")],
        [("run.host", "no result: the run was ended before")],
    ]
    assert "VERDICT INCOMPLETE, the run was ended before: 1 of 3 hosts ok" in render(verdict, check_mode=True)
    assert not judge({"n1": results["n1"]}, ["platform", "mtu"], partial=False, ended=True).ok


def test_tags_that_leave_no_role_are_no_good_verdict() -> None:
    verdict = judge({"n1": {"node_lock": GOOD}}, ["platform"], partial=True)
    assert not verdict.ok
    assert "the tags of this run leave no role" in str(verdict.hosts[0].findings[0].have)


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


@pytest.mark.parametrize(
    ("role", "result", "off", "lacks"),
    [
        ("platform", {}, {}, "its result holds no check"),
        ("platform", {"passed": ["platform.rail_state[live]@rail 1"]}, {}, "its result lacks platform.gpu_count"),
        ("platform", {"passed": ["platform.gpu_count[live]@gpus"]}, {}, None),
        ("platform", {"findings": [ROOT.to_dict()]}, {}, None),
        ("mtu", {}, {"mtu": "busbar_mtu"}, None),
        ("mtu", None, {"mtu": "busbar_mtu"}, None),
        ("lldp", {}, {}, "its result holds no check"),
        ("lldp", {"notes": ["no rail has an LLDP neighbour"]}, {}, None),
    ],
)
def test_what_a_full_answer_holds_and_one_lacks_is_unknown(
    role: str, result: dict[str, Any] | None, off: dict[str, str], lacks: str | None
) -> None:
    answer = None if result is None else {"findings": [], "passed": [], **result}
    verdict = judge({"n1": {"nccl_conf": LINTED, role: answer}}, [role, "nccl_conf"], partial=False, off={"n1": off})
    found = [finding for finding in verdict.hosts[0].findings if finding is not ROOT and finding.check[:4] == "run."]
    assert [(f.state, f.check, f.have) for f in found] == ([("unknown", f"run.{role}", lacks)] if lacks else [])


@pytest.mark.parametrize(("roles", "ok"), [(["verify"], False), (["verify", "mtu"], True)])
def test_what_verify_by_hand_did_not_test_is_unknown_whatever_busbar_verify_is(roles: list[str], ok: bool) -> None:
    lock = {"findings": [], "passed": ["lock.held[live]@the node"], "held": True}
    raw: dict[str, Any] = {
        **host(busbar_verify=False),
        "node_lock_result": lock,
        "mtu_result": GOOD,
        "inventory_hostname": "n1",
    }
    raw["busbar_intent"]["benchmark_runs"] = []
    found = verdict_action._Found()
    found.add("n1", raw, None, roles, {}, nightly=False)
    assert judge(found.results, roles, partial=False, off=found.off).ok is ok


def test_what_ran_what_is_off_and_what_could_not_run_are_three_lists() -> None:
    results = {
        "n1": {"nccl_conf": LINTED, "mtu": {"failed": True, "msg": "x"}, "gate": EMPTY},
        "n2": {"nccl_conf": LINTED, "mtu": GOOD, "lldp": {"failed": True, "msg": "x"}},
    }
    off = {"n1": {"gate": "gate_stages", "lldp": "busbar_lldp"}, "n2": {"gate": "gate_stages"}}
    verdict = judge(results, ["mtu", "lldp", "gate", "nccl_conf"], partial=False, off=off)
    assert (verdict.checked, verdict.off) == (("mtu", "nccl_conf"), {"gate": "gate_stages"})
    assert [host.lost for host in verdict.hosts] == [("mtu",), ("lldp",)]
    assert "could not run: mtu on n1, lldp on n2" in render(verdict, check_mode=True)


def test_one_cause_is_one_row() -> None:
    verdict = judge(
        {"n1": {"platform": bad(ROOT), "nccl_conf": bad(FOLLOWS)}}, ["platform", "nccl_conf"], partial=False
    )
    text = render(verdict, check_mode=True)
    rows = [line for line in text.splitlines() if line.startswith("critical")]
    assert len(rows) == 1
    assert "platform.rail_device" in rows[0]
    assert "1 more follows" in text
    assert "nccl_conf.rails" not in text


def test_a_consequence_without_its_root_is_shown() -> None:
    text = render(judge({"n1": {"nccl_conf": bad(FOLLOWS)}}, ["nccl_conf"], partial=False), check_mode=True)
    assert "nccl_conf.rails" in text


def test_a_cause_on_another_host_of_the_same_job_is_the_row() -> None:
    of_job = replace(FOLLOWS, have="slow with n0")
    results = {"n0": {"x": bad(ROOT, of_job)}, "n1": {"x": bad(of_job)}, "n2": {"x": bad(of_job)}}
    text = render(judge(results, ["x"], partial=False), check_mode=True)
    assert "nccl_conf.rails" not in text
    assert "3 more follow;" in text
    assert "0 of 3 hosts ok" in text


def test_what_is_told_of_many_in_the_same_words_is_one_row_whoever_it_names() -> None:
    told = replace(ROOT, have="n0 with n1: slow")
    text = render(judge({f"n{i}": {"x": bad(told)} for i in range(3)}, ["x"], partial=False), check_mode=True)
    assert len([line for line in text.splitlines() if line.startswith("critical")]) == 1
    assert "n0 with n1: slow" in " ".join(text.split())


def test_consequences_of_consequences_count_at_the_root() -> None:
    chain = replace(FOLLOWS, subject="deep", because=FOLLOWS.id)
    verdict = judge({"n1": {"nccl_conf": bad(ROOT, FOLLOWS, chain)}}, ["nccl_conf"], partial=False)
    assert "2 more follow;" in render(verdict, check_mode=True)


def test_a_loop_of_causes_ends() -> None:
    a = replace(ROOT, because=FOLLOWS.id)
    verdict = judge({"n1": {"x": bad(a, FOLLOWS)}}, ["x"], partial=False)
    assert "NOT OK" in render(verdict, check_mode=True)


def words(text: str) -> str:
    return " ".join(text.split())


def test_the_same_finding_on_many_hosts_is_one_row_with_their_names_folded() -> None:
    results = {f"n{i:03}": {"x": bad(ROOT)} for i in range(300)}
    text = render(judge(results, ["x"], partial=False), check_mode=True)
    assert "critical  drift  platform.rail_device  on n[000-299]  rail 3" in text


def test_every_host_is_named_with_verbose() -> None:
    for names in ([f"gpu-{i:04}" for i in range(0, 600, 3)], [f"{i * 7919 % 10007:05}-{i:05}" for i in range(2000)]):
        judged = judge({name: {"x": bad(ROOT)} for name in names}, ["x"], partial=False)
        assert re.search(r" and \d+ more  rail 3", render(judged, check_mode=True))
        text = render(judged, check_mode=True, verbose=True)
        listed = text[text.index("on: ") + 4 : text.index("expected ")]
        assert sorted(expand("".join(listed.split()))) == sorted(names)
        assert words(not_ok(judged)).endswith("more; the verdict above names the findings")


def test_repairs_and_notes_of_many_hosts_are_a_line_each() -> None:
    of_host = dict(GOOD, repaired=["mtu.live[live]@0000:1b:00.0", "mtu.live[live]@0000:3c:00.0"], notes=["not proven"])
    results = {f"node{i:04}": {"x": dict(of_host)} for i in range(1, 1001)}
    results["node0500"] = {"x": dict(of_host, repaired=["nccl_conf.file[persisted]@/etc/nccl.conf", "odd"])}
    judged = judge(results, ["x"], partial=False)
    found = {
        verbose: [
            line for line in render(judged, True, 200, verbose=verbose).splitlines() if re.match("a run|note", line)
        ]
        for verbose in (False, True)
    }
    assert found == {
        False: [
            "a run would repair on node[0001-1000]: mtu.live, nccl_conf.file, odd",
            "note (all hosts): not proven",
        ],
        True: [
            "a run would repair on node[0001-0499,0501-1000]: mtu.live[live]@0000:1b:00.0, mtu.live[live]@0000:3c:00.0",
            "a run would repair on node0500: nccl_conf.file[persisted]@/etc/nccl.conf, odd",
            "note (all hosts): not proven",
        ],
    }


def test_what_is_different_on_every_host_is_one_row() -> None:
    results = {f"n{i:03}": {"x": bad(replace(ROOT, have=f"{i % 50} lost"))} for i in range(300)}
    text = words(render(judge(results, ["x"], partial=False), check_mode=True))
    assert text.count("platform.rail_device") == 1
    assert "actual 0 lost and 49 other values" in text


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_lost(width: int) -> None:
    long = replace(
        ROOT,
        check="nccl_conf.variable_without_effect",
        subject="0000:1b:00.0 mlx5_0 ens1f0np0",
        want="a 400 Gbit/s Ethernet NIC at PIX of GPU 3",
        have="no NIC at PIX of GPU 3, and a word of its own for each of the others",
        fix="check lspci and dmesg for the NIC, reseat or replace it; then run site.yml --tags platform",
    )
    results: dict[str, Any] = {
        f"gpu-r{i // 9:02}-{i:03}": {
            "x": bad(long, ROOT),
            "y": dict(GOOD, repaired=[f"a.b[live]@{i}"], notes=["x " * 99]),
        }
        for i in range(0, 500, 7)
    }
    text = render(judge(results, ["x", "y"], partial=False), check_mode=True, width=width, verbose=True)
    assert max(map(len, text.splitlines())) <= width
    for part in ("variable_without_effect", "mlx5_0", "reseat or replace it; then run"):
        assert part in words(text)


def test_hosts_that_are_unreachable_alike_are_one_row() -> None:
    results = {
        f"n{i}.example.org": {"x": {"unreachable": True, "msg": f"no route to n{i}.example.org"}} for i in range(5)
    }
    text = render(judge(results, ["x"], partial=False), check_mode=True)
    assert len([line for line in text.splitlines() if line.startswith("critical")]) == 1
    assert "unreachable: no route to it" in " ".join(text.split())
    assert "n[0-4].example.org" in text


def test_a_list_of_hosts_is_the_same_on_each_of_them() -> None:
    results = {
        f"n{i}": {"x": {"failed": True, "msg": f"all_reduce n0,n1,n2: no route to n{i}, says n{i}"}} for i in range(3)
    }
    text = " ".join(render(judge(results, ["x"], partial=False), check_mode=True).split())
    assert text.count("critical unknown") == 1
    assert "all_reduce n0,n1,n2: no route to it, says it" in text


def test_terminal_escapes_do_not_reach_the_terminal() -> None:
    text = render(judge({"n1": {"x": bad(replace(ROOT, have="\x1b[2Jgone"))}}, ["x"], partial=False), check_mode=True)
    assert "\x1b" not in text
    assert "\\x1b" in text


def test_a_host_whose_name_has_two_lines_is_named_in_one() -> None:
    assert not_ok(judge({"a\nb": {}}, ["iommu"], partial=False)).isprintable()


def test_worst_comes_first() -> None:
    minor = replace(ROOT, check="a.minor", severity="minor")
    text = render(judge({"n1": {"x": bad(minor, ROOT)}}, ["x"], partial=False), check_mode=True)
    assert text.index("platform.rail_device") < text.index("a.minor")


def test_what_was_repaired_is_named() -> None:
    result = dict(GOOD, repaired=["nccl_conf.file[persisted]@/etc/nccl.conf"])
    verdict = judge({"n1": {"x": result}}, ["x"], partial=False)
    assert verdict.ok
    assert "repaired on n1: nccl_conf.file" in render(verdict, check_mode=False)
    assert "repaired on n1: nccl_conf.file[persisted]@/etc/nccl.conf" in render(verdict, check_mode=False, verbose=True)


def test_the_findings_file_holds_everything() -> None:
    data = judge({"n1": {"x": bad(ROOT)}}, ["x"], partial=False).to_dict()
    assert data["ok"] is False
    assert data["hosts"]["n1"]["findings"] == [ROOT.to_dict()]
