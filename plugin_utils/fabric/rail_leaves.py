# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge rails by the leaves on which most rails are, where no plan has them. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from .cabling import RAIL_LEAF, SWAPPED
from .map import Entry, Fabric, several
from .planes import End

# The share of rails on other rails' leaves above which leaves are not of one rail by design.
_STRANGE = 0.25


def judge_rails(fabric: Fabric) -> list[Entry]:
    """Report rails on leaves of other rails, where most leaves have one rail each."""
    # Leaf -> rails on it that no plan has, and those on spines.
    leaves: dict[str, list[End]] = defaultdict(list)
    high: list[End] = []
    number = {end: rail.rail for end, (_host, rail) in fabric.rails.items()}
    for end in fabric.rails:
        at = fabric.cables.get(end, ("", 0))[0]
        if end in fabric.plane_of and end not in fabric.plan.planned and fabric.is_switch(at):
            (high if at in fabric.spines else leaves[at]).append(end)
    own: dict[str, int] = {}
    odd: list[End] = []
    tied: list[str] = []
    for guid, ends in sorted(leaves.items()):
        (rail, most), *others = Counter(number[end] for end in ends).most_common()
        if others and others[0][1] == most:
            tied.append(guid)
            continue
        own[guid] = rail
        odd += [end for end in ends if number[end] != rail]
    rails = [number[end] for ends in leaves.values() for end in ends]
    if len(set(rails)) < 2 or not own or len(odd) + sum(len(leaves[guid]) for guid in tied) > _STRANGE * len(rails):
        return [_misplaced(fabric, end, {}) for end in high]
    for ends in leaves.values():
        fabric.plane_of[ends[0]].passed.setdefault(RAIL_LEAF, "each rail on its leaves")
    found = [*(_misplaced(fabric, end, own) for end in high), *_pairs(fabric, odd, own)]
    for guid in tied:
        ends, plane = leaves[guid], fabric.plane_of[leaves[guid][0]]
        numbers = sorted({number[end] for end in ends})
        have = f"{fabric.node(guid)} has as many of rails {', '.join(map(str, numbers))}"
        fix = "name a cabling plan (busbar_fabric_plan, docs/cabling.md), which declares the owner of the leaf"
        about = (RAIL_LEAF, "unknown", plane, (), "a leaf of one rail", have, fix)
        hosts, source = fabric.concerned(plane, *ends), fabric.plan_source
        found.append(fabric.entry(*about, subject=f"switch 0x{guid}", hosts=hosts, source=source, again=False))
    return found


def _pairs(fabric: Fabric, odd: Sequence[End], own: dict[str, int]) -> Iterator[Entry]:
    """Report two rails on each other's leaves as one, preferably of one host."""
    rails, cables = fabric.rails, fabric.cables
    left = sorted(odd, key=lambda end: (rails[end][0], rails[end][1].rail))
    while left:
        end = left.pop(0)
        host, rail = rails[end]
        there, was = own[cables[end][0]], fabric.was_cables.get(end)
        partners = [one for one in left if (rails[one][1].rail, own[cables[one][0]]) == (there, rail.rail)]
        if not partners:
            yield _misplaced(fabric, end, own)
            continue
        # Of several: the one that took this one's place, then another rail of the same host.
        partner = min(partners, key=lambda one: (cables[one] != was, rails[one][0] != host, rails[one][0]))
        left.remove(partner)
        ends, at = [end, partner], [cables[end], cables[partner]]
        have, want = ("; ".join(map(fabric.cable, ends, others)) for others in (at, at[::-1]))
        fix = f"exchange the two plugs at {' and '.join(map(fabric.end, at))}"
        about = (SWAPPED, "drift", fabric.plane_of[end], (*ends, *at), want, have, fix)
        subject = f"cables of {' and '.join(sorted(map(fabric.end, ends)))}"
        yield fabric.entry(*about, subject=subject, source=fabric.plan_source, roots=(*ends, *at))


def _misplaced(fabric: Fabric, end: End, own: dict[str, int]) -> Entry:
    """Report a rail on a spine, or on another rail's leaf. own: leaf -> its rail, where leaves have one."""
    at, rail = fabric.cables[end], fabric.rails[end][1].rail
    where = f"a leaf of rail {own[at[0]]}" if at[0] in own else "a spine"
    leaves = sorted(fabric.node(guid) for guid, number in own.items() if number == rail)
    want = f"a leaf of rail {rail}: {several(leaves, 3, ', ')}" if leaves else "a leaf of its rail"
    fix = f"move the cable from {fabric.end(at)} to a free port of {several(leaves, 3, ' or ') or 'its leaf'}"
    about = (RAIL_LEAF, "drift", fabric.plane_of[end], (end, at), want, f"{fabric.cable(end, at)}, {where}", fix)
    return fabric.entry(*about, source=fabric.plan_source, kind=f"cables on {where}", roots=(end, at))
