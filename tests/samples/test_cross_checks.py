# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Captured matrices of nvidia-smi topo -m and NCCL topology files."""

from collections import Counter
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.machine import nvidia_smi_topo
from ansible_collections.busbar.fabric.plugins.module_utils.nccl import topology as nccl_topology


def test_every_matrix_has_eight_gpus_and_a_class_for_each_pair(samples: Path) -> None:
    files = [*sorted((samples / "topo-m").iterdir()), samples / "h200x8/nvidia-smi-topo-m.txt"]
    assert len(files) >= 4
    for path in files:
        matrix = nvidia_smi_topo.parse(path.read_text())
        assert matrix.gpus == tuple("GPU%d" % number for number in range(8)), path.name
        assert len(matrix.cells) == (8 + len(matrix.nics)) ** 2, path.name


def test_matrix_of_the_h200_machine(samples: Path) -> None:
    matrix = nvidia_smi_topo.parse((samples / "h200x8/nvidia-smi-topo-m.txt").read_text())
    assert matrix.nics == {}
    assert Counter(matrix.cells.values()) == {"NV18": 56, "X": 8}


def test_matrix_of_an_h100_machine_with_blanks_and_a_legend(samples: Path) -> None:
    matrix = nvidia_smi_topo.parse((samples / "topo-m/h100-8gpu-8nic-sglang30401.txt").read_text())
    assert matrix.nics == {"NIC%d" % number: "mlx5_%d" % number for number in range(8)}
    for number in range(8):
        assert matrix.cells["GPU%d" % number, "NIC%d" % number] == "PIX"
    assert matrix.cells["GPU7", "NIC4"] == "NODE"


def test_matrix_of_a_dgx_a100_with_named_columns(samples: Path) -> None:
    matrix = nvidia_smi_topo.parse((samples / "topo-m/dgx-a100-8gpu-12nic-mlx5-columns.txt").read_text())
    assert list(matrix.nics)[-1] == "mlx5_11"
    assert matrix.cells["GPU0", "GPU7"] == "NV12"
    assert matrix.cells["GPU0", "mlx5_0"] == "PXB"
    assert matrix.cells["mlx5_10", "mlx5_11"] == "PIX"


def test_matrix_of_a_pcie_machine_without_legend(samples: Path) -> None:
    matrix = nvidia_smi_topo.parse((samples / "topo-m/4090-8gpu-pcie-all-SYS-go-gpuallocator17.txt").read_text())
    assert matrix.nics == {"NIC0": None, "NIC1": None}
    assert matrix.cells["GPU6", "NIC0"] == "PHB"


def test_every_topology_file_has_eight_gpus_each_behind_a_switch_with_a_nic(samples: Path) -> None:
    files = sorted((samples / "nccl-topo").iterdir())
    assert len(files) >= 3
    for path in files:
        nccl = nccl_topology.parse(path.read_text())
        assert (len(nccl.gpus), len(nccl.nets)) == (8, 8), path.name
        for gpu in nccl.gpus:
            assert gpu.nvlinks is None
            assert "PIX" in {nccl.paths[gpu.busid, net.label] for net in nccl.nets}, path.name


def test_topology_file_of_azure_ndv5(samples: Path) -> None:
    nccl = nccl_topology.parse((samples / "nccl-topo/azhpc-ndv5-topo.xml").read_text())
    classes = {nccl.paths["0001:00:00.0", net.label] for net in nccl.nets if net.label != "0101:00:00.0"}
    assert nccl.paths["0001:00:00.0", "0101:00:00.0"] == "PIX"
    assert classes == {"PHB", "SYS"}


def test_dump_of_the_h200_machine(samples: Path) -> None:
    nccl = nccl_topology.parse((samples / "h200x8/nccl_topo.xml").read_text())
    assert [gpu.nvlinks for gpu in nccl.gpus] == [18] * 8
    assert nccl.nets == (nccl_topology.NcclNet("eth0", None),)
    assert set(nccl.paths.values()) == {"PHB"}
