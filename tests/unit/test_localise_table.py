"""What is said of a search while it runs and at its end: few lines, and no terminal is commanded."""

from __future__ import annotations

from dataclasses import replace

from ansible_collections.busbar.fabric.plugins.plugin_utils import localise_judge, localise_table
from ansible_collections.busbar.fabric.plugins.plugin_utils.localise import Way
from ansible_collections.busbar.fabric.plugins.plugin_utils.localise_record import Found, Measured

from .test_localise_record import RECORD

GOOD = Measured(number=2, kind="pair", hosts=("n1", "n2"), outcome="pass", figure=380.0, bar=345.6)
SLOW = replace(GOOD, hosts=("n3", "n4"), outcome="fail", figure=231.0)
DEAD = replace(GOOD, hosts=("n5", "n6"), outcome="silent", figure=None, said="\x1b[2J" * 200, lost={"n5": "gone"})
RAILS = replace(
    GOOD,
    kind="rails",
    hosts=("n3", "n1"),
    outcome="fail",
    figure=None,
    bar=43.2,
    ways=(Way(3, "n3", 20.0), Way(3, "n1", 48.0), Way(3, "n3", 21.0, True), Way(3, "n1", None, True)),
    said="rail 3 from n1: no client connected in time",
)
GPUS = replace(
    GOOD, kind="gpus", hosts=("n3",), outcome="fail", figure=None, bar=323.7, pairs={(0, 1): 180.0, (2, 3): 360.0}
)


def test_a_round_is_a_line_and_each_test_that_did_not_pass() -> None:
    lines = localise_table.round_lines([GOOD, SLOW, DEAD, RAILS, GPUS])
    assert lines[0] == "round 2, pairs: 1 of 3 pass:"
    assert lines[1] == "  n[3-4]: 231 of 345.6 GB/s"
    assert lines[2].startswith("  n[5-6]: no result: \\x1b[2J")
    assert lines[3:] == [
        "  n5 is lost: gone",
        "round 2, rails: 0 of 1 pass:",
        "  n[1,3]: rail 3 from n3 20, rail 3 from n3 (both ways full) 21 of 43.2 GB/s; " + RAILS.said,
        "round 2, GPUs in pairs: 0 of 1 pass:",
        "  n3: gpus 0+1 180 of 323.7 GB/s",
    ]
    assert all(line.isprintable() and len(line) < 1000 for line in lines)
    assert localise_table.round_lines([GOOD]) == ["round 2, pairs: 1 of 1 pass"]
    many = localise_table.round_lines([SLOW] * 500)
    assert (len(many), many[-1]) == (8, "  and 494 more")


def test_the_end_names_what_is_slow_who_is_good_and_who_was_left_out() -> None:
    text = localise_table.render(RECORD, 100)
    assert "n2    rail 3  drift  20" in text
    assert "simulated: LOCALISED: 1 thing slow over 3 nodes by mpirun, 4 rounds, 4 tests" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100
    node = localise_judge.NODE.judge("host", "ok", "x", "round 1: 380 GB/s", "tests")
    left = localise_judge.MEMBER.judge("host", "unknown", "x", "left out: busy: a job", "tests")
    good = replace(RECORD, findings=(Found(hosts=("n1", "n2"), finding=node), Found(hosts=("n3",), finding=left)))
    text = " ".join(localise_table.render(good, 100).split())
    assert "n3: left out: busy: a job good: n[1-2]" in text
    assert "no node is slow" in text
    assert "NOT COMPLETE: nothing was measured" in localise_table.render(replace(good, tests=(), complete=False), 100)
    assert "no node is slow so far" in localise_table.render(replace(good, complete=False), 100)
    bar = localise_judge.BAR.judge("bar", "unknown", "x", "no pair was measured", "tests")
    unknown = replace(RECORD, findings=(Found(hosts=("n1",), finding=bar),))
    assert "not everything was proven" in localise_table.render(unknown, 100)
