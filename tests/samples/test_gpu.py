# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Captured outputs of the NVIDIA driver and nvidia-smi."""

import gzip
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.machine import gpu
from ansible_collections.busbar.fabric.plugins.module_utils.machine.pci import parse_address

H200 = ["0000:00:%02x.0" % number for number in range(6, 14)]


def test_information_of_eight_h200(samples: Path) -> None:
    text = (samples / "h200x8/proc-driver-nvidia-gpus.txt").read_text()
    files = [part.split("\n", 1) for part in text.split("== ")[1:]]
    assert [path.split("/")[5] for path, _ in files] == H200
    for path, content in files:
        values = gpu.parse_information(content)
        assert values["Model"] == "NVIDIA H200"
        assert values["GPU UUID"].startswith("GPU-")
        assert values["Bus Location"] in path


def test_driver_version_of_the_h200_machine(samples: Path) -> None:
    driver = gpu.parse_driver_version((samples / "h200x8/proc-driver-nvidia-version.txt").read_text())
    assert (driver.version, driver.open_kernel_module) == ("580.159.04", True)


def test_query_of_eight_h200(samples: Path) -> None:
    rows = gpu.parse_query_csv((samples / "h200x8/nvidia-smi-query-gpu.csv").read_text())
    assert [row["index"] for row in rows] == [str(number) for number in range(8)]
    assert [parse_address(row["pci.bus_id"] or "") for row in rows] == H200
    assert {row["memory.total"] for row in rows} == {"143771 MiB"}
    assert {row["pcie.link.width.current"] for row in rows} == {"16"}


def test_nvlinks_of_eight_h200_and_of_a100s(samples: Path) -> None:
    h200 = gpu.parse_nvlink_status((samples / "h200x8/nvidia-smi-nvlink-s.txt").read_text())
    assert [(one.index, one.active, one.total) for one in h200] == [(number, 18, 18) for number in range(8)]
    rows = gpu.parse_query_csv((samples / "h200x8/nvidia-smi-query-gpu.csv").read_text())
    assert [one.uuid for one in h200] == [row["uuid"] for row in rows]
    a100 = gpu.parse_nvlink_status((samples / "gpud/nvidia-smi.nvlink.status.a100").read_text())
    assert [(one.active, one.total) for one in a100] == [(12, 12)] * 8


def test_xml_of_eight_h100(samples: Path) -> None:
    (path,) = (samples / "misc").glob("nvidia-smi-q-x-*.xml.gz")
    gpus = gpu.parse_xml(gzip.decompress(path.read_bytes()).decode())
    assert len(gpus) == 8
    assert gpus[0].pci == "0000:04:00.0"
    assert {one.product_name for one in gpus} == {"NVIDIA H100 80GB HBM3"}
    assert {(one.fabric_state, one.fabric_status) for one in gpus} == {("Completed", "Success")}
