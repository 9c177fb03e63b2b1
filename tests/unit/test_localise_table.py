"""What is said of a search while it runs and at its end: few lines, and no terminal is commanded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import localise_judge, localise_table
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign.localise_record import (
    GpuPair,
    HostFinding,
    MeasuredTest,
    Way,
)

from tests import goldens

from .sample_localise_record import RECORD

GOOD = MeasuredTest(number=2, kind="pair", hosts=("n1", "n2"), outcome="pass", figure=380.0, bar=345.6)
SLOW = replace(GOOD, hosts=("n3", "n4"), outcome="fail", figure=231.0)
DEAD = replace(GOOD, hosts=("n5", "n6"), outcome="silent", figure=None, said="\x1b[2J" * 200, lost={"n5": "gone"})
PARTS = replace(GOOD, hosts=("n3",), outcome="fail", figure=None)
WAYS = (Way(3, "n3", 20.0), Way(3, "n1", 48.0), Way(3, "n3", 21.0, True), Way(3, "n1", None, True))
NO_CLIENT = "rail 3 from n1: no client connected in time"
RAILS = replace(PARTS, kind="rails", hosts=("n3", "n1"), bar=43.2, ways=WAYS, said=NO_CLIENT)
GPUS = replace(PARTS, kind="gpus", bar=323.7, pairs=(GpuPair(0, 1, 180.0), GpuPair(2, 3, 360.0)))
FAST = localise_judge.NODE.judge("host", "ok", "x", "round 1: 380 GB/s", "tests")
NODE = HostFinding(hosts=("n1", "n2"), finding=FAST)
LEFT = localise_judge.MEMBER.judge("host", "unknown", "x", "left out: busy: a job", "tests")
UNPROVEN = localise_judge.NODE.judge("host", "unknown", "x", "no result", "tests")
BAR = localise_judge.BAR.judge("bar", "unknown", "x", "no pair was measured", "tests")
ALL_GOOD = replace(RECORD, findings=(NODE, HostFinding(hosts=("n3",), finding=LEFT)))
ENDS = {
    "good": ALL_GOOD,
    "good so far": replace(ALL_GOOD, complete=False),
    "cut off before the first round": replace(ALL_GOOD, tests=(), complete=False),
    "no verdict": replace(RECORD, findings=tuple(HostFinding(hosts=("n1",), finding=one) for one in (BAR, UNPROVEN))),
}


def test_good_rounds_are_a_line_and_of_many_slow_tests_some_are_named() -> None:
    """What a round prints of each kind of test, and a search that has found a slow node: test_records_golden.py."""
    assert localise_table.round_lines([GOOD]) == ["round 2, pairs: 1 of 1 pass"]
    for number, last in ((6, "  n[3-4]: 231 of 345.6 GB/s"), (500, "  and 494 more")):
        lines = localise_table.round_lines([SLOW] * number)
        assert (len(lines), lines[-1]) == (7 + (number > 6), last)


@pytest.mark.golden
def test_the_end_names_who_is_good_and_who_was_left_out() -> None:
    texts = [f"== {name}\n{localise_table.render(record, 100)}\n" for name, record in ENDS.items()]
    goldens.text("localise_table", "".join(texts))
