# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Table of the comparisons between hosts: one row a check, with its rule and the source of its values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv6Interface, ip_interface

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, printable
from ansible_collections.busbar.fabric.plugins.module_utils.machine import platform_checks, rail_address
from ansible_collections.busbar.fabric.plugins.module_utils.machine.platform_checks import GPU_DRIVER, GPU_MODEL
from ansible_collections.busbar.fabric.plugins.module_utils.ofed import checks as ofed
from ansible_collections.busbar.fabric.plugins.module_utils.rail_info import HostInfo, RailInfo

from ..role_result import RoleResult

SOURCE = "results of all hosts"
# Two comparisons read each address.
_parsed = functools.lru_cache(20_000)(ip_interface)
# Host -> role -> its result. The stage replaces what a comparison adds to.
Results = Mapping[str, dict[str, RoleResult]]
# Rail, None for the host as a whole, and its value; None where it could not be read.
Value = tuple[int | None, str | None]

IDENTITY = Check(
    "consistency.identity",
    why="of two machines with one identity, one gets jobs, packets and leases of the other",
    fix="compare ansible_host and the DNS records of both names; remove one name, or correct its address",
)
"Are this host's GPUs (UUID), GUIDs of its rails, host name and machine ID unique"
ADDRESS = Check(
    "consistency.address",
    why="two nodes with one address: switches send packets for one of them to the other",
    fix="look up the address in the site's address plan, and correct the file that sets up the wrong rail",
    severity="critical",
)
"Are the addresses of this host's rails unique, over all platforms"
SUBNET = Check(
    "consistency.subnet",
    why="a rail in another subnet than the same rail of the other hosts cannot reach them, or only over the wrong leaf",
    fix="correct address and prefix of the rail in the file that sets it up, to those of the same rail of another host",
)
"""Is each rail in the subnet of the same rail of the hosts that share its other rails' subnets, and does no subnet
overlap another one"""
FIRMWARE = Check(
    "consistency.firmware",
    why="two firmwares behave differently under congestion: the slowest rail sets the pace of all",
    fix="drain this host and burn the fleet's firmware: mstflint -d ADDRESS -i FILE burn, then a reboot",
)
"""Is the firmware of each rail's NIC the declared one, else that of most hosts of the kind (profile, fabric,
product); a tie names both sides, as for all of these"""
PSID = Check(
    "consistency.psid",
    why="another PSID is another card: other speed, other firmware, other defaults",
    fix="see what card is in the slot (mlxfwmanager --query); exchange it, or declare it in busbar_firmware",
)
"Is each rail's NIC the card (PSID) that is declared, else that of most hosts of the kind"
DRIVER = Check(
    "consistency.driver",
    why="a node that missed a rollout behaves differently from the others",
    fix="set mofed_version to the release of the other hosts; then run site.yml --tags mofed for this host",
)
"Is the driver of the rails' NICs that of most hosts of the kind"
VERSION = Check(
    "consistency.version",
    why="a node that missed a rollout fails differently; ranks with different drivers or NCCL versions may hang",
    fix="install the version of the other hosts; during an upgrade, accept the difference (busbar_accepted)",
)
"Are OFED's release, kernel, NVIDIA driver, GPU model, VBIOS and NCCL libraries those of most hosts of the kind"
RAIL_ORDER = Check(
    "consistency.rail_order",
    why="rail N of one node talks to rail N of all: another order sends it through the spine",
    fix="compare the slots with another node; or name the rails' addresses in a site profile",
    severity="critical",
)
"Are the rails' PCI addresses, in order, those of most hosts of the kind"
MTU = Check(
    "consistency.mtu",
    why="two ends with different MTUs lose large packets",
    fix="set busbar_mtu once for all hosts of the fabric, then run site.yml --tags mtu for this host",
)
"Is the MTU of each Ethernet rail, and what the inventory declares for it, that of most hosts of the kind"
QOS = Check(
    "consistency.qos",
    why="a port with other settings drops packets that the other hosts send as lossless",
    fix="set busbar_roce once for all hosts of the fabric, then run site.yml --tags roce_qos for this host",
)
"Are trust, PFC and DSCP of the rails, and what the inventory declares for them, those of most hosts of the kind"
HOST = Check(
    "consistency.host",
    why="a host without results counts like one that differs",
    fix="run it again for this host when it can be reached",
)
"Could the host be compared"


@dataclass(frozen=True)
class Member:
    """One host. kind: profile and fabric. info, facts: as topology_info and others read them; None: no result.

    declared: check -> what the inventory declares. judged, changed: roles with a result in this run, and those that
    changed something.
    """

    host: str
    kind: str
    info: HostInfo | None
    facts: Mapping[str, str | None] = field(default_factory=dict)
    declared: Mapping[str, Sequence[str]] = field(default_factory=dict)
    judged: frozenset[str] = frozenset()
    changed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Comparison:
    """A row. read: the values of a host; none of what it does not have, or was not read.

    rule: "unique" among all hosts, "equal" in a kind, or "subnet". role: sets the value; what it changed in this
    run is compared by the next. site: the variable that declares the value. alike: two declarations must be equal, too.
    causes: prefixes of checks of the host itself that explain a difference. fix, severity: instead of the check's.
    """

    check: Check
    read: Callable[[Member, HostInfo], Sequence[Value]]
    rule: str = "equal"
    role: str = ""
    site: str = ""
    alike: bool = False
    causes: tuple[str, ...] = ()
    subject: str = "rails"
    fix: str | None = None
    severity: str | None = None

    def judge(
        self, state: str, want: str, have: str, fix: str | None = None, because: Finding | None = None
    ) -> Finding:
        """Return the finding on a host."""
        more = {"fix": fix or self.fix, "severity": self.severity}
        return self.check.judge(self.subject, state, printable(want), have, SOURCE, because=because, **more)


def _fact(name: str) -> Callable[[Member, HostInfo], Sequence[Value]]:
    return lambda member, info: [(None, member.facts[name])] if member.facts.get(name, "") != "" else []


def _rails(value: Callable[[RailInfo], str | None]) -> Callable[[Member, HostInfo], Sequence[Value]]:
    return lambda member, info: [(rail.number, text) for rail in info.rails if (text := value(rail)) != ""]


def _mtu(rail: RailInfo) -> str | None:
    return "" if rail.link_layer != "Ethernet" else None if rail.mtu is None else str(rail.mtu)


def _firmware(member: Member, info: HostInfo) -> Sequence[Value]:
    # A card that is not declared is a finding by its PSID.
    declared = member.declared.get(PSID.id)
    return [(rail.number, rail.firmware) for rail in info.rails if not declared or rail.psid in declared]


def _order(member: Member, info: HostInfo) -> Sequence[Value]:
    # A missing rail is a finding of platform, and makes no other order.
    complete = info.rails and not info.missing
    return [(None, " ".join(rail.pci for rail in info.rails))] if complete else []


def _interfaces(rail: RailInfo, versions: Sequence[int] = (4, 6)) -> Iterator[IPv4Interface | IPv6Interface]:
    """Yield the rail's addresses; a /32 or /128 beside others of its family is a virtual or anycast address."""
    known = [one for one in map(_parsed, rail.addresses or filter(None, [rail.address])) if not one.is_link_local]
    for version in versions:
        family = [one for one in known if one.version == version]
        yield from [one for one in family if one.network.prefixlen < one.max_prefixlen] or family


def _addresses(member: Member, info: HostInfo) -> Sequence[Value]:
    return [(rail.number, str(one.ip)) for rail in info.rails for one in _interfaces(rail)]


def _subnets(member: Member, info: HostInfo) -> Sequence[Value]:
    """Return the subnets of the addresses' family that hold more than two hosts: a /31 is of one cable."""
    found: list[Value] = []
    for rail in info.rails:
        known = _interfaces(rail, (6 if ":" in (rail.address or "") else 4,))
        networks = {str(one.network) for one in known if one.network.prefixlen < one.max_prefixlen - 1}
        found += [(rail.number, ", ".join(sorted(networks)))] if networks and rail.addresses else []
    return found


def _guids(member: Member, info: HostInfo) -> Sequence[Value]:
    return [(rail.number, f"{kind} GUID {digits}") for rail in info.rails for kind, digits in rail.guids.items()]


_GUID_FIX = (
    "compare the cards' labels with cat /sys/class/infiniband/*/node_guid; drain the node of the wrong card, restore"
    " its GUID and MAC (mstflint -d ADDRESS -guid GUID -mac MAC sg), and reset it"
)
_NAME_FIX = "run hostnamectl set-hostname NAME on the host that has the other's name"
_MACHINE_FIX = "on each clone but the first: rm /etc/machine-id, run systemd-machine-id-setup, and reboot"
_MODEL_FIX = "exchange the GPU, or give the host its own platform (busbar_platform)"
_OF_OFED = (ofed.PACKAGES.id, ofed.LOADED.id, ofed.MODULE.id)
TABLE = (
    Comparison(IDENTITY, lambda member, info: [(None, uuid) for uuid in info.gpus], "unique", subject="GPUs"),
    Comparison(IDENTITY, _guids, "unique", subject="GUIDs", fix=_GUID_FIX, severity="critical"),
    Comparison(IDENTITY, _fact("hostname"), "unique", subject="host name", fix=_NAME_FIX),
    Comparison(IDENTITY, _fact("machine_id"), "unique", subject="machine ID", fix=_MACHINE_FIX, severity="minor"),
    Comparison(ADDRESS, _addresses, "unique", causes=(rail_address.RAIL_ADDRESS.id,)),
    Comparison(SUBNET, _subnets, "subnet"),
    Comparison(FIRMWARE, _firmware, role="platform", site="busbar_firmware"),
    Comparison(PSID, _rails(lambda rail: rail.psid), role="platform", site="busbar_firmware"),
    Comparison(
        DRIVER, lambda _member, info: [(None, info.driver)] if info.rails else [], role="mofed", causes=_OF_OFED
    ),
    Comparison(VERSION, _fact("ofed"), role="mofed", causes=(ofed.PACKAGES.id,), subject="OFED", fix=DRIVER.fix),
    Comparison(VERSION, _fact("kernel"), subject="kernel", severity="minor"),
    Comparison(VERSION, _fact("gpu_driver"), causes=(GPU_DRIVER.id,), subject="NVIDIA driver"),
    Comparison(VERSION, _fact("gpu_model"), causes=(GPU_MODEL.id,), subject="GPU model", fix=_MODEL_FIX),
    Comparison(VERSION, _fact("vbios"), subject="VBIOS", severity="minor"),
    Comparison(VERSION, _fact("nccl"), subject="NCCL"),
    Comparison(RAIL_ORDER, _order, causes=(platform_checks.RAIL_DEVICE.id,)),
    Comparison(MTU, _rails(_mtu), role="mtu", site="busbar_mtu", alike=True, causes=("netdev_mtu.",)),
    Comparison(
        QOS, _rails(lambda rail: rail.qos), "equal", "roce_qos", "busbar_roce", alike=True, causes=("roce_qos.",)
    ),
)
