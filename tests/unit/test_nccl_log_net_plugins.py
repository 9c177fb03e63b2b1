# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Network plugins that are there and are not used, what they say of GPUDirect RDMA, and what a flushed queue proves."""

from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import job, jobs, judge
from ansible_collections.busbar.fabric.plugins.plugin_utils.diagnose import render

HEAD = "n1:7:8 [0] NCCL INFO "


def found(text: str) -> dict[str, Finding]:
    """Check and the begin of its text -> findings that are not ok."""
    return {finding.check: finding for finding in reversed(judge.judge(job.read([text.encode()]))) if not finding.ok}


OFI = "n1:7:8 [0] make_plugin(x**):9 NCCL WARN NET/OFI {}\n"


def test_a_plugin_that_does_not_start_is_one_finding_and_why_tcp_is_used() -> None:
    text = OFI.format("Failed to initialize rdma protocol") + OFI.format("aws-ofi-nccl initialization failed")
    text += OFI.format("Initializing plugin failed")
    text += f"{HEAD}NCCL_IB_DISABLE set by environment to 1.\n{HEAD}Using network Socket\n"
    said = found(text)
    assert "nccl_log.usage" not in said
    assert "3 times" in (said["nccl_log.net_plugin"].have or "")
    cause = "cause: the network plugin OFI did not start (line 1); NCCL_IB_DISABLE=1, so that NET/IB is switched off as"
    assert cause in (said["nccl_log.network"].have or "")
    # What it says of a request is no start.
    other = found(OFI.format("Request completed with error") + f"{HEAD}Using network Socket\n")
    assert "did not start" not in (other["nccl_log.network"].have or "")


def test_gin_that_does_not_start_is_told_where_its_plugin_was_loaded() -> None:
    failed = f"{HEAD}GIN/Plugin: Failed to initialize any GIN plugin\n"
    have = found(f"{HEAD}GIN/Plugin: Loaded gin plugin Fast_GIN (v3)\n" + failed)["nccl_log.net_plugin"].have or ""
    assert have.startswith("GIN could not be started: the plugin Fast_GIN (v3) was loaded")
    # Healthy jobs without one say so, too.
    assert "nccl_log.net_plugin" not in found(f"{HEAD}GIN/Plugin: Could not find: libnccl-gin.so\n" + failed)


def test_a_plugin_that_has_gpudirect_off_where_nccl_itself_has_it_on() -> None:
    on = f"{HEAD}NET/IB : GPU Direct RDMA (DMABUF) enabled for HCA 0 'mlx5_9'\n"
    off = f"{HEAD}NET/Swift v2 : GPU Direct RDMA Disabled for HCA 0 'mlx5_9'\n"
    way = f"{HEAD}NET/IB : Using [0]mlx5_9:1/RoCE [RO]; OOB eth0:10.0.0.1<0>\n"
    way += f"{HEAD}Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Swift v2/0\n"
    have = found(way + on + off)["nccl_log.gdr"].have or ""
    assert "cause: the plugin Swift v2 has it off, though NET/IB reports it as enabled" in have
    assert "neither nvidia_peermem nor DMA-BUF" in (found(way + off)["nccl_log.gdr"].have or "")
    assert "on mlx5_9 of n1" in have
    bare = "".join(line.replace(HEAD, "") + "\n" for line in (way + on + off).splitlines())
    assert "on mlx5_9 of a host that is not named" in (found(bare)["nccl_log.gdr"].have or "")


def completion(host: str, status: int) -> str:
    text = f"{host}:7:8 [1] transport/net_ib.cc:9 NCCL WARN NET/IB: Got completion from peer 10.0.0.9<4000> with"
    return f"{text} status={status} opcode=1 len=0 vendor err 249 (Recv) hca mlx5_1\n"


def test_a_queue_that_was_flushed_on_another_host_before_follows_from_nothing() -> None:
    def of(text: str) -> dict[str, Finding]:
        return {
            one.subject: one for one in judge.judge(job.read([text.encode()])) if one.check == "nccl_log.completion"
        }

    apart = of(completion("n1", 5) + completion("n2", 12))
    assert apart["job completion 5"].because is None
    assert "which came first is unknown" in (apart["job completion 12"].have or "")
    for text in (completion("n2", 5) + completion("n2", 12), completion("n2", 12) + completion("n1", 5)):
        same = of(text)
        assert same["job completion 5"].because == same["job completion 12"].id


def shown(text: str) -> str:
    log = job.read([text.encode()])
    return " ".join(render(log, jobs.split(log), judge.judge(log)).split())


def test_a_plugin_that_finds_no_device_is_not_used_and_nobody_is_sent_after_efa() -> None:
    none = f"{HEAD}NET/OFI No eligible providers were found\n"
    said = shown(none + f"{HEAD}Using network IB\n")
    assert "the network plugin OFI found no device that it takes (no eligible provider): it is not used" in said
    assert "that no rule has read" not in said
    two = f"{HEAD}comm 0xa rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0\n{HEAD}Using network Socket\n"
    have = found(none + two)["nccl_log.network"].have or ""
    assert "cause: the network plugin OFI is not used: it found no device that it takes" in have
    # As a warning, too.
    warned = OFI.format("No eligible providers were found")
    assert "EFA" in shown(warned)
    platform = f"{HEAD}NET/OFI Running on Default platform\n"
    for text in (none, warned):
        said = shown(platform + text + two)
        assert "fi_info -p efa" not in said
        assert "no EFA device" not in said
        assert "the plugin for libfabric runs on Default" in said
        assert "file of the topology" not in said
    assert "fi_info -p efa" in shown(f"{HEAD}NET/OFI Running on p5.48xlarge platform\n{none}{two}")


def test_a_network_plugin_that_did_not_start_is_told_and_is_no_loaded_one() -> None:
    loaded = f"{HEAD}NET/Plugin: Loaded net plugin SPCX (v10)\n{HEAD}Failed to initialize NET plugin SPCX\n"
    whole = "comm 0xa rank 0 nranks 1 cudaDev 0 busId 1b000 commId 0x1 - Init"
    end = f"{HEAD}{whole} START\n{HEAD}{whole} COMPLETE\n{HEAD}Using network IB\n"
    said = shown(loaded + end)
    assert "nothing in this log is wrong" not in said
    assert (
        "the network plugin SPCX did not start (Failed to initialize NET plugin); on n1; NCCL continues with IB" in said
    )
    assert "plugins loaded" not in said
    assert "loaded, and not started: SPCX (v10)" in said
    file = f"{HEAD}Successfully loaded external network plugin libnccl-net-spcx.so\n"
    assert "loaded, and not started: SPCX (v10), libnccl-net-spcx.so" in shown(file + loaded)
    other = f"{HEAD}NET/Plugin: Loaded net plugin UCX (v10)\n"
    assert "plugins loaded: NET UCX (v10)" in shown(other + loaded)


def test_ib_that_found_no_device_is_the_cause_of_sockets() -> None:
    two = f"{HEAD}comm 0xa rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0\n{HEAD}Using network Socket\n"
    have = found(f"{HEAD}NET/IB : No device found.\n{two}")["nccl_log.network"].have or ""
    assert "cause: NET/IB found no RDMA device with an active port; behind that, possible causes: no HCA" in have
    have = found(f"{HEAD}Failed to initialize NET plugin IB\n{two}")["nccl_log.network"].have or ""
    assert "cause: NET/IB did not start (Failed to initialize NET plugin IB)" in have
    # Sockets were asked for.
    asked = found(f"{HEAD}NCCL_NET set by environment to Socket.\n{HEAD}NET/IB : No device found.\n{two}")
    assert (asked["nccl_log.network"].have or "").endswith("cause: NCCL_NET=Socket")


def test_what_came_of_a_plugin_that_was_asked_for() -> None:
    asked = f"{HEAD}NCCL_NET_PLUGIN set by environment to ofi\n"
    two = f"{HEAD}comm 0xa rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0\n{HEAD}Using network Socket\n"
    for line, wanted in (
        ("NET/OFI No eligible providers were found", "the plugin found no device that it takes"),
        ("Failed to initialize NET plugin AWS Libfabric", "the plugin is there and did not start"),
        (
            "NET/Plugin: Could not find: ofi libnccl-net-ofi.so. Using internal network plugin.",
            "no such plugin was loaded",
        ),
    ):
        have = found(f"{asked}{HEAD}{line}\n{two}")["nccl_log.variable_effect"].have or ""
        assert have == f"NCCL_NET_PLUGIN=ofi: {wanted}" + (have.partition(wanted)[2])
