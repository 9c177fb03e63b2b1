# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What lines tell without their usual words: networks of old releases and of calls, ranks, releases, AMD's builds."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, jobs, judge, texts
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render


def printed(text: str) -> str:
    log = job.read([text.encode()])
    return " ".join(render(log, jobs.split(log), judge.judge(log)).split())


def findings(text: str) -> list[Finding]:
    return judge.judge(job.read([text.encode()]))


def networks(text: str) -> set[str]:
    [one] = jobs.split(job.read([text.encode()]))
    return one.networks | one.called


def info(*said: str, who: str = "n1:7:9 [0]") -> str:
    return "".join(f"{who} NCCL INFO {text}\n" for text in said)


def warn(text: str, place: str, who: str = "n1:7:9 [0]") -> str:
    return f"{who} {place} NCCL WARN {text}\n"


@pytest.mark.parametrize(
    ("text", "network"),
    [
        (warn("peer a<1> message truncated : x", "transport/net_socket.cc:4"), {"Socket"}),
        (warn("NET/IB : Got completion from peer a<1> with error 12", "transport/net_ib.cc:4"), {"IB"}),
        (info("transport/net_socket.cc:3 -> 2", "include/net.h:2 -> 2", "transport/net.cc:5 -> 2"), {"Socket"}),
        (info("transport/net_ib/p2p.cc:3 -> 2", "transport/net.cc:5 -> 2"), {"IB"}),
        (info("transport/net_ib.cc:3 -> 2", "init.cc:5 -> 2"), set()),
        (warn("Failed to open device", "transport/net_ib.cc:4"), set()),
    ],
)
def test_the_network_is_told_by_the_place_of_data_and_of_its_calls(text: str, network: set[str]) -> None:
    assert networks(text) == network


def test_a_failed_initialisation_is_not_said_to_be_unknown() -> None:
    failed = info("transport.cc:3 -> 2", "init.cc:4 -> 2")
    assert "whether they got ready" not in printed(failed)
    assert "whether they got ready" in printed(info("Trees [0] -1/-1/-1->0->1"))
    assert "no line here begins a communicator" in printed(failed)


def test_what_another_interface_beside_the_bootstraps_is_for() -> None:
    text = info("Bootstrap : Using eno1:10.0.0.1<0>", "Using network Socket")
    text += info("NET/Socket : Using [0]eno1:10.0.0.1<0> [1]ztabc:10.1.0.1<0>")
    [finding] = [one for one in findings(text) if one.check == "nccl_log.interface"]
    assert (finding.source, "NET/Socket lists" in finding.why) == ("NET/Socket: Using", True)


INIT = "comm 0x1 rank {0} nranks 4 cudaDev {0} busId {0}000 - Init COMPLETE"


def test_ways_within_a_node_are_told_of_those_that_take_them() -> None:
    ring = info(*map(INIT.format, range(4)), "Channel 00 : 1[1] -> 2[2] via SHM/direct/direct")
    assert "GPUs of n1 reach each other through shared memory" in printed(ring)
    both = ring + info("Channel 00 : 0[1] -> 1[2] via P2P/IPC")
    assert "some GPUs of n1 reach each other through shared memory, others directly" in printed(both)


@pytest.mark.parametrize("place", ["transport/p2p.cc:2", "init.cc:2"])
def test_p2p_that_fails_is_not_ok(place: str) -> None:
    text = info("Channel 00 : 0[1] -> 1[2] via P2P/IPC") + warn("Cuda failure 'invalid device pointer'", place)
    assert any(one.ok and one.check == "nccl_log.intra_node" for one in findings(text)) == ("init" in place)
    assert ("NCCL_P2P_DISABLE=1 avoids it" in printed(text)) == ("p2p" in place)


@pytest.mark.parametrize(("local", "advised"), [(1, False), (8, True)])
def test_one_gpu_a_node_has_nothing_to_reduce_in_nvswitches(local: int, advised: bool) -> None:
    ranks = 2 * local
    text = info(f"comm 0x1 rank 0 nranks {ranks} cudaDev 0 busId 1000 commId 0x9 - Init START")
    text += info(f"comm 0x1 rank 0 nRanks {ranks} nNodes 2 localRanks {local} localRank 0 MNNVL 0")
    text += info("NCCL_NVLS_ENABLE set by environment to 0.")
    assert ("reduction in the NVSwitches" in printed(text)) == advised


def test_a_plugin_that_was_asked_for_and_is_lost_is_not_harmless() -> None:
    lost = "NET/Plugin : dlerror=libnccl-net-ofi.so: cannot open shared object file: No such file or directory"
    lost += " No plugin found (libnccl-net-ofi.so), using internal implementation"
    sockets = info("NET/Socket : Using [0]hsn0:10.0.0.1<0>", "Using network Socket")
    text = info("Plugin name set by env to libnccl-net-ofi.so", lost) + sockets
    said = printed(text)
    assert "NCCL_NET_PLUGIN=ofi: no such plugin was loaded; NCCL goes by TCP over Slingshot's interfaces" in said
    assert "harmless: no plugin for NET" not in said
    assert "over Slingshot's interfaces (hsn...) NCCL then goes by TCP" in printed(info(lost) + sockets)
    assert "harmless: no plugin for NET" in printed(info(lost))


def test_that_nccl_warns_of_nothing_or_of_nothing_that_matters_is_told() -> None:
    healthy = info("Using network Socket")
    harmless = warn("Failed to open libibverbs.so[.1]", "misc/ibvwrap.cc:63")
    assert "no warning of NCCL's (WARN) is in these lines" in printed(healthy)
    assert "NCCL's 2 warnings (WARN) are about what it does without" in printed(healthy + harmless * 2)
    failed = printed(healthy + harmless + warn("Call to recv from a<1> failed : Broken pipe", "misc/socket.cc:1"))
    assert "what it does without" not in failed
    one = healthy + info("comm 0x1 rank 0 nranks 1 cudaDev 0 busId 1000 - Init COMPLETE") + harmless
    assert "harmless within one node" in printed(one)


@pytest.mark.parametrize(
    ("line", "release"),
    [
        ("frame #3: <unknown function> in /opt/lib/libnccl.so.2.21.5", {"2.21.5"}),
        ("env: nccl_version_code=22105 ranks=8", {"2.21.5"}),
        ("env: nccl_version_code=2708", {"2.7.8"}),
        ("libnccl.so.2 => /usr/lib/libnccl.so.2", set()),
        ("libnccl.so.2.21.5.1", set()),
    ],
)
def test_a_release_stands_in_names_of_libraries_and_in_codes(line: str, release: set[str]) -> None:
    assert texts.libraries(line) == release
    [one] = jobs.split(job.read([(warn("a thing", "init.cc:3") + line + "\n").encode()]))
    assert set(one.versions) == release


@pytest.mark.parametrize("made", [True, False])
def test_connections_that_failed_are_not_said_to_be_made(made: bool) -> None:
    text = info("Channel 00/0 : 0[1] -> 1[2] via P2P/IPC", "Channel 01/0 : 0[1] -> 1[2] via P2P/IPC")
    text += "" if made else info("transport/p2p.cc:3 -> 1", "transport.cc:4 -> 1")
    said = printed(text)
    assert ("to be connected (calls that connect ranks failed" in said) != made
    assert "from rank to rank: 0->1 by P2P/IPC" in said


def test_an_interface_by_which_a_peer_is_not_reached_is_not_ok() -> None:
    text = info("Bootstrap : Using eno1:10.0.0.1<0>")
    assert any(one.ok for one in findings(text) if one.check == "nccl_log.interface")
    text += warn("Connect to 10.0.0.7<3> failed : No route to host", "include/socket.h:3")
    assert not any(one.ok for one in findings(text) if one.check == "nccl_log.interface")


def test_the_interface_that_a_command_asks_for_is_named_where_none_is_found() -> None:
    text = "$ NCCL_SOCKET_IFNAME=eno7 NCCL_DEBUG=INFO python train.py\n"
    text += warn("Bootstrap : no socket interface found", "bootstrap.cc:3")
    have = next(one.have for one in findings(text) if not one.ok) or ""
    assert "NCCL_SOCKET_IFNAME=eno7, as a command or program reports: usually this host has no such" in have


def test_gpus_without_p2p_are_told_by_pair() -> None:
    line = "Could not enable P2P between dev {}(=1a) and dev {}(=2b)"
    shared = info("Channel 00 : 1[1] -> 2[2] via SHM/direct/direct")
    said = printed(info(line.format(1, 0), line.format(0, 1), line.format(2, 3)) + shared)
    assert "no P2P between GPUs 0 and 1, 2 and 3" in said
    assert "no P2P among GPUs 0-1" in printed(info(line.format(0, 1)) + shared)


def test_a_whole_line_is_not_said_to_be_cut() -> None:
    assert "the beginning of the line is not there" not in printed(info("Channel 00/0 : 0[1] -> 1[2] via P2P/IPC"))


def test_that_tcp_instead_of_rdma_is_no_failure_is_told() -> None:
    text = info("Using network Socket", "Channel 00/0 : 0[1] -> 1[2] [send] via NET/Socket/0", who="n1:7:9 [0]")
    text += info("Channel 00/0 : 0[1] -> 1[2] [receive] via NET/Socket/0", who="n2:7:9 [0]")
    text += warn("Failed to open libibverbs.so[.1]", "misc/ibvwrap.cc:63")
    said = printed(text)
    assert "no RDMA by NCCL itself (not a failure: NCCL continues over TCP, which is slower)" in said
    assert "connections: 2 by NET/Socket (lines of them: over the network each end has its own line)" in said


def test_a_release_whose_cuda_was_not_filled_in_is_told() -> None:
    # As JAX builds it.
    assert "NCCL 2.23.4" in printed("NCCL version 2.23.4+cudaCUDA_MAJOR.CUDA_MINOR\n" + info("Using network Socket"))
