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
from typing import Callable, Dict, Iterable, List, Mapping, Match, Optional, Tuple

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
# Each comes once.
_ONCE = ("dcbx", "trust", "cable", "buffer_size", "enabled", "prio2buffer", "map", "default", "pfc")
# Lines that belong to a heading.
_BELOW = {"dscps": "map", "default_entry": "default", "table_head": "pfc"}


class NotSupported(ParseError):
    """The tool cannot read this interface: no such name, a virtual function, a driver without DCB."""


class _Text:
    """Lines of an output as they are read one after the other.

    pairs: of DSCP and priority.   classes: number (None where it is not printed), algorithm and per cent.
    members: of priority and place in ``classes``.
    """

    def __init__(self) -> None:
        self.values: Dict[str, str] = {}
        self.heading = ""
        self.pairs: List[Tuple[int, int]] = []
        self.classes: List[Tuple[Optional[int], str, int]] = []
        self.members: List[Tuple[int, int]] = []
        self.refused: List[str] = []

    def add(self, name: str, match: Match[str]) -> bool:
        """Read a line of _LINES. Return whether it may stand in this place."""
        if name in (*_ONCE, "lldpad"):
            again = name in _ONCE and name in self.values
            self.values[name] = match.group(1)
            self.heading = name if name in _BELOW.values() else self.heading
            return not again
        if name in _BELOW and _BELOW[name] != self.heading:
            return False
        if name == "refused":
            self.refused.append(match.group(1))
        elif name == "dscps":
            if not match.group(1) and not self.pairs:
                return False
            dscps, priority = _numbers(match.group(2)), int(match.group(1) or self.pairs[-1][1])
            self.pairs += [(dscp, priority) for dscp in dscps]
            return max(dscps) < 64
        elif name == "class":
            number, tsa, bandwidth = match.groups()
            self.classes.append((None if number is None else int(number), tsa or "ets", int(bandwidth or 0)))
            return self.classes[-1][2] <= 100
        elif name == "priority":
            self.members.append((int(match.group(1)), len(self.classes) - 1))
        return bool(self.classes) or name not in ("priority", "skprio")


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
    return _with_classes(dcb, found), tuple(refused)


def _with_classes(dcb: Dcb, found: _Text) -> Dcb:
    """Add the traffic classes; without their numbers nothing of them is known. Raises ParseError."""
    listed = [priority for priority, _place in sorted(found.members)]
    if listed != list(range(8)):
        raise ParseError("the traffic classes list priorities %s, expected 0 to 7 once each" % (listed or "none"))
    by_number = {number: (tsa, bandwidth) for number, tsa, bandwidth in found.classes if number is not None}
    numbers = [number for number, _tsa, _bandwidth in found.classes if number is not None]
    if len(by_number) != len(numbers):
        raise ParseError("a traffic class is there twice: %s" % numbers)
    if len(numbers) < len(found.classes):
        return dcb
    tsa, bandwidth = zip(*(by_number.get(number, (None, None)) for number in range(8)))
    return replace(
        dcb, prio2tc=tuple(numbers[place] for _priority, place in sorted(found.members)), tsa=tsa, bandwidth=bandwidth
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
