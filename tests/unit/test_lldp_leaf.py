# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which rail is plugged into which leaf: fabrics made here, cables exchanged at random, with and without a plan."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.cabling_plan import Cable, Plan
from ansible_collections.busbar.fabric.plugins.plugin_utils.fleet import lldp_leaf
from ansible_collections.busbar.fabric.plugins.plugin_utils.fleet.lldp_leaf import End


def fabric(units: int = 2, hosts: int = 8, rails: int = 8, per_leaf: int = 1, members: int = 1) -> list[End]:
    """Rail-optimised: each unit has a leaf for every `per_leaf` rails; of a bond each member has a leaf of its own."""
    ends = []
    for unit, host, rail, member in product(range(units), range(hosts), range(rails), range(members)):
        leaf = rail // per_leaf
        port, mac = f"swp{host * per_leaf + rail % per_leaf + 1}", f"44:38:39:{unit:02x}:{leaf:02x}:{member:02x}"
        rail_port = (f"node{unit}{host:02}", rail, f"ens{rail}f{member}", f"mlx5_{rail}")
        ends.append(End(*rail_port, mac, f"leaf-{unit}-{leaf}-{member}", port))
    return ends


def plan_of(ends: Sequence[End]) -> Plan:
    """Of healthy ends, by the names of their interfaces."""
    return Plan(
        tuple(Cable(end.host, end.netdev, end.name, end.port, end.rail, line) for line, end in enumerate(ends, 2)),
        "plan.csv",
    )


def moved(end: End, to: End, port: str = "") -> End:
    return replace(end, chassis=to.chassis, name=to.name, port=port or to.port)


def exchanged(ends: Sequence[End], one: End, other: End) -> list[End]:
    instead = {one: moved(one, other), other: moved(other, one)}
    return [instead.get(end, end) for end in ends]


def wrong(ends: Sequence[End], plan: Plan | None = None) -> dict[str, list[str]]:
    """Subject of what is not ok -> hosts that it is told of."""
    found: dict[str, list[str]] = {}
    for host, findings in lldp_leaf.judge(ends, plan).items():
        assert findings, "a host that was compared has a finding, be it good"
        for one in findings:
            if not one.ok:
                found.setdefault(f"{one.check} {one.state} {one.subject}", []).append(host)
    return found


def pair(one: End, other: End) -> dict[str, list[str]]:
    first, second = sorted((one, other), key=lambda end: (end.host, end.rail))
    subject = f"{first.host} rail {first.rail}, {second.host} rail {second.rail}"
    return {f"lldp.swapped drift {subject}": sorted({one.host, other.host})}


HEALTHY = [
    fabric(),
    fabric(units=3, hosts=4, per_leaf=2),
    # All rails of a rack on one switch.
    fabric(units=4, hosts=4, per_leaf=8),
    fabric(units=1, hosts=1),
    fabric(units=1, hosts=2),
    # Each host with a switch of its own.
    fabric(units=4, hosts=1, per_leaf=8),
    fabric(members=2),
    fabric(units=1, hosts=4, rails=2),
]


@pytest.mark.parametrize("ends", HEALTHY)
def test_a_healthy_fabric_has_nothing_to_report(ends: list[End]) -> None:
    assert wrong(ends) == {}
    assert wrong(ends, plan_of(ends)) == {}
    assert {one.id for findings in lldp_leaf.judge(ends).values() for one in findings} == {"lldp.leaf[live]@rails"}


@pytest.mark.parametrize("seed", range(200))
def test_a_swapped_pair_is_found_and_named_by_both_ends(seed: int) -> None:
    """Any two cables between different leaves, without a plan; any two at all, with it."""
    rng = random.Random(seed)
    size = {"units": rng.randint(1, 4), "hosts": rng.randint(4, 12), "rails": rng.choice((4, 8))}
    ends = fabric(**size, per_leaf=rng.choice((1, 1, 2)))
    one = rng.choice(ends)
    other = rng.choice([end for end in ends if end.name != one.name])
    assert wrong(exchanged(ends, one, other)) == pair(one, other)
    other = rng.choice([end for end in ends if end is not one])
    if other.host != one.host or other.rail != one.rail:
        assert wrong(exchanged(ends, one, other), plan_of(ends)) == pair(one, other)


Place = tuple[str, int]


@pytest.mark.parametrize(
    ("units", "hosts", "pairs"),
    [
        (2, 8, [(("node000", 0), ("node000", 1)), (("node003", 2), ("node005", 6)), (("node101", 4), ("node007", 4))]),
        # The first and the last of these four hosts exchange one cable with each other, the two between them their own.
        (1, 16, [(("node000", 0), ("node005", 1)), (("node002", 0), ("node002", 1)), (("node003", 0), ("node003", 1))]),
        # Two hosts with the same two cables exchanged do not vouch for each other.
        (1, 8, [(("node002", 0), ("node002", 1)), (("node003", 0), ("node003", 1))]),
    ],
)
def test_several_pairs_at_once_are_as_many_findings(units: int, hosts: int, pairs: list[tuple[Place, Place]]) -> None:
    ends = fabric(units=units, hosts=hosts)
    by = {(end.host, end.rail): end for end in ends}
    broken = list(ends)
    expected: dict[str, list[str]] = {}
    for one, other in pairs:
        broken = exchanged(broken, by[one], by[other])
        expected |= pair(by[one], by[other])
    assert wrong(broken) == expected
    assert wrong(broken, plan_of(ends)) == expected


def test_three_cables_that_have_moved_on_by_one_are_no_pair() -> None:
    ends = fabric(units=1)
    broken = [*map(moved, ends[:3], (*ends[1:3], ends[0])), *ends[3:]]
    for plan in (None, plan_of(ends)):
        assert wrong(broken, plan) == {f"lldp.leaf drift rail {rail}": ["node000"] for rail in (0, 1, 2)}


def test_one_cable_that_is_elsewhere_is_the_finding_of_its_host() -> None:
    ends = fabric()
    broken = [moved(ends[0], ends[5], "swp60"), *ends[1:]]
    [finding] = [one for one in lldp_leaf.judge(broken)["node000"] if not one.ok]
    assert (finding.check, finding.subject) == ("lldp.leaf", "rail 0")
    assert (finding.want, finding.have) == ("leaf-0-0-0", "leaf-0-5-0 swp60")
    [finding] = [one for one in lldp_leaf.judge(broken, plan_of(ends))["node000"] if not one.ok]
    assert finding.want == "leaf-0-0-0 swp1 (plan, line 2)"


def test_two_hosts_that_differ_are_unknown_and_not_guessed() -> None:
    ends = fabric(units=1, hosts=2)
    broken = exchanged(ends, ends[0], ends[1])
    assert wrong(broken) == {"lldp.leaf unknown rails": ["node000", "node001"]}
    assert wrong(broken, plan_of(ends)) == pair(ends[0], ends[1])
    # Of eight hosts the other leaf tells it, where there are but two rails.
    ends = fabric(units=1, hosts=8, rails=2)
    assert wrong(exchanged(ends, ends[0], ends[1])) == pair(ends[0], ends[1])


def test_a_plan_names_hosts_ports_and_switches_in_its_own_way() -> None:
    end = End("gpu1.example.com", 3, "ens3", "mlx5_3", "44:38:39:00:00:03", "Leaf-3.example.com", "swp7", "to gpu1")
    for cable in (
        Cable("GPU1", "mlx5_3", "leaf-3", "SWP7", 3, 2),
        Cable("gpu1", "mlx5_3/1", "leaf-3.example.com", "swp7", None, 2),
        Cable("gpu1", 4, "443839000003", "swp7", 3, 2),
        Cable("gpu1", 4, "0123456789abcdef", "to gpu1", 3, 2, z_name="leaf-3"),
        Cable("leaf-3", "swp7", "gpu1", "ens3", None, 2, "switch", "host"),
    ):
        assert wrong([end], Plan((cable,), "plan.csv")) == {}, cable
    other = Plan((Cable("gpu1", "mlx5_2", "leaf-3", "swp7", 2, 2),), "plan.csv")
    assert wrong([end], other) == {"lldp.leaf unknown rail 3": ["gpu1.example.com"]}
    # One of another fabric: the hosts are compared with each other.
    assert wrong([end], Plan((Cable("gpu9", "mlx5_3", "leaf-3", "swp7", 3, 2),), "plan.csv")) == {}


def test_names_of_switches_are_text_and_nothing_else() -> None:
    ends = [replace(end, name="<script>\x1b[31m{{ 7 }}") for end in fabric(units=1)]
    broken = exchanged(ends, ends[0], ends[1])
    [finding] = [one for one in lldp_leaf.judge(broken)["node000"] if not one.ok]
    assert "\x1b" not in f"{finding.want}{finding.have}"
    # A host that lies costs the others nothing.
    ends = fabric(units=1)
    for lie in (ends[1], End("", 0, "", "", "x", "x", "")):
        lies = [replace(lie, host=end.host, rail=end.rail) if end.host == "node000" else end for end in ends]
        assert {host for hosts in wrong(lies).values() for host in hosts} <= {"node000"}
