# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the kernel's log means: each planted line is one finding about the right device, and no harmless one is any."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.health import judge_kernel_log, kernel_log, smi, xid
from ansible_collections.busbar.fabric.plugins.module_utils.health.kernel_log_rules import (
    BY_NAME,
    WORDS,
    events,
    match_line,
)
from ansible_collections.busbar.fabric.plugins.module_utils.health.node import Have
from ansible_collections.busbar.fabric.plugins.module_utils.machine.profile import Profile
from ansible_collections.busbar.fabric.plugins.module_utils.machine.topology import Topology

from tests import smi_answers
from tests.unit.conftest import Edit

# GPU 2 and rail 2 below one bridge; a NIC of the storage network; an NVSwitch.
GPU, NIC, BRIDGE, OTHER, SWITCH = "0000:30:00.0", "0000:31:00.0", "0000:2e:01.0", "0000:c5:00.0", "0000:c1:00.0"
UPTIME = 400_000.0
# The second port of the rail's card.
PORT_1, TX = f"{NIC[:-1]}1", f"mlx5_core {NIC} ib2: TX timeout detected"
MLX = f"mlx5_core {NIC}: "
NVLINK = f"NVRM: Xid (PCI:{GPU[:-2]}): "
FRAMES = "\n RIP: 0010:mlx5e_napi_poll+0x32/0x4a0 [mlx5_core]\n Call Trace:\n  net_rx_action+0x12/0x40"


@pytest.fixture
def path(infiniband: Topology) -> Topology:
    def below(device: object) -> object:
        return replace(device, ancestors=("pci0000:2e", BRIDGE))  # type: ignore[type-var]

    gpus = [replace(gpu, device=below(gpu.device)) if gpu.pci == GPU else gpu for gpu in infiniband.gpus]  # type: ignore[arg-type]
    nics = [replace(nic, device=below(nic.device)) if nic.pci == NIC else nic for nic in infiniband.nics]  # type: ignore[arg-type]
    first = infiniband.nics[0]
    netdev = replace(first.netdevs[0], name="eno9", pci=OTHER)
    assert first.rdma is not None
    storage = replace(first, pci=OTHER, role="storage", rdma=replace(first.rdma, name="mlx5_9"), netdevs=(netdev,))
    storage = replace(storage, device=replace(first.device, address=OTHER))
    paths = {**infiniband.paths, **{(gpu.pci, OTHER): "SYS" for gpu in gpus}}
    return replace(infiniband, gpus=tuple(gpus), nics=(*nics, storage), paths=paths)


def read(text: str, at: float = UPTIME - 3600.0) -> kernel_log.Log:
    """A log of lines with ``at`` seconds, a tenth later each; lines that begin with a time keep it."""
    lines = ["[    0.000000] Linux version 6.8.0-60-generic"]
    for number, line in enumerate(text.splitlines()):
        own, _sign, rest = line.partition("| ")
        lines.append(f"[{float(own):.6f}] {rest}" if rest else f"[{at + number / 10:.6f}] {line}")
    log, _first = kernel_log.parse("\n".join(lines), WORDS, match_line, UPTIME - 86400.0)
    return replace(log, uptime=UPTIME)


def have(text: str, topology: Topology) -> Have:
    log = read(text)
    gpus = {gpu.pci: gpu for gpu in smi.parse(smi_answers.xml([gpu.pci for gpu in topology.gpus]))}
    return Have(now=1e9, boot_id="b", gpus=gpus, log=log, events=events(log))


def judged(text: str, topology: Topology, profile: Profile) -> list[Finding]:
    others, xids = judge_kernel_log.plan(have(text, topology), topology, judge_kernel_log.places(topology, profile))
    return [finding for finding in (*xids.values(), *others) if not finding.ok]


ROOTS = [
    # -- Xid and SXid
    (f"{NVLINK}79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "xid", "critical", GPU),
    (f"NVRM: GPU {GPU}: GPU has fallen off the bus.", "xid", "critical", GPU),
    (
        f"NVRM: The NVIDIA GPU {GPU}\nNVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "NVRM: fallen off the bus and is not responding to commands.",
        *("xid", "critical", GPU),
    ),
    (f"{NVLINK}74, pid=7, name=x, NVLink: fatal error detected on link 3(0x1, 0x0)", "xid", "critical", GPU),
    (f"{NVLINK}149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x0)", "xid", "critical", GPU),
    (f"{NVLINK}145, RLW_REMAP Fatal XC1 i0 Link 17 (0x04084507 0x00000040 0x0)", "xid", "critical", GPU),
    (f"{NVLINK}144, SAW_MVB Fatal XC0 i0 Link 00 (0x00000021 0x00000002 0x0)", "xid", "critical", GPU),
    (f"{NVLINK}150, MSE_WATCHDOG Fatal XC0 i0 Link -1 (0x0 0x0)", "xid", "critical", GPU),
    (f"{NVLINK}16, Head 00000000 Count 00000000", "xid", "major", GPU),
    (f"{NVLINK}78, vGPU start error", "xid", "major", GPU),
    (f"{NVLINK}54, aux power", "xid", "critical", GPU),
    (f"{NVLINK}173, C2C link", "xid", "critical", GPU),
    (f"{NVLINK}4711, something new", "xid", "major", GPU),
    (f"{NVLINK}45, pid=9, name=py, Ch 00000008 caused by previous Xid 79", "xid", "critical", GPU),
    (f"{NVLINK}45, pid=9, name=py, Ch 00000008 caused by previous Xid 149", "xid", "major", GPU),
    (f"nvidia-nvswitch3: SXid (PCI:{SWITCH}): 22013, Fatal, Link 46 Minion Link DLREQ", "xid", "critical", SWITCH),
    (f"nvidia-nvswitch0: SXid (PCI:{SWITCH}): 20034, LTSSM Fault Up", "xid", "critical", SWITCH),
    (f"nvidia-nvswitch2: SXid (PCI:{SWITCH}): 20034, Severity 1 Engine instance 60", "xid", "critical", SWITCH),
    (f"nvidia-nvswitch2: SXid (PCI:{SWITCH}): 30007, Module 3 failed boot", "xid", "major", SWITCH),
    # -- the NVIDIA driver without a number; of a GPU that the driver asks nothing for any more it is over
    ("NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned",)
    + ("gpu_driver", "critical", "NVIDIA driver"),
    (f"NVRM: GPU {GPU}: RmInitAdapter failed! (0x62:0x40:1860)", "gpu_driver", "major", GPU),
    (f"NVRM: GPU {GPU}: rm_init_adapter failed, device minor number 3", "gpu_driver", "major", GPU),
    ("NVRM: The NVIDIA probe routine failed for -1 device(s).", "gpu_driver", "critical", "NVIDIA driver"),
    ("NVRM: The NVIDIA probe routine was not called for 1 device(s).", "gpu_driver", "critical", "NVIDIA driver"),
    (f"NVRM: Rate limiting GSP RPC errors for GPU at PCI:{GPU[:-2]} (1 of 30).  The GPU likely needs to be reset",)
    + ("gpu_driver", "major", GPU),
    ("NVRM: nvCheckOkFailedNoLog: Check failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0F)",)
    + ("gpu_driver", "critical", "NVIDIA driver"),
    ("NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:", "gpu_driver", "critical", "NVIDIA driver"),
    ("NVRM: _kgspRpcRecvPoll: Timeout after 45s of waiting for RPC response from GPU2 GSP!",)
    + ("gpu_driver", "critical", "NVIDIA driver"),
    ("NVRM: GPU at PCI:0000:b3:00: GPU_IN_FULLCHIP_RESET", "gpu_driver", "critical", "0000:b3:00"),
    ("NVRM: GPU 0000:b3:00.0: RmInitAdapter failed! (0x62:0x40:1860)", "gpu_driver", "critical", "0000:b3:00.0"),
    # -- mlx5
    ("mlx5_port_module_event:1131:(pid 0): Port module event[error]: module 0, Cable error, High Temperature",)
    + ("nic_driver", "major", "mlx5_core"),
    (MLX + "wait_func:1009:(pid 812): ACCESS_REG(0x805) timeout. Will cause a leak of a command resource",)
    + ("nic_driver", "critical", NIC),
    (MLX + "cb_timeout_handler:880:(pid 9): cmd[3]: CREATE_MKEY(0x200) Async, timeout. Will cause a leak of a command",)
    + ("nic_driver", "critical", NIC),
    (MLX + "wait_func_handle_exec_timeout:1146:(pid 9): cmd[0]: DESTROY_EQ(0x302) No done completion",)
    + ("nic_driver", "critical", NIC),
    (MLX + "wait_func:1100:(pid 9): 2RST_QP(0x50a) canceled on out of queue timeout.", "nic_driver", "critical", NIC),
    (MLX + "poll_health:825:(pid 0): device's health compromised - reached miss count", "nic_driver", "critical", NIC),
    (MLX + "print_health_info:430:(pid 0): Health issue observed, firmware internal error, severity(3) ERROR:",)
    + ("nic_driver", "critical", NIC),
    (MLX + "print_health_info:431:(pid 0): synd 0x8: unrecoverable hardware error", "nic_driver", "critical", NIC),
    (MLX + "poll_health:792:(pid 0): Fatal error 1 detected", "nic_driver", "critical", NIC),
    (MLX + "print_health_info:424:(pid 0): PCI slot is unavailable", "nic_driver", "critical", NIC),
    (MLX + "mlx5_health_try_recover:335:(pid 77): handling bad device here", "nic_driver", "critical", NIC),
    (MLX + "mlx5_health_try_recover:338:(pid 55): health recovery flow aborted, PCI reads still not working",)
    + ("nic_driver", "critical", NIC),
    (MLX + "mlx5_health_try_recover:350:(pid 55): health recovery failed", "nic_driver", "critical", NIC),
    (MLX + "print_health_info:431:(pid 0): synd 0x10: High temperature", "nic_driver", "major", NIC),
    (MLX + "temp_warn:159:(pid 0): High temperature on sensors with bit set 0 1", "nic_driver", "major", NIC),
    (MLX + "Port module event[error]: module 0, Cable error, Power budget exceeded", "nic_driver", "major", NIC),
    (MLX + "Port module event[error]: module 0, Cable error, Bus stuck(I2C)", "nic_driver", "major", NIC),
    (MLX + "Port module event[error]: module 0, Cable error, High Temperature", "nic_driver", "major", NIC),
    (MLX + "Port module event: module 0, Cable unplugged", "nic_driver", "minor", NIC),
    (MLX + "mlx5_pcie_event:311: Detected insufficient power on the PCIe slot (27W).", "nic_driver", "minor", NIC),
    ("NETDEV WATCHDOG: ib2 (mlx5_core): transmit queue 5 timed out", "nic_driver", "major", NIC),
    ("NETDEV WATCHDOG: ib2 (mlx5_core [ib_ipoib]): transmit queue 0 timed out 5120 ms", "nic_driver", "major", NIC),
    (f"mlx5_core {NIC} ib2: NETDEV WATCHDOG: CPU: 12: transmit queue 5 timed out 5120 ms", "nic_driver", "major", NIC),
    (f"mlx5_core {NIC} ib2: TX timeout detected", "nic_driver", "major", NIC),
    (f"mlx5_core {NIC} ib2: RX timeout on channel: 3, ICOSQ: 0x10f, RQ: 0x10e, CQ: 0x40c", "nic_driver", "major", NIC),
    (f"mlx5_core: probe of {NIC} failed with error -110", "nic_driver", "critical", NIC),
    (MLX + "probe with driver mlx5_core failed with error -5", "nic_driver", "critical", NIC),
    (MLX + "probe_one:1591:(pid 69850): mlx5_init_one failed with error code -16", "nic_driver", "critical", NIC),
    (MLX + "wait_fw_init:180:(pid 1): Firmware over 120000 MS in pre-initializing state, aborting",)
    + ("nic_driver", "critical", NIC),
    (f"mlx5_core {OTHER}: poll_health:825:(pid 0): device's health compromised - reached miss count",)
    + ("nic_driver", "major", OTHER),
    # -- PCIe and the IOMMU
    (f"pcieport {BRIDGE}: AER: Uncorrected (Fatal) error received: {NIC}", "pcie_error", "critical", NIC),
    (f"pcieport {BRIDGE}: AER: Uncorrectable (Fatal) error message received from {GPU}", "pcie_error", "critical", GPU),
    (f"pcieport {BRIDGE}: AER: Multiple Uncorrected (Non-Fatal) error received: {PORT_1}", "pcie_error", "major", NIC),
    (f"pcieport {BRIDGE}: AER: Uncorrected (Fatal) error received: id=3100", "pcie_error", "critical", BRIDGE),
    (f"mlx5_core {NIC}: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)",)
    + ("pcie_error", "critical", NIC),
    (f"nvidia {GPU}: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer",)
    + ("pcie_error", "major", GPU),
    (f"nvidia {GPU}: AER: can't recover (no error_detected callback)", "pcie_error", "critical", GPU),
    (f"pcieport {BRIDGE}: AER: device recovery failed", "pcie_error", "critical", BRIDGE),
    (f"pcieport {BRIDGE}: DPC: containment event, status:0x1f01 source:0x0000", "pcie_error", "critical", BRIDGE),
    (f"pcieport {BRIDGE}: pciehp: Slot(21): Link Down", "pcie_error", "critical", BRIDGE),
    (f"pcieport {BRIDGE}: pciehp: Slot(21-1): Card not present", "pcie_error", "critical", BRIDGE),
    (f"nvidia {GPU}: Unable to change power state from D3cold to D0, device inaccessible",)
    + ("pcie_error", "critical", GPU),
    ("DMAR: [DMA Write NO_PASID] Request device [31:00.0] fault addr 0x6f0 [fault reason 0x05] PTE Write",)
    + ("pcie_error", "major", NIC),
    (f"mlx5_core {NIC}: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x000c address=0x0 flags=0x0000]",)
    + ("pcie_error", "major", NIC),
    ("AMD-Vi: Event logged [IO_PAGE_FAULT device=31:00.0 domain=0x000c address=0x0]", "pcie_error", "major", NIC),
    (f"arm-smmu-v3 arm-smmu-v3.0.auto: event: F_TRANSLATION client: {GPU} sid: 0x100 ssid: 0x0 iova: 0x0",)
    + ("pcie_error", "major", GPU),
    # -- the kernel
    ("mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 7: be00000000800400",)
    + ("kernel", "critical", "machine check"),
    ("{1}[Hardware Error]: event severity: fatal", "kernel", "critical", "machine check"),
    ("{2}[Hardware Error]: event severity: recoverable", "kernel", "major", "hardware error"),
    ("EDAC MC1: 1 UE memory scrubbing error on CPU_SrcID#1_MC#0", "kernel", "critical", "machine check"),
    ("watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [kworker/u256:3:1234]", "kernel", "major", "stall"),
    ("watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [swapper/12:0]" + FRAMES, "kernel", "critical", "lockup"),
    ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 3", "kernel", "major", "stall"),
    ("rcu: INFO: rcu_sched self-detected stall on CPU", "kernel", "major", "stall"),
    ("rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:", "kernel", "major", "stall"),
    ("INFO: task python3:4242 blocked for more than 122 seconds.", "kernel", "minor", "hung task"),
    ("INFO: task python3:4242 blocked for more than 122 seconds.\n Call Trace:\n  os_acquire+0x1/0x2 [nvidia]",)
    + ("kernel", "major", "hung driver"),
    ("INFO: task nv_queue:1811 blocked for more than 120 seconds.", "kernel", "major", "hung driver"),
    ("watchdog: BUG: soft lockup - CPU#44 stuck for 67s! [nvidia-smi:9021]", "kernel", "major", "stall"),
    ("Out of memory: Killed process 812 (slurmd) total-vm:1kB, anon-rss:1kB", "kernel", "major", "out of memory"),
    ("Out of memory: Kill process 812 (slurmd) score 900 or sacrifice child", "kernel", "major", "out of memory"),
    ("DMAR: Invalidation Time-out Error (ITE) cleared", "kernel", "major", "iommu timeout"),
    ("BUG: workqueue lockup - pool cpus=12 node=0 flags=0x0 nice=0 stuck for 61s!", "kernel", "major", "stall"),
    ("BUG: unable to handle page fault for address: ffffb2f5c0a1b000\nOops: 0002 [#1] PREEMPT SMP NOPTI" + FRAMES,)
    + ("kernel", "critical", "crash driver"),
    ("general protection fault, probably for non-canonical address 0xdead: 0000 [#1] SMP", "kernel", "major", "crash"),
    ("Internal error: Oops: 0000000096000004 [#1] SMP", "kernel", "major", "crash"),
    (f"NVRM: GPU {GPU}: Reset required [NV_ERR_RESET_REQUIRED] (0x6F)", "gpu_driver", "major", GPU),
    # -- storage
    ("Lustre: fs-OST1-osc-ffff: Connection to fs-OST1 (at 10.0.0.1@o2ib) was lost; in progress operations using this",)
    + ("storage", "major", "fs-OST1-osc-ffff"),
    ("LustreError: 166-1: MGC10.0.0.1@o2ib: Connection to MGS (at 10.0.0.1@o2ib) was lost; in progress operations",)
    + ("storage", "major", "MGC10.0.0.1@o2ib"),
    ("ceph: mds0 hung", "storage", "major", "mds0"),
    ("nfs: server nas1 not responding, still trying", "storage", "major", "nas1"),
    ("nfs: server nas1 OK\nnfs: server nas1 not responding, timed out", "storage", "major", "nas1"),
    ("nvme nvme3: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff", "storage", "major", "nvme3"),
    ("nvme nvme3: I/O tag 12 (1012) opcode 0x2 (I/O Cmd) QID 3 timeout, reset controller", "storage", "major", "nvme3"),
    ("nvme nvme3: Disabling device after reset failure: -19", "storage", "major", "nvme3"),
    ("EXT4-fs (nvme0n1p2): Remounting filesystem read-only", "storage", "major", "nvme0n1p2"),
    ("XFS (md0): Corruption of in-memory data (0x8). Shutting down filesystem.", "storage", "major", "md0"),
    ("EXT4-fs error (device nvme1n1): ext4_journal_check_start:83: Detected aborted journal",)
    + ("storage", "major", "nvme1n1"),
    ("NETDEV WATCHDOG: gone0 (mlx5_core): transmit queue 5 timed out", "nic_driver", "major", "gone0"),
    ("NVRM: kgspHealthCheck_TU102: ****** GSP-CrashCat Report ******", "gpu_driver", "critical", "NVIDIA driver"),
    ("NVRM: GPU0 _kgspIsHeartbeatTimedOut: Heartbeat timed out, timeout 5200\nNVRM: _kgspRpcRecvPoll: GSP RM heartbeat"
     " timed out", "gpu_driver", "critical", "NVIDIA driver"),
    ("Buffer I/O error on dev nvme0n1, logical block 0, async page read", "storage", "major", "nvme0n1"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "check", "severity", "subject"), ROOTS)
def test_a_planted_line_is_one_finding_about_its_device(
    path: Topology, hgx_h100: Profile, text: str, check: str, severity: str, subject: str
) -> None:
    (finding,) = judged(text, path, hgx_h100)
    assert (finding.check, finding.severity, finding.identity) == (f"node_health.{check}", severity, subject)
    assert finding.fix


HARMLESS = [
    # -- a healthy boot
    "12| NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build",
    "12| nvidia-nvlink: Nvlink Core is being initialized, major device number 511",
    f"13| {MLX}firmware version: 28.43.2026",
    f"13| {MLX}252.048 Gb/s available PCIe bandwidth, limited by 16.0 GT/s PCIe x16 link at {BRIDGE} (capable of",
    f"14| {MLX}Port module event: module 0, Cable plugged",
    f"14| {MLX}Port module event: module 1, Cable unplugged",
    f"14| {MLX}mlx5_pcie_event:311:(pid 4): Detected insufficient power on the PCIe slot (27W).",
    f"14| {MLX}mlx5_pcie_event:296:(pid 1): PCIe slot power capability was not advertised.",
    f"14| {MLX}E-Switch: Total vports 18, per vport: max uc(128) max mc(2048)",
    f"350000| {MLX}firmware version: 28.43.2026\n350010| {MLX}Detected insufficient power on the PCIe slot (27W).",
    "2| mce: Using 32 MCE banks",
    "3| DMAR: [DMA Read NO_PASID] Request device [31:00.0] fault addr 0x0 [fault reason 0x06] PTE Read access",
    "3| DMAR: Intel(R) Virtualization Technology for Directed I/O",
    "3| pcieport 0000:2e:01.0: AER: enabled with IRQ 35",
    "3| pcieport 0000:2e:01.0: pciehp: Slot #21 AttnBtn- PwrCtrl- MRL- AttnInd- PwrInd- HotPlug+ Surprise+",
    "3| EDAC MC0: Giving out device to module skx_edac controller Skylake Socket#0 IMC#0",
    "4| nvme nvme0: 64/0/0 default/read/poll queues",
    # -- at any time
    f"mlx5_core {NIC} ib2: Link down\nmlx5_core {NIC} ib2: Link up",
    f"{MLX}mlx5_cmd_out_err:808:(pid 99): ACCESS_REG(0x805) op_mod(0x1) failed, status bad operation(0x2), err(-22)",
    f"{MLX}Port module event: module 0, Cable unplugged\n{MLX}Port module event: module 0, Cable plugged",
    f"{MLX}Detected insufficient power on the PCIe slot (27W).\n{MLX}PCIe slot advertised sufficient power (75W).",
    f"{MLX}synd 0x0: unrecognized error", f"{MLX}ext_synd 0x8a5b",
    f"mlx5_core {OTHER}: Port module event[error]: module 0, Cable error, No EEPROM/retry timeout",
    f"mlx5_core: probe of {NIC} failed with error -517", "NETDEV WATCHDOG: enp1s0 (igb): transmit queue 0 timed out",
    "NETDEV WATCHDOG: eno9 (mlx5_core): transmit queue 0 timed out",
    f"pcieport {BRIDGE}: AER: Corrected error received: {NIC}",
    f"{MLX}PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    "pcieport 0000:e0:01.0: AER: Uncorrected (Fatal) error received: 0000:e1:00.0",
    "pcieport 0000:e0:03.0: pciehp: Slot(7): Link Down", f"pcieport {BRIDGE}: pciehp: Slot(21): Link Down/Up ignored",
    "DMAR: [DMA Read NO_PASID] Request device [e1:00.0] fault addr 0x0 [fault reason 0x06] PTE Read access is not set",
    "mce: [Hardware Error]: Machine check events logged", "{3}[Hardware Error]: event severity: corrected",
    "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 8: cc00000000010091",
    "EDAC MC0: 1 CE memory read error on DIMM_A1",
    "Memory cgroup out of memory: Killed process 4242 (python3) total-vm:1kB",
    "mce: CPU0: Package temperature/speed normal",
    "INFO: task python3:4242 blocked for more than 122 seconds.\n  rpc_wait_bit_killable+0x1/0x2 [sunrpc]",
    "nfs: server nas1 not responding, still trying\nnfs: server nas1 OK",
    "Buffer I/O error on dev sr0, logical block 0, async page read",
    "systemd-journald[812]: Received SIGTERM from PID 1",
    # -- programs' Xids, and what the catalog ignores
    *(f"{NVLINK}{number}, pid=9, name=python3, x" for number in (13, 31, 43, 45, 63, 69, 92, 94, 80, 121, 141, 160)),
    f"{NVLINK}145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 0x00000004 0x0)",
    f"{NVLINK}149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 17 (0x04084507 0x00000001 0x0)",
    f"{NVLINK}149, NETIR_LINK_EVT Fatal XC0 i0 Link 17 (0x02600711 0x00000000 0x0)",
    f"{NVLINK}145, RLW_REMAP Nonfatal XC1 i0 Link 1\n{NVLINK}45, pid=9, Ch 1 caused by previous Xid 145",
    f"nvidia-nvswitch3: SXid (PCI:{SWITCH}): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
    f"nvidia-nvswitch3: SXid (PCI:{SWITCH}): 12028, Severity 0 Engine instance 32 Sub-engine instance 00",
    f"nvidia-nvswitch3: SXid (PCI:{SWITCH}): 12028, Data {{0x00000004, 0x00000004}}",
    f"{NVLINK}154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
    f"{NVLINK}119, Timeout\nNVRM: loading NVIDIA UNIX Open Kernel Module", "NVRM: some function nobody has heard of",
    f"NVRM: GPU at PCI:{GPU[:-2]}: GPU-509665ad-b600",
    "kauditd_printk_skb: 6 callbacks suppressed",
    "traps: python3[4411] general protection fault ip:7f1e sp:7ffd error:0 in libtorch.so[7f1e+1]",
    "Lustre: a-OST1-osc-f: Connection to a-OST1 (at 10.0.0.1@o2ib) was lost; in progress\n"
    "Lustre: a-OST1-osc-f: Connection restored to 10.0.0.1@o2ib (at 10.0.0.1@o2ib)",
    "ceph: [5f2c-a 4231]: mds0 hung\nceph: [5f2c-a 4231]: mds0 came back",
    "NVRM: A GPU crash dump has been created. If possible, please run nvidia-bug-report.sh as root",
    "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x51)",
    "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
]  # fmt: skip


@pytest.mark.parametrize("text", HARMLESS)
def test_a_harmless_line_is_no_finding(path: Topology, hgx_h100: Profile, text: str) -> None:
    assert [finding.id for finding in judged(text, path, hgx_h100)] == []


@pytest.mark.parametrize(
    ("text", "severities"),
    [
        # It recovered, and then it did not.
        (f"{MLX}CMD(0x1) timeout. Will cause a leak\n{MLX}cmd[0]: CMD(0x1) recovered after timeout", {"major"}),
        (f"{MLX}device's health compromised\n{MLX}health recovery succeeded", {"major"}),
        (f"{MLX}device's health compromised\n{MLX}firmware version: 65535.65535.65535", {"critical"}),
        (f"{MLX}health recovery succeeded\n{MLX}device's health compromised", {"critical"}),
        (f"pcieport {BRIDGE}: pciehp: Slot(2): Link Down\npcieport {BRIDGE}: pciehp: Slot(2): Card present", {"major"}),
        ("nvme nvme3: controller is down; will reset\nnvme nvme3: 8/0/0 default/read/poll queues", {"minor"}),
        # Once an hour, and more often; once with many lines.
        (f"360000| {TX}\n399000| {TX}", {"major"}),
        (f"398000| {TX}\n399000| {TX}", {"critical"}),
        (f"{TX}\n" * 30, {"major"}),
        # Days before; of a NIC that nobody needs; after the boot.
        (f"1000| {MLX}device's health compromised", set()),
        (f"mlx5_core {OTHER}: Port module event[error]: module 0, Cable error, Power budget exceeded", set()),
        (f"395000| {MLX}Detected insufficient power on the PCIe slot (27W).", {"minor"}),
        # Set up while the driver was loading, which it says last.
        ("NVRM: The NVIDIA probe routine failed for -1 device(s).\nNVRM: loading NVIDIA UNIX", {"critical"}),
        ("390000| NVRM: The NVIDIA probe routine failed for -1 device(s).\n391000| NVRM: loading NVIDIA UNIX", set()),
    ],
)  # fmt: skip
def test_what_comes_after_a_line_or_before_it_counts(
    path: Topology, hgx_h100: Profile, text: str, severities: set[str]
) -> None:
    assert {finding.severity for finding in judged(text, path, hgx_h100)} == severities


def test_causes_stand_before_what_follows_from_them(path: Topology, hgx_h100: Profile, edit: type[Edit]) -> None:
    text = f"pcieport {BRIDGE}: DPC: containment event, status:0x1\n{MLX}PCI slot is unavailable"
    roots = [finding.check for finding in judged(text, path, hgx_h100) if finding.because is None]
    assert roots == ["node_health.pcie_error"]
    found = judged(f"{NVLINK}119, Timeout\nNVRM: x Reset required [NV_ERR_RESET_REQUIRED]", path, hgx_h100)
    # nvidia-smi needs no reset any more, so that the text alone stands; a GPU off the bus explains it.
    assert [(finding.check, finding.because) for finding in found] == [("node_health.gpu_driver", None)]
    found = judged(f"{NVLINK}79, off\nNVRM: x Reset required [NV_ERR_RESET_REQUIRED]", path, hgx_h100)
    assert [finding.because for finding in found] == [None, found[0].id]
    down = edit.nic(path, 2, port_state="DOWN")
    (finding,) = judged(f"{MLX}Port module event: module 0, Cable unplugged", down, hgx_h100)
    assert finding.because == f"platform.rail_state[live]@{NIC}"


def test_a_storm_hides_no_other_device_and_what_is_left_out_is_told(path: Topology, hgx_h100: Profile) -> None:
    other = "NVRM: Xid (PCI:0000:60:00): 74, pid=7, NVLink: fatal error detected on link 14(0x1)"
    storm = "\n".join(f"{NVLINK}31, pid={n}, name=python3, MMU Fault" for n in range(3000))
    (finding,) = judged(f"{other}\n{storm}", path, hgx_h100)
    assert (finding.check, finding.identity) == ("node_health.xid", "0000:60:00.0")
    assert [(event.number, event.count) for event in have(f"{other}\n{storm}", path).events] == [
        (74, 1),
        (31, 1),
        (31, 2999),
    ]
    many = "\n".join(f"nfs: server nas{n} not responding, still trying" for n in range(500))
    log = read(many)
    assert (len(log.series), log.dropped) == (400, 100)
    states = {finding.check: finding.state for finding in judged(many, path, hgx_h100) if finding.because is None}
    assert states["node_health.kernel_log"] == "unknown"


@pytest.mark.parametrize(
    "head",
    [
        "[  9000.500000] ", "[  9000.500000][ T1234] ", "<3>[ 9000.500000] ", "kern  :err   : [ 9000.500000] ",
        "[Fri Jan 15 10:30:00 2027] ", "2027-01-15T10:30:00,500000+00:00 ", "2027-01-15T11:30:00+0100 node07 kernel: ",
        "2027-01-15T10:30:00Z node07 kernel: ",
    ],
)  # fmt: skip
def test_every_form_of_a_time_is_read(head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    booted = 1_800_009_000.0 - 9000.0
    log, first = kernel_log.parse(f"{head}NVRM: Xid (PCI:0000:9b:00): 79, x\n", WORDS, match_line, 0.0, booted)
    assert [round(one.first.at or 0.0) for one in log.series] == [9000]
    assert first is not None


def test_every_rule_is_whole() -> None:
    for rule in BY_NAME.values():
        assert all(name in BY_NAME for name in rule.ended_by.split())
        assert bool(rule.meaning and rule.fix) == (rule.severity in ("critical", "major", "minor")), rule.name
    assert {*range(1, 155)} <= set(xid.TABLE)


def test_lines_without_a_rule_are_shown(path: Topology, hgx_h100: Profile) -> None:
    text = f"NVRM: brand new failure\n{MLX}mlx5_new_thing:1:(pid 1): failed to do 0x12\n{NVLINK}94, Contained"
    notes = judge_kernel_log.notes(have(text, path), judge_kernel_log.places(path, hgx_h100))
    assert [word for word in ("brand new", "mlx5_new_thing", "94 (") if not any(word in note for note in notes)] == []
    # What another Xid has caused is no fault of a program.
    caused = f"{NVLINK}45, pid=9, name=p, Ch 1 caused by previous Xid 80"
    assert judge_kernel_log.notes(have(caused, path), judge_kernel_log.places(path, hgx_h100)) == []
