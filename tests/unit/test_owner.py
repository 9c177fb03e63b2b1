"""Who sets a rail up at the next boot, with which MTU and addresses: legal configurations, and faults in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.change import apply
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.machine.netdev import Netdev
from ansible_collections.busbar.fabric.plugins.module_utils.machine.netdev_address import Address
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Nic, Topology
from ansible_collections.busbar.fabric.plugins.module_utils.mtu import owner
from ansible_collections.busbar.fabric.plugins.module_utils.mtu import plan as netdev_mtu
from ansible_collections.busbar.fabric.plugins.module_utils.mtu.claim import Claim

from tests import golden_rows, goldens
from tests.trees import interface, link, put_all, tool

MAC = "b8:3f:d2:00:00:01"
KEYFILE = "/etc/NetworkManager/system-connections/%s.nmconnection"
UUID = "[connection]\nid=rail 0\nuuid=u-1\ntype=ethernet\ninterface-name=ens1\n\n[ipv4]\nmethod=auto\n"
IN_USE = "/run/NetworkManager/devices/1"
Files = dict[str, str]


def cases(name: str) -> dict[str, Files]:
    """Cases of tests/unit/cases/NAME.txt, each with the files of its node."""
    found = {}
    for part in (Path(__file__).parent / "cases" / f"{name}.txt").read_text().split("#== ")[1:]:
        case, *files = part.split("#-- ")
        found[case.strip()] = {path: text for path, _newline, text in (file.partition("\n") for file in files)}
    return found


# With the worse state of the two findings on the rail's file.
BOOT = cases("netdev_owner_boot")
# What a run writes, or refuses to; the MTU that is wanted is 9000 where none is named.
WRITTEN = cases("netdev_owner_written")
DEVINFO = """\
hca_id:\tmlx5_3
\ttransport:\t\t\tInfiniBand (0)
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t%s
\t\t\tlink_layer:\t\tEthernet

"""
MODES = {"sbin": 0o755, "root-only.conf": 0o600, ".nmconnection": 0o600, ".yaml": 0o600}


class Node:
    """A node with two rails, ens1 and ens2, and eno9 for management: one tree of hardware and system.

    mtu: what the interfaces have.   rails: how many of the two are the profile's.
    """

    def __init__(self, root: Path, roce: Topology, files: Files, mtu: int = 9000, rails: int = 2) -> None:
        self.root, self.host = root, Host(str(root), str(root))
        self.nics = self.rails(roce, rails)
        for number, (name, pci) in enumerate([("ens1", roce.nics[0].pci), ("ens2", roce.nics[1].pci)], 1):
            self.add(name, number, f"pci0/{pci}", mtu=str(mtu))
        self.add("eno9", 9, "pci0/0000:09:00.0")
        link(root / f"sys/devices/pci0/{roce.nics[0].pci}/driver", root / "sys/bus/pci/drivers/mlx5_core")
        tool(root, "/usr/sbin/ip", f'[ "$1" = -j ] && echo "[]" && exit; echo "$6" > {root}/sys/class/net/$4/mtu')
        self.devinfo("".join((DEVINFO % "4096 (5)").replace("mlx5_3", name) for name in ("mlx5_3", "mlx5_4")))
        self.put(files)

    @staticmethod
    def rails(roce: Topology, count: int) -> tuple[Nic, ...]:
        """The NICs of ens1 and so on, at the MAC that ends with the same number."""
        found = []
        for number, nic in enumerate(roce.nics[:count], 1):
            name, mac = f"ens{number}", f"{MAC[:-1]}{number}"
            netdev = Netdev(name, nic.pci, mac, 1500, "up", 1, None, (), False, f"/sys/class/net/{name}")
            assert nic.rdma is not None
            port = nic.rdma.ports[0]
            port = port._replace(gids=tuple(replace(gid, netdev=name) for gid in port.gids))
            found.append(nic._replace(netdevs=(netdev,), rdma=nic.rdma._replace(ports=(port,))))
        return tuple(found)

    def add(self, name: str, index: int, function: str | None = None, kind: str = "", **values: str) -> Path:
        uevent = (f"DEVTYPE={kind}\n" if kind else "") + f"INTERFACE={name}"
        values = {"address": f"{MAC[:-1]}{index}", "ifindex": str(index), "addr_assign_type": "0", **values}
        return interface(self.root, name, function, uevent=uevent, **values)

    def devinfo(self, text: str) -> None:
        tool(self.root, "/usr/sbin/ibv_devinfo", f"cat <<'X'\n{text}\nX")

    def put(self, files: Files) -> None:
        put_all(self.root, files)
        for path in (self.root / file.lstrip("/") for file in files):
            path.chmod(next((MODES[key] for key in (path.parent.name, path.name, path.suffix) if key in MODES), 0o644))

    def look(self) -> netdev_mtu.MtuState:
        return netdev_mtu.read(self.host, self.nics)

    def plan(self, mtu: int = 9000) -> Plan:
        return netdev_mtu.plan(self.look(), mtu)


Look = Callable[[Files], tuple[Claim | None, Plan]]


@pytest.fixture
def look(tmp_path: Path, roce: Topology) -> Look:
    """The owner of a rail of the node with these files, and the plan for an MTU of 9000."""

    def read(files: Files) -> tuple[Claim | None, Plan]:
        node = Node(tmp_path, roce, files, rails=1)
        return next(iter(node.look().owners["ens1"].claims), None), node.plan()

    return read


def state(plan: Plan) -> str:
    """The worse of the two findings on the rail's file."""
    found = [one.state for one in plan.findings if one.aspect == "persisted"]
    return next((one for one in found if one != "ok"), "ok")


@pytest.mark.parametrize("case", BOOT)
def test_what_sets_a_rail_up_is_found_and_what_has_no_effect_at_boot_is_never_written(look: Look, case: str) -> None:
    claim, plan = look(BOOT[case])
    expected = case.rpartition(": ")[2]
    assert state(plan) == expected
    assert expected == "drift" or plan.changes == ()
    if expected == "ok":
        assert claim is not None
        assert (claim.mtu, claim.addressing.addresses) == (9000, ("10.0.0.1/24",))


@pytest.mark.parametrize(
    ("live", "name", "expected"),
    [
        (["10.0.0.1/24"], "networkd with drop-ins", "ok"),
        (["10.0.0.1/16"], "networkd with drop-ins", "drift"),
        (["10.0.0.2/24"], "netplan in flow style", "drift"),
        (["10.0.0.1/24", "10.0.9.1/24"], "netplan in several files", "drift"),
        ([], "netplan in flow style", None),
    ],
)
def test_addresses_are_compared_with_those_of_the_next_boot(
    look: Look, live: list[str], name: str, expected: str | None
) -> None:
    claim, _plan = look(BOOT[f"{name}: ok"])
    assert claim is not None
    addresses = [Address(one.partition("/")[0], int(one.partition("/")[2])) for one in live]
    found = netdev_mtu.judge_address("rail", "ens1", owner.Owner((claim,)), addresses)
    assert (found.state if found else None) == expected


# -- what is written ---------------------------------------------------------------------------------------------------


def claims(have: netdev_mtu.MtuState) -> dict[str, list[Any]]:
    """Return of each rail what sets it up: the program, its file, the MTU and the file that it is from."""
    found = {name: have.owners[name].claims for name in ("ens1", "ens2")}
    return {name: [[one.stack, one.path, one.mtu, one.source] for one in of_name] for name, of_name in found.items()}


@pytest.mark.golden
@pytest.mark.parametrize("case", WRITTEN)
def test_what_is_written_for_the_next_boot(case: str, tmp_path: Path, roce: Topology) -> None:
    mtu = 4200 if case.endswith("4200") else 9000
    node = Node(tmp_path, roce, WRITTEN[case], mtu)
    plan = node.plan(mtu)
    rows = [claims(node.look()), *golden_rows.plan(plan, texts=True)]
    apply.execute(node.host, plan)
    after = node.plan(mtu)
    assert (after.changes, after.commands) == ((), ())
    if plan.changes:
        not_ok = [one.id for one in after.findings if not one.ok]
        copies = [change.path for change in plan.changes if change.backup]
        rows += [claims(node.look()), {"not ok after that": not_ok, "copies": copies}]
    goldens.check("rendered_network", case, rows)


@pytest.mark.golden
def test_what_is_said_of_an_owner(tmp_path: Path, roce: Topology) -> None:
    said: list[str] = []
    for case, files in WRITTEN.items():
        mtu = 4200 if case.endswith("4200") else 9000
        said += golden_rows.sentences(case, Node(tmp_path / case, roce, files, mtu).plan(mtu))
    goldens.text("netdev_mtu", "\n".join(said) + "\n")
