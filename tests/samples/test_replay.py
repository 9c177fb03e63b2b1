"""Captured machines: each, and what `busbar capture --redact` makes of it, have the same findings."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.plugin_utils.capture import archive

from busbar import capture, check
from tests.lab.test_replay import replayed
from tests.samples.test_h200x8 import machine  # noqa: F401
from tests.trees import pci_function, put, tool


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


def test_a_machine_of_eight_gpus_is_replayed(machine: Host, tmp_path_factory: pytest.TempPathFactory) -> None:  # noqa: F811
    replay(Path(machine.hardware_root), tmp_path_factory.mktemp("capture") / "new")
