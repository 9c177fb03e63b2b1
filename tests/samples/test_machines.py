"""Captured machines, put together again as trees: the whole reader and planner over real answers, and their replay."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.machine import (
    nvidia_smi_topo,
    platform,
    profile,
    profile_doubts,
    topology,
)
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import topology as nccl_topology
from ansible_collections.busbar.fabric.plugins.plugin_utils.capture import archive

from busbar import capture, check
from tests.lab.test_replay import replayed
from tests.samples.test_parsers import parts
from tests.trees import lines, link, pci_function, put, put_all, tool

ROOT = Path(__file__).resolve().parent.parent.parent
FABRIC = "index, uuid, name, pci.bus_id, fabric.state, fabric.status"


def sections(text: str) -> dict[str, str]:
    return {path: body.strip("\n") for path, body in parts(text)}


@pytest.fixture
def machine(samples: Path, tmp_path: Path) -> Host:
    captured = samples / "h200x8"
    for path, body in sections((captured / "pci-sysfs.txt").read_text()).items():
        device = tmp_path / path.lstrip("/")
        lines(device, dict(line.split("=", 1) for line in body.splitlines()))
        link(tmp_path / "sys/bus/pci/devices" / device.name, device)
    put_all(tmp_path, sections((captured / "proc-driver-nvidia-gpus.txt").read_text()))
    put(tmp_path, "proc/driver/nvidia/version", (captured / "proc-driver-nvidia-version.txt").read_text())
    put(tmp_path, "proc/cpuinfo", "flags\t: fpu hypervisor\n")
    # The capture has no fabric columns: here they are what the same kind of machine answers.
    rows = [line.split(", ") for line in (captured / "nvidia-smi-query-gpu.csv").read_text().splitlines()[1:]]
    query = "\n".join([FABRIC, *(f"{r[0]}, {r[2]}, {r[1]}, {r[3]}, Completed, Success" for r in rows)])
    put(tmp_path, "query", query + "\n")
    answers = {"--query*": f"{tmp_path}/query", "nvlink": f"{captured}/nvidia-smi-nvlink-s.txt"}
    answers["topo"] = f"{captured}/nvidia-smi-topo-m.txt"
    cases = "\n".join(f"  {word}) exec cat {path};;" for word, path in answers.items())
    tool(tmp_path, "usr/bin/nvidia-smi", f"case $1 in\n{cases}\nesac\nexit 1")
    return Host(str(tmp_path), str(tmp_path))


def test_a_machine_without_rdma_nics_has_one_fault_and_it_is_that(machine: Host) -> None:
    want = profile.parse(yaml.safe_load((ROOT / "profiles/hgx-h200.yml").read_text()), "hgx-h200")
    have = topology.read(machine)
    assert [str(problem) for problem in have.problems if "/sys/class/net" not in str(problem)] == []
    assert have.virtualization.is_vm
    findings = platform.plan(have, profile.for_fabric(want, "infiniband")).findings
    roots = [finding for finding in findings if not finding.ok and finding.because is None]
    assert [(finding.check, finding.have) for finding in roots] == [("platform.rail_device", "no RDMA device")]
    assert sum(finding.check == "platform.nvlinks" and finding.ok for finding in findings) == 8


def test_its_draft_is_a_profile_that_it_meets(machine: Host) -> None:
    have = topology.read(machine)
    data, doubts = profile_doubts.draft(have)
    assert [doubt for doubt in doubts if "/sys/class/net" not in doubt] == []
    mine = profile.for_fabric(profile.parse(data, "mine"), None)
    assert (mine.gpus.count, mine.gpus.nvlinks, mine.rails) == (8, 18, ())
    assert [finding for finding in platform.plan(have, mine).findings if not finding.ok] == []


def test_nvidia_smi_and_nccl_see_what_sysfs_shows(machine: Host, samples: Path) -> None:
    have = topology.read(machine)
    assert nvidia_smi_topo.disagreements(nvidia_smi_topo.read(machine), have) == []
    dumped = nccl_topology.parse((samples / "h200x8/nccl_topo.xml").read_text())
    assert nccl_topology.disagreements(dumped, have) == []


# `busbar capture --redact`: what it makes of a machine has the findings of the machine.


def _xml(samples: Path, top: Path, file: str) -> None:
    """A machine of which only nvidia-smi's XML is known, and that it has a GPU."""
    data = (samples / file).read_bytes()
    put(top, "query.xml", (gzip.decompress(data) if file.endswith(".gz") else data).decode())
    tool(top, "usr/bin/nvidia-smi", f'[ "$*" = "-q -x" ] && exec cat {top}/query.xml\nexit 1')
    pci_function(top, "pci0000:00/0000:1b:00.0", kind="0x030200", ids="10de:2335")
    put(top, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.03  x\n")


def _ports(samples: Path, top: Path, folder: str) -> None:
    shutil.copytree(samples / folder, top / "sys/class/infiniband")


TREES: dict[str, tuple[Callable[[Path, Path, str], None], str]] = {
    "h200x1": (_xml, "h200x1/nvidia-smi-q.xml"),
    "h200x2": (_xml, "h200x2-phases/nvidia-smi-q.xml"),
    "h100x8": (_xml, "misc/nvidia-smi-q-x-h100x8-driver570.xml.gz"),
    "gpud": (_ports, "gpud/sys-class-infiniband-h100.0"),
}


def replay(top: Path, folder: Path) -> None:
    (folder / "new").mkdir(parents=True)
    capture.capture(check.roots_of(top), folder / "new", folder / "c.tar.gz", True)
    about = archive.unpack(folder / "c.tar.gz", folder / "again")
    assert about["findings"] == replayed(check.roots_of(folder / "again"))
    assert about["findings"] != []


@pytest.mark.parametrize("name", TREES)
def test_what_was_captured_by_hand_is_replayed(samples: Path, tmp_path: Path, name: str) -> None:
    make, source = TREES[name]
    (tmp_path / "machine").mkdir()
    make(samples, tmp_path / "machine", source)
    replay(tmp_path / "machine", tmp_path / "capture")


def test_a_machine_of_eight_gpus_is_replayed(machine: Host, tmp_path_factory: pytest.TempPathFactory) -> None:
    replay(Path(machine.hardware_root), tmp_path_factory.mktemp("capture") / "new")
