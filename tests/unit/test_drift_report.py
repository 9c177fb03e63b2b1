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
from ansible_collections.busbar.fabric.plugins.plugin_utils import repair

from busbar.drift import command, html, junit, prometheus, text
from busbar.drift.compare import compare, marks
from busbar.drift.history import History
from busbar.drift.inventory import Manifest
from busbar.drift.report import ReportInput, build
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


def lost(name: str, end: str = "unreachable", *findings: Finding) -> HostResult:
    return HostResult(name, end, findings)


def report(*hosts: HostResult, run: Run = RUN) -> dict[str, Any]:
    by_name = {host.host: host for host in hosts}
    known = {name: marks(run.id, host, ()) for name, host in by_name.items()}
    changes = {name: compare(host, ()) for name, host in by_name.items()}
    started = {run.id: run.started}
    return build(
        ReportInput(run=run, hosts=by_name, marks=known, changes=changes, trail=(), started=started, again=AGAIN)
    )


def waiver(**more: str) -> dict[str, str]:
    given = {"check": "nccl_conf.*", "hosts": "n[1-2]", "owner": "anna", "reason": "RMA", "expires": "2026-11-21"}
    return {**given, **more}


SWITCH = replace(BAD, check="platform.rail_state", subject="rail 3", severity="critical", fix="look at the switch")
NO_RAIL = replace(BAD, check="nccl_conf.rails", because=SWITCH.id)
UNKNOWN = replace(BAD, state="unknown")
MINOR = replace(UNKNOWN, check="x.y", severity="minor")
OTHER = replace(BAD, check="other.check")
RAILS = [
    replace(BAD, check="roce_qos.mtu", subject=f"0000:{n}b:00.0 mlx5_{n} ens{n}f0np0", fix=f"{tool}{n}{end}")
    for n in range(8)
    for tool, end in (("mstflint -d 0000:", "b:00.0 q"), ("ip link set ens", "f0np0 mtu 9000"))
]
# What differs in what is to be done is never one group, whatever was read.
KINDS = [
    replace(BAD, check="node_health.xid", subject=f"0000:0{n:x}:00.0 GPU{n}", have=f"Xid {n}", fix=fix)
    for n, fix in enumerate(("reset", "reboot") * 8)
]
FIGURE = {"busbw": 365.0, "bar": 320.0, "finished": 1, "simulated": False}
FLEET = [replace(well(f"n{i}"), busbw={"all_reduce-8G": FIGURE}) for i in range(20)]
FLEET[7] = replace(FLEET[7], busbw={"all_reduce-8G": {**FIGURE, "busbw": 330.0}})
LOST = replace(BAD, check="run.platform", state="unknown", severity="critical")
FOLLOWING = [replace(LOST, check=f"run.r{i}", because=LOST.id) for i in range(17)]
WAIVED, EXPIRED = replace(RUN, waivers=(waiver(),)), replace(RUN, waivers=(waiver(expires="2026-11-20"),))
WAIVED_RUN = replace(RUN, waivers=(waiver(check="run.*"),))
EVERY = [well("a"), ill("b"), ill("c", UNKNOWN), ill("d", end="incomplete"), ill("e", UNKNOWN, OTHER)]
SILENT = [lost(end, end) for end in ("unreachable", "timed_out", "not_run")]
MARKED = replace(BAD, subject=MARKUP, have=MARKUP, want=MARKUP, why=MARKUP, fix=MARKUP, source=MARKUP)
HOSTILE = replace(RUN, inventory=MARKUP, waivers=(waiver(reason=MARKUP),))
# Nights that are also shown to people.
NIGHTS = {
    "good": report(well("n1"), well("n2")),
    "one finding": report(well("n1"), ill("n2"), ill("n3")),
    "hosts without an answer": report(well("n1"), lost("n2"), ill("n3", end="incomplete"), lost("n4", "timed_out")),
    "interrupted": report(well("n1"), lost("n2", "not_run"), run=replace(RUN, state="interrupted")),
    "a rail and what follows from it": report(*[ill(f"n{n:02}", SWITCH, NO_RAIL) for n in range(30)]),
    "advice for each of many subjects": report(*[ill(f"n{i}", *RAILS[i % 2 :: 2]) for i in range(4)]),
    "advice for one subject": report(ill("n1", RAILS[0])),
    "two things to do": report(ill("n1", *KINDS)),
    "values of each host": report(*[ill(f"n{i}", replace(BAD, have=f"n{i} says {i % 90}")) for i in range(900)]),
    "a value that names its host": report(*[ill(name, replace(BAD, have=f"{name} x")) for name in ("n1", "n2")]),
    "causes and what they lead to": report(ill("n1", BAD, MINOR), lost("n2", "unreachable", LOST, *FOLLOWING)),
}
FOR_PROGRAMS = {name: data for name, data in NIGHTS.items() if name[:6] != "values"} | {
    "every class": report(*EVERY, *SILENT),
    "waived": report(ill("n1"), ill("n2"), run=WAIVED),
    "waived, of another host": report(ill("n1"), ill("n3"), run=WAIVED),
    "a waiver that has expired": report(ill("n1"), run=EXPIRED),
    "a waiver that is not used": report(well("n1"), run=WAIVED),
    "a waived node that does not answer": report(
        well("n9"), ill("n1", replace(UNKNOWN, check="run.host"), end="unreachable"), run=WAIVED_RUN
    ),
    "outliers": report(*FLEET, ill("n20")),
    "no outliers of few": report(*FLEET[:3], ill("n20")),
    "markup": report(ill(MARKUP, MARKED), run=HOSTILE),
}
PROSE = {"want", "have", "why", "fix", "headline", "command", "alike", "source"}


def typed(value: Any) -> Any:
    """The value without its sentences, and without what is empty."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items() if key not in PROSE and item not in (None, [], {}, "")}
    return [typed(item) for item in value] if isinstance(value, list) else value


GOOD = NIGHTS["good"]
METRICS = prometheus.render(GOOD, None).splitlines()


@pytest.mark.golden
@pytest.mark.parametrize("night", FOR_PROGRAMS)
def test_a_night_in_every_form_for_programs(night: str) -> None:
    data = FOR_PROGRAMS[night]
    # All but what every night has alike.
    rows = [{key: value} for key, value in typed(data).items() if night == "good" or value != typed(GOOD).get(key)]
    for case in ET.fromstring(junit.render(data)).iter("testcase"):
        row = [case.get("classname"), case.get("name"), [part.tag for part in case]]
        rows += [{"junit": row}] if night == "good" or row[2] or row[0] != "coverage" else []
    metrics = prometheus.render(data, None).splitlines()
    rows += [{"prometheus": line} for line in metrics if line[0] != "#" and (night == "good" or line not in METRICS)]
    goldens.check("drift_runs", night, rows)


def test_values_of_hosts_are_counted_and_compared() -> None:
    [group] = NIGHTS["values of each host"]["groups"]
    assert group["have"] == "90 different values, most often it says 0 (10), it says 1 (10), it says 2 (10)"
    assert "90%" in FOR_PROGRAMS["outliers"]["outliers"][0]["have"]


@pytest.mark.golden
def test_a_night_in_every_form_for_people() -> None:
    def shown(data: dict[str, Any]) -> str:
        forms = text.rendered(data, AGAIN), text.rendered(data, AGAIN, verbose=True)
        lines = "\n--\n".join([*forms, text.brief(data, AGAIN)]).split("\n")
        # Commands name the checkout.
        return "\n".join(line for line in lines if "$ " not in line)

    goldens.text("drift", "\n".join(f"== {night}\n{shown(data)}" for night, data in NIGHTS.items()))


@pytest.mark.parametrize(
    ("hosts", "fail_on", "code"),
    [
        # With minor: the goldens.
        ([well("n1"), ill("n2")], "critical", 0),
        ([ill("n1", replace(BAD, severity="critical"))], "critical", 2),
        ([well("n1"), lost("n2")], "minor", 3),
        ([well("n1"), lost("n2", "timed_out")], "critical", 3),
        ([ill("n1", replace(BAD, state="unknown"))], "minor", 3),
        # A host that says nothing at all is not in sync.
        ([HostResult("n1", "complete")], "minor", 3),
        ([ill("n1"), lost("n2")], "critical", 3),
        ([ill("n1", BAD, MINOR)], "critical", 3),
        ([ill("n1", end="incomplete")], "minor", 2),
        *[([ill("n1", replace(BAD, state=state))], "minor", 2) for state in ("withheld", "unsupported", "not_owned")],
    ],
)
def test_the_exit_code_tells_drift_from_missing_answers(hosts: list[HostResult], fail_on: str, code: int) -> None:
    assert report(*hosts, run=replace(RUN, fail_on=fail_on))["exit_code"] == code


def test_a_pattern_accepts_no_unknown_beside_a_difference_of_the_same_part() -> None:
    assert report(ill("n1", BAD), run=WAIVED)["exit_code"] == 0
    assert report(ill("n1", BAD, UNKNOWN), run=WAIVED)["exit_code"] == 2


def test_news_is_a_night_unlike_the_last(tmp_path: Path) -> None:
    worse = replace(BAD, subject="/root/.nccl.conf")
    silent = lost("n2")
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
        ("drift again", [ill("n1"), well("n2")], True),
        ("one node alone", [ill("n1")], False),
        ("the other one fell silent", [ill("n1"), silent], True),
    )
    with History.create(tmp_path / "h.sqlite") as history:
        for said, hosts, news in nights:
            run = replace(RUN, ended=None, state="running", limit="n1" if len(hosts) < 2 else None)
            run = replace(run, id=history.begin(run))
            data = command.store(run, {host.host: host for host in hosts}, history)
            assert data["news"] == news, said


DISRUPTIVE = "run site.yml --tags iommu,reboot -e busbar_max_disruption=reboot for this host, or reboot the node"
LEAVES = "playbooks/benchmark.yml -i {} -e nccl_benchmark_scope=leaf -e 'x=[\"a b\"]'"


@pytest.mark.parametrize(
    ("fix", "hosts", "path", "command"),
    [
        (FIX, ["n1", "n2"], "/a b", "site.yml -i '/a b' --tags nccl_conf --limit n1,n2"),
        (FIX, [f"n{i}" for i in range(100)], "/i", "site.yml -i /i --tags nccl_conf --limit @nodes-abc"),
        (DISRUPTIVE, ["n1"], "/i", "site.yml -i /i --tags iommu,reboot -e busbar_max_disruption=reboot --limit n1"),
        # Between nodes, it is for all of them.
        (f"run ansible-playbook {LEAVES.format('INVENTORY')}, then", ["n1"], "/i v", LEAVES.format("'/i v'")),
        ("reseat the NIC", ["n1"], "/i", ""),
        # What Ansible or a shell could read otherwise.
        *((FIX, ["n1", name], "/i", "") for name in ("n*", "!n1", "all:!x", "$(reboot)", "-v", "@file", "")),
    ],
)
def test_the_command_to_run(fix: str, hosts: list[str], path: str, command: str) -> None:
    names = "busbar report --history /h --run 7 --nodes abc > nodes-abc && " if len(hosts) > 2 else ""
    whole = f"{names}ansible-playbook {SITE.parent}/{command}" if command else ""
    assert repair.command(fix, hosts, [path], AGAIN, "abc") == whole


def test_an_answer_in_which_no_check_passed_is_not_complete() -> None:
    found = results({"hosts": {"n1": {**said(BAD), "passed_ids": []}}}, Manifest(("n1",), (), False), {})
    assert found["n1"].end == "incomplete"
    assert report(found["n1"])["counts"]["hosts"]["incomplete"] == 1


def test_what_a_person_has_to_do_is_in_every_text() -> None:
    data = report(ill("n1", replace(BAD, fix="reseat the NIC, then run site.yml --tags platform for this host")))
    for page in (text.rendered(data), html.render(data)):
        assert "reseat the NIC" in page
        assert f"ansible-playbook {SITE} -i /i --tags platform --limit n1" in page


def test_junit_is_xml_whatever_hosts_say() -> None:
    [_coverage, suite] = ET.fromstring(junit.render(FOR_PROGRAMS["markup"]))
    assert (suite.get("name"), suite.get("failures")) == ("nccl_conf.file", "1")
    assert MARKUP in (suite[0][0].get("message") or "")


def test_html_has_one_script_and_asks_for_nothing() -> None:
    page = html.render(FOR_PROGRAMS["markup"])
    assert re.findall(r"<script[^>]*>", page) == ['<script type="application/json" id="data">', "<script>"]
    assert not re.search(r"(?i)\b(src|srcset|href|action|poster)\s*=\s*[\"'](?!#)", page)
    assert not re.search(r"(?i)url\(|@import|<(link|img|iframe|object|embed|base)\b", page)
    data = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert MARKUP in json.loads(data.group(1))["hosts"]


def test_prometheus_has_no_series_of_a_host_and_parses() -> None:
    page = prometheus.render(FOR_PROGRAMS["markup"] | {"simulated": True}, "2026-11-20T02:00:00Z")
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
    pages = [html.render(data), text.rendered(data), junit.render(data), json.dumps(data)]
    for page in [*pages, prometheus.render(data, None)]:
        assert "simulated" in page
    assert "simulated" not in text.rendered(report(ill("n1")))


def said(*findings: Finding) -> dict[str, Any]:
    return {"findings": [f.to_dict() for f in findings], "passed_ids": ["a.b[live]@c"], "intent": "one", "busbw": {}}


def test_every_host_of_the_manifest_ends_in_the_result() -> None:
    silent = replace(BAD, check="run.platform", state="unknown")
    data = {"hosts": {"a": said(), "b": said(BAD), "c": said(silent), "d": said(silent), "e": said(silent)}}
    ends = {"d": "unreachable", "e": "timed_out", "g": "unreachable", "a": "unreachable"}
    found = results(data, Manifest(tuple("abcdefg"), (), False), ends)
    # a came back: its roles have all answered.
    expected = ("complete", "complete", "incomplete", "unreachable", "timed_out", "not_run", "unreachable")
    assert {name: host.end for name, host in found.items()} == dict(zip("abcdefg", expected, strict=True))
    assert found["f"].findings[0].have == "not queried in time"


def test_escapes_and_secrets_end_where_a_run_is_read() -> None:
    bad = replace(BAD, have="\x1b[2Jhunter22\u202e", subject="x\x07y")
    found = results({"hosts": {"\x1bn": said(bad)}}, Manifest(("\x1bn",), ("hunter22",), False), {})
    (host,) = found.values()
    assert (host.host, host.findings[0].have) == ("\\x1bn", "\\x1b[2J[redacted]\\u202e")
    assert host.findings[0].subject == "x\\x07y"
