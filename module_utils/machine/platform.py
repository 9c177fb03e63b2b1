# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge a host's topology by its profile: the planner of the ``platform`` role. It changes nothing.

Sources: NCCL src/graph (paths and PCI speed), IBTA 1, 14.2.5.6.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..core.check import Check
from ..core.finding import Finding, one_cause
from ..core.host import Problem
from ..core.plan import Plan
from . import cloud, firmware_floor, partition, pcie_link, rail_address
from .gpu import Gpu
from .platform_checks import (
    CROSS_CHECK,
    GPU_COUNT,
    GPU_DRIVER,
    GPU_TOOL,
    PCIE_LINK,
    RAIL_DEVICE,
    RAIL_FIRMWARE,
    RAIL_LINK_LAYER,
    RAIL_MTU,
    RAIL_NUMA,
    RAIL_PATH,
    RAIL_PCIE,
    RAIL_RATE,
    RAIL_STATE,
    RECHECK,
)
from .platform_gpus import if_bad, judge_gpus, judge_pcie, or_reason, state_of
from .profile import Profile, Rail
from .rail_address import Addresses
from .rails import Rails, match
from .rdma import DEVINFO, Mtus, Port
from .topology import Nic, Topology, is_far_for_want_of_numa

# Bytes: the largest that InfiniBand has, and what every ConnectX of the last ten years can.
IB_MTU = 4096

_NO_DRIVER = (
    "load the driver (modprobe -a mlx5_core mlx5_ib) and look for %s in dmesg: the reason for the refusal is there;"
    " if driverctl, vfio-pci or new_id gives it to another driver, remove that rule and reboot; " + RECHECK
)

# Advice by the state, or the physical state, of a port (IBTA PortInfo 14.2.5.6).
_NO_MANAGER = (
    "start or repair the subnet manager of this fabric: sminfo -C DEVICE shows whether one responds; its log is"
    " /var/log/opensm.log, or UFM has it; " + RECHECK
)

_STATE_FIXES = {
    "INIT": _NO_MANAGER,
    "ARMED": _NO_MANAGER,
    "Disabled": "enable the port: ip link set dev INTERFACE up on Ethernet, ibportstate -C DEVICE -P PORT -D 0 PORT"
    " enable on InfiniBand; if it stays down, the switch port is disabled; " + RECHECK,
    "LinkUp": "the cable works, but the port stays down: look for mlx5_core in dmesg, toggle the port (mlxlink -d"
    " ADDRESS --port_state TG), see whether the subnet manager isolates it; " + RECHECK,
}


@dataclass(frozen=True)
class CrossCheck:
    """Differences of a second source about the same machine, or why it could not be read.

    lost: how many of the disagreements are RDMA devices that sysfs does not have.
    """

    source: str
    disagreements: Tuple[str, ...] = ()
    problem: Optional[Problem] = None
    lost: int = 0


def plan(
    topology: Topology,
    profile: Profile,
    cross_checks: Sequence[CrossCheck] = (),
    address_family: str = "ipv4",
    addresses: Addresses = None,
    mtus: Optional[Mtus] = None,
    site: Optional[Mapping[str, Any]] = None,
    keys: Optional[partition.Tables] = None,
) -> Plan:
    """Return findings for everything the profile wants of this topology. ``profile`` is narrowed to the fabric already.

    address_family: which RoCE v2 address a rail must have, "ipv4" or "ipv6".   addresses: of interfaces, for its GIDs.
    mtus: of the InfiniBand ports, None if not wanted.
    site: the site's values by name, typed; None without a site, as for the draft of a profile.
    keys: partition keys of the ports, None if not wanted.
    """
    rails = match(topology, profile)
    gpus = judge_gpus(topology, profile)
    roots = {finding.check: finding for finding in gpus if not finding.ok and finding.because is None}
    findings = list(gpus)
    # There the topology file defines distances: nccl_conf.topo_file.
    hidden = profile.topology_file and topology.virtualization.is_vm
    for rail in profile.rails if not hidden else [replace(rail, paths={}) for rail in profile.rails]:
        findings += _rail_findings(topology, rail, rails, (address_family, addresses), roots.get(GPU_COUNT.id))
    findings.extend(_between(topology, link) for link in pcie_link.inner_links(topology, rails, profile.rails))
    findings.extend(_rail_firmware(profile, rails, (site or {}).get("busbar_firmware") or {}))
    findings = _one_cause_for_no_manager(rails, findings)
    if mtus is not None:
        findings.extend(_rail_mtus(profile, rails, mtus, findings))
    if keys is not None:
        nics = [rails.nics[rail.number] for rail in profile.rails if rail.number in rails.nics]
        findings.extend(partition.judge(nics, keys, partition.wanted(site or {}), _port_causes(findings)))
    findings.extend(rail_address.judge(profile, rails, addresses))
    for cross in cross_checks:
        gone = [f for f in findings if f.check == RAIL_DEVICE.id and not f.ok]
        gone = gone if 0 < cross.lost == len(cross.disagreements) else []
        cause = roots.get(GPU_TOOL.id) or roots.get(GPU_DRIVER.id) or next(iter(gone), None)
        findings.append(_cross_finding(cross, cause))
    return Plan(findings=cloud.with_efa(topology, _one_cause_for_no_nic(topology, profile, findings)))


def all_missing(topology: Topology, profile: Profile, *checks: Check) -> List[Finding]:
    """Return findings of these checks that are not ok: files must not shrink to the devices that are left."""
    ids = [check.id for check in checks]
    return [f for f in plan(topology, profile).findings if f.check in ids and not f.ok]


def missing(topology: Topology, profile: Profile, *checks: Check) -> Optional[Finding]:
    """Return the first of them."""
    return next(iter(all_missing(topology, profile, *checks)), None)


def _between(topology: Topology, link: pcie_link.InnerLink) -> Finding:
    """Judge a link above GPUs and NICs: the most that both its ends can, and enough for its rails."""
    now, possible = link.now, link.possible
    want = "%s, as both ends can" % possible if possible else "as fast and as wide as both ends can"
    trained = (
        now is not None and possible is not None and now.speed_gts >= possible.speed_gts and now.width >= possible.width
    )
    enough = now is not None and pcie_link.gbps(now) >= link.needs
    have, fix = None, ""
    if now is not None and possible is not None:
        have = str(now)
        if trained and not enough:
            want = "%g Gbit/s for one rail" % link.needs
            have += ", all that both ends can: %.0f Gbit/s" % pcie_link.gbps(now)
            better = "put GPU and NIC below one switch" if link.pairs else "use a slot with a faster link to the CPU"
            fix = "look for a BIOS setting that limits the speed of %s; else %s, or correct the rail's rate in the"
            fix = (fix + " profile") % (link.upper, better)
        if not trained or not enough:
            over = "between %s" % ", ".join(name for name, _rate in link.pairs)
            have += "; it slows what goes %s" % (over if link.pairs else "from %s to the host" % ", ".join(link.behind))
    return PCIE_LINK.judge(
        "%s below %s" % (link.lower, link.upper),
        state_of(have, trained and enough),
        want,
        or_reason(topology, have, link.lower, link.upper),
        "%s/current_link_speed, current_link_width" % link.source,
        fix=fix or None,
    )


def _rail_findings(
    topology: Topology, rail: Rail, rails: Rails, gids: Tuple[str, Addresses], gpu_count: Optional[Finding]
) -> List[Finding]:
    nic = rails.nics.get(rail.number)
    want = "a %g Gbit/s %s NIC%s" % (rail.rate_gbps, "/".join(rail.link_layers), _where(rail))
    if nic is None:
        bare = rails.without_rdma.get(rail.number)
        return [
            RAIL_DEVICE.judge(
                rail.label,
                "drift",
                want,
                rails.missing[rail.number],
                "/sys/bus/pci/devices, /sys/class/infiniband",
                fix=_NO_DRIVER % bare.address if bare else None,
                because=gpu_count if rails.gpus is None else None,
            )
        ]
    findings = [
        RAIL_DEVICE.judge(rail.label, "ok", want, nic.label, "/sys/class/infiniband"),
    ]
    port = nic.port
    source = "%s/ports/%d" % (nic.rdma.source, port.number) if nic.rdma and port else nic.device.source
    findings.append(_port_state(topology, nic, port, source))
    down = if_bad(findings[-1])
    findings.append(_rail_rate(topology, rail, nic, port, source, down))
    layer = port.link_layer if port else None
    state, have = state_of(layer, layer in rail.link_layers), or_reason(topology, layer, source)
    cause, place = down if layer is None else None, source + "/link_layer"
    kind = RAIL_LINK_LAYER.judge(nic.label, state, "/".join(rail.link_layers), have, place, because=cause)
    findings.append(kind)
    if rail.pcie is not None:
        findings.append(judge_pcie(RAIL_PCIE, topology, nic.device, nic.label, rail.pcie, idle_speed_varies=False))
    findings.extend(_rail_paths(topology, rail, nic, rails, gpu_count))
    if port is not None and port.link_layer == "Ethernet":
        findings.append(rail_address.judge_gid(nic, port, source, *gids, down or if_bad(kind)))
    return findings


def _where(rail: Rail) -> str:
    if rail.pci:
        return " at %s" % rail.pci
    return " at " + " and ".join("%s of GPU %d" % (path, index) for index, path in sorted(rail.paths.items()))


def _port_state(topology: Topology, nic: Nic, port: Optional[Port], source: str) -> Finding:
    have = fix = None
    if port is not None:
        have = port.state and port.state + (" (%s)" % port.phys_state if port.phys_state else "")
        fix = _STATE_FIXES.get(port.state or "") or _STATE_FIXES.get(port.phys_state or "")
    state = state_of(have, port is not None and port.state == "ACTIVE")
    return RAIL_STATE.judge(nic.label, state, "ACTIVE", or_reason(topology, have, source), source + "/state", fix)


def _one_cause_for_no_manager(rails: Rails, findings: Sequence[Finding]) -> List[Finding]:
    """Make all ports that wait for a subnet manager follow from the first of them: one manager serves them all."""
    waiting = {nic.label for nic in rails.nics.values() if nic.port and nic.port.state in ("INIT", "ARMED")}
    same = [one for one in findings if one.check == RAIL_STATE.id and one.subject in waiting]
    return [replace(one, because=same[0].id) if one in same[1:] else one for one in findings]


def _rail_rate(
    topology: Topology, rail: Rail, nic: Nic, port: Optional[Port], source: str, down: Optional[Finding]
) -> Finding:
    rate, have = port.rate_gbps if port else None, None
    if port is not None and rate is not None:
        have = "%g Gbit/s" % rate + (" (%s)" % port.rate_name if port.rate_name else "")
    state, want = state_of(rate, rate == rail.rate_gbps), "%g Gbit/s" % rail.rate_gbps
    return RAIL_RATE.judge(nic.label, state, want, or_reason(topology, have, source), source + "/rate", because=down)


def _rail_paths(topology: Topology, rail: Rail, nic: Nic, rails: Rails, gpu_count: Optional[Finding]) -> List[Finding]:
    """Judge path and NUMA node to each GPU that the profile puts near this rail."""
    want, source = ", ".join("GPU %d: %s" % item for item in sorted(rail.paths.items())), nic.device.source
    if not rail.paths:
        return []
    if rails.gpus is None or any(index not in rails.gpus for index in rail.paths):
        have = "GPUs are missing"
        checks = [RAIL_PATH, *([RAIL_NUMA] if rail.numa == "same" else [])]
        return [check.judge(nic.label, "unknown", want, have, source, because=gpu_count) for check in checks]
    gpus = {index: rails.gpus[index] for index in sorted(rail.paths)}
    seen = {index: topology.paths.get((gpu.pci, nic.pci)) for index, gpu in gpus.items()}
    unsure = None in seen.values() or any(is_far_for_want_of_numa(topology, gpu, nic) for gpu in gpus.values())
    known = None if unsure else ", ".join("GPU %d: %s" % item for item in seen.items())
    state = state_of(known, all(seen[index] == path for index, path in rail.paths.items()))
    findings = [RAIL_PATH.judge(nic.label, state, want, or_reason(topology, known, nic.pci), source)]
    return findings + ([_rail_numa(topology, nic, list(gpus.values()))] if rail.numa == "same" else [])


def _rail_numa(topology: Topology, nic: Nic, gpus: Sequence[Gpu]) -> Finding:
    node, source = nic.device.numa_node, nic.device.source + "/numa_node"
    others = {gpu.index: gpu.device.numa_node for gpu in gpus}
    state = "ok" if all(other == node for other in others.values()) else "drift"
    if node is None or None in others.values():
        state = "unknown"
    shown = ("GPU %d (%s)" % (index, "unknown" if other is None else other) for index, other in others.items())
    have = or_reason(topology, None if node is None else "node %d" % node, nic.pci + "/numa_node")
    want = "the NUMA node of %s" % ", ".join(shown)
    return RAIL_NUMA.judge(nic.label, state, want, have or "unknown to the firmware (-1)", source)


def _rail_mtus(profile: Profile, rails: Rails, mtus: Mtus, so_far: Sequence[Finding]) -> List[Finding]:
    """Judge InfiniBand rails. netdev_mtu judges Ethernet ports, whose MTU follows from the interface."""
    want, source = "%d bytes" % IB_MTU, " ".join(DEVINFO)
    asked = [(nic, nic.port) for nic in (rails.nics.get(rail.number) for rail in profile.rails) if nic]
    ports = [(nic, port) for nic, port in asked if port is not None and port.link_layer == "InfiniBand" and nic.rdma]
    if ports and isinstance(mtus, Problem):
        fix = "install or run %s on the node and read its output" % source
        return [RAIL_MTU.judge(source, "unknown", want, str(mtus), source, fix=fix)]
    down = _port_causes(so_far)
    findings = []
    for nic, port in ports:
        found = mtus.get((nic.rdma.name, port.number)) if nic.rdma and not isinstance(mtus, Problem) else None
        have, state = "%s does not show this port" % source, "unknown"
        if found is not None:
            have, state = "%d bytes" % found.active, "ok" if found.active >= IB_MTU else "drift"
            if found.largest < IB_MTU:
                have, state = "%s, and the port has at most %d" % (have, found.largest), "unsupported"
        findings.append(RAIL_MTU.judge(nic.label, state, want, have, source, because=down.get(nic.pci)))
    return findings


def _port_causes(so_far: Sequence[Finding]) -> Dict[str, Finding]:
    """Return PCI address of a NIC -> why its port is not up."""
    return {one.identity: one for one in so_far if one.check == RAIL_STATE.id and not one.ok}


def _rail_firmware(profile: Profile, rails: Rails, declared: Mapping[str, str]) -> Tuple[Finding, ...]:
    """Judge firmware. declared: PSID -> version; {} if the site declares none. Equal unknowns have one cause."""
    findings = []
    for nic in [rails.nics[rail.number] for rail in profile.rails if declared and rail.number in rails.nics]:
        if nic.rdma is None:
            continue
        board, have = nic.rdma.board_id, nic.rdma.firmware
        want, fix = declared.get(board or ""), None
        if want is None:
            fix = "declare the version of PSID %s in busbar_firmware, or put in the card that is declared" % board
        state = "unknown" if want is None or have is None else "ok" if have == want else "drift"
        least = firmware_floor.below(have) if state == "ok" else None
        severity, why = None, None
        if least is not None:
            state, want, severity = "drift", "%s or newer" % least, "minor"
            why = "a local user with a virtual function can run code on this firmware (%s)" % firmware_floor.SOURCE
            fix = "declare %s or newer for PSID %s in busbar_firmware, then %s" % (least, board, RAIL_FIRMWARE.fix)
        have = "%s of PSID %s" % (have or "unreadable", board or "unreadable")
        source = "%s/fw_ver, board_id" % nic.rdma.source
        want = want or "a declared version"
        findings.append(RAIL_FIRMWARE.judge(nic.label, state, want, have, source, fix, why=why, severity=severity))
    return one_cause(findings, ("unknown",))


def _cross_finding(cross: CrossCheck, tool: Optional[Finding]) -> Finding:
    agree = not cross.disagreements and cross.problem is None
    have = "agrees" if agree else "; ".join(cross.disagreements) or str(cross.problem)
    return CROSS_CHECK.judge(
        cross.source, "ok" if agree else "unknown", "agrees with sysfs", have, cross.source, because=tool
    )


def _one_cause_for_no_nic(topology: Topology, profile: Profile, findings: Sequence[Finding]) -> Tuple[Finding, ...]:
    """Make missing rails of a host without any RDMA NIC follow from the first: it has one fault."""
    absent = [f for f in findings if f.check == RAIL_DEVICE.id and not f.ok]
    if len(absent) < 2 or len(absent) < len(profile.rails) or any(nic.rdma for nic in topology.nics):
        return tuple(findings)
    bare = len(topology.without_rdma)
    root = RAIL_DEVICE.judge(
        "rails",
        "drift",
        "%d RDMA NICs" % len(profile.rails),
        "no RDMA device" + (", and %d NICs without one on the bus" % bare if bare else ""),
        "/sys/class/infiniband",
        fix="load the RDMA driver (mlx5_core, mlx5_ib); if this node has no RDMA NIC, give it a profile without rails",
    )
    return (root,) + tuple(replace(f, because=root.id) if f in absent else f for f in findings)
