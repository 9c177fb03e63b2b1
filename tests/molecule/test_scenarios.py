# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The scenarios of all roles on as few nodes as they go together on; long: each as `molecule test` plays it alone."""

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
from _pytest.mark import ParameterSet
from ansible_collections.busbar.fabric.plugins.plugin_utils import suite

ROOT = Path(__file__).resolve().parent.parent.parent
# In the order in which they are played, those of the suite first.
ORDER = [role.name for role in suite.SUITE]
ROLES = sorted(
    (path.name for path in (ROOT / "roles").iterdir() if path.is_dir()),
    key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name),
)
# With what may be disturbed in its scenario other roles would have the node rebooted.
ALONE = {"reboot"}
SCENARIO = "molecule/default"


def platform(role: str) -> dict[str, object]:
    """Role's node as its molecule.yml has it."""
    path = ROOT / "roles" / role / SCENARIO / "molecule.yml"
    assert path.is_file(), f"role {role} has no scenario"
    return dict((yaml.safe_load(path.read_text()).get("platforms") or [{"name": "node01"}])[0])


def nodes(*keys: str) -> list[list[str]]:
    """Roles whose nodes have the same values of these keys, or of all, those of a busy node first."""
    made: dict[str, list[str]] = {}
    for role in ROLES:
        own = platform(role)
        made.setdefault(json.dumps([own.get(key) for key in keys] or own), []).append(role)
    return sorted(made.values(), key=lambda roles: -len(roles))


def scenarios() -> Iterator[ParameterSet]:
    """A node of each kind for all its roles, in brief; each node of its own as it is, in full."""
    for roles in nodes("name", "ofed"):
        yield pytest.param([role for role in roles if role not in ALONE], True, id="+".join(roles))
    for roles in nodes():
        yield pytest.param(roles, False, id=f"{'+'.join(roles)}, in full", marks=pytest.mark.long)


class Played(NamedTuple):
    """What `molecule test` said of a scenario, where the results of verify lie as JUnit's XML, and its seconds."""

    rc: int
    output: str
    report: Path
    seconds: float


Scenario = Callable[[list[str], bool], Played]


def play(roles: list[str], brief: bool, report: Path) -> Played:
    """Plays the scenario of the first of these roles, with the tests of all of them; brief: without the long ones."""
    first, *others = (ROOT / "roles" / role / SCENARIO for role in roles)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "MOLECULE_", "BUSBAR_MOLECULE_"))
    }
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["BUSBAR_MOLECULE_ROLES"] = ",".join(roles)
    environment["MOLECULE_EPHEMERAL_DIRECTORY"] = str(report.with_suffix(""))
    options = [
        "-vv",
        f"--junitxml={report}",
        *(["-m 'not long'"] if brief else []),
        *(f"{other}/tests" for other in others),
    ]
    environment["PYTEST_ADDOPTS"] = " ".join(options)
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
    asked = [test.callspec.params for test in tests if test.originalname == test_scenario.__name__]
    # What is played in full proves what is played in brief, and both would be the same scenario of molecule.
    brief = all(cast("bool", one["brief"]) for one in asked)
    reports = tmp_path_factory.mktemp("reports")
    with ThreadPoolExecutor(int(os.environ.get("BUSBAR_MOLECULE_JOBS", "1"))) as pool:
        begun = {
            roles[0]: pool.submit(play, roles, brief, reports / f"{roles[0]}.xml")
            for roles in (cast("list[str]", one["roles"]) for one in asked if one["brief"] is brief)
        }

        def result(roles: list[str], wanted: bool) -> Played:
            if wanted is not brief:
                pytest.skip("the scenarios of these roles are played in full")
            return begun[roles[0]].result()

        yield result
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(("roles", "brief"), [*scenarios()])
def test_scenario(
    roles: list[str], brief: bool, scenario: Scenario, record_property: Callable[[str, object], None]
) -> None:
    done = scenario(roles, brief)
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
