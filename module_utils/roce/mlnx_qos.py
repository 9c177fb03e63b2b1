# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What ``mlnx_qos -i NETDEV`` prints, and the calls that change it.

It has no JSON, and its text changed with the years: lines came and went, old ones name kernel priorities below the
traffic classes, pages turned its TABs into blanks. What is not known is refused: a line passed over may be the one
that matters. Source: Mellanox/mlnx-tools, python/mlnx_qos from 2016 to release 26.07.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..core.host import ParseError

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
        r"Receive buffer size \(bytes\): ((?:[0-9]{1,10},){8})(?:(max_buffer_size|total_size)=([0-9]{1,10}))?"
    ),
    "enabled": re.compile(r"enabled((?: +[01]){8})"),
    "prio2buffer": re.compile(r"buffer((?: +[0-7]){8})"),
}
_HEADINGS = {
    "dscp2prio mapping:": "map",
    "default priority:": "default",
    "PFC configuration:": "pfc",
}
# A line holds eight. What is left follows with the priority again, before 2018 without it.
_DSCP_LINE = re.compile(r"(?:prio:([0-7]) dscp:)?((?:[0-9]{2},){1,8})")
_DEFAULT_LINE = re.compile(r"prio:([0-7])")
_TABLE_HEAD = re.compile(r"priority +0 +1 +2 +3 +4 +5 +6 +7")
# Where the driver has no rate limit the tool leaves out the part before the algorithm, and with it the number.
_CLASS = re.compile(
    r"(?:tc: ([0-7]) ratelimit: (?:unlimited|([0-9]+\.[0-9]) Gbps), tsa: )?"
    r"(?:(strict|vendor|unknown)|ets, bw: ([0-9]{1,3})%)"
)
_PRIORITY = re.compile(r"(?:priority|up): +([0-7])")  # up: manuals of MLNX_OFED 2
_SKPRIO = re.compile(r"skprio: [0-9]{1,2}(?: \([a-z0-9: ]+\))?")

Eight = Sequence[int]


class NotSupported(ParseError):
    """The tool cannot tell anything of this interface: none of that name, a virtual function, a driver without DCB."""


@dataclass(frozen=True)
class TrafficClass:
    """number: None where the tool does not print it. rate_gbps: None for unlimited. bandwidth: per cent, of ets only.

    kernel_priorities: lines as they stand in outputs before 2017.
    """

    number: Optional[int]
    rate_gbps: Optional[float]
    tsa: str  # strict, ets, vendor, unknown
    bandwidth: Optional[int]
    priorities: Tuple[int, ...]
    kernel_priorities: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Qos:
    """None: the line is not there, which depends on the version and the driver.

    dscp2prio: (DSCP, priority) in the order of the kernel's list, which means nothing. A DSCP that is not in it has
        priority 0.
    default_priorities: of versions before 2022.   buffer_total: (its name in this version, bytes).
    cable_length: metres.   enabled: PFC of priorities 0 to 7.   prio2buffer: receive buffer of priorities 0 to 7.
    classes: in the order printed; one without a priority is not printed.
    not_supported: what the driver cannot do, in the tool's words.
    """

    lldpad: bool
    not_supported: Tuple[str, ...]
    dcbx: Optional[str]  # os, firmware
    trust: Optional[str]  # pcp, dscp, both, none
    dscp2prio: Optional[Tuple[Tuple[int, int], ...]]
    default_priorities: Optional[Tuple[int, ...]]
    buffer_size: Optional[Tuple[int, ...]]
    buffer_total: Optional[Tuple[str, int]]
    cable_length: Optional[int]
    enabled: Tuple[bool, ...]
    prio2buffer: Optional[Tuple[int, ...]]
    classes: Tuple[TrafficClass, ...]

    def by_class(self) -> Optional[Mapping[int, TrafficClass]]:
        """Traffic class -> what is known of it; None where the tool leaves out the numbers."""
        found = {one.number: one for one in self.classes if one.number is not None}
        return found if len(found) == len(self.classes) else None


# -- text ------------------------------------------------------------------------------------------------------------


def parse(text: str) -> Qos:
    """Raises NotSupported, and ParseError that quotes the first line that is not known or says what is missing."""
    values: Dict[str, Sequence[Optional[str]]] = {}
    headings: List[str] = []
    pairs: List[Tuple[int, int]] = []
    defaults: List[int] = []
    classes: List[TrafficClass] = []
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
            or _entry(line, headings, pairs, defaults)
            or _traffic_class(line, classes)
            or (_TABLE_HEAD.fullmatch(line) and headings[-1:] == ["pfc"])
        ):
            raise ParseError("%r is not a line that mlnx_qos is known to print there" % line[:160])
    # Kernels without commands for buffers have all the rest: where nothing else is there, the tool broke off.
    if "ETS features" in refused or ("enabled" not in values and set(refused) - {"Buffers commands"}):
        raise NotSupported("mlnx_qos: %s not supported by this driver or interface" % ", ".join(refused))
    if "enabled" not in values:
        raise ParseError("no line 'enabled' of the PFC configuration in %r" % text[:160])
    listed = sorted(priority for one in classes for priority in one.priorities)
    if listed != list(range(8)):
        raise ParseError("the traffic classes list priorities %s, expected 0 to 7 once each" % (listed or "not at all"))
    numbers = [one.number for one in classes if one.number is not None]
    if len(set(numbers)) != len(numbers):
        raise ParseError("a traffic class is there twice: %s" % numbers)
    size, total_name, total = values.get("buffer_size", (None, None, None))
    return Qos(
        lldpad=lldpad,
        not_supported=tuple(refused),
        dcbx=_DCBX[values["dcbx"][0] or ""] if "dcbx" in values else None,
        trust=values["trust"][0] if "trust" in values else None,
        dscp2prio=tuple(pairs) if "map" in headings else None,
        default_priorities=tuple(defaults) if "default" in headings else None,
        buffer_size=_numbers(size.rstrip(",").split(",")) if size else None,
        buffer_total=(total_name, int(total)) if total_name and total else None,
        cable_length=int(values["cable"][0] or "") if "cable" in values else None,
        enabled=tuple(word == "1" for word in (values["enabled"][0] or "").split()),
        prio2buffer=_numbers((values["prio2buffer"][0] or "").split()) if "prio2buffer" in values else None,
        classes=tuple(classes),
    )


def _simple(line: str, values: Dict[str, Sequence[Optional[str]]]) -> bool:
    for name, pattern in _SIMPLE.items():
        match = pattern.fullmatch(line)
        if match is not None and name not in values:
            values[name] = match.groups()
            return True
    return False


def _entry(line: str, headings: List[str], pairs: List[Tuple[int, int]], defaults: List[int]) -> bool:
    entry, default = _DSCP_LINE.fullmatch(line), _DEFAULT_LINE.fullmatch(line)
    if entry is not None and headings[-1:] == ["map"] and (entry.group(1) or pairs):
        priority = int(entry.group(1) or pairs[-1][1])
        dscps = _numbers(entry.group(2).rstrip(",").split(","))
        pairs += [(dscp, priority) for dscp in dscps]
        return max(dscps) < 64
    if default is not None and headings[-1:] == ["default"]:
        defaults.append(int(default.group(1)))
        return True
    return False


def _traffic_class(line: str, classes: List[TrafficClass]) -> bool:
    head, priority = _CLASS.fullmatch(line), _PRIORITY.fullmatch(line)
    if head is not None:
        number, rate, tsa, bandwidth = head.groups()
        classes.append(
            TrafficClass(
                number=None if number is None else int(number),
                rate_gbps=None if rate is None else float(rate),
                tsa=tsa or "ets",
                bandwidth=None if bandwidth is None else int(bandwidth),
                priorities=(),
            )
        )
        return bandwidth is None or int(bandwidth) <= 100
    if not classes:
        return False
    last = classes[-1]
    priorities, kernel = last.priorities, last.kernel_priorities
    if priority is not None:
        priorities += (int(priority.group(1)),)
    elif _SKPRIO.fullmatch(line):
        kernel += (line,)
    else:
        return False
    classes[-1] = TrafficClass(last.number, last.rate_gbps, last.tsa, last.bandwidth, priorities, kernel)
    return True


def _numbers(words: Iterable[str]) -> Tuple[int, ...]:
    return tuple(int(word) for word in words)


def render(qos: Qos) -> str:
    """The text as the tool prints it: with TABs, DSCPs eight to a line and by priority. ``parse`` takes it back."""
    lines = [_LLDPAD, ""] if qos.lldpad else []
    lines += ["%s not supported on your system%s" % _words(name) for name in qos.not_supported]
    if qos.dcbx is not None:
        lines.append("DCBX mode: %s" % next(words for words, owner in _DCBX.items() if owner == qos.dcbx))
    if qos.trust is not None:
        lines.append("Priority trust state: %s" % qos.trust)
    if qos.dscp2prio is not None:
        lines.append("dscp2prio mapping:")
        for priority in range(8):
            dscps = ["%02d," % dscp for dscp, to in qos.dscp2prio if to == priority]
            for start in range(0, len(dscps), 8):
                lines.append("\tprio:%d dscp:%s" % (priority, "".join(dscps[start : start + 8])))
    if qos.default_priorities is not None:
        lines += ["default priority:"] + ["\tprio:%d" % priority for priority in qos.default_priorities]
    if qos.buffer_size is not None:
        total = "%s=%d" % qos.buffer_total if qos.buffer_total else ""
        lines.append("Receive buffer size (bytes): %s%s" % ("".join("%d," % size for size in qos.buffer_size), total))
    if qos.cable_length is not None:
        lines.append("Cable len: %d" % qos.cable_length)
    lines += ["PFC configuration:", "\tpriority    0   1   2   3   4   5   6   7"]
    lines.append("\tenabled     " + "".join("%d   " % on for on in qos.enabled))
    if qos.prio2buffer is not None:
        lines.append("\tbuffer      " + "".join("%d   " % buffer for buffer in qos.prio2buffer))
    for one in qos.classes:
        rate = "unlimited" if one.rate_gbps is None else "%.1f Gbps" % one.rate_gbps
        head = "" if one.number is None else "tc: %d ratelimit: %s, tsa: " % (one.number, rate)
        lines.append(head + (one.tsa if one.bandwidth is None else "ets, bw: %d%%" % one.bandwidth))
        lines += ["\t priority:  %d" % priority for priority in one.priorities]
        lines += ["\t\t%s" % kernel for kernel in one.kernel_priorities]
    return "\n".join(lines) + "\n"


def _words(name: str) -> Tuple[str, str]:
    verb = "are" if name in ("Buffers commands", "ETS features") else "is"
    return "%s %s" % (name, verb), "!" if name == "Rate limit" else ""


# -- calls -----------------------------------------------------------------------------------------------------------
# One setting a call: the tool refuses --trust beside --dscp2prio, and beside --buffer_size it drops --prio2buffer
# where the driver has files for both.


def show(netdev: str) -> Tuple[str, ...]:
    return (TOOL, "-i", netdev)


def set_dcbx(netdev: str, owner: str) -> Tuple[str, ...]:
    """owner: os, firmware."""
    return (*show(netdev), "-d", {"os": "os", "firmware": "fw"}[owner])


def set_trust(netdev: str, trust: str) -> Tuple[str, ...]:
    """dscp writes all 64 entries as DSCP / 8, pcp deletes them."""
    return (*show(netdev), "--trust", trust)


def set_dscp2prio(netdev: str, pairs: Iterable[Tuple[int, int]]) -> Tuple[str, ...]:
    options: List[str] = []
    for dscp, priority in pairs:
        options += ["--dscp2prio", "set,%d,%d" % (dscp, priority)]
    return (*show(netdev), *options)


def set_pfc(netdev: str, priorities: Iterable[int]) -> Tuple[str, ...]:
    """On for these, off for all others. A mask that differs bounces the link."""
    on = set(priorities)
    return (*show(netdev), "--pfc", _list(int(priority in on) for priority in range(8)))


def set_prio2tc(netdev: str, classes: Eight) -> Tuple[str, ...]:
    return (*show(netdev), "-p", _list(classes))


def set_ets(netdev: str, tsa: Sequence[str], bandwidth: Eight) -> Tuple[str, ...]:
    """bandwidth: per cent; those of ets classes make 100, the others are 0."""
    return (*show(netdev), "-s", ",".join(tsa), "-t", _list(bandwidth))


def set_cable_length(netdev: str, metres: int) -> Tuple[str, ...]:
    return (*show(netdev), "--cable_len", str(metres))


def set_prio2buffer(netdev: str, buffers: Eight) -> Tuple[str, ...]:
    return (*show(netdev), "--prio2buffer", _list(buffers))


def set_buffer_size(netdev: str, sizes: Eight) -> Tuple[str, ...]:
    return (*show(netdev), "--buffer_size", _list(sizes))


def _list(values: Iterable[int]) -> str:
    return ",".join(str(value) for value in values)
