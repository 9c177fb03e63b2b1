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
from hypothesis import given
from hypothesis import strategies as st

from tests import goldens
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


NONE = "0" * 32
IPV6 = f"{NONE} 00 {NONE} 00 {NONE} 00000400 00000001 00000000 00000003   ens1f0"
STORAGE = {
    "sys/class/nvme/nvme0/transport": "pcie",
    "sys/class/nvme/nvme0/address": "0000:1b:00.0",
    "sys/class/nvme/nvme1/transport": "rdma",
    "sys/class/nvme/nvme1/address": "traddr=10.1.0.7,trsvcid=4420",
    "sys/class/nvme/nvme2/transport": "tcp",
    "sys/class/nvme/nvme2/address": "traddr=10.2.0.7,trsvcid=4420,src_addr=10.2.0.1",
    "sys/class/iscsi_connection/connection1:0/persistent_address": "10.1.0.9",
}
MODULES = {
    f"sys/module/{place}": count
    for name, count in (("rpcrdma", "2"), ("nvidia_peermem", "0"), ("ib_isert", "0"))
    for place in (f"ib_core/holders/{name}/refcnt", f"{name}/refcnt")
}
MOUNTS = (
    "s:/d /data nfs4 rw,vers=4.2,proto=rdma,port=20049,addr=10.1.0.7 0 0",
    "s:/d / nfs rw,proto=tcp,mountaddr=10.2.0.7,addr=10.1.0.7 0 0",
    "s:/d /data nfs4 rw,proto=rdma,addr=10.2.0.7 0 0",
    "10.1.0.7@o2ib:10.1.0.8@o2ib:/fs /lustre lustre rw 0 0",
    "10.2.0.7@tcp1:/fs /lustre lustre rw 0 0",
    # What cannot be read is a problem, and not a free node.
    "s:/d /data nfs rw 0 0",
    "server@o2ib:/fs /lustre lustre rw 0 0",
)
UNREADABLE = {
    "proc/net/route": "garbage",
    "proc/net/ipv6_route": "1 2 3",
    "sys/class/nvme/nvme0/transport": "",
    "sys/module/ib_core/holders/rpcrdma/refcnt": "1",  # and no /sys/module/rpcrdma
}
PEERS = (
    *(("10.2.0.9", "10.2.0.1"), ("10.1.4.9", "10.1.0.1"), ("192.0.2.7", "10.1.0.1")),
    *(("::ffff:10.1.4.9", "::ffff:10.2.0.1"), ("fe80::1%ens1f0", "fe80::2%ens1f0"), ("fe80::1%eno1", "fe80::2%eno1")),
    *(("2001:db8::1",), ("gateway",)),
)
# What is on the node -> files of it, Ansible's own connection, and the device that is to be disturbed.
CASES: dict[str, tuple[dict[str, str], tuple[str, ...], str]] = {
    "nothing": ({}, (), NIC),
    "the other NIC": ({}, (), OTHER),
    "a NIC that is not there": ({}, (), "0000:99:00.0"),
    "a name in place of an address": ({}, (), "ens1f0"),
    **{
        f"a default route by it, metric {metric} beside 100": (
            {"proc/net/route": ROUTES + DEFAULT.format("ens1f0", metric)},
            (),
            NIC,
        )
        for metric in (50, 100, 200)
    },
    "a default route of IPv6": ({"proc/net/ipv6_route": IPV6}, (), NIC),
    **{f"Ansible from {' to '.join(peer)}": ({}, peer, NIC) for peer in PEERS},
    **{mount: ({"proc/mounts": mount}, (), NIC) for mount in MOUNTS},
    "NVMe and iSCSI": (STORAGE, (), NIC),
    "modules over ib_core": (MODULES, (), NIC),
    **{f"{text!r} in {path}": ({path: text}, (), NIC) for path, text in UNREADABLE.items()},
}


@pytest.mark.golden
@pytest.mark.parametrize("case", CASES)
def test_what_a_nic_is_in_use_for(node: Path, case: str) -> None:
    files, peer, device = CASES[case]
    for path, text in files.items():
        line(node / path, text)
    reasons, problems, idle = read(node, *peer, device=device)
    found = {"in use": reasons, "problem": problems, "idle": idle}
    goldens.check("guard", case, [[kind, text] for kind, texts in found.items() for text in texts])


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


def test_a_process_with_a_verbs_device_open_counts_once(node: Path) -> None:
    verbs = "/dev/infiniband/uverbs0"
    opens(node, 4242, "python", "/dev/null", verbs, verbs, "socket:[1]")
    opens(node, 17, "sshd", "/dev/null", "/mnt/uverbs0/x")
    assert read(node)[0] == [f"process python (pid 4242) has mlx5_0 ({NIC}) open"]
    assert read(node, device=OTHER)[0] == [f"the default route leaves by eno1 ({OTHER})"]


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


@given(st.text())
def test_any_text_is_a_connection_or_a_parse_error(text: str) -> None:
    try:
        guard.parse_connection(text)
    except ParseError as error:
        assert str(error)
