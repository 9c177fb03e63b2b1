# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Texts of sysfs, procfs and tools beside the values that are read of them, and that no text breaks a parser."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import nic_counters
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import ParseError
from ansible_collections.busbar.fabric.plugins.module_utils.machine import (
    gpu,
    lockdown,
    netdev,
    netdev_address,
    netdev_routing,
    nvidia_smi_topo,
    pci,
    rdma,
    virtualization,
)
from ansible_collections.busbar.fabric.plugins.module_utils.machine.netdev_routing import Route, Rule
from ansible_collections.busbar.fabric.plugins.module_utils.mtu import device, netplan
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos import (
    attributes,
    boot_script,
    dcb,
    mlnx_qos,
    port,
    settings,
)
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.unit.test_gpu import CSV, INFORMATION, NVLINK, OPEN, UUID, A, xml
from tests.unit.test_mlnx_qos import full
from tests.unit.test_netdev import HEADING, IPV6_ROUTE, ROUTE
from tests.unit.test_netdev_owner import NETPLAN
from tests.unit.test_nvidia_smi_topo import OLD, TABS

Parser = Callable[[str], object]
LINK_LOCAL = "fe80:0000:0000:0000:0ac0:ebff:fe40:8df2"
MAPPED = "0000:0000:0000:0000:0000:ffff:0a00:0001"
RULES = (
    '[{"priority":0,"src":"all","table":"local"},{"priority":101,"src":"10.9.0.1","table":"101"},'
    '{"priority":102,"src":"10.9.0.0","srclen":24,"iif":"ens1","table":"main"}]'
)
ROUTES = (
    '[{"dst":"default","gateway":"10.9.0.254","dev":"va","flags":[]},'
    '{"dst":"10.9.0.0/24","dev":"va","scope":"link","prefsrc":"10.9.0.1","table":"1000","flags":[]}]'
)
ADDRESSES = '[{},{"ifname":"va","addr_info":[{"family":"inet","local":"10.9.0.1","prefixlen":24,"scope":"global"}]}]'
READ: list[tuple[Parser, dict[str, object]]] = [
    (
        pci.parse_address,
        {
            "00000000:19:00.0": "0000:19:00.0",
            "0000:1B:00.0": "0000:1b:00.0",
            "1b:00.0": "0000:1b:00.0",
            "10000:e1:1f.7": "10000:e1:1f.7",
            "00010000:E1:00.0": "10000:e1:00.0",
        },
    ),
    (
        pci.parse_speed,
        {"32.0 GT/s PCIe": 32.0, "2.5 GT/s PCIe": 2.5, "8 GT/s": 8.0, "16.0 GT/s": 16.0, "64.0 GT/s PCIe": 64.0},
    ),
    (
        rdma.parse_state,
        {"4: ACTIVE": "ACTIVE", "1: DOWN": "DOWN", "2: INIT": "INIT", "5: LinkUp": "LinkUp", "7: Phy Test": "Phy Test"},
    ),
    (
        rdma.parse_rate,
        {
            "400 Gb/sec (4X NDR)": (400.0, "4X NDR"),
            "2.5 Gb/sec (1X SDR)": (2.5, "1X SDR"),
            "100 Gb/sec (2X HDR)": (100.0, "2X HDR"),
            "800 Gb/sec (4X XDR)": (800.0, "4X XDR"),
            "40 Gb/sec (4X FDR10)": (40.0, "4X FDR10"),
            "10 Gb/sec (4X)": (10.0, "4X"),
        },
    ),
    # In the form of the kernel.
    (
        rdma.parse_gid,
        {
            LINK_LOCAL: LINK_LOCAL,
            "FE80::AC0:EBFF:FE40:8DF2": LINK_LOCAL,
            "::ffff:10.0.0.1": MAPPED,
            "fd02:0:0:58::1": "fd02:0000:0000:0058:0000:0000:0000:0001",
        },
    ),
    (lockdown.parse, {"[none] integrity confidentiality": "", "none [integrity] confidentiality": "integrity"}),
    (
        settings.parse_pause,
        {
            # What is configured, and not what was negotiated.
            "Pause parameters for eth1:\nAutonegotiate:\toff\nRX:\t\ton\nTX:\t\toff\nRX negotiated: off\n\n": (
                port.Pause(False, True, False)
            )
        },
    ),
    (
        attributes.parse_traffic_class,
        {
            "Global tclass=106\n": 106,
            "Global tclass=106\ntclass=32,dst_ip=10.0.0.1": 106,
            "106": 106,
            "": -1,
            "tclass=32,dst_ip=10.0.0.1": -1,
        },
    ),
    (
        nic_counters.parse_statistics,
        {
            "NIC statistics:\n     rx_packets: 12\n     [0]: rx_bytes: 4\n     rx_prio3_bytes: 99\n": {
                "rx_packets": 12,
                "[0]: rx_bytes": 4,
                "rx_prio3_bytes": 99,
            }
        },
    ),
    (
        netdev_routing.parse_rules,
        {
            RULES: (
                Rule(0, "", "local"),
                Rule(101, "10.9.0.1", "101"),
                Rule(102, "10.9.0.0/24", "main", other=True, some=True),
            )
        },
    ),
    (
        netdev_routing.parse_routes,
        {
            ROUTES: {
                "main": (Route("default", "10.9.0.254", "", "va"),),
                "1000": (Route("10.9.0.0/24", "", "10.9.0.1", "va"),),
            }
        },
    ),
    (
        device.parse_links,
        {
            '[{"ifname":"ens1","altnames":["enp27s0"],"permaddr":"b8:3f:d2:00:00:01"},{},{"ifname":"lo"}]': {
                "ens1": device.Link(("enp27s0",), "b8:3f:d2:00:00:01"),
                "lo": device.Link(),
            }
        },
    ),
]


@pytest.mark.parametrize(("parse", "text", "value"), [(p, *row) for p, rows in READ for row in rows.items()])
def test_what_is_written_is_read(parse: Parser, text: str, value: object) -> None:
    assert parse(text) == value


REFUSED: list[tuple[Parser, str, tuple[str, ...]]] = [
    (
        pci.parse_address,
        "is not a PCI address",
        (
            *("", "1b:00", "1b:20.0", "1b:00.8", "000:1b:00.0", "0000:1b:00.0 ", "0000:1b:00.0\n", "pci0000:15"),
            "\u0660\u0660:00.0",
        ),
    ),
    (
        pci.parse_speed,
        "is not a link speed",
        ("Unknown", "Unknown speed", "", "32.0", "GT/s", "32.0 GT/s PCIe x16", "-1 GT/s"),
    ),
    (
        rdma.parse_state,
        "not a port state",
        ("", "ACTIVE", "4:", "4: ACT", "4: ", "0: <unknown>", ": ACTIVE", "4: ACTIVE\n4: ACTIVE"),
    ),
    (
        rdma.parse_rate,
        "not a rate",
        ("", "400", "400 Gb/sec", "400 Gb/sec (4X ND", "-1 Gb/sec (4X NDR)", "400 Gb/s (4X NDR)"),
    ),
    (lockdown.parse, "no lockdown", ("none integrity",)),
    (settings.parse_pause, "names no Autonegotiate", ("Cannot get device pause settings: Operation not supported\n",)),
    (attributes.parse_traffic_class, "'Global tclass=none' is not a line", ("Global tclass=none",)),
    (device.parse_links, "is not what ip -j link prints", ("", "{}x", "[1]", '[{"a": 1}]')),
    (
        netdev.parse_route,
        "is not the heading|columns, expected|is not a hexadecimal number",
        (
            *("", "garbage", ROUTE[: len(HEADING) + 20], HEADING + "eth0 zz 0 1 0 0 0 0 0 0 0"),
            ROUTE.replace("0200C0", "0200C0FFFF"),
        ),
    ),
    (
        netdev.parse_ipv6_route,
        "columns, expected|is not a hexadecimal number|is not a length",
        (
            *("garbage", IPV6_ROUTE[:100], IPV6_ROUTE.replace("00000400", "0x400")),
            IPV6_ROUTE.replace(" 40 ", " 81 "),
        ),
    ),
]


@pytest.mark.parametrize(("parse", "says", "text"), [(p, says, one) for p, says, texts in REFUSED for one in texts])
def test_what_is_truncated_or_something_else_is_refused(parse: Parser, says: str, text: str) -> None:
    with pytest.raises(ParseError, match=says):
        parse(text)


# Of each parser texts that it reads.
GOOD: dict[Parser, list[str]] = {
    **{parse: list(rows) for parse, rows in READ},
    pci.parse_decimal: ["-1"],
    pci.parse_hex: ["0x030200"],
    pci.parse_text: ["28.41.1000"],
    netdev.parse_route: [ROUTE],
    netdev.parse_ipv6_route: [IPV6_ROUTE],
    netdev_address.parse: [ADDRESSES],
    gpu.parse_information: [INFORMATION % (UUID[A], A)],
    gpu.parse_driver_version: [OPEN],
    gpu.parse_query_csv: [CSV],
    gpu.parse_xml: [xml()],
    gpu.parse_nvlink_status: [NVLINK],
    nvidia_smi_topo.parse: [TABS, OLD],
    virtualization.parse_hypervisor_flag: ["processor\t: 0\nflags\t\t: fpu vme hypervisor lahf_lm\n"],
    netplan.parse: [NETPLAN],
    mlnx_qos.parse: [full()],
    boot_script.parse_intent: ['{"ports": {"0000:1b:00.0": true}, "roce": {"dscp": 26}, "settings": {}}'],
    boot_script.parse_result: ['{"state": "ok", "said": []}'],
    lambda text: dcb.parse_app(text, port.Dcb()): ['{"dscp_prio":[[26,3],[48,6]]}'],
}
STABLE = (pci.parse_address, rdma.parse_gid)
MARKS = ["N/A", "[Unknown Error]", "\0", ",", "<a>", "\n", "\tPIX", "GPU9", "\x1b[", "\u0660", "&b;", "- ", ": *x", "["]
KEYS = st.sampled_from(["priority", "src", "table", "dst", "ifname", "addr_info", "local", "ports", "roce", "state"])
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.parametrize("parse", GOOD)
@hypothesis_settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_text_and_any_damage_gives_a_value_or_a_parse_error(parse: Parser, data: st.DataObject) -> None:
    good = data.draw(st.sampled_from(GOOD[parse]))
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, len(good)))
    put_in = data.draw(st.text(max_size=20) | st.sampled_from(MARKS) | JSON.map(json.dumps))
    for text in (good[:start] + put_in + good[end:], put_in):
        try:
            value = parse(text)
        except ParseError as error:
            assert str(error)
            continue
        if parse in STABLE:
            assert parse(str(value)) == value
