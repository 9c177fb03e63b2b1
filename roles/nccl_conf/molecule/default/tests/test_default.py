# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from testinfra.host import Host  # type: ignore[import-untyped]

from tests.molecule.scenario import Role

ROLE = Role(__file__)
CONF = "/etc/nccl.conf"
# Of hgx-h100, in rail order: the names are not in the order of the PCI addresses.
HCAS = "mlx5_4,mlx5_5,mlx5_0,mlx5_1,mlx5_8,mlx5_9,mlx5_6,mlx5_7"


def test_the_file_names_rails_and_interface_each_under_its_reason(host: Host) -> None:
    lines = host.file(CONF).content_string.splitlines()
    assert [line for line in lines if not line.startswith("#")] == [f"NCCL_IB_HCA=={HCAS}", "NCCL_SOCKET_IFNAME==eno1"]
    assert all(lines[number - 1].startswith("# ") for number, line in enumerate(lines) if line[0] != "#")


def test_everybody_can_read_the_file_and_only_root_can_write_it(host: Host) -> None:
    file = host.file(CONF)
    assert (file.user, file.group, file.mode) == ("root", "root", 0o644)
    read = host.run(f"runuser -u nobody -- cat {CONF}")
    assert (read.rc, read.stdout) == (0, file.content_string)


def test_what_was_replaced_lies_beside_it_and_nothing_else_does(host: Host) -> None:
    names = [name for name in host.file("/etc").listdir() if "nccl" in name and name != "nccl.conf"]
    assert len(names) == 1
    assert host.file(f"/etc/{names[0]}").content_string == "NCCL_SOCKET_IFNAME=docker0\n"
    assert names[0].startswith("nccl.conf.")
