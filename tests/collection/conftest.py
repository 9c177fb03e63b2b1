# Copyright: Busbar contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a user installs, away from the checkout: the collection without links, a lab, and a bare environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import archive

ROOT = Path(__file__).resolve().parent.parent.parent


class Run(NamedTuple):
    rc: int
    out: str

    @property
    def changed(self) -> dict[str, int]:
        """Host -> tasks that changed something, from the recap."""
        lines = [line for line in self.out.splitlines() if " changed=" in line and " unreachable=" in line]
        return {line.split()[0]: int(line.split("changed=")[1].split()[0]) for line in lines}


Execute = Callable[..., Run]


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the view with real files, in a git repository of its own: ansible-test passes over what git ignores.

    One copy a test file: ansible-test leaves its output in the copy that it looks at.
    """
    copy = archive.stage(tmp_path_factory.mktemp("staged"))
    commit(copy)
    return copy


def commit(directory: Path) -> None:
    """Makes a git repository of all that is there."""
    git = ["git", "-C", str(directory), "-c", "core.hooksPath=", "-c", "commit.gpgsign=false"]
    git += ["-c", "user.name=stage", "-c", "user.email=stage@localhost"]
    for command in (["init", "--quiet"], ["add", "--all", "--force"], ["commit", "--quiet", "--message=staged"]):
        subprocess.run([*git, *command], check=True, capture_output=True)


@pytest.fixture
def repository(clone: Path) -> Path:
    """The same, as a git repository."""
    commit(clone)
    return clone


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What a clone would hold if the working tree, as it stands, were committed."""
    directory = tmp_path / "clone"
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        source, target = ROOT / name, directory / name
        if source.is_symlink() or source.is_file():  # a file may be deleted and not committed
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return directory


@pytest.fixture
def unrelated(tmp_path: Path) -> Path:
    """A working directory with nothing in it."""
    directory = tmp_path / "unrelated"
    directory.mkdir()
    return directory


@pytest.fixture
def execute(tmp_path: Path, unrelated: Path) -> Execute:
    """Runs a command that sees nothing of the checkout: no ansible.cfg, no PYTHONPATH, an empty home."""

    def run(*argv: str | Path, cwd: Path = unrelated, stdin: str = "", **variables: str | Path) -> Run:
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LC_ALL": "C.UTF-8", "COLUMNS": "160"}
        environment |= {name: str(value) for name, value in variables.items()}
        done = subprocess.run(
            [str(word) for word in argv],
            cwd=cwd,
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
        return Run(done.returncode, done.stdout + done.stderr)

    return run


@pytest.fixture
def bin_directory() -> Path:
    """Where this environment's commands are."""
    return Path(sys.executable).parent
