# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The tools for RoCE on a simulated node, each by the name that it is called by (PLACES).

mlnx_qos, cma_roce_tos, ibv_devinfo, and of ethtool and ip what a RoCE port is set up with: options, words and exit
codes are those of the real ones (OFED's mlnx-tools and ethtool, iproute2).
busbar-lab-roce is the lab's own: what happens to a node. Everything that is to change something is noted in qos.WRITES.
"""

from __future__ import annotations

import getopt
import importlib
import os
import sys
from collections.abc import Callable, Sequence

from .. import qos
from ..qos import Port, Refused
from .roce_program import Stop, read, run_real

FIRMWARE = ("mstconfig", "mstflint")
PERFTEST = ("ib_write_bw", "ib_write_lat")
# Where each tool is installed, below the system root.
PLACES = {
    "mlnx_qos": "/usr/bin/mlnx_qos",
    "ibv_devinfo": "/usr/bin/ibv_devinfo",
    "cma_roce_tos": "/usr/sbin/cma_roce_tos",
    "mstconfig": "/usr/bin/mstconfig",
    "mstflint": "/usr/bin/mstflint",
    "ib_write_bw": "/usr/bin/ib_write_bw",
    "ib_write_lat": "/usr/bin/ib_write_lat",
    # Before the real ones on every PATH.
    "ethtool": "/usr/local/sbin/ethtool",
    "ip": "/usr/local/sbin/ip",
    "ping": "/usr/local/sbin/ping",
    "sysctl": "/usr/local/sbin/sysctl",
    "lldpcli": "/usr/sbin/lldpcli",
    "busbar-lab-roce": "/usr/local/sbin/busbar-lab-roce",
}


# A node is queried dozens of times: each of these is imported by a call of its own alone. Its function has its name.
_MODULES = {"mlnx_qos": "mlnx_qos", "ip": "iproute", "ping": "ping", "sysctl": "sysctl", "lldpcli": "lldpcli"}


def main(argv: Sequence[str], root: str, system: str) -> int:
    """``root``, ``system``: the hardware root and the system root of the node."""
    name, arguments = os.path.basename(argv[0]), list(argv[1:])
    tools: dict[str, Callable[[str, str, list[str]], int | None]] = {
        "ibv_devinfo": ibv_devinfo,
        "cma_roce_tos": cma_roce_tos,
        "ethtool": _ethtool,
        "busbar-lab-roce": _lab,
    }
    try:
        if name in tools:
            return tools[name](system, root, arguments) or 0
        if name in FIRMWARE:
            from . import firmware_tools

            return firmware_tools.main([name, *arguments], root)
        if name in PERFTEST:
            from . import perftest_tools

            return perftest_tools.run(system, root, [name, *arguments])
        run = getattr(importlib.import_module(f".{_MODULES[name]}", __package__), name)
        return run(system, root, arguments) or 0
    except getopt.GetoptError as error:
        print(f"{name}: {error.msg}", file=sys.stderr)
        return 1
    except Stop as stop:
        for line in stop.said:
            print(line, file=sys.stderr)
        return stop.code


# -- RDMA devices ----------------------------------------------------------------------------------------------------


def _device(root: str, name: str) -> str:
    return f"{root}/sys/class/infiniband/{name}"


def cma_roce_tos(system: str, root: str, arguments: list[str]) -> int:
    options = {"-d": "mlx5_0", **dict(getopt.getopt(arguments, "d:t:p:h")[0])}
    device, number = options["-d"], options.get("-t", "")
    if not os.path.isdir(f"{root}/sys/module/rdma_cm"):
        print("Module rdma_cm is not loaded or does not support configfs")
        return 1
    if not os.path.isdir(_device(root, device)):
        print(f"Failed to create configuration for {device}")
        raise Stop(1, f"mkdir: cannot create directory '{device}': No such device")
    path = root + qos.tos_path(device)
    there = os.path.exists(path)
    if number:
        qos.note_write(root, "cma_roce_tos", device, number)
        if int(number) > 255 or not there:
            print("write error: Invalid argument", file=sys.stderr)
        else:
            qos.replace(path, f"{number}\n")
    print(read(path) if there else 0)
    return 0


def ibv_devinfo(system: str, root: str, arguments: list[str]) -> int:
    options, _ = getopt.getopt(arguments, "d:i:lv")
    wanted = dict(options).get("-d")
    names = sorted(os.listdir(f"{root}/sys/class/infiniband"))
    if not names:
        raise Stop(255, "No IB devices found")
    if wanted is not None and wanted not in names:
        raise Stop(255, f"IB device '{wanted}' wasn't found")
    for name in [wanted] if wanted else names:
        _print_device(root, name)
    return 0


def _print_device(root: str, name: str) -> None:
    """Print what sysfs does not show, and the state."""
    port = f"{_device(root, name)}/ports/1"
    state, size = read(f"{port}/state").partition(": "), active_mtu(root, name)
    print(f"hca_id:\t{name}\n\t\tport:\t1")
    print(f"\t\t\tstate:\t\t\tPORT_{state[2]} ({state[0]})\n\t\t\tmax_mtu:\t\t4096 (5)")
    print(f"\t\t\tactive_mtu:\t\t{size} ({size.bit_length() - 8})\n")


def active_mtu(root: str, name: str) -> int:
    """Return the MTU of an RDMA device: the subnet manager's, or what follows from its netdevs."""
    device = os.path.realpath(f"{_device(root, name)}/device")
    if read(f"{_device(root, name)}/ports/1/link_layer") != "Ethernet":
        path = f"{root}{qos.STATE}/active_mtu/{name}"
        return int(read(path)) if os.path.exists(path) else 4096
    below = os.listdir(f"{device}/net") if os.path.isdir(f"{device}/net") else []
    usual = qos.active_mtu(min((qos.shown(root, netdev, "mtu") for netdev in below), default=1500))
    path = qos.state_path(os.path.basename(device))
    return (os.path.exists(root + path) and qos.load(root, path).stale_mtu) or usual


# -- ethtool ---------------------------------------------------------------------------------------------------------

_SHOW, _PAUSE, _STATISTICS = ("-a", "--show-pause"), ("-A", "--pause"), ("-S", "--statistics")


def _ethtool(system: str, root: str, arguments: list[str]) -> int:
    known = (*_SHOW, *_PAUSE, *_STATISTICS)
    command, netdev = (*arguments, "", "")[:2]
    if command not in known or not os.path.exists(f"{root}/sys/class/net/{netdev}"):
        run_real(system, "ethtool", arguments)
    if command in _STATISTICS:
        from . import ethtool_statistics

        return ethtool_statistics.main(root, system, netdev)
    try:
        path = qos.find(root, netdev)
    except Refused as refused:
        raise Stop(76, f"netlink error: {refused}") from refused
    port = qos.load(root, path)
    if command in _SHOW:
        on = {True: "on", False: "off"}
        print(f"Pause parameters for {netdev}:")
        print(f"Autonegotiate:\toff\nRX:\t\t{on[port.rx_pause]}\nTX:\t\t{on[port.tx_pause]}\n")
        return 0
    return _set_pause(root, path, netdev, port, arguments[2:])


def _set_pause(root: str, path: str, netdev: str, port: Port, words: list[str]) -> int:
    wanted = {"autoneg": False, "rx": port.rx_pause, "tx": port.tx_pause}
    qos.note_write(root, "ethtool", "-A", netdev, *words)
    new = {**wanted, **{key: value == "on" for key, value in zip(words[::2], words[1::2], strict=True)}}
    if new == wanted:
        raise Stop(78, "no pause parameters modified, aborting")  # unchanged is no success
    try:
        port.set_pause(new["autoneg"], new["rx"], new["tx"])
    except Refused as refused:
        raise Stop(79, f"netlink error: {refused}") from refused
    qos.save(root, path, port, netdev)
    return 0


# -- what happens to a node ------------------------------------------------------------------------------------------


def _lab(system: str, root: str, arguments: list[str]) -> int:
    """What happens to a node.

    start: at boot.   reboot: all is lost.   driver-load [NETDEV]: of all or one, which come anew.
    add NETDEV: it comes.   factory NETDEV: it is as out of the box.   stale NETDEV MTU: its active_mtu stays at that.
    """
    from . import udev

    command, netdev, size = (*arguments, "", "", "")[:3]
    if command == "start":
        udev.boot(root, system)
    elif command == "reboot":
        qos.reboot(root)
    elif command in ("driver-load", "add"):
        if command == "driver-load":
            qos.driver_load(root, netdev)
        udev.added(root, system, [netdev] if netdev else udev.netdevs(root))
    else:
        path = qos.find(root, netdev)
        port = qos.load(root, path)
        if command == "stale":
            port.stale_mtu = int(size)
        else:
            port = Port(dcbx=port.dcbx, bounces=port.bounces + 1, sends=port.sends, receives=port.receives)
        qos.save(root, path, port, netdev)
    return 0
