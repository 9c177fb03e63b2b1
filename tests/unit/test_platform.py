from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Problem
from ansible_collections.busbar.fabric.plugins.module_utils.machine.netdev_address import Address
from ansible_collections.busbar.fabric.plugins.module_utils.machine.platform import RAIL_STATE, CrossCheck, plan
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import Profile, draft, for_fabric, parse
from ansible_collections.busbar.fabric.plugins.module_utils.machine.rails import match
from ansible_collections.busbar.fabric.plugins.module_utils.machine.rdma import Gid, Mtus, RdmaPort, parse_gid
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Topology


def bad(topology: Topology, profile: Profile, *cross: CrossCheck) -> list[Finding]:
    return [finding for finding in plan(topology, profile, cross).findings if not finding.ok]


def one(topology: Topology, profile: Profile, *cross: CrossCheck) -> Finding:
    findings = bad(topology, profile, *cross)
    assert len(findings) == 1, [finding.id for finding in findings]
    return findings[0]


def checks(findings: list[Finding]) -> dict[str, int]:
    roots = [finding.check for finding in findings]
    return {check: roots.count(check) for check in roots}


@pytest.mark.parametrize("name", ["infiniband", "roce"])
def test_a_healthy_machine_has_only_good_findings(name: str, request: pytest.FixtureRequest) -> None:
    topology = request.getfixturevalue(name)
    profile = request.getfixturevalue("hgx_h100" if name == "infiniband" else "hgx_h100_roce")
    findings = plan(topology, profile).findings
    assert bad(topology, profile) == []
    assert len(findings) > 80
    gids = [finding for finding in findings if finding.check == "platform.rail_gid"]
    assert len(gids) == (0 if name == "infiniband" else 8)  # no intent, no finding


@pytest.mark.parametrize(
    ("index", "change", "check", "have"),
    [
        (1, {"device_current_width": 8}, "platform.rail_pcie", "32 GT/s x8"),
        (1, {"device_current_speed_gts": 16.0}, "platform.rail_pcie", "16 GT/s x16"),
        (4, {"device_numa_node": 0}, "platform.rail_numa", "node 0"),
        (5, {"port_rate_gbps": 200.0, "port_rate_name": "4X HDR"}, "platform.rail_rate", "200 Gbit/s (4X HDR)"),
        (6, {"port_state": "INIT"}, "platform.rail_state", "INIT (LinkUp)"),
    ],
)
def test_one_wrong_nic_is_one_finding(
    infiniband: Topology, hgx_h100: Profile, edit: Any, index: int, change: dict[str, Any], check: str, have: str
) -> None:
    finding = one(edit.nic(infiniband, index, **change), hgx_h100)
    assert (finding.check, finding.state, finding.because) == (check, "drift", None)
    assert finding.subject.startswith(infiniband.nics[index].pci)
    assert str(finding.have).startswith(have)


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"port_rate_gbps": None}, "platform.rail_rate"),
        ({"port_state": None}, "platform.rail_state"),
        ({"port_link_layer": None}, "platform.rail_link_layer"),
        ({"device_current_width": None}, "platform.rail_pcie"),
        ({"device_numa_node": None}, "platform.rail_numa"),
    ],
)
def test_what_could_not_be_read_is_unknown(
    infiniband: Topology, hgx_h100: Profile, edit: Any, change: dict[str, Any], check: str
) -> None:
    sick = edit.nic(infiniband, 2, **change)
    roots = [finding for finding in bad(sick, hgx_h100) if finding.because is None]
    assert [(finding.check, finding.state) for finding in roots] == [(check, "unknown")]


def test_a_port_of_the_wrong_kind_explains_its_gids(infiniband: Topology, hgx_h100: Profile, edit: Any) -> None:
    root, *follow = bad(edit.nic(infiniband, 2, port_link_layer="Ethernet"), hgx_h100)
    assert (root.check, [(f.check, f.because) for f in follow]) == (
        "platform.rail_link_layer",
        [("platform.rail_gid", root.id)],
    )


def test_an_unreadable_file_is_named(infiniband: Topology, hgx_h100: Profile, edit: Any) -> None:
    sick = edit.nic(infiniband, 2, device_numa_node=None)
    path = f"{sick.nics[2].device.source}/numa_node"
    sick = replace(sick, problems=(Problem(path, "is empty"),))
    assert f"{path}: is empty" in str(one(sick, hgx_h100).have)


def test_a_port_that_is_down_explains_its_rate(infiniband: Topology, hgx_h100: Profile, edit: Any) -> None:
    down = edit.nic(
        infiniband,
        2,
        role="down",
        port_state="DOWN",
        port_phys_state="Polling",
        port_rate_gbps=2.5,
        port_rate_name="1X SDR",
    )
    root, follows = bad(down, hgx_h100)
    assert (root.check, root.have) == ("platform.rail_state", "DOWN (Polling)")
    assert (follows.check, follows.because) == ("platform.rail_rate", root.id)


@pytest.mark.parametrize("state", ["INIT", "ARMED"])
def test_ports_that_wait_for_a_subnet_manager_have_one_cause(
    infiniband: Topology, hgx_h100: Profile, edit: Any, state: str
) -> None:
    waiting = infiniband
    for index in range(len(infiniband.nics)):
        waiting = edit.nic(waiting, index, port_state=state)
    roots = [finding for finding in bad(waiting, hgx_h100) if finding.because is None]
    assert [finding.check for finding in roots] == ["platform.rail_state"]


@pytest.mark.parametrize(
    ("state", "physical"), [("INIT", "LinkUp"), ("DOWN", "Disabled"), ("DOWN", "LinkUp"), ("DOWN", "Polling")]
)
def test_a_cable_is_advised_only_where_the_link_does_not_train(
    infiniband: Topology, hgx_h100: Profile, edit: Any, state: str, physical: str
) -> None:
    root = bad(edit.nic(infiniband, 2, port_state=state, port_phys_state=physical), hgx_h100)[0]
    assert (root.fix == RAIL_STATE.fix) == (physical == "Polling")


def test_a_missing_nic_names_its_rail(infiniband: Topology, hgx_h100: Profile, edit: Any) -> None:
    finding = one(edit.without_nic(infiniband, 3), hgx_h100)
    assert (finding.check, finding.subject, finding.have) == (
        "platform.rail_device",
        "rail 3",
        "no NIC at PIX of GPU 3",
    )


def test_a_nic_of_another_slot_is_not_taken_for_the_missing_rail(infiniband: Topology, hgx_h100: Profile) -> None:
    paths = {pair: ("NODE" if pair[1] == infiniband.nics[3].pci else path) for pair, path in infiniband.paths.items()}
    finding = one(replace(infiniband, paths=paths), hgx_h100)
    assert (finding.check, finding.subject) == ("platform.rail_device", "rail 3")


def test_no_nic_at_all_is_one_cause(infiniband: Topology, hgx_h100: Profile) -> None:
    findings = bad(replace(infiniband, nics=(), paths={}), hgx_h100)
    roots = [finding for finding in findings if finding.because is None]
    assert [(finding.check, finding.subject) for finding in roots] == [("platform.rail_device", "rails")]
    assert len(findings) == 9


@pytest.mark.parametrize("role", ["vf", "bond", "management"])
def test_what_is_not_a_rail_is_never_matched(infiniband: Topology, hgx_h100: Profile, edit: Any, role: str) -> None:
    finding = one(edit.nic(infiniband, 0, role=role), hgx_h100)
    assert (finding.check, finding.subject) == ("platform.rail_device", "rail 0")


def test_two_candidates_are_told_apart_by_rate_or_not_at_all(
    infiniband: Topology, hgx_h100: Profile, edit: Any
) -> None:
    pair = {(infiniband.gpus[0].pci, infiniband.nics[1].pci): "PIX"}
    both = replace(infiniband, paths={**infiniband.paths, **pair})
    finding = next(f for f in bad(both, hgx_h100) if f.subject == "rail 0")
    assert "2 NICs are at PIX of GPU 0" in str(finding.have)
    slower = edit.nic(both, 1, port_rate_gbps=200.0)
    assert 0 in match(slower, hgx_h100).nics


def test_two_rails_behind_one_switch_are_numbered_in_pci_order(infiniband: Topology) -> None:
    data = {
        "description": "pairs",
        "gpus": {"count": 8, "models": ["NVIDIA H100 80GB HBM3"]},
        "rail_defaults": {"rate_gbps": 400, "link_layers": ["InfiniBand"]},
        "rails": [{"paths": {0: "PXB", 1: "PXB"}}, {"paths": {0: "PXB", 1: "PXB"}}],
    }
    near = {(infiniband.gpus[g].pci, infiniband.nics[n].pci): "PXB" for g in (0, 1) for n in (0, 1)}
    rails = match(replace(infiniband, paths={**infiniband.paths, **near}), parse(data, "pairs"))
    assert [rails.nics[number].pci for number in (0, 1)] == [infiniband.nics[0].pci, infiniband.nics[1].pci]


def test_a_lost_gpu_is_the_cause_of_what_it_hides(infiniband: Topology, hgx_h100: Profile) -> None:
    seven = tuple(replace(g, index=i) for i, g in enumerate(g for g in infiniband.gpus if g.index != 6))
    findings = bad(replace(infiniband, gpus=seven), hgx_h100)
    root = findings[0]
    assert (root.check, root.have) == ("platform.gpu_count", "7 GPUs")
    assert all(finding.because == root.id for finding in findings[1:])
    assert {finding.check for finding in findings[1:]} == {"platform.rail_path", "platform.rail_numa"}


def test_a_site_profile_names_the_slot_of_a_lost_gpu_and_of_a_lost_nic(infiniband: Topology, edit: Any) -> None:
    site = for_fabric(parse(draft(infiniband)[0], "site"), None)
    seven = tuple(replace(g, index=i) for i, g in enumerate(g for g in infiniband.gpus if g.index != 6))
    root = bad(replace(infiniband, gpus=seven), site)[0]
    assert root.have == f"7 GPUs, none at {infiniband.gpus[6].pci}"
    finding = one(edit.without_nic(infiniband, 3), site)
    assert (finding.subject, finding.have) == ("rail 3", f"no NIC at {infiniband.nics[3].pci}")


def test_a_site_profile_sees_a_changed_path(infiniband: Topology) -> None:
    site = for_fabric(parse(draft(infiniband)[0], "site"), None)
    pair = (infiniband.gpus[3].pci, infiniband.nics[3].pci)
    finding = one(replace(infiniband, paths={**infiniband.paths, pair: "SYS"}), site)
    assert (finding.check, finding.want, finding.have) == ("platform.rail_path", "GPU 3: PIX", "GPU 3: SYS")


def test_a_path_that_is_far_only_for_want_of_a_numa_node_is_unknown(infiniband: Topology, edit: Any) -> None:
    data = draft(infiniband)[0]
    data["rails"][3]["paths"] = {3: "SYS"}
    data["rails"][3]["numa"] = "any"
    pair = (infiniband.gpus[3].pci, infiniband.nics[3].pci)
    far = replace(infiniband, paths={**infiniband.paths, pair: "SYS"})
    site = for_fabric(parse(data, "site"), None)
    assert bad(far, site) == []
    finding = one(edit.nic(far, 3, device_numa_node=None), site)
    assert (finding.check, finding.state) == ("platform.rail_path", "unknown")


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"model": "NVIDIA H100 PCIe"}, "platform.gpu_model"),
        ({"nvlinks_active": 17}, "platform.nvlinks"),
    ],
)
def test_one_wrong_gpu_is_one_finding(
    infiniband: Topology, hgx_h100: Profile, edit: Any, change: dict[str, Any], check: str
) -> None:
    finding = one(edit.gpu(infiniband, 5, **change), hgx_h100)
    assert (finding.check, finding.identity) == (check, infiniband.gpus[5].pci)


def test_an_idle_gpus_slow_link_is_no_fault_but_a_narrow_one_is(
    infiniband: Topology, hgx_h100: Profile, edit: Any
) -> None:
    device = infiniband.gpus[7].device
    assert bad(edit.gpu(infiniband, 7, device=replace(device, current_speed_gts=2.5)), hgx_h100) == []
    assert one(edit.gpu(infiniband, 7, device=replace(device, current_width=8)), hgx_h100).check == "platform.gpu_pcie"
    assert (
        one(edit.gpu(infiniband, 7, device=replace(device, max_speed_gts=16.0)), hgx_h100).check == "platform.gpu_pcie"
    )


def test_a_gpu_without_driver_explains_what_nobody_could_ask_it(
    infiniband: Topology, hgx_h100: Profile, edit: Any
) -> None:
    lost = edit.gpu(
        infiniband, 2, in_driver=False, model=None, nvlinks_active=None, fabric_state=None, fabric_status=None
    )
    findings = bad(lost, hgx_h100, CrossCheck("nvidia-smi topo -m", ("7 GPUs, sysfs has 8",)))
    root = next(finding for finding in findings if finding.because is None)
    assert (root.check, root.identity) == ("platform.gpu_driver", infiniband.gpus[2].pci)
    assert {finding.check for finding in findings if finding.because == root.id} == {
        "platform.gpu_model",
        "platform.nvlinks",
        "platform.cross_check",
    }
    assert all(finding.because in (None, root.id) for finding in findings)


def test_no_driver_is_one_cause(infiniband: Topology, hgx_h100: Profile) -> None:
    gpus = tuple(
        replace(g, in_driver=False, model=None, nvlinks_active=None, fabric_state=None, fabric_status=None)
        for g in infiniband.gpus
    )
    findings = bad(replace(infiniband, gpus=gpus, driver=None), hgx_h100)
    assert [f.subject for f in findings if f.because is None] == ["nvidia driver"]


def test_a_silent_nvidia_smi_is_one_cause(infiniband: Topology, hgx_h100: Profile) -> None:
    gpus = tuple(
        replace(g, nvlinks_active=None, nvlinks_total=None, fabric_state=None, fabric_status=None)
        for g in infiniband.gpus
    )
    hung = Problem("nvidia-smi --query-gpu", "did not respond within 20 s and was abandoned")
    findings = bad(
        replace(infiniband, gpus=gpus, problems=(hung,)), hgx_h100, CrossCheck("nvidia-smi topo -m", problem=hung)
    )
    root = next(finding for finding in findings if finding.because is None)
    assert (root.check, root.state) == ("platform.gpu_tool", "unknown")
    assert "abandoned" in str(root.have)
    assert all(finding.because == root.id for finding in findings if finding is not root)
    assert checks(findings) == {
        "platform.gpu_tool": 1,
        "platform.nvlinks": 8,
        "platform.nvlink_fabric": 1,
        "platform.cross_check": 1,
    }


def test_a_gpu_that_nvidia_smi_does_not_list_explains_its_links_and_the_fabric(
    infiniband: Topology, hgx_h100: Profile, edit: Any
) -> None:
    away = infiniband.gpus[4].pci
    lost = edit.gpu(infiniband, 4, nvlinks_active=None, fabric_state=None, fabric_status=None)
    lost = replace(lost, problems=(Problem("nvidia-smi --query-gpu", f"does not list the GPU at {away}"),))
    findings = bad(lost, hgx_h100)
    assert checks(findings) == {"platform.nvlinks": 1, "platform.nvlink_fabric": 1}
    assert {finding.because for finding in findings} == {f"node_health.gpu_count[live]@{away}"}


@pytest.mark.parametrize("state", ["In Progress", "Not Started"])
def test_an_unfinished_fabric_is_one_finding_for_the_node(infiniband: Topology, hgx_h100: Profile, state: str) -> None:
    gpus = tuple(replace(g, fabric_state=state, fabric_status=None) for g in infiniband.gpus)
    finding = one(replace(infiniband, gpus=gpus), hgx_h100)
    assert (finding.check, finding.subject) == ("platform.nvlink_fabric", "nvlink fabric")


def test_a_rail_without_an_address_is_a_finding(roce: Topology, hgx_h100_roce: Profile, edit: Any) -> None:
    port = roce.nics[0].rdma.ports[0]  # type: ignore[union-attr]
    bare = edit.nic(roce, 0, port_gids=port.gids[:2])
    finding = one(bare, hgx_h100_roce)
    assert (finding.check, finding.have) == ("platform.rail_gid", "none among 2 GIDs")


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
    roce: Topology,
    hgx_h100_roce: Profile,
    edit: Any,
    gids: tuple[tuple[int, str, str | None], ...],
    family: str,
    addresses: Any,
    state: str,
    says: str,
) -> None:
    made = tuple(Gid(index, parse_gid(gid), kind, "ens1") for index, gid, kind in gids)
    found = plan(edit.nic(roce, 0, port_gids=made), hgx_h100_roce, (), family, addresses).findings
    subject = roce.nics[0].pci
    finding = next(f for f in found if f.check == "platform.rail_gid" and f.identity == subject)
    assert (finding.state, finding.have) == (state, says)


def test_an_infiniband_port_sends_4096_bytes_at_once(infiniband: Topology, hgx_h100: Profile, edit: Any) -> None:
    names = [nic.rdma.name for nic in infiniband.nics if nic.rdma]
    mtus = {(name, 1): RdmaPort(4096, 4096) for name in names}

    def found(mtus: Mtus, machine: Topology = infiniband) -> list[tuple[str, str, str, bool]]:
        bad = [one for one in plan(machine, hgx_h100, (), "ipv4", None, mtus).findings if not one.ok]
        return [(one.check, one.identity, one.state, one.because is not None) for one in bad]

    small, pci = {**mtus, (names[3], 1): RdmaPort(2048, 4096)}, infiniband.nics[3].pci
    assert found(mtus) == []
    assert found(small) == [("platform.rail_mtu", pci, "drift", False)]
    assert found({**mtus, (names[3], 1): RdmaPort(2048, 2048)}) == [("platform.rail_mtu", pci, "unsupported", False)]
    assert found({one: mtu for one, mtu in mtus.items() if one[0] != names[3]}) == [
        ("platform.rail_mtu", pci, "unknown", False)
    ]
    # Nobody can ask: one finding and not eight.
    assert found(Problem("ibv_devinfo", "is not installed")) == [("platform.rail_mtu", "ibv_devinfo", "unknown", False)]
    down = edit.nic(infiniband, 3, port_state="DOWN")
    assert ("platform.rail_mtu", pci, "drift", True) in found(small, down)


def test_a_rails_firmware_is_the_declared_one(infiniband: Topology, hgx_h100: Profile, edit: Any) -> None:
    psid, version = "MT_0000000838", "28.43.8002"

    def flashed(nics: Topology, index: int, firmware: str | None, board_id: str | None = psid) -> Topology:
        rdma = nics.nics[index].rdma
        assert rdma is not None
        return edit.nic(nics, index, rdma=replace(rdma, firmware=firmware, board_id=board_id))  # type: ignore[no-any-return]

    def found(machine: Topology, declared: dict[str, str]) -> list[tuple[str, str, str]]:
        bad = [one for one in plan(machine, hgx_h100, site={"busbar_firmware": declared}).findings if not one.ok]
        return [(one.check, one.identity, one.state) for one in bad]

    good = infiniband
    for index, nic in enumerate(infiniband.nics):
        good = flashed(good, index, version) if nic.rdma else good
    check, pci = "platform.rail_firmware", good.nics[3].pci
    older = flashed(good, 3, "28.41.1000")
    assert found(good, {psid: version}) == found(older, {}) == []
    assert found(older, {psid: version}) == [(check, pci, "drift")]
    # What is declared and older than a security bulletin wants is not good for being declared.
    [old] = [
        one
        for one in plan(older, hgx_h100, site={"busbar_firmware": {psid: "28.41.1000"}}).findings
        if one.check == check and one.identity == pci
    ]
    assert (old.state, old.severity, old.want) == ("drift", "minor", "28.43.8002 or newer")
    # A card that nobody has declared is not right for that, nor one that does not say what it has.
    assert found(flashed(good, 3, version, "MT_0000000001"), {psid: version}) == [(check, pci, "unknown")]
    assert found(flashed(good, 3, None), {psid: version}) == [(check, pci, "unknown")]
    # A fleet's new PSID is one thing to declare and not eight; two that are not the same are two.
    judged = plan(flashed(good, 3, None), hgx_h100, site={"busbar_firmware": {"MT_0000000001": version}}).findings
    bad = [one for one in judged if not one.ok]
    assert [one.check for one in bad] == [check] * len(hgx_h100.rails)
    assert [(one.identity, one.because) for one in bad if one.because != bad[0].id] == [
        (bad[0].identity, None),
        (pci, None),
    ]


def test_an_ethernet_port_is_not_asked_for_an_mtu_of_its_own(roce: Topology, hgx_h100_roce: Profile) -> None:
    read: tuple[Mtus, ...] = ({}, Problem("ibv_devinfo", "is not installed"))
    for mtus in read:
        checks = {one.check for one in plan(roce, hgx_h100_roce, (), "ipv4", None, mtus).findings}
        assert "platform.rail_mtu" not in checks


def test_two_rails_with_one_address_are_one_finding_on_the_second(
    roce: Topology, hgx_h100_roce: Profile, edit: Any
) -> None:
    machine = roce
    addresses: dict[str, tuple[Address, ...]] = {}
    for index in range(8):
        v4, v6 = f"10.{16 + (2 if index == 7 else index)}.0.1", f"2001:db8::{index}"
        gid = f"0000:0000:0000:0000:0000:ffff:0a{16 + (2 if index == 7 else index):02x}:0001"
        machine = edit.nic(machine, index, port_gids=(Gid(3, gid, "RoCE v2", f"ib{index}"),))
        addresses[f"ib{index}"] = (Address(v4, 24), Address(v6, 64, family=6))
    found = [one for one in plan(machine, hgx_h100_roce, (), "ipv4", addresses).findings if not one.ok]
    assert [(one.check, one.identity, one.state) for one in found] == [
        ("platform.rail_address", machine.nics[7].pci, "drift")
    ]
    assert found[0].have == "10.18.0.1, which rail 2 (ib2) also has"
    # A VLAN that carries several rails' GIDs has its address once.
    shared = {name: (addresses["ib0"] if name == "ib0" else ()) for name in addresses}
    found = [
        one for one in plan(roce, hgx_h100_roce, (), "ipv4", shared).findings if one.check.endswith("rail_address")
    ]
    assert [one.state for one in found] == ["ok"]


def test_sources_that_disagree_prove_nothing(infiniband: Topology, hgx_h100: Profile) -> None:
    finding = one(infiniband, hgx_h100, CrossCheck("nvidia-smi topo -m", ("GPU3 - mlx5_3: says NODE",)))
    assert (finding.check, finding.state, finding.have) == (
        "platform.cross_check",
        "unknown",
        "GPU3 - mlx5_3: says NODE",
    )
