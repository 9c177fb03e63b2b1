"""A run over the InfiniBand fabric: its record, who sweeps, what comes of an answer, and what each host is told."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.filter.play_nodes import NO_HOSTS, play_nodes
from ansible_collections.busbar.fabric.plugins.filter.swept_planes import swept_planes
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.fabric import sweep
from ansible_collections.busbar.fabric.plugins.module_utils.machine import partition
from ansible_collections.busbar.fabric.plugins.plugin_utils import due_roles, site_values
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import record as fabric_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import run as fabric_run
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import subnet as fabric_subnet
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.evidence import Host, Line, Rail, Wanted
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.record import Record
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.run import Due

from .built_fabric import HCA, NOW, SM, a_sweep
from .test_due_roles import Run, heard

RAIL = Rail(0, "0000:1b:00.0", HCA, SM, 1, 400.0, "mlx5_0")
BOOT = "0d3c9a4e-5c7f-4a0d-9e53-6a1b2c3d4e5f"
OTHER = "0c42a10300000021"
FABRIC = {"boot_id": BOOT, "rails": [RAIL._asdict()]}


def a_record(**more: Any) -> Record:
    finding = fabric_run.HOST.judge(fabric_run.HERE, "ok", "a sweep", "1 plane", "ib_fabric_info")
    record = Record(
        begun=NOW,
        finished=NOW,
        asked=("n1",),
        hosts={"n1": Host((RAIL,), BOOT), "n2": Host()},
        sweeps=(a_sweep(),),
        taken=(NOW,),
        findings=(Line(("n1",), finding),),
        complete=True,
    )
    return replace(record, **more)


def test_what_a_killed_run_has_left_is_removed_with_old_records(tmp_path: Path) -> None:
    made = fabric_record.write(tmp_path, a_record(begun=NOW))
    (made / ".latest").symlink_to(made.name)
    for night in range(1, 2 + fabric_record.KEPT):
        fabric_record.write(tmp_path, a_record(begun=NOW + night * 86400))
    assert not made.exists()


def test_what_is_not_there_is_no_record(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fabric_record.read(tmp_path)
    assert fabric_record.read_run(tmp_path, "20261122T000000Z-abcdefgh") is None
    assert fabric_record.read_run(tmp_path, "../../etc") is None
    assert fabric_record.latest_name(tmp_path) == ""


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda data: data.update(format=2), "newer release of Busbar"),
        (lambda data: data.pop("hosts"), "hosts: is missing"),
        (lambda data: data.update(more=1), "is not a key of it"),
        (lambda data: data.update(before="../../../etc"), "before: is"),
        (lambda data: data.update(taken=[]), "expected one for each sweep"),
        (lambda data: data["sweeps"][0].update(plane="g" * 16), "plane: is .gggg"),
        (lambda data: data["hosts"]["n1"]["rails"][0].update(node_guid="0x1"), "node_guid"),
        (lambda data: data["hosts"].update({"\x1b[2J": {"boot_id": None, "rails": []}}), "hosts"),
        (lambda data: data["findings"][0]["finding"].update(state="fine"), "state"),
        (lambda data: data["findings"][0]["finding"].update(id="other.id[live]@x"), "does not belong"),
    ],
)
def test_what_is_no_record_is_refused_by_name(
    tmp_path: Path, spoil: Callable[[dict[str, Any]], None], says: str
) -> None:
    data = copy.deepcopy(fabric_record.to_dict(a_record()))
    data = json.loads(json.dumps(data))
    spoil(data)
    file = tmp_path / "fabric.json"
    file.write_text(json.dumps(data))
    with pytest.raises(ParseError, match=f"(?s)^{file} is not a valid record: .*{says}"):
        fabric_record.read(file)


def test_old_records_go_and_what_is_compared_with_stays(tmp_path: Path) -> None:
    names = [fabric_record.write(tmp_path, a_record(begun=NOW + night * 86400)).name for night in range(3)]
    folder = tmp_path / "fabric"
    others = ["notes", "20260101T000000Z-mine"]
    for name in others:
        (folder / name).mkdir()
        (folder / name / "kept.txt").write_text("mine\n")
    (folder / "20250101T000000Z-linked").symlink_to(folder / names[1])
    for night in range(3, 3 + fabric_record.KEPT):
        names.append(fabric_record.write(tmp_path, a_record(begun=NOW + night * 86400, before=names[0])).name)
    left = {path.name for path in folder.iterdir()}
    assert names[0] in left
    assert names[1] not in left
    assert {*others, "latest", "20250101T000000Z-linked"} <= left
    assert len([name for name in names if name in left]) == fabric_record.KEPT + 1


def said(*sweeps: sweep.Sweep, **more: Any) -> dict[str, Any]:
    """What ib_fabric_info answers."""
    found = [json.loads(json.dumps(sweep.to_dict(one))) for one in sweeps]
    return {"changed": False, "findings": [], "passed": [], "sweeps": found, **more}


def audit(**more: Any) -> dict[str, Any]:
    """What the audit has heard of a host. more: keys of platform's result."""
    platform = {"findings": [], "passed": ["platform.x[live]@y"], "changed": False, **more}
    return {**heard(), "roles": json.dumps({"platform": platform, "node_lock": {"held": True}})}


WHOLE = a_record(asked=("a",))
PART = replace(WHOLE, sweeps=(a_sweep(), a_sweep(OTHER, complete=False)), taken=(NOW, NOW), complete=False)
AGAIN = "FABRIC: not swept again: that was %d s ago, and ib_fabric_interval is 300 s"


@pytest.mark.parametrize(
    ("asked", "last", "later", "due"),
    [
        ("bab", None, 0, Due(("b", "a"))),
        ("dax", None, 0, Due(("a",), wrong={"x": "it is not a node of the group gpu_nodes"})),
        ("d", None, 0, Due(messages=("FABRIC: not swept: --limit leaves out d, which would sweep it",))),
        *(("a", WHOLE, later, Due(last=True, messages=(AGAIN % later,))) for later in (0, 299)),
        # The second: the clock was set back.
        *(("a", WHOLE, later, Due(("a",))) for later in (300, -1)),
        # All is swept again where a part is not complete, or another host is to sweep.
        ("a", PART, 60, Due(("a",))),
        ("ab", WHOLE, 60, Due(("a", "b"))),
    ],
)
def test_who_sweeps_is_who_is_asked_and_has_not_just_done_it(
    asked: str, last: Record | None, later: float, due: Due
) -> None:
    assert fabric_run.due(asked, "abcd", "abc", last, 300, NOW + later) == due


def test_the_plays_are_for_nobody_where_the_inventory_names_nobody() -> None:
    run = Run({}, a={}, b={}, c={})
    for play in ("fabric", "fabric_sweep", "fabric_judge"):
        run.looked_at.clear()
        assert play_nodes("cab", run, play) == NO_HOSTS
        assert run.looked_at == ["a"], "of thousands of hosts one is looked at"
    for host in run.values():
        host["busbar_fabric_hosts"] = ["c"]
        host["ib_fabric_plan_result"] = {"hosts": ["c", "b"], "judge": True}
    assert play_nodes("cab", run, "fabric") == ["a", "b", "c"]
    assert play_nodes("cab", run, "fabric_sweep") == ["b", "c"]
    assert play_nodes("cab", run, "fabric_judge") == ["a", "b", "c"]
    assert play_nodes("", run, "fabric") == NO_HOSTS


def test_an_answer_is_typed_and_is_the_hosts_that_gave_it() -> None:
    found = fabric_run.read_result("a", {"ib_fabric_result": said(a_sweep(host="somebody else"))})
    assert found.why == ""
    assert found.sweeps == (a_sweep(host="a"),)
    assert swept_planes(["a"], Run({}, a={"ib_fabric_result": said(a_sweep(), a_sweep(OTHER, complete=False))})) == [SM]


@pytest.mark.parametrize(
    ("of_host", "why"),
    [
        ({}, "no result: its task was not run"),
        ({"ib_fabric_result": {"skipped": True}}, "no result: its task was not run"),
        ({"node_lock_result": {"held": False}}, "another run works on the node"),
        ({"ib_fabric_result": {"unreachable": True, "msg": "no route\nto host"}}, "no route to host"),
        ({"ib_fabric_result": {"failed": True, "msg": "x" * 1000}}, "x" * 300),
        ({"ib_fabric_result": {"failed": True}}, "it gave no reason"),
        ({"ib_fabric_result": {"findings": [], "passed": []}}, "its result is not valid: sweeps: is missing"),
        ({"ib_fabric_result": said(sweeps={})}, "its result is not valid: sweeps"),
        ({"ib_fabric_result": said(sweeps=["x"])}, "its result is not valid: sweep"),
        ({"ib_fabric_result": said(sweeps=[{}])}, "its result is not valid: sweep: adaptive_routing: is missing"),
        ({"ib_fabric_result": said(findings=[{"check": "x"}])}, "its result is not valid: findings"),
    ],
)
def test_what_is_no_answer_says_why(of_host: dict[str, Any], why: str) -> None:
    found = fabric_run.read_result("a", of_host)
    assert found.why.startswith(why)
    assert (found.sweeps, found.findings, found.passed) == ((), (), ())


def test_who_could_not_be_reached_by_the_audit_follows_from_that() -> None:
    run = Run({"a": {"unreachable": True, "msg": "no route"}}, a={})
    found = fabric_run.read_result("a", run["a"])
    assert (found.why, found.because) == ("the node did not respond", "run.platform[live]@platform")


def test_hosts_are_what_they_say_now_else_what_they_said_last() -> None:
    own = {"platform_result": {"findings": [], "passed": [], "fabric": {"boot_id": None, "rails": []}}}
    run = Run(
        {"a": audit(fabric=FABRIC), "c": audit(fabric="garbage"), "d": {"unreachable": True}}, a={}, b=own, c={}, d={}
    )
    last = a_record(hosts={"d": Host((RAIL,), BOOT), "e": Host((RAIL,), BOOT)})
    found, silent = fabric_run.known_hosts("abcde", run, last)
    assert found == {"a": Host((RAIL,), BOOT), "b": Host(), "c": Host(), "d": Host((RAIL,)), "e": Host((RAIL,))}
    # e is no host of the run.
    assert silent == {"c", "d"}
    assert fabric_run.known_hosts("d", run, None) == ({"d": Host()}, {"d"})


def test_every_host_is_told_whether_its_fabric_was_swept() -> None:
    hosts = {"a": Host((RAIL,)), "b": Host((RAIL,)), "c": Host(), "d": Host((RAIL,))}
    good, bad = fabric_run.NodeResult(sweeps=(a_sweep(),)), fabric_run.NodeResult(why="ibnetdiscover is not installed")
    found = {of[0]: finding for of, finding in fabric_run.host_findings(["a"], {"a": good}, True, hosts, {"d"})}
    assert {host: finding.state for host, finding in found.items()} == {"a": "ok", "b": "ok", "c": "ok", "d": "unknown"}
    assert found["d"].because == fabric_run.SILENT
    found = {of[0]: finding for of, finding in fabric_run.host_findings(["a"], {"a": bad}, False, hosts, set())}
    assert {host: finding.state for host, finding in found.items()} == {
        "a": "unknown", "b": "unknown", "c": "ok", "d": "unknown",
    }  # fmt: skip
    assert (found["a"].have, found["a"].because) == ("ibnetdiscover is not installed", None)
    assert (found["b"].have, found["b"].because) == ("none of a has swept it", found["a"].id)


@pytest.mark.parametrize(
    ("findings", "swept", "state", "have"),
    [
        ((), True, "ok", "it sees no plane that others have not swept"),
        ((), False, "unknown", "it has swept nothing"),
        (("no umad",), True, "unknown", "it has swept nothing"),
    ],
)
def test_a_node_without_a_sweep_of_its_own_is_well_where_others_made_it(
    findings: tuple[str, ...], swept: bool, state: str, have: str
) -> None:
    bad = tuple(fabric_run.RECORD.judge(subject, "unknown", "x", "y", "z") for subject in findings)
    answers = {"a": fabric_run.NodeResult(findings=bad)}
    [(_hosts, found)] = fabric_run.host_findings(["a"], answers, swept, {"a": Host()}, set())
    assert (found.state, found.have) == (state, have)
    assert found.because == (bad[0].id if bad else None)


def test_findings_are_told_of_their_hosts_and_else_of_who_swept() -> None:
    def found(*hosts: str) -> Line:
        return Line(hosts, fabric_run.HOST.judge(f"of {','.join(hosts)}", "unknown", "x", "y", "z"))

    own = fabric_run.RECORD.judge("its own", "unknown", "x", "y", "z")
    answers = {"a": fabric_run.NodeResult(findings=(own,), passed=("ib_fabric.umad[live]@x",))}
    every = [found("b"), found("switch"), found(), found("d"), found("b", "d")]
    results = fabric_run.results(every, answers, ["a", "b", "c"], "abcd")
    subjects = {host: [one["subject"] for one in result["findings"]] for host, result in results.items()}
    assert subjects == {"a": ["its own", "of switch", "of "], "b": ["of b", "of b,d"], "c": []}
    assert results["a"]["passed"] == ["ib_fabric.umad[live]@x"]


def test_a_partition_that_the_host_lacks_by_itself_is_one_cause() -> None:
    def asked(state: str) -> dict[str, Any]:
        own = partition.RAIL_PARTITION.judge("0000:1b:00.0 mlx5_0", state, "0xffff", "0x7fff", "pkeys").to_dict()
        return audit(findings=[own], passed=[])

    run = Run({"a": asked("drift"), "b": asked("unknown")}, a={}, b={})
    own = fabric_run.lacking(run)
    assert own == {"a": "platform.rail_partition[live]@0000:1b:00.0"}
    finding = fabric_subnet.PARTITION.judge("a rail 0", "drift", "0xffff", "0x7fff", "smpquery", "add it")
    every = fabric_run.results([Line(("a", "b"), finding)], {}, ["a", "b"], "ab", own)
    assert [every[name]["findings"][0]["because"] for name in "ab"] == [own["a"], None]


def test_the_verdict_takes_what_was_judged_for_the_host() -> None:
    judged = {"hosts": {"a": {"findings": [], "passed": ["x.y[live]@z"]}}}
    run = Run({}, a={"ib_fabric_judged": judged, "ib_fabric_result": said()}, b={"ib_fabric_judged": judged}, c={})
    assert due_roles.results(run["a"], ["ib_fabric"], "", True)["ib_fabric"] == judged["hosts"]["a"]
    assert due_roles.results(run["b"], ["ib_fabric"], "", True)["ib_fabric"]["findings"] == []
    assert "ib_fabric" not in due_roles.results(run["c"], ["ib_fabric"], "", True)
    failed = {"failed": True, "msg": "no"}
    assert due_roles.results({**run["a"], "ib_fabric_judged": failed}, ["ib_fabric"], "", True)["ib_fabric"] == failed
    # Played by itself, as molecule does.
    alone = {"inventory_hostname": "a", "ib_fabric_result": said()}
    assert due_roles.results(alone, ["ib_fabric"], "", True)["ib_fabric"] == said()


def test_what_the_site_wants_is_what_its_values_say() -> None:
    defaults = {name: value.default for name, value in site_values.VALUES.items()}
    assert fabric_run.wanted(defaults) == Wanted()
    given = {"partitions": ["0x8001"], "managers": [SM], "routing_engine": "ftree", "adaptive_routing": False}
    site = {**defaults, **{f"busbar_fabric_{name}": value for name, value in given.items()}}
    assert fabric_run.wanted(site) == Wanted(
        partitions=(0x8001,), managers=(SM,), routing="ftree", adaptive_routing=False
    )


def test_a_sweep_is_one_line() -> None:
    [line] = fabric_run.lines([a_sweep(complete=False)])
    assert line == (
        f"FABRIC: plane 0x{SM} from n1 mlx5_0:1 at 14:13:17 UTC: 1 switches, 1 HCAs, 2 cables, NOT COMPLETE"
    )
