"""What ports have counted between two sweeps: rates, resets, reboots, and counters that stand still."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.health.port_limits import symbol_limit
from ansible_collections.busbar.fabric.plugins.plugin_utils import fabric_map, fabric_rates
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_judge import judge
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_rates import moved

from .built_fabric import Built, asked, build

SYMBOL, DOWNED = fabric_rates.SYMBOL, fabric_rates.DOWNED
HOUR, NIGHT = 3600.0, 86400.0


def counted(
    *changes: tuple[str, str, int, int],
    wait: float = NIGHT,
    speed: str = "NDR",
    boots: tuple[str, str] = ("boot", "boot"),
) -> list[Finding]:
    """What is not well. changes: end ("host" or "switch" of one cable), counter, value before, value now."""
    before = build()
    before.speed, before.rate = speed, {"HDR": 200.0, "NDR": 400.0, "XDR": 800.0, "EDR": 100.0}[speed]
    now = copy.deepcopy(before)
    ends = {"host": before.nic("node003", 1), "switch": before.leaf_port("node003", 1)}
    for end, name, was, value in changes:
        before.count(ends[end], name, was)
        now.count(ends[end], name, value)
    before.boots, now.boots = ({"node003": boot} for boot in boots)
    return [one for _hosts, one in judge(asked(before, now, wait=wait)) if not one.ok]


def checks(found: list[Finding]) -> list[str]:
    return [one.check.removeprefix("ib_fabric.") for one in found]


# Intervals as UFM's PDR plugin has them, and limits worked out by hand: 3 errors in 125 minutes are 34.56 a day.
@pytest.mark.parametrize(
    ("speed", "seconds", "most"),
    [
        ("NDR", 10, 2),
        ("NDR", 720, 2),
        ("NDR", 721, 3),
        ("NDR", 7500, 3),
        ("NDR", 15000, 6),
        ("NDR", 86400, 34),
        ("XDR", 720, 5),
        ("XDR", 7500, 6),
        ("XDR", 86400, 69),
        ("HDR", 10, 10),
        ("HDR", 3600, 120),
        ("EDR", 86400, 2880),
        (None, 3600, 120),
    ],
)
def test_symbol_errors_are_held_to_the_limit_of_the_links_speed_over_the_interval(
    speed: str | None, seconds: float, most: int
) -> None:
    assert symbol_limit(speed, seconds) >= most
    assert symbol_limit(speed, seconds) < most + 1
    if speed in ("NDR", "HDR"):
        few = counted(("host", SYMBOL, 7, 7 + most), wait=seconds, speed=speed)
        many = counted(("host", SYMBOL, 7, 8 + most), wait=seconds, speed=speed)
        assert (checks(few), checks(many)) == ([], ["symbol_errors"])


@pytest.mark.parametrize(
    ("name", "seconds", "most"),
    [
        ("PortRcvErrors", 1, 10),
        ("PortRcvErrors", 100, 1000),
        ("PortXmitDiscards", 60, 6000),
        ("LinkErrorRecoveryCounter", 120, 10),
        ("LinkErrorRecoveryCounter", 5, 5),
        ("LocalLinkIntegrityErrors", 86400, 0),
        ("ExcessiveBufferOverrunErrors", 86400, 0),
    ],
)
def test_other_errors_are_rates_too(name: str, seconds: float, most: int) -> None:
    assert checks(counted(("host", name, 3, 3 + most), wait=seconds)) == []
    [found] = counted(("switch", name, 3, 4 + most), wait=seconds)
    assert (found.check, found.state, found.subject) == ("ib_fabric.errors", "drift", "node003 rail 1")
    assert f"{name} +{most + 1} in" in (found.have or "")
    assert "at leaf03 port 2: node003 rail 1 - leaf03 port 2" in (found.have or "")
    assert ("is fast enough" in found.fix) == (name == "PortXmitDiscards")


def test_a_counter_that_went_back_began_anew_and_counts_what_it_shows() -> None:
    assert moved({"a": 5}, {"a": 9}, 60.0).counts == {"a": 5}
    assert moved({"a": 5}, {"a": 9}, 60.0).reset
    # What did not go back may have gone on: the least that it was is the difference.
    assert moved({"a": 5, "b": 9}, {"a": 9, "b": 7}, 60.0).counts == {"a": 5, "b": 2}
    assert checks(counted(("host", SYMBOL, 60000, 3), ("host", "PortRcvErrors", 500, 0))) == []
    [found] = counted(("host", SYMBOL, 60000, 400))
    assert "SymbolErrorCounter +at least 400" in (found.have or "")


def test_what_a_rebooted_host_shows_is_all_that_it_has_counted_since() -> None:
    both = [("host", DOWNED, 2, 3), ("switch", DOWNED, 7, 8)]
    assert checks(counted(*both)) == ["link_downed"]
    assert checks(counted(*both, boots=("one", "two"))) == []
    assert checks(counted(("host", SYMBOL, 1000, 1040))) == ["symbol_errors"]
    assert checks(counted(("host", SYMBOL, 1000, 1030), boots=("one", "two"))) == ["symbol_errors"]
    assert checks(counted(("host", SYMBOL, 1000, 1030))) == []


def test_a_link_that_went_down_is_fatal_only_where_both_ends_say_so() -> None:
    [found] = counted(("host", DOWNED, 0, 2), ("switch", DOWNED, 0, 2))
    assert (found.state, found.severity) == ("drift", "critical")
    assert "2 at leaf03 port 2, 2 at node003 rail 1" in (found.have or "")
    [found] = counted(("switch", DOWNED, 0, 1))
    assert (found.state, found.severity) == ("drift", "minor")


def test_a_driver_that_was_loaded_anew_explains_that_its_link_went_down() -> None:
    assert counted(("host", DOWNED, 4, 0), ("switch", DOWNED, 4, 5)) == []


def test_without_a_boot_id_nobody_knows_whether_a_reboot_explains_it() -> None:
    [found] = counted(("host", DOWNED, 0, 2), ("switch", DOWNED, 0, 2), boots=("", "boot"))
    assert (found.state, found.severity) == ("unknown", "major")
    assert "uptime" in found.fix


@pytest.mark.parametrize(
    ("name", "end"),
    [(SYMBOL, 65535), ("PortRcvErrors", 65535), ("LocalLinkIntegrityErrors", 15), (DOWNED, 255)],
)
def test_a_counter_at_its_end_is_unknown_and_the_fix_names_port_and_tool(name: str, end: int) -> None:
    [found] = counted(("switch", name, end, end))
    assert (found.check, found.state) == ("ib_fabric.saturated", "unknown")
    assert f"saturated: {name} at {end}: leaf03 port 2" in (found.have or "")
    assert "perfquery -C mlx5_0 -P 1 -R -G 0xa000000000000041 2 on node000" in found.fix
    assert counted(("switch", name, end + 1, end + 1)) == []


def test_what_reached_its_end_since_is_told_as_the_least_that_it_was() -> None:
    found = counted(("switch", "LocalLinkIntegrityErrors", 3, 15))
    assert sorted(checks(found)) == ["errors", "saturated"]
    [errors] = [one for one in found if one.check == "ib_fabric.errors"]
    assert "LocalLinkIntegrityErrors +at least 12" in (errors.have or "")


def test_one_bad_cable_is_one_line() -> None:
    found = counted(
        ("host", DOWNED, 0, 2),
        ("switch", DOWNED, 0, 2),
        ("host", SYMBOL, 0, 500),
        ("switch", "PortRcvErrors", 0, 9_000_000),
    )
    roots = [one for one in found if one.because is None]
    assert checks(roots) == ["link_downed"]
    assert {one.because for one in found if one.because is not None} == {roots[0].id}
    # And where it has lost lanes as well, that is the line.
    before = build()
    now = copy.deepcopy(before)
    now.links[now.nic("node003", 1)] = (1, "NDR")
    now.count(now.nic("node003", 1), SYMBOL, 500)
    lines = [one for _hosts, one in judge(asked(before, now)) if not one.ok]
    assert [(one.check, one.because is None) for one in lines] == [
        ("ib_fabric.link_width", True),
        ("ib_fabric.symbol_errors", False),
    ]


def test_many_links_with_errors_are_one_line_with_a_count() -> None:
    before = build(hosts=32)
    now = copy.deepcopy(before)
    for host in now.hosts:
        now.count(now.nic(host, 1), SYMBOL, 500)
    [found] = [one for _hosts, one in judge(asked(before, now)) if not one.ok]
    assert (found.have or "").startswith("32 links with symbol errors: rail 1 of node[000-031]")


def test_the_first_sweep_measures_no_rate_and_says_so_only_where_errors_were_counted() -> None:
    now = build()
    first = replace(asked(now, now), before=())
    assert [one for _hosts, one in judge(first) if not one.ok] == []
    assert "ib_fabric.errors" not in {one.check for _hosts, one in judge(first)}
    now.count(now.nic("node003", 1), SYMBOL, 1)
    [found] = [one for _hosts, one in judge(replace(asked(now, now), before=())) if not one.ok]
    assert (found.check, found.state, found.severity) == ("ib_fabric.errors", "unknown", "minor")
    assert "1 port, rail 1 of node003" in (found.have or "")


def test_counters_that_were_not_read_are_unknown() -> None:
    before = build()
    now = asked(before, before)
    [sweep] = now.sweeps

    well: set[str] = set()

    def without(reason: str) -> list[Finding]:
        nodes = tuple(
            replace(node, ports=tuple(replace(port, counters={}, unread=reason) for port in node.ports))
            if node.guid == before.called("leaf03")
            else node
            for node in sweep.nodes
        )
        lines = judge(replace(now, sweeps=[replace(sweep, nodes=nodes)]))
        well.update(one.check for _hosts, one in lines if one.ok)
        return [one for _hosts, one in lines if not one.ok]

    for reason in ("its query failed (timeout)", ""):
        [found] = without(reason)
        assert (found.check, found.state) == ("ib_fabric.errors", "unknown")
        assert (reason or "they were not read") in (found.have or "")
        assert "8 ports" in (found.have or "")
        assert not well & {"ib_fabric.errors", "ib_fabric.symbol_errors", "ib_fabric.link_downed"}
    # Data without errors is no count of errors.
    nodes = tuple(
        replace(
            node, ports=tuple(replace(port, counters={"PortXmitData": 1}, unread="no errors") for port in node.ports)
        )
        for node in sweep.nodes
    )
    [found] = [one for _hosts, one in judge(replace(now, sweeps=[replace(sweep, nodes=nodes)])) if not one.ok]
    assert "no errors: 128 ports" in (found.have or "")


def test_a_clock_that_went_back_is_unknown() -> None:
    before = build()
    [found] = [one for _hosts, one in judge(asked(before, before, wait=-5.0)) if not one.ok]
    assert (found.check, found.state) == ("ib_fabric.errors", "unknown")
    assert "chronyc" in found.fix


def test_ports_that_waited_are_ranked_within_their_model_and_raise_no_alarm() -> None:
    before = build()
    now = copy.deepcopy(before)
    worst, other = now.leaf_port("node003", 1), now.leaf_port("node004", 2)
    now.count(worst, "PortXmitWait", 3000)
    now.count(other, "PortXmitWait", 1000)
    question = asked(before, now)
    assert [one for _hosts, one in judge(question) if not one.ok] == []
    ranked = fabric_rates.waits(fabric_map.Fabric(question))
    assert [(one.port, one.ticks, one.share) for one in ranked] == [
        ("leaf03 port 2", 3000, 0.75),
        ("leaf04 port 3", 1000, 0.25),
    ]


def test_marks_tell_both_ends_of_each_cable_that_something_is_wrong_with() -> None:
    from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_judge import judged

    before = build(hosts=32)
    now: Built = copy.deepcopy(before)
    for host in now.hosts:
        now.links[now.nic(host, 1)] = (4, "HDR")
    found = judged(asked(before, now))
    assert {ends for ends, _finding in found.marks} == {
        (now.nic(host, 1), now.leaf_port(host, 1)) for host in now.hosts
    }
