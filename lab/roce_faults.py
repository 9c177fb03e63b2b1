# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Faults of the network side of RoCE (field.md 5, F18 to F29)."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address

from . import network
from .fault import CommandFault, Fault, FileFault, appended, provisioned, rail_nic, removed, said
from .machine import GID_V2, LabError, Machine, Netdev, Rdma
from .qos import Port

PLATFORMS = ("hgx-h200",)
# What the role installs to run at boot, and what makes it run.
UNIT = "/etc/systemd/system/busbar-roce-qos@.service"
UNIT_RULE = "/etc/udev/rules.d/90-busbar-roce-qos.rules"
# What the unit of rail 0 leaves of its last run.
UNIT_RESULT = "/run/busbar-roce-qos/0000:1a:00.0.json"
SYSCTL_CONF = "/etc/sysctl.d/99-zz-site.conf"
NCCL_CONF = "/etc/nccl.conf"
# What the role adds to the file of rail 5, and the file that somebody adds for rail 4.
MTU_CONF = f"{network.FOLDER}/10-rail5.network.d/90-busbar-mtu.conf"
KEYFILE = f"{network.KEYFILES}/rail4.nmconnection"
# What the role multirail writes: settings of all rails, and rules of rail 6.
RAIL_SYSCTLS = "/etc/sysctl.d/98-busbar-multirail.conf"
RAIL_RULES = f"{network.FOLDER}/10-rail6.network.d/90-busbar-multirail.conf"
_PRIORITY, _DSCP = 3, 26


def _netdev(machine: Machine, rail: int) -> Netdev:
    address = machine.rail(rail).address
    return next(netdev for netdev in machine.netdevs if netdev.address == address)


def _port(rail: int, change: Callable[[Port], object]) -> Callable[[Machine], None]:
    def apply(machine: Machine) -> None:
        port = _netdev(machine, rail).qos
        if port is None:
            raise LabError(f"{machine.hostname}: rail {rail} has no DCB to break")
        change(port)

    return apply


def _pfc(mask: int) -> Callable[[Port], object]:
    def change(port: Port) -> None:
        port.pfc = mask

    return change


def _forget_dscp(port: Port) -> None:
    for dscp, prio in list(port.apps):
        port.del_app(dscp, prio)


def _stop_ecn(port: Port) -> None:
    port.ecn_np &= ~(1 << _PRIORITY)
    port.ecn_rp &= ~(1 << _PRIORITY)


def _mark_cnp(port: Port) -> None:
    port.cnp_dscp = 46


def _force_class(port: Port) -> None:
    port.traffic_class = port.sends = 0


def _lose(port: Port) -> None:
    """What DCB holds, as out of the box."""
    new = Port()
    port.pfc, port.apps, port.table = new.pfc, new.apps, new.table
    port.rx_pause, port.tx_pause = new.rx_pause, new.tx_pause


def _hold_mtu(port: Port) -> None:
    port.stale_mtu = 1024


def _start_lldpad(machine: Machine) -> None:
    machine.lldpad = True


def _small_switch(machine: Machine) -> None:
    _netdev(machine, 6).switch_mtu = 1500


def _small_frames(machine: Machine) -> None:
    _netdev(machine, 5).mtu = 1500


def _claim(machine: Machine, text: str | None) -> str:
    return network.keyfile(_netdev(machine, 4), 4, mtu=1500)


def _exchange_names(machine: Machine) -> None:
    one, other = machine.rail(4), machine.rail(5)
    one.name, other.name = other.name, one.name


def _ipv4(rdma: Rdma) -> str:
    value = next(gid.value for gid in rdma.gids if ":ffff:" in gid.value)
    return str(IPv4Address(int(value.replace(":", "")[-8:], 16)))


def _take_address(machine: Machine) -> None:
    """Somebody has given rail 7 the address of rail 2, by hand."""
    taken, own = machine.rail(2), machine.rail(7)
    value = next(gid.value for gid in taken.gids if ":ffff:" in gid.value)
    for gid in own.gids:
        gid.value = value if ":ffff:" in gid.value else gid.value
    netdev, other = _netdev(machine, 7), _netdev(machine, 2)
    netdev.ipv4 = other.ipv4
    network_of_other = next(route.destination for route in machine.routes if route.netdev == other.name)
    for route in machine.routes:
        route.destination = network_of_other if route.netdev == netdev.name else route.destination


def _widen_netmask(machine: Machine) -> None:
    netdev = _netdev(machine, 3)
    netdev.ipv4 = f"{(netdev.ipv4 or '').partition('/')[0]}/16"


def _reroute(machine: Machine) -> None:
    machine.rules[f"rule 50 from {_ipv4(machine.rail(5))}"] = "lookup main"


def _filter_strictly(machine: Machine) -> None:
    machine.sysctls[f"{_netdev(machine, 4).name}/rp_filter"] = "1"


def _answer_for_all(machine: Machine) -> None:
    machine.sysctls[f"{_netdev(machine, 1).name}/arp_ignore"] = "0"


def _forget_sysctls(machine: Machine, text: str | None) -> str:
    name = f"/{_netdev(machine, 0).name}/"
    return "".join(line for line in provisioned(RAIL_SYSCTLS, text).splitlines(keepends=True) if name not in line)


def _lose_address(machine: Machine) -> None:
    _netdev(machine, 7).ipv4 = None
    _drop_gids(machine.rail(7), ":ffff:")


def _drop_gids(rdma: Rdma, part: str, kind: str = "") -> None:
    rdma.gids = [gid for gid in rdma.gids if part not in gid.value or kind not in gid.kind]


def _only_v1(machine: Machine) -> None:
    _drop_gids(machine.rail(2), "", GID_V2)


def _shift_gids(machine: Machine) -> None:
    for gid in machine.rail(0).gids:
        if ":ffff:" in gid.value:
            gid.index += 2


def _edit_unit(machine: Machine, text: str | None) -> str:
    return provisioned(UNIT, text).replace("ExecStart=", "ExecStart=/bin/echo ")


def _fail_unit(machine: Machine, text: str | None) -> str:
    if text is None:
        raise LabError(f"there is no {UNIT_RESULT} yet: provision the node, then start it anew (python3 -m lab reboot)")
    return '{"state": "failed", "said": ["mlnx_qos -i enp26s0np0: gave no answer within 20 s and was abandoned"]}\n'


def _fault(
    name: str,
    description: str,
    check: str,
    subject: Callable[[Machine], str],
    change: Callable[[Machine], None] | FileFault | CommandFault,
    state: str = "drift",
    consequences: tuple[str, ...] = (),
    excludes: tuple[str, ...] = (),
) -> Fault:
    return Fault(name, description, check, subject, change, state, consequences, PLATFORMS, excludes)


# Whether somebody uses the node is not known then, and nothing is mended that stops traffic.
_USE_UNKNOWN = ("smi-missing", "smi-hang", "smi-garbage")
_OWNED = ("pfc-off", "pfc-wrong-prio", "trust-pcp", "dscp-moved", "ecn-off", "cnp-dscp", "one-way-tc", "qos-lost")

CATALOGUE = (
    _fault("pfc-off", "rail 1 has no PFC", "roce_qos.pfc", rail_nic(1), _port(1, _pfc(0)), excludes=_USE_UNKNOWN),
    _fault(
        "pfc-wrong-prio",
        "rail 4 has PFC on priority 4",
        "roce_qos.pfc",
        rail_nic(4),
        _port(4, _pfc(1 << 4)),
        excludes=_USE_UNKNOWN,
    ),
    _fault(
        "trust-pcp",
        "rail 5 trusts PCP: its last DSCP entry was deleted",
        "roce_qos.trust",
        rail_nic(5),
        _port(5, _forget_dscp),
        consequences=("roce_qos.dscp2prio",),
    ),
    _fault(
        "dscp-moved",
        f"rail 6 maps DSCP {_DSCP} to priority 0",
        "roce_qos.dscp2prio",
        rail_nic(6),
        _port(6, lambda port: port.set_app(_DSCP, 0)),
        excludes=("fw-dcbx",),
    ),
    _fault(
        "ecn-off", f"rail 7 does without ECN on priority {_PRIORITY}", "roce_qos.ecn", rail_nic(7), _port(7, _stop_ecn)
    ),
    _fault(
        "cnp-dscp", "rail 0 sends congestion notices with DSCP 46", "roce_qos.cnp", rail_nic(0), _port(0, _mark_cnp)
    ),
    _fault(
        "lldpad",
        "lldpad runs, and may overwrite what is set",
        "roce_qos.dcbx",
        said("lldpad"),
        _start_lldpad,
        state="not_owned",
        excludes=(*_OWNED, "fw-dcbx"),
    ),
    _fault(
        "fw-dcbx",
        "rail 6 is the firmware's: a switch decides by DCBX",
        "roce_qos.dcbx",
        rail_nic(6),
        _port(6, lambda port: port.set_dcbx("firmware")),
        state="not_owned",
    ),
    _fault(
        "mtu-1500",
        "the netdev of rail 5 has an MTU of 1500",
        "netdev_mtu.live",
        rail_nic(5),
        _small_frames,
        consequences=("netdev_mtu.active_mtu",),
        excludes=_USE_UNKNOWN,
    ),
    _fault(
        "active-mtu-stale",
        "rail 6 goes on with an active_mtu of 1024, below a netdev of 9000",
        "netdev_mtu.active_mtu",
        rail_nic(6),
        _port(6, _hold_mtu),
    ),
    _fault(
        "mtu-not-persisted",
        "the file that sets rail 5 up says no MTU any more: 1500 after the next boot",
        "netdev_mtu.persisted",
        rail_nic(5),
        removed(MTU_CONF),
    ),
    _fault(
        "mtu-two-owners",
        "rail 4 has a profile of NetworkManager beside the file of systemd-networkd",
        "netdev_mtu.owner",
        rail_nic(4),
        FileFault(KEYFILE, _claim, mode=0o600),
        state="unknown",
        consequences=("multirail.rules",),
    ),
    _fault(
        "path-mtu",
        "the switch port of rail 6 takes 1500 bytes, between two ends of 9000",
        "rail_ping.path",
        said("rail 6"),
        _small_switch,
    ),
    _fault(
        "one-way-tc",
        "rail 7 forces traffic class 0: it sends best-effort, and receives on the lossless priority",
        "roce_qos.traffic_class",
        rail_nic(7),
        _port(7, _force_class),
    ),
    _fault(
        "qos-lost",
        "rail 0 came back from a link flap with the trust and PFC that it has out of the box",
        "roce_qos.trust",
        rail_nic(0),
        _port(0, _lose),
        consequences=("roce_qos.dscp2prio", "roce_qos.pfc", "roce_qos.pause"),
    ),
    _fault(
        "qos-unit-disabled",
        "nothing sets RoCE's QoS at the next boot",
        "roce_qos.unit",
        said(UNIT),
        removed(UNIT_RULE),
        excludes=("rail-missing", "nic-moved", "qos-unit-edited"),
    ),
    _fault(
        "qos-unit-edited",
        "an operator's experiment with the unit has stayed: it only prints its command",
        "roce_qos.unit",
        said(UNIT),
        FileFault(UNIT, _edit_unit),
        excludes=("rail-missing", "nic-moved"),
    ),
    _fault(
        "qos-unit-failed",
        "the unit of rail 0 has failed at boot",
        "roce_qos.unit",
        rail_nic(0),
        FileFault(UNIT_RESULT, _fail_unit),
    ),
    _fault(
        "rails-renamed",
        "the RDMA devices of rails 4 and 5 have exchanged their names",
        "nccl_conf.file",
        said(NCCL_CONF),
        _exchange_names,
        excludes=("conf-edited", "conf-removed", "conf-mode", "rail-missing", "nic-moved", "gpu-missing"),
    ),
    _fault(
        "asymmetric-routing",
        "an earlier rule sends what comes from rail 5's address through table main",
        "multirail.conflict",
        lambda machine: f"rule 50 from {_ipv4(machine.rail(5))}",
        _reroute,
        state="not_owned",
    ),
    _fault(
        "rp-filter-strict",
        "the netdev of rail 4 drops what the route back would not send there",
        "multirail.sysctl",
        rail_nic(4),
        _filter_strictly,
    ),
    _fault(
        "sysctl-conflict",
        f"{SYSCTL_CONF} will set rp_filter to 1 at the next boot",
        "multirail.conflict",
        said(f"{SYSCTL_CONF}:1"),
        appended(SYSCTL_CONF, "net.ipv4.conf.all.rp_filter = 1\n"),
        state="not_owned",
        consequences=("multirail.sysctl",),
    ),
    _fault(
        "arp-flux",
        "the netdev of rail 1 answers for the addresses of all rails",
        "multirail.sysctl",
        rail_nic(1),
        _answer_for_all,
    ),
    _fault(
        "multirail-not-persisted",
        "rail 6 has no table of its own any more after the next boot",
        "multirail.rules",
        rail_nic(6),
        removed(RAIL_RULES),
    ),
    _fault(
        "sysctls-not-persisted",
        "the lines of rail 0 are gone from the sysctl file",
        "multirail.sysctl",
        rail_nic(0),
        FileFault(RAIL_SYSCTLS, _forget_sysctls),
        excludes=("sysctl-conflict",),
    ),
    _fault(
        "address-missing",
        "the netdev of rail 7 has lost its IPv4 address, and rail 7 the GIDs of it",
        "platform.rail_gid",
        rail_nic(7),
        _lose_address,
        consequences=("multirail.rules",),
    ),
    _fault(
        "address-twice",
        "the netdev of rail 7 has been given the address of rail 2",
        "platform.rail_address",
        rail_nic(7),
        _take_address,
        consequences=("multirail.rules", "platform.rail_address_persisted"),
        excludes=("address-missing", "port-down"),
    ),
    _fault(
        "netmask",
        "the netdev of rail 3 has a wider netmask than its file gives it",
        "platform.rail_address_persisted",
        rail_nic(3),
        _widen_netmask,
        consequences=("multirail.rules",),
        excludes=("address-missing", "port-down", "nic-moved", "rail-missing"),
    ),
    _fault(
        "gid-v1-only",
        "rail 2 has GIDs of RoCE v1 alone",
        "platform.rail_gid",
        rail_nic(2),
        _only_v1,
        excludes=("port-down",),
    ),
)
ROCE_FAULTS = {fault.name: fault for fault in CATALOGUE}
# No check of one node shows them, so they are not in faults.FAULTS.
BETWEEN_NODES = ("path-mtu",)

# What must cause no finding: name -> the change. GID indices move after hours or a flap; nothing may depend on one.
HARMLESS: dict[str, Callable[[Machine], None]] = {"gid-shifted": _shift_gids}
