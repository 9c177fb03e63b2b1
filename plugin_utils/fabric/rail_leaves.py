# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge rails by the leaves on which most rails are, where no plan has them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from .cabling import RAIL_LEAF, SWAPPED
from .map import Entry, Fabric, several
from .planes import End

# The share of rails on other rails' leaves above which leaves are not of one rail by design.
_STRANGE = 0.25


def judge_rails(fabric: Fabric) -> list[Entry]:
    """Report rails on leaves of other rails, where most leaves have one rail each."""
    # Leaf -> rails on it that no plan has, and those on spines.
    leaves: dict[str, list[End]] = {}
    high: list[End] = []
    for end in fabric.rails:
        at = fabric.cables.get(end, ("", 0))[0]
        if end in fabric.plane_of and end not in fabric.plan.planned and fabric.is_switch(at):
            (high if at in fabric.spines else leaves.setdefault(at, [])).append(end)
    own: dict[str, int] = {}
    odd: list[End] = []
    tied: list[str] = []
    for guid, ends in sorted(leaves.items()):
        (rail, most), *others = Counter(_number(fabric, end) for end in ends).most_common()
        if others and others[0][1] == most:
            tied.append(guid)
            continue
        own[guid] = rail
        odd += [end for end in ends if _number(fabric, end) != rail]
    total = sum(map(len, leaves.values()))
    rails = {_number(fabric, end) for ends in leaves.values() for end in ends}
    if len(rails) < 2 or not own or len(odd) + sum(len(leaves[guid]) for guid in tied) > _STRANGE * total:
        return [_misplaced(fabric, end, {}) for end in high]
    for ends in leaves.values():
        fabric.plane_of[ends[0]].passed.setdefault(RAIL_LEAF, "each rail on its leaves")
    found = [_misplaced(fabric, end, own) for end in high]
    found += _pairs(fabric, odd, own)
    for guid in tied:
        ends = leaves[guid]
        numbers = sorted({_number(fabric, end) for end in ends})
        have = f"{fabric.node(guid)} has as many of rails {', '.join(map(str, numbers))}"
        fix = "name a cabling plan (busbar_fabric_plan, docs/cabling.md), which declares the owner of the leaf"
        plane = fabric.plane_of[ends[0]]
        about = (RAIL_LEAF, "unknown", plane, (), "a leaf of one rail", have, fix)
        hosts, source = fabric.concerned(plane, *ends), fabric.plan_source
        found.append(fabric.entry(*about, subject=f"switch 0x{guid}", hosts=hosts, source=source, again=False))
    return found


def _number(fabric: Fabric, end: End) -> int:
    return fabric.rails[end][1].rail


def _pairs(fabric: Fabric, odd: Sequence[End], own: dict[str, int]) -> Iterator[Entry]:
    """Report two rails on each other's leaves as one, preferably of one host."""
    left = sorted(odd, key=lambda end: (fabric.rails[end][0], _number(fabric, end)))
    while left:
        end = left.pop(0)
        there = own[fabric.cables[end][0]]
        was = fabric.was_cables.get(end)
        partners = [
            one for one in left if _number(fabric, one) == there and own[fabric.cables[one][0]] == _number(fabric, end)
        ]
        # Of several: the one that took this one's place, then another rail of the same host.
        host = fabric.rails[end][0]
        partners.sort(key=lambda one: (fabric.cables[one] != was, fabric.rails[one][0] != host, fabric.rails[one][0]))
        if not partners:
            yield _misplaced(fabric, end, own)
            continue
        left.remove(partners[0])
        ends = [end, partners[0]]
        at = [fabric.cables[one] for one in ends]
        have, want = ("; ".join(map(fabric.cable, ends, others)) for others in (at, at[::-1]))
        fix = f"exchange the two plugs at {' and '.join(map(fabric.end, at))}"
        about = (SWAPPED, "drift", fabric.plane_of[end], (*ends, *at), want, have, fix)
        subject = f"cables of {' and '.join(sorted(map(fabric.end, ends)))}"
        yield fabric.entry(*about, subject=subject, source=fabric.plan_source, roots=(*ends, *at))


def _misplaced(fabric: Fabric, end: End, own: dict[str, int]) -> Entry:
    """Report a rail on a spine, or on another rail's leaf. own: leaf -> its rail, where leaves have one."""
    at, rail = fabric.cables[end], _number(fabric, end)
    where = f"a leaf of rail {own[at[0]]}" if at[0] in own else "a spine"
    note = "" if at[0] in own else ": what else is cabled to it is leaves"
    leaves = sorted(fabric.node(guid) for guid, number in own.items() if number == rail)
    want = (f"a leaf of rail {rail}" if own else "a leaf") + (f": {several(leaves, 3, ', ')}" if leaves else "")
    to = several(leaves, 3, " or ") if leaves else "its leaf"
    fix = f"move the cable from {fabric.end(at)} to a free port of {to}"
    about = (RAIL_LEAF, "drift", fabric.plane_of[end], (end, at), want, f"{fabric.cable(end, at)}, {where}{note}", fix)
    return fabric.entry(*about, source=fabric.plan_source, kind=f"cables on {where}", roots=(end, at))
