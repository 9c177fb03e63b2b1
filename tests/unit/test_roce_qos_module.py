"""The module roce_qos on a machine of files and tools: what it reads, sets and says."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.busbar.fabric.plugins.module_utils import platform_facts
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import TOOL_PATH, Host, Output
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile, rails, topology
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos import boot_unit as roce_unit
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos import plan as roce_qos
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.chain import PortConfig
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.port import OF_RDMA, Port, ports
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.read import read, read_port
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.settings import DCB, SETTINGS
from ansible_collections.busbar.fabric.plugins.modules import roce_qos as module

from lab import machines, qos, store
from lab.toolkit import roce_tools
from tests import golden_rows, goldens, trees
from tests.lab.conftest import few_slots
from tests.unit.test_roce_qos import BANDWIDTH, CHAIN, PORT, ROOT, TSA, WANT

# Before a tool of the lab. Calls that are to set something are noted in calls.txt. deaf: a pattern of those that end
# with 0 and set nothing.
NOTING = """\
root={root}
if [ $# -gt 2 ] && [ "$1" != -j ]; then echo "{name} $*" >> "$root/calls.txt"; fi
case "$*" in {deaf}) exit 0 ;; esac
"$root/{roce}/{name}" "$@"\
"""
ROCE = "usr/share/busbar-lab/roce"
TOOLS = ("mlnx_qos", "ethtool")
GIVEN: dict[str, Any] = {
    "roce": {"dscp": 26},
    "prio2tc": list(range(8)),
    "tsa": list(TSA),
    "tc_bandwidth": list(BANDWIDTH),
    "cable_length": 30,
    "traffic_class": 106,
    "max_disruption": "link",
}


class Node:
    """A simulated hgx-h200 on Ethernet whose NICs are new."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        # Tool -> its script, and a pattern of calls that it passes over.
        self.deaf: dict[str, tuple[str, str]] = {}
        self.without("cma_roce_tos")
        for file in roce_unit.OWN:
            (self.path / "sys" / file[1:]).unlink(missing_ok=True)
        self.host = Host(str(self.path / "hw"), str(self.path / "sys"))
        self.ports = ports(*self.machine("hgx-h200", "ethernet"))
        for name in TOOLS:
            self.tool(name)
        self.change(**vars(qos.Port()))
        self.calls()
        added = ("sys/class/net/*/ecn", "sys/class/infiniband/*/tc", "sys/kernel/config", "sys/fs/cgroup", "proc/77")
        for path in [path for pattern in added for path in (self.path / "hw").glob(pattern)]:
            shutil.rmtree(path)
        for port in self.ports:
            for side in ("np", "rp"):
                self.put(f"/sys/class/net/{port.netdev}/ecn/roce_{side}/enable/3", "0")
            self.put(f"/sys/class/net/{port.netdev}/ecn/roce_np/cnp_dscp", "4")
            self.put(f"/sys/class/net/{port.netdev}/ecn/roce_np/cnp_802p_prio", "6")
            self.put(f"/sys/class/infiniband/{port.rdma}/tc/1/traffic_class", "")
            self.put(f"/sys/kernel/config/rdma_cm/{port.rdma}/ports/1/default_roce_tos", "0")

    def machine(self, name: str, fabric: str) -> tuple[topology.Topology, rails.Rails]:
        found = topology.read(self.host, ask_nvidia_smi=False)
        return found, rails.match(found, profile.for_fabric(profile.parse(platform(name), name), fabric))

    def first_rails(self, count: int = 2) -> dict[str, Any]:
        """A profile of the first rails: what holds for them holds for eight, in a fraction of the time."""
        data = platform("hgx-h200")
        data["rails"] = [{**data["rails"][n], "pci": self.ports[n].pci} for n in range(count)]
        return data

    def put(self, path: str, text: str) -> None:
        trees.put(self.path / "hw", path, text)

    def tool(self, name: str, deaf: str = "-") -> None:
        self.without(name)
        script = NOTING.format(root=self.path / "sys", roce=ROCE, name=name, deaf=deaf)
        trees.tool(self.path / "sys", f"/usr/local/sbin/{name}", script)
        self.deaf[name] = ((self.path / "sys/usr/local/sbin" / name).read_text(), deaf.replace('"', ""))

    def run(self, argv: Sequence[str]) -> Output | None:
        """What a tool makes of a call, in this process; None for one that is not as ``tool`` has written it."""
        name, words, file = argv[0], " ".join(argv[1:]), self.path / "sys/usr/local/sbin" / argv[0]
        script, deaf = self.deaf.get(name, ("", ""))
        if not script or not file.exists() or file.read_text() != script:
            return None
        if len(argv) > 3:
            with (self.path / "sys/calls.txt").open("a") as calls:
                calls.write(f"{name} {words}\n")
        out, err, code = io.StringIO(), io.StringIO(), 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            if not fnmatchcase(words, deaf):
                code = roce_tools.main(list(argv), str(self.path / "hw"), str(self.path / "sys"))
        return Output(" ".join(argv), code, out.getvalue(), err.getvalue())

    def nics(self) -> list[qos.Port]:
        root = self.host.hardware("/").rstrip("/")
        return [qos.load(root, qos.find(root, port.netdev)) for port in self.ports]

    def change(self, **values: Any) -> None:
        """The same on every port."""
        for port, nic in zip(self.ports, self.nics(), strict=True):
            self.put(qos.state_path(port.pci), qos.state(qos.Port(**{**vars(nic), **values})))

    def calls(self) -> list[str]:
        """What was set since the last time this was asked."""
        file = self.path / "sys/calls.txt"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines

    def without(self, *tools: str) -> None:
        for folder in TOOL_PATH:
            for tool in tools:
                (self.path / "sys" / folder[1:] / tool).unlink(missing_ok=True)


def platform(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "profiles" / f"{name}.yml").read_text()))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once: that takes longer than what is tried on it. ``node`` takes back what a test has changed."""
    folder = tmp_path_factory.mktemp("roce_qos") / "lab"
    store.create(folder, few_slots({"node02": machines.hgx_h200_roce}))
    roce = folder / "node02/sys" / ROCE
    for name in TOOLS[:1]:
        (roce / name).symlink_to(os.readlink(roce / "ethtool"))
    return folder / "node02"


@pytest.fixture
def node(pristine: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    found, run = Node(pristine), Host.run

    def in_process(host: Host, argv: Sequence[str], *arguments: Any, **named: Any) -> Output:
        return found.run(argv) or run(host, argv, *arguments, **named)

    monkeypatch.setattr(Host, "run", in_process)
    return found


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def call(node: Node, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(check: bool = False, **changed: Any) -> dict[str, Any]:
        given = {
            "profile": node.first_rails(),
            "fabric": "ethernet",
            "hardware_root": str(node.path / "hw"),
            "system_root": str(node.path / "sys"),
            **GIVEN,
            **changed,
        }
        with (
            patch_module_args({**given, "_ansible_check_mode": check, "_ansible_diff": True}),
            pytest.raises(SystemExit),
        ):
            module.main()
        return dict(json.loads(capsys.readouterr().out))

    return run


def without_ecn(node: Node) -> None:
    for port in node.ports:
        shutil.rmtree(node.path / f"hw/sys/class/net/{port.netdev}/ecn")


def deaf(node: Node) -> None:
    """A tool of the first port ends with 0 and does not set the map."""
    node.tool("mlnx_qos", f'*"{node.ports[0].netdev} --trust "*')


def broken(text: str) -> Callable[[Node], None]:
    """mlnx_qos is this script of a shell."""

    def prepare(node: Node) -> None:
        (node.path / "sys/usr/local/sbin/mlnx_qos").write_text(f"#!/bin/sh\n{text}\n")

    return prepare


def without_attributes(node: Node) -> None:
    port = node.ports[0]
    for path in (f"class/net/{port.netdev}/ecn/roce_rp/enable/3", f"class/infiniband/{port.rdma}/tc/1/traffic_class"):
        (node.path / "hw/sys" / path).unlink()


def no_class(node: Node) -> None:
    node.put(f"/sys/class/net/{node.ports[0].netdev}/ecn/roce_np/cnp_dscp", "none")


# What is made of the node, and options of the module.
CASES: dict[str, tuple[Callable[[Node], object], dict[str, Any]]] = {
    "new ports": (lambda node: None, {}),
    "no link may bounce": (lambda node: None, {"max_disruption": "none"}),
    "a job runs": (lambda node: node.put("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_17/cgroup.procs", "1"), {}),
    "no ECN of OFED": (without_ecn, {}),
    "a tool that does nothing": (deaf, {}),
    "the ports are the firmware's": (lambda node: node.change(dcbx="firmware"), {}),
    "the ports are taken over": (lambda node: node.change(dcbx="firmware"), {"dcbx": "os"}),
    "lldpad": (lambda node: node.put("/proc/77/comm", "lldpad\n"), {}),
    "no tool": (lambda node: node.without(*TOOLS), {}),
    "no DCB": (broken("echo 'ETS features are not supported on your system'; exit 1"), {}),
    "a strange line": (broken("echo 'Priority trust state: maybe'"), {}),
    "not permitted": (broken("echo 'Operation not permitted' >&2; exit 1"), {}),
    "nothing printed": (broken("exit 0"), {}),
    "an unreadable attribute": (no_class, {}),
    "absent attributes": (without_attributes, {}),
    "InfiniBand": (lambda node: None, {"fabric": "infiniband"}),
}


@pytest.mark.golden
@pytest.mark.parametrize("case", CASES)
def test_what_a_run_makes_of_a_node(call: Run, node: Node, case: str) -> None:
    prepare, options = CASES[case]
    prepare(node)
    before = {path for path in (node.path / "hw").rglob("*") if path.is_file()}
    result = call(**options)
    rows: list[Any] = [
        [
            *(one[name] for name in ("check", "subject", "state", "because")),
            *map(golden_rows.values, (one["have"], one["fix"])),
        ]
        for one in result["findings"]
    ]
    # What is not there is not made.
    assert {path for path in (node.path / "hw").rglob("*") if path.is_file()} == before
    rows += [["passed", len(result["passed"]), "withheld", len(result["withheld"])], node.calls()]
    goldens.check("roce_qos_module", case, [*rows, [nic.bounces for nic in node.nics()]])


def test_check_mode_shows_all_and_sets_nothing(call: Run, node: Node) -> None:
    before = trees.contents(node.path)
    result = call(check=True)
    assert trees.contents(node.path) == before
    # One of each port, and one of each file of the unit.
    assert (result["changed"], len(result["diff"]), len(result["repaired"])) == (True, 6, len(result["findings"]))
    assert f"echo 1 > /sys/class/net/{node.ports[0].netdev}/ecn/roce_np/enable/3" in result["commands"]
    assert result["diff"][0]["before_header"] == node.ports[0].label
    assert "roce_qos.pfc: off\n" in result["diff"][0]["before"]
    assert "roce_qos.pfc: on for 3\n" in result["diff"][0]["after"]
    assert sorted(result["commands"]) == sorted(call()["commands"])


BUFFERS = "Buffers commands are not supported on your system"


def test_a_kernel_without_buffers_leaves_all_the_rest(node: Node) -> None:
    tool = node.path / "sys/usr/local/sbin/mlnx_qos"
    tool.write_text(f"{tool.read_text().strip()} | sed 's/^Receive buffer.*/{BUFFERS}/; /^\tbuffer/d'\n")
    # The cable's length is PFC's.
    of_cable = replace(WANT, prio2buffer=None, buffer_size=None)
    cases: list[tuple[PortConfig, dict[str, str]]] = [(of_cable, {}), (WANT, {"buffers": "unsupported"})]
    for wanted, gaps in cases:
        state = read_port(node.host, node.ports[0], wanted)
        assert {noun: gap.state for noun, gap in state.gaps.items() if noun in DCB} == gaps


def test_what_rails_are_compared_by_is_read_without_an_intent(node: Node) -> None:
    for side, number in [(side, number) for side in ("np", "rp") for number in range(8)]:
        put = f"/sys/class/net/{node.ports[0].netdev}/ecn/roce_{side}/enable/{number}"
        node.put(put, str(int(number == 3)))
    known = platform_facts._setting(read_port(node.host, node.ports[0], platform_facts._EVERY))
    assert [known[name] for name in ("ecn", "cnp", "tos", "traffic_class")] == [[3], [4, 6], 0, -1]
    assert None not in (known["trust"], known["owner"], known["pfc"])


def test_a_check_makes_no_directory_in_configfs(call: Run, node: Node) -> None:
    folder = node.path / "hw/sys/kernel/config/rdma_cm"
    shutil.rmtree(folder)
    folder.mkdir()
    result = call(check=True)
    assert list(folder.iterdir()) == []
    call()
    assert {str(path.relative_to(folder)) for path in folder.rglob("*")} == {port.rdma for port in node.ports[:2]}
    shutil.rmtree(folder)
    result = call(check=True)
    tos = next(finding for finding in result["findings"] if finding["check"] == "roce_qos.tos")
    assert "rdma_cm is not loaded" in tos["have"]
    assert "modprobe rdma_cm" in tos["fix"]


# -- which ports -----------------------------------------------------------------------------------------------------


def of_a_bond(found: topology.Topology, _match: rails.Rails) -> Sequence[Port]:
    """A profile whose one rail is named by its address."""
    bond = next(nic for nic in found.nics if nic.rdma is not None and nic.rdma.name == "mlx5_bond_0")
    data = platform("hgx-h200")
    data["rails"] = [{**data["rails"][0], "pci": bond.pci}]
    return ports(found, rails.match(found, profile.for_fabric(profile.parse(data, "site"), "ethernet")))


def of_a_virtual_function(found: topology.Topology, _match: rails.Rails) -> Sequence[Port]:
    nic = next(nic for nic in found.nics if nic.role == "vf" and nic.rdma is not None)
    return ports(found, rails.Rails({0: nic}, {}, None))


def in_a_guest(found: topology.Topology, match: rails.Rails) -> Sequence[Port]:
    guest = replace(found, virtualization=found.virtualization._replace(is_vm=True))
    return of_a_virtual_function(guest, match)


def of_infiniband_and_without_a_netdev(found: topology.Topology, match: rails.Rails) -> Sequence[Port]:
    nic = match.nics[0]
    assert nic.rdma is not None
    infiniband = nic._replace(rdma=nic.rdma._replace(ports=(nic.rdma.ports[0]._replace(link_layer="InfiniBand"),)))
    return ports(found, rails.Rails({0: infiniband, 1: match.nics[1]._replace(netdevs=())}, {}, None))


@pytest.mark.golden
@pytest.mark.parametrize(
    "which", [ports, of_a_bond, of_a_virtual_function, in_a_guest, of_infiniband_and_without_a_netdev]
)
def test_the_ports_of_rails_and_what_is_set_of_each(
    node: Node, which: Callable[[topology.Topology, rails.Rails], Sequence[Port]]
) -> None:
    those = which(*node.machine("hgx-h200", "ethernet"))
    for name in TOOLS if which is of_a_bond else ():
        trees.tool(node.path / "sys", f"/usr/local/sbin/{name}", "echo no such device >&2; exit 1")
    for port in those:
        node.put(f"/sys/kernel/config/rdma_cm/{port.rdma}/ports/1/default_roce_tos", "106")
    plan = roce_qos.plan(read(node.host, those, WANT), WANT)
    rows: list[Any] = [list(port) for port in those]
    rows += [roce_qos.notes(CHAIN, profile.parse(platform("hgx-h200"), "hgx-h200"), those)]
    goldens.check("roce_qos_module", f"ports: {which.__name__}", [*rows, *golden_rows.plan(plan)])


def test_interfaces_of_one_bridge_are_no_bond(node: Node) -> None:
    found, match = node.machine("hgx-h200", "ethernet")
    nics = [nic._replace(netdevs=(nic.netdevs[0]._replace(master="br0"),)) for nic in match.nics.values()]
    assert [port.pci for port in ports(replace(found, nics=tuple(nics)), rails.Rails({0: nics[0]}, {}, None))] == [
        nics[0].pci
    ]


def test_a_subfunction_cannot(tmp_path: Path) -> None:
    (tmp_path / "sys/devices/mlx5_core.sf.4").mkdir(parents=True)
    (tmp_path / "sys/class/net/eth1").mkdir(parents=True)
    (tmp_path / "sys/class/net/eth1/device").symlink_to("../../../devices/mlx5_core.sf.4")
    state = read_port(Host(str(tmp_path), str(tmp_path)), PORT, WANT)
    unsupported = {noun for noun, gap in state.gaps.items() if gap.state == "unsupported" and "subfunction" in gap.have}
    assert unsupported == set(SETTINGS) - set(OF_RDMA)
