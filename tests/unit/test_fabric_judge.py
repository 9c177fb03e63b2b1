"""What sweeps, plan and inventory come to: a healthy fabric gives nothing, each fault its finding and nothing else."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import EXITED, ManagerEvent, from_dict, to_dict
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_judge import Host, Wanted, judge
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_map import Fabric

from .built_fabric import Built, altered, asked, build, guid

Lines = list[tuple[tuple[str, ...], Finding]]
Change = Callable[[Built], object]
BOTH = pytest.mark.parametrize("plan", [True, False], ids=["plan", "no plan"])
SHAPES = pytest.mark.parametrize("apart", [False, True], ids=["one plane", "a plane a rail"])


def bad(lines: Lines) -> Lines:
    """What is not well and follows from nothing."""
    ids = [one.id for _hosts, one in lines if not one.ok]
    assert len(set(ids)) == len(ids), "two findings with one id"
    for _hosts, one in lines:
        assert one.because is None or one.because in ids, one
    return [(hosts, one) for hosts, one in lines if not one.ok and one.because is None]


def short(lines: Lines) -> list[tuple[str, str]]:
    return [(one.check.removeprefix("ib_fabric."), one.subject) for _hosts, one in bad(lines)]


def after(change: Change, plan: bool = True, wanted: Wanted | None = None, **shape: object) -> Lines:
    """Last night all was well; then a change."""
    before = build(**shape)  # type: ignore[arg-type]
    now = copy.deepcopy(before)
    change(now)
    return judge(asked(before, now, plan, wanted))


def only(lines: Lines) -> tuple[tuple[str, ...], Finding]:
    [found] = bad(lines)
    return found


# -- nothing is wrong ----------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("seed", range(20))
def test_a_healthy_fabric_of_any_shape_says_nothing(seed: int, plan: bool) -> None:
    dice = random.Random(seed)
    leaves, spines = dice.randint(1, 4), dice.randint(1, 4)
    built = build(
        hosts=leaves * spines * dice.randint(2, 4),
        rails=dice.choice([1, 2, 8]),
        leaves=leaves,
        spines=spines,
        apart=dice.random() < 0.5,
    )
    assert short(judge(asked(built, built, plan))) == []


def test_what_is_well_is_told_to_who_swept_and_to_every_host() -> None:
    built = build()
    lines = judge(asked(built, built))
    assert {"link_speed", "link_down", "swapped", "errors", "symbol_errors", "link_downed", "saturated", "uplinks"} <= {
        one.check.removeprefix("ib_fabric.") for _hosts, one in lines
    }
    [(hosts, _one)] = [line for line in lines if line[1].check == "ib_fabric.missing_host"]
    assert hosts == tuple(built.hosts)


def test_the_order_of_sweeps_and_hosts_changes_nothing() -> None:
    before = build(apart=True)
    now = copy.deepcopy(before)
    now.swap(now.nic("node003", 1), now.nic("node004", 2))
    now.sweepers = before.sweepers = ("node000", "node005")
    one = asked(before, now)
    two = replace(one, sweeps=one.sweeps[::-1], before=one.before[::-1], hosts=dict(reversed(list(one.hosts.items()))))
    assert judge(one) == judge(two)


def test_a_sweep_judges_the_same_after_its_way_as_data() -> None:
    before = build()
    now = copy.deepcopy(before)
    now.links[now.nic("node002", 1)] = (1, "EDR")
    one = asked(before, now)
    assert judge(replace(one, sweeps=[from_dict(to_dict(sweep)) for sweep in one.sweeps])) == judge(one)


# -- links ---------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("state", ["init", "armed"])
def test_a_link_that_is_trained_and_that_nobody_has_set_up_is_told(plan: bool, state: str) -> None:
    def idle(built: Built) -> None:
        built.states[built.leaf_port("node003", 1)] = (state, "LinkUp")

    hosts, found = only(after(idle, plan))
    assert (found.check, found.subject, hosts) == ("ib_fabric.link_state", "node003 rail 1", ("node003",))
    assert (found.have, found.state) == (f"leaf03 port 2 is {state}: node003 rail 1 - leaf03 port 2", "drift")
    now = build()
    idle(now)
    question = asked(now, now, plan)
    lines = judge(replace(question, sweeps=[replace(sweep, managers=(), plane="") for sweep in question.sweeps]))
    assert {one.check: one.state for _hosts, one in bad(lines)} == {
        "ib_fabric.link_state": "unknown",
        "ib_fabric.manager": "unknown",
    }


@pytest.mark.parametrize("managed", [True, False])
def test_a_managers_log_and_its_unhealthy_ports_are_judged(managed: bool) -> None:
    before = build()
    question = asked(before, before)
    leaf, port = next(iter(before.cables.values()))
    events = (
        ManagerEvent("ERR 3113", 4, "Mar 11", "MAD completed in error"),
        ManagerEvent("ERR 0D18", 1, "Mar 11", "Found 2 ports with same GUID, duplicated"),
        ManagerEvent(EXITED, 1, "Mar 11", EXITED),
    )
    swept = replace(
        question.sweeps[0], events=events, unhealthy={(leaf, port): "FLAPPING", ("0" * 15 + "1", 3): "SET_ERR"}
    )
    if not managed:
        swept = replace(swept, managers=())
    lines = bad(judge(replace(question, sweeps=[swept])))
    assert Counter((one.check.removeprefix("ib_fabric."), one.severity) for _hosts, one in lines) == Counter(
        {
            ("manager_log", "minor"): 1,
            ("manager_log", "major"): 2 if managed else 1,
            ("unhealthy_port", "major"): 2,
            **({} if managed else {("manager_log", "critical"): 1}),
        }
    )


def test_the_slower_end_tells_and_ends_that_can_do_no_more_are_not_accused_of_it() -> None:
    built = build()
    question = asked(built, built)
    [sweep] = question.sweeps
    end = built.leaf_port("node003", 1)

    def found(**changes: object) -> Lines:
        return judge(replace(question, sweeps=[altered(sweep, end, **changes)]))

    assert only(found(width=1))[1].have == "1x NDR (100 Gb/s): node003 rail 1 - leaf03 port 2"
    _hosts, slow = only(found(speed="HDR", speed_supported="HDR"))
    assert (slow.check, slow.state) == ("ib_fabric.link_speed", "unsupported")
    assert "can do no more than 200 Gb/s" in slow.fix
    assert only(found(speed="HDR", speed_supported="NDR"))[1].state == "drift"
    # Two lanes are all that this end has.
    assert only(found(width=2, width_supported=2))[1].check == "ib_fabric.link_speed"
    unread = judge(
        replace(
            question,
            sweeps=[altered(altered(sweep, end, speed=None), built.nic("node003", 1), width=None)],
        )
    )
    assert (only(unread)[1].check, only(unread)[1].state) == ("ib_fabric.link_speed", "unknown")


def test_an_uplink_is_held_to_the_rate_of_the_rails_on_its_own_leaf() -> None:
    built = build()
    for host in built.hosts:
        built.links[built.nic(host, 0)] = (4, "HDR")
    question = asked(built, built, wanted=Wanted(oversubscription=2.0))
    hosts = {
        host: Host((known.rails[0]._replace(rate_gbps=200.0), *known.rails[1:]), "boot")
        for host, known in question.hosts.items()
    }
    [sweep] = question.sweeps

    def found(leaf: str) -> Lines:
        slow = altered(sweep, built.uplinks(built.called(leaf))[0], speed="HDR")
        return judge(replace(question, hosts=hosts, sweeps=[slow]))

    assert short(found("leaf00")) == []
    assert only(found("leaf03"))[1].check == "ib_fabric.link_speed"


def test_a_fabric_that_is_slow_as_a_whole_is_no_measure_of_itself() -> None:
    def slow(built: Built) -> None:
        built.speed = "EDR"

    _hosts, *rest = bad(after(slow, hosts=32))
    found = [one for _hosts, one in [_hosts, *rest]]
    assert {one.check for one in found} == {"ib_fabric.link_speed"}
    assert len(found) == 1
    assert "256 links at 4x EDR (100 Gb/s) in place of 400 Gb/s" in (found[0].have or "")
    assert "rails 0-3 of node[000-031]" in (found[0].have or "")


def test_what_nobody_says_the_rate_of_is_not_judged() -> None:
    """Behind a switch that only storage hangs on, and of a profile without rates."""

    def storage(built: Built) -> None:
        leaf, server = guid(0xAA00, 1), guid(0xCC00, 1)
        built.names.update({leaf: "storage-leaf", server: "storage01 mlx5_0"})
        built.sizes[leaf] = 4
        built.connect((leaf, 1), (built.called("spine00"), 20))
        built.connect((server, 1), (leaf, 2))
        built.links[leaf, 1] = built.links[leaf, 2] = (4, "EDR")

    before = build()
    storage(before)
    assert short(judge(asked(before, before))) == []
    before.rate = None  # type: ignore[assignment]
    before.speed = "SDR"
    lines = judge(asked(before, before))
    assert short(lines) == []
    assert not [one for _hosts, one in lines if one.check == "ib_fabric.link_speed"]


# -- cables --------------------------------------------------------------------------------------------------------


@BOTH
def test_of_200_pairs_of_rails_that_are_exchanged_each_is_named(plan: bool) -> None:
    """Of one host and of two, of one rail (which only a plan can tell) and of two, within a plane and across planes."""
    dice = random.Random(19)
    for trial in range(200):
        before = build(hosts=8, rails=4, leaves=2, apart=bool(trial % 2))
        now = copy.deepcopy(before)
        # Not the managers' own cables: their planes would change hands, too.
        rails = sorted(key for key in before.rails if key[0] not in ("node000", "node001"))
        one, two = dice.sample(rails, 2)
        while not plan and one[1] == two[1]:
            one, two = dice.sample(rails, 2)
        ports = now.leaf_port(*one), now.leaf_port(*two)
        now.swap(*ports)
        hosts, found = only(judge(asked(before, now, plan)))
        first, second = sorted(f"{host} rail {rail}" for host, rail in (one, two))
        assert found.check == "ib_fabric.swapped"
        assert found.subject == f"cables of {first} and {second}"
        assert set(hosts) == {one[0], two[0]}
        for node, port in ports:
            assert f"{now.names[node]} port {port}" in found.fix
        severity = "critical" if one[1] != two[1] else "major" if ports[0][0] != ports[1][0] else "minor"
        assert found.severity == (severity if plan else "critical")


def test_a_plane_keeps_its_name_where_a_cable_of_another_one_is_in_it() -> None:
    lines = after(lambda b: b.swap(b.nic("node003", 1), b.nic("node004", 2)), apart=True)
    assert {one.subject for _hosts, one in lines if one.ok and one.check == "ib_fabric.sweep"} == {
        f"plane of rail {rail}" for rail in range(4)
    }


def test_of_200_pairs_of_uplinks_that_are_exchanged_each_is_named_by_the_plan() -> None:
    dice = random.Random(20)
    for trial in range(200):
        before = build(hosts=8, rails=2, leaves=2, spines=2, apart=bool(trial % 2))
        now = copy.deepcopy(before)
        leaf = dice.choice(sorted(before.leaf_of))
        others = [one for one in before.leaf_of if not before.apart or before.leaf_of[one] == before.leaf_of[leaf]]
        one, two = dice.choice(before.uplinks(leaf)), dice.choice(before.uplinks(dice.choice(sorted(others))))
        if one == two:
            continue
        now.swap(one, two)
        hosts, found = only(judge(asked(before, now)))
        assert found.check == "ib_fabric.swapped"
        assert hosts == ("node000",)
        for node, port in (one, two):
            assert f"{now.names[node]} port {port}" in (found.have or "")


def test_cables_that_join_leaf_with_leaf_and_spine_with_spine_are_one_pair() -> None:
    def crossed(built: Built) -> None:
        built.swap(built.uplinks(built.called("leaf00"))[0], built.cables[built.uplinks(built.called("leaf03"))[2]])

    _hosts, found = only(after(crossed))
    assert found.check == "ib_fabric.swapped"
    assert found.have == "leaf00 port 5 - leaf03 port 7; spine00 port 1 - spine01 port 7"


def test_of_several_pairs_between_the_same_leaves_each_is_told_as_it_was_made() -> None:
    def two(built: Built) -> None:
        built.swap(built.nic("node003", 1), built.nic("node006", 2))
        built.swap(built.nic("node005", 1), built.nic("node004", 2))

    assert short(after(two, plan=False, hosts=16)) == [
        ("swapped", "cables of node003 rail 1 and node006 rail 2"),
        ("swapped", "cables of node004 rail 2 and node005 rail 1"),
    ]
    assert short(after(two, hosts=16)) == short(after(two, plan=False, hosts=16))
    # Half of a leaf is no majority.
    assert {check for check, _subject in short(after(two, plan=False))} == {"rail_leaf"}


def test_three_cables_that_went_round_are_one_finding() -> None:
    def around(built: Built) -> None:
        built.swap(built.nic("node003", 1), built.nic("node004", 2))
        built.swap(built.nic("node004", 2), built.nic("node005", 3))

    hosts, found = only(after(around))
    assert found.check == "ib_fabric.swapped"
    assert hosts == ("node003", "node004", "node005")
    assert found.fix.startswith("unplug the 3 cables at leaf03 port 2, leaf04 port 3, leaf07 port 3")
    assert short(after(around, plan=False)) == [
        ("rail_leaf", "node003 rail 1"),
        ("rail_leaf", "node004 rail 2"),
        ("rail_leaf", "node005 rail 3"),
    ]


def test_a_plan_of_hosts_alone_says_nothing_of_uplinks_which_the_last_sweep_then_does() -> None:
    before = build()
    hosts = replace(before.plan(), cables=tuple(cable for cable in before.plan().cables if cable.rail is not None))
    assert short(judge(replace(asked(before, before), plan=hosts))) == []
    now = copy.deepcopy(before)
    now.cut(now.uplinks(now.called("leaf03"))[0])
    assert only(judge(replace(asked(before, now), plan=hosts)))[1].check == "ib_fabric.uplinks"
    switches = replace(before.plan(), cables=tuple(cable for cable in before.plan().cables if cable.rail is None))
    assert short(judge(replace(asked(before, before), plan=switches))) == []


def test_where_leaves_hold_all_rails_of_a_node_none_is_on_another_rails_leaf() -> None:
    built = build(hosts=32, rails=1, leaves=4)
    rails = {}
    for (host, _rail), node in built.rails.items():
        leaf, place = int(host[4:]) % 4, int(host[4:]) // 4
        name = f"node{leaf * 2 + place // 4:03d}"
        built.names[node] = f"{name} mlx5_{place % 4}"
        # Every second host has one rail: its leaf has more of that than of the others.
        if place < 5:
            rails[name, place % 4] = node
    built.rails = rails
    assert short(judge(asked(built, built, plan=False))) == []


@BOTH
def test_a_cable_on_another_rails_leaf_is_told_and_explains_that_leafs_oversubscription(plan: bool) -> None:
    def move(built: Built) -> None:
        built.cut(built.nic("node003", 1))
        built.connect(built.nic("node003", 1), (built.called("leaf05"), 9), planned=False)

    lines = after(move, plan)
    hosts, found = only(lines)
    assert (found.check, found.subject, hosts) == ("ib_fabric.rail_leaf", "node003 rail 1", ("node003",))
    assert "node003 rail 1 - leaf05 port 9" in (found.have or "")
    assert [one.check for _hosts, one in lines if one.because == found.id] == ["ib_fabric.oversubscription"]


def test_a_rail_that_is_out_cannot_be_planned_away() -> None:
    """Without its line in the plan it would be missed all the same: the inventory has it."""
    _hosts, rail = only(after(lambda built: built.cut(built.nic("node003", 1))))
    assert rail.check == "ib_fabric.link_down"
    assert "out of the plan" not in rail.fix


@pytest.mark.parametrize("apart", [False, True])
def test_a_rail_on_a_spine_is_told_without_a_plan(apart: bool) -> None:
    """A spine is what only leaves are cabled to. It is not a leaf, so it is not held to uplinks either."""

    def move(built: Built) -> None:
        built.cut(built.nic("node003", 1))
        spine = built.called("spine02" if apart else "spine01")
        built.connect(built.nic("node003", 1), (spine, built.sizes[spine]), planned=False)

    hosts, found = only(after(move, False, apart=apart))
    assert (found.check, found.subject, hosts) == ("ib_fabric.rail_leaf", "node003 rail 1", ("node003",))
    assert ", a spine: what else is cabled to it is leaves" in (found.have or "")
    # One leaf for each rail where there is a plane for each: then no leaf says whose it is.
    assert (found.want or "").startswith("a leaf of rail 1: leaf02, leaf03")


def test_leaves_that_are_cabled_to_each_other_are_no_spines() -> None:
    """In a mesh one that has few hosts is not told from a spine by its cables, and not taken for one."""
    built = build(spines=0, each=1)
    leaves = [built.called(f"leaf0{number}") for number in range(8)]
    for number, one in enumerate(leaves):
        for other in leaves[number + 1 :]:
            built.sizes[one] = built.sizes[other] = 24
            built.connect((one, 10 + leaves.index(other)), (other, 10 + number), None)
    for host in ("node002", "node004", "node006"):
        built.cut(built.nic(host, 0))
        built.connect(built.nic(host, 0), (leaves[1], 18 + int(host[4:]) // 2), None)
    fabric = Fabric(asked(built, built, plan=False))
    assert fabric.spines == frozenset()


def test_another_port_of_the_right_leaf_is_a_small_matter_of_the_plan() -> None:
    def move(built: Built) -> None:
        built.cut(built.nic("node003", 1))
        built.connect(built.nic("node003", 1), (built.called("leaf03"), 9), planned=False)

    _hosts, found = only(after(move))
    assert (found.check, found.severity) == ("ib_fabric.plan", "minor")

    def to_spine(built: Built) -> None:
        built.cut(built.nic("node003", 1))
        built.connect(built.nic("node003", 1), (built.called("spine00"), 20), planned=False)

    spine = after(to_spine)
    assert (only(spine)[1].check, only(spine)[1].severity) == ("ib_fabric.plan", "major")
    assert "move the cable from leaf03 port 9 to leaf03 port 2, or correct line" in found.fix
    assert short(after(move, plan=False)) == []


def test_an_uplink_that_is_out_is_told_by_the_plan_and_without_it_by_its_leaf() -> None:
    def cut(built: Built) -> None:
        built.cut(built.uplinks(built.called("leaf03"))[0])

    lines = after(cut)
    _hosts, found = only(lines)
    assert (found.check, found.have) == (
        "ib_fabric.link_down",
        "leaf03 port 5 is down (Polling); spine00 port 7 is down (Polling)",
    )
    hosts, found = only(after(cut, plan=False))
    assert (found.check, found.want) == ("ib_fabric.uplinks", "4 uplinks")
    assert hosts == ("node001", "node003", "node005", "node007")
    # Whoever has no earlier sweep either has the other leaves.
    now = build()
    cut(now)
    _hosts, found = only(judge(replace(asked(now, now, plan=False), before=())))
    assert "3 uplinks, 4 by 7 leaves on the same spines: leaf03" in (found.have or "")


def test_sixteen_leaves_that_have_lost_an_uplink_are_one_line_which_explains_what_follows() -> None:
    def cut(built: Built) -> None:
        for leaf in built.leaf_of:
            built.cut(built.uplinks(leaf)[0])

    lines = after(cut, plan=False, rails=8)
    _hosts, found = only(lines)
    assert (found.have or "").startswith("16 leaves that have lost uplinks: leaf[00-15]")
    [follows] = [one for _hosts, one in lines if one.because == found.id]
    assert follows.check == "ib_fabric.oversubscription"


@BOTH
def test_leaves_that_are_gone_explain_a_host_whose_rails_were_all_on_them(plan: bool) -> None:
    def gone(built: Built) -> None:
        built.remove(built.called("leaf01"))
        built.remove(built.called("leaf03"))

    # The standby was behind them, too.
    assert [check for check, _subject in short(after(gone, plan, rails=2))] == ["switch", "switch", "manager"]


def test_what_follows_from_two_causes_is_counted_at_each() -> None:
    def gone(built: Built) -> None:
        built.remove(built.called("leaf03"))
        built.remove(built.called("leaf05"))

    lines = after(gone, hosts=32)
    roots = {one.id: one for _hosts, one in bad(lines)}
    assert [one.check for one in roots.values()] == ["ib_fabric.switch"] * 2
    follow = [(hosts, one) for hosts, one in lines if one.check == "ib_fabric.missing_host" and not one.ok]
    assert {one.because for _hosts, one in follow} == set(roots)
    assert [(one.have or "").partition(":")[0] for _hosts, one in follow] == ["16 rails that are not in the fabric"] * 2
