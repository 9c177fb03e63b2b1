# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The suite's playbooks over four simulated nodes, as a user starts them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_tests import marker
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_tests.marker import PROGRAMS
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import cluster_record

from tests import debian
from tests.conftest import ANSIBLES_OUTPUT, COMPILED
from tests.slurm_daemons import ended
from tests.trees import tool

from .simulated import HARDWARE, ROOT, Simulated

SUITE = Path(__file__).resolve().parent.parent.parent
# Two GPUs and two rails of each node: eight ranks a node take four times as long.
GPUS = 2
PROFILE, ALL_GPUS = "two-rails", "two-rails-of-eight"
BAR: dict[str, Any] = {"scope": "node", "collective": "all_reduce", "nvls": True, "source": "simulated"}
BAR |= {"size": "8G", "busbw": 340, "healthy": 360}
BENCHMARK = {
    "busbar_platform": PROFILE,
    "busbar_hardware_root": HARDWARE,
    "busbar_system_root": ROOT,
    "nccl_benchmark_min_bytes": "4G",
    "nccl_benchmark_iterations": 5,
    "nccl_benchmark_repeats": 1,
}
OWN_RESULTS = """\
mkdir -p /var/lib/busbar {root}/own
mountpoint -q /var/lib/busbar || mount --bind {root}/own /var/lib/busbar
rm -rf /var/lib/busbar/*
"""
# An nvidia-smi that knows of no process, and of its GPUs what the lab's says.
NO_PROCESS = (
    '[ "$*" != "-q -x" ] || exec cat "${0%/*}/../share/busbar-lab/nvidia-smi/query.xml"\n'
    'echo "pid, process_name, used_gpu_memory [MiB]"'
)


class Run(NamedTuple):
    """A run of the playbook. findings: host -> check, state and what is, of each that follows from no other."""

    rc: int
    out: str
    findings: dict[str, list[tuple[str, str, str | None]]]
    results: Path

    @property
    def record(self) -> cluster_record.Record:
        return cluster_record.read(self.results)


def built(simulated: Simulated, programs: Path) -> Path:
    """The programs of nccl-tests as role nccl_tests leaves them, in a folder that all nodes have."""
    programs.mkdir()
    for collective in PROGRAMS:
        shutil.copy(simulated.program(collective), programs / f"{collective}_perf")
    inputs = marker.Inputs(
        marker.Cuda("/usr/local/cuda", "/usr/local/cuda/lib64/libcudart.so.13", "13.0.88"),
        marker.Nccl("/usr/include", "/usr/lib/libnccl.so.2.28.9", "2.28.9"),
        marker.Mpi("/usr/include", "/usr/lib/libmpi.so.40", "Open MPI 4.1.4"),
        ("9.0",),
    )
    digests = {f"{collective}_perf": "0" * 64 for collective in PROGRAMS}
    made = marker.Marker("a" * 40, None, inputs, ("make",), digests)
    (programs / marker.MARKER).write_text(marker.render_marker(made))
    return programs


def environment(home: Path) -> dict[str, str]:
    """Of whoever starts the suite. home: a folder that all nodes have."""
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "ANSIBLE_HOME": str(home / "ansible"),
        "ANSIBLE_REMOTE_TMP": str(home / "remote"),
        "COLUMNS": "160",
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": COMPILED,
        **ANSIBLES_OUTPUT,
    }


@pytest.fixture
def site(simulated: Simulated, tmp_path: Path) -> Path:
    """The inventory's directory, for nodes on which all that a benchmark takes is there, and nobody is busy."""
    return inventory(simulated, tmp_path, "hgx-h100")


def put_profile(folder: Path, bar: dict[str, Any], platform: str = "hgx-h100", pci: Sequence[str] = ()) -> None:
    """Into an inventory's directory: profiles of two rails, with two GPUs and with all, and a bar of the first.

    platform: the profile that they are made of.   pci: addresses of the rails of the first.
    """
    (folder / "profiles").mkdir(parents=True)
    profile = yaml.safe_load((SUITE / "profiles" / f"{platform}.yml").read_text())
    profile["rails"] = profile["rails"][:GPUS]
    (folder / "profiles" / f"{ALL_GPUS}.yml").write_text(yaml.safe_dump(profile))
    profile["gpus"]["count"] = GPUS
    for rail, address in zip(profile["rails"], pci, strict=False):
        rail["pci"] = address
    (folder / "profiles" / f"{PROFILE}.yml").write_text(yaml.safe_dump(profile))
    (folder / "bars.yml").write_text(yaml.safe_dump([{"platform": PROFILE, **bar}]))


def inventory(simulated: Simulated, tmp_path: Path, platform: str) -> Path:
    """platform: the profile that the site's own are made of."""
    programs = built(simulated, tmp_path / "programs")
    for node in simulated.nodes:
        root = node.tmp / ROOT.removeprefix("/tmp/")
        shutil.rmtree(root / "var", ignore_errors=True)
        tool(root, "usr/bin/nvidia-smi", NO_PROCESS)
        # What a node measures of itself it keeps below /var, which is this machine's.
        done = node.run(["sh", "-c", OWN_RESULTS.format(root=ROOT)])
        assert done.returncode == 0, done.stderr
        for name in ("mpirun", "srun", "scontrol", "squeue"):
            tool(root, f"usr/bin/{name}", f'exec {shutil.which(name, path=debian.PLACES)} "$@"')
    folder = tmp_path / "inventory"
    # Which of the eight NICs it is, since not all of the GPUs beside them are the profile's.
    put_profile(folder, BAR, platform, [simulated.machines[0].rail(number).address for number in range(GPUS)])
    values = {
        **BENCHMARK,
        "busbar_fabric": "infiniband",
        "nccl_tests_path": str(programs),
        "nccl_benchmark_results_path": str(tmp_path / "results"),
        "nccl_benchmark_collectives": ["all_reduce"],
        "nccl_benchmark_timeout": 100,
        # The tests have another HOME than the user database says.
        "ansible_async_dir": str(tmp_path / "async"),
    }
    hosts = {node.name: node.ansible for node in simulated.nodes}
    (folder / "hosts.yml").write_text(yaml.safe_dump({"gpu_nodes": {"hosts": hosts, "vars": values}}))
    return folder


@pytest.fixture
def play(site: Path, tmp_path: Path) -> Callable[..., Run]:
    """Runs a playbook by its name. values: variables for this run."""
    return player(site, tmp_path)


def player(site: Path, tmp_path: Path) -> Callable[..., Run]:
    def run(playbook: str, *arguments: str, **values: Any) -> Run:
        path = tmp_path / "findings.json"
        path.unlink(missing_ok=True)
        given = {"busbar_findings_path": str(path), **values}
        argv = ["ansible-playbook", str(SUITE / f"playbooks/{playbook}.yml"), "-i", str(site)]
        argv += ["-e", json.dumps(given), *arguments]
        done = ended(argv, environment(tmp_path))
        told = json.loads(path.read_text())["hosts"] if path.exists() else {}
        roots = {
            host: [(f["check"], f["state"], f["have"]) for f in one["findings"] if f["because"] is None]
            for host, one in told.items()
        }
        return Run(done.returncode, done.stdout + done.stderr, roots, tmp_path / "results")

    return run
