# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge links: their state, width and speed, and what their ports have counted between two sweeps.

A rail needs the profile's rate, and cables between its leaf and the spines carry one rail's flow at full rate. No rate
is declared for other links, and they are not judged. Of counters, a total since boot shows no recent error. After a
reset, or a reboot of the host, the present value is the least that was counted. Pure.
Sources: PortInfo of the IBTA (14.2.5.6), and 16.1.3 and 16.1.4 (widths of the counters); rates as in
module_utils/fabric/sweep.py; symbol errors: port_counters.py; the other limits are heuristics.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import CA, COUNTERS, rate_gbps
from ansible_collections.busbar.fabric.plugins.module_utils.health.port_counters import symbol_limit

from ..terminal import counted
from .evidence import End, Plane
from .map import Entry, Fabric, Pair, is_aggregation, names, several

LANES = 4
_WHY = "the slowest link sets the pace of every collective that goes over it, and NCCL does not report it"

SPEED = Check("ib_fabric.link_speed", why=_WHY)
"Is each rail's link as fast as the profile's rate, and each cable between its leaf and a spine as fast as the rail"

ACTIVE = Check("ib_fabric.link_state", why="a link that is trained and not active carries nothing", severity="critical")
"Is every trained link active: set up by its subnet manager"

WIDTH = Check("ib_fabric.link_width", why="a lane that is missing is a bad cable, connector or transceiver; " + _WHY)
"Has each of these links all its lanes"


def states(fabric: Fabric, plane: Plane) -> Iterator[Entry]:
    """Judge links that are trained, and not set up."""
    if plane.joined:
        # Two managers set up nothing between them while a cable joins their planes.
        return
    # Without a manager these ports wait for it, which has a separate finding.
    state = "drift" if any(one.state == "master" for one in plane.best.managers) else "unknown"
    links = list(fabric.links(plane))
    for ends in links:
        idle = [one for one in ends if one in fabric.ports and fabric.ports[one].state in ("init", "armed")]
        if idle:
            have = "; ".join(f"{fabric.end(one)} is {fabric.ports[one].state}" for one in idle)
            fix = f"run sminfo on {plane.hosts[0]}, and read the manager's log (/var/log/opensm.log) on this port"
            have, kind = f"{have}: {fabric.cable(*ends)}", "links that no subnet manager has set up"
            yield fabric.entry(ACTIVE, state, plane, ends, "active", have, fix, kind=kind)
        elif all(fabric.ports[one].state == "unknown" for one in ends if one in fabric.ports):
            about = (ACTIVE, "unknown", plane, ends, "active", f"not read: {fabric.cable(*ends)}", _by_hand(plane))
            yield fabric.entry(*about, kind="links whose state was not read")
    plane.passed[ACTIVE] = counted(len(links), "link")


def rates(fabric: Fabric, plane: Plane) -> Iterator[Entry]:
    """Judge links with a declared rate."""
    links = list(_wanted(fabric, plane))
    for ends, want in links:
        yield from _rate(fabric, plane, ends, want)
    if links:
        widths = all(any(one in fabric.ports and fabric.ports[one].width for one in ends) for ends, _want in links)
        checks = (SPEED, WIDTH) if widths else (SPEED,)
        plane.passed.update(dict.fromkeys(checks, f"{len(links)} links at the rails' rate"))


def _by_hand(plane: Plane) -> str:
    if not plane.best.device:
        return "store the output of iblinkinfo --line beside the dumps"
    return f"run iblinkinfo {plane.options}on {plane.hosts[0]} and read its output for this link"


def _wanted(fabric: Fabric, plane: Plane) -> Iterator[tuple[Pair, float]]:
    """Yield the ends of links and the least Gbit/s."""
    of_leaf: dict[str, float] = {}
    foreign: set[str] = set()
    between: list[Pair] = []
    for end, other in fabric.links(plane):
        declared = (fabric.rails[one][1].rate_gbps or 0.0 for one in (end, other) if one in fabric.rails)
        rate = min(filter(None, declared), default=0.0)
        if rate:
            yield (end, other), rate
        if end in fabric.rails:
            # A faster rail on the wrong leaf does not raise the rate of that leaf's uplinks.
            of_leaf[other[0]] = min(of_leaf.get(other[0]) or rate, rate or of_leaf.get(other[0], 0.0))
        elif fabric.between(end, other):
            between.append((end, other))
        elif end[0] in plane.nodes and plane.nodes[end[0]].kind == CA and not is_aggregation(plane.nodes[end[0]]):
            foreign.add(other[0])
    least = min(filter(None, of_leaf.values()), default=0.0)
    for end, other in between:
        # No rail's flow goes to a switch that only other machines (storage, logins) are cabled to.
        want = max(of_leaf.get(end[0], 0.0), of_leaf.get(other[0], 0.0)) or least
        if want and not {end[0], other[0]} & (foreign - set(of_leaf)):
            yield (end, other), want


def _rate(fabric: Fabric, plane: Plane, ends: Pair, want: float) -> Iterator[Entry]:
    cable = fabric.cable(*ends)
    ports = [(port.rate, port) for port in map(fabric.ports.get, ends) if port is not None and port.rate is not None]
    if not ports:
        about = (SPEED, "unknown", plane, ends, f"{want:g} Gb/s", f"not read: {cable}", _by_hand(plane))
        yield fabric.entry(*about, kind="links whose width or speed was not read")
        return
    rate, port = min(ports, key=lambda one: one[0])
    if rate >= want:
        return
    check = WIDTH if (port.width or 0) < min(LANES, port.width_supported or LANES) else SPEED
    shown = f"{port.width}x {port.speed} ({rate:g} Gb/s)"
    most = rate_gbps(port.width_supported or LANES, port.speed_supported)
    module = "the switches' consoles show the modules' power and errors"
    for host, rail in (fabric.rails[end] for end in ends[::-1] if end in fabric.rails):
        module = f"mlxlink -d {rail.device or rail.pci} -m -c -e on {host} shows the module's power and errors"
    state, fix = "drift", f"reseat the cable at both ends; then exchange it, then its transceivers ({module})"
    if most is not None and most < want:
        state = "unsupported"
        fix = f"the ends do no more than {most:g} Gb/s: exchange the slower one, or correct rate_gbps of the profile"
    kind = f"links at {shown} in place of {want:g} Gb/s"
    yield fabric.entry(check, state, plane, ends, f"at least {want:g} Gb/s", f"{shown}: {cable}", fix, kind=kind)


# -- counters ----------------------------------------------------------------------------------------------------------

SYMBOL, DOWNED, DISCARDS = "SymbolErrorCounter", "LinkDownedCounter", "PortXmitDiscards"
# Counter -> the most in so many seconds. Fewer than that many are no rate yet.
LIMITS = {
    "LinkErrorRecoveryCounter": (5, 60.0),
    "PortRcvErrors": (10, 1.0),
    DISCARDS: (100, 1.0),
    "LocalLinkIntegrityErrors": (0, 1.0),
    "ExcessiveBufferOverrunErrors": (0, 1.0),
}
ERRORS = Check(
    "ib_fabric.errors",
    why="a packet that arrives damaged is sent again, and all ranks wait for it; full buffers lose packets",
    fix="clean and reseat the cable at both ends, then exchange it, then the transceivers",
)
"""Did no link count more errors since the last sweep than is usual: receive errors 10/s, discards 100/s, link
recoveries 5/min, integrity errors and buffer overruns none"""

SYMBOLS = Check(
    "ib_fabric.symbol_errors",
    why="symbol errors predict a failing link; the limit is UFM's from NDR on, and 120 an hour on older links",
    fix=ERRORS.fix,
)
"""Had no link more symbol errors since the last sweep than its speed allows: NDR 3 in 125 minutes (2.88 in 12), XDR 6
(5.8), older ones 120 an hour"""

LINK_DOWNED = Check(
    "ib_fabric.link_downed",
    why="it ends jobs; if both ends count it, and no reboot explains it, it is the cable or a transceiver",
    fix="reseat the cable at both ends; if it goes down again, exchange it, then the transceivers",
    severity="critical",
)
"Did no link go down since the last sweep, except with its host"

SATURATED = Check("ib_fabric.saturated", why="a counter at its maximum counts no further errors", severity="minor")
"Are no error counters at their maximum"

_CONGESTED = (
    "check the device at the slow end (platform.rail_pcie, platform.pcie_link, link_speed) of %s; if it is fast enough,"
    " it is congestion: adaptive routing, or jobs that send many to one"
)


@dataclass(frozen=True)
class Counted:
    """Counts of a port between two sweeps.   counts: at least so many.   reset: it, or its host, was reset in between.

    ended: names of counters at their maximum.   seconds: between the sweeps.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    reset: bool = False
    ended: tuple[str, ...] = ()
    seconds: float = 0.0

    def text(self, name: str) -> str:
        least = "at least " if name in self.ended or self.reset else ""
        return f"{name} +{least}{self.counts.get(name, 0)} in {self.time}"

    @property
    def time(self) -> str:
        if self.seconds < 7200:
            return f"{self.seconds:.0f} s" if self.seconds < 120 else f"{self.seconds / 60:.0f} min"
        return f"{self.seconds / 3600:.1f} h"


def compare_counts(
    now: Mapping[str, int], before: Mapping[str, int], seconds: float, rebooted: bool = False
) -> Counted:
    """Return the difference of two readings of a port. rebooted: its counters were reset with its host."""
    reset = rebooted or any(now[name] < before[name] for name in now if name in before)
    # After a reset another counter may have gone on, or may have passed its old value since.
    counts = {
        name: value if rebooted or value < before.get(name, 0) else value - before.get(name, 0)
        for name, value in now.items()
        if reset or name in before
    }
    return Counted(counts, reset, tuple(name for name, most in COUNTERS.items() if now.get(name) == most), seconds)


def counts(fabric: Fabric, plane: Plane) -> Iterator[Entry]:
    """Judge the counters of all links."""
    # What is not known of ports -> why -> the ports.
    gaps: dict[str, dict[str, list[End]]] = defaultdict(lambda: defaultdict(list))
    resets = judged = 0
    for ends in fabric.links(plane):
        of_link: dict[End, Counted] = {}
        for end in ends:
            port, (was, at) = fabric.ports.get(end), fabric.was.get(end, (None, 0.0))
            if port is None or fabric.plane_of[end] is not plane:
                continue
            if port.unread or not port.counters:
                gaps["counters"][port.unread or "they were not read"].append(end)
            elif was is None or was.unread or not was.counters:
                if any(port.counters.get(name) for name in (SYMBOL, *LIMITS)):
                    gaps["earlier counters"]["have counted errors, since an unknown time"].append(end)
                of_link[end] = Counted(ended=compare_counts(port.counters, {}, 0.0).ended)
            elif plane.best.at <= at:
                gaps["time between sweeps"]["were swept before, by the clocks, after this sweep"].append(end)
            else:
                rebooted = _same_boot(fabric, end) is False
                of_link[end] = compare_counts(port.counters, was.counters, plane.best.at - at, rebooted)
                resets += of_link[end].reset
                judged += 1
        yield from _link(fabric, plane, ends, of_link)
    clocks = f"set the clocks of {', '.join(plane.hosts)} (chronyc makestep)"
    for what, fix in (
        ("counters", f"repair that; by hand: ibqueryerrors --data --counters on {plane.hosts[0]}"),
        ("earlier counters", "wait 15 minutes"),
        ("time between sweeps", clocks if plane.best.device else "write the dumps anew, and judge them once"),
    ):
        if what in gaps:
            reasons = [f"{reason}: {_ports(fabric, ends)}" for reason, ends in sorted(gaps[what].items())]
            about, subject = (ERRORS, "unknown", plane, (), what, several(reasons, 2), fix), f"{plane.label}: {what}"
            severity = None if what == "counters" else "minor"
            yield fabric.entry(*about, source="counters", subject=subject, severity=severity)
    if judged and gaps.keys() <= {"earlier counters"}:
        text = f"{judged} ports since the last sweep{f'; {resets} were reset in between' if resets else ''}"
        plane.passed.update(dict.fromkeys((ERRORS, SYMBOLS, LINK_DOWNED, SATURATED), text))


def _same_boot(fabric: Fabric, end: End) -> bool | None:
    """Return whether an end was not rebooted since the last sweep; None where that is not known. A switch was not."""
    if fabric.is_switch(end[0]):
        return True
    if end not in fabric.rails:
        return None
    host = fabric.rails[end][0]
    now, before = fabric.evidence.hosts[host].boot_id, fabric.evidence.boots.get(host)
    return None if not now or not before else now == before


def _link(fabric: Fabric, plane: Plane, ends: Pair, of_link: Mapping[End, Counted]) -> Iterator[Entry]:
    cable = fabric.cable(*ends)
    downed = _downed(fabric, plane, ends, of_link)
    root = None if downed is None else downed.finding
    if downed is not None:
        yield downed
    symbols: list[str] = []
    errors: list[str] = []
    discards: list[str] = []
    for end, moved in of_link.items():
        limit = symbol_limit(fabric.ports[end].speed, moved.seconds)
        if moved.counts.get(SYMBOL, 0) > limit:
            symbols.append(f"{moved.text(SYMBOL)} at {fabric.end(end)}, at most {limit:.4g}")
        for name, (most, seconds) in LIMITS.items():
            many = moved.counts.get(name, 0)
            if many > most and (not most or many > most * moved.seconds / seconds):
                (discards if name == DISCARDS else errors).append(f"{moved.text(name)} at {fabric.end(end)}")
    if symbols:
        about = (SYMBOLS, "drift", plane, ends, "fewer", f"{'; '.join(symbols)}: {cable}", SYMBOLS.fix)
        entry = fabric.entry(*about, source="counters", because=root, kind="links with symbol errors")
        root = root or entry.finding
        yield entry
    if errors or discards:
        fix, kind = ERRORS.fix, "links with errors"
        if not errors:
            # The cable is good: packets could not leave in time.
            fix, kind, root = _CONGESTED % cable, "links with discards", None
        about = (ERRORS, "drift", plane, ends, "fewer", f"{'; '.join([*errors, *discards])}: {cable}", fix)
        yield fabric.entry(*about, source="counters", because=root, kind=kind)
    for end, moved in of_link.items():
        if moved.ended:
            # perfquery finds a switch by its own GUID, an HCA by its port's, or by its LID.
            port = fabric.ports[end]
            guid = end[0] if fabric.is_switch(end[0]) else port.guid
            command = f"perfquery {plane.options}-R {f'-G 0x{guid}' if guid else port.lid} {end[1]}"
            fix = f"reset its counters, also for other tools: {command} on {plane.best.host or 'a fabric host'}"
            have = f"saturated: {', '.join(f'{name} at {COUNTERS[name]}' for name in moved.ended)}: {fabric.end(end)}"
            about = (SATURATED, "unknown", plane, ends, "counters that count", have, fix)
            node = "switch" if fabric.is_switch(end[0]) else "node"
            subject, kind = f"{node} 0x{end[0]} port {end[1]}", "ports whose counters have ended"
            yield fabric.entry(*about, subject=subject, source="counters", kind=kind)


def _downed(fabric: Fabric, plane: Plane, ends: Pair, of_link: Mapping[End, Counted]) -> Entry | None:
    counts = {end: moved.counts.get(DOWNED, 0) for end, moved in of_link.items()}
    boots = [_same_boot(fabric, end) for end in ends]
    # A driver that is loaded, or a switch that is switched on, takes its links down and resets its counters.
    if not any(counts.values()) or False in boots or any(moved.reset for moved in of_link.values()):
        return None
    times = ", ".join(f"{many} at {fabric.end(end)}" for end, many in sorted(counts.items()) if many)
    time = max(of_link.values(), key=lambda moved: moved.seconds).time
    have = f"went down in {time}: {times}: {fabric.cable(*ends)}"
    state, severity, which, fix, kind = "drift", None, "both ends", LINK_DOWNED.fix, "links that went down"
    why = None
    if sum(moved.seconds > 0 for moved in of_link.values()) < 2:
        state, severity, which, kind = "unknown", "major", "one end", "links that went down, by the end that was read"
        fix = f"repair what hides the counters of the other end; if that counts it, too, {fix}"
    elif not all(counts.values()):
        which, kind, severity = "one end", "links one of whose ends reports that they went down", "minor"
        why = "only one end has counted it: the other's driver was reloaded, or the port was taken down"
    elif None in boots:
        state, severity = "unknown", "major"
        fix = f"run `uptime` on the machine at the end of this cable; if it was not rebooted in that time, {fix}"
    about = (LINK_DOWNED, state, plane, ends, "up all the time", f"{which} {have}", fix)
    return fabric.entry(*about, source="counters", kind=kind, severity=severity, why=why)


def _ports(fabric: Fabric, ends: list[End]) -> str:
    """Return few ports, or the nodes of many."""
    if len(ends) <= 4:
        return f"{counted(len(ends), 'port')}, {names([fabric.name(end) for end in ends])}"
    return f"{len(ends)} ports, {names([fabric.name(e) if e in fabric.rails else fabric.node(e[0]) for e in ends])}"
