# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The lab's trees: what the kernel and nvidia-smi show of the three machines, read with nothing but the file system."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import tree
from lab.machine import GpuProcess, LabError, Machine, from_dict, to_dict
from lab.machines import h200_vm, hgx_h100, hgx_h200_roce
from lab.nvidia_smi import path_class
from tests import goldens
from tests.lab.transcript import Transcript, scripts, snapshot, texts

BUILDERS: dict[str, Callable[[str], Machine]] = {"h100": hgx_h100, "roce": hgx_h200_roce, "vm": h200_vm}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("trees")
    for name, builder in BUILDERS.items():
        tree.write(builder("node07"), base / name / "hw", base / name / "sys")
    return base


def text(path: Path) -> str:
    return path.read_text().strip()


def smi(root: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    tool = root / name / "sys/usr/bin/nvidia-smi"
    return subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=1800, check=False)


@pytest.mark.parametrize("name", BUILDERS)
def test_links_are_relative_resolve_and_stay_inside(root: Path, name: str) -> None:
    base = root / name
    links = [path for path in (base / "hw").rglob("*") if path.is_symlink()]
    assert links
    for link in links:
        assert not os.readlink(link).startswith("/"), link
        assert link.exists(), f"{link} leads nowhere"
        assert link.resolve().is_relative_to((base / "hw").resolve()), link


@pytest.mark.parametrize("name", BUILDERS)
def test_a_model_survives_json_and_writing_it_again_changes_nothing(root: Path, name: str) -> None:
    machine = BUILDERS[name]("node07")
    again = from_dict(json.loads(json.dumps(to_dict(machine))))
    assert again == machine
    before = snapshot(root / name / "hw")
    tree.write_hardware(again, root / name / "hw")
    assert snapshot(root / name / "hw") == before


def test_no_identity_occurs_twice_on_a_host_or_on_two() -> None:
    seen: list[str] = []
    for machine in (hgx_h200_roce("node01"), hgx_h200_roce("node02"), hgx_h100("node03")):
        seen += [gpu.uuid for gpu in machine.gpus]
        seen += [rdma.node_guid for rdma in machine.rdma]
        # A bond and its slaves have one address.
        seen += {netdev.mac for netdev in machine.netdevs if netdev.kind != 772 and not netdev.bridge}
        # Each GID is there as RoCE v1 and as v2; the link-local one of InfiniBand once.
        seen += {gid.value for rdma in machine.rdma for gid in rdma.gids}
        assert len({route.destination for route in machine.routes}) == len(machine.routes)
    assert len(seen) == len(set(seen))


PORT, DEVICES = "hw/sys/class/infiniband/{}/ports/1/", "hw/sys/bus/pci/devices/"
# What to read -> machine and patterns.
READINGS = {
    "an InfiniBand port, which has no RoCE": (
        "h100",
        *(PORT.format("mlx5_4") + file for file in ("*", "gids/[012]", "gid_attrs/*/*")),
        *("hw/sys/class/infiniband/mlx5_4/" + file for file in ("*", "device/net/*/*")),
    ),
    "a RoCE port": ("roce", *(PORT.format("mlx5_6") + file for file in ("*", "gids/[0-4]", "gid_attrs/*/*"))),
    "a spare port, which is down and has no speed": (
        "roce",
        *(PORT.format("mlx5_11") + "*", "hw/sys/class/infiniband/mlx5_11/device/net/*/*"),
    ),
    "virtual functions and their owner": (
        "roce",
        f"{DEVICES}0000:83:00.0/virtfn*",
        *(f"{DEVICES}0000:83:00.0/virtfn*/{file}" for file in ("physfn", "current_link_*", "infiniband/*/node_guid")),
    ),
    "a bond, which has one RDMA device over two members": (
        "roce",
        *(f"hw/sys/class/net/{file}" for file in ("bonding_masters", "bond0/bonding/*", "*/master", "enp225*")),
        *("hw/sys/class/infiniband/mlx5_bond_0", PORT.format("mlx5_bond_0") + "gid_attrs/ndevs/3"),
    ),
    "a bond of another machine": (
        "h100",
        *(f"hw/sys/class/net/{file}" for file in ("bonding_masters", "bond0/bonding/*", "*/master", "enp170*")),
        *("hw/sys/class/infiniband/mlx5_bond_0", PORT.format("mlx5_bond_0") + "gid_attrs/ndevs/3"),
    ),
    "a guest, which shows neither NUMA nor DMI nor RDMA, but a hypervisor": (
        *(
            "vm",
            f"{DEVICES}*",
            f"{DEVICES}*/class",
            f"{DEVICES}*/numa_node",
            "hw/sys/class/dmi/*",
            "hw/sys/class/infiniband/*",
        ),
        *("hw/sys/class/net/eth0/*", "hw/sys/class/net/eth0", "hw/proc/cpuinfo"),
    ),
    "bare metal, which has DMI and no hypervisor": ("h100", "hw/sys/class/dmi/id/*", "hw/proc/cpuinfo"),
}


@pytest.mark.golden
@pytest.mark.parametrize("case", READINGS)
def test_what_a_tree_shows(root: Path, case: str) -> None:
    name, *patterns = READINGS[case]
    found = texts(root / name, *patterns)
    rows: dict[str, list[str]] = {}
    for path in sorted(found):
        # Many files that differ in an address alone are a row.
        same = re.sub(r"devices/[^/]+/(?!virtfn|sriov|infiniband)", "devices/*/", path) + f": {found[path][:2000]}"
        rows.setdefault(same, []).append(path)
    goldens.check(
        "lab_trees", case, [f"{row} ({len(paths)})" if len(paths) > 1 else row for row, paths in rows.items()]
    )


SMI = scripts("smi")


@pytest.mark.golden
@pytest.mark.parametrize("name", SMI)
def test_what_smi_prints_and_refuses(root: Path, name: str) -> None:
    def use(gpu: str) -> None:
        machine = BUILDERS[name]("node07")
        machine.gpu_processes.append(GpuProcess(4242, "python", int(gpu), 71680))
        tree.write_tools(machine, root / name / "sys")

    transcript = Transcript(lambda _, *words: smi(root, name, *words), acts={"use": use})
    transcript.check("lab_trees", f"nvidia-smi of {name}", SMI[name])
    tree.write_tools(BUILDERS[name]("node07"), root / name / "sys")


# -- nvidia-smi ------------------------------------------------------------------------------------------------------


def test_path_classes_of_every_kind() -> None:
    machine = hgx_h100()
    gpu, rail = machine.gpu(0).address, machine.rail(0).address
    assert path_class(machine, gpu, rail) == "PIX"
    assert path_class(machine, gpu, machine.rail(1).address) == "NODE"
    assert path_class(machine, gpu, machine.rail(7).address) == "SYS"
    assert path_class(machine, "0000:29:00.0", "0000:29:00.1") == "PIX"
    assert path_class(machine, "0000:05:00.0", "0000:0b:00.0") == "PHB"
    # Another switch below the first one makes more than one bridge on the way.
    machine.function(rail).parent = "0000:28:01.0"
    machine.function("0000:27:00.0").parent = machine.function(gpu).parent.replace("02.0", "00.0")
    assert path_class(machine, gpu, rail) == "PXB"


# -- safety ----------------------------------------------------------------------------------------------------------


def test_a_tree_is_never_written_over_a_real_root(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    machine = h200_vm()
    with pytest.raises(LabError, match="no hardware root of the lab: it holds etc"):
        tree.write_hardware(machine, tmp_path)
    with pytest.raises(LabError, match="is not empty"):
        tree.write(machine, tmp_path / "hw", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["etc"]
