# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Every fault of the catalogue shows on a node and can be taken back, alone and in company."""

import json
import os
import random
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from busbar.lab import nvidia_smi, ofed_faults, roce_faults, store, tree
from busbar.lab.fault import ALL, CommandFault, FileFault
from busbar.lab.faults import FAULTS, PCIE_DROPIN, Expectation, compatible, draw, expected
from busbar.lab.gpudirect_faults import PEERMEM_LIST
from busbar.lab.machine import LabError, from_dict, to_dict
from busbar.lab.machines import h200_vm, hgx_b200, hgx_h100, hgx_h200_roce
from busbar.lab.roce import LLDPAD_PID
from tests import series
from tests.trees import put_all

BUILDERS = {"node01": hgx_h100, "node02": hgx_h200_roce, "node03": hgx_b200, "vm01": h200_vm}
# The others need a node that can run a benchmark.
SHOWN = [name for name, fault in FAULTS.items() if not fault.measured]
MEASURED = [name for name, fault in FAULTS.items() if fault.measured]
CONF = "NCCL_IB_HCA==mlx5_0,mlx5_1\nNCCL_SOCKET_IFNAME==eno1\n"


@pytest.fixture(scope="module")
def four_nodes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("lab") / "lab"
    started = time.perf_counter()
    store.create(directory, BUILDERS)
    print(f"{len(BUILDERS)} nodes created in {time.perf_counter() - started:.2f} s")
    for node in BUILDERS:
        # Faults change what a run has written, and here none has run.
        written = {"/etc/nccl.conf": CONF, PEERMEM_LIST: "nvidia_peermem\n", **PROVISIONED}
        put_all(directory / node / "sys", written | {PCIE_DROPIN: "[Unit]\nWants=busbar-pcie-path.service\n"})
    return directory


@pytest.fixture
def lab(four_nodes: Path) -> Iterator[Path]:
    """Four healthy, provisioned nodes; repaired after the test."""
    yield four_nodes
    store.repair_broken(four_nodes)


def snapshot(directory: Path) -> dict[str, tuple[int, bytes | str]]:
    """Everything below a directory with its mode: bytes of files, targets of links."""
    found: dict[str, tuple[int, bytes | str]] = {}
    for base, directories, files in os.walk(directory):
        for name in directories + files:
            path = os.path.join(base, name)
            mode, content = os.lstat(path).st_mode, b""
            if stat.S_ISLNK(mode):
                found[path] = (mode, os.readlink(path))
                continue
            if stat.S_ISREG(mode):
                with open(path, "rb") as stream:
                    content = stream.read()
            found[path] = (mode, content)
    root = len(str(directory)) + 1
    return {path[root:]: entry for path, entry in found.items()}


def smi(lab: Path, node: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([lab / node / "sys/usr/bin/nvidia-smi", *arguments], capture_output=True, check=False)


def nodes_of(name: str) -> list[str]:
    machines = {node: builder(node) for node, builder in BUILDERS.items()}
    return [node for node, machine in machines.items() if machine.platform in FAULTS[name].platforms]


PROVISIONED = {
    ofed_faults.UMAD_LIST: "ib_umad\n",
    roce_faults.UNIT: "[Service]\nExecStart=/usr/bin/python3\n",
    roce_faults.UNIT_RULE: 'SUBSYSTEM=="net"\n',
    roce_faults.RAIL_SYSCTLS: "net/ipv4/conf/enp26s0np0/arp_ignore = 1\n",
    roce_faults.MTU_CONF: "[Link]\nMTUBytes=9000\n",
    roce_faults.RAIL_RULES: "[RoutingPolicyRule]\n",
    roce_faults.UNIT_RESULT: '{"state": "ok"}\n',
    ofed_faults.KEY: store.NO_KEY,
    ofed_faults.SOURCES: "Types: deb\nURIs: file:/top/doca/3.2.1/ubuntu24.04/x86_64/\nSuites: ./\n",
}


@pytest.mark.parametrize("name", series.some(SHOWN, 30))
def test_a_fault_changes_the_node_and_repair_restores_every_byte(lab: Path, name: str) -> None:
    node = nodes_of(name)[-1]
    before = snapshot(lab / node)
    store.break_(lab, node, name)
    assert store.status(lab)[node] == [name]
    after = snapshot(lab / node)
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    changed = {path for path in changed if path.split("/")[0] in ("hw", "sys")}
    assert changed
    fault, file = FAULTS[name].change, FAULTS[name].changed_file
    own = {f"sys{file.path}"} if file else set()
    if isinstance(fault, FileFault):
        assert changed == own
    elif not isinstance(fault, CommandFault):
        assert own <= changed
        # lldpad's process id is a file below /run.
        assert all(path.startswith(("hw/", "sys/usr/", f"sys/{LLDPAD_PID}")) for path in changed - own)
    assert store.repair(lab, node, name) == [name]
    restored = snapshot(lab / node)
    restored.pop("backup", None)
    before.pop("backup", None)
    assert restored == before


@pytest.mark.parametrize("seed", series.some(range(6), 2))
def test_five_faults_at_once_all_show_and_are_repaired_together(lab: Path, seed: int) -> None:
    node = ("node01", "node02")[seed % 2]
    machine = store.healthy(lab, node)
    names = draw(random.Random(seed), 5, machine.platform)
    before = snapshot(lab / node / "hw")
    for name in names:
        store.break_(lab, node, name)
    assert store.status(lab)[node] == names
    roots = [(e.check, e.subject) for e in expected(machine, names) if e.because is None]
    assert len(set(roots)) == 5
    assert store.repair(lab, node) == names
    assert snapshot(lab / node / "hw") == before


@pytest.mark.parametrize("platform", ALL)
def test_draws_are_compatible_apply_and_differ_from_seed_to_seed(platform: str) -> None:
    draws = [draw(random.Random(seed), 5, platform) for seed in range(200)]
    for names in draws:
        assert len(set(names)) == 5
        assert compatible(names)
        assert all(platform in FAULTS[name].platforms for name in names)
    assert draw(random.Random(3), 5, platform) == draws[3]
    assert {name for names in draws for name in names} == {n for n in SHOWN if platform in FAULTS[n].platforms}


def test_faults_that_only_a_benchmark_shows_are_drawn_when_asked_for_and_never_two_of_them() -> None:
    draws = [draw(random.Random(seed), 5, "hgx-h100", measured=True) for seed in range(200)]
    found = [[name for name in names if name in MEASURED] for names in draws]
    assert {name for names in found for name in names} == set(MEASURED)
    assert max(map(len, found)) == 1


@pytest.mark.parametrize("name", MEASURED)
def test_what_only_a_benchmark_shows_is_in_no_file_of_the_hardware(name: str) -> None:
    healthy, fault = hgx_h100(), FAULTS[name]
    broken = fault.apply(healthy)
    assert tree.hardware(broken) == tree.hardware(healthy)
    before, after = nvidia_smi.answers(healthy), nvidia_smi.answers(broken)
    changed = {file for file in before if before[file] != after[file]}
    if isinstance(fault.change, FileFault):
        assert changed == set()
    else:
        assert changed == ({".driver.json", "apps.tsv"} if name == "gpu-busy" else {".driver.json"})
    assert from_dict(json.loads(json.dumps(to_dict(broken)))) == broken
    assert "h200-vm" not in fault.platforms


def test_a_machine_that_was_written_before_a_field_came_has_its_default() -> None:
    data = to_dict(hgx_h100())
    del data["gpu_processes"], data["gpus"][2]["slow"]
    assert from_dict(data) == hgx_h100()
    del data["hostname"]
    with pytest.raises(LabError, match="not the lab's description"):
        from_dict(data)


def test_more_faults_than_go_together_cannot_be_drawn() -> None:
    with pytest.raises(LabError, match=f"no {len(FAULTS)} compatible faults"):
        draw(random.Random(1), len(FAULTS), "hgx-h100")
    with pytest.raises(LabError, match="no 1 compatible faults"):
        draw(random.Random(1), 1, "unheard-of")


@pytest.mark.parametrize(
    "names",
    [
        ("rail-missing", "nic-moved"),
        ("gpu-missing", "gpu-lost"),
        ("gpu-missing", "rail-missing"),
        ("smi-hang", "smi-garbage"),
        ("smi-missing", "nvlink-down"),
        ("smi-missing", "fabric-not-ready"),
        ("conf-edited", "conf-mode"),
        ("nic-moved", "conf-removed"),
        ("rate-low", "rate-low"),
        ("gpu-busy", "gpu-slow"),
        ("user-p2p-off", "user-conf"),
        ("wrong-sums", "fabric-not-ready"),
        ("collective-hang", "smi-hang"),
        ("acs-back-at-boot", "rail-missing"),
    ],
)
def test_faults_that_hide_each_other_are_not_compatible(names: tuple[str, str]) -> None:
    assert not compatible(names)
    assert not compatible(reversed(names))


def test_what_is_expected_names_the_device_from_the_healthy_machine() -> None:
    machine = hgx_h200_roce()
    assert expected(machine, ["rail-missing", "rate-garbage", "port-down"]) == [
        Expectation("platform.rail_device", "rail 3", "drift"),
        Expectation("nccl_conf.rails", None, None, because="platform.rail_device"),
        Expectation("pcie_path.unit", None, None, because="platform.rail_device"),
        Expectation("roce_qos.unit", None, None, because="platform.rail_device"),
        Expectation("platform.rail_rate", "0000:dc:00.0", "unknown"),
        Expectation("platform.rail_state", "0000:4d:00.0", "drift"),
        Expectation("platform.rail_rate", "0000:4d:00.0", None, because="platform.rail_state"),
        Expectation("platform.rail_gid", "0000:4d:00.0", None, because="platform.rail_state"),
    ]
    assert [e.check for e in expected(hgx_h100(), ["port-down"])] == ["platform.rail_state", "platform.rail_rate"]
    assert [e.check for e in expected(h200_vm(), ["gpu-missing"])] == ["platform.gpu_count"]
    with pytest.raises(LabError, match="no rail 2"):
        expected(h200_vm(), ["port-down"])


def test_the_catalogue_speaks_of_faults_platforms_and_checks_that_can_exist() -> None:
    for fault in FAULTS.values():
        assert set(fault.excludes) <= set(FAULTS), fault.name
        assert set(fault.platforms) <= set(ALL), fault.name
        for check in (fault.check, *fault.consequences):
            assert check.startswith("nccl_perf.") == fault.measured, fault.name


# -- what single faults look like ------------------------------------------------------------------------------------


def read(lab: Path, node: str, path: str) -> str:
    return (lab / node / "hw" / path).read_text().strip()


def test_a_missing_nic_leaves_an_empty_slot(lab: Path) -> None:
    address = store.healthy(lab, "node02").rail(3).address
    port = (lab / "node02/hw/sys/bus/pci/devices" / address).resolve().parent
    store.break_(lab, "node02", "rail-missing")
    assert not (lab / "node02/hw/sys/bus/pci/devices" / address).is_symlink()
    assert not (lab / "node02/hw/sys/class/infiniband/mlx5_9").is_symlink()
    assert not (lab / "node02/hw/sys/class/net/enp94s0np0").is_symlink()
    assert "enp94s0np0" not in read(lab, "node02", "proc/net/route")
    assert (port / "current_link_width").read_text() == "0\n"
    assert b"mlx5_9" not in smi(lab, "node02", "topo", "-m").stdout


def test_a_moved_nic_keeps_its_name_and_changes_its_address(lab: Path) -> None:
    healthy = store.healthy(lab, "node01")
    name = healthy.rail(3).name
    store.break_(lab, "node01", "nic-moved")
    device = (lab / f"node01/hw/sys/class/infiniband/{name}/device").resolve()
    assert device.name == "0000:2a:00.0"
    assert [path.name for path in (device / "net").iterdir()] == ["ibp42s0"]
    assert (device / "numa_node").read_text() == "0\n"


def test_a_port_that_is_down_has_neither_gids_nor_speed(lab: Path) -> None:
    rdma = store.healthy(lab, "node02").rail(2)
    store.break_(lab, "node02", "port-down")
    port = lab / f"node02/hw/sys/class/infiniband/{rdma.name}/ports/1"
    assert [(port / f).read_text().strip() for f in ("state", "phys_state", "rate")] == [
        "1: DOWN",
        "2: Polling",
        "2.5 Gb/sec (1X SDR)",
    ]
    assert {path.read_text() for path in (port / "gids").iterdir()} == {":".join(["0000"] * 8) + "\n"}
    assert not list((port / "gid_attrs/types").iterdir())
    netdev = next((port.parent.parent / "device/net").iterdir())
    assert [(netdev / f).read_text().strip() for f in ("operstate", "carrier")] == ["down", "0"]
    assert not (netdev / "speed").exists()


def test_a_lost_gpu_shifts_the_indexes_behind_it(lab: Path) -> None:
    gpus = store.healthy(lab, "node01").gpus
    store.break_(lab, "node01", "gpu-lost")
    rows = smi(lab, "node01", "--query-gpu=index,uuid", "--format=csv,noheader").stdout.decode().splitlines()
    assert rows[2] == f"2, {gpus[3].uuid}"
    assert len(rows) == 7
    assert (lab / "node01/hw/sys/bus/pci/devices" / gpus[2].address / "class").exists()
    assert not (lab / "node01/hw/proc/driver/nvidia/gpus" / gpus[2].address).exists()


def test_an_inactive_nvlink_shows_in_the_status_and_in_the_matrix(lab: Path) -> None:
    store.break_(lab, "node01", "nvlink-down")
    lines = smi(lab, "node01", "nvlink", "-s").stdout.decode().splitlines()
    assert [n for n, line in enumerate(lines) if "<inactive>" in line] == [5 * 19 + 1 + 11]
    assert lines[5 * 19 + 12] == "\t Link 11: <inactive>"
    assert smi(lab, "node01", "topo", "-m").stdout.decode().splitlines()[1].split("\t")[6] == "NV17"


def test_a_fabric_that_is_not_ready_shows_in_both_answers(lab: Path) -> None:
    store.break_(lab, "node02", "fabric-not-ready")
    out = smi(lab, "node02", "--query-gpu=fabric.state,fabric.status", "--format=csv,noheader").stdout.decode()
    assert out.splitlines() == ["In Progress, N/A"] * 8
    assert smi(lab, "node02", "-q", "-x").stdout.count(b"<state>In Progress</state>") == 8


def test_broken_tools_are_missing_silent_or_binary(lab: Path) -> None:
    store.break_(lab, "node01", "smi-missing")
    assert not (lab / "node01/sys/usr/bin/nvidia-smi").exists()
    store.repair(lab, "node01")
    store.break_(lab, "node01", "smi-garbage")
    with pytest.raises(UnicodeDecodeError):
        smi(lab, "node01", "-L").stdout.decode()
    store.repair(lab, "node01")
    store.break_(lab, "node01", "smi-hang")
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([lab / "node01/sys/usr/bin/nvidia-smi", "-L"], capture_output=True, check=False, timeout=0.3)
    store.repair(lab, "node01")
    assert smi(lab, "node01", "-L").returncode == 0


# -- the store -------------------------------------------------------------------------------------------------------


def test_names_that_do_not_exist_are_answered_with_those_that_do(lab: Path, tmp_path: Path) -> None:
    for node in ("node09", "../lab/node01", "inventory"):
        with pytest.raises(LabError, match="there are node01, node02, node03, vm01"):
            store.break_(lab, node, "rate-low")
    with pytest.raises(LabError, match=r"pfc-of.*did you mean pfc-off"):
        store.break_(lab, "node01", "pfc-of")
    with pytest.raises(LabError, match=r"pfc-of.*did you mean pfc-off"):
        store.repair(lab, "node01", "pfc-of")
    with pytest.raises(LabError, match="node01 does not have rate-low; it has no fault"):
        store.repair(lab, "node01", "rate-low")
    with pytest.raises(LabError, match="no lab in"):
        store.status(tmp_path)
    with pytest.raises(LabError, match="cannot be a node"):
        store.create(tmp_path / "lab", {"../node": hgx_h100})
    with pytest.raises(LabError, match="is not empty"):
        store.create(lab)


def test_a_fault_that_cannot_show_is_refused_and_leaves_no_trace(lab: Path) -> None:
    store.break_(lab, "node01", "rail-missing")
    before = snapshot(lab / "node01")
    for name, reason in {
        "rail-missing": "has rail-missing already",
        "nic-moved": "does not show beside rail-missing",
        "gid-missing": "only to hgx-h200",
    }.items():
        with pytest.raises(LabError, match=reason):
            store.break_(lab, "node01", name)
    assert snapshot(lab / "node01") == before


def test_a_fault_of_a_file_that_is_not_provisioned_says_so(tmp_path: Path) -> None:
    store.create(tmp_path / "lab", {"vm01": h200_vm})
    for name in ("conf-edited", "conf-removed", "conf-mode"):
        with pytest.raises(LabError, match=r"no /etc/nccl\.conf yet"):
            store.break_(tmp_path / "lab", "vm01", name)
    assert store.status(tmp_path / "lab") == {"vm01": []}


def test_hardware_faults_and_repairs_leave_the_system_root_alone(lab: Path) -> None:
    conf = lab / "node01/sys/etc/nccl.conf"
    mine = lab / "node01/sys/etc/modprobe.d/mine.conf"
    mine.write_text("options nvidia\n")
    inode = conf.stat().st_ino
    store.break_(lab, "node01", "gpu-missing")
    store.repair(lab, "node01")
    assert (conf.read_text(), conf.stat().st_ino, mine.read_text()) == (CONF, inode, "options nvidia\n")
    mine.unlink()


def test_repair_does_not_undo_what_somebody_mended(lab: Path) -> None:
    conf = lab / "node02/sys/etc/nccl.conf"
    store.break_(lab, "node02", "conf-edited")
    assert "NCCL_IB_HCA=mlx5_6," in conf.read_text()
    conf.write_text("# mended\n")
    assert store.repair(lab, "node02", "conf-edited") == ["conf-edited"]
    assert conf.read_text() == "# mended\n"
    conf.write_text(CONF)


def test_repair_also_mends_a_hardware_root_that_was_changed_by_hand(lab: Path) -> None:
    root = lab / "node01/hw"
    before = snapshot(root)
    (root / "proc/cmdline").write_text("changed\n")
    (root / "sys/class/net/extra").mkdir()
    (root / "sys/class/infiniband/mlx5_0").unlink()
    store.repair(lab, "node01")
    assert snapshot(root) == before


def test_an_unreadable_state_file_is_named(tmp_path: Path) -> None:
    store.create(tmp_path / "lab", {"vm01": h200_vm})
    (tmp_path / "lab/vm01/faults.json").write_text("[")
    with pytest.raises(LabError, match=r"faults\.json cannot be used"):
        store.status(tmp_path / "lab")


def test_ansible_reads_the_inventory(lab: Path) -> None:
    command = [str(Path(sys.executable).parent / "ansible-inventory"), "-i", str(lab / "inventory"), "--list"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    data = json.loads(out)
    assert data["gpu_nodes"]["hosts"] == ["node01", "node02", "node03", "vm01"]
    host = data["_meta"]["hostvars"]["node02"]
    assert host["busbar_hardware_root"] == str(lab / "node02/hw")
    assert host["busbar_system_root"] == str(lab / "node02/sys")
    assert (host["busbar_platform"], host["busbar_fabric"], host["busbar_roce"]) == (
        "hgx-h200",
        "ethernet",
        {"dscp": 26, "priority": 3, "cnp_dscp": 48, "cnp_priority": 6},
    )
    assert host["ansible_connection"] == "local"
    assert host["ansible_python_interpreter"] == "{{ ansible_playbook_python }}"
