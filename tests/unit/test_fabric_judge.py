"""What holds of any fabric: of healthy ones, exchanged cables, names of a plan, hostile sweeps, and of size."""

from __future__ import annotations

import copy
import itertools
import random
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import Node, Sweep
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.cabling_plan import Plan
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.evidence import Evidence, Host, Line, Wanted
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.judge import judge
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.map import Fabric

from .built_fabric import Built, asked, build, corrupt, guid

Lines = list[Line]
Change = Callable[[Built], object]
BOTH = pytest.mark.parametrize("plan", [True, False], ids=["plan", "no plan"])
SHAPES = pytest.mark.parametrize("apart", [False, True], ids=["one plane", "a plane a rail"])


def bad(lines: Lines) -> Lines:
    """What is not well and follows from nothing."""
    ids = [one.id for _hosts, one in lines if not one.ok]
    assert len(set(ids)) == len(ids), "two findings with one id"
    for _hosts, one in lines:
        assert one.because is None or one.because in ids, one
    return [line for line in lines if not line.finding.ok and line.finding.because is None]


def short(lines: Lines) -> list[tuple[str, str]]:
    return [(one.check.removeprefix("ib_fabric."), one.subject) for _hosts, one in bad(lines)]


def only(lines: Lines) -> Line:
    [found] = bad(lines)
    return found


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


def test_the_order_of_sweeps_and_hosts_changes_nothing() -> None:
    before = build(apart=True)
    now = copy.deepcopy(before)
    now.swap(now.nic("node003", 1), now.nic("node004", 2))
    now.sweepers = before.sweepers = ("node000", "node005")
    one = asked(before, now)
    two = replace(one, sweeps=one.sweeps[::-1], before=one.before[::-1], hosts=dict(reversed(list(one.hosts.items()))))
    assert judge(one) == judge(two)


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


def test_an_hca_with_two_ports_is_in_two_planes() -> None:
    before = build(rails=2, apart=True)
    now = copy.deepcopy(before)
    second = {before.rails[host, 1]: before.rails[host, 0] for host in before.hosts}

    def joined(sweep: Sweep) -> Sweep:
        """The HCA of rail 1 as port 2 of that of rail 0; each plane sees the other's port as one without a cable."""
        first = sweep.device == "mlx5_0"
        nodes = []
        for node in sweep.nodes:
            ports = tuple(
                replace(port, peer=(second[port.peer[0]], 2)) if port.peer and port.peer[0] in second else port
                for port in node.ports
            )
            if node.kind == "ca":
                own = replace(ports[0], number=1 if first else 2)
                other = replace(ports[0], number=2 if first else 1, peer=None, state="active", guid=None)
                ports = (own, other) if first else (other, own)
            nodes.append(replace(node, guid=second.get(node.guid, node.guid), ports=ports))
        return replace(sweep, nodes=tuple(nodes))

    def question() -> Evidence:
        asks = asked(before, now, plan=False)
        hosts = {
            host: Host((known.rails[0], known.rails[1]._replace(node_guid=known.rails[0].node_guid, port=2)), "boot")
            for host, known in asks.hosts.items()
        }
        sweeps, earlier = ([joined(sweep) for sweep in some] for some in (asks.sweeps, asks.before))
        return replace(asks, sweeps=sweeps, before=earlier, hosts=hosts)

    assert short(judge(question())) == []
    now.links[now.nic("node003", 1)] = (1, "NDR")
    now.cut(now.nic("node004", 0))
    assert sorted(short(judge(question()))) == [("link_width", "node003 rail 1"), ("missing_host", "node004 rail 0")]
    assert "plane of rail 1" in {one.subject for _hosts, one in judge(question()) if one.ok}


@pytest.mark.parametrize("named", ["0x{guid}", "{guid}", "{colons}", "node000 mlx5_0", "node000"])
def test_only_managers_that_the_site_names_may_be_there(named: str) -> None:
    built = build()
    digits = built.port_guid(built.rails["node000", 0])
    first = named.format(guid=digits, colons=":".join(digits[at : at + 4] for at in range(0, 16, 4)))
    question = asked(built, built)
    [sweep] = question.sweeps
    managers = (replace(one, description=f"node00{number} mlx5_0") for number, one in enumerate(sweep.managers))
    question = replace(question, sweeps=[replace(sweep, managers=tuple(managers))])
    assert short(judge(replace(question, wanted=Wanted(managers=(first, "node001 mlx5_0"))))) == []
    _hosts, found = only(judge(replace(question, wanted=Wanted(managers=(first,)))))
    assert (found.check, found.state) == ("ib_fabric.manager", "drift")
    assert "node001 rail 0" in (found.have or "")
    assert "node000" not in (found.have or "")


def named(built: Built) -> Plan:
    """The plan in words: hosts with their HCAs, switches by what they call themselves."""
    cables = []
    for cable in built.plan().cables:
        host, _blank, device = built.names[cable.a_node].partition(" ")
        cables.append(replace(cable, a_node=host, a_port=device or cable.a_port, z_node=built.names[cable.z_node]))
    return Plan(tuple(cables), "plan.csv")


@SHAPES
def test_a_plan_in_names_says_the_same(apart: bool) -> None:
    before = build(apart=apart)
    now = copy.deepcopy(before)
    question = asked(before, now)
    # The column of rails, the HCA's name in the inventory, and what the HCA calls itself: each is enough.
    nameless = {
        host: Host(tuple(rail._replace(device="") for rail in known.rails), known.boot_id)
        for host, known in question.hosts.items()
    }
    railless = Plan(tuple(replace(cable, rail=None) for cable in named(before).cables), "plan.csv")
    # As a spreadsheet of another department spells them.
    spelled = Plan(
        tuple(
            replace(
                cable,
                a_node=f"{cable.a_node}.EXAMPLE.COM".upper(),
                a_port=str(cable.a_port).upper(),
                z_node=f"{cable.z_node.upper()}.example.com",
            )
            for cable in railless.cables
        ),
        "plan.csv",
    )
    for hosts, plan in itertools.product((question.hosts, nameless), (named(before), railless, spelled)):
        assert short(judge(replace(question, hosts=hosts, plan=plan))) == [], plan
    now.swap(now.nic("node003", 1), now.nic("node004", 2))
    changed = replace(asked(before, now), plan=named(before))
    assert only(judge(changed)) == only(judge(asked(before, now)))


@pytest.mark.parametrize("lost", ["ports", "name"])
def test_a_switch_that_was_read_in_part_is_accused_of_no_cable(lost: str) -> None:
    built = build()
    question = asked(built, built)

    def part(node: Node) -> Node:
        if node.guid != built.called("spine01"):
            return node
        if lost == "name":
            return replace(node, description="")
        return replace(node, ports=(*node.ports[:2], replace(node.ports[2], peer=None)))

    sweeps = [replace(sweep, complete=False, nodes=tuple(map(part, sweep.nodes))) for sweep in question.sweeps]
    found = judge(replace(question, sweeps=sweeps, before=(), plan=named(built)))
    assert {(one.check, one.state) for _hosts, one in found if not one.ok} == {("ib_fabric.sweep", "unknown")}


def test_what_nodes_call_themselves_commands_nothing_and_may_all_be_the_same() -> None:
    before = build()
    for node in before.names:
        before.names[node] = "\x1b[31m<script>'\"{{ 1 }}" + "x" * 100
    now = copy.deepcopy(before)
    now.swap(now.nic("node003", 1), now.nic("node004", 2))
    now.cut(now.uplinks(guid(0xA000, 64))[0])
    stranger_at = guid(0xEE00, 1)
    now.names[stranger_at] = "\x1b[2J"
    now.connect((stranger_at, 1), (guid(0xA000, 0), 11), planned=False)
    found = bad(judge(asked(before, now)))
    assert sorted(check for check, _subject in short(found)) == ["link_down", "swapped", "unknown_host"]
    for _hosts, one in found:
        assert f"{one.subject}{one.have}{one.want}{one.fix}".isprintable()
    [(_hosts, pair)] = [line for line in found if line[1].check == "ib_fabric.swapped"]
    assert "0xa000000000000041 port 2" in pair.fix


@pytest.mark.parametrize("seed", range(40))
def test_nothing_that_a_sweep_may_hold_ends_the_judgement(seed: int) -> None:
    dice = random.Random(seed)
    built = build(rails=dice.choice([1, 4]), spines=dice.choice([1, 2]), apart=dice.random() < 0.5)
    wanted = Wanted(partitions=(0x8001,)) if dice.random() < 0.3 else None
    question = asked(built, built, dice.random() < 0.6, wanted)
    ends = sorted(built.cables)
    sweeps = [corrupt(dice, sweep, ends) for sweep in question.sweeps]
    earlier = [corrupt(dice, sweep, ends) for sweep in question.before] if dice.random() < 0.5 else question.before
    question = replace(question, sweeps=sweeps, before=earlier)
    lines = judge(question)
    assert lines == judge(replace(question, sweeps=sweeps[::-1]))
    assert bad(lines)
    assert all(hosts for hosts, _one in lines)


def test_512_hosts_of_8_rails_are_judged_in_less_than_10_seconds_of_cpu() -> None:
    before = build(hosts=512, rails=8, leaves=16, spines=8)
    now = copy.deepcopy(before)
    for number in range(2, 402, 2):
        now.swap(now.nic(f"node{number:03d}", 1), now.nic(f"node{number + 1:03d}", 2))
    for number in range(410, 510):
        for rail in range(8):
            now.links[now.nic(f"node{number:03d}", rail)] = (4, "HDR")
    question = asked(before, now)
    started = time.process_time()
    lines = judge(question)
    took = time.process_time() - started
    print(f"{sum(len(sweep.nodes) for sweep in question.sweeps)} nodes judged in {took:.2f} s of CPU")
    assert took < 10
    found = bad(lines)
    assert sum(one.check == "ib_fabric.swapped" for _hosts, one in found) == 200
    [slow] = [one for _hosts, one in found if one.check == "ib_fabric.link_speed"]
    assert (slow.have or "").startswith(
        "800 links at 4x HDR (200 Gb/s) in place of 400 Gb/s: rails 0-7 of node[410-509]"
    )
    assert len(found) == 201


def test_the_inventory_may_be_empty() -> None:
    built = build()
    lines = judge(Evidence(built.sweeps(1e9, (0,))))
    assert short(lines) == [("unknown_host", "plane of switch 0xa000000000000000: strangers")]
