# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What one output says of a fabric: the form that every parser gives and that ``merge`` makes a sweep of.

A parser drops nothing: a line that it does not understand is one of ``odd``, and a sweep with one is not complete.
Sources: rdma-core infiniband-diags (ibnetdiscover.c, iblinkinfo.c, ibqueryerrors.c), libibmad dump.c.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Dict, List, NamedTuple, Optional, Tuple

from ..core.finding import printable
from ..core.host import Problem
from .sweep import LINE, SAID, ManagerEvent, SubnetManager

# Characters of a line of ibnetdiscover and iblinkinfo: two descriptions have 128. A longer one is no line of theirs,
# and would only make their patterns slow.
LONGEST = 600
# Above it are LIDs of multicast.
MOST_UNICAST = 0xBFFF
# Of lines that were not understood, so many are quoted; the rest is a number.
QUOTED = 5
# Gbit/s of a lane as libibmad writes them (dump.c) -> name. 10.0 is QDR; FDR10 reports it.
_LANES = {
    "2.5": "SDR",
    "5.0": "DDR",
    "10.0": "QDR",
    "14.0625": "FDR",
    "25.78125": "EDR",
    "53.125": "HDR",
    "106.25": "NDR",
    "212.5": "XDR",
}
_LANE = re.compile(r"([0-9.]+) Gbps( \(FDR10\))?")
_STATES = {"down": "down", "initialize": "init", "init": "init", "armed": "armed", "active": "active"}


@dataclass(frozen=True)
class NodeTold:
    """port_count: as NodeInfo has it, without port 0; None where the source does not say."""

    guid: str
    kind: Optional[str] = None
    description: Optional[str] = None
    system: Optional[str] = None
    device_id: Optional[int] = None
    firmware: Optional[str] = None
    psid: Optional[str] = None
    port_count: Optional[int] = None


class PortTold(NamedTuple):
    """A port; what the source does not say is None.

    guid: of its node; where the source names ports by their own GUIDs, as some tools do, "" and port_guid has it.
    peer: GUID of the other end's node and its port number; peer_port: the other end by its own GUID; peer_lid by LID.
    first_port: GUID of the first port of the same HCA, where only the order of lines shows that it is one HCA.
    kind, description: of the node, where no other line has them.
    linked: True where the line says that something is at the other end, False where that nothing is.
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
    peer: Optional[Tuple[str, int]] = None
    peer_port: Optional[Tuple[str, int]] = None
    peer_lid: Optional[Tuple[int, int]] = None
    linked: Optional[bool] = None
    kind: Optional[str] = None
    description: Optional[str] = None
    first_port: Optional[str] = None


@dataclass
class Told:
    """source: the command or file.   both_ends: each link stands at both of its ends.   all_ports: each port is named.

    counters: of (GUID of a node or of a port, number).   keys: node GUID -> partition keys.
    clean: a port that is left away has no errors, unless ``unread`` names it.
    every: counters of every port that was asked are shown, also where all are 0.
    unread: (LID, port number or None for all of the node) -> why its counters could not be read.
    adaptive: GUID of a switch -> whether it routes adaptively.
    events, unhealthy: as in Sweep.
    cut: why the output is not the whole one; "" where it ends as it should.
    partial: what the source itself says it could not reach.
    """

    source: str
    nodes: List[NodeTold] = field(default_factory=list)
    ports: List[PortTold] = field(default_factory=list)
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

    def odd(self, number: int, line: str) -> None:
        """A line that is not understood. number: from 1."""
        self.odd_count += 1
        if len(self.odd_lines) < QUOTED:
            self.odd_lines.append("line %d is not understood: %s" % (number, shown(line)))

    def lacks(self) -> List[Problem]:
        """Why what this output says is not all that there is; [] where nothing is known against that."""
        said = list(self.odd_lines)
        if self.odd_count > len(self.odd_lines):
            said.append("and %d more lines are not understood" % (self.odd_count - len(self.odd_lines)))
        if self.cut:
            said.append(self.cut)
        return [problem(self.source, one) for one in said + self.partial]


def problem(source: str, said: str) -> Problem:
    """One that fits into a sweep."""
    return Problem(printable(source)[:LINE], printable(said)[:SAID])


def complaints(stderr: str) -> List[str]:
    """What a tool complains of, as little as says it: whoever does not answer gives a line for each question."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    silent = [line for line in lines if "bad status" in line or "timed out" in line]
    said = [line for line in lines if line not in silent]
    found = ["stderr: %s" % shown(line) for line in said[:QUOTED]]
    if len(said) > QUOTED:
        found.append("stderr: %d more lines" % (len(said) - QUOTED))
    if silent:
        found.append("%d queries had no response, the first: %s" % (len(silent), shown(silent[0])))
    return found


def shown(line: str) -> str:
    """A line of a tool, quoted, and no more of it than is worth reading."""
    return ascii(line if len(line) <= 120 else line[:117] + "...")


def text(value: str) -> str:
    """A node's description: anything may be in it, so it is made printable; blanks around it are a tool's."""
    return printable(value.strip())[:LINE]


def guid(digits: str) -> str:
    """16 hex digits of ``0x8f10500200001``, ``8f10500200001`` or 16 digits. Raises ValueError."""
    return "%016x" % (int(digits, 16) & 0xFFFFFFFFFFFFFFFF)


def lid(digits: str) -> Optional[int]:
    """None for 0, and for 65535, which is everybody's: no subnet manager has given the port one."""
    value = int(digits)
    return value if 0 < value <= MOST_UNICAST else None


def lane(words: str) -> Optional[str]:
    """``HDR`` of ``53.125 Gbps``; None for what the tool cannot name (``Extended speed``, ``undefined (16)``)."""
    match = _LANE.fullmatch(words.strip())
    if match is None:
        return None
    return "FDR10" if match.group(2) else _LANES.get(match.group(1))


def state(word: str) -> Optional[str]:
    return _STATES.get(word.lower())
