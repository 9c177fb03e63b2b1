"""Who sets an interface up, where its MTU belongs, and in which order it is set."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Topology
from ansible_collections.busbar.fabric.plugins.module_utils.mtu import networkmanager
from ansible_collections.busbar.fabric.plugins.module_utils.mtu import plan as netdev_mtu
from ansible_collections.busbar.fabric.plugins.module_utils.mtu.claim import Claim
from ansible_collections.busbar.fabric.plugins.module_utils.mtu.device import Device
from ansible_collections.busbar.fabric.plugins.module_utils.mtu.ifupdown import Ifupdown
from ansible_collections.busbar.fabric.plugins.module_utils.mtu.netplan import Netplan
from ansible_collections.busbar.fabric.plugins.module_utils.mtu.networkd import Networkd
from ansible_collections.busbar.fabric.plugins.module_utils.mtu.networkmanager import NetworkManager
from ansible_collections.busbar.fabric.plugins.module_utils.mtu.owner import Owner
from ansible_collections.busbar.fabric.plugins.module_utils.mtu.plan import MtuState
from ansible_collections.busbar.fabric.plugins.modules import netdev_mtu as module
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lab import store
from tests import golden_rows, goldens
from tests.lab.conftest import few_slots
from tests.trees import link, put
from tests.unit.conftest import converge
from tests.unit.test_owner import DEVINFO, IN_USE, KEYFILE, UUID, Node

ROOT = Path(__file__).resolve().parent.parent.parent
WANT = 9000

# -- order -----------------------------------------------------------------------------------------------------------


def stack(*, nic: int, bond: int, vlan: int) -> dict[str, Device]:
    """Two NICs below a bond, a VLAN on it."""
    return {
        "ens1": Device("ens1", nic, master="bond0", upper=("bond0",)),
        "ens2": Device("ens2", nic, master="bond0", upper=("bond0",)),
        "bond0": Device("bond0", bond, kind="bond", lower=("ens1", "ens2"), upper=("v100",)),
        "v100": Device("v100", vlan, kind="vlan", lower=("bond0",)),
    }


def test_what_grows_is_set_from_below_and_what_shrinks_from_the_top() -> None:
    grow, shrink = stack(nic=1500, bond=1500, vlan=1500), stack(nic=9000, bond=9000, vlan=9000)
    assert netdev_mtu.in_order(grow, grow, 9000) == ("bond0", "v100")  # the bond takes its members along
    assert netdev_mtu.in_order(shrink, shrink, 1500) == ("v100", "bond0")
    alone = stack(nic=1500, bond=9000, vlan=9000)
    assert netdev_mtu.in_order(alone, alone, 9000) == ("ens1", "ens2")
    parent = {"a": Device("a", 1500, upper=("b",)), "b": Device("b", 1500, kind="vlan", lower=("a",))}
    assert netdev_mtu.in_order(("b", "a"), parent, 9000) == ("a", "b")


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.lists(st.sampled_from([1500, 4200, 9000]), min_size=7))
def test_at_no_time_is_a_vlan_larger_than_what_is_below(steps: list[int], mtus: list[int]) -> None:
    """As the kernel has it: a VLAN above its parent's MTU is refused, a parent that shrinks takes its VLANs along."""
    names = [f"d{n}" for n in range(len(steps) + 1)]
    parents = {names[n + 1]: names[max(0, n + 1 - step)] for n, step in enumerate(steps)}
    live: dict[str, int] = {}
    for name in names:
        live[name] = min(mtus[names.index(name)], live.get(parents.get(name, ""), 9000))
    devices = {
        name: Device(
            name,
            live[name],
            kind="vlan" if name in parents else "",
            lower=(parents[name],) if name in parents else (),
            upper=tuple(upper for upper, below in parents.items() if below == name),
        )
        for name in names
    }
    for name in netdev_mtu.in_order(names, devices, 4200):
        assert name not in parents or live[parents[name]] >= 4200
        live[name] = 4200
        for upper in names:
            if upper in parents:
                live[upper] = min(live[upper], live[parents[upper]])
    assert set(live.values()) == {4200}


# -- a host ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path, roce: Topology) -> Node:
    return Node(tmp_path / "node", roce, {}, mtu=1500)


def found(plan: Plan, check: str) -> list[tuple[str, str, str | None]]:
    return [(f.subject.split()[-1], f.state, f.have) for f in plan.findings if f.check == f"netdev_mtu.{check}"]


@pytest.mark.golden
def test_the_section_that_networkmanager_takes_is_read_and_written(tmp_path: Path) -> None:
    """The long name counts, and the other section then does not, even where the long one is empty."""
    case = "keyfile, ethernet: [ethernet] mtu=9000 [802-3-ethernet]"
    text = "[connection]\ntype=ethernet\ninterface-name=ens1\n[ethernet]\nmtu=9000\n[802-3-ethernet]\n"
    put(tmp_path, KEYFILE % "a", text, 0o600)
    put(tmp_path, "/run/NetworkManager/state", "")
    claims: dict[str, list[Claim]] = {"ens1": []}
    networkmanager.read(Host("/nowhere", str(tmp_path)), {"ens1": Device("ens1", 1500)}, claims, {"ens1": []})
    assert claims["ens1"][0].mtu is None
    written = claims["ens1"][0].with_mtu(text, 9000)
    goldens.check("rendered_network", case, [golden_rows.lines(written or "")])


def test_a_diff_of_a_file_that_can_hold_secrets_shows_what_changes_and_no_more(node: Node) -> None:
    secret = UUID + "\n[ethernet]\nmtu=1500\n\n[802-1x]\npassword=hunter2-hunter2\n"
    node.put({IN_USE: "[device]\nmanaged=true\nconnection-uuid=u-1\n", KEYFILE % "a": secret})
    [change] = node.plan().changes
    assert "hunter2-hunter2" in (change.after or "")
    diff = change.diff()
    rest = "(other lines are not shown)\n"
    assert (diff["before"], diff["after"]) == (f"{rest}mtu=1500\n", f"{rest}mtu=9000\n")


@pytest.mark.parametrize(("mtu", "judged"), [(None, ["bond0"]), (1500, ["bond0", "ens1"])])
def test_a_member_whose_file_sets_no_mtu_gets_that_of_its_bond(node: Node, mtu: int | None, judged: list[str]) -> None:
    devices = stack(nic=9000, bond=9000, vlan=9000)
    owners = {
        "bond0": Owner((Networkd("/b.network", "/b.d/x", 9000),)),
        "ens1": Owner((Networkd("/e", "/e.d/x", mtu),)),
    }
    plan = netdev_mtu.plan(MtuState(node.nics[:1], devices, owners, {}), 9000)
    assert [name for name, _state, _have in found(plan, "persisted")] == judged[::-1]
    assert [change.path for change in plan.changes] == ["/e.d/x"] * (len(judged) - 1)


def test_a_vlan_that_rdma_uses_is_part_of_the_rail_and_one_that_it_does_not_use_is_not(node: Node) -> None:
    for name, index in (("ens1.100", 5), ("ens1.200", 6)):
        link(node.add(name, index, kind="vlan", mtu="1500") / "lower_ens1", node.root / "sys/class/net/ens1")
    nic = node.nics[0]
    assert nic.rdma is not None
    port = nic.rdma.ports[0]
    gids = (*port.gids, replace(port.gids[0], index=4, netdev="ens1.100"))
    node.nics = (nic._replace(rdma=nic.rdma._replace(ports=(port._replace(gids=gids),))),)
    assert netdev_mtu.wanted(node.nics[0], node.look().devices) == ("ens1", "ens1.100")
    assert [command.argv[4] for command in node.plan().commands] == ["ens1", "ens1.100"]


# -- what RDMA makes of it -------------------------------------------------------------------------------------------


def test_a_small_active_mtu_follows_from_the_interface_or_stands_alone(node: Node) -> None:
    node.devinfo(DEVINFO % "1024 (3)")
    assert found(node.plan(), "active_mtu") == [
        ("ens1", "drift", "1024 bytes"),
        ("ens2", "unknown", "ibv_devinfo does not show mlx5_4"),
    ]
    small = [f for f in node.plan().findings if f.check == "netdev_mtu.active_mtu"]
    assert small[0].because == f"netdev_mtu.live[live]@{small[0].identity}"
    node.put({"/sys/class/net/ens1/mtu": "9000\n"})
    alone = next(f for f in node.plan().findings if f.check == "netdev_mtu.active_mtu")
    assert (alone.state, alone.because) == ("drift", None)
    assert "ip link set ens1 down" in alone.fix


def test_a_port_that_cannot_send_4096_is_unsupported_and_a_missing_tool_unknown(node: Node) -> None:
    node.devinfo((DEVINFO % "2048 (4)").replace("4096 (5)", "2048 (4)"))
    assert found(node.plan(), "active_mtu")[0] == ("ens1", "unsupported", "2048 bytes, and the port has at most 2048")
    (node.root / "usr/sbin/ibv_devinfo").unlink()
    assert [(state, (have or "").partition(";")[0]) for _name, state, have in found(node.plan(), "active_mtu")] == [
        ("unknown", "ibv_devinfo: is not installed")
    ] * 2


def test_a_small_mtu_of_the_inventory_is_a_note_and_no_finding(node: Node) -> None:
    assert netdev_mtu.notes(node.nics, WANT) == []
    assert netdev_mtu.notes(node.nics, 1500) == ["with an MTU of 1500 RDMA sends 1024 bytes; 4096 need 4192"]
    assert {state for _name, state, _have in found(node.plan(1500), "active_mtu")} == {"ok"}


def test_what_cannot_be_read_is_unknown(node: Node) -> None:
    # eno9 is nobody's rail.
    node.put({"/sys/class/net/ens1/mtu": "many\n", "/sys/class/net/eno9/mtu": "many\n"})
    plan = node.plan()
    assert [state for _name, state, _have in found(plan, "live")] == ["unknown", "drift"]
    assert [f.subject for f in plan.findings if f.check == "netdev_mtu.readable"] == ["/sys/class/net/ens1/mtu"]


def test_a_rail_without_an_interface_is_unknown_and_one_of_infiniband_is_not_asked(node: Node) -> None:
    node.nics = (node.nics[0]._replace(netdevs=()),)
    assert [(f.check, f.state) for f in node.plan().findings] == [("netdev_mtu.live", "unknown")]
    node.nics = ()
    assert node.plan() == Plan()


@given(
    st.lists(
        st.builds(
            lambda kind, **fields: kind(**fields),
            kind=st.sampled_from([Networkd, NetworkManager, Ifupdown, Netplan]),
            path=st.sampled_from(["/a", "/etc/b"]),
            target=st.sampled_from(["/etc/b", "/etc/c"]),
            mtu=st.sampled_from([None, 1500, 9000]),
            source=st.sampled_from(["/a", "/etc/z"]),
            ident=st.sampled_from(["ethernets/x", "Link"]),
            before=st.sampled_from([None, "iface ens1 inet manual\n", "[x]\n"]),
        ),
        max_size=2,
    ),
    st.sampled_from(["", "not clear"]),
    st.sampled_from([None, 1500, 9000]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_is_written_only_for_the_one_clear_owner(
    roce: Topology, claims: list[Claim], doubt: str, mtu: int | None
) -> None:
    (nic,) = Node.rails(roce, 1)
    have = MtuState((nic,), {"ens1": Device("ens1", mtu)}, {"ens1": Owner(tuple(claims), doubt)}, {})
    plan = netdev_mtu.plan(have, WANT)
    if doubt or len(claims) != 1:
        assert plan.changes == ()
        assert [f.state for f in plan.findings if f.check == "netdev_mtu.owner"] == ["unknown"]
    assert len([f for f in plan.findings if f.check == "netdev_mtu.live"]) == 1
    assert bool([c for c in plan.commands if c.argv[0] == "ip"]) == (mtu == 1500)


# -- the module ------------------------------------------------------------------------------------------------------

Run = Callable[..., dict[str, Any]]
RAILS = [f"enp{slot}s0np0" for slot in (156, 188, 204, 220, 26, 60, 77, 94)]


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A simulated hgx-h200 with RoCE, fresh: networkd sets its rails up, one file each that names no MTU."""
    store.create(tmp_path / "lab", few_slots({"node02": store.STANDARD["node02"]}))
    return tmp_path / "lab/node02"


@pytest.fixture
def call(lab: Path, call_module: Callable[..., Run]) -> Run:
    return call_module(module.main, lab, "hgx-h200", "ethernet", mtu=9000)


def test_what_would_stop_traffic_is_withheld_and_the_file_is_written_all_the_same(call: Run, lab: Path) -> None:
    # Of InfiniBand nothing is judged.
    none = call(profile=yaml.safe_load((ROOT / "profiles/hgx-h100.yml").read_text()), fabric="infiniband")
    assert (none["changed"], none["findings"], none["passed"], none["notes"]) == (False, [], [], [])
    assert call(mtu=90)["msg"] == "mtu is 90, expected 1280 to 65535"
    done = call()
    assert (done["changed"], done["commands"]) == (True, [])
    withheld = [f"netdev_mtu.{check}" for check in ("active_mtu", "live") for _rail in RAILS]
    assert sorted(name.partition("[")[0] for name in done["withheld"]) == withheld
    assert [f["check"] for f in done["findings"] if f["aspect"] == "persisted"] == []
    assert (lab / "sys/etc/systemd/network/10-rail0.network.d/90-busbar-mtu.conf").is_file()


def test_a_run_does_what_check_mode_foretells_and_none_says_that_it_mends_what_rdma_has_kept(
    call: Run, lab: Path
) -> None:
    done = converge(call, lab, max_disruption="link")
    assert done["commands"] == [f"ip link set dev {name} mtu 9000" for name in RAILS]
    assert (len(done["repaired"]), done["findings"]) == (3 * len(RAILS), [])
    subprocess.run([lab / "sys/usr/local/sbin/busbar-lab-roce", "stale", RAILS[0], "1024"], check=True)
    for check_mode in (True, False):
        done = call(check_mode=check_mode, max_disruption="link")
        assert [(f["check"], f["state"]) for f in done["findings"]] == [("netdev_mtu.active_mtu", "drift")]
        assert "ip link set enp156s0np0 down" in done["findings"][0]["fix"]
        assert (done["repaired"], done["changed"]) == ([], False)
