# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The HTML report in a real browser: Debian's Chromium without a window, by its own command line."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from busbar.drift import html
from tests import debian
from tests.report.fleet import write

HOSTS = 1000
# Tests run as root.
HEADLESS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
HEADLESS += ["--enable-logging=stderr"]
Browser = Callable[..., subprocess.CompletedProcess[str]]
Probe = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def chromium() -> str:
    lacking = debian.install({"chromium": "chromium fonts-dejavu-core"})
    found = shutil.which("chromium")
    if found is None:
        pytest.fail(f"the report is tested in a browser: {lacking}")
    return found


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of the last of twelve nights of 1,000 simulated hosts."""
    return write(tmp_path_factory.mktemp("fleet") / "drift.sqlite", HOSTS)


@pytest.fixture(scope="session")
def page(fleet: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html.render(fleet), encoding="utf-8")
    return path


@pytest.fixture
def browser(chromium: str, tmp_path: Path) -> Browser:
    """Opens a page, with the options given, and what the browser printed."""

    def run(path: Path, *options: str, width: int = 1400, dark: bool = False, fragment: str = "") -> Any:
        scheme = f"--blink-settings=preferredColorScheme={int(not dark)}"
        window = (f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},2000", scheme)
        argv = [chromium, *HEADLESS, *window, *options, path.as_uri() + fragment]
        return subprocess.run(argv, capture_output=True, text=True, timeout=1800, check=True)

    return run


@pytest.fixture
def probe(browser: Browser, tmp_path: Path) -> Probe:
    """What a script finds out that is put into a copy of the page, for which the page's policy is taken out.

    The copy is shown in a frame: a window of its own is never less than 500 pixels wide.
    """

    def run(path: Path, script: str, width: int = 1400, dark: bool = False, fragment: str = "") -> dict[str, Any]:
        text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", path.read_text(encoding="utf-8"))
        asked = f'addEventListener("load", () => parent.postMessage((() => {{ {script} }})(), "*"));'
        (tmp_path / "copy.html").write_text(text.replace("</body>", f"<script>{asked}</script></body>"), "utf-8")
        told = "document.body.dataset.told = encodeURIComponent(JSON.stringify(event.data));"
        frame = tmp_path / "frame.html"
        frame.write_text(
            '<!DOCTYPE html><meta name="color-scheme" content="light dark"><body>'
            f'<script>addEventListener("message", (event) => {{ {told} }});</script>'
            f'<iframe src="copy.html{fragment}" style="width: {width}px; height: 1500px; border: 0"></iframe>'
        )
        done = browser(frame, "--dump-dom", "--virtual-time-budget=20000", width=1500, dark=dark)
        found = re.search(r'data-told="([^"]*)"', done.stdout)
        assert found, done.stderr
        answer: dict[str, Any] = json.loads(unquote(found.group(1)))
        return answer

    return run
