# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Lines of NCCL behind what launchers, collectors and people put before them."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose import lines, log_reader, names
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.facts import decimal
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.judge import judge


@pytest.mark.parametrize(
    ("prefix", "rank", "time"),
    [
        ("", None, ""),
        ("[default3]:", 3, ""),
        ("[rank3]:", 3, ""),
        ("3: ", 3, ""),
        ("[1,3]<stdout>:", 3, ""),
        ("[prterun-n1-77@1,3]<stdout>: ", 3, ""),
        ("[3] ", 3, ""),
        ("node9: ", None, ""),
        ("(RayTrainWorker pid=77, ip=10.0.0.1) ", None, ""),
        ("2025-11-24T03:20:21.001125857Z stdout F ", None, "2025-11-24 03:20:21"),
        ("2025-11-24T03:20:21.001125857Z stdout F 3: ", 3, "2025-11-24 03:20:21"),
        ("[2025-11-24 03:20:21] ", None, "2025-11-24 03:20:21"),
        ("\x1b[36m[rank3]:\x1b[0m ", 3, ""),
        ("> ", None, ""),
        ("`", None, ""),
        ("a torn line of another process ", None, ""),
        ("x" * 20000 + " ", None, ""),
    ],
)
def test_every_prefix_leaves_the_same_record(prefix: str, rank: int | None, time: str) -> None:
    text = lines.decode(f"{prefix}node1:4242:4243 [5] NCCL INFO Using network IB\r".encode()[-lines.LONGEST :])
    [record] = lines.records(text)
    assert record.head == lines.Head("node1", 4242, 4243, 5, "", rank, time)
    assert (record.level, record.text) == ("INFO", "Using network IB")


@pytest.mark.parametrize(
    ("before", "head"),
    [
        ("n1:7:9 [0] init.cc:9 NCCL WARN", lines.Head("n1", 7, 9, 0, "init.cc:9")),
        ("n1:7:9 [0] init.cc:9 (f) NCCL WARN", lines.Head("n1", 7, 9, 0, "init.cc:9")),
        ("n1:7:9 init.cc:9 NCCL WARN", lines.Head("n1", 7, 9, None, "init.cc:9")),
        ("transport/net.cc:9 NCCL WARN", lines.Head(place="transport/net.cc:9")),
        ("[0] NCCL WARN", lines.Head(device=0)),
        ("7:9 [0] NCCL WARN", lines.Head("", 7, 9, 0)),
        ("[init.cc:9] [n1:pid=7] NCCL WARN", lines.Head("n1", 7, place="init.cc:9")),
        ("[3/8] [n1:7] NCCL WARN", lines.Head("n1", 7, rank=3)),
    ],
)
def test_heads_that_lack_a_part(before: str, head: lines.Head) -> None:
    [record] = lines.records(f"{before} x")
    assert record.head == head


def test_records_that_stick_together_are_two() -> None:
    found = lines.records("n1:7:9 [0] NCCL INFO Using network IB n2:8:9 [1] NCCL INFO Using network Socket")
    assert [(one.head.host, one.text) for one in found] == [("n1", "Using network IB"), ("n2", "Using network Socket")]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            b'{"log": "n1:7:9 [0] NCCL INFO x\\n", "time": "2025-11-24T03:20:21.02Z"}',
            "2025-11-24T03:20:21.02Z F n1:7:9 [0] NCCL INFO x",
        ),
        (b'{"a": 1}', '{"a": 1}'),
        (b"{" * 15000, "{" * 15000),
        (b"`via NET/IB/0`", "via NET/IB/0"),
        (b"eth0:10.0.0.1&lt;0&gt;", "eth0:10.0.0.1<0>"),
        (b"see [the log](https://example.org/a) here", "see the log here"),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_wrapped_and_quoted_lines(line: bytes, text: str) -> None:
    assert lines.decode(line) == text


def test_line_numbers_of_an_editor_are_no_part_of_a_log() -> None:
    text = "".join(f"{number} | n1:7:9 [0] NCCL INFO Using network IB\n" for number in range(98, 103))
    log = log_reader.read(text.encode())
    assert list(log.state.processes) == [("n1", 7, None)]


def test_a_number_before_fewer_lines_is_part_of_them() -> None:
    log = log_reader.read(b"1 | n1:7:9 [0] NCCL INFO Using network IB\n7 | a\n8 | b\n9 | c\n")
    assert [key[0] for key in log.state.processes] == ["n1"]
    assert not lines.numbered([b"1 | a", b"7 | b", b"8 | c", b"9 | d"])
    assert lines.numbered([b"7 | a", b"8 | b", b"9 | c", b"10 | d"])


@pytest.mark.parametrize(
    ("values", "same"), [(("1", "1"), True), (("1", "0x1"), True), (("1", "2"), False), (("Ring", "ring"), False)]
)
def test_values_of_one_meaning_are_the_same(values: tuple[str, str], same: bool) -> None:
    text = "".join(
        f"n{number}:7:9 [0] NCCL INFO NCCL_ALGO set by environment to {value}.\n" for number, value in enumerate(values)
    )
    found = judge(log_reader.read(text.encode())).findings
    assert ("nccl_log.same_settings" not in {one.check for one in found}) is same


@pytest.mark.parametrize("text", ["", "1.2.3", "1e9", "\u0663", "9" * 30, "-1", " 1"])
def test_only_ascii_decimals_are_numbers(text: str) -> None:
    assert decimal(text) is None


def test_names_are_few_and_printable() -> None:
    assert names.names(["b", "a\x1b[2J", "a"], 2) == "a, a\\x1b[2J and 1 more"
    assert names.numbers([3, 0, 1, 2, 7]) == "0-3,7"
    assert names.missing([1, 3], 6) == "0,2,4-5"
    assert names.missing([1], 99_999_999) == "0,2-99999998"
