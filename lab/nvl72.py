# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What only a compute tray of an NVL72 shows: Grace, 64 KiB pages, IMEX, a domain of NVLinks.

The Fabric Manager runs on the switch trays.
"""

from __future__ import annotations

import json
from pathlib import Path

from .machine import Machine

UNIT = "nvidia-imex.service"
NODES = "/etc/nvidia-imex/nodes_config.cfg"
CTL = "/usr/bin/nvidia-imex-ctl"
GETCONF = "/usr/bin/getconf"
_DATA = "usr/share/busbar-lab/imex"
_TOOL = f"#!/bin/sh\n# Simulated.\ndata=${{{{0%/*}}}}/../../{_DATA}\n{{program}}\n"
_MAJOR = 234
_NODES = 18


def addresses() -> list[str]:
    """Of the nodes of the rack."""
    return [f"10.0.0.{number}" for number in range(1, _NODES + 1)]


# -- what it shows ---------------------------------------------------------------------------------------------------


def params(machine: Machine, usual: str) -> str:
    """Of /proc/driver/nvidia/params; usual: as the driver comes."""
    found = dict(line.split(": ", 1) for line in usual.splitlines()) | {"CreateImexChannel0": "0"}
    return "".join(f"{name}: {value}\n" for name, value in {**found, **machine.driver_options}.items())


def hardware(machine: Machine) -> dict[str, str]:
    """Files of /proc, /dev and the service's control group."""
    if not machine.nvlink_domain:
        return {}
    found = {"/proc/devices": f"Character devices:\n  1 mem\n{_MAJOR} nvidia-caps-imex-channels\n\nBlock devices:\n"}
    if machine.driver_options.get("CreateImexChannel0") == "1":
        found["/dev/nvidia-caps-imex-channels/channel0"] = ""
    if machine.imex != "stopped":
        found[f"/sys/fs/cgroup/system.slice/{UNIT}/cgroup.procs"] = "3310\n"
    return found


def tools(machine: Machine) -> tuple[str, ...]:
    return (CTL, GETCONF) if machine.nvlink_domain else ()


def files(machine: Machine) -> dict[str, str]:
    """Of the system: IMEX with the list of the rack's nodes, and what the driver's package and the site have set."""
    if not machine.nvlink_domain:
        return {}
    return {
        f"/usr/lib/systemd/system/{UNIT}": "[Unit]\nDescription=NVIDIA IMEX service\n[Service]\nType=forking\n",
        NODES: "".join(f"{address}\n" for address in addresses()),
        CTL: _TOOL.format(program='exec cat "$data/domain.json"'),
        GETCONF: _TOOL.format(program='[ "$1" = PAGESIZE ] && exec cat "$data/page-size"\nexit 1'),
    }


def write(machine: Machine, system_root: Path) -> None:
    """What the tools of a tray answer with."""
    if not machine.nvlink_domain:
        return
    data = system_root / _DATA
    data.mkdir(parents=True, exist_ok=True)
    (data / "page-size").write_text(f"{machine.page_size}\n")
    (data / "domain.json").write_text(json.dumps(_domain(machine)) + "\n")


def _domain(machine: Machine) -> dict[str, object]:
    away = machine.imex == "degraded"
    nodes = {}
    for number, address in enumerate(addresses()):
        status = "UNAVAILABLE" if away and number == 4 else "READY"
        version = machine.driver_version if status == "READY" else ""
        nodes[str(number)] = {"status": status, "host": address, "connections": {}, "changed": True, "version": version}
    return {"nodes": nodes, "timestamp": "11/23/2026 02:00:00.000", "status": "DEGRADED" if away else "UP"}
