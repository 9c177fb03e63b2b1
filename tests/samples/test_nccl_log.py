"""What real NCCL_DEBUG logs say, against expectations that were made by hand from the logs."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import events, job, jobs, judge
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.transport import Path as Way
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.transport import transport


def read(path: Path) -> tuple[job.Log, jobs.Job, dict[str, Finding]]:
    log = job.read([path.read_bytes()])
    [one] = jobs.split(log)
    return log, one, {finding.id: finding for finding in judge.judge(log)}


def states(findings: dict[str, Finding]) -> dict[str, str]:
    return {f"{finding.check} {finding.subject}": finding.state for finding in findings.values()}


def test_two_host_ids_over_sockets(samples: Path) -> None:
    log, one, findings = read(samples / "h200x8" / "torch_two_hostids_socket_nccl_debug_info.txt")
    assert (log.lines, log.info, log.warnings, log.failures, log.beyond) == (346, 339, 0, [], {})
    assert (len(one.processes), one.nodes, one.versions, one.networks) == (8, 2, ("2.28.9",), {"Socket"})
    assert one.world is not None
    assert (one.world.key, one.world.ranks, one.world.done) == ("99f977376e9f8390", 8, set(range(8)))
    assert {process.key[1]: one.ranks_of(process) for process in one.processes} == {3401 + n: [n] for n in range(8)}
    assert {process.node for process in one.processes} == {"node0", "node1"}
    for process in one.processes:
        assert (process.host, process.cuda, process.driver, process.oob) == ("vm", "13.0", 13000, "eth0")
        assert process.bootstrap == events.Bootstrap("eth0", "192.0.2.2")
        assert (process.interfaces, process.devices, process.absent) == ({"eth0": "192.0.2.2"}, {}, {"device"})
        assert process.variables == {
            "NCCL_HOSTID": "node0" if (process.key[1] or 0) < 3405 else "node1",
            "NCCL_NVLS_ENABLE": "0",
        }
        assert {(plugin.kind, plugin.state, plugin.name) for plugin in process.plugins} == {
            ("NET", "missing", "libnccl-net.so"),
            ("NET", "failed", "IB"),
            ("NET", "assigned", "Socket"),
            ("TUNER", "missing", "libnccl-tuner.so"),
        }
        assert (process.channels, process.nvls_channels, process.rings_gdr, process.ended) == (2, 0, False, "Destroy")
        assert {way[1] for way in process.ways if way[0] == "p2p"} == {"CUMEM"}
    assert sum(count for process in one.processes for way, count in process.ways.items() if way[0] == "p2p") == 28
    assert sum(count for process in one.processes for way, count in process.ways.items() if way[0] == "net") == 16
    proof = transport(one)
    assert (proof.proven, proof.rdma, proof.gdr, proof.networks) == (True, False, False, ("Socket",))
    assert {rank.rank for rank in proof.ranks} == {0, 1, 4, 5}
    assert {rank.rank: rank.paths for rank in proof.ranks} == {
        # Ring and tree, both channels; 0 -> 4 and back are the tree's.
        0: (Way("Socket", "eth0", False, False, False, 4), Way("Socket", "eth0", False, False, True, 2)),
        1: (Way("Socket", "eth0", False, False, True, 2),),
        4: (Way("Socket", "eth0", False, False, False, 4), Way("Socket", "eth0", False, False, True, 2)),
        5: (Way("Socket", "eth0", False, False, True, 2),),
    }
    assert states(findings) == {
        "nccl_log.network job": "drift",
        "nccl_conf.lint.advice job NCCL_NVLS_ENABLE": "drift",
        "nccl_log.interface job": "ok",
        "nccl_log.ranks job": "ok",
        "nccl_log.version job": "ok",
        "nccl_log.intra_node job": "ok",
    }
    have = findings["nccl_log.network[live]@job"].have or ""
    # No RDMA device is a fact; whether the node has none, the log does not tell.
    assert (
        "over 2 nodes, which NCCL_HOSTID makes of fewer hosts; possible causes: no RDMA device with an active" in have
    )


def test_one_node_that_is_cut_off_before_it_is_complete(samples: Path) -> None:
    """The capture ends with its line 700."""
    log, one, findings = read(samples / "h200x8" / "all_reduce_nccl_debug_info.txt")
    assert (log.lines, log.info, log.warnings, log.tests) == (700, 686, 0, 2)
    assert (len(one.processes), one.nodes, one.versions, one.networks) == (1, 1, ("2.28.9",), {"Socket"})
    assert one.world is not None
    assert (one.world.key, one.world.ranks, sorted(one.world.began), one.world.done, one.world.local_ranks) == (
        "d725f38b19abe55f",
        8,
        list(range(8)),
        set(),
        8,
    )
    [process] = one.processes
    assert (process.host, process.key[1], process.absent) == ("vm", 2549, {"device"})
    assert process.variables == {
        "NCCL_TOPO_DUMP_FILE": "/var/tmp/nccl_topo.xml",
        "NCCL_GRAPH_DUMP_FILE": "/var/tmp/nccl_graph.xml",
        "NCCL_NVLS_ENABLE": "0",
    }
    assert process.system == 370.8
    assert process.nvlinks == {f"0-{bus}": 370.8 for bus in ("60", "70", "80", "90", "a0", "b0", "c0", "d0")}
    assert process.graphs == {events.Graph(4, 12, 30.0, "NVL"), events.Graph(1, 12, 30.0, "NVL")}
    assert process.gdr_devices == {}  # those of NET/Socket say nothing
    assert states(findings) == {
        "nccl_log.ranks job communicator d725f38b19abe55f": "unknown",
        "nccl_conf.lint.advice job NCCL_NVLS_ENABLE": "drift",
        "nccl_log.network job": "ok",  # sockets, and nothing goes over them
        "nccl_log.version job": "ok",
        "nccl_log.nvlink job vm": "ok",
    }


def test_one_gpu_with_all_subsystems(samples: Path) -> None:
    log, one, findings = read(samples / "h200x1" / "one-gpu-debug-all.txt")
    assert (log.lines, log.info, log.warnings) == (553, 536, 0)
    assert (len(one.processes), one.nodes, one.versions, one.networks) == (1, 1, ("2.28.9",), {"Socket"})
    assert one.world is not None
    assert (one.world.key, one.world.ranks, one.world.done) == ("50475eccfbee3a28", 1, {0})
    [process] = one.processes
    assert (process.channels, process.nvls_channels, process.ways, process.ended) == (64, 0, {}, "Destroy")
    assert states(findings) == {"nccl_log.network job": "ok", "nccl_log.ranks job": "ok", "nccl_log.version job": "ok"}


def test_gpudirect_disabled_by_the_hca(samples: Path) -> None:
    log, one, findings = read(samples / "nccl-log" / "gdr-disabled-nccl1537.txt")
    assert (log.lines, log.info) == (6, 6)
    assert (one.nodes, one.versions, one.networks) == (None, (), {"IB"})
    [process] = one.processes
    assert process.devices == {n: events.Device(n, f"mlx5_{n}", 1, "RoCE") for n in (0, 1)}
    assert (process.oob, process.gdr_devices) == ("primaryip", {"mlx5_0": False, "mlx5_1": False})
    assert states(findings) == {
        "nccl_log.gdr job mlx5_0": "drift",
        "nccl_log.gdr job mlx5_1": "drift",
        "nccl_log.ranks job communicator 65e0bd6ee7449db4": "unknown",  # an excerpt of one rank of 16
        "nccl_log.level job": "unknown",
        "nccl_log.network job": "ok",
        "nccl_log.interface job": "ok",
    }
    assert "cause: NCCL finds neither nvidia_peermem nor DMA-BUF" in (
        findings["nccl_log.gdr[live]@job mlx5_0"].have or ""
    )
    assert not transport(one).proven


def test_gpudirect_on_every_channel(samples: Path) -> None:
    log, one, findings = read(samples / "nccl-log" / "gdrdma-channels-azure-aks-rdma-infiniband-pr36.txt")
    assert (log.lines, log.info) == (8, 8)
    proof = transport(one)
    assert {(rank.pid, rank.rank): rank.paths for rank in proof.ranks} == {
        (523, 0): (Way("IB", "NET/IB/0", True, False, False, 2),),
        (527, 4): (Way("IB", "NET/IB/4", True, False, False, 2),),
        (529, 6): (Way("IB", "NET/IB/6", True, False, False, 2),),
        (528, 5): (Way("IB", "NET/IB/4", True, False, True, 1),),
    }
    assert one.set_to("NCCL_NET_GDR_LEVEL") == {"SYS": [one.processes[0]]}
    assert states(findings) == {
        "nccl_log.gdr job": "ok",
        "nccl_log.network job": "ok",
        "nccl_log.level job": "unknown",
    }


def test_nccl_tests_without_nccl_debug_prove_nothing(samples: Path) -> None:
    for path in (samples / "h200x8" / "all_reduce_p2p_disabled.txt", samples / "h200x8" / "all_reduce_plain.txt"):
        log, one, findings = read(path)
        assert (log.info, log.tests, one.processes) == (0, 2, ())
        [finding] = findings.values()
        assert (finding.check, finding.state) == ("nccl_log.readable", "unknown")
    for path in sorted((samples / "nccl-tests").glob("*.log")):
        # NCCL 2.8 to 2.10, with the one INFO line "Launch mode Parallel".
        log, one, findings = read(path)
        assert log.info == 1
        assert states(findings) == {"nccl_log.level job": "unknown"}


def test_other_logs_are_none_of_nccls(samples: Path) -> None:
    for path in (samples / "gpud" / "fabricmanager.log", samples / "gpud" / "kmsg.2.peermem.log"):
        _log, _one, findings = read(path)
        assert states(findings) == {"nccl_log.readable log": "unknown"}
