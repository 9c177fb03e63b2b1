# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Lines of connections that somebody has cut: what is left of them is told, and nothing more."""

from __future__ import annotations

import time

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import texts


@pytest.mark.parametrize("rest", ["1" * 60000, " " * 60000 + "x", "." * 60000, "a/" * 30000, "-> 1 via " * 8000])
def test_a_hostile_line_is_read_once(rest: str) -> None:
    begin = time.process_time()
    for head in (
        "Channel 00/0 : ",
        "Channel 00/0 : 0[0] -> 1[0] [send] via NET/",
        "Channel 00 : 0 -> 1 via P2P",
        "... ",
    ):
        texts.event(head + rest)
    assert time.process_time() - begin < 2
