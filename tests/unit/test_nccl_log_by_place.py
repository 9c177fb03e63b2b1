# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What busbar diagnose says of a warning goes with the place where it stands, and no further than the log shows."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, judge

WARN = "node1:7:8 [0] {} NCCL WARN {}\n"
INFO = "node1:7:8 [0] NCCL INFO {}\n"
KIND = "socketFinalizeAccept: wrong type {} != {}"
NO_ADDRESS = "ncclSocketInit: connecting to address  with family 1 is neither AF_INET(2) nor AF_INET6(10)"


def worst(text: str) -> Finding:
    return next(one for one in judge.judge(job.read([text.encode()])) if not one.ok)


def calls(*places: str) -> str:
    return "".join(INFO.format(f"{place} -> 3") for place in places)


@pytest.mark.parametrize(
    ("place", "returned", "of", "met"),
    [
        ("misc/socket.cc:1", ["misc/socket.cc:2", "bootstrap.cc:3", "init.cc:4"], "in bootstrap", False),
        ("misc/socket.cc:1", ["transport/net_socket.cc:3", "transport/net.cc:4"], "of NET/Socket", True),
        ("misc/socket.cc:1", ["transport/net_ib/connect.cc:3", "transport/net.cc:4"], "of NET/IB", True),
        ("misc/socket.cc:1", ["proxy.cc:3"], "of a proxy thread", True),
        ("misc/socket.cc:1", ["ras/ras.cc:3"], "by RAS", False),
        ("socket.c:1", [], "of the network's plugin", True),
        ("misc/socket.cc:1", [], "what the connection was for", False),
    ],
)
def test_a_socket_is_of_the_stage_that_the_calls_name(place: str, returned: list[str], of: str, met: bool) -> None:
    finding = worst(WARN.format(place, KIND.format(4, 3)) + calls(*returned))
    assert (of in finding.why, "had found each other" in finding.why) == (True, met), finding.why
    assert ("NCCL_SOCKET_IFNAME" in finding.fix) == (of == "in bootstrap")
    assert "4 is NET/IB by NCCL's numbers, and 3 is NET/Socket" in (finding.have or "")


def test_where_no_call_tells_connections_before_it_do() -> None:
    channel = INFO.format("Channel 00/0 : 1[0] -> 0[0] [send] via NET/Socket/0")
    assert "it had found ranks before" in worst(channel + WARN.format("misc/socket.cc:1", KIND.format(9, 1))).why


@pytest.mark.parametrize(
    ("returned", "unique"), [(["bootstrap.cc:3"], True), (["transport/net_socket.cc:3"], False), ([], False)]
)
def test_the_unique_id_is_named_for_bootstrap_alone(returned: list[str], unique: bool) -> None:
    finding = worst(WARN.format("misc/socket.cc:1", NO_ADDRESS) + calls(*returned))
    said = f"{finding.have} {finding.why} {finding.fix}"
    assert ("unique id" in said, "two builds" in said) == (unique, True)


def test_a_library_that_is_not_there_is_no_call_of_cuda() -> None:
    opened = WARN.format("misc/nvmlwrap.cc:1", "Failed to open libnvidia-ml.so.1")
    finding = worst(opened + calls("misc/nvmlwrap.cc:2", "init.cc:3") + "n: Test NCCL failure a.cu:1 'system error'\n")
    assert (finding.check, finding.state, finding.severity) == ("nccl_log.warning", "drift", "critical")
    assert ("mount it" in (finding.have or ""), "CUDA_LAUNCH" in finding.fix) == (True, False)
    # Where no call fails with it NCCL went on.
    assert worst(opened).severity != "critical"


def test_calls_behind_another_failure_are_that_ones() -> None:
    order = WARN.format("graph/search.cc:1", "Could not find a path for pattern 4, falling back to simple order")
    text = order + WARN.format("enqueue.cc:2", "Cuda failure 1 'invalid argument'") + calls("group.cc:3")
    said = {one.check: one.have or "" for one in judge.judge(job.read([text.encode()])) if not one.ok}
    assert ("group.cc" in said["nccl_log.warning"], "group.cc" in said["nccl_log.cuda"]) == (False, True)


def test_memory_that_nvswitches_do_not_give_is_not_that_of_the_gpu() -> None:
    finding = worst("Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2 : CUDA error 2 'out of memory'.\n")
    assert (finding.check, "batch" in finding.fix) == ("nccl_log.fabric_manager", False)
    assert "fabricmanager" in worst("n: Test CUDA failure a.cu:1 'system not yet initialized'\n").fix


def test_an_illegal_access_may_be_of_any_kernel() -> None:
    finding = worst(WARN.format("enqueue.cc:1", "Cuda failure 700 'an illegal memory access was encountered'"))
    assert all("of the program or of NCCL" in said for said in (finding.have or "", finding.why))
