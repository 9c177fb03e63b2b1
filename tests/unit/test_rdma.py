# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.machine import rdma
from ansible_collections.busbar.fabric.plugins.module_utils.machine.rdma import Gid, Port, RdmaDevice
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trees import line, rdma_device

LINK_LOCAL = "fe80:0000:0000:0000:0ac0:ebff:fe40:8df2"
MAPPED = "0000:0000:0000:0000:0000:ffff:0a00:0001"
UNIQUE_LOCAL = "fd02:0000:0000:0058:0000:0000:0000:0001"


def gid(path: Path, index: int, text: str, kind: str | None = None, netdev: str | None = None) -> None:
    line(path / "ports/1/gids" / str(index), text)
    if kind is not None:
        line(path / "ports/1/gid_attrs/types" / str(index), kind)
    if netdev is not None:
        line(path / "ports/1/gid_attrs/ndevs" / str(index), netdev)


def refused(path: Path) -> None:
    """A file that cannot be read: a directory, where the kernel would say EINVAL."""
    path.mkdir(parents=True)


def read(root: Path) -> tuple[tuple[RdmaDevice, ...], list[str]]:
    devices, problems = rdma.read(Host(str(root)))
    return devices, [str(problem) for problem in problems]


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("4: ACTIVE", "ACTIVE"),
        ("1: DOWN", "DOWN"),
        ("2: INIT", "INIT"),
        ("5: LinkUp", "LinkUp"),
        ("7: Phy Test", "Phy Test"),
    ],
)
def test_state_is_its_name(text: str, state: str) -> None:
    assert rdma.parse_state(text) == state


@pytest.mark.parametrize(
    "text", ["", "ACTIVE", "4:", "4: ACT", "4: ", "0: <unknown>", ": ACTIVE", "4: ACTIVE\n4: ACTIVE"]
)
def test_truncated_state_is_refused(text: str) -> None:
    with pytest.raises(ParseError, match="not a port state"):
        rdma.parse_state(text)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("400 Gb/sec (4X NDR)", (400.0, "4X NDR")),
        ("2.5 Gb/sec (1X SDR)", (2.5, "1X SDR")),
        ("25 Gb/sec (1X EDR)", (25.0, "1X EDR")),
        ("100 Gb/sec (2X HDR)", (100.0, "2X HDR")),
        ("200 Gb/sec (4X HDR)", (200.0, "4X HDR")),
        ("800 Gb/sec (4X XDR)", (800.0, "4X XDR")),
        ("40 Gb/sec (4X FDR10)", (40.0, "4X FDR10")),
        ("10 Gb/sec (4X)", (10.0, "4X")),
    ],
)
def test_rate_is_a_number_and_a_name(text: str, rate: tuple[float, str]) -> None:
    assert rdma.parse_rate(text) == rate


@pytest.mark.parametrize(
    "text", ["", "400", "400 Gb/sec", "400 Gb/sec (4X ND", "-1 Gb/sec (4X NDR)", "400 Gb/s (4X NDR)"]
)
def test_truncated_rate_is_refused(text: str) -> None:
    with pytest.raises(ParseError, match="not a rate"):
        rdma.parse_rate(text)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        (LINK_LOCAL, LINK_LOCAL),
        ("FE80::AC0:EBFF:FE40:8DF2", LINK_LOCAL),
        ("::ffff:10.0.0.1", MAPPED),
        ("fd02:0:0:58::1", UNIQUE_LOCAL),
    ],
)
def test_gid_is_brought_to_the_form_of_the_kernel(text: str, normal: str) -> None:
    assert rdma.parse_gid(text) == normal


@settings(max_examples=100, deadline=None)
@given(
    st.one_of(
        st.text(max_size=40),
        st.text(alphabet="0123456789abcdef:. %()XGb/secNDR", max_size=40),
        st.builds(
            lambda good, at, bad: good[:at] + bad + good[at + 1 :],
            st.sampled_from(["4: ACTIVE", "400 Gb/sec (4X NDR)", LINK_LOCAL, "::ffff:10.0.0.1"]),
            st.integers(0, 40),
            st.text(max_size=2),
        ),
    )
)
def test_parsers_give_a_value_or_a_parse_error(text: str) -> None:
    for parse in (rdma.parse_state, rdma.parse_rate, rdma.parse_gid):
        try:
            value = parse(text)
        except ParseError:
            continue
        assert value
        if parse is rdma.parse_gid:
            assert len(str(value)) == 39
            assert rdma.parse_gid(str(value)) == value


def test_gid_knows_its_ipv4_address() -> None:
    assert Gid(3, MAPPED, "RoCE v2", None).ipv4 == "10.0.0.1"
    assert Gid(1, LINK_LOCAL, "RoCE v2", None).ipv4 is None


def test_first_rocev2_gid_of_each_family_is_found_wherever_it_is() -> None:
    def port(*gids: tuple[int, str, str | None]) -> Port:
        made = tuple(Gid(index, text, kind, None) for index, text, kind in gids)
        return Port(1, "ACTIVE", "LinkUp", 400.0, "4X NDR", "Ethernet", 0, 0, made)

    usual = [(0, LINK_LOCAL, "IB/RoCE v1"), (1, LINK_LOCAL, "RoCE v2"), (2, MAPPED, "IB/RoCE v1")]
    shifted = port(*usual, (4, UNIQUE_LOCAL, "RoCE v2"), (7, MAPPED, "RoCE v2"), (9, MAPPED, "RoCE v2"))
    ipv4, ipv6 = rdma.rocev2(shifted, "ipv4"), rdma.rocev2(shifted, "ipv6")
    assert ipv4 is not None
    assert ipv6 is not None
    assert (ipv4.index, ipv6.index) == (7, 4)
    assert rdma.rocev2(port(*usual), "ipv4") is None
    assert rdma.rocev2(port(*usual), "ipv6") is None
    assert rdma.rocev2(port((3, MAPPED, None)), "ipv4") is None


def test_device_is_read_whole(tmp_path: Path) -> None:
    gid(rdma_device(tmp_path, "mlx5_0"), 0, LINK_LOCAL, "IB/RoCE v1")
    devices, problems = read(tmp_path)
    assert problems == []
    assert devices == (
        RdmaDevice(
            name="mlx5_0",
            pci="0000:16:00.0",
            node_guid="9c63:c003:00aa:bb00",
            sys_image_guid="9c63:c003:00aa:bb00",
            firmware="28.41.1000",
            hca_type="MT4129",
            board_id="MT_0000000838",
            ports=(
                Port(
                    number=1,
                    state="ACTIVE",
                    phys_state="LinkUp",
                    rate_gbps=400.0,
                    rate_name="4X NDR",
                    link_layer="InfiniBand",
                    lid=0x1B,
                    sm_lid=1,
                    gids=(Gid(0, LINK_LOCAL, "IB/RoCE v1", None),),
                ),
            ),
            source="/sys/class/infiniband/mlx5_0",
        ),
    )


def test_devices_come_in_natural_order(tmp_path: Path) -> None:
    for name in ("mlx5_10", "mlx5_2", "mlx5_bond_0", "mlx5_1"):
        rdma_device(tmp_path, name)
    assert [found.name for found in read(tmp_path)[0]] == ["mlx5_1", "mlx5_2", "mlx5_10", "mlx5_bond_0"]


def test_no_rdma_driver_is_no_device_and_no_problem(tmp_path: Path) -> None:
    assert read(tmp_path) == ((), [])


def test_unused_gid_slots_are_no_problem(tmp_path: Path) -> None:
    path = rdma_device(tmp_path, "mlx5_0", link_layer="Ethernet")
    gid(path, 10, MAPPED, "RoCE v2", "ens1f0np0")
    gid(path, 3, LINK_LOCAL, "RoCE v2", "ens1f0np0")
    gid(path, 4, "0000:0000:0000:0000:0000:0000:0000:0000")
    gid(path, 5, "fe80::1")  # emptied between the two reads
    refused(path / "ports/1/gid_attrs/types/5")
    devices, problems = read(tmp_path)
    assert [(found.index, found.ipv4, found.netdev) for found in devices[0].ports[0].gids] == [
        (3, None, "ens1f0np0"),
        (10, "10.0.0.1", "ens1f0np0"),
    ]
    assert problems == []


def test_gid_of_an_infiniband_port_has_no_netdev(tmp_path: Path) -> None:
    path = rdma_device(tmp_path, "mlx5_0")
    gid(path, 0, LINK_LOCAL, "IB/RoCE v1")
    refused(path / "ports/1/gid_attrs/ndevs/0")
    devices, problems = read(tmp_path)
    assert devices[0].ports[0].gids == (Gid(0, LINK_LOCAL, "IB/RoCE v1", None),)
    assert problems == []


@pytest.mark.parametrize("kind", ["", "RoCE v3"])
def test_gid_type_that_makes_no_sense_is_none_and_a_problem(tmp_path: Path, kind: str) -> None:
    gid(rdma_device(tmp_path, "mlx5_0"), 3, MAPPED, kind)
    devices, problems = read(tmp_path)
    assert devices[0].ports[0].gids == (Gid(3, MAPPED, None, None),)
    assert [problem.split(": ")[0] for problem in problems] == [
        "/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/3"
    ]


@pytest.mark.parametrize(
    ("name", "text", "field"),
    [
        ("rate", "", "rate_gbps"),
        ("rate", "400 Gb/sec (4X", "rate_name"),
        ("state", "", "state"),
        ("state", "4: ACT", "state"),
        ("phys_state", "5: <unknown>", "phys_state"),
        ("link_layer", "Infini", "link_layer"),
        ("lid", "lid", "lid"),
        ("sm_lid", "", "sm_lid"),
    ],
)
def test_unreadable_port_attribute_is_none_and_a_problem(tmp_path: Path, name: str, text: str, field: str) -> None:
    rdma_device(tmp_path, "mlx5_0", **{name: text})
    devices, problems = read(tmp_path)
    assert getattr(devices[0].ports[0], field) is None
    assert [problem.split(": ")[0] for problem in problems] == ["/sys/class/infiniband/mlx5_0/ports/1/" + name]


def test_missing_ports_are_a_problem(tmp_path: Path) -> None:
    line(tmp_path / "sys/class/infiniband/mlx5_0/node_guid", "9c63:c003:00aa:bb00")
    devices, problems = read(tmp_path)
    assert devices[0].ports == ()
    assert devices[0].firmware is None
    assert problems == ["/sys/class/infiniband/mlx5_0/ports: lists no port"]


def test_terminal_escapes_and_binary_are_not_passed_on(tmp_path: Path) -> None:
    path = rdma_device(tmp_path, "mlx5_0")
    line(path / "fw_ver", "\x1b[2J28.41")
    (path / "board_id").write_bytes(b"\xff\xfe")
    devices, problems = read(tmp_path)
    assert (devices[0].firmware, devices[0].board_id) == (None, None)
    assert len(problems) == 2
    assert "\x1b" not in "".join(problems)


def test_entry_that_is_no_port_number_is_a_problem_and_the_rest_is_read(tmp_path: Path) -> None:
    path = rdma_device(tmp_path, "mlx5_0")
    line(path / "ports/one/state", "4: ACTIVE")
    devices, problems = read(tmp_path)
    assert [port.number for port in devices[0].ports] == [1]
    assert "'one'" in problems[0]


def test_software_device_and_subfunction_have_no_pci_function(tmp_path: Path) -> None:
    nic = "pci0000:15/0000:15:01.0/0000:16:00.0"
    rxe = rdma_device(tmp_path, "rxe0", nic)
    line(rxe / "parent", "eth0")
    line(rxe / "fw_ver", "")
    rdma_device(tmp_path, "siw0", None)
    rdma_device(tmp_path, "mlx5_4", nic + "/mlx5_core.sf.4")
    devices, problems = read(tmp_path)
    assert [(found.name, found.pci) for found in devices] == [("mlx5_4", None), ("rxe0", None), ("siw0", None)]
    assert problems == []
