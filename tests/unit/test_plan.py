from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.change.busy import Busy
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Problem
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Command, FileChange, Plan, merge
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
