# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The lab's RoCE ports behave as mlx5's do, by whatever tool: mlnx_qos, ethtool, ip, or sysfs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab import qos, roce, tree
from lab.faults import FAULTS
from lab.machine import Machine
from lab.machines import hgx_h200_roce
from lab.qos import Port
from lab.toolkit.roce_program import real
from lab.toolkit.roce_tools import PLACES
from tests.lab.conftest import few_slots
from tests.lab.transcript import Transcript, scripts, texts, values
from tests.trees import put

RAIL0, DEVICE0, VF, IDLE = "enp26s0np0", "mlx5_6", "enp131s0f0v0", "eno8303"
PORTS = {"RAIL0": RAIL0, "RAIL1": "enp60s0np0", "RAIL3": "enp94s0np0", "RAIL7": "enp220s0np0"}


def made(fault: str = "") -> Machine:
    """A machine with this fault."""
    machine = few_slots({"": hgx_h200_roce})[""]("node02")
    return FAULTS[fault].apply(machine) if fault else machine


class Node:
    """A node with RoCE as it comes out of the box."""

    def __init__(self, base: Path, machine: Machine) -> None:
        self.hw, self.sys, self.root = base / "hw", base / "sys", str(base / "hw")
        tree.write_hardware(machine, self.hw)
        roce.write_tools(machine, self.sys)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """``mlnx``: mlnx_qos of RAIL0."""
        name, *more = ("mlnx_qos", "-i", RAIL0, *words[1:]) if words[0] == "mlnx" else words
        argv: list[str | Path] = [self.sys / PLACES[name].lstrip("/"), *more]
        return subprocess.run(argv, capture_output=True, text=True, timeout=1800, check=False)

    def says(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def port(self) -> Port:
        return qos.load(self.root, qos.find(self.root, RAIL0))

    def state(self) -> dict[str, str]:
        """What tools and the model may change: values that are not those out of the box, and the log of writes."""
        found = texts(self.hw, "sys/kernel/config/rdma_cm/*/ports/1/*", "sys/class/infiniband/*/tc/1/*")
        for netdev in [name for name in PORTS.values() if (self.hw / f"sys/class/net/{name}").exists()]:
            found |= texts(
                self.hw, *(f"sys/class/net/{netdev}/{file}" for file in ("mtu", "carrier_changes", "ecn/**/*"))
            )
            port = vars(qos.load(self.root, qos.find(self.root, netdev)))
            found |= values({f"{netdev} {key}": port[key] for key, usual in vars(Port()).items() if port[key] != usual})
            first, entries = port["apps"][:1], dict(port["apps"])
            found[f"{netdev} apps"] = f"{first} " + "".join(str(entries.get(dscp, "-")) for dscp in range(64))
            found[f"{netdev} table"] = "".join(map(str, port["table"]))
        return found | {f"write {number}": line for number, line in enumerate(qos.writes(self.root))}

    def render(self, fault: str = "") -> None:
        tree.write_hardware(made(fault), self.hw)
        roce.write_tools(made(fault), self.sys)

    def write(self, path: str, text: str) -> None:
        put(self.hw, path, f"{text}\n")

    def lldpad(self, command: str) -> None:
        """Starts it, or ends it."""
        process = self.hw / f"proc/{qos.LLDPAD}"
        if command == "start":
            put(process, "comm", "lldpad\n")
        else:
            shutil.rmtree(process)


@pytest.fixture(scope="module")
def _node(tmp_path_factory: pytest.TempPathFactory) -> Node:
    return Node(tmp_path_factory.mktemp("roce"), made())


@pytest.fixture
def node(_node: Node) -> Node:
    path = qos.find(_node.root, RAIL0)
    qos.replace(_node.root + path, qos.state(Port(**{**vars(_node.port()), "dcbx": "os"})))
    qos.reboot(_node.root)
    qos.replace(_node.root + qos.WRITES, "")
    return _node


@pytest.fixture(scope="module")
def fresh(_node: Node) -> dict[str, str]:
    """What a node prints out of the box."""
    commands = {"mlnx": "mlnx", "ethtool -S": f"ethtool -S {RAIL0}", "ibv_devinfo": f"ibv_devinfo -d {DEVICE0}"}
    return {name: _node.says(*command.split()) for name, command in commands.items()}


MOVED = next(netdev.name for netdev in made("nic-moved").netdevs if netdev.address == made("nic-moved").rail(3).address)
NAMES = {**PORTS, "DEVICE0": DEVICE0, "VF": VF, "IDLE": IDLE, "MOVED": MOVED}
# A line that begins with mlnx is of RAIL0.
SCRIPTS = scripts("roce")


@pytest.mark.golden
@pytest.mark.parametrize("case", SCRIPTS)
def test_what_tools_print_and_change(node: Node, fresh: dict[str, str], case: str) -> None:
    acts = {name: getattr(node, name) for name in ("render", "write", "lldpad")}
    usual = {} if case.startswith("out of the box") else fresh
    Transcript(node.run, node.state, acts, NAMES, usual).check("lab_roce", case, SCRIPTS[case])


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


RULES = (
    ("add", "from", "10.16.0.2", "table", "1000", "pref", "1000"),
    ("add", "from", "10.17.0.0/24", "lookup", "1001", "priority", "1001"),
    ("add", "from", "10.9.0.1", "table", "7"),
    ("add", "from", "10.16.0.2", "table", "1000", "pref", "1000"),
    ("del", "from", "10.99.0.1"),
    ("del", "pref", "1001"),
)


def test_rules_are_kept_and_shown_as_the_real_ip_does(node: Node) -> None:
    script = "; ".join(f"ip rule {' '.join(rule)} 2>&1; echo $?" for rule in RULES) + "; ip -j rule"
    real_one = subprocess.run(["unshare", "-n", "sh", "-c", script], capture_output=True, text=True, check=False)
    if real("ip") is None or real_one.returncode != 0:
        pytest.skip("no ip of iproute2, or no network namespace can be made here")
    said = ""
    for rule in RULES:
        done = node.run("ip", "rule", *rule)
        said += f"{done.stdout}{done.stderr}{done.returncode}\n"
    said += node.says("ip", "-j", "rule")
    assert [line.rstrip() for line in said.splitlines()] == [line.rstrip() for line in real_one.stdout.splitlines()]
