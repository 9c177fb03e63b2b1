# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The InfiniBand fabric as it was swept last, for the report: planes, their leaves, bad links, and what to draw of it.

Read from the control node, typed, and never more than a page: of many leaves those are drawn that have a bad link.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ansible_collections.busbar.fabric.plugins.plugin_utils import nodeset
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import record as fabric_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.evidence import Evidence
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.map import Fabric
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.planes import End, Plane
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.record import Mark, Record
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.tree import Leaf, build_leaf
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

from .related_results import ABSENT, RelatedResults, limited, moment

# Of the page: planes, drawn ones, lines of leaves and of bad links.
PLANES, PICTURES, LEAVES, BAD = 64, 8, 40, 60
# Of a picture: switches in a row, HCAs below a leaf.
IN_ROW, BELOW = 40, 160
# Characters of a text, of names in a line, of a name.
SAID, NAMES, NAME = 400, 160, 80


def latest(beside: RelatedResults) -> Plain | None:
    """Return the report's section, None where no fabric was swept from here. Keys: docs/report.md."""
    path = fabric_record.folder(beside.results) / "latest" / fabric_record.NAME
    found, record = beside.read(path, lambda: fabric_record.read(path), "")
    if found["state"] == ABSENT:
        return None
    if record is None:
        return found
    known = Known(record)
    planes = [_plane(known, plane, beside) for plane in known.fabric.planes]
    # Those with something to see first.
    planes.sort(key=lambda plane: (not plane["bad"] and plane["complete"], -plane["bad"]))
    for plane in planes[PICTURES:]:
        plane["picture"] = None
    bad = [_bad_link(known, mark, beside) for mark in record.marks]
    return {
        **found,
        **beside.aged(record.finished),
        "complete": record.complete,
        "asked": beside.text(nodeset.brief(record.asked, NAMES), NAMES),
        "said": [beside.text(text) for text in _sentences(record, known)],
        **limited("planes", planes, PLANES),
        **limited("bad", bad, BAD),
    }


class Known:
    """The fabric of a record, and which of its ports have something wrong. of_end: the first mark of each."""

    def __init__(self, record: Record) -> None:
        self.fabric = Fabric(Evidence(sweeps=record.sweeps, hosts=record.hosts))
        self.of_end: dict[End, Mark] = {}
        # Cables that are not there any more: both ends.
        self.lost: list[tuple[End, End, Mark]] = []
        for mark in record.marks:
            for end in mark.ends:
                self.of_end.setdefault(end, mark)
            if len(mark.ends) == 2 and self.fabric.cables.get(mark.ends[0]) != mark.ends[1]:
                self.lost.append((mark.ends[0], mark.ends[1], mark))

    def mark(self, *ends: End) -> Mark | None:
        return next((self.of_end[end] for end in ends if end in self.of_end), None)


def _sentences(record: Record, known: Known) -> Iterable[str]:
    planes, bad = known.fabric.planes, len(record.marks)
    switches = sum(len(plane.switches) for plane in planes)
    hcas = sum(len(plane.nodes) for plane in planes) - switches
    yield "%d plane%s, %d switches, %d HCAs; %s" % (
        len(planes),
        "s" * (len(planes) != 1),
        switches,
        hcas,
        _of_links(bad, bool(known.fabric.cables), record.complete),
    )
    if not record.complete:
        yield "the sweep is incomplete: what is not drawn may be missing, or was not seen"
    if not record.before:
        yield "there is no earlier sweep: error rates and missing devices are not known"


def _of_links(bad: int, read: bool, complete: bool) -> str:
    if bad:
        return "%d bad link%s" % (bad, "s" * (bad != 1))
    if not read:
        return "no link was read"
    return "no bad link was seen" if complete else "no bad link in the part that was read"


def _bad_link(known: Known, mark: Mark, beside: RelatedResults) -> Plain:
    return {
        "where": beside.text(" - ".join(map(known.fabric.end, mark.ends)) or "-", NAMES),
        "check": mark.check,
        "state": mark.state,
        "said": beside.text(mark.said, SAID),
    }


# -- planes ------------------------------------------------------------------------------------------------------------


def _leaves(known: Known, plane: Plane) -> dict[str, Leaf]:
    """Return GUID -> the leaf, of each switch with HCAs."""
    leaves = (build_leaf(known.fabric, plane, guid) for guid in plane.switches)
    return {leaf.guid: leaf for leaf in leaves if leaf.down}


def _bad(known: Known, leaf: Leaf) -> int:
    """Return the number of bad cables of a leaf, with those that are lost."""
    links = {**leaf.down, **leaf.up}.items()
    lost = sum(leaf.guid in (end[0], other[0]) for end, other, _mark in known.lost)
    return sum(known.mark(*link) is not None for link in links) + lost


def _plane(known: Known, plane: Plane, beside: RelatedResults) -> Plain:
    best = plane.best
    leaves = _leaves(known, plane)
    short = _short([known.fabric.node(guid) for guid in plane.switches])
    rows = _rows(known, leaves, short, beside)
    cables = sum(1 for _link in known.fabric.links(plane))
    inside = [mark for mark in known.of_end.values() if any(end[0] in plane.nodes for end in mark.ends)]
    return {
        "label": beside.text(plane.label, NAMES),
        "managers": [f"0x{guid}" for guid in plane.managers],
        "swept": beside.text(", ".join(dict.fromkeys(f"{one.host} {one.device}:{one.port}" for one in plane.sweeps))),
        "at": moment(best.at),
        "seconds": round(best.seconds, 1),
        "complete": plane.complete,
        "switches": len(plane.switches),
        "hcas": len(plane.nodes) - len(plane.switches),
        "cables": cables,
        "bad": len({id(mark) for mark in inside}),
        "problems": [beside.text(f"{one.source}: {one.message}", SAID) for one in best.problems[:5]],
        "leaves": rows[:LEAVES],
        "leaves_left_out": sum(row["count"] for row in rows[LEAVES:]),
        "picture": _picture(known, plane, leaves, short, beside),
    }


def _rows(known: Known, leaves: Mapping[str, Leaf], short: Mapping[str, str], beside: RelatedResults) -> list[Plain]:
    """The leaves as a table: those with bad links by themselves, first; of the others those that are alike are one."""
    alike: dict[tuple[int, str, str, int, float, int, float, int, tuple[int, ...]], list[Leaf]] = defaultdict(list)
    for guid, leaf in leaves.items():
        bad, each_spine = _bad(known, leaf), tuple(sorted(set(leaf.spines.values())))
        sizes = (len(leaf.down), leaf.down_gbps, len(leaf.up), leaf.up_gbps, len(leaf.spines))
        alike[(-bad, guid if bad else "", _rails(known, leaf), *sizes, each_spine)].append(leaf)
    found = []
    for key, group in sorted(alike.items(), key=lambda item: item[0]):
        bad, rails, below, down, count, up, spines, even = -key[0], *key[2:]
        each = "-".join(map(str, dict.fromkeys((even[0], even[-1])))) if even else "0"
        down_all, up_all = below * down, count * up
        found.append(
            {
                "names": beside.text(
                    nodeset.brief((short[known.fabric.node(leaf.guid)] for leaf in group), NAMES), NAMES
                ),
                "count": len(group),
                "hosts": beside.text(nodeset.brief(_hosts(known, group), NAMES) or "-", NAMES),
                "rails": rails or "-",
                "down": f"{below} x {down:g}" if below else "0",
                "up": f"{count} x {up:g}" if count else "0",
                "spines": f"{spines}, {each} to each" if spines else "-",
                "ratio": round(down_all / up_all, 2) if up_all else None,
                "bad": bad,
            }
        )
    return found


def _rails(known: Known, leaf: Leaf) -> str:
    """``3``; of several the one that most have first."""
    counted = Counter(known.fabric.rails[end][1].rail for end in leaf.down.values() if end in known.fabric.rails)
    return ", ".join(f"{rail}" if len(counted) == 1 else f"{rail} ({count})" for rail, count in counted.most_common(9))


def _hosts(known: Known, leaves: Iterable[Leaf]) -> set[str]:
    ends = (end for leaf in leaves for end in leaf.down.values())
    return {known.fabric.rails[end][0] for end in ends if end in known.fabric.rails}


# -- what is drawn -----------------------------------------------------------------------------------------------------


def _picture(
    known: Known, plane: Plane, leaves: Mapping[str, Leaf], short: Mapping[str, str], beside: RelatedResults
) -> Plain | None:
    """Switches in rows, those next to hosts last; bundles of cables between them; the HCAs below each leaf."""
    tiers = _tiers(plane, leaves, known)
    if not tiers:
        return None
    wrong = Counter(end[0] for end in known.of_end)
    rows: list[list[Plain]] = []
    left_out, place = 0, dict[str, tuple[int, int]]()
    for tier in reversed(tiers):
        drawn = sorted(tier, key=lambda guid: (-wrong[guid] if len(tier) > IN_ROW else 0, _natural(known, guid)))
        left_out += len(drawn[IN_ROW:])
        drawn = sorted(drawn[:IN_ROW], key=lambda guid: _natural(known, guid))
        row: list[Plain] = []
        for guid in drawn:
            name = known.fabric.node(guid)
            place[guid] = (len(rows), len(row))
            row.append({"name": beside.text(short[name], NAME), "title": beside.text(name, NAME), "bad": wrong[guid]})
        rows.append(row)
    cables: dict[tuple[tuple[int, int], tuple[int, int]], Plain] = {}
    for end, other in known.fabric.links(plane):
        _bundle(cables, place, end, other, known.mark(end, other), False, known, beside)
    for end, other, mark in known.lost:
        _bundle(cables, place, end, other, mark, True, known, beside)
    below = {guid: _below(known, leaf, beside) for guid, leaf in leaves.items() if guid in place}
    for end, other, mark in known.lost:
        for one, far in ((end, other), (other, end)):
            if one[0] in below and far[0] not in plane.switches:
                text = beside.text(f"{known.fabric.cable(far, one)}: {mark.said}", SAID)
                below[one[0]].append({"state": "lost", "said": text})
    return {
        "rows": rows,
        "bundles": [*cables.values()],
        "below": [
            {"at": place[guid][1], "hcas": hcas[:BELOW], "left_out": len(hcas[BELOW:])} for guid, hcas in below.items()
        ],
        "left_out": left_out,
    }


def _natural(known: Known, guid: str) -> tuple[list[tuple[str, int]], str]:
    return nodeset.natural(known.fabric.node(guid)), guid


def _tiers(plane: Plane, leaves: Mapping[str, Leaf], known: Known) -> list[list[str]]:
    """Switches by how far they are from the nearest leaf; those that nothing leads to with the last."""
    tiers, left = [], set(plane.switches)
    now = set(leaves)
    while now:
        tiers.append(sorted(now))
        left -= now
        ends = ((guid, port.number) for guid in now for port in plane.switches[guid].ports)
        now = {known.fabric.cables[end][0] for end in ends if end in known.fabric.cables} & left
    if left and tiers:
        tiers[-1 if len(tiers) > 1 else 0] += sorted(left)
    return tiers or ([sorted(left)] if left else [])


def _bundle(
    cables: dict[tuple[tuple[int, int], tuple[int, int]], Plain],
    place: Mapping[str, tuple[int, int]],
    end: End,
    other: End,
    mark: Mark | None,
    lost: bool,
    known: Known,
    beside: RelatedResults,
) -> None:
    if end[0] not in place or other[0] not in place or end[0] == other[0]:
        return
    upper, lower = sorted((place[end[0]], place[other[0]]))
    one = cables.setdefault(
        (upper, lower), {"upper": upper, "lower": lower, "count": 0, "bad": 0, "lost": 0, "said": []}
    )
    one["count"] += not lost
    one["lost"] += lost
    if mark is not None and not lost:
        one["bad"] += 1
    if mark is not None and len(one["said"]) < 4:
        one["said"].append(beside.text(f"{known.fabric.cable(end, other)}: {mark.said}", SAID))


def _below(known: Known, leaf: Leaf, beside: RelatedResults) -> list[Plain]:
    """The HCAs of a leaf in the order of its ports. Of what is well there is nothing to say."""
    found = []
    for port, end in sorted(leaf.down.items()):
        mark = known.mark(end, port)
        said = beside.text(f"{known.fabric.cable(end, port)}: {mark.said}", SAID) if mark else ""
        found.append({"state": "ok" if mark is None else "unknown" if mark.state == "unknown" else "bad", "said": said})
    return found


def _short(names: Sequence[str]) -> dict[str, str]:
    """Name -> it without what all of them begin and end with, as far as words go."""
    split = {name: _words(name) for name in names}
    every = [*split.values()]
    if len(every) < 2:
        return {name: name for name in names}
    least = min(map(len, every)) - 1
    head = next((i for i in range(least) if len({words[i] for words in every}) > 1), least)
    tail = next((i for i in range(least - head) if len({words[-1 - i] for words in every}) > 1), least - head)
    return {name: "".join(words[head : len(words) - tail]).strip(" :;/-") or name for name, words in split.items()}


def _words(name: str) -> list[str]:
    found: list[str] = []
    for char in name:
        if found and found[-1][-1].isalnum() and char.isalnum():
            found[-1] += char
        else:
            found.append(char)
    return found
