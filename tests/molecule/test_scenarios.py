# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The scenario of every role, as `molecule test` in the role's directory runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())


@pytest.mark.parametrize("role", ROLES)
def test_scenario(role: str, tmp_path: Path) -> None:
    assert (ROOT / "roles" / role / "molecule/default/molecule.yml").is_file(), f"role {role} has no scenario"
    report = tmp_path / "verify.xml"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MOLECULE_"))}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["PYTEST_ADDOPTS"] = f"--junitxml={report}"
    environment["NO_COLOR"] = "1"
    done = subprocess.run(
        [sys.executable, "-m", "molecule", "test"],
        cwd=ROOT / "roles" / role,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    # Molecule counts a verify without tests as done.
    assert report.is_file(), f"verify did not run\n{done.stdout}"
    cases = ElementTree.parse(report).findall(".//testcase")
    assert [case.get("name") for case in cases if len(case)] == [], done.stdout
    modules = {str(case.get("classname")).rpartition(".")[2] for case in cases}
    assert modules == {"test_default", "test_drift"}, done.stdout
