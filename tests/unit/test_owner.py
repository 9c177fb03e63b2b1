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
from ansible_collections.busbar.fabric.plugins.module_utils.mtu import owner, persisted_address
from ansible_collections.busbar.fabric.plugins.module_utils.mtu import plan as netdev_mtu
from ansible_collections.busbar.fabric.plugins.module_utils.mtu.claim import Claim

from tests import golden_rows, goldens
from tests.trees import interface, link, put_all, tool

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
    "an ifcfg file of an address that is not known": (
        "unknown",
        {
            **NM,
            SCRIPTS % "ens1": IFCFG,
            SCRIPTS % "a": "HWADDR=B8:3F:D2:00:00:01\n",
            "/sys/class/net/ens1/addr_assign_type": "1",
        },
    ),
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
            port = replace(port, gids=tuple(replace(gid, netdev=name) for gid in port.gids))
            found.append(replace(nic, netdevs=(netdev,), rdma=replace(nic.rdma, ports=(port,))))
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


# -- what is written ---------------------------------------------------------------------------------------------------


MATCH = "[Match]\nName=ens1\n"
BARE = {**NETWORKD, NETWORK % "10.network": MATCH}
LINK = f"[Match]\nMACAddress={MAC}\n[Link]\nMTUBytes=1500\n"
IFUP = {"/usr/sbin/ifup": "#!/bin/sh\n"}
IFACES = "/etc/network/interfaces"
SITE = "network:\n  ethernets:\n    rail0:\n      set-name: ens1\n    ens2:\n      mtu: 9000\n"
IDS = {
    **NETWORKD,
    "/usr/sbin/netplan": "#!/bin/sh\n",
    "/run/systemd/network/10-netplan-rail0.network": MATCH,
    "/run/systemd/network/10-netplan-ens2.network": "[Match]\nName=ens2\n",
}
OURS = "/etc/netplan/90-busbar-mtu.yaml"
OURS_TEXT = "network:\n  version: 2\n  ethernets:\n    ens1:\n      mtu: 9000\n"
UUID = "[connection]\nid=rail 0\nuuid=u-1\ntype=ethernet\ninterface-name=ens1\n\n[ipv4]\nmethod=auto\n"
IN_USE, MANAGED = "/run/NetworkManager/devices/1", "[device]\nmanaged=true\n"
TWO = {
    KEYFILE % "a": UUID,
    KEYFILE % "b": UUID.replace("u-1", "u-2").replace("interface-name=ens1", "autoconnect-priority=0")
    + f"[ethernet]\nmac-address={MAC.upper()}\nmtu=4200\n",
}
BY_LINK = {
    **IFUP,
    IFACES: "iface ens1 inet manual\n",
    NETWORK % "10-rails.link": f"[Match]\nMACAddress={MAC} {MAC[:-1]}2\n[Link]\nMTUBytes=9000\n",
    "/usr/lib/systemd/network/99-default.link": "[Match]\nOriginalName=*\n",
}
NOT_STARTED = {
    NETWORK % "10.network": MATCH,
    IFACES: "iface ens1 inet manual\n",
    KEYFILE % "a": UUID,
    "/etc/sysconfig/network/ifcfg-ens1": "MTU=9000\n",
}
# What a run writes, or refuses to; the MTU that is wanted is 9000 where none is named.
WRITTEN: dict[str, Files] = {
    "networkd, a drop-in beside the first file that matches": {
        **NETWORKD,
        "/usr/lib/systemd/network/10-rail.network": f"{MATCH}[Link]\nMTUBytes=1500\n",
        NETWORK % "20-ens.network": "[Match]\nName=ens*\n[Link]\nMTUBytes=9000\n",
        "/run/systemd/network/10-rail.network.d/50-x.conf": "[Link]\nMTUBytes=2000\n",
    },
    "networkd, a drop-in after ours": {**BARE, NETWORK % "10.network.d/99-z.conf": "[Link]\nMTUBytes=1500\n"},
    "networkd, a .link file before it": {**BARE, NETWORK % "10-rail.link": LINK},
    "networkd, a .link file after it": {**BARE, NETWORK % "99-rail.link": LINK},
    "networkd, a masked file, and what it has taken itself": {
        **NETWORKD,
        "/usr/lib/systemd/network/10.network": MATCH,
        NETWORK % "10.network": "",
        NETWORK % "15.network": "[Match]\nHost=gpu*\nName=ens*\n",
        NETWORK % "20.network": MATCH,
        "/run/systemd/netif/links/1": "NETWORK_FILE=/etc/systemd/network/20.network\n",
    },
    "networkd, a file of eno9, too": {**NETWORKD, NETWORK % "20-all.network": "[Match]\nName=en*\n"},
    "networkd, without other names of the interfaces": {**BARE, "/usr/sbin/ip": "#!/bin/sh\necho nonsense\n"},
    "netplan, a file of ours for each ID that needs it": {**IDS, YAML: SITE},
    "netplan, ours is not needed any more": {
        **IDS,
        YAML: SITE.replace("set-name: ens1", "mtu: 9000"),
        OURS: OURS_TEXT.replace("ens1", "rail0"),
    },
    "netplan, a file after ours": {**NETPLAN, "/etc/netplan/99-z.yaml": OURS_TEXT.replace("9000", "1500")},
    "netplan, a file that is not understood": {**NETPLAN, YAML: "network: {ethernets: {ens1: }}\n", OURS: OURS_TEXT},
    "netplan, a rail in doubt beside one that needs ours": {
        **IDS,
        **IFUP,
        IFACES: "iface ens1 inet manual\n",
        YAML: SITE.replace("mtu: 9000", "dhcp4: false"),
        OURS: OURS_TEXT.replace("ens1", "rail0"),
    },
    "netplan, an ID of ours alone, MTU 4200": {
        **NETPLAN,
        OURS: OURS_TEXT,
        "/etc/netplan/90-busbar-multirail.yaml": OURS_TEXT.replace("mtu: 9000", "routes: []"),
    },
    "NetworkManager, a profile": {
        "/usr/sbin/nmcli": "#!/bin/sh\n",
        IN_USE: f"{MANAGED}connection-uuid=u-1\n",
        KEYFILE % "rail 0": UUID,
        KEYFILE % "a": UUID.replace("interface-name=ens1", "autoconnect=false"),
    },
    "NetworkManager, two profiles, one in use, MTU 4200": {**TWO, IN_USE: f"{MANAGED}connection-uuid=u-2\n"},
    "NetworkManager, two profiles, none in use, MTU 4200": {**TWO, IN_USE: MANAGED},
    "NetworkManager, two profiles, one of a higher priority, MTU 4200": {
        **TWO,
        IN_USE: MANAGED,
        KEYFILE % "b": TWO[KEYFILE % "b"].replace("priority=0", "priority=5"),
    },
    "NetworkManager, a profile in no file": {IN_USE: f"{MANAGED}connection-uuid=u-9\n"},
    "ifupdown, a file that another one names": {
        **IFUP,
        IFACES: "source /etc/network/interfaces.d/*\niface ens2 inet manual\n  mtu 9000\n",
        f"{IFACES}.d/rails": "auto ens1\niface ens1 inet static\n  address 10.0.0.1/24\n",
    },
    "ifupdown, three stanzas of one file": {
        **IFUP,
        IFACES: "iface ens1 inet manual\niface ens2 inet manual\niface eno9 inet dhcp\n",
    },
    "ifcfg, by device and by address": {
        "/run/NetworkManager/resolv.conf": "",
        SCRIPTS % "rail0": "HWADDR=B8:3F:D2:00:00:01\nBOOTPROTO=none\n",
        SCRIPTS % "ens2": "MTU=9000\n",
        SCRIPTS % "ens2.bak": "DEVICE=ens2\nMTU=1500\n",
    },
    "a .link file that brings the MTU": BY_LINK,
    # Where nobody sets the interface up, the .link file is all there is.
    "a .link file with another MTU, MTU 4200": BY_LINK,
    "a .link file of eno9, too": {
        **IFUP,
        IFACES: "iface eno9 inet manual\n",
        NETWORK % "10-all.link": "[Match]\nType=ether\n[Link]\nMTUBytes=1500\n",
    },
    "nobody": {},
    "two programs": {**BARE, **IFUP, IFACES: "iface ens1 inet manual\n"},
    "programs that are not started": NOT_STARTED,
    "a program that the boot starts": {
        **NOT_STARTED,
        "/etc/systemd/system/multi-user.target.wants/systemd-networkd.service": "",
    },
}


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
