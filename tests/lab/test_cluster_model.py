# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The lab's model of a run over several nodes: its figures, and that its log is of one and the same job."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from lab.cluster_faults import CATALOGUE, LOCALISED, broken, named, usual
from lab.machines import hgx_h100
from lab.toolkit import perftest_tools
from lab.toolkit.nccl_model import log, mnnvl
from lab.toolkit.nccl_model.bandwidth import Rate, duration, peak
from lab.toolkit.nccl_model.fabric import Fabric
from lab.toolkit.nccl_model.job import Job, Process, arrange, children, parent, unpack
from lab.toolkit.nccl_model.node import Gpu, Hca, Interface
from lab.toolkit.nccl_model.stop import Stop
from lab.toolkit.nccl_model.ways import errors

UUID = "0f1e2d3c-0000-4000-8000-aabbccddeeff"


def job(nodes: int = 4, gpus: int = 8, rails: int = 8, fabric: Fabric | None = None, **variables: str) -> Job:
    """One process for each GPU. Each GPU has a rail beside it, as far as there are so many."""
    said = []
    for node in range(nodes):
        hcas = [Hca(n, f"mlx5_{n}", "IB", 400, 48, True, True) for n in range(rails)]
        for place in range(gpus):
            address = f"0000:{0x10 + place:02x}:00"
            gpu = Gpu(
                address, f"GPU-{place}", "NVIDIA H100", 80 << 30, 18, 20.6, 16, "Completed", False, False, 0, "", place
            )
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


RACK, OTHER = f"{UUID} 32766", f"{UUID.replace('0f', '1f')} 32766"


def trays(*domains: str, gpus: int = 4, library: int = 22809, **variables: str) -> Job:
    """Trays of these NVLink domains, "" for none, with one process for each GPU."""
    flat = job(len(domains), gpus, gpus, None, **variables)
    said = []
    for rank in flat.ranks:
        card = replace(rank.card, nvlink=40.1, domain=domains[rank.number // gpus])
        said.append(replace(rank.process, gpus=[card], library=library))
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


@pytest.mark.parametrize(
    ("of", "nodes", "expected"),
    [
        # Published over two trays 811, over a rack 835 to 847.
        (trays(RACK, RACK), 1, 815),
        (trays(*[RACK] * 18), 1, 815),
        (trays(RACK, RACK, NCCL_NVLS_ENABLE="0"), 1, 711),
        # The network, for one reason or another: four rails of 48 GB/s, crossed once.
        (trays(RACK, RACK, NCCL_MNNVL_ENABLE="0"), 2, 332),
        (trays(RACK, RACK, NCCL_CUMEM_ENABLE="0"), 2, 332),
        (trays(RACK, RACK, library=21803), 2, 332),
        (trays(RACK, ""), 2, 332),
        # Two cliques of one tray each, and of two.
        (trays(RACK, OTHER), 2, 332),
        (trays(RACK, RACK, OTHER, OTHER), 2, None),
    ],
)
def test_trays_of_a_domain_are_one_node_where_nvlink_joins_them(of: Job, nodes: int, expected: float | None) -> None:
    assert len(of.nodes) == nodes
    assert expected is None or busbw("all_reduce", of) == pytest.approx(expected, rel=0.02)
    assert sum(map(len, of.nodes)) == len(of.ranks)
    # A rank is known by its host, whatever NCCL takes for a node.
    places = [(rank.process.host, rank.place) for rank in of.ranks]
    assert len(set(places)) == len(places)
    assert max(place for _host, place in places) == 3


@pytest.mark.parametrize(
    ("library", "joined", "group"),
    [
        (22105, "MNNVL 1 cliqueId 7ffe cliqueSize 8 cliqueRank 5 ", "headRank 5 nHeads 8 buffSize "),
        (22809, "MNNVL 1 cliqueId 7ffe cliqueSize 8 cliqueRank 5", "headRank 5 nHeads 8 nvlsRanks 8 buffSize "),
        (23007, "MNNVL 1 cliqueId 7ffe cliqueSize 8 cliqueRank 5 nvlDomainSize 8", "nHeads 8 nvlsRanks 8 buffSize "),
    ],
)
def test_the_log_of_trays_is_that_of_its_release(library: int, joined: str, group: str) -> None:
    of = trays(RACK, RACK, library=library)
    logged = log.Log({"NCCL_DEBUG": "INFO"}, library)
    said = [text for rank, _, text in log._communicator(logged, of, of.ranks[5])]
    assert joined in said
    # The UUID's halves are printed as numbers, whose first byte is the last one written.
    [fabric] = [text for text in said if text.startswith("MNNVL busId")]
    assert fabric.endswith("fabric UUID 4000003c2d1e0f.ffeeddccbbaa0080 cliqueId 0x7ffe state 3 healthMask 0x1aa")
    [shape] = [text for text in said if " nNodes " in text]
    assert shape.endswith("nRanks 8 nNodes 1 localRanks 8 localRank 5 MNNVL 1")
    ways = [text for _, _, text in log.connections(logged, of, of.ranks, Rate(1, "nvls"), "all_reduce")]
    assert any("via P2P/MNNVL" in text for text in ways)
    assert not any("via NET" in text for text in ways)
    assert any(text.startswith("NVLS comm 0x") and group in text for text in ways)


@pytest.mark.parametrize(
    ("library", "lacks", "says"),
    [
        (22501, "service", "is available but not supported on this system. Check the IMEX configuration."),
        (22809, "service", "Check the IMEX configuration (nvidia-imex-ctl -N). Set NCCL_MNNVL_ENABLE=0"),
        (22809, "channel", "Check the IMEX channel configuration (/dev/nvidia-caps-imex-channels). Set"),
    ],
)
def test_imex_that_does_not_work_is_refused_as_its_release_says_it(library: int, lacks: str, says: str) -> None:
    place, said = mnnvl.refusal(library, 8, lacks)
    assert place.startswith("mnnvl.cc:")
    assert said.startswith("MNNVL (cliqueSize 8) is available but not ")
    assert says in said


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
    faults = (*CATALOGUE, *LOCALISED)
    assert len({fault.name for fault in faults}) == len(faults)
    machines = [hgx_h100(f"node{number:02}") for number in range(1, 5)]
    same, healthy = broken(machines, {})
    assert same == machines
    assert healthy == {"leaves": {"leaf1": ["node01", "node02"], "leaf2": ["node03", "node04"]}}
    for fault in faults:
        nodes, between = broken(machines, {usual(machines): [fault]})
        changed = [one.hostname for one, was in zip(nodes, machines, strict=True) if one != was]
        assert changed == (["node03"] if fault.machine else []), fault.name
        assert fault.fabric is None or Fabric(**between) != Fabric(**healthy)
        assert changed or fault.fabric or fault.conf or fault.profile or fault.alone, fault.name


def test_several_faults_are_there_together() -> None:
    machines = [hgx_h100(f"node{number:02}") for number in range(1, 5)]
    faults = {"node01": [named("slow-node")], "node02": [named("sends-slowly")], "node03": [named("slow-node")]}
    nodes, between = broken(machines, faults)
    assert nodes == machines
    assert between["nodes"] == {"node01": 0.6, "node03": 0.6}
    assert between["sends"] == {"node02": {machines[1].rail(1).name: 0.5}}


def port(host: str, **changes: Any) -> perftest_tools.State:
    usual: dict[str, Any] = {"gbps": 400, "slot": 55.2, "read_request": 4096, "mtu": 4096}
    return perftest_tools.State(host, "mlx5_5", "IB", **{**usual, **changes})


@pytest.mark.parametrize(
    ("fabric", "there", "back", "both"),
    [
        # Of 394 Gb/s: what the client sends, what it receives, each of both at once.
        (Fabric(), 1, 1, (1, 1)),
        (Fabric(sends={"node01": {"mlx5_5": 0.5}}), 0.5, 1, (0.5, 1)),
        (Fabric(receives={"node01": {"mlx5_5": 0.5}}), 1, 0.5, (1, 0.5)),
        (Fabric(receives={"node03": {"mlx5_5": 0.5}}), 0.5, 1, (0.5, 1)),
        (Fabric(both={"node01": {"mlx5_5": 0.6}}), 1, 1, (0.6, 0.6)),
        (Fabric(rails={"node03": {"mlx5_5": 0.4}}), 0.4, 0.4, (0.4, 0.4)),
        (Fabric(rails={"node03": {"mlx5_4": 0.4}}), 1, 1, (1, 1)),
        (Fabric(nodes={"node03": 0.6}), 0.6, 0.6, (0.6, 0.6)),
        (Fabric(leaves={"a": ["node01"], "b": ["node03"]}, uplinks={"b": 0.4}), 0.4, 0.4, (0.4, 0.4)),
        (Fabric(leaves={"a": ["node01", "node03"], "b": []}, uplinks={"a": 0.4}), 1, 1, (1, 1)),
        (Fabric(gpus={"node03": {"1": 0.6}}), 1, 1, (1, 1)),
    ],
)
def test_perftest_tells_directions_apart(fabric: Fabric, there: float, back: float, both: tuple[float, float]) -> None:
    one, other, whole = port("node01"), port("node03"), 400 * 0.99 * 4096 / 4122
    measure = perftest_tools.measure
    assert measure(fabric, one, other, False, 0).figures == pytest.approx((there * whole, 0))
    assert measure(fabric, other, one, False, 0).figures == pytest.approx((back * whole, 0))
    assert measure(fabric, one, other, True, 1).figures == pytest.approx(tuple(whole * share for share in both))
    # Two tests, one each way, at once.
    assert measure(fabric, one, other, False, 1).figures[0] == pytest.approx(both[0] * whole)


def test_what_a_node_is_like_costs_its_perftest_what_it_costs() -> None:
    def sends(**changes: Any) -> float:
        return perftest_tools.measure(Fabric(), port("node01", **changes), port("node02"), False, 0).figures[0]

    def receives(**changes: Any) -> float:
        return perftest_tools.measure(Fabric(), port("node01"), port("node02", **changes), False, 0).figures[0]

    assert sends(gbps=200) == receives(gbps=200) == pytest.approx(sends() / 2)
    assert sends(slot=27.6) == receives(slot=27.6) == pytest.approx(27.6 * 8)
    assert sends(read_request=512) == pytest.approx(0.6 * sends())
    assert receives(read_request=512) == receives()
    assert sends(mtu=1024) == receives(mtu=1024) < 0.9 * sends()


def test_what_arrives_broken_is_counted_where_it_arrives() -> None:
    fibre = Fabric(receives={"node03": {"mlx5_5": 0.5}}, sends={"node02": {"mlx5_5": 0.5}})
    assert set(errors(fibre, "node03", "mlx5_5", 0, 1 << 34)) == {
        "counters/symbol_error",
        "counters/port_rcv_errors",
        "hw_counters/out_of_sequence",
    }
    assert set(errors(fibre, "node02", "mlx5_5", 1 << 34, 0)) == {
        "hw_counters/packet_seq_err",
        "hw_counters/local_ack_timeout_err",
    }
    quiet = (("node03", 1 << 34, 0), ("node02", 0, 1 << 34), ("node01", 1 << 34, 1 << 34))
    assert not any(errors(fibre, host, "mlx5_5", sent, received) for host, sent, received in quiet)
