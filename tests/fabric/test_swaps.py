# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Cables in each other's place are named as a pair, whichever they are: random swaps.

They are made in ibsim and seen by the real tools, rails of different planes among them (BUSBAR_FABRIC_SWAPS says how
many: 200 take some minutes). tests/unit/test_fabric_judge.py has hundreds, which no tool has seen.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.fabric.sweep import Sweep

from .description import End, Fabric, joined
from .site import HOSTS, Expected, Site, at, compare, joined_site, read, seen_from

REAL = int(os.environ.get("BUSBAR_FABRIC_SWAPS", "6"))
# Hosts whose HCAs run no subnet manager: who moves a manager's cable does more than swap two.
MOVABLE = HOSTS[2:]


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with joined_site(tmp_path_factory.mktemp("site")) as made:
        made.before = look(made)
        yield made


def look(of: Site) -> list[Sweep]:
    """Each plane by the rail of node001 that is managed in it, some time after the last sweeps."""
    now = seen_from(HOSTS[0], read(of.machine.top, ["mlx5_0:1", "mlx5_2:1"]).sweeps)
    assert len(now) == 2, now
    return [replace(sweep, at=sweep.at + (600 if of.before else 0)) for sweep in now]


ALONE = [Expected("manager", (HOSTS[0],), (f"{HOSTS[0]} rail {rail}", "alone")) for rail in (0, 2)]


def pick(dice: random.Random, fabrics: Sequence[Fabric], planned: bool) -> tuple[End, End, Expected]:
    """Two far ends to exchange, and what has to be said of it.

    fabrics: of one plane, or of two: then rails of both of them.
    With a plan any two cables of a plane; without one, two rails that then are on each other's leaves.
    """
    host_of = {guid: rail for fabric in fabrics for rail, guid in fabric.rails.items()}
    of_fabric = []
    for fabric in fabrics:
        cables = [
            (a, z) if a.guid in host_of else (z, a)
            for a, z in fabric.links()
            if not {host_of.get(end.guid, (MOVABLE[0], 0))[0] for end in (a, z)} - set(MOVABLE)
        ]
        # An uplink that leads into the other plane makes one of both.
        rails_only = not planned or len(fabrics) > 1
        of_fabric.append([pair for pair in cables if pair[0].guid in host_of] if rails_only else cables)
    while True:
        (a, far_a), (b, far_b) = (
            map(dice.choice, of_fabric) if len(of_fabric) > 1 else dice.sample(of_fabric[0], 2)
        )  # fmt: skip
        if planned or host_of[a.guid][1] != host_of[b.guid][1]:
            break
    rails = [host_of[end.guid] for end in (a, b) if end.guid in host_of]
    hosts = tuple({host for host, _ in rails}) or ("node001",)
    whole = joined(fabrics)
    switches = [end for end in (a, b, far_a, far_b) if end.guid not in host_of]
    return (
        far_a,
        far_b,
        Expected(
            "swapped",
            hosts,
            (*(f"{host} rail {rail}" for host, rail in rails), *(at(whole, end) for end in switches)),
        ),
    )


@pytest.mark.parametrize("planned", [True, False], ids=["any two cables of a plan", "rails without a plan"])
def test_swapped_cables_are_named_by_the_real_tools(fabric: Site, planned: bool) -> None:
    """Every third of them across the planes."""
    dice = random.Random(20 + planned)
    [bed] = fabric.planes
    compare(fabric.judge(look(fabric), planned=planned), ALONE)
    for trial in range(REAL // 2):
        among = fabric.planned if trial % 3 == 2 else [dice.choice(fabric.planned)]
        one, two, expected = pick(dice, among, planned)
        bed.swap(one, two)
        try:
            bed.settle()
            compare(fabric.judge(look(fabric), planned=planned), [expected, *ALONE])
        finally:
            bed.swap(one, two)
        bed.settle()
