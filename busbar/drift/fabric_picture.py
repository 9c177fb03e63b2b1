# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A plane of the InfiniBand fabric as a drawing: where switches, bundles of cables and HCAs stand. Pure.

What is bad is told by its weight and its mark, not by colour alone: a bad bundle is thick, a lost one is broken, a bad
HCA is larger and crossed out. Each stands in words in the table of bad links, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

from .heat_map import shorten

# Pixels: the least and the most width of a switch's column, of all of them; a switch; a row; a character; an HCA.
LEAST, MOST, WIDTH = 32, 110, 1280
BOX, BETWEEN, CHAR, CELL = 18, 150, 6.7, 8
PAD = 8
# Characters of a switch's name.
LABEL = 16


def drawn(picture: Plain, title: str) -> Plain:
    """picture: of a plane of the report."""
    rows = picture["rows"]
    widest = max(map(len, rows), default=1)
    step = min(max(WIDTH // max(widest, 1), LEAST), MOST)
    width = step * widest + 2 * PAD
    names = [[shorten(switch["name"], LABEL) for switch in row] for row in rows]
    longest = [max(map(len, row), default=0) for row in names]
    # Above the first row its names stand upright, between the rows there is room for cables and names.
    tops = [round(longest[0] * CHAR) + 2 * PAD] if rows else [PAD]
    for row in range(1, len(rows)):
        tops.append(tops[-1] + BOX + BETWEEN + round(longest[row] * CHAR) * (row < len(rows) - 1))
    places = [[_x(width, len(row), i) for i in range(len(row))] for row in rows]
    bundles = [_bundle(one, places, tops) for one in picture["bundles"]]
    leaves = len(rows) - 1 or None
    switches = [
        _switch(switch, names[number][i], (places[number][i], tops[number]), step, number == leaves)
        for number, row in enumerate(rows)
        for i, switch in enumerate(row)
    ]
    under = tops[-1] + BOX + (round(longest[-1] * CHAR) + PAD + 4 if len(rows) > 1 else PAD)
    across = max((step - 6) // CELL, 2)
    lefts = [x - across * CELL // 2 for row in places[-1:] for x in row]
    hcas, good, deepest = _hcas(picture["below"], lefts, under, across)
    bad = [one for one in bundles if one["kind"] != "good"]
    return {
        "title": title,
        "width": width,
        "height": max(deepest, under) + PAD,
        "good": " ".join(one["d"] for one in bundles if one["kind"] == "good"),
        "bad": bad,
        "switches": switches,
        "well": " ".join(good),
        "hcas": hcas,
        "left_out": picture["left_out"],
        "said": "%s: %d switches, %d HCAs, of these %d with a bad link; %d bad bundles of cables between switches"
        % (title, len(switches), len(good) + len(hcas), sum(hca["state"] != "more" for hca in hcas), len(bad)),
    }


def _switch(switch: Plain, label: str, place: tuple[int, int], step: int, last: bool) -> Plain:
    """last: a leaf, whose name stands below it, at the HCAs' end."""
    (x, y), width = place, min(step, 40)
    return {
        "x": x - width // 2 + 2,
        "y": y,
        "width": width - 4,
        "bad": bool(switch["bad"]),
        "title": switch["title"],
        "label": label,
        "text_x": x + 4,
        "text_y": y + BOX + 5 if last else y - 5,
        "down": last,
    }


def _hcas(below: Sequence[Plain], lefts: Sequence[int], top: int, across: int) -> tuple[list[Plain], list[str], int]:
    """Return the bad ones, the path of each good one and where the lowest ends. lefts: of a leaf's first column."""
    hcas, deepest = [], 0
    good: list[str] = []
    for leaf in below:
        left = lefts[leaf["at"]]
        for i, hca in enumerate(leaf["hcas"]):
            x, y = left + i % across * CELL, top + i // across * CELL
            deepest = max(deepest, y + CELL)
            if hca["state"] == "ok":
                good.append(f"M{x + 1},{y + 1}h5v5h-5z")
            else:
                hcas.append({"x": x, "y": y, "state": hca["state"], "said": hca["said"]})
        if leaf["left_out"]:
            hcas.append({"x": left, "y": deepest, "state": "more", "said": f"{leaf['left_out']} more"})
            deepest += CELL
    return hcas, good, deepest


def _x(width: int, count: int, number: int) -> int:
    """The middle of a column: rows of fewer switches are spread over the same width."""
    return PAD + round((width - 2 * PAD) * (2 * number + 1) / (2 * count))


def _bundle(one: Plain, places: Sequence[Sequence[int]], tops: Sequence[int]) -> Plain:
    (upper, i), (lower, j) = one["upper"], one["lower"]
    x, y = places[upper][i], tops[upper] + BOX
    to_x, to_y = places[lower][j], tops[lower]
    if upper == lower:
        # Within a row: an arc below it.
        d = f"M{x},{y}Q{(x + to_x) // 2},{y + BETWEEN // 3} {to_x},{y}"
    else:
        d = f"M{x},{y}L{to_x},{to_y}"
    kind = "bad" if one["bad"] else "lost" if one["lost"] else "good"
    counted = "%d cable%s" % (one["count"], "s" * (one["count"] != 1))
    more = f", {one['lost']} lost" if one["lost"] else ""
    return {"d": d, "kind": kind, "said": "; ".join([counted + more, *one["said"]])}
