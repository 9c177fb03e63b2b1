# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Xid errors of the NVIDIA driver, and SXid errors of NVSwitches: what each asks for, and what follows from which.

The numbers' actions are NVIDIA's catalog of 2025-10-29. Where peers disagree with it (some fail a node on 63 and 92,
some call 109 harmless) the catalog counts. No Xid is by itself a reason to replace a GPU: a row that cannot be remapped
is, or one GPU in trouble boot after boot (``again``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..core.finding import printable
from ..core.host import ParseError
from ..machine.pci import parse_address
from .kernel_log import Line, Log

WORDS = ("Xid", "NVRM: loading NVIDIA")
# What an Xid asks for, the least first.
NOTHING, RESTART, RESET, WORKFLOW, REBOOT, VM, POWER = (
    *("nothing", "restart", "reset", "workflow", "reboot"),
    *("vm", "power"),
)
ACTIONS = (NOTHING, RESTART, RESET, WORKFLOW, VM, REBOOT, POWER)
# Number -> (what it means, what it asks for).
TABLE: Mapping[int, Tuple[str, str]] = {
    13: ("graphics engine exception, mostly of the program", RESTART),
    31: ("memory page fault of the program", RESTART),
    32: ("corrupted push buffer", RESTART),
    43: ("a program's channel was stopped", RESTART),
    45: ("a program's channel was torn down", RESTART),
    46: ("the GPU stopped processing", RESET),
    48: ("uncorrectable ECC error", WORKFLOW),
    54: ("auxiliary power is not connected", POWER),
    62: ("the internal micro-controller halted", RESET),
    63: ("a memory row is recorded for remapping", NOTHING),
    64: ("a memory row could not be recorded for remapping", RESET),
    68: ("video processor exception", RESTART),
    69: ("graphics engine class error", RESTART),
    74: ("NVLink error", WORKFLOW),
    79: ("the GPU has fallen off the bus", REBOOT),
    80: ("corrupted data sent to the GPU", RESTART),
    92: ("many corrected ECC errors", NOTHING),
    94: ("contained memory error, of one program", RESTART),
    95: ("uncontained memory error, of all programs", RESET),
    109: ("context switch timeout", RESET),
    110: ("security fault", RESET),
    119: ("the GPU's system processor (GSP) does not answer", RESET),
    120: ("error of the GPU's system processor (GSP)", RESET),
    121: ("corrected error of the chip-to-chip link", NOTHING),
    136: ("link training failed", RESET),
    140: ("unrecovered ECC error", RESET),
    143: ("the GPU could not be initialised", RESET),
    144: ("NVLink 5 error (SAW)", WORKFLOW),
    145: ("NVLink 5 error (RLW), an echo of another GPU's or switch's", WORKFLOW),
    146: ("NVLink 5 error (TLW)", WORKFLOW),
    147: ("NVLink 5 error (TREX)", WORKFLOW),
    148: ("NVLink 5 error (NVLPW)", WORKFLOW),
    149: ("NVLink 5 error (NETIR), the link itself", WORKFLOW),
    150: ("NVLink 5 error (MSE)", WORKFLOW),
    151: ("the key rotation of a confidential VM failed", VM),
    154: ("the driver's recovery action changed", NOTHING),
    155: ("NVLink was brought down by software", RESET),
    156: ("a resource was retired", RESET),
    158: ("fatal timeout of the GPU", RESET),
    160: ("GPU memory is marked for repair", NOTHING),
    161: ("retirement of a memory channel", NOTHING),
    171: ("uncorrectable DRAM error, beside Xid 48", NOTHING),
    172: ("uncorrectable SRAM error, beside Xid 48", NOTHING),
}
# On the same GPU: those that are but a consequence of the first.
FOLLOWS: Mapping[int, Tuple[int, ...]] = {
    48: (63, 64, 94, 95, 140, 43, 45),
    79: tuple(number for number in TABLE if number != 79),
    119: (109, 45, 43, 62),
    120: (119, 109, 45, 43, 62),
    149: (144, 145, 146, 147, 148, 150),
}
# On other GPUs, within _TOGETHER seconds: first -> those that follow.
_ELSEWHERE: Mapping[int, Tuple[int, ...]] = {
    **dict.fromkeys((144, 146, 147, 148, 149, 150), (145,)),
    79: (74, 45, 43, 145),
    74: (45, 43),
}
_TOGETHER = 60.0
# Of an Xid 154: the driver asks for something.
_ASKS = re.compile(r"recovery action changed from .{1,80} to 0x0*[1-9a-f]", re.IGNORECASE)
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{7,20})(?: GPU-I:[0-9]{1,4})?\): ([0-9]{1,5}), ?(.*)")
# nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 22013, Fatal, Link 46 ...
_SXID = re.compile(r"nvidia-nvswitch[0-9]{1,3}: SXid \(PCI:([0-9a-fA-F:.]{7,20})\): ([0-9]{1,6}), (Fatal|Non-fatal)\b")
_NVLINK_FATAL = re.compile(r"detected on link ([0-9]{1,3})\((0x[0-9a-fA-F]{1,8}(?:, ?0x[0-9a-fA-F]{1,8}){6})\)")


@dataclass(frozen=True)
class Event:
    """One line of the log.   switch: it is an SXid.   fatal: of a switch.   age: seconds ago, None: nobody knows."""

    pci: str
    number: int
    text: str
    age: Optional[float] = None
    switch: bool = False
    fatal: bool = False

    @property
    def action(self) -> Optional[str]:
        """None where the number is not in the table."""
        if self.switch:
            return RESET if self.fatal else NOTHING
        return TABLE[self.number][1] if self.number in TABLE else None


@dataclass(frozen=True)
class Trouble:
    """What one GPU or switch is in.   root: the event that the others follow from.   numbers: count of each Xid.

    because: address of the GPU whose trouble this one's follows from.
    """

    pci: str
    root: Event
    numbers: Mapping[int, int]
    because: Optional[str] = None


def parse(line: Line, age: Optional[float] = None) -> Optional[Event]:
    """None for a line that is none of both."""
    match = _XID.search(line.text)
    switch = None if match else _SXID.search(line.text)
    found = match or switch
    if found is None:
        return None
    try:
        pci = _address(found.group(1))
    except ParseError:
        return None
    text = printable(line.text[found.start() :])
    return Event(pci, int(found.group(2)), text, age, bool(switch), bool(switch) and found.group(3) == "Fatal")


def _address(text: str) -> str:
    """The driver leaves the function out. Raises ParseError."""
    return parse_address(text if "." in text else text + ".0")


def events(log: Log, window: float) -> Tuple[Event, ...]:
    """Of the last ``window`` seconds and of the driver that is loaded; one without a time counts as of now.

    A driver that was loaded anew has set up its GPUs anew: what was before is history.
    """
    found: List[Event] = []
    for line in log.lines:
        if "NVRM: loading NVIDIA" in line.text:
            found = []
            continue
        age = log.age(line)
        event = parse(line, age)
        if event is not None and (age is None or age <= window):
            found.append(event)
    return tuple(found)


def troubles(found: Sequence[Event], settled: Iterable[str] = ()) -> Tuple[Trouble, ...]:
    """One for each GPU and switch with an event that asks for more than to start the program again.

    settled: GPUs for which the driver asks for nothing any more: an Xid that the driver knows to end is over then.
    """
    done = set(settled)
    by_pci: Dict[str, List[Event]] = {}
    for event in found:
        by_pci.setdefault(event.pci, []).append(event)
    roots: Dict[str, Event] = {}
    for pci, own in by_pci.items():
        followers = {number for event in own for number in FOLLOWS.get(event.number, ()) if not event.switch}
        first = [event for event in own if event.switch or event.number not in followers] or own
        # One that is not in the table is told where nothing known is graver.
        grave = [event for event in first if event.action not in (NOTHING, RESTART)]
        if pci in done:
            grave = [event for event in grave if not _ends(event, own)]
        if grave:
            roots[pci] = max(grave, key=lambda event: _rank(event.action))
    return tuple(
        Trouble(pci, root, _counted(by_pci[pci]), _elsewhere(by_pci, pci, root)) for pci, root in sorted(roots.items())
    )


def _ends(event: Event, own: Sequence[Event]) -> bool:
    """Whether the driver's "None" says that nothing is left of this, though a reset leaves no line in the log.

    It answers for memory errors (NVIDIA's GPU memory error management), and for whatever it has announced by an Xid 154
    beside it: that it asks for nothing now means that somebody has done it since.
    """
    if event.switch:
        return False
    asked = any(other.number == 154 and _ASKS.search(other.text) and _together(event, other) for other in own)
    return event.action == RESET or event.number == 48 or (event.action == WORKFLOW and asked)


def _rank(action: Optional[str]) -> int:
    return -1 if action is None else ACTIONS.index(action)


def _counted(own: Sequence[Event]) -> Dict[int, int]:
    counts: Dict[int, int] = {}
    for event in own:
        counts[event.number] = counts.get(event.number, 0) + 1
    return counts


def _elsewhere(by_pci: Mapping[str, Sequence[Event]], pci: str, root: Event) -> Optional[str]:
    for other, theirs in sorted(by_pci.items()):
        for event in theirs if other != pci else ():
            if root.number in _ELSEWHERE.get(event.number, ()) and not event.switch and _together(event, root):
                return other
    return None


def _together(one: Event, other: Event) -> bool:
    return one.age is None or other.age is None or abs(one.age - other.age) <= _TOGETHER


def nvlink_registers(event: Event) -> str:
    """``link 3, registers 0x10000, ...`` of an Xid 74, for whoever decodes them; "" where it has none."""
    match = _NVLINK_FATAL.search(event.text)
    return "link %s, registers %s" % match.groups() if match and event.number == 74 else ""
