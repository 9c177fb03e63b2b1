# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Render the report as one HTML file that loads nothing: no request, no font, no image.

Texts of hosts stay text: Jinja escapes them, the script only ever sets text, and the page's own policy allows this one
script and this one style sheet.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from ansible_collections.busbar.fabric.plugins.plugin_utils.plain_data import Plain

from .run import CLASSES

TEMPLATES = Path(__file__).parent / "templates"
# Findings that the page can unfold, the worst first. The rest is counted, and is in the JSON.
DETAILS = 6000


def render(report: Plain) -> str:
    """Return the page. About 0.6 kB a host with a few findings: 1,000 hosts stay below 2 MB."""
    import jinja2  # here, so that the other commands start without it

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    counters = (report["health"] or {}).get("counters", ())
    style = (TEMPLATES / "report.css").read_text(encoding="utf-8")
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    details, left_out = _details(report)
    page: str = environment.get_template("report.html.j2").render(
        r=report,
        style=style,
        script=script,
        policy=f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; base-uri 'none'",
        data=_embedded(details),
        left_out=left_out,
        trends=_trends(report["busbw"]["runs"]),
        health_trends=[(row, _line(row["trend"], 0.0, max(row["trend"]))) for row in counters],
        classes=CLASSES,
    )
    return page


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _embedded(data: object) -> str:
    """Return JSON that cannot end its script element."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _details(report: Plain) -> tuple[Plain, int]:
    """Return what the script unfolds for a host, and the number of findings left out. Equal texts are stored once."""
    texts: dict[str, int] = {}
    bodies: dict[tuple[int, ...], int] = {}

    def number(text: str | None) -> int:
        return -1 if text is None else texts.setdefault(text, len(texts))

    def rounded(values: Sequence[float | None]) -> list[float | None]:
        return [None if value is None else round(value, 1) for value in values]

    room = DETAILS
    left_out = 0
    hosts: Plain = {}
    order = {name: place for place, name in enumerate(("drift", *CLASSES))}
    for name, said in sorted(report["hosts"].items(), key=lambda item: (order[item[1]["class"]], item[0])):
        found = []
        for finding in said["findings"]:
            if not room:
                left_out += 1
                continue
            room -= 1
            keys = ("check", "subject", "aspect", "state", "severity", "want", "have", "source", "why", "fix")
            body = bodies.setdefault(tuple(number(finding[key]) for key in keys), len(bodies))
            label = finding["label"] or "not judged"
            since = f"{label}, since {finding['first'][:10]}" if label == "standing" else label
            told = [since, (finding["origin"] or "").replace("_", " "), "flapping" if finding["flapping"] else ""]
            follows = finding["because"] is not None and finding["group"] is None
            found.append([body, number(", ".join(filter(None, told))), int(follows)])
        hosts[name] = {
            "c": CLASSES.index(said["class"]),
            "p": said["passed"],
            "f": found,
            "n": [CLASSES.index(night) if night else -1 for night in said["nights"]],
            "x": [number(item) for item in said["fixed"]],
            "u": [number(item) for item in said["unverified"]],
        }
        if said["busbw"]:
            figures = [(run, values["busbw"], values["bar"]) for run, values in sorted(said["busbw"].items())]
            hosts[name]["b"] = [[number(run), *rounded(of)] for run, *of in figures]
            hosts[name]["t"] = rounded(report["busbw"]["hosts"].get(name, []))
    data = {
        "classes": [name.replace("_", " ") for name in CLASSES],
        "texts": [*texts],
        "bodies": [*bodies],
        "hosts": hosts,
        "lead": report["busbw"]["lead"],
    }
    return data, left_out


def _y(value: float, low: float, high: float) -> float:
    """Return the height of a value in a drawing of 40 pixels, from above."""
    return round(2 + 36 * (high - value) / ((high - low) or 1.0), 1)


def _line(values: Sequence[float], low: float, high: float) -> str:
    step = 200.0 / max(len(values) - 1, 1)
    return " ".join(f"{i * step:.1f},{_y(value, low, high)}" for i, value in enumerate(values))


def _trends(runs: Mapping[str, Plain]) -> list[Plain]:
    """Return this run's spread of each benchmark, and the slowest and the median host as lines over the runs."""
    found = []
    for name, run in runs.items():
        slowest, median, fastest = zip(*filter(None, run["trend"]), strict=True)
        low, high = min(*slowest, *run["bars"]), max(*fastest, *run["bars"])
        found.append(
            {
                "name": name,
                "bars": run["bars"],
                "bar_y": [_y(value, low, high) for value in run["bars"]],
                "tonight": [round(value, 1) for value in run["tonight"]],
                "hosts": run["hosts"],
                "nights": len(slowest),
                "slowest": _line(slowest, low, high),
                "median": _line(median, low, high),
            }
        )
    return found
