"""Whole playbook runs on simulated nodes, as a user starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from ansible_collections.busbar.fabric.plugins.plugin_utils import ansible_core

from busbar.lab import store

ROOT = Path(__file__).resolve().parent.parent.parent


class Run(NamedTuple):
    rc: int
    out: str

    @property
    def verdict(self) -> str:
        """The verdict's text, from the table's head to its last line."""
        start = min(i for i in (self.out.find("SEVERITY"), self.out.find("VERDICT")) if i >= 0)
        return self.out[start:]


Play = Callable[..., Run]


@pytest.fixture(scope="session")
def oldest_python(oldest_python: str) -> str:
    if ansible_core.release() >= (2, 20):
        pytest.skip("since ansible-core 2.20 its own part of a module needs Python 3.9 on nodes")
    return oldest_python


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    directory = tmp_path / "lab"
    store.create(directory)
    return directory


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
        }
        argv = ["ansible-playbook", str(ROOT / playbook), *map(str, arguments)]
        done = subprocess.run(argv, cwd=cwd, env=environment, capture_output=True, text=True, timeout=1800, check=False)
        return Run(done.returncode, done.stdout + done.stderr)

    return run
