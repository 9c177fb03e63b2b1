# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from ansible_collections.busbar.fabric.plugins.plugin_utils.campaign import cluster_record
from ansible_collections.busbar.fabric.plugins.plugin_utils.fabric import record as fabric_record

from busbar.drift import html
from busbar.drift.related_results import RelatedResults
from tests.report import fabrics, records
from tests.report.fleet import MARKUP, write
from tests.unit.test_cluster_table import TWO

Run = Callable[..., Any]


def test_a_thousand_hosts_are_below_2_mb(page: Path, fleet: dict[str, Any]) -> None:
    assert fleet["counts"]["total"] == 1001
    assert page.stat().st_size < 2_000_000


def test_a_fleet_with_a_story_on_every_host_is_below_2_mb(fleet: dict[str, Any]) -> None:
    """The worst night: every host differs in ten ways, each in its own words."""
    hosts = {}
    one, *_others = fleet["hosts"]["gpu-r04-06"]["findings"]
    for name, host in fleet["hosts"].items():
        words = f"what {name} alone has to say about this, at some length, for number"
        found = [{**one, "have": f"{words} {number}", "subject": f"rail {number}"} for number in range(10)]
        hosts[name] = {**host, "class": "drift", "findings": found}
    text = html.render({**fleet, "hosts": hosts})
    assert len(text.encode()) < 2_000_000
    # What has no room is counted.
    assert re.search(r"[\d,]+ findings do not fit in here", text)


def test_it_opens_with_every_host_and_without_a_word_of_complaint(page: Path, browser: Run) -> None:
    done = browser(page, "--dump-dom")
    assert "CONSOLE" not in done.stderr
    assert done.stdout.count('aria-label="gpu-r') == 1000
    assert 'class="script"' in done.stdout


@pytest.mark.parametrize("name", [MARKUP, "gpu-r07-09", "gpu-r04-06", "no such host"])
def test_a_host_is_shown_and_what_it_said_stays_text(page: Path, browser: Run, name: str) -> None:
    done = browser(page, "--dump-dom", fragment="#host=" + quote(name, safe=""))
    assert "owned</title>" not in done.stdout
    # The page's own: data and script.
    assert len(re.findall("<script", done.stdout)) == 2
    assert "<img" not in done.stdout
    view = done.stdout.partition('id="host-view"')[2].partition("<noscript")[0]
    assert name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") in view
    assert "CONSOLE" not in done.stderr
    if name == "gpu-r04-06":
        assert "platform.rail_state rail 3" in view
        assert "follows from another" in view
        assert "standing, since 2026-11-14" in view


@pytest.mark.parametrize(("width", "dark"), [(400, True), (1400, False)])
def test_it_fits_a_phone_and_a_desk_in_light_and_in_dark(page: Path, probe: Run, width: int, dark: bool) -> None:
    script = """
      const root = document.documentElement;
      return {inner: innerWidth, scroll: root.scrollWidth, back: getComputedStyle(document.body).backgroundColor};
    """
    found = probe(page, script, width=width, dark=dark, fragment="#host=gpu-r04-06")
    assert found["inner"] == width
    assert found["scroll"] <= width
    assert found["back"] == ("rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)")


def test_it_prints(page: Path, browser: Run, tmp_path: Path) -> None:
    browser(page, f"--print-to-pdf={tmp_path / 'report.pdf'}")
    data = (tmp_path / "report.pdf").read_bytes()
    assert data.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", data)) > 1


def test_the_keyboard_reaches_every_host_by_one_stop_and_the_arrows(page: Path, probe: Run) -> None:
    script = """
      const links = [...document.querySelectorAll("#map a")];
      const stops = () => links.filter((link) => link.tabIndex === 0).length;
      const before = stops();
      links[0].focus();
      const key = (name) =>
        document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key: name, bubbles: true}));
      key("ArrowRight"); key("ArrowDown"); key("ArrowLeft");
      const there = links.indexOf(document.activeElement);
      key("End");
      return {before, there, end: links.indexOf(document.activeElement) === links.length - 1, after: stops()};
    """
    assert probe(page, script) == {"before": 1, "there": 10, "end": True, "after": 1}


def test_a_screen_reader_finds_names_and_the_page_asks_for_nothing(page: Path, probe: Run) -> None:
    script = """
      const all = (selector) => [...document.querySelectorAll(selector)];
      const levels = all("h1,h2,h3,h4").map((heading) => Number(heading.tagName[1]));
      return {
        lang: document.documentElement.lang,
        h1: all("h1").length,
        jumps: levels.filter((level, i) => i && level > levels[i - 1] + 1).length,
        svg: all("svg:not([aria-label])").length,
        inputs: all("input").filter((input) => !input.labels.length).length,
        heads: all("th:not([scope])").length,
        links: all("a").filter((link) => !(link.textContent.trim() || link.ariaLabel)).length,
        ids: all("[id]").length - new Set(all("[id]").map((node) => node.id)).size,
        targets: all('nav a').filter((link) => !document.querySelector(link.getAttribute("href"))).length,
        requests: performance.getEntriesByType("resource").length, images: document.images.length,
        title: document.title,
      };
    """
    found = probe(page, script)
    # Without the page's policy, too, markup does nothing.
    assert found.pop("title").startswith("[simulated] Busbar drift")
    assert {name: value for name, value in found.items() if value != 0} == {"lang": "en", "h1": 1}


def luminance(colour: str) -> float:
    text = colour if len(colour) == 7 else "#" + "".join(2 * digit for digit in colour[1:])
    parts = [int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_stands_out_in_both_colour_schemes() -> None:
    """WCAG AA: 4.5 to 1."""
    style = (html.TEMPLATES / "report.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    schemes = [dict(re.findall(r"--(\w+): (#\w+)", block)) for block in blocks]
    assert len(schemes) == 2
    for scheme in schemes:
        on = {"fg": ("bg", "card", "del", "add"), "dim": ("bg", "card"), "link": ("bg",)}
        # Squares of the map of hosts.
        on["bg"] = ("critical",)
        on |= dict.fromkeys(("critical", "major", "minor", "ok", "open"), ("bg", "card"))
        for text, grounds in on.items():
            for ground in grounds:
                light, dark = sorted((luminance(scheme[text]), luminance(scheme[ground])), reverse=True)
                assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground, scheme)


@pytest.mark.parametrize(("hosts", "width"), [(8, 400), (1024, 1400)])
def test_results_beside_the_history_fit_the_page(hosts: int, width: int, probe: Run, tmp_path: Path) -> None:
    fleet = write(tmp_path / "drift.sqlite", 8)
    hostile = replace(TWO.jobs[1], hosts=(MARKUP,), collective=MARKUP, what=MARKUP, said=MARKUP)
    cluster_record.write(tmp_path, replace(TWO, jobs=(*TWO.jobs, hostile), asked=(*TWO.asked, MARKUP)))
    fabric_record.write(tmp_path, fabrics.swept(600, 30, 10))
    records.write(tmp_path, records.searched(hosts, 2 if hosts == 8 else 8))
    text = html.render({**fleet, "related": RelatedResults(tmp_path, "2026-11-21T02:00:00Z").sections()})
    assert len(text) - len(html.render(fleet)) < 100_000
    path = tmp_path / "related.html"
    path.write_text(text, "utf-8")
    script = """
      const all = (selector) => [...document.querySelectorAll(selector)];
      return {
        page: document.documentElement.scrollWidth,
        tables: all("section pre").length,
        images: document.images.length,
        levels: all("h1,h2,h3").map((heading) => Number(heading.tagName[1])).filter(
          (level, i, levels) => i && level > levels[i - 1] + 1).length,
      };
    """
    found = probe(path, script, width=width)
    assert found.pop("page") <= width
    assert found.pop("tables") >= 4
    assert not any(found.values())
