# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Changes of a machine or a file that the rows of data/faults.json name because no value of a row can say them."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

from . import network, nvidia_smi, ofed
from .machine import GpuProcess, LabError, Link, Machine, Rdma

_NIGHT = 86400.0
# Counters of an NVLink and of a port, as the suite's record of a run names them.
_OF_A_LINK = ("replays", "recoveries", "CRC errors", "failed recoveries")
_OF_A_PORT = (
    *("link_downed", "symbol_error", "port_rcv_errors", "local_link_integrity_errors", "port_xmit_discards"),
    *("excessive_buffer_overrun_errors", "port_xmit_packets", "port_rcv_packets", "port_xmit_wait"),
    *("out_of_sequence", "packet_seq_err", "implied_nak_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err"),
    *("rx_crc_errors_phy", "rx_pcs_symbol_err_phy", "rx_discards_phy", "tx_discards_phy", "rx_prio_cong_discard"),
    *("outbound_pci_stalled_rd_events", "outbound_pci_stalled_wr_events"),
)


# -- of the model ----------------------------------------------------------------------------------------------------


def move_nic(machine: Machine, rail: int) -> None:
    """Move a rail's NIC to the free slot."""
    if machine.spare_slot is None:
        raise LabError(f"{machine.hostname} has no free slot to move a NIC to")
    machine.move_nic(machine.rail(rail), machine.spare_slot)


def take_down(machine: Machine, rail: int) -> None:
    machine.take_down(machine.rail(rail), "2: Polling")


def drop_gids(machine: Machine, rail: int, part: str, kind: str = "") -> None:
    """Drop the GIDs of a rail whose value and kind contain these."""
    rdma = machine.rail(rail)
    rdma.gids = [gid for gid in rdma.gids if part not in gid.value or kind not in gid.kind]


def shift_gids(machine: Machine) -> None:
    """Move rail 0's IPv4 GIDs to other indices, as after hours or a flap."""
    for gid in machine.rail(0).gids:
        if ":ffff:" in gid.value:
            gid.index += 2


def give_address(machine: Machine, source: int, rail: int) -> None:
    """Give a rail the IPv4 address of another one."""
    value = next(gid.value for gid in machine.rail(source).gids if ":ffff:" in gid.value)
    for gid in machine.rail(rail).gids:
        gid.value = value if ":ffff:" in gid.value else gid.value
    mine, other = machine.netdev(rail), machine.netdev(source)
    mine.ipv4 = other.ipv4
    destination = next(route.destination for route in machine.routes if route.netdev == other.name)
    for route in machine.routes:
        route.destination = destination if route.netdev == mine.name else route.destination


def narrow_slots(machine: Machine) -> None:
    """Train the NICs of all rails to half of their lanes."""
    for rdma in machine.rdma:
        link = machine.function(rdma.address).link
        if rdma.rail is not None and link is not None:
            machine.set_link(rdma.address, Link(link.speed, link.width // 2))


def drop_nvlink(machine: Machine, gpu: int, link: int) -> None:
    machine.gpu(gpu).nvlinks[link] = False


def occupy(machine: Machine, gpu: int, mib: int) -> None:
    machine.gpu_processes.append(GpuProcess(41873, "python", gpu, mib))


def translate(machine: Machine) -> None:
    """Boot without iommu=pt."""
    machine.cmdline = machine.cmdline.replace(" iommu=pt", "")


def second_switch(machine: Machine, rail: int) -> None:
    heard = machine.netdev(rail).switch
    heard.append(replace(heard[0], name="leaf-9", chassis="44:38:39:ff:00:09"))


def forget_dscp(machine: Machine, rail: int) -> None:
    if port := machine.netdev(rail).qos:
        for dscp, prio in list(port.apps):
            port.del_app(dscp, prio)


def map_dscp(machine: Machine, rail: int, dscp: int, prio: int) -> None:
    if port := machine.netdev(rail).qos:
        port.set_app(dscp, prio)


def unload(machine: Machine, module: str) -> None:
    machine.modules.pop(module, None)


def peermem(machine: Machine, behaviour: str) -> None:
    """Unload nvidia_peermem; behaviour: of loading it, a key of kernel_modules.PEERMEM."""
    unload(machine, "nvidia_peermem")
    machine.peermem = behaviour


def legacy_peermem(machine: Machine) -> None:
    machine.modules["nv_peer_mem"] = machine.modules.pop("nvidia_peermem", None)


def older_driver(machine: Machine, version: str) -> None:
    """Load another version of the driver, with what belongs to it."""
    machine.driver_version = version
    machine.modules.update((name, version) for name in ("nvidia", "nvidia_peermem") if name in machine.modules)


def faulty_driver(machine: Machine, version: str) -> None:
    """Load a driver that faults on large mappings with 64 KiB pages; nvidia_peermem is not built for such a kernel."""
    machine.driver_version = machine.modules["nvidia"] = version
    peermem(machine, "missing")


# -- of a file: the text before, None for no file -> the text after --------------------------------------------------


def cut(machine: Machine, text: str | None) -> str:
    return (text or "")[:100]


def claim(machine: Machine, text: str | None) -> str:
    """Write a profile of NetworkManager for rail 4."""
    return network.keyfile(machine.netdev(4), 4, mtu=1500)


def forget_sysctls(machine: Machine, text: str | None) -> str:
    """Remove the lines of rail 0."""
    name = f"/{machine.netdev(0).name}/"
    return "".join(line for line in (text or "").splitlines(keepends=True) if name not in line)


def another_key(machine: Machine, text: str | None) -> str:
    lines = (text or "").splitlines()
    return "\n".join([*lines[:2], *reversed(lines[2:-1]), lines[-1]]) + "\n"


def shadow(machine: Machine, text: str | None) -> str:
    """Write modules.dep as depmod does with a search order that puts the kernel's own modules first."""
    inbox = "kernel/drivers/net/ethernet/mellanox/mlx5/core/mlx5_core.ko:"
    kept = [line for line in (text or "").splitlines() if not line.startswith("updates/dkms/mlx5_core.ko:")]
    return "".join(f"{line}\n" for line in [*kept, inbox])


def remove_ofed(machine: Machine, text: str | None) -> str:
    """Remove what dpkg knows of the package that depends on all others."""
    meta = ofed.RELEASES[ofed.INSTALLED].meta
    return "\n\n".join(one for one in (text or "").split("\n\n") if not one.startswith(f"Package: {meta}\n"))


def leave_mlnx_ofed(machine: Machine, text: str | None) -> str:
    """Leave one package, as after a removal that was not finished.

    mlnx-ofed-all would conflict with doca-ofed, and apt would do nothing before that is settled.
    """
    left = ofed.Package("mlnx-ofed-basic", ofed.RELEASES["24.10-2.1.8.0"].meta_version, "MLNX_OFED: basic packages")
    return (text or "") + ofed.status([left], "install")


def last_night(machine: Machine, _text: str | None) -> str:
    """Write the record of a run a night ago, of a node that has counted nothing since it was booted."""
    files = nvidia_smi.hardware(machine)
    loaded: dict[str, str] = {}
    for line in files["/proc/modules"].splitlines():
        words = line.split()
        if words[0] in ("nvidia", "mlx5_core"):
            loaded[words[0]] = f"{words[1]} {words[5]}"
    counters = ["replays", "slowed hw_power_brake_slowdown", "slowed hw_thermal_slowdown"]
    counters += [f"link {link} {name}" for link in range(18) for name in _OF_A_LINK]
    data: dict[str, Any] = {
        "format": 1,
        "boot_id": files["/proc/sys/kernel/random/boot_id"].strip(),
        "at": time.time() - _NIGHT,
        "driver_loaded": loaded,
        "gpus": {gpu.uuid: dict.fromkeys(counters, 0) for gpu in machine.gpus},
        "pci": {
            function.address: dict.fromkeys(("correctable", "nonfatal", "fatal"), 0) for function in machine.functions
        },
        "ports": {f"{rdma.address}/1": _port(machine, rdma) for rdma in machine.rdma if rdma.rail is not None},
        "history": [],
        "before": None,
    }
    return json.dumps(data) + "\n"


def _port(machine: Machine, rdma: Rdma) -> dict[str, Any]:
    """A port that has counted nothing but a few pauses, and neither downs of its link since its settings were made."""
    indices = [machine.index(found) for found in machine.netdevs if found.address == rdma.address]
    return {
        "guid": rdma.node_guid.lower(),
        "loaded": str(min(indices, default="")),
        "speed": "NDR",
        "at": time.time() - _NIGHT,
        "values": {**dict.fromkeys(_OF_A_PORT, 0), "tx_prio3_pause_duration": 48},
    }
