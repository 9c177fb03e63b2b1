# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The lab's model of a run over several nodes: its figures, and that its log is of one and the same job."""

from __future__ import annotations

import re
from typing import Any

import pytest

from busbar.lab.cluster_faults import CATALOGUE
from busbar.lab.machines import hgx_h100
from busbar.lab.toolkit.nccl_model import log
from busbar.lab.toolkit.nccl_model.bandwidth import Rate, duration, peak
from busbar.lab.toolkit.nccl_model.fabric import Fabric
from busbar.lab.toolkit.nccl_model.job import Job, Process, arrange, children, parent, unpack
from busbar.lab.toolkit.nccl_model.node import Gpu, Hca, Interface
from busbar.lab.toolkit.nccl_model.stop import Stop


def job(nodes: int = 4, gpus: int = 8, rails: int = 8, fabric: Fabric | None = None, **variables: str) -> Job:
    """One process for each GPU. Each GPU has a rail beside it, as far as there are so many."""
    said = []
    for node in range(nodes):
        hcas = [Hca(n, f"mlx5_{n}", "IB", 400, 48, True, True) for n in range(rails)]
        for place in range(gpus):
            address = f"0000:{0x10 + place:02x}:00"
            gpu = Gpu(address, f"GPU-{place}", "NVIDIA H100", 80 << 30, 18, 20.6, 16, "Completed", False, False, 0, "")
            near = [4 if place == n else 8 for n in range(rails)]
            where = Interface("eno1", f"10.0.0.{node + 1}", 10)
            said.append(
                Process(
                    host=f"node{node + 1:02}",
                    pid=100 + place,
                    library=22809,
                    first=place,
                    gpus=[gpu],
                    hcas=hcas,
                    near=[near],
                    interface=where,
                    variables=variables,
                    fabric=fabric or Fabric(),
                    run=0,
                )
            )
    return arrange([unpack(one.pack()) for one in said])


def busbw(collective: str, of: Job) -> float:
    return peak(collective, of).busbw


@pytest.mark.parametrize(
    ("collective", "of", "expected"),
    [
        # cluster.md 1: a ring over two nodes has the least of NVLinks and rails; NCCL's own choice hides three rails.
        ("all_reduce", job(2, NCCL_ALGO="Ring"), 365),
        ("all_reduce", job(2, 8, 4, NCCL_ALGO="Ring"), 190),
        ("all_reduce", job(2), 475),
        ("all_reduce", job(2, 8, 5), 445),
        ("all_reduce", job(8), 380),
        ("all_gather", job(8), 355),
        # Two NICs' worth at two nodes, falling to one.
        ("alltoall", job(2), 48 * 0.99 * 0.96 * 15 / 8),
        ("alltoall", job(16), 48 * 0.99 * 0.96 * 127 / 120),
        ("sendrecv", job(2), 47.5),
        # One rail.
        ("all_reduce", job(2, 1, 1), 47.5),
        ("all_reduce", job(3, 1, 1, NCCL_ALGO="Ring"), 47.5),
        ("all_reduce", job(4, NCCL_IB_DISABLE="1"), 1.14),
        ("all_reduce", job(4, NCCL_NET="Socket"), 1.14),
        # Without PXN the last GPU of a node sends by a device that is far away from it.
        ("all_gather", job(4, NCCL_PXN_DISABLE="1"), 190 * 0.97),
        ("all_gather", job(4, NCCL_PXN_DISABLE="1", NCCL_NET_GDR_LEVEL="SYS"), 355),
        ("all_reduce", job(4, NCCL_NVLS_ENABLE="0"), 365),
    ],
)
def test_what_each_collective_gets_between_nodes(collective: str, of: Job, expected: float) -> None:
    assert busbw(collective, of) == pytest.approx(expected, rel=0.02)


def test_small_sizes_cost_hops() -> None:
    """Published of two nodes: 19 us with one GPU each, 47 with eight."""
    times = [duration("all_reduce", 8, of, peak("all_reduce", of)) for of in (job(2, 1, 1), job(2), job(4), job(16))]
    assert times[:2] == [pytest.approx(19, rel=0.05), pytest.approx(47, rel=0.05)]
    assert times == sorted(times)
    sockets = job(2, NCCL_NET="Socket")
    assert duration("all_reduce", 8, sockets, peak("all_reduce", sockets)) > 2 * times[1]


def test_a_network_that_nccl_is_to_use_and_that_is_not_there_is_an_error() -> None:
    with pytest.raises(Stop, match="3"):
        _ = job(2, 8, 0, NCCL_NET="IB").network
    assert job(2, 8, 0).network == "Socket"


@pytest.mark.parametrize(("nodes", "gpus", "rails"), [(2, 8, 8), (3, 8, 7), (5, 4, 8), (4, 1, 1), (2, 2, 1)])
@pytest.mark.parametrize("library", [21803, 22809])
def test_the_log_is_of_one_job(nodes: int, gpus: int, rails: int, library: int) -> None:
    of = job(nodes, gpus, rails)
    count = nodes * gpus
    for ring in log.rings(of):
        assert sorted(rank.number for rank in ring) == list(range(count))
        # Each node is entered once.
        assert sum(one.node != other.node for one, other in zip(ring, ring[1:] + ring[:1], strict=True)) == nodes
    logged = log.Log({"NCCL_DEBUG": "INFO"}, library)
    for collective, algorithm in (("all_reduce", "ring"), ("all_reduce", "tree"), ("alltoall", "p2p")):
        texts = [text for _, _, text in log.connections(logged, of, of.ranks, Rate(1, algorithm), collective)]
        form = r"^Channel (\d+)/\d : (\d+)\[\d\] -> (\d+)\[\d\] \[%s\] via NET/IB/(\d)"
        ends = [re.findall(form % way, "\n".join(texts), re.MULTILINE) for way in ("send", "receive")]
        assert sorted(ends[0]) == sorted(ends[1]) != []
        assert all(int(sender) // gpus != int(receiver) // gpus for _, sender, receiver, _ in ends[0])
        if algorithm == "ring":
            assert {device for *_, device in ends[0]} == {str(n) for n in range(min(rails, gpus))}
            assert not [text for text in texts if "via NET" in text and "GDRDMA" not in text]


@pytest.mark.parametrize("nodes", range(2, 9))
def test_every_node_but_one_is_below_another_in_both_trees(nodes: int) -> None:
    for channel in (0, 1):
        above = [parent(channel, node, nodes) for node in range(nodes)]
        assert above.count(-1) == 1
        below = [one for node in range(nodes) for one in children(channel, node, nodes)]
        assert sorted([*below, above.index(-1)]) == list(range(nodes))
        assert max(len(children(channel, node, nodes)) for node in range(nodes)) <= 2


def test_what_is_wrong_between_nodes_costs_what_it_costs() -> None:
    def of(**values: Any) -> float:
        return busbw("all_reduce", job(4, fabric=Fabric(**values), NCCL_ALGO="Ring"))

    leaves = {"one": ["node01", "node02"], "two": ["node03", "node04"]}
    assert of() == of(leaves=leaves) == pytest.approx(365, rel=0.01)
    assert of(leaves=leaves, oversubscription=2.0) == pytest.approx(190, rel=0.01)
    assert of(rails={"node03": {"mlx5_5": 0.5}}) == pytest.approx(190, rel=0.01)
    assert of(without_gdr={"node03": ["mlx5_5"]}) == pytest.approx(190, rel=0.01)
    assert of(gpus={"node03": {"5": 0.5}}) == pytest.approx(183, rel=0.01)
    assert of(lossy=["node03"]) == pytest.approx(133, rel=0.01)
    assert of(sockets=["node01", "node02", "node03", "node04"]) == pytest.approx(1.14, rel=0.01)


def test_the_catalogue_names_each_fault_once_and_each_changes_something() -> None:
    names = [fault.name for fault in CATALOGUE]
    assert len(set(names)) == len(names)
    machines = [hgx_h100(f"node{number:02}") for number in range(1, 5)]
    for fault in CATALOGUE:
        changed = [one.hostname for one, was in zip(fault.apply(machines), machines, strict=True) if one != was]
        assert changed == (["node03"] if fault.machine else []), fault.name
        assert fault.fabric is None or Fabric(**fault.fabric(machines)) != Fabric()
        assert changed or fault.fabric or fault.conf or fault.profile or fault.alone, fault.name
