# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The lab's RoCE ports obey host.md 1 and 2, whoever asks: mlnx_qos, ethtool, ip, sysfs, or the real dcb."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbar.lab import dcb, qos, roce, tree
from busbar.lab.faults import FAULTS
from busbar.lab.machine import Machine
from busbar.lab.machines import h200_vm, hgx_h100, hgx_h200_roce
from busbar.lab.qos import ETS, STRICT, VENDOR, Port, Refused
from busbar.lab.roce_faults import ROCE_FAULTS
from busbar.lab.toolkit.mlnx_qos import LAYOUTS
from busbar.lab.toolkit.roce_program import real
from busbar.lab.toolkit.roce_tools import PLACES

RAIL0, DEVICE0, VF, IDLE = "enp26s0np0", "mlx5_6", "enp131s0f0v0", "eno8303"
IDENTITY = "0,1,2,3,4,5,6,7"
needs_dcb = pytest.mark.skipif(
    real("dcb") is None or os.uname().machine != "x86_64", reason="dcb of iproute2 is not installed, or not x86_64"
)


@pytest.fixture(scope="module")
def _node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("roce")
    machine = hgx_h200_roce("node02")
    tree.write_hardware(machine, base / "hw")
    roce.write_tools(machine, base / "sys")
    return base


class Node:
    """A node with RoCE as it comes out of the box."""

    def __init__(self, base: Path) -> None:
        self.hw, self.sys = base / "hw", base / "sys"
        self.root = str(self.hw)

    def run(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        tool = self.sys / PLACES[name].lstrip("/")
        return subprocess.run([tool, *words], capture_output=True, text=True, timeout=1800, check=False)

    def says(self, name: str, *words: str) -> str:
        done = self.run(name, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def qos(self, *words: str) -> str:
        return self.says("mlnx_qos", "-i", RAIL0, *words)

    def port(self, netdev: str = RAIL0) -> Port:
        return qos.load(self.root, qos.find(self.root, netdev))

    def change(self, **values: object) -> None:
        path = qos.find(self.root, RAIL0)
        qos.replace(self.root + path, qos.state(Port(**{**asdict(self.port()), **values})))

    def text(self, path: str) -> str:
        return (self.hw / path.lstrip("/")).read_text()

    def netdev(self, file: str) -> str:
        return self.text(f"/sys/class/net/{RAIL0}/{file}").strip()


@pytest.fixture
def node(_node: Path) -> Node:
    node = Node(_node)
    node.change(dcbx="os")
    qos.reboot(node.root)
    qos.replace(node.root + qos.WRITES, "")
    return node


# -- what comes out of the box, and what outlives what ---------------------------------------------------------------


def test_out_of_the_box_a_port_is_as_1_3_says(node: Node) -> None:
    port = node.port()
    assert (port.trust, port.pfc, port.tsa, port.cable) == ("pcp", 0, [VENDOR] * 8, 7)
    assert port.prio_tc == [1, 0, 2, 3, 4, 5, 6, 7]


def test_every_physical_ethernet_port_of_mlx5_has_dcb_and_no_other_has(node: Node) -> None:
    """1.4: PF only. 1.5: a bond has none, its members have."""
    found = {}
    for netdev in hgx_h200_roce("node02").netdevs:
        try:
            found[netdev.name] = bool(qos.find(node.root, netdev.name))
        except Refused as refused:
            assert refused.errno == errno.EOPNOTSUPP
    expected = {n.name for n in hgx_h200_roce("node02").netdevs if n.name.startswith("enp") and "v" not in n.name}
    assert set(found) == expected
    assert len(expected) == 12


def test_a_reboot_loses_everything_but_who_owns_dcbx(node: Node) -> None:
    """1.5."""
    node.qos("--trust", "dscp", "--pfc", "0,0,0,1,0,0,0,0")
    node.says("cma_roce_tos", "-d", DEVICE0, "-t", "106")
    node.says("ip", "rule", "add", "from", "10.16.0.2", "table", "1000")
    (node.hw / f"sys/class/net/{RAIL0}/ecn/roce_np/cnp_dscp").write_text("46\n")
    node.qos("-d", "fw")
    node.says("busbar-lab-roce", "reboot")
    assert node.port() == Port(dcbx="firmware", sends=3, receives=3)
    assert node.netdev("ecn/roce_np/cnp_dscp") == "48"
    assert "1000" not in node.says("ip", "rule")


def test_a_driver_load_resets_ets_and_cable_and_reads_trust_and_pfc_back(node: Node) -> None:
    """1.4, 1.5."""
    node.qos("--trust", "dscp", "--pfc", "0,0,0,1,0,0,0,0", "--cable_len", "30")
    node.qos("--dscp2prio", "set,26,4", "-p", IDENTITY, "-s", ",".join(["strict"] * 8))
    (node.hw / f"sys/class/infiniband/{DEVICE0}/tc/1/traffic_class").write_text("106\n")
    node.says("busbar-lab-roce", "driver-load")
    port = node.port()
    assert (port.trust, port.pfc, [26, 4] in port.apps) == ("dscp", 8, True)
    assert (port.prio_tc, port.tsa, port.cable) == (Port().prio_tc, Port().tsa, 7)
    assert node.text(f"/sys/class/infiniband/{DEVICE0}/tc/1/traffic_class") == ""


# -- rules of 1.4 ----------------------------------------------------------------------------------------------------


def test_only_another_pfc_mask_bounces_the_link(node: Node) -> None:
    node.qos("--pfc", "0,0,0,1,0,0,0,0")
    assert (node.port().bounces, node.netdev("carrier_changes")) == (1, "4")
    node.qos("--pfc", "0,0,0,1,0,0,0,0")
    assert (node.port().bounces, node.netdev("carrier_changes")) == (1, "4")


def test_a_cable_length_out_of_range_is_not_taken(node: Node) -> None:
    assert "Cable len: 30" in node.qos("--cable_len", "30")
    assert "Cable len: 30" in node.qos("--cable_len", "1000")
    assert node.port().bounces == 0


def test_trust_follows_from_the_first_and_the_last_dscp_entry(node: Node) -> None:
    assert "trust state: dscp" in node.qos("--dscp2prio", "set,26,3")
    assert node.port().apps == [[26, 3]]
    assert "trust state: pcp" in node.qos("--dscp2prio", "del,26,3")
    assert node.port().table[26] == 0


def test_trust_dscp_writes_all_64_entries_and_pcp_deletes_them(node: Node) -> None:
    node.qos("--trust", "dscp")
    assert sorted(node.port().apps) == [[dscp, dscp >> 3] for dscp in range(64)]
    node.qos("--trust", "pcp")
    assert node.port().apps == []


def test_flush_flips_trust_and_leaves_priority_0_behind(node: Node) -> None:
    """F20."""
    node.qos("--trust", "dscp")
    assert "trust state: pcp" in node.qos("--dscp2prio", "flush")
    assert node.port().table == [0] * 64


def test_an_entry_replaces_the_one_of_the_same_dscp_and_comes_first(node: Node) -> None:
    node.qos("--trust", "dscp")
    node.qos("--dscp2prio", "set,26,4", "--dscp2prio", "set,26,4")
    assert node.port().apps[0] == [26, 4]
    assert len(node.port().apps) == 64


def test_pause_and_pfc_have_one_register(node: Node) -> None:
    assert node.says("ethtool", "-a", RAIL0).count("on") == 2 + "Autonegotiate".count("on")
    node.qos("--pfc", "0,0,0,1,0,0,0,0")
    assert "RX:\t\toff\nTX:\t\toff\n" in node.says("ethtool", "-a", RAIL0)
    node.says("ethtool", "-A", RAIL0, "rx", "on", "tx", "on")
    assert node.port().pfc == 0


def test_ets_shares_that_are_not_100_percent_are_refused(node: Node) -> None:
    done = node.run("mlnx_qos", "-i", RAIL0, "-s", ",".join(["ets"] * 8), "-t", ",".join(["10"] * 8))
    assert (done.returncode, done.stdout) == (1, "Netlink error: Bad value. see dmesg.\n")
    assert node.port().tsa == [VENDOR] * 8


def test_a_rate_above_255_gbps_is_said_to_be_unsupported_and_ends_well(node: Node) -> None:
    """1.2: a rate limit that fails exits 0."""
    done = node.run("mlnx_qos", "-i", RAIL0, "-r", "256,0,0,0,0,0,0,0")
    assert done.returncode == 0
    assert done.stdout.startswith("Rate limit is not supported on your system!\nDCBX mode")


def test_buffers_follow_mtu_and_pfc_until_they_are_set_by_hand(node: Node) -> None:
    def lines() -> list[str]:
        return [line for line in node.qos().splitlines() if line.startswith(("Receive", "\tbuffer"))]

    before = lines()
    node.qos("--pfc", "0,0,0,1,0,0,0,0")
    assert lines() != before
    node.says("ip", "link", "set", "dev", RAIL0, "mtu", "4200")
    assert lines()[0] != before[0]
    node.qos("--prio2buffer", "0,0,0,1,0,0,0,0", "--buffer_size", "20000,200000,0,0,0,0,0,0")
    node.says("ip", "link", "set", "dev", RAIL0, "mtu", "9000")
    assert lines()[0].startswith("Receive buffer size (bytes): 20000,200000,0,")


def test_a_port_of_the_firmware_refuses_writes_until_it_is_taken_back(node: Node) -> None:
    assert node.qos("-d", "fw").startswith("DCBX mode: Firmware controlled\n")
    done = node.run("mlnx_qos", "-i", RAIL0, "--pfc", "0,0,0,1,0,0,0,0")
    assert (done.returncode, node.port().pfc) == (1, 0)
    assert "Bad value. see dmesg." in done.stderr
    assert node.run("mlnx_qos", "-i", RAIL0, "--trust", "dscp").returncode == 1
    assert node.qos("-d", "os", "--pfc", "0,0,0,1,0,0,0,0").startswith("DCBX mode: OS controlled\n")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 63), st.integers(0, 7), st.booleans()), max_size=40))
def test_after_any_entries_the_firmware_has_what_the_entries_say(changes: list[tuple[int, int, bool]]) -> None:
    port = Port()
    for dscp, prio, add in changes:
        if add:
            port.set_app(dscp, prio)
        elif [dscp, prio] in port.apps:
            port.del_app(dscp, prio)
    assert len({dscp for dscp, _ in port.apps}) == len(port.apps)
    assert all(port.table[dscp] == prio for dscp, prio in port.apps)
    assert port.trust == ("dscp" if port.apps else "pcp")


# -- words and exit codes of mlnx_qos, 1.2 ---------------------------------------------------------------------------

UNSUPPORTED = """\
Priority trust state is not supported on your system
Buffers commands are not supported on your system
Rate limit is not supported on your system!
ETS features are not supported on your system
"""


@pytest.mark.parametrize("netdev", ["nosuch", VF, IDLE, "bond0"])
def test_no_such_device_and_no_dcb_look_the_same(node: Node, netdev: str) -> None:
    done = node.run("mlnx_qos", "-i", netdev)
    assert (done.returncode, done.stdout, done.stderr) == (1, UNSUPPORTED, "")


def test_an_infiniband_port_has_no_dcb(tmp_path: Path) -> None:
    """F29."""
    machine = hgx_h100("node01")
    tree.write_hardware(machine, tmp_path / "hw")
    roce.write_tools(machine, tmp_path / "sys")
    netdev = next(n.name for n in machine.netdevs if n.kind == 32)
    assert Node(tmp_path).run("mlnx_qos", "-i", netdev).stdout == UNSUPPORTED


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 1, "Interface name is required\nUsage: mlnx_qos -i <interface> [options]\n"),
        (("-i", RAIL0, "--pfc", "0,0,0,1,0,0,0"), 1, "pfc list must have 8 items\n"),
        (("-i", RAIL0, "--pfc", "0,0,0,2,0,0,0,0"), 1, "Bad value for PFC: 2 is not in the range 0..1\n"),
        (("-i", RAIL0, "--trust", "foo"), 1, "Invalid trust state command. Refer to the help.\n"),
        (("-i", RAIL0, "-d", "foo"), 1, "Invalid dcbx mode command. Refer to the help.\n"),
        (("-i", RAIL0, "--dscp2prio", "del,30,6"), 1, "dscp2prio command failed\n"),
        (("-i", RAIL0, "--dscp2prio", "26,3"), 1, ""),
        (("-i", RAIL0, "-P", "8"), 1, "pfc index must be in range of 0-7\n"),
        (("-i", RAIL0, "-t", "50,50,0,0,0,0,0,0"), 1, "ETS BW for a strict/vendor TC must be 0\n"),
        (("-i", RAIL0, "more"), 1, "Bad arguments\n"),
        (
            ("-i", RAIL0, "--trust", "dscp", "--dscp2prio", "set,30,6"),
            1,
            "trust and dscp2prio commands cannot be used at the same time.\n",
        ),
    ],
)
def test_what_is_asked_wrongly_is_refused_in_its_words(
    node: Node, words: tuple[str, ...], code: int, said: str
) -> None:
    done = node.run("mlnx_qos", *words)
    assert done.returncode == code
    assert done.stdout.startswith(said)
    assert node.port() == Port(sends=3, receives=3)


def test_an_unknown_option_ends_with_2(node: Node) -> None:
    """There is no JSON."""
    done = node.run("mlnx_qos", "-i", RAIL0, "--json")
    assert done.returncode == 2
    assert done.stderr.endswith("mlnx_qos: error: no such option: --json\n")


def test_a_setter_prints_the_full_state_but_specific_pfc_prints_nothing(node: Node) -> None:
    assert node.qos("--trust=dscp", "--pfc=0,0,0,1,0,0,0,0").startswith("DCBX mode: OS controlled\n")
    assert node.qos("-P", "3") == "1\n"
    assert node.qos("-F", "x,x,1,0,x,x,x,x") == ""
    assert node.port().pfc == 0b100


def test_pfc_is_set_before_a_bad_trust_is_looked_at(node: Node) -> None:
    """The order of the real one: the call fails, and has changed the port."""
    assert node.run("mlnx_qos", "-i", RAIL0, "--pfc", "0,0,0,1,0,0,0,0", "--trust", "foo").returncode == 1
    assert node.port().pfc == 8


def test_the_port_of_a_vf_cannot_be_set_and_its_failure_is_a_traceback(node: Node) -> None:
    done = node.run("mlnx_qos", "-i", VF, "--pfc", "0,0,0,1,0,0,0,0")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith("TypeError")


def test_lldpad_is_only_warned_of(node: Node) -> None:
    process = node.hw / f"proc/{qos.LLDPAD}"
    process.mkdir()
    try:
        (process / "comm").write_text("lldpad\n")
        said = node.qos("--pfc", "0,0,0,1,0,0,0,0")
    finally:
        shutil.rmtree(process)
    warning = "****** WARNING: lldpad service is running and may overwrite your settings ******\n\nDCBX mode"
    assert said.startswith(warning)
    assert node.port().pfc == 8


# -- layouts, 1.3 ----------------------------------------------------------------------------------------------------


def layout(node: Node, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    qos.replace(node.root + qos.NODE, json.dumps({"mlnx_qos": name}))
    try:
        return node.run("mlnx_qos", "-i", RAIL0, *words)
    finally:
        qos.replace(node.root + qos.NODE, json.dumps({"mlnx_qos": "new"}))


def test_every_version_prints_in_its_own_way(node: Node) -> None:
    node.qos("--trust", "dscp")
    node.qos("--dscp2prio", "set,30,6")
    texts = {name: layout(node, name).stdout for name in LAYOUTS}
    assert "\tprio:6 dscp:30,55,54,53,52,51,50,49,\n\tprio:6 dscp:48,\n" in texts["new"]
    assert "\tprio:6 dscp:30,55,54,53,52,51,50,49,48,\n\tprio:7" in texts["old"]
    assert "max_buffer_size=4151520\n" in texts["new"]
    assert "total_size=4151520\n" in texts["total-size"]
    assert "\ndefault priority:\nReceive buffer" in texts["ofed-23.10"]
    assert "Receive" not in texts["old"]
    assert "buffer" not in texts["old"]
    assert next(line for line in texts["old"].splitlines() if line.startswith("tc:")).startswith("tc: 1 ")
    assert "\t" not in texts["pasted"]
    assert "\n        enabled     0   0" in texts["pasted"]
    assert layout(node, "old", "-P", "3").returncode == 2


def test_a_tc_without_priorities_is_not_printed_and_a_dscp_without_an_entry_neither(node: Node) -> None:
    node.qos("--trust", "dscp")
    said = node.qos("-p", "0,0,0,3,0,0,6,0", "--dscp2prio", "del,30,3")
    assert [line[:5] for line in said.splitlines() if line.startswith("tc:")] == ["tc: 0", "tc: 3", "tc: 6"]
    assert "30," not in said


# -- the log ---------------------------------------------------------------------------------------------------------


def test_reading_writes_nothing_and_every_setter_is_noted_even_if_it_changes_nothing(node: Node) -> None:
    node.qos()
    node.qos("-d", "get")
    node.qos("-P", "3")
    for words in (("ethtool", "-a", RAIL0), ("ethtool", "-S", RAIL0), ("ip", "rule"), ("ibv_devinfo",)):
        node.says(*words)
    node.says("cma_roce_tos", "-d", DEVICE0)
    assert qos.writes(node.root) == []
    node.qos("--pfc", "0,0,0,0,0,0,0,0", "--trust", "pcp")
    node.run("ethtool", "-A", RAIL0, "rx", "on")
    node.says("cma_roce_tos", "-d", DEVICE0, "-t", "0")
    node.says("ip", "link", "set", "dev", RAIL0, "mtu", "9000")
    assert qos.writes(node.root) == [
        f"mlnx_qos {RAIL0} pfc trust",
        f"ethtool -A {RAIL0} rx on",
        f"cma_roce_tos {DEVICE0} 0",
        f"ip link {RAIL0} mtu 9000",
    ]


# -- ethtool, cma_roce_tos, MTU, rules -------------------------------------------------------------------------------


def test_pause_that_changes_nothing_or_negotiates_is_no_success(node: Node) -> None:
    """2.3: `ethtool -A` may end with an error where nothing is to change."""
    done = node.run("ethtool", "-A", RAIL0, "autoneg", "off", "rx", "on", "tx", "on")
    assert (done.returncode, done.stderr) == (78, "no pause parameters modified, aborting\n")
    assert node.run("ethtool", "-A", RAIL0, "autoneg", "on").returncode != 0
    assert node.run("ethtool", "-a", VF).returncode != 0


def test_counters_show_pause_of_the_priorities_that_have_pfc(node: Node) -> None:
    assert "_global_pause: " in node.says("ethtool", "-S", RAIL0)
    node.qos("--pfc", "0,0,0,1,0,0,0,0")
    said = node.says("ethtool", "-S", RAIL0)
    assert "global_pause" not in said
    assert "     rx_prio3_pause: 12\n" in said
    assert "prio4_pause" not in said


def test_ethtool_names_driver_firmware_and_bus(node: Node) -> None:
    said = node.says("ethtool", "-i", RAIL0)
    assert "driver: mlx5_core\n" in said
    assert "firmware-version: 28.43.8002 (MT_0000000838)\n" in said
    assert "bus-info: 0000:1a:00.0\n" in said


def test_cma_roce_tos_shows_sets_and_refuses(node: Node) -> None:
    assert node.says("cma_roce_tos", "-d", DEVICE0) == "0\n"
    assert node.says("cma_roce_tos", "-d", DEVICE0, "-t", "106") == "106\n"
    assert node.says("cma_roce_tos", "-d", DEVICE0) == "106\n"
    done = node.run("cma_roce_tos", "-d", "mlx5_99")
    assert (done.returncode, done.stdout) == (1, "Failed to create configuration for mlx5_99\n")


@pytest.mark.parametrize(("mtu", "size"), [(9000, 4096), (4192, 4096), (4191, 2048), (2144, 2048), (1500, 1024)])
def test_active_mtu_is_the_largest_that_leaves_96_bytes(node: Node, mtu: int, size: int) -> None:
    """2.4."""
    node.says("ip", "link", "set", "dev", RAIL0, "mtu", str(mtu))
    assert node.netdev("mtu") == str(mtu)
    assert f"active_mtu:\t\t{size} (" in node.says("ibv_devinfo", "-d", DEVICE0)


def test_a_stale_active_mtu_follows_once_the_link_is_set_up_again(node: Node) -> None:
    node.says("ip", "link", "set", "dev", RAIL0, "mtu", "9000")
    node.says("busbar-lab-roce", "stale", RAIL0, "1024")
    assert "active_mtu:\t\t1024 (3)" in node.says("ibv_devinfo", "-d", DEVICE0)
    node.says("ip", "link", "set", RAIL0, "down")
    node.says("ip", "link", "set", RAIL0, "up")
    assert "active_mtu:\t\t4096 (5)" in node.says("ibv_devinfo", "-d", DEVICE0)


def test_an_mtu_that_the_device_has_not_is_refused(node: Node) -> None:
    assert node.run("ip", "link", "set", "dev", RAIL0, "mtu", "65000").returncode == 2
    assert node.run("ip", "link", "set", "dev", RAIL0, "mtu", "9k").returncode == 255
    assert node.netdev("mtu") == "1500"


RULES = (
    ("add", "from", "10.16.0.2", "table", "1000", "pref", "1000"),
    ("add", "from", "10.17.0.0/24", "lookup", "1001", "priority", "1001"),
    ("add", "from", "10.9.0.1", "table", "7"),
    ("add", "from", "10.16.0.2", "table", "1000", "pref", "1000"),
    ("del", "from", "10.99.0.1"),
    ("del", "pref", "1001"),
)


def test_rules_are_kept_and_shown_as_the_real_ip_does(node: Node) -> None:
    script = "; ".join(f"ip rule {' '.join(rule)} 2>&1; echo $?" for rule in RULES) + "; ip rule; ip -j rule"
    real_one = subprocess.run(["unshare", "-n", "sh", "-c", script], capture_output=True, text=True, check=False)
    if real("ip") is None or real_one.returncode != 0:
        pytest.skip("no ip of iproute2, or no network namespace can be made here")
    said = ""
    for rule in RULES:
        done = node.run("ip", "rule", *rule)
        said += f"{done.stdout}{done.stderr}{done.returncode}\n"
    said += node.says("ip", "rule") + node.says("ip", "-j", "rule")
    assert [line.rstrip() for line in said.splitlines()] == [line.rstrip() for line in real_one.stdout.splitlines()]


def test_routes_of_a_table_of_its_own(node: Node) -> None:
    done = node.run("ip", "route", "show", "table", "1000")
    assert (done.returncode, done.stderr) == (2, "Error: ipv4: FIB table does not exist.\nDump terminated\n")
    add = ("route", "add", "10.16.0.0/24", "dev", RAIL0, "scope", "link", "src", "10.16.0.2", "table", "1000")
    node.says("ip", *add)
    assert node.run("ip", *add).returncode == 2
    node.says("ip", "route", "replace", "default", "via", "10.16.0.254", "dev", RAIL0, "table", "1000")
    assert json.loads(node.says("ip", "-j", "route", "show", "table", "1000")) == [
        {"dst": "10.16.0.0/24", "dev": RAIL0, "scope": "link", "prefsrc": "10.16.0.2", "flags": []},
        {"dst": "default", "gateway": "10.16.0.254", "dev": RAIL0, "flags": []},
    ]
    assert f"10.16.0.0/24 dev {RAIL0} proto kernel scope link" in node.says("ip", "route")


def test_what_the_lab_does_not_know_is_not_asked_of_this_machine(node: Node) -> None:
    done = node.run("ip", "link", "show")
    assert (done.returncode, done.stdout) == (255, "")


# -- sysfs, 2.3 ------------------------------------------------------------------------------------------------------


def test_ecn_and_traffic_class_are_files_of_ofed_alone(tmp_path: Path) -> None:
    """F21."""
    with_ofed, without = hgx_h200_roce("node02"), hgx_h200_roce("node02")
    without.ofed = None
    there = {path for path in tree.hardware(with_ofed).files if "/ecn/" in path or path.endswith("traffic_class")}
    assert len([path for path in there if path.endswith("ecn/roce_np/enable/3")]) == 12
    # One for each RDMA device but those of VFs; a bond has one for both members.
    assert len([path for path in there if path.endswith("tc/1/traffic_class")]) == 11
    files = tree.hardware(without).files
    assert not there & set(files)
    assert files["/sys/kernel/debug/mlx5/0000:1a:00.0/cc_params/np_cnp_dscp"] == "48\n"


def test_a_node_without_mlx5_has_none_of_it(tmp_path: Path) -> None:
    tree.write_hardware(h200_vm(), tmp_path / "hw")
    roce.write_tools(h200_vm(), tmp_path / "sys")
    assert not (tmp_path / f"hw{qos.STATE}").exists()
    assert not (tmp_path / "sys/usr/bin/mlnx_qos").exists()


# -- rendering again -------------------------------------------------------------------------------------------------


@pytest.fixture
def rendered(tmp_path: Path) -> Callable[[Machine], Node]:
    def render(machine: Machine) -> Node:
        tree.write_hardware(machine, tmp_path / "hw")
        roce.write_tools(machine, tmp_path / "sys")
        return Node(tmp_path)

    return render


def test_rendering_again_keeps_what_tools_have_set(rendered: Callable[[Machine], Node]) -> None:
    machine = hgx_h200_roce("node02")
    node = rendered(machine)
    node.qos("--trust", "dscp", "--pfc", "0,0,0,1,0,0,0,0", "--cable_len", "30")
    (node.hw / f"sys/class/net/{RAIL0}/ecn/roce_rp/enable/6").write_text("0\n")
    before, log = node.port(), qos.writes(node.root)
    rendered(ROCE_FAULTS["ecn-off"].apply(machine))
    rendered(machine)
    assert (node.port(), qos.writes(node.root)) == (before, log)
    assert node.netdev("ecn/roce_rp/enable/6") == "0"


def test_a_fault_changes_one_value_and_its_repair_brings_that_back(rendered: Callable[[Machine], Node]) -> None:
    machine = hgx_h200_roce("node02")
    rail = next(n.name for n in machine.netdevs if n.address == machine.rail(1).address)
    node = rendered(machine)
    node.says("mlnx_qos", "-i", rail, "--pfc", "0,0,0,1,0,0,0,0", "--cable_len", "30")
    healthy = node.port(rail)
    rendered(ROCE_FAULTS["pfc-off"].apply(machine))
    assert asdict(node.port(rail)) == {**asdict(healthy), "pfc": 0}
    rendered(machine)
    assert node.port(rail) == healthy


def test_a_repair_leaves_what_was_mended_meanwhile(rendered: Callable[[Machine], Node]) -> None:
    machine = hgx_h200_roce("node02")
    netdev = next(n.name for n in machine.netdevs if n.address == machine.rail(7).address)
    node = rendered(machine)
    file = node.hw / f"sys/class/infiniband/{machine.rail(7).name}/tc/1/traffic_class"
    assert file.read_text() == ""
    rendered(ROCE_FAULTS["one-way-tc"].apply(machine))
    assert file.read_text() == "Global tclass=0\n"
    said = node.says("ethtool", "-S", netdev)
    assert "tx_prio3_bytes: 0\n" in said
    assert "rx_prio3_bytes: 0\n" not in said
    rendered(machine)
    assert file.read_text() == ""
    rendered(ROCE_FAULTS["one-way-tc"].apply(machine))
    file.write_text("104\n")
    rendered(machine)
    assert file.read_text() == "104\n"


def test_a_card_that_comes_back_or_moves_is_as_it_was(rendered: Callable[[Machine], Node]) -> None:
    machine = hgx_h200_roce("node02")
    netdev = next(n.name for n in machine.netdevs if n.address == machine.rail(3).address)
    node = rendered(machine)
    node.says("mlnx_qos", "-i", netdev, "--trust", "dscp", "--pfc", "0,0,0,1,0,0,0,0", "--cable_len", "30")
    before = node.port(netdev)
    rendered(FAULTS["rail-missing"].apply(machine))
    assert node.run("mlnx_qos", "-i", netdev).stdout == UNSUPPORTED
    rendered(machine)
    assert node.port(netdev) == before
    moved = FAULTS["nic-moved"].apply(machine)
    rendered(moved)
    assert node.port(next(n.name for n in moved.netdevs if n.address == moved.rail(3).address)) == before


# -- the real dcb, 1.6 -----------------------------------------------------------------------------------------------


def dcb_json(node: Node, what: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(node.says("dcb", "-j", what, "show", "dev", RAIL0))
    return found


@needs_dcb
def test_dcb_and_mlnx_qos_see_the_same_port(node: Node) -> None:
    node.says("dcb", "pfc", "set", "dev", RAIL0, "prio-pfc", "all:off", "3:on", "delay", "30")
    said = node.qos()
    assert "\tenabled     0   0   0   1   0   0   0   0   \n" in said
    assert "Cable len: 30\n" in said
    node.qos("--trust", "dscp", "--pfc", "0,0,0,0,1,0,0,0")
    pfc = dcb_json(node, "pfc")
    assert pfc == {
        "pfc_cap": 8,
        "macsec_bypass": False,
        "delay": 30,
        "prio_pfc": [prio == 4 for prio in range(8)],
    }
    assert dcb_json(node, "app") == {"dscp_prio": [[dscp, dscp >> 3] for dscp in range(64)]}


@needs_dcb
def test_dcb_app_add_switches_a_pcp_port_to_dscp(node: Node) -> None:
    """1.4: the other DSCPs keep what the firmware has, 0 after a flush."""
    node.qos("--trust", "dscp")
    node.says("dcb", "app", "flush", "dev", RAIL0)
    assert dcb_json(node, "app") == {}
    node.says("dcb", "app", "add", "dev", RAIL0, "dscp-prio", "26:3")
    port = node.port()
    assert (port.trust, port.apps, sum(port.table)) == ("dscp", [[26, 3]], 3)


@needs_dcb
def test_dcb_app_replace_ends_well_though_its_second_step_fails(node: Node) -> None:
    """1.6: always read back."""
    node.qos("--trust", "dscp")
    done = node.run("dcb", "app", "replace", "dev", RAIL0, "dscp-prio", "26:4")
    assert done.returncode == 0
    assert "No such file or directory" in done.stderr
    assert [26, 4] in node.port().apps


@needs_dcb
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("pfc", "show", "dev", "nosuch"), 1, "Attribute read: No such device\n"),
        (("pfc", "show", "dev", VF), 1, "Attribute read: Operation not supported\n"),
        (("app", "add", "dev", RAIL0, "ethtype-prio", "0x8906:3"), 1, "Attribute write: Invalid argument\n"),
        (("dcbx", "set", "dev", RAIL0, "lld-managed"), 1, "Attribute write: Unknown error -1\n"),
        (("pfc", "show"), 0, "Usage: dcb"),
    ],
)
def test_dcb_fails_in_its_own_words(node: Node, words: tuple[str, ...], code: int, said: str) -> None:
    done = node.run("dcb", *words)
    assert done.returncode == code
    assert (done.stderr + done.stdout).startswith(said)


@needs_dcb
def test_dcb_sets_ets_buffers_and_dcbx(node: Node) -> None:
    shares = ("tc-tsa", "all:strict", "3:ets", "tc-bw", "all:0", "3:100", "prio-tc", "0:0", "1:1")
    node.says("dcb", "ets", "set", "dev", RAIL0, *shares)
    port = node.port()
    assert (port.tsa[3], port.tsa[0], port.bw[3], port.prio_tc) == (ETS, STRICT, 100, list(range(8)))
    node.says("dcb", "buffer", "set", "dev", RAIL0, "prio-buffer", "3:1", "buffer-size", "1:200000")
    assert node.port().prio_buffer[3] == 1
    assert dcb_json(node, "dcbx") == {"host": True, "cee": True, "ieee": True}
    node.qos("-d", "fw")
    assert dcb_json(node, "dcbx") == {"cee": True, "ieee": True}
    assert node.run("dcb", "pfc", "set", "dev", RAIL0, "prio-pfc", "3:on").returncode == 1


@needs_dcb
def test_dcb_of_iproute2_6_1_shows_a_rate_125_times_too_small(node: Node) -> None:
    """1.6: 10 Gb/s are 80 Mbit there; fixed upstream since."""
    node.qos("-r", "0,0,0,0,0,0,10,0")
    said = node.says("dcb", "maxrate", "show", "dev", RAIL0)
    assert " 6:80Mbit " in said or " 6:10Gbit " in said


@needs_dcb
def test_a_tool_that_is_no_dcb_runs_traced_as_it_would_alone(tmp_path: Path) -> None:
    silent = partial(dcb.answer, str(tmp_path))
    assert dcb.Endpoint(silent).run(["/bin/sh", "-c", "exit 7"]) == 7
    assert dcb.Endpoint(silent).run(["/bin/sh", "-c", "kill -9 $$"]) == 137
    assert dcb.Endpoint(silent).run(["/nonexistent"]) == 127


# Without the acknowledgement it gives up: error 11.
ASKS_TO_BE_TOLD = """\
import socket, struct, sys
name = sys.argv[1].encode()
asked = struct.pack("=BBHHH", 0, 21, 0, 5 + len(name), 1) + name + bytes(4 - len(name) % 4)
link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("qq", 1, 0))
link.sendto(struct.pack("=IHHII", 16 + len(asked), 78, int(sys.argv[2]), 7, 0) + asked, (0, 0))
for _ in range(2):
    said = link.recvmsg(4096)[0]
    print(*struct.unpack_from("=HHIIi", said, 4))
"""


@needs_dcb
@pytest.mark.parametrize(
    ("netdev", "flags", "said"),
    [
        # 78: the tables. 2: an error, of which 0 is none; -19: no such device.
        (RAIL0, 1 | 4, ["78", "2 0 7 0 0"]),
        (RAIL0, 1, ["78"]),
        ("nope", 1 | 4, ["2 0 7 0 -19"]),
    ],
)
def test_who_asks_to_be_told_is_told_behind_the_reply(
    node: Node, netdev: str, flags: int, said: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    argv = [sys.executable, "-I", "-S", "-c", ASKS_TO_BE_TOLD, netdev, str(flags)]
    ended = dcb.Endpoint(partial(dcb.answer, node.root)).run(argv)
    out = capfd.readouterr().out.splitlines()
    assert [line if line.startswith("2 ") else line.split()[0] for line in out] == said
    assert (ended == 0) is (len(said) == 2)


def test_renamed_rails_are_the_same_cards_in_the_same_slots(rendered: Callable[[Machine], Node]) -> None:
    """F25."""
    machine = hgx_h200_roce("node02")
    renamed = ROCE_FAULTS["rails-renamed"].apply(machine)
    node = rendered(machine)
    file = "sys/class/infiniband/{}/tc/1/traffic_class"
    (node.hw / file.format(machine.rail(4).name)).write_text("104\n")
    rendered(renamed)
    assert node.text(file.format(machine.rail(4).name)) == ""
    assert node.text(file.format(machine.rail(5).name)) == "104\n"
    for number in (4, 5):
        assert renamed.rail(number).address == machine.rail(number).address
        assert renamed.rail(number).name == machine.rail(9 - number).name
        assert renamed.rail(number).gids == machine.rail(number).gids


def test_an_earlier_rule_takes_the_rail_out_of_any_table_of_its_own(rendered: Callable[[Machine], Node]) -> None:
    node = rendered(hgx_h200_roce("node02"))
    node.says("ip", "rule", "add", "from", "10.21.0.2", "table", "1005", "pref", "1005")
    rendered(ROCE_FAULTS["asymmetric-routing"].apply(hgx_h200_roce("node02")))
    assert node.says("ip", "rule").splitlines()[1:3] == [
        "50:\tfrom 10.21.0.2 lookup main",
        "1005:\tfrom 10.21.0.2 lookup 1005",
    ]
