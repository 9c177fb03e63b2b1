# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The real mstconfig, mstfwreset and mstflint of Debian: what they take, and how they end where there is no card.

The lab's own have to say and do the same. What needs a card is written from the tools' sources alone.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.host import Host, ReadError
from ansible_collections.busbar.fabric.plugins.module_utils.firmware import tools

from lab.toolkit import firmware_tools
from tests import debian
from tests.trees import put, tool

NOWHERE = "ffff:ff:1f.7"
PROGRAMS = {"mstconfig": "mstflint", "mstfwreset": "mstflint", "mstflint": "mstflint"}


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    lacking = debian.install(PROGRAMS)
    assert not lacking, lacking


@pytest.fixture
def lab(tmp_path: Path) -> str:
    put(tmp_path, firmware_tools.NODE, json.dumps({"release": "old"}))
    return str(tmp_path)


ON = f"-d {NOWHERE}"


@pytest.mark.parametrize(
    "words",
    [
        *("", "-e query", "-d"),
        *(f"{ON} {more}" for more in ("query", "-e query", "-e q LINK_TYPE_P1", "-j /dev/null -e query", "frob")),
        *(f"{ON} {more}" for more in ("-y set", "-y set LINK_TYPE_P1", "-y set LINK_TYPE_P1=2 ATS_ENABLED=0")),
        f"{ON} -z query",
    ],
)
def test_the_labs_mstconfig_says_what_debians_says(words: str, lab: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = words.split()
    real = subprocess.run(["mstconfig", *arguments], capture_output=True, text=True, check=False)
    code = firmware_tools.main(["mstconfig", *arguments], lab)
    first = [text.strip().splitlines()[:1] for text in (capsys.readouterr().out, real.stdout)]
    assert (code, first[0]) == (real.returncode, first[1])
    assert real.returncode == 3


@pytest.mark.parametrize("words", ["query", f"{ON} -l 9 reset", ON, f"{ON} -l x -y reset"])
def test_the_labs_mstfwreset_takes_what_debians_takes(words: str, lab: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = words.split()
    real = subprocess.run(["mstfwreset", *arguments], capture_output=True, text=True, check=False)
    assert (firmware_tools.main(["mstfwreset", *arguments], lab), 2) == (real.returncode, real.returncode)
    assert capsys.readouterr().err.startswith("usage: mstfwreset")
    assert real.stderr.startswith("usage: mstfwreset")


def test_with_secure_boot_the_labs_mstfwreset_says_what_debians_says(
    lab: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool(tmp_path, "bin/mokutil", "echo SecureBoot enabled")
    path = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    arguments = ["-d", NOWHERE, "-l", "3", "-y", "reset"]
    real = subprocess.run(["mstfwreset", *arguments], capture_output=True, text=True, check=False, env=path)
    Path(lab + firmware_tools.NODE).write_text(json.dumps({"release": "old", "secure_boot": True}))
    assert (firmware_tools.main(["mstfwreset", *arguments], lab), real.returncode) == (1, 1)
    assert capsys.readouterr().out == real.stdout == "-E- The tool supports only reset-level 4 on UEFI Secure Boot.\n"


def test_the_labs_mstflint_says_what_debians_says(lab: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["-d", NOWHERE, "query"]
    real = subprocess.run(["mstflint", *arguments], capture_output=True, text=True, check=False)
    assert firmware_tools.main(["mstflint", *arguments], lab) == real.returncode == 1
    assert capsys.readouterr().out.split(".")[0] == real.stdout.strip().split(".")[0]


def test_debians_release_takes_the_suites_questions() -> None:
    with pytest.raises(ReadError, match=rf"mstconfig -d {NOWHERE} -e query ATS_ENABLED: exited with 3.*Failed to open"):
        tools.query(Host(), NOWHERE, ["ATS_ENABLED"])
    with pytest.raises(ReadError, match=r"mstflint -d .* query: exited with 1.*Cannot open Device"):
        tools.flash(Host(), NOWHERE)
