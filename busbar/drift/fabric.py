# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Report the last sweep of the InfiniBand fabric: planes, their leaves and bad links.

Read from the control node, typed, at most a page: leaves with bad links come first.
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

# Planes, lines of leaves and of bad links; characters of a text, and of names in a line.
PLANES, LEAVES, BAD = 64, 40, 60
SAID, NAMES = 400, 160


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
        yield "the sweep is incomplete: what is not listed may be missing, or was not seen"
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
