from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import jsonschema
import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.change.busy import Busy
from ansible_collections.busbar.fabric.plugins.module_utils.core import finding, fix_command
from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import (
    DISRUPTIONS,
    Finding,
    from_dict,
    worst_first,
)
from ansible_collections.busbar.fabric.plugins.module_utils.core.fix_command import FixCommand, allow, parse
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Problem
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Command, FileChange, Plan, merge
from ansible_collections.busbar.fabric.plugins.module_utils.ofed.checks import READABLE
from ansible_collections.busbar.fabric.plugins.plugin_utils.role_result import role_result


def drift(check: str, disruption: str) -> Finding:
    return Finding(check, "eth0", "drift", "major", "on", "off", "/sys", "rule", "run it", disruption=disruption)


def test_changes_above_the_limit_are_withheld_and_say_so() -> None:
    plan = Plan(
        (drift("a.file", "none"), drift("a.live", "link")),
        (FileChange("/etc/a", None, "x\n"), FileChange("/sys/a", "0", "1", disruption="link")),
    )
    limited = plan.limit("none")
    assert [finding.state for finding in limited.findings] == ["drift", "withheld"]
    assert [change.path for change in limited.changes] == ["/etc/a"]
    assert limited.result()["withheld"] == ["a.live[live]@eth0"]
    assert plan.limit("reboot") == plan


def test_result_carries_what_is_wrong_in_full_and_what_is_right_by_id() -> None:
    good = Finding("a.good", "eth0", "ok", "minor", "on", "on", "/sys", "rule")
    result = Plan((good, drift("a.bad", "none"))).result()
    assert [finding["check"] for finding in result["findings"]] == ["a.bad"]
    assert result["passed"] == ["a.good[live]@eth0"]
    assert result["evidence"] == {"a.good[live]@eth0": ["on", "/sys"]}
    assert result["changed"] is False
    more = role_result(result).adding([good, drift("a.worse", "none")])
    assert ([finding.check for finding in more.findings], more.evidence) == (["a.bad", "a.worse"], result["evidence"])


def test_diff_shows_content_and_mode_and_absence() -> None:
    diff = FileChange("/etc/a", None, "x\n").diff()
    assert diff == {
        "before_header": "/etc/a (absent)",
        "after_header": "/etc/a (mode 0644)",
        "before": "",
        "after": "x\n",
    }
    removed, closed = FileChange("/etc/a", "x\n", None), FileChange("/etc/a", "x\n", "x\n", mode_before=0o600)
    assert closed.diff()["before_header"] == "/etc/a (mode 0600)"
    assert removed.diff()["after_header"] == "/etc/a (absent)"
    said = [change.described() for change in (FileChange("/etc/a", None, ""), removed, FileChange("/etc/a", "x", "y"))]
    assert said == ["/etc/a is absent", "/etc/a is superfluous", "/etc/a is not as rendered"]


def test_diff_shows_no_password_of_an_address_and_only_what_may_be_shown() -> None:
    change = FileChange("/etc/a", "url=https://u:old@host/\n", "url=https://u:new@host/\n")
    assert change.diff()["before"] == change.diff()["after"] == "url=https://[redacted]@host/\n"
    diff = FileChange("/etc/a", "key=secret\n", "key=secret\nmtu=9000\n", shown=("", "mtu=9000\n")).diff()
    assert (diff["before"], diff["after"]) == ("", "mtu=9000\n")


def test_merge_keeps_the_order() -> None:
    first, second = drift("a.one", "none"), drift("a.two", "none")
    assert merge(Plan((first,)), Plan((second,), (FileChange("/b", None, ""),))) == Plan(
        (first, second), (FileChange("/b", None, ""),)
    )


def test_a_busy_node_is_not_disturbed_whatever_the_limit() -> None:
    plan = Plan(
        (drift("a.file", "none"), drift("a.live", "link"), drift("a.boot", "reboot")),
        (FileChange("/etc/a", None, "x\n"), FileChange("/sys/a", "0", "1", disruption="link")),
        (Command(("a",), "why"), Command(("b",), "why", "driver")),
        ("why",),
    )
    for busy, said in (
        (Busy(("process python (pid 1)", "another")), "busy: process python (pid 1)"),
        (Busy((), (Problem("/proc/mounts", "is empty"),)), "whether it is in use is not known: /proc/mounts: is empty"),
    ):
        refused = plan.block(busy.against).limit("reboot")
        assert [f.state for f in refused.findings] == ["drift", "withheld", "withheld"]
        assert [f.have for f in refused.findings] == ["off", f"off; {said}", f"off; {said}"]
        assert [change.path for change in refused.changes] == ["/etc/a"]
        assert [command.argv for command in refused.commands] == [("a",)]
        assert refused.reboot == plan.reboot
    # Modules that can be unloaded first are in nobody's way.
    assert plan.block(Busy((), unload_first=("nvidia_peermem",)).against) == plan


ROOT = Path(__file__).resolve().parent.parent.parent
RUN = fix_command.run_tag("mtu")
AGAIN = FixCommand(("platform",), mends=False)


def one_change(disruption: str, fix: str = RUN) -> Plan:
    values = ("netdev_mtu.live", "0000:1b:00.0", "drift", "major", "9000", "1500", "/sys", "why", fix)
    return Plan((Finding(*values, disruption=disruption),), commands=(Command(("ip",), "why", disruption),))


@pytest.mark.parametrize(
    ("fix", "told"),
    [
        (RUN, FixCommand(("mtu",))),
        ("run site.yml --tags mtu -e busbar_max_disruption=link for this host", FixCommand(("mtu",), "link")),
        ("run site.yml --tags multirail,mtu for both hosts", FixCommand(("multirail", "mtu"))),
        ("reseat it; then run site.yml --tags platform for this host again", AGAIN),
        ("run nvidia-smi, then run site.yml --tags platform for this host again", AGAIN),
        ("run all of site.yml for the host, read what it says", FixCommand(())),
        ("reseat the NIC", None),
        ("", None),
    ],
)
def test_what_advice_says_is_what_a_machine_reads(fix: str, told: FixCommand | None) -> None:
    assert parse(fix) == told


@pytest.mark.parametrize("most", DISRUPTIONS)
@pytest.mark.parametrize("disruption", DISRUPTIONS)
def test_what_is_withheld_says_what_lets_it_through(disruption: str, most: str) -> None:
    [found] = one_change(disruption).limit(most).findings
    told = parse(found.fix)
    assert told is not None
    assert (told.disruption, "reboot" in told.tags) == (disruption, disruption == "reboot")
    # Whoever follows it is not told the same again.
    [again] = one_change(disruption, found.fix).limit(told.disruption).findings
    assert (again.state, again.fix) == ("drift", found.fix)


def test_a_node_in_use_says_so_before_the_command() -> None:
    [found] = (
        one_change("link").block(Busy(("process python (pid 1) holds 9 MiB on 1 GPU",)).against).limit("link").findings
    )
    assert (found.state, found.have) == ("withheld", "1500; busy: process python (pid 1) holds 9 MiB on 1 GPU")
    assert found.fix == ("resolve that first, then run site.yml --tags mtu -e busbar_max_disruption=link for this host")
    assert parse(found.fix) == FixCommand(("mtu",), "link", mends=False)


def test_what_is_anothers_to_do_stays_as_it_is() -> None:
    for fix in ("on a drained node: systemctl restart slurmd", "set busbar_platform"):
        assert allow(fix, "driver") == fix


def test_every_command_in_the_sources_has_the_form_and_tags_that_are_there() -> None:
    roles = {path.name for path in (ROOT / "roles").iterdir()}
    found = 0
    for path in [*(ROOT / "module_utils").rglob("*.py"), *(ROOT / "library").glob("*.py")]:
        for line in re.findall(r"site\.yml --tags [^\n]*", path.read_text()):
            told = parse("run " + line)
            assert told is not None
            if told.tags:
                found += 1
                assert set(told.tags) <= roles, (path.name, line)
        for tag in re.findall(r"\badvice\.run\(\"(\w+)\"", path.read_text()):
            found += 1
            assert tag in roles
    assert found > 20


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
