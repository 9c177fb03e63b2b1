# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding

from busbar.drift.compare import EarlierRun, compare, marks
from busbar.drift.run import HostResult

KINDS = ("new", "standing", "fixed", "gone", "unverified", "flapping")


def host(bad: str = "", passed: str = "", end: str = "complete", intent: str | None = "one") -> HostResult:
    findings = [Finding(f"{name}.check", "x", "drift", "major", "1", "2", "s", "w", "f") for name in bad]
    return HostResult("n1", end, tuple(findings), frozenset(f"{name}.check[live]@x" for name in passed), intent)


def nights(*results: HostResult) -> list[EarlierRun]:
    """What the history keeps of these, the first being run 1; hosts that were not judged are not in it."""
    past: list[EarlierRun] = []
    for number, result in enumerate(results, 1):
        if result.judged:
            past.append(EarlierRun(number, result.intent, result.passed, marks(number, result, past)))
    return past


def read(night: str) -> HostResult:
    """Return the host of a night: checks that are bad / that passed, its end and its intent if they are others."""
    checks, *words = night.split()
    bad, _slash, passed = checks.partition("/")
    more = {"end": "complete", "intent": "one", **dict(word.split("=") for word in words)}
    return host(bad, passed, more["end"], None if more["intent"] == "None" else more["intent"])


FLAP = {"flapping": "a"}
STAYS = {"standing": "a"}


@pytest.mark.parametrize(
    ("before", "tonight", "kinds", "origins"),
    [
        ("a/b", "b/a", {"new": "b", "fixed": "a"}, "b 2 corrective"),
        ("a/b", "a/b", STAYS, "a 1 never_ok"),
        # Without an earlier night all is new.
        ("", "a/", {"new": "a"}, "a 1 never_ok"),
        # What is not checked any more is gone, and not fixed.
        ("a/b", "/b", {"gone": "a"}, ""),
        # A host that was not judged has fixed nothing.
        *(("a/b", f"/ end={end}", {"unverified": "a"}, None) for end in ("unreachable", "timed_out", "not_run")),
        # Half a result keeps the other half and its age; when it is there again, it is as old as it was.
        ("a/b", "/b end=incomplete", {"unverified": "a"}, "a 1 never_ok carried"),
        ("a/b, /b end=incomplete", "a/b", STAYS, "a 1 never_ok"),
        # A host that changed is told from an inventory that did.
        ("/a", "a/", {"new": "a"}, "a 2 corrective"),
        ("/a intent=old", "a/", {"new": "a"}, "a 2 new_intent"),
        ("/b intent=old", "a/", {"new": "a"}, "a 2 new_intent"),
        ("/b", "a/", {"new": "a"}, "a 2 never_ok"),
        ("/a", "a/ intent=None", {"new": "a"}, "a 2 never_ok"),
        # Ok under this intent earlier, whatever another one was tried in between.
        ("/a, /a intent=tried", "a/", {"new": "a"}, "a 3 corrective"),
        # The reason and the age stay.
        ("/a, a/, a/ intent=two", "a/ intent=two", STAYS, "a 2 corrective"),
        # Three flips in seven nights flap, also on the night on which it is well; two do not.
        ("/ab, a/b, /ab", "a/b", {"new": "a", **FLAP}, "a 4 corrective"),
        ("a/b, /ab, a/b", "/ab", {"fixed": "a", **FLAP}, ""),
        ("/ab, /ab, a/b", "/ab", {"fixed": "a"}, ""),
        # Flips of last month and nights without a result do not count.
        ("/ab, a/b, /ab, /ab, /ab, /ab, /ab, /ab, /ab", "a/b", {"new": "a"}, "a 10 corrective"),
        ("a/b, /b end=incomplete, a/b, / end=unreachable", "/ab", {"fixed": "a"}, ""),
    ],
)
def test_what_changed_and_why(before: str, tonight: str, kinds: dict[str, str], origins: str | None) -> None:
    results = [read(night) for night in before.split(", ") if night]
    past = nights(*results)
    number = len(results) + 1
    found = compare(read(tonight), past)
    told = {kind: "".join(sorted(one[0] for one in getattr(found, kind))) for kind in KINDS}
    assert {kind: names for kind, names in told.items() if names} == {k: names for k, names in kinds.items() if names}
    if origins is not None:
        known = marks(number, read(tonight), past).items()
        found_marks = [f"{check[0]} {mark.first} {mark.origin}{' carried' * mark.carried}" for check, mark in known]
        assert ", ".join(found_marks) == origins
