"""Who sets a rail up at the next boot, with which MTU and addresses: legal configurations, and faults in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils import netdev_mtu, persisted_address
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host
from ansible_collections.busbar.fabric.plugins.module_utils.core.plan import Plan
from ansible_collections.busbar.fabric.plugins.module_utils.machine.netdev import Netdev
from ansible_collections.busbar.fabric.plugins.module_utils.machine.netdev_address import Address
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Topology
from ansible_collections.busbar.fabric.plugins.module_utils.owner import owner
from ansible_collections.busbar.fabric.plugins.module_utils.owner.claim import Claim

from tests.trees import interface, put_all, tool

MAC = "b8:3f:d2:00:00:01"
NM_CONF = "/etc/NetworkManager/NetworkManager.conf"
CONF_D = "/etc/NetworkManager/conf.d/%s.conf"
KEYFILE = "/etc/NetworkManager/system-connections/%s.nmconnection"
NETWORK = "/etc/systemd/network/%s"
YAML = "/etc/netplan/50-site.yaml"
ADDRESS = "[Network]\nAddress=10.0.0.1/24\n"
IPV4 = "[ipv4]\nmethod=manual\naddress1=10.0.0.1/24\n"
NM = {"/run/NetworkManager/x": ""}
NETWORKD = {"/run/systemd/netif/state": ""}
NETPLAN = {**NETWORKD, "/run/systemd/network/10-netplan-ens1.network": "[Match]\nName=ens1\n"}
LINE = {**NETWORKD, NETWORK % "10.network": f"[Match]\nName=ens1\n[Link]\nMTUBytes=9000\n{ADDRESS}"}
UDEV = "/etc/udev/rules.d/%s.rules"
SCRIPTS = "/etc/sysconfig/network-scripts/ifcfg-%s"
UNIT = "[Unit]\nDescription=x\n[Install]\nWantedBy=multi-user.target\n"
IFCFG = "DEVICE=ens1\nIPADDR=10.0.0.1\nPREFIX=24\nMTU=9000\n"


def profile(name: str = "ens1", mtu: int | None = 9000, **connection: str) -> str:
    lines = "".join(f"{key.replace('_', '-')}={value}\n" for key, value in connection.items())
    name = f"interface-name={name}\n" if name else ""
    return f"[connection]\nid=rail\ntype=ethernet\n{name}{lines}[ethernet]\n{f'mtu={mtu}' if mtu else ''}\n{IPV4}"


OWN = {**NM, KEYFILE % "rail": profile()}
PLAIN = {**NM, KEYFILE % "rail": profile(mtu=None)}
Files = dict[str, str]


def netplan(text: str, **files: str) -> Files:
    return {**NETPLAN, YAML: text, **{f"/etc/netplan/{name}.yaml": one for name, one in files.items()}}


LEGAL: dict[str, Files] = {
    "default MTU in conf.d": {**PLAIN, CONF_D % "10-mtu": "[connection]\nethernet.mtu=9000\n"},
    "default MTU by device": {
        **PLAIN,
        NM_CONF: "[connection]\nethernet.mtu=1500\n[connection-rails]\nmatch-device=driver:mlx5*\nethernet.mtu=9000\n",
    },
    "a later file's section first": {
        **PLAIN,
        "/usr/lib/NetworkManager/conf.d/90.conf": "[connection-a]\nethernet.mtu=1500\n",
        CONF_D % "10": "[connection-b]\nethernet.mtu=9000\n",
    },
    "others are unmanaged": {
        **OWN,
        CONF_D % "10": "[keyfile]\nunmanaged-devices=interface-name:eno*,mac:00:00:00:00:00:01\n",
    },
    "all but this are unmanaged": {**OWN, CONF_D % "10": "[keyfile]\nunmanaged-devices=*;except:interface-name:ens*\n"},
    "managed in spite of a rule": {
        **OWN,
        UDEV % "85-nm": 'SUBSYSTEM=="net", ENV{ID_NET_DRIVER}=="mlx5_core", ENV{NM_UNMANAGED}="1"\n',
        CONF_D % "10": "[device-rails]\nmatch-device=driver:mlx5_core\nmanaged=1\n",
    },
    "unmanaged, and networkd's": {**OWN, **LINE, CONF_D % "10": f"[keyfile]\nunmanaged-devices={MAC}\n"},
    "a generic profile of low priority": {**OWN, KEYFILE % "any": profile("", 1500, autoconnect_priority="-10")},
    "networkd with drop-ins": {
        **NETWORKD,
        NETWORK % "10.network": f"[Match]\nName=ens*\n{ADDRESS}",
        "/usr/lib/systemd/network/10.network.d/50.conf": "[Link]\nMTUBytes=9000\n",
    },
    "a masked file and an exclusion before it": {
        **LINE,
        NETWORK % "05.network": "",
        NETWORK % "07.network": "[Match]\nName=!ens1 ens2\n[Link]\nMTUBytes=1500\n",
    },
    "netplan's file for a rail that a file before it sets up": {
        **NETWORKD,
        NETWORK % "05.network": f"[Match]\nName=ens1\n[Link]\nMTUBytes=9000\n{ADDRESS}",
        "/usr/sbin/netplan": "#!/bin/sh\n",
        YAML: "network: {ethernets: {ens1: {mtu: 1500}, all: {match: {name: ens2}}}}\n",
    },
    "MTU of a .link file": {
        **NETWORKD,
        NETWORK % "10.link": f"[Match]\nPermanentMACAddress={MAC}\n[Link]\nMTUBytes=9000\n",
        NETWORK % "10.network": f"[Match]\nName=ens1\n{ADDRESS}",
    },
    "ifcfg of NetworkManager": {**NM, SCRIPTS % "ens1": IFCFG},
    "ifcfg, another not at boot": {
        **NM,
        SCRIPTS % "ens1": IFCFG,
        SCRIPTS % "old": "DEVICE=ens1\nMTU=1500\nONBOOT=no\n",
    },
    "netplan in flow style": netplan("network: {ethernets: {ens1: {mtu: 9000, addresses: [10.0.0.1/24]}}}"),
    "netplan with anchors": netplan(
        "network:\n  ethernets:\n    ens2: &rail\n      mtu: 9000\n      addresses: [10.0.0.1/24]\n    ens1: *rail\n"
    ),
    "netplan with tags and quotes": netplan(
        '"network":\n  ethernets:\n    \'ens1\': {mtu: !!int "9000", addresses: ["10.0.0.1/24"]}\n  version: 2\n'
    ),
    "netplan with the key twice": netplan(
        "network:\n  ethernets:\n    ens1:\n      mtu: 1500\n    ens1:\n      mtu: 9000\n"
        "      addresses:\n      - 10.0.0.1/24:\n          label: x\n"
    ),
    "netplan with a directive": netplan(
        "%YAML 1.1\n---\nnetwork:\n  ethernets:\n    ? ens1\n    :\n      mtu: >-\n        9000\n"
        "      addresses: [\n  10.0.0.1/24 ]\n...\n"
    ),
    "netplan in several files": netplan(
        "network:\n  ethernets:\n    ens1: {mtu: 1500, addresses: [10.0.0.1/24]}\n",
        **{"60-mtu": "network:\n  ethernets:\n    ens1:\n      mtu: 9000\n"},
    ),
}
FAULTS: dict[str, tuple[str, Files]] = {
    "unmanaged by name": ("not_owned", {**OWN, CONF_D % "10": "[keyfile]\nunmanaged-devices=interface-name:ens1\n"}),
    "unmanaged but for another": (
        "not_owned",
        {**OWN, NM_CONF: "[keyfile]\nunmanaged-devices=*,except:interface-name:eno*\n"},
    ),
    "unmanaged by an added list": (
        "not_owned",
        {
            **OWN,
            NM_CONF: "[keyfile]\nunmanaged-devices=a\n",
            CONF_D % "9": f"[keyfile]\nunmanaged-devices+=mac:{MAC}\n",
        },
    ),
    "unmanaged by device section": (
        "not_owned",
        {**OWN, CONF_D % "1": "[device-x]\nmatch-device=type:ethernet\nmanaged=0\n"},
    ),
    "unmanaged by a rule of udev": (
        "not_owned",
        {
            **OWN,
            UDEV
            % "68-azure": 'SUBSYSTEM=="net", DRIVERS=="mlx5_core", ACTION=="add|change|move", ENV{NM_UNMANAGED}="1"\n',
        },
    ),
    "unmanaged in udev's record": ("not_owned", {**OWN, "/run/udev/data/n1": "E:NM_UNMANAGED=1\n"}),
    "ifcfg that NetworkManager leaves": ("not_owned", {**NM, SCRIPTS % "ens1": IFCFG + "NM_CONTROLLED=no\n"}),
    "an ifcfg file that is unmanaged": (
        "not_owned",
        {**NM, SCRIPTS % "ens1": IFCFG, CONF_D % "1": "[keyfile]\nunmanaged-devices=interface-name:~ens*\n"},
    ),
    "a generic profile that comes first": (
        "not_owned",
        {**OWN, KEYFILE % "any": profile("", None, autoconnect_priority="5")},
    ),
    "another default of conf.d": ("drift", {**PLAIN, CONF_D % "10": "[connection]\nethernet.mtu=4200\n"}),
    "no profile of its own at boot": ("unknown", {**NM, KEYFILE % "rail": profile(autoconnect="false")}),
    "a networkd file before it": (
        "drift",
        {**LINE, "/usr/lib/systemd/network/05.network": f"[Match]\nDriver=mlx5*\n{ADDRESS}"},
    ),
    "a drop-in that networkd cannot read": (
        "drift",
        {
            **NETWORKD,
            NETWORK % "10.network": f"[Match]\nName=ens1\n{ADDRESS}",
            NETWORK % "10.network.d/root-only.conf": "[Link]\nMTUBytes=9000\n",
        },
    ),
    "networkd is masked": ("not_owned", {**LINE, "/etc/systemd/system/systemd-networkd.service": ""}),
    "networkd is disabled": ("not_owned", {**LINE, "/usr/lib/systemd/system/systemd-networkd.service": UNIT}),
    "NetworkManager is disabled": ("not_owned", {**OWN, "/usr/lib/systemd/system/NetworkManager.service": UNIT}),
    "netplan takes it over at the next boot": (
        "unknown",
        {
            **LINE,
            NETWORK % "20.network": LINE[NETWORK % "10.network"],
            NETWORK % "10.network": "[Match]\nName=eno1\n",
            "/usr/sbin/netplan": "#!/bin/sh\n",
            YAML: f"network: {{ethernets: {{a: {{match: {{macaddress: '{MAC}'}}, set-name: ens1}}}}}}\n",
        },
    ),
    "networkd keeps it down": (
        "not_owned",
        {
            **NETWORKD,
            NETWORK % "1.network": "[Match]\nName=ens1\n[Link]\nActivationPolicy=always-down\nMTUBytes=9000\n",
        },
    ),
    "networkd leaves it": (
        "not_owned",
        {**NETWORKD, NETWORK % "1.network": "[Match]\nName=ens1\n[Link]\nUnmanaged=yes\nMTUBytes=9000\n"},
    ),
    "netplan takes no merge key": (
        "unknown",
        netplan("network:\n  ethernets:\n    ens2: &x {mtu: 9000}\n    ens1:\n      <<: *x\n"),
    ),
    "a later file of netplan": (
        "drift",
        netplan(
            "network: {ethernets: {ens1: {mtu: 9000}}}", **{"60": "network:\n  ethernets:\n    ens1: {mtu: 1500}\n"}
        ),
    ),
}
Look = Callable[[Files], tuple[Claim | None, Plan]]


@pytest.fixture
def look(tmp_path: Path, roce: Topology) -> Look:
    """The owner of a rail of the node with these files, and the plan for an MTU of 9000."""

    def read(files: Files) -> tuple[Claim | None, Plan]:
        nic = roce.nics[0]
        for number, name in enumerate(("ens1", "ens2"), 1):
            path = interface(tmp_path, name, f"pci0/{nic.pci if number == 1 else '0000:77:00.0'}", ifindex=str(number))
            put_all(path, {"addr_assign_type": "0\n", "address": f"{MAC[:-1]}{number}\n", "uevent": "INTERFACE=x\n"})
        (tmp_path / "sys/bus/pci/drivers/mlx5_core").mkdir(parents=True)
        (tmp_path / f"sys/devices/pci0/{nic.pci}/driver").symlink_to(tmp_path / "sys/bus/pci/drivers/mlx5_core")
        tool(tmp_path, "/usr/sbin/ip", "echo []")
        put_all(tmp_path, files)
        for path in [one for one in tmp_path.rglob("*") if one.name in ("netplan", "root-only.conf") and one.is_file()]:
            path.chmod(0o755 if path.name == "netplan" else 0o600)
        netdev = Netdev("ens1", nic.pci, MAC, 9000, "up", 1, None, (), False, "/sys/class/net/ens1")
        have = netdev_mtu.read(Host(str(tmp_path), str(tmp_path)), [replace(nic, netdevs=(netdev,))])
        claims = have.owners["ens1"].claims
        return claims[0] if claims else None, netdev_mtu.plan(have, netdev_mtu.Want(9000))

    return read


def state(plan: Plan) -> str:
    """The worse of the two findings on the rail's file."""
    found = [one.state for one in plan.findings if one.aspect == "persisted"]
    return next((one for one in found if one != "ok"), "ok")


@pytest.mark.parametrize("name", LEGAL)
def test_a_legal_configuration_gives_no_finding_and_is_not_written(look: Look, name: str) -> None:
    claim, plan = look(LEGAL[name])
    assert claim is not None
    assert (state(plan), claim.mtu, plan.changes) == ("ok", 9000, ())
    assert claim.addressing.addresses == ("10.0.0.1/24",)


@pytest.mark.parametrize("name", FAULTS)
def test_a_file_that_has_no_effect_at_boot_is_found_and_never_written(look: Look, name: str) -> None:
    expected, files = FAULTS[name]
    _claim, plan = look(files)
    assert state(plan) == expected
    assert expected == "drift" or plan.changes == ()


@pytest.mark.parametrize(
    ("live", "name", "expected"),
    [
        (["10.0.0.1/24"], "networkd with drop-ins", "ok"),
        (["10.0.0.1/16"], "networkd with drop-ins", "drift"),
        (["10.0.0.1/16"], "netplan with anchors", "drift"),
        (["10.0.0.1/16"], "default MTU in conf.d", "drift"),
        (["10.0.0.1/31"], "ifcfg of NetworkManager", "drift"),
        (["10.0.0.2/24"], "netplan in flow style", "drift"),
        (["10.0.0.1/24", "10.0.9.1/24"], "netplan in several files", "drift"),
        ([], "netplan in flow style", None),
    ],
)
def test_addresses_are_compared_with_those_of_the_next_boot(
    look: Look, live: list[str], name: str, expected: str | None
) -> None:
    claim, _plan = look(LEGAL[name])
    assert claim is not None
    addresses = [Address(one.partition("/")[0], int(one.partition("/")[2])) for one in live]
    found = persisted_address.judge("rail", "ens1", owner.Owner((claim,)), addresses)
    assert (found.state if found else None) == expected


def test_a_new_program_that_sets_interfaces_up_needs_one_row(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_host: Host, _devices: object, claims: dict[str, list[Claim]], _doubts: object) -> None:
        claims["ens1"].append(Claim("/etc/other", "/etc/other", refused=("of a new program", "ask it")))

    monkeypatch.setattr(owner, "PROGRAMS", (*owner.PROGRAMS, (read, "")))
    claim, plan = look({})
    assert claim is not None
    assert (claim.path, state(plan)) == ("/etc/other", "not_owned")
