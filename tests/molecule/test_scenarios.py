# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The scenario of every role, as `molecule test` in its directory runs it. Those that want the same node share it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, cast
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


class Played(NamedTuple):
    """What `molecule test` said of a scenario, where the results of verify lie as JUnit's XML, and its seconds."""

    rc: int
    output: str
    report: Path
    seconds: float


Scenario = Callable[[list[str]], Played]


def play(roles: list[str], report: Path) -> Played:
    """Plays the scenario of the first of these roles, with the tests of all of them."""
    first, *others = (ROOT / "roles" / role / SCENARIO for role in roles)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "MOLECULE_", "BUSBAR_MOLECULE_"))
    }
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["BUSBAR_MOLECULE_ROLES"] = ",".join(roles)
    environment["PYTEST_ADDOPTS"] = " ".join([f"--junitxml={report}", *(f"{other}/tests" for other in others)])
    environment["NO_COLOR"] = "1"
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "molecule", "test"],
        cwd=first.parent.parent,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Played(done.returncode, done.stdout, report, time.monotonic() - started)


@pytest.fixture(scope="session")
def scenario(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenario]:
    """Waits for a scenario. All that are asked for are played, BUSBAR_MOLECULE_JOBS at a time, in their order.

    No workers of xdist: each of them holds the test after its own, so that two long scenarios are played one after the
    other by one of them while the others have nothing to do.
    """
    tests = [item for item in request.session.items if isinstance(item, pytest.Function)]
    asked = [
        cast("list[str]", test.callspec.params["roles"])
        for test in tests
        if test.originalname == test_scenario.__name__
    ]
    reports = tmp_path_factory.mktemp("reports")
    with ThreadPoolExecutor(int(os.environ.get("BUSBAR_MOLECULE_JOBS", "1"))) as pool:
        begun = {roles[0]: pool.submit(play, roles, reports / f"{roles[0]}.xml") for roles in asked}
        yield lambda roles: begun[roles[0]].result()
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("roles", nodes(), ids="+".join)
def test_scenario(roles: list[str], scenario: Scenario, record_property: Callable[[str, object], None]) -> None:
    for role in roles:
        assert (ROOT / "roles" / role / SCENARIO / "molecule.yml").is_file(), f"role {role} has no scenario"
    done = scenario(roles)
    record_property("seconds", done.seconds)
    assert done.rc == 0, done.output
    # Molecule counts a verify without tests as done.
    assert done.report.is_file(), f"verify did not run\n{done.output}"
    cases = ElementTree.parse(done.report).findall(".//testcase")
    assert [case.get("name") for case in cases if len(case)] == [], done.output
    modules = {str(case.get("classname")) for case in cases}
    assert modules == {
        "tests.molecule.test_drift",
        *(f"roles.{role}.{SCENARIO.replace('/', '.')}.tests.test_default" for role in roles),
    }, done.output
