# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the versions of what is installed: the NVIDIA driver, NIC firmware, container tools, DCGM and CUDA.

Sources: output of ``nvidia-ctk --version`` (NVIDIA/nvidia-container-toolkit issue 50), ``runc --version`` (its
main.go), ``dcgmi --version``; version.json of a CUDA toolkit.
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Iterable, List, Mapping, Optional, Sequence

from ..core.finding import Finding
from ..core.host import Host, ParseError, attempt
from . import minimum_versions
from .minimum_versions import Installed
from .platform_checks import RAIL_FIRMWARE
from .topology import Topology

CUDA = "/usr/local/cuda/version.json"
# Component -> name in a finding, tool that prints its version.
_TOOLS = {
    "container_toolkit": ("NVIDIA container toolkit", "nvidia-ctk"),
    "runc": ("runc", "runc"),
    "dcgm": ("DCGM", "dcgmi"),
}
_PRINTED = re.compile(r"version:? +([0-9][0-9A-Za-z.+~-]{0,40})$", re.MULTILINE)
# Seconds for a tool that only prints its version.
_SECONDS = 10.0


def parse_printed(text: str) -> str:
    """Return the version of ``runc version 1.3.6`` or ``dcgmi  version: 4.5.3``. Raises ParseError."""
    found = _PRINTED.search(text)
    if found is None:
        raise ParseError("%.80r has no line that ends in 'version 1.2.3'" % text)
    return found[1]


def parse_cuda(text: str) -> str:
    """Return the version of a toolkit's version.json. Raises ParseError."""
    try:
        version = json.loads(text)["cuda"]["version"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ParseError("has no cuda.version: %.100s" % error) from error
    if not isinstance(version, str) or minimum_versions.version_key(version) is None:
        raise ParseError("cuda.version is %.60r" % (version,))
    return version


def judge(
    host: Host, machine: Topology, words: Sequence[str], firmware: Mapping[str, str], others: Iterable[Finding]
) -> List[Finding]:
    """Return the findings on minimum versions. words: busbar_minimum_versions.   firmware: busbar_firmware.

    others: findings of the platform, of which one on a NIC's firmware causes that here.
    """
    wanted = {one.component for one in minimum_versions.minimums(words)}
    installed = [] if machine.virtualization.is_vm else _nics(machine, firmware, others)
    if "driver" in wanted and machine.gpus:
        version = machine.driver.version if machine.driver else None
        installed.append(Installed("driver", "NVIDIA driver", version, "/proc/driver/nvidia/version"))
    for component in sorted(wanted & {*_TOOLS}):
        name, tool = _TOOLS[component]
        if host.has(tool):
            source = "%s --version" % tool
            version = attempt(partial(_query_tool, host, tool), source, [])
            installed.append(Installed(component, name, version, source))
    if "cuda" in wanted and host.is_file_system(CUDA):
        installed.append(Installed("cuda", "CUDA toolkit", attempt(partial(_read_cuda, host), CUDA, []), CUDA))
    return minimum_versions.judge(installed, words)


def _query_tool(host: Host, tool: str) -> str:
    return parse_printed(host.query([tool, "--version"], _SECONDS))


def _read_cuda(host: Host) -> Optional[str]:
    text = host.read_system(CUDA)
    return None if text is None else parse_cuda(text)


def _nics(machine: Topology, firmware: Mapping[str, str], others: Iterable[Finding]) -> List[Installed]:
    wrong = {one.identity: one.id for one in others if one.check == RAIL_FIRMWARE.id and not one.ok}
    return [
        Installed(
            "nic_firmware",
            nic.label,
            nic.rdma.firmware,
            "%s/fw_ver" % nic.rdma.source,
            firmware.get(nic.rdma.board_id or "") == nic.rdma.firmware,
            wrong.get(nic.pci),
        )
        for nic in machine.nics
        if nic.rdma is not None and nic.device.driver == "mlx5_core" and nic.role != "vf"
    ]
