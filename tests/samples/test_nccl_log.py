"""What real NCCL_DEBUG logs say, field by field against expectations that were made by hand from the logs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log import events, job, jobs, judge
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.process import Way as Kind
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.transport import Path as Way
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_log.transport import transport

# What every one of these processes says of its environment: a VM with one interface and no RDMA device.
IN_THE_VM = {
    "versions": {"2.28.9"},
    "cuda": "13.0",
    "driver": 13000,
    "networks": {"Socket"},
    "interfaces": {"eth0": "192.0.2.2"},
    "oob": "eth0",
    "oob_address": "192.0.2.2",
    "bootstrap": events.Bootstrap("eth0", "192.0.2.2"),
    "absent": {"device"},
    "plugins": {
        events.Plugin("ENV", "missing", "libnccl-env.so"),
        events.Plugin("NET", "missing", "libnccl-net.so"),
        events.Plugin("NET", "failed", "IB"),
        events.Plugin("NET", "assigned", "Socket"),
        events.Plugin("PROFILER", "missing", "libnccl-profiler.so"),
        events.Plugin("TUNER", "missing", "libnccl-tuner.so"),
    },
}


def said(one: object) -> dict[str, Any]:
    """Every field that holds something: what is not expected shows as well as what is missing."""
    names = [*vars(one), *type(one).__annotations__]
    apart = {
        "forms",
        "met",
        "gpus",
        "notes",
        "nvswitch",
        "nvls_said",
        "topology",
        "p2p",
        "p2p_per_peer",
        "init_seconds",
        "init_parts",
    }
    return {name: getattr(one, name) for name in names if getattr(one, name) and name not in apart}


def read(path: Path) -> tuple[job.Log, jobs.Job, dict[str, Finding]]:
    log = job.read([path.read_bytes()])
    [one] = jobs.split(log)
    return log, one, {finding.id: finding for finding in judge.judge(log)}


def counted(log: job.Log) -> dict[str, Any]:
    apart = (
        "sources",
        "begins",
        "processes",
        "communicators",
        "table",
        "ras",
        "quotes",
        "programs",
        "trace",
        "unread",
        "matrix",
        "stacks",
        "results",
        "pairs",
        "last_done",
        "small",
    )
    return {name: value for name, value in said(log).items() if name not in apart}


def states(findings: dict[str, Finding]) -> dict[str, str]:
    return {f"{finding.check} {finding.subject}": finding.state for finding in findings.values()}


P2P: Kind = ("p2p", "CUMEM", None, False, False, None)
RECEIVES: Kind = ("net", "Socket", 0, False, False, False)
SENDS: Kind = ("net", "Socket", 0, False, False, True)


# rank: line of the first fact, communicator, PCI bus, connections, pairs over the network
TORCH: dict[int, tuple[int, str, str, dict[Kind, int], set[tuple[int, int]]]] = {
    0: (
        5,
        "0x1038b5d0",
        "60",
        {P2P: 4, RECEIVES: 4, SENDS: 2},
        {(5, 0), (4, 0), (0, 4)},
    ),
    1: (19, "0x24ed6bc0", "70", {P2P: 4, SENDS: 2}, {(1, 4)}),
    2: (13, "0x27d9e350", "80", {P2P: 4}, set()),
    3: (12, "0x2a60b370", "90", {P2P: 2}, set()),
    4: (
        17,
        "0x435f4f30",
        "a0",
        {P2P: 4, RECEIVES: 4, SENDS: 2},
        {(1, 4), (0, 4), (4, 0)},
    ),
    5: (40, "0x2082f430", "b0", {P2P: 4, SENDS: 2}, {(5, 0)}),
    6: (9, "0x1e53e280", "c0", {P2P: 4}, set()),
    7: (11, "0x3ac56460", "d0", {P2P: 2}, set()),
}


def test_two_host_ids_over_sockets(samples: Path) -> None:
    log, one, findings = read(samples / "h200x8" / "torch_two_hostids_socket_nccl_debug_info.txt")
    assert counted(log) == {"lines": 346, "info": 339}
    assert {key[1]: said(process) for key, process in log.processes.items()} == {
        3401 + rank: {
            **IN_THE_VM,
            "key": ("vm", 3401 + rank, None),
            "order": order,
            "variables": {"NCCL_HOSTID": "node0" if rank < 4 else "node1", "NCCL_NVLS_ENABLE": "0"},
            "channels": 2,
            "rings": 1,
            "trees": True,
            "pointers": {comm: "99f977376e9f8390"},
            "buses": {rank: bus},
            "connections": {rank: ways},
            "ended": "Destroy",
            **({"crossed": crossed} if crossed else {}),
        }
        for rank, (order, comm, bus, ways, crossed) in TORCH.items()
    }
    # "Connected all rings, use ring PXN 0 GDR 0" is not the same as no such line.
    assert {process.rings_gdr for process in one.processes} == {False}
    assert {process.node for process in one.processes} == {"node0", "node1"}
    [communicator] = log.communicators.values()
    assert said(communicator) == {
        "key": "99f977376e9f8390",
        "gone": {"Destroy": set(range(8))},
        "ranks": 8,
        "began": {rank: log.processes["vm", 3401 + rank, None] for rank in range(8)},
        "done": set(range(8)),
        "nodes": 2,
        "local_ranks": 4,
    }
    assert (one.nodes, one.versions, one.networks, one.world) == (2, ("2.28.9",), {"Socket"}, communicator)
    proof = transport(one)
    assert (proof.proven, proof.rdma, proof.gdr, proof.networks) == (True, False, False, ("Socket",))
    assert (proof.nodes, proof.expected, proof.missing) == (2, 8, ())
    assert {(rank.host, rank.pid, rank.rank, rank.devices): rank.paths for rank in proof.ranks} == {
        # Ring and tree, both channels; 0 -> 4 and back are the tree's.
        ("vm", 3401, 0, ("eth0",)): (
            Way("Socket", "eth0", False, False, False, 4),
            Way("Socket", "eth0", False, False, True, 2),
        ),
        ("vm", 3402, 1, ("eth0",)): (Way("Socket", "eth0", False, False, True, 2),),
        ("vm", 3405, 4, ("eth0",)): (
            Way("Socket", "eth0", False, False, False, 4),
            Way("Socket", "eth0", False, False, True, 2),
        ),
        ("vm", 3406, 5, ("eth0",)): (Way("Socket", "eth0", False, False, True, 2),),
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
    assert "over 2 nodes, which NCCL_HOSTID makes of fewer hosts; cause: NET/IB found no RDMA device" in have


def test_one_node_that_is_cut_off_before_it_is_complete(samples: Path) -> None:
    """The capture ends with its line 700; INIT and GRAPH were asked for, BOOTSTRAP was not."""
    log, one, findings = read(samples / "h200x8" / "all_reduce_nccl_debug_info.txt")
    assert counted(log) == {"lines": 700, "info": 686, "tests": 2, "libraries": {"2.28.9"}}
    [process] = one.processes
    buses = ("60", "70", "80", "90", "a0", "b0", "c0", "d0")
    pointers = ("2e1e60", "3ea4c0", "4f2b20", "5fb180", "7037e0", "8106f0", "91f9e0", "a2ecd0")
    expected: dict[str, Any] = {
        **IN_THE_VM,
        "key": ("vm", 2549, None),
        "order": 15,
        "variables": {
            "NCCL_TOPO_DUMP_FILE": "/var/tmp/nccl_topo.xml",
            "NCCL_GRAPH_DUMP_FILE": "/var/tmp/nccl_graph.xml",
            "NCCL_NVLS_ENABLE": "0",
        },
        "plugins": {plugin for plugin in IN_THE_VM["plugins"] if plugin.kind in ("NET", "ENV")},  # type: ignore[attr-defined]
        "graphs": {events.Graph(4, 12, 30.0, "NVL"), events.Graph(1, 12, 30.0, "NVL")},
        "system": 370.8,
        "nvlinks": {f"0-{bus}": 370.8 for bus in buses},
        "nics": {"0-0": 1.2},
        "gpu": "0-d0",
        "pointers": {f"0x55817e{pointer}": "d725f38b19abe55f" for pointer in pointers},
        "buses": dict(enumerate(buses)),
        # Of all but the rank that begins first.
        "cuda_devices": {rank: rank for rank in range(8) if rank != 5},
        # gdr_devices: "GPU Direct RDMA Disabled for HCA 0 'eth0'" of NET/Socket says nothing.
    }
    del expected["bootstrap"]
    assert said(process) == expected
    [communicator] = log.communicators.values()
    assert said(communicator) == {
        "key": "d725f38b19abe55f",
        "ranks": 8,
        "began": dict.fromkeys(range(8), process),
        "nodes": 1,
        "local_ranks": 8,
    }
    assert (one.nodes, one.versions, one.networks, one.world) == (1, ("2.28.9",), {"Socket"}, communicator)
    assert transport(one).gdr is None
    assert states(findings) == {
        "nccl_log.ranks job communicator d725f38b19abe55f": "unknown",
        "nccl_conf.lint.advice job NCCL_NVLS_ENABLE": "drift",
        "nccl_log.network job": "ok",  # sockets, and nothing goes over them
        "nccl_log.version job": "ok",
        "nccl_log.nvlink job vm": "ok",
    }


def test_one_gpu_with_all_subsystems(samples: Path) -> None:
    log, one, findings = read(samples / "h200x1" / "one-gpu-debug-all.txt")
    assert counted(log) == {"lines": 553, "info": 536, "tests": 2, "libraries": {"2.28.9"}}
    [process] = one.processes
    assert said(process) == {
        **IN_THE_VM,
        "key": ("vm", 1191, None),
        "nics": {"0-0": 1.2},
        "order": 7,
        "channels": 64,
        "graphs": {events.Graph(4, 32, 60.0, "LOC"), events.Graph(3, 32, 60.0, "LOC")},
        "system": 5000.0,
        "gpu": "0-60",
        "pointers": {"0x55ed0ffd77b0": "50475eccfbee3a28"},
        "buses": {0: "60"},
        "ended": "Destroy",
    }
    [communicator] = log.communicators.values()
    assert said(communicator) == {
        "key": "50475eccfbee3a28",
        "gone": {"Destroy": {0}},
        "ranks": 1,
        "began": {0: process},
        "done": {0},
        "nodes": 1,
        "local_ranks": 1,
    }
    assert (one.nodes, one.versions, one.networks, one.world) == (1, ("2.28.9",), {"Socket"}, communicator)
    assert states(findings) == {"nccl_log.network job": "ok", "nccl_log.ranks job": "ok", "nccl_log.version job": "ok"}


def test_gpudirect_disabled_by_the_hca(samples: Path) -> None:
    log, one, findings = read(samples / "nccl-log" / "gdr-disabled-nccl1537.txt")
    assert counted(log) == {"lines": 6, "info": 6}
    [process] = one.processes
    assert said(process) == {
        "key": ("hostname1", 25668, None),
        "order": 1,
        "networks": {"IB"},
        "devices": {n: events.Device(n, f"mlx5_{n}", 1, "RoCE") for n in (0, 1)},
        "oob": "primaryip",
        "oob_address": "10.10.10.10",
        "gdr_devices": {"mlx5_0": False, "mlx5_1": False},
        "pointers": {"0x55cc8aa86c70": "65e0bd6ee7449db4"},
        "buses": {0: "1c000"},
    }
    [communicator] = log.communicators.values()
    assert said(communicator) == {"key": "65e0bd6ee7449db4", "ranks": 16, "began": {0: process}}
    assert (one.nodes, one.versions, one.networks) == (None, (), {"IB"})
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
    assert [one.text for one in log.unread.kept] == ["Using non-device net plugin version 0"]
    assert not transport(one).proven


def test_gpudirect_on_every_channel(samples: Path) -> None:
    log, one, findings = read(samples / "nccl-log" / "gdrdma-channels-azure-aks-rdma-infiniband-pr36.txt")
    assert counted(log) == {"lines": 8, "info": 8}
    assert [said(process) for process in log.processes.values()] == [
        {
            "key": ("leader-h2nng", pid, None),
            "order": order,
            "connections": {rank: {("net", "IB", device, True, False, sends): channels}},
            "crossed": {pair},
            **({"variables": {"NCCL_NET_GDR_LEVEL": "SYS"}} if pid == 523 else {}),
        }
        for pid, order, device, rank, sends, channels, pair in (
            (523, 1, 0, 0, False, 2, (9, 0)),
            (527, 4, 4, 4, False, 2, (13, 4)),
            (529, 5, 6, 6, False, 2, (15, 6)),
            (528, 8, 4, 5, True, 1, (5, 12)),
        )
    ]
    assert (log.communicators, one.world, one.nodes, one.networks) == ({}, None, None, {"IB"})
    proof = transport(one)
    assert {(rank.pid, rank.rank): rank.paths for rank in proof.ranks} == {
        (523, 0): (Way("IB", "NET/IB/0", True, False, False, 2),),
        (527, 4): (Way("IB", "NET/IB/4", True, False, False, 2),),
        (529, 6): (Way("IB", "NET/IB/6", True, False, False, 2),),
        (528, 5): (Way("IB", "NET/IB/4", True, False, True, 1),),
    }
    assert states(findings) == {
        "nccl_log.gdr job": "ok",
        "nccl_log.network job": "ok",
        "nccl_log.level job": "unknown",
    }


@pytest.mark.parametrize("name", ["all_reduce_p2p_disabled", "all_reduce_plain", "all_reduce_min_bw_failed"])
def test_nccl_tests_without_nccl_debug_prove_nothing_but_the_library(samples: Path, name: str) -> None:
    path = samples / "h200x8" / f"{name}.txt"
    log, one, findings = read(path)
    lines = path.read_bytes().count(b"\n")
    assert counted(log) == {"lines": lines, "tests": 2, "libraries": {"2.28.9"}}
    assert (one.processes, one.versions) == ((), ("2.28.9",))
    assert states(findings) == {"nccl_log.readable log": "unknown", "nccl_log.version job": "ok"}


def test_nccl_tests_of_old_releases(samples: Path) -> None:
    """NCCL 2.8 to 2.10, with the one INFO line "Launch mode Parallel"; no line names the release."""
    for path in sorted((samples / "nccl-tests").glob("*.log")):
        log, _one, findings = read(path)
        assert counted(log) == {"lines": path.read_bytes().count(b"\n"), "info": 1, "tests": 1}
        assert states(findings) == {"nccl_log.level job": "unknown"}


def test_other_logs_are_none_of_nccls(samples: Path) -> None:
    for path in (samples / "gpud" / "fabricmanager.log", samples / "gpud" / "kmsg.2.peermem.log"):
        _log, _one, findings = read(path)
        # Errors in them are quoted, and nothing is concluded.
        assert states(findings) == {"nccl_log.program job program": "unknown", "nccl_log.readable log": "unknown"}


# Case -> the failure that its log reports.
STALLS: dict[str, set[str]] = {
    "healthy": set(),
    "slow": set(),
    "sleep": set(),
    "stop": {"nccl_log.watchdog"},
    "uneven": {"nccl_log.watchdog"},
    "order": {"nccl_log.ranks"},
}


@pytest.mark.parametrize("case", STALLS)
def test_a_job_that_stalls_fails_and_one_that_is_slow_does_not(samples: Path, case: str) -> None:
    log = job.read([(samples / "h100x2-stall" / case / "log.txt").read_bytes()])
    bad = [one for one in judge.judge(log) if not one.ok and one.severity == "critical" and one.because is None]
    assert {one.check for one in bad[:1]} == STALLS[case]


def test_every_captured_log_of_nccl_is_read_here(samples: Path) -> None:
    """A capture that is added to the samples waits here for somebody who reads it by hand."""
    found = [path for path in samples.rglob("*") if path.suffix in (".log", ".txt") and b"NCCL" in path.read_bytes()]
    assert {str(path.relative_to(samples)) for path in found} == {
        *(f"h100x2-stall/{case}/log.txt" for case in STALLS),
        *(f"h100x2-stall/{case}/ras.txt" for case in ("healthy", "slow", "sleep", "uneven")),  # test_ras.py
        "h200x1/one-gpu-debug-all.txt",
        "h200x1/ras-text.txt",  # tests/samples/test_ras.py
        "h200x8/all_reduce_nccl_debug_info.txt",
        "h200x8/torch_two_hostids_socket_nccl_debug_info.txt",
        "nccl-log/gdr-disabled-nccl1537.txt",
        "nccl-log/gdrdma-channels-azure-aks-rdma-infiniband-pr36.txt",
        "nccl-tests/superbench-nccl_allgather.log",
        "nccl-tests/superbench-nccl_allreduce.log",
    }
