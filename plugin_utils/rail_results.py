# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Print the rail tests of all hosts, and store them in a file. Results: host -> ``verify_result``."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import printable

from . import results_folder
from .plain_data import PlainView

FORMAT = 1
LATEST = "latest.json"


def render(results: Mapping[str, PlainView]) -> str:
    """Return a line for each rail: the worst of all directions with its hosts, and the median."""
    tests = {"bw": ("Gb/s", min), "lat": ("us", max)}
    figures: dict[int, dict[str, list[tuple[float, str]]]] = {}
    asked: dict[int, int] = {}
    for host, found in results.items():
        for one in found["sessions"]:
            session = one["session"]
            if session["role"] != "client":
                continue
            asked[session["rail"]] = asked.get(session["rail"], 0) + 1
            of_rail = figures.setdefault(session["rail"], {test: [] for test in tests})
            for item in one["results"]:
                if item["figure"] is not None:
                    of_rail[item["test"]].append((item["figure"], f"{host} to {session['peer']}"))
    lines = []
    for rail, count in sorted(asked.items()):
        parts = [f"{len(figures[rail]['bw'])} of {count} directions measured"]
        for test, (unit, worst_of) in tests.items():
            got = figures[rail][test]
            if got:
                worst, where = worst_of(got)
                median = statistics.median(figure for figure, _where in got)
                parts.append(f"{worst:.4g} {unit} at worst ({where}), median {median:.4g}")
        lines.append(printable(f"rail {rail}: {'; '.join(parts)}"))
    head = "RAIL TESTS"
    if any(found["simulated"] for found in results.values()):
        head += " (simulated: no figure in it is a measurement)"
    stored = any(found["stored"] for found in results.values())
    return "\n".join([head + (", stored results" if stored else ""), *lines])


def write(folder: Path, results: Mapping[str, PlainView]) -> Path:
    """Write a new file; then move the link ``latest.json`` to it."""
    folder.mkdir(parents=True, exist_ok=True)
    results_folder.refuse_planted(folder)
    keys = ("sessions", "findings", "passed", "simulated")
    hosts = {host: {key: of[key] for key in keys} | {"finished": of["finished_at"]} for host, of in results.items()}
    data = {"format": FORMAT, "simulated": any(of["simulated"] for of in results.values()), "hosts": hosts}
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    descriptor, made = tempfile.mkstemp(dir=folder, prefix=f"{stamp}-", suffix=".json")
    path = Path(made)
    with results_folder.removed_unless_written(path), open(descriptor, "w", encoding="utf-8") as stream:
        json.dump(data, stream, indent=1, sort_keys=True)
        stream.write("\n")
    new = folder / f".{path.name}"
    new.symlink_to(path.name)
    os.replace(new, folder / LATEST)
    return path
