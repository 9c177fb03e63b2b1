from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import platform_facts
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Problem
from ansible_collections.busbar.fabric.plugins.module_utils.machine import nic_functions
from ansible_collections.busbar.fabric.plugins.module_utils.machine.netdev_address import Address
from ansible_collections.busbar.fabric.plugins.module_utils.machine.nic_functions import DirectState
from ansible_collections.busbar.fabric.plugins.module_utils.machine.platform import CrossCheck, plan
from ansible_collections.busbar.fabric.plugins.module_utils.machine.platform_checks import RAIL_STATE
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import Profile, for_fabric, parse
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile_doubts import draft
from ansible_collections.busbar.fabric.plugins.module_utils.machine.rails import match
from ansible_collections.busbar.fabric.plugins.module_utils.machine.rdma import Gid, RdmaPort, parse_gid
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Topology

from tests import golden_rows, goldens

from .conftest import Edit, built_in, machine

IB, ROCE = machine("InfiniBand"), machine("Ethernet")
H100, H100_ROCE = built_in("hgx-h100", "infiniband"), built_in("hgx-h100", "ethernet")
UNASKED = {"nvlinks_active": None, "fabric_state": None, "fabric_status": None}
UNDRIVEN = {**UNASKED, "in_driver": False, "model": None}
HUNG = Problem("nvidia-smi --query-gpu", "did not respond within 20 s and was abandoned")


def nic(index: int, topology: Topology = IB, **changes: Any) -> Topology:
    return Edit.nic(topology, index, **changes)


def gpus(**changes: Any) -> Topology:
    return replace(IB, gpus=tuple(replace(gpu, **changes) for gpu in IB.gpus))


def link(index: int, **changes: Any) -> Topology:
    return Edit.gpu(IB, index, device=IB.gpus[index].device._replace(**changes))


def path(gpu: int, to: int, kind: str, topology: Topology = IB) -> Topology:
    return replace(topology, paths={**topology.paths, (topology.gpus[gpu].pci, topology.nics[to].pci): kind})


def waiting(state: str) -> Topology:
    return functools.reduce(lambda topology, index: nic(index, topology, port_state=state), range(8), IB)


def unlisted() -> Topology:
    problem = Problem("nvidia-smi --query-gpu", f"does not list the GPU at {IB.gpus[4].pci}")
    return replace(Edit.gpu(IB, 4, **UNASKED), problems=(problem,))


def unreadable() -> Topology:
    sick = nic(2, device_numa_node=None)
    return replace(sick, problems=(Problem(f"{sick.nics[2].device.source}/numa_node", "is empty"),))


DOWN: dict[str, Any] = {"role": "down", "port_state": "DOWN", "port_phys_state": "Polling"}
SEVEN = replace(IB, gpus=tuple(replace(g, index=i) for i, g in enumerate(g for g in IB.gpus if g.index != 6)))
SITE = for_fabric(parse(draft(IB)[0], "site"), None)
FAR = draft(IB)[0]
FAR["rails"][3] |= {"paths": {3: "SYS"}, "numa": "any"}
FAR_SITE = for_fabric(parse(FAR, "site"), None)
ELSEWHERE = {pair: ("NODE" if pair[1] == IB.nics[3].pci else kind) for pair, kind in IB.paths.items()}
CASES: dict[str, tuple[Topology, Profile, *tuple[CrossCheck, ...]]] = {
    "healthy": (IB, H100),
    "healthy RoCE": (ROCE, H100_ROCE),
    "NIC at x8": (nic(1, device_current_width=8), H100),
    "NIC at 16 GT/s": (nic(1, device_current_speed_gts=16.0), H100),
    "NIC on another NUMA node": (nic(4, device_numa_node=0), H100),
    "port at 200 Gbit/s": (nic(5, port_rate_gbps=200.0, port_rate_name="4X HDR"), H100),
    "port in INIT": (nic(6, port_state="INIT"), H100),
    "no rate": (nic(2, port_rate_gbps=None), H100),
    "no state": (nic(2, port_state=None), H100),
    "no link layer": (nic(2, port_link_layer=None), H100),
    "no width": (nic(2, device_current_width=None), H100),
    "no NUMA node": (nic(2, device_numa_node=None), H100),
    "no NUMA node, unreadable": (unreadable(), H100),
    "Ethernet port": (nic(2, port_link_layer="Ethernet"), H100),
    "port down": (nic(2, **DOWN, port_rate_gbps=2.5, port_rate_name="1X SDR"), H100),
    "all ports in INIT": (waiting("INIT"), H100),
    "all ports ARMED": (waiting("ARMED"), H100),
    "NIC missing": (Edit.without_nic(IB, 3), H100),
    "NIC missing, site": (Edit.without_nic(IB, 3), SITE),
    "NIC in another slot": (replace(IB, paths=ELSEWHERE), H100),
    "no NIC": (replace(IB, nics=(), paths={}), H100),
    "VF in a rail's place": (nic(0, role="vf"), H100),
    "bond in a rail's place": (nic(0, role="bond"), H100),
    "management NIC in a rail's place": (nic(0, role="management"), H100),
    "two NICs for a rail": (path(0, 1, "PIX"), H100),
    "GPU missing": (SEVEN, H100),
    "GPU missing, site": (SEVEN, SITE),
    "path changed, site": (path(3, 3, "SYS"), SITE),
    "far path of the site": (path(3, 3, "SYS"), FAR_SITE),
    # It is far only for want of a NUMA node.
    "far path of the site, no NUMA node": (nic(3, path(3, 3, "SYS"), device_numa_node=None), FAR_SITE),
    "another model": (Edit.gpu(IB, 5, model="NVIDIA H100 PCIe"), H100),
    "17 NVLinks": (Edit.gpu(IB, 5, nvlinks_active=17), H100),
    "idle GPU at 2.5 GT/s": (link(7, current_speed_gts=2.5), H100),
    "GPU at x8": (link(7, current_width=8), H100),
    "GPU in a slot of 16 GT/s": (link(7, max_speed_gts=16.0), H100),
    "GPU without driver": (Edit.gpu(IB, 2, **UNDRIVEN), H100, CrossCheck("nvidia-smi topo -m", ("7, sysfs has 8",))),
    "no driver": (replace(gpus(**UNDRIVEN), driver=None), H100),
    "nvidia-smi hangs": (
        replace(gpus(**UNASKED, nvlinks_total=None), problems=(HUNG,)),
        H100,
        CrossCheck("nvidia-smi topo -m", problem=HUNG),
    ),
    "GPU that nvidia-smi does not list": (unlisted(), H100),
    "fabric in progress": (gpus(fabric_state="In Progress", fabric_status=None), H100),
    "fabric not started": (gpus(fabric_state="Not Started", fabric_status=None), H100),
    "rail without address": (nic(0, ROCE, port_gids=ROCE.nics[0].rdma.ports[0].gids[:2]), H100_ROCE),  # type: ignore[union-attr]
    "sources disagree": (IB, H100, CrossCheck("nvidia-smi topo -m", ("GPU3 - mlx5_3: says NODE",))),
}


@pytest.mark.golden
def test_findings_of_a_machine() -> None:
    said = []
    for case, (topology, profile, *cross) in CASES.items():
        made = plan(topology, profile, cross)
        goldens.check("platform", case, golden_rows.measured(made.findings))
        roots = tuple(one for one in made.findings if one.because is None)
        said += golden_rows.sentences(case, made._replace(findings=roots))
    goldens.text("platform", "\n".join(said) + "\n")


@pytest.mark.parametrize(
    ("state", "physical"), [("INIT", "LinkUp"), ("DOWN", "Disabled"), ("DOWN", "LinkUp"), ("DOWN", "Polling")]
)
def test_a_cable_is_advised_only_where_the_link_does_not_train(state: str, physical: str) -> None:
    findings = plan(nic(2, port_state=state, port_phys_state=physical), H100).findings
    assert (next(one for one in findings if not one.ok).fix == RAIL_STATE.fix) == (physical == "Polling")


GUEST = replace(IB, virtualization=IB.virtualization._replace(is_vm=True))


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        (IB, True),
        (nic(0, role="storage"), True),
        (nic(0, role="management"), False),
        (nic(0, role="vf"), False),
        (nic(0, GUEST, role="vf"), True),
        (nic(0, **DOWN), True),
        (replace(nic(0, **DOWN), paths=dict.fromkeys(IB.paths, "SYS")), False),
        (nic(0, rdma=None), False),
    ],
)
def test_a_nic_that_may_be_a_rail_has_rdma_and_is_up_or_near_a_gpu(topology: Topology, expected: bool) -> None:
    assert platform_facts._may_be_rail(topology, topology.nics[0]) is expected


def test_two_candidates_are_told_apart_by_rate() -> None:
    assert 0 not in match(path(0, 1, "PIX"), H100).nics
    assert 0 in match(nic(1, path(0, 1, "PIX"), port_rate_gbps=200.0), H100).nics


def test_two_rails_behind_one_switch_are_numbered_in_pci_order() -> None:
    data = {
        "description": "pairs",
        "gpus": {"count": 8, "models": ["NVIDIA H100 80GB HBM3"]},
        "rail_defaults": {"rate_gbps": 400, "link_layers": ["InfiniBand"]},
        "rails": [{"paths": {0: "PXB", 1: "PXB"}}, {"paths": {0: "PXB", 1: "PXB"}}],
    }
    near = {(IB.gpus[g].pci, IB.nics[n].pci): "PXB" for g in (0, 1) for n in (0, 1)}
    rails = match(replace(IB, paths={**IB.paths, **near}), parse(data, "pairs"))
    assert [rails.nics[number].pci for number in (0, 1)] == [IB.nics[0].pci, IB.nics[1].pci]


V4 = "0000:0000:0000:0000:0000:ffff:0a00:0001"
V6 = "2001:0db8:0000:0000:0000:0000:0000:0005"
HAS_IT: dict[str, tuple[Address, ...]] = {"ens1": (Address("10.0.0.1", 24), Address("2001:db8::5", 64, family=6))}


@pytest.mark.parametrize(
    ("gids", "family", "addresses", "state", "says"),
    [
        # At another index than usual, behind one of another address.
        (((9, "fe80::2", "RoCE v2"), (11, V4, "RoCE v2")), "ipv4", HAS_IT, "ok", "index 11: 10.0.0.1"),
        (((7, V6, "RoCE v2"),), "ipv6", HAS_IT, "ok", "index 7: 2001:db8::5"),
        (((3, V4, "RoCE v2"),), "ipv4", {"ens1": (Address("10.0.0.9", 24),)}, "drift",
         "index 3: 10.0.0.1, which ens1 does not have"),
        (((3, V4, "RoCE v2"),), "ipv4", {"ens2": (Address("10.0.0.1", 24),)}, "drift",
         "index 3: 10.0.0.1, which ens1 does not have"),
        (((2, V4, "IB/RoCE v1"),), "ipv4", HAS_IT, "drift",
         "none among 1 GIDs that is known to be RoCE v2; 10.0.0.1 is IB/RoCE v1"),
        (((2, V4, None),), "ipv4", HAS_IT, "unknown",
         "none among 1 GIDs that is known to be RoCE v2; 10.0.0.1 is of an unreadable type"),
        (((1, "fe80::2", "RoCE v2"),), "ipv4", {"ib0": (Address("10.0.0.1", 24),)}, "drift",
         "none among 1 GIDs; its interface has 10.0.0.1"),
        (((1, "fe80::2", "RoCE v2"),), "ipv4", {}, "drift", "none among 1 GIDs; its interface has no address"),
        (((3, V4, "RoCE v2"),), "ipv4", Problem("ip", "is not installed"), "unknown",
         "index 3: 10.0.0.1, and it is unknown which interface has that address: ip: is not installed"),
        (((3, V4, "RoCE v2"),), "ipv4", None, "ok", "index 3: 10.0.0.1"),
    ],
)  # fmt: skip
def test_a_rails_gid_is_known_by_its_type_and_address(
    gids: tuple[tuple[int, str, str | None], ...], family: str, addresses: Any, state: str, says: str
) -> None:
    made = tuple(Gid(index, parse_gid(gid), kind, "ens1") for index, gid, kind in gids)
    found = plan(nic(0, ROCE, port_gids=made), H100_ROCE, (), family, addresses).findings
    finding = next(f for f in found if f.check == "platform.rail_gid" and f.identity == ROCE.nics[0].pci)
    assert (finding.state, finding.have) == (state, says)


NAMES = [nic.rdma.name for nic in IB.nics if nic.rdma]
MTUS = {(name, 1): RdmaPort(4096, 4096) for name in NAMES}
SMALL = {**MTUS, (NAMES[3], 1): RdmaPort(2048, 4096)}
NO_TOOL = Problem("ibv_devinfo", "is not installed")


PSID, OTHER, VERSION, OLDER = "MT_0000000838", "MT_0000000001", "28.43.8002", "28.41.1000"


def flashed(topology: Topology, index: int, firmware: str | None, board_id: str | None = PSID) -> Topology:
    rdma = topology.nics[index].rdma
    assert rdma is not None
    return nic(index, topology, rdma=rdma._replace(firmware=firmware, board_id=board_id))


def declared(psid: str = "", version: str = "") -> dict[str, Any]:
    return {"site": {"busbar_firmware": {psid: version} if psid else {}}}


FLASHED = functools.reduce(lambda topology, index: flashed(topology, index, VERSION), range(8), IB)


def with_addresses() -> tuple[Topology, dict[str, tuple[Address, ...]]]:
    """Rail n has 10.(16 + n).0.1, and the last one that of rail 2."""
    topology = ROCE
    addresses: dict[str, tuple[Address, ...]] = {}
    for index, net in enumerate([*range(7), 2]):
        gid = f"0000:0000:0000:0000:0000:ffff:0a{16 + net:02x}:0001"
        topology = nic(index, topology, port_gids=(Gid(3, gid, "RoCE v2", f"ib{index}"),))
        addresses[f"ib{index}"] = (Address(f"10.{16 + net}.0.1", 24), Address(f"2001:db8::{index}", 64, family=6))
    return topology, addresses


TWICE, ADDRESSES = with_addresses()
# Topology, and what else plan gets.
RAILS: dict[str, tuple[Topology, dict[str, Any]]] = {
    "MTU 4096": (IB, {"mtus": MTUS}),
    "MTU 2048 of 4096": (IB, {"mtus": SMALL}),
    "MTU 2048 of 2048": (IB, {"mtus": {**MTUS, (NAMES[3], 1): RdmaPort(2048, 2048)}}),
    "MTU one unread": (IB, {"mtus": {one: mtu for one, mtu in MTUS.items() if one[0] != NAMES[3]}}),
    # Nobody can ask: one finding and not eight.
    "MTU no tool": (IB, {"mtus": NO_TOOL}),
    "MTU 2048 of 4096, port down": (nic(3, port_state="DOWN"), {"mtus": SMALL}),
    # An Ethernet port is asked for none of its own.
    "MTU RoCE": (ROCE, {"mtus": {}}),
    "MTU RoCE, no tool": (ROCE, {"mtus": NO_TOOL}),
    "firmware declared": (FLASHED, declared(PSID, VERSION)),
    "firmware older, nothing declared": (flashed(FLASHED, 3, OLDER), declared()),
    "firmware older": (flashed(FLASHED, 3, OLDER), declared(PSID, VERSION)),
    # What is older than a security bulletin wants is not good for being declared.
    "firmware older, declared": (flashed(FLASHED, 3, OLDER), declared(PSID, OLDER)),
    "firmware of a card that nobody has declared": (flashed(FLASHED, 3, VERSION, OTHER), declared(PSID, VERSION)),
    "firmware unread": (flashed(FLASHED, 3, None), declared(PSID, VERSION)),
    # A fleet's new PSID is one thing to declare and not eight; two that are not the same are two.
    "firmware of a fleet that nobody has declared, one unread": (flashed(FLASHED, 3, None), declared(OTHER, VERSION)),
    # It is a finding on the second rail.
    "an address twice": (TWICE, {"addresses": ADDRESSES}),
    # A VLAN that carries several rails' GIDs has its address once.
    "an address of a VLAN": (ROCE, {"addresses": {**dict.fromkeys(ADDRESSES, ()), "ib0": ADDRESSES["ib0"]}}),
}


@pytest.mark.golden
@pytest.mark.parametrize("case", RAILS)
def test_findings_of_rails(case: str) -> None:
    topology, more = RAILS[case]
    profile = H100_ROCE if topology in (ROCE, TWICE) else H100
    goldens.check("platform", case, golden_rows.measured(plan(topology, profile, (), **more).findings))


def test_a_vpd_that_cannot_be_read_is_no_missing_function(infiniband: Topology) -> None:
    nic = infiniband.nics[0]
    function = nic.device._replace(address="0000:ff:00.0", device=0x2100)
    state = DirectState((function,), {}, {nic.pci: Problem(nic.pci, "cannot be read")})
    [found] = nic_functions.judge(infiniband, [nic], state, True)
    assert (found.state, found.have) == ("unknown", f"{nic.pci}: cannot be read")
    assert nic_functions.judge(infiniband, [nic], state, False) == []
