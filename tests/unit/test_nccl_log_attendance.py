"""Which ranks a log shows, and that it says of no rank that it did not come where lines prove no such thing."""

from __future__ import annotations

import time

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import (
    events,
    texts,
    unsigned,
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("comm 0x7 rank 1 nranks 4 - COMPLETE", events.Init("0x7", "", "", "", 1, 4, -1, "", True)),
        (
            "ncclCommInitRank comm 0x... rank 3 nRanks 8 cudaDev 3 nvmlDev 3 busId ... commId 0xab - Init START",
            events.Init("0x...", "ab", "", "", 3, 8, 3, "", False),
        ),
        ("comm 0x5 rank 0 nranks 4 cudaDev 0 busId 10 - Destroy COMPLETE", events.Gone("0x5", 0, "Destroy", 4, 0)),
        ("comm 0x5 with 8 ranks and 1 nodes", events.Shape("0x5", -1, 8, 1, 0)),
        ("comm 0x5 rank 2 nranks 8 nnodes 2", events.Shape("0x5", 2, 8, 2, 0)),
        ("comm <ptr> rank 2 nRanks 8 nNodes 2 localRanks 4 ...", events.Shape("", 2, 8, 2, 4)),
        ("nRanks 8 nNodes 2 localRanks 4 localRank 1", events.Shape("", -1, 8, 2, 4)),
        ("Comm config Blocking set to 1", None),
    ],
)
def test_odd_forms_of_communicators_are_read(text: str, said: object) -> None:
    assert texts.event(text) == said


@pytest.mark.parametrize(
    "text",
    [
        "comm 0x5 rank 1 nranks 8" + " -" * 30000,
        "comm " + " " * 60000,
        "comm 0x5 rank 1 nranks " + "8" * 60000,
        "with " + "1 " * 30000,
        "Bootstrap Root : " + "a" * 60000,
    ],
)
def test_hostile_lines_take_no_time(text: str) -> None:
    begin = time.perf_counter()
    texts.event(text)
    unsigned._LEFT_OUT.match(("# " + text).encode())
    assert time.perf_counter() - begin < 5
