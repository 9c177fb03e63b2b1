# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What busbar diagnose says of warnings that follow from another one of their process, and of addresses in them."""

from __future__ import annotations

import time

from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import aftermath, job, jobs, judge

CONNECT = "[Proxy Service 3] Failed to execute operation Connect from rank 3, retcode 2"
CLOSED = "socketProgress: Connection closed by remote peer {}<40000>"


def warn(text: str, place: str = "misc/socket.cc:1", who: str = "n1:7:9 [0]") -> str:
    return f"{who} {place} NCCL WARN {text}\n"


def test_many_lost_connections_take_no_long_time() -> None:
    begun = time.monotonic()
    log = job.read([(warn(CONNECT) + warn(CLOSED.format("n1")) * 1500).encode()])
    [one] = jobs.split(log)
    assert aftermath.follows(one, one.failures[-1])
    judge.judge(log)
    assert time.monotonic() - begun < 60
