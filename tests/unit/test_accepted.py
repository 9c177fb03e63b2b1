# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Accepted deviations: what an entry covers, when it ends, and what a verdict and a night make of it."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.plugin_utils import accepted, intent, verdict
from ansible_collections.busbar.fabric.plugins.plugin_utils.accepted import Acceptance, known_checks, parse, split
from ansible_collections.busbar.fabric.plugins.plugin_utils.role_result import role_results

from busbar.drift import run, runner
from tests.documents import declared

TODAY = datetime.date(2026, 11, 21)
ENTRY = {"check": "platform.nvlinks", "reason": "RMA 4711", "owner": "anna", "until": "2026-12-15"}
LINKS = Finding("platform.nvlinks", "0000:c3:00.0 GPU5", "drift", "major", "18", "17", "s", "w", "f")
MTU = "netdev_mtu.*"


def entry(**changes: Any) -> dict[str, Any]:
    return {**ENTRY, **changes}


@pytest.mark.parametrize(
    ("changes", "finding", "covers"),
    [
        ({}, LINKS, True),
        ({"check": "platform.*"}, LINKS, True),
        ({"check": "platform.gpu_count"}, LINKS, False),
        *(({"subject": subject}, LINKS, True) for subject in ("0000:c3:00.0", LINKS.subject, "0000:c*", "* GPU5")),
        ({"subject": "0000:c4:00.0"}, LINKS, False),
        # What could not be judged has to be named: it is not what somebody has looked at.
        ({}, replace(LINKS, state="unknown"), True),
        ({"check": "platform.*"}, replace(LINKS, state="unknown"), False),
        ({"check": "*"}, replace(LINKS, check="run.platform", state="unknown"), False),
        ({"check": "run.*"}, replace(LINKS, check="run.platform", state="unknown"), True),
        ({"check": "run.host"}, replace(LINKS, check="run.host", state="unknown"), True),
    ],
)
def test_an_entry_covers_its_check_and_subject(changes: dict[str, Any], finding: Finding, covers: bool) -> None:
    (one,) = parse([entry(**changes)])
    assert one.covers(finding) is covers


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"check": "platform.nvlink"}, "did you mean platform.nvlinks"),
        ({"check": "nvidia.*"}, "there is no check"),
        ({"reason": ""}, "has no reason"),
        ({"owner": " "}, "has no owner"),
        ({"owner": "a\nb"}, "has no owner"),
        ({"until": None}, "has no until"),
        ({"until": "next year"}, "expected YYYY-MM-DD"),
        ({"until": "2026-02-30"}, "expected YYYY-MM-DD"),
        ({"subject": 3}, "has no subject"),
        ({"expires": "2026-12-15"}, "has unknown expires"),
    ],
)
def test_a_wrong_entry_is_a_mistake_of_the_inventory(value: dict[str, Any], says: str) -> None:
    values = {"busbar_platform": "hgx-h100", "busbar_accepted": [entry(), entry(**value)]}
    with pytest.raises(intent.WrongIntent, match=f"busbar_accepted, entry 2: .*{says}"):
        intent.read(values)
    assert parse(values["busbar_accepted"]) == parse([entry()])
    assert intent.read({**values, "busbar_accepted": [entry()]})["busbar_accepted"] == [entry()]


def test_dates_of_yaml_and_what_is_no_list_are_read() -> None:
    assert parse([entry(until=datetime.date(2026, 12, 15))]) == parse([entry()])
    assert accepted.plain([entry(until=datetime.date(2026, 12, 15)), "x"]) == [entry(), "x"]
    assert parse("x") == parse(["x", 3]) == ()


def test_the_known_checks_are_those_that_are_declared() -> None:
    ids = {one.check.id for one in declared()}
    assert ids <= known_checks()
    assert {one for one in known_checks() - ids if not one.startswith("run.")} == set()


def test_an_expired_entry_counts_for_nothing_and_is_named() -> None:
    late, valid = parse([entry(until="2026-11-20"), entry(until="2026-11-21", subject="other")])
    assert split([LINKS], [late, valid], TODAY) == ([LINKS], [], [split([LINKS], [late], TODAY)[2][0]])
    assert split([LINKS], [replace(late, until=TODAY)], TODAY)[0] == []
    assert split([replace(LINKS, check="a.b")], [late], TODAY)[2] == []


def test_a_pattern_accepts_no_unknown_beside_a_difference_of_the_same_part() -> None:
    unknown = replace(LINKS, state="unknown")
    stand, of, _notes = split([LINKS, unknown], parse([entry(check="platform.*")]), TODAY)
    assert (stand, of) == ([LINKS, unknown], [])


@pytest.mark.parametrize(("severity", "stands"), [("minor", False), ("major", False), ("critical", True)])
def test_a_consequence_is_accepted_with_its_cause_unless_it_is_worse(severity: str, stands: bool) -> None:
    follows = replace(LINKS, check="nccl_perf.busbw", because=LINKS.id)
    further = replace(LINKS, check="localise.gpu", severity=severity, because=follows.id)
    beside = replace(LINKS, check="platform.gpu_count", because=None)
    stand, of, _notes = split([LINKS, follows, further, beside], parse([entry()]), TODAY)
    assert [one.check for one in stand] == [*["localise.gpu"] * stands, "platform.gpu_count"]
    assert all(one.because is None for one in stand)
    assert len(of) == 3 - stands


def judged(*entries: dict[str, Any], findings: tuple[Finding, ...] = (LINKS,)) -> verdict.Verdict:
    found = verdict.judge({"n1": role_results({"platform": Plan(findings).result()})}, ["platform"], partial=False)
    return verdict.accept(found, {"n1": parse([*entries])}, TODAY)


def test_the_verdict_shows_and_counts_what_is_accepted_and_does_not_fail() -> None:
    found = judged(entry())
    assert found.ok
    text = " ".join(verdict.render(found, check_mode=False).split())
    assert "VERDICT OK: 1 of 1 hosts ok, 0 checks passed, 1 accepted" in text
    assert "accepted on n1: platform.nvlinks 0000:c3:00.0 GPU5; RMA 4711 (anna, until 2026-12-15)" in text
    host = found.to_dict()["hosts"]["n1"]
    assert (host["ok"], host["findings"], [one["check"] for one in host["accepted"]]) == (True, [], [LINKS.check])
    assert not judged(entry(until="2026-11-20")).ok
    assert not judged(entry(), findings=(LINKS, replace(LINKS, check="platform.gpu_count"))).ok
    assert not judged(findings=()).ok


def test_a_night_has_the_entries_of_the_findings_file_with_their_hosts() -> None:
    host = judged(entry(), entry(check=MTU)).to_dict()["hosts"]["n1"]
    given = {**json.loads(json.dumps(host)), "intent": None, "end": None, "busbw": {}}
    manifest: Any = SimpleNamespace(hosts=["n1", "n2"], secrets=())
    hosts = runner.results({"hosts": {"n1": given, "n2": given}}, manifest, {})
    assert [one.check for one in hosts["n1"].findings] == [LINKS.check]
    entries = run.parse_waivers(run.waivers_of(hosts))
    assert [(one.check, sorted(one.hosts)) for one in entries] == [(c, ["n1", "n2"]) for c in (LINKS.check, MTU)]
    assert all(isinstance(one, Acceptance) and one.until == datetime.date(2026, 12, 15) for one in entries)
