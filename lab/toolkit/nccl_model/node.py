# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the simulated node has right now: NCCL's variables, GPUs, RDMA devices, interfaces, and the paths between them.

From what nvidia-smi answers with and the node's /sys. Bandwidths are in GB/s, one direction.
"""

from __future__ import annotations

import json
import os
import pwd
import re
from collections.abc import Mapping
from dataclasses import dataclass

from .fabric import Fabric, errors
from .pcie import read, read_request, redirects, slot
from .stop import USAGE_ERROR, cuda_failure, host_name, nccl_failure

# Another directory holds the node only in tests.
ROOT = os.environ.get("BUSBAR_LAB_ROOT", "")
ANSWERS, HARDWARE = f"{ROOT}/usr/share/busbar-lab/nvidia-smi", f"{ROOT}/srv/busbar-lab/hw"
SYSFS = f"{HARDWARE}/sys"
_LAB, _DEVICES = f"{SYSFS}/kernel/busbar-lab", f"{SYSFS}/class/infiniband"
# Lengths of paths, as NCCL numbers them: below one PCIe switch, below one CPU, anything longer.
NEAR, SAME_CPU, FAR = 4, 8, 9
_CHANNEL = "dev/nvidia-caps-imex-channels/channel0"
_IMEX = "sys/fs/cgroup/system.slice/nvidia-imex.service/cgroup.procs"


def settings() -> dict[str, str]:
    """Return the environment, then NCCL_CONF_FILE or the user's file, then /etc/nccl.conf: the first has a name."""
    found = dict(os.environ)
    named = found.get("NCCL_CONF_FILE")
    for path in (named or f"{ROOT}{pwd.getpwuid(os.getuid()).pw_dir}/.nccl.conf", f"{ROOT}/etc/nccl.conf"):
        for line in read(path).split("\n"):
            name, equals, value = line.partition("=")
            if equals and not line.startswith("#"):
                found.setdefault(name, value)
    return found


def number(found: Mapping[str, str], name: str, default: int) -> int:
    """Return a variable as NCCL reads it: empty is the default, what is no number is 0."""
    text = found.get(name, "")
    return int(text) if text.lstrip("-").isdigit() else 0 if text else default


def listed(words: str, name: str) -> bool:
    """Return whether [^][=]name,... leaves this device or interface; no list leaves all."""
    items = words.lstrip("^").lstrip("=").split(",")
    whole = words.lstrip("^").startswith("=")
    found = any(name == item if whole else item and name.startswith(item) for item in items)
    return not words or found != words.startswith("^")


@dataclass(frozen=True)
class Gpu:
    """One that the driver has. ``address``: domain:bus:device.   held_mib: used by others.

    nvlink: GB/s of all its NVLinks.   number: its place on the node, whatever CUDA shows.
    domain: UUID and clique of its NVLink domain, "" where it is of none.
    """

    address: str
    uuid: str
    name: str
    memory: int
    nvlink: float
    blackwell: bool
    fabric: str
    slow: bool
    wrong: bool
    held_mib: int
    number: int = 0
    domain: str = ""

    @property
    def bus_id(self) -> str:
        """As NCCL prints it: bus, device and function without leading zeros."""
        return f"{int(self.address.replace(':', '') + '0', 16):x}"


@dataclass(frozen=True)
class Hca:
    """A port that is active and that NCCL may use. ``index``: NCCL's.   layer: "IB" or "RoCE".   slot: GB/s of PCIe.

    gbps: of the link.   lossy: what it sends is lost now and then.   direct: GPUs can be read and written by it.
    mtu, read_request: bytes.   redirected: what it and a GPU have for each other goes up to the CPU (ACS).
    """

    index: int
    name: str
    layer: str
    gbps: float
    slot: float
    direct: bool
    lossy: bool = False
    mtu: int = 4096
    read_request: int = 4096
    redirected: bool = False


def read_gpus() -> list[Gpu]:
    """Return what CUDA would count, CUDA_VISIBLE_DEVICES considered. Raises Stop where there is no driver."""
    text = read(f"{ANSWERS}/.driver.json")
    if not text:
        raise cuda_failure("CUDA driver version is insufficient for CUDA runtime version")
    gpus = [Gpu(**row) for row in json.loads(text)["gpus"]]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return gpus if chosen is None else [gpus[int(word)] for word in chosen.split(",")]


def imex() -> str:
    """Return what keeps a tray's processes from the memory of others: "channel", "service"; "" for nothing."""
    if not os.path.exists(f"{HARDWARE}/{_CHANNEL}"):
        return "channel"
    return "" if os.path.exists(f"{HARDWARE}/{_IMEX}") else "service"


def read_hcas(found: Mapping[str, str]) -> list[Hca]:
    """Return the ports that NCCL would use, in its order, which is that of the names."""
    names = os.listdir(_DEVICES) if os.path.isdir(_DEVICES) else []
    direct = os.path.exists(f"{SYSFS}/module/nvidia_peermem/version")
    # The open driver exports DMA-BUF.
    direct = direct or "Open Kernel Module" in read(f"{HARDWARE}/proc/driver/nvidia/version")
    hcas: list[Hca] = []
    for name in sorted(names, key=lambda name: [int(t) if t.isdigit() else t for t in re.split(r"(\d+)", name)]):
        port, device = f"{_DEVICES}/{name}/ports/1", os.path.realpath(f"{_DEVICES}/{name}/device")
        if read(f"{port}/state").startswith("4:") and listed(found.get("NCCL_IB_HCA", ""), name):
            hcas.append(
                Hca(
                    index=len(hcas),
                    name=name,
                    layer="RoCE" if read(f"{port}/link_layer") == "Ethernet" else "IB",
                    gbps=float(read(f"{port}/rate").split()[0]),
                    slot=slot(device),
                    direct=direct,
                    mtu=int(read(f"{_LAB}/active_mtu/{name}") or 4096),
                    read_request=read_request(device),
                    redirected=redirects(os.path.dirname(device)),
                )
            )
    return hcas


def distances(gpu: Gpu, hcas: list[Hca]) -> list[int]:
    """Return how far each of the devices is."""
    own = os.path.realpath(f"{SYSFS}/bus/pci/devices/{gpu.address}.0")
    found = []
    for hca in hcas:
        other = os.path.realpath(f"{_DEVICES}/{hca.name}/device")
        # Host bridge, root port, and below that a switch.
        shared = os.path.commonpath([own, other]).partition("/devices/")[2].count("/")
        near = NEAR if shared else SAME_CPU if read(f"{own}/numa_node") == read(f"{other}/numa_node") else FAR
        found.append(near)
    return found


def read_interface(found: Mapping[str, str]) -> tuple[str, str, float]:
    """Return name, address and Gb/s of the interface that NCCL's bootstrap and its sockets use.

    Raises Stop where NCCL_SOCKET_IFNAME leaves none.
    """
    words, folder = found.get("NCCL_SOCKET_IFNAME", ""), f"{SYSFS}/class/net"
    names = [name for name in sorted(os.listdir(folder)) if os.path.isdir(f"{folder}/{name}") and listed(words, name)]
    if not names:
        raise nccl_failure(USAGE_ERROR, 1550, "Bootstrap : no socket interface found")
    about = json.loads(read(f"{_LAB}/netdevs.json") or "{}")
    addresses = {name: about.get(name, {}).get("ipv4", "").partition("/")[0] for name in names}
    last = ("docker", "lo")
    names.sort(
        key=lambda name: (not addresses[name], read(f"{folder}/{name}/operstate") != "up", name.startswith(last))
    )
    speed = int(read(f"{folder}/{names[0]}/speed") or -1)
    # A node whose addresses nothing shows has one all the same. NCCL takes 10 Gb/s where the kernel has no speed.
    made = sum(host_name().encode()) % 250
    return names[0], addresses[names[0]] or f"10.0.0.{made}", speed / 1000 if speed > 0 else 10.0


_PACKET = 4096


def count(moved: Mapping[str, int], lossy: bool, between: Fabric) -> None:
    """Add what each device sent and received, in bytes, to its counters; what was lost leaves traces, too."""
    for name, size in moved.items():
        more = {f"counters/port_{way}_data": size // 4 for way in ("xmit", "rcv")}
        more |= {f"counters/port_{way}_packets": size // _PACKET for way in ("xmit", "rcv")}
        if lossy:
            lost = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err")
            more |= dict.fromkeys((f"hw_counters/{file}" for file in lost), 1 + size // _PACKET // 100000)
        for file, errors_ in errors(between, host_name(), name, size, size).items():
            more[file] = more.get(file, 0) + errors_
        for file, number_ in more.items():
            path = f"{_DEVICES}/{name}/ports/1/{file}"
            with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as stream:
                stream.write(f"{int(read(path) or 0) + number_}\n")
            os.replace(f"{path}.{os.getpid()}", path)
