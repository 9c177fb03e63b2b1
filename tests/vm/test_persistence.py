# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What gpudirect and pcie_path write for the next boot, through real boots of systemd and a real kernel.

nvidia_peermem is a stand-in: ib_umad under that name, so that it uses ib_core as the real one does, and ib_core cannot
go while it is there. The bridge is QEMU's root port, in which the kernel sets ACS itself where it has an IOMMU.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.gpudirect import plan as gpudirect_plan
from ansible_collections.busbar.fabric.plugins.module_utils.gpudirect import read as gpudirect
from ansible_collections.busbar.fabric.plugins.module_utils.pcie_path import boot_unit, registers

from .conftest import NewVm
from .machine import Machine

PORT, CARD = "0000:00:08.0", "0000:01:00.0"
DEVICES = (f"pcie-root-port,id=above,addr={PORT[8:]},chassis=1", "virtio-rng-pci,bus=above")
# The kernel names a module by its struct module in the file: the name, and zeros behind it till it is loaded. Without
# the mark at the end the module is just not signed. Debian 13 compresses its modules.
STAND_IN = """\
import glob, lzma, os
(source,) = glob.glob("/lib/modules/*/kernel/drivers/infiniband/core/ib_umad.ko*")
data = (lzma.open if source.endswith(".xz") else open)(source, "rb").read()
old, new = (name.ljust(512, b"\\0") for name in (b"ib_umad", b"nvidia_peermem"))
mark = b"~Module signature appended~\\n"
assert data.count(old) == 1 and data.endswith(mark)
data = data.replace(old, new)[: -len(mark)]
folder = source.partition("/kernel/")[0] + "/updates"
os.mkdir(folder)
open(folder + "/nvidia-peermem.ko", "wb").write(data)
"""
OPENIBD = "/etc/systemd/system/openibd.service"
# Like the real one it takes its modules out when it stops.
OPENIBD_TEXT = """\
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/sbin/modprobe ib_core
ExecStop=/sbin/modprobe -r ib_core
[Install]
WantedBy=multi-user.target
"""


# A connection to an emulated machine takes a second: as few of them as can be. A system with a failed unit is not
# "running", and systemctl fails then.
SEE = f"""\
systemctl is-system-running --wait || true
cat /sys/module/nvidia_peermem/initstate 2> /dev/null || echo
cat /proc/sys/kernel/random/boot_id
base64 --wrap=0 /sys/bus/pci/devices/{PORT}/config
"""
# With time between the two.
STOP_AND_START = """\
systemctl stop openibd.service
test ! -d /sys/module/nvidia_peermem
systemctl start openibd.service
timeout 60 sh -c 'until test -d /sys/module/nvidia_peermem; do sleep 0.2; done'
"""


@dataclass(frozen=True)
class Seen:
    """system: as systemctl is-system-running says. loaded: is nvidia_peermem. config: of the port."""

    system: str
    loaded: bool
    config: bytes
    boot: str

    @property
    def acs(self) -> registers.Register:
        found = registers.parse_acs(self.config)
        assert found is not None
        return found


def config(machine: Machine, address: str) -> bytes:
    return base64.b64decode(machine.ssh("base64", f"/sys/bus/pci/devices/{address}/config").stdout)


def see(machine: Machine) -> Seen:
    """Once the machine has booted to the end."""
    system, module, boot, space = machine.ssh("sh", "-c", SEE).stdout.splitlines()
    return Seen(system, bool(module), base64.b64decode(space), boot)


def rendered(machine: Machine, *, card: bool = False) -> dict[str, str]:
    """pcie_path's files for the port, and for the card as if it were a NIC."""
    space = config(machine, PORT)
    bridge = registers.Function(PORT, PORT, space[:4].hex(), registers.parse_acs(space))
    nics = []
    if card:
        space = config(machine, CARD)
        nics.append(registers.Function(CARD, CARD, space[:4].hex(), registers.parse_device_control(space)))
    return dict(boot_unit.render("/sys/bus/pci/devices", [bridge], nics, 4096))


@pytest.fixture(scope="module")
def machine(new_vm: NewVm) -> Machine:
    machine = new_vm(iommu=True, devices=DEVICES)
    machine.ssh("sh", "-c", 'python3 -c "$0" && depmod', STAND_IN)
    return machine


@pytest.fixture(scope="module")
def seen(machine: Machine) -> dict[str, Seen]:
    """One machine's way through three boots, each step on what the one before it has left."""
    steps = {"as the kernel left it": see(machine)}
    machine.put({**rendered(machine), gpudirect.LIST: gpudirect_plan.TEXTS[gpudirect.LIST]})
    machine.ssh("sh", "-c", "systemctl daemon-reload && systemctl start busbar-pcie-path.service")
    steps["unit started"] = see(machine)
    machine.reboot()
    steps["booted with the list and the unit for ACS"] = see(machine)
    units = (gpudirect.UNIT, gpudirect.DROPIN, gpudirect.OPENIBD_DROPIN)
    machine.put({OPENIBD: OPENIBD_TEXT, **{path: gpudirect_plan.TEXTS[path] for path in units}})
    machine.ssh("sh", "-c", f"rm {gpudirect.LIST} {boot_unit.DROPIN} && systemctl --quiet enable openibd.service")
    machine.reboot()
    steps["booted with the unit for nvidia_peermem"] = see(machine)
    return steps


def test_a_kernel_with_an_iommu_sets_acs_at_every_boot_and_the_unit_clears_just_those_bits(
    seen: dict[str, Seen],
) -> None:
    before, after = seen["as the kernel left it"], seen["unit started"]
    assert before.acs.word & registers.REDIRECT == registers.REDIRECT
    assert after.acs.word == before.acs.word & ~registers.CLEARED
    different = [offset for offset in range(4096) if before.config[offset] != after.config[offset]]
    assert different == [before.acs.offset]


def test_at_boot_the_unit_clears_acs_and_without_what_wants_it_acs_is_back(seen: dict[str, Seen]) -> None:
    with_it, without = (
        seen[step] for step in ("booted with the list and the unit for ACS", "booted with the unit for nvidia_peermem")
    )
    assert with_it.acs.word & registers.REDIRECT == 0
    assert without.acs.word & registers.REDIRECT == registers.REDIRECT
    assert (with_it.system, without.system) == ("running", "running")
    assert len({step.boot for step in seen.values()}) == 3


def test_a_register_that_does_not_take_the_value_is_told(machine: Machine, seen: dict[str, Seen]) -> None:
    # QEMU's devices have their read requests for good.
    script = rendered(machine, card=True)[boot_unit.SCRIPT]
    done = machine.ssh("python3", "-I", "-S", "-c", script, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        f"{CARD}: does not take the value (run Busbar's role pcie_path again)\n",
    )
    found = registers.parse_acs(config(machine, PORT))
    assert found is not None
    assert found.word & registers.REDIRECT == 0


def test_the_module_is_loaded_at_boot_by_the_list_alone(seen: dict[str, Seen]) -> None:
    assert not seen["as the kernel left it"].loaded
    assert seen["booted with the list and the unit for ACS"].loaded


def test_the_module_is_loaded_at_boot_by_the_unit_and_follows_openibd(machine: Machine, seen: dict[str, Seen]) -> None:
    assert seen["booted with the unit for nvidia_peermem"].loaded
    # It really holds what openibd takes out.
    assert machine.ssh("modprobe", "-r", "ib_core", check=False).returncode != 0
    show = ("systemctl", "show", "--value", "-p", "InvocationID", "openibd.service", "busbar-nvidia-peermem.service")
    before = machine.ssh(*show).stdout.split()
    assert machine.ssh("systemctl", "restart", "openibd.service", check=False).returncode == 0
    after = machine.ssh(*show).stdout.split()
    assert len({*before, *after}) == 4
    now = see(machine)
    assert (now.loaded, now.system) == (True, "running")
    machine.ssh("sh", "-e", "-c", STOP_AND_START)
