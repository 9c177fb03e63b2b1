# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Interpret Xid errors of the NVIDIA driver, and SXid errors of NVSwitches: action and cause of each.

The numbers and actions are those of NVIDIA's Xid catalog ("Analyzing Xid Errors with the Xid Catalog", October 2025),
newer numbers those of the open driver 595 (nverror.h). SXid numbers: NVIDIA Fabric Manager User Guide, appendix on
SXid errors (DU-09883-001). Where peers disagree with the catalog (some fail a node on 63 and 92, some call 109
harmless) the catalog counts. No Xid alone is a reason to replace a GPU: a row that cannot be remapped is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..core.host import ParseError
from ..machine.pci import parse_address

# What an Xid asks for, the least first.
ACTIONS = ("nothing", "restart", "support", "reset", "workflow", "vm", "reboot", "power")
NOTHING, RESTART, SUPPORT, RESET, WORKFLOW, VM, REBOOT, POWER = ACTIONS
# What each number means, by what it asks for.
# fmt: off
_CATALOG: Mapping[str, str] = {
    NOTHING:
    "14 37 38 44 66 67 93 106 107 137 141 152 153 157 162 164 165 an event of the driver that needs nothing; 43 a "
    "program's channel was stopped; 63 a memory row is recorded for remapping; 92 many corrected ECC errors; 108 "
    "illegal access to another GPU's memory over NVLink; 121 corrected error of the chip-to-chip link; 154 the "
    "driver's recovery action changed; 160 161 GPU memory is marked for repair; 171 172 uncorrectable memory error, "
    "beside Xid 48; 174 a program was ended",
    RESTART:
    "8 11 25 32 39-41 60 68-72 75-77 80 82-86 88 89 96-105 126-135 139 an error of one of the GPU's engines; 13 "
    "graphics engine exception, usually of the program; 31 memory page fault of the program; 45 a program's channel "
    "was torn down; 94 contained memory error, of one program",
    SUPPORT:
    "1-7 9 10 12 15-24 26-30 33-36 42 47 49-53 55-59 61 65 73 81 87 90 91 111-118 122-125 138 142 159 163 175 176 an "
    "error that current GPUs should not report; 78 a vGPU could not start: update the host's or guest's driver; 168 "
    "GPU memory is smaller after an error",
    RESET:
    "46 the GPU stopped processing; 62 the internal micro-controller halted; 64 a memory row could not be recorded "
    "for remapping; 95 uncontained memory error, of all programs; 109 context switch timeout; 110 security fault; "
    "119 the GPU's system processor (GSP) does not respond; 120 error of the GPU's system processor (GSP); 136 link "
    "training failed; 140 unrecovered ECC error; 143 the GPU could not be initialised; 155 software brought NVLink "
    "down; 156 a resource was retired; 158 fatal timeout of the GPU; 166 170 unencrypted NVLink traffic under "
    "confidential computing; 169 SEC2 halted",
    WORKFLOW:
    "48 uncorrectable ECC error; 74 NVLink error; 144 NVLink 5 error (SAW); 145 NVLink 5 error (RLW), an echo of "
    "another GPU's or switch's; 146 NVLink 5 error (TLW); 147 NVLink 5 error (TREX); 148 NVLink 5 error (NVLPW); 149 "
    "NVLink 5 error (NETIR), the link itself; 150 NVLink 5 error (MSE)",
    VM: "151 the key rotation of a confidential VM failed",
    REBOOT: "79 the GPU has fallen off the bus; 167 fatal PCIe timeout; 173 the chip-to-chip link failed",
    POWER: "54 auxiliary power is not connected",
}
# fmt: on


def _numbers(text: str) -> Iterator[int]:
    for word in text.split():
        first, _dash, last = word.partition("-")
        yield from range(int(first), int(last or first) + 1)


# Number -> (what it means, what it asks for).
TABLE: Mapping[int, Tuple[str, str]] = {
    number: (meaning, action)
    for action, text in _CATALOG.items()
    for numbers, meaning in re.findall(r"((?:[0-9-]+ )+)([^;]+)", text)
    for number in _numbers(numbers)
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
# SXid numbers that are fatal where the line has no severity, and those that are not.
_SXID_FATAL = frozenset(_numbers(
    "10001-10005 11001 11009 11013 11018-11020 12001 12002 12020 12022 12024-12027 12030-12032 14017 15001 15006 15009"
    " 15010 15012 15013 19047 19048 19054 19056 19058 19060 19061 19063 19064 19066 19067 19069 19070 20034 22003 22011"
    " 22012 23001-23017 24004-24007"
))  # fmt: skip
_SXID_HARMLESS = frozenset(_numbers(
    "11004 11012 11021-11023 12021 12023 12028 15008 15011 19049 19055 19057 19059 19062 19065 19068 19071 19084 20001"
    " 20009 20012 22013 24001-24003"
))  # fmt: skip
# Of an Xid 154: the words of the new action, and what it asks for.
_CHANGED = re.compile(r"recovery action changed from .{1,80} to 0x([0-9a-f]{1,8}) \(([^)]{0,60})\)", re.IGNORECASE)
_RECOVERY = (("none", NOTHING), ("reset", RESET), ("drain p2p", RESET), ("reboot", REBOOT))
# ``145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 17 (0x04084507 ...``: unit, severity, register whose bits 20-25 are a code.
_NVLINK_5 = re.compile(
    r"\b([A-Z][A-Z0-9_/]{2,40}) +(Link Fatal|Fatal|Non-?fatal)\b(?:.{0,60}?\(0x([0-9a-f]{8}))?", re.I
)
# Of NETIR_LINK_EVT: the peer or the host has shut the link down, which asks for nothing.
_SHUT_DOWN = (0x26, 0x28)
_PREVIOUS = re.compile(r"caused by previous Xid ([0-9]{1,5})")
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{7,20})(?: GPU-I:[0-9]{1,4})?(?: GPU-CI:[0-9]{1,4})?\): ([0-9]{1,5}), ?(.*)"
)
# The driver also writes this without a number, in one line or in three, which kernel_log.py joins.
_FALLEN = re.compile(
    r"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)\b"
    r".*fallen off the bus"
)
# nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 22013, Fatal, Link 46 ...; ``Severity 1 Engine instance 46 ...`` of 1 is
# fatal as well; others have no severity.
_SXID = re.compile(r"nvidia-nvswitch[0-9]{1,3}: SXid \((?:PCI:)?([0-9a-fA-F:.]{7,20})\): ([0-9]{1,6}), ?(.*)")
_SXID_SEVERITY = re.compile(r"(Fatal|Non-fatal|Severity [0-9]|Data \{)")


@dataclass(frozen=True)
class Event:
    """Lines of the log.   switch: it is an SXid.   age: seconds ago, None where the log has no time."""

    pci: str
    number: int
    text: str
    age: Optional[float] = None
    switch: bool = False
    count: int = 1

    @property
    def action(self) -> Optional[str]:
        """Return what the line asks for; None if no catalog has the number, or its severity is unknown."""
        return _asks_of_switch(self.number, self.text) if self.switch else _asks(self.number, self.text)

    @property
    def name(self) -> str:
        return "%s %d" % ("SXid" if self.switch else "Xid", self.number)

    @property
    def is_quiet(self) -> bool:
        """Return whether at most the program has to be restarted."""
        return self.action in (NOTHING, RESTART)

    @property
    def cause(self) -> Optional[int]:
        """Return the Xid that the line names as its cause."""
        match = _PREVIOUS.search(self.text)
        return int(match.group(1)) if match else None

    @property
    def key(self) -> str:
        """Return what distinguishes lines of one device: the number, and the action that the line requests."""
        return "%s %s %s %s" % (self.pci, self.name, self.action, self.cause)


class Trouble(NamedTuple):
    """Trouble of one GPU or switch.   root: the event that caused the others.   numbers: count of each Xid.

    action: that its events request, None if no catalog has it.
    because: address of the GPU whose trouble caused this one.
    """

    pci: str
    root: Event
    numbers: Mapping[int, int]
    action: Optional[str] = None
    because: Optional[str] = None


def _asks(number: int, text: str) -> Optional[str]:
    """Return what an Xid asks for. Of NVLink 5 (144-150) what is nonfatal needs nothing but what 154 requests."""
    if number == 154:
        match = _CHANGED.search(text)
        if match is None or int(match.group(1), 16) == 0:
            return NOTHING
        return next((action for word, action in _RECOVERY if word in match.group(2).lower()), None)
    if 144 <= number <= 150:
        match = _NVLINK_5.search(text)
        if match is None and _PREVIOUS.search(text):
            return None
        unit, severity, register = match.groups() if match else ("", "", None)
        shut_down = int(register or "0", 16) >> 20 & 0x3F in _SHUT_DOWN and unit.startswith("NETIR_LINK")
        if severity.lower().startswith("non") or shut_down:
            return NOTHING
    return TABLE[number][1] if number in TABLE else None


def _asks_of_switch(number: int, text: str) -> Optional[str]:
    match = _SXID_SEVERITY.search(text)
    if match is not None:
        return RESET if match.group(1) in ("Fatal", "Severity 1") else NOTHING
    return RESET if number in _SXID_FATAL else NOTHING if number in _SXID_HARMLESS else None


def parse(text: str, age: Optional[float] = None, count: int = 1) -> Optional[Event]:
    """Return None for a line that has neither Xid nor SXid."""
    numbered = _XID.search(text) or _SXID.search(text)
    found = numbered or _FALLEN.search(text)
    if found is None:
        return None
    try:
        pci = parse_address(found.group(1) + ("" if "." in found.group(1) else ".0"))
    except ParseError:
        return None
    number = int(numbered.group(2)) if numbered else 79
    return Event(pci, number, text[found.start() :], age, found.re is _SXID, count)


def troubles(found: Sequence[Event], settled: Iterable[str] = ()) -> Tuple[Trouble, ...]:
    """Return one for each GPU and switch with an event that asks for more than to start the program again.

    settled: GPUs for which the driver requests nothing any more: an Xid that the driver knows to end is over then.
    """
    done = set(settled)
    by_pci: Dict[str, List[Event]] = {}
    for event in found:
        by_pci.setdefault(event.pci, []).append(event)
    troubled = []
    for pci, events in sorted(by_pci.items()):
        followers = {number for event in events for number in FOLLOWS.get(event.number, ()) if not event.switch}
        first = [event for event in events if event.switch or event.number not in followers] or events
        # One that is not in the table is reported where nothing known is graver.
        grave = [event for event in first if not event.is_quiet and not (pci in done and _is_resolved(event, events))]
        if grave:
            # Xid 154 only announces what another asks for.
            root = max(grave, key=lambda event: (event.number != 154 or event.switch, rank(event.action)))
            action = max((event.action for event in grave), key=rank)
            numbers: Dict[int, int] = {}
            for event in events:
                numbers[event.number] = numbers.get(event.number, 0) + event.count
            troubled.append(Trouble(pci, root, numbers, action, _causing_gpu(by_pci, pci, root)))
    return tuple(troubled)


def _is_resolved(event: Event, others: Sequence[Event]) -> bool:
    """Return whether the driver's "None" proves that nothing is left of this, though a reset leaves no line in the log.

    It does so for memory errors (NVIDIA's GPU memory error management), and for an action that an Xid 154 beside it
    has announced: no action now means that an administrator has taken it since.
    """
    announced = any(other.number == 154 and other.action != NOTHING and _together(event, other) for other in others)
    by_driver = event.action == RESET or event.number in (48, 154) or (event.action == WORKFLOW and announced)
    return by_driver and not event.switch


def rank(action: Optional[str]) -> int:
    """Return the place of an action, the gravest last."""
    return -1 if action is None else ACTIONS.index(action)


def _causing_gpu(by_pci: Mapping[str, Sequence[Event]], pci: str, root: Event) -> Optional[str]:
    for other, events in sorted(by_pci.items()):
        for event in events if other != pci else ():
            if root.number in _ELSEWHERE.get(event.number, ()) and not event.switch and _together(event, root):
                return other
    return None


def _together(one: Event, other: Event) -> bool:
    return one.age is None or other.age is None or abs(one.age - other.age) <= _TOGETHER
