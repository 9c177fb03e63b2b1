"""Which host differs from the fleet, and from what: every row of the table, and the legal variants."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.rail_info import HostInfo, RailInfo
from ansible_collections.busbar.fabric.plugins.plugin_utils.fleet import stage, table
from ansible_collections.busbar.fabric.plugins.plugin_utils.fleet.compare import compare
from ansible_collections.busbar.fabric.plugins.plugin_utils.fleet.table import Member
from ansible_collections.busbar.fabric.plugins.plugin_utils.role_result import RoleResult, role_results

from tests import goldens

QOS = "trust dscp, PFC 3, DSCP 26 to 3"
Edit = Callable[[RailInfo], dict[str, Any]]


def rail(number: int, host: int, **changes: Any) -> RailInfo:
    one = RailInfo(
        number=number,
        pci=f"0000:{0x1A + number:02x}:00.0",
        device=f"mlx5_{number}",
        netdev=f"eth{number}",
        link_layer="Ethernet",
        rate_gbps=400.0,
        address=f"10.{16 + number}.0.{host}",
        mtu=9000,
        firmware="28.43.8002",
        psid="MT_0000000838",
        qos=QOS,
        addresses=(f"10.{16 + number}.0.{host}/24",),
        guids={
            kind: f"{place}a00{number:02x}000000{host:04x}" for place, kind in enumerate(("node", "port", "system"))
        },
    )
    return replace(one, **changes)


def member(number: int, edit: Edit | None = None, rails: int = 8, **facts: str | None) -> Member:
    """Host number of a fleet that is in order. edit: rail -> what is otherwise on it."""
    plain = [rail(index, number) for index in range(rails)]
    info = HostInfo(
        *("PowerEdge XE9680", "mlx5_core 25.10-1.7.1"),
        tuple(replace(one, **(edit(one) if edit else {})) for one in plain),
        *({}, tuple(f"GPU-{number}-{index}" for index in range(8))),
    )
    known = {"kernel": "6.8.0-60", "gpu_driver": "580.95.05", "gpu_model": "NVIDIA H200", "vbios": "96.00.AE"}
    known |= {"ofed": "25.10-1.7.1", "nccl": "2.28.9", "hostname": f"n{number}", "machine_id": f"{number:032x}"}
    return Member(f"node{number:02d}", "hgx-h200 ethernet", info, {**known, **facts})


def fleet(count: int, rails: int = 8) -> list[Member]:
    return [member(number, rails=rails) for number in range(1, count + 1)]


def of_info(one: Member, **changes: Any) -> Member:
    assert one.info is not None
    return replace(one, info=replace(one.info, **changes))


def name(finding: Finding) -> str:
    return finding.check.partition(".")[2] if finding.subject == "rails" else finding.subject


def bad(members: list[Member], groups: dict[str, list[str]] | None = None) -> dict[str, list[tuple[str, str]]]:
    """Host -> check and state of what is not ok."""
    found = {
        host: [(name(one.finding), one.finding.state) for one in judged if not one.finding.ok]
        for host, judged in compare(members, groups).judged.items()
    }
    return {host: checks for host, checks in found.items() if checks}


def on(number: int, **changes: Any) -> Edit:
    return lambda one: changes if one.number == number else {}


def always(**changes: Any) -> Edit:
    return lambda one: changes


def test_a_fleet_of_equals_has_each_comparison_once_and_no_finding() -> None:
    found = compare(fleet(4))
    assert {host: [one.finding.check for one in judged] for host, judged in found.judged.items()} == {
        one.host: [row.check.id for row in table.TABLE] for one in fleet(4)
    }
    assert all(one.finding.ok and one.finding.have for judged in found.judged.values() for one in judged)
    assert not found.notes


UNIQUE = [
    (member(4, on(5, addresses=("10.18.0.1/24",), address="10.18.0.1")), "address"),
    (member(4, on(5, addresses=("10.21.0.4/24", "fd00::1/64"))), "address"),
    (member(4, on(2, guids={"node": "0a0002000000" + "0001"})), "GUIDs"),
    (member(4, on(2, guids={"system": "2a0007000000" + "0001"})), "GUIDs"),
    (member(4, hostname="n1"), "host name"),
    (member(4, machine_id=f"{1:032x}"), "machine ID"),
    (of_info(member(4), gpus=("GPU-1-3",)), "GPUs"),
]


FIRST = of_info(member(1), rails=tuple(rail(n, 1, addresses=(f"10.{16 + n}.0.1/24", "fd00::1/64")) for n in range(8)))
EQUAL = [
    (member(4, always(firmware="28.39.1002")), "firmware", "28.39.1002"),
    (member(4, on(5, firmware="28.39.1002")), "firmware", "28.39.1002 on rail 5"),
    (member(4, always(psid="MT_0000000999")), "psid", "MT_0000000999"),
    (member(4, always(mtu=1500)), "mtu", "1500"),
    (member(4, on(0, qos="trust pcp, PFC 3")), "qos", "trust pcp, PFC 3 on rail 0"),
    (member(4, kernel="6.8.0-59"), "kernel", "6.8.0-59"),
    (member(4, gpu_driver="570.1"), "NVIDIA driver", "570.1"),
    (member(4, gpu_model="NVIDIA H100"), "GPU model", "NVIDIA H100"),
    (member(4, vbios="96.00.AF"), "VBIOS", "96.00.AF"),
    (member(4, ofed="inbox"), "OFED", "inbox"),
    (member(4, nccl="2.27.3"), "NCCL", "2.27.3"),
    (of_info(member(4), driver="mlx5_core 6.8.0-60-generic"), "driver", "mlx5_core 6.8.0-60-generic"),
    (member(4, on(3, address="10.99.0.4", addresses=("10.99.0.4/24",))), "subnet", "10.99.0.0/24 on rail 3"),
]


DECLARED = {table.MTU.id: ["9000"], table.QOS.id: [QOS], table.FIRMWARE.id: ["28.43.8002"]}
ALL_ROLES = frozenset({"platform", "mtu", "roce_qos", "mofed"})


def declared(one: Member, judged: frozenset[str] = ALL_ROLES, **more: list[str]) -> Member:
    values = {**DECLARED, **{f"consistency.{name}": value for name, value in more.items()}}
    return replace(one, declared=values, judged=judged)


def stolen(number: int) -> RailInfo:
    """A rail with an address and GUIDs of another host."""
    address = f"10.16.0.{number}"
    return rail(number, 9, address=address, addresses=(f"{address}/24",), guids=rail(0, number).guids)


SUBNETS: dict[str, Edit] = {
    "a short prefix on one rail": on(3, addresses=("10.19.0.4/16",)),
    "a short prefix on all": lambda one: {"addresses": (f"10.{16 + one.number}.0.4/12",)},
    "two rails swapped": lambda one: {"addresses": (f"10.{16 + {3: 4, 4: 3}.get(one.number, one.number)}.0.4/24",)},
}
THIRD = member(3)
assert THIRD.info is not None
SWAPPED = [replace(one, pci=f"0000:{0x40 - one.number:02x}:00.0") for one in THIRD.info.rails]
OTHER = of_info(member(3, always(firmware="20.43.2026", mtu=4092)), driver="x")
INFINIBAND: dict[str, Any] = {"link_layer": "InfiniBand", "address": None, "addresses": (), "qos": "", "guids": {}}
LIAR = of_info(
    member(9, hostname="n1", kernel="x", rails=2), rails=tuple(map(stolen, range(1, 100))), gpus=("GPU-1-1", "GPU-2-1")
)
ODD = member(3, always(mtu=1500, firmware="28.39.1002"))
RACKS = {"rack1": ["node01", "node02"], "rack2": ["node03", "node04"], "all": [f"node0{n}" for n in range(1, 6)]}
KERNELS = [*fleet(2), *(member(n, kernel="6.5.0-1") for n in (3, 4)), member(5)]
# Both ends of a wire: only a declaration can mean that.
MTUS = [*fleet(2), *(member(n, always(mtu=1500)) for n in (3, 4)), member(5)]
ODD_RAILS = always(firmware="28.39.1002", mtu=1500)
OTHERWISE: dict[str, Any] = {
    "kernel": "6.8.0-59",
    "gpu_driver": "570.1",
    "gpu_model": "NVIDIA H100",
    "vbios": "96.00.AF",
}
OTHERWISE |= {"ofed": "inbox", "nccl": "2.27.3"}
# Members, groups of the inventory.
CASES: dict[str, tuple[list[Member], dict[str, list[str]]]] = {
    **{f"odd {check} {have}": ([*fleet(3), odd], {}) for odd, check, have in EQUAL},
    "two of four otherwise": (
        [*fleet(2), *(of_info(member(n, ODD_RAILS, **OTHERWISE), driver="x") for n in (4, 5))],
        {},
    ),
    "two of four with another board": ([*fleet(2), *(member(n, always(psid="MT_0000000999")) for n in (4, 5))], {}),
    # Names both, whatever their kind.
    **{
        f"{number} {check} of another host, {kind}": ([FIRST, *fleet(3)[1:], replace(clone, kind=kind)], {})
        for kind in ("hgx-h200 ethernet", "hgx-h100 ethernet")
        for number, (clone, check) in enumerate(UNIQUE)
    },
    **{f"one of two with {check} {have}": ([member(1), odd], {}) for odd, check, have in EQUAL if " on rail" in have},
    **{name: ([*fleet(3), member(4, edit)], {}) for name, edit in SUBNETS.items()},
    "another rail order": ([*fleet(2), of_info(THIRD, rails=tuple(SWAPPED))], {}),
    "a missing rail": ([*fleet(2), of_info(THIRD, rails=THIRD.info.rails[1:], missing={0: "no NIC"})], {}),
    "another kind": ([*fleet(2), replace(OTHER, kind="hgx-h100 infiniband")], {}),
    "another machine": ([*fleet(2), of_info(OTHER, product="AS-8125GS")], {}),
    "a host alone": (fleet(1), {}),
    "IPoIB beside InfiniBand": ([member(n, always(**INFINIBAND, mtu=2046 * (3 - n))) for n in (1, 2)], {}),
    "a host that lies": ([*fleet(5, rails=2), LIAR], {}),
    "one machine under two names": ([*fleet(2), replace(member(1), host="alias")], {}),
    "values not read": ([*fleet(2), member(3, always(firmware=None), kernel=None)], {}),
    "no GPU driver": ([*fleet(2), member(3, gpu_driver="", vbios="")], {}),
    "a value that no host has": ([member(n, always(firmware=None)) for n in (1, 2)], {}),
    "a host without a result": ([*fleet(2), Member("lost", "hgx-h200 ethernet", None)], {}),
    "declared": ([*map(declared, fleet(2)), declared(ODD)], {}),
    # As in verify.yml by hand.
    "declared, judged by no role": ([declared(one, frozenset()) for one in (*fleet(2), ODD)], {}),
    "declared otherwise": ([*map(declared, fleet(2)), declared(member(3), qos=["DSCP 34"], mtu=["4200"])], {}),
    "changed by this run": ([*fleet(2), replace(member(3, always(mtu=1500)), changed=frozenset({"mtu"}))], {}),
    "kernels of racks": (KERNELS, RACKS),
    "kernels of racks, and one odd": ([*KERNELS[:4], member(5, kernel="x")], RACKS),
    "half a rack": ([*fleet(3), member(4, kernel="6.5.0-1")], RACKS),
    "MTUs of racks": (MTUS, RACKS),
    "MTUs declared for racks": (
        [declared(one, mtu=["4200"] if one.host in RACKS["rack2"] else ["9000"]) for one in fleet(5)],
        RACKS,
    ),
}


@pytest.mark.golden
@pytest.mark.parametrize("case", CASES)
def test_what_differs_is_named_with_the_value_of_the_others(case: str) -> None:
    found = compare(*CASES[case])
    rows: list[Any] = []
    for host, judged in found.judged.items():
        for one in (one for one in judged if not one.finding.ok):
            row = [host, name(one.finding), one.finding.state, one.finding.severity, one.finding.because]
            rows.append([*row, f"{one.finding.have}"[:100], f"{one.finding.want}"[:100], [*one.rails]])
    goldens.check("fleet", case, [*rows, *([{"notes": sorted(found.notes)}] if found.notes else [])])


def addressed(text: str) -> Callable[[int], Member]:
    def of(host: int) -> Member:
        def edit(one: RailInfo) -> dict[str, Any]:
            words = text.format(r=one.number, h=host, s=16 + one.number, p=2 * host, leaf=host // 4).split()
            return {"addresses": tuple(words), "address": words[0].partition("/")[0]}

        return member(host, edit)

    return of


@pytest.mark.parametrize(
    "text",
    [
        "10.0.{h}.{s}/16",  # one flat subnet
        "10.{s}.{h}.{p}/31",  # a cable each
        "10.{s}.{h}.2/30",  # a subnet for each host and rail
        "10.{s}.{leaf}.{h}/24",  # a plan for each leaf
        "10.{s}.0.{h}/32",  # routed to the host
        "10.{s}.0.{h}/24 10.255.0.1/32",  # a virtual address
        "fd00:{s}::{h}/64 fe80::1/64",
    ],
)
@pytest.mark.parametrize("count", [2, 3, 9])
def test_legal_plans_of_addresses_have_no_finding(text: str, count: int) -> None:
    assert bad([addressed(text)(host) for host in range(1, count + 1)]) == {}


def test_a_thousand_hosts_are_compared_in_well_under_a_second() -> None:
    def large(host: int) -> Member:
        def edit(one: RailInfo) -> dict[str, Any]:
            address = f"10.{16 + one.number}.{host // 250}.{host % 250 + 1}"
            return {"address": address, "addresses": (f"{address}/16",), "mtu": 1500 if host == 999 else 9000}

        return member(host, edit)

    members = [large(host) for host in range(1000)]
    begun = time.process_time()
    found = bad(members)
    print(f"{time.process_time() - begun:.2f} s")
    assert time.process_time() - begun < 3
    assert found == {"node999": [("mtu", "drift")]}


def results(one: Member, **more: object) -> dict[str, RoleResult]:
    assert one.info is not None
    read = {"rail_info": json.loads(json.dumps(one.info.to_dict())), "facts": dict(one.facts)}
    return role_results({"platform": {**Plan().result(), **read, **more}})


def joined(members: list[Member], groups: dict[str, list[str]] | None = None, **more: Any) -> dict[str, RoleResult]:
    found = {one.host: results(one) for one in members} | more
    fleet_stage = stage.Fleet({one.host: {"kind": one.kind, "declared": dict(one.declared)} for one in members})
    roles = fleet_stage.join(found, ["platform"], {"groups": groups or {}})
    assert (stage.ROLE in roles) == (len(members) > 1)
    return {host: of_host[stage.ROLE] for host, of_host in found.items() if stage.ROLE in of_host}


def test_every_run_over_two_hosts_finds_what_they_share() -> None:
    """The same eight rail addresses on two RoCE nodes: the verdict was ok."""
    clone = member(
        2, lambda one: {"address": f"10.{16 + one.number}.0.1", "addresses": (f"10.{16 + one.number}.0.1/24",)}
    )
    both = [member(1), clone]
    found = joined(both)
    assert [[one.check for one in of_host.findings] for of_host in found.values()] == [["consistency.address"]] * 2
    assert joined([member(1)]) == {}
    # A playbook that is for something else compares nothing.
    assert stage.Fleet().join({one.host: results(one) for one in both}, ["ib_fabric"], {}) == ["ib_fabric"]


def test_over_how_many_hosts_was_compared_is_noted_and_a_lost_host_costs_nobody() -> None:
    lost = role_results({"platform": {"unreachable": True, "msg": "refused"}})
    junk = results(member(3), rail_info={"rails": "x"}, facts={"hostname": ["n1"]})
    found = joined(fleet(2), {"gpu_nodes": ["node01", "node02", "lost", "junk", "more"]}, lost=lost, junk=junk)
    assert {host: of_host.findings for host, of_host in found.items()} == dict.fromkeys(found, ())
    assert [host for host, of_host in found.items() if "2 of 5 hosts" in str(of_host.notes)] == ["node01", "node02"]


@pytest.mark.parametrize(
    ("roles", "off", "rows"),
    [
        (["platform", "mtu"], {}, ["consistency.mtu"]),
        # Left out by tags, or by the host's own values: nobody is to bring the host to what is declared.
        (["platform"], {}, []),
        (["platform", "mtu"], {"node01": {"mtu": "off"}}, []),
    ],
)
def test_a_declaration_is_judged_where_its_role_works(
    roles: list[str], off: dict[str, dict[str, str]], rows: list[str]
) -> None:
    members = [declared(member(1, always(mtu=1500)), qos=[]), replace(member(2), kind="hgx-h100 infiniband")]
    found = {one.host: results(one) for one in members}
    fleet_stage = stage.Fleet({one.host: {"kind": one.kind, "declared": dict(one.declared)} for one in members})
    fleet_stage.join(found, roles, {}, off)
    wrong = [one.check for one in found["node01"][stage.ROLE].findings]
    assert [check for check in wrong if check == table.MTU.id] == rows


def test_a_difference_follows_from_what_the_host_itself_says() -> None:
    cause = Finding("ofed.loaded", "mlx5_core", "drift", "major", "a", "b", "c", "d", fix="e")
    members = [*fleet(2), of_info(member(3), driver="mlx5_core 6.8.0-60-generic")]
    found = {one.host: results(one) for one in members}
    found["node03"]["mofed"] = RoleResult(findings=(cause,))
    stage.Fleet({one.host: {"kind": one.kind} for one in members}).join(found, ["platform"], {})
    assert [one.because for one in found["node03"][stage.ROLE].findings] == [cause.id]


def test_the_declaration_of_an_intent_is_its_kind_and_its_values() -> None:
    values = {"busbar_fabric": "ethernet", "busbar_mtu": 9000, "busbar_roce": {"dscp": 26, "priority": 3}}
    names = ("trust", "dscp2prio", "pfc", "ecn", "prio2tc", "tsa", "tc_bandwidth", "cable_length", "prio2buffer")
    more = (*names, "buffer_size", "tos", "traffic_class", "dcbx", "pause_off")
    found = stage.declaration(
        {"profile_name": "p", "values": {**{f"roce_qos_{name}": None for name in more}, **values}}
    )
    assert found == {"kind": "p ethernet", "declared": {table.QOS.id: [QOS], table.MTU.id: ["9000"]}}
    assert stage.declaration({}) == {}
