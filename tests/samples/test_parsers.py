# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Captured outputs, each with what its parser reads: of the driver, nvidia-smi, mlnx_qos, NCCL, perftest and RDMA."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import perftest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError, Problem
from ansible_collections.busbar.fabric.plugins.module_utils.fabric import dumps
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import Sweep
from ansible_collections.busbar.fabric.plugins.module_utils.machine import gpu, nvidia_smi_topo, rdma
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import topology as nccl_topology
from ansible_collections.busbar.fabric.plugins.module_utils.ras import answer as ras_answer
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos import mlnx_qos
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.port import Dcb

from tests import goldens
from tests.readings import plain

# Lines that the client of NCCL's RAS has printed beside the answer, as one of a job of one rank.
CLIENT = re.compile(r"^(b'.*'|== .*)\n", re.MULTILINE)


def text_of(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()


def parts(text: str) -> list[list[str]]:
    """Head and body of what begins each with ``== HEAD``."""
    return [part.split("\n", 1) for part in re.split(r"^== ", text, flags=re.MULTILINE)[1:]]


def matrix(text: str) -> list[Any]:
    found = nvidia_smi_topo.parse(text)
    names = (*found.gpus, *found.nics)
    assert len(found.cells) == len(names) ** 2
    return [found.nics, *([row, " ".join(found.cells[row, column] for column in names)] for row in names)]


def topology(text: str) -> list[Any]:
    found = nccl_topology.parse(text)
    nets = plain(found.nets)
    return [nets, *([g.busid, g.nvlinks, *(found.paths[g.busid, n.label] for n in found.nets)] for g in found.gpus)]


def gids(text: str) -> list[Any]:
    """Of show_gids: device, index and address of each, and those that the RoCE v2 connections of IPv4 take."""
    tables: dict[str, list[rdma.Gid]] = {}
    for words in (line.split() for line in text.splitlines() if line.startswith("mlx5_")):
        kind = "RoCE v2" if "v2" in words else "IB/RoCE v1"
        gid = rdma.Gid(int(words[2]), rdma.parse_gid(words[3]), kind, None)
        assert (gid.gid, gid.ipv4) == (words[3], words[4] if "." in words[4] else None)
        tables.setdefault(words[0], []).append(gid)
    ports = {name: rdma.Port(1, None, None, None, None, None, tuple(found)) for name, found in tables.items()}
    chosen = {name: rdma.rocev2(port, "ipv4") for name, port in ports.items()}
    return [[name, gid and gid.index] for name, gid in chosen.items()]


def sweep(*captures: tuple[str, str]) -> Sweep:
    """captures: name and text of each output."""
    problems: list[Problem] = []
    return dumps.join([one for name, text in captures for one in dumps.parse(text, name, problems)], problems, 1.0)


def qos(text: str) -> Any:
    """What `mlnx_qos` printed, without the call above it and the exit code below; what differs from an unread port."""
    lines = [line for line in text.splitlines() if not line.startswith(("$ mlnx_qos", "[exit "))]
    try:
        found = plain(mlnx_qos.parse("\n".join(lines) + "\n")[0])
    except ParseError as error:
        return type(error).__name__
    read = {name: value for name, value in found.items() if value != plain(getattr(Dcb(), name))}
    if "dscp2prio" in read:
        read["dscp2prio"] = " ".join(f"{dscp}:{priority}" for dscp, priority in read["dscp2prio"])
    return read


PARSERS: dict[str, tuple[Callable[[str], Any], tuple[str, ...]]] = {
    "matrix": (matrix, ("topo-m/*", "h200x8/nvidia-smi-topo-m.txt")),
    "topology": (topology, ("nccl-topo/*", "h200x8/nccl_topo.xml")),
    "information": (
        lambda text: [[head, gpu.parse_information(body)] for head, body in parts(text)],
        ("h200x8/proc-driver-nvidia-gpus.txt",),
    ),
    "driver": (lambda text: [gpu.parse_driver_version(text)], ("h200x8/proc-driver-nvidia-version.txt",)),
    "query": (gpu.parse_query_csv, ("h200x8/nvidia-smi-query-gpu.csv",)),
    "nvlinks": (gpu.parse_nvlink_status, ("h200x8/nvidia-smi-nvlink-s.txt", "gpud/nvidia-smi.nvlink.status.a100")),
    "gids": (gids, ("show_gids/cx5-roce-plus-ib-port-5gids.txt", "show_gids/roce-ib-sriov-mixed-19gids.txt")),
    "RAS, json": (lambda text: [ras_answer.parse_json(CLIENT.sub("", text))], ("h200x1/ras-json.txt",)),
    "perftest": (lambda text: [perftest.parse("bw", text)], ("perftest/ib_write_bw-roce-cx5-100g-gid4.txt",)),
}


@pytest.mark.golden
@pytest.mark.parametrize("name", PARSERS)
def test_what_is_read(samples: Path, name: str) -> None:
    parser, patterns = PARSERS[name]
    for pattern in patterns:
        files = sorted(samples.glob(pattern))
        assert files
        for path in files:
            rows = plain(parser(text_of(path)))
            goldens.check("captured_outputs", f"{name}: {path.relative_to(samples)}", rows)


@pytest.mark.golden
@pytest.mark.parametrize(("folder", "number"), [("mlnx_qos", 4), ("dcb-and-mlnx_qos-synthetic", 26)])
def test_what_mlnx_qos_prints_is_read_or_refused(samples: Path, folder: str, number: int) -> None:
    """A port without DCB, and a name of none, are the same; other errors, and other calls, are no state of a port."""
    files = sorted((samples / folder).glob("*.txt" if folder == "mlnx_qos" else "mlnx_qos-*.txt"))
    assert len(files) == number
    goldens.check("captured_qos", f"mlnx_qos: {folder}", [[file.stem, qos(file.read_text())] for file in files])


@pytest.mark.golden
def test_rdma_devices_of_a_node_with_eight_rails_and_a_bond(samples: Path, tmp_path: Path) -> None:
    (tmp_path / "sys/class").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband").symlink_to(samples / "gpud/sys-class-infiniband-h100.0")
    devices, problems = rdma.read(Host(str(tmp_path)))
    assert problems == ()
    goldens.check("captured_outputs", "rdma: gpud/sys-class-infiniband-h100.0", plain(devices))


def test_outputs_of_infiniband_diags_are_one_sweep(samples: Path) -> None:
    """One that found its own port only is not complete."""
    # Without the command before it, and the exit code behind.
    captures = [
        (name, "\n".join((samples / "ibsim-generated" / f"{name}.txt").read_text().splitlines()[1:-1]))
        for name in ("ibnetdiscover", "iblinkinfo", "iblinkinfo_line", "sminfo")
    ]
    found = sweep(*captures)
    assert (found.complete, found.problems) == (True, ())
    assert (len(found.nodes), len(list(found.links()))) == (6, 6)
    found = sweep(("partial", (samples / "ibnetdiscover" / "topograph-gb200-partial.out").read_text()))
    assert (len(found.nodes), found.complete) == (1, False)
