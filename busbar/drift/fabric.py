# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Report the last sweep of the InfiniBand fabric: planes, their leaves and bad links.

Read from the control node, typed, at most a page: leaves with bad links come first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterator

from ansible_collections.busbar.fabric.plugins.plugin_utils import nodeset
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import record as fabric_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.evidence import End, Evidence, Plane
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.map import Fabric
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.record import Record
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric.tree import Leaf, build_leaf
from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain
from ansible_collections.busbar.fabric.plugins.plugin_utils.terminal import counted

from .related_results import ABSENT, RelatedResults, limited, moment

# Planes, lines of leaves and of bad links; characters of a text, and of names in a line.
PLANES, LEAVES, BAD = 64, 40, 60
SAID, NAMES = 400, 160
# Ends of bad links.
Links = set[tuple[End, ...]]


def latest(beside: RelatedResults) -> Plain | None:
    """Return the report's section, None where no fabric was swept from here. Keys: docs/report.md."""
    path = fabric_record.folder(beside.results) / "latest" / fabric_record.NAME
    found, record = beside.read(path, lambda: fabric_record.read(path), "")
    if found["state"] == ABSENT:
        return None
    if record is None:
        return found
    fabric = Fabric(Evidence(sweeps=record.sweeps, hosts=record.hosts))
    links = {mark.ends for mark in record.marks}
    planes = [_plane(links, fabric, plane, beside) for plane in fabric.planes]
    # Those with something to see first.
    planes.sort(key=lambda plane: (not plane["bad"] and plane["complete"], -plane["bad"]))
    bad = [
        {
            "where": beside.text(" - ".join(map(fabric.end, mark.ends)) or "-", NAMES),
            "check": mark.check,
            "state": mark.state,
            "said": beside.text(mark.said, SAID),
        }
        for mark in record.marks
    ]
    return {
        **found,
        **beside.aged(record.finished),
        "complete": record.complete,
        "asked": beside.text(nodeset.brief(record.asked, NAMES), NAMES),
        "said": [beside.text(text) for text in _sentences(record, fabric)],
        **limited("planes", planes, PLANES),
        **limited("bad", bad, BAD),
    }


def _sentences(record: Record, fabric: Fabric) -> Iterator[str]:
    planes = fabric.planes
    switches = sum(len(plane.switches) for plane in planes)
    hcas = sum(len(plane.nodes) for plane in planes) - switches
    links = "no bad link was seen" if record.complete else "no bad link in the part that was read"
    if record.marks:
        links = counted(len(record.marks), "bad link")
    elif not fabric.cables:
        links = "no link was read"
    yield f"{counted(len(planes), 'plane')}, {switches} switches, {hcas} HCAs; {links}"
    if not record.complete:
        yield "the sweep is incomplete: what is not listed may be missing, or was not seen"
    if not record.before:
        yield "there is no earlier sweep: error rates and missing devices are not known"


def _count(links: Links, ends: Container[End], guids: Container[str]) -> int:
    """Return the number of bad links, lost ones included, at these ends or at a port of these nodes."""
    return sum(any(end in ends or end[0] in guids for end in link) for link in links)


def _plane(links: Links, fabric: Fabric, plane: Plane, beside: RelatedResults) -> Plain:
    best = plane.best
    rows = _rows(links, fabric, plane, beside)
    return {
        "label": beside.text(plane.label, NAMES),
        "managers": [f"0x{guid}" for guid in plane.managers],
        "swept": beside.text(", ".join(dict.fromkeys(f"{one.host} {one.device}:{one.port}" for one in plane.sweeps))),
        "at": moment(best.at),
        "seconds": round(best.seconds, 1),
        "complete": plane.complete,
        "switches": len(plane.switches),
        "hcas": len(plane.nodes) - len(plane.switches),
        "cables": sum(1 for _link in fabric.links(plane)),
        "bad": _count(links, (), plane.nodes),
        "problems": [beside.text(str(one), SAID) for one in best.problems[:5]],
        "leaves": rows[:LEAVES],
        "leaves_left_out": sum(row["count"] for row in rows[LEAVES:]),
    }


def _rows(links: Links, fabric: Fabric, plane: Plane, beside: RelatedResults) -> list[Plain]:
    """Return switches with HCAs: a row for each with bad links, first; of the others, a row for equal ones."""
    alike: dict[tuple[int, str, str, int, float, int, float, tuple[int, ...]], list[Leaf]] = defaultdict(list)
    for leaf in (build_leaf(fabric, plane, guid) for guid in plane.switches):
        if leaf.down:
            cables = leaf.down | leaf.up
            bad = _count(links, {*cables, *cables.values()}, (leaf.guid,))
            sizes = (len(leaf.down), leaf.down_gbps, len(leaf.up), leaf.up_gbps)
            spines = tuple(sorted(leaf.spines.values()))
            alike[(-bad, leaf.guid if bad else "", _rails(fabric, leaf), *sizes, spines)].append(leaf)
    found = []
    for (bad, _guid, rails, down, down_gbps, up, up_gbps, spines), group in sorted(alike.items(), key=lambda it: it[0]):
        hosts = {fabric.rails[end][0] for leaf in group for end in leaf.down.values() if end in fabric.rails}
        each = "-".join(map(str, dict.fromkeys((spines[0], spines[-1])))) if spines else ""
        found.append(
            {
                "names": beside.text(nodeset.brief((fabric.node(leaf.guid) for leaf in group), NAMES), NAMES),
                "count": len(group),
                "hosts": beside.text(nodeset.brief(hosts, NAMES) or "-", NAMES),
                "rails": rails or "-",
                "down": f"{down} x {down_gbps:g}",
                "up": f"{up} x {up_gbps:g}" if up else "0",
                "spines": f"{len(spines)}, {each} to each" if spines else "-",
                "ratio": round(down * down_gbps / (up * up_gbps), 2) if up * up_gbps else None,
                "bad": -bad,
            }
        )
    return found


def _rails(fabric: Fabric, leaf: Leaf) -> str:
    """Return ``3``; of several the most frequent first, each with its number."""
    numbers = Counter(fabric.rails[end][1].rail for end in leaf.down.values() if end in fabric.rails)
    return ", ".join(f"{rail}" if len(numbers) == 1 else f"{rail} ({count})" for rail, count in numbers.most_common(9))
