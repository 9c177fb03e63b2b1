# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read the RoCE settings of the rails' ports.

ConnectX is read by ``mlnx_qos`` if OFED's tools are installed, else by ``dcb`` of iproute2. Both end with 0 on some
failures, so that every write is read back.
Sources: Mellanox/mlnx-tools; dcb(8); kernel mlx5 en_dcbnl.c.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace
from typing import Dict, List, Optional, Sequence, Tuple

from ..core.host import Host, ParseError, ReadError
from ..machine import netdev
from . import dcb, mlnx_qos
from .config import PortConfig
from .port import Dcb, Gap, Port, PortState, Unreadable, as_root
from .settings import SETTINGS, enabled


@dataclass(frozen=True)
class QosState:
    """lldpad: whether a process of that name runs on the node."""

    lldpad: bool
    ports: Tuple[PortState, ...]


def read(host: Host, ports: Sequence[Port], wanted: PortConfig) -> QosState:
    """Read the wanted settings."""
    return QosState(_lldpad_runs(host), tuple(read_port(host, port, wanted) for port in ports))


def _lldpad_runs(host: Host) -> bool:
    for pid in host.listdir("/proc"):
        if pid.isdigit():
            with contextlib.suppress(ReadError):  # it has ended meanwhile
                if host.read("/proc/%s/comm" % pid) == "lldpad":
                    return True
    return False


def read_port(host: Host, port: Port, wanted: PortConfig) -> PortState:
    port = replace(port, gap=port.gap or _of_subfunction(host, port))
    names = [name for name in enabled(wanted) if port.has(name)]
    gaps = {name: gap for name in names for gap in [port.gap_of(name)] if gap is not None}
    left = [name for name in names if name not in gaps]
    state = PortState(port)
    of_tool = [name for name in left if SETTINGS[name].kinds]
    if of_tool:
        tool, found = _read_dcb(host, port, wanted, of_tool, gaps)
        state = replace(state, tool=tool, dcb=found)
    for name in left:
        reader = SETTINGS[name].read
        if reader is not None:
            try:
                state = reader(host, state, wanted)
            except Unreadable as error:
                gaps[name] = error.gap
    return replace(state, gaps=gaps)


def _of_subfunction(host: Host, port: Port) -> Optional[Gap]:
    device = host.realpath("%s/%s/device" % (netdev.INTERFACES, port.netdev)) or ""
    if re.fullmatch(r"mlx5_core\.sf\.[0-9]+", device.rpartition("/")[2]) is None:
        return None
    text = "a subfunction: its port is set at the physical function"
    return Gap("unsupported", text, device, "name the physical functions in the profile")


def _read_dcb(
    host: Host, port: Port, wanted: PortConfig, names: Sequence[str], gaps: Dict[str, Gap]
) -> Tuple[str, Dcb]:
    """Return the port's tool, and its output. Of two the one that reports more counts: mlnx_qos breaks off, or omits
    lines, on kernels and drivers that it was not written for, where dcb may work."""
    tools = (mlnx_qos.TOOL, dcb.TOOL) if port.is_mellanox else (dcb.TOOL, mlnx_qos.TOOL)
    results: List[Tuple[str, Dcb, Dict[str, Gap]]] = []
    for tool in tools:
        if host.has(tool) and not (results and (results[0][0] == dcb.TOOL or not results[0][2])):
            missing: Dict[str, Gap] = {}
            query = _by_mlnx_qos if tool == mlnx_qos.TOOL else _by_dcb
            results.append((tool, query(host, port, wanted, names, missing), missing))
    if not results:
        fix = "install mlnx-tools (it comes with OFED, role mofed), or iproute2 5.11 or later"
        gap = Gap("unknown", "neither mlnx_qos nor dcb is installed", "mlnx_qos, dcb", fix)
        gaps.update(dict.fromkeys(names, gap))
        return "", Dcb()
    tool, found, missing = min(results, key=lambda result: len(result[2]))
    gaps.update(missing)
    return tool, found


def _by_mlnx_qos(host: Host, port: Port, wanted: PortConfig, names: Sequence[str], gaps: Dict[str, Gap]) -> Dcb:
    argv = mlnx_qos.show(port.netdev)
    try:
        done = host.run(argv)
        # If the driver has no DCB, it ends with 1, and its output has the reason.
        refused = "not supported on your system" in done.stdout
        found, cannot = mlnx_qos.parse(done.stdout if refused else done.answer())
    except mlnx_qos.NotSupported as error:
        gaps.update(dict.fromkeys(names, _no_dcb(str(error), argv)))
        return Dcb()
    except (ParseError, ReadError) as error:
        gaps.update(dict.fromkeys(names, _failed_query(error, argv)))
        return Dcb()
    if found.trust == "none":
        gap = _no_dcb("this driver can neither report nor set its trust mode", argv)
        gaps.update({name: gap for name in ("trust", "dscp2prio") if name in names})
    for name, value in (("trust", found.trust), ("dcbx", found.owner), ("prio2tc", found.prio2tc), ("ets", found.tsa)):
        if value is None and name in names:
            text = "this version or driver does not show it (%s)" % name
            gaps[name] = Gap("unknown", text, " ".join(argv), "update mlnx-tools (it comes with OFED, role mofed)")
    if "buffers" in names and wanted.sizes_buffers and found.prio2buffer is None and "Buffers commands" in cannot:
        gaps["buffers"] = _no_dcb("this driver has no commands for buffers", argv)
    return found


def _by_dcb(host: Host, port: Port, wanted: PortConfig, names: Sequence[str], gaps: Dict[str, Gap]) -> Dcb:
    found = Dcb()
    for kind, parse in dcb.PARSERS.items():
        shown = [name for name in names if kind in SETTINGS[name].kinds]
        if not shown or (kind == "buffer" and not wanted.sizes_buffers):
            continue
        argv = dcb.show(kind, port.netdev)
        try:
            found = parse(host.query(argv), found)
        except (ParseError, ReadError) as error:
            # The second: the kernel answers, without an attribute of this kind.
            refused = any(words in str(error) for words in ("Operation not supported", "Attribute not found"))
            gap = _no_dcb("dcb has no %s for this driver or interface" % kind, argv) if refused else None
            gaps.update(dict.fromkeys(shown, gap or _failed_query(error, argv)))
    return found


def _no_dcb(text: str, argv: Sequence[str]) -> Gap:
    fix = "check that the interface is a physical port with its own driver (ethtool -i); if it is not, leave this unset"
    return Gap("unsupported", text, " ".join(argv), fix)


def _failed_query(error: Exception, argv: Sequence[str]) -> Gap:
    return Gap("unknown", str(error), " ".join(argv), as_root(argv))
