# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Is each link set up, and does it run at the width and speed that the profile's rails ask for.

What the fabric shows is no measure: a rail's rate is the profile's, and the cables between a leaf and the spines have
to carry one rail's flow at full rate. Of other links nobody says what they ought to be, and nothing is said of them.
Pure. Sources: fabric.md 1; rates as module_utils/fabric/sweep.py has them.
"""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import CA, LANE_GBPS, Port, rate_gbps
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric_map import (
    SWEEP_AGAIN,
    End,
    Fabric,
    Plane,
    Said,
    count,
    is_aggregation,
)

LANES = 4
_WHY = "the slowest link sets the pace of every collective that goes over it, and NCCL does not report it"

SPEED = Check(
    "ib_fabric.link_speed",
    why=_WHY,
)
"""Is each rail's link as fast as the profile's rate, and each cable from a leaf to a spine as fast as a rail of that
leaf; other links are not checked"""

ACTIVE = Check(
    "ib_fabric.link_state",
    why="a link that is trained and not active carries nothing: no subnet manager has set it up",
    severity="critical",
)
"Is every trained link active: set up by its subnet manager"

WIDTH = Check(
    "ib_fabric.link_width",
    why="a lane that is missing is a bad cable, connector or transceiver; " + _WHY,
)
"Has each of these links all its lanes"


def rates(fabric: Fabric, plane: Plane) -> tuple[list[Said], dict[Check, str]]:
    """What is wrong, and what to say where nothing is; no text for what was not queried."""
    found: list[Said] = []
    asked = 0
    for end, other, want in wanted(fabric, plane):
        asked += 1
        said = _link(fabric, plane, end, other, want)
        if said is not None:
            found.append(said)
    text = f"{asked} links at the rails' rate"
    return found, ({SPEED: text, WIDTH: text} if asked else {})


def states(fabric: Fabric, plane: Plane) -> tuple[list[Said], dict[Check, str]]:
    """Links that are trained, and that nobody has set up."""
    found: list[Said] = []
    number = 0
    if plane.joined:
        # Neither of two managers sets up what is between them, before the cable that joins them is out.
        return [], {}
    # Where no manager was seen, that is what there is to say: these ports wait for it.
    state = "drift" if any(one.state == "master" for one in plane.best.managers) else "unknown"
    for end, other in fabric.links(plane):
        number += 1
        idle = [one for one in (end, other) if one in fabric.ports and fabric.ports[one].state in ("init", "armed")]
        if not idle:
            continue
        have = "; ".join(f"{fabric.end(one)} is {fabric.ports[one].state}" for one in idle)
        fix = (
            f"see on {plane.hosts[0]} with sminfo that a subnet manager responds, and read its log"
            f" (/var/log/opensm.log) on this port; then sweep again: {SWEEP_AGAIN}"
        )
        finding = ACTIVE.judge(
            fabric.subject(end, other),
            *(state, "active", f"{have}: {fabric.cable(end, other)}", plane.best.source, fix),
        )
        hosts, kind = fabric.concerned(plane, end, other), "links that no subnet manager has set up"
        found.append(Said(hosts, finding, plane.index, kind, fabric.name(end, other), (end, other)))
    return found, {ACTIVE: count(number, "link")}


def wanted(fabric: Fabric, plane: Plane) -> Iterator[tuple[End, End, float]]:
    """The links of which something is wanted: their ends, and the least Gbit/s."""
    of_leaf: dict[str, float] = {}
    foreign: set[str] = set()
    between: list[tuple[End, End]] = []
    for end, other in fabric.links(plane):
        mine = [fabric.rails[one][1].rate_gbps for one in (end, other) if one in fabric.rails]
        known = [rate for rate in mine if rate]
        if known:
            yield end, other, min(known)
        if end in fabric.rails:
            # A faster rail that landed on the wrong leaf does not raise what is asked of that leaf's uplinks.
            rate = min(known, default=0.0)
            of_leaf[other[0]] = min(of_leaf.get(other[0]) or rate, rate or of_leaf.get(other[0], 0.0))
        elif fabric.is_switch(end[0]) and fabric.is_switch(other[0]):
            between.append((end, other))
        elif end[0] in plane.nodes and plane.nodes[end[0]].kind == CA and not is_aggregation(plane.nodes[end[0]]):
            foreign.add(other[0])
    whole = min((rate for rate in of_leaf.values() if rate), default=0.0)
    for end, other in between:
        # Behind a switch that only other machines hang on (storage, logins) no rail's flow goes.
        if {end[0], other[0]} & (foreign - set(of_leaf)):
            continue
        want = max(of_leaf.get(end[0], 0.0), of_leaf.get(other[0], 0.0)) or whole
        if want:
            yield end, other, want


def _link(fabric: Fabric, plane: Plane, end: End, other: End, want: float) -> Said | None:
    ports = [fabric.ports[one] for one in (end, other) if one in fabric.ports]
    have = f"{fabric.cable(end, other)}"
    subject, hosts, name = fabric.subject(end, other), fabric.concerned(plane, end, other), fabric.name(end, other)
    read = [port for port in ports if port.rate is not None]
    if not read:
        fix = f"run iblinkinfo -C {plane.best.device or 'DEVICE'} on {plane.hosts[0]} and read its output for this link"
        finding = SPEED.judge(subject, "unknown", f"{want:g} Gb/s", f"not read: {have}", plane.best.source, fix)
        return Said(hosts, finding, plane.index, "links whose width or speed was not read", name, (end, other))
    port = min(read, key=lambda one: one.rate or 0.0)
    rate = port.rate or 0.0
    if rate >= want:
        return None
    lanes = min(LANES, port.width_supported or LANES)
    check = WIDTH if (port.width or 0) < lanes else SPEED
    shown = f"{port.width}x {port.speed} ({rate:g} Gb/s)"
    most = _most(port)
    state = "drift"
    fix = (
        f"reseat the cable at both ends, {have}; if that does not help, exchange cable and transceivers one"
        f" after the other ({fabric.module(end, other)}); then sweep again: {SWEEP_AGAIN}"
    )
    if most is not None and most < want:
        state = "unsupported"
        fix = (
            f"the ends can do no more than {most:g} Gb/s: exchange the slower one, or correct rate_gbps of the profile"
        )
    finding = check.judge(subject, state, f"at least {want:g} Gb/s", f"{shown}: {have}", plane.best.source, fix)
    return Said(hosts, finding, plane.index, f"links at {shown} in place of {want:g} Gb/s", name, (end, other))


def _most(port: Port) -> float | None:
    """What both ends can, where a tool reports it."""
    if port.speed_supported is None or port.speed_supported not in LANE_GBPS:
        return None
    return rate_gbps(port.width_supported or LANES, port.speed_supported)
