# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Find what a NIC that goes away for a moment would cut off: the way to the node, processes with RDMA, storage.

Devices are PCI addresses; whatever is below one (virtual functions, subfunctions, behind a bridge) goes with it.
Only the main routing table is read: /proc shows no other.
Sources: proc(5); kernel Documentation/ABI/testing/sysfs-class-net, stable/sysfs-class-infiniband; nvme host/sysfs.c.
"""

from __future__ import annotations

import os
import re
from ipaddress import IPv6Address, ip_address
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from ..core import mounts
from ..core.host import Host, ParseError, Problem, ReadError, attempt, noted
from ..core.number import whole
from ..core.orphans import read_stat
from ..machine import netdev, pci
from ..machine.netdev import Route

VERBS = "/sys/class/infiniband_verbs"
NVME = "/sys/class/nvme"
ISCSI = "/sys/class/iscsi_connection"
MODULES = "/sys/module"
# These belong to the drivers: they come and go with them.
STACK = (
    ("mlx5_core", "mlx5_ib", "mlx5_fwctl", "mlx4_ib", "bnxt_re", "efa", "erdma", "irdma", "mana_ib")
    + ("ib_cm", "ib_core", "ib_ipoib", "ib_umad", "ib_uverbs", "iw_cm", "rdma_cm", "rdma_ucm")
)  # fmt: skip
_LUSTRE_NID = re.compile(r"([^:@,]+)@(?:o2ib|tcp)[0-9]*")


def parse_connection(text: str) -> Tuple[str, ...]:
    """Return SSH_CONNECTION's fields: client, its port, server, its port. Raises ParseError."""
    words = text.split()
    if len(words) != 4:
        raise ParseError("SSH_CONNECTION is %r, expected two addresses with their ports" % text[:120])
    return words[0], words[2]


def connection() -> Tuple[str, ...]:
    """Return the addresses of the ssh connection that started this process; () without one.

    sudo removes the variable, but one of the parent processes still has it. A user who is not root can read none of
    them, and disturbs nothing either.
    """
    pid = os.getpid()
    while pid > 1:
        try:
            with open("/proc/%d/environ" % pid, "rb") as stream:
                variables = stream.read().split(b"\0")
            parent = int(read_stat(pid)[1])
        except OSError as error:
            if os.geteuid() != 0:
                return ()
            raise ReadError("/proc/%d" % pid, "cannot be read: %s" % error.strerror) from error
        for variable in variables:
            if variable.startswith(b"SSH_CONNECTION="):
                return parse_connection(variable[15:].decode("ascii", "replace"))
        pid = parent
    return ()


# What is reached over the network, and the addresses by which.
Use = Tuple[str, Sequence[str]]


def read(host: Host, devices: Sequence[str], peer: Sequence[str]) -> Tuple[List[str], List[Problem], List[str]]:
    """Return users who would notice, a line each; what could not be read; idle modules to unload before the drivers.

    peer: addresses of Ansible's own connection.
    """
    problems: List[Problem] = []
    reasons: List[str] = []
    below = attempt(lambda: _with_virtual(host, devices), pci.DEVICES, problems)
    if below is None:
        return reasons, problems, []
    names = attempt(lambda: _netdevs(host, below), netdev.INTERFACES, problems)
    routes, unread = netdev.read_routes(host)
    problems += unread
    if names is not None and not unread:
        ways = Ways(names, routes)
        reasons += ["the default route leaves by %s" % text for text in ways.default()]
        uses: Dict[str, Iterator[Use]] = {
            "SSH_CONNECTION": iter([("Ansible's own connection (%s)" % " to ".join(peer), peer)]),
            mounts.PATH: _mounts(host),
            NVME: _nvme(host),
            ISCSI: _iscsi(host),
        }
        for source, step in uses.items():
            with noted(source, problems):
                for what, addresses in step:
                    reasons += ["%s uses %s" % (what, way) for way in [*filter(None, map(ways.to, addresses))][:1]]
    reasons += attempt(lambda: _processes(host, below), "/proc/PID/fd", problems) or []
    used, idle = attempt(lambda: _modules(host), MODULES, problems) or ([], [])
    return reasons + used, problems, idle


class Ways:
    """Find the netdev by which an address is reached. names: netdev on the devices -> how findings name it."""

    def __init__(self, names: Mapping[str, str], routes: Sequence[Route]) -> None:
        self.names = names
        self.routes = routes

    def default(self) -> Iterator[str]:
        for family in (4, 6):
            routes = [route for route in self.routes if route.family == family and route.length == 0]
            best = min((route.metric for route in routes), default=0)
            yield from sorted({self.names[r.netdev] for r in routes if r.metric == best and r.netdev in self.names})

    def to(self, text: str) -> Optional[str]:
        """Return the netdev as findings name it; None if it is on no device. Raises ParseError without a route."""
        text, scope = (text.strip("[]").split("%", 1) + [""])[:2]
        if scope:
            return self.names.get(scope)
        try:
            address = ip_address(text)
        except ValueError as error:
            raise ParseError("%r is not an address: the interface that leads to it is unknown" % text[:80]) from error
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if address.is_loopback:
            return None
        routes = [route for route in self.routes if route.leads_to(address)]
        if not routes:
            raise ParseError("no route in /proc/net leads to %s" % address)
        best = max(routes, key=lambda route: (route.length, -route.metric))
        same = {r.netdev for r in routes if (r.length, r.metric) == (best.length, best.metric)}
        return next((self.names[name] for name in sorted(same) if name in self.names), None)


def _with_virtual(host: Host, devices: Sequence[str]) -> List[str]:
    found: List[str] = []
    for address in map(pci.parse_address, devices):
        path = "%s/%s" % (pci.DEVICES, address)
        entries = host.listdir(path)
        if not entries:
            raise ReadError(path, "is not there")
        real = [host.realpath("%s/%s" % (path, entry)) for entry in entries if entry.startswith("virtfn")]
        found += [address] + [link.rsplit("/", 1)[-1] for link in real if link is not None]
    return found


def _on(host: Host, path: str, devices: Sequence[str]) -> Optional[str]:
    """Return the device that the target of link ``path`` is, or is below."""
    parts = (host.realpath(path) or "").split("/")
    return next((address for address in devices if address in parts), None)


def _netdevs(host: Host, devices: Sequence[str]) -> Dict[str, str]:
    """Return the netdevs on the devices and those over them: ``bond0 over ens1f0np0 (0000:1b:00.0)``."""
    found: Dict[str, str] = {}
    below: Dict[str, Set[str]] = {}
    for name in host.listdir(netdev.INTERFACES):
        path = "%s/%s" % (netdev.INTERFACES, name)
        address = _on(host, path + "/device", devices)
        if address is not None:
            found[name] = "%s (%s)" % (name, address)
        below.setdefault(name, set()).update(
            entry[len("lower_") :] for entry in host.listdir(path) if entry.startswith("lower_")
        )
        master = host.realpath(path + "/master")
        if master is not None:
            below.setdefault(master.rsplit("/", 1)[-1], set()).add(name)
    waiting = sorted(found)
    while waiting:
        lower = waiting.pop()
        for name in sorted(below):
            if lower in below[name] and name not in found:
                found[name] = "%s over %s" % (name, found[lower])
                waiting.append(name)
    return found


def _mounts(host: Host) -> Iterator[Use]:
    """Yield mounts that name their server's address; other RDMA shows as a process or a module."""
    for mount in mounts.parse(host.require(mounts.PATH)):
        of_nfs = mount.kind.startswith("nfs") and mount.kind != "nfsd"
        servers = _LUSTRE_NID.findall(mount.source) if mount.kind == "lustre" else []
        servers += [option[5:] for option in mount.options if of_nfs and option.startswith("addr=")]
        if not servers and (of_nfs or mount.kind == "lustre"):
            text = "%s at %s names no address: the interface that it uses is unknown"
            raise ParseError(text % (mount.kind, mount.folder))
        yield "%s at %s (%s)" % (mount.kind, mount.folder, mount.source), servers


def _nvme(host: Host) -> Iterator[Use]:
    for name in host.listdir(NVME):
        transport = host.read("%s/%s/transport" % (NVME, name))
        if transport in ("rdma", "tcp"):
            text = host.read("%s/%s/address" % (NVME, name)) or ""
            address = dict(pair.partition("=")[::2] for pair in text.split(",")).get("traddr", "")
            yield "storage %s (NVMe over %s from %s)" % (name, transport, address), [address]


def _iscsi(host: Host) -> Iterator[Use]:
    for name in host.listdir(ISCSI):
        address = host.read("%s/%s/persistent_address" % (ISCSI, name)) or ""
        yield "storage (iSCSI %s from %s)" % (name, address), [address]


def _processes(host: Host, devices: Sequence[str]) -> List[str]:
    """Return processes with a verbs device open: every QP, CQ and memory region of user space needs one."""
    verbs: Dict[str, str] = {}
    for name in host.listdir(VERBS):
        address = _on(host, "%s/%s/device" % (VERBS, name), devices)
        if address is not None:
            verbs[name] = "%s (%s)" % (host.read("%s/%s/ibdev" % (VERBS, name)) or name, address)
    reasons = []
    for pid in sorted((name for name in host.listdir("/proc") if name.isdigit()), key=int) if verbs else ():
        targets = {_link(host, "/proc/%s/fd/%s" % (pid, fd)) for fd in host.listdir("/proc/%s/fd" % pid)}
        held = sorted(verbs[name] for name in {target.rsplit("/", 1)[-1] for target in targets} if name in verbs)
        if held:
            name = host.read("/proc/%s/comm" % pid) or "?"
            reasons.append("process %s (pid %s) has %s open" % (name, pid, ", ".join(held)))
    return reasons


def _link(host: Host, path: str) -> str:
    """Return the target of a link, unresolved: an open file may lie on a server that does not respond."""
    try:
        return os.readlink(host.hardware(path))
    except FileNotFoundError:
        return ""  # closed meanwhile
    except OSError as error:
        raise ReadError(path, "cannot be read: %s; run as root (become)" % error.strerror) from error


def _modules(host: Host) -> Tuple[List[str], List[str]]:
    """Return kernel modules over the RDMA drivers, apart from their own: those in use, a line each, and idle ones."""
    used: List[str] = []
    idle: List[str] = []
    drivers = ("mlx5_core", "ib_core")
    over = {name: driver for driver in drivers for name in host.listdir("%s/%s/holders" % (MODULES, driver))}
    for name in sorted(set(over).difference(STACK)):
        path = "%s/%s/refcnt" % (MODULES, name)
        text = host.read(path)
        count = whole(text)
        if count is None:
            raise ReadError(path, "does not show whether the module is in use: %.80r" % text)
        if count:
            used.append("kernel module %s is in use over %s" % (name, over[name]))
        else:
            idle.append(name)
    return used, idle
