"""What ports have counted between two sweeps: rates, resets, reboots, and counters that stand still."""

from __future__ import annotations

import copy

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
