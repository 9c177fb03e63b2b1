# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A site of two planes, as the product meets it: swept from node001 by the real tools, and judged.

What is expected of it is said in the terms of the description: hosts, rails, switches and ports.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host as Door
from ansible_collections.busbar.fabric.plugins.module_utils.fabric import diags
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import Sweep
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import cabling_plan
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import judge as fabric_judge
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.evidence import Evidence, Host, Line, Rail, Wanted

from .description import Fabric, names, rail_optimised
from .planes import Machine, Plane

HOSTS = names(8)
# Gb/s of four lanes of HDR.
RATE = 200.0


def described() -> tuple[Fabric, Fabric]:
    """Two planes of two rails, each a two-level fat tree of four leaves and two spines, without oversubscription."""
    return (
        rail_optimised("red", 1, HOSTS, [0, 1], leaves_per_rail=2, cables_per_spine=2, radix=16),
        rail_optimised("blue", 2, HOSTS, [2, 3], leaves_per_rail=2, cables_per_spine=2, radix=16),
    )


def plan_text(fabrics: Sequence[Fabric]) -> str:
    """The cabling plan of what is described, by GUIDs."""
    rows = ["a_node,a_port,z_node,z_port,rail"]
    for fabric in fabrics:
        rail_of = {guid: rail for (_, rail), guid in fabric.rails.items()}
        for a, z in fabric.links():
            first, second = (a, z) if a.guid in rail_of else (z, a)
            rail = rail_of.get(first.guid, "")
            rows.append(f"0x{first.guid:016x},{first.port},0x{second.guid:016x},{second.port},{rail}")
    return "\n".join(rows) + "\n"


def inventory(fabrics: Sequence[Fabric], boot_id: str = "of the day") -> dict[str, Host]:
    """What the hosts themselves say: a rail's rate is the profile's."""
    of_host: dict[str, list[Rail]] = {}
    for fabric in fabrics:
        for (host, rail), guid in sorted(fabric.rails.items()):
            node, pci = fabric.nodes[guid], f"0000:{0x10 + rail:02x}:00.0"
            own = Rail(rail, pci, node.id, f"{node.port_guid:016x}", 1, RATE, f"mlx5_{rail}")
            of_host.setdefault(host, []).append(own)
    return {host: Host(tuple(sorted(rails)), boot_id) for host, rails in sorted(of_host.items())}


def read(top: Path, devices: Sequence[str] = (), **more: object) -> diags.Reading:
    """A reading by the product on the host whose roots are in top."""
    return diags.read(Door(str(top), str(top)), list(devices), **more)  # type: ignore[arg-type]


def seen_from(host: str, sweeps: Sequence[Sweep]) -> list[Sweep]:
    """As the control node has them."""
    return [replace(sweep, host=host) for sweep in sweeps]


@dataclass
class Site:
    """planned: the fabrics as they are meant to be.   before: the last sweeps, of a healthy site."""

    planes: list[Plane]
    machine: Machine
    planned: tuple[Fabric, ...]
    before: list[Sweep] = field(default_factory=list)
    changed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.plan = cabling_plan.read(plan_text(self.planned), "site.csv")
        self.hosts = inventory(self.planned)

    def plane(self, rail: int) -> Plane:
        """The plane of a rail, which a test is about to change."""
        [plane] = [each for each in self.planes if any(rail == number for _, number in each.fabric.rails)]
        self.changed.add(plane.fabric.name)
        return plane

    def device(self, plane: Plane) -> str:
        return next(f"{device}:1" for device, (own, _) in self.machine.devices.items() if own is plane)

    def manage(self, plane: Plane, *more: object) -> None:
        """A master on node001 and a standby on node002. more: options of the master."""
        plane.manage(plane.eye, *more, priority=3)
        plane.settle()
        plane.manage(plane.fabric.hca(HOSTS[1], min(rail for _, rail in plane.fabric.rails)))
        plane.settle_managers()

    def load(self, plane: Plane, fabric: Fabric, *more: object) -> None:
        """The plane anew, as it is described there. more: options of the master."""
        plane.stop()
        plane.fabric = fabric
        plane.start()
        self.manage(plane, *more)

    def mend(self) -> None:
        """As it was planned, where a test has changed it."""
        for plane, planned in zip(self.planes, self.planned, strict=True):
            if plane.fabric.name in self.changed:
                self.load(plane, planned.copy())
        self.changed = set()

    def look(self, **more: object) -> list[Sweep]:
        """Sweeps of all planes, ten minutes after the last; one that no test has changed is not swept again."""
        found: list[Sweep] = []
        for number, plane in enumerate(self.planes):
            if self.before and plane.fabric.name not in self.changed and not more:
                # As if it had been: nothing in it has moved but the time.
                found.append(replace(self.before[number], at=self.before[number].at + 600))
            else:
                self._relist(plane)
                reading = read(self.machine.top, [self.device(plane)], **more)
                now = seen_from("node001", reading.sweeps)
                found += [replace(sweep, at=sweep.at + 600) for sweep in now]
        return found

    def _relist(self, plane: Plane) -> None:
        """opensm may lose sight of a standby while cables move, until it sweeps the whole plane again."""
        for _ in range(5):
            if not all(each.runs for each in plane.managers) or len(plane.managers) < 2:
                return
            if sorted(plane.states().values()) == ["2", "3"]:
                return
            plane.managers[0].process.send_signal(signal.SIGHUP)
            time.sleep(0.3)
            plane.settle()

    def judge(self, sweeps: Sequence[Sweep], *, planned: bool = True, **more: object) -> list[Line]:
        """Findings that are not ok."""
        asked = Evidence(
            sweeps=sweeps,
            before=self.before,
            plan=self.plan if planned else None,
            hosts=self.hosts,
            boots={host: known.boot_id or "" for host, known in self.hosts.items()},
            wanted=Wanted(),
        )
        asked = replace(asked, **more)  # type: ignore[arg-type]
        return [line for line in fabric_judge.judge(asked) if not line.finding.ok]


def text(line: Line) -> str:
    """All of a finding, as an assertion shows it."""
    own = line.finding
    because = f" because {own.because}" if own.because else ""
    words = f"{own.state} {own.check} [{own.subject}] want {own.want} have {own.have}; fix: {own.fix}"
    return f"{','.join(line.hosts)}: {words}{because}"


@dataclass(frozen=True)
class Expected:
    """One finding: its check, its hosts, its state, and what a person must read in it."""

    check: str
    hosts: tuple[str, ...]
    words: tuple[str, ...]
    state: str = "drift"

    def fits(self, line: Line) -> bool:
        known = (line.finding.check, line.finding.state, line.hosts)
        wanted = (f"ib_fabric.{self.check}", self.state, tuple(sorted(self.hosts)))
        return known == wanted and all(word in text(line) for word in self.words)


def compare(said: Sequence[Line], expected: Sequence[Expected]) -> None:
    """Every expected finding once, and nothing else but what follows from them."""
    roots = [one for one in said if one.finding.because is None]
    ids = {one.finding.id for one in roots}
    everything = "\n".join(map(text, said))
    for want in expected:
        fitting = [one for one in roots if want.fits(one)]
        assert len(fitting) == 1, f"{len(fitting)} findings are {want}; said was:\n{everything}"
    assert len(roots) == len(expected), f"more than was planted:\n{everything}"
    assert all(one.finding.because in ids for one in said if one.finding.because), everything


@contextlib.contextmanager
def site(top: Path) -> Iterator[Site]:
    """The healthy site, swept once."""
    fabrics = described()
    running: list[Plane] = []
    try:
        for fabric in fabrics:
            running.append(Plane(fabric.copy(), top / fabric.name))
        made = Site(running, Machine(HOSTS[0], running, top / HOSTS[0]), fabrics)
        for plane in running:
            made.manage(plane)
        made.before = made.look()
        yield made
    finally:
        for plane in running:
            plane.stop()
