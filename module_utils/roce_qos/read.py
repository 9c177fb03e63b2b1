# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the RoCE settings of the rails' ports.

``mlnx_qos`` of OFED's tools ends with 0 on some failures, so that every write is read back.
Sources: Mellanox/mlnx-tools; kernel mlx5 en_dcbnl.c.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace
from typing import Dict, NamedTuple, Sequence, Tuple, Union

from ..core.host import Host, ParseError, ReadError, ToolMissing, problem_of
from ..machine import netdev
from . import mlnx_qos
from .chain import PortConfig
from .port import OF_RDMA, Dcb, Gap, Port, PortState, of_physical_function
from .settings import SETTINGS, enabled

Gaps = Dict[str, Gap]


class QosState(NamedTuple):
    """lldpad: whether a process of that name runs on the node."""

    lldpad: bool
    ports: Tuple[PortState, ...]


def read(host: Host, ports: Sequence[Port], wanted: PortConfig) -> QosState:
    """Read the wanted settings."""
    return QosState(_lldpad_runs(host), tuple(read_port(host, port, wanted) for port in ports))


def _lldpad_runs(host: Host) -> bool:
    for pid in filter(str.isdigit, host.listdir("/proc")):
        with contextlib.suppress(ReadError):  # it has ended meanwhile
            if host.read("/proc/%s/comm" % pid) == "lldpad":
                return True
    return False


def read_port(host: Host, port: Port, wanted: PortConfig) -> PortState:
    device = host.realpath("%s/%s/device" % (netdev.INTERFACES, port.netdev)) or ""
    if port.gap is None and re.fullmatch(r"mlx5_core\.sf\.[0-9]+", device.rpartition("/")[2]):
        port = port._replace(gap=of_physical_function("a subfunction", device))
    names = [name for name in enabled(wanted) if port.has(name)]
    gaps: Gaps = {}
    if port.gap is not None:
        gaps.update((name, port.gap) for name in names if port.silent or name not in OF_RDMA)
    left = [name for name in names if name not in gaps]
    state = PortState(port)
    of_tool = [name for name in left if SETTINGS[name].read is None]
    if of_tool:
        state = replace(state, dcb=_read_dcb(host, port, wanted, of_tool, gaps))
    for setting in (SETTINGS[name] for name in left):
        if setting.read is not None:
            try:
                result = setting.read(host, state, wanted)
            except (ParseError, ReadError) as error:
                result = _not_read(error, setting.source(port))
            if isinstance(result, Gap):
                gaps[setting.name] = result
            else:
                state = result
    return replace(state, gaps=gaps)


def _read_dcb(host: Host, port: Port, wanted: PortConfig, names: Sequence[str], gaps: Gaps) -> Dcb:
    source = " ".join(mlnx_qos.show(port.netdev))
    try:
        done = host.run(mlnx_qos.show(port.netdev))
        # If the driver has no DCB, it ends with 1, and its output has the reason.
        refused = "not supported on your system" in done.stdout
        found, cannot = mlnx_qos.parse(done.stdout if refused else done.answer())
    except ToolMissing:
        fix = "install mlnx-tools (it comes with OFED, role mofed)"
        gaps.update(dict.fromkeys(names, Gap("unknown", "mlnx_qos is not installed", mlnx_qos.TOOL, fix)))
        return Dcb()
    except (ParseError, ReadError) as error:
        is_unsupported = isinstance(error, mlnx_qos.NotSupported)
        gaps.update(dict.fromkeys(names, _no_dcb(str(error), source) if is_unsupported else _not_read(error, source)))
        return Dcb()
    missing: Gaps = {}
    if found.trust == "none":
        text = "this driver can neither report nor set its trust mode"
        missing.update(dict.fromkeys(("trust", "dscp2prio"), _no_dcb(text, source)))
    for name, value in (("trust", found.trust), ("dcbx", found.owner), ("prio2tc", found.prio2tc), ("ets", found.tsa)):
        if value is None:
            text = "this version or driver does not show it (%s)" % name
            missing[name] = Gap("unknown", text, source, "update mlnx-tools (it comes with OFED, role mofed)")
    if wanted.sizes_buffers and found.prio2buffer is None and "Buffers commands" in cannot:
        missing["buffers"] = _no_dcb("this driver has no commands for buffers", source)
    gaps.update({name: gap for name, gap in missing.items() if name in names})
    return found


def _no_dcb(text: str, source: str) -> Gap:
    fix = "check that the interface is a physical port with its own driver (ethtool -i); if it is not, leave this unset"
    return Gap("unsupported", text, source, fix)


def _not_read(error: Union[ParseError, ReadError], source: str) -> Gap:
    path = problem_of(error, source).source
    source = path if path.startswith("/") else source
    fix = "look at %s" if source.startswith("/") else "run %s as root and look at dmesg"
    return Gap("unknown", str(error), source, fix % source)
