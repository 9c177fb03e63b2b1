# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Renders a Machine as the directories that a kernel, a driver and a distribution would show.

The hardware root holds /sys, /proc and /dev, the system root /etc, /usr, /home and /root. Paths in this file are those
of the node; links are written relative, so they stay inside the root they are in. Same model, same bytes.
"""

from __future__ import annotations

import json
import os
import posixpath
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from . import (
    container_hosts,
    kernel_modules,
    nics,
    nvidia_smi,
    nvl72,
    pci_config,
    qos,
    roce,
)
from .machine import Function, LabError, Machine, Netdev, Rdma
from .nccl_tests import DATA, TOOLKIT
from .toolkit import udev
from .toolkit.kernel_node import write as write_file

TOOL = "usr/bin/nvidia-smi"
# Kind of directory -> file -> its text with places for values; and names of counters.
_SYSFS = json.loads((DATA / "sysfs.json").read_text())
_COUNTERS, _HW_COUNTERS, _CONGESTION_COUNTERS = (names.split() for names in _SYSFS["counters"].values())
UNITS = "/usr/lib/systemd/system"
FABRIC_MANAGER = "/usr/bin/nv-fabricmanager"
TOOL_DATA = "usr/share/busbar-lab/nvidia-smi"
MARK = "/usr/share/busbar-lab/SIMULATED"
_NO_GID = ":".join(["0000"] * 8)


@dataclass
class Tree:
    """Files, links (to a path of the node) and otherwise empty directories, by path on the node: /sys/class/...

    binaries: files that are not text.   live: of ``files`` those that tools change: what each is (qos.settle), and
    its text out of the box.
    """

    files: dict[str, str] = field(default_factory=dict)
    binaries: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    directories: list[str] = field(default_factory=list)
    live: dict[str, tuple[str, str]] = field(default_factory=dict)

    def add(self, directory: str, values: Mapping[str, object]) -> None:
        """A file for each value, one line each; None for no file."""
        for name, value in values.items():
            if value is not None:
                self.files[f"{directory}/{name}"] = f"{value}\n"

    def fill(self, directory: str, kind: str, **values: object) -> None:
        """Add the files of a kind of directory."""
        for name, form in _SYSFS[kind].items():
            self.files[f"{directory}/{name}"] = f"{form.format(**values)}\n"

    def write(self, root: Path) -> None:
        """Bring ``root`` to exactly this tree.

        What is right already stays untouched, and a file that changes is replaced by one written beside it: a reader
        sees the old or the new text, as on a machine that breaks while it is being looked at. (Exchanging the whole
        root would be simpler, but ext4 is slow to reuse some seven thousand inodes that were freed a moment ago.)
        """
        base = str(root)
        directories = {""}
        contents = {path: text.encode() for path, text in self.files.items()} | self.binaries
        for path in [*self.directories, *(posixpath.dirname(p) for p in [*contents, *self.links])]:
            while path not in directories:
                directories.add(path)
                path = posixpath.dirname(path).rstrip("/")
        self._remove_others(base, directories, contents)
        for path in sorted(directories):
            os.makedirs(base + path, exist_ok=True)
        for path, content in contents.items():
            place = base + path
            there = os.path.exists(place)
            if there:
                with open(place, "rb") as stream:
                    if stream.read() == content:
                        continue
            with open(place + ".new" if there else place, "wb") as stream:
                stream.write(content)
            if there:
                os.replace(place + ".new", place)
        for path in self.links:
            if not os.path.lexists(base + path):
                os.symlink(self._target(path), base + path)

    def _target(self, path: str) -> str:
        return posixpath.relpath(self.links[path], posixpath.dirname(path))

    def _remove_others(self, base: str, directories: set[str], contents: Mapping[str, bytes]) -> None:
        """Remove what does not belong here, and links that lead elsewhere."""
        for folder, below, files in os.walk(base, topdown=False):
            for name in [*below, *files]:
                entry = f"{folder}/{name}"
                path = entry[len(base) :]
                if os.path.islink(entry):
                    if path not in self.links or os.readlink(entry) != self._target(path):
                        os.unlink(entry)
                elif name in below:
                    if path not in directories:
                        os.rmdir(entry)
                elif path not in contents:
                    os.unlink(entry)


def write(machine: Machine, hardware_root: Path, system_root: Path) -> None:
    """A whole node. The system root has to be new; raises LabError rather than overwrite one.

    The hardware root may be below the system root, as on a node with a system of its own.
    """
    if system_root.is_dir() and any(system_root.iterdir()):
        raise LabError(f"{system_root} is not empty: the lab writes a system root once, when it creates a node")
    system(machine).write(system_root)
    write_hardware(machine, hardware_root)
    write_tools(machine, system_root)
    tools = ("/usr/sbin/update-grub", "/usr/bin/sync", FABRIC_MANAGER, *_PACKAGE_TOOLS, *kernel_modules.TOOLS)
    for tool in (*tools, nics.TOOL, *container_hosts.PROGRAMS, *nvl72.tools(machine)):
        (system_root / tool.lstrip("/")).chmod(0o755)
    kernel_modules.install(machine, system_root)
    udev.boot(str(hardware_root), str(system_root))
    subprocess.run([system_root / "usr/sbin/update-grub"], capture_output=True, check=True)


def write_hardware(machine: Machine, root: Path) -> None:
    """/sys, /proc and /dev. Raises LabError where the directory is not a hardware root but, say, "/"."""
    there = root.iterdir() if root.is_dir() else ()
    if strangers := sorted(path.name for path in there if path.name not in ("sys", "proc", "dev")):
        raise LabError(f"{root} is no hardware root of the lab: it holds {', '.join(strangers[:3])}")
    tree = hardware(machine)
    qos.settle(tree.files, tree.live, str(root))
    tree.write(root)


def write_share(machine: Machine, share: Path) -> None:
    """What a container node has below /usr/share/busbar-lab: nvidia-smi, its answers, and the mark of the lab."""
    share.mkdir(parents=True, exist_ok=True)
    (share / "SIMULATED").write_text((DATA / "node/SIMULATED").read_text())
    _write_smi(machine, share / "bin" / "nvidia-smi", share / "nvidia-smi")
    kernel_modules.write(machine, share / "peermem")
    roce.write_share(machine, share)


def write_tools(machine: Machine, system_root: Path) -> None:
    """The same below a system root that is a tree; nothing else of it is touched."""
    _write_smi(machine, system_root / TOOL, system_root / TOOL_DATA)
    nvl72.write(machine, system_root)
    kernel_modules.write(machine, system_root / "usr/share/busbar-lab/peermem")
    roce.write_tools(machine, system_root)


def _write_smi(machine: Machine, tool: Path, data: Path) -> None:
    """nvidia-smi and its answers; nothing else is touched."""
    Tree({f"/{name}": text for name, text in nvidia_smi.answers(machine).items()}).write(data)
    scripts = {"ok": nvidia_smi.SCRIPT, "hang": nvidia_smi.HANGING_SCRIPT, "garbage": nvidia_smi.GARBAGE_SCRIPT}
    if machine.gpu_tool in scripts:
        write_file(tool, scripts[machine.gpu_tool], 0o755)
    else:
        tool.unlink(missing_ok=True)


# -- hardware root ---------------------------------------------------------------------------------------------------


def hardware(machine: Machine) -> Tree:
    tree = Tree(directories=["/proc", "/sys/class/infiniband", "/sys/class/net"])
    for number, function in enumerate(machine.functions):
        _function(tree, machine, function)
        _iommu_group(tree, machine, function, number)
    for rdma in machine.rdma:
        _rdma(tree, machine, rdma)
    for netdev in machine.netdevs:
        _netdev(tree, machine, netdev)
    _roce(tree, machine)
    _nodes(tree, machine)
    if machine.dmi is not None:
        path = "/sys/devices/virtual/dmi/id"
        tree.add(path, machine.dmi)
        tree.links["/sys/class/dmi/id"] = path
    for name, version in machine.modules.items():
        values = {"initstate": "live", "refcnt": 0, "version": version, "srcversion": machine.srcversion(name)}
        tree.add(f"/sys/module/{name}", values)
    _proc(tree, machine)
    _proc_net(tree, machine)
    _proc_nvidia(tree, machine)
    for name, text in machine.damaged.items():
        address, file = name.split("/", 1)
        # A function that has gone has no files left to damage.
        if any(f.address == address for f in machine.functions):
            tree.files[f"{_path(machine, address)}/{file}"] = text
    return tree


def _path(machine: Machine, address: str) -> str:
    return "/sys/devices/" + "/".join(machine.chain(address))


def _expand(cpulist: str) -> list[int]:
    bounds = [[int(n) for n in part.split("-")] for part in cpulist.split(",")]
    return [cpu for bound in bounds for cpu in range(bound[0], bound[-1] + 1)]


def _cpu_count(machine: Machine) -> int:
    return 1 + max(cpu for node in machine.nodes for cpu in _expand(node.cpulist))


def _function(tree: Tree, machine: Machine, function: Function) -> None:
    path, node = _path(machine, function.address), function.numa_node
    # Near a device are all CPUs where no node is known.
    cpulist = machine.nodes[node].cpulist if node >= 0 else f"0-{_cpu_count(machine) - 1}"
    bound = f"DRIVER={function.driver}\n" if function.driver else ""
    tree.fill(path, "function", function=function, cpulist=cpulist, bound=bound)
    virtual = sorted(f.address for f in machine.functions if f.physfn == function.address)
    values: dict[str, object] = dict(nvidia_smi.errors(machine, function.address))
    for name, link in (("current", function.link), ("max", function.max_link)):
        values |= {f"{name}_link_speed": link.speed, f"{name}_link_width": link.width} if link else {}
    tree.add(path, values)
    tree.binaries[f"{path}/config"] = pci_config.render(machine, function)[: function.config_bytes]
    if function.vpd:
        tree.binaries[f"{path}/vpd"] = pci_config.vpd(function)
    tree.links[f"{path}/subsystem"] = "/sys/bus/pci"
    tree.links[f"/sys/bus/pci/devices/{function.address}"] = path
    if function.driver:
        driver = f"/sys/bus/pci/drivers/{function.driver}"
        tree.links[f"{path}/driver"] = driver
        tree.links[f"{driver}/{function.address}"] = path
    if function.physfn:
        tree.links[f"{path}/physfn"] = _path(machine, function.physfn)
    for index, address in enumerate(virtual):
        tree.links[f"{path}/virtfn{index}"] = _path(machine, address)


def _iommu_group(tree: Tree, machine: Machine, function: Function, number: int) -> None:
    """One function each. Translated (lazily, as distributions build it) unless the command line says pass-through."""
    if machine.hypervisor:
        return
    group, passes = f"/sys/kernel/iommu_groups/{number}", {"iommu=pt", "iommu.passthrough=1"}
    tree.add(group, {"type": "identity" if passes & {*machine.cmdline.split()} else "DMA-FQ"})
    tree.links[f"{group}/devices/{function.address}"] = _path(machine, function.address)
    tree.links[f"{_path(machine, function.address)}/iommu_group"] = group


def _rdma(tree: Tree, machine: Machine, rdma: Rdma) -> None:
    function = _path(machine, rdma.address)
    path = f"{function}/infiniband/{rdma.name}"
    port = f"{path}/ports/1"
    tree.links[f"/sys/class/infiniband/{rdma.name}"] = path
    tree.links[f"{path}/device"] = function
    tree.links[f"{path}/subsystem"] = "/sys/class/infiniband"
    tree.fill(path, "device", machine=machine, rdma=rdma)
    tree.fill(port, "port", rdma=rdma)
    tree.add(function, nics.hwmon(machine, rdma))
    tree.files |= nics.answers(machine, rdma)
    if rdma.active_mtu != 4096:
        # Only ibv_devinfo shows it.
        tree.files[f"{qos.STATE}/active_mtu/{rdma.name}"] = f"{rdma.active_mtu}\n"
    tree.add(f"{port}/pkeys", rdma.pkeys)
    tree.add(f"{port}/counters", {**dict.fromkeys(_COUNTERS, 0), "link_downed": rdma.flaps, **rdma.counters})
    # Those of congestion are the physical function's (mlx5/counters.c).
    of_port = () if machine.function(rdma.address).physfn else _CONGESTION_COUNTERS
    counted = {**dict.fromkeys((*_HW_COUNTERS, *of_port), 0), **rdma.hw_counters}
    tree.add(f"{port}/hw_counters", {"lifespan": 10, **counted})
    if of_port:
        more = {**rdma.statistics, "link_down_events_phy": rdma.flaps}
        tree.files[qos.statistics_path(rdma.address)] = json.dumps(more) + "\n"
    # A slot without a GID reads as all zeros; its type and ndev give EINVAL, which a plain file cannot: there is none.
    tree.add(f"{port}/gids", {str(slot): _NO_GID for slot in range(rdma.gid_slots)})
    tree.directories += [f"{port}/gid_attrs/types", f"{port}/gid_attrs/ndevs"]
    for gid in rdma.gids:
        tree.add(f"{port}/gids", {str(gid.index): gid.value})
        tree.add(f"{port}/gid_attrs", {f"types/{gid.index}": gid.kind, f"ndevs/{gid.index}": gid.netdev})


def _netdev_parent(machine: Machine, netdev: Netdev) -> str | None:
    if netdev.address is None:
        return None
    return posixpath.join(_path(machine, netdev.address), netdev.bus_device or "").rstrip("/")


def _netdev_path(machine: Machine, netdev: Netdev) -> str:
    return f"{_netdev_parent(machine, netdev) or '/sys/devices/virtual'}/net/{netdev.name}"


def _netdev(tree: Tree, machine: Machine, netdev: Netdev) -> None:
    path, parent = _netdev_path(machine, netdev), _netdev_parent(machine, netdev)
    admin_up = not any(r.address == netdev.address and r.phys_state.startswith("3:") for r in machine.rdma)
    running = netdev.operstate != "down"
    above = next((n for n in machine.netdevs if n.name == netdev.master), None)
    bond = above is not None and not above.vrf
    tree.links[f"/sys/class/net/{netdev.name}"] = path
    tree.links[f"{path}/subsystem"] = "/sys/class/net"
    if parent:
        tree.links[f"{path}/device"] = parent
    tree.fill(
        path,
        "netdev",
        netdev=netdev,
        # 0: the card's own, 3: set by somebody.
        assigned=3 if bond or netdev.bond_mode else 0,
        changes=2 + (not running) + 2 * machine.flaps(netdev),
        flags=0x1002 | admin_up,
        index=machine.index(netdev),
    )
    # Reading these fails on a device that is switched off, or has no such thing: there is no file then.
    carrier, duplex = int(running) if admin_up else None, "full" if netdev.speed else None
    tree.add(path, {"carrier": carrier, "speed": netdev.speed, "duplex": duplex, "phys_port_name": netdev.port_name})
    if above:
        master = _netdev_path(machine, above)
        tree.links[f"{path}/master"] = tree.links[f"{path}/upper_{netdev.master}"] = master
        tree.links[f"{master}/lower_{netdev.name}"] = path
    if bond:
        tree.add(f"{path}/bonding_slave", {"state": "active", "mii_status": "up" if running else "down"})
    if netdev.bond_mode:
        slaves = " ".join(n.name for n in machine.netdevs if n.master == netdev.name)
        values = {"mode": netdev.bond_mode, "slaves": slaves, "mii_status": "up" if running else "down", "miimon": 100}
        tree.add(f"{path}/bonding", values)
        # A file, not a device, among the links.
        tree.files["/sys/class/net/bonding_masters"] = f"{netdev.name}\n"
    if netdev.bridge:
        tree.add(f"{path}/bridge", {"stp_state": 0, "ageing_time": 30000})
    if netdev.bus_device:
        tree.add(str(parent), {"device": "0x0001", "vendor": "0x1af4"})


def _roce(tree: Tree, machine: Machine) -> None:
    live = roce.files(machine, lambda netdev: _netdev_path(machine, netdev), lambda address: _path(machine, address))
    for path, (what, text, fresh) in (live | nics.flash_files(machine)).items():
        tree.files[path], tree.live[path] = text, (what, fresh)
    tree.files |= roce.described(machine)
    if machine.lldpad:
        tree.add(f"/proc/{qos.LLDPAD}", {"comm": "lldpad", "cmdline": "/usr/sbin/lldpad -t"})


def _nodes(tree: Tree, machine: Machine) -> None:
    base, count = "/sys/devices/system", len(machine.nodes)
    span = "0" if count == 1 else f"0-{count - 1}"
    tree.add(f"{base}/node", {"online": span, "possible": span, "has_cpu": span})
    tree.add(f"{base}/cpu", dict.fromkeys(("online", "possible", "present"), f"0-{_cpu_count(machine) - 1}"))
    for node in machine.nodes:
        distance = " ".join("10" if other is node else "21" for other in machine.nodes)
        path = f"{base}/node/node{node.number}"
        tree.fill(path, "node", node=node, distance=distance)


def _proc(tree: Tree, machine: Machine) -> None:
    processors = _SYSFS[machine.architecture]["cpuinfo"]
    virtual = " hypervisor" if machine.hypervisor else " vmx"
    # Two CPUs of each node are enough to be told apart.
    texts = [
        processors.format(cpu=cpu, core=core, node=node, machine=machine, virtual=virtual)
        for node in machine.nodes
        for core, cpu in enumerate(_expand(node.cpulist)[:2])
    ]
    tree.add("/proc", {"cpuinfo": "\n".join(texts), "cmdline": machine.cmdline})
    total = sum(node.memory_kib for node in machine.nodes)
    tree.fill("/proc", "memory", total=total, free=total // 10 * 9, zero=0, page=2048)
    tree.add("/proc/sys/kernel", {"osrelease": machine.kernel, "hostname": machine.hostname})
    tree.fill("/proc/2811", "limits", memlock=machine.slurmd_memlock)
    shm = f"tmpfs /dev/shm tmpfs rw,nosuid,nodev,size={machine.shm_bytes >> 10}k,inode64 0 0"
    tree.files |= container_hosts.processes(machine) | nvidia_smi.hardware(machine) | nvl72.hardware(machine)
    tree.add("/proc", {"mounts": "\n".join([shm, *machine.mounts])})


def _proc_net(tree: Tree, machine: Machine) -> None:
    def little_endian(address: IPv4Address) -> str:
        return address.packed[::-1].hex().upper()

    lines = ["Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"]
    for route in machine.routes:
        network, gateway = IPv4Network(route.destination), IPv4Address(route.gateway or 0)
        destination, mask = little_endian(network.network_address), little_endian(network.netmask)
        flags = "0003" if route.gateway else "0001"
        cells = (route.netdev, destination, little_endian(gateway), flags, 0, 0, route.metric, mask, 0, 0, 0)
        lines.append("\t".join(map(str, cells)))
    tree.files["/proc/net/route"] = "".join(f"{line:<127}\n" for line in lines)

    none = "0" * 32
    local = f"fe80{'0' * 28} 40 {none} 00 {none} 00000100 00000001 00000000 00000001"
    up = [n.name for n in machine.netdevs if n.operstate == "up" and n.kind != 772 and not n.master]
    lines = [f"{local} {name:>8}" for name in up]
    lines.append(f"{none} 00 {none} 00 {none} ffffffff 00000001 00000000 00200200 {'lo':>8}")
    tree.files["/proc/net/ipv6_route"] = "".join(f"{line}\n" for line in lines)


def _proc_nvidia(tree: Tree, machine: Machine) -> None:
    base = "/proc/driver/nvidia"
    tree.directories.append(f"{base}/gpus")
    tree.files[f"{base}/params"] = nvl72.params(machine, (DATA / "node/nvidia-params").read_text())
    of = machine.architecture
    flavour = f"Open Kernel Module for {of}" if machine.driver_open else f"{of} Kernel Module"
    tree.fill(base, "driver", machine=machine, flavour=flavour)
    for minor, gpu in enumerate(machine.driver_gpus()):
        # A plain file: that it can be opened is all that is asked of it.
        tree.files[f"/dev/nvidia{minor}"] = ""
        path, irq, vbios = f"{base}/gpus/{gpu.address}", 200 + gpu.number, gpu.vbios.lower()
        tree.fill(path, "gpu", machine=machine, gpu=gpu, minor=minor, irq=irq, vbios=vbios)


# -- system root -----------------------------------------------------------------------------------------------------

_PACKAGE_TOOLS = tuple(f"/usr/bin/{name}" for name in ("dpkg-query", "apt-get", "apt-mark"))
# Of files that set variables of NCCL for users, services and containers.
_VARIABLE_FOLDERS = (
    *("/etc/enroot/environ.d", "/etc/profile.d", "/etc/slurm"),
    *("/etc/systemd/system/slurmd.service.d", "/etc/systemd/system/user@.service.d"),
)


def system(machine: Machine) -> Tree:
    """A freshly installed system, without nvidia-smi (see write_tools)."""
    return Tree(
        files={
            "/etc/os-release": (DATA / "node/os-release").read_text(),
            # By which devices have units.
            "/usr/lib/udev/rules.d/99-systemd.rules": 'ACTION!="remove", SUBSYSTEM=="net", TAG+="systemd"\n',
            "/etc/hostname": f"{machine.hostname}\n",
            "/etc/passwd": (DATA / "node/passwd").read_text(),
            "/etc/environment": 'PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"\n',
            "/etc/default/grub": (TOOLKIT / "default-grub").read_text(),
            "/usr/sbin/update-grub": (TOOLKIT / "update-grub").read_text(),
            FABRIC_MANAGER: (TOOLKIT / "nv-fabricmanager").read_text(),
            nics.TOOL: (TOOLKIT / "mlxlink").read_text(),
            **(
                {} if machine.nvlink_domain else {f"{UNITS}/{nvidia_smi.UNIT}": (TOOLKIT / nvidia_smi.UNIT).read_text()}
            ),
            # What it would sync is the machine that the tree is on.
            "/usr/bin/sync": "#!/bin/sh\nexit 0\n",
            **dict.fromkeys(_PACKAGE_TOOLS, (TOOLKIT / "apt_tools.py").read_text()),
            **kernel_modules.tools(),
            **container_hosts.files(),
            **{f"/etc/slurm/{path.name}": path.read_text() for path in (TOOLKIT / "slurm").iterdir()},
            **nvl72.files(machine),
            **machine.image,
            MARK: (DATA / "node/SIMULATED").read_text(),
        },
        links={
            f"/etc/systemd/system/multi-user.target.wants/{unit}": f"{UNITS}/{unit}"
            for unit in (nvl72.UNIT if machine.nvlink_domain else nvidia_smi.UNIT,)
        },
        directories=[
            "/root",
            "/home/user1",
            "/usr/bin",
            "/boot/grub",
            "/etc/modprobe.d",
            "/etc/security/limits.d",
            "/etc/sysctl.d",
            "/usr/local/cuda",
            "/var/log",
            # Where the suite keeps its own record of a node's counters.
            "/var/lib/busbar/health",
            container_hosts.DROPINS,
            *_VARIABLE_FOLDERS,
        ],
    )
