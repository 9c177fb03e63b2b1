# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Check that rail N of every host is plugged into the leaf of rail N, from the LLDP neighbours of all hosts.

A cabling plan gives each cable's place. Without one the other hosts do: the leaf of a rail is where hosts have it that
share their other leaves with this host, else a leaf most of whose hosts have that rail there. Without a majority
nothing is guessed. Two swapped cables are one finding. Pure, and linear in the number of cables.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, printable

from ..fabric.cabling_plan import Cable, Plan

LEAF = Check(
    "lldp.leaf",
    why="rail N of one host talks to rail N of all: plugged into another leaf it goes through the spine, and takes"
    " bandwidth from others there",
    fix="plug the rail's cable into the expected leaf; a cabling plan (busbar_fabric_plan, docs/cabling.md) declares"
    " it",
)
"""Is each rail connected to its port of the cabling plan, else to the leaf on which the other hosts have that rail;
`unknown` without a majority"""
SWAPPED = Check(
    "lldp.swapped",
    why="two cables are swapped: both rails send and receive through the spine",
    fix="exchange the two cables, at the hosts or at the switches",
)
"Is no cable swapped; the finding has both ends, and is reported for both hosts"
RAILS = "rails"
SOURCE = "LLDP of all hosts"
# Share of the hosts with the same other leaves that have to agree; of the hosts on a leaf, more than half.
AGREED = 3 / 4
# Ends that are searched for the other one of a pair: a leaf has fewer wrong ones.
CANDIDATES = 1000
_NO_MAJORITY = (
    "declare the right cabling: busbar_fabric_plan (docs/cabling.md); or run lldpcli show neighbors on a good host"
)
# A switch, or a port of one.
Key = tuple[str, ...] | int


@dataclass(frozen=True)
class End:
    """A rail's port, of a bond each member, and its neighbour.

    device: of RDMA; "" for a member without.   chassis, name: of the switch.   port, description: of its port.
    mac: of the interface.
    """

    host: str
    rail: int
    netdev: str
    device: str
    chassis: str
    name: str
    port: str
    description: str = ""
    mac: str = ""

    @property
    def switch(self) -> str:
        return self.name or self.chassis

    @property
    def place(self) -> str:
        return f"{self.switch} {self.port}"

    @property
    def label(self) -> str:
        return f"{self.host} rail {self.rail}"


@dataclass(frozen=True)
class _MisplacedEnd:
    """A misplaced end. at: its place, None where the plan does not have it.

    wanted: its allowed places.   text: these, for people.   source: of the finding.
    """

    end: End
    at: Key | None
    wanted: frozenset[Key]
    text: str
    source: str = SOURCE


def judge(ends: Sequence[End], plan: Plan | None = None) -> dict[str, list[Finding]]:
    """Return host -> findings, also ok ones. Hosts that the plan does not name are compared with each other."""
    named = _Planned(plan) if plan is not None else None
    strays: list[_MisplacedEnd] = []
    undecided: list[End] = []
    by_plan = [end for end in ends if named is not None and named.has(end.host)]
    for end in by_plan:
        stray = named.stray(end) if named is not None else None
        strays += [stray] if stray is not None else []
    planned = {end.host for end in by_plan}
    compared = [end for end in ends if end.host not in planned]
    for end, wanted in _misplaced(compared):
        if wanted is None:
            undecided.append(end)
        else:
            text = " or ".join(sorted({switch for _key, switch in wanted})[:4]) or "another leaf"
            strays.append(_MisplacedEnd(end, _key(end), frozenset(key for key, _switch in wanted), text))
    found: dict[str, list[Finding]] = {end.host: [] for end in ends}
    paired: set[End] = set()
    for one, other in _pairs(strays):
        paired |= {one.end, other.end}
        finding = _swapped(one, other)
        for host in dict.fromkeys((one.end.host, other.end.host)):
            found[host].append(finding)
    _each_rail([stray for stray in strays if stray.end not in paired], found)
    _no_majority(undecided, found)
    for host, findings in found.items():
        if not findings:
            of = "the cabling plan" if host in planned else "the other hosts"
            findings.append(LEAF.judge(RAILS, "ok", f"as {of}", "is so", SOURCE))
    return found


def _key(end: End) -> Key:
    return (end.chassis, end.name)


# -- without a plan ----------------------------------------------------------------------------------------------------

_Wanted = set[tuple[Key, str]]


def _misplaced(ends: Sequence[End]) -> Iterable[tuple[End, _Wanted | None]]:
    """Ends that are not where they belong, with the switches that they belong to; None where nobody can say."""
    rails: dict[str, dict[int, set[Key]]] = defaultdict(lambda: defaultdict(set))
    names = {_key(end): end.switch for end in ends}
    for end in ends:
        rails[end.host][end.rail].add(_key(end))
    # Switch -> number of its hosts, and of those with each rail.
    hosts: Counter[Key] = Counter()
    of_rail: Counter[tuple[Key, int]] = Counter()
    # Rail and switch -> each other rail's switch -> number of the hosts there.
    beside: dict[tuple[int, Key], Counter[tuple[int, Key]]] = defaultdict(Counter)
    for of_host in rails.values():
        hosts.update({key for keys in of_host.values() for key in keys})
        for rail, keys in of_host.items():
            of_rail.update((key, rail) for key in keys)
            others = [(other, key) for other, known in of_host.items() if other != rail for key in known]
            for key in keys:
                beside[rail, key].update(others)
    native: dict[int, set[Key]] = defaultdict(set)
    owned = set()
    for (key, rail), count in of_rail.items():
        if 2 * count > hosts[key]:
            native[rail].add(key)
            owned.add(key)
    for end in ends:
        key = _key(end)
        accepted = _of_neighbours(end, rails[end.host], of_rail, beside)
        if accepted:
            if key not in accepted:
                yield end, {(one, names[one]) for one in accepted}
        elif key not in native[end.rail]:
            yield end, {(one, names[one]) for one in native[end.rail]} if key in owned else None


def _of_neighbours(
    end: End,
    own: Mapping[int, set[Key]],
    of_rail: Counter[tuple[Key, int]],
    beside: Mapping[tuple[int, Key], Counter[tuple[int, Key]]],
) -> set[Key]:
    """Return switches with this rail of hosts that share the other rails' switches; empty for none.

    Each other rail has a vote, if another host has it on the same switch and nearly all of these agree.
    """
    votes: Counter[Key] = Counter()
    voters = 0
    for rail, keys in own.items():
        if rail == end.rail:
            continue
        for key in keys:
            every = of_rail[key, rail]
            agreed = [
                of for (other, of), count in beside[rail, key].items() if other == end.rail and count >= AGREED * every
            ]
            if every > 1 and agreed:
                voters += 1
                votes.update(agreed)
    return {key for key, count in votes.items() if 2 * count > voters}


# -- with a plan -------------------------------------------------------------------------------------------------------


class _Planned:
    """The plan's cables by the names of their two ends, in the spellings of inventory and LLDP."""

    def __init__(self, plan: Plan) -> None:
        self._source = f"{SOURCE}, {plan.source}"
        self._host_end: dict[str, list[int]] = defaultdict(list)
        self._of_switch: dict[tuple[str, str], list[int]] = defaultdict(list)
        # The host is the end that is a, unless the plan says otherwise.
        self._cables = [_turned(cable) if cable.z_type == "host" else cable for cable in plan.cables]
        for number, cable in enumerate(self._cables):
            for host in aliases(cable.a_node, cable.a_name):
                self._host_end[host].append(number)
            for switch in aliases(cable.z_node, cable.z_name):
                self._of_switch[switch, str(cable.z_port).casefold()].append(number)

    def has(self, host: str) -> bool:
        return any(name in self._host_end for name in aliases(host))

    def stray(self, end: End) -> _MisplacedEnd | None:
        """Return the misplaced end; None where it agrees with the plan."""
        own = self._planned_cable(end)
        heard = {
            number
            for switch in aliases(end.name, end.chassis)
            for port in {end.port.casefold(), end.description.casefold()} - {""}
            for number in self._of_switch.get((switch, port), ())
        }
        if own is None:
            return _MisplacedEnd(
                end, None, frozenset(), "a cable in the plan, which has none of this rail", self._source
            )
        if own in heard:
            return None
        cable = self._cables[own]
        text = f"{cable.z_name or cable.z_node} {cable.z_port} (plan, line {cable.line})"
        return _MisplacedEnd(end, min(heard, default=None), frozenset((own,)), text, self._source)

    def _planned_cable(self, end: End) -> int | None:
        """By the port's name, else by the rail where it has one cable."""
        numbers = sorted({number for host in aliases(end.host) for number in self._host_end.get(host, ())})
        ports = {end.netdev, end.device, f"{end.device}/1"} - {"", "/1"}
        by_port = [number for number in numbers if str(self._cables[number].a_port) in ports]
        by_rail = [number for number in numbers if self._cables[number].rail == end.rail]
        found = by_port or (by_rail if len(by_rail) == 1 else [])
        return found[0] if found else None


def _turned(cable: Cable) -> Cable:
    return Cable(
        cable.z_node,
        cable.z_port,
        cable.a_node,
        cable.a_port,
        cable.rail,
        cable.line,
        a_name=cable.z_name,
        z_name=cable.a_name,
    )


def aliases(*names: str) -> set[str]:
    """Return names as they are, without domain, and as the digits of a MAC address, in lower case."""
    found = set()
    for name in names:
        small = name.casefold()
        digits = small.replace(":", "").replace("-", "").replace(".", "")
        is_mac = len(digits) == 12 and all(char in "0123456789abcdef" for char in digits)
        found |= {digits} if is_mac else {small, small.partition(".")[0]}
    return found - {""}


# -- findings ----------------------------------------------------------------------------------------------------------


def _pairs(strays: Sequence[_MisplacedEnd]) -> list[tuple[_MisplacedEnd, _MisplacedEnd]]:
    """Return pairs, each end once: first pairs of one host, the usual way of swapping cables."""
    at: dict[Key, list[_MisplacedEnd]] = defaultdict(list)
    for stray in strays:
        if stray.at is not None:
            at[stray.at].append(stray)
    pairs: list[tuple[_MisplacedEnd, _MisplacedEnd]] = []
    paired: set[End] = set()
    for same_host in (True, False):
        for one in strays:
            candidates = (other for key in sorted(one.wanted, key=str) for other in at.get(key, ()))
            few = itertools.islice(candidates, CANDIDATES)
            other = None if one.end in paired else _partner(one, few, paired, same_host)
            if other is not None:
                pairs.append((one, other))
                paired |= {one.end, other.end}
    return pairs


def _partner(
    one: _MisplacedEnd, others: Iterable[_MisplacedEnd], paired: Collection[End], same_host: bool
) -> _MisplacedEnd | None:
    for other in others:
        if (
            other is not one
            and other.end not in paired
            and one.at in other.wanted
            and (not same_host or other.end.host == one.end.host)
        ):
            return other
    return None


def _swapped(one: _MisplacedEnd, other: _MisplacedEnd) -> Finding:
    first, second = sorted((one, other), key=lambda stray: (stray.end.host, stray.end.rail, stray.end.netdev))
    subject = f"{first.end.label}, {second.end.label}"
    want = f"{first.end.label} on {first.text}, {second.end.label} on {second.text}"
    have = f"{first.end.label} on {first.end.place}, {second.end.label} on {second.end.place}"
    return SWAPPED.judge(subject, "drift", printable(want), have, first.source)


def _each_rail(strays: Sequence[_MisplacedEnd], found: dict[str, list[Finding]]) -> None:
    of_rail: dict[tuple[str, int], list[_MisplacedEnd]] = defaultdict(list)
    for stray in strays:
        of_rail[stray.end.host, stray.end.rail].append(stray)
    for (host, rail), some in of_rail.items():
        want = "; ".join(dict.fromkeys(stray.text for stray in some))
        have = ", ".join(stray.end.place for stray in some)
        # A plan without the cable does not prove that it is wrong.
        state = "unknown" if all(stray.at is None and not stray.wanted for stray in some) else "drift"
        fix = None if state == "drift" else "add the cable to the plan (docs/cabling.md), or take it out"
        found[host].append(LEAF.judge(f"rail {rail}", state, printable(want), have, some[0].source, fix))


def _no_majority(undecided: Sequence[End], found: dict[str, list[Finding]]) -> None:
    of_host: dict[str, list[End]] = defaultdict(list)
    for end in undecided:
        of_host[end.host].append(end)
    for host, some in of_host.items():
        have = ", ".join(f"rail {end.rail} on {end.switch}" for end in some[:8])
        have = f"{have}; other hosts have other rails there, and neither is the majority"
        found[host].append(LEAF.judge(RAILS, "unknown", "rail N of all hosts on one leaf", have, SOURCE, _NO_MAJORITY))
