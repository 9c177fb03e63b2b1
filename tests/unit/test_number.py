# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.number import signed, whole
from ansible_collections.busbar.fabric.plugins.module_utils.fabric import ibnetdiscover
from ansible_collections.busbar.fabric.plugins.module_utils.machine import rdma
from ansible_collections.busbar.fabric.plugins.module_utils.ras import processes


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("18446744073709551615", 2**64 - 1), ("007", 7)]
    + [(text, None) for text in ("", "\u00b2", "\u0664", "-1", "+1", "1 ", "1_0", "0x1", "9" * 21, "9" * 5000, None)],
)
def test_a_number_is_ascii_digits(text: str | None, expected: int | None) -> None:
    assert whole(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", 7),
        ("-7", -7),
        ("-0", 0),
        *((text, None) for text in ("-", "--1", "+1", "- 1", "-\u00b2", "-" + "9" * 21, None)),
    ],
)
def test_one_sign_before_the_digits(text: str | None, expected: int | None) -> None:
    assert signed(text) == expected


def test_readers_survive_digits_that_are_none() -> None:
    with pytest.raises(ParseError):
        rdma.parse_devinfo("hca_id: mlx5_0\n\tport: \u00b2\n")
    assert processes.parse_users("root:x:0:0:\u00b2:/root:/bin/sh\na:x:\u00b2:0::/:/bin/sh\n") == {0: "root"}
    assert ibnetdiscover.parse_ports("CA 1 \u00b2 0x0000000000000001 4x HDR\n").odd_count == 1
