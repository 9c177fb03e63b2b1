# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import datetime
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.plugin_utils import repair, verdict

from busbar.drift import command, html, junit, prometheus, text
from busbar.drift.compare import compare, marks
from busbar.drift.history import History
from busbar.drift.inventory import Manifest
from busbar.drift.report import Night, build
from busbar.drift.run import CLASSES, HostResult, Run
from busbar.drift.runner import results
from tests import goldens

SITE = Path(__file__).resolve().parent.parent.parent / "site.yml"
FIX = "run site.yml --tags nccl_conf for this host"
BAD = Finding("nccl_conf.file", "/etc/nccl.conf", "drift", "major", "as rendered", "absent", "s", "w", FIX)
MARKUP = "<script>alert('x')</script> [a](http://e) | `b` ]]> \\x1b"
AGAIN = ("busbar", "report", "--history", "/h", "--run", "7")
RUN = Run(7, "2026-11-21T02:00:00Z", "2026-11-21T02:01:00Z", "done", "/i", None, "0", "u", None, False, "minor")


def well(name: str) -> HostResult:
    return HostResult(name, "complete", (), frozenset({"nccl_conf.file[live]@/etc/nccl.conf"}), "one")


def ill(name: str, *findings: Finding, end: str = "complete") -> HostResult:
    return HostResult(name, end, findings or (BAD,), frozenset({"a.b[live]@c"}), "one")


def report(*hosts: HostResult, run: Run = RUN, **more: Any) -> dict[str, Any]:
    by_name = {host.host: host for host in hosts}
    return build(
        Night(
            run=run,
            hosts=by_name,
            marks={name: marks(run.id, host, ()) for name, host in by_name.items()},
            changes={name: compare(host, None, ()) for name, host in by_name.items()},
            trail=(),
            started={run.id: run.started},
            again=AGAIN,
            **more,
        )
    )


SWITCH = replace(BAD, check="platform.rail_state", subject="rail 3", severity="critical", fix="look at the switch")
NIGHTS = {
    "good": report(well("n1"), well("n2")),
    "one finding": report(well("n1"), ill("n2"), ill("n3")),
    "hosts without an answer": report(
        well("n1"), HostResult("n2", "unreachable"), ill("n3", end="incomplete"), HostResult("n4", "timed_out")
    ),
    "interrupted": report(well("n1"), HostResult("n2", "not_run"), run=replace(RUN, state="interrupted")),
    "a rail and what follows from it": report(
        *[ill(f"n{n:02}", SWITCH, replace(BAD, check="nccl_conf.rails", because=SWITCH.id)) for n in range(30)]
    ),
}
PROSE = {"want", "have", "why", "fix", "headline", "command", "alike", "source"}


def typed(value: Any) -> Any:
    """The value without its sentences, and without what is empty."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items() if key not in PROSE and item not in (None, [], {}, "")}
    return [typed(item) for item in value] if isinstance(value, list) else value


@pytest.mark.golden
@pytest.mark.parametrize("night", NIGHTS)
def test_a_night_in_every_form_for_programs(night: str) -> None:
    data = NIGHTS[night]
    rows = [{key: value} for key, value in typed(data).items()]
    for case in ET.fromstring(junit.render(data)).iter("testcase"):
        rows.append({"junit": [case.get("classname"), case.get("name"), [part.tag for part in case]]})
    metrics = prometheus.render(data, None).splitlines()
    rows += [{"prometheus": line} for line in metrics if not line.startswith("#")]
    goldens.check("drift_runs", night, rows)


@pytest.mark.golden
def test_a_night_in_every_form_for_people() -> None:
    def shown(data: dict[str, Any]) -> str:
        forms = text.rendered(data, AGAIN), text.rendered(data, AGAIN, verbose=True), text.markdown(data, AGAIN)
        lines = "\n--\n".join([*forms, text.brief(data, AGAIN)]).split("\n")
        # Commands name the checkout.
        return "\n".join(line for line in lines if "$ " not in line)

    goldens.text("drift", "\n".join(f"== {night}\n{shown(data)}" for night, data in NIGHTS.items()))


def test_one_fault_on_900_hosts_is_one_group_and_what_follows_is_counted() -> None:
    switch = replace(BAD, check="platform.rail_state", subject="rail 3", severity="critical", fix="look at the switch")
    follows = replace(BAD, check="nccl_conf.rails", subject="rail 3", because=switch.id)
    data = report(*[ill(f"n{i:04}", switch, follows) for i in range(900)], well("n0900"))
    (group,) = data["groups"]
    assert (group["nodes"], group["count"], group["follows"]) == ("n[0000-0899]", 900, 900)
    assert group["alike"].startswith("900 hosts report the same for rail 3")
    assert data["counts"]["severity"] == {"critical": 1, "major": 0, "minor": 0}
    assert (
        data["headline"] == "901 of 901 hosts checked in full; 900 differ; 1 finding: 1 critical, and 900 that follow"
    )


def test_the_advice_of_a_group_holds_for_each_of_its_subjects() -> None:
    rails = [
        replace(BAD, check="roce_qos.mtu", subject=f"0000:{n}b:00.0 mlx5_{n} ens{n}f0np0", fix=f"{tool}{n}{end}")
        for n in range(8)
        for tool, end in (("mstflint -d 0000:", "b:00.0 q"), ("ip link set ens", "f0np0 mtu 9000"))
    ]
    data = report(*[ill(f"n{i}", *rails[i % 2 :: 2]) for i in range(4)])
    assert sorted(group["fix"] for group in data["groups"]) == ["ip link set NAME mtu 9000", "mstflint -d ADDRESS q"]
    assert [(group["count"], len(group["subjects"])) for group in data["groups"]] == [(2, 8), (2, 8)]
    # Where one subject alone has it, its name stays.
    (group,) = report(ill("n1", rails[0]))["groups"]
    assert group["fix"] == rails[0].fix
    # What differs in what is to be done is never one group, whatever was read.
    kinds = [
        replace(BAD, check="node_health.xid", subject=f"0000:0{n:x}:00.0 GPU{n}", have=f"Xid {n}") for n in range(16)
    ]
    kinds = [replace(one, fix="reboot" if n % 2 else "reset") for n, one in enumerate(kinds)]
    assert sorted(group["fix"] for group in report(ill("n1", *kinds))["groups"]) == ["reboot", "reset"]


def test_values_of_each_host_do_not_make_a_group_of_each_host() -> None:
    data = report(*[ill(f"n{i}", replace(BAD, have=f"n{i} says {i % 90}")) for i in range(900)])
    (group,) = data["groups"]
    assert group["have"] == "90 different values, most often it says 0 (10), it says 1 (10), it says 2 (10)"
    # Its own name is no value.
    assert (
        report(ill("n1", replace(BAD, have="n1 x")), ill("n2", replace(BAD, have="n2 x")))["groups"][0]["have"]
        == "it x"
    )


@pytest.mark.parametrize(
    ("hosts", "fail_on", "code"),
    [
        ([well("n1")], "minor", 0),
        ([well("n1"), ill("n2")], "minor", 2),
        ([well("n1"), ill("n2")], "critical", 0),
        ([ill("n1", replace(BAD, severity="critical"))], "critical", 2),
        ([well("n1"), HostResult("n2", "unreachable")], "minor", 3),
        ([well("n1"), HostResult("n2", "timed_out")], "critical", 3),
        ([well("n1"), HostResult("n2", "not_run")], "minor", 3),
        ([ill("n1", replace(BAD, state="unknown"))], "minor", 3),
        # A host that says nothing at all is not in sync.
        ([HostResult("n1", "complete")], "minor", 3),
        ([ill("n1"), HostResult("n2", "unreachable")], "minor", 2),
        ([ill("n1"), HostResult("n2", "unreachable")], "critical", 3),
        ([ill("n1", end="incomplete")], "minor", 2),
        *[([ill("n1", replace(BAD, state=state))], "minor", 2) for state in ("withheld", "unsupported", "not_owned")],
    ],
)
def test_the_exit_code_tells_drift_from_missing_answers(hosts: list[HostResult], fail_on: str, code: int) -> None:
    assert report(*hosts, run=replace(RUN, fail_on=fail_on))["exit_code"] == code


def test_every_host_is_in_exactly_one_class() -> None:
    unknown, other = replace(BAD, state="unknown"), replace(BAD, check="other.check")
    hosts = [well("a"), ill("b"), ill("c", unknown), ill("d", end="incomplete"), ill("e", unknown, other)]
    data = report(*hosts, *[HostResult(end, end) for end in ("unreachable", "timed_out", "not_run")])
    assert {name: host["class"] for name, host in data["hosts"].items()} == {
        "a": "in_sync", "b": "drift", "c": "incomplete", "d": "incomplete", "e": "drift",
        "unreachable": "unreachable", "timed_out": "timed_out", "not_run": "not_run",
    }  # fmt: skip
    assert sum(data["counts"]["hosts"].values()) == data["counts"]["total"] == 8


def test_news_is_a_night_unlike_the_last(tmp_path: Path) -> None:
    worse = replace(BAD, subject="/root/.nccl.conf")
    silent = HostResult("n2", "unreachable")
    nights = (
        ("well from the start", [well("n1"), well("n2")], False),
        ("drift", [ill("n1"), well("n2")], True),
        ("the same", [ill("n1"), well("n2")], False),
        ("another finding of the same node", [ill("n1", BAD, worse), well("n2")], True),
        ("a node fell silent", [ill("n1", BAD, worse), silent], True),
        ("still silent", [ill("n1", BAD, worse), silent], False),
        ("one of two is fixed", [ill("n1"), silent], True),
        ("well", [well("n1"), well("n2")], True),
        ("still well", [well("n1"), well("n2")], False),
    )
    with History.create(tmp_path / "h.sqlite") as history:
        for said, hosts, news in nights:
            run = replace(RUN, ended=None, state="running")
            run = replace(run, id=history.begin(run))
            data = command.keep(run, {host.host: host for host in hosts}, history)
            assert data["news"] == news, said


def waiver(**more: str) -> dict[str, str]:
    given = {"check": "nccl_conf.*", "hosts": "n[1-2]", "owner": "anna", "reason": "RMA", "expires": "2026-11-21"}
    return {**given, **more}


def test_a_waiver_holds_until_the_end_of_its_day_and_is_drift_after_it() -> None:
    run = replace(RUN, waivers=(waiver(),))
    data = report(ill("n1"), ill("n2"), run=run)
    assert (data["exit_code"], data["groups"], data["waived"][0]["nodes"]) == (0, [], "n[1-2]")
    assert data["waivers"][0]["state"] == "active"
    data = report(ill("n1"), ill("n3"), run=run)
    assert (data["exit_code"], data["groups"][0]["nodes"]) == (2, "n3")
    data = report(ill("n1"), run=replace(RUN, waivers=(waiver(expires="2026-11-20"),)))
    assert (data["exit_code"], data["waivers"][0]["state"]) == (2, "expired")
    assert report(well("n1"), run=run)["waivers"][0]["state"] == "unused"


def test_a_node_in_repair_can_be_waived_and_is_no_missing_answer() -> None:
    gone = replace(BAD, check="run.host", state="unknown")
    run = replace(RUN, waivers=(waiver(check="run.*"),))
    data = report(well("n9"), ill("n1", gone, end="unreachable"), run=run)
    assert (data["exit_code"], data["hosts"]["n1"]["class"]) == (0, "waived")


@pytest.mark.parametrize(("severity", "stands"), [("minor", []), ("major", []), ("critical", ["other.check"])])
def test_a_consequence_is_accepted_with_its_cause_unless_it_is_more_severe(severity: str, stands: list[str]) -> None:
    follows = replace(BAD, check="other.check", because=BAD.id, severity=severity)
    data = report(ill("n1", BAD, follows), run=replace(RUN, waivers=(waiver(),)))
    assert [group["check"] for group in data["groups"]] == stands


def test_the_one_that_differs_from_its_fleet_is_an_outlier() -> None:
    figures = {"all_reduce-8G": {"busbw": 365.0, "bar": 320.0, "finished": 1, "simulated": False}}
    hosts = [replace(well(f"n{i}"), busbw=figures) for i in range(20)]
    slow = {"all_reduce-8G": {**figures["all_reduce-8G"], "busbw": 330.0}}
    hosts[7] = replace(hosts[7], busbw=slow)
    data = report(*hosts, ill("n20"))
    assert [row["nodes"] for row in data["outliers"]] == ["n20", "n7"]
    assert "90%" in data["outliers"][1]["have"]
    assert report(*hosts[:3], ill("n20"))["outliers"] == []


# -- the command to run ----------------------------------------------------------------------------------------------


def test_the_command_names_few_hosts_and_reads_many_from_a_file() -> None:
    assert repair.command(FIX, ["n1", "n2"], ["/a b"], AGAIN, "abc") == (
        f"ansible-playbook {SITE} -i '/a b' --tags nccl_conf --limit n1,n2"
    )
    many = repair.command(FIX, [f"n{i}" for i in range(100)], ["/i"], AGAIN, "abc")
    assert many == (
        "busbar report --history /h --run 7 --nodes abc > nodes-abc && "
        f"ansible-playbook {SITE} -i /i --tags nccl_conf --limit @nodes-abc"
    )


@pytest.mark.parametrize("host", ["n*", "!n1", "all:!x", "$(reboot)", "-v", "@file", ""])
def test_no_command_is_made_of_a_name_that_ansible_or_a_shell_could_read_otherwise(host: str) -> None:
    assert repair.command(FIX, ["n1", host], ["/i"], AGAIN, "abc") == ""


def test_the_command_gives_the_leave_that_the_advice_names() -> None:
    fix = "run site.yml --tags iommu,reboot -e busbar_max_disruption=reboot for this host, or reboot the node"
    assert repair.command(fix, ["n1"], ["/i"], AGAIN, "abc") == (
        f"ansible-playbook {SITE} -i /i --tags iommu,reboot -e busbar_max_disruption=reboot --limit n1"
    )


def test_no_command_where_a_person_has_to_do_it() -> None:
    assert repair.command("reseat the NIC", ["n1"], ["/i"], AGAIN, "abc") == ""


def test_a_playbook_between_nodes_is_completed_for_all_of_them() -> None:
    fix = (
        "run ansible-playbook playbooks/benchmark.yml -i INVENTORY -e nccl_benchmark_scope=leaf -e 'x=[\"a b\"]', then"
    )
    playbook = SITE.parent / "playbooks/benchmark.yml"
    assert repair.command(fix, ["n1"], ["/i v"]) == (
        f"ansible-playbook {playbook} -i '/i v' -e nccl_benchmark_scope=leaf -e 'x=[\"a b\"]'"
    )


# -- numbers ---------------------------------------------------------------------------------------------------------


def test_every_output_counts_causes_and_apart_from_them_what_they_lead_to() -> None:
    root = replace(BAD, check="run.platform", state="unknown", severity="critical")
    lost = (root, *(replace(root, check=f"run.r{i}", because=root.id) for i in range(17)))
    vague = replace(BAD, check="x.y", state="unknown", severity="minor")
    data = report(ill("n1", BAD, vague), HostResult("n2", "unreachable", lost))
    counts = data["counts"]
    assert counts["severity"] == {"critical": 1, "major": 1, "minor": 1}
    assert (counts["groups"], len(data["groups"]), counts["follow"], counts["hosts_differ"]) == (3, 3, 17, 1)
    assert (counts["new"], counts["hosts"]["unreachable"]) == (2, 1)
    suites = [suite.attrib for suite in ET.fromstring(junit.render(data))]
    assert [sum(int(suite[name]) for suite in suites) for name in ("failures", "errors", "skipped")] == [1, 2, 18]
    page = prometheus.render(data, None).splitlines()
    assert [line.split()[1] for line in page if line.startswith("busbar_drift_findings{")] == ["1", "1", "1"]
    assert "busbar_drift_following 17" in page
    results = {"n1": {"x": result(BAD, vague)}, "n2": {"x": result(*lost)}}
    shown = verdict.render(verdict.judge(results, ["x"], partial=False), check_mode=True)
    for text_of in (data["headline"], shown):
        assert "1 critical, 1 major, 1 minor, and 17 that follow" in " ".join(text_of.split())


def result(*findings: Finding) -> dict[str, Any]:
    return {"findings": [finding.to_dict() for finding in findings], "passed": ["a.b[live]@c"]}


def test_an_answer_in_which_no_check_passed_is_not_complete() -> None:
    found = results({"hosts": {"n1": {**said(BAD), "passed_ids": []}}}, Manifest(("n1",), (), False), {})
    assert found["n1"].end == "incomplete"
    assert report(found["n1"])["counts"]["hosts"]["incomplete"] == 1


def test_what_a_person_has_to_do_is_in_every_text() -> None:
    data = report(ill("n1", replace(BAD, fix="reseat the NIC, then run site.yml --tags platform for this host")))
    for page in (text.markdown(data, AGAIN), text.rendered(data), html.render(data)):
        assert "reseat the NIC" in page
        assert f"ansible-playbook {SITE} -i /i --tags platform --limit n1" in page


# -- outputs ---------------------------------------------------------------------------------------------------------


def hostile() -> dict[str, Any]:
    finding = replace(BAD, subject=MARKUP, have=MARKUP, want=MARKUP, why=MARKUP, fix=MARKUP, source=MARKUP)
    return report(ill(MARKUP, finding), run=replace(RUN, inventory=MARKUP, waivers=(waiver(reason=MARKUP),)))


def test_html_has_one_script_and_asks_for_nothing() -> None:
    page = html.render(hostile())
    assert re.findall(r"<script[^>]*>", page) == ['<script type="application/json" id="data">', "<script>"]
    assert not re.search(r"(?i)\b(src|srcset|href|action|poster)\s*=\s*[\"'](?!#)", page)
    assert not re.search(r"(?i)url\(|@import|<(link|img|iframe|object|embed|base)\b", page)
    data = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert MARKUP in json.loads(data.group(1))["hosts"]


def test_junit_is_xml_whatever_hosts_say() -> None:
    root = ET.fromstring(junit.render(hostile()))
    suites = {suite.get("name"): suite for suite in root}
    assert suites["nccl_conf.file"].get("failures") == "1"
    case = suites["nccl_conf.file"][0]
    assert MARKUP in (case.get("name") or "")
    assert MARKUP in (case[0].get("message") or "")
    data = report(well("n1"), HostResult("n2", "unreachable"))
    coverage = ET.fromstring(junit.render(data))[0]
    assert (coverage.get("tests"), coverage.get("errors")) == ("2", "1")


def test_junit_skips_what_is_waived() -> None:
    data = report(ill("n1"), run=replace(RUN, waivers=(waiver(),)))
    suite = ET.fromstring(junit.render(data))[1]
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "1")


def test_markdown_holds_what_hosts_report_in_an_indented_block_only() -> None:
    head, empty, *lines = text.markdown(hostile(), AGAIN).splitlines()
    assert (head, empty) == (f"**DRIFT**: run {RUN.id}, {RUN.started}", "")
    assert any("<script" in line for line in lines)
    assert all(line.startswith("    ") for line in lines)


def test_prometheus_has_no_series_of_a_host_and_parses() -> None:
    page = prometheus.render(hostile() | {"simulated": True}, "2026-11-20T02:00:00Z")
    assert "script" not in page
    samples = [line for line in page.splitlines() if not line.startswith("#")]
    for line in samples:
        assert re.fullmatch(r'busbar_drift_\w+\{(\w+="[\w. -]*",?)+\} \d+', line), line
    # Seconds, to the last digit.
    begin = datetime.datetime(2026, 11, 20, 2, tzinfo=datetime.UTC).timestamp()
    assert f'busbar_drift_last_complete_timestamp_seconds{{simulated="true"}} {begin:.0f}' in samples
    assert {line.split('"')[1] for line in samples if line.startswith("busbar_drift_hosts")} == set(CLASSES)


def test_every_output_of_simulated_nodes_says_so() -> None:
    data = report(ill("n1"), run=replace(RUN, simulated=True))
    pages = [html.render(data), text.markdown(data, AGAIN), text.rendered(data), junit.render(data), json.dumps(data)]
    for page in [*pages, prometheus.render(data, None)]:
        assert "simulated" in page
    assert "simulated" not in text.rendered(report(ill("n1")))


# -- what a run said -------------------------------------------------------------------------------------------------


def said(*findings: Finding) -> dict[str, Any]:
    return {"findings": [f.to_dict() for f in findings], "passed_ids": ["a.b[live]@c"], "intent": "one", "busbw": {}}


def test_every_host_of_the_manifest_ends_in_the_result() -> None:
    silent = replace(BAD, check="run.platform", state="unknown")
    data = {"hosts": {"a": said(), "b": said(BAD), "c": said(silent), "d": said(silent), "e": said(silent)}}
    ends = {"d": "unreachable", "e": "timed_out", "g": "unreachable", "a": "unreachable"}
    found = results(data, Manifest(tuple("abcdefg"), (), False), ends)
    assert {name: host.end for name, host in found.items()} == {
        # a came back: its roles have all answered.
        "a": "complete", "b": "complete", "c": "incomplete", "d": "unreachable", "e": "timed_out",
        "f": "not_run", "g": "unreachable",
    }  # fmt: skip
    assert found["f"].findings[0].have == "not queried in time"


def test_escapes_and_secrets_end_where_a_run_is_read() -> None:
    bad = replace(BAD, have="\x1b[2Jhunter22\u202e", subject="x\x07y")
    found = results({"hosts": {"\x1bn": said(bad)}}, Manifest(("\x1bn",), ("hunter22",), False), {})
    (host,) = found.values()
    assert (host.host, host.findings[0].have) == ("\\x1bn", "\\x1b[2J[redacted]\\u202e")
    assert host.findings[0].subject == "x\\x07y"
