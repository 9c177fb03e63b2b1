# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import os
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.machine import pci
from ansible_collections.busbar.fabric.plugins.module_utils.machine.pci import PciDevice
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trees import GEN5_X16, pci_function


def read(root: Path) -> tuple[dict[str, PciDevice], list[str]]:
    devices, problems = pci.read(Host(str(root)))
    return devices, [str(problem) for problem in problems]


def at(address: str, *ancestors: str, numa: int | None = 0) -> PciDevice:
    return PciDevice(address, 0x020000, 0x15B3, 0x1021, numa, ancestors, None, None, None, None, None, None, "x")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:19:00.0", "0000:19:00.0"),
        ("0000:1B:00.0", "0000:1b:00.0"),
        ("1b:00.0", "0000:1b:00.0"),
        ("10000:e1:1f.7", "10000:e1:1f.7"),
        ("00010000:E1:00.0", "10000:e1:00.0"),
    ],
)
def test_address_is_brought_to_one_form(text: str, address: str) -> None:
    assert pci.parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1b:00",
        "1b:20.0",
        "1b:00.8",
        "000:1b:00.0",
        "0000:1b:00.0 ",
        "0000:1b:00.0\n",
        "pci0000:15",
        "\u0660\u0660:00.0",
    ],
)
def test_what_is_no_address_is_refused_with_the_text_quoted(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        pci.parse_address(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "speed"),
    [("32.0 GT/s PCIe", 32.0), ("2.5 GT/s PCIe", 2.5), ("8 GT/s", 8.0), ("16.0 GT/s", 16.0), ("64.0 GT/s PCIe", 64.0)],
)
def test_speed_is_a_number(text: str, speed: float) -> None:
    assert pci.parse_speed(text) == speed


@pytest.mark.parametrize("text", ["Unknown", "Unknown speed", "", "32.0", "GT/s", "32.0 GT/s PCIe x16", "-1 GT/s"])
def test_unknown_speed_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        pci.parse_speed(text)


@settings(max_examples=100, deadline=None)
@given(
    st.one_of(
        st.text(max_size=30),
        st.text(alphabet="0123456789abcdefABCDEF:.xGT/s PCIe-", max_size=24),
        st.builds(
            lambda good, at, bad: good[:at] + bad + good[at + 1 :],
            st.sampled_from(["0000:1b:00.0", "32.0 GT/s PCIe", "0x030200", "-1"]),
            st.integers(0, 13),
            st.text(max_size=2),
        ),
    )
)
def test_parsers_give_a_value_or_a_parse_error(text: str) -> None:
    for parse in (pci.parse_address, pci.parse_speed, pci.parse_decimal, pci.parse_hex, pci.parse_text):
        try:
            value = parse(text)
        except ParseError:
            continue
        assert value is not None
        if parse is pci.parse_address:
            assert pci.parse_address(str(value)) == value


def test_addresses_sort_by_number_and_names_by_number_too() -> None:
    addresses = ["10000:01:00.0", "2000:01:00.0", "0000:1b:00.1", "0000:1b:00.0"]
    assert sorted(addresses, key=pci.address_key) == list(reversed(addresses))
    names = ["mlx5_10", "mlx5_bond_0", "mlx5_2", "²", "mlx5_1"]
    assert sorted(names, key=pci.natural_key) == ["mlx5_1", "mlx5_2", "mlx5_10", "mlx5_bond_0", "²"]


ROOT_PORT = ("pci0000:15", "0000:15:01.0")
SWITCH = (*ROOT_PORT, "0000:16:00.0")


@pytest.mark.parametrize(
    ("a", "b", "path"),
    [
        pytest.param(at("0000:18:00.0", *SWITCH), at("0000:18:00.0", *SWITCH), "X", id="itself"),
        pytest.param(
            at("0000:18:00.0", *SWITCH, "0000:17:00.0"),
            at("0000:18:00.1", *SWITCH, "0000:17:00.0"),
            "PIX",
            id="two functions of a card",
        ),
        pytest.param(at("0000:16:00.0", *ROOT_PORT), at("0000:16:00.1", *ROOT_PORT), "PIX", id="card in a root port"),
        pytest.param(
            at("0000:18:00.0", *SWITCH, "0000:17:00.0"),
            at("0000:19:00.0", *SWITCH, "0000:17:01.0"),
            "PIX",
            id="two downstream ports of one switch",
        ),
        pytest.param(
            at("0000:18:00.0", *SWITCH, "0000:17:00.0"),
            at("0000:1b:00.0", *SWITCH, "0000:17:01.0", "0000:19:00.0", "0000:1a:00.0"),
            "PXB",
            id="a second switch below the first",
        ),
        pytest.param(
            at("0000:18:00.0", *SWITCH, "0000:17:00.0"),
            at("0000:22:00.0", "pci0000:15", "0000:15:03.0", "0000:20:00.0", "0000:21:00.0"),
            "PHB",
            id="two root ports",
        ),
        pytest.param(
            at("0000:00:06.0", "pci0000:00"), at("0000:00:07.0", "pci0000:00"), "PHB", id="root bus of a guest"
        ),
        pytest.param(
            at("0000:18:00.0", *SWITCH, numa=1), at("0000:40:00.0", "pci0000:3f", numa=1), "NODE", id="one NUMA node"
        ),
        pytest.param(
            at("0000:18:00.0", *SWITCH, numa=0), at("0000:99:00.0", "pci0000:98", numa=1), "SYS", id="two NUMA nodes"
        ),
        pytest.param(
            at("0000:18:00.0", *SWITCH, numa=None),
            at("0000:99:00.0", "pci0000:98", numa=None),
            "SYS",
            id="unknown NUMA nodes are not the same",
        ),
        pytest.param(
            at("0000:18:00.0", *SWITCH, numa=0), at("0000:99:00.0", "pci0000:98", numa=None), "SYS", id="one unknown"
        ),
        pytest.param(
            at("10000:01:00.0", "pci0000:5d", "0000:5d:05.5", "pci10000:00", "10000:00:02.0"),
            at("10000:02:00.0", "pci0000:5d", "0000:5d:05.5", "pci10000:00", "10000:00:03.0"),
            "PHB",
            id="host bridge inside a VMD controller",
        ),
        pytest.param(
            at("0000:18:00.0", numa=None), at("0000:19:00.0", numa=None), "SYS", id="place in the tree unknown"
        ),
    ],
)
def test_path_class_both_ways(a: PciDevice, b: PciDevice, path: str) -> None:
    assert pci.path_class(a, b) == path
    assert pci.path_class(b, a) == path


def test_nccl_calls_node_phb_and_the_same_device_loc() -> None:
    assert [pci.nccl_class(path) for path in pci.PATH_CLASSES] == ["LOC", "PIX", "PXB", "PHB", "PHB", "SYS"]


def test_function_is_read_with_its_ancestors_from_the_host_bridge_down(tmp_path: Path) -> None:
    port = "pci0000:15/0000:15:01.0"
    pci_function(tmp_path, port, "0x060400", "8086:352a", **GEN5_X16)
    nic = pci_function(tmp_path, port + "/0000:16:00.0", "0x020700", "15b3:1021", numa_node="1", **GEN5_X16)
    driver = tmp_path / "sys/bus/pci/drivers/mlx5_core"
    driver.mkdir(parents=True)
    (nic / "driver").symlink_to(os.path.relpath(driver, nic))
    devices, problems = read(tmp_path)
    assert problems == []
    assert devices["0000:16:00.0"] == PciDevice(
        address="0000:16:00.0",
        class_code=0x020700,
        vendor=0x15B3,
        device=0x1021,
        numa_node=1,
        ancestors=("pci0000:15", "0000:15:01.0"),
        current_speed_gts=32.0,
        current_width=16,
        max_speed_gts=32.0,
        max_width=16,
        physfn=None,
        driver="mlx5_core",
        source="/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0",
    )


def test_maximum_is_never_above_that_of_the_slot(tmp_path: Path) -> None:
    slot = {**GEN5_X16, "max_link_speed": "16.0 GT/s PCIe", "max_link_width": "8"}
    pci_function(tmp_path, "pci0000:15/0000:15:01.0", "0x060400", "8086:352a", **slot)
    pci_function(tmp_path, "pci0000:15/0000:15:01.0/0000:16:00.0", **GEN5_X16)
    device = read(tmp_path)[0]["0000:16:00.0"]
    assert (device.max_speed_gts, device.max_width) == (16.0, 8)
    assert (device.current_speed_gts, device.current_width) == (32.0, 16)


def test_virtual_function_names_its_physical_function_and_has_no_link_of_its_own(tmp_path: Path) -> None:
    parent = "pci0000:15/0000:15:01.0/"
    pci_function(tmp_path, parent + "0000:16:00.0", **GEN5_X16)
    unknown = {"current_link_speed": "Unknown", "current_link_width": "0"}
    vf = pci_function(tmp_path, parent + "0000:16:00.2", "0x020000", "15b3:101e", **{**GEN5_X16, **unknown})
    (vf / "physfn").symlink_to("../0000:16:00.0")
    devices, problems = read(tmp_path)
    assert devices["0000:16:00.2"].physfn == "0000:16:00.0"
    assert devices["0000:16:00.2"].max_speed_gts is None
    assert problems == []


@pytest.mark.parametrize(
    ("name", "text", "field"),
    [
        ("numa_node", "", "numa_node"),
        ("numa_node", "garbage", "numa_node"),
        ("current_link_speed", "Unknown", "current_speed_gts"),
        ("current_link_width", "0", "current_width"),
        ("current_link_width", "63", "current_width"),
        ("max_link_width", "255", "max_width"),
        ("max_link_speed", "[N/A]", "max_speed_gts"),
    ],
)
def test_unreadable_attribute_is_none_and_a_problem_with_its_file(
    tmp_path: Path, name: str, text: str, field: str
) -> None:
    pci_function(tmp_path, "pci0000:15/0000:15:01.0", "0x030200", "10de:2330", **{**GEN5_X16, name: text})
    devices, problems = read(tmp_path)
    assert getattr(devices["0000:15:01.0"], field) is None
    assert [problem.split(": ")[0] for problem in problems] == ["/sys/bus/pci/devices/0000:15:01.0/" + name]


def test_numa_node_minus_one_is_unknown_without_a_problem(tmp_path: Path) -> None:
    pci_function(tmp_path, "pci0000:00/0000:00:06.0", "0x030200", "10de:2335", numa_node="-1")
    devices, problems = read(tmp_path)
    assert devices["0000:00:06.0"].numa_node is None
    assert problems == []


@pytest.mark.parametrize("name", ["class", "vendor", "device"])
@pytest.mark.parametrize("damage", ["empty", "missing", "garbage", "binary"])
def test_function_that_cannot_be_identified_is_left_out_with_a_problem(tmp_path: Path, name: str, damage: str) -> None:
    bad = pci_function(tmp_path, "pci0000:00/0000:00:06.0")
    pci_function(tmp_path, "pci0000:00/0000:00:07.0")
    if damage == "missing":
        (bad / name).unlink()
    else:
        (bad / name).write_bytes({"empty": b"", "garbage": b"[Unknown Error]\n", "binary": b"\xff\x00\xfe"}[damage])
    devices, problems = read(tmp_path)
    assert list(devices) == ["0000:00:07.0"]
    assert len(problems) == 1
    assert problems[0].startswith("/sys/bus/pci/devices/0000:00:06.0/" + name)


def test_links_of_functions_that_do_not_matter_are_not_read(tmp_path: Path) -> None:
    pci_function(tmp_path, "pci0000:00/0000:00:1f.0", "0x010601", "8086:1bd2", current_link_speed="Unknown")
    pci_function(tmp_path, "pci0000:00/0000:00:1c.0", "0x060400", "8086:1bbe", current_link_speed="Unknown")
    devices, problems = read(tmp_path)
    assert len(devices) == 2
    assert problems == []


def test_host_bridge_is_found_below_other_buses(tmp_path: Path) -> None:
    pci_function(
        tmp_path, "LNXSYSTM:00/ACPI0004:00/VMBUS:00/47505500-0001/pci0101:00/0101:00:00.0", "0x030200", "10de:2330"
    )
    assert read(tmp_path)[0]["0101:00:00.0"].ancestors == ("pci0101:00",)


def test_function_outside_the_tree_is_a_problem(tmp_path: Path) -> None:
    pci_function(tmp_path, "platform/0000:00:06.0")
    devices, problems = read(tmp_path)
    assert devices["0000:00:06.0"].ancestors == ()
    assert "not below a PCI host bridge" in problems[0]


def test_no_pci_and_odd_names_are_problems(tmp_path: Path) -> None:
    assert read(tmp_path) == ({}, ["/sys/bus/pci/devices: lists no PCI device"])
    (tmp_path / "sys/bus/pci/devices/oops").mkdir(parents=True)
    devices, problems = read(tmp_path)
    assert devices == {}
    assert "'oops'" in problems[0]


def test_link_that_leaves_the_tree_is_a_problem(tmp_path: Path) -> None:
    pci_function(tmp_path / "hw", "pci0000:00/0000:00:06.0")
    (tmp_path / "hw/sys/devices/pci0000:00/0000:00:06.0/driver").symlink_to("/usr")
    devices, problems = read(tmp_path / "hw")
    assert devices["0000:00:06.0"].driver is None
    assert "leaves the hardware root" in problems[0]
