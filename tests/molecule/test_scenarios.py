# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The scenario of every role, as `molecule test` in its directory runs it. Those that want the same node share it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())
SCENARIO = "molecule/default"


def nodes() -> list[list[str]]:
    """Roles whose molecule.yml say the same of their node, those of a busy node first."""
    made: dict[str, list[str]] = {}
    for role in ROLES:
        path = ROOT / "roles" / role / SCENARIO / "molecule.yml"
        node = json.dumps(yaml.safe_load(path.read_text())) if path.is_file() else f"none for {role}"
        made.setdefault(node, []).append(role)
    return sorted(made.values(), key=lambda roles: -len(roles))


@pytest.mark.parametrize("roles", nodes(), ids="+".join)
def test_scenario(roles: list[str], tmp_path: Path) -> None:
    first, *others = (ROOT / "roles" / role / SCENARIO for role in roles)
    assert (first / "molecule.yml").is_file(), f"role {roles[0]} has no scenario"
    report = tmp_path / "verify.xml"
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "MOLECULE_", "BUSBAR_MOLECULE_"))
    }
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["BUSBAR_MOLECULE_ROLES"] = ",".join(roles)
    environment["PYTEST_ADDOPTS"] = " ".join([f"--junitxml={report}", *(f"{other}/tests" for other in others)])
    environment["NO_COLOR"] = "1"
    done = subprocess.run(
        [sys.executable, "-m", "molecule", "test"],
        cwd=first.parent.parent,
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
    modules = {str(case.get("classname")) for case in cases}
    assert modules == {
        "tests.molecule.test_drift",
        *(f"roles.{role}.{SCENARIO.replace('/', '.')}.tests.test_default" for role in roles),
    }, done.stdout
