# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is read of GPUs from /proc/driver/nvidia and nvidia-smi, and that nothing they print can break the reader."""

import shutil
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.machine import gpu
from ansible_collections.busbar.fabric.plugins.module_utils.machine.pci import PciDevice
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests import golden_rows, goldens
from tests.trees import put, put_all, tool

from .conftest import pci_device

A, B, C = "0000:1b:00.0", "0000:43:00.0", "0000:52:00.0"
UUID = {A: "GPU-aaaaaaaa-0000-0000-0000-000000000001", B: "GPU-bbbbbbbb-0000-0000-0000-000000000002"}
INFORMATION = (
    "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 41\nGPU UUID: \t %s\nBus Location: \t %s\nGPU Excluded:\t No\n"
)
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.10.01  Release Build  (build@host)\nGCC version: 12\n"
)
FOLDER = Path(__file__).parent / "cases" / "gpu"
# What nvidia-smi says of two H100: --query-gpu=... --format=csv, and nvlink -s.
CSV, NVLINK = ((FOLDER / name).read_text() for name in ("query-gpu.csv", "nvlink-s.txt"))
FAILED = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
NO_FIELD = 'Field "fabric.state" is not a valid field to query.\n\n'


def device(address: str, class_code: int = 0x030200, vendor: int = 0x10DE) -> PciDevice:
    return pci_device(address, class_code, 0)._replace(vendor=vendor)


FAR, NEAR = "10000:01:00.0", "2000:01:00.0"
VERSION = "proc/driver/nvidia/version"
DEVICES = {address: device(address) for address in (B, A)}  # not in PCI order, on purpose
TOOL = """#!/bin/sh
echo "$*" >> {log}
case "$*" in
--query-gpu=*) cat {root}/csv; exit $(cat {root}/csv.rc) ;;
"nvlink -s") cat {root}/nvlink ;;
esac
"""


# GPUs as the driver shows them that could not start.
UNKNOWN = "GPU-????????-????-????-????-????????????"


def build(root: Path) -> Path:
    """A tree with /proc/driver/nvidia and an nvidia-smi that prints files and logs how it was called."""
    write_tool(root, TOOL)
    for address, uuid in UUID.items():
        put(root, information(address), INFORMATION % (uuid, address))
    put_all(root, {VERSION: OPEN, "csv": CSV, "csv.rc": "0", "nvlink": NVLINK})
    return root


def write_tool(root: Path, script: str) -> None:
    tool(root, "usr/bin/nvidia-smi", script.format(log=root / "calls", root=root))


def information(address: str) -> str:
    return f"proc/driver/nvidia/gpus/{address}/information"


def rows(root: Path, devices: "dict[str, PciDevice] | None" = None, timeout: float = 20.0) -> "list[object]":
    """What was called, the driver, each GPU and each problem by its source and the values in it."""
    host = Host(hardware_root=str(root), system_root=str(root), timeout=timeout)
    gpus, driver, problems = gpu.read(host, DEVICES if devices is None else devices)
    log = (root / "calls").read_text().splitlines() if (root / "calls").exists() else []
    result: list[object] = [["calls", *[line.split("=")[0] for line in log]]]
    result.append(driver and ["driver", driver.version, driver.open_kernel_module, driver.source])
    for one in gpus:
        fields = (one.index, one.model, one.uuid, one.in_driver, one.nvlinks_active, one.nvlinks_total)
        result.append([one.pci, *fields, one.fabric_state, one.fabric_status])
    return result + [["problem", problem.source, golden_rows.values(problem.message)] for problem in problems]


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    return build(tmp_path)


OTHERS = {
    "0000:02:00.0": device("0000:02:00.0", vendor=0x1A03, class_code=0x030000),  # a BMC's display
    "0000:07:00.0": device("0000:07:00.0", class_code=0x068000),  # NVSwitch
}
Files = dict[str, str | None]
NO_GPU = {information(address): None for address in UUID}
NO_ANSWER: Files = {"csv": FAILED, "csv.rc": "9", "nvlink": FAILED}
NO_DEVICES: Files = {"csv": "No devices were found", "csv.rc": "9", "nvlink": "No devices were found"}
NO_UUID: Files = {information(A): INFORMATION % (UNKNOWN, A)}
FIRST_GPU: Files = {"csv": "\n".join(CSV.splitlines()[:2]), "nvlink": NVLINK[: NVLINK.index("GPU 1")]}
NOT_SUPPORTED = "Device does not have or support Nvlink.\n" * 2
# Files of the tree that are others, None for one that is not there, and the PCI devices.
CASES: "dict[str, tuple[Files, dict[str, PciDevice] | None]]" = {
    "healthy": ({}, None),
    "other display functions": ({}, {**OTHERS, **DEVICES}),
    "in the order of numbers": ({}, {FAR: device(FAR), NEAR: device(NEAR)}),
    "no GPU in sysfs": ({}, {}),
    "no GPU and no driver": ({VERSION: None, **NO_GPU}, {}),
    "no driver": ({VERSION: None, **NO_GPU}, None),
    "old driver": ({"csv": NO_FIELD, "csv.rc": "2"}, None),
    "no fabric state": ({"csv": CSV.replace("Completed, Success", "[Unknown Error], [Unknown Error]", 1)}, None),
    "fabric in progress": ({"csv": CSV.replace("Completed, Success", "In Progress, N/A")}, None),
    "no fabric status": ({"csv": CSV.replace("Completed, Success", "Completed, N/A")}, None),
    "no tool": ({"usr/bin/nvidia-smi": None}, None),
    "tool fails": (NO_ANSWER, None),
    "tool finds no device": (NO_DEVICES, None),
    "nothing said of NVLink": ({"nvlink": ""}, None),
    "a blank line said of NVLink": ({"nvlink": "\n"}, None),
    "no NVLink": ({"nvlink": NOT_SUPPORTED}, None),
    # A tool that could not list the GPUs has not said that they have none.
    "nothing said": ({"csv": "", "nvlink": ""}, None),
    "nothing but no NVLink": ({"csv": "", "nvlink": NOT_SUPPORTED}, None),
    "a whole answer with an exit code": ({"csv.rc": "14"}, None),
    "a GPU that is not listed": (FIRST_GPU, None),
    "a GPU that sysfs does not have": ({}, {A: DEVICES[A]}),
    "a GPU that the driver does not have": ({}, {**DEVICES, C: device(C)}),
    "a UUID that proc does not have": (NO_UUID, None),
    "a UUID that nothing has": ({**NO_UUID, "csv": CSV.replace(UUID[A], "[Unknown Error]")}, None),
    "a row without address": ({"csv": CSV.replace("00000000:43:00.0", "[GPU is lost]")}, None),
    "an empty information": ({information(B): ""}, None),
    "a damaged information": ({information(B): "\x07\x07"}, None),
    "an information that is cut": ({information(B): "cut of"}, None),
    "a strange name in proc": ({information("what"): "Model: x\n"}, None),
    "an empty version": ({VERSION: ""}, None),
    "a strange version": ({VERSION: "NVRM version: something else\n"}, None),
}


def change(root: Path, files: Files) -> None:
    for path, text in files.items():
        if text is not None:
            put(root, path, text)
        elif path in NO_GPU:
            shutil.rmtree((root / path).parent)
        else:
            (root / path).unlink()


@pytest.mark.golden
def test_what_is_read_of_a_machine(tmp_path: Path) -> None:
    said = []
    for number, (case, (files, devices)) in enumerate(CASES.items()):
        machine = build(tmp_path / str(number))
        change(machine, files)
        goldens.check("gpu", case, rows(machine, devices))
        host = Host(hardware_root=str(machine), system_root=str(machine))
        problems = gpu.read(host, DEVICES if devices is None else devices)[2]
        said += [f"== {case}", *map(str, problems)]
    goldens.text("gpu", "\n".join(said) + "\n")


@pytest.mark.golden
def test_after_a_call_that_hangs_no_other_is_made(machine: Path) -> None:
    write_tool(machine, TOOL.replace('case "$*" in', 'case "$*" in\n--query-gpu=*) sleep 30 ;;'))
    goldens.check("gpu", "--query-gpu=* hangs", rows(machine, timeout=2))


@pytest.mark.golden
def test_output_that_is_not_text_does_not_stop_the_second_call(machine: Path) -> None:
    (machine / "csv").write_bytes(b"\xff\xfe\0")
    goldens.check("gpu", "no text", rows(machine))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(csv=st.text(max_size=60), nvlink=st.text(max_size=60), said=st.text(max_size=60))
@example(csv=CSV.splitlines()[0], nvlink="GPU 0:", said="Model:")
def test_no_text_of_tool_or_file_breaks_the_reader(machine: Path, csv: str, nvlink: str, said: str) -> None:
    (machine / "csv").write_text(csv)
    (machine / "nvlink").write_text(nvlink)
    put(machine, information(A), said)
    gpus, _, problems = gpu.read(Host(hardware_root=str(machine), system_root=str(machine)), DEVICES)
    assert [one.pci for one in gpus] == [A, B]
    assert problems
