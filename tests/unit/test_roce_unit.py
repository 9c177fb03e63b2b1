# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The files that set RoCE again, their plan, and the script itself on a simulated node."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.machine import (
    platform,
    platform_checks,
    profile,
    rails,
    topology,
)
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos import boot_script, boot_unit, chain, module
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.boot_script import Intent, Result
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.chain import PortConfig
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.port import Gap, Port, ports

from lab import qos, tree
from lab.machines import hgx_h200_roce
from tests import golden_rows, goldens

OWN, UNIT, INTENT = boot_unit.OWN, boot_unit.UNIT, boot_unit.INTENT
ROOT = Path(__file__).resolve().parent.parent.parent
PROFILE = yaml.safe_load((ROOT / "profiles" / "hgx-h200.yml").read_text())
GIVEN: dict[str, Any] = dict.fromkeys(module.SETTINGS)
GIVEN.update(roce={"dscp": 26}, pause_off=True, traffic_class=106)
SETTINGS = {name: GIVEN[name] for name in module.SETTINGS}
WANT = PortConfig.from_values(chain.resolve(GIVEN["roce"], GIVEN), GIVEN)
ONE, OTHER = "0000:1b:00.0", "0000:2b:00.0"
PORTS = tuple(
    Port(label=f"{address} mlx5_{number} eth{number}", pci=address, netdev=f"eth{number}", rdma="mlx5_0")
    for number, address in enumerate((ONE, OTHER))
)
WANTED = Intent({ONE: True, OTHER: True}, {"dscp": 26}, {"pause_off": True}, "/", "/")
NOTHING = boot_unit.UnitState(dict.fromkeys(OWN), dict.fromkeys(OWN))
RAIL0, VF, STRANGER = "0000:1a:00.0", "0000:83:00.2", "0000:83:00.0"
DATA_RAIL0 = "enp26s0np0"


def provisioned(result: Result | None = None) -> boot_unit.UnitState:
    """result: of the first port."""
    results = {} if result is None else {ONE: result}
    return boot_unit.UnitState(boot_unit.render(WANTED), dict.fromkeys(OWN, 0o644), results=results)


def planned(have: boot_unit.UnitState, wanted: Intent | None = WANTED, missing: Finding | None = None) -> Plan:
    return boot_unit.plan(have, wanted, PORTS, missing)


def states(plan: Plan) -> list[tuple[str, str, str]]:
    return [(finding.aspect, finding.identity, finding.state) for finding in plan.findings]


# -- the plan --------------------------------------------------------------------------------------------------------


GOOD, LOST = provisioned(), replace(planned(NOTHING).findings[0], check="platform.rail_device", subject="rail 3")
FAILED = provisioned(Result("failed", ("busy: process python (pid 7)", "and more")))
FRONT = f"busbar-roce-qos@{OTHER}.service"
PLANS: dict[str, tuple[boot_unit.UnitState, Intent | None, Finding | None]] = {
    "a fresh node": (NOTHING, WANTED, None),
    "a fresh node without systemctl": (replace(NOTHING, systemctl=False), WANTED, None),
    "a fresh node without udev": (replace(NOTHING, udev=False), WANTED, None),
    "as wanted": (GOOD, WANTED, None),
    "nothing is asked for": (NOTHING, None, None),
    "nothing is asked for, and all is there": (GOOD, None, None),
    **{
        f"{path}, edited": (replace(GOOD, files={**GOOD.files, path: "something else\n"}), WANTED, None) for path in OWN
    },
    **{f"{path}, absent": (replace(GOOD, files={**GOOD.files, path: None}), WANTED, None) for path in OWN},
    **{f"{path}, mode 0666": (replace(GOOD, modes={**GOOD.modes, path: 0o666}), WANTED, None) for path in OWN},
    "a rail is missing": (GOOD, WANTED, LOST),
    "a rail is missing, nothing is asked for": (GOOD, None, LOST),
    "a rail is missing on a fresh node, nothing is asked for": (NOTHING, None, LOST),
    "a rail is missing, another one has failed": (FAILED, WANTED, LOST),
    "a port's last run": (provisioned(Result("ok")), WANTED, None),
    "a port's last run has failed": (FAILED, WANTED, None),
    "a port's last run has not ended": (provisioned(Result("started")), WANTED, None),
    "a port's last run is not readable": (provisioned(Result("unread", ("is not JSON",))), WANTED, None),
}


@pytest.mark.golden
def test_what_is_planned_for_the_unit() -> None:
    said = []
    for case, (have, wanted, missing) in PLANS.items():
        plan = planned(have, wanted, missing)
        # The texts of the files are a golden of their own.
        goldens.check("roce_unit", case, golden_rows.plan(plan))
        said += golden_rows.sentences(case, plan)
    goldens.text("roce_unit", "\n".join(said) + "\n")


def test_a_unit_that_is_masked_for_a_port_is_told_and_left_to_a_person(tmp_path: Path) -> None:
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    (tmp_path / "etc/systemd/system" / FRONT).symlink_to("/dev/null")
    masked = boot_unit.read(Host(str(tmp_path), str(tmp_path)), WANTED).masked
    plan = planned(replace(GOOD, masked=masked))
    assert (states(plan), plan.changed) == ([("persisted", UNIT, "not_owned")], False)
    assert str(plan.findings[0].have).startswith(f"/etc/systemd/system/{FRONT} overrides it")
    assert plan.findings[0].fix.endswith(f"systemctl unmask {FRONT}")


def test_a_port_of_which_nothing_is_asked_is_none_of_the_units() -> None:
    gap = Gap("unsupported", "a virtual function", "sysfs", "name the physical ones")
    ports = (*PORTS, PORTS[0]._replace(pci="0000:3b:00.2", gap=gap), PORTS[1]._replace(pci="0000:4b:00.0", rdma=None))
    found = boot_unit.intent(Host(), ports, WANT, GIVEN["roce"], SETTINGS)
    assert found is not None
    assert found.ports == {ONE: True, OTHER: True, "0000:4b:00.0": False}
    assert found.settings == {"pause_off": True, "traffic_class": 106}
    nothing = PortConfig.from_values(chain.resolve({}, {}), {})
    assert boot_unit.intent(Host(), PORTS, nothing, GIVEN["roce"], SETTINGS) is None
    assert boot_unit.intent(Host(), (), WANT, GIVEN["roce"], SETTINGS) is None


# -- the script on a node ---------------------------------------------------------------------------------------------


class Node:
    """A simulated node with the unit's files."""

    def __init__(self, base: Path) -> None:
        self.hw, self.sys = base / "hw", base / "sys"
        self.host = Host(str(self.hw), str(self.sys))
        tree.write(hgx_h200_roce("node02"), self.hw, self.sys)
        asked = profile.for_fabric(profile.parse(PROFILE, "hgx-h200"), "ethernet")
        machine = topology.read(self.host, ask_nvidia_smi=False)
        self.ports = ports(machine, rails.match(machine, asked))
        self.wanted = boot_unit.intent(self.host, self.ports, WANT, GIVEN["roce"], SETTINGS)
        self.missing = platform.missing(machine, asked, platform_checks.RAIL_DEVICE)
        boot_unit.execute(self.host, self.plan())

    def plan(self) -> Plan:
        return boot_unit.plan(boot_unit.read(self.host, self.wanted), self.wanted, self.ports, self.missing)

    def run(self, function: str, python: str = sys.executable, intent: str = "") -> subprocess.CompletedProcess[str]:
        """As the unit's ExecStart."""
        argv = [python, "-I", "-S", f"{self.sys}{boot_unit.SCRIPT}", intent or f"{self.sys}{INTENT}", function]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=1800)

    def result(self, function: str) -> Result:
        return boot_script.parse_result((self.sys / boot_script.result_path(function).lstrip("/")).read_text())

    def tos(self) -> int:
        """Of the first rail."""
        return int((self.hw / qos.tos_path("mlx5_6").lstrip("/")).read_text())

    def writes(self) -> list[str]:
        return qos.writes(str(self.hw))


@pytest.fixture(scope="module")
def _node(tmp_path_factory: pytest.TempPathFactory) -> Node:
    return Node(tmp_path_factory.mktemp("roce_unit"))


@pytest.fixture
def node(_node: Node) -> Node:
    """As after a boot."""
    qos.reboot(str(_node.hw))
    qos.replace(f"{_node.hw}{qos.WRITES}", "")
    shutil.rmtree(_node.sys / boot_script.RESULTS.lstrip("/"), ignore_errors=True)
    return _node


@pytest.mark.parametrize("oldest", [False, True])
def test_the_script_gives_a_port_what_is_asked_for_and_a_second_run_writes_nothing(
    node: Node, oldest: bool, request: pytest.FixtureRequest
) -> None:
    python = request.getfixturevalue("oldest_python") if oldest else sys.executable
    done = node.run(RAIL0, python)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"mlnx_qos -i {DATA_RAIL0} --pfc 0,0,0,1,0,0,0,0\n" in done.stdout
    port = qos.load(str(node.hw), qos.find(str(node.hw), DATA_RAIL0))
    assert (port.trust, port.pfc, node.tos(), port.bounces) == ("dscp", 8, 106, 1)
    before = node.writes()
    # Only this port.
    assert {f"mlnx_qos {DATA_RAIL0} trust", f"mlnx_qos {DATA_RAIL0} pfc"} < set(before)
    assert all(DATA_RAIL0 in line or "mlx5_6" in line for line in before)
    again = node.run(RAIL0, python)
    assert (again.returncode, again.stdout, again.stderr, node.writes()) == (0, "", "", before)
    assert node.result(RAIL0) == Result("ok")
    plan = node.plan()
    assert (states(plan), plan.changed) == ([("persisted", UNIT, "ok"), ("live", RAIL0, "ok")], False)


def test_a_link_that_somebody_uses_is_not_bounced_and_the_result_says_who(node: Node) -> None:
    process, verbs = node.hw / "proc/4711", node.hw / "sys/class/infiniband_verbs/uverbs6"
    (process / "fd").mkdir(parents=True)
    (process / "comm").write_text("ib_write_bw\n")
    (process / "fd/3").symlink_to("/dev/infiniband/uverbs6")
    verbs.mkdir(parents=True)
    (verbs / "ibdev").write_text("mlx5_6\n")
    (verbs / "device").symlink_to(os.path.realpath(node.hw / "sys/bus/pci/devices" / RAIL0))
    try:
        done = node.run(RAIL0)
    finally:
        shutil.rmtree(process)
        shutil.rmtree(verbs.parent)
    assert done.returncode == 1
    assert "busy: process ib_write_bw (pid 4711) has mlx5_6" in done.stderr
    port = qos.load(str(node.hw), qos.find(str(node.hw), DATA_RAIL0))
    # What bounces no link is done nevertheless.
    assert (port.trust, node.tos(), port.pfc, port.bounces) == ("dscp", 106, 0, 0)
    assert node.result(RAIL0).state == "failed"
    (finding,) = node.plan().findings[1:]
    assert (finding.state, finding.aspect) == ("drift", "live")
    assert "ib_write_bw" in str(finding.have)


def test_a_function_of_no_rail_is_left_alone(node: Node) -> None:
    done = node.run(STRANGER)
    assert (done.returncode, done.stdout) == (0, f"{STRANGER}: not a rail, nothing to set\n")
    assert node.writes() == []


def test_a_virtual_function_stands_for_its_physical_one(node: Node) -> None:
    assert boot_script._port_of(node.host, VF) == STRANGER
    assert boot_script._port_of(node.host, RAIL0) == RAIL0


def test_a_port_whose_netdev_does_not_come_is_told(node: Node) -> None:
    intent = Intent({STRANGER: True, "0000:ff:00.0": True}, {"dscp": 26}, {}, str(node.hw), str(node.sys))
    result = boot_script.bring(node.host, intent, "0000:ff:00.0", patience=0)
    assert result == Result("failed", ("0000:ff:00.0: no netdev came within 0 s: look at dmesg",))


@pytest.mark.parametrize("text", ["", "[]", "{}"])
def test_an_intent_that_cannot_be_read_ends_in_a_sentence(node: Node, tmp_path: Path, text: str) -> None:
    (tmp_path / "intent.json").write_text(text)
    done = node.run(RAIL0, intent=str(tmp_path / "intent.json"))
    assert done.returncode == 1
    assert done.stderr.startswith(f"{tmp_path}/intent.json: is not")
