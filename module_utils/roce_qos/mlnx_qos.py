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
from typing import Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from ..core.host import ParseError
from .port import Dcb

TOOL = "mlnx_qos"
_LLDPAD = "****** WARNING: lldpad service is running and may overwrite your settings ******"
_NOT_SUPPORTED = re.compile(
    r"(Priority trust (?:state|mode)|Buffers commands|Rate limit|ETS features)"
    r" (?:is|are) not supported on your system!?"
)
_DCBX = {"OS controlled": "os", "Firmware controlled": "firmware"}
_SIMPLE = {
    "dcbx": re.compile(r"DCBX mode: (OS controlled|Firmware controlled)"),
    "trust": re.compile(r"Priority trust (?:state|mode): (pcp|dscp|both|none)"),
    "cable": re.compile(r"Cable len: ([0-9]{1,5})"),
    "buffer_size": re.compile(
        r"Receive buffer size \(bytes\): ((?:[0-9]{1,10},){8})(?:(?:max_buffer_size|total_size)=[0-9]{1,10})?"
    ),
    "enabled": re.compile(r"enabled((?: +[01]){8})"),
    "prio2buffer": re.compile(r"buffer((?: +[0-7]){8})"),
}
_HEADINGS = {
    "dscp2prio mapping:": "map",
    "default priority:": "default",
    "PFC configuration:": "pfc",
}
# A line holds eight; the next one repeats the priority, except before 2018.
_DSCP_LINE = re.compile(r"(?:prio:([0-7]) dscp:)?((?:[0-9]{2},){1,8})")
_DEFAULT_LINE = re.compile(r"prio:[0-7]")
_TABLE_HEAD = re.compile(r"priority +0 +1 +2 +3 +4 +5 +6 +7")
# Where the driver has no rate limit the tool leaves out the part before the algorithm, and with it the number.
_CLASS = re.compile(
    r"(?:tc: ([0-7]) ratelimit: (?:unlimited|[0-9]+\.[0-9] Gbps), tsa: )?"
    r"(?:(strict|vendor|unknown)|ets, bw: ([0-9]{1,3})%)"
)
_PRIORITY = re.compile(r"(?:priority|up): +([0-7])")  # up: manuals of MLNX_OFED 2
_SKPRIO = re.compile(r"skprio: [0-9]{1,2}(?: \([a-z0-9: ]+\))?")


class NotSupported(ParseError):
    """The tool cannot read this interface: no such name, a virtual function, a driver without DCB."""


class _Class(NamedTuple):
    """A traffic class. number: None where the tool does not print it. bandwidth: per cent, of ets only."""

    number: Optional[int]
    tsa: str  # strict, ets, vendor, unknown
    bandwidth: Optional[int]
    priorities: List[int]


# -- text ------------------------------------------------------------------------------------------------------------


def parse(text: str) -> Tuple[Dcb, Tuple[str, ...]]:
    """Return the settings, and what the driver cannot do, in the tool's words. Lines depend on version and driver.

    Raises NotSupported, and ParseError that quotes the first line that is not known or says what is missing.
    """
    values: Dict[str, str] = {}
    headings: List[str] = []
    pairs: List[Tuple[int, int]] = []
    classes: List[_Class] = []
    refused: List[str] = []
    lldpad = False
    for line in filter(None, (line.strip().replace("\t", " ") for line in text.splitlines())):
        refusal = _NOT_SUPPORTED.fullmatch(line)
        if line == _LLDPAD:
            lldpad = True
        elif refusal is not None:
            refused.append(refusal.group(1))
        elif line in _HEADINGS and _HEADINGS[line] not in headings:
            headings.append(_HEADINGS[line])
        elif not (
            _simple(line, values)
            or _entry(line, headings, pairs)
            or _traffic_class(line, classes)
            or (_TABLE_HEAD.fullmatch(line) and headings[-1:] == ["pfc"])
        ):
            raise ParseError("%r is not a line that mlnx_qos is known to print there" % line[:160])
    # Kernels without commands for buffers have all the rest: where nothing else is there, the tool broke off.
    if "ETS features" in refused or ("enabled" not in values and set(refused) - {"Buffers commands"}):
        raise NotSupported("mlnx_qos: %s not supported by this driver or interface" % ", ".join(refused))
    if "enabled" not in values:
        raise ParseError("no line 'enabled' of the PFC configuration in %r" % text[:160])
    return _with_classes(_settings(values, pairs, lldpad), classes), tuple(refused)


def _settings(values: Mapping[str, str], pairs: List[Tuple[int, int]], lldpad: bool) -> Dcb:
    return Dcb(
        owner=_DCBX[values["dcbx"]] if "dcbx" in values else None,
        lldpad=lldpad,
        trust=values.get("trust"),
        dscp2prio=tuple(pairs),
        pfc=tuple(priority for priority, word in enumerate(values["enabled"].split()) if word == "1"),
        cable_length=int(values["cable"]) if "cable" in values else None,
        prio2buffer=_numbers(values["prio2buffer"].split()) if "prio2buffer" in values else None,
        buffer_size=_numbers(values["buffer_size"].rstrip(",").split(",")) if "buffer_size" in values else None,
    )


def _with_classes(found: Dcb, classes: List[_Class]) -> Dcb:
    """Add the traffic classes; without their numbers nothing of them is known. Raises ParseError."""
    listed = sorted(priority for one in classes for priority in one.priorities)
    if listed != list(range(8)):
        raise ParseError("the traffic classes list priorities %s, expected 0 to 7 once each" % (listed or "none"))
    numbers = [one.number for one in classes if one.number is not None]
    if len(set(numbers)) != len(numbers):
        raise ParseError("a traffic class is there twice: %s" % numbers)
    if len(numbers) < len(classes):
        return found
    number_of = {priority: one.number or 0 for one in classes for priority in one.priorities}
    by_number = {one.number: one for one in classes}
    eight = [by_number.get(number) for number in range(8)]
    return replace(
        found,
        prio2tc=tuple(number_of[priority] for priority in range(8)),
        tsa=tuple(one and one.tsa for one in eight),
        bandwidth=tuple(one and (one.bandwidth or 0) for one in eight),
    )


def _simple(line: str, values: Dict[str, str]) -> bool:
    for name, pattern in _SIMPLE.items():
        match = pattern.fullmatch(line)
        if match is not None and name not in values:
            values[name] = match.group(1)
            return True
    return False


def _entry(line: str, headings: List[str], pairs: List[Tuple[int, int]]) -> bool:
    """Parse an entry of the DSCP map, or of the list of default priorities of versions before 2022."""
    entry = _DSCP_LINE.fullmatch(line)
    if entry is not None and headings[-1:] == ["map"] and (entry.group(1) or pairs):
        priority = int(entry.group(1) or pairs[-1][1])
        dscps = _numbers(entry.group(2).rstrip(",").split(","))
        pairs += [(dscp, priority) for dscp in dscps]
        return max(dscps) < 64
    return headings[-1:] == ["default"] and _DEFAULT_LINE.fullmatch(line) is not None


def _traffic_class(line: str, classes: List[_Class]) -> bool:
    head, priority = _CLASS.fullmatch(line), _PRIORITY.fullmatch(line)
    if head is not None:
        number, tsa, bandwidth = head.groups()
        percent = None if bandwidth is None else int(bandwidth)
        classes.append(_Class(None if number is None else int(number), tsa or "ets", percent, []))
        return percent is None or percent <= 100
    if classes and priority is not None:
        classes[-1].priorities.append(int(priority.group(1)))
        return True
    # Kernel priorities, before 2017.
    return bool(classes) and _SKPRIO.fullmatch(line) is not None


def _numbers(words: Iterable[str]) -> Tuple[int, ...]:
    return tuple(int(word) for word in words)


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
