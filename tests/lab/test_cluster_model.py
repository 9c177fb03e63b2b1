# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The lab's model of a run over several nodes: its figures, and that its log is of one and the same job."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from lab.cluster_faults import CATALOGUE, LOCALISED, broken, usual
from lab.machines import hgx_h100
from lab.toolkit import perftest_tools
from lab.toolkit.nccl_model import log
from lab.toolkit.nccl_model.bandwidth import duration, factor, peak
from lab.toolkit.nccl_model.fabric import Fabric, errors
from lab.toolkit.nccl_model.job import Job, Process, arrange, unpack
from lab.toolkit.nccl_model.node import Gpu, Hca

UUID = "0f1e2d3c-0000-4000-8000-aabbccddeeff"
RACK, OTHER = f"{UUID} 32766", f"{UUID.replace('0f', '1f')} 32766"


def job(nodes: int = 4, gpus: int = 8, rails: int = 8, fabric: Fabric | None = None, **variables: str) -> Job:
    """One process for each GPU. Each GPU has a rail beside it, as far as there are so many."""
    processes = []
    for rank in range(nodes * gpus):
        node, place = divmod(rank, gpus)
        address, nvlink = f"0000:{0x10 + place:02x}:00", 18 * 20.6
        gpu = Gpu(address, f"GPU-{place}", "H100", 80 << 30, nvlink, False, "Completed", False, False, 0, place)
        mine = Process(
            *(f"node{node + 1:02}", 100 + place, 22809, place, [gpu], variables, fabric or Fabric(), 0),
            hcas=tuple(Hca(n, f"mlx5_{n}", "IB", 400, 48, True) for n in range(rails)),
            near=([4 if place == n else 8 for n in range(rails)],),
            interface=("eno1", f"10.0.0.{node + 1}", 10),
        )
        processes.append(mine)
    return arrange([unpack(process.pack()) for process in processes])


def trays(*domains: str, gpus: int = 4, **variables: str) -> Job:
    """Trays of these NVLink domains, "" for none, with one process for each GPU."""
    processes = []
    for rank in job(len(domains), gpus, gpus, None, **variables).ranks:
        card = replace(rank.card, nvlink=18 * 40.1, blackwell=True, domain=domains[rank.number // gpus])
        processes.append(replace(rank.process, gpus=[card]))
    return arrange(processes)


LEAVES = {"one": ["node01", "node02"], "two": ["node03", "node04"]}
SOCKETS = [f"node{number:02}" for number in range(1, 5)]


def wrong(**values: Any) -> Job:
    """Four nodes with this between them."""
    return job(4, fabric=Fabric(**values), NCCL_ALGO="Ring")


@pytest.mark.parametrize(
    ("of", "busbw"),
    [
        # A ring over two nodes has the least of NVLinks and rails; NCCL's own choice hides three rails.
        (job(2, NCCL_ALGO="Ring"), 365),
        (job(2, 8, 4, NCCL_ALGO="Ring"), 190),
        (job(2), 475),
        (job(2, 8, 5), 445),
        (job(8), 380),
        (job(2, 1, 1), 47.5),
        (job(4, NCCL_NVLS_ENABLE="0"), 365),
        # What is wrong between nodes.
        (wrong(leaves=LEAVES), 365),
        (wrong(leaves=LEAVES, oversubscription=2.0), 190),
        (wrong(rails={"node03": {"mlx5_5": 0.5}}), 190),
        (wrong(without_gdr={"node03": ["mlx5_5"]}), 190),
        (wrong(gpus={"node03": {"5": 0.5}}), 183),
        (wrong(lossy=["node03"]), 133),
        (wrong(sockets=SOCKETS), 1.14),
        # Trays: published over two 811, over a rack 835 to 847.
        (trays(RACK, RACK), 815),
        (trays(*[RACK] * 18), 815),
        (trays(RACK, RACK, NCCL_NVLS_ENABLE="0"), 711),
        # The network, for one reason or another: four rails of 48 GB/s, crossed once.
        (trays(RACK, RACK, NCCL_MNNVL_ENABLE="0"), 332),
        (trays(RACK, RACK, NCCL_CUMEM_ENABLE="0"), 332),
        (trays(RACK, ""), 332),
        (trays(RACK, OTHER), 332),
    ],
)
def test_what_a_job_gets(of: Job, busbw: float) -> None:
    assert peak("all_reduce", of).busbw == pytest.approx(busbw, rel=0.02)


@pytest.mark.parametrize(
    ("size", "gpus", "variables", "published"),
    [
        *((size << 20, 8, {}, bar) for size, bar in {1: 43, 16: 234, 512: 438, 8192: 478}.items()),
        *((8 << 30, gpus, {}, bar) for gpus, bar in {2: 370, 4: 370, 6: 440}.items()),
        *((8 << 30, 8, {name: value}, 367) for name, value in (("NCCL_NVLS_ENABLE", "0"), ("NCCL_ALGO", "Ring"))),
        # Through shared memory.
        (8 << 30, 8, {"NCCL_P2P_DISABLE": "1"}, 10),
    ],
)
def test_a_healthy_node_reaches_the_published_figures(
    size: int, gpus: int, variables: dict[str, str], published: float
) -> None:
    of = job(1, gpus, 8, None, **variables)
    microseconds = duration("all_reduce", size, of, peak("all_reduce", of))
    assert size / microseconds / 1e3 * factor("all_reduce", gpus) == pytest.approx(published, rel=0.02)


def test_trays_of_a_domain_are_one_node_and_a_rank_is_known_by_its_host() -> None:
    of = trays(RACK, RACK, OTHER, OTHER)
    assert [len(ranks) for ranks in of.nodes] == [8, 8]
    assert len({(rank.process.host, rank.place) for rank in of.ranks}) == 16
    said = list(log.communicator(log.Log({}, 22809), of, of.ranks[5]))
    assert "MNNVL 1 cliqueId 7ffe cliqueSize 8 cliqueRank 5" in said
    # The UUID's halves are printed as numbers, whose first byte is the last one written.
    [fabric] = [text for text in said if text.startswith("MNNVL busId")]
    assert fabric.endswith("fabric UUID 4000003c2d1e0f.ffeeddccbbaa0080 cliqueId 0x7ffe state 3 healthMask 0x1aa")


@pytest.mark.parametrize(("nodes", "gpus", "rails"), [(2, 8, 8), (3, 8, 7), (5, 4, 8), (4, 1, 1), (2, 2, 1)])
def test_the_log_is_of_one_job(nodes: int, gpus: int, rails: int) -> None:
    of = job(nodes, gpus, rails)
    for ring in of.rings():
        assert sorted(rank.number for rank in ring) == list(range(nodes * gpus))
        # Each node is entered once.
        assert sum(one.node != other.node for one, other in zip(ring, ring[1:] + ring[:1], strict=True)) == nodes
    text = "\n".join(text for _, text in log.connections(of, of.ranks))
    form = r"^Channel (\d+)/\d : (\d+)\[\d\] -> (\d+)\[\d\] \[%s\] via NET/IB/(\d)"
    ends = [re.findall(form % way, text, re.MULTILINE) for way in ("send", "receive")]
    assert sorted(ends[0]) == sorted(ends[1]) != []
    assert all(int(sender) // gpus != int(receiver) // gpus for _, sender, receiver, _ in ends[0])
    assert {device for *_, device in ends[0]} == {str(n) for n in range(min(rails, gpus))}
    assert text.count("via NET") == text.count("/GDRDMA")


# -- faults ----------------------------------------------------------------------------------------------------------


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
        assert (Fabric(**between) != Fabric(**healthy)) is bool(fault.fabric)
        assert changed or fault.fabric or fault.conf or fault.profile or fault.alone, fault.name


# -- perftest --------------------------------------------------------------------------------------------------------


def port(host: str, **changes: Any) -> perftest_tools.State:
    usual_: dict[str, Any] = {"gbps": 400, "slot": 55.2, "read_request": 4096, "mtu": 4096}
    return perftest_tools.State(host, "mlx5_5", "IB", **{**usual_, **changes})


def of_rail(host: str, share: float) -> dict[str, dict[str, float]]:
    return {host: {"mlx5_5": share}}


@pytest.mark.parametrize(
    ("fabric", "there", "back", "opposed"),
    [
        # Of 394 Gb/s: what the client sends, what it receives, what it sends while it receives.
        (Fabric(), 1, 1, 1),
        (Fabric(sends=of_rail("node01", 0.5)), 0.5, 1, 0.5),
        (Fabric(receives=of_rail("node01", 0.5)), 1, 0.5, 1),
        (Fabric(receives=of_rail("node03", 0.5)), 0.5, 1, 0.5),
        (Fabric(both=of_rail("node01", 0.6)), 1, 1, 0.6),
        (Fabric(rails=of_rail("node03", 0.4)), 0.4, 0.4, 0.4),
        (Fabric(rails={"node03": {"mlx5_4": 0.4}}), 1, 1, 1),
        (Fabric(nodes={"node03": 0.6}), 0.6, 0.6, 0.6),
        (Fabric(leaves={"a": ["node01"], "b": ["node03"]}, uplinks={"b": 0.4}), 0.4, 0.4, 0.4),
        (Fabric(leaves={"a": ["node01", "node03"], "b": []}, uplinks={"a": 0.4}), 1, 1, 1),
        (Fabric(gpus={"node03": {"1": 0.6}}), 1, 1, 1),
    ],
)
def test_perftest_tells_directions_apart(fabric: Fabric, there: float, back: float, opposed: float) -> None:
    one, other, whole = port("node01"), port("node03"), 400 * 0.99 * 4096 / 4122
    found = [
        perftest_tools.measure(fabric, *ends).figure for ends in ((one, other, 0), (other, one, 0), (one, other, 1))
    ]
    assert found == pytest.approx([share * whole for share in (there, back, opposed)])


def test_what_arrives_broken_is_counted_where_it_arrives() -> None:
    fibre = Fabric(receives=of_rail("node03", 0.5), sends=of_rail("node02", 0.5))
    moved = {
        ("node03", 0, 1 << 34): {"counters/symbol_error", "counters/port_rcv_errors", "hw_counters/out_of_sequence"},
        ("node02", 1 << 34, 0): {"hw_counters/packet_seq_err", "hw_counters/local_ack_timeout_err"},
        ("node03", 1 << 34, 0): set(),
        ("node02", 0, 1 << 34): set(),
        ("node01", 1 << 34, 1 << 34): set(),
    }
    assert {case: set(errors(fibre, case[0], "mlx5_5", *case[1:])) for case in moved} == moved
