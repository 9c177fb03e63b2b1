# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parse ``mlnx_qos -i NETDEV``, and build the calls that change settings.

It has no JSON, and its text differs between releases: lines came and went, old ones name kernel priorities below the
traffic classes, copies have blanks instead of TABs. Unknown lines are refused: a skipped one may be the one that
matters. Source: Mellanox/mlnx-tools, python/mlnx_qos from 2016 to release 26.07.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Callable, Dict, Iterable, List, Mapping, Match, NamedTuple, Optional, Tuple

from ..core.host import ParseError
from .port import Dcb

TOOL = "mlnx_qos"
_DCBX = {"OS controlled": "os", "Firmware controlled": "firmware"}
_LINES = {
    name: re.compile(pattern)
    for name, pattern in (
        ("lldpad", r"(\*{6} WARNING: lldpad service is running and may overwrite your settings \*{6})"),
        ("dcbx", r"DCBX mode: (OS controlled|Firmware controlled)"),
        ("trust", r"Priority trust (?:state|mode): (pcp|dscp|both|none)"),
        ("cable", r"Cable len: ([0-9]{1,5})"),
        (
            "buffer_size",
            r"Receive buffer size \(bytes\): ((?:[0-9]{1,10},){8})(?:(?:max_buffer_size|total_size)=[0-9]{1,10})?",
        ),
        ("enabled", r"enabled((?: +[01]){8})"),
        ("prio2buffer", r"buffer((?: +[0-7]){8})"),
        ("map", r"(dscp2prio mapping:)"),
        ("default", r"(default priority:)"),
        ("pfc", r"(PFC configuration:)"),
        (
            "refused",
            r"(Priority trust (?:state|mode)|Buffers commands|Rate limit|ETS features)"
            r" (?:is|are) not supported on your system!?",
        ),
        # Eight in a line; the next one repeats the priority, except before 2018.
        ("dscps", r"(?:prio:([0-7]) dscp:)?((?:[0-9]{2},){1,8})"),
        # Of the list of default priorities, in versions before 2022.
        ("default_entry", r"prio:[0-7]"),
        ("table_head", r"priority +0 +1 +2 +3 +4 +5 +6 +7"),
        # Where the driver has no rate limit the tool omits the part before the algorithm, and with it the number.
        (
            "class",
            r"(?:tc: ([0-7]) ratelimit: (?:unlimited|[0-9]+\.[0-9] Gbps), tsa: )?"
            r"(?:(strict|vendor|unknown)|ets, bw: ([0-9]{1,3})%)",
        ),
        ("priority", r"(?:priority|up): +([0-7])"),  # up: manuals of MLNX_OFED 2
        ("skprio", r"skprio: [0-9]{1,2}(?: \([a-z0-9: ]+\))?"),  # kernel priorities, before 2017
    )
}
_HEADINGS = ("map", "default", "pfc")
# Each comes once.
_VALUES = ("dcbx", "trust", "cable", "buffer_size", "enabled", "prio2buffer", *_HEADINGS)


class NotSupported(ParseError):
    """The tool cannot read this interface: no such name, a virtual function, a driver without DCB."""


class _Class(NamedTuple):
    """A traffic class. number: None where the tool does not print it. bandwidth: per cent, of ets only."""

    number: Optional[int]
    tsa: str  # strict, ets, vendor, unknown
    bandwidth: int
    priorities: List[int]


class _Text:
    """Lines of an output as they are read one after the other."""

    def __init__(self) -> None:
        self.values: Dict[str, str] = {}
        self.heading = ""
        self.pairs: List[Tuple[int, int]] = []
        self.classes: List[_Class] = []
        self.refused: List[str] = []

    def add(self, name: str, match: Match[str]) -> bool:
        """Read a line of _LINES. Return whether it may stand in this place."""
        if name in (*_VALUES, "lldpad"):
            again = name in self.values and name != "lldpad"
            self.values[name] = match.group(1)
            self.heading = name if name in _HEADINGS else self.heading
            return not again
        if name == "refused":
            self.refused.append(match.group(1))
        elif name == "dscps":
            if self.heading != "map" or not (match.group(1) or self.pairs):
                return False
            dscps = _numbers(match.group(2))
            self.pairs += [(dscp, int(match.group(1) or self.pairs[-1][1])) for dscp in dscps]
            return max(dscps) < 64
        elif name == "class":
            number, tsa, bandwidth = match.groups()
            self.classes.append(_Class(None if number is None else int(number), tsa or "ets", int(bandwidth or 0), []))
            return self.classes[-1].bandwidth <= 100
        elif name in ("priority", "skprio"):
            if self.classes and name == "priority":
                self.classes[-1].priorities.append(int(match.group(1)))
            return bool(self.classes)
        else:
            return self.heading == {"default_entry": "default", "table_head": "pfc"}[name]
        return True


def parse(text: str) -> Tuple[Dcb, Tuple[str, ...]]:
    """Return the settings, and what the driver cannot do, in the tool's words. Lines depend on version and driver.

    Raises NotSupported, and ParseError that quotes the first line that is not known or says what is missing.
    """
    found = _Text()
    for line in filter(None, (line.strip().replace("\t", " ") for line in text.splitlines())):
        matches = ((name, pattern.fullmatch(line)) for name, pattern in _LINES.items())
        name, match = next(((name, match) for name, match in matches if match), ("", None))
        if match is None or not found.add(name, match):
            raise ParseError("%r is not a line that mlnx_qos is known to print there" % line[:160])
    values, refused = found.values, found.refused
    # Kernels without commands for buffers have all the rest: where nothing else is there, the tool broke off.
    if "ETS features" in refused or ("enabled" not in values and set(refused) - {"Buffers commands"}):
        raise NotSupported("mlnx_qos: %s not supported by this driver or interface" % ", ".join(refused))
    if "enabled" not in values:
        raise ParseError("no line 'enabled' of the PFC configuration in %r" % text[:160])
    dcb = Dcb(
        owner=_DCBX[values["dcbx"]] if "dcbx" in values else None,
        lldpad="lldpad" in values,
        trust=values.get("trust"),
        dscp2prio=tuple(found.pairs),
        pfc=tuple(priority for priority, on in enumerate(_numbers(values["enabled"])) if on),
        cable_length=int(values["cable"]) if "cable" in values else None,
        prio2buffer=_numbers(values["prio2buffer"]) if "prio2buffer" in values else None,
        buffer_size=_numbers(values["buffer_size"]) if "buffer_size" in values else None,
    )
    return _with_classes(dcb, found.classes), tuple(refused)


def _with_classes(found: Dcb, classes: List[_Class]) -> Dcb:
    """Add the traffic classes; without their numbers nothing of them is known. Raises ParseError."""
    listed = sorted(priority for one in classes for priority in one.priorities)
    if listed != list(range(8)):
        raise ParseError("the traffic classes list priorities %s, expected 0 to 7 once each" % (listed or "none"))
    by_number = {one.number: one for one in classes if one.number is not None}
    numbers = [one.number for one in classes if one.number is not None]
    if len(by_number) != len(numbers):
        raise ParseError("a traffic class is there twice: %s" % numbers)
    if len(numbers) < len(classes):
        return found
    eight = [by_number.get(number) for number in range(8)]
    tc_of = {priority: number for number, one in by_number.items() for priority in one.priorities}
    return replace(
        found,
        prio2tc=tuple(tc_of[priority] for priority in range(8)),
        tsa=tuple(one and one.tsa for one in eight),
        bandwidth=tuple(one and one.bandwidth for one in eight),
    )


def _numbers(text: str) -> Tuple[int, ...]:
    return tuple(int(word) for word in re.findall("[0-9]+", text))


# -- calls -----------------------------------------------------------------------------------------------------------
# One setting a call: the tool refuses --trust beside --dscp2prio, and beside --buffer_size it drops --prio2buffer
# where the driver has files for both.

_OPTIONS: Mapping[str, Callable[..., Iterable[str]]] = {
    "dcbx": lambda owner: ("-d", {"os": "os", "firmware": "fw"}[owner]),
    # dscp writes all 64 entries as DSCP / 8, pcp deletes them.
    "trust": lambda trust: ("--trust", trust),
    "dscp2prio": lambda pairs: [word for pair in pairs for word in ("--dscp2prio", "set,%d,%d" % pair)],
    # On for these priorities, off for all others. A mask that differs bounces the link.
    "pfc": lambda on: ("--pfc", _list(int(priority in on) for priority in range(8))),
    "prio2tc": lambda classes: ("-p", _list(classes)),
    # bandwidth: per cent; those of ets classes make 100, the others are 0.
    "ets": lambda tsa, bandwidth: ("-s", ",".join(tsa), "-t", _list(bandwidth)),
    "cable_length": lambda metres: ("--cable_len", str(metres)),
    "prio2buffer": lambda buffers: ("--prio2buffer", _list(buffers)),
    "buffer_size": lambda sizes: ("--buffer_size", _list(sizes)),
}


def show(netdev: str) -> Tuple[str, ...]:
    """Return the call that prints all settings."""
    return (TOOL, "-i", netdev)


def call(netdev: str, setting: str, *values: object) -> Tuple[str, ...]:
    """Return the call that sets one of _OPTIONS."""
    return (*show(netdev), *_OPTIONS[setting](*values))


def _list(values: Iterable[int]) -> str:
    return ",".join(map(str, values))
