"""NCCL's format strings: what a message is, and which releases print it."""

from __future__ import annotations

import re
import time
from collections import Counter

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.formats import (
    RELEASES,
    ReleaseEvidence,
    formats,
    lookup,
)

from tests import readings

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


@pytest.mark.parametrize(("text", "form"), readings.cases("nccl_format_of_message"))
def test_the_format_of_a_message(text: str, form: str) -> None:
    assert {row.text for row in lookup(text)} == {form} - {""}


def test_no_row_is_lost() -> None:
    rows = formats()
    assert Counter((row.level, row.kind.partition(":")[0]) for row in rows) == ROWS
    number = {release: i for i, release in enumerate(RELEASES)}
    held = {one: sum(number[row.first] <= number[one] <= number[row.last] for row in rows) for one in PER_RELEASE}
    assert held == PER_RELEASE
    assert len({(row.level, row.text, row.first) for row in rows}) == len(rows)


@pytest.mark.parametrize(("messages", "first", "last"), readings.cases("nccl_releases_of_messages"))
def test_messages_name_their_releases(messages: list[tuple[str, str]], first: str, last: str) -> None:
    """Each with its place; "" of messages that no single release prints."""
    evidence = ReleaseEvidence()
    for place, text in messages:
        evidence.add(place, text)
    assert (*evidence.releases[:1], *evidence.releases[-1:]) == tuple(filter(None, (first, last)))
    assert (evidence.recognised == 0) == (len(evidence.releases) == len(RELEASES))


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
    evidence = ReleaseEvidence()
    for number in range(200):
        evidence.add("", f"Bootstrap: Using eth0:10.0.0.{number}<0>")
    assert evidence.recognised == 1
