"""Planes: seen in part, not at all, joined; who manages them, who is in them, and how they are set up."""

from __future__ import annotations

import copy
import random
import time
from dataclasses import replace

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Problem
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import Sweep
from ansible_collections.busbar.fabric.plugins.plugin_utils.cabling_plan import Cable, Plan
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_judge import Asked, Host, Wanted, judge

from .built_fabric import Built, asked, build, corrupt, guid, partial
from .test_fabric_judge import BOTH, SHAPES, after, bad, only, short


def ok(lines: list[tuple[tuple[str, ...], Finding]]) -> list[str]:
    return [one.id for _hosts, one in lines if one.ok]


# -- what was not seen ---------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("said", ["", "bad status 110"])
def test_a_partial_sweep_makes_its_plane_unknown_and_nothing_of_it_well(plan: bool, said: str) -> None:
    """Also where the tool has ended with 0 and has said nothing: an active port at which nobody answers tells."""
    built = build(apart=True)
    question = asked(built, built, plan)
    gone = {built.rails[host, 2] for host in ("node002", "node003", "node005")}
    sweeps = [partial(sweep, gone, said) if sweep.device == "mlx5_2" else sweep for sweep in question.sweeps]
    lines = judge(replace(question, sweeps=sweeps))
    hosts, found = only(lines)
    assert (found.check, found.state, found.subject) == ("ib_fabric.sweep", "unknown", "plane of rail 2")
    assert hosts == ("node000",)
    assert "3 of 8 rails were not seen: rail 2 of node[002-003,005]" in (found.have or "")
    assert said in (found.have or "")
    if not said:
        assert "leaf04 port 2 is active, and nothing responded there" in (found.have or "")
    assert not [one for one in ok(lines) if "plane of rail 2" in one]
    assert [one for one in ok(lines) if "plane of rail 1" in one]
    # A part of every host's rails is in it.
    assert "ib_fabric.missing_host" not in {one.check for _hosts, one in lines}


def test_ends_of_cables_that_do_not_fit_together_are_no_whole_sweep() -> None:
    built = build()
    question = asked(built, built)
    [sweep] = question.sweeps
    host, leaf = built.nic("node003", 2), built.leaf_port("node003", 2)
    # The switch says who is there, and that node has said nothing.
    silent = replace(sweep, nodes=tuple(node for node in sweep.nodes if node.guid != host[0]))
    _hosts, found = only(judge(replace(question, sweeps=[silent])))
    assert (found.check, found.state) == ("ib_fabric.sweep", "unknown")
    assert f"leaf05 port 2 leads to 0x{host[0]}, which did not respond" in (found.have or "")
    assert "1 of 32 rails were not seen: rail 2 of node003" in (found.have or "")
    # Seen at two moments, as where somebody moves cables meanwhile.
    other = built.leaf_port("node004", 2)
    nodes = tuple(
        replace(node, ports=tuple(replace(port, peer=other) for port in node.ports)) if node.guid == host[0] else node
        for node in sweep.nodes
    )
    found_all = [one for _hosts, one in bad(judge(replace(question, sweeps=[replace(sweep, nodes=nodes)])))]
    [said] = [one for one in found_all if one.check == "ib_fabric.sweep"]
    assert "and its peer report different data of their cable" in (said.have or "")
    assert leaf != other


def test_what_is_seen_to_be_wrong_in_a_partial_sweep_is_told_all_the_same() -> None:
    before = build()
    now = copy.deepcopy(before)
    now.links[now.nic("node004", 1)] = (1, "NDR")
    question = asked(before, now)
    sweeps = [partial(sweep, {now.rails["node003", 2]}) for sweep in question.sweeps]
    assert sorted(short(judge(replace(question, sweeps=sweeps)))) == [
        ("link_width", "node004 rail 1"),
        ("sweep", "plane of rails 0-3"),
    ]


def test_a_whole_switch_that_does_not_answer_is_no_switch_that_is_gone() -> None:
    built = build()
    question = asked(built, built)
    leaf = built.called("leaf03")
    behind = {leaf, *(built.rails[f"node{number:03d}", 1] for number in range(1, 8, 2))}
    sweeps = [partial(sweep, behind, "timeout") for sweep in question.sweeps]
    _hosts, found = only(judge(replace(question, sweeps=sweeps)))
    assert (found.check, found.state) == ("ib_fabric.sweep", "unknown")


def test_a_spine_that_does_not_answer_is_no_lost_uplink() -> None:
    built = build()
    question = asked(built, built, plan=False)
    sweeps = [partial(sweep, {built.called("spine01")}) for sweep in question.sweeps]
    assert short(judge(replace(question, sweeps=sweeps))) == [("sweep", "plane of rails 0-3")]


def test_a_check_that_found_something_is_not_well_as_well() -> None:
    lines = after(lambda b: b.links.update({b.nic("node003", 1): (1, "NDR")}))
    checks = {one.check for _hosts, one in lines if one.ok}
    assert "ib_fabric.link_width" not in checks
    assert "ib_fabric.link_speed" in checks


def test_another_hosts_whole_sweep_makes_a_partial_one_good_and_that_is_told() -> None:
    built = build()
    built.sweepers = ("node000", "node001")
    question = asked(built, built)
    one, two = question.sweeps
    lines = judge(replace(question, sweeps=[partial(one, {built.rails["node003", 2]}, "timeout"), two]))
    hosts, found = only(lines)
    assert (found.check, found.severity, hosts) == ("ib_fabric.sweep", "minor", ("node000",))
    assert any("link_speed" in one for one in ok(lines))


@BOTH
def test_a_plane_that_nobody_swept_is_unknown_and_its_hosts_are_not_missing(plan: bool) -> None:
    built = build(apart=True)
    question = asked(built, built, plan)
    sweeps = [sweep for sweep in question.sweeps if sweep.device != "mlx5_2"]
    for before in (question.before, ()):
        lines = judge(replace(question, sweeps=sweeps, before=before))
        [(_hosts, found)] = bad(lines)
        assert (found.check, found.state, found.subject) == ("ib_fabric.plane", "unknown", "plane of rail 2")
        assert "missing_host" not in " ".join(ok(lines))


def test_no_sweep_at_all_is_one_unknown_for_everybody() -> None:
    built = build()
    [(hosts, found)] = judge(replace(asked(built, built), sweeps=[]))
    assert (found.check, found.state) == ("ib_fabric.sweep", "unknown")
    assert hosts == tuple(built.hosts)


def test_an_empty_sweep_is_unknown_and_says_what_the_tool_said() -> None:
    built = build(apart=True)
    question = asked(built, built)
    empty = Sweep("", "node000", "mlx5_2", 1, problems=(Problem("sminfo", "timed out"),))
    sweeps = [empty if sweep.device == "mlx5_2" else sweep for sweep in question.sweeps]
    found = dict(short(judge(replace(question, sweeps=sweeps))))
    assert set(found) == {"sweep", "plane"}
    [text] = [
        one.have
        for _hosts, one in judge(replace(question, sweeps=sweeps))
        if one.check == "ib_fabric.sweep" and not one.ok
    ]
    assert "sminfo: timed out" in (text or "")


@BOTH
def test_planes_that_a_stray_cable_joins_are_one_line_that_names_it(plan: bool) -> None:
    def stray(built: Built) -> None:
        built.connect((built.called("leaf01"), 12), (built.called("leaf03"), 12), planned=False)
        built.states[built.called("leaf01"), 12] = ("init", "LinkUp")

    for lines in (after(stray, plan, apart=True), _first(stray, plan)):
        hosts, found = only(lines)
        assert (found.check, found.state, hosts) == ("ib_fabric.plane", "drift", ("node000",))
        assert found.fix.startswith("pull out the cable leaf01 port 12 - leaf03 port 12")
        assert not [one for one in ok(lines) if "plane of rails 0-1" in one]
        assert [one for one in ok(lines) if "plane of rail 2" in one]


def test_what_joined_planes_do_not_answer_follows_from_the_cable() -> None:
    """Both managers may have given out the same LIDs, so that questions end at the wrong port."""
    before = build(apart=True)
    now = copy.deepcopy(before)
    now.connect((now.called("leaf01"), 12), (now.called("leaf03"), 12), planned=False)
    question = asked(before, now, plan=False)
    lost = {now.rails["node003", 1], now.rails["node004", 0]}
    lines = judge(replace(question, sweeps=[partial(sweep, lost) for sweep in question.sweeps]))
    _hosts, root = only(lines)
    assert (root.check, root.state) == ("ib_fabric.plane", "drift")
    assert {(one.check, one.state, one.because) for _hosts, one in lines if not one.ok and one is not root} == {
        ("ib_fabric.sweep", "unknown", root.id)
    }


def _first(change: object, plan: bool) -> list[tuple[tuple[str, ...], Finding]]:
    """Without an earlier sweep."""
    now = build(apart=True)
    planned = now.plan()
    change(now)  # type: ignore[operator]
    return judge(replace(asked(now, now), before=(), plan=planned if plan else None))


def test_planes_that_were_apart_and_have_one_manager_now_are_joined_all_the_same() -> None:
    def stray(built: Built) -> None:
        built.connect((built.called("leaf01"), 12), (built.called("leaf03"), 12), planned=False)
        built.managers = [
            one for one in built.managers if one[0] not in (built.rails["node000", 1], built.rails["node001", 1])
        ]

    _hosts, found = only(after(stray, apart=True))
    assert found.check == "ib_fabric.plane"
    assert "are one plane, which were 2 at the last sweep; joined by leaf01 port 12 - leaf03 port 12" in (
        found.have or ""
    )


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

    def question() -> Asked:
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
    assert "plane of rail 1" in " ".join(ok(judge(question())))


# -- managers ------------------------------------------------------------------------------------------------------


def test_a_plane_has_one_master_and_a_standby() -> None:
    def second(built: Built) -> None:
        built.managers[1] = (built.managers[1][0], "master")

    _hosts, found = only(after(second))
    assert (found.check, found.severity, found.state) == ("ib_fabric.manager", "critical", "drift")
    assert found.have == "node000 rail 0 master; node001 rail 0 master"
    _hosts, found = only(after(lambda b: b.managers.pop()))
    assert (found.check, found.severity, found.subject) == ("ib_fabric.manager", "minor", "plane of rails 0-3: standby")


def test_managers_that_nobody_could_list_are_unknown() -> None:
    built = build()
    question = asked(built, built)
    sweeps = [replace(sweep, managers=()) for sweep in question.sweeps]
    _hosts, found = only(judge(replace(question, sweeps=sweeps)))
    assert (found.check, found.state) == ("ib_fabric.manager", "unknown")
    # As dumps of two masters are, of which nobody says whose they are.
    masters = tuple(replace(one, state="master") for one in question.sweeps[0].managers)
    sweeps = [replace(sweep, managers=masters, plane="") for sweep in question.sweeps]
    _hosts, found = only(judge(replace(question, sweeps=sweeps)))
    assert (found.check, found.state) == ("ib_fabric.manager", "drift")
    # As a directory of dumps without sminfo is: no plane's name, and the rest of it is judged.
    sweeps = [replace(sweep, managers=(), plane="") for sweep in question.sweeps]
    lines = judge(replace(question, sweeps=sweeps))
    assert only(lines)[1].check == "ib_fabric.manager"
    assert any("link_speed" in one for one in ok(lines))


def test_a_manager_that_took_over_is_the_same_plane() -> None:
    def failover(built: Built) -> None:
        built.managers = [(built.managers[1][0], "master"), (built.managers[0][0], "standby")]
        built.count(built.nic("node003", 1), "SymbolErrorCounter", 500)

    _hosts, found = only(after(failover))
    assert found.check == "ib_fabric.symbol_errors"


@pytest.mark.parametrize("named", ["0x{guid}", "{guid}", "node000 mlx5_0", "node000"])
def test_only_managers_that_the_site_names_may_be_there(named: str) -> None:
    built = build()
    first = named.format(guid=built.port_guid(built.rails["node000", 0]))
    sweeps = asked(built, built)
    described = [
        replace(
            sweep,
            managers=tuple(
                replace(one, description=f"node{number:03d} mlx5_0") for number, one in enumerate(sweep.managers)
            ),
        )
        for sweep in sweeps.sweeps
    ]
    both = Wanted(managers=(first, "node001 mlx5_0"))
    assert short(judge(replace(sweeps, sweeps=described, wanted=both))) == []
    _hosts, found = only(judge(replace(sweeps, sweeps=described, wanted=Wanted(managers=(first,)))))
    assert (found.check, found.state) == ("ib_fabric.manager", "drift")
    assert "not in busbar_fabric_managers: node001 rail 0" in (found.have or "")


# -- who is there --------------------------------------------------------------------------------------------------


def stranger(built: Built, name: str = "login01 mlx5_0") -> None:
    built.names[guid(0xEE00, 1)] = name
    built.connect((guid(0xEE00, 1), 1), (built.called("leaf01"), 11), planned=False)


@BOTH
def test_an_hca_that_no_list_has_is_told_and_explains_what_it_does_to_its_leaf(plan: bool) -> None:
    lines = after(stranger, plan)
    _hosts, found = only(lines)
    assert (found.check, found.severity) == ("ib_fabric.unknown_host", "minor")
    assert found.have == "1 HCA: login01 mlx5_0 at leaf01 port 11"
    assert [one.check for _hosts, one in lines if one.because == found.id] == ["ib_fabric.oversubscription"]


def test_who_is_a_host_of_the_inventory_a_manager_or_in_the_plan_is_no_stranger() -> None:
    wide = Wanted(oversubscription=2)
    assert short(after(lambda b: stranger(b, "node003 mlx5_8"), wanted=wide)) == []
    assert "unknown_host" not in dict(short(after(stranger, wanted=replace(wide, managers=("login01",)))))
    built = build()
    stranger(built)
    built.planned.append(((guid(0xEE00, 1), 1), (built.called("leaf01"), 11), None))
    assert short(judge(asked(built, built, wanted=wide))) == []
    node = guid(0xEE00, 1)
    built.planned.pop()
    built.names[node] = "Mellanox Technologies Aggregation Node"
    assert short(judge(asked(built, built))) == []


def test_a_host_that_told_no_guid_is_unknown() -> None:
    built = build()
    question = asked(built, built, plan=False)
    hosts = dict(question.hosts)
    hosts["node003"] = Host(
        tuple(rail._replace(node_guid=None, port_guid=None) for rail in hosts["node003"].rails), "boot"
    )
    told, found = only(judge(replace(question, hosts=hosts)))
    assert (found.check, found.state, told) == ("ib_fabric.missing_host", "unknown", ("node003",))
    # By its port's GUID alone it is known, too.
    hosts["node003"] = Host(tuple(rail._replace(node_guid=None) for rail in question.hosts["node003"].rails), "boot")
    assert short(judge(replace(question, hosts=hosts))) == []


def test_a_guid_of_two_rails_is_told_of_both() -> None:
    built = build()
    question = asked(built, built, plan=False)
    hosts = dict(question.hosts)
    twin = hosts["node002"].rails[1]
    hosts["node004"] = Host((*hosts["node004"].rails[:1], twin, *hosts["node004"].rails[2:]), "boot")
    found = {one.check: told for told, one in bad(judge(replace(question, hosts=hosts)))}
    assert found["ib_fabric.guid"] == ("node002", "node004")


# -- how it is set up ----------------------------------------------------------------------------------------------


def test_firmware_of_one_psid_is_one() -> None:
    built = build(hosts=8)
    for node in built.names:
        built.firmware[node] = ("31.2014.2036", "MT_S") if node in built.sizes else ("28.43.1014", "MT_H")
    assert short(judge(asked(built, built))) == []
    built.firmware[built.rails["node003", 1]] = ("28.39.1002", "MT_H")
    hosts, found = only(judge(asked(built, built)))
    assert (found.check, found.state, hosts) == ("ib_fabric.firmware", "drift", ("node003",))
    assert found.want == "28.43.1014, as on 31 of 32 of this PSID"
    assert found.have == "28.39.1002 on 1: rail 1 of node003"
    declared = Wanted(firmware={"MT_H": "28.39.1002"})
    _hosts, found = only(judge(asked(built, built, wanted=declared)))
    assert (found.want or "").startswith("28.39.1002 (busbar_firmware)")
    assert "28.43.1014 on 31" in (found.have or "")
    for host in built.hosts[:4]:
        for rail in range(4):
            built.firmware[built.rails[host, rail]] = ("28.39.1002", "MT_H")
    _hosts, found = only(judge(asked(built, built)))
    assert found.state == "unknown"


def test_each_rail_has_the_keys_that_the_site_asks_for() -> None:
    built = build()
    wanted = Wanted(partitions=(0x8001, 0x7FFF))
    _hosts, found = only(judge(asked(built, built, wanted=wanted)))
    assert (found.check, found.state) == ("ib_fabric.partition", "unknown")
    assert "not read of 32 rails: rails 0-3 of node[000-007]" in (found.have or "")
    built.pkeys = dict.fromkeys(built.rails.values(), (65535, 32769))
    assert short(judge(asked(built, built, wanted=wanted))) == []
    built.pkeys[built.rails["node003", 1]] = (0xFFFF, 0x0001)
    hosts, found = only(judge(asked(built, built, wanted=wanted)))
    assert (found.check, found.state, hosts) == ("ib_fabric.partition", "drift", ("node003",))
    assert "lacks 0x8001 (a limited member only)" in (found.have or "")
    assert built.port_guid(built.rails["node003", 1]) in found.fix
    assert short(judge(asked(built, built))) == []


def test_routing_is_judged_as_far_as_it_is_asked_for() -> None:
    built = build()
    question = asked(built, built, wanted=Wanted(routing="ftree", adaptive_routing=True))
    assert sorted(short(judge(question))) == [
        ("routing", "plane of rails 0-3"),
        ("routing", "plane of rails 0-3: adaptive"),
    ]
    assert {one.state for _hosts, one in bad(judge(question))} == {"unknown"}
    seen = [replace(sweep, routing="ftree", adaptive_routing=True) for sweep in question.sweeps]
    assert short(judge(replace(question, sweeps=seen))) == []
    seen = [replace(sweep, routing="minhop", adaptive_routing=False) for sweep in question.sweeps]
    assert {one.state for _hosts, one in bad(judge(replace(question, sweeps=seen)))} == {"drift"}
    # Off is asked for as well as on; nothing of it is said where nobody asks.
    wanted = Wanted(adaptive_routing=False)
    assert short(judge(replace(question, sweeps=seen, wanted=wanted))) == []
    seen = [replace(sweep, adaptive_routing=True) for sweep in seen]
    _hosts, found = only(judge(replace(question, sweeps=seen, wanted=wanted)))
    assert (found.state, found.want, found.have) == ("drift", "adaptive routing off", "adaptive routing on")
    assert short(judge(replace(question, sweeps=seen, wanted=Wanted()))) == []


# -- leaves and spines ---------------------------------------------------------------------------------------------


def test_oversubscription_is_of_bandwidth_and_held_to_what_the_site_allows() -> None:
    built = build(hosts=8, spines=2, each=1)
    lines = judge(asked(built, built))
    assert [one.check for _hosts, one in bad(lines)] == ["ib_fabric.oversubscription"] * 8
    assert "4 links to hosts at 400 Gb/s, 2 uplinks at 400 Gb/s, 2:1" in (bad(lines)[0][1].have or "")
    assert short(judge(asked(built, built, wanted=Wanted(oversubscription=2.0)))) == []
    # Uplinks of twice the rate are worth two.
    built.rate = 200.0
    for rail in range(4):
        for host in built.hosts:
            built.links[built.nic(host, rail)] = (4, "HDR")
    assert short(judge(asked(built, built))) == []


def test_a_leaf_that_is_too_small_also_with_all_its_uplinks_is_a_fault_of_its_own() -> None:
    before = build(hosts=8, spines=2, each=1)
    now = copy.deepcopy(before)
    now.cut(now.uplinks(now.called("leaf03"))[0])
    found = [one for _hosts, one in bad(judge(asked(before, now)))]
    assert sorted(one.check for one in found) == ["ib_fabric.link_down", *["ib_fabric.oversubscription"] * 8]


def test_two_leaves_are_no_measure_for_each_other() -> None:
    built = build(hosts=8, rails=1, leaves=2)
    built.cut(built.uplinks(built.called("leaf00"))[0])
    wide = Wanted(oversubscription=2.0)
    assert short(judge(replace(asked(built, built, plan=False, wanted=wide), before=()))) == []


def test_cables_that_crowd_one_spine_are_told_where_no_plan_says_that_it_is_meant() -> None:
    def crowd(built: Built) -> None:
        built.cut(built.uplinks(built.called("leaf03"))[0])
        built.connect((built.called("leaf03"), 5), (built.called("spine01"), 20), planned=False)

    hosts, found = only(after(crowd, plan=False))
    assert (found.check, hosts) == ("ib_fabric.spines", ("node001", "node003", "node005", "node007"))
    assert found.have == "leaf03: 1 to spine00, 3 to spine01"
    _hosts, found = only(after(crowd))
    assert (found.check, found.have) == ("ib_fabric.plan", "leaf03 port 5 - spine01 port 20")


# -- the plan ------------------------------------------------------------------------------------------------------


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
    for hosts, plan in (
        (question.hosts, named(before)),
        (nameless, named(before)),
        (question.hosts, railless),
        (nameless, railless),
    ):
        assert short(judge(replace(question, hosts=hosts, plan=plan))) == [], plan
    now.swap(now.nic("node003", 1), now.nic("node004", 2))
    changed = replace(asked(before, now), plan=named(before))
    assert only(judge(changed)) == only(judge(asked(before, now)))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (Cable("leaf03", 77, "spine00", 30, None, 9), "leaf03 has no port 77: it ends at 12 (line 9)"),
        (Cable("leaf03", "1/3/1", "spine00", 30, None, 9), "leaf03 has no port 1/3/1: number it as iblinkinfo does"),
        (Cable("node003", "mlx5_9", "leaf03", 11, None, 9), "node003 has no rail at port mlx5_9: set the column rail"),
        (Cable("leaf03", 5, "spine00", 19, None, 9), "two cables of the plan end at one port"),
    ],
)
def test_rows_that_name_no_port_are_told_with_their_line(row: Cable, said: str) -> None:
    built = build()
    plan = Plan((*built.plan().cables, row), "plan.csv")
    _hosts, found = only(judge(replace(asked(built, built), plan=plan)))
    assert (found.check, found.state) == ("ib_fabric.plan", "unknown")
    assert said in (found.have or "")


def test_a_switch_of_the_plan_that_was_never_there_is_gone_and_a_name_of_many_is_no_name() -> None:
    built = build()
    plan = Plan((*built.plan().cables, Cable("leaf99", 5, "spine00", 19, None, 9, "switch", "switch")), "plan.csv")
    _hosts, found = only(judge(replace(asked(built, built), plan=plan)))
    assert (found.check, found.subject) == ("ib_fabric.switch", "switch leaf99")
    alike = copy.deepcopy(built)
    for node in alike.sizes:
        alike.names[node] = "MF0;switch:MQM9700/U1"
    for name in ("MF0;switch:MQM9700/U1", "switch"):
        plan = Plan((*built.plan().cables, Cable(name, 5, "node003", "mlx5_1", None, 9)), "plan.csv")
        _hosts, found = only(judge(replace(asked(alike, alike), plan=plan)))
        assert f"10 nodes are called {name}: name them by GUID" in (found.have or "")


def test_a_managed_switch_has_the_name_within_its_description() -> None:
    before = build()
    for node in before.sizes:
        before.names[node] = f"MF0;{before.names[node]}:MQM9700/U1"
    now = copy.deepcopy(before)
    now.cut(now.nic("node003", 2))
    short_names = Plan(
        tuple(replace(cable, a_node=_host(cable.a_node), z_node=_host(cable.z_node)) for cable in named(before).cables),
        "plan.csv",
    )
    _hosts, found = only(judge(replace(asked(before, now), plan=short_names)))
    assert found.want == "node003 rail 2 - leaf05 port 2"
    assert found == only(judge(asked(before, now)))[1]


def _host(name: str) -> str:
    return name.removeprefix("MF0;").partition(":")[0]


def test_a_machine_of_the_plan_that_is_not_there_is_a_link_down_and_no_switch() -> None:
    built = build()
    rows = (
        Cable("storage01", "mlx5_0", "leaf03", 9, None, 9),
        Cable("storage01", "mlx5_1", "0xa000000000000081".removeprefix("0x"), 9, None, 10, "host", "switch"),
    )
    found = bad(judge(replace(asked(built, built), plan=Plan((*built.plan().cables, *rows), "plan.csv"))))
    assert [(one.check, hosts, one.want) for hosts, one in found] == [
        ("ib_fabric.link_down", ("node000",), "storage01 mlx5_0 - leaf03 port 9"),
        ("ib_fabric.link_down", ("node000",), "storage01 mlx5_1 - leaf05 port 9"),
    ]
    assert found[0][1].have == "storage01 mlx5_0 is not in the fabric; leaf03 port 9 is down (Polling)"
    assert "take line 9 of plan.csv out of the plan" in found[0][1].fix


def test_cables_that_the_plan_lacks_are_told_once_however_many() -> None:
    built = build(hosts=32)
    plan = built.plan()
    half = Plan(tuple(cable for cable in plan.cables if cable.rail != 3), "plan.csv")
    lines = judge(replace(asked(built, built), plan=half))
    _hosts, found = only(lines)
    assert (found.check, found.severity) == ("ib_fabric.plan", "minor")
    assert (found.have or "").startswith("32 cables that the plan does not have: rail 3 of node[000-031]")


# -- names that others choose, and size ----------------------------------------------------------------------------


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
    assert sorted(one.check for _hosts, one in found) == [
        "ib_fabric.link_down",
        "ib_fabric.swapped",
        "ib_fabric.unknown_host",
    ]
    for _hosts, one in found:
        assert one.subject.isprintable()
        assert (one.have or "").isprintable()
        assert (one.want or "").isprintable()
        assert one.fix.isprintable()
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
    lines = judge(Asked(built.sweeps(1e9, (0,))))
    assert short(lines) == [("unknown_host", "plane of switch 0xa000000000000000: strangers")]
