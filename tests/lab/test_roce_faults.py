# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The lab's faults of RoCE: each changes the state that it names, and no other."""

from __future__ import annotations

import json

import pytest

from busbar.lab import qos, tree
from busbar.lab.fault import FileFault
from busbar.lab.faults import FAULTS
from busbar.lab.machine import from_dict, to_dict
from busbar.lab.machines import hgx_h200_roce
from busbar.lab.roce_faults import HARMLESS, ROCE_FAULTS, UNIT_RULE


def _gid(index: int) -> list[str]:
    """Files of one."""
    return [f"ports/1/{folder}/{index}" for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs")]


# What each changes in the files of the node: end of the path, and in the state of a port the keys.
CHANGES: dict[str, tuple[set[str], set[str]]] = {
    "pfc-off": (set(), {"pfc"}),
    "pfc-wrong-prio": (set(), {"pfc"}),
    "trust-pcp": (set(), {"apps", "table"}),
    "dscp-moved": (set(), {"apps", "table"}),
    "ecn-off": ({"ecn/roce_np/enable/3", "ecn/roce_rp/enable/3"}, set()),
    "cnp-dscp": ({"ecn/roce_np/cnp_dscp"}, set()),
    "lldpad": ({"proc/3127/comm", "proc/3127/cmdline"}, set()),
    "fw-dcbx": (set(), {"dcbx"}),
    "mtu-1500": ({"net/enp188s0np0/mtu"}, set()),
    "active-mtu-stale": (set(), {"stale_mtu"}),
    "path-mtu": ({"netdevs.json"}, set()),
    "one-way-tc": ({"tc/1/traffic_class"}, {"sends"}),
    "qos-lost": (set(), {"pfc", "apps", "rx_pause", "tx_pause"}),
    "asymmetric-routing": ({"rules.json"}, set()),
    "rp-filter-strict": ({"conf/enp156s0np0/rp_filter"}, set()),
    "arp-flux": ({"conf/enp60s0np0/arp_ignore"}, set()),
    "address-missing": ({"netdevs.json", *_gid(2), *_gid(3)}, set()),
    "address-twice": ({"netdevs.json", "ports/1/gids/2", "ports/1/gids/3", "proc/net/route"}, set()),
    "netmask": ({"netdevs.json"}, set()),
    "gid-v1-only": ({*_gid(1), *_gid(3)}, set()),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_fault_changes_the_state_it_names_and_no_other(name: str) -> None:
    machine = hgx_h200_roce("node02")
    before, after = tree.hardware(machine).files, tree.hardware(ROCE_FAULTS[name].apply(machine)).files
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    states = {path for path in changed if path.startswith(f"{qos.STATE}/qos/")}
    ends, keys = CHANGES[name]
    assert {end for end in ends for path in changed - states if path.endswith(end)} == ends
    assert len(changed - states) == len(ends)
    found = [json.loads(text[path]) for path in states for text in (before, after)]
    assert len(states) == bool(keys)
    assert {key for key in (found[0] if found else ()) if found[0][key] != found[1][key]} == keys


def test_every_fault_is_of_roce_has_a_check_of_the_product_and_a_name_of_its_own() -> None:
    with_files = {name for name, fault in ROCE_FAULTS.items() if isinstance(fault.change, FileFault)}
    assert set(CHANGES) | with_files | {"rails-renamed"} == set(ROCE_FAULTS)
    assert len({fault.description for fault in ROCE_FAULTS.values()}) == len(ROCE_FAULTS)
    for name, fault in ROCE_FAULTS.items():
        assert FAULTS.get(name) in (None, fault), f"{name} is there twice"
        assert fault.platforms == ("hgx-h200",)
        assert fault.check.split(".")[0] in (
            "roce_qos",
            "netdev_mtu",
            "multirail",
            "nccl_conf",
            "rail_ping",
            "platform",
        )


def test_shifted_gids_are_the_same_gids_elsewhere() -> None:
    """F23: there is nothing to find."""
    machine, shifted = hgx_h200_roce("node02"), hgx_h200_roce("node02")
    HARMLESS["gid-shifted"](shifted)
    before, after = machine.rail(0).gids, shifted.rail(0).gids
    assert [gid.value for gid in before] == [gid.value for gid in after]
    assert [gid.index for gid in after] == [0, 1, 4, 5]


def test_files_of_faults_need_what_they_take_away() -> None:
    change = ROCE_FAULTS["qos-unit-disabled"].change
    assert isinstance(change, FileFault)
    assert change.path == UNIT_RULE
    with pytest.raises(Exception, match="provision the node first"):
        change.edit(hgx_h200_roce(), None)
    assert change.edit(hgx_h200_roce(), "[Unit]\n") is None


def test_a_machine_with_roce_survives_json() -> None:
    machine = ROCE_FAULTS["active-mtu-stale"].apply(hgx_h200_roce("node02"))
    assert from_dict(json.loads(json.dumps(to_dict(machine)))) == machine
