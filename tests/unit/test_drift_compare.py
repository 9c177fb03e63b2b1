# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding

from busbar.drift.compare import Mark, Past, compare, marks
from busbar.drift.run import HostResult

A = "a.check[live]@x"
B = "b.check[live]@x"


def host(bad: str = "", passed: str = "", end: str = "complete", intent: str | None = "one") -> HostResult:
    findings = [Finding(f"{name}.check", "x", "drift", "major", "1", "2", "s", "w", "f") for name in bad]
    return HostResult("n1", end, tuple(findings), frozenset(f"{name}.check[live]@x" for name in passed), intent)


def nights(*results: HostResult) -> list[Past]:
    """What the history keeps of these, the first being run 1; hosts that were not judged are not in it."""
    past: list[Past] = []
    for number, result in enumerate(results, 1):
        if result.judged:
            past.append(Past(number, result.intent, result.passed, marks(number, result, past)))
    return past


def test_new_standing_and_fixed_are_told_apart() -> None:
    past = nights(host("a", "b"))
    changes = compare(host("b", "a"), past[-1], past)
    assert [sorted(ids) for ids in (changes.new, changes.standing, changes.fixed)] == [[B], [], [A]]
    assert compare(host("a", "b"), past[-1], past).standing == {A}


def test_without_an_earlier_night_everything_is_new() -> None:
    assert compare(host("a"), None, []).new == {A}


def test_what_is_not_asked_any_more_is_gone_and_not_fixed() -> None:
    past = nights(host("a", "b"))
    changes = compare(host("", "b"), past[-1], past)
    assert [sorted(ids) for ids in (changes.gone, changes.fixed)] == [[A], []]


@pytest.mark.parametrize("end", ["unreachable", "timed_out", "not_run"])
def test_a_host_that_was_not_judged_has_fixed_nothing(end: str) -> None:
    past = nights(host("a", "b"))
    changes = compare(host(end=end), past[-1], past)
    assert changes.unverified == {A}
    assert not changes.fixed
    assert not changes.gone


def test_half_an_answer_keeps_the_other_half_and_its_age() -> None:
    results = [host("a", "b"), host("", "b", end="incomplete"), host("a", "b")]
    past = nights(*results[:2])
    assert compare(results[1], past[0], past[:1]).unverified == {A}
    assert past[1].marks[A] == Mark(1, "never_ok", carried=True)
    # The third night it is there again, and is as old as it was.
    assert compare(results[2], past[1], past).standing == {A}
    assert marks(3, results[2], past)[A] == Mark(1, "never_ok")


@pytest.mark.parametrize(
    ("before", "tonight", "origin"),
    [
        ([host("", "a")], host("a"), "corrective"),
        ([host("", "a", intent="old")], host("a"), "new_intent"),
        ([host("", "b", intent="old")], host("a"), "new_intent"),
        ([host("", "b")], host("a"), "never_ok"),
        ([], host("a"), "never_ok"),
        ([host("", "a")], host("a", intent=None), "never_ok"),
        # Ok under this intent earlier, whatever another one was tried in between.
        ([host("", "a"), host("", "a", intent="tried")], host("a"), "corrective"),
    ],
)
def test_a_host_that_changed_is_told_from_an_inventory_that_did(
    before: list[HostResult], tonight: HostResult, origin: str
) -> None:
    assert marks(9, tonight, nights(*before))[A].origin == origin


def test_the_reason_and_the_age_stay_with_a_finding_that_stands() -> None:
    past = nights(host("", "a"), host("a"), host("a", intent="two"))
    assert marks(4, host("a", intent="two"), past)[A] == Mark(2, "corrective")


def test_three_flips_in_seven_nights_flap_and_two_do_not() -> None:
    bad, good = host("a", "b"), host("", "ab")
    past = nights(good, bad, good)
    assert compare(bad, past[-1], past).flapping == {A}
    # It counts also on the night on which it is well.
    past = nights(bad, good, bad)
    assert compare(good, past[-1], past).flapping == {A}
    past = nights(good, good, bad)
    assert not compare(good, past[-1], past).flapping


def test_flips_of_last_month_and_nights_without_an_answer_do_not_flap() -> None:
    bad, good = host("a", "b"), host("", "ab")
    past = nights(good, bad, good, *[good] * 6)
    assert not compare(bad, past[-1], past).flapping
    past = nights(bad, host("", "b", end="incomplete"), bad, host(end="unreachable"))
    assert not compare(bad, past[-1], past).flapping
