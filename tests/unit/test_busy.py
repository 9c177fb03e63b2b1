from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.change import busy
from ansible_collections.busbar.fabric.plugins.module_utils.change.busy import CLAIMS, KUBELET
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host

from tests import readings
from tests.trees import put, tool

HEADER = "pid, process_name, used_gpu_memory [MiB]\n"
IDLE = f"#!/bin/sh\nprintf '%s' '{HEADER}'\n"


def checkpoint(*entries: tuple[str, str, object]) -> str:
    pods = [{"PodUID": u, "ContainerName": "c", "ResourceName": r, "DeviceIDs": d} for u, r, d in entries]
    return json.dumps({"Data": {"PodDeviceEntries": pods, "RegisteredDevices": {}}, "Checksum": 1})


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node on which nothing runs."""
    tool(tmp_path, "usr/bin/nvidia-smi", IDLE)
    return tmp_path


def read(node: Path) -> busy.Busy:
    return busy.read(Host(str(node), str(node), timeout=60))


@pytest.mark.parametrize(
    "line",
    ["4242, [Not Found], 71680 MiB", "4242, python, [N/A]", "4242, python -c a, b, 3 MiB", "[N/A], [N/A], [N/A]"],
)
def test_a_process_that_nvidia_smi_knows_little_of_still_counts(line: str) -> None:
    assert len(busy.parse_processes(HEADER + line)) == 1


@pytest.mark.parametrize(("script", "says"), readings.cases("busy_tool"))
def test_a_tool_that_does_not_say_is_a_problem(node: Path, script: str | None, says: str) -> None:
    if script is None:
        (node / "usr/bin/nvidia-smi").unlink()
    else:
        tool(node, "usr/bin/nvidia-smi", script)
    found = read(node)
    assert found.reasons == ()
    assert says in found.problems[0].message


@pytest.mark.parametrize(
    "path",
    [
        "system.slice/slurmstepd.scope/job_1234/step_0",
        "system.slice/node01_slurmstepd.scope/job_1234",
        "cpuset/slurm/uid_1000/job_1234/step_batch",
        "memory/slurm_node01/uid_0/job_1234",
        "system.slice/slurmstepd.scope/system",
    ],
)
def test_a_slurm_job_holds_the_node_before_its_first_kernel(node: Path, path: str) -> None:
    (node / "sys/fs/cgroup" / path).mkdir(parents=True)
    assert read(node) == busy.Busy(("Slurm job 1234",) if "job" in path else ())


def test_gpus_of_a_pod_that_is_there_are_held(node: Path) -> None:
    gpus = [f"GPU-{n}" for n in range(8)]
    of_gpus = ("aaa", "nvidia.com/gpu", {"0": gpus[:4], "1": gpus[4:]}), ("bbb", "nvidia.com/gpu", gpus[:2])
    put(node, KUBELET, checkpoint(*of_gpus, ("ccc", "rdma/hca", ["x"])))
    for pod in ("aaa", "ccc"):
        (node / "var/lib/kubelet/pods" / pod).mkdir(parents=True)
    # Pod bbb is gone, and the checkpoint has not noticed.
    assert read(node).reasons == ("Kubernetes pod aaa holds 8 GPUs",)


def claims(*entries: tuple[list[str], str, int]) -> str:
    """By pods, driver, and number of devices; the rest as the kubelet 1.34 writes it."""
    devices = [
        {"PoolName": "n", "DeviceName": f"gpu-{n}", "RequestNames": None, "CDIDeviceIDs": None} for n in range(8)
    ]
    of = [
        {"PodUIDs": {pod: {} for pod in pods}, "DriverState": {driver: {"Devices": devices[:count]}}}
        for pods, driver, count in entries
    ]
    data = {"kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1", "Entries": of or None}
    return json.dumps({"Data": json.dumps(data), "Checksum": 1})


def test_gpus_that_a_resource_claim_gave_to_a_pod_are_held(node: Path) -> None:
    put(node, CLAIMS, claims())
    assert read(node) == busy.Busy(())
    of_gpus = (["aaa", "bbb"], "gpu.nvidia.com", 4), (["aaa"], "gpu.nvidia.com", 1)
    put(node, CLAIMS, claims(*of_gpus, (["ccc"], "compute-domain.nvidia.com", 1)))
    for pod in ("aaa", "ccc"):
        (node / "var/lib/kubelet/pods" / pod).mkdir(parents=True)
    assert read(node) == busy.Busy(("Kubernetes pod aaa holds 5 GPUs",))
    put(node, CLAIMS, '{"Data": "{"}')
    assert [problem.source for problem in read(node).problems] == [CLAIMS]


def test_a_damaged_checkpoint_is_a_problem(node: Path) -> None:
    put(node, KUBELET, checkpoint(("aaa", "nvidia.com/gpu", ["x"]))[:-20])
    assert [problem.source for problem in read(node).problems] == [KUBELET]
