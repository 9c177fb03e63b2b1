# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A checkout and ansible-core are enough: nothing has to be installed."""

from __future__ import annotations

import os
import re
import subprocess
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
Execute = Callable[..., Any]


@pytest.fixture(scope="module")
def only_core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands are of an environment with ansible-core and what it depends on."""
    if os.environ.get("BUSBAR_OFFLINE") == "1":
        pytest.skip("BUSBAR_OFFLINE=1 forbids to download ansible-core")
    directory = tmp_path_factory.mktemp("only-core")
    venv.create(directory, with_pip=True, symlinks=True)
    command = [str(directory / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    command += ["--no-compile", "--constraint", str(ROOT / "constraints.txt"), "ansible-core"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr[-600:]} (BUSBAR_OFFLINE=1 skips)"
    return directory / "bin"


def test_the_nightly_check_says_what_it_lacks_there(execute: Execute, only_core: Path, clone: Path, lab: Path) -> None:
    done = execute(only_core / "python", "-m", "busbar", "drift", "-i", lab / "inventory", cwd=clone)
    assert done.rc == 1
    assert f"not installed: {only_core / 'python'} -m pip install ansible-runner" in done.out


@pytest.mark.long
def test_a_clone_runs_from_its_own_directory_and_from_another(
    execute: Execute, only_core: Path, clone: Path, lab: Path
) -> None:
    # On the node for which every role has something to do.
    ansible_playbook, arguments = only_core / "ansible-playbook", ("-i", lab / "inventory", "--limit", "node02")
    inside = execute(ansible_playbook, "site.yml", *arguments, cwd=clone)
    assert inside.rc == 0, inside.out
    assert "VERDICT OK: 1 of 1 hosts ok" in inside.out
    # The clone's ansible.cfg has one line a role.
    assert re.search(r"^mtu +1 host +\d+:\d\d  1 changed$", inside.out, re.MULTILINE), inside.out
    assert re.search(r"^1 host in \d+:\d\d: 1 changed$", inside.out, re.MULTILINE), inside.out
    outside = execute(ansible_playbook, clone / "site.yml", *arguments)
    assert outside.rc == 0, outside.out
    assert "VERDICT OK: 1 of 1 hosts ok" in outside.out
    assert outside.changed == {"node02": 0}
