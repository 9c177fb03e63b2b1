# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Lines of a log behind what collectors and people have put around them; their heads are readings."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose import lines, log_reader
from ansible_collections.busbar.fabric.plugins.module_utils.diagnose.judge import judge


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
        (b"> eth0:10.0.0.1&lt;0&gt;", "eth0:10.0.0.1<0>"),
        (b"see [the log](https://example.org/a) here", "see the log here"),
        (b"\x1b[36m[rank3]:\x1b[0m x", "[rank3]: x"),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_wrapped_and_quoted_lines(line: bytes, text: str) -> None:
    assert lines.decode(line) == text


def test_line_numbers_of_an_editor_are_no_part_of_a_log() -> None:
    text = "".join(f"{number} | n1:7:9 [0] NCCL INFO Using network IB\n" for number in range(98, 103))
    log = log_reader.read(text.encode())
    assert list(log.state.processes) == [("n1", 7, None)]
    assert not lines.numbered([b"1 | a", b"7 | b", b"8 | c", b"9 | d"])


@pytest.mark.parametrize(
    ("values", "same"), [(("1", "1"), True), (("1", "0x1"), True), (("1", "2"), False), (("Ring", "ring"), False)]
)
def test_values_of_one_meaning_are_the_same(values: tuple[str, str], same: bool) -> None:
    text = "".join(
        f"n{number}:7:9 [0] NCCL INFO NCCL_ALGO set by environment to {value}.\n" for number, value in enumerate(values)
    )
    found = judge(log_reader.read(text.encode())).findings
    assert ("nccl_log.same_settings" not in {one.check for one in found}) is same
