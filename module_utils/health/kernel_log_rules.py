# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Table of the kernel log's lines that matter: meaning, severity, the line that ends it, what to do.

The first rule that matches a line takes it. Sources: printed strings of Linux 5.4 to 6.16 (mlx5_core cmd.c, health.c,
events.c, main.c, en_main.c; net sch_generic.c; pci aer.c, err.c, dpc.c, pciehp_ctrl.c; iommu dmar.c, AMD iommu.c,
arm-smmu-v3.c; mce core.c, ghes.c, cper.c, edac_mc.c; watchdog.c, tree_stall.h, hung_task.c, oom_kill.c; sunrpc clnt.c,
nvme pci.c, ext4 super.c, xfs) and of NVIDIA's open driver 535 to 595 (nv.c, kernel_gsp.c, osinit.c).
"""

from __future__ import annotations

import re
from typing import Mapping, NamedTuple, Optional, Tuple

from . import xid

# Severities: of findings; of lines that mean nothing, or end others.
CRITICAL, MAJOR, MINOR, NONE = "critical", "major", "minor", ""
# Rules of Xid and SXid, and of the driver's loading.
XID, LOADED = "xid.event", "gpu.loaded"


class Rule(NamedTuple):
    """name: its part before the dot (xid, gpu, nic, pcie, kernel, storage) decides which check it belongs to.

    pattern: its last group that matched is the device.   meaning: for a person.
    ended_by: rules, by blanks, whose later line about the same device ends it; a GPU's ends as well when the driver
    needs nothing for it any more.   ended: its severity then.
    repeats: its severity where it comes more than once an hour.
    boot: seconds after boot, or after the start of the device's driver, in which the line is normal.
    """

    name: str
    severity: str
    pattern: str
    meaning: str = ""
    fix: str = ""
    ended_by: str = ""
    ended: str = NONE
    repeats: str = ""
    boot: float = 0.0


_PCI = r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
# Some lines lack the device.
_MLX5 = r"mlx5_(?:core %s)?.*?" % _PCI
_AER = r"%s: (?:AER: (?:Multiple )?|(?:AER: )?PCIe Bus Error: severity=)Uncorrect(?:ed|able) \(%%s\)" % _PCI
_AER += r"(?: error (?:message )?received(?: from|:) %s)?" % _PCI
_FIRMWARE = r"\[Hardware Error\]: .*event severity: %%s.*section_type: PCIe error.*device_id: %s" % _PCI
_SLOT = r"%s: pciehp: Slot\(\S+\): " % _PCI
_STALL = r"(?:soft lockup|hard LOCKUP|workqueue lockup|rcu.*(?:detected (?:expedited )?stalls|self-detected stall))"
# ``Oops: 0002 [#1]``, ``general protection fault: 0000 [#1]``: a program's fault has no such number.
_OOPS = r": [0-9a-fA-F]{1,16} \[#[0-9]{1,4}\]"
_HUNG = r"task .* blocked (?:for|in I/O wait for) more than"
_FRAME = r".*\[(?:mlx5_|nvidia|ib_|rdma_)\w*\]"
_NIC = "drain the node and reboot it; if it returns, power-cycle the node, update the NIC's firmware, then replace it"
_SEAT = "drain the node, reseat the device, its riser or cable, and power-cycle the node; replace what fails again"
_PLUG = "reseat and clean the module or cable; replace it if the error returns"
_COOL_CPU = "check the node's fans, air intake and cooling loop, and the CPUs' power limit in the BIOS"
_COOL = "check the node's fans and the airflow of the NIC, and reseat the module"
_GPU = "drain the node and reboot it; if the GPU is still missing, power-cycle the node, then reseat or replace the GPU"
_BIOS = "enable Above 4G Decoding in the BIOS and boot the node"
_PART = "read the BMC's event log for the DIMM or CPU, drain the node, have that part replaced, and boot the node"
_CPU = "drain the node and reboot it; update the driver that the stack in the log names"
_WAIT = "run ps -eo pid,stat,wchan:32,cmd to see what the process waits for; repair that, or reboot the node"
_DISK = (
    "check the drive (nvme smart-log, smartctl), drain the node, replace the drive if it has failed, and boot the node"
)
_NFS = "restore the file server, or the network path to it"
_SERVER = "the file server does not respond"
_OOM = "give jobs a memory limit (ConstrainRAMSpace=yes in cgroup.conf), and reboot: a service may have been killed"
_IOMMU = "set what role iommu requires (iommu=pt, ACS off on the path) and reboot; if it continues, update the driver"
# fmt: off
RULES: Tuple[Rule, ...] = (
    Rule(XID, NONE, r"NVRM: Xid \(|SXid \(|NVRM: (?:The NVIDIA )?GPU .*[0-9].*fallen off the bus"),
    Rule(LOADED, NONE, r"NVRM: loading "),
    # -- the NVIDIA driver, without a number
    Rule("gpu.lost", CRITICAL, r"NVRM: .*(?:fallen off the bus|GPU_IS_LOST|GPU is lost|GPU lost from the bus)",
         "the driver has lost a GPU", _GPU),
    Rule("gpu.reset", CRITICAL,
         r"NVRM: (?:GPU %s)?.*(?:NV_ERR_RESET_REQUIRED|Reset required \[" % _PCI +
         r"|GPU at PCI:%s.*(?:needs to be reset|CHIP_RESET)|.*uvm encountered global fatal error)" % _PCI,
         "the driver refuses work until the GPU is reset", _GPU, "", MAJOR),
    Rule("gpu.init", CRITICAL,
         r"NVRM: (?:GPU %s: )?(?:RmInitAdapter failed|rm_init_adapter failed|RmInitAdapter: Cannot)" % _PCI,
         "the driver cannot initialise the GPU", _GPU, "", MAJOR),
    Rule("gpu.probe", CRITICAL,
         r"NVRM: (?:The NVIDIA probe routine (?:failed|was not called)|No NVIDIA (?:devices|GPU))",
         "the driver could not take over every GPU", _GPU),
    Rule("gpu.region", CRITICAL, r"NVRM: This PCI I/O region assigned to your NVIDIA device is invalid",
         "the firmware has given a GPU no memory region", _BIOS),
    Rule("gpu.gsp", CRITICAL,
         r"NVRM: .*(?:GSP.{0,20}\b[Tt]imeout|[Tt]imeout.{0,40}\bGSP|waiting for RPC|CrashCat|eartbeat timed)",
         "a GPU's system processor (GSP) does not respond", _GPU),
    # -- the NICs' driver
    Rule("nic.started", NONE, _MLX5 + r"(?:firmware version: (?!65535)|re[cv]overy succe)"),
    Rule("nic.command_late", NONE, _MLX5 + r"(?:recovered|completion arrived) after timeout"),
    Rule("nic.plugged", NONE, _MLX5 + r"Port module event: module [0-9]+, Cable plugged"),
    Rule("nic.power_enough", NONE, _MLX5 + r"advertised sufficient power"),
    Rule("nic.recovery", CRITICAL, _MLX5 + r"health recovery (?:failed|flow aborted)",
         "the NIC could not be brought back", _NIC, "nic.started", MAJOR),
    Rule("nic.command", CRITICAL, _MLX5 +
         r"(?:Will cause a leak of a command|No done completion|Async, timeout|canceled on out of queue|cmd\[\w+\]:"
         r" timeout|[A-Z0-9_]{3,40}\(0x[0-9a-f]+\) timeout)", "the NIC's firmware does not respond to commands",
         _NIC, "nic.command_late nic.started", MAJOR),
    Rule("nic.hot", MAJOR, _MLX5 + r"(?:High temperature on sensors|Health issue observed, [Hh]igh temp|synd 0x10:"
         r"|Port module event ?\[error\]: .*High Temp)", "the NIC or its module is too hot", _COOL),
    Rule("nic.health", CRITICAL, _MLX5 +
         r"(?:health compromised|Health issue observed, .*severity\([0-3]\)|Fatal error [0-9]+ detected"
         r"|(?<!ext_)synd 0x[1-9a-f][0-9a-f]?: (?!unrecogni)|handling bad device|PCI slot is unavailable)",
         "the NIC's firmware or hardware has failed", _NIC, "nic.started", MAJOR),
    Rule("nic.warning", MAJOR, _MLX5 + r"Health issue observed, .*severity\(4\)",
         "the NIC's firmware warns of its health", _NIC, "nic.started"),
    Rule("nic.module", MAJOR, _MLX5 + r"Port module event ?\[error\]", "the NIC refuses its cable or module", _PLUG,
         "nic.plugged"),
    Rule("nic.unplugged", MINOR, _MLX5 + r"Port module event: module [0-9]+, Cable unplugged",
         "a cable or module was unplugged", _PLUG, "nic.plugged", boot=60.0),
    Rule("nic.power", MINOR, _MLX5 + r"Detected insufficient power on the PCIe slot",
         "the PCIe slot provides too little power for the NIC", _SEAT, "nic.power_enough", boot=60.0),
    Rule("nic.queue", MAJOR, r"NETDEV WATCHDOG: (\S+) \(mlx5_core[^)]{0,60}\): trans|%s \S+: NETDEV WATCHDOG: |" % _PCI
         + _MLX5 + r"[TR]X timeout (?:detected|on )", "a queue of the interface timed out", _NIC, repeats=CRITICAL),
    Rule("nic.probe", CRITICAL, r"mlx5_core: probe of %s failed with error -(?!517)|" % _PCI + _MLX5 +
         r"(?:probe with driver \S+ failed with error -(?!517)|mlx5_\w+ failed with error code|MS in \S+ state)",
         "the driver gave up on the NIC", _NIC, "nic.started"),
    # -- PCIe and the IOMMU: of GPUs, rails' NICs and the bridges above
    Rule("pcie.up", NONE, _SLOT + r"(?:Link Up|Card present)(?!.*ignored)"),
    Rule("pcie.fatal", CRITICAL, "%s|%s" % (_AER % "Fatal", _FIRMWARE % "fatal"), "fatal PCIe error", _SEAT),
    Rule("pcie.nonfatal", MAJOR, "%s|%s" % (_AER % "Non-Fatal", _FIRMWARE % "recoverable"), "PCIe packets were lost",
         _SEAT),
    Rule("pcie.recovery", CRITICAL, _PCI + r": AER: (?:can't recover|device recovery failed|.* reset failed)",
         "the device was not recovered after a PCIe error", _SEAT),
    Rule("pcie.dpc", CRITICAL, _PCI + r": DPC: containment event", "a PCIe error has cut the link", _SEAT),
    Rule("pcie.hotplug", CRITICAL, _SLOT + r"(?:Link Down(?!.*ignored)|Card not present|Power fault)",
         "the link to the device went down", _SEAT, "pcie.up", MAJOR),
    Rule("pcie.gone", CRITICAL, _PCI + r": (?:Unable to|can't) change power state .*inaccessible",
         "the device does not respond on the bus", _SEAT),
    Rule("pcie.iommu", MAJOR,
         r"DMAR: .*Request device \[([0-9a-f:.]{7,12})\]|AMD-Vi: Event logged \[\w+.*? device=([0-9a-f:.]{7,17})"
         r"|%s: AMD-Vi: Event logged \[|arm-smmu\S* .*event: \w+ client: (\S+)" % _PCI,
         "the IOMMU has refused the device's access to memory", _IOMMU, boot=120.0),
    # Kernels before 6.14 do not name the device.
    Rule("pcie.smmu", MINOR, r"arm-smmu\S* .*event 0x[0-9a-f]+ received", "the IOMMU has refused a device's access to"
         " memory", _IOMMU, boot=120.0),
    # -- the kernel
    Rule("kernel.machine_check", CRITICAL,
         r"CPU [0-9]+: Machine Check Exception|\{[0-9]+\}\[Hardware Error\]: .*event severity: fatal"
         r"|EDAC .*MC[0-9]+: [0-9]+ UE |\[Hardware Error\]: System Fatal",
         "uncorrected error of a CPU, its memory or bus", _PART),
    Rule("kernel.hardware_error", MAJOR,
         r"\[Hardware Error\]: .*event severity: (?:fatal|recoverable)|\[Hardware Error\]: Uncorrected"
         r"|Uncorrected hardware memory error|Memory failure: .*: (?:Failed|Ignored)",
         "recovered error of a CPU, its memory or bus, or one of the previous boot", _PART),
    Rule("kernel.iommu_timeout", MAJOR,
         r"DMAR: .*Invalidation Time-?out|AMD-Vi: Completion-Wait loop timed out|arm-smmu.*CMD_SYNC timeout",
         "the IOMMU does not respond", _CPU),
    Rule("kernel.crash_driver", CRITICAL, _OOPS + _FRAME, "a driver of the network path has crashed (oops)", _CPU),
    Rule("kernel.crash", MAJOR, _OOPS, "a part of the kernel has crashed (oops)", _CPU),
    Rule("kernel.lockup", CRITICAL, _STALL + _FRAME, "a CPU locked up in a driver of the network path", _CPU),
    Rule("kernel.stall", MAJOR, _STALL, "a CPU locked up", _CPU),
    Rule("kernel.hung_driver", MAJOR, r"task nv_queue\S* blocked|" + _HUNG + _FRAME,
         "a process hangs in a driver of the network path", _CPU),
    Rule("kernel.hung_storage", NONE, _HUNG + r".*\[(?:nfs|sunrpc|lustre|ptlrpc)"),
    Rule("kernel.hung_task", MINOR, _HUNG, "a process hangs in the kernel", _WAIT),
    Rule("kernel.cpu_cool", NONE, r"CPU[0-9]+: \w+ temperature/speed normal"),
    Rule("kernel.cpu_hot", MINOR, r"CPU[0-9]+: \w+ temperature (?:is )?above threshold, cpu clock (?:is )?throttled",
         "CPUs slow down by heat", _COOL_CPU, "kernel.cpu_cool"),
    Rule("kernel.out_of_memory", MAJOR, r"\bOut of memory(?: \(oom_kill_allocating_task\))?: Kill",
         "the node ran out of memory and the kernel has ended a process", _OOM),
    # -- storage
    Rule("storage.nfs_ok", NONE, r"(?:nfs|lockd): server (\S+) OK"),
    Rule("storage.nfs", MAJOR, r"(?:nfs|lockd): server (\S+) not responding", _SERVER, _NFS, "storage.nfs_ok"),
    Rule("storage.lustre_ok", NONE, r"Lustre: (\S+): Connection restored to"),
    Rule("storage.lustre", MAJOR, r"Lustre(?:Error: 166-1)?: (\S+): Connection to .* was lost", _SERVER, _NFS,
         "storage.lustre_ok"),
    Rule("storage.ceph_ok", NONE, r"ceph: (?:\[.*\]: *)?(mds[0-9]+) (?:came back|recovery completed)"),
    Rule("storage.ceph", MAJOR, r"ceph: (?:\[.*\]: *)?(mds[0-9]+) hung", _SERVER, _NFS, "storage.ceph_ok"),
    Rule("storage.nvme_ok", NONE, r"nvme (nvme[0-9]+): .*default/read/poll queues"),
    Rule("storage.nvme_dead", MAJOR,
         r"nvme (nvme[0-9]+): (?:Disabling device after reset|Device not ready; aborting|Removing after probe)",
         "the drive is dead", _DISK),
    Rule("storage.nvme", MAJOR,
         r"nvme (nvme[0-9]+): (?:controller is down|I/O .*timeout, (?:reset|disable) cont|starting error recovery)",
         "the drive had to be reset", _DISK, "storage.nvme_ok", MINOR),
    Rule("storage.read_only", MAJOR,
         r"\((\S+)\): Remounting filesystem read-only|XFS \((\S+)\): .*(?:hut(?:ting)? down|log I/O error)"
         r"|EXT4-fs error \(device (\S+)\)|BTRFS .*\(device ([\w-]+).*forced readonly",
         "the file system was set read-only or shut down after an error", _DISK),
    Rule("storage.io_error", MAJOR,
         r"(?:Buffer I/O error on dev(?:ice)? |(?:I/O|critical medium) error, dev |md/raid\S+ Disk failure on )"
         r"(?!fd|sr|sd|loop)(\w+)", "the drive does not read or write", _DISK),
)
# fmt: on
BY_NAME: Mapping[str, Rule] = {rule.name: rule for rule in RULES}
# What a line needs to be looked at: words of the rules, and the frames of a stack, which name the module.
WORDS = (
    *("NVRM", "SXid", "mlx5", "NETDEV WATCHDOG", "pciehp", "AER: ", "PCIe Bus", "DPC: "),
    *("inaccessible", "DMAR: ", "AMD-Vi: ", "smmu", "Hardware Error", "EDAC", "hardware mem", "Memory fail", "lockup"),
    *("LOCKUP", "rcu", "blocked", "[#", "ut of memory", "server ", "nvme", "ilesystem"),
    *("EXT4-fs", "XFS", "BTRFS", "I/O error", "medium error", "md/raid", "Lustre", "ceph: ", "temperature"),
    *("[nvidia", "[ib_", "[rdma_", "[nfs", "[sunrpc", "[lustre", "[ptlrpc"),
)
_COMPILED = tuple((rule.name, re.compile(rule.pattern)) for rule in RULES)


def match_line(text: str) -> Optional[Tuple[str, str]]:
    """Return the name of the rule that takes a line, and the line's device, "" where it names none."""
    for name, pattern in _COMPILED:
        found = pattern.search(text)
        event = xid.parse(text) if found is not None and name == XID else None
        if event is not None:
            return name, event.key
        if found is not None and name != XID:
            device = next((group for group in reversed(found.groups()) if group), "")
            return name, device.lower() if name.startswith(("nic.", "pcie.", "gpu.")) else device
    return None
