"""The benchmark on real GPUs, from a build to a hung run. In the order in which they stand; each prints what it saw."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from pathlib import Path

from tests.trees import tool

from .conftest import SECRET, Play, Show, Site

KEEP = Path("/var/lib/busbar")
WRAPPER = """\
#!/bin/sh
# Rank 1 stops for good in the middle of a collective: the others wait for it for ever.
if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then
    setsid /opt/nccl-tests/all_reduce_perf "$@" & sleep 12; kill -STOP $!; wait
else
    exec /opt/nccl-tests/all_reduce_perf "$@"
fi
"""


def table(run: Play) -> str:
    """What a person reads: from the benchmark's table on, without Ansible's own lines."""
    lines = [
        line for line in run.out.splitlines() if line and not line.startswith(("TASK", "PLAY", "ok:", "skipping:"))
    ]
    start = next((n for n, line in enumerate(lines) if line.startswith(("HOSTS ", "BENCHMARK"))), 0)
    return "\n".join(lines[start:])


def test_without_a_bar_the_figure_is_shown_and_not_believed(site: Site, show: Show) -> None:
    shutil.rmtree(KEEP, ignore_errors=True)
    shutil.rmtree("/opt/nccl-tests", ignore_errors=True)
    run = site.play(nccl_benchmark_collectives=["all_reduce"])
    show("\n== the first run: builds nccl-tests, and there is no bar for this platform\n" + table(run))
    assert run.rc == 2
    assert run.checks == {"nccl_benchmark.bar"}


def test_all_collectives_clear_their_bars(site: Site, show: Show) -> None:
    shutil.copy(site.folder / "bars.yml", site.folder / "inventory" / "bars.yml")
    run = site.play(busbar_model_parameters="7B")
    show("\n== every collective, and a model of 7B parameters\n" + table(run))
    assert run.rc == 0, run.out
    latest = site.folder / "results" / "latest"
    data = json.loads((latest / "node01.json").read_text())
    assert len(data["runs"]) == 10
    assert not data["simulated"]


def test_what_has_just_been_measured_stands(site: Site, show: Show) -> None:
    run = site.play(busbar_model_parameters="7B")
    show("\n== site.yml again\n" + table(run))
    assert run.rc == 0, run.out
    assert "; 0 measured now, 10 stored results stand" in run.out


def test_check_mode_runs_nothing_and_judges_what_is_stored(site: Site, show: Show) -> None:
    before = sorted(KEEP.rglob("*"))
    run = site.play("--check", busbar_model_parameters="7B")
    show("\n== --check\n" + table(run))
    assert run.rc == 0, run.out
    assert sorted(KEEP.rglob("*")) == before


def test_sockets_in_place_of_nvlink_are_found(site: Site, show: Show) -> None:
    run = site.play(
        nccl_benchmark_collectives=["all_reduce"],
        nccl_benchmark_min_bytes="64M",
        nccl_benchmark_max_bytes="64M",
        nccl_benchmark_environment={"NCCL_NVLS_ENABLE": "0", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
    )
    show("\n== NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1\n" + table(run))
    assert run.rc == 2
    assert run.checks == {"nccl_perf.busbw"}


def test_a_hung_run_is_ended_with_every_process(site: Site, show: Show, tmp_path: Path) -> None:
    tool(tmp_path, "all_reduce_perf", WRAPPER)
    result = site.module(
        "nccl_perf",
        binary=str(tmp_path / "all_reduce_perf"),
        launch={"kind": "mpirun", "hosts": [socket.gethostname()], "per_node": 2},
        min_bytes="1M",
        max_bytes="1M",
        iterations=1000000,
        timeout=25,
        # What mpirun itself needs here, beside ours: it looks for ssh, even for one host.
        environment={"NCCL_NVLS_ENABLE": "0", "OMPI_MCA_plm": "isolated"},
        result_directory=str(tmp_path / "hung"),
    )
    states = {finding["check"]: f"{finding['state']}: {finding['have']}" for finding in result["findings"]}
    show("\n== a rank that stops for ever\n" + "\n".join(f"{check:20} {said}" for check, said in states.items()))
    assert "no end within 25 s" in states["nccl_perf.ran"]
    left = subprocess.run(["pgrep", "-fl", "all_reduce_perf"], capture_output=True, text=True, check=False).stdout
    query = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    on_gpus = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    show(f"processes left: {left.split() or 'none'}; on the GPUs: {on_gpus.split() or 'none'}")
    assert left == ""
    assert on_gpus == ""


def test_a_busy_node_is_not_measured(site: Site, show: Show) -> None:
    marker = json.loads(Path("/opt/nccl-tests/busbar-build.json").read_text())
    environment = {**site.environment, "LD_LIBRARY_PATH": ":".join(marker["library_path"]), "NCCL_NVLS_ENABLE": "0"}
    argv = ["/opt/nccl-tests/all_reduce_perf", "-g", "1", "-b", "1M", "-e", "1M", "-n", "100000000", "-c", "0"]
    with subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL) as job:
        try:
            subprocess.run(["sleep", "8"], check=True)
            run = site.play(nccl_benchmark_collectives=["all_reduce"], nccl_benchmark_when="always")
        finally:
            job.kill()
    show("\n== a node with a process on its GPUs\n" + table(run))
    assert run.checks == {"nccl_perf.idle"}


def test_a_secret_in_the_environment_is_nowhere(site: Site, show: Show) -> None:
    looked_at = [path for top in (KEEP, site.folder) for path in top.rglob("*") if path.is_file()]
    # The inventory is where it was put, and Ansible's own temporary files are gone.
    holding = [path for path in looked_at if SECRET.encode() in path.read_bytes()]
    show(f"\n== the secret, in {len(looked_at)} files looked at: {[path.name for path in holding]}")
    assert holding == [site.folder / "inventory" / "hosts.yml"]
