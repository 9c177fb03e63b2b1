# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A stand-in for nvidia-smi: a shell script that answers from text files, and those files for a Machine.

And what else a node shows of its GPUs' health: AER, the kernel's log, the unit of the Fabric Manager. The kernel's log
is made when it is asked for: its lines have an age, and the node was booted UPTIME seconds ago.

Words, separators, exit codes and error texts are those of nvidia-smi 580.159 on an H200, tried argument by argument;
the NIC columns of ``topo -m`` are from published output. A script, so that it runs wherever the lab's tree does.
"""

from __future__ import annotations

import json
import re
import uuid
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from .machine import NVLINK_4, NVLINK_5, Gpu, Link, Machine, first
from .nccl_tests import DATA, TOOLKIT

_OF_FABRIC = ("bandwidth", "route_recovery_in_progress", "route_unhealthy", "access_timeout_recovery")
_FABRIC_HEALTH = {
    "Hopper": dict.fromkeys(_OF_FABRIC, "N/A"),
    "Blackwell": {"summary": "Healthy", **dict.fromkeys(_OF_FABRIC, "False"), "bandwidth": "Full"},
}
# GB/s of one NVLink in NCCL's own figures (graph/topo.h).
_NVLINKS = {NVLINK_4: 20.6, NVLINK_5: 40.1}
_PCIE_GEN = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5}

UPTIME = 10 * 86400
UNIT = "nvidia-fabricmanager.service"
_NVLINK_4 = ("Replay Errors", "Recovery Errors", "CRC Errors")
_NVLINK_5 = (
    *("Malformed packet Errors", "Buffer overrun Errors", "Rx Errors", "Rx remote Errors", "Rx General Errors"),
    *("Local link integrity Errors", "Tx discards", "Link recovery successful events", "Link recovery failed events"),
    *("Total link recovery events", "Effective Errors", "Symbol Errors"),
)
# Of a healthy link, too.
_NVLINK_5_LARGE = (
    "Effective BER: 15e-255",
    "FEC Errors - 0: 36140749276",
    "Raw BER Lane 0: 2061",
    "Symbol BER: 15e-255",
)
_AER = {"correctable": "TOTAL_ERR_COR", "nonfatal": "TOTAL_ERR_NONFATAL", "fatal": "TOTAL_ERR_FATAL"}

# Heading -> value of a GPU.
_QUERY = {
    "index": "index",
    "name": "name",
    "uuid": "uuid",
    "pci.bus_id": "bus_id",
    "serial": "serial",
    "fabric.state": "state",
    "fabric.status": "status",
    "pcie.link.gen.current": "now_gen",
    "pcie.link.gen.max": "max_gen",
    "pcie.link.width.current": "now_width",
    "pcie.link.width.max": "max_width",
    "driver_version": "driver",
    "compute_cap": "capability",
    "memory.total [MiB]": "mib",
    "utilization.gpu [%]": "idle",
    "utilization.memory [%]": "idle",
    "power.draw [W]": "watts",
    "enforced.power.limit [W]": "power_limit",
}
# A GPU as nvidia-smi 580 shows an idle H200 that is well.
_GPU = (DATA / "nvidia-smi-gpu.xml").read_text()
SCRIPT = (TOOLKIT / "nvidia-smi").read_text()
# What is left of the tool under the faults that break it.
HANGING_SCRIPT = "#!/bin/sh\nexec sleep 2147483647\n"
GARBAGE_SCRIPT = "#!/bin/sh\nprintf '\\377\\376\\200GPU\\000\\001\\033[8m\\377'\n"


def answers(machine: Machine) -> dict[str, str]:
    """File name -> text, for the script's data directory.

    .driver.json is not the tool's: it is what the model of nccl-tests has of GPUs. fabric-manager and kernel-log are
    what nv-fabricmanager and dmesg print.
    """
    gpus = machine.driver_gpus()
    return {
        ".driver.json": _driver(machine, gpus),
        "apps.tsv": _processes(machine),
        "fabric-manager": f"{version(machine)}\n",
        "kernel-log": kernel_log(machine),
        "list": "".join(f"{_title(index, gpu)}\n" for index, gpu in enumerate(gpus)),
        "nvlink-e": "".join(link_errors(_title(index, gpu), gpu) for index, gpu in enumerate(gpus)),
        "nvlink-s": "".join(_nvlink(index, gpu) for index, gpu in enumerate(gpus)),
        "query.tsv": _query(machine, gpus),
        "query.xml": _xml(machine, gpus),
        "topo-m": _matrix(machine, gpus),
    }


def path_class(machine: Machine, one: str, other: str) -> str:
    """How nvidia-smi names the PCIe path between two functions: PIX, PXB, PHB, NODE or SYS."""
    chains = [machine.chain(one), machine.chain(other)]
    shared = 0
    for above, beside in zip(*chains, strict=False):
        if above != beside:
            break
        shared += 1
    if shared == 0:
        nodes = {machine.function(address).numa_node for address in (one, other)}
        return "NODE" if len(nodes) == 1 else "SYS"
    if shared == 1:
        return "PHB"
    # Bridges on either side below the last shared one: one is the port of a single switch, more are more switches.
    return "PIX" if max(len(chain) - shared - 1 for chain in chains) <= 1 else "PXB"


def _title(index: int, gpu: Gpu) -> str:
    return f"GPU {index}: {gpu.name} (UUID: {gpu.uuid})"


def _nvlink(index: int, gpu: Gpu) -> str:
    states = [f"{gpu.nvlink_gbps} GB/s" if active else "<inactive>" for active in gpu.nvlinks]
    return "".join([f"{_title(index, gpu)}\n"] + [f"\t Link {n}: {state}\n" for n, state in enumerate(states)])


def _bus_id(gpu: Gpu) -> str:
    return f"0000{gpu.address}".upper()


def _link(link: Link | None) -> tuple[int, int]:
    """Generation and width of a GPU's link."""
    return (_PCIE_GEN[link.speed.split()[0]], link.width) if link else (0, 0)


def _query(machine: Machine, gpus: list[Gpu]) -> str:
    names = [name.split()[0] for name in _QUERY]
    rows = [names, list(_QUERY)]
    for index, gpu in enumerate(gpus):
        values = _values(machine, index, gpu)
        rows.append([str(values[key]) for key in _QUERY.values()])
    return "".join("\t".join(line) + "\n" for line in rows)


def _processes(machine: Machine) -> str:
    names = ["gpu_name", "gpu_bus_id", "gpu_uuid", "pid", "process_name", "used_gpu_memory"]
    rows = [names, [*names[:-1], "used_gpu_memory [MiB]"]]
    for process in machine.gpu_processes:
        gpu = machine.gpu(process.gpu)
        rows.append([gpu.name, _bus_id(gpu), gpu.uuid, str(process.pid), process.name, f"{process.memory_mib} MiB"])
    return "".join("\t".join(row) + "\n" for row in rows)


def _driver(machine: Machine, gpus: list[Gpu]) -> str:
    """Return what the model of nccl-tests has of GPUs: nccl_model.node.Gpu."""
    rows = []
    for number, gpu in enumerate(gpus):
        held = sum(process.memory_mib for process in machine.gpu_processes if process.gpu == gpu.number)
        domain = gpu.domain or machine.nvlink_domain
        joined = machine.fabric[0] == "Completed" and re.search("[1-9a-f]", domain.split(" ")[0])
        rows.append(
            {
                "address": gpu.address.rpartition(".")[0],
                "uuid": gpu.uuid,
                "name": gpu.name,
                "memory": gpu.memory_mib << 20,
                "nvlink": sum(gpu.nvlinks) * _NVLINKS[gpu.nvlink_gbps],
                "blackwell": gpu.nvlink_gbps == NVLINK_5,
                "fabric": machine.fabric[0],
                "slow": gpu.slow,
                "wrong": gpu.wrong,
                "held_mib": held,
                "number": number,
                "domain": domain if joined else "",
            }
        )
    return json.dumps({"gpus": rows, "hang": machine.collectives_hang}) + "\n"


def _matrix(machine: Machine, gpus: list[Gpu]) -> str:
    """``topo -m``: GPUs, then RDMA devices as NICn, which the legend maps to names."""
    nics = sorted(machine.rdma, key=lambda r: [int(t) if t.isdigit() else t for t in re.split(r"(\d+)", r.name)])
    gpu_names = [f"GPU{n}" for n in range(len(gpus))]
    nic_names = [f"NIC{n}" for n in range(len(nics))]
    items: list[tuple[str, str, Gpu | None]] = [
        *((name, gpu.address, gpu) for name, gpu in zip(gpu_names, gpus, strict=True)),
        *((name, nic.address, None) for name, nic in zip(nic_names, nics, strict=True)),
    ]
    affinity = ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]
    lines = ["\t\x1b[4m" + "\t".join([*gpu_names, *nic_names, *affinity]) + "\x1b[0m"]
    for name, address, gpu in items:
        cells = []
        for other_name, other_address, other in items:
            if name == other_name:
                cells.append(" X ")
            elif gpu and other and any(gpu.nvlinks) and any(other.nvlinks):
                cells.append(f"NV{min(sum(gpu.nvlinks), sum(other.nvlinks))}")
            else:
                cells.append(path_class(machine, address, other_address))
        if gpu:
            node = machine.nodes[max(0, machine.function(address).numa_node)]
            cells += [node.cpulist, str(node.number), "", "N/A"]
        lines.append("\t".join([name, *cells]))
    lines += ["", "Legend:", "", *(DATA / "nvidia-smi-legend").read_text().splitlines()]
    if nics:
        lines += ["", "NIC Legend:", "", *(f"  NIC{n}: {nic.name}" for n, nic in enumerate(nics)), ""]
    return "\n".join(lines) + "\n"


def _xml(machine: Machine, gpus: list[Gpu]) -> str:
    """``-q -x``, as much of it as says what the GPU is and how it is connected. The script puts in the time."""
    lines = [
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n<nvidia_smi_log>',
        f"\t<timestamp/>\n\t<driver_version>{machine.driver_version}</driver_version>",
        f"\t<cuda_version>{machine.cuda_version}</cuda_version>\n\t<attached_gpus>{len(gpus)}</attached_gpus>",
        *(_xml_gpu(machine, index, gpu) for index, gpu in enumerate(gpus)),
    ]
    return "\n".join([*lines, "</nvidia_smi_log>"]) + "\n"


def _values(machine: Machine, index: int, gpu: Gpu) -> dict[str, object]:
    function, registered = machine.function(gpu.address), machine.fabric[0] == "Completed"
    now_gen, now_width = _link(function.link)
    max_gen, max_width = _link(function.max_link)
    cluster, clique = (gpu.domain or machine.nvlink_domain or f"{uuid.UUID(int=0)} 0").split()
    return {
        "bus_id": _bus_id(gpu),
        "name": gpu.name,
        "architecture": "Blackwell" if float(gpu.nvlink_gbps) > 40 else "Hopper",
        "serial": gpu.serial,
        "uuid": gpu.uuid,
        "index": index,
        "vbios": gpu.vbios,
        "bus": gpu.address[5:7].upper(),
        "device": gpu.address[8:10].upper(),
        "domain": gpu.address[:4].upper(),
        "device_id": f"{function.device[2:]}{function.vendor[2:]}".upper(),
        "sub_system_id": f"{function.subsystem[2:]}{function.vendor[2:]}".upper(),
        "memory": gpu.memory_mib,
        "mib": f"{gpu.memory_mib} MiB",
        "idle": "0 %",
        "watts": "75.27 W",
        "power_limit": "700.00 W",
        "driver": machine.driver_version,
        "capability": "9.0",
        "state": machine.fabric[0],
        "status": machine.fabric[1],
        "clique": clique if registered else "N/A",
        "cluster": cluster if registered else "N/A",
        "now_gen": now_gen,
        "max_gen": max_gen,
        "now_width": now_width,
        "max_width": max_width,
    }


def _xml_gpu(machine: Machine, index: int, gpu: Gpu) -> str:
    values = _values(machine, index, gpu)
    health = _FABRIC_HEALTH[str(values["architecture"])]
    lines = "\n".join(f"\t\t\t\t<{name}>{value}</{name}>" for name, value in health.items())
    text = _GPU.format(**{name: escape(str(value)) for name, value in values.items()}, health=lines)
    if not gpu.health:
        return text
    root = ElementTree.fromstring(text)
    for path, value in gpu.health.items():
        first(f"element {path} of nvidia-smi -q -x", root.findall(path)).text = value
    return f"\t{ElementTree.tostring(root, encoding='unicode', short_empty_elements=False)}\n"


# -- health -----------------------------------------------------------------------------------------------------------


def link_errors(title: str, gpu: Gpu) -> str:
    """``nvlink -e`` of one GPU: what counts depends on its NVLink."""
    five = float(gpu.nvlink_gbps) > 40
    found = [title]
    for link in range(len(gpu.nvlinks)):
        for name in _NVLINK_5 if five else _NVLINK_4:
            found.append(f"\t Link {link}: {name}: {gpu.link_errors.get(f'{link} {name}', 0)}")
        found += [f"\t Link {link}: {text}" for text in _NVLINK_5_LARGE if five]
        found.append("")
    return "".join(f"{line}\n" for line in found)


def kernel_log(machine: Machine) -> str:
    """The beginning, and what the driver has said: the rest of a real log is nobody's here."""
    found = [f"[    0.000000] Linux version {machine.kernel}\n"]
    for entry in machine.kernel_log:
        age, text = entry.split(" ", 1)
        found.append(f"[{UPTIME - float(age):12.6f}] {text}\n")
    return "".join(found)


def version(machine: Machine) -> str:
    """Of the Fabric Manager."""
    return machine.driver_version if machine.fabric_manager in ("ok", "stopped") else machine.fabric_manager


def where(module: str) -> int:
    """32 bits that are the module's own."""
    return uuid.uuid5(uuid.NAMESPACE_DNS, module).int >> 96


def hardware(machine: Machine) -> dict[str, str]:
    """Files of /sys and /proc."""
    # Another one after each boot, and the same however often it is rendered.
    boot_id = uuid.uuid5(uuid.NAMESPACE_DNS, f"{machine.hostname}.{machine.boots}")
    found = {
        "/proc/uptime": f"{UPTIME}.00 {UPTIME}.00\n",
        "/proc/sys/kernel/random/boot_id": f"{boot_id}\n",
        # Each in a place of its own, whatever others there are.
        "/proc/modules": "".join(
            f"{name} {16384 + (where(name) >> 24)} 0 - Live 0xffffffff{where(name):08x}\n"
            for name in sorted(machine.modules)
        ),
    }
    # A guest runs one where it was given the switches.
    switches = any(function.driver == "nvidia-nvswitch" for function in machine.functions)
    if machine.fabric_manager != "stopped" and not machine.nvlink_domain and (switches or not machine.hypervisor):
        found[f"/sys/fs/cgroup/system.slice/{UNIT}/cgroup.procs"] = "3120\n"
    return found


def errors(machine: Machine, address: str) -> dict[str, str]:
    """AER's files of a PCI function; a guest has none."""
    if machine.hypervisor:
        return {}
    counts = machine.aer.get(address, {})
    return {
        f"aer_dev_{kind}": f"RxErr {counts.get(kind, 0)}\n{total} {counts.get(kind, 0)}" for kind, total in _AER.items()
    }
