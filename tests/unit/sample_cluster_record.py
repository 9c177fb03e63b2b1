"""A record of a benchmark between nodes, with every field; test_record_file.py reads and writes it."""

from __future__ import annotations

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.plugin_utils.cluster_record import (
    Job,
    Launcher,
    LeftOut,
    Record,
    Row,
    Scaling,
)

GIB = 1 << 30
JOB = Job(
    name="all_reduce-1G",
    scope="cluster",
    hosts=("n1", "n2"),
    ranks=16,
    collective="all_reduce",
    bar=340.0,
    bar_source="derived: 0.90 of the prediction",
    prediction=370.8,
    rule="eight rails",
    min_bytes=GIB // 2,
    max_bytes=GIB,
    rows=(
        Row(size=GIB // 2, time_us=2900.0, algbw=185.0, busbw=347.1, time_p99_us=2950.0, spread=0.01, repeats=3),
        Row(size=GIB, time_us=5800.0, algbw=186.0, busbw=349.2, time_p99_us=5900.0, spread=0.02, repeats=3),
    ),
    busbw=349.2,
    spread=0.02,
    transport={
        "networks": ["IB"],
        "nodes": 2,
        "expected": 16,
        "proven": True,
        "missing": [],
        "gdr": True,
        "hosts": {"n1": {"ranks": 8, "devices": ["mlx5_0"], "without_gdr": [], "found": ["mlx5_0", "mlx5_1"]}},
    },
    rails={"n1": {"mlx5_0": {"sent": 10**9, "received": 10**9}}},
    versions={"nccl": "2.28.3"},
)
FINDING = Finding("nccl_perf.busbw", "all_reduce 1G", "drift", "major", "340", "300", "log", "why", fix="mend it")
RECORD = Record(
    simulated=True,
    begun=1795000000.0,
    finished=1795000600.5,
    scope="cluster",
    launcher=Launcher(kind="mpirun", version="4.1.4"),
    asked=("n1", "n2", "n3"),
    left_out=(LeftOut(host="n3", reason="busy: a job"),),
    jobs=(JOB,),
    scaling=(Scaling(collective="all_reduce", nodes=2, size=GIB, busbw=349.2, prediction=370.8, efficiency=0.97),),
    findings=(FINDING,),
    passed=("nccl_perf.ran[live]@all_reduce 1G",),
)
