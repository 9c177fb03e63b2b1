# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a healthy run of an old release prints that looks like a fault, and connections that were never made."""

from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, jobs, judge
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render


def printed(text: str) -> str:
    log = job.read([text.encode()])
    return " ".join(render(log, jobs.split(log), judge.judge(log)).split())


def found(text: str) -> dict[str, Finding]:
    return {one.check: one for one in judge.judge(job.read([text.encode()])) if not one.ok}


def old(rank: int, host: str, *more: str, done: bool = True) -> str:
    """A rank of two that lists interfaces for the bootstrap."""
    who = f"{host}:{40 + rank}:{50 + rank} [0] NCCL INFO "
    said = [f"NET/Socket : Using [0]ens5:10.9.0.{rank + 1}<0>", *more]
    said += [f"comm 0x{rank + 1} rank {rank} nranks 2 cudaDev 0 nvmlDev 0 - Init COMPLETE"] if done else []
    return "".join(f"{who}{text}\n" for text in said)


VERSION = "NCCL version 2.19.3+cuda12.2\n"
OFI = "NET/OFI Selected Provider is efa"


def test_interfaces_beside_a_plugin_that_speaks_are_no_network() -> None:
    said = printed(VERSION + old(0, "n1", OFI) + old(1, "n2", OFI))
    assert "network: Socket" not in said


def test_elsewhere_is_a_host_that_has_nothing_but_the_other_network() -> None:
    def using(rank: int, host: str, *names: str) -> str:
        who = f"{host}:{rank}:9 [0] NCCL INFO "
        begin = f"ncclCommInitRank comm 0x7 rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId 1a0 commId 0x5 - Init START"
        return "".join(f"{who}{text}\n" for text in (*(f"Using network {name}" for name in names), begin))

    both = found(using(0, "n1", "Socket", "IB") + using(1, "n2", "Socket"))["nccl_log.network"].have or ""
    assert "on n1, n2; IB is named, too" in both
    apart = found(using(0, "n1", "IB") + using(1, "n2", "Socket"))["nccl_log.network"].have or ""
    assert "on n2; IB elsewhere" in apart


ERROR = "NET/OFI No NIC info for dev 3", "include/net.h:31 -> 2", "CUDA Dev 0[0], Odd NIC distance :  SYS"


def test_an_error_after_which_all_ranks_got_ready_belongs_to_the_line_before_it() -> None:
    text = VERSION + old(0, "n1", *ERROR) + old(1, "n2", *ERROR)
    assert "nccl_log.warning" not in found(text)
    said = printed(text)
    assert "NCCL continued (Init COMPLETE comes after it): no failure: include/net.h:31 -> 2, 2 times" in said
    assert 'it belongs to the line before it, "NET/OFI No NIC info for dev 3"; after it the same thread prints' in said


def test_an_error_is_a_failure_where_a_rank_did_not_get_ready_or_the_program_got_it() -> None:
    not_ready = VERSION + old(0, "n1", *ERROR) + old(1, "n2", *ERROR, done=False)
    assert found(not_ready)["nccl_log.warning"].severity == "critical"
    handed_on = VERSION + old(0, "n1", *ERROR[:2], "init.cc:640 -> 2") + old(1, "n2")
    assert found(handed_on)["nccl_log.warning"].severity == "critical"


def late(rank: int, *more: str) -> str:
    """A rank of two of 2.29, whose connections are made when they are needed."""
    who = f"n{rank + 1}:7:8 [0] NCCL "
    comm = f"comm 0x7 rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId 80 commId 0x5 - Init "
    said = [
        f"INFO ncclCommInitRank {comm}START",
        f"INFO comm 0x7 rank {rank} nRanks 2 nNodes 2 localRanks 1 localRank 0",
    ]
    said[1] += " MNNVL 0"
    said.append(f"INFO ncclCommInitRank {comm}COMPLETE")
    return "".join(f"{who}{text}\n" for text in [*said, *more])


ASKED = "INFO Channel 00/1 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA"


def test_a_connection_that_failed_after_the_initialisation_was_not_made() -> None:
    text = late(0, ASKED, "INFO transport/net.cc:812 -> 6", "INFO transport.cc:190 -> 6", "INFO group.cc:120 -> 6")
    said = printed(text)
    assert "to be connected (calls that connect ranks failed: some of these were not made)" in said
    assert "[nccl_log.gdr]" not in said
    moved = printed(late(0, ASKED, "INFO transport/net.cc:1190 -> 6", "INFO proxy.cc:880 -> 6 [Progress Thread]"))
    assert "connected, from rank to rank: 0->1" in moved
    assert "on all 1 connections that the log shows [nccl_log.gdr]" in moved


def test_that_both_ways_within_a_host_are_off_is_not_called_without_effect_of_unseen_ranks() -> None:
    off = "INFO NCCL_P2P_DISABLE set by environment to 1", "INFO NCCL_SHM_DISABLE set by environment to 1"
    said = printed(late(0, *off))
    assert "without effect here" not in said
    assert "NCCL then counts ranks of one host as separate nodes, which use the network" in said
    assert "without effect here: NCCL_P2P_DISABLE, NCCL_SHM_DISABLE" in printed(late(0, *off) + late(1, *off))


def test_that_no_rank_got_ready_is_said_where_no_line_begins_a_communicator() -> None:
    who = "n1:7:8 [0] "
    text = f"{who}NCCL INFO Using network Socket\n{who}include/shm.h:30 NCCL WARN "
    text += "Call to posix_fallocate failed : No space left on device\n"
    assert "that any rank got ready (Init COMPLETE)" in printed(text)


def test_threads_of_one_process_sign_with_their_gpus() -> None:
    listed = "".join(
        f"#  Rank  {gpu} Group  0 Pid     77 on n1 device  {gpu} [0x0{gpu}] NVIDIA Odd\n" for gpu in range(3)
    )
    lines = "".join(f"n1:77:{80 + gpu} [{gpu}] NCCL INFO Channel 00 : {gpu} -> 0\n" for gpu in (2, 0, 1))
    said = printed("# nThread 3 nGpus 1 minBytes 8 maxBytes 8\n# Using devices\n" + listed + lines)
    assert "rank 2 (line 6), rank 0 (line 7), rank 1 (line 8)" in said
    assert "no line is signed" not in said


def test_an_address_that_is_none_on_a_data_connection_may_be_a_send_outside_of_a_group() -> None:
    text = (
        "n1:7:9 [0] misc/socket.cc:501 NCCL WARN ncclSocketInit: connecting to address  with family 3 is neither"
        " AF_INET(2) nor AF_INET6(10)\nn1:7:9 [0] NCCL INFO transport/net_socket.cc:380 -> 3\n"
    )
    said = printed(late(0, ASKED) + text)
    assert "sends and receives of the ranks that do not fit each other, as outside of a group" in said


def test_a_segment_without_a_name_is_no_end_of_its_maker() -> None:
    text = "n1:7:8 [0] misc/shmutils.cc:130 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl- "
    have = found(f"{text}(size 0), error: No such file or directory (2)\n")["nccl_log.shared_memory"]
    assert "names no segment there" in have.why
    assert "usually that process has ended" not in have.why


def test_a_speed_of_pcie_that_nccl_does_not_know_makes_it_old() -> None:
    words = "KV Convert to int : could not find value of '%s' in dictionary, falling back to 60"
    said = printed(late(0, f"INFO {words % '32.0 GT/s PCIe'}", f"INFO {words % '0x0604ff'}"))
    assert "this NCCL does not know the PCIe speed '32.0 GT/s PCIe', and falls back to 60" in said
    assert "harmless: no PCI speed or class '0x0604ff'" in said


def test_marks_below_a_line_of_source_are_no_report() -> None:
    said = printed(late(0) + "(Worker pid=9) ERROR 02-03 04:05:06 [odd.py:7]        ^^^^^^^^^^^^^\n")
    assert "what the log itself says" not in said


LONE = "n1:{0}:9{0} [{1}] NCCL INFO transport/net_ib.cc:652 -> 2\n"


def test_a_call_that_returned_an_error_alone_deep_within_nccl_is_no_failure_by_itself() -> None:
    network = "n1:{0}:9{0} [{1}] NCCL INFO Using network IB\n"
    both = "".join(line.format(pid, pid) for pid in (1, 2) for line in (LONE, network))
    assert found(both)["nccl_log.warning"].severity == "minor"
    for around in ("init.cc:1501 -> 2", "transport/net_ib.cc:700 -> 2"):
        returned = both + LONE.format(1, 1).replace("transport/net_ib.cc:652 -> 2", around)
        assert found(returned)["nccl_log.warning"].severity == "critical"
