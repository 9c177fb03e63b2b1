# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.machine import rdma
from ansible_collections.busbar.fabric.plugins.module_utils.machine.rdma import Gid, Port


@pytest.mark.parametrize(
    ("name", "rocev2"),
    [
        ("cx5-roce-plus-ib-port-5gids.txt", {"mlx5_0": 3}),
        ("roce-ib-sriov-mixed-19gids.txt", {"mlx5_2": 3, "mlx5_3": 3}),
    ],
)
def test_rocev2_ipv4_gid_is_the_one_that_show_gids_prints(samples: Path, name: str, rocev2: dict[str, int]) -> None:
    tables: dict[str, list[Gid]] = {}
    for line in (samples / "show_gids" / name).read_text().splitlines():
        words = line.split()
        if not line.startswith("mlx5_"):
            continue
        kind = "RoCE v2" if "v2" in words else "IB/RoCE v1"
        gid = Gid(int(words[2]), rdma.parse_gid(words[3]), kind, None)
        assert gid.gid == words[3]
        assert gid.ipv4 == (words[4] if "." in words[4] else None)
        tables.setdefault(words[0], []).append(gid)
    found = {
        device: gid.index
        for device, gids in tables.items()
        for gid in [rdma.rocev2(Port(1, None, None, None, None, None, None, None, tuple(gids)), "ipv4")]
        if gid is not None
    }
    assert found == rocev2


@pytest.mark.parametrize("name", ["gcm-learn_good.json", "gcm-learn_ib_misbound_if.json"])
def test_every_state_and_rate_of_a_sysfs_dump_parses(samples: Path, name: str) -> None:
    dump = json.loads((samples / "sysfs-json" / name).read_text())
    seen = 0
    for path, text in dump.items():
        if "/infiniband/" in path and path.endswith(("/state", "/phys_state")):
            assert rdma.parse_state(text.strip()) in ("ACTIVE", "LinkUp")
            seen += 1
        if "/infiniband/" in path and path.endswith("/rate"):
            assert rdma.parse_rate(text.strip())[0] in (100.0, 200.0)
            seen += 1
    assert seen >= 24
