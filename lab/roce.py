# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""RoCE on a node: the files of its ports (qos.py), and its tools (toolkit/roce_tools.py)."""

from __future__ import annotations

import json
import os
import py_compile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from . import network, qos
from .machine import Machine, Netdev
from .nccl_tests import TOOLKIT
from .toolkit.kernel_node import write
from .toolkit.roce_tools import FIRMWARE, PERFTEST, PLACES

_LAUNCHER = "bin/roce"
# Runs that, unless it knows the answer.
ETHTOOL = "bin/ethtool"
# As systemd sets them; arp_ignore and the like are the kernel's.
_SYSCTLS = {"arp_ignore": "0", "arp_announce": "0", "rp_filter": "2", "accept_local": "0"}
LLDPAD_PID = "run/lldpad.pid"


def ports(machine: Machine) -> list[tuple[Netdev, qos.Port]]:
    return [(netdev, netdev.qos) for netdev in machine.netdevs if netdev.qos and netdev.address]


def files(
    machine: Machine, netdev_path: Callable[[Netdev], str], path: Callable[[str], str]
) -> dict[str, tuple[str, str, str]]:
    """Path -> what it is, the text of the model and that out of the box, of every file that lives (qos.settle).

    netdev_path, path: the directory of a netdev, and of the PCI function with an address.
    """
    found: dict[str, tuple[str, str, str]] = {}
    if not ports(machine):
        return found
    for netdev, port in ports(machine):
        card, base = _card(netdev), netdev_path(netdev)
        fresh = qos.Port(sends=port.sends, receives=port.receives)
        found[qos.state_path(str(netdev.address))] = (f"{card} state", qos.state(port), qos.state(fresh))
        congestion = qos.ecn_files if machine.ofed else qos.cc_params
        usual = congestion(fresh)
        directory = base if machine.ofed else f"/sys/kernel/debug/mlx5/{netdev.address}/cc_params"
        for name, text in congestion(port).items():
            found[f"{directory}/{name}"] = (f"{card} {name}", text, usual[name])
        for rdma in [rdma for rdma in machine.rdma if rdma.address == netdev.address]:
            name = f"{path(rdma.address)}/infiniband/{rdma.name}/tc/1/traffic_class"
            if machine.ofed:
                found[name] = (f"{card} traffic_class", qos.traffic_class(port), qos.traffic_class(fresh))
            found[qos.tos_path(rdma.name)] = (f"{card} tos", f"{port.tos}\n", f"{fresh.tos}\n")
        carrier = f"{2 + (netdev.operstate == 'down') + 2 * machine.flaps(netdev)}\n"
        found[f"{base}/carrier_changes"] = (f"{card} carrier_changes", carrier, carrier)
    for netdev in machine.netdevs:
        mtu = f"{network.fresh_mtu(machine, netdev)}\n"
        found[f"{netdev_path(netdev)}/mtu"] = (f"{_card(netdev)} mtu", f"{netdev.mtu}\n", mtu)
    interfaces = {"all": "all", "default": "default"} | {netdev.name: _card(netdev) for netdev in machine.netdevs}
    for interface, card in interfaces.items():
        for name, usual_value in _SYSCTLS.items():
            value = "0" if interface == "all" else usual_value
            text = machine.sysctls.get(f"{interface}/{name}", value)
            found[f"/proc/sys/net/ipv4/conf/{interface}/{name}"] = (f"{card} {name}", f"{text}\n", f"{value}\n")
    found[qos.RULES] = (qos.RULES, json.dumps(machine.rules) + "\n", "{}\n")
    found[qos.WRITES] = (qos.WRITES, "", "")
    return found


def described(machine: Machine) -> dict[str, str]:
    """Path -> text: what of its interfaces only ip shows, and only lldpcli."""
    about = {
        netdev.name: {
            "permanent": netdev.permanent or netdev.mac,
            "ipv4": netdev.ipv4 or "",
            "ipv6": netdev.ipv6 or "",
            "vrf": str(netdev.vrf or ""),
            "switch": str(netdev.switch_mtu),
        }
        for netdev in machine.netdevs
    }
    heard = {
        "running": machine.lldpd != "stopped",
        "garbled": machine.lldpd == "garbled",
        "neighbours": {netdev.name: [asdict(port) for port in netdev.switch] for netdev in machine.netdevs},
    }
    return {qos.NETDEVS: json.dumps(about) + "\n", qos.LLDP: json.dumps(heard) + "\n"} if ports(machine) else {}


def _card(netdev: Netdev) -> str:
    """Whatever slot and name it has. A bond and its members have one address."""
    return f"{netdev.mac} {netdev.port_name}" if netdev.address else netdev.name


def write_share(machine: Machine, share: Path) -> None:
    """The tools below /usr/share/busbar-lab; none where the node has no port for them."""
    launcher = share / _LAUNCHER
    if not ports(machine) and not machine.rdma:
        launcher.unlink(missing_ok=True)
        (share / ETHTOOL).unlink(missing_ok=True)
        return
    sources = {"qos.py": TOOLKIT.parent / "qos.py"}
    tools = (
        *("roce_tools.py", "roce_program.py", "mlnx_qos.py", "iproute.py", "networkd.py", "ping.py"),
        *("udev.py", "perftest_tools.py", "sysctl.py", "lldpcli.py", "firmware_tools.py"),
        "ethtool_statistics.py",
        *(f"nccl_model/{name}.py" for name in ("__init__", "fabric", "pcie")),
    )
    sources |= {f"toolkit/{name}": TOOLKIT / name for name in tools}
    for name, source in sources.items():
        file, text = share / "roce" / "lab" / name, source.read_text()
        if not file.is_file() or file.read_text() != text:
            write(file, text, 0o644)
            # The tools write no bytecode themselves, and compiling is most of what a call takes.
            py_compile.compile(str(file), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    write(launcher, (TOOLKIT / "roce").read_text(), 0o755)
    write(share / ETHTOOL, (TOOLKIT / "ethtool").read_text(), 0o755)
    by_name = share / "roce/ethtool"
    if not by_name.is_symlink():
        by_name.symlink_to(os.path.relpath(launcher, by_name.parent))
    for path, text in network.files(machine).items():
        write(share / f"network{path}", text, 0o644 if path.startswith(network.FOLDER) else 0o600)
    _mark(share / "lldpad", "", machine.lldpad)


def write_tools(machine: Machine, system_root: Path) -> None:
    """The same below a system root that is a tree, where they are found, and lldpad's process id."""
    share = system_root / "usr/share/busbar-lab"
    write_share(machine, share)
    # Without a RoCE port the node has the verbs' own tools alone.
    names = ("ibv_devinfo", *PERFTEST, *FIRMWARE) if machine.rdma and not ports(machine) else tuple(PLACES)
    for name, place in [(name, PLACES[name]) for name in names]:
        link = system_root / place.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            program = ETHTOOL if name == "ethtool" else _LAUNCHER
            link.symlink_to(os.path.relpath(share / program, link.parent))
    _mark(system_root / LLDPAD_PID, f"{qos.LLDPAD}\n", machine.lldpad)


def _mark(path: Path, text: str, there: bool) -> None:
    if there:
        write(path, text)
    else:
        path.unlink(missing_ok=True)
