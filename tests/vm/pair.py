# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Two machines with two rails each on one private network that takes jumbo frames, and Soft-RoCE (rdma_rxe) on each.

A Soft-RoCE device has all that a rail has but a PCI function: nothing links it to the NIC it runs over. So the suite,
which knows NICs by their address, gets a hardware root in which that link is there. All else in it is the kernel's own
/sys and /proc.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .machine import Machine

NAMES = ("node01", "node02")
# By rail: the NIC's address, and the name that udev gives it (its slot, in decimal).
FUNCTIONS = ("0000:00:08.0", "0000:00:09.0")
NETDEVS = ("enp0s8", "enp0s9")
HARDWARE_ROOT = "/run/hw"
_SCRIPT = "/usr/local/sbin/rail"
# Nobody uses GPUs that are not there, but a node is asked before its links are touched.
_SMI = "#!/bin/sh\necho 'pid, process_name, used_gpu_memory [MiB]'\n"
_RAIL = f"""\
#!/bin/sh
set -e
netdev=$1 device=rxe_$1 root={HARDWARE_ROOT}
# At boot all rails come at once.
exec 9> /run/rail.lock
flock 9
modprobe rdma_rxe
rdma link add "$device" type rxe netdev "$netdev"
if [ ! -d $root ]; then
    mkdir -p $root/proc $root/sys
    mount --rbind --make-rprivate /proc $root/proc
    mount --rbind --make-rprivate /sys $root/sys
    mount -t tmpfs none $root/sys/class/infiniband
fi
mkdir "$root/sys/class/infiniband/$device"
cd "$root/sys/class/infiniband/$device"
for entry in "/sys/class/infiniband/$device"/*; do
    ln -s "../../../devices/virtual/infiniband/$device/${{entry##*/}}" .
done
# What tells a software device from a NIC: the NIC under it has a name here, firmware has none, and there is no device.
rm -f parent fw_ver
function=$(realpath "/sys/class/net/$netdev/device/..")
ln -s "../../..${{function#/sys}}" device
"""
_UNIT = f"""\
[Unit]
BindsTo=sys-subsystem-net-devices-%i.device
After=sys-subsystem-net-devices-%i.device systemd-networkd.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStartPre=/lib/systemd/systemd-networkd-wait-online -i %i --timeout=60
ExecStart={_SCRIPT} %i
[Install]
WantedBy=multi-user.target
"""
_NETWORK = """\
[Match]
Name={}
[Network]
Address={}/24
LinkLocalAddressing=no
"""


def start(new_vm: Callable[..., Machine], folder: Path) -> dict[str, Machine]:
    """Both by name. folder: for the sockets, whose paths may have 107 characters.

    A rail has its address from a file, as on a site, and comes up with the kernel's MTU: that is nobody's yet.
    """
    machines: dict[str, Machine] = {}
    for name, other in (NAMES, NAMES[::-1]):
        ends = ((name, "local"), (other, "remote"))
        sockets = (f"{end}.type=unix,{end}.path={folder}/{owner}" for owner, end in ends)
        netdevs = [f"dgram,id=link,{','.join(sockets)}", "hubport,id=up,hubid=0,netdev=link"]
        devices = []
        files = {"/usr/bin/nvidia-smi": _SMI, _SCRIPT: _RAIL, "/etc/systemd/system/rail@.service": _UNIT}
        for rail, function in enumerate(FUNCTIONS):
            netdevs.append(f"hubport,id=rail{rail},hubid=0")
            # The kernel makes GUIDs of it, and QEMU gives all machines the same one.
            mac = f"02:00:00:00:{rail:02}:{NAMES.index(name) + 1:02}"
            devices.append(f"virtio-net-pci,netdev=rail{rail},mac={mac},addr={function[8:]},romfile=")
            # Before the image's file, which asks for addresses by DHCP.
            files[f"/etc/systemd/network/05-rail{rail}.network"] = _NETWORK.format(NETDEVS[rail], address(name, rail))
        machine = machines[name] = new_vm(devices=devices, netdevs=netdevs, beside=bool(machines))
        machine.put(files)
        units = " ".join(f"rail@{netdev}.service" for netdev in NETDEVS)
        script = f"chmod +x /usr/bin/nvidia-smi {_SCRIPT}; networkctl reload; systemctl --quiet enable --now {units}"
        machine.ssh("sh", "-ec", script)
    return machines


def address(name: str, rail: int) -> str:
    """Of a machine on a rail. All rails are in one subnet, as in many a real fabric."""
    return f"10.9.0.{10 * rail + NAMES.index(name) + 1}"


def profile() -> dict[str, Any]:
    """Of such a machine. Its rails are found by their address, as there is no GPU that they could be near."""
    return {
        "description": "a virtual machine with Soft-RoCE",
        "gpus": {"count": 0, "models": []},
        "rail_defaults": {"rate_gbps": 2.5, "link_layers": ["Ethernet"], "numa": "any"},
        "rails": [{"pci": function, "paths": {}} for function in FUNCTIONS],
    }
