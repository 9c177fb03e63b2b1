# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.machine import partition
from ansible_collections.busbar.fabric.plugins.module_utils.machine.platform import plan
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import Profile
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Topology

CHECK = "platform.rail_partition"


def tables(machine: Topology, top: Path, odd: int, *keys: str) -> partition.Tables:
    """All ports are full members of the default partition; that of the odd NIC has these keys."""
    for number, nic in enumerate(machine.nics):
        assert nic.rdma
        assert nic.port
        folder = top / nic.rdma.source.lstrip("/") / f"ports/{nic.port.number}/pkeys"
        folder.mkdir(parents=True)
        for index, key in enumerate(keys if number == odd else ("0xffff", "0x0000")):
            (folder / str(index)).write_text(f"{key}\n")
    return partition.read(Host(str(top)), machine.nics)


def judged(machine: Topology, profile: Profile, keys: partition.Tables | None, *wanted: str) -> list[Finding]:
    site = {"busbar_fabric_partitions": [*wanted]}
    return [one for one in plan(machine, profile, (), "ipv4", None, None, site, keys).findings if one.check == CHECK]


@pytest.mark.parametrize(
    ("keys", "wanted", "state", "have"),
    [
        (("0xffff", "0x0000"), ("0xffff",), "ok", "0xffff at index 0"),
        (("0x7fff", "0x8001"), ("0x8001", "0x7fff"), "ok", "0x7fff at index 0, 0x8001 at index 1"),
        # A full member is one that a limited one can talk to.
        (("0xffff", "0x8001"), ("0x0001",), "ok", "0xffff at index 0, 0x8001 at index 1"),
        (("0x7fff",), ("0xffff",), "drift", "lacks 0xffff (a limited member only): 0x7fff at index 0"),
        (("0xffff", "0x0000", "0x0001"), ("0x8001",), "drift", "lacks 0x8001 (a limited member only): 0xffff at index"),
        (("0xffff",), ("0x8001", "0x8002"), "drift", "lacks 0x8001, 0x8002: 0xffff at index 0"),
        (("0x0000",), ("0xffff",), "drift", "lacks 0xffff: no key"),
        (tuple(f"0x80{n:02x}" for n in range(1, 12)), ("0x8001",), "ok", "and 3 more"),
        ((), ("0xffff",), "unknown", "pkeys: lists no key"),
        (("full",), ("0xffff",), "unknown", "pkeys/0: 'full' is not a partition key"),
        (("",), ("0xffff",), "unknown", "pkeys/0: is empty"),
    ],
)  # fmt: skip
def test_a_rail_has_the_keys_that_the_site_names(
    infiniband: Topology, hgx_h100: Profile, tmp_path: Path, keys: Any, wanted: Any, state: str, have: str
) -> None:
    asked = ["0x7fff", *wanted] if "0x7fff" in keys and state == "ok" else wanted
    found = judged(infiniband, hgx_h100, tables(infiniband, tmp_path, 3, *keys), *asked)
    odd = next(one for one in found if one.identity == infiniband.nics[3].pci)
    assert (odd.state, have in (odd.have or "")) == (state, True), odd
    assert len(found) == 8


def test_nobody_asks_where_the_site_names_none_nor_on_roce(
    infiniband: Topology, roce: Topology, hgx_h100: Profile, hgx_h100_roce: Profile, tmp_path: Path
) -> None:
    assert judged(infiniband, hgx_h100, None) == []
    assert judged(infiniband, hgx_h100, tables(infiniband, tmp_path / "ib", 0, "0x7fff")) == []
    assert judged(roce, hgx_h100_roce, tables(roce, tmp_path / "roce", 0, "0x7fff"), "0xffff") == []


def test_a_port_that_is_down_has_no_keys_because_of_that(
    infiniband: Topology, hgx_h100: Profile, tmp_path: Path, edit: Any
) -> None:
    keys = tables(infiniband, tmp_path, 3, "0x0000")
    down = edit.nic(infiniband, 3, port_state="DOWN")
    [odd] = [one for one in judged(down, hgx_h100, keys, "0xffff") if not one.ok]
    assert (odd.because or "").startswith("platform.rail_state")
