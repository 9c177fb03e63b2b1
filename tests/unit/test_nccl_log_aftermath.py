# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What busbar diagnose says of warnings that follow from another one of their process, and of addresses in them."""

from __future__ import annotations

import time

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import aftermath, job, jobs, judge
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render

CONNECT = "[Proxy Service 3] Failed to execute operation Connect from rank 3, retcode 2"
CLOSED = "socketProgress: Connection closed by remote peer {}<40000>"
EARLIER = "Attempt to use communicator before the previous operation returned ncclSuccess"


def warn(text: str, place: str = "misc/socket.cc:1", who: str = "n1:7:9 [0]") -> str:
    return f"{who} {place} NCCL WARN {text}\n"


def info(*texts: str, who: str = "n1:7:9 [0]") -> str:
    return "".join(f"{who} NCCL INFO {text}\n" for text in texts)


def printed(text: str) -> str:
    log = job.read([text.encode()])
    return " ".join(render(log, jobs.split(log), judge.judge(log)).split())


def bad(text: str) -> list[Finding]:
    return [one for one in judge.judge(job.read([text.encode()])) if not one.ok]


@pytest.mark.parametrize(("peer", "own"), [("n1", True), ("n1.cluster.lan", True), ("n10", False), ("n2", False)])
def test_a_process_that_loses_its_own_proxy_thread_has_lost_no_rank(peer: str, own: bool) -> None:
    calls = info(
        "misc/socket.cc:5 -> 2", "transport/net_socket.cc:6 -> 2", "transport/net.cc:7 -> 2", "proxy.cc:8 -> 2"
    )
    ended = info("transport.cc:3 -> 6", "init.cc:4 -> 6")
    text = calls + warn(CONNECT, "proxy.cc:9") + warn(CLOSED.format(peer)) + ended
    said = printed(text)
    assert ("the lost peer" not in said, "no other rank was lost" in said) == (own, own)
    assert f"Connection closed by remote peer {peer}<40000>" in said
    first = bad(text)[0].have or ""
    assert first.startswith("[Proxy Service 3]" if own else "socketProgress")
    assert not own or "misc/socket.cc:5 -> 2" in first


def test_a_peer_on_the_same_host_without_a_word_of_a_proxy_is_hedged() -> None:
    assert "it may be a thread of NCCL's own" in (bad(warn(CLOSED.format("n1")))[0].have or "")
    assert "it may be a thread of NCCL's own" not in (bad(warn(CLOSED.format("n2")))[0].have or "")


def test_who_polls_for_an_answer_lost_its_own_proxy_whatever_its_address_is_called() -> None:
    polls = warn("Socket recv failed while polling for opId=0x7f", "proxy.cc:4")
    lost = warn(CONNECT, "proxy.cc:9") + warn(CLOSED.format("other"))
    assert "no other rank was lost" in printed(lost + polls)
    assert "no other rank was lost" not in printed(lost)
    # Who polls in another process has lost nothing here.
    assert "no other rank was lost" not in printed(lost + polls.replace("n1:7:9", "n1:8:9"))


@pytest.mark.parametrize(
    ("line", "about"),
    [
        ("[17.2] [n1:3:0]   parser.c:20 UCX  WARN  unused environment variable: UCX_A", "does not know a variable"),
        ("No transition in N5Agent3FSM8Profiler8ShutdownE (1) for N5Agent9InterruptE.", "an effect of that"),
    ],
)
def test_warnings_of_others_that_are_no_cause(line: str, about: str) -> None:
    said = printed(line + "\n")
    assert about in said
    assert "critical" not in said


def test_an_abort_after_a_failure_is_clean_up() -> None:
    abort = info("comm 0x1 rank 0 nranks 4 cudaDev 0 busId d1000 - Abort COMPLETE")
    failed = warn("Cuda failure 3 'initialization error'", "transport/nvls.cc:2")
    assert "(Abort COMPLETE) by rank 0: usually the clean-up after a failure" in printed(failed + abort)
    assert "clean-up" not in printed(abort)


def test_the_proxys_own_rank_is_not_told_as_the_other_end() -> None:
    lines = info("Channel 03/0 : 3[c] -> 6[d] [send] via NET/Socket/2", "proxy.cc:8 -> 2")
    have = (
        bad(lines + warn("Proxy Call to rank 3 failed (Connect)", "proxy.cc:9") + info("init.cc:3 -> 2"))[0].have or ""
    )
    assert "the proxy thread of rank 3 did not do" in have
    assert "connect it with rank 6 by NET/Socket/2, not the first interface" in have


@pytest.mark.parametrize(
    ("before", "follows"), [(warn("NET/Socket : peer a<1> message truncated : x"), True), ("", False)]
)
def test_a_communicator_that_is_refused_after_a_failure_is_no_failure_of_its_own(before: str, follows: bool) -> None:
    found = bad(before + warn(EARLIER, "init.cc:290"))
    assert [one.check for one in found if "Attempt" in (one.have or "")] == ([] if follows else ["nccl_log.usage"])
    assert ("caused by the failure before it" in printed(before + warn(EARLIER, "init.cc:290"))) == follows
    assert not any("at the initialisation" in (one.have or "") for one in found)


def test_a_truncated_message_is_no_fault_of_the_link() -> None:
    have = bad(warn("NET/IB : peer a<1> collective mismatch, or message truncated : 4 bytes"))[0].have or ""
    assert "disagree on its size" in have
    assert "the link is not at fault" in have


@pytest.mark.parametrize(
    ("peer", "bridge"), [("172.18.0.1", True), ("172.17.0.2", False), ("172.16.0.1", False), ("172.32.0.1", False)]
)
def test_the_address_of_a_dockers_bridge_is_told_as_one(peer: str, bridge: bool) -> None:
    for text in (f"Net : Call to recv from {peer}<9> failed : Broken pipe", f"Connect to {peer}<9> failed : timed out"):
        assert ("address as a Docker bridge has it" in (bad(warn(text))[0].have or "")) == bridge


def test_ports_and_kinds_of_words_are_counted_apart() -> None:
    refused = "Connect to 10.0.0.7<{}> failed : No route to host"
    have = bad(warn(refused.format(31)) + warn(refused.format(57)))[0].have or ""
    assert "2 times;" in have
    assert "10.0.0.7 (2, ports 31, 57)" in have
    assert "Connection refused" in have
    full = warn("Call to posix_fallocate failed : No space left on device")
    have = bad(full + warn("Error while creating shared memory segment nccl-1 (size 9)"))[0].have or ""
    assert "2 times (1 of them in these words)" in have


@pytest.mark.parametrize("line", ["failed with error Network is unreachable", "failed with 110 timed out, on dev a"])
def test_no_address_is_promised_that_a_line_may_not_have(line: str) -> None:
    finding = bad(warn(f"Call to ibv_modify_qp {line}"))[0]
    assert "of the line:" not in finding.fix
    assert "where it has some" in finding.fix
    assert ("no route from the HCA's address" in (finding.have or "")) == ("Network is" in line)


def test_files_of_other_builds_are_calls_all_the_same() -> None:
    for end in ("cu", "cpp", "cc"):
        have = bad(warn("Call to ibv_create_qp failed") + info(f"transport/net.{end}:2 -> 2", f"init.{end}:3 -> 2"))[
            0
        ].have
        assert f"the initialisation of the communicator (init.{end}:3 -> 2)" in (have or "")


def test_many_lost_connections_take_no_long_time() -> None:
    begun = time.monotonic()
    log = job.read([(warn(CONNECT) + warn(CLOSED.format("n1")) * 1500).encode()])
    [one] = jobs.split(log)
    assert aftermath.follows(one, one.failures[-1])
    judge.judge(log)
    assert time.monotonic() - begun < 60
