# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The matrix of nvidia-smi topo -m in the shapes that drivers give it, and where it differs from sysfs."""

from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.machine import nvidia_smi_topo
from ansible_collections.busbar.fabric.plugins.module_utils.machine.gpu import Gpu
from ansible_collections.busbar.fabric.plugins.module_utils.machine.pci import PciDevice
from ansible_collections.busbar.fabric.plugins.module_utils.machine.rdma import RdmaDevice
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Nic, Topology
from ansible_collections.busbar.fabric.plugins.module_utils.machine.virtualization import Virtualization

from tests import golden_rows, goldens
from tests.trees import tool

TABS = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tPIX\tNODE\t0-47,96-143\t0\t\tN/A\n"
    "GPU1\tNV18\t X \tSYS\tPIX\t48-95\t1\t\tN/A\n"
    "NIC0\tPIX\tSYS\t X \tSYS\n"
    "NIC1\tNODE\tPIX\tSYS\t X \n"
    "\nLegend:\n\n  X    = Self\n  PIX  = Connection traversing at most a single PCIe bridge\n"
    "\nNIC Legend:\n\n  NIC0: mlx5_3\n  NIC1: mlx5_0\n"
)
GPUS = ("0000:1b:00.0", "0000:5d:00.0")
NICS = {"mlx5_3": "0000:1c:00.0", "mlx5_0": "0000:5e:00.0"}
PATHS = {
    (GPUS[0], NICS["mlx5_3"]): "PIX",
    (GPUS[0], NICS["mlx5_0"]): "NODE",
    (GPUS[1], NICS["mlx5_3"]): "SYS",
    (GPUS[1], NICS["mlx5_0"]): "PIX",
}


def device(address: str) -> PciDevice:
    return PciDevice(address, 0x030200, 0x10DE, 0x2330, 0, (), None, None, None, None, None, None, "/sys/devices")


def gpu(index: int, nvlinks: "int | None" = 18, in_driver: bool = True) -> Gpu:
    pci = GPUS[index]
    return Gpu(pci, index, device(pci), "NVIDIA H100", "GPU-%d" % index, in_driver, nvlinks, nvlinks, None, None)


def nic(name: str) -> Nic:
    rdma = RdmaDevice(name, NICS[name], None, None, None, None, None, (), "/sys/class/infiniband/" + name)
    return Nic(NICS[name], device(NICS[name]), "compute", "PIX to a GPU", rdma, ())


TOPOLOGY = Topology(
    gpus=(gpu(0), gpu(1)),
    nics=(nic("mlx5_3"), nic("mlx5_0")),
    paths=PATHS,
    driver=None,
    routes=(),
    virtualization=Virtualization(False, "none", "/proc/cpuinfo"),
    software_rdma=(),
    problems=(),
)


LOST_FIRST = replace(TOPOLOGY, gpus=(gpu(0, None, in_driver=False), gpu(1, None)))
RXE = RdmaDevice("rxe0", None, None, None, None, None, None, (), "/sys/class/infiniband/rxe0")
THREE = "\tGPU0\tGPU1\tGPU2\nGPU0\tX\tNV4\tNV4\nGPU1\tNV4\tX\tNV4\nGPU2\tNV4\tNV4\tX\n"


def with_nvlinks(*nvlinks: "int | None") -> Topology:
    third = replace(gpu(1, nvlinks[-1]), pci="0000:9d:00.0", index=2)
    gpus = [third if index == 2 else gpu(index, number) for index, number in enumerate(nvlinks)]
    return replace(TOPOLOGY, gpus=tuple(gpus))


# A GPU that nvidia-smi lacks stops the comparison by number; those that the driver lacks are not numbered.
CASES: "dict[str, tuple[str, Topology]]" = {
    "agrees": (TABS, TOPOLOGY),
    "another path": (TABS.replace("NV18\t X \tSYS\tPIX", "NV18\t X \tSYS\tNODE"), TOPOLOGY),
    "a GPU less": ("\tGPU0\nGPU0\t X \n", TOPOLOGY),
    "a GPU without driver": ("\tGPU0\tmlx5_0\nGPU0\t X \tSYS\nmlx5_0\tSYS\t X \n", LOST_FIRST),
    "18 NVLinks, 18 up": (TABS, with_nvlinks(18, None)),
    "18 NVLinks, unread": (TABS, with_nvlinks(None, None)),
    "18 NVLinks, 17 up": (TABS, with_nvlinks(17, None)),
    # Links are up and no peer is reached: the fabric manager does not run.
    "no NVLinks, 18 up": (TABS.replace("NV18", "SYS"), with_nvlinks(18, None)),
    "no NVLinks, none up": (TABS.replace("NV18", "SYS"), with_nvlinks(0, None)),
    "through NVSwitch each cell is the count": (THREE, with_nvlinks(4, 4, 4)),
    "cabled GPU to GPU the cells add up": (THREE, with_nvlinks(8, 8, 8)),
    "neither": (THREE, with_nvlinks(6, 6, 6)),
    "software RDMA has no path": (
        "\tGPU0\tGPU1\trxe0\nGPU0\tX\tNV18\tSYS\nGPU1\tNV18\tX\tSYS\nrxe0\tSYS\tSYS\tX\n",
        replace(TOPOLOGY, software_rdma=(RXE,)),
    ),
    "a lone GPU has no peer": ("\tGPU0\nGPU0\t X \t0-15\n", with_nvlinks(18)),
    "a NIC that sysfs does not have, and one without a name": (
        TABS.replace("NIC0: mlx5_3", "NIC0: mlx5_9").replace("  NIC1: mlx5_0\n", ""),
        TOPOLOGY,
    ),
}


@pytest.mark.golden
@pytest.mark.parametrize("case", CASES)
def test_where_it_differs_from_sysfs(case: str) -> None:
    text, topology = CASES[case]
    said = nvidia_smi_topo.disagreements(nvidia_smi_topo.parse(text), topology)
    goldens.check("nvidia_smi_topo", case, [golden_rows.values(line) for line in said])


def test_read_quotes_a_tool_that_fails(tmp_path: Path) -> None:
    tool(tmp_path, "usr/bin/nvidia-smi", "echo it has failed; exit 9")
    with pytest.raises(ReadError, match="nvidia-smi topo -m: exited with 9: it has failed"):
        nvidia_smi_topo.read(Host(system_root=str(tmp_path)))
