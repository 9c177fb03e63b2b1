# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a failure came to: calls that ended with it, NCCL's last error, tracebacks without an end, exit codes."""

from __future__ import annotations

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import failures, job, jobs, judge
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render


def found(text: str) -> dict[str, Finding]:
    return {finding.check: finding for finding in reversed(judge.judge(job.read([text.encode()]))) if not finding.ok}


def printed(text: str) -> str:
    log = job.read([text.encode()])
    return " ".join(render(log, jobs.split(log), judge.judge(log)).split())


def calls(*places: str, device: int = 0) -> str:
    return "".join(f"n1:7:8 [{device}] NCCL INFO {place}\n" for place in places)


OFI = "n1:7:8 [0] reg(x*):9 NCCL WARN NET/OFI Unable to register memory for device 3. RC: -22\n"


def test_memory_for_channels_comes_before_connections() -> None:
    text = "n1:7:8 [0] include/alloc.h:9 NCCL WARN Cuda failure 999 'unknown error'\n"
    have = (
        found(text + calls("include/alloc.h:15 -> 1", "channel.cc:4 -> 1", "init.cc:5 -> 1"))["nccl_log.cuda"].have
        or ""
    )
    assert "channels was set up, before ranks are connected; with it the set-up of a channel fails" in have
    assert "connection between ranks" not in have


def test_the_calls_that_ended_with_a_failure_are_told_with_what_their_number_means() -> None:
    up = calls("transport/net.cc:1 -> 2", "transport.cc:5 -> 2", "group.cc:7 -> 2 [Async thread]", "group.cc:9 -> 2")
    one = found(OFI + up)["nccl_log.net_plugin"]
    said = "with it the network transport fails (transport/net.cc:1 -> 2), the connection between ranks"
    said += " (transport.cc:5 -> 2), the group call (group.cc:9 -> 2): 2 is a"
    assert f"{said} system error" in (one.have or "")
    assert (one.severity, "goes on" in one.why) == ("critical", False)
    # Without them NCCL may go on, and those of another GPU are not its.
    for other in (OFI, OFI + calls("group.cc:9 -> 2", device=3)):
        assert found(other)["nccl_log.net_plugin"].severity == "major"
    thread = OFI + calls("proxy.cc:4 -> 6 [Progress Thread]", "enqueue.cc:3 -> 6")
    said = "the proxy's progress thread fails (proxy.cc:4 -> 6), the launch of the operation (enqueue.cc:3 -> 6)"
    assert f"with it {said}: 6 is a remote error" in (found(thread)["nccl_log.net_plugin"].have or "")
    assert "progress thread" not in (found(OFI + calls("proxy.cc:4 -> 6"))["nccl_log.net_plugin"].have or "")


RAISED = "torch.distributed.DistBackendError: NCCL error in: /x/y.cpp:1, unhandled system error\n"


def test_the_last_error_is_the_cause_where_a_program_was_handed_it() -> None:
    text = "ncclSystemError: System call failed or device error.\nLast error:\nnvmlInit_v2() failed: Unknown Error\n"
    first = judge.judge(job.read([(text + RAISED).encode()]))[0]
    assert (first.check, first.state, first.severity) == ("nccl_log.warning", "drift", "critical")
    assert "these lines do not show the cause" not in printed(text + RAISED)
    connect = "n1:7:8 [0] misc/socket.cc:5 NCCL WARN Connect to 10.0.0.9<500> returned 113(No route to host)\n"
    last = "Last error:\n[Proxy Service 2] Failed to execute operation Connect from rank 2, retcode 3\n"
    assert "NCCL's last error: [Proxy Service 2] Failed to execute operation Connect" in printed(connect + last)


TRACE = '{0}Traceback (most recent call last):\n{0}  File "a.py", line 4, in <module>\n{0}    main()\n'
TRACE += '{0}  File "a.py", line 2, in main\n{0}    model.fit(data, steps=4)\n'
CUT = "its type and text are cut off here"


@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "[rank3]: [rank3]: ", "(Worker pid=77) "])
def test_a_traceback_without_its_end_is_an_exception_all_the_same(prefix: str) -> None:
    said = printed(TRACE.format(prefix))
    assert f"{CUT}" in said
    assert "called from main > model.fit" in said
    for end in ("ValueError: no steps", "AssertionError", "    ^^^^^\nqueue.Empty"):
        assert CUT not in printed(TRACE.format(prefix) + "".join(f"{prefix}{one}\n" for one in end.split("\n")))


def test_a_traceback_of_another_rank_does_not_end_it() -> None:
    text = TRACE.format("[rank1]: ") + TRACE.format("[rank2]: ") + "[rank2]: ValueError: no steps\n"
    said = printed(text)
    assert CUT in said
    assert "[rank1]: Traceback" in said
    assert "[rank2]: Traceback" not in said
    assert "[rank4]: Traceback" in printed("[rank4]: Traceback (most recent call last):\n")


def test_a_call_above_an_exception_is_told_without_its_file() -> None:
    assert "called from: dist.verify" in printed("    return dist.verify(group, tensors)\nValueError: sizes differ\n")


def test_exit_codes_of_a_debugger_are_octal() -> None:
    said = printed("[Inferior 1 (process 44) exited with code 0211]\n")
    assert "exit code 137, that is: signal 9" in said


def test_a_long_warning_is_cut_so_that_its_peer_is_kept() -> None:
    text = "NET/X request failed " + "a" * 300 + " Peer EFA addr: fi_addr_efa://[fe80::7]:0:99 Peer host id: i-5). Done"
    cut = failures.cut(text, 200)
    assert "Peer EFA addr: fi_addr_efa://[fe80::7]:0:99 Peer host id: i-5" in cut
    assert len(cut) <= 210
    assert failures.cut("b" * 150 + "c" * 150, 200).endswith("c" * 66)
    assert failures.cut(text, 900) == text


def test_gpus_whose_call_fails_alike_without_a_warning_are_named() -> None:
    warning = "n1:7:8 [0] misc/nvmlwrap.cc:9 NCCL WARN nvmlInit() failed: Driver Not Loaded\n"
    back = "n1:7:%d [%d] NCCL INFO misc/nvmlwrap.cc:20 -> 2\nn1:7:%d [%d] NCCL INFO init.cc:30 -> 2\n"
    have = (
        found(warning + back % (8, 0, 8, 0) + back % (9, 3, 9, 3) + back % (4, 1, 4, 1))["nccl_log.warning"].have or ""
    )
    assert "the same call fails on n1:7, GPUs 1,3, without its own warning (misc/nvmlwrap.cc:20 -> 2)" in have
    assert "the same call" not in (found(warning + back % (8, 0, 8, 0))["nccl_log.warning"].have or "")


def test_who_gave_up_had_tried_before() -> None:
    head = "n1:7:8 [0] %s socketPollConnect: connect returned Connection refused, "
    tries = "".join(head % "NCCL INFO" + f"retrying ({n}/34) after sleep for {n}00 msec\n" for n in (32, 33))
    end = head % "misc/socket.cc:5 NCCL WARN" + "exceeded error retry count (34)\n"
    have = found(tries + end)["nccl_log.connection"].have or ""
    assert "it was tried before, 33 of 34 times, at last 3.3 s apart" in have


def test_the_place_of_a_call_within_is_told_and_is_no_end_by_itself() -> None:
    warning = "n1:7:8 [0] misc/new.cc:9 NCCL WARN something new of 2.99\n"
    within = found(warning + calls("transport/net.cc:8 -> 3"))["nccl_log.warning"]
    assert "with it the network transport fails (transport/net.cc:8 -> 3)" in (within.have or "")
    whole = found(warning + calls("transport/net.cc:8 -> 3", "group.cc:3 -> 3"))["nccl_log.warning"]
    assert within.severity != whole.severity
