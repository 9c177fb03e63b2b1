# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Counters of the rails' ports from night to night: what is read, what has grown, and what that means."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, Problem
from ansible_collections.busbar.fabric.plugins.module_utils.health import (
    judge,
    judge_ports,
    port_counters,
    record,
)
from ansible_collections.busbar.fabric.plugins.module_utils.health.node import NodeState
from ansible_collections.busbar.fabric.plugins.module_utils.health.port_counters import Port
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Topology
from ansible_collections.busbar.fabric.plugins.plugin_utils import codec, result_schema
from hypothesis import given
from hypothesis import strategies as st

from tests import goldens, readings
from tests.trees import line, tool
from tests.unit import finding_rows
from tests.unit.conftest import machine

NOW, NIGHT = 1_800_000_000.0, 86400.0
INFINIBAND, ETHERNET = machine("InfiniBand"), machine("Ethernet")
DRIVER = {"mlx5_core": "1 0xff"}
SILENT = dict.fromkeys((*port_counters.ERRORS, *port_counters.QUEUE_PAIRS, *port_counters.CONGESTION), 0)
ETHTOOL = dict.fromkeys((*port_counters.PHYSICAL, "rx_prio_discards", "rx_prio_buf_discard", "rx_prio_cong_discard"), 0)
PACKETS = {"port_xmit_packets": 10**9, "port_rcv_packets": 10**9}


def port(layer: str = "InfiniBand", **more: Any) -> Port:
    values = {**SILENT, **ETHTOOL, **PACKETS, "port_xmit_wait": 5}
    if layer == "Ethernet":
        values |= {port_counters.CARRIER: 2, "tx_prio3_pause_duration": 0, "rx_prio3_pause_duration": 0}
    about = {"rail": 1, "pci": "0000:1b:00.0", "label": "0000:1b:00.0 mlx5_0 ib0", "device": "mlx5_0", "netdev": "ib0"}
    given_: dict[str, Any] = {"link_layer": layer, "speed": "NDR", "guid": "9c63:c003:00aa:bb00", "loaded": "7"}
    return Port(**{**about, **given_, "at": NOW, "values": values, **more})


PORT = port()


def night(before: Port, seconds: float = NIGHT, **grown: int) -> NodeState:
    """The question after one with ``before``, on a port that has counted so much more since."""
    now = replace(
        before, at=NOW, values={**before.values, **{name: before.values[name] + n for name, n in grown.items()}}
    )
    return asked(replace(before, at=NOW - seconds), now)


def asked(before: Port, now: Port) -> NodeState:
    have = NodeState(now=now.at, boot_id="boot-1", driver_loaded=DRIVER, ports=(now,))
    earlier = NodeState(now=before.at, boot_id="boot-1", driver_loaded=DRIVER, ports=(before,))
    return replace(have, before=judge.counters(earlier))


def bad(have: NodeState) -> list[Finding]:
    return [one for one in judge_ports.plan(have).findings if not one.ok]


def names(found: list[Finding]) -> list[str]:
    return [one.check.removeprefix("node_health.port_") for one in found]


@dataclass
class Nic:
    """A port with all that may happen to it. It knows what has really happened since it could last be compared.

    tool: whether ethtool is there.   cleared: somebody has set its error counters back.
    """

    layer: str
    tool: bool
    counts: Counter[str] = field(default_factory=Counter)
    # How often each of these has come anew: boot, driver, device, card, name.
    ids: Counter[str] = field(default_factory=Counter)
    up: bool = True
    flaps: int = 0
    timeouts: int = 0
    comparable: bool = False
    cleared: bool = False
    held: int = 0
    fell: bool = False

    def count(self, name: str, more: int) -> None:
        end = port_counters.END.get(name)
        self.counts[name] += more
        if end is not None:
            self.counts[name] = min(self.counts[name], end)

    def flap(self) -> None:
        for name in ("link_downed", "link_down_events_phy"):
            self.count(name, 1)
        self.count(port_counters.CARRIER, 2)
        self.flaps += 1

    def anew(self, *more: str) -> None:
        """Its device comes anew, and counts from 0."""
        self.counts.clear()
        self.ids.update(("device", *more))
        self.comparable = False

    def night(self, rng: random.Random) -> None:
        for name in port_counters.DATA:
            self.count(name, rng.randrange(1, 10**11))
        for _ in range(rng.choice((1, 1, 1, 2))):
            event = rng.choice(EVENTS)
            if event in ANEW:
                self.anew(*ANEW[event])
            else:
                getattr(self, "_" + event)(rng)

    def _nothing(self, rng: random.Random) -> None:
        self.count("out_of_sequence", rng.randrange(10**9))

    def _flaps(self, rng: random.Random) -> None:
        self._up(rng)
        for _ in range(rng.choice((1, 1, 2, 5, 20))):
            self.flap()

    def _timeouts(self, rng: random.Random) -> None:
        more = rng.choice((7, 900, 10**6, 3 * 10**7))
        self.count("local_ack_timeout_err", more)
        self.timeouts += more

    def _many_downs(self, rng: random.Random) -> None:
        self._up(rng)
        for _ in range(rng.choice((200, 255, 300))):
            self.flap()

    def _clear(self, rng: random.Random) -> None:
        """perfquery -R, ibqueryerrors -k, ibqueryerrors -K."""
        errors, data = rng.choice(((True, True), (True, False), (False, True)))
        for name in (*port_counters.ERRORS * errors, *port_counters.DATA * data):
            self.counts[name] = 0
        self.cleared = self.cleared or errors
        if errors and not self.tool:
            # What was counted before it nobody can know.
            self.flaps, self.fell = 0, False

    def _rename(self, rng: random.Random) -> None:
        self.ids["name"] += 1

    def _down(self, rng: random.Random) -> None:
        """It is out when the question comes; that is platform's to say."""
        if self.up:
            for name in ("link_downed", "link_down_events_phy", port_counters.CARRIER):
                self.count(name, 1)
            self.fell = True
        self.up = False

    def _up(self, rng: random.Random) -> None:
        if not self.up:
            self.count(port_counters.CARRIER, 1)
            self.flaps += self.fell
        self.up, self.fell = True, False

    def question(self, at: float, kept: record.StoredRecords | None) -> NodeState:
        shown = {*port_counters.ERRORS, *port_counters.DATA, *port_counters.QUEUE_PAIRS}
        shown |= set(port_counters.PHYSICAL) if self.tool else set()
        shown |= {port_counters.CARRIER} if self.layer == "Ethernet" else set()
        now = port(
            self.layer,
            device=f"mlx5_{self.ids['name']}",
            guid=f"9c63:c003:00aa:bb{self.ids['card']:02x}",
            loaded=str(self.ids["device"]),
            up=self.up,
            at=at,
            values={name: self.counts[name] for name in shown},
        )
        boot = f"boot-{self.ids['boot']}"
        driver = {"mlx5_core": f"1 {self.ids['driver']}"}
        before = record.baseline(kept, at, boot)
        return NodeState(now=at, boot_id=boot, driver_loaded=driver, ports=(now,), kept=kept, before=before)

    def told(self) -> None:
        """It was asked, and the next question is held to this one."""
        self.flaps, self.timeouts, self.fell = 0, 0, False
        self.comparable, self.cleared = True, False
        self.held = self.counts["link_downed"]


EVENTS = (
    *("nothing", "nothing", "flaps", "flaps", "timeouts", "timeouts", "many_downs", "clear", "clear"),
    *("rename", "reload", "reset", "exchange", "reboot", "down", "up", "up"),
)
# What comes anew with the device; reset is of the card alone, as by mstfwreset.
ANEW = {"reload": ("driver",), "reset": (), "exchange": ("card",), "reboot": ("boot", "driver")}


@pytest.mark.parametrize("layer", ["InfiniBand", "Ethernet"])
def test_no_flap_of_500_histories_is_missed_and_none_is_made_up(layer: str) -> None:
    seen: Counter[str] = Counter()
    for seed in range(500):
        rng = random.Random(seed)
        # A rail of Ethernet whose ethtool is missing has its carrier.
        nic = Nic(layer, tool=rng.random() < 0.6)
        kept: record.StoredRecords | None = None
        at = NOW
        for number in range(8):
            at += NIGHT
            if number:
                nic.night(rng)
            have = nic.question(at, kept)
            found = names(bad(have))
            where = (layer, seed, number)
            stuck = nic.counts["link_downed"] == 0xFF
            assert ("saturated" in found) == stuck, where
            if not nic.comparable:
                assert set(found) <= {"saturated"}, where
                seen["not compared"] += number > 0
            elif stuck and not nic.tool and layer == "InfiniBand":
                assert "link_downed" not in found, where
                seen["saturated"] += 1
            elif nic.cleared and not nic.tool and not stuck and nic.flaps >= nic.held > 0:
                # As many as before somebody cleared them, of which nobody can tell.
                seen["hidden"] += 1
            else:
                assert ("link_downed" in found) == (nic.flaps > 0), (*where, nic.flaps)
                seen["flaps" if nic.flaps else "none"] += 1
            if nic.comparable:
                assert ("rdma_retries" in found) == (nic.timeouts > 3600), (*where, nic.timeouts)
                seen["retries" if nic.timeouts > 3600 else "no retries"] += 1
            kept = record.parse(record.render(record.update_records(kept, judge.counters(have))))
            nic.told()
    assert min(seen[name] for name in ("not compared", "flaps", "none", "retries", "no retries")) > 200, seen
    assert seen["hidden"] < 25, seen


def test_whoever_asks_again_is_told_the_same() -> None:
    """In the same night; and a device that comes anew is compared from then on, and not from the next night."""
    nic = Nic("Ethernet", tool=True)
    kept = record.update_records(None, judge.counters(nic.question(NOW, None)))
    nic.flap()
    first = nic.question(NOW + NIGHT, kept)
    kept = record.update_records(kept, judge.counters(first))
    again = nic.question(NOW + NIGHT + 3600, kept)
    assert names(bad(first)) == names(bad(again)) == ["link_downed"]
    nic.anew()
    have = nic.question(NOW + NIGHT + 7200, kept)
    assert bad(have) == []
    assert "were reset" in "".join(judge_ports.plan(have).notes)
    kept = record.update_records(kept, judge.counters(have))
    nic.flap()
    assert names(bad(nic.question(NOW + 2 * NIGHT + 7200, kept))) == ["link_downed"]


@pytest.mark.parametrize(("link", "nights", "grown", "check", "severity"), readings.cases("health_ports"))
def test_what_a_night_brought(
    link: str, nights: float, grown: Mapping[str, int], check: str | None, severity: str | None
) -> None:
    before = port(speed=link) if link.endswith("DR") else port(link)
    found = bad(night(before, nights * NIGHT, **grown))
    assert [(names([one])[0], one.severity) for one in found] == ([(check, severity)] if check else [])
    assert all(next(iter(grown)) in (one.have or "") or check in ("link_downed", "pause") for one in found)


def without(name: str, before: Port = PORT) -> NodeState:
    """A night after one in which the port had this counter, too."""
    full = replace(before, values={**before.values, name: 0})
    return replace(
        night(full), ports=(replace(full, values={key: n for key, n in full.values.items() if key != name}),)
    )


ENDED = replace(PORT, values={**PORT.values, "link_downed": 255, "excessive_buffer_overrun_errors": 15})
ROCE = port("Ethernet")
NIGHTS = {
    "bad cable": night(PORT, link_downed=2, symbol_error=900, port_rcv_errors=500, packet_seq_err=9000),
    "slow slot": night(ROCE, rx_prio_buf_discard=9000, tx_prio3_pause_duration=10**10, packet_seq_err=9000),
    "stalled reads": night(ROCE, outbound_pci_stalled_rd_events=40_000),
    "discards for want of buffers": night(ROCE, rx_discards_phy=90_000, rx_prio_buf_discard=90_000),
    "discards": night(ROCE, rx_discards_phy=90_000),
    "no receive buffer posted": night(ROCE, out_of_buffer=10**8),
    "discards of the switch's side": night(ROCE, tx_discards_phy=9000),
    # The port's own count of its downs goes on.
    "counters at their end": night(ENDED),
    "counters at their end, RoCE": night(replace(ENDED, link_layer="Ethernet")),
    # Of a port that is down now, the speed is that of the previous run.
    "down": asked(port(at=NOW - NIGHT), port(speed=None, up=False, values={**PORT.values, "symbol_error": 100})),
    # What is well is said only where it was compared.
    "first": replace(night(PORT), before=None),
    "quiet": night(ROCE),
    "30 seconds": night(PORT, seconds=30.0, link_downed=1),
    "no counter of symbol errors": night(
        port("Ethernet", values={name: n for name, n in PORT.values.items() if name != "rx_pcs_symbol_err_phy"})
    ),
    **{f"without {name}": without(name) for name in ("symbol_error", "out_of_buffer", "port_xmit_packets")},
}


@pytest.mark.golden
@pytest.mark.parametrize("name", NIGHTS)
def test_a_night(name: str) -> None:
    findings = judge_ports.plan(NIGHTS[name]).findings
    well = sorted(one.check.removeprefix("node_health.port_") for one in findings if one.ok)
    assert {one.subject for one in findings if one.ok} <= {"ports"}
    goldens.check("health_ports", name, [well, *finding_rows.rows(findings, "node_health.port_")])


def test_what_the_control_node_is_told() -> None:
    have = night(port("Ethernet"), symbol_error=7, link_down_events_phy=2, tx_prio3_pause_duration=500, np_cnp_sent=3)
    (told,) = (one._asdict() for one in judge_ports.fleet_counters(have))
    assert told["grown"] == {"symbol_error": 7, "link_downed": 2, "tx_paused_us": 500, "np_cnp_sent": 3}
    result = {**judge_ports.plan(have).result(), "ports": [told], "boot_id": "b", "devices": []}
    assert result_schema.check("node_health", result)["ports"] == [told]
    first = [one._asdict() for one in judge_ports.fleet_counters(replace(have, before=None))]
    assert (first[0]["seconds"], first[0]["grown"]) == (None, {})
    assert result_schema.check("node_health", {**result, "ports": first})
    odd: dict[str, Any] = {"pci": "x; reboot", "grown": {"a b": 1}, "rail": "1", "speed": "é"}
    for name, value in (*odd.items(), ("grown", {"x": -1})):
        with pytest.raises(codec.Invalid):
            result_schema.check("node_health", {**result, "ports": [{**told, name: value}]})


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4), st.lists))
def test_whatever_is_in_the_record_breaks_nothing(value: Any) -> None:
    now = port()
    kept = {**now.record_entry, "at": NOW - NIGHT}
    for name in kept:
        port_counters.grown(now, {**kept, name: value})
    port_counters.grown(now, {**kept, "values": {"link_downed": value, "strange": 1}})
    assert port_counters.grown(now, {"at": value}) is None


@pytest.mark.parametrize(
    ("up", "changes", "downs"), [(True, 1, 0), (True, 2, 1), (True, 5, 2), (False, 1, 0), (False, 2, 0), (False, 3, 1)]
)
def test_an_interface_that_alone_tells_loses_its_carrier_and_has_it_again(up: bool, changes: int, downs: int) -> None:
    now = port("Ethernet", up=up, values={port_counters.CARRIER: 2 + changes})
    growth = port_counters.grown(now, replace(now, at=NOW - NIGHT, values={port_counters.CARRIER: 2}).record_entry)
    assert growth is not None
    assert growth.counts["link downs"] == downs


def test_what_is_not_the_same_is_not_compared() -> None:
    before = port(at=NOW - NIGHT)
    assert port_counters.grown(port(), before.record_entry) is not None
    for other in (port(guid="x"), port(loaded="8"), port(at=NOW - 2 * NIGHT)):
        assert port_counters.grown(other, before.record_entry) is None


ETHTOOL_STATISTICS = Path(__file__).parent / "readings/health.port_counters.parse_statistics/synthetic-ethernet.txt"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for number, nic in enumerate(ETHERNET.nics):
        assert nic.rdma is not None
        base = tmp_path / "sys/class/infiniband" / nic.rdma.name / "ports/1"
        for name in (*port_counters.ERRORS, *port_counters.DATA):
            line(base / "counters" / name, "4")
        line(base / "hw_counters/np_cnp_sent", "18446744073709551615")
        netdev = tmp_path / "sys/class/net" / nic.netdevs[0].name
        line(netdev / "carrier_changes", "2")
        line(netdev / "ifindex", str(10 + number))
    tool(tmp_path, "usr/sbin/ethtool", f'echo "$*" >> {tmp_path}/calls; cat {ETHTOOL_STATISTICS}')
    return tmp_path


def read(root: Path, topology: Topology = INFINIBAND) -> tuple[Port, ...]:
    return port_counters.read(Host(str(root), str(root)), dict(enumerate(topology.nics)), NOW)


def test_a_rail_is_read_by_files_and_one_call_of_a_tool(files: Path) -> None:
    ports = read(files, ETHERNET)
    assert [one.rail for one in ports] == list(range(8))
    assert (files / "calls").read_text().splitlines() == [f"-S ib{number}" for number in range(8)]
    first = ports[0]
    assert (first.key, first.device, first.loaded, first.speed) == ("0000:11:00.0/1", "mlx5_3", "10", "NDR")
    assert (first.problems, first.values["symbol_error"], first.values["carrier_changes"]) == ((), 4, 2)
    # Of what ethtool prints a few of hundreds are taken.
    assert readings.expected(ETHTOOL_STATISTICS).items() <= first.values.items()
    assert first.values["np_cnp_sent"] == (1 << 64) - 1
    # A virtual function has no counters of congestion: they are not exposed, and not 0.
    assert "np_ecn_marked_roce_packets" not in first.values


def test_a_tool_that_hangs_is_asked_once(files: Path) -> None:
    tool(files, "usr/sbin/ethtool", f'echo "$*" >> {files}/calls; sleep 60')
    host = Host(str(files), str(files), timeout=0.2)
    ports = port_counters.read(host, dict(enumerate(ETHERNET.nics)), NOW)
    assert (files / "calls").read_text().splitlines() == ["-S ib0"]
    assert all(len(one.problems) == 1 for one in ports)


def test_what_is_missing_is_unknown(files: Path, tmp_path: Path) -> None:
    """A tool is on Ethernet alone; files are everywhere."""
    (files / "usr/sbin/ethtool").unlink()
    assert {one.problems for one in read(files)} == {()}
    found = bad(NodeState(now=NOW, ports=read(files, ETHERNET)))
    rows = [(one.check, one.state, one.severity) for one in found]
    assert rows == [("node_health.port_counters", "unknown", "minor")] * 8
    assert read(tmp_path / "none")[0].problems == (
        Problem("/sys/class/infiniband/mlx5_3/ports/1/counters", "shows no counter"),
    )


@pytest.mark.parametrize("text", ["", "-1", "x", "1 2", "18446744073709551616", "\x1b[2J"])
def test_a_file_that_makes_no_sense_is_unknown(files: Path, text: str) -> None:
    line(files / "sys/class/infiniband/mlx5_3/ports/1/counters/link_downed", text)
    ports = read(files)
    assert [len(one.problems) for one in ports] == [1, 0, 0, 0, 0, 0, 0, 0]
    assert names(bad(NodeState(now=NOW, ports=ports))) == ["counters"]
