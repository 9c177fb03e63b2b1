"""What ping says, who asks whom, and which end is named."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import rail_ping
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.rail_ping import Peer, Ping, PingResult
from hypothesis import given
from hypothesis import strategies as st

from tests import golden_rows, goldens
from tests.trees import put

HERE = Peer("node01", 3, "netdev_mtu.live[live]@0000:1b:00.0", "ens4", "10.0.3.1", 9000)
THERE = Peer("node02", 3, "netdev_mtu.live[live]@0000:1c:00.0", "ens5", "10.0.3.2", 9000)
PING = Ping(HERE, THERE)
FULL = Ping(HERE, THERE, 9000)
UNREACHABLE = PingResult(3, 0, error="Destination Host Unreachable")
UNBOUND = PingResult(0, 0, error="bind: Cannot assign requested address")


def statistics(sent: int, received: int) -> str:
    loss = 100 - 100 * received // sent if sent else 0
    counts = f"{sent} packets transmitted, {received} received, {loss}% packet loss, time 2003ms"
    return f"\n--- 10.0.3.2 ping statistics ---\n{counts}\n"


@given(st.text(max_size=200), st.integers(0, 9), st.integers(0, 9))
def test_only_an_answer_to_every_packet_is_a_success(noise: str, sent: int, received: int) -> None:
    noise = noise.replace("transmitted", "")
    assert rail_ping.parse(noise + "\n" + statistics(sent, received)).ok is (0 < sent == received)
    with contextlib.suppress(ParseError):
        assert not rail_ping.parse(noise).ok


def test_in_a_vrf_the_router_is_named_before_the_source() -> None:
    words = rail_ping.argv(replace(PING, source=replace(HERE, vrf="vrf-fabric3")), 9000)
    assert words[-5:] == ("-I", "vrf-fabric3", "-I", HERE.address, THERE.address)
    assert "vrf" not in " ".join(rail_ping.argv(PING, 9000))


# -- pairs -----------------------------------------------------------------------------------------------------------

HOSTS = st.lists(st.text("abcdef", min_size=1, max_size=3), max_size=14, unique=True)


@given(HOSTS)
def test_all_rounds_bring_every_pair_together_once(hosts: list[str]) -> None:
    rounds = rail_ping.rounds(hosts)
    pairs = [frozenset(pair) for one in rounds for pair in one]
    assert len(pairs) == len(set(pairs)) == len(hosts) * (len(hosts) - 1) // 2
    assert all(len(pair) == 2 for pair in pairs)


@given(HOSTS, st.integers(1, 5))
def test_in_a_round_nobody_has_two_partners_and_no_host_is_left_out_in_the_end(hosts: list[str], limit: int) -> None:
    rounds = rail_ping.rounds(hosts, limit)
    for one in rounds:
        asked = [host for pair in one for host in pair]
        assert len(asked) == len(set(asked))
    assert len(rounds) <= max(limit, 2)
    if len(hosts) > 1:
        assert {host for one in rounds for pair in one for host in pair} == set(hosts)


# -- findings --------------------------------------------------------------------------------------------------------


TOO_LONG = PingResult(3, 0, 1500)
FINDINGS: dict[str, tuple[Ping, PingResult | None]] = {
    "all come back": (PING, PingResult(3, 3)),
    "the source is smaller": (replace(PING, source=replace(HERE, mtu=1500)), TOO_LONG),
    "the target is smaller": (replace(PING, target=replace(THERE, mtu=1500)), PingResult(3, 0)),
    "both are smaller": (Ping(replace(HERE, mtu=4200), replace(THERE, mtu=1500)), TOO_LONG),
    "a router reports it": (PING, PingResult(3, 0, 1500, "10.0.3.254")),
    "nobody reports it": (PING, PingResult(3, 0)),
    "the source's route": (PING, TOO_LONG),
    "unreachable": (PING, UNREACHABLE),
    "the target's MTU is not known": (replace(PING, target=replace(THERE, mtu=None)), PingResult(3, 1)),
    "no ping": (PING, None),
    "the address cannot be bound": (PING, UNBOUND),
}


@pytest.mark.golden
def test_the_end_that_is_to_blame_is_named() -> None:
    for case, (ping, answer) in FINDINGS.items():
        plan = Plan((rail_ping.finding(ping, answer, 9000, "" if answer else "ping: is not installed"),))
        goldens.check("rail_ping", case, golden_rows.plan(plan, texts=True))
    assert rail_ping.finding(*FINDINGS["all come back"], 9000).id == "rail_ping.path[live]@rail 3 to node02"


# -- asking ----------------------------------------------------------------------------------------------------------


def pinging(tmp_path: Path, script: str) -> Host:
    put(tmp_path / "sys", "/usr/bin/ping", f"#!/bin/sh\n{script}\n", 0o755)
    return Host(str(tmp_path), str(tmp_path / "sys"))


LOST = "echo '3 packets transmitted, 0 received, 100% packet loss, time 2003ms'; exit 1"
CAME = "echo '3 packets transmitted, 3 received, 0% packet loss, time 2003ms'"


@pytest.mark.parametrize(
    ("script", "state", "says"),
    [
        (CAME, "ok", "3 of 3 came back"),
        (f'case "$*" in *8972*) {LOST};; *) {CAME};; esac', "drift", "a switch between the two accepts less than 9000"),
        (f"{CAME} | sed s/3.received/2\\ received/", "drift", "the size passes, but packets are lost"),
        (LOST, "unknown", "does not respond"),
        ("echo 'ping: connect: Network is unreachable' >&2; exit 2", "unknown", "connect: Network is unreachable"),
        ("kill -9 $$", "unknown", "is not what ping prints"),
    ],
)
def test_each_ping_has_one_finding(tmp_path: Path, script: str, state: str, says: str) -> None:
    [found] = rail_ping.ping_all(pinging(tmp_path, script), [FULL])
    assert (found.check, found.state) == ("rail_ping.path", state)
    assert says in (found.have or "")
    assert (found.fix == "") is (state == "ok")


def test_a_ping_of_another_form_is_refused() -> None:
    with pytest.raises(ParseError, match="source is None, expected an object"):
        rail_ping.pings([{"mtu": 9000}])


def test_without_ping_or_a_known_mtu_nothing_is_ok(tmp_path: Path) -> None:
    host = Host(str(tmp_path), str(tmp_path / "sys"))
    missing, unknown = rail_ping.ping_all(host, [FULL, PING])
    assert (missing.state, unknown.state) == ("unknown", "unknown")
    assert "install iputils-ping" in (missing.have or "")
    assert "/sys/class/net/ens4/mtu" in unknown.fix
    assert rail_ping.ping_all(host, []) == ()
