# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The result of every parser of this folder: nodes, ports, counters and managers of one output, for ``merge``.

A parser drops nothing: a line that it does not know is one of ``odd_lines``, and makes the sweep incomplete.
Sources: rdma-core infiniband-diags (ibnetdiscover.c, iblinkinfo.c, ibqueryerrors.c), libibmad dump.c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple, Union

from ..core.finding import printable
from ..core.host import Problem
from .sweep import LINE, SAID, ManagerEvent, SubnetManager

# Characters of a line of ibnetdiscover and iblinkinfo: two descriptions have 128. Longer ones only slow down patterns.
LONGEST = 600
# Above it are LIDs of multicast.
MOST_UNICAST = 0xBFFF
# Lines of each kind that are quoted; the rest is a number.
QUOTED = 5
# Gbit/s of a lane as libibmad prints them (dump.c). 10.0 is QDR, or FDR10 where that is added.
_LANES = {"2.5": "SDR", "5.0": "DDR", "10.0": "QDR", "14.0625": "FDR", "25.78125": "EDR"}
_LANES.update({"53.125": "HDR", "106.25": "NDR", "212.5": "XDR"})
_LANE = re.compile(r"([0-9.]+) Gbps( \(FDR10\))?")


class NodeRow(NamedTuple):
    """port_count: as in NodeInfo, without port 0. None: not in this output."""

    guid: str
    kind: Optional[str] = None
    description: Optional[str] = None
    system: Optional[str] = None
    device_id: Optional[int] = None
    firmware: Optional[str] = None
    psid: Optional[str] = None
    port_count: Optional[int] = None


class PortRow(NamedTuple):
    """A port; None: not in this output.

    guid: of its node; "" where the tool names ports by their own GUIDs, which are port_guid then.
    peer: port number of the other end, behind the GUID of its node (of its port where guid is ""), or its LID.
    linked: True where the line has another end, False where it has none.
    kind, description: of its node.   first_port: GUID of the first port of the same HCA, by the order of lines.
    """

    guid: str
    number: int
    port_guid: Optional[str] = None
    lid: Optional[int] = None
    state: Optional[str] = None
    physical: Optional[str] = None
    width: Optional[int] = None
    speed: Optional[str] = None
    width_supported: Optional[int] = None
    speed_supported: Optional[str] = None
    peer: Optional[Tuple[Union[str, int], int]] = None
    linked: Optional[bool] = None
    kind: Optional[str] = None
    description: Optional[str] = None
    first_port: Optional[str] = None


@dataclass
class ToolOutput:
    """source: the command or file.   both_ends: each link is printed at both ends.   all_ports: each port is printed.

    counters: by GUID of a node or port, and port number.   keys: node GUID -> partition keys.
    clean: a port that is left out has no errors, unless ``unread`` names it.   every: no port is left out.
    unread: (LID, port number, None for all) -> why its counters could not be read.
    adaptive: GUID of a switch -> whether its adaptive routing is enabled.
    cut: why the output is not the whole one.   partial: what the tool itself reports as missing.
    undecoded: ports whose rate the tool could not print.
    """

    source: str
    nodes: List[NodeRow] = field(default_factory=list)
    ports: List[PortRow] = field(default_factory=list)
    counters: Dict[Tuple[str, int], Dict[str, int]] = field(default_factory=dict)
    managers: List[SubnetManager] = field(default_factory=list)
    keys: Dict[str, Tuple[int, ...]] = field(default_factory=dict)
    unread: Dict[Tuple[int, Optional[int]], str] = field(default_factory=dict)
    partial: List[str] = field(default_factory=list)
    notes: List[str] = field(default_factory=list)
    both_ends: bool = False
    all_ports: bool = False
    clean: bool = False
    every: bool = False
    cut: str = ""
    routing: Optional[str] = None
    adaptive: Dict[str, bool] = field(default_factory=dict)
    events: List[ManagerEvent] = field(default_factory=list)
    unhealthy: Dict[Tuple[str, int], str] = field(default_factory=dict)
    odd_lines: List[str] = field(default_factory=list)
    odd_count: int = 0
    undecoded: int = 0

    def lines(self, text: str) -> Iterator[Tuple[int, str]]:
        """Yield number and text of lines that are no comment; longer ones are odd."""
        for number, raw in enumerate(text.splitlines(), 1):
            line = raw.strip()
            if len(line) > LONGEST:
                self.odd(number, line)
            elif line and not line.startswith("#"):
                yield number, line

    def odd(self, number: int, line: str) -> None:
        """Note a line that is not known. number: from 1."""
        self.odd_count += 1
        if len(self.odd_lines) < QUOTED:
            self.odd_lines.append("line %d is not understood: %s" % (number, quote(line)))

    def complain(self, stderr: str) -> None:
        """Add what a tool printed on stderr; the nodes that did not respond give a line for each query."""
        lines = [line.strip() for line in stderr.splitlines() if line.strip()]
        silent = [line for line in lines if "bad status" in line or "timed out" in line]
        others = [line for line in lines if line not in silent]
        self.partial += ["stderr: %s" % quote(line) for line in others[:QUOTED]]
        if len(others) > QUOTED:
            self.partial.append("stderr: %d more lines" % (len(others) - QUOTED))
        if silent:
            self.partial.append("%d queries had no response, the first: %s" % (len(silent), quote(silent[0])))

    def missing(self) -> List[Problem]:
        """Return why this output may not be all that there is."""
        more = self.odd_count - len(self.odd_lines)
        rest = "and %d more lines are not understood" % more if more else ""
        return [problem(self.source, text) for text in (*self.odd_lines, rest, self.cut, *self.partial) if text]

    def remarks(self) -> List[Problem]:
        """Return what is odd, and does not make the sweep incomplete."""
        text = "%d ports are printed without a rate: install a newer infiniband-diags (XDR: rdma-core 50)"
        undecoded = [text % self.undecoded] if self.undecoded else []
        return [problem(self.source, each) for each in (*self.notes, *undecoded)]


def problem(source: str, message: str) -> Problem:
    """Return a Problem within the limits of a sweep."""
    return Problem(printable(source)[:LINE], printable(message)[:SAID])


def quote(line: str) -> str:
    """Return a tool's line in quotes, cut to 120 characters."""
    return ascii(line if len(line) <= 120 else line[:117] + "...")


def text(value: str) -> str:
    """Return a node's description, which may hold anything, as one printable line."""
    return printable(value.strip())[:LINE]


def guid(digits: str) -> str:
    """Return 16 hex digits of ``0x8f10500200001``, ``8f10500200001`` or 16 digits. Raises ValueError."""
    return "%016x" % (int(digits, 16) & 0xFFFFFFFFFFFFFFFF)


def lid(digits: str) -> Optional[int]:
    """Return None for 0 and for 65535, the permissive LID: the port has none yet."""
    value = int(digits)
    return value if 0 < value <= MOST_UNICAST else None


def lane(words: str) -> Optional[str]:
    """Return ``HDR`` of ``53.125 Gbps``; None for ``Extended speed``, ``undefined (16)``."""
    match = _LANE.fullmatch(words.strip())
    return match and ("FDR10" if match.group(2) else _LANES.get(match.group(1)))
