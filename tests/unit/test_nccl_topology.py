# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NCCL's topology XML, dumped or handed out by a cloud, and where it differs from sysfs."""

from contextlib import suppress
from dataclasses import replace

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.machine.gpu import Gpu
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Nic, Topology
from ansible_collections.busbar.fabric.plugins.module_utils.nccl_conf import topology as nccl_topology
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import goldens, readings

from . import conftest

A, B, C = "0000:1b:00.0", "0000:1d:00.0", "0000:9b:00.0"
# What they are read as lies beside them.
DUMP, CLOUD = (
    (readings.FOLDER / f"nccl_conf.topology.parse/synthetic-{name}.txt").read_text() for name in ("2.27-dump", "cloud")
)
NICS = {"mlx5_0": "0000:1c:00.0", "mlx5_1": "0000:9c:00.0"}


def gpu(index: int, pci: str, nvlinks: "int | None") -> Gpu:
    return replace(conftest.gpu(index), pci=pci, nvlinks_active=nvlinks, nvlinks_total=nvlinks)


def nic(name: str, role: str = "compute") -> Nic:
    found = conftest.nic(0, "InfiniBand")
    rdma = replace(found.rdma, name=name, pci=NICS[name]) if found.rdma else None
    return replace(found, pci=NICS[name], role=role, reason="PIX to GPU0", rdma=rdma, netdevs=())


TOPOLOGY = replace(
    conftest.machine(),
    gpus=(gpu(0, A, 18), gpu(1, B, 0), gpu(2, C, None)),
    nics=(nic("mlx5_0"), nic("mlx5_1")),
    paths={
        (A, NICS["mlx5_0"]): "PIX",
        (B, NICS["mlx5_0"]): "PXB",
        (C, NICS["mlx5_0"]): "SYS",
        (A, NICS["mlx5_1"]): "SYS",
        (B, NICS["mlx5_1"]): "SYS",
        (C, NICS["mlx5_1"]): "NODE",
    },
)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([DUMP, CLOUD]), st.data())
def test_any_text_and_any_damage_gives_a_picture_or_a_parse_error(good: str, data: st.DataObject) -> None:
    tokens = good.split('"')
    where = data.draw(st.integers(0, len(tokens) - 1))
    put_in = data.draw(st.text(max_size=20) | st.sampled_from(["-1", "0x03", "gpu", "0000:1b:00.0"]))
    cut = data.draw(st.integers(0, len(good)))
    for text in ('"'.join([*tokens[:where], put_in, *tokens[where + 1 :]]), good[:cut] + put_in, put_in):
        with suppress(ParseError):
            nccl_topology.disagreements(nccl_topology.parse(text), TOPOLOGY)


def moved(pair: tuple[str, str], path: str) -> Topology:
    return replace(TOPOLOGY, paths={**TOPOLOGY.paths, pair: path})


WITHOUT_NIC = DUMP.replace('<nic><net name="mlx5_1" dev="1" speed="400000" gdr="1"/></nic>', "<nic/>").replace(
    "0000:9c:00.0", "0000:99:00.0"
)
FAR = replace(TOPOLOGY, paths={pair: "SYS" for pair in TOPOLOGY.paths if pair[1] == NICS["mlx5_0"]})
VF = "0101:00:00.1"
# Case -> NCCL's topology, and that of sysfs.
PICTURES: dict[str, tuple[str, Topology]] = {
    # NODE is PHB to NCCL.
    "agrees": (DUMP, TOPOLOGY),
    "another path": (DUMP, moved((C, NICS["mlx5_1"]), "PIX")),
    "a GPU that sysfs has not": (DUMP, replace(TOPOLOGY, gpus=TOPOLOGY.gpus[:2], paths={})),
    "an NVLink is down": (DUMP, replace(TOPOLOGY, gpus=(gpu(0, A, 17), *TOPOLOGY.gpus[1:]))),
    "a compute NIC is not listed": (WITHOUT_NIC, TOPOLOGY),
    "a storage NIC is not listed": (WITHOUT_NIC, replace(TOPOLOGY, nics=(nic("mlx5_0"), nic("mlx5_1", "storage")))),
    # A port is not listed because its neighbour on the card is.
    "a second port is not listed": (
        DUMP.replace('name="mlx5_1"', 'name="mlx5_7"'),
        replace(TOPOLOGY, nics=(nic("mlx5_0"), replace(nic("mlx5_1"), pci="0000:1c:00.1"))),
    ),
    # Their paths are left alone.
    "a fused name": (DUMP.replace('name="mlx5_0"', 'name="mlx5_0+mlx5_1"'), FAR),
    "a name of Data Direct": (DUMP.replace('name="mlx5_0"', 'name="mlx5_0_dma"'), FAR),
    # Matched by address whatever the function. What the hypervisor hides is what such a file is for.
    "a cloud's file": (
        CLOUD,
        replace(
            TOPOLOGY,
            gpus=(gpu(0, "0001:00:00.0", 18),),
            nics=(replace(nic("mlx5_0"), pci=VF),),
            paths={("0001:00:00.0", VF): "SYS"},
        ),
    ),
}


@pytest.mark.golden
def test_where_nccl_and_sysfs_disagree() -> None:
    parts = []
    for name, (text, topology) in PICTURES.items():
        parts += [f"== {name}", *nccl_topology.disagreements(nccl_topology.parse(text), topology)]
    goldens.text("nccl_topology", "\n".join(parts) + "\n")
