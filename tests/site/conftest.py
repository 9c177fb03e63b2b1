"""Whole playbook runs on simulated nodes, as a user starts them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from ansible_collections.busbar.fabric.plugins.module_utils.core.finding import SEVERITIES
from ansible_collections.busbar.fabric.plugins.plugin_utils import ansible_core

from tests.conftest import ANSIBLES_OUTPUT, COMPILED

ROOT = Path(__file__).resolve().parent.parent.parent


class Run(NamedTuple):
    rc: int
    out: str

    @property
    def verdict(self) -> str:
        """Return the verdict's text and what follows it."""
        return self.out[self.out.index("VERDICT") :]

    @property
    def rows(self) -> list[list[str]]:
        """Return the words of each finding's first line: severity, state, check, on, hosts, subject."""
        lines = [line.split() for line in self.verdict.splitlines()]
        return [words for words in lines if words[:1] and words[0] in SEVERITIES]


def recap(out: str, host: str) -> dict[str, int]:
    """What Ansible counted of a host; nothing of one that no task was for."""
    line = next((line for line in out.splitlines() if line.startswith(f"{host} ") and "changed=" in line), ":")
    counted = {key: int(value) for key, value in (word.split("=") for word in line.split(":")[1].split())}
    return counted or dict.fromkeys(("ok", "changed", "unreachable", "failed"), 0)


def changed(out: str) -> list[tuple[str, list[str]]]:
    """Tasks with the nodes on which Ansible's own output says that they changed something."""
    tasks = re.split(r"^TASK \[", out, flags=re.M)[1:]
    return [(task.partition("] *")[0], re.findall(r"^changed: \[(\w+)\]", task, re.M)) for task in tasks]


Play = Callable[..., Run]


@pytest.fixture(scope="session")
def oldest_python(oldest_python: str) -> str:
    if ansible_core.release() >= (2, 20):
        pytest.skip("since ansible-core 2.20 its own part of a module needs Python 3.9 on nodes")
    return oldest_python


SECRET = "hunter2-do-not-print"


class Demo(NamedTuple):
    """The runs that `make demo` shows: on fresh nodes, in check mode on broken ones, and on repaired ones, which stay,
    converged. python: of the nodes, the oldest that they may have, if it is here."""

    runs: list[Run]
    lab: Path
    python: str


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Demo:
    made = tmp_path_factory.mktemp("demo") / "lab"
    python = sys.executable
    # Where it is missing, the test that asks for it is skipped, and no other.
    with contextlib.suppress(pytest.skip.Exception):
        python = request.getfixturevalue("oldest_python")
    values = made.parent / "values.json"
    secrets = {"SITE_KEYS": SECRET}
    values.write_text(json.dumps({"ansible_python_interpreter": python, "nccl_benchmark_environment": secrets}))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    # Everything that a run does, and not one screen.
    environment |= {"ANSIBLE_VERBOSITY": "3", "DEMO_OPTIONS": f"-e @{values}"}
    argv = ["sh", "tests/demo.sh", str(made)]
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    shown = done.stdout.split("\x1b[1m$ ansible-playbook site.yml ")[1:]
    return Demo([Run(int(out.rpartition("exit code ")[2].split()[0]), out) for out in shown], made, python)


@pytest.fixture
def converged(demo: Demo) -> Path:
    """The lab as a run of site.yml leaves it: the demo's own, at its path, which files that were written may name."""
    pristine = demo.lab.with_name("pristine")
    if not pristine.exists():
        shutil.copytree(demo.lab, pristine, symlinks=True)
    shutil.rmtree(demo.lab)
    shutil.copytree(pristine, demo.lab, symlinks=True)
    return demo.lab


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Runs a playbook of the checkout with ansible.cfg out of sight unless the directory has it."""

    def run(*arguments: str | Path, playbook: str = "site.yml", cwd: Path = ROOT) -> Run:
        environment = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "ANSIBLE_HOME": str(tmp_path / "ansible"),
            "COLUMNS": "160",
            "LC_ALL": "C.UTF-8",
            "PYTHONPATH": COMPILED,
            **ANSIBLES_OUTPUT,
        }
        argv = ["ansible-playbook", str(ROOT / playbook), *map(str, arguments)]
        done = subprocess.run(argv, cwd=cwd, env=environment, capture_output=True, text=True, timeout=1800, check=False)
        return Run(done.returncode, done.stdout + done.stderr)

    return run
