# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""``busbar drift`` as a timer starts it, over simulated nodes that are directory trees."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.conftest import COMPILED

ROOT = Path(__file__).resolve().parent.parent.parent


class Done(NamedTuple):
    rc: int
    out: str
    err: str


Busbar = Callable[..., Done]


def environment(home: Path, **more: str) -> dict[str, str]:
    """Without the environment's own bin on PATH: `.venv/bin/busbar` has to find ansible by itself."""
    given = {"PATH": os.defpath, "HOME": str(home), "ANSIBLE_HOME": str(home / "ansible")}
    given["PYTHONPATH"] = f"{ROOT}{os.pathsep}{COMPILED}"
    return {**given, "LC_ALL": "C.UTF-8", **more}


def argv(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "busbar", *map(str, arguments)]


def hosts_of(lab: Path) -> dict[str, dict[str, Any]]:
    inventory = yaml.safe_load((lab / "inventory" / "hosts.yml").read_text())
    return dict(inventory["gpu_nodes"]["hosts"])


def write_inventory(folder: Path, hosts: dict[str, dict[str, Any]]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "hosts.yml").write_text(yaml.safe_dump({"gpu_nodes": {"hosts": hosts}}))
    return folder


@pytest.fixture
def busbar(tmp_path: Path) -> Busbar:
    """Runs the command away from the checkout; a traceback or a terminal escape fails the test whatever it is about."""

    def run(*arguments: str | Path, **more: str) -> Done:
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 1800}
        done = subprocess.run(argv(*arguments), cwd=tmp_path, env=environment(tmp_path, **more), check=False, **given)
        assert "Traceback" not in done.stdout + done.stderr
        assert not any(ord(char) < 32 and char not in "\n\t" for char in done.stdout + done.stderr)
        return Done(done.returncode, done.stdout, done.stderr)

    return run
