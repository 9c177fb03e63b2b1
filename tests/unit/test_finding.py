from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import jsonschema
import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core import finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import from_dict, worst_first
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Problem
from ansible_collections.busbar.fabric.plugins.module_utils.ofed.checks import READABLE

ROOT = Path(__file__).resolve().parent.parent.parent
SCHEMA = json.loads((ROOT / "docs" / "finding.schema.json").read_text())

GOOD = Check("platform.rail_pcie", why="a narrow slot caps the NIC", fix="reseat the NIC", severity="major").judge(
    "0000:1b:00.0 mlx5_0 ens1f0np0", "drift", "32 GT/s x16", "32 GT/s x8", "/sys/devices/pci0000:15/0000:1b:00.0"
)


def test_id_holds_the_pci_address_and_not_the_names_that_move() -> None:
    assert GOOD.id == "platform.rail_pcie[live]@0000:1b:00.0"
    assert replace(GOOD, subject="0000:1b:00.0 mlx5_7").id == GOOD.id
    assert replace(GOOD, subject="rail 3").id == "platform.rail_pcie[live]@rail 3"


def test_every_finding_meets_the_documented_schema() -> None:
    jsonschema.validate(GOOD.to_dict(), SCHEMA)
    jsonschema.validate(replace(GOOD, state="ok", fix="", because="x[live]@y").to_dict(), SCHEMA)


def test_schema_and_code_know_the_same_words() -> None:
    properties = SCHEMA["properties"]
    assert set(properties) == {*asdict(GOOD), "id"}
    assert SCHEMA["required"] == list(properties)
    assert properties["state"]["enum"] == list(finding.STATES)
    assert properties["severity"]["enum"] == list(finding.SEVERITIES)
    assert properties["aspect"]["enum"] == list(finding.ASPECTS)
    assert properties["disruption"]["enum"] == list(finding.DISRUPTIONS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"check": "RailPcie"}, "check id"),
        ({"state": "fine"}, "state is 'fine'"),
        ({"severity": "bad"}, "severity is 'bad'"),
        ({"aspect": "now"}, "aspect is 'now'"),
        ({"disruption": "some"}, "disruption is 'some'"),
        ({"subject": ""}, "must not be empty"),
        ({"fix": ""}, "needs a fix"),
    ],
)
def test_a_finding_that_says_too_little_is_refused(change: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(GOOD, **change)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"check": "a.b"}, "not a finding"),
        (dict(GOOD.to_dict(), colour="red"), "no key colour"),
        (dict(GOOD.to_dict(), id="a.b[live]@c"), "does not belong"),
    ],
)
def test_what_is_not_a_finding_is_refused(data: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_dict(data)


def test_what_cannot_be_read_is_unknown_and_commands_no_terminal() -> None:
    one = READABLE.unreadable(Problem("/etc/\x1b[2J", "is \x1b[1mempty"))
    assert (one.state, one.subject, one.have) == ("unknown", "/etc/\\x1b[2J", "is \\x1b[1mempty")
    assert one.fix == "run or read /etc/\\x1b[2J on the host, and repair what it reports"


def test_worst_first_puts_roots_before_what_follows_from_them() -> None:
    minor = replace(GOOD, severity="minor")
    follows = replace(GOOD, severity="critical", because="x")
    critical = replace(GOOD, severity="critical")
    good = replace(GOOD, severity="critical", state="ok")
    assert worst_first([good, follows, minor, critical]) == [critical, minor, follows, good]


@pytest.mark.parametrize("have", [None, ""])
def test_ok_without_the_value_that_was_read_is_no_finding(have: str | None) -> None:
    with pytest.raises(ValueError, match="value"):
        replace(GOOD, state="ok", fix="", have=have)
    data = {**replace(GOOD, state="ok", fix="").to_dict(), "have": have}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, SCHEMA)
