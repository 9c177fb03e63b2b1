"""A lab of two containers, made once. Needs podman and mmdebstrap, and fails without them: `make containers`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab import store

ROOT = Path(__file__).resolve().parent.parent.parent
Busbar = Callable[..., subprocess.CompletedProcess[str]]


def run(*argv: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "COLUMNS": "160",
    }
    return subprocess.run(
        list(map(str, argv)), cwd=cwd, env=environment, capture_output=True, text=True, timeout=1800, check=False
    )


def busbar(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "lab", *arguments)


@pytest.fixture(scope="session")
def _lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("containers") / "lab"
    try:
        done = busbar("up", "-d", directory)
        assert done.returncode == 0, done.stdout + done.stderr
        yield directory
    finally:
        busbar("down", "-d", directory)


@pytest.fixture
def lab(_lab: Path) -> Iterator[Path]:
    """Two healthy nodes, repaired after each test."""
    yield _lab
    for node in store.nodes(_lab):
        store.repair(_lab, node)


@pytest.fixture
def on(lab: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a command on a node, as ssh does it for everybody else."""
    return lambda node, *argv: run("ssh", "-F", lab / "ssh_config", node, *argv)
