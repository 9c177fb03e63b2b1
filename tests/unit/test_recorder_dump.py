# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The reader of flight recorder dumps: plain data as pickle reads it, and hostile bytes."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import struct
import time
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose import recorder_dump
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.recorder_dump import DumpError, Reader
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import nested, readings

from .recorder_dumps import as_json, dump, pickled

GOOD = dump("W1 W2! P1!send0-1", {"W": (0, 1), "P": (0, 1)}, 0)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), 1 << 64) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.tuples(inner) | st.tuples(inner, inner, inner) | st.dictionaries(st.text(), inner)
    ),
    max_leaves=30,
)


@given(PLAIN, st.integers(3, 5))
def test_plain_data_is_as_pickle_reads_it(data: object, protocol: int) -> None:
    assert recorder_dump.parse_pickle(pickle.dumps(data, protocol)) == data


def test_objects_that_are_named_twice() -> None:
    shared = ["a", {"b": (1,)}]
    data = [shared, shared, shared[1]]
    for protocol in range(2, 6):
        assert recorder_dump.parse_pickle(pickle.dumps(data, protocol)) == data


class Caller:
    """Its pickle calls a function."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


class Slots:
    __slots__ = ("a",)

    def __init__(self) -> None:
        self.a = 1


# What names or calls a class, or an object outside of the pickle.
CLASSES: dict[str, Any] = {
    "system": Caller(os.system, "touch /tmp/owned"),
    "eval": Caller(eval, "1"),
    "state": Slots(),
    "ordered": OrderedDict(a=1),
    "complex": 1j,
    "set": {1},
    "frozenset": frozenset([1]),
    "bytearray": bytearray(b"x"),
    "class": dict,
    "range": range(3),
    "exception": ValueError("x"),
}


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("name", CLASSES)
def test_no_class_is_named_or_called(name: str, protocol: int) -> None:
    with pytest.raises(DumpError, match="it is not plain data"):
        recorder_dump.parse_pickle(pickle.dumps([{"entries": CLASSES[name]}], protocol))


_START = b"\x80\x02"
REFUSED = [
    (text.encode("latin-1"), message) for message, *texts in readings.cases("recorder_pickles") for text in texts
]
REFUSED += [
    (b"L" + b"9" * 10_000 + b"L\n.", "it is not plain data"),
    (b"}(" + b")" + b"\x85" * 90_000 + b"Nu.", "a key that is not a text"),
]


@pytest.mark.parametrize(("data", "message"), REFUSED)
def test_refused(data: bytes, message: str) -> None:
    with pytest.raises(DumpError, match=message):
        recorder_dump.parse_pickle(_START + data)


def _shared(depth: int) -> bytes:
    """Lists of two references each to the next: 2 ** depth leaves in a few bytes."""
    return _START + b"](]q\x00" + b"".join(b"](h%ch%ceq%c" % (at, at, at + 1) for at in range(depth)) + b"e."


# Of the limit in these tests: what is refused at 4,000,000 takes as many steps.
MOST = 100_000
# What would cost memory or time that its bytes do not show.
BOMBS = {
    "objects": (_START + b"](" + b"N" * MOST + b"e.", "more than 100000 objects"),
    "lists": (_START + b"](" + b"]" * MOST + b"e.", "more than 100000 objects"),
    "a list again and again": (_START + b"]q\x00(" + b"h\x00" * MOST + b"e.", "more than 100000 objects"),
    "stored again and again": (
        _START + b"N" + b"".join(b"r" + struct.pack("<I", at) for at in range(MOST)) + b"N",
        "more than 100000 objects",
    ),
    "texts": (_START + b"](" + (b"X\x00\xff\0\0" + bytes(0xFF00)) * 200 + b"e.", "is not a mapping"),
    "lists in lists": (_START + b"]" * 5_000 + b"a" * 4_999 + b".", "is not a mapping"),
    "tuples in tuples": (_START + b")" + b"\x85" * 90_000 + b".", "is not a mapping"),
    "JSON lists": (b'{"a": [' + b"[]," * MOST + b"[]]}", "more than 100000 objects"),
    "JSON in JSON": (b'{"a":' * 90_000, "is not valid JSON"),
    "JSON lists in lists": (b'{"a":' + b"[" * 90_000, "is not valid JSON"),
    "a JSON number": (b'{"a": ' + b"9" * 1_000_000 + b"}", "is not valid JSON"),
    "a JSON fraction": (b'{"a": 1.' + b"9" * 1_000_000 + b"}", "its format is"),
    "JSON without a number": (b'{"a": NaN}', "its format is"),
    "too large": (b"\x80" + bytes(recorder_dump.MOST_BYTES), "more than 64 MiB"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_cost_is_bounded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_dump, "MOST_OBJECTS", MOST)
    data, message = BOMBS[name]
    tracemalloc.start()
    began = time.process_time()
    with pytest.raises(DumpError, match=message):
        Reader().read(data)
    assert time.process_time() - began < 30
    _now, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # What is counted is less than what Python needs, and the file itself is read.
    assert most < 3 * (8 << 20) + 4 * len(data)


def test_references_are_counted_where_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickle of 300 bytes can name a list 2 ** 30 times; a loop of lists has no end."""
    assert recorder_dump.parse_pickle(_shared(30))
    with pytest.raises(DumpError, match="is not a mapping"):
        Reader().read(_shared(30))
    with pytest.raises(DumpError, match="is not a mapping"):
        Reader().read(_START + b"]q\x00h\x00a.")
    monkeypatch.setattr(recorder_dump, "MOST_READ", 1_000_000)
    data = {**GOOD, "entries": [{**GOOD["entries"][0], "input_sizes": [[1]] * 4000}] * 20_000}
    with pytest.raises(DumpError, match="more than 1000000 values"):
        Reader().read(pickled(data))


@given(st.binary(max_size=200), st.integers(2, 5))
@settings(max_examples=3 * settings().max_examples)
def test_random_bytes(data: bytes, protocol: int) -> None:
    _read_or_refuse(b"\x80" + bytes([protocol]) + data)
    _read_or_refuse(data)


# Opcodes of plain data with short arguments: most streams of them get far.
_OPCODES = (
    *(b"(", b"]", b"}", b")", b"t", b"a", b"e", b"s", b"u", b"N", b"\x88", b"\x85", b"\x86", b"\x87", b"\x94", b"."),
    *(b"K\x01", b"X\x01\0\0\0a", b"\x8c\x01b", b"C\x01c", b"q\x00", b"q\x01"),
    *(b"h\x00", b"h\x01", b"\x8a\x01\x05", b"c"),
)


@given(st.lists(st.sampled_from(_OPCODES), max_size=60))
@settings(max_examples=10 * settings().max_examples)
def test_random_opcodes(opcodes: list[bytes]) -> None:
    """What is read is what pickle reads; pickle allows more keys."""
    data = _START + b"".join(opcodes) + b"."
    try:
        found = recorder_dump.parse_pickle(data)
    except DumpError:
        return
    assert repr(found) == repr(pickle.loads(data))


def _read_or_refuse(data: bytes) -> None:
    try:
        Reader().read(data)
    except DumpError as error:
        assert re.fullmatch(r"[ -~]{10,199}", str(error))


@pytest.mark.parametrize("form", [pickled, as_json], ids=["pickle", "json"])
def test_damaged_dumps(form: Callable[[Any], bytes]) -> None:
    good, chance = form(GOOD), random.Random(5)
    for end in range(0, len(good), 7):
        _read_or_refuse(good[:end])
    for _number in range(2000):
        data = bytearray(good)
        for _change in range(chance.randint(1, 3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        _read_or_refuse(bytes(data))


@pytest.mark.parametrize("value", [None, "", "x\x1b[31m", -1, 1 << 80, 1.5, [], [[]], {}, {"a": []}, True])
def test_any_value_anywhere(value: object) -> None:
    """A field with another type is refused with a sentence, or is one that nothing reads."""
    for path in nested.places(GOOD):
        _read_or_refuse(json.dumps(nested.changed(GOOD, path, value)).encode())


@pytest.mark.parametrize("value", [b"]" * 5_000 + b"a" * 4_999, _shared(60)[len(_START) : -1]], ids=["deep", "shared"])
def test_a_nested_value_anywhere(value: bytes) -> None:
    for path in nested.places(GOOD):
        before, _mark, after = pickle.dumps(nested.changed(GOOD, path, "nested"), 2).partition(b"X\x06\0\0\0nested")
        _read_or_refuse(before + value + after)


@pytest.mark.parametrize(("change", "of_entry", "message"), readings.cases("recorder_forms"))
def test_forms_that_are_not_known(change: dict[str, Any], of_entry: dict[str, Any] | None, message: str) -> None:
    first = {} if of_entry is None else {"entries": [{**GOOD["entries"][0], **of_entry}]}
    with pytest.raises(DumpError, match=message):
        Reader().read(pickled({**GOOD, **change, **first}))


def test_what_only_finished_operations_have() -> None:
    first, *_others = Reader().read(pickled(GOOD)).entries or ()
    assert (first.operation.output_types, first.timeout) == (("Float",), 45000)


def test_texts_are_printable_and_short() -> None:
    data = dump("W1", {"W": (0, 1)}, 0)
    data["entries"][0]["profiling_name"] = "nccl:\x1b]0;x\x07" + "y" * 500
    data["entries"][0]["frames"] = [{"name": "\n", "filename": "/home/\x1b[2J" * 50, "line": 1}]
    data["pg_config"]["W"]["desc"] = "\udce4\r"
    found = Reader().read(pickled(data))
    assert found.entries is not None
    texts = [found.entries[0].operation.name, found.entries[0].place, found.groups["W"].description]
    assert all(text.isprintable() and len(text) < 700 for text in texts)
