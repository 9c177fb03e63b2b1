# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The lab's trees: what the kernel and nvidia-smi show of the three machines, read with nothing but the file system."""

import json
import os
import re
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import tree
from lab.machine import GpuProcess, LabError, Machine, from_dict, to_dict
from lab.machines import h200_vm, hgx_h100, hgx_h200_roce
from lab.nvidia_smi import path_class
from tests import goldens
from tests.lab.transcript import Transcript, texts

BUILDERS: dict[str, Callable[[str], Machine]] = {"h100": hgx_h100, "roce": hgx_h200_roce, "vm": h200_vm}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("trees")
    for name, builder in BUILDERS.items():
        tree.write(builder("node07"), base / name / "hw", base / name / "sys")
    return base


def text(path: Path) -> str:
    return path.read_text().strip()


def smi(root: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    tool = root / name / "sys/usr/bin/nvidia-smi"
    return subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=1800, check=False)


def snapshot(directory: Path) -> dict[str, bytes | str | None]:
    """Everything below a directory: bytes of files, targets of links, None for directories."""
    found: dict[str, bytes | str | None] = {}
    for path in directory.rglob("*"):
        name = str(path.relative_to(directory))
        if path.is_symlink():
            found[name] = os.readlink(path)
        else:
            found[name] = path.read_bytes() if path.is_file() else None
    return found


@pytest.mark.parametrize("name", BUILDERS)
def test_links_are_relative_resolve_and_stay_inside(root: Path, name: str) -> None:
    base = root / name
    links = [path for path in (base / "hw").rglob("*") if path.is_symlink()]
    assert links
    for link in links:
        assert not os.readlink(link).startswith("/"), link
        assert link.exists(), f"{link} leads nowhere"
        assert link.resolve().is_relative_to((base / "hw").resolve()), link


@pytest.mark.parametrize("name", BUILDERS)
def test_a_model_survives_json_and_writing_it_again_changes_nothing(root: Path, name: str) -> None:
    machine = BUILDERS[name]("node07")
    again = from_dict(json.loads(json.dumps(to_dict(machine))))
    assert again == machine
    before = snapshot(root / name / "hw")
    tree.write_hardware(again, root / name / "hw")
    assert snapshot(root / name / "hw") == before


def test_a_damaged_machine_description_is_refused() -> None:
    data = to_dict(hgx_h100())
    for broken in ({}, {**data, "gpus": 3}, {**data, "gpus": [{"number": 1}]}):
        with pytest.raises(LabError, match="not the lab's description"):
            from_dict(broken)


def test_no_identity_occurs_twice_on_a_host_or_on_two() -> None:
    seen: list[str] = []
    for machine in (hgx_h200_roce("node01"), hgx_h200_roce("node02"), hgx_h100("node03")):
        seen += [gpu.uuid for gpu in machine.gpus]
        seen += [rdma.node_guid for rdma in machine.rdma]
        # A bond and its slaves have one address.
        seen += {netdev.mac for netdev in machine.netdevs if netdev.kind != 772 and not netdev.bridge}
        # Each GID is there as RoCE v1 and as v2; the link-local one of InfiniBand once.
        seen += {gid.value for rdma in machine.rdma for gid in rdma.gids}
        assert len({route.destination for route in machine.routes}) == len(machine.routes)
    assert len(seen) == len(set(seen))


@pytest.mark.parametrize("name", ["h100", "roce"])
def test_each_rail_shares_one_switch_with_its_gpu(root: Path, name: str) -> None:
    machine = BUILDERS[name]("node07")
    devices = root / name / "hw/sys/bus/pci/devices"
    for number in range(8):
        gpu, nic = (devices / address for address in (machine.gpu(number).address, machine.rail(number).address))
        chains = [path.resolve().parts for path in (gpu, nic)]
        # .../pci0000:15/root port/upstream port/ is shared, then a downstream port and the device.
        shared = os.path.commonpath([gpu.resolve(), nic.resolve()])
        assert [len(chain) - len(Path(shared).parts) for chain in chains] == [2, 2]
        assert text(Path(shared) / "class") == "0x060400"
        assert Path(shared).parent.parent.name.startswith("pci0000:")
        assert (text(gpu / "numa_node"), text(gpu / "class")) == (text(nic / "numa_node"), "0x030200")


@pytest.mark.parametrize("name", ["h100", "roce"])
def test_rdma_names_do_not_follow_pci_order_and_run_past_nine(root: Path, name: str) -> None:
    machine = BUILDERS[name]("node07")
    directory = root / name / "hw/sys/class/infiniband"
    address = {path.name: (path / "device").resolve().name for path in directory.iterdir()}
    rails = [machine.rail(number).name for number in range(8)]
    assert [address[rail] for rail in rails] == sorted(address[rail] for rail in rails)
    assert rails != sorted(rails)
    assert "mlx5_1" in rails
    strangers = set(address) - set(rails)
    assert {"mlx5_10", "mlx5_11", "mlx5_bond_0"} <= strangers


@pytest.mark.parametrize("name", BUILDERS)
def test_the_bus_directory_leads_to_the_device_as_nccl_walks_it(root: Path, name: str) -> None:
    sys_directory = root / name / "hw/sys"
    for device in (sys_directory / "bus/pci/devices").iterdir():
        walked = sys_directory / "class/pci_bus" / device.name[:7] / "../.." / device.name
        assert os.path.realpath(walked) == os.path.realpath(device)


@pytest.mark.parametrize("name", BUILDERS)
def test_links_of_a_port_and_the_device_below_agree(root: Path, name: str) -> None:
    for device in (root / name / "hw/sys/bus/pci/devices").iterdir():
        if text(device / "class") not in ("0x030200", "0x020700", "0x020000") or (device / "physfn").exists():
            continue
        above = device.resolve().parent
        for file in ("current_link_speed", "current_link_width"):
            if (above / "class").exists() and (device / file).exists():
                assert text(device / file) == text(above / file), device


def test_a_roce_port_has_its_ipv4_gid_of_version_2_at_index_3(root: Path) -> None:
    machine = hgx_h200_roce("node07")
    for number in range(8):
        device = root / "roce/hw/sys/class/infiniband" / machine.rail(number).name
        port, netdev = device / "ports/1", next((device / "device/net").iterdir())
        kinds = {path.name: text(path) for path in (port / "gid_attrs/types").iterdir()}
        assert kinds == {"0": "IB/RoCE v1", "1": "RoCE v2", "2": "IB/RoCE v1", "3": "RoCE v2"}
        assert text(port / "gids/3") == f"0000:0000:0000:0000:0000:ffff:0a{16 + number:02x}:0007"
        assert text(port / "gids/1").startswith("fe80:")
        assert text(port / "gids/4") == text(port / "gids/255") == ":".join(["0000"] * 8)
        assert text(port / "gid_attrs/ndevs/3") == netdev.name
        assert [text(netdev / f) for f in ("mtu", "speed", "operstate", "carrier")] == ["1500", "400000", "up", "1"]
        # The link-local GID is made from the MAC address.
        eui = text(netdev / "address").replace(":", "")
        eui = f"{int(eui[:2], 16) ^ 2:02x}{eui[2:6]}fffe{eui[6:]}"
        assert text(port / "gids/0").replace(":", "") == f"fe80{'0' * 12}{eui}"


@pytest.mark.parametrize(("name", "netdev"), [("h100", "eno1"), ("roce", "eno8303"), ("vm", "eth0")])
def test_the_default_route_is_on_the_management_port(root: Path, name: str, netdev: str) -> None:
    lines = (root / name / "hw/proc/net/route").read_text().splitlines()
    assert " ".join(lines[0].split()) == "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT"
    defaults = [line.split() for line in lines[1:] if line.split()[1] == line.split()[7] == "00000000"]
    assert [row[0] for row in defaults] == [netdev]
    assert all(len(line) == 127 for line in lines[1:])
    device = root / name / "hw/sys/class/net" / netdev / "device"
    assert not (device / "infiniband").exists()
    for line in (root / name / "hw/proc/net/ipv6_route").read_text().splitlines():
        assert [len(field) for field in line.split()[:9]] == [32, 2, 32, 2, 32, 8, 8, 8, 8]


def test_cpu_lists_and_masks_of_a_node_are_the_same_cpus(root: Path) -> None:
    for name, groups in (("h100", 7), ("roce", 8), ("vm", 4)):
        for node in (root / name / "hw/sys/devices/system/node").glob("node*"):
            mask = text(node / "cpumap")
            assert len(mask.split(",")) == groups
            bits = int(mask.replace(",", ""), 16)
            listed: set[int] = set()
            for part in text(node / "cpulist").split(","):
                low, _, high = part.partition("-")
                listed |= set(range(int(low), int(high or low) + 1))
            assert listed == {cpu for cpu in range(512) if bits >> cpu & 1}


@pytest.mark.parametrize("name", BUILDERS)
def test_the_driver_and_the_bus_know_the_same_gpus(root: Path, name: str) -> None:
    hardware = root / name / "hw"
    gpus = hardware / "proc/driver/nvidia/gpus"
    bound = {p.name for p in (hardware / "sys/bus/pci/drivers/nvidia").iterdir()}
    assert {p.name for p in gpus.iterdir()} == bound
    assert len(bound) == 8
    version = text(hardware / "sys/module/nvidia/version")
    assert version in text(hardware / "proc/driver/nvidia/version")
    for gpu in gpus.iterdir():
        assert f"Bus Location: \t {gpu.name}\n" in (gpu / "information").read_text()


def test_four_nvswitches_and_a_bmc_that_is_no_gpu(root: Path) -> None:
    classes: dict[str, list[str]] = {}
    for device in (root / "h100/hw/sys/bus/pci/devices").iterdir():
        classes.setdefault(text(device / "class"), []).append(text(device / "vendor"))
    assert classes["0x068000"] == ["0x10de"] * 4
    assert classes["0x030000"] == ["0x1a03"]
    assert classes["0x030200"] == ["0x10de"] * 8


PORT, DEVICES = "hw/sys/class/infiniband/{}/ports/1/", "hw/sys/bus/pci/devices/"
# What to read -> machine and patterns.
READINGS = {
    "an InfiniBand port, which has no RoCE": (
        "h100",
        *(PORT.format("mlx5_4") + file for file in ("*", "gids/[012]", "gid_attrs/*/*")),
        *("hw/sys/class/infiniband/mlx5_4/" + file for file in ("*", "device/net/*/*")),
    ),
    "a RoCE port": ("roce", *(PORT.format("mlx5_6") + file for file in ("*", "gids/[0-4]", "gid_attrs/*/*"))),
    "a spare port, which is down and has no speed": (
        "roce",
        *(PORT.format("mlx5_11") + "*", "hw/sys/class/infiniband/mlx5_11/device/net/*/*"),
    ),
    "virtual functions and their owner": (
        "roce",
        *(f"{DEVICES}0000:83:00.0/{file}" for file in ("sriov_*", "virtfn*")),
        *(
            f"{DEVICES}0000:83:00.0/virtfn*/{file}"
            for file in ("physfn", "sriov_*", "current_link_*", "infiniband/*/node_guid")
        ),
    ),
    "a bond, which has one RDMA device over two members": (
        "roce",
        *(f"hw/sys/class/net/{file}" for file in ("bonding_masters", "bond0/bonding/*", "*/master", "enp225*")),
        *("hw/sys/class/infiniband/mlx5_bond_0", PORT.format("mlx5_bond_0") + "gid_attrs/ndevs/3"),
    ),
    "a bond of another machine": (
        "h100",
        *(f"hw/sys/class/net/{file}" for file in ("bonding_masters", "bond0/bonding/*", "*/master", "enp170*")),
        *("hw/sys/class/infiniband/mlx5_bond_0", PORT.format("mlx5_bond_0") + "gid_attrs/ndevs/3"),
    ),
    "a guest, which shows neither NUMA nor DMI nor RDMA, but a hypervisor": (
        *(
            "vm",
            f"{DEVICES}*",
            f"{DEVICES}*/class",
            f"{DEVICES}*/numa_node",
            "hw/sys/class/dmi/*",
            "hw/sys/class/infiniband/*",
        ),
        *("hw/sys/class/net/eth0/*", "hw/sys/class/net/eth0", "hw/proc/cpuinfo"),
    ),
    "bare metal, which has DMI and no hypervisor": ("h100", "hw/sys/class/dmi/id/*", "hw/proc/cpuinfo"),
}


@pytest.mark.golden
@pytest.mark.parametrize("case", READINGS)
def test_what_a_tree_shows(root: Path, case: str) -> None:
    name, *patterns = READINGS[case]
    found = texts(root / name, *patterns)
    rows: dict[str, list[str]] = {}
    for path in sorted(found):
        # Many files that differ in an address alone are a row.
        same = re.sub(r"devices/[^/]+/(?!virtfn|sriov|infiniband)", "devices/*/", path) + f": {found[path][:2000]}"
        rows.setdefault(same, []).append(path)
    goldens.check(
        "lab_trees", case, [f"{row} ({len(paths)})" if len(paths) > 1 else row for row, paths in rows.items()]
    )


SMI = {
    "h100": """
        nvidia-smi -L
        nvidia-smi --query-gpu=index,memory.total,pcie.link.gen.current,pcie.link.width.current --format=csv
        nvidia-smi --query-gpu=index,bogus --format=csv
        nvidia-smi --query-gpu=index, --format=csv
        nvidia-smi --query-gpu=index --format=json
        nvidia-smi --query-gpu=compute_cap --format=csv,noheader
        nvidia-smi --query-compute-apps=pid,process_name,used_memory,gpu_uuid,gpu_name --format=csv
        nvidia-smi --query-compute-apps=pid,process_name,used_memory,gpu_uuid,gpu_name --format=csv,noheader
        nvidia-smi --query-compute-apps=pid,index --format=csv
        nvidia-smi --bogus
        nvidia-smi topo -x
        nvidia-smi nvlink -z
        nvidia-smi --query-gpu
        nvidia-smi -x
        use 5
        nvidia-smi --query-compute-apps=pid,process_name,used_memory,gpu_uuid,gpu_name --format=csv
        nvidia-smi --query-compute-apps=used_gpu_memory,name --format=csv,noheader,nounits
        """,
    **dict.fromkeys(
        ("roce", "vm"),
        """
        nvidia-smi -L
        nvidia-smi --query-gpu=index,memory.total,pcie.link.gen.current,pcie.link.width.current --format=csv
        """,
    ),
}


@pytest.mark.golden
@pytest.mark.parametrize("name", SMI)
def test_what_smi_prints_and_refuses(root: Path, name: str) -> None:
    def use(gpu: str) -> None:
        machine = BUILDERS[name]("node07")
        machine.gpu_processes.append(GpuProcess(4242, "python", int(gpu), 71680))
        tree.write_tools(machine, root / name / "sys")

    transcript = Transcript(lambda _, *words: smi(root, name, *words), acts={"use": use})
    transcript.check("lab_trees", f"nvidia-smi of {name}", SMI[name])
    tree.write_tools(BUILDERS[name]("node07"), root / name / "sys")


# -- nvidia-smi ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILDERS)
def test_smi_answers_any_choice_of_fields_in_the_order_asked(root: Path, name: str) -> None:
    fields = (
        "index,uuid,name,pci.bus_id,fabric.state,fabric.status,pcie.link.gen.current,pcie.link.width.current,"
        "driver_version,memory.total"
    )
    lines = smi(root, name, f"--query-gpu={fields}", "--format=csv").stdout.splitlines()
    assert lines[0] == fields.replace(",", ", ").replace("memory.total", "memory.total [MiB]")
    assert len(lines) == 9
    row = lines[1].split(", ")
    assert row[0] == "0"
    assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", row[1])
    assert re.fullmatch(r"00000000:[0-9A-F]{2}:[0-9A-F]{2}\.0", row[3])
    assert row[4:8] == ["Completed", "Success", "5", "16"]
    assert row[9].endswith(" MiB")
    plain = smi(root, name, "--query-gpu=memory.total,index", "--format=csv,noheader,nounits").stdout
    assert plain.splitlines()[1] == f"{row[9].split()[0]}, 1"


def test_smi_xml_parses_and_names_the_fabric_of_every_gpu(root: Path) -> None:
    out = smi(root, "h100", "-q", "-x").stdout
    assert out.splitlines()[1] == '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">'
    log = ElementTree.fromstring(out)
    assert log.findtext("attached_gpus") == "8"
    assert re.fullmatch(r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}", log.findtext("timestamp") or "")
    assert [gpu.findtext("fabric/state") for gpu in log.findall("gpu")] == ["Completed"] * 8
    assert log.findall("gpu")[0].attrib == {"id": "00000000:1B:00.0"}


@pytest.mark.parametrize(("name", "nics"), [("h100", 11), ("roce", 13), ("vm", 0)])
def test_the_matrix_is_square_symmetric_and_pairs_rails_with_gpus(root: Path, name: str, nics: int) -> None:
    machine = BUILDERS[name]("node07")
    lines = smi(root, name, "topo", "-m").stdout.splitlines()
    assert lines[0].startswith("\t\x1b[4mGPU0\t")
    assert lines[0].endswith("\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m")
    labels = [label for label in re.sub(r"\x1b\[\d+m", "", lines[0]).split("\t")[1:] if label[:3] in ("GPU", "NIC")][
        :-1
    ]
    assert len(labels) == 8 + nics
    rows = {line.split("\t")[0]: line.split("\t")[1:] for line in lines[1 : 1 + len(labels)]}
    assert list(rows) == labels
    for i, one in enumerate(labels):
        assert rows[one][i] == " X "
        for j, other in enumerate(labels):
            assert rows[one][j] == rows[other][i]
    legend = dict(re.findall(r"^  (NIC\d+): (\S+)$", "\n".join(lines), re.MULTILINE))
    assert len(legend) == nics
    for rdma in machine.rdma:
        if rdma.rail is not None:
            nic = next(label for label, rdma_name in legend.items() if rdma_name == rdma.name)
            assert [n for n in range(8) if rows[f"GPU{n}"][labels.index(nic)] == "PIX"] == [rdma.rail]


def test_path_classes_of_every_kind() -> None:
    machine = hgx_h100()
    gpu, rail = machine.gpu(0).address, machine.rail(0).address
    assert path_class(machine, gpu, rail) == "PIX"
    assert path_class(machine, gpu, machine.rail(1).address) == "NODE"
    assert path_class(machine, gpu, machine.rail(7).address) == "SYS"
    assert path_class(machine, "0000:29:00.0", "0000:29:00.1") == "PIX"
    assert path_class(machine, "0000:05:00.0", "0000:0b:00.0") == "PHB"
    # Another switch below the first one makes more than one bridge on the way.
    machine.function(rail).parent = "0000:28:01.0"
    machine.function("0000:27:00.0").parent = machine.function(gpu).parent.replace("02.0", "00.0")
    assert path_class(machine, gpu, rail) == "PXB"


# -- safety ----------------------------------------------------------------------------------------------------------


def test_a_tree_is_never_written_over_a_real_root(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    machine = h200_vm()
    with pytest.raises(LabError, match="no hardware root of the lab: it holds etc"):
        tree.write_hardware(machine, tmp_path)
    with pytest.raises(LabError, match="is not empty"):
        tree.write(machine, tmp_path / "hw", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["etc"]


def test_the_simulation_is_marked_in_a_file_of_its_own(root: Path) -> None:
    assert "simulated" in (root / "h100/sys/usr/share/busbar-lab/SIMULATED").read_text()
    for name in ("-L", "-q"):
        assert "imulated" not in smi(root, "h100", name, *(["-x"] if name == "-q" else [])).stdout
