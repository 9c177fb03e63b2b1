# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the ports have counted between two sweeps: errors as rates, links that went down, counters that stand still.

A total since boot shows no recent error. What went back, or belongs to a host that was rebooted, began anew: what
it has counted since is the least that there was. What has reached its end says nothing any more, and is ``unknown``.
Pure. Sources: host.md 7.4 and fabric.md 1 (limits, which their sources call heuristics); IBTA specification 1, 16.1.3
and 16.1.4 (widths of the counters); symbol errors: port_limits.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import Finding
from ansible_collections.busbar.fabric.plugins.module_utils.health.port_limits import symbol_limit
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_lines import names
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_map import (
    SWEEP_AGAIN,
    End,
    Fabric,
    Plane,
    Said,
    count,
    several,
)

SYMBOL, DOWNED, WAIT = "SymbolErrorCounter", "LinkDownedCounter", "PortXmitWait"
# Where a counter ends that has not been extended to 64 bits.
END = {
    SYMBOL: 0xFFFF,
    DOWNED: 0xFF,
    "LinkErrorRecoveryCounter": 0xFF,
    "PortRcvErrors": 0xFFFF,
    "PortXmitDiscards": 0xFFFF,
    "LocalLinkIntegrityErrors": 0xF,
    "ExcessiveBufferOverrunErrors": 0xF,
}
# Counter -> how many in how many seconds are too many. What is less than that many is no rate yet.
LIMITS = {
    "LinkErrorRecoveryCounter": (5, 60.0),
    "PortRcvErrors": (10, 1.0),
    "PortXmitDiscards": (100, 1.0),
    "LocalLinkIntegrityErrors": (0, 1.0),
    "ExcessiveBufferOverrunErrors": (0, 1.0),
}
ERRORS = Check(
    "ib_fabric.errors",
    why="a packet that arrives damaged is sent again, and all ranks wait for it; buffers that overrun lose what is in"
    " them",
    fix="clean and reseat the cable at both ends, then exchange it, then the transceivers; then sweep again: "
    + SWEEP_AGAIN,
)
"""Did no link count more errors since the last sweep than is usual: receive errors 10/s, discards 100/s, link
recoveries 5/min, integrity errors and buffer overruns none"""

SYMBOLS = Check(
    "ib_fabric.symbol_errors",
    why="symbol errors predict a failing link; the limit is UFM's rule for isolating a port from NDR on, and 120 an"
    " hour on older links",
    fix=ERRORS.fix,
)
"""Had no link more symbol errors since the last sweep than its speed allows: NDR 3 in 125 minutes (2.88 in 12), XDR 6
(5.8), older ones 120 an hour"""

LINK_DOWNED = Check(
    "ib_fabric.link_downed",
    why="a link that goes down while jobs run ends them; where both ends count it, and no reboot explains it, it is the"
    " cable or a transceiver",
    fix="reseat the cable at both ends; if it goes down again, exchange it, then the transceivers; then sweep"
    " again: " + SWEEP_AGAIN,
    severity="critical",
)
"Did no link go down since the last sweep, except with its host"

SATURATED = Check(
    "ib_fabric.saturated",
    why="a counter at its maximum counts no further errors",
    severity="minor",
)
"Are no error counters at their maximum"


@dataclass(frozen=True)
class Moved:
    """What a port counted.   counts: the least that it was.   reset: it, or its host, began anew in between.

    ended: names of counters that stand still.   seconds: between the sweeps.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    reset: bool = False
    ended: tuple[str, ...] = ()
    seconds: float = 0.0


def moved(now: Mapping[str, int], before: Mapping[str, int], seconds: float, rebooted: bool = False) -> Moved:
    """Between two readings of a port's counters. rebooted: what it counts began with its host."""
    reset = rebooted or any(now[name] < before[name] for name in now if name in before)
    counts = {}
    for name, value in now.items():
        if reset:
            # A counter that did not go back by itself may count on, or have begun anew and come further already.
            counts[name] = value if rebooted or value < before.get(name, 0) else value - before.get(name, 0)
        elif name in before:
            counts[name] = value - before[name]
    return Moved(counts, reset, tuple(name for name in END if now.get(name) == END[name]), seconds)


def rates(fabric: Fabric, plane: Plane) -> tuple[list[Said], dict[Check, str]]:
    """What is wrong, and what to say where nothing is."""
    found: list[Said] = []
    unread: dict[str, list[End]] = {}
    unmeasured: list[End] = []
    clock: list[End] = []
    resets = judged = 0
    for end, other in fabric.links(plane):
        of_link: dict[End, Moved] = {}
        for one in (end, other):
            port = fabric.ports.get(one)
            if port is None or fabric.plane_of[one] is not plane:
                continue
            if port.unread or not port.counters:
                unread.setdefault(port.unread or "they were not read", []).append(one)
                continue
            was = fabric.was.get(one)
            if was is None or was[0].unread or not was[0].counters:
                if any(port.counters.get(name) for name in (SYMBOL, *LIMITS)):
                    unmeasured.append(one)
                of_link[one] = Moved(ended=moved(port.counters, {}, 0.0).ended)
            elif plane.best.at <= was[1]:
                clock.append(one)
            else:
                of_link[one] = moved(port.counters, was[0].counters, plane.best.at - was[1], _rebooted(fabric, one))
                resets += of_link[one].reset
                judged += 1
        found += _link(fabric, plane, end, other, of_link)
    if unread:
        found.append(_unread(fabric, plane, unread))
    if unmeasured:
        what = "have counted errors, since an unknown time"
        found.append(_without(fabric, plane, "earlier counters", what, unmeasured, "sweep again in 15 minutes"))
    if clock:
        what = "were swept before, by the clocks, after this sweep"
        fix = f"set the clocks of {', '.join(plane.hosts)} (chronyc makestep), then sweep again"
        found.append(_without(fabric, plane, "time between sweeps", what, clock, fix))
    if unread or clock or not judged:
        # Nothing is called well that was not counted.
        return found, {}
    text = f"{judged} ports since the last sweep"
    if resets:
        text += f"; {resets} were reset in between"
    return found, dict.fromkeys((ERRORS, SYMBOLS, LINK_DOWNED, SATURATED), text)


def _rebooted(fabric: Fabric, end: End) -> bool:
    """Whether the host of a rail is known to have been rebooted since the last sweep."""
    return _same_boot(fabric, end) is False


def _same_boot(fabric: Fabric, end: End) -> bool | None:
    """None where nobody knows: of a machine that is not in the inventory, or did not tell. A switch has no host."""
    if fabric.is_switch(end[0]):
        return True
    if end not in fabric.rails:
        return None
    host = fabric.rails[end][0]
    now, before = fabric.asked.hosts[host].boot_id, fabric.asked.boots.get(host)
    return None if not now or not before else now == before


def _link(fabric: Fabric, plane: Plane, end: End, other: End, of_link: Mapping[End, Moved]) -> Iterator[Said]:
    hosts, subject = fabric.concerned(plane, end, other), fabric.subject(end, other)
    name, cable = fabric.name(end, other), fabric.cable(end, other)

    def said(kind: str, finding: Finding) -> Said:
        return Said(hosts, finding, plane.index, kind, name, (end, other))

    downed = _downed(fabric, subject, cable, end, other, of_link, plane)
    root: Finding | None = None
    if downed is not None:
        root = downed
        ends = "one of whose ends reports that they " if downed.severity == "minor" else "that "
        yield said(f"links {ends}went down", downed)
    symbols: list[str] = []
    errors: list[str] = []
    discards: list[str] = []
    for one, counted in of_link.items():
        many, limit = counted.counts.get(SYMBOL, 0), symbol_limit(fabric.ports[one].speed, counted.seconds)
        if many > limit:
            symbols.append(f"{_count(SYMBOL, many, counted)} at {fabric.end(one)}, at most {limit:.4g}")
        for counter, (most, seconds) in LIMITS.items():
            many = counted.counts.get(counter, 0)
            if many > most and (not most or many > most * counted.seconds / seconds):
                text = f"{_count(counter, many, counted)} at {fabric.end(one)}"
                (discards if counter == "PortXmitDiscards" else errors).append(text)
    if symbols:
        finding = SYMBOLS.judge(subject, "drift", "fewer", f"{'; '.join(symbols)}: {cable}", "counters", because=root)
        root = root or finding
        yield said("links with symbol errors", finding)
    if errors or discards:
        fix = None
        if not errors:
            # Nothing is wrong with the cable: what came could not leave in time.
            fix = (
                f"check whether the device at {_where(fabric, end, other)} is fast enough: platform.rail_pcie and"
                " platform.pcie_link of the host, and link_speed of the ports beside it; if those are ok, the cause is"
                " congestion: look at adaptive routing and at jobs that send many to one"
            )
        have = f"{'; '.join([*errors, *discards])}: {cable}"
        finding = ERRORS.judge(subject, "drift", "fewer", have, "counters", fix, because=root if errors else None)
        yield said("links with errors" if errors else "links with discards", finding)
        root = root or finding
    for one, counted in of_link.items():
        if counted.ended:
            yield said("ports whose counters have ended", _ended(fabric, plane, one, counted))


def _where(fabric: Fabric, end: End, other: End) -> str:
    return f"{fabric.end(end)} and {fabric.end(other)}"


def _count(name: str, many: int, counted: Moved) -> str:
    ended = "at least " if name in counted.ended or counted.reset else ""
    return f"{name} +{ended}{many} in {_time(counted.seconds)}"


def _time(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def _downed(
    fabric: Fabric, subject: str, cable: str, end: End, other: End, of_link: Mapping[End, Moved], plane: Plane
) -> Finding | None:
    counts = {one: counted.counts.get(DOWNED, 0) for one, counted in of_link.items()}
    if not any(counts.values()) or any(_same_boot(fabric, one) is False for one in (end, other)):
        return None
    if any(counted.reset for counted in of_link.values()):
        # Who loads its driver, or is a switch that was switched off, takes its links down with it.
        return None
    times = ", ".join(f"{many} at {fabric.end(one)}" for one, many in sorted(counts.items()) if many)
    seconds = max(counted.seconds for counted in of_link.values())
    have = f"went down in {_time(seconds)}: {times}: {cable}"
    both = len(counts) == 2 and all(counts.values())
    if not both:
        why = "only one end has counted it: the other's driver was reloaded, or the port was taken down"
        finding = LINK_DOWNED.judge(
            subject, "drift", "up all the time", f"one end {have}", "counters", why=why, severity="minor"
        )
    elif any(_same_boot(fabric, one) is None for one in (end, other)):
        fix = (
            "see with `uptime` on the machine at the end of this cable whether it was rebooted in that time; if it was"
            f" not, {LINK_DOWNED.fix}"
        )
        have = f"{have}; whether with its host is not known"
        finding = LINK_DOWNED.judge(subject, "unknown", "up all the time", have, "counters", fix, severity="major")
    else:
        finding = LINK_DOWNED.judge(subject, "drift", "up all the time", f"both ends {have}", "counters")
    return finding


def _ended(fabric: Fabric, plane: Plane, end: End, counted: Moved) -> Finding:
    where = f"-C {plane.best.device} -P {plane.best.port} " if plane.best.device else ""
    fix = (
        "reset this port's counters to zero, because only that makes them count again: perfquery"
        f" {where}-R {_address(fabric, end)} {end[1]} on {plane.best.host or 'a fabric host'}"
        "; other tools that read them see a reset"
    )
    have = f"saturated: {', '.join(f'{name} at {END[name]}' for name in counted.ended)}: {fabric.end(end)}"
    subject = f"{'switch' if fabric.is_switch(end[0]) else 'node'} 0x{end[0]} port {end[1]}"
    return SATURATED.judge(subject, "unknown", "counters that count", have, "counters", fix)


def _address(fabric: Fabric, end: End) -> str:
    """As perfquery takes it: a switch answers by its own GUID, an HCA by its port's, or by its LID."""
    port = fabric.ports[end]
    if fabric.is_switch(end[0]) or port.guid is not None:
        return f"-G 0x{end[0] if fabric.is_switch(end[0]) else port.guid}"
    return str(port.lid)


def _unread(fabric: Fabric, plane: Plane, of_reason: Mapping[str, list[End]]) -> Said:
    fix = (
        f"repair that, and sweep again: {SWEEP_AGAIN}; to see it by hand: ibqueryerrors --data --counters on"
        f" {plane.hosts[0]}"
    )
    said = [f"{reason}: {_ends(fabric, ends)}" for reason, ends in sorted(of_reason.items())]
    finding = ERRORS.judge(
        f"{plane.label}: counters", "unknown", "counters of every port", several(said, 2), "counters", fix
    )
    return Said(plane.hosts, finding, plane.index)


def _without(fabric: Fabric, plane: Plane, want: str, what: str, ends: list[End], fix: str) -> Said:
    have = f"{what}: {_ends(fabric, ends)}"
    finding = ERRORS.judge(
        f"{plane.label}: {want}", "unknown", want, have, "counters", f"{fix}: {SWEEP_AGAIN}", severity="minor"
    )
    return Said(plane.hosts, finding, plane.index)


def _ends(fabric: Fabric, ends: list[End]) -> str:
    if len(ends) <= 4:
        return f"{count(len(ends), 'port')}, {names([fabric.name(end) for end in ends])}"
    # So many that their nodes say more.
    of = [fabric.name(end) if end in fabric.rails else fabric.node(end[0]) for end in ends]
    return f"{len(ends)} ports, {names(of)}"


@dataclass(frozen=True)
class Waited:
    """How long a port had data and sent nothing, beside others of its model only: a tick has no length in time.

    model: device id of the switch or HCA, in hexadecimal.   share: of the ticks of its model's ports, 0 to 1.
    """

    model: str
    port: str
    ticks: int
    share: float


def waits(fabric: Fabric, most: int = 10) -> tuple[Waited, ...]:
    """Of each model the ports that waited longest since the last sweep. For people to look at: no alarm."""
    of_model: dict[str, list[tuple[int, End]]] = {}
    for end, port in fabric.ports.items():
        node, was = fabric.nodes[end[0]], fabric.was.get(end)
        if was is None or WAIT not in port.counters or WAIT not in was[0].counters or end not in fabric.cables:
            continue
        ticks = moved({WAIT: port.counters[WAIT]}, {WAIT: was[0].counters[WAIT]}, 0.0, _rebooted(fabric, end))
        model = "unknown" if node.device_id is None else f"0x{node.device_id:04x}"
        of_model.setdefault(model, []).append((ticks.counts[WAIT], end))
    found = []
    for model, counted in sorted(of_model.items()):
        total = sum(ticks for ticks, _end in counted)
        worst = sorted(counted, key=lambda one: (-one[0], one[1]))[:most]
        found += [Waited(model, fabric.end(end), ticks, ticks / total) for ticks, end in worst if ticks]
    return tuple(found)
