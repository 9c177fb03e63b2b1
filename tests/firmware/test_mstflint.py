# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The real mstconfig and mstflint of Debian: what they take, and how they end where there is no card.

The lab's own have to say and do the same. What needs a card is written from the tools' sources alone.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.firmware import tools

from lab.toolkit import firmware_tools
from tests import debian

NOWHERE = "ffff:ff:1f.7"
PROGRAMS = {"mstconfig": "mstflint", "mstflint": "mstflint"}


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    lacking = debian.install(PROGRAMS)
    assert not lacking, lacking


@pytest.mark.parametrize("words", ["query", "-e query", "-e query LINK_TYPE_P1", "-y set LINK_TYPE_P1=2 ATS_ENABLED=0"])
def test_the_labs_mstconfig_says_what_debians_says(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["-d", NOWHERE, *words.split()]
    real = subprocess.run(["mstconfig", *arguments], capture_output=True, text=True, check=False)
    code = firmware_tools.main(["mstconfig", *arguments], str(tmp_path))
    first = [text.strip().splitlines()[:1] for text in (capsys.readouterr().out, real.stdout)]
    assert (code, first[0]) == (real.returncode, first[1])
    assert real.returncode == 3


def test_the_labs_mstflint_says_what_debians_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["-d", NOWHERE, "query"]
    real = subprocess.run(["mstflint", *arguments], capture_output=True, text=True, check=False)
    assert firmware_tools.main(["mstflint", *arguments], str(tmp_path)) == real.returncode == 1
    assert capsys.readouterr().out.split(".")[0] == real.stdout.strip().split(".")[0]


def test_debians_release_takes_the_suites_questions() -> None:
    with pytest.raises(ReadError, match=rf"mstconfig -d {NOWHERE} -e query ATS_ENABLED: exited with 3.*Failed to open"):
        tools.query(Host(), NOWHERE, ["ATS_ENABLED"])
    with pytest.raises(ReadError, match=r"mstflint -d .* query: exited with 1.*Cannot open Device"):
        tools.flash(Host(), NOWHERE)
