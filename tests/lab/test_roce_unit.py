# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The lab's stand-in for udev starts what a node's rules want; with it the role's unit through boots and reloads."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab import qos, store
from lab.machines import hgx_h200_roce
from lab.toolkit import udev

NODE, RAIL0, NETDEV0, VF = "node02", "0000:1a:00.0", "enp26s0np0", "enp131s0f0v0"
Answer = Callable[..., dict[str, Any]]
LAB = {NODE: hgx_h200_roce}


def roce(lab: Path, *words: str) -> None:
    subprocess.run([lab / NODE / "sys/usr/local/sbin/busbar-lab-roce", *words], check=True)


def port(lab: Path) -> qos.Port:
    root = str(lab / NODE / "hw")
    return qos.load(root, qos.find(root, NETDEV0))


def tos(lab: Path) -> int:
    return int((lab / NODE / f"hw{qos.tos_path('mlx5_6')}").read_text())


@pytest.mark.parametrize(
    ("rules", "netdev", "units"),
    [
        (f'KERNELS=="0000:99:00.0|{RAIL0}", ENV{{SYSTEMD_WANTS}}+="x@$id.service"', NETDEV0, [f"x@{RAIL0}.service"]),
        (f'KERNELS=="{RAIL0}", ENV{{SYSTEMD_WANTS}}+="x@$id.service"', VF, []),
        ('SUBSYSTEMS=="pci", ENV{SYSTEMD_WANTS}+="x@$id.service"', VF, ["x@0000:83:00.2.service"]),
        (
            'ATTR{device/physfn/uevent}=="*PCI_SLOT_NAME=0000:83:00.0*", ENV{SYSTEMD_WANTS}="x.service"',
            VF,
            ["x.service"],
        ),
        ('ATTR{device/physfn/uevent}=="*", ENV{SYSTEMD_WANTS}="x.service"', NETDEV0, []),
        ('ACTION!="add", ENV{SYSTEMD_WANTS}="x.service"', NETDEV0, []),
        ('UNHEARD=="of", ENV{SYSTEMD_WANTS}="x.service"', NETDEV0, []),
        ('# ENV{SYSTEMD_WANTS}="x.service"', NETDEV0, []),
    ],
)
def test_a_rule_wants_units_for_the_netdevs_that_it_matches(
    lab: Path, tmp_path: Path, rules: str, netdev: str, units: list[str]
) -> None:
    folder = tmp_path / udev.RULES
    folder.mkdir(parents=True)
    (folder / "90-x.rules").write_text(rules + "\n")
    assert udev.wanted(str(lab / NODE / "hw"), str(tmp_path), netdev) == units


def test_boots_and_reloads_of_the_driver_give_the_ports_back_what_they_take(lab: Path, on_node: Answer) -> None:
    root = str(lab / NODE / "hw")
    assert on_node("roce_qos", NODE)["findings"] == []
    assert (port(lab).pfc, tos(lab)) == (8, 106)
    store.reboot(lab, NODE)
    checked = on_node("roce_qos", NODE, check_mode=True)
    assert (checked["findings"], checked["changed"]) == ([], False)
    # The unit of every rail has run, and bounced its link once.
    assert len([name for name in checked["passed"] if name.startswith("roce_qos.unit[live]@")]) == 8
    assert port(lab).bounces == 1
    before = qos.writes(root)
    roce(lab, "driver-load", NETDEV0)
    after = qos.writes(root)[len(before) :]
    # Only what this port has lost; PFC is not among it, so that nothing bounces.
    assert not [line for line in after if "pfc" in line or "trust" in line]
    assert (tos(lab), port(lab).pfc, port(lab).bounces) == (106, 8, 1)
    roce(lab, "add", NETDEV0)
    assert qos.writes(root) == before + after
