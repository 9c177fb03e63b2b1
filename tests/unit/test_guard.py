# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.change import busy, guard
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trees import line, link, tool

NIC, OTHER, VF = "0000:1b:00.0", "0000:2a:00.0", "0000:1b:00.2"
HEADING = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
# 10.1.0.0/16 is on ens1f0, 10.2.0.0/16 on eno1, and what is left leaves by eno1.
ROUTES = (
    HEADING
    + "ens1f0\t0000010A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
    + "eno1\t0000020A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
    + "eno1\t00000000\t0100020A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
)
DEFAULT = "{}\t00000000\t0100020A\t0003\t0\t0\t{}\t00000000\t0\t0\t0\n"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Two NICs: ens1f0 with mlx5_0 and a virtual function, which is to be disturbed, and eno1."""
    for address, name in ((NIC, "ens1f0"), (VF, "ens1f0v0"), (OTHER, "eno1")):
        real = tmp_path / "sys/devices/pci0000:1a" / address
        line(tmp_path / f"sys/devices/pci0000:1a/{address}/vendor", "0x15b3")
        link(tmp_path / f"sys/bus/pci/devices/{address}", real)
        link(tmp_path / f"sys/class/net/{name}/device", real)
    link(tmp_path / f"sys/devices/pci0000:1a/{NIC}/virtfn0", tmp_path / "sys/bus/pci/devices" / VF)
    line(tmp_path / "sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0")
    link(tmp_path / "sys/class/infiniband_verbs/uverbs0/device", tmp_path / "sys/bus/pci/devices" / NIC)
    line(tmp_path / "proc/net/route", ROUTES)
    line(tmp_path / "proc/mounts", "/dev/sda1 / ext4 rw 0 0\nnfsd /proc/fs/nfsd nfsd rw 0 0\n")
    for holder in ("mlx5_ib", "ib_uverbs", "rdma_cm"):
        line(tmp_path / f"sys/module/ib_core/holders/{holder}/refcnt", "3")
    return tmp_path


def opens(node: Path, pid: int, comm: str, *targets: str) -> None:
    line(node / f"proc/{pid}/comm", comm)
    (node / f"proc/{pid}/fd").mkdir()
    for number, target in enumerate(targets):
        (node / f"proc/{pid}/fd/{number}").symlink_to(target)


def read(node: Path, *peer: str, device: str = NIC) -> tuple[list[str], list[str], list[str]]:
    reasons, problems, idle = guard.read(Host(str(node), str(node)), [device], peer)
    return reasons, [str(problem) for problem in problems], idle


def test_nobody_notices_a_nic_that_nothing_hangs_on(node: Path) -> None:
    assert read(node, "10.2.0.9", "10.2.0.1") == ([], [], [])


def test_the_other_nic_carries_the_default_route(node: Path) -> None:
    assert read(node, device=OTHER)[0] == [f"the default route leaves by eno1 ({OTHER})"]


@pytest.mark.parametrize(("metric", "found"), [(50, 1), (100, 1), (200, 0)])
def test_only_the_default_route_that_wins_counts(node: Path, metric: int, found: int) -> None:
    line(node / "proc/net/route", ROUTES + DEFAULT.format("ens1f0", metric))
    assert len(read(node)[0]) == found


@pytest.mark.parametrize("name", ["bond0", "bond0.7", "br0", "ens1f0v0"])
def test_a_default_route_over_a_bond_a_vlan_a_bridge_or_a_virtual_function_counts(node: Path, name: str) -> None:
    (node / "sys/class/net/bond0").mkdir()
    link(node / "sys/class/net/ens1f0/master", node / "sys/class/net/bond0")
    (node / "sys/class/net/bond0.7/lower_bond0").mkdir(parents=True)
    (node / "sys/class/net/br0/lower_bond0.7").mkdir(parents=True)
    line(node / "proc/net/route", ROUTES + DEFAULT.format(name, 1))
    [reason] = read(node)[0]
    assert reason.startswith(f"the default route leaves by {name} ")
    assert f"({VF if name == 'ens1f0v0' else NIC})" in reason


def test_an_ipv6_default_route_counts_for_itself(node: Path) -> None:
    none = "0" * 32
    line(node / "proc/net/ipv6_route", f"{none} 00 {none} 00 {none} 00000400 00000001 00000000 00000003   ens1f0")
    assert read(node)[0] == [f"the default route leaves by ens1f0 ({NIC})"]


@pytest.mark.parametrize(
    "peer", [("10.1.4.9", "10.1.0.1"), ("192.0.2.7", "10.1.0.1"), ("::ffff:10.1.4.9", "::ffff:10.2.0.1")]
)
def test_the_connection_that_ansible_itself_uses_counts(node: Path, peer: tuple[str, str]) -> None:
    assert read(node, *peer)[0] == [
        f"Ansible's own connection ({peer[0]} to {peer[1]}) uses ens1f0 ({NIC})",
    ]


def test_a_link_local_address_names_its_interface(node: Path) -> None:
    assert len(read(node, "fe80::1%ens1f0", "fe80::2%ens1f0")[0]) == 1
    assert read(node, "fe80::1%eno1", "fe80::2%eno1") == ([], [], [])


@pytest.mark.parametrize("peer", ["2001:db8::1", "gateway"])
def test_a_peer_that_no_route_leads_to_is_not_free(node: Path, peer: str) -> None:
    assert [problem.partition(":")[0] for problem in read(node, peer)[1]] == ["SSH_CONNECTION"]


def test_a_process_with_a_verbs_device_open_counts_once(node: Path) -> None:
    verbs = "/dev/infiniband/uverbs0"
    opens(node, 4242, "python", "/dev/null", verbs, verbs, "socket:[1]")
    opens(node, 17, "sshd", "/dev/null", "/mnt/uverbs0/x")
    assert read(node)[0] == [f"process python (pid 4242) has mlx5_0 ({NIC}) open"]
    assert read(node, device=OTHER)[0] == [f"the default route leaves by eno1 ({OTHER})"]


@pytest.mark.parametrize(
    ("mount", "by"),
    [
        ("s:/d /data nfs4 rw,vers=4.2,proto=rdma,port=20049,addr=10.1.0.7 0 0", True),
        ("s:/d / nfs rw,proto=tcp,mountaddr=10.2.0.7,addr=10.1.0.7 0 0", True),
        ("s:/d /data nfs4 rw,proto=rdma,addr=10.2.0.7 0 0", False),
        ("10.1.0.7@o2ib:10.1.0.8@o2ib:/fs /lustre lustre rw 0 0", True),
        ("10.2.0.7@tcp1:/fs /lustre lustre rw 0 0", False),
    ],
)
def test_storage_counts_by_the_way_to_its_server(node: Path, mount: str, by: bool) -> None:
    line(node / "proc/mounts", mount)
    reasons, problems, _ = read(node)
    assert (len(reasons), problems) == (int(by), [])
    if by:
        assert f"uses ens1f0 ({NIC})" in reasons[0]


def test_storage_over_fabrics_and_iscsi_counts(node: Path) -> None:
    for name, transport, address in (
        ("nvme0", "pcie", "0000:1b:00.0"),
        ("nvme1", "rdma", "traddr=10.1.0.7,trsvcid=4420"),
        ("nvme2", "tcp", "traddr=10.2.0.7,trsvcid=4420,src_addr=10.2.0.1"),
    ):
        line(node / f"sys/class/nvme/{name}/transport", transport)
        line(node / f"sys/class/nvme/{name}/address", address)
    line(node / "sys/class/iscsi_connection/connection1:0/persistent_address", "10.1.0.9")
    assert read(node)[0] == [
        f"storage nvme1 (NVMe over rdma from 10.1.0.7) uses ens1f0 ({NIC})",
        f"storage (iSCSI connection1:0 from 10.1.0.9) uses ens1f0 ({NIC})",
    ]


def test_a_module_in_use_over_the_drivers_counts_and_an_idle_one_is_named_apart(node: Path) -> None:
    for name, count in (("rpcrdma", "2"), ("nvidia_peermem", "0"), ("ib_isert", "0")):
        (node / f"sys/module/ib_core/holders/{name}").mkdir()
        line(node / f"sys/module/{name}/refcnt", count)
    reasons, problems, idle = read(node)
    assert reasons == ["kernel module rpcrdma is in use over ib_core"]
    assert (problems, idle) == ([], ["ib_isert", "nvidia_peermem"])


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("proc/net/route", "garbage"),
        ("proc/net/ipv6_route", "1 2 3"),
        ("proc/mounts", "s:/d /data nfs rw 0 0"),
        ("proc/mounts", "server@o2ib:/fs /lustre lustre rw 0 0"),
        ("sys/class/nvme/nvme0/transport", ""),
        ("sys/module/ib_core/holders/rpcrdma/refcnt", "1"),  # and no /sys/module/rpcrdma
    ],
)
def test_what_cannot_be_read_is_a_problem_and_not_a_free_node(node: Path, path: str, text: str) -> None:
    line(node / path, text)
    assert len(read(node)[1]) == 1


def test_a_device_that_is_not_there_and_one_that_is_no_address_are_problems(node: Path) -> None:
    assert read(node, device="0000:99:00.0")[1] == ["/sys/bus/pci/devices/0000:99:00.0: is not there"]
    assert "is not a PCI address" in read(node, device="ens1f0")[1][0]


def test_busy_asks_for_devices_only_where_it_is_given_any(node: Path) -> None:
    tool(node, "usr/bin/nvidia-smi", "echo 'pid, process_name, used_gpu_memory [MiB]'")
    host = Host(str(node), str(node))
    assert busy.read(host) == busy.Busy(())
    assert busy.read(host, [OTHER]).reasons == (f"the default route leaves by eno1 ({OTHER})",)


def test_the_ssh_connection_is_found_in_a_process_above() -> None:
    code = "from ansible_collections.busbar.fabric.plugins.module_utils.change import guard; print(*guard.connection())"
    # As sudo does it: the process itself has not got the variable.
    argv = ["sh", "-c", 'env -u SSH_CONNECTION "$0" -c "$1"; :', sys.executable, code]
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "SSH_CONNECTION": "10.0.0.9 50812 10.0.0.1 22"}
    done = subprocess.run(argv, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["10.0.0.9", "10.0.0.1"]


@settings(max_examples=100, deadline=None)
@given(st.text())
def test_any_text_is_a_connection_or_a_parse_error(text: str) -> None:
    try:
        guard.parse_connection(text)
    except ParseError as error:
        assert str(error)
