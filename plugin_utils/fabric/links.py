# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge the state, width and speed of links.

A rail needs the profile's rate, and cables between its leaf and the spines carry one rail's flow at full rate. No rate
is declared for other links, and they are not judged. Pure.
Sources: PortInfo of the IBTA (14.2.5.6); rates as in module_utils/fabric/sweep.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from ansible_collections.busbar.fabric.plugins.module_utils.core.check import Check
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import CA, rate_gbps

from ..terminal import counted
from .map import Entry, Fabric, Pair, is_aggregation
from .planes import Plane

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
    plane.passed[ACTIVE] = counted(len(links), "link")


def rates(fabric: Fabric, plane: Plane) -> Iterator[Entry]:
    """Judge links with a declared rate."""
    links = list(_wanted(fabric, plane))
    for ends, want in links:
        yield from _rate(fabric, plane, ends, want)
    if links:
        plane.passed.update(dict.fromkeys((SPEED, WIDTH), f"{len(links)} links at the rails' rate"))


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
        fix = f"run iblinkinfo -C {plane.best.device or 'DEVICE'} on {plane.hosts[0]} and read its output for this link"
        about = (SPEED, "unknown", plane, ends, f"{want:g} Gb/s", f"not read: {cable}", fix)
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
