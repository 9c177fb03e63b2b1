"""NCCL's format strings: what a message is, and which releases print it."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.formats import (
    RELEASES,
    ReleaseEvidence,
    ReleaseRange,
    formats,
    lookup,
)

CONVERSION = re.compile(r"%[-+ #0]*[\d*]*(?:\.[\d*]+)?[hlzjt]*([a-zA-Z%])")
VALUES = {"d": "-7", "i": "12", "u": "7", "x": "1b", "X": "1B", "p": "0x7f00aa", "c": "x", "f": "2.50", "g": "1e+06"}
VALUES |= {"s": "eth0: a (b)", "m": "No such file or directory", "%": "%"}
# Too little of them is the same in each message.
NOT_LOOKED_UP = {
    *("%s", "%s: %s", "%s (%f)", "%s:%d (%s) %s", "%s:%d -> %d", "%s:%d -> %d (%s)", "%s:%d (%s) -> %d"),
    *("%s:%d (%s) -> %d (%s)", "=" * 42, "Ring %02d : %d -> %d -> %d", "Tree %d : %d -> %d -> %d/%d/%d", "Trees%s"),
}
# Level, begin of the class, rows.
ROWS = {
    ("WARN", "event"): 788,
    ("WARN", "harmless"): 16,
    ("INFO", "event"): 115,
    ("INFO", "fact"): 533,
    ("INFO", "harmless"): 421,
    ("INFO", "unjudged"): 9,
    ("VERSION", "fact"): 1,
}
# Rows whose releases include this one.
PER_RELEASE = {"2.18.1": 426, "2.21.5": 490, "2.23.4": 541, "2.26.2": 688, "2.28.9": 816, "2.30.7": 1347}

# Messages, and the format of each; "": of none.
MESSAGES = {
    "Connected all trees": "Connected all trees",
    "Connected all trees, and more": "",
    "then Connected all trees": "",
    "Channel 00 : 0[0] -> 1[1] via SHM/direct": "Channel %02d : %d[%d] -> %d[%d] via SHM/direct",
    "Channel 00 : 0[b] -> 1[1] via SHM/direct/direct": "Channel %02d : %d[%lx] -> %d[%lx] via SHM/%s/%s",
    "Channel 00 : 0[b] -> 1[1] via SHM/direct": "",
    "[0] Created a QP: qp_idx=1, qpn=0x1b, reliable_db=on": "[%d] Created a QP: qp_idx=%d, qpn=%#x, reliable_db=%s",
    "[0] Created a QP: qp_idx=1, qpn=1b, reliable_db=on": "[%d] Created a QP: qp_idx=%d, qpn=%#x, reliable_db=%s",
    "[0] Created a QP: qp_idx=\u0661, qpn=1b, reliable_db=on": "",
}

PORT = "NET/IB : mlx5_0:1 "
START = "cudaDev 0 nvmlDev 0 busId 801000 "
# Places and messages, oldest and newest release.
RANGES = {
    "port error until 2.19": ([("", "NET/IB : Got async event : port error")], "2.18.1", "2.19.4"),
    "port error until 2.22": ([("", PORT + "Got async event : port error")], "2.20.3", "2.22.3"),
    "port error until 2.28.3": ([("", PORT + "Got async error event: port error")], "2.23.4", "2.28.3"),
    "port error": ([("", PORT + "Got non-fatal async event: port error(10)")], "2.28.7", "2.30.7"),
    "speed": ([("", PORT + "speed change detected: 400000 -> 25000 Mbps")], "2.30.7", "2.30.7"),
    "completion": (
        [
            (
                "",
                "NET/IB: Got completion from peer 10.0.0.2<4> with status=12 opcode=0 len=0 vendor err 9 (Send) hca m",
            )
        ],
        "2.22.3",
        "2.28.3",
    ),
    "init": ([("", f"ncclCommInitRank comm 0x1 rank 0 nranks 2 {START}commId 0x5 - Init START")], "2.21.5", "2.28.9"),
    "like an older form, too": (
        [("", f"[Rank 0] ncclCommInitRank comm 0x1 rank 0 nranks 2 {START}commId 0x5 - Init START")],
        "2.23.4",
        "2.30.7",
    ),
    "bootstrap": ([("", "Bootstrap : Using eth0:10.0.0.1<0>")], "2.18.1", "2.23.4"),
    "file": ([("transport/net_ib.cc:1297", "a message of a build of one's own")], "2.18.1", "2.28.9"),
    "folder": ([("os/linux.cc:9", "")], "2.29.2", "2.30.7"),
    "function": ([("init.cc:9 (commAlloc)", "")], "2.30.7", "2.30.7"),
    "two messages": (
        [("", "Bootstrap: Using eth0:10.0.0.1<0>"), ("transport/net_ib.cc:9", PORT + "Got async error event: x")],
        "2.24.3",
        "2.28.3",
    ),
    "of a plugin": ([("nccl_net_ofi.c:7", "NET/OFI Selected Provider is efa")], "2.18.1", "2.30.7"),
    "of all releases": ([("misc/socket.cc:9", "Using network IB")], "2.18.1", "2.30.7"),
    "shorter than its format": ([("", "NET/IB : mlx5_0:1 Got non-fatal async")], "2.18.1", "2.30.7"),
    "nothing": ([], "2.18.1", "2.30.7"),
}


def release_range(messages: Iterable[tuple[str, str]]) -> ReleaseRange:
    evidence = ReleaseEvidence()
    for place, text in messages:
        evidence.add(place, text)
    return evidence.range


def message(text: str) -> str:
    """A message of a format, up to its first line end."""
    return CONVERSION.sub(lambda match: VALUES[match.group(1)], text.partition("\\n")[0])


def test_each_message_is_recognised_as_its_format() -> None:
    missing = {row.text for row in formats() if row not in lookup(message(row.text))}
    assert missing == NOT_LOOKED_UP


def test_no_other_format_is_recognised_where_the_constant_words_differ() -> None:
    for row in formats():
        changed = re.sub("[A-Za-z]{4,}", lambda match: match.group()[::-1], message(row.text))
        assert row not in lookup(changed) or row.text in ("%s", "%s: %s"), row


@pytest.mark.parametrize("text", MESSAGES)
def test_the_format_of_a_message(text: str) -> None:
    assert {row.text for row in lookup(text)} == {MESSAGES[text]} - {""}


def test_no_row_is_lost() -> None:
    rows = formats()
    assert Counter((row.level, row.kind.partition(":")[0]) for row in rows) == ROWS
    number = {release: i for i, release in enumerate(RELEASES)}
    held = {one: sum(number[row.first] <= number[one] <= number[row.last] for row in rows) for one in PER_RELEASE}
    assert held == PER_RELEASE
    assert len({(row.level, row.text, row.first) for row in rows}) == len(rows)


@pytest.mark.parametrize("name", RANGES)
def test_messages_name_their_releases(name: str) -> None:
    messages, first, last = RANGES[name]
    found = release_range(messages)
    assert (found.releases[0], found.releases[-1]) == (first, last)
    assert (found.recognised == 0) == (len(found.releases) == len(RELEASES))


def test_messages_of_no_single_release_name_none() -> None:
    found = release_range([("", PORT + "Got async event : x"), ("", PORT + "Got non-fatal async event: x(1)")])
    assert found == ReleaseRange((), 2)


def hostile() -> list[str]:
    """Messages of 4,096 characters, made to be looked up often and to be compared long."""
    words = " ".join(sorted({word for row in formats() for word in row.text.split()}))
    texts = [words[at : at + 4096] for at in range(0, len(words), 4096)]
    texts += [f"NET/IB : {character * 4000} event" for character in "0a-. :%\x00"]
    texts += [(row.text.partition("%")[0] + "0 " * 2048)[:4096] for row in formats()[::20]]
    return [f"{text} {number}" for text in texts for number in range(2)]


def test_hostile_messages_cost_milliseconds() -> None:
    messages = hostile()
    lookup("")
    begin = time.process_time()
    for text in messages:
        ReleaseEvidence().add(text, text)
    assert time.process_time() - begin < 0.03 * len(messages)


def test_longer_messages_are_not_looked_up() -> None:
    known = "Bootstrap: Using eth0:10.0.0.1<0>"
    assert lookup(known)
    assert not lookup(known + "x" * 5000)


def test_a_message_that_is_printed_again_adds_nothing() -> None:
    again = [("", f"Bootstrap: Using eth0:10.0.0.{number}<0>") for number in range(200)]
    assert release_range(again).recognised == 1
