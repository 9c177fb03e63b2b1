from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.size import parse_size, size_text


@pytest.mark.parametrize(("text", "size"), [("8", 8), ("64k", 65536), ("1M", 1024**2), (" 8G ", 8 * 1024**3)])
def test_a_size_is_read_as_nccl_tests_reads_it(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("size", "text"),
    [
        *((8, "8"), (1000, "1000"), (512 * 1024, "512K"), (8 * 1024**3, "8G"), (14 * 10**9, "14GB")),
        *((2_600_000_000, "2.6GB"), (16_060_522_496, "15684104K"), (1_234_567_890, "1234567890")),
    ],
)
def test_a_size_is_said_exactly_and_as_short_as_can_be(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize("text", ["", "0", "-8", "8GB", "1.5G", "1T", "x", "999999999999999G"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ParseError, match="expected bytes"):
        parse_size(text)
