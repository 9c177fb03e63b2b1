# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What busbar diagnose makes of failures that few logs have, and of records that stick to each other."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import events, lines, texts


@pytest.mark.parametrize("end", ["Bootstrap : Using eth0:10.0.0.1<0>", "NET/Plugin: No plugin found (libnccl-net.so)"])
def test_a_record_that_sticks_to_the_next_ones_host(end: str) -> None:
    first, second = lines.records(f"pod-a:30:31 [6] NCCL INFO {end}pod-a:40:41 [3] NCCL INFO Using network IB")
    assert (first.text, second.head.host, second.head.pid) == (end, "pod-a", 40)
    # Whoever publishes a log may put a mark into the host's place.
    first, second = lines.records("<a>:1:2 [0] NCCL INFO Using network IB <b>:3:4 [1] NCCL INFO Using network IB")
    assert (first.head.host, second.head.host) == ("<a>", "<b>")


def test_connections_with_their_communicator_behind_them() -> None:
    tail = " comm 0x20a0 nRanks 02"
    assert texts.event(f"Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/0{tail}") == events.Channel(
        "net", "IB", 0, 1, True, 0
    )
    assert texts.event(f"Channel 01/0 : 0[c000] -> 1[f000] via P2P/IPC{tail}") == events.Channel("p2p", "IPC", 0, 1)
