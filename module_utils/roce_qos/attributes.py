# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read and compare the settings that are files: ECN and its notifications, the ToS of rdma_cm, the forced class.

Sources: ABI testing/configfs-rdma_cm; OFED's ecn and tc directories.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Callable, Dict, Mapping, Optional, Sequence, Tuple

from ..core import fix_command
from ..core.check import Check
from ..core.host import Host, ReadError
from ..machine import netdev, rdma
from ..machine.pci import fullmatch, parse_decimal
from .config import PortConfig
from .port import Comparison, Gap, Port, PortState, Unreadable, or_unread

CONFIGFS = "/sys/kernel/config/rdma_cm"
# The number alone is how it is written.
_GLOBAL_CLASS = re.compile(r"(?:Global tclass=)?(-1|[0-9]{1,3})")
_RUN = fix_command.run_tag("roce_qos")


def _compare_numbers(
    state: PortState, wanted: Mapping[str, Optional[int]], words: Callable[[Sequence[Optional[int]]], str]
) -> Comparison:
    """Compare attributes.   wanted: path -> value.   words: of their values."""
    have = [state.numbers.get(path) for path in wanted]
    writes = [(path, str(value)) for (path, value), now in zip(wanted.items(), have) if value != now]
    return Comparison(not writes, words(list(wanted.values())), words(have), writes=tuple(writes))


# -- ECN and its notifications, in OFED's directory ------------------------------------------------------------------

ECN = Check(
    "roce_qos.ecn",
    why="without ECN only PFC slows senders down, and congestion spreads through the fabric",
    fix=_RUN,
)
"Is ECN on for the priority of the chain: marking and reaction"


def ecn_folder(port: Port) -> str:
    return "%s/%s/ecn" % (netdev.INTERFACES, port.netdev)


def enable_path(port: Port, side: str, priority: int) -> str:
    """side: np for marking, rp for the reaction."""
    return "%s/roce_%s/enable/%d" % (ecn_folder(port), side, priority)


def _ecn_paths(port: Port, want: PortConfig) -> Dict[str, Tuple[str, int]]:
    return {enable_path(port, side, number): (side, number) for side in ("np", "rp") for number in want.chain.ecn}


def read_ecn(host: Host, state: PortState, want: PortConfig) -> PortState:
    return _read_folder(host, state, want, list(_ecn_paths(state.port, want)))


def _read_folder(host: Host, state: PortState, want: PortConfig, paths: Sequence[str]) -> PortState:
    port, chain, folder = state.port, want.chain, ecn_folder(state.port)
    with or_unread(folder):
        is_there = bool(host.listdir(folder))
    if not is_there:
        settings = "ROCE_CC_PRIO_MASK_P%d=255" % port.number
        if chain.cnp_dscp is not None:
            values = (port.number, chain.cnp_dscp, port.number, chain.cnp_priority or 0)
            settings += " CNP_DSCP_P%d=%d CNP_802P_PRIO_P%d=%d" % values
        fix = "mlxconfig -d %s -y set %s, then reboot; or install OFED (role mofed)" % (port.pci, settings)
        missing = "no ecn directory: with the kernel's own driver ECN is firmware configuration"
        raise Unreadable(Gap("unsupported", missing, folder, fix))
    # Of several that cannot be read the last is reported.
    for path in reversed(paths):
        state = _read_number(host, state, path)
    return state


def _read_number(host: Host, state: PortState, path: str) -> PortState:
    """Add an attribute; an absent one is an error. Raises Unreadable."""
    with or_unread(path):
        return replace(state, numbers={**state.numbers, path: parse_decimal(host.require(path))})


def compare_ecn(state: PortState, want: PortConfig) -> Comparison:
    off = {path: which for path, which in _ecn_paths(state.port, want).items() if not state.numbers.get(path)}
    on = "on for %s" % ",".join(map(str, want.chain.ecn))
    have = ", ".join("roce_%s off for %d" % which for which in off.values()) or on
    return Comparison(not off, "marking and reaction " + on, have, writes=tuple((path, "1") for path in off))


CNP = Check(
    "roce_qos.cnp",
    why="a congestion notification that waits in the congested queue arrives too late",
    fix=_RUN,
    severity="minor",
)
"Do congestion notifications have the configured class"


def cnp_paths(port: Port) -> Tuple[str, str]:
    return "%s/roce_np/cnp_dscp" % ecn_folder(port), "%s/roce_np/cnp_802p_prio" % ecn_folder(port)


def read_cnp(host: Host, state: PortState, want: PortConfig) -> PortState:
    return _read_folder(host, state, want, cnp_paths(state.port))


def compare_cnp(state: PortState, want: PortConfig) -> Comparison:
    wanted = dict(zip(cnp_paths(state.port), (want.chain.cnp_dscp, want.chain.cnp_priority)))
    return _compare_numbers(state, wanted, lambda values: "DSCP %s, priority %s" % tuple(values))


# -- the RDMA device -------------------------------------------------------------------------------------------------

TOS = Check(
    "roce_qos.tos",
    why="connections that rdma_cm makes without their own traffic class get this one",
    fix=_RUN,
)
"Does traffic of rdma_cm have the class of the chain"
_NO_DIRECTORY = "not shown: rdma_cm has no directory for the device; the kernel's default is 0"


def tos_path(port: Port) -> str:
    return "%s/%s/ports/%d/default_roce_tos" % (CONFIGFS, port.rdma, port.rdma_port)


def read_tos(host: Host, state: PortState, _want: PortConfig) -> PortState:
    """rdma_cm shows a device in the directory of its name, which a run makes when it writes. To read it makes none."""
    path = tos_path(state.port)
    if not os.path.isdir(host.hardware(CONFIGFS)):
        problem = "%s is not there: rdma_cm is not loaded, or configfs not mounted" % CONFIGFS
        fix = "modprobe rdma_cm && mount -t configfs none /sys/kernel/config, as far as either is missing"
        raise Unreadable(Gap("unknown", problem, path, fix))
    is_there = os.path.isdir(host.hardware("%s/%s" % (CONFIGFS, state.port.rdma)))
    return _read_number(host, state, path) if is_there else state


def compare_tos(state: PortState, want: PortConfig) -> Comparison:
    def words(values: Sequence[Optional[int]]) -> str:
        return _NO_DIRECTORY if values[0] is None else str(values[0])

    return _compare_numbers(state, {tos_path(state.port): want.chain.tos}, words)


TRAFFIC_CLASS = Check(
    "roce_qos.traffic_class",
    why="it is forced upon every queue pair of the device",
    fix=_RUN,
)
"If configured: is the traffic class, or none, forced on every queue pair of the device"


def class_path(port: Port) -> str:
    return "%s/%s/tc/%d/traffic_class" % (rdma.DEVICES, port.rdma, port.rdma_port)


def read_traffic_class(host: Host, state: PortState, _want: PortConfig) -> PortState:
    path = class_path(state.port)
    with or_unread(path):
        try:
            text = host.read(path)
        except ReadError as error:
            if error.problem.message != "is empty":
                raise
            text = ""
        if text is None:
            fix = "install OFED (role mofed), or leave traffic_class unset and give jobs NCCL_IB_TC"
            raise Unreadable(Gap("unsupported", "only OFED's driver can force a traffic class", path, fix))
        state = replace(state, numbers={**state.numbers, path: parse_traffic_class(text)})
    return state


def parse_traffic_class(text: str) -> int:
    """The global one, -1 for none. Rules for single addresses stand in further lines. Raises ParseError."""
    first = text.partition("\n")[0].strip()
    if not first or first.startswith("tclass="):
        return -1
    return int(fullmatch(_GLOBAL_CLASS, first, "a line like Global tclass=106").group(1))


def compare_traffic_class(state: PortState, want: PortConfig) -> Comparison:
    def words(values: Sequence[Optional[int]]) -> str:
        return "none forced" if values[0] in (None, -1) else str(values[0])

    return _compare_numbers(state, {class_path(state.port): want.chain.traffic_class}, words)
