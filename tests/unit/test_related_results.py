# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What lies beside the history in the report of a night: benchmark, fabric, search, repairs, gate. Simulated."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.gate import plan as gate
from ansible_collections.busbar.fabric.plugins.module_utils.gate import read as gate_read
from ansible_collections.busbar.fabric.plugins.plugin_utils import manifest
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import cluster_record, localise_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.cluster_record import LeftOut
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.localise_record import (
    GpuPair,
    HostFinding,
    MeasuredTest,
    Node,
    Way,
)
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import record as fabric_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.record import Mark
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation import action_log
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation.action_log import Entry

from busbar.drift import (
    actions,
    cluster,
    fabric,
    gate_section,
    html,
    localise_section,
    text,
)
from busbar.drift.related_results import RelatedResults
from busbar.drift.run import HostResult
from tests import goldens
from tests.report import fabrics, records
from tests.report.fleet import MARKUP, finding, write
from tests.report.records import FINISHED
from tests.unit.test_cluster_table import TWO

ENDED = "2026-11-21T02:00:00Z"
DAY = 86400.0
SMALL = fabrics.swept(64, 4, 2)
[SWEEP] = SMALL.sweeps


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return write(tmp_path_factory.mktemp("fleet") / "drift.sqlite", 2)


@functools.cache
def of_size(nodes: int, faults: int, busy: int = 2) -> localise_record.Record:
    return records.searched(nodes, faults, busy)


def searched(folder: Path, record: localise_record.Record, **more: Any) -> dict[str, Any]:
    localise_record.write(folder, record)
    found = localise_section.latest(RelatedResults(folder, ENDED, **more))
    json.dumps(found, allow_nan=False)
    return found


def between(folder: Path, **more: Any) -> dict[str, Any]:
    """The section of the last benchmark between nodes. more: what is otherwise in its record."""
    cluster_record.write(folder, replace(TWO, **more))
    return cluster.latest(RelatedResults(folder, ENDED))


def swept(folder: Path, record: fabric_record.Record, **more: Any) -> dict[str, Any]:
    fabric_record.write(folder, record)
    return fabric.latest(RelatedResults(folder, ENDED, **more)) or {}


def section_of(page: str, name: str) -> str:
    return page.partition(f'<section id="{name}"')[2].partition("</section>")[0]


# -- who is slow -------------------------------------------------------------------------------------------------------


def accusing(host: str, check: str, want: str, have: str, subject: str = "host", **more: Any) -> HostFinding:
    return HostFinding(hosts=(host,), finding=finding(check, subject, want, have, **more))


def ended(_folder: Path) -> localise_record.Record:
    record = of_size(8, 2)
    return replace(record, complete=False, findings=(), tests=tuple(test for test in record.tests if test.number < 3))


def of_1000(_folder: Path) -> localise_record.Record:
    """Nodes of which each reports the same, and each another figure."""
    hosts = [f"n{i:04}" for i in range(1000)]
    same = [accusing(host, "localise.member", "free", f"{host} is busy", state="unknown") for host in hosts]
    other = [
        accusing(host, "localise.node", "fast", f"slow with n{(i - 1) % 1000:04}: {i}") for i, host in enumerate(hosts)
    ]
    nodes = tuple(Node(host, unfit=("busy: a job", "wait")) for host in hosts)
    record = localise_record.Record(simulated=True, begun=FINISHED, finished=FINISHED, launcher="srun", nodes=nodes)
    return replace(record, findings=(*same, *other), complete=True)


def given_back(folder: Path) -> localise_record.Record:
    """Nodes that remediation has given back since the search, before it, and drained again."""
    record = of_size(8, 2)
    turns = [("n0001", "drained", 1), ("n0001", "resumed", 2), ("n0005", "resumed", -1)]
    for host, action, after in (*turns, ("n0008", "resumed", 1), ("n0008", "left_drained", 2)):
        at = record.finished + after
        action_log.append(folder, [Entry(at=at, run="r", host=host, action=action, outcome="done")])
    return record


def logged(folder: Path, count: int, days: float = 0, *more: Entry, torn: str = "") -> dict[str, Any]:
    action_log.append(folder, [*records.entries([f"n{i:02}" for i in range(count)], FINISHED - days * DAY), *more])
    with action_log.file(folder).open("a") as stream:
        stream.write(torn)
    return actions.latest(RelatedResults(folder, ENDED))


def at_the_gate(_folder: Path) -> dict[str, Any]:
    checks = (gate_section.KEPT_OUT, gate_section.HELD, gate_section.VERDICT)
    passed = frozenset(f"{check}[live]@the node" for check in checks)
    hosts = {f"n{i:04}": HostResult(f"n{i:04}", "complete", (), passed) for i in range(900)}
    hosts["login1"] = HostResult("login1", "complete", (), frozenset({"a.b[live]@c"}))
    assert gate_section.build({"login1": hosts["login1"]}) is None
    state = {"at": FINISHED, "verdict": "fail", "stage": "health", "findings": [], "action": "drained"}
    for i in range(100):
        state["kept_out"] = {"at": FINISHED + 60 * i, "reason": "busbar gate: platform.gpu_count of the node: 7 #4f1c"}
        have = gate_read.GateState({gate_read.PROGRAM: ""}, {}, state=state, now=FINISHED + 3600 * (50 + i))
        # Too old, and so unknown, and out of service.
        unknown = tuple(each for each in gate._seen(have) if not each.ok)
        hosts[f"m{i:03}"] = HostResult(f"m{i:03}", "complete", unknown, frozenset())
    held = finding(gate_section.HELD, "the node", "none", "held_by_breaker: " + MARKUP)
    hosts["x1"] = HostResult("x1", "complete", (held,), passed - {f"{gate_section.HELD}[live]@the node"})
    return dict(gate_section.build(hosts) or {})


BACK = [Entry(at=FINISHED, run="r", host=host, action="resumed", outcome="done") for host in ("n03", "n04")]
SIMULATED = "simulated: no figure in it is a measurement"
OF_TWO = ['class="bad">drift<', "86 % (low)", SIMULATED, "left out: node[03-04]: busy"]
# Name -> section of the report, what it is made of, what its page has.
CASES: dict[str, tuple[str, Callable[[Path], Any], list[str]]] = {
    "8 hosts": ("localised", lambda _folder: of_size(8, 2), []),
    "1024 hosts": ("localised", lambda _folder: of_size(1024, 8), []),
    "fast": ("localised", lambda _folder: of_size(64, 0, busy=0), ["No node was found slow"]),
    "killed": ("localised", ended, ["not complete"]),
    "1000 that report the same": ("localised", of_1000, []),
    "given back since": ("localised", given_back, []),
    "repaired": ("actions", lambda folder: logged(folder, 40), []),
    "repaired long ago": ("actions", lambda folder: logged(folder, 6, 40), ["40 days ago"]),
    "back since": ("actions", lambda folder: logged(folder, 6, 40, *BACK), []),
    "a line that a crash has cut off": ("actions", lambda folder: logged(folder, 6, torn='{"at": 3'), []),
    "at the gate": ("gate", at_the_gate, ["901 of 1,001 nodes"]),
    "between nodes": ("cluster", between, OF_TWO),
    "between nodes, all good": ("cluster", lambda folder: between(folder, jobs=TWO.jobs[:1], findings=()), []),
    "between nodes, no job": ("cluster", lambda folder: between(folder, jobs=(), findings=()), []),
}
NO_SECTIONS = dict.fromkeys(("fabric", "localised", "actions", "gate"))
PROSE = ("path", "said", "verdict", "why", "reason", "want", "have", "fix", "cells")


def rows_of(section: dict[str, Any]) -> list[Any]:
    """Return the section without its sentences: its values, and each entry of its lists."""
    rows: list[Any] = [{key: value for key, value in section.items() if not isinstance(value, list)}]
    for name, entries in section.items():
        for one in entries if isinstance(entries, list) and name != "said" else []:
            row = {key: value for key, value in one.items() if key not in PROSE and value not in ("", None, [])}
            rows.append({name: row})
    return [{key: value for key, value in rows[0].items() if key not in PROSE}, *rows[1:]]


@pytest.mark.golden
def test_sections_beside_the_history(tmp_path: Path, report: dict[str, Any]) -> None:
    written = []
    for case, (name, made, shown) in CASES.items():
        section = made(tmp_path / case)
        section = searched(tmp_path / case, section) if isinstance(section, localise_record.Record) else section
        goldens.check("related_results", case, rows_of(section))
        page = html.render({**report, name: section})
        assert all(text_of in page for text_of in shown)
        assert "<script" not in section_of(page, name)
        if name != "cluster":
            [lines] = text.sections({**NO_SECTIONS, name: section})
            written += [f"== {case}", *lines, ""]
    goldens.text("related_results", "\n".join(written))


@pytest.mark.parametrize(
    ("days", "limit", "shown"),
    [
        (0.5, 30, ">0 days old<"),
        (1.5, 30, ">1 day old<"),
        (29.9, 30, ">29 days old<"),
        (30.1, 30, ">30 days old: too old to show the current state of the cluster<"),
        (8, 7, ">8 days old: too old"),
        (-1.0, 30, ">measured after this run<"),
    ],
)
def test_its_age_is_told_by_the_sites_own_limit(
    days: float, limit: float, shown: str, tmp_path: Path, report: dict[str, Any]
) -> None:
    known = RelatedResults(tmp_path, ENDED, max_age_days=limit)
    cluster_record.write(tmp_path, replace(TWO, finished=known.now - days * DAY))
    localise_record.write(tmp_path, replace(of_size(8, 1), finished=known.now - days * DAY))
    for name, found in (("localised", localise_section.latest(known)), ("cluster", cluster.latest(known))):
        assert (found["age_days"], found["old"]) == (days, days > limit)
        assert shown in section_of(html.render({**report, name: found}), name)


def everything(known: RelatedResults) -> dict[str, Any]:
    return {
        "cluster": cluster.latest(known),
        "localised": localise_section.latest(known),
        "actions": actions.latest(known),
    }


def test_none_or_a_broken_one_is_one_line_and_no_error(tmp_path: Path, report: dict[str, Any]) -> None:
    absent = everything(RelatedResults(tmp_path, ENDED))
    assert {each["state"] for each in absent.values()} == {"absent"}
    page = html.render({**report, **absent})
    assert "playbooks/localise.yml, which finds slow nodes, has not run here" in page
    assert "no repair was started from here" in page
    assert "nccl_benchmark_scope: cluster measures it" in page
    assert 'id="cluster"' not in html.render(report)
    shown = text.rendered({**report, **absent}, (), 10_000, True)
    assert "does not exist" not in shown
    assert "does not exist" not in text.markdown({**report, **absent}, ())
    files = {
        "cluster": cluster_record.write(tmp_path, TWO) / "cluster.json",
        "localised": localise_record.write(tmp_path, of_size(8, 1)) / "localise.json",
        "actions": action_log.file(tmp_path),
    }
    for path in files.values():
        path.write_text('{"format": 1, "tests": "\x1b' + MARKUP + '"}\n')
    broken = everything(RelatedResults(tmp_path, ENDED))
    assert {each["state"] for each in broken.values()} == {"unreadable"}
    assert [path.name in broken[name]["why"] for name, path in files.items()] == [True] * 3
    assert "actions.jsonl, line 1" in broken["actions"]["why"]
    page = html.render({**report, **broken})
    assert page.count("not readable") == 3
    assert "\x1b" not in page
    for path in files.values():
        path.unlink()
    files["cluster"].symlink_to("cluster.json")
    files["actions"].mkdir()
    states = {name: each["state"] for name, each in everything(RelatedResults(tmp_path, ENDED)).items()}
    assert states == {"cluster": "unreadable", "localised": "absent", "actions": "unreadable"}


def test_who_tells_of_actions_tells_of_one_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remediation may write while the report is made; and the log may be large."""
    localise_record.write(tmp_path, of_size(8, 1))
    known = RelatedResults(tmp_path, ENDED)
    counted = mock.Mock(wraps=action_log.read)
    monkeypatch.setattr(action_log, "read", counted)
    assert (localise_section.latest(known)["state"], actions.latest(known)["state"]) == ("measured", "absent")
    counted.assert_called_once_with(tmp_path)


# -- hostile -----------------------------------------------------------------------------------------------------------


def worst(size: int) -> localise_record.Record:
    """Everything that a record may hold at its longest, in markup."""
    dice = random.Random(1)
    hosts = [f"{MARKUP}{i:04}{'<&' * 300}" for i in range(size)]
    nodes = tuple(Node(host, f"<b>{i % 40}{'&' * 900}", tuple(range(100))) for i, host in enumerate(hosts))
    long = "</svg></script>" * 60
    tests = []
    for number in range(1, 4):
        for _each in range(size):
            pair = tuple(dice.sample(hosts, 2))
            rest: dict[str, Any] = {"number": number, "outcome": "fail", "figure": 123456.789, "bar": 999999.0}
            tests.append(MeasuredTest(kind="pair", hosts=pair, **rest, said=long))
            ways = tuple(Way(rail, pair[0], 0.001, bool(rail % 2)) for rail in range(100))
            about = {"about": pair[:1], "rails": tuple(range(100)), "ways": ways}
            tests.append(MeasuredTest(kind="rails", hosts=pair, **{**rest, **about, "figure": None}))
            pairs = tuple(GpuPair(gpu, (gpu * 7 + 1) % 100, None) for gpu in range(100))
            tests.append(MeasuredTest(kind="gpus", hosts=pair[:1], **{**rest, "pairs": pairs, "said": long}))
            leaves = (f"<b>{number}{'&' * 900}", f"<b>{dice.randrange(40)}{'&' * 900}")
            tests.append(MeasuredTest(kind="leaves", hosts=pair, about=leaves, **rest))
    said = [
        accusing(host, "localise.node", long, f"{i}{long * 9}", f"{i % 50}{long}", fix=long * 9)
        for i, host in enumerate(hosts)
    ]
    record = localise_record.Record(simulated=False, begun=0, finished=1e11, launcher=MARKUP, nodes=nodes)
    return replace(record, tests=tuple(tests), findings=tuple(said))


def test_a_page_stays_small_and_text_whatever_the_record_holds(tmp_path: Path, report: dict[str, Any]) -> None:
    found = searched(tmp_path, worst(40))
    entries = []
    ends = [("verified", "failed"), ("refused", "held"), ("drained", "begun"), ("left_drained", "begun")]
    for i in range(400):
        name: dict[str, Any] = {"check": "<b>" + "&" * 900, "subject": "<&" * 400, "finding": f"{i % 60}{MARKUP * 9}"}
        name |= {"why": f"{i}{'</td>' * 200}", "run": f"{i % 3}{MARKUP}", "host": f"{MARKUP}{i}", "role": "x" * 900}
        action, end = ends[i % 4]
        entries.append(Entry(at=FINISHED, action=action, outcome=end, **name))
    action_log.append(tmp_path, entries)
    job = replace(TWO.jobs[1], name=MARKUP, hosts=(MARKUP,), collective=MARKUP, what=MARKUP, said=MARKUP + "\x1b[2J")
    out = (LeftOut(host=MARKUP, reason=MARKUP),)
    benchmark = between(tmp_path, scope=MARKUP, jobs=(job,), left_out=out, asked=(MARKUP,))
    nodes = tuple(replace(node, description=f"{MARKUP[:30]}{node.guid[-4:]}") for node in SWEEP.nodes)
    marks = (Mark(SMALL.marks[0].ends, "ib_fabric.errors", "drift", f"\x1b {MARKUP}"),)
    wires = swept(tmp_path, replace(SMALL, sweeps=(replace(SWEEP, nodes=nodes),), marks=marks))
    beside = html.render({**report, "cluster": benchmark, "fabric": wires})
    for part in (section_of(beside, "cluster"), section_of(beside, "fabric")):
        assert "&lt;script&gt;" in part
        assert not [each for each in ("<script", "<img", "\x1b") if each in part]
    assert "\x1b" not in text.rendered({**report, "fabric": wires})
    done = actions.latest(RelatedResults(tmp_path, ENDED))
    json.dumps([done, benchmark, wires], allow_nan=False)
    whole = html.render({**report, "localised": found, "actions": done})
    added = len(whole) - len(html.render(report))
    assert 100_000 < added < 900_000, added
    section = whole.partition('id="localised"')[2].partition('id="fleet"')[0]
    for markup in ("<script", "<img", "<b>&", "</svg></script>"):
        assert markup not in section
    shown = text.rendered({**report, "localised": found, "actions": done}, (), 80, True)
    assert len(shown) < 60_000


def test_no_secret_of_the_inventory_is_told(tmp_path: Path, report: dict[str, Any]) -> None:
    secret = "hunter2-hunter2"
    record = of_size(8, 2)
    said = [replace(one, finding=replace(one.finding, have=f"a {secret}", fix=secret)) for one in record.findings]
    tests = [replace(test, outcome="silent", figure=None, said=f"password {secret}") for test in record.tests]
    localise_record.write(tmp_path, replace(record, findings=tuple(said), tests=tuple(tests), launcher=secret))
    of: dict[str, Any] = {"at": FINISHED, "run": secret, "why": f"said {secret}"}
    refused = Entry(**of, host="n1", action="refused", outcome="held", finding="x")
    action_log.append(tmp_path, [refused, Entry(**of, host="n2", action="drained", outcome="begun", check=secret)])
    job = replace(TWO.jobs[0], said=f"said {secret}", what=secret, name=secret)
    cluster_record.write(tmp_path, replace(TWO, jobs=(job,), findings=()))
    mark = replace(SMALL.marks[0], said=f"said {secret}")
    for hidden, told in [((), True), ((secret,), False)]:
        more = everything(RelatedResults(tmp_path, ENDED, hidden))
        more["fabric"] = swept(tmp_path, replace(SMALL, marks=(mark,)), hidden=hidden)
        for name, section in more.items():
            assert (secret in json.dumps(section)) == told, name
        shown = {**report, **more}
        pages = html.render(shown), text.rendered(shown), text.markdown(shown, ())
        assert any(secret in page for page in pages) == told


def test_the_inventory_says_where_it_lies_and_from_when_on_a_result_is_too_old() -> None:
    paths: list[set[object]] = [{"x"}, {"x", None}, {None}, {"{{ y }}"}, {7}, set()]
    assert [manifest._plain(values) for values in paths] == ["x", *[None] * 5]
    assert [manifest._days(value) for value in (7, None, "{{ x }}", True, 0, -3)] == [7, *[manifest.MAX_AGE_DAYS] * 5]


# -- the fabric --------------------------------------------------------------------------------------------------------


SWITCHES = tuple(node for node in SWEEP.nodes if node.kind == "switch")
# Two HCAs back to back.
PAIR = tuple(
    replace(node, ports=tuple(replace(port, peer=(other.guid, 1)) for port in node.ports))
    for node, other in (SWEEP.nodes[:2], SWEEP.nodes[1::-1])
)
ALIKE = tuple(replace(node, description="Mellanox") for node in SWEEP.nodes)
FAR_MARK = Mark(((fabrics.guid(0, 4, 98), 64),), "ib_fabric.errors", "drift", "12 errors")
SWEPT: dict[str, fabric_record.Record] = {
    "a fabric": fabrics.swept(name="n{:04}"),
    "swept long ago": replace(SMALL, finished=FINISHED - 40 * 86400),
    "nothing swept": replace(SMALL, sweeps=(), taken=(), marks=(), complete=False),
    "swept in part": replace(SMALL, marks=(), complete=False),
    "switches alone": replace(SMALL, sweeps=(replace(SWEEP, nodes=SWITCHES),), before=""),
    "two HCAs": replace(SMALL, sweeps=(replace(SWEEP, nodes=PAIR),), marks=()),
    "switches of one name": replace(SMALL, sweeps=(replace(SWEEP, nodes=ALIKE),)),
    "more leaves than fit": replace(fabrics.swept(200, 100, 4), marks=(FAR_MARK,)),
}


@pytest.mark.golden
def test_planes_leaves_and_bad_links(tmp_path: Path, report: dict[str, Any]) -> None:
    written = []
    for case, record in SWEPT.items():
        found = swept(tmp_path, record)
        rows: list[Any] = []
        for plane in found["planes"]:
            rows += [{key: value for key, value in plane.items() if key != "leaves"}, *plane["leaves"]]
        goldens.check("fabric_report", case, [*rows, *([bad["where"], bad["check"]] for bad in found["bad"])])
        [lines] = text.sections({**report, "fabric": found})
        written += [f"== {case}", *lines, ""]
    goldens.text("fabric_report", "\n".join(written))
    assert text.sections({**report, "fabric": None}) == []


def test_a_fabric_of_4096_ports_fits_the_page(tmp_path: Path, report: dict[str, Any]) -> None:
    found = swept(tmp_path, fabrics.swept(512, 32, 16, 9))
    assert found["planes"][0]["label"] == "plane of rail 0"
    page = html.render({**report, "fabric": found})
    assert len(page) - len(html.render(report)) < 100_000


def test_where_no_fabric_was_swept_nothing_is_said(tmp_path: Path, report: dict[str, Any]) -> None:
    assert fabric.latest(RelatedResults(tmp_path, ENDED)) is None
    assert 'id="fabric"' not in html.render({**report, "fabric": None})
    (tmp_path / "fabric" / "latest").mkdir(parents=True)
    (tmp_path / "fabric" / "latest" / "fabric.json").write_text("{")
    found = fabric.latest(RelatedResults(tmp_path, ENDED))
    assert found is not None
    assert (found["state"], "fabric.json: it is not JSON" in found["why"]) == ("unreadable", True)
    assert "not readable" in html.render({**report, "fabric": found})


# -- text --------------------------------------------------------------------------------------------------------------


def test_no_line_is_longer_than_the_terminal(tmp_path: Path, report: dict[str, Any]) -> None:
    records.write(tmp_path, of_size(1024, 8))
    known = RelatedResults(tmp_path, ENDED)
    data = {**report, "localised": localise_section.latest(known), "actions": actions.latest(known)}
    for width in (60, 80, 200):
        told = text.rendered(data, (), width, True)
        assert max(len(line) for line in told.splitlines() if "$ " not in line and "    on: " not in line) <= width
        for words in ("simulated, no", "given back"):
            assert words in " ".join(told.split())
