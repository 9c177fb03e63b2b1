# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Check that rail N of every host is plugged into the leaf of rail N, from the LLDP neighbours of all hosts.

A cabling plan gives each cable's place. Without one the other hosts do: the leaf of a rail is where hosts have it that
share their other leaves with this host, else a leaf most of whose hosts have that rail there. Without a majority
nothing is guessed. Two swapped cables are one finding. Pure, and linear in the number of cables.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding, printable

from ..fabric.cabling_plan import Cable, Plan

LEAF = Check(
    "lldp.leaf",
    why="rail N of one host talks to rail N of all: plugged into another leaf, its traffic goes through the spine",
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
# A switch, or the number of a planned cable.
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
    def key(self) -> Key:
        return (self.chassis, self.name)

    @property
    def place(self) -> str:
        return f"{self.switch} {self.port}"

    @property
    def label(self) -> str:
        return f"{self.host} rail {self.rail}"


@dataclass(frozen=True)
class _Stray:
    """A misplaced end. at: its place, None where the plan does not have it.   wanted: its allowed places.

    text: these, for people.   source: of the finding.
    """

    end: End
    at: Key | None
    wanted: frozenset[Key]
    text: str
    source: str = SOURCE


def judge(ends: Sequence[End], plan: Plan | None = None) -> dict[str, list[Finding]]:
    """Return host -> findings, also ok ones. Hosts that the plan does not name are compared with each other."""
    named = _Planned(plan) if plan is not None else None
    planned = {end.host for end in ends if named is not None and named.cables_of(end.host)}
    by_plan = (named.stray(end) for end in ends if named is not None and end.host in planned)
    strays = [stray for stray in by_plan if stray is not None]
    undecided: dict[str, list[End]] = defaultdict(list)
    for end, wanted in _misplaced([end for end in ends if end.host not in planned]):
        if wanted is None:
            undecided[end.host].append(end)
        else:
            text = " or ".join(sorted(wanted.values())[:4]) or "another leaf"
            strays.append(_Stray(end, end.key, frozenset(wanted), text))
    found: dict[str, list[Finding]] = {end.host: [] for end in ends}
    paired: set[End] = set()
    for pair in _pairs(strays):
        paired |= {one.end for one in pair}
        first, second = sorted(pair, key=lambda stray: (stray.end.host, stray.end.rail, stray.end.netdev))
        want = printable(f"{first.end.label} on {first.text}, {second.end.label} on {second.text}")
        have = f"{first.end.label} on {first.end.place}, {second.end.label} on {second.end.place}"
        finding = SWAPPED.judge(f"{first.end.label}, {second.end.label}", "drift", want, have, first.source)
        for host in {first.end.host, second.end.host}:
            found[host].append(finding)
    of_rail: dict[tuple[str, int], list[_Stray]] = defaultdict(list)
    for stray in strays:
        if stray.end not in paired:
            of_rail[stray.end.host, stray.end.rail].append(stray)
    for (host, rail), some in of_rail.items():
        found[host].append(_leaf(rail, some))
    for host, of_host in undecided.items():
        have = ", ".join(f"rail {end.rail} on {end.switch}" for end in of_host[:8])
        have += "; other hosts have other rails there, and neither is the majority"
        fix = "declare the right cabling: busbar_fabric_plan (docs/cabling.md)"
        found[host].append(LEAF.judge(RAILS, "unknown", "rail N of all hosts on one leaf", have, SOURCE, fix))
    for host, findings in found.items():
        if not findings:
            source = "the cabling plan" if host in planned else "the other hosts"
            findings.append(LEAF.judge(RAILS, "ok", f"as {source}", "is so", SOURCE))
    return found


def _leaf(rail: int, strays: Sequence[_Stray]) -> Finding:
    want = printable("; ".join(dict.fromkeys(stray.text for stray in strays)))
    have, source = ", ".join(stray.end.place for stray in strays), strays[0].source
    # A plan without the cable does not prove that it is wrong.
    if all(stray.at is None and not stray.wanted for stray in strays):
        fix = "add the cable to the plan (docs/cabling.md), or take it out"
        return LEAF.judge(f"rail {rail}", "unknown", want, have, source, fix)
    return LEAF.judge(f"rail {rail}", "drift", want, have, source)


def _misplaced(ends: Sequence[End]) -> Iterator[tuple[End, dict[Key, str] | None]]:
    """Yield ends that are not where other hosts have them, with the switches where they do; None without a majority."""
    names = {end.key: end.switch for end in ends}
    switches: dict[tuple[str, int], set[Key]] = defaultdict(set)
    hosts: dict[tuple[Key, int], set[str]] = defaultdict(set)
    rails: dict[str, set[int]] = defaultdict(set)
    of_switch: dict[Key, set[str]] = defaultdict(set)
    for end in ends:
        switches[end.host, end.rail].add(end.key)
        hosts[end.key, end.rail].add(end.host)
        rails[end.host].add(end.rail)
        of_switch[end.key].add(end.host)
    native: dict[int, set[Key]] = defaultdict(set)
    for (key, rail), there in hosts.items():
        if 2 * len(there) > len(of_switch[key]):
            native[rail].add(key)
    owned = set().union(*native.values())

    @functools.cache
    def usual(key: Key, rail: int, other: int) -> list[Key]:
        """Return the switches where nearly all hosts have the other rail that have this one on a switch."""
        there = hosts[key, rail]
        counts = Counter(far for host in there for far in switches.get((host, other), ()))
        return [far for far, count in counts.items() if len(there) > 1 and count >= AGREED * len(there)]

    for end in ends:
        # Each other rail of the host has a vote.
        others = ((key, rail) for rail in rails[end.host] - {end.rail} for key in switches[end.host, rail])
        votes = list(filter(None, (usual(key, rail, end.rail) for key, rail in others)))
        counts = Counter(itertools.chain(*votes))
        accepted = {key for key, count in counts.items() if 2 * count > len(votes)}
        right = accepted or native[end.rail]
        if end.key not in right:
            yield end, {key: names[key] for key in right} if accepted or end.key in owned else None


class _Planned:
    """The plan's cables by the names of their two ends, in the spellings of inventory and LLDP."""

    def __init__(self, plan: Plan) -> None:
        self._source = f"{SOURCE}, {plan.source}"
        self._of_host: dict[str, list[int]] = defaultdict(list)
        self._of_switch: dict[tuple[str, str], list[int]] = defaultdict(list)
        # The host is the end that is a, unless the plan says otherwise.
        self._cables = [_turned(cable) if cable.z_type == "host" else cable for cable in plan.cables]
        for number, cable in enumerate(self._cables):
            for host in aliases(cable.a_node, cable.a_name):
                self._of_host[host].append(number)
            for switch in aliases(cable.z_node, cable.z_name):
                self._of_switch[switch, str(cable.z_port).casefold()].append(number)

    def cables_of(self, host: str) -> list[int]:
        return sorted({number for name in aliases(host) for number in self._of_host.get(name, ())})

    def stray(self, end: End) -> _Stray | None:
        """Return the misplaced end; None where it agrees with the plan."""
        # Its cable is that of the port's name, else of the rail where it has one.
        numbers = self.cables_of(end.host)
        ports = {end.netdev, end.device, f"{end.device}/1"} - {"", "/1"}
        by_port = [number for number in numbers if str(self._cables[number].a_port) in ports]
        by_rail = [number for number in numbers if self._cables[number].rail == end.rail]
        own = next(iter(by_port or (by_rail if len(by_rail) == 1 else [])), None)
        there = {
            number
            for switch in aliases(end.name, end.chassis)
            for port in {end.port.casefold(), end.description.casefold()} - {""}
            for number in self._of_switch.get((switch, port), ())
        }
        if own is None:
            text = "a cable in the plan, which has none of this rail"
            return _Stray(end, None, frozenset(), text, self._source)
        cable = self._cables[own]
        text = f"{cable.z_name or cable.z_node} {cable.z_port} (plan, line {cable.line})"
        at = min(there, default=None)
        return None if own in there else _Stray(end, at, frozenset((own,)), text, self._source)


def _turned(cable: Cable) -> Cable:
    a, z = cable.ends
    return Cable(*z, *a, cable.rail, cable.line, a_name=cable.z_name, z_name=cable.a_name)


def aliases(*names: str) -> set[str]:
    """Return names as they are, without domain, and as the digits of a MAC address, in lower case."""
    found = set()
    for name in names:
        small = name.casefold()
        digits = small.replace(":", "").replace("-", "").replace(".", "")
        is_mac = len(digits) == 12 and not digits.strip("0123456789abcdef")
        found |= {digits} if is_mac else {small, small.partition(".")[0]}
    return found - {""}


def _pairs(strays: Sequence[_Stray]) -> Iterator[tuple[_Stray, _Stray]]:
    """Yield pairs, each end once: first pairs of one host, the usual way of swapping cables."""
    at: dict[Key | None, list[_Stray]] = defaultdict(list)
    for stray in strays:
        at[stray.at].append(stray)
    paired: set[End] = set()
    for same_host in (True, False):
        for one in (one for one in strays if one.at is not None and one.end not in paired):
            candidates = (other for key in sorted(one.wanted, key=str) for other in at.get(key, ()))
            for other in itertools.islice(candidates, CANDIDATES):
                hosts = one.end.host == other.end.host or not same_host
                if one is not other and hosts and one.at in other.wanted and other.end not in paired:
                    paired |= {one.end, other.end}
                    yield one, other
                    break
