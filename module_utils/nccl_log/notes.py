# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""INFO lines that frighten and mean nothing, that tell another way that NCCL took, or a fact that nothing else says.

A row: first four characters of the texts, what follows, the kind, and our sentence with the groups in their order.
Kinds: "harmless"; "fallback", NCCL goes on in another way; "fact"; "odd", worth a look and no failure by itself;
"closed", the number of a local rank that closed its connection to a service thread; "older" and "collnet", an
interface of networks and of CollNet that a network plugin does not have; "plugin_set", a network plugin and a variable
that it has set; "last_words", what a network plugin says before NCCL gives it up; "host_memory", how a process shares
memory of the host; "matrix", the begin of NCCL's table of what it may choose.
"""

from __future__ import annotations

from typing import Callable, Match, Tuple

from . import results
from .events import Event, Note

# Of a group of a line within a sentence.
_LONGEST = 160
Row = Tuple[str, str, str, str]

NOTES: Tuple[Row, ...] = (
    # Topology, as virtual machines and containers show it.
    (
        "Topo",
        r"Topology detection ?: could not read (?:\S*/)?(\w{1,40}), (?:ignoring|using)",
        "harmless",
        "files of the PCI topology that cannot be read ({0}), usual in virtual machines: NCCL does without them",
    ),
    (
        "KV C",
        r"KV Convert to int : could not find value of '([\d.]{1,8} GT/s[^']{0,20})' in dictionary, falling back to"
        r" (\d{1,5})",
        "harmless",
        "this NCCL does not know the PCIe speed {0!r}, and falls back to {1} (60 stands for PCIe 3.0): its"
        " release is older than the system's PCIe or the words for it, and it may take PCIe for slower than it is",
    ),
    (
        "KV C",
        r"KV Convert to int : could not find value of '([^']{0,40})'",
        "harmless",
        "no PCI speed or class {0!r}",
    ),
    ("No N", r"No NVML device handle. Skipping nvlink", "odd", "NVML has no handle of a GPU: its NVLinks are not seen"),
    (
        "Coul",
        r"Could not open XML topology file (\S{1,200}) : (.{1,80})",
        "harmless",
        "no topology file {0} ({1}): NCCL finds the topology itself unless one is configured",
    ),
    ("nccl", r"nccl\w+: could not get (?:PCI )?parent", "harmless", "a PCI device without a parent in /sys"),
    (
        "Coul",
        r"Could not find a path for pattern \d{1,2}, falling back to simple order",
        "fallback",
        "NCCL takes the GPUs in simple order, where its search finds no path: no failure",
    ),
    (
        "Coul",
        r"Could not get device class for NVLink target",
        "harmless",
        "an NVLink whose other end has no PCI class: taken for an NVSwitch",
    ),
    ("Fail", r"Failed to read refresh_switch_toplogy", "harmless", "no switch topology of the provider's driver"),
    # Libraries and symbols.
    (
        "dlvs dlsy nccl",
        r"(?:dl(?:v?)sym|ncclOsDlsym) failed on (\w{1,60})",
        "harmless",
        "a symbol of a newer library is missing ({0}): NCCL does without",
    ),
    (
        "NET/ Fail",
        r"(?:NET/IB ?: )?Failed to open (?:mlx5dv symbols|libmlx5)",
        "harmless",
        "no mlx5dv library: only what ConnectX-8 adds (Direct NIC) is off",
    ),
    (
        "NET/",
        r"NET/Plugin ?: Failed to find ncclNetPlugin_(v\d{1,3}) symbol",
        "older",
        "{0}",
    ),
    (
        "NET/",
        r"NET/Plugin ?: Failed to find ncclCollNetPlugin_(v\d{1,3}) symbol",
        "collnet",
        "{0}",
    ),
    (
        "RAS ",
        r"RAS failed to establish a client listening socket",
        "harmless",
        "RAS has no port for questions: another job of the node has it",
    ),
    ("Prof", r"Profiler init failed", "harmless", "the profiler plugin did not start: NCCL continues without"),
    ("Lega", r"Legacy IPC not supported", "harmless", "no legacy CUDA IPC here: cuMem handles are used"),
    # Memory and NVLink.
    ("CUME MMAP", r"(CUMEM|MMAP) (?:imported|allocated) shareable host buffer", "host_memory", "{0}"),
    (
        "cuMe",
        r"cuMem host allocations do not appear to be working; falling back",
        "fallback",
        "CUDA does not give memory of the host by cuMem (as in containers without NUMA rights): /dev/shm is used",
    ),
    (
        "fall mkst",
        r"(?:fallocate: Failed to extend|mkstemp: Failed to create) (\S{1,100}).{0,40}, error: (.{1,60}?) - retrying",
        "odd",
        "no room for {0} at first ({1}): NCCL tries again; see `df -h /dev/shm` in the job",
    ),
    (
        "nccl",
        r"ncclMaxSharedMem (\d{1,9}) exceeds device/fn maxSharedMem (\d{1,9})",
        "odd",
        "NCCL's kernels want {0} bytes of shared memory on the GPU and a GPU gives {1} (not /dev/shm): this build may"
        " not fit the GPU's model; a newer NCCL is worth a try",
    ),
    (
        "MNNV",
        r"MNNVL 1 cliqueId \w{1,16} cliqueSize (\d{1,6})",
        "fact",
        "NVLink between nodes (MNNVL) is on: a clique of {0} GPUs",
    ),
    (
        "P2P ",
        r"P2P not supported between (GPU\d{1,4} and GPU\d{1,4})",
        "odd",
        "CUDA allows no P2P between {0}",
    ),
    ("[Ser", r"\[Service thread\] Connection closed by localRank (\d{1,6})", "closed", "{0}"),
    ("Enab", r"Enabled NCCL Func/Proto/Algo Matrix", "matrix", ""),
    (
        "Redu",
        r"ReduceScatter \|[ /]{0,20}\d{1,9}\.",
        "fact",
        "NCCL's tuning table (expected latency and bandwidth of its algorithms; 0.0 is what is not used here): normal"
        " output of an initialisation, no fault",
    ),
    (
        "thre",
        r"threadThresholds \d",
        "fact",
        "NCCL's thresholds for the number of threads of a kernel (threadThresholds): normal output of an"
        " initialisation, no fault",
    ),
    # InfiniBand, RoCE.
    (
        "Call",
        r"Call to ibv_modify_qp failed with (.{1,100}?), .{0,200}retrying (\d{1,5}/\d{1,5})",
        "odd",
        "an RDMA connection was not made at once ({0}): NCCL tries again ({1})",
    ),
    (
        "NET/",
        r"NET/IB ?: There are mismatched physical devices between local \((.{1,80}?)\) and remote \((.{1,80}?)\)",
        "odd",
        "ports of different numbers talk to each other: local {0}, remote {1}",
    ),
    (
        "NET/",
        r"NET/IB: \w{1,60}: (.{0,60}(?:permanently failed|[Rr]ecovery (?:for .{1,40})?failed|"
        r"timeout for device).{0,60})",
        "odd",
        "NET/IB lost a port: {0}",
    ),
    (
        "Fail",
        r"Failed to register memory with DMA-BUF, error=(-?\d{1,6})",
        "fallback",
        "memory of the GPU was not registered by DMA-BUF (error {0}): NCCL takes nvidia_peermem, where that is loaded",
    ),
    ("PXN ", r"PXN Disabled as plugin is (v\d)", "fallback", "no PXN: the network's plugin is too old ({0})"),
    (
        "TOPO",
        r"TOPO/NET : Tried merging multiple devices together and failed",
        "fallback",
        "NCCL could not merge several HCAs into one: each is used separately",
    ),
    (
        "Dete",
        r"Detected a mix of single and multiple-port NICs",
        "fallback",
        "HCAs with one and with several ports: ports are not merged",
    ),
    (
        "Disa",
        r"Disabling external plugins: (.{1,80})",
        "fact",
        "external plugins are switched off: {0}",
    ),
    ("HINT", r"HINT: (.{1,160})", "odd", "NCCL's own hint, which does not fit every status it is printed for: {0}"),
    # libfabric.
    (
        "NET/",
        r"NET/(\w{2,30}) (?:Adding|Setting) (NCCL_[A-Z0-9_]{1,80})(?:=| (?:to|environment)\b)",
        "plugin_set",
        "{0} {1}",
    ),
    ("NET/", r"NET/(?!IB|Socket|Plugin)(\w{2,30}) ((?:Invalid|Unsupported) .{1,120})", "last_words", "{0} {1}"),
    (
        "NET/",
        r"NET/OFI Need to force simple protocol: (?!.{0,60}GDR)(.{1,100})",
        "fact",
        "the plugin for libfabric allows the protocol Simple alone, neither LL nor LL128: {0}",
    ),
    (
        "NET/",
        r"NET/Socket ?: GPU Direct RDMA Disabled for HCA \d{1,5} '([^']{1,64})'",
        "fact",
        "NET/Socket has no GPUDirect RDMA on {0}, as is usual over TCP",
    ),
    (
        "NET/",
        r"NET/OFI Running on (\S{1,60}) platform,? topology file (\S{1,200})",
        "fact",
        "the plugin for libfabric runs on {0}; its file of the topology: {1}",
    ),
    (
        "NET/",
        r"NET/OFI Running on (\S{1,60}) platform",
        "fact",
        "the plugin for libfabric runs on {0}",
    ),
    (
        "NET/",
        r"NET/OFI Using transport protocol (\w{1,20})",
        "fact",
        "the plugin for libfabric uses the protocol {0}",
    ),
    ("Plug", r"Plugin (Path|version) ?: (\S.{0,150})", "fact", "the network plugin's {0}: {1}"),
    (
        "NET/",
        r"NET/OFI (?:Initializing|Using) (aws-ofi-nccl \S{1,20})",
        "fact",
        "the network plugin is {0}, over libfabric",
    ),
    ("NET/", r"NET/OFI Using Libfabric version (\S{1,20})", "fact", "libfabric {0}"),
    (
        "NET/",
        r"NET/OFI Setting provider_filter to (\w{1,30})",
        "fact",
        "libfabric is to use the provider {0} alone",
    ),
    (
        "NET/",
        r"NET/OFI (No NIC info for dev \d{1,4})",
        "odd",
        "the plugin for libfabric reports: {0}: see `fi_info -p efa`, and whether this node has as many EFA devices as"
        " the others",
    ),
    # Values.
    (
        "NCCL",
        r"(NCCL_\w{1,60}(?:=\S{1,60})? (?:value )?.{0,80}(?:too (?:low|big|high|small)|[Ii]gnoring|"
        r"default/maximum).{0,80})",
        "odd",
        "a value that NCCL does not take: {0}",
    ),
    (
        "Unab fail",
        r"((?:Unable to recognize|failed to decode) NCCL_.{1,120})",
        "odd",
        "a value that NCCL does not take: {0}",
    ),
)


def _maker(kind: str, sentence: str) -> Callable[[Match[str]], Event]:
    def make(match: Match[str]) -> Event:
        return Note(
            kind, sentence.format(*(results.shorter((group or "").strip(), _LONGEST) for group in match.groups()))
        )

    return make


RULES = tuple((keys, pattern, _maker(kind, sentence)) for keys, pattern, kind, sentence in NOTES)
