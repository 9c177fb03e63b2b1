# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge a host's topology by its profile: the planner of the ``platform`` role. It changes nothing.

Sources: NCCL src/graph (paths and PCI speed), IBTA 1, 14.2.5.6, PCI Express Base Specification 7.5.3.8 (link status).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from ..core.check import Check
from ..core.finding import Finding, one_cause
from ..core.host import Problem
from ..core.plan import Plan
from . import partition, pcie_link, rail_address
from . import platform_checks as checks
from .gpu import GPUS, VERSION, Gpu, unlisted
from .pci import PciDevice
from .platform_checks import RAIL_DEVICE, RAIL_STATE, RECHECK
from .profile import GpuProfile, PcieLink, Profile, Rail
from .rail_address import Addresses
from .rails import Rails, match
from .rdma import DEVINFO, Mtus, Port
from .topology import Nic, Topology, is_far_for_want_of_numa

# Bytes: the largest that InfiniBand has, and what every ConnectX of the last ten years can.
IB_MTU = 4096
_NVLINK, _FABRIC = "nvidia-smi nvlink -s", "nvidia-smi --query-gpu=fabric.state,fabric.status"

_NO_DRIVER = (
    "load the driver (modprobe -a mlx5_core mlx5_ib), look for %s in dmesg, and remove a rule (driverctl, vfio-pci,"
    " new_id) that gives it to another driver; " + RECHECK
)
# Advice by the state, or the physical state, of a port (IBTA PortInfo 14.2.5.6).
_NO_MANAGER = "start or repair the subnet manager (sminfo -C DEVICE shows whether one responds); " + RECHECK
_STATE_FIXES = {
    "INIT": _NO_MANAGER,
    "ARMED": _NO_MANAGER,
    "Disabled": "enable the port: ip link set dev INTERFACE up on Ethernet, ibportstate -C DEVICE -P PORT -D 0 PORT"
    " enable on InfiniBand; if it stays down, the switch port is disabled; " + RECHECK,
    "LinkUp": "the cable works, but the port stays down: look for mlx5_core in dmesg, toggle the port (mlxlink -d"
    " ADDRESS --port_state TG), see whether the subnet manager isolates it; " + RECHECK,
}


class CrossCheck(NamedTuple):
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
    findings = _judge_gpus(topology, profile)
    roots = {finding.check: finding for finding in findings if not finding.ok and finding.because is None}
    # There the topology file defines distances: nccl_conf.topo_file.
    hidden = profile.topology_file and topology.virtualization.is_vm
    for rail in profile.rails if not hidden else [replace(rail, paths={}) for rail in profile.rails]:
        findings += _rail_findings(topology, rail, rails, (address_family, addresses), roots.get(checks.GPU_COUNT.id))
    findings.extend(_between(topology, link) for link in pcie_link.inner_links(topology, rails, profile.rails))
    nics = [rails.nics[rail.number] for rail in profile.rails if rail.number in rails.nics]
    findings.extend(_rail_firmware(nics, (site or {}).get("busbar_firmware") or {}))
    # One subnet manager serves all ports that wait for it.
    waiting = {nic.label for nic in nics if nic.port and nic.port.state in ("INIT", "ARMED")}
    findings = _caused_by_first(findings, lambda one: one.check == RAIL_STATE.id and one.subject in waiting)
    down = {one.identity: one for one in findings if one.check == RAIL_STATE.id and not one.ok}
    if mtus is not None:
        findings.extend(_rail_mtus(nics, mtus, down))
    if keys is not None:
        findings.extend(partition.judge(nics, keys, partition.wanted(site or {}), down))
    findings.extend(rail_address.judge(profile, rails, addresses))
    findings += [_cross_check(cross, findings, roots) for cross in cross_checks]
    return Plan(tuple(_with_efa(topology, _one_cause_for_no_nic(topology, profile, findings))))


def _cross_check(cross: CrossCheck, findings: Sequence[Finding], roots: Mapping[str, Finding]) -> Finding:
    gone = [f for f in findings if f.check == RAIL_DEVICE.id and not f.ok]
    gone = gone if 0 < cross.lost == len(cross.disagreements) else []
    cause = roots.get(checks.GPU_TOOL.id) or roots.get(checks.GPU_DRIVER.id) or next(iter(gone), None)
    agree = not cross.disagreements and cross.problem is None
    have = "agrees" if agree else "; ".join(cross.disagreements) or str(cross.problem)
    state, want = "ok" if agree else "unknown", "agrees with sysfs"
    return checks.CROSS_CHECK.judge(cross.source, state, want, have, cross.source, because=cause)


def all_missing(topology: Topology, profile: Profile, *wanted: Check) -> List[Finding]:
    """Return findings of these checks that are not ok: files must not shrink to the devices that are left."""
    ids = [check.id for check in wanted]
    return [f for f in plan(topology, profile).findings if f.check in ids and not f.ok]


def missing(topology: Topology, profile: Profile, *wanted: Check) -> Optional[Finding]:
    """Return the first of them."""
    return next(iter(all_missing(topology, profile, *wanted)), None)


def _caused_by_first(findings: Sequence[Finding], same: Callable[[Finding], bool]) -> List[Finding]:
    """Make findings that have one cause follow from the first of them."""
    first = next((one for one in findings if same(one)), None)
    return [replace(one, because=first.id) if first and one is not first and same(one) else one for one in findings]


def _between(topology: Topology, link: pcie_link.InnerLink) -> Finding:
    """Judge a link above GPUs and NICs: the most that both its ends can, and enough for its rails."""
    now, possible = link.now, link.possible
    want = "%s as both ends can" % ("%s," % possible if possible else "as fast and as wide")
    have, fix, good = None, None, False
    if now is not None and possible is not None:
        trained, rate = now.speed_gts >= possible.speed_gts and now.width >= possible.width, pcie_link.gbps(now)
        good, have = trained and rate >= link.needs, str(now)
        if trained and not good:
            want = "%g Gbit/s for one rail" % link.needs
            have += ", all that both ends can: %.0f Gbit/s" % rate
            better = "put GPU and NIC below one switch" if link.pairs else "use a slot with a faster link to the CPU"
            fix = "look for a BIOS setting that limits the speed of %s; else %s, or correct " % (link.upper, better)
            fix += "the rail's rate in the profile"
        if not good:
            over = "between %s" % ", ".join(name for name, _rate in link.pairs)
            have += "; it slows what goes %s" % (over if link.pairs else "from %s to the host" % ", ".join(link.behind))
    subject, source = "%s below %s" % (link.lower, link.upper), link.source + "/current_link_speed, current_link_width"
    return _judge(checks.PCIE_LINK, topology, subject, want, have, good, source, [link.lower, link.upper], fix=fix)


def _rail_findings(
    topology: Topology, rail: Rail, rails: Rails, gids: Tuple[str, Addresses], gpu_count: Optional[Finding]
) -> List[Finding]:
    nic = rails.nics.get(rail.number)
    at = [rail.pci] if rail.pci else ["%s of GPU %d" % (path, index) for index, path in sorted(rail.paths.items())]
    want = "a %g Gbit/s %s NIC at %s" % (rail.rate_gbps, "/".join(rail.link_layers), " and ".join(at)) + rail.place
    if nic is None:
        bare, source = rails.without_rdma.get(rail.number), "/sys/bus/pci/devices, /sys/class/infiniband"
        have, fix = rails.missing[rail.number], _NO_DRIVER % bare.address if bare else None
        because = gpu_count if rails.gpus is None else None
        return [RAIL_DEVICE.judge(rail.label, "drift", want, have, source, fix, because)]
    findings = [RAIL_DEVICE.judge(rail.label, "ok", want, nic.label, "/sys/class/infiniband")]
    port = nic.port
    source = "%s/ports/%d" % (nic.rdma.source, port.number) if nic.rdma and port else nic.device.source
    state, rate, kind = _port_findings(topology, rail, nic, port, source)
    findings += [state, rate, kind]
    if rail.pcie is not None:
        findings.append(_judge_pcie(checks.RAIL_PCIE, topology, nic.device, nic.label, rail.pcie, False))
    findings += _rail_paths(topology, rail, nic, rails, gpu_count) if rail.paths else []
    if port is not None and port.link_layer == "Ethernet":
        cause = _if_bad(state) or _if_bad(kind)
        findings.append(rail_address.judge_gid(nic, port, source, *gids, cause))
    return findings


def _port_findings(
    topology: Topology, rail: Rail, nic: Nic, port: Optional[Port], source: str
) -> Tuple[Finding, Finding, Finding]:
    """Judge state, rate and link layer."""

    def judge(check: Check, name: str, want: str, have: Optional[str], good: bool, down: Optional[Finding]) -> Finding:
        place, fix = "%s/%s" % (source, name), fixes.get(check.id)
        return _judge(check, topology, nic.label, want, have, good, place, [source], down, fix)

    link, phys, layer = (port.state, port.phys_state, port.link_layer) if port else (None, None, None)
    fixes = {RAIL_STATE.id: _STATE_FIXES.get(link or "") or _STATE_FIXES.get(phys or "")}
    have = link and link + (" (%s)" % phys if phys else "")
    state = judge(RAIL_STATE, "state", "ACTIVE" + rail.place, have, link == "ACTIVE", None)
    gbps = port.rate_gbps if port else None
    have = None if gbps is None else "%g Gbit/s" % gbps + (" (%s)" % port.rate_name if port and port.rate_name else "")
    rate = judge(checks.RAIL_RATE, "rate", "%g Gbit/s" % rail.rate_gbps, have, gbps == rail.rate_gbps, state)
    layers, down = "/".join(rail.link_layers), state if layer is None else None
    kind = judge(checks.RAIL_LINK_LAYER, "link_layer", layers, layer, layer in rail.link_layers, down)
    return state, rate, kind


def _rail_paths(topology: Topology, rail: Rail, nic: Nic, rails: Rails, gpu_count: Optional[Finding]) -> List[Finding]:
    """Judge path and NUMA node to each GPU that the profile puts near this rail."""
    want, source = ", ".join("GPU %d: %s" % item for item in sorted(rail.paths.items())), nic.device.source
    wanted = [checks.RAIL_PATH, *([checks.RAIL_NUMA] if rail.numa == "same" else [])]
    gpus = {index: rails.gpus[index] for index in sorted(rail.paths) if rails.gpus and index in rails.gpus}
    if len(gpus) < len(rail.paths):
        have = "GPUs are missing"
        return [check.judge(nic.label, "unknown", want, have, source, because=gpu_count) for check in wanted]
    seen = {index: topology.paths.get((gpu.pci, nic.pci)) for index, gpu in gpus.items()}
    unsure = None in seen.values() or any(is_far_for_want_of_numa(topology, gpu, nic) for gpu in gpus.values())
    known = None if unsure else ", ".join("GPU %d: %s" % item for item in seen.items())
    findings = [_judge(checks.RAIL_PATH, topology, nic.label, want, known, seen == rail.paths, source, [nic.pci])]
    if rail.numa != "same":
        return findings
    node, nodes = nic.device.numa_node, {index: gpu.device.numa_node for index, gpu in gpus.items()}
    state = "unknown" if None in (node, *nodes.values()) else "ok" if {*nodes.values()} == {node} else "drift"
    text = ", ".join("GPU %d (%s)" % (at, "unknown" if other is None else other) for at, other in nodes.items())
    value = _or_reason(topology, None if node is None else "node %d" % node, nic.pci + "/numa_node")
    value, want = value or "unknown to the firmware (-1)", "the NUMA node of " + text
    return [*findings, checks.RAIL_NUMA.judge(nic.label, state, want, value, source + "/numa_node")]


def _rail_mtus(nics: Sequence[Nic], mtus: Mtus, down: Mapping[str, Finding]) -> List[Finding]:
    """Judge InfiniBand rails. netdev_mtu judges Ethernet ports, whose MTU follows from the interface."""
    want, source = "%d bytes" % IB_MTU, " ".join(DEVINFO)
    ports = [
        (nic, (nic.rdma.name, nic.port.number))
        for nic in nics
        if nic.rdma and nic.port and nic.link_layer == "InfiniBand"
    ]
    if ports and isinstance(mtus, Problem):
        fix = "install or run %s on the node and read its output" % source
        return [checks.RAIL_MTU.judge(source, "unknown", want, str(mtus), source, fix=fix)]
    findings = []
    for nic, port in ports:
        found = None if isinstance(mtus, Problem) else mtus.get(port)
        have, state = "%s does not show this port" % source, "unknown"
        if found is not None:
            have, state = "%d bytes" % found.active, "ok" if found.active >= IB_MTU else "drift"
            if found.largest < IB_MTU:
                have, state = "%s, and the port has at most %d" % (have, found.largest), "unsupported"
        findings.append(checks.RAIL_MTU.judge(nic.label, state, want, have, source, because=down.get(nic.pci)))
    return findings


def _rail_firmware(nics: Sequence[Nic], declared: Mapping[str, str]) -> Tuple[Finding, ...]:
    """Judge firmware. declared: PSID -> version; {} if the site declares none. Equal unknowns have one cause."""
    findings = []
    for nic, device in [(nic, nic.rdma) for nic in nics if declared and nic.rdma]:
        board, have = device.board_id, device.firmware
        want, fix = declared.get(board or ""), None
        if want is None:
            fix = "declare the version of PSID %s in busbar_firmware, or put in the card that is declared" % board
        state = "unknown" if want is None or have is None else "ok" if have == want else "drift"
        have = "%s of PSID %s" % (have or "unreadable", board or "unreadable")
        source, want = "%s/fw_ver, board_id" % device.source, want or "a declared version"
        findings.append(checks.RAIL_FIRMWARE.judge(nic.label, state, want, have, source, fix))
    return one_cause(findings, ("unknown",))


def _one_cause_for_no_nic(topology: Topology, profile: Profile, findings: Sequence[Finding]) -> List[Finding]:
    """Make missing rails of a host without any RDMA NIC follow from the first: it has one fault."""
    absent = [f for f in findings if f.check == RAIL_DEVICE.id and not f.ok]
    if len(absent) < 2 or len(absent) < len(profile.rails) or any(nic.rdma for nic in topology.nics):
        return [*findings]
    bare = len(topology.without_rdma)
    want = "%d RDMA NICs" % len(profile.rails)
    have = "no RDMA device" + (", and %d NICs without one on the bus" % bare if bare else "")
    fix = "load the RDMA driver (mlx5_core, mlx5_ib); if this node has no RDMA NIC, give it a profile without rails"
    root = RAIL_DEVICE.judge("rails", "drift", want, have, "/sys/class/infiniband", fix)
    return _caused_by_first([root, *findings], lambda one: one is root or one in absent)


def _with_efa(topology: Topology, findings: List[Finding]) -> List[Finding]:
    """Return the findings; if there are EFAs, that comes first, and causes missing rails."""
    if not topology.efa:
        return findings
    have = "%d Elastic Fabric Adapters, the first at %s" % (len(topology.efa), topology.efa[0])
    root = checks.EFA.judge("efa", "unsupported", "ConnectX or BlueField", have, "/sys/bus/pci/devices")

    def caused(one: Finding) -> bool:
        return one is root or (one.check.startswith("platform.rail_") and not one.ok and one.because is None)

    return _caused_by_first([root, *findings], caused)


# -- GPUs -----------------------------------------------------------------------------------------------------------


def _or_reason(topology: Topology, value: Optional[str], *needles: str) -> Optional[str]:
    """Return the value, or the reader's reason why there is none."""
    if value is not None:
        return value
    for problem in topology.problems:
        if any(needle and needle in str(problem) for needle in needles):
            return "unreadable: %s" % problem
    return None


def _judge(
    check: Check,
    topology: Topology,
    subject: str,
    want: str,
    have: Optional[str],
    good: bool,
    source: str,
    needles: Sequence[str] = (),
    because: Union[Finding, str, None] = None,
    fix: Optional[str] = None,
) -> Finding:
    """Judge a value. One that could not be read is unknown, for the reason that names one of the needles or the source.

    needles: parts of a reader's problem.
    """
    state = "unknown" if have is None else "ok" if good else "drift"
    have = _or_reason(topology, have, *(needles or [source]))
    return check.judge(subject, state, want, have, source, fix, because)


def _if_bad(finding: Optional[Finding]) -> Optional[Finding]:
    return None if finding is None or finding.ok else finding


def _judge_pcie(
    check: Check, topology: Topology, device: PciDevice, subject: str, want: PcieLink, idle_speed_varies: bool
) -> Finding:
    """Judge the current width, and a NIC's current speed; an idle GPU lowers its speed, so its maximum counts."""
    name = "max_link_speed" if idle_speed_varies else "current_link_speed"
    speed, width = device.max_speed_gts if idle_speed_varies else device.current_speed_gts, device.current_width
    have, good = None, False
    if speed is not None and width is not None:
        have = "%g GT/s x%d" % (speed, width)
        if not idle_speed_varies and device.max_speed_gts is not None and device.max_width is not None:
            have += " (slot and card allow %g GT/s x%d)" % (device.max_speed_gts, device.max_width)
        good = speed >= want.speed_gts and width >= want.width
    source = "%s/%s, current_link_width" % (device.source, name)
    return _judge(check, topology, subject, str(want), have, good, source, [device.address])


def _judge_gpus(topology: Topology, profile: Profile) -> List[Finding]:
    """Judge all GPUs of the host; [] if the profile wants none and there is none."""
    want = profile.gpus
    if want.count == 0 and not topology.gpus:
        return []
    findings = [_gpu_count(topology, profile)]
    if topology.gpus:
        driver = _driver_finding(topology)
        tool = _gpu_tool(topology, profile, driver)
        findings += [one for one in (driver, tool) if one is not None]
        for gpu in topology.gpus:
            findings += _judge_gpu(topology, want, gpu, driver, tool)
        findings += [_nvlink_fabric(topology, driver, tool)] if want.nvlink_fabric else []
    return findings


def _gpu_count(topology: Topology, profile: Profile) -> Finding:
    want, have = profile.gpus, [gpu.pci for gpu in topology.gpus]
    absent = [pci for pci in want.pci if pci not in have]
    text = "%d GPUs" % len(have) + (", none at %s" % ", ".join(absent) if absent else "")
    state = "ok" if len(have) == want.count and not absent else "drift"
    return checks.GPU_COUNT.judge("gpus", state, "%d GPUs" % want.count, text, "/sys/bus/pci/devices")


def _driver_finding(topology: Topology) -> Optional[Finding]:
    """Judge the driver as a whole; None if it is loaded: then each GPU is judged."""
    if topology.driver is not None:
        return None
    have = _or_reason(topology, None, VERSION) or "not loaded"
    # GPUs that it lists prove that it is loaded, though the version is unknown.
    state = "unknown" if any(gpu.in_driver for gpu in topology.gpus) else "drift"
    return checks.GPU_DRIVER.judge("nvidia driver", state, "loaded", have, VERSION)


def _gpu_tool(topology: Topology, profile: Profile, driver: Optional[Finding]) -> Optional[Finding]:
    want = profile.gpus
    if want.nvlinks is None and not want.nvlink_fabric:
        return None
    asked = [gpu for gpu in topology.gpus if gpu.in_driver]
    answered = any(gpu.nvlinks_active is not None or gpu.fabric_state is not None for gpu in asked)
    have = "answers" if answered else _or_reason(topology, None, "nvidia-smi") or "no result for any GPU"
    return checks.GPU_TOOL.judge(
        "nvidia-smi", "ok" if answered else "unknown", "answers", have, "nvidia-smi", because=driver
    )


def _judge_gpu(
    topology: Topology, want: GpuProfile, gpu: Gpu, driver: Optional[Finding], tool: Optional[Finding]
) -> List[Finding]:
    findings: List[Finding] = []
    subject, directory = "%s GPU%d" % (gpu.pci, gpu.index), "%s/%s" % (GPUS, gpu.pci)
    lost = driver
    if driver is None:
        have = "in the driver" if gpu.in_driver else _or_reason(topology, None, directory) or "not in the driver"
        own = checks.GPU_DRIVER.judge(subject, "ok" if gpu.in_driver else "drift", "in the driver", have, directory)
        findings.append(own)
        lost = _if_bad(own)
    source = directory + "/information"
    good = gpu.model in want.models
    models = " or ".join(want.models)
    findings.append(_judge(checks.GPU_MODEL, topology, subject, models, gpu.model, good, source, [directory], lost))
    if want.pcie is not None:
        findings.append(_judge_pcie(checks.GPU_PCIE, topology, gpu.device, subject, want.pcie, idle_speed_varies=True))
    if want.nvlinks is not None:
        active = None if gpu.nvlinks_active is None else "%d active" % gpu.nvlinks_active
        because, links = lost or _if_bad(tool) or _unlisted(topology, [gpu]), "%d active" % want.nvlinks
        needles, good = [gpu.pci, "nvidia-smi"], gpu.nvlinks_active == want.nvlinks
        findings.append(_judge(checks.NVLINKS, topology, subject, links, active, good, _NVLINK, needles, because))
    return findings


def _nvlink_fabric(topology: Topology, driver: Optional[Finding], tool: Optional[Finding]) -> Finding:
    """Return one finding for the node: the fabric manager registers all GPUs or none."""
    asked = [gpu for gpu in topology.gpus if gpu.in_driver]
    unread = [gpu for gpu in asked if gpu.fabric_state is None]
    states = sorted({"%s/%s" % (gpu.fabric_state, gpu.fabric_status or "-") for gpu in asked})
    have = None if unread or not asked else ", ".join(states)
    good = all(gpu.fabric_state == "Completed" and gpu.fabric_status in (None, "Success") for gpu in asked)
    because = driver or _if_bad(tool) or _unlisted(topology, unread)
    want, needles = "Completed/Success on every GPU", ["fabric", "nvidia-smi"]
    return _judge(checks.NVLINK_FABRIC, topology, "nvlink fabric", want, have, good, _FABRIC, needles, because)


def _unlisted(topology: Topology, gpus: Sequence[Gpu]) -> Optional[str]:
    """Return the id of node_health's finding (its module imports this one) on the first GPU that nvidia-smi omits."""
    lost = [gpu.pci for gpu in gpus if any(one == unlisted(one.source, gpu.pci) for one in topology.problems)]
    return "node_health.gpu_count[live]@%s" % lost[0] if lost else None
