# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge a host's topology by its profile: the planner of the ``platform`` role. It changes nothing.

Sources: PCI Express Base Specification 7.5.3.8 (link status), NCCL src/graph (paths and PCI speed), IBTA 1, 14.2.5.6.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..core.check import Check
from ..core.finding import Finding, one_cause
from ..core.host import Problem
from ..core.plan import Plan
from . import cloud, firmware_floor, partition, pcie_link, rail_address
from .gpu import Gpu, unlisted
from .pci import PciDevice
from .profile import PcieLink, Profile, Rail
from .rail_address import Addresses
from .rails import Rails, match
from .rdma import DEVINFO, Mtus, Port
from .topology import Nic, Topology, is_far_for_want_of_numa

# Bytes: the largest that InfiniBand has, and what every ConnectX of the last ten years can.
IB_MTU = 4096


@dataclass(frozen=True)
class CrossCheck:
    """Differences of a second source about the same machine, or why it could not be read.

    lost: how many of the disagreements are RDMA devices that sysfs does not have.
    """

    source: str
    disagreements: Tuple[str, ...] = ()
    problem: Optional[Problem] = None
    lost: int = 0


_RECHECK = "then run site.yml --tags platform for this host again"
GPU_COUNT = Check(
    "platform.gpu_count",
    why="a job that expects every GPU of the node fails or runs on fewer",
    fix="look for 'fallen off the bus' (Xid 79) in dmesg, power-cycle the node, reseat or replace the GPU; " + _RECHECK,
    severity="critical",
)
"Are all GPUs on the bus"
GPU_DRIVER = Check(
    "platform.gpu_driver",
    why="a GPU that the NVIDIA driver does not have cannot be used",
    fix="check nvidia-smi and dmesg for Xid errors, load the driver (modprobe nvidia) or reset the GPU; " + _RECHECK,
    severity="critical",
)
"Does the NVIDIA driver have each GPU"
GPU_MODEL = Check(
    "platform.gpu_model",
    why="the expected bandwidth, NVLinks and paths are those of the profile's GPU model",
    fix="set busbar_platform to what this node is, or replace the GPU",
    severity="critical",
)
"Is each GPU of the profile's model"
GPU_PCIE = Check(
    "platform.gpu_pcie",
    why="a GPU slot below its width or generation halves host copies and GPUDirect",
    fix="reseat the GPU or its riser, check the BIOS slot setting; " + _RECHECK,
)
"Has each GPU's slot its full width now, and can it run at its full generation (an idle GPU trains its link down)"
GPU_TOOL = Check(
    "platform.gpu_tool",
    why="only nvidia-smi reports the state of NVLinks and of the NVSwitch fabric",
    fix="run nvidia-smi on the node; if it hangs, a GPU or the driver is stuck: drain and reboot the node",
)
"Does nvidia-smi work"
NVLINKS = Check(
    "platform.nvlinks",
    why="one inactive NVLink slows every collective of the node",
    fix="run nvidia-smi nvlink -s, check Xid 74 in dmesg, reset the GPU or reboot; " + _RECHECK,
    severity="critical",
)
"Are all NVLinks of each GPU active"
NVLINK_FABRIC = Check(
    "platform.nvlink_fabric",
    why="until the fabric is registered CUDA does not start on NVSwitch machines",
    fix="check that nvidia-fabricmanager of the driver's version runs (NVL72: on the switch trays) and is not masked"
    " (node_health.fabric_manager); read its log; " + _RECHECK,
    severity="critical",
)
"Is the NVSwitch fabric registered"
RAIL_DEVICE = Check(
    "platform.rail_device",
    why="NCCL silently uses the remaining NICs; every node of the job waits for this one",
    fix="check lspci and dmesg for the NIC, its slot and its driver (mlx5_core), reseat or replace it; " + _RECHECK,
    severity="critical",
)
"Does the rail have a NIC, with a driver and an RDMA device"
_NO_DRIVER = (
    "load the driver (modprobe -a mlx5_core mlx5_ib) and look for %s in dmesg: the reason for the refusal is there;"
    " if driverctl, vfio-pci or new_id gives it to another driver, remove that rule and reboot; " + _RECHECK
)
RAIL_STATE = Check(
    "platform.rail_state",
    why="NCCL silently skips a port that is not ACTIVE",
    fix="check the cable and the switch port (mlxlink -d ADDRESS -m shows both); " + _RECHECK,
    severity="critical",
)
"Is the rail's port ACTIVE"
# Advice by the state, or the physical state, of a port (IBTA PortInfo 14.2.5.6).
_NO_MANAGER = (
    "start or repair the subnet manager of this fabric: sminfo -C DEVICE shows whether one responds; its log is"
    " /var/log/opensm.log, or UFM has it; " + _RECHECK
)
_STATE_FIXES = {
    "INIT": _NO_MANAGER,
    "ARMED": _NO_MANAGER,
    "Disabled": "enable the port: ip link set dev INTERFACE up on Ethernet, ibportstate -C DEVICE -P PORT -D 0 PORT"
    " enable on InfiniBand; if it stays down, the switch port is disabled; " + _RECHECK,
    "LinkUp": "the cable works, but the port stays down: look for mlx5_core in dmesg, toggle the port (mlxlink -d"
    " ADDRESS --port_state TG), see whether the subnet manager isolates it; " + _RECHECK,
}
RAIL_RATE = Check(
    "platform.rail_rate",
    why="the slowest rail sets the pace of every ring",
    fix="check the cable, its transceiver and the speed set on the switch port; " + _RECHECK,
)
"Is the rail's port at full rate"
RAIL_LINK_LAYER = Check(
    "platform.rail_link_layer",
    why="a port of the other link layer is not on this fabric",
    fix="mlxconfig -d ADDRESS set LINK_TYPE_P1=1 (InfiniBand) or =2 (Ethernet), and reboot; or correct busbar_fabric",
    severity="critical",
)
"Is the rail's port of the right kind"
RAIL_PCIE = Check(
    "platform.rail_pcie",
    why="a slot below its width or generation caps the NIC; NCCL does not notice, it reads the maximum",
    fix="reseat the NIC or its riser, check the BIOS slot setting; " + _RECHECK,
)
"Has the slot of the rail's NIC its full width and generation"
PCIE_LINK = Check(
    "platform.pcie_link",
    why="the slowest link on the way sets what a GPU and its NIC, or the host, can exchange; no device reports this",
    fix="reseat what hangs below the bridge (riser, cable, switch board), check the BIOS setting of its port (speed,"
    " bifurcation) and AER errors in dmesg; " + _RECHECK,
)
"""Is each link above a GPU or a NIC, up to the CPU, as fast and as wide as both ends support, and enough for the
rails on it; not checked in a virtual machine"""
RAIL_PATH = Check(
    "platform.rail_path",
    why="GPUDirect RDMA is only used, and only fast, over the short path",
    fix="put the NIC into the slot that the profile names; if these nodes are built otherwise, draft their profile:"
    " busbar check --platform custom --write DIR",
)
"Is the rail's NIC as close to its GPUs as in the profile"
RAIL_NUMA = Check(
    "platform.rail_numa",
    why="interrupts and proxy threads land on the wrong socket",
    fix="check the BIOS (NPS, SNC, slot affinity); in a virtual machine set numa: any in a site profile",
    severity="minor",
)
"Are the rail's NIC and its GPUs on one NUMA node"
RAIL_FIRMWARE = Check(
    "platform.rail_firmware",
    why="two firmwares behave differently under congestion, and the slowest rail sets the pace of all",
    fix="on a drained node: mstflint -d ADDRESS -i FILE burn (or mlxfwmanager -u) with the image of the declared"
    " version, then mstfwreset -d ADDRESS -y reset or a reboot; " + _RECHECK,
)
"""Does the rail's NIC have the firmware that `busbar_firmware` declares for its PSID; a version that NVIDIA's
security bulletins warn of is minor; not checked without a declaration"""
RAIL_MTU = Check(
    "platform.rail_mtu",
    why="no packet of a queue pair is larger than the port's active_mtu; the subnet manager sets it to the smallest of"
    " both ends' maximum and its own configuration",
    fix="compare with max_mtu (ibv_devinfo -v) and the switch port's (smpquery portinfo); have the subnet manager allow"
    " 4096 (opensm: mtu=5 in partitions.conf), then take the port down and up; " + _RECHECK,
)
"InfiniBand: is the port's `active_mtu` 4096, which the subnet manager sets (RoCE: `netdev_mtu.active_mtu`)"
CROSS_CHECK = Check(
    "platform.cross_check",
    why="if two sources disagree, one of them is misread, and no result that is based on them is proven",
    fix="compare the named pair by hand (nvidia-smi topo -m, lspci -t) and report the case",
)
"Do `nvidia-smi topo -m` and NCCL's topology file agree with sysfs"


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
    gpus = _gpu_findings(topology, profile)
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


def _state(have: object, good: bool) -> str:
    """Return the state; an unreadable value is unknown, never ok."""
    if have is None:
        return "unknown"
    return "ok" if good else "drift"


def _or_reason(topology: Topology, value: Optional[str], *needles: str) -> Optional[str]:
    """Return the value, or the reader's reason why there is none."""
    if value is not None:
        return value
    for problem in topology.problems:
        if any(needle and needle in str(problem) for needle in needles):
            return "unreadable: %s" % problem
    return None


# -- GPUs ------------------------------------------------------------------------------------------------------------


def _gpu_findings(topology: Topology, profile: Profile) -> List[Finding]:
    want = profile.gpus
    findings: List[Finding] = []
    if want.count == 0 and not topology.gpus:
        return findings
    findings.append(_gpu_count(topology, profile))
    if not topology.gpus:
        return findings
    driver = _driver_finding(topology)
    if driver is not None:
        findings.append(driver)
    tool = _gpu_tool(topology, profile, driver)
    if tool is not None:
        findings.append(tool)
    for gpu in topology.gpus:
        findings.extend(_one_gpu(topology, profile, gpu, driver, tool))
    if want.nvlink_fabric:
        findings.append(_nvlink_fabric(topology, driver, tool))
    return findings


def _gpu_count(topology: Topology, profile: Profile) -> Finding:
    want, have = profile.gpus, [gpu.pci for gpu in topology.gpus]
    text = "%d GPUs" % len(have)
    absent = [pci for pci in want.pci if pci not in have]
    if absent:
        text += ", none at %s" % ", ".join(absent)
    return GPU_COUNT.judge(
        "gpus",
        _state(text, len(have) == want.count and not absent),
        "%d GPUs" % want.count,
        text,
        "/sys/bus/pci/devices",
    )


def _driver_finding(topology: Topology) -> Optional[Finding]:
    """Judge the driver as a whole; None if it is loaded: then each GPU is judged."""
    if topology.driver is not None:
        return None
    have = _or_reason(topology, None, "/proc/driver/nvidia/version") or "not loaded"
    # GPUs that it lists prove that it is loaded, though the version is unknown.
    state = "unknown" if any(gpu.in_driver for gpu in topology.gpus) else "drift"
    return GPU_DRIVER.judge("nvidia driver", state, "loaded", have, "/proc/driver/nvidia/version")


def _gpu_tool(topology: Topology, profile: Profile, driver: Optional[Finding]) -> Optional[Finding]:
    want = profile.gpus
    if want.nvlinks is None and not want.nvlink_fabric:
        return None
    asked = [gpu for gpu in topology.gpus if gpu.in_driver]
    answered = any(gpu.nvlinks_active is not None or gpu.fabric_state is not None for gpu in asked)
    have = "answers" if answered else _or_reason(topology, None, "nvidia-smi") or "no result for any GPU"
    state = "ok" if answered else "unknown"
    return GPU_TOOL.judge("nvidia-smi", state, "answers", have, "nvidia-smi", because=driver)


def _one_gpu(
    topology: Topology, profile: Profile, gpu: Gpu, driver: Optional[Finding], tool: Optional[Finding]
) -> List[Finding]:
    want = profile.gpus
    findings: List[Finding] = []
    subject = "%s GPU%d" % (gpu.pci, gpu.index)
    directory = "/proc/driver/nvidia/gpus/%s" % gpu.pci
    lost = driver
    if driver is None:
        have = "in the driver" if gpu.in_driver else _or_reason(topology, None, directory) or "not in the driver"
        own = GPU_DRIVER.judge(subject, "ok" if gpu.in_driver else "drift", "in the driver", have, directory)
        findings.append(own)
        lost = None if own.ok else own
    model = _or_reason(topology, gpu.model, directory)
    findings.append(
        GPU_MODEL.judge(
            subject,
            _state(gpu.model, gpu.model in want.models),
            " or ".join(want.models),
            model,
            directory + "/information",
            because=lost,
        )
    )
    if want.pcie is not None:
        findings.append(_pcie(GPU_PCIE, topology, gpu.device, subject, want.pcie, idle_speed_varies=True))
    if want.nvlinks is not None:
        have_links = None
        if gpu.nvlinks_active is not None:
            have_links = "%d active" % gpu.nvlinks_active
        findings.append(
            NVLINKS.judge(
                subject,
                _state(gpu.nvlinks_active, gpu.nvlinks_active == want.nvlinks),
                "%d active" % want.nvlinks,
                _or_reason(topology, have_links, gpu.pci, "nvidia-smi"),
                "nvidia-smi nvlink -s",
                because=lost or _if_bad(tool) or _unlisted(topology, [gpu]),
            )
        )
    return findings


def _nvlink_fabric(topology: Topology, driver: Optional[Finding], tool: Optional[Finding]) -> Finding:
    """Return one finding for the node: the fabric manager registers all GPUs or none."""
    asked = [gpu for gpu in topology.gpus if gpu.in_driver]
    states = sorted({"%s/%s" % (gpu.fabric_state, gpu.fabric_status or "-") for gpu in asked if gpu.fabric_state})
    unread = [gpu for gpu in asked if gpu.fabric_state is None]
    good = all(gpu.fabric_state == "Completed" and gpu.fabric_status in (None, "Success") for gpu in asked)
    have: Optional[str] = ", ".join(states)
    if unread or not asked:
        have = _or_reason(topology, None, "fabric", "nvidia-smi")
    return NVLINK_FABRIC.judge(
        "nvlink fabric",
        "unknown" if unread or not asked else _state(have, good),
        "Completed/Success on every GPU",
        have,
        "nvidia-smi --query-gpu=fabric.state,fabric.status",
        because=driver or _if_bad(tool) or _unlisted(topology, unread),
    )


def _unlisted(topology: Topology, gpus: Sequence[Gpu]) -> Optional[str]:
    """Return the id of node_health's finding (its module imports this one) on the first GPU that nvidia-smi omits."""
    lost = [gpu.pci for gpu in gpus if any(one == unlisted(one.source, gpu.pci) for one in topology.problems)]
    return "node_health.gpu_count[live]@%s" % lost[0] if lost else None


def _if_bad(finding: Optional[Finding]) -> Optional[Finding]:
    return None if finding is None or finding.ok else finding


def _pcie(
    check: Check, topology: Topology, device: PciDevice, subject: str, want: PcieLink, idle_speed_varies: bool
) -> Finding:
    """Judge the current width, and a NIC's current speed; an idle GPU lowers its speed, so its maximum counts."""
    speed = device.max_speed_gts if idle_speed_varies else device.current_speed_gts
    width = device.current_width
    have = None
    good = False
    if speed is not None and width is not None:
        have = "%g GT/s x%d" % (speed, width)
        if not idle_speed_varies and device.max_speed_gts is not None and device.max_width is not None:
            have += " (slot and card allow %g GT/s x%d)" % (device.max_speed_gts, device.max_width)
        good = speed >= want.speed_gts and width >= want.width
    return check.judge(
        subject,
        _state(have, good),
        str(want),
        _or_reason(topology, have, device.address),
        "%s/%s, current_link_width" % (device.source, "max_link_speed" if idle_speed_varies else "current_link_speed"),
    )


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
        _state(have, trained and enough),
        want,
        _or_reason(topology, have, link.lower, link.upper),
        "%s/current_link_speed, current_link_width" % link.source,
        fix=fix or None,
    )


# -- rails -----------------------------------------------------------------------------------------------------------


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
    down = _if_bad(findings[-1])
    findings.append(_rail_rate(topology, rail, nic, port, source, down))
    layer = port.link_layer if port else None
    state, have = _state(layer, layer in rail.link_layers), _or_reason(topology, layer, source)
    cause, place = down if layer is None else None, source + "/link_layer"
    kind = RAIL_LINK_LAYER.judge(nic.label, state, "/".join(rail.link_layers), have, place, because=cause)
    findings.append(kind)
    if rail.pcie is not None:
        findings.append(_pcie(RAIL_PCIE, topology, nic.device, nic.label, rail.pcie, idle_speed_varies=False))
    findings.extend(_rail_paths(topology, rail, nic, rails, gpu_count))
    if port is not None and port.link_layer == "Ethernet":
        findings.append(rail_address.judge_gid(nic, port, source, *gids, down or _if_bad(kind)))
    return findings


def _where(rail: Rail) -> str:
    if rail.pci:
        return " at %s" % rail.pci
    return " at " + " and ".join("%s of GPU %d" % (path, index) for index, path in sorted(rail.paths.items()))


def _port_state(topology: Topology, nic: Nic, port: Optional[Port], source: str) -> Finding:
    have = None
    if port is not None and port.state is not None:
        have = port.state + (" (%s)" % port.phys_state if port.phys_state else "")
    return RAIL_STATE.judge(
        nic.label,
        _state(have, port is not None and port.state == "ACTIVE"),
        "ACTIVE",
        _or_reason(topology, have, source),
        source + "/state",
        fix=_STATE_FIXES.get(port.state or "") or _STATE_FIXES.get(port.phys_state or "") if port else None,
    )


def _one_cause_for_no_manager(rails: Rails, findings: Sequence[Finding]) -> List[Finding]:
    """Make all ports that wait for a subnet manager follow from the first of them: one manager serves them all."""
    waiting = {nic.label for nic in rails.nics.values() if nic.port and nic.port.state in ("INIT", "ARMED")}
    same = [one for one in findings if one.check == RAIL_STATE.id and one.subject in waiting]
    return [replace(one, because=same[0].id) if one in same[1:] else one for one in findings]


def _rail_rate(
    topology: Topology, rail: Rail, nic: Nic, port: Optional[Port], source: str, down: Optional[Finding]
) -> Finding:
    rate = port.rate_gbps if port else None
    have = None
    if port is not None and rate is not None:
        have = "%g Gbit/s" % rate + (" (%s)" % port.rate_name if port.rate_name else "")
    return RAIL_RATE.judge(
        nic.label,
        _state(rate, rate == rail.rate_gbps),
        "%g Gbit/s" % rail.rate_gbps,
        _or_reason(topology, have, source),
        source + "/rate",
        because=down,
    )


def _rail_paths(topology: Topology, rail: Rail, nic: Nic, rails: Rails, gpu_count: Optional[Finding]) -> List[Finding]:
    """Judge path and NUMA node to each GPU that the profile puts near this rail."""
    want = ", ".join("GPU %d: %s" % item for item in sorted(rail.paths.items()))
    if not rail.paths:
        return []
    if rails.gpus is None or any(index not in rails.gpus for index in rail.paths):
        have = "GPUs are missing"
        checks = [RAIL_PATH, *([RAIL_NUMA] if rail.numa == "same" else [])]
        return [check.judge(nic.label, "unknown", want, have, nic.device.source, because=gpu_count) for check in checks]
    gpus = rails.gpus
    seen = {index: topology.paths.get((gpus[index].pci, nic.pci)) for index in sorted(rail.paths)}
    have_text = ", ".join("GPU %d: %s" % item for item in seen.items())
    unsure = any(is_far_for_want_of_numa(topology, gpus[index], nic) for index in seen)
    known = None if unsure or None in seen.values() else have_text
    findings = [
        RAIL_PATH.judge(
            nic.label,
            _state(known, all(seen[index] == path for index, path in rail.paths.items())),
            want,
            _or_reason(topology, known, nic.pci),
            nic.device.source,
        )
    ]
    if rail.numa == "same":
        findings.append(_rail_numa(topology, nic, [gpus[index] for index in sorted(rail.paths)]))
    return findings


def _rail_numa(topology: Topology, nic: Nic, gpus: Sequence[Gpu]) -> Finding:
    node = nic.device.numa_node
    others = [gpu.device.numa_node for gpu in gpus]
    known = node is not None and None not in others
    return RAIL_NUMA.judge(
        nic.label,
        ("ok" if all(other == node for other in others) else "drift") if known else "unknown",
        "the NUMA node of %s"
        % ", ".join(
            "GPU %d (%s)" % (gpu.index, "unknown" if other is None else other) for gpu, other in zip(gpus, others)
        ),
        _or_reason(topology, "node %d" % node if node is not None else None, nic.pci + "/numa_node")
        or "unknown to the firmware (-1)",
        nic.device.source + "/numa_node",
    )


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


# -- all -------------------------------------------------------------------------------------------------------


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
