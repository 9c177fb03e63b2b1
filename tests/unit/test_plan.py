from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.plan import FileChange, Plan, merge


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
    assert result["changed"] is False


def test_diff_shows_content_and_mode_and_absence() -> None:
    diff = FileChange("/etc/a", None, "x\n").diff()
    assert diff == {
        "before_header": "/etc/a (absent)",
        "after_header": "/etc/a (mode 0644)",
        "before": "",
        "after": "x\n",
    }
    assert FileChange("/etc/a", "x\n", "x\n", mode_before=0o600).diff()["before_header"] == "/etc/a (mode 0600)"
    assert FileChange("/etc/a", "x\n", None).diff()["after_header"] == "/etc/a (absent)"


def test_merge_keeps_the_order() -> None:
    first, second = drift("a.one", "none"), drift("a.two", "none")
    assert merge(Plan((first,)), Plan((second,), (FileChange("/b", None, ""),))) == Plan(
        (first, second), (FileChange("/b", None, ""),)
    )
