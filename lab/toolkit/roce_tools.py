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


# A node is queried dozens of times: each of these is imported by a call of its own alone.
_MODULES = {
    "mlnx_qos": ("mlnx_qos", "mlnx_qos"),
    "ip": ("iproute", "ip"),
    "ping": ("ping", "ping"),
    "sysctl": ("sysctl", "sysctl"),
    "lldpcli": ("lldpcli", "lldpcli"),
    **dict.fromkeys(PERFTEST, ("perftest_tools", "run")),
}


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
        module, function = _MODULES[name]
        run = getattr(importlib.import_module(f".{module}", __package__), function)
        return run(system, root, [name, *arguments] if name in PERFTEST else arguments) or 0
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
    device, port = _device(root, name), f"{_device(root, name)}/ports/1"
    state, layer = read(f"{port}/state").partition(": "), read(f"{port}/link_layer")
    size = _active_mtu(root, name) if layer == "Ethernet" else _infiniband_mtu(root, name)
    of_device = {
        "transport": "InfiniBand (0)",
        **{file: read(f"{device}/{file}") for file in ("fw_ver", "node_guid", "sys_image_guid")},
        "vendor_id": "0x02c9",
        "vendor_part_id": int(read(f"{device}/device/device"), 16),
        "hw_ver": "0x0",
        "board_id": read(f"{device}/board_id"),
        "phys_port_cnt": 1,
    }
    of_port = {
        "state": f"PORT_{state[2]} ({state[0]})",
        "max_mtu": "4096 (5)",
        "active_mtu": f"{size} ({size.bit_length() - 8})",
        "sm_lid": int(read(f"{port}/sm_lid"), 16),
        "port_lid": int(read(f"{port}/lid"), 16),
        "port_lmc": "0x00",
        "link_layer": layer,
    }
    print(f"hca_id:\t{name}")
    for fields, tabs, column in ((of_device, "\t", 32), (of_port, "\t\t\t", 24)):
        for key, value in fields.items():
            between = "\t" * -(-(column - len(key) - 1) // 8)
            print(f"{tabs}{key}:{between}{value}")
        print("\t\tport:\t1" if fields is of_device else "")


def _infiniband_mtu(root: str, name: str) -> int:
    path = f"{root}{qos.STATE}/active_mtu/{name}"
    return int(read(path)) if os.path.exists(path) else 4096


def _active_mtu(root: str, name: str) -> int:
    device = os.path.realpath(f"{_device(root, name)}/device")
    path = root + qos.state_path(os.path.basename(device))
    stale = qos.load(root, qos.state_path(os.path.basename(device))).stale_mtu if os.path.exists(path) else None
    below = os.listdir(f"{device}/net") if os.path.isdir(f"{device}/net") else []
    mtus = [qos.shown(root, netdev, "mtu") for netdev in below]
    return stale or qos.active_mtu(min(mtus, default=1500))


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
    from . import start, udev

    command, netdev, size = (*arguments, "", "", "")[:3]
    if command == "start":
        start.main(root, system)
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
