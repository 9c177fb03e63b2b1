"""Who differs from the fleet, and from what."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import rail_info
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.rail_info import HostInfo, RailInfo
from ansible_collections.busbar.fabric.plugins.plugin_utils import consistency
from ansible_collections.busbar.fabric.plugins.plugin_utils.consistency import Member

QOS = "trust dscp, PFC 3, DSCP 26 to 3"


def rail(number: int, **changes: object) -> RailInfo:
    one = RailInfo(
        number=number,
        pci=f"0000:{0x1A + number:02x}:00.0",
        device=f"mlx5_{number}",
        netdev=f"eth{number}",
        link_layer="Ethernet",
        rate_gbps=400.0,
        address=f"10.{16 + number}.0.1",
        mtu=9000,
        firmware="28.43.8002",
        psid="MT_0000000838",
        qos=QOS,
    )
    return replace(one, **changes)  # type: ignore[arg-type]


def member(name: str, **changes: object) -> Member:
    rails = tuple(rail(number, **{"address": f"10.{16 + number}.{name}", **changes}) for number in range(8))
    info = HostInfo("PowerEdge XE9680", "mlx5_core 25.10-1.7.1", rails, {})
    return Member(name, "hgx-h200 ethernet", info)


def fleet(count: int) -> list[Member]:
    return [member(f"node{number:02d}") for number in range(1, count + 1)]


def bad(members: list[Member]) -> list[tuple[str, Finding]]:
    return [
        (host, one.finding) for host, found in consistency.judge(members).items() for one in found if not one.finding.ok
    ]


def test_a_fleet_of_equals_has_no_finding() -> None:
    found = consistency.judge(fleet(4))
    assert [len(one) for one in found.values()] == [7, 7, 7, 7]
    assert bad(fleet(4)) == []


@pytest.mark.parametrize(
    ("changes", "check", "have"),
    [
        ({"firmware": "28.39.1002"}, "consistency.firmware", "28.39.1002"),
        ({"psid": "MT_0000000999"}, "consistency.psid", "MT_0000000999"),
        ({"mtu": 1500}, "consistency.mtu", "1500"),
        ({"qos": "trust pcp, PFC 3"}, "consistency.qos", "trust pcp, PFC 3"),
    ],
)
def test_the_odd_host_is_named_with_what_the_others_have(changes: dict[str, object], check: str, have: str) -> None:
    [(host, finding)] = bad([*fleet(3), member("odd", **changes)])
    assert (host, finding.check, finding.state, finding.have) == ("odd", check, "drift", have)
    assert str(finding.want).endswith("as on 3 of 4 hosts")


def test_what_no_host_can_tell_is_unknown_and_nobody_differs() -> None:
    found = bad([member(name, firmware=None) for name in ("node01", "node02")])
    assert [(host, one.check, one.state) for host, one in found] == [
        (host, "consistency.firmware", "unknown") for host in ("node01", "node02")
    ]
    assert {one.want for _host, one in found} == {"a value, which no host could tell"}


def test_one_odd_rail_is_named_by_its_number() -> None:
    odd = member("odd")
    assert odd.info is not None
    rails = tuple(rail(number, firmware="28.39.1002") if number in (3, 5) else rail(number) for number in range(8))
    found = consistency.judge([*fleet(2), replace(odd, info=replace(odd.info, rails=rails))])["odd"]
    [judged] = [one for one in found if not one.finding.ok]
    assert (judged.finding.have, judged.rails) == ("28.39.1002 on rails 3, 5", (3, 5))
    assert judged.finding.want == "28.43.8002, as on 3 of 3 hosts"


def test_another_rail_order_is_critical() -> None:
    odd = member("odd")
    assert odd.info is not None
    info = replace(odd.info, rails=tuple(reversed(odd.info.rails)))
    [(host, finding)] = bad([*fleet(2), replace(odd, info=info)])
    assert (host, finding.check, finding.severity) == ("odd", "consistency.rail_order", "critical")


def test_a_missing_rail_makes_no_other_order() -> None:
    odd = member("odd")
    assert odd.info is not None
    assert bad([*fleet(2), replace(odd, info=replace(odd.info, rails=odd.info.rails[1:], missing={0: "no NIC"}))]) == []


def test_another_driver_is_named() -> None:
    odd = member("odd")
    assert odd.info is not None
    [(_host, finding)] = bad([*fleet(2), replace(odd, info=replace(odd.info, driver="mlx5_core 6.8.0-60-generic"))])
    assert (finding.check, finding.have) == ("consistency.driver", "mlx5_core 6.8.0-60-generic")


def test_a_tie_is_told_on_both_sides_and_not_decided() -> None:
    found = bad([*fleet(2), member("a", firmware="28.39.1002"), member("b", firmware="28.39.1002")])
    assert {finding.state for _host, finding in found} == {"unknown"}
    assert sorted(host for host, _finding in found) == ["a", "b", "node01", "node02"]
    for _host, finding in found:
        assert "no majority among 4 hosts" in str(finding.want)
        assert "busbar_firmware" in finding.fix


def test_what_is_declared_is_right_whatever_most_hosts_have() -> None:
    declared = {"mtu": 4200, "qos": QOS, "firmware": {"MT_0000000838": "28.45.1020"}}
    found = bad([replace(one, **declared) for one in fleet(3)])  # type: ignore[arg-type]
    assert {finding.check for _host, finding in found} == {"consistency.firmware", "consistency.mtu"}
    assert len(found) == 6
    assert "28.45.1020, declared by busbar_firmware" in {finding.want for _host, finding in found}


def test_a_card_that_is_not_declared_is_told_by_its_psid_alone() -> None:
    firmware = {"MT_0000000838": "28.43.8002"}
    odd = replace(member("odd", psid="MT_0000000999", firmware="20.1.1"), firmware=firmware)
    found = bad([*(replace(one, firmware=firmware) for one in fleet(2)), odd])
    assert [finding.check for _host, finding in found] == ["consistency.psid"]


def test_what_could_not_be_read_is_unknown() -> None:
    odd = member("odd", firmware=None)
    assert [(host, one.state) for host, one in bad([*fleet(2), odd])] == [("odd", "unknown")]


def test_a_host_that_did_not_answer_is_unknown() -> None:
    [(host, finding)] = bad([*fleet(2), Member("lost", "hgx-h200 ethernet", None)])
    assert (host, finding.check, finding.state) == ("lost", "consistency.host", "unknown")


def test_other_kinds_and_other_machines_are_not_compared() -> None:
    other = member("other", firmware="20.43.2026", mtu=4092)
    assert other.info is not None
    assert bad([*fleet(2), replace(other, kind="hgx-h100 infiniband")]) == []
    assert bad([*fleet(2), replace(other, info=replace(other.info, product="AS-8125GS"))]) == []


@pytest.mark.parametrize("kind", ["hgx-h200 ethernet", "hgx-h100 ethernet"])
def test_an_address_of_two_hosts_is_told_on_both_and_names_the_other(kind: str) -> None:
    thief = member("thief")
    assert thief.info is not None
    rails = (*thief.info.rails[:5], replace(thief.info.rails[5], address="10.18.node01"), *thief.info.rails[6:])
    found = consistency.judge([*fleet(3), replace(thief, kind=kind, info=replace(thief.info, rails=rails))])
    odd = {host: [one for one in judged if not one.finding.ok] for host, judged in found.items()}
    assert {host: [(one.finding.check, one.rails) for one in judged] for host, judged in odd.items() if judged} == {
        "node01": [("consistency.address", (2,))],
        "thief": [("consistency.address", (5,))],
    }
    [judged] = odd["thief"]
    assert judged.finding.have == "10.18.node01 of rail 5 is rail 2 of node01, too"
    assert judged.finding.severity == "critical"


def test_rails_without_addresses_are_not_asked_for_them() -> None:
    found = consistency.judge([member(name, address=None) for name in ("a", "b")])
    assert all(one.finding.check != "consistency.address" for judged in found.values() for one in judged)


def test_a_thousand_hosts_are_compared_at_once() -> None:
    found = bad([*fleet(999), member("odd", mtu=1500)])
    assert [host for host, _finding in found] == ["odd"]


def test_information_comes_back_from_json_as_it_went() -> None:
    info = replace(member("a").info or HostInfo(None, None, (), {}), missing={7: "no NIC"})
    assert rail_info.from_dict(json.loads(json.dumps(info.to_dict()))) == info
