# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Results beside the history in the report of a night: benchmark, fabric, search, repairs. Simulated."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.plugin_utils import manifest
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import cluster_record, localise_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.cluster_record import LeftOut
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.localise_record import HostFinding, Node, Unfit
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import record as fabric_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.evidence import Line
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation import action_log
from ansible_collections.busbar.fabric.plugins.plugin_utils.remediation.action_log import Entry

from busbar import cli
from busbar.drift import html, text
from busbar.drift.related_results import RelatedResults
from tests import goldens
from tests.report import fabrics, records
from tests.report.fleet import MARKUP, finding, write
from tests.report.records import FINISHED
from tests.unit.test_cluster_table import TWO

ENDED = "2026-11-21T02:00:00Z"
DAY = 86400.0
SMALL = fabrics.swept(64, 4, 2)
[SWEEP] = SMALL.sweeps
FILES = {
    "fabric": "fabric/latest/fabric.json",
    "localised": "localise/latest/localise.json",
    "actions": "actions.jsonl",
    "cluster": "cluster/latest/cluster.json",
    "acceptance": "certify/sheet.json",
}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return write(tmp_path_factory.mktemp("fleet") / "drift.sqlite", 2)


@functools.cache
def of_size(nodes: int, faults: int, busy: int = 2) -> localise_record.Record:
    return records.searched(nodes, faults, busy)


def sections(folder: Path, **more: Any) -> dict[str, dict[str, Any]]:
    found = RelatedResults(folder, ENDED, **more).sections()
    json.dumps(found, allow_nan=False)
    return {section["name"]: section for section in found}


def section_of(page: str, name: str) -> str:
    return page.partition(f'<section id="{name}"')[2].partition("</section>")[0]


def accusing(host: str, check: str, want: str, have: str, subject: str = "host", **more: Any) -> HostFinding:
    return HostFinding(hosts=(host,), finding=finding(check, subject, want, have, **more))


def ended(record: localise_record.Record) -> localise_record.Record:
    tests = tuple(test for test in record.tests if test.number < 3)
    return replace(record, complete=False, findings=(), tests=tests)


def of_1000() -> localise_record.Record:
    """Nodes of which each reports the same, and each another figure."""
    hosts = [f"n{i:04}" for i in range(1000)]
    same = [accusing(host, "localise.member", "free", f"{host} is busy", state="unknown") for host in hosts]
    other = [
        accusing(host, "localise.node", "fast", f"slow with n{(i - 1) % 1000:04}: {i}") for i, host in enumerate(hosts)
    ]
    nodes = tuple(Node(host, unfit=Unfit("busy: a job", "wait")) for host in hosts)
    record = localise_record.Record(simulated=True, begun=FINISHED, finished=FINISHED, launcher="srun", nodes=nodes)
    return replace(record, findings=(*same, *other), complete=True)


def logged(folder: Path, count: int, days: float = 0, *more: Entry, torn: str = "") -> None:
    action_log.append(folder, [*records.entries([f"n{i:02}" for i in range(count)], FINISHED - days * DAY), *more])
    with action_log.file(folder).open("a") as stream:
        stream.write(torn)


def certified(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    run = {"ended": "2026-11-20T02:00:00Z", "group": ["n01"], "limit": None, "simulated": True}
    evidence = {"iommu.domains[live]@GPUs and NICs": ["identity", "/sys"]}
    (folder / "findings.json").write_text(
        json.dumps({"run": run, "hosts": {"n01": {"findings": [], "evidence": evidence}}})
    )
    assert cli.main(["certify", str(folder / "findings.json"), "--results", str(folder)]) == 2
    (folder / "findings.json").unlink()


BACK = [Entry(at=FINISHED, run="r", host=host, action="resumed", outcome="done") for host in ("n03", "n04")]
SWITCHES = tuple(node for node in SWEEP.nodes if node.kind == "switch")
LOCALISED: dict[str, localise_record.Record] = {
    "8 hosts": of_size(8, 2),
    "a fast fleet": of_size(64, 0, busy=0),
    "killed": ended(of_size(8, 2)),
    "1000 that report the same": of_1000(),
}
SWEPT: dict[str, fabric_record.Record] = {
    "a fabric": SMALL,
    "swept long ago": replace(SMALL, finished=FINISHED - 40 * DAY),
    "nothing swept": replace(SMALL, sweeps=(), taken=(), findings=(), complete=False),
    "swept in part": replace(SMALL, findings=(), complete=False),
    "switches alone": replace(SMALL, sweeps=(replace(SWEEP, nodes=SWITCHES),), before=""),
}
BETWEEN = {
    "between nodes": TWO,
    "between nodes, all good": replace(TWO, jobs=TWO.jobs[:1], findings=()),
    "between nodes, no job": replace(TWO, jobs=(), findings=()),
}
# Name -> what writes the result into a folder.
CASES: dict[str, Callable[[Path], object]] = {
    **{case: functools.partial(localise_record.write, record=record) for case, record in LOCALISED.items()},
    **{case: functools.partial(fabric_record.write, record=record) for case, record in SWEPT.items()},
    **{case: functools.partial(cluster_record.write, record=record) for case, record in BETWEEN.items()},
    "repaired": lambda folder: logged(folder, 40),
    "repaired long ago": lambda folder: logged(folder, 6, 40),
    "certified": certified,
    "back since": lambda folder: logged(folder, 6, 40, *BACK),
    "a line that a crash has cut off": lambda folder: logged(folder, 6, torn='{"at": 3'),
}


@pytest.mark.golden
def test_sections_beside_the_history(tmp_path: Path, report: dict[str, Any]) -> None:
    written = []
    for case, write_result in CASES.items():
        write_result(tmp_path / case)
        [section] = sections(tmp_path / case).values()
        written += [f"== {case}", *text.related(section), ""]
        page = section_of(html.render({**report, "related": [section]}), section["name"])
        assert "<script" not in page
        assert section["path"] in page
    goldens.text("related_results", "\n".join(written))


@pytest.mark.parametrize(
    ("days", "limit", "shown"),
    [
        (0.5, 30, "0 days old"),
        (1.5, 30, "1 day old"),
        (29.9, 30, "29 days old"),
        (30.1, 30, "30 days old: too old to show the current state of the cluster"),
        (-1.0, 30, "measured after this run"),
    ],
)
def test_its_age_is_told_by_the_sites_own_limit(
    days: float, limit: float, shown: str, tmp_path: Path, report: dict[str, Any]
) -> None:
    known = RelatedResults(tmp_path, ENDED, max_age_days=limit)
    cluster_record.write(tmp_path, replace(TWO, finished=known.now - days * DAY))
    [found] = known.sections()
    assert (found["age"], found["old"]) == (shown, days > limit)
    assert f">{shown}<" in html.render({**report, "related": [found]})


def test_none_is_nothing_and_a_broken_one_is_one_line_and_no_error(tmp_path: Path, report: dict[str, Any]) -> None:
    assert sections(tmp_path) == {}
    cluster_record.write(tmp_path, TWO)
    localise_record.write(tmp_path, of_size(8, 1))
    fabric_record.write(tmp_path, SMALL)
    certified(tmp_path)
    for file in FILES.values():
        (tmp_path / file).write_text('{"format": 1, "tests": "\x1b' + MARKUP + '"}\n')
    broken = sections(tmp_path)
    assert {name: section["state"] for name, section in broken.items()} == dict.fromkeys(FILES, "unreadable")
    assert [Path(file).name in broken[name]["why"] for name, file in FILES.items()] == [True] * 5
    assert "actions.jsonl, line 1" in broken["actions"]["why"]
    page = html.render({**report, "related": [*broken.values()]})
    assert page.count("not readable") == 5
    assert "\x1b" not in page
    for file in FILES.values():
        (tmp_path / file).unlink()
    (tmp_path / FILES["cluster"]).symlink_to("cluster.json")
    (tmp_path / FILES["actions"]).mkdir()
    states = {name: section["state"] for name, section in sections(tmp_path).items()}
    assert states == {"cluster": "unreadable", "actions": "unreadable"}


def hostile(folder: Path) -> None:
    """Write results with all that they may hold at its longest, in markup."""
    long = "</svg></script>" * 60
    hosts = [f"{MARKUP}{i:04}{'<&' * 300}" for i in range(40)]
    nodes = tuple(Node(host, f"<b>{i}{'&' * 900}", tuple(range(100))) for i, host in enumerate(hosts))
    found = [
        accusing(host, "localise.node", long, f"{i}{long * 9}", f"{i % 50}{long}", fix=long * 9)
        for i, host in enumerate(hosts)
    ]
    record = localise_record.Record(simulated=False, begun=0, finished=1e11, launcher=MARKUP, nodes=nodes)
    localise_record.write(folder, replace(record, findings=tuple(found)))
    entries = []
    for i in range(400):
        name: dict[str, Any] = {"check": "<b>" + "&" * 900, "subject": "<&" * 400, "finding": f"{i % 60}{MARKUP * 9}"}
        name |= {"why": f"{i}{'</td>' * 200}", "run": f"{i % 3}{MARKUP}", "host": f"{MARKUP}{i}", "role": "x" * 900}
        action = ("drained", "left_drained")[i % 2]
        entries.append(Entry(at=FINISHED, action=action, outcome="begun", **name))
    action_log.append(folder, entries)
    job = replace(TWO.jobs[1], name=MARKUP, hosts=(MARKUP,), collective=MARKUP, what=MARKUP, said=MARKUP + "\x1b[2J")
    out = (LeftOut(host=MARKUP, reason=MARKUP),)
    cluster_record.write(folder, replace(TWO, scope=MARKUP, jobs=(job,), left_out=out, asked=(MARKUP,)))
    (folder / "certify").mkdir()
    rows = [{"answer": "open", "subject": f"{i}{MARKUP}", "todo": [long]} for i in range(100)]
    sheet = {"format": 1, "simulated": False, "proofs_of": "2026-11-20T02:00:00Z", "rows": rows}
    (folder / "certify/sheet.json").write_text(json.dumps(sheet))
    names = tuple(replace(node, description=f"{MARKUP[:30]}{node.guid[-4:]}") for node in SWEEP.nodes)
    told = (Line((MARKUP,), replace(SMALL.findings[0].finding, have=f"\x1b {MARKUP}")),)
    fabric_record.write(folder, replace(SMALL, sweeps=(replace(SWEEP, nodes=names),), findings=told))


def test_a_page_stays_small_and_text_whatever_the_record_holds(tmp_path: Path, report: dict[str, Any]) -> None:
    hostile(tmp_path)
    found = sections(tmp_path)
    assert [*found] == [*FILES]
    data = {**report, "related": [*found.values()]}
    page = html.render(data)
    assert len(page) - len(html.render(report)) < 900_000
    for name in FILES:
        part = section_of(page, name)
        assert part
        assert not [each for each in ("<script", "<img", "<b>&", "</svg></script>", "\x1b") if each in part]
    shown = text.rendered(data, (), 80, True)
    assert "\x1b" not in shown
    assert len(shown) < 90_000


def test_no_secret_of_the_inventory_is_told(tmp_path: Path, report: dict[str, Any]) -> None:
    secret = "hunter2-hunter2"
    record = of_size(8, 2)
    said = [replace(one, finding=replace(one.finding, have=f"a {secret}", fix=secret)) for one in record.findings]
    localise_record.write(tmp_path, replace(record, findings=tuple(said), launcher=secret))
    of: dict[str, Any] = {"at": FINISHED, "run": secret, "why": f"said {secret}"}
    action_log.append(tmp_path, [Entry(**of, host="n2", action="drained", outcome="begun", check=secret)])
    job = replace(TWO.jobs[0], said=f"said {secret}", what=secret, name=secret)
    cluster_record.write(tmp_path, replace(TWO, jobs=(job,), findings=()))
    told = (Line(("n0007",), replace(SMALL.findings[0].finding, have=f"said {secret}")),)
    fabric_record.write(tmp_path, replace(SMALL, findings=told))
    for hidden, shown in [((), True), ((secret,), False)]:
        found = sections(tmp_path, hidden=hidden)
        for name, section in found.items():
            assert (secret in json.dumps(section)) == shown, name
        data = {**report, "related": [*found.values()]}
        assert any(secret in page for page in (html.render(data), text.rendered(data))) == shown


def test_the_inventory_says_where_it_lies_and_from_when_on_a_result_is_too_old() -> None:
    paths: list[set[object]] = [{"x"}, {"x", None}, {None}, {"{{ y }}"}, {7}, set()]
    assert [manifest._plain(values) for values in paths] == ["x", *[None] * 5]
    assert [manifest._days(value) for value in (7, None, "{{ x }}", True, 0, -3)] == [7, *[manifest.MAX_AGE_DAYS] * 5]
