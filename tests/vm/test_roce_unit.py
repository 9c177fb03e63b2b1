# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The files of roce_unit under a real udev and a real systemd: one run each time that the netdev comes, and no other.

The port is QEMU's e1000e. No kernel of Debian has DCB for it: mlnx_qos is a stand-in that forgets with the netdev, and
takes the link down and up for a changed PFC mask, as mlx5 does.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos import boot_script as roce_boot
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos import boot_unit as roce_unit
from ansible_collections.busbar.fabric.plugins.module_utils.roce_qos.boot_script import Intent, Result

from .conftest import NewVm
from .machine import Machine

PORT = "0000:00:09.0"
DRIVER = "/sys/bus/pci/drivers/e1000e"
UNIT = f"busbar-roce-qos@{PORT}.service"
WANTED = Intent({PORT: False}, {}, {"pfc": [3], "pause_off": False})
# Of the netdev with this index is known whether PFC is on for priority 3.
MLNX_QOS = """\
#!/bin/sh
state="/run/dcb-$(cat "/sys/class/net/$2/ifindex")"
case "$*" in
"-i $2")
    test -e "$state" && on=1 || on=0
    echo "DCBX mode: OS controlled"
    echo "PFC configuration:"
    echo "priority 0 1 2 3 4 5 6 7"
    echo "enabled 0 0 0 $on 0 0 0 0"
    echo "tc: 0 ratelimit: unlimited, tsa: vendor"
    for priority in 0 1 2 3 4 5 6 7; do echo "priority: $priority"; done ;;
"-i $2 --pfc 0,0,0,1,0,0,0,0")
    : > "$state"
    ip link set dev "$2" down && ip link set dev "$2" up ;;
*)
    exit 1 ;;
esac
"""
# A connection to an emulated machine takes a second: one for each step.
SEE = f"""
for _ in $(seq 240); do
    case "$(systemctl show --value --property=ActiveState {UNIT})" in active|failed) break ;; esac
    sleep 0.5
done
# Whatever else would start it has had its time.
sleep 2
systemctl show --value --property=ActiveState {UNIT}
journalctl --boot --quiet --output=cat --unit={UNIT} | grep --count '^Finished '
ls /run/dcb-$(cat /sys/bus/pci/devices/{PORT}/net/*/ifindex) 2> /dev/null || echo
cat {roce_boot.result_path(PORT)} || echo {{}}
"""
UNBIND = f"echo {PORT} > {DRIVER}/unbind; sleep 1; systemctl show --value --property=ActiveState {UNIT}"
BIND = f"echo {PORT} > {DRIVER}/bind"


@dataclass(frozen=True)
class Seen:
    """runs: of the unit, in this boot.   pfc: is on, for the netdev that is there now."""

    state: str
    runs: int
    pfc: bool
    result: Result


def see(machine: Machine, before: str = "true") -> Seen:
    """Once the unit has run. before: a command."""
    state, runs, pfc, result = machine.ssh("sh", "-c", f"{{ {before}; }} > /dev/null\n{SEE}").stdout.splitlines()[-4:]
    return Seen(state, int(runs), bool(pfc), roce_boot.parse_result(result))


@pytest.fixture(scope="module")
def machine(new_vm: NewVm) -> Machine:
    """With the files, and the port as if it had been there before them."""
    devices = (f"e1000e,netdev=rail,addr={PORT[8:]},romfile=",)
    machine = new_vm(devices=devices, netdevs=("hubport,id=rail,hubid=1",))
    machine.put({**roce_unit.render(WANTED), "/usr/local/sbin/mlnx_qos": MLNX_QOS})
    # udev looks for other rules every three seconds at most.
    machine.ssh("sh", "-c", "chmod 755 /usr/local/sbin/mlnx_qos && systemctl daemon-reload && sleep 4")
    return machine


@pytest.fixture(scope="module")
def seen(machine: Machine) -> dict[str, Any]:
    """One machine's way, each step on what the one before it has left."""
    found: dict[str, Any] = {}
    found["gone"] = machine.ssh("sh", "-c", UNBIND).stdout.strip()
    found["come"] = see(machine, BIND)
    found["gone again"] = machine.ssh("sh", "-c", UNBIND).stdout.strip()
    found["come again"] = see(machine, BIND)
    name = f"$(ls /sys/bus/pci/devices/{PORT}/net)"
    found["link down and up"] = see(machine, f"ip link set dev {name} down; ip link set dev {name} up")
    found["triggered"] = see(machine, f"udevadm trigger --settle --action=change /sys/class/net/{name}")
    machine.reboot()
    found["rebooted"] = see(machine, "systemctl is-system-running --wait")
    return found


def test_the_unit_is_one_that_systemd_takes_without_a_word(machine: Machine) -> None:
    done = machine.ssh("systemd-analyze", "verify", roce_unit.UNIT)
    assert (done.stdout, done.stderr) == ("", "")


def test_when_the_netdev_comes_the_unit_runs_once_and_goes_with_it(seen: dict[str, Any]) -> None:
    assert seen["come"] == Seen("active", 1, True, seen["come"].result)
    assert "--pfc" in str(seen["come"])
    assert seen["gone again"] == "inactive"
    assert seen["come again"] == Seen("active", 2, True, seen["come"].result)


@pytest.mark.parametrize("step", ["link down and up", "triggered"])
def test_nothing_but_a_netdev_that_comes_starts_it(seen: dict[str, Any], step: str) -> None:
    # The bounce of PFC itself was among what came before.
    assert seen[step] == seen["come again"]


def test_at_boot_it_runs_once(machine: Machine, seen: dict[str, Any]) -> None:
    after = seen["rebooted"]
    assert (after.state, after.runs, after.pfc, after.result.state) == ("active", 1, True, "ok")
    assert machine.ssh("systemctl", "is-system-running").stdout == "running\n"


def test_a_rule_as_that_for_virtual_functions_finds_the_function(machine: Machine, seen: dict[str, Any]) -> None:
    """QEMU has no network card with virtual functions here: the port's own uevent stands for that of a physfn."""
    lines = roce_unit.render(WANTED)[roce_unit.RULE].replace("device/physfn/uevent", "device/uevent").splitlines(True)
    rule = "".join(line for line in lines if not line.startswith("KERNELS"))
    machine.put({roce_unit.RULE: rule})
    assert machine.ssh("sh", "-c", f"sleep 4; {UNBIND}").stdout.strip() == "inactive"
    after = see(machine, BIND)
    assert (after.state, after.runs, after.pfc) == ("active", 2, True)


def test_a_failed_run_is_told_by_systemd_and_by_the_result(machine: Machine, seen: dict[str, Any]) -> None:
    machine.put(
        {"/usr/local/sbin/mlnx_qos": "#!/bin/sh\nexit 1\n", roce_unit.RULE: roce_unit.render(WANTED)[roce_unit.RULE]}
    )
    machine.ssh("sh", "-c", f"sleep 4; {UNBIND}")
    after = see(machine, BIND)
    assert (after.state, after.result.state) == ("failed", "failed")
    assert "mlnx_qos" in json.dumps(after.result.said)
