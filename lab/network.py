# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who sets a RoCE node's interfaces up: the site's own files, as they are on a fresh node.

NetworkManager has the management interface, systemd-networkd the rest. Files of rails name no MTU, so that these come
up with 1500. Shapes of systemd.network(5), systemd.netdev(5), nm-settings-keyfile(5).
"""

from __future__ import annotations

from .machine import Machine, Netdev, Rdma

FOLDER = "/etc/systemd/network"
KEYFILES = "/etc/NetworkManager/system-connections"
# What a NIC has before anybody sets it.
MTU = 1500
_UUID = "5f1b8b7e-2d6c-4c1e-9f0a-0000000000%02d"
_HEADER = "# The site's own (simulated)."


def _rail(machine: Machine, netdev: Netdev) -> Rdma | None:
    """The rail that an interface is, None for another."""
    return next((r for r in machine.rdma if r.rail is not None and netdev.address == r.address), None)


def fresh_mtu(machine: Machine, netdev: Netdev) -> int:
    """Before a run has changed anything."""
    return MTU if netdev.qos and _rail(machine, netdev) else netdev.mtu


def files(machine: Machine) -> dict[str, str]:
    """Path -> text; none where no port has RoCE."""
    if not any(netdev.qos for netdev in machine.netdevs):
        return {}
    found: dict[str, str] = {}
    for netdev in machine.netdevs:
        rail = _rail(machine, netdev)
        gateways = [route.gateway for route in machine.routes if route.netdev == netdev.name and route.gateway]
        if gateways:
            found[f"{KEYFILES}/{netdev.name}.nmconnection"] = keyfile(netdev, 0, gateways[0])
        elif rail:
            # Its card may come to another slot, and its name with that.
            match = f"PermanentMACAddress={netdev.mac}"
            set_up = f"Address={netdev.ipv4}" if netdev.ipv4 else "IPv6AcceptRA=yes"
            set_up += f"\nVRF={netdev.master}" if netdev.master else ""
            found[f"{FOLDER}/10-rail{rail.rail}.network"] = _network(match, set_up, None)
        elif netdev.ipv4 or netdev.master:
            set_up = f"Bond={netdev.master}" if netdev.master else f"Address={netdev.ipv4}"
            found[f"{FOLDER}/20-{netdev.name}.network"] = _network(f"Name={netdev.name}", set_up, netdev.mtu)
        if netdev.vrf:
            lines = ["[NetDev]", f"Name={netdev.name}", "Kind=vrf", "", "[VRF]", f"Table={netdev.vrf}"]
            found[f"{FOLDER}/05-{netdev.name}.netdev"] = "\n".join([_HEADER, *lines]) + "\n"
        if netdev.bond_mode:
            mode = netdev.bond_mode.split()[0]
            lines = ["[NetDev]", f"Name={netdev.name}", "Kind=bond", f"MACAddress={netdev.mac}", "", "[Bond]"]
            found[f"{FOLDER}/20-{netdev.name}.netdev"] = "\n".join([_HEADER, *lines, f"Mode={mode}"]) + "\n"
    return found


def _network(match: str, set_up: str, mtu: int | None) -> str:
    link = ["", "[Link]", f"MTUBytes={mtu}"] if mtu else []
    lines = ["[Match]", match, "", "[Network]", set_up, "LinkLocalAddressing=ipv6", *link]
    return "\n".join([_HEADER, *lines]) + "\n"


def keyfile(netdev: Netdev, number: int, gateway: str = "", mtu: int | None = None) -> str:
    """A profile with a secret in it, as a port with 802.1X has one. ``number`` tells profiles apart."""
    connection = [f"id={netdev.name}", f"uuid={_UUID % number}", "type=ethernet", f"interface-name={netdev.name}"]
    ethernet = ["", "[ethernet]", *([f"mtu={mtu}"] if mtu else [])]
    secret = ["", "[802-1x]", "eap=peap;", "identity=node", "password=must-not-be-shown", "phase2-auth=mschapv2"]
    address = ["", "[ipv4]", f"address1={netdev.ipv4}{',' + gateway if gateway else ''}", "method=manual"]
    return "\n".join([_HEADER, "[connection]", *connection, *ethernet, *secret, *address]) + "\n"
