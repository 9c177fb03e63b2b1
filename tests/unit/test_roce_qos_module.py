"""The module roce_qos on a machine of files and tools: what it reads, sets and says."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import TOOL_PATH, Host
from ansible_collections.busbar.fabric.plugins.module_utils.machine import profile, rails, topology
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos import boot_unit as roce_unit
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos import plan as roce_qos
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.config import PortConfig
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.port import OF_RDMA, Port, ports
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.read import read, read_port
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.settings import DCB, SETTINGS
from ansible_collections.busbar.fabric.plugins.modules import roce_qos as module

from lab import machines, store
from tests import golden_rows, goldens, trees
from tests.unit.test_roce_qos import BANDWIDTH, CHAIN, PORT, ROOT, TSA, WANT

# A ConnectX as mlnx_qos, dcb and ethtool show it, by its name; the values lie in nic.json, calls that set something in
# calls.txt. "deaf": settings that a call ends with 0 for and does not set.
NIC = """\
#!/usr/bin/python3 -IS
import json, os, sys
from pathlib import Path

TOOL, ARGS = os.path.basename(sys.argv[0]), sys.argv[1:]
ROOT = Path(__file__).resolve().parents[3]
ALL = json.loads((ROOT / "nic.json").read_text())
NAME = ARGS[ARGS.index("dev") + 1] if TOOL == "dcb" else ARGS[1]
NIC = ALL[NAME] if NAME in ALL else sys.exit("no such device")


def put(key, value):
    if key in NIC["deaf"]:
        return
    if key == "pfc" and NIC[key] != value:
        NIC["bounces"] += 1
    NIC[key] = value


def eight(text):
    return [int(word) for word in text.split(",")]


def by_colon(words):
    return [tuple(word.split(":")) for word in words]


def values(words):
    return [int(value) for _key, value in by_colon(words)]


def mlnx_qos():
    options = ARGS[2:]
    if "--trust" in options and "--dscp2prio" in options:
        print("trust and dscp2prio commands cannot be used at the same time.")
        sys.exit(1)
    for option, value in zip(options[::2], options[1::2]):
        if option == "-d":
            put("host", value == "os")
        elif option == "--trust" and value == "dscp" and not NIC["map"]:
            put("map", {str(dscp): dscp >> 3 for dscp in range(64)})
        elif option == "--trust" and value == "pcp":
            put("map", {})
        elif option == "--dscp2prio":
            _set, dscp, priority = value.split(",")
            put("map", {**NIC["map"], dscp: int(priority)})
        elif option == "-s":
            put("tsa", value.split(","))
        else:
            key = {"--pfc": "pfc", "-p": "prio2tc", "-t": "bw", "--cable_len": "cable"}.get(option, option[2:])
            put(key, int(value) if key == "cable" else eight(value))
    print("DCBX mode: " + ("OS" if NIC["host"] else "Firmware") + " controlled")
    print("Priority trust state: " + ("dscp" if NIC["map"] else "pcp"))
    if NIC["map"]:
        print("dscp2prio mapping:")
        for dscp, priority in sorted(NIC["map"].items(), key=lambda pair: (pair[1], -int(pair[0]))):
            print("\\tprio:%d dscp:%02d," % (priority, int(dscp)))
    print("Receive buffer size (bytes): %s,max_buffer_size=262016" % ",".join(map(str, NIC["buffer_size"])))
    print("Cable len: %d\\nPFC configuration:" % NIC["cable"])
    print("\\tpriority    0   1   2   3   4   5   6   7")
    print("\\tenabled     " + "   ".join(map(str, NIC["pfc"])))
    print("\\tbuffer      " + "   ".join(map(str, NIC["prio2buffer"])))
    for tc in sorted(set(NIC["prio2tc"])):
        tsa = "ets, bw: %d%%" % NIC["bw"][tc] if NIC["tsa"][tc] == "ets" else NIC["tsa"][tc]
        print("tc: %d ratelimit: unlimited, tsa: %s" % (tc, tsa))
        for priority in range(8):
            if NIC["prio2tc"][priority] == tc:
                print("\\t priority:  %d" % priority)


def dcb():
    if ARGS[0] == "-j":
        on = [bit > 0 for bit in NIC["pfc"]]
        flags = {"cee": True, "ieee": True}
        print(json.dumps({
            "dcbx": {"host": True, **flags} if NIC["host"] else flags,
            "app": {"dscp_prio": [[int(d), p] for d, p in NIC["map"].items()]} if NIC["map"] else {},
            "pfc": {"pfc_cap": 8, "macsec_bypass": False, "delay": NIC["cable"], "prio_pfc": on},
            "ets": {"willing": False, "ets_cap": 8, "cbs": False, "tc_bw": NIC["bw"], "pg_bw": [0] * 8,
                    "tc_tsa": NIC["tsa"], "prio_tc": NIC["prio2tc"], "reco_tc_bw": [0] * 8,
                    "reco_tc_tsa": ["strict"] * 8, "reco_prio_tc": [0] * 8},
            "buffer": {"prio_buffer": NIC["prio2buffer"], "buffer_size": NIC["buffer_size"], "total_size": 262016},
        }[ARGS[1]]))
        return
    kind, what, words = ARGS[0], ARGS[4], ARGS[5:]
    if kind == "dcbx":
        put("host", "host" in ARGS[4:])
    elif kind == "app":
        put("map", {**NIC["map"], **{d: int(p) for d, p in by_colon(words)}} if ARGS[1] == "replace" else {})
    elif what == "tc-tsa":
        put("tsa", [value for _key, value in by_colon(words[:8])])
        put("bw", values(words[9:]))
    elif what == "prio-pfc":
        put("pfc", [int(value == "on") for _key, value in by_colon(words)])
    elif what == "delay":
        put("cable", int(words[0]))
    else:
        put({"prio-tc": "prio2tc", "prio-buffer": "prio2buffer", "buffer-size": "buffer_size"}[what], values(words))


def ethtool():
    if ARGS[0] == "-A":
        put("pause", "off")
    print("Pause parameters for %s:\\nAutonegotiate:\\toff" % NAME)
    print("RX:\\t\\t%s\\nTX:\\t\\t%s" % (NIC["pause"], NIC["pause"]))


if len(ARGS) > 2 and ARGS[0] != "-j":
    with open(ROOT / "calls.txt", "a") as stream:
        stream.write(" ".join([TOOL, *ARGS]) + "\\n")
{"mlnx_qos": mlnx_qos, "dcb": dcb, "ethtool": ethtool}[TOOL]()
(ROOT / "nic.json").write_text(json.dumps(ALL))
"""
# As a ConnectX comes out of its box.
NEW: dict[str, Any] = {
    "host": True,
    "map": {},
    "pfc": [0] * 8,
    "prio2tc": [1, 0, 2, 3, 4, 5, 6, 7],
    "tsa": ["vendor"] * 8,
    "bw": [0] * 8,
    "cable": 7,
    "prio2buffer": [0] * 8,
    "buffer_size": [130944] + [0] * 7,
    "pause": "on",
    "bounces": 0,
    "deaf": [],
}
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
        self.without("cma_roce_tos")
        for file in roce_unit.OWN:
            (self.path / "sys" / file[1:]).unlink(missing_ok=True)
        self.host = Host(str(self.path / "hw"), str(self.path / "sys"))
        self.ports = ports(*self.machine("hgx-h200", "ethernet"))
        for name in ("mlnx_qos", "dcb", "ethtool"):
            self.without(name)
            trees.tool(self.path / "sys", f"/usr/local/sbin/{name}", NIC.replace("/usr/bin/python3", sys.executable))
        self.save({port.netdev: dict(NEW) for port in self.ports})
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

    def two_rails(self) -> dict[str, Any]:
        """A profile of the first two rails: what holds for them holds for eight, in a quarter of the time."""
        data = platform("hgx-h200")
        data["rails"] = [{**data["rails"][n], "pci": self.ports[n].pci} for n in range(2)]
        return data

    def put(self, path: str, text: str) -> None:
        trees.put(self.path / "hw", path, text)

    def get(self, path: str) -> str:
        return (self.path / "hw" / path[1:]).read_text()

    def save(self, nics: dict[str, dict[str, Any]]) -> None:
        (self.path / "sys/nic.json").write_text(json.dumps(nics))

    def nics(self) -> dict[str, dict[str, Any]]:
        return dict(json.loads((self.path / "sys/nic.json").read_text()))

    def change(self, **values: Any) -> None:
        """The same on every port."""
        self.save({name: {**nic, **values} for name, nic in self.nics().items()})

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
    store.create(folder, {"node02": machines.hgx_h200_roce})
    return folder / "node02"


@pytest.fixture
def node(pristine: Path) -> Node:
    return Node(pristine)


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def call(node: Node, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(check: bool = False, **changed: Any) -> dict[str, Any]:
        given = {
            "profile": node.two_rails(),
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
    nics = node.nics()
    nics[node.ports[0].netdev]["deaf"] = ["map"]
    node.save(nics)


def set_and_deaf(node: Node) -> None:
    """All is as wanted but the map, which dcb does not set; it ends with 0 in any case."""
    on = {"pfc": [0, 0, 0, 1, 0, 0, 0, 0], "pause": "off", "prio2tc": list(range(8)), "tsa": list(TSA)}
    node.change(map={str(dscp): 0 for dscp in range(64)}, deaf=["map"], bw=list(BANDWIDTH), cable=30, **on)
    node.without("mlnx_qos")


def broken(text: str) -> Callable[[Node], None]:
    """mlnx_qos is this script of a shell, and there is no dcb."""

    def prepare(node: Node) -> None:
        (node.path / "sys/usr/local/sbin/mlnx_qos").write_text(f"#!/bin/sh\n{text}\n")
        node.without("dcb")

    return prepare


def without_attributes(node: Node) -> None:
    port = node.ports[0]
    for path in (f"class/net/{port.netdev}/ecn/roce_rp/enable/3", f"class/infiniband/{port.rdma}/tc/1/traffic_class"):
        (node.path / "hw/sys" / path).unlink()


def job(node: Node) -> None:
    node.put("/sys/fs/cgroup/system.slice/slurmstepd.scope/job_17/cgroup.procs", "1")


def no_class(node: Node) -> None:
    node.put(f"/sys/class/net/{node.ports[0].netdev}/ecn/roce_np/cnp_dscp", "none")


# What is made of the node, and options of the module.
CASES: dict[str, tuple[Callable[[Node], object], dict[str, Any]]] = {
    "new ports": (lambda node: None, {}),
    "no link may bounce": (lambda node: None, {"max_disruption": "none"}),
    "a job runs": (job, {}),
    "no ECN of OFED": (without_ecn, {}),
    "a tool that does nothing": (deaf, {}),
    "dcb that does nothing": (set_and_deaf, {}),
    "the ports are the firmware's": (lambda node: node.change(host=False), {}),
    "the ports are taken over": (lambda node: node.change(host=False), {"dcbx": "os"}),
    "lldpad": (lambda node: node.put("/proc/77/comm", "lldpad\n"), {}),
    "no tool": (lambda node: node.without("mlnx_qos", "dcb", "ethtool"), {}),
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
    goldens.check("roce_qos_module", case, [*rows, [nic["bounces"] for nic in node.nics().values()]])


def test_eight_new_ports_are_set_in_one_call_and_a_second_call_writes_nothing(call: Run, node: Node) -> None:
    eight = platform("hgx-h200")
    first = call(profile=eight)
    assert (first["changed"], first["findings"], first["withheld"]) == (True, [], [])
    assert [port["bounces"] for port in node.nics().values()] == [1] * 8
    for port in node.ports:
        nic = node.nics()[port.netdev]
        assert (nic["map"]["26"], nic["pfc"], nic["pause"]) == (3, [0, 0, 0, 1, 0, 0, 0, 0], "off")
        assert (nic["prio2tc"], tuple(nic["tsa"]), tuple(nic["bw"])) == (list(range(8)), TSA, BANDWIDTH)
        assert nic["cable"] == 30
        ecn = f"/sys/class/net/{port.netdev}/ecn"
        assert (node.get(f"{ecn}/roce_rp/enable/3"), node.get(f"{ecn}/roce_np/cnp_dscp")) == ("1", "48")
        assert node.get(f"/sys/class/infiniband/{port.rdma}/tc/1/traffic_class") == "106"
        node.put(f"/sys/class/infiniband/{port.rdma}/tc/1/traffic_class", "Global tclass=106\n")
    assert len(node.calls()) == 8 * 6
    second = call(profile=eight)
    assert (second["changed"], second["findings"], second["commands"], second["diff"]) == (False, [], [], [])
    assert (node.calls(), sorted(second["passed"])) == ([], sorted(first["passed"]))
    checks = {check.partition("[")[0] for check in second["passed"]}
    assert checks == {f"roce_qos.{name}" for name in (*SETTINGS, "unit", "boot_setter")}


def test_the_same_by_dcb(call: Run, node: Node) -> None:
    node.without("mlnx_qos")
    buffers = [20000, 200000, 0, 0, 0, 0, 0, 0]
    given = {"prio2buffer": [0, 0, 0, 1, 0, 0, 0, 0], "buffer_size": buffers, "traffic_class": None}
    first = call(**given)
    assert (first["findings"], first["changed"]) == ([], True)
    assert {line.split()[0] for line in node.calls()} == {"dcb", "ethtool"}
    nic = node.nics()[node.ports[0].netdev]
    assert (nic["map"], nic["prio2buffer"]) == ({str(dscp): dscp >> 3 for dscp in range(64)}, [0, 0, 0, 1, 0, 0, 0, 0])
    assert (call(**given)["changed"], node.calls()) == (False, [])


def test_check_mode_shows_all_and_sets_nothing(call: Run, node: Node) -> None:
    before = trees.contents(node.path)
    result = call(check=True)
    assert trees.contents(node.path) == before
    # One of each port, and one of each file of the unit.
    assert (result["changed"], len(result["diff"]), len(result["repaired"])) == (True, 6, len(result["findings"]))
    assert f"echo 1 > /sys/class/net/{node.ports[0].netdev}/ecn/roce_np/enable/3" in result["commands"]
    assert "roce_qos.pfc: off\n" in result["diff"][0]["before"]
    assert "roce_qos.pfc: on for 3\n" in result["diff"][0]["after"]
    assert sorted(result["commands"]) == sorted(call()["commands"])


BUFFERS = "Buffers commands are not supported on your system"
# What mlnx_qos comes to on kernels and drivers that it was not written for: what a shell does in its place.
BROKEN = ["exit 1", f"echo '{BUFFERS}'; echo Traceback >&2; exit 1", f"echo '{BUFFERS}'; echo 'Cable len: 7'"]


@pytest.mark.parametrize("script", BROKEN)
def test_where_mlnx_qos_breaks_off_dcb_speaks_for_the_port(node: Node, script: str) -> None:
    (node.path / "sys/usr/local/sbin/mlnx_qos").write_text(f"#!/bin/sh\n{script}\n")
    state = read_port(node.host, node.ports[0], WANT)
    assert (state.tool, state.gaps) == ("dcb", {})
    node.without("dcb")
    state = read_port(node.host, node.ports[0], WANT)
    assert {gap.state for name, gap in state.gaps.items() if name in DCB} == {"unknown"}


def test_a_kernel_without_buffers_leaves_all_the_rest_to_either_tool(node: Node) -> None:
    tools = node.path / "sys/usr/local/sbin"
    silent = f"    print('{BUFFERS}')\n"
    text = (tools / "mlnx_qos").read_text()
    for line in ("Receive buffer", "\\tbuffer"):
        at = text.index(f'    print("{line}')
        text = text[:at] + silent + text[text.index("\n", at) + 1 :]
        silent = ""
    (tools / "mlnx_qos").write_text(text)
    refused = 'if ARGS[1] == "buffer":\n            sys.exit("Attribute not found: Success")'
    text = (tools / "dcb").read_text().replace("        on = [bit", f"        {refused}\n        on = [bit", 1)
    (tools / "dcb").write_text(text)
    # The cable's length is PFC's.
    of_cable = replace(WANT, prio2buffer=None, buffer_size=None)
    cases: list[tuple[PortConfig, dict[str, str]]] = [(of_cable, {}), (WANT, {"buffers": "unsupported"})]
    for wanted, gaps in cases:
        for tool in ("mlnx_qos", "dcb"):
            port = replace(node.ports[0], is_mellanox=tool == "mlnx_qos")
            state = read_port(node.host, port, wanted)
            assert state.tool == tool
            assert {noun: gap.state for noun, gap in state.gaps.items() if noun in DCB} == gaps


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


def test_a_chain_that_cannot_be_is_an_error(call: Run) -> None:
    assert "busbar_roce.dscp is 64" in call(roce={"dscp": 64})["msg"]
    assert "tsa and tc_bandwidth go together" in call(tsa=None)["msg"]


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
    guest = replace(found, virtualization=replace(found.virtualization, is_vm=True))
    return of_a_virtual_function(guest, match)


def of_infiniband_and_without_a_netdev(found: topology.Topology, match: rails.Rails) -> Sequence[Port]:
    nic = match.nics[0]
    assert nic.rdma is not None
    infiniband = replace(nic, rdma=replace(nic.rdma, ports=(replace(nic.rdma.ports[0], link_layer="InfiniBand"),)))
    return ports(found, rails.Rails({0: infiniband, 1: replace(match.nics[1], netdevs=())}, {}, None))


@pytest.mark.golden
@pytest.mark.parametrize(
    "which", [ports, of_a_bond, of_a_virtual_function, in_a_guest, of_infiniband_and_without_a_netdev]
)
def test_the_ports_of_rails_and_what_is_set_of_each(
    node: Node, which: Callable[[topology.Topology, rails.Rails], Sequence[Port]]
) -> None:
    those = which(*node.machine("hgx-h200", "ethernet"))
    for port in those:
        node.put(f"/sys/kernel/config/rdma_cm/{port.rdma}/ports/1/default_roce_tos", "106")
    plan = roce_qos.plan(read(node.host, those, WANT), WANT)
    rows: list[Any] = [list(asdict(port).values()) for port in those]
    rows += [roce_qos.notes(CHAIN, profile.parse(platform("hgx-h200"), "hgx-h200"), those)]
    goldens.check("roce_qos_module", f"ports: {which.__name__}", [*rows, *golden_rows.plan(plan)])


def test_interfaces_of_one_bridge_are_no_bond(node: Node) -> None:
    found, match = node.machine("hgx-h200", "ethernet")
    nics = [replace(nic, netdevs=(replace(nic.netdevs[0], master="br0"),)) for nic in match.nics.values()]
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


def test_a_nic_of_another_maker_is_asked_by_dcb(node: Node) -> None:
    other = replace(node.ports[0], is_mellanox=False)
    assert read_port(node.host, other, WANT).tool == "dcb"
    node.without("dcb")
    assert read_port(node.host, other, WANT).tool == "mlnx_qos"
